"""Packed."""
