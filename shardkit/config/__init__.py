"""Entries and shard maps: what they may say, where they are kept, how they are changed."""
