"""Finds data that is not stored compactly, and fixes it."""
