"""Hits of cached functions beside other caches: ``python benchmarks/cached.py``.

All use one server, and a value of 100 bytes as JSON. They take turns in short rounds, so that other
load affects all; a figure is the shortest round's. What is not installed is left out: ``pip install
'cashews[redis]' aiocache django-redis valkey-glide``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis
from redis.cache import CacheConfig
from report import conditions, save, show

import shardkit
from shardkit.local import LocalServer

VALUE = {"name": "user 7", "mail": "user@example.com", "groups": list(range(12))}
ROUNDS, SECONDS = 40, 0.01
Calls = dict[str, Callable[[], Any]]


def in_process(kit: shardkit.ShardKit) -> Calls:
    """Return calls that hit in the process."""
    known = {"cached:{near:7}": VALUE}

    @functools.lru_cache
    def lru(user: int) -> Any:
        return VALUE

    @kit.cached("cache", ttl=3600, key="near:{user}", near=1_000_000, max_age=5)
    def near(user: int) -> Any:
        return VALUE

    for _ in range(50):  # until the server announces changes
        near(7)
        time.sleep(0.02)
    return {
        "a dictionary": lambda: known[f"cached:{{near:{7}}}"],
        "functools.lru_cache": lambda: lru(7),
        "kit.cached, near": lambda: near(7),
    }


def of_a_server(kit: shardkit.ShardKit, port: int) -> Calls:
    """Return blocking calls that hit on the server, or in redis-py's own copies of it."""

    @kit.cached("cache", ttl=3600, key="user:{user}")
    def cached(user: int) -> Any:
        return VALUE

    client = redis.Redis(port=port)
    client.set("plain", json.dumps(VALUE))
    calls: Calls = {
        "redis-py, GET and JSON": lambda: json.loads(client.get("plain")),
        "kit.cached": lambda: cached(7),
    }
    with suppress(redis.ConnectionError):  # it refuses servers older than Redis 7.4, and Valkey
        copies = redis.Redis(port=port, protocol=3, cache_config=CacheConfig())
        copies.get("plain")
        calls["redis-py's copies, GET and JSON"] = lambda: json.loads(copies.get("plain"))
    with suppress(ImportError):
        import django.conf
        from django_redis.cache import RedisCache

        django.conf.settings.configure()
        found = RedisCache(f"redis://127.0.0.1:{port}/1", {})
        found.set("plain", VALUE)
        calls["django-redis"] = lambda: found.get("plain")
    return calls


async def awaited(kit: shardkit.ShardKit, port: int) -> Calls:
    """Return awaited calls."""

    @kit.cached("cache", ttl=3600, key="user:{user}")
    async def cached(user: int) -> Any:
        return VALUE

    client = redis.asyncio.Redis(port=port)

    async def plain() -> Any:
        return json.loads(await client.get("plain"))

    calls: Calls = {"redis-py, GET and JSON": plain, "kit.cached": lambda: cached(7)}
    with suppress(ImportError):
        from cashews import Cache

        cache = Cache()
        cache.setup(f"redis://127.0.0.1:{port}/2")

        @cache(ttl="1h", key="user:{user}")
        async def by_cashews(user: int) -> Any:
            return VALUE

        calls["cashews"] = lambda: by_cashews(7)
        near = Cache()
        near.setup(f"redis://127.0.0.1:{port}/3", client_side=True)

        @near(ttl="1h", key="user:{user}")
        async def near_cashews(user: int) -> Any:
            return VALUE

        calls["cashews, client side"] = lambda: near_cashews(7)
    with suppress(ImportError):
        import aiocache
        from aiocache.serializers import JsonSerializer

        options: Any = {"cache": aiocache.RedisCache, "endpoint": "127.0.0.1", "port": port}

        @aiocache.cached(ttl=3600, serializer=JsonSerializer(), **options)  # type: ignore[untyped-decorator]
        async def by_aiocache(user: int) -> Any:
            return VALUE

        calls["aiocache"] = lambda: by_aiocache(7)
    with suppress(ImportError):
        import glide

        copies = glide.ClientSideCache.create(1000, 3_600_000, server_assisted=True)
        near_glide: Any = await glide.GlideClient.create(
            glide.GlideClientConfiguration(
                [glide.NodeAddress("127.0.0.1", port)],
                client_side_cache=copies,
            )
        )

        async def by_glide() -> Any:
            return json.loads(await near_glide.get("plain"))

        calls["GLIDE's copies, GET and JSON"] = by_glide
    return calls


def fastest(rounds: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Return the microseconds of a call in the shortest round of each."""
    times, found = {}, dict.fromkeys(rounds, float("inf"))
    for name, run in rounds.items():
        run(3)
        began = time.perf_counter()
        run(20)
        times[name] = max(20, round(SECONDS * 20 / (time.perf_counter() - began)))
    for _ in range(ROUNDS):
        for name, run in rounds.items():
            began = time.perf_counter()
            run(times[name])
            took = (time.perf_counter() - began) / times[name]
            found[name] = min(found[name], 1e6 * took)
    return found


def main() -> None:
    """Measure, show and save."""
    loop = asyncio.new_event_loop()
    with LocalServer() as server:
        shard_map = {"components": {"cache": {"entry": {"port": server.port}}}}
        with shardkit.connect(shardkit.ShardMap.parse(json.dumps(shard_map))) as kit:
            calls = in_process(kit) | of_a_server(kit, server.port)

            def blocking(call: Callable[[], Any], count: int) -> None:
                for _ in range(count):
                    call()

            async def several(call: Callable[[], Any], count: int) -> None:
                for _ in range(count):
                    await call()

            rounds: dict[str, Callable[[int], None]] = {
                name: functools.partial(blocking, call) for name, call in calls.items()
            }
            for name, call in loop.run_until_complete(awaited(kit, server.port)).items():
                rounds[f"await {name}"] = lambda count, call=call: loop.run_until_complete(
                    several(call, count)
                )
            found = fastest(rounds)
            loop.run_until_complete(kit.aclose())
    figures = {name: {"us": round(us, 2)} for name, us in found.items()}
    show("Hits", ["cache", "microseconds"], [(name, us) for name, us in found.items()])
    save("cached", {"conditions": conditions(), "figures": figures})


if __name__ == "__main__":
    main()
