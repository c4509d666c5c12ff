"""Cached functions: computed once by all processes together, invalidated by key and by tag."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
