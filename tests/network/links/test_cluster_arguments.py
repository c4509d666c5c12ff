"""What clients of a cluster take as redis-py's do: kinds of keys, and commands without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis
from link_helpers import FACES, mapped, of, opened

from shardkit.local import LocalCluster


@pytest_asyncio.fixture(params=FACES)
async def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> AsyncIterator[Any]:
    async with opened(request.param, mapped(cluster.entry.fields)) as face:
        yield await of(face.kit.client("data"))


async def test_a_key_may_be_a_float(client: Any) -> None:
    assert await of(client.set(1.5, "a")) is True
    assert await of(client.set(2.5, "b")) is True
    assert await of(client.get("1.5")) == b"a"
    assert await of(client.mget_nonatomic(1.5, 2.5)) == [b"a", b"b"]
    assert await of(client.pipeline().get(1.5).get(2.5).execute()) == [b"a", b"b"]
    assert await of(client.pipeline(transaction=True).get(1.5).execute()) == [b"a"]
    assert await of(client.touch(1.5, 2.5)) == 2
    assert await of(client.unlink(1.5)) == 1
    assert await of(client.delete(1.5, 2.5)) == 1


async def test_a_key_of_no_kind_is_refused_as_by_redis_py(client: Any) -> None:
    with pytest.raises(redis.DataError, match="Invalid input of type: 'NoneType'"):
        await of(client.get(None))


@pytest.mark.parametrize("watches", [False, True])
async def test_a_transaction_may_have_commands_without_a_key(client: Any, watches: bool) -> None:
    pipe = client.pipeline(transaction=True)
    if watches:
        await of(pipe.watch("k"))
        pipe.multi()
    pipe.execute_command("EVAL", "return 7", 0)
    pipe.set("k", 1)
    pipe.execute_command("PUBLISH", "channel", "text")
    assert await of(pipe.execute()) == [7, True, 0]


async def test_a_transaction_needs_no_key(client: Any) -> None:
    pipe = client.pipeline(transaction=True).execute_command("EVAL", "return 7", 0)
    assert await of(pipe.execute()) == [7]


async def test_watched_keys_are_of_one_slot(client: Any) -> None:
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("{t}a"))
    with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
        await of(pipe.get("b"))
    for other in "bcd":  # of different nodes
        with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
            await of(pipe.watch(other))
    pipe.multi()
    with pytest.raises(redis.RedisError, match="WATCH after a MULTI"):
        await of(pipe.watch("{t}b"))
    await of(pipe.reset())
    with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
        await of(pipe.watch("b", "c"))
    pipe.set("b", 1)
    assert await of(pipe.execute()) == [True]


@pytest.mark.parametrize("face_kind", FACES)
async def test_a_refused_watch_keeps_no_connection(face_kind: str, cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        with node.client() as admin:
            admin.execute_command("ACL", "SETUSER", "limited", "on", ">p", "~k*", "+@all")
    login = {"username": "limited", "password": "p", "max_connections": 2}
    async with opened(face_kind, mapped({**cluster.entry.fields, **login})) as face:
        client = await of(face.kit.client("data"))
        errors = []
        for _ in range(4):  # more than it may have connections
            with pytest.raises(redis.exceptions.NoPermissionError) as error:
                await of(client.pipeline(transaction=True).watch("of others"))
            errors.append(error)  # it refers to the pipeline
