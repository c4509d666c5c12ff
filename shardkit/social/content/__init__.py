"""Statuses, in Redis and on disk, and timelines."""
