"""Celery and kombu over shards: a transport of kombu, and a result backend of Celery.

An import of this module registers the scheme of their URLs, ``shardkit://jobs``. ``jobs`` is a
component, sharded or not, of servers or of clusters. Without a query the topology is the default
kit's, as ``$SHARDKIT_CONFIG`` or `shardkit.configure` says;
``shardkit://jobs?config=redis://10.0.0.1:6379/0`` names a config server, and
``?config=/etc/shardkit.yaml`` a shard map. What follows ``?config=`` is read as it is.
"""

from __future__ import annotations

from shardkit.errors import extra

with extra("celery", "Celery over shards"):
    from celery.app.backends import BACKEND_ALIASES
    from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["shardkit"] = "shardkit.integrations.celery.transport:Transport"
BACKEND_ALIASES["shardkit"] = "shardkit.integrations.celery.backend:ShardKitBackend"
