"""Unique."""
