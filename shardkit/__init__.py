"""Sharding-aware middleware for Redis and Valkey.

``connect`` and ``aconnect`` open a topology; what they return hands out everything else. See the
README for a tour, and ``shardkit.errors`` for the tree of errors.
"""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)

__version__ = "0.1.0"
