"""Asks rb, redis-shard, django-redis, uhashring and hashlib; run by their own Python."""

from __future__ import annotations

import hashlib
import json
import sys
from types import SimpleNamespace
from zlib import crc32


class Hosts:  # of rb; SimpleNamespace has no weak references
    def __init__(self, count):
        self.hosts = {n: n for n in range(count)}


def rb(case, keys):
    from rb.router import ConsistentHashingRouter, PartitionRouter

    cluster = Hosts(case["shards"])
    router = (ConsistentHashingRouter if "router" in case else PartitionRouter)(cluster)
    return [router.get_host_for_key(key) for key in keys]


def redis_shard(case, keys):
    from redis_shard.shard import RedisShardAPI

    servers = [{"name": name, "host": "127.0.0.1", "port": 1} for name in case["names"]]
    api = RedisShardAPI(servers, hash_method=case.get("hash", "crc32"))

    def place(key):
        try:
            return case["names"].index(api.get_server_name(key))
        except UnicodeEncodeError:
            return None

    return list(map(place, keys))


def django_redis(case, keys):
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django_redis.client.sharded import ShardClient
    from django_redis.hash_ring import HashRing

    HashRing.nodes = []  # which all rings share
    client = SimpleNamespace(_findhash=ShardClient._findhash, _ring=HashRing(case["names"]))
    return [case["names"].index(ShardClient.get_server_name(client, key)) for key in keys]


def uhashring(case, keys):
    from uhashring import HashRing

    weights = case.get("weights", [1] * case["shards"])
    ring = HashRing(dict(zip(case["names"], weights, strict=True)), hash_fn="ketama")
    return [case["names"].index(ring.get_node(key)) for key in keys]


def whole(case, keys):
    kind, count = case["name"].partition(":")[2], case["shards"]
    if kind == "crc32":
        return [crc32(key.encode()) % count for key in keys]
    return [int(hashlib.new(kind, key.encode()).hexdigest(), 16) % count for key in keys]


asked = json.load(sys.stdin)
programs = {"rb": rb, "redis-shard": redis_shard, "django-redis": django_redis}
programs |= {"uhashring": uhashring}
json.dump(
    [programs.get(case["name"], whole)(case, asked["keys"]) for case in asked["cases"]], sys.stdout
)
