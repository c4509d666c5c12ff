"""Logs, counters, statistics, access times and the maintenance flag."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
