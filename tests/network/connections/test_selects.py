"""No write is executed in another shard's database, whatever the server refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from link_helpers import FACES, of, opened
from test_gate import map_of

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
