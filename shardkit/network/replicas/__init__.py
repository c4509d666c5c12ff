"""Reads from replicas, and writes that are on replicas or on disk; see docs/replicas.md."""

from shardkit.config.read_from import ReadFrom
from shardkit.network.replicas.replicas import session

__all__ = ["ReadFrom", "session"]
