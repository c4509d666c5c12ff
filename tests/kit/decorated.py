"""Decorated functions in a module, as users have them: imported before anything is configured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import redis
import redis.asyncio as aioredis

import shardkit

Day = str


@shardkit.redis_connection("both")
def set_expected(conn: redis.Redis, day: Day, count: int = 0) -> bool:
    """Set how many visitors a day is expected to have."""
    return bool(conn.set(f"expected:{day}", count))


@shardkit.sharded_connection("many", shards=16)
def count_visit(conn: redis.Redis, session: Day, *, by: int = 1) -> int:
    """Count a visit."""
    return int(conn.incrby(f"visits:{session}", by))


@shardkit.sharded_connection("many", shards=16)
async def acount_visit(conn: aioredis.Redis, session: Day) -> int:
    """Count a visit, awaiting."""
    return int(await conn.incrby(f"visits:{session}", 1))


@shardkit.sharded_connection("many")
def visits(conn: redis.Redis, *sessions: Day) -> Iterator[int]:
    """Generate visits."""
    for session in sessions:
        yield int(conn.get(f"visits:{session}") or 0)


@shardkit.sharded_connection("many")
async def avisits(conn: aioredis.Redis, *sessions: Day) -> AsyncIterator[int]:
    """Generate visits, awaiting."""
    for session in sessions:
        yield int(await conn.get(f"visits:{session}") or 0)


class Timeline:
    """A class with decorated methods of all kinds."""

    name = "timeline"

    def __init__(self, user: int) -> None:
        self.user = user

    @shardkit.sharded_connection("many", key="post")
    def add(self, conn: redis.Redis, text: str, post: int) -> tuple[int, Any]:
        """Add a post."""
        return self.user, conn.set(f"post:{post}", text)

    @shardkit.sharded_connection("many")
    async def aget(self, conn: aioredis.Redis, post: str) -> tuple[int, Any]:
        return self.user, await conn.get(post)

    @classmethod
    @shardkit.redis_connection("one")
    def of(cls, conn: redis.Redis, user: int) -> tuple[str, Any]:
        return cls.name, conn.echo(str(user))

    @staticmethod
    @shardkit.redis_connection("one")
    def echo(conn: redis.Redis, text: str) -> Any:
        return conn.echo(text)

    @shardkit.redis_connection("one")
    @classmethod
    async def aof(cls, conn: aioredis.Redis, user: int) -> tuple[str, Any]:
        return cls.name, await conn.echo(str(user))

    @shardkit.redis_connection("one")
    @staticmethod
    async def aecho(conn: aioredis.Redis, text: str) -> Any:
        return await conn.echo(text)

    @shardkit.sharded_connection("many")
    def posts(self, conn: redis.Redis, *posts: str) -> Iterator[Any]:
        yield self.user
        for post in posts:
            yield conn.get(post)

    @shardkit.sharded_connection("many")
    async def aposts(self, conn: aioredis.Redis, *posts: str) -> AsyncIterator[Any]:
        yield self.user
        for post in posts:
            yield await conn.get(post)
