"""Larger programs that use shardkit; the wheel does not have them."""
