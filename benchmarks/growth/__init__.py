"""Moves, reads from replicas and durable writes, timed."""
