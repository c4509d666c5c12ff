"""Routing as pure functions: keys to bytes, keys to shards, members to parts."""
