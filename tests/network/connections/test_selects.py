"""No write is executed in another shard's database, whatever the server refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis
from link_helpers import FACES, count_of, of, opened
from test_gate import map_of

from shardkit import ShardMap
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kind", FACES)
async def test_an_aborted_transaction_selects_nothing(
    kind: str, private: bool, server: LocalServer
) -> None:
    async with opened(kind, map_of(server)) as face:
        third, fourth = [await of(face.kit.client("t", n, private=private)) for n in (3, 4)]
        await of(fourth.set("k", 4))
        await of(third.set("k", 3))
        await of(fourth.get("k"))
        pipe = third.pipeline()
        pipe.execute_command("SET", "k")
        with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
            await of(pipe.execute())
        pipe = third.pipeline()
        await of(pipe.watch("k"))
        assert await of(pipe.get("k")) == b"3"
        pipe.multi()
        pipe.set("k", 33)
        await of(pipe.execute())
        await of(pipe.reset())
        assert await of(fourth.get("k")) == b"4"
    with server.client() as admin:
        admin.flushall()


@pytest.mark.parametrize("fields", [{}, {"select": "confirmed"}], ids=str)
@pytest.mark.parametrize("kind", FACES)
async def test_writes_use_multi_unless_selects_are_confirmed(
    kind: str, fields: dict[str, str], server: LocalServer
) -> None:
    async with opened(kind, map_of(server, **fields)) as face:
        before = count_of(server, "multi")
        clients = [await of(face.kit.client("t", n)) for n in (3, 4)]
        router = face.kit.key_sharded("t")
        keys = [f"key{n}" for n in range(40)]
        for n in range(3):
            for client in clients:
                await of(client.set("k", n))
                await of(client.pipeline(transaction=False).set("k", n).get("k").execute())
            await of(router.mset(dict.fromkeys(keys, n)))
            assert await of(router.mget(keys)) == [b"%d" % n] * 40
        assert (count_of(server, "multi") > before) is not bool(fields)
    with server.client() as admin:
        admin.flushall()


@pytest.mark.parametrize("kind", FACES)
async def test_a_number_is_confirmed_before_multi_relies_on_it(
    kind: str, server: LocalServer
) -> None:
    places = [{**server.entry.fields, "db": n} for n in (1, 99)]
    shard_map = ShardMap.parse(json.dumps({"components": {"t": {"shards": places}}}))
    async with opened(kind, shard_map) as face:
        first, beyond = [await of(face.kit.client("t", n)) for n in (0, 1)]
        for _ in range(2):
            before = count_of(server, "multi")
            await of(first.set("k", 1))
            with pytest.raises(redis.ResponseError, match="index is out of range") as caught:
                await of(beyond.set("stray", 1))
            assert caught.value.maybe_executed is False  # type: ignore[attr-defined]
            assert count_of(server, "multi") == before
        assert await of(first.keys()) == [b"k"]
    with server.client() as admin:
        admin.flushall()
