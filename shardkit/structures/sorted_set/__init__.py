"""Sorted set."""
