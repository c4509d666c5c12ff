"""Messaging against what one would write with redis-py."""
