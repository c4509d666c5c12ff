"""Messaging over shards: mailboxes, group chat, files for many readers, totals of records."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
