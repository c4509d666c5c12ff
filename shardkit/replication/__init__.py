"""Reads from replicas, and writes that are on replicas or on disk; see docs/replicas.md."""

from shardkit.config.read_from import ReadFrom
from shardkit.replication.replicas import session

__all__ = ["ReadFrom", "session"]
