"""Writes with rb, django-redis, a hand-written router, or redis-py through twemproxy.

Run by a Python that has them: ``python writes.py PROGRAM URL...``; commands are on standard input.
"""

from __future__ import annotations

import sys
from urllib.parse import urlsplit
from zlib import crc32


def fields(url):
    found = urlsplit(url)
    return {"host": found.hostname, "port": found.port, "db": int(found.path[1:])}


def rb(urls):
    from rb import Cluster

    return Cluster(dict(enumerate(map(fields, urls)))).get_routing_client()


def django_redis(urls):
    from django.conf import settings

    client = "django_redis.client.ShardClient"
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": urls}
    settings.configure(CACHES={"default": {**cache, "OPTIONS": {"CLIENT_CLASS": client}}})
    from django.core.cache import cache

    return cache


def whole(urls):
    from redis import Redis

    clients = [Redis(**fields(url)) for url in urls]

    class Router:
        def execute_command(self, name, key, *words):
            return clients[crc32(key.encode()) % len(clients)].execute_command(name, key, *words)

    return Router()


def twemproxy(urls):
    from redis import Redis

    return Redis.from_url(urls[0], protocol=2, driver_info=None)


def main(program, *urls):
    programs = {"rb": rb, "django-redis": django_redis, "whole:crc32": whole}
    client = {**programs, "twemproxy": twemproxy}[program](list(urls))
    for line in sys.stdin:
        name, key, *words = line.rstrip("\n").split("\t")
        if program != "django-redis":
            reply = client.execute_command(name, key, *words)
            reply = reply.decode() if isinstance(reply, bytes) else reply
        elif name == "SET":
            client.set(key, words[0], timeout=None)
        elif name == "SETEX":
            client.set(key, words[1], timeout=int(words[0]))
        elif name == "GET":
            reply = client.get(key)
        if name == "GET":
            print(reply)


main(*sys.argv[1:])
