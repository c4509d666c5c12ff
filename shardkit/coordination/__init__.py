"""Coordination of processes: locks and their kin, latches, elections, rate limits."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
