"""Batches at their smallest and largest, commands of two words, and Unix sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from link_helpers import Face, command, mapped, opened

from shardkit.local import LocalServer
from shardkit.operations.commands import Coalesced, Transaction


async def test_commands_of_two_words_go_to_their_keys_shard(face: Face) -> None:
    router = face.kit.key_sharded("many")
    pipe = router.pipeline()
    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        pipe.set(key, 1)
        pipe.object("ENCODING", key)
        pipe.memory_usage(key)
        pipe.xgroup_create(f"s{key}", "group", mkstream=True)
        pipe.xinfo_groups(f"s{key}")
    replies = await face.value(pipe.execute())
    for n in range(len(keys)):
        ok, encoding, size, created, groups = replies[5 * n : 5 * n + 5]
        assert (ok, encoding, created) == (True, b"int", True)
        assert size > 0
        assert len(groups) == 1


async def test_large_joined_batches_keep_what_stands_between_their_runs(face: Face) -> None:
    count = 2_400  # the last slice has hundreds of GETs, and two commands behind them
    batch: list[Any] = [command("one", "n", "INCR"), command("one", "before", "SET", "b")]
    batch += [command("one", f"k{n}", "SET", n) for n in range(count)]
    batch += [Transaction("one", "t", (command("one", "t", "INCR"), command("one", "t", "GET")))]
    batch += [command("one", f"k{n}", "GET") for n in range(count)]
    batch += [command("one", "n", "INCR"), command("one", "before", "GET")]
    replies = await face.carry(Coalesced(batch))
    assert replies[: count + 2] == [1] + [b"OK"] * (count + 1)
    assert replies[count + 2] == [1, b"1"]
    assert replies[count + 3 : -2] == [str(n).encode() for n in range(count)]
    assert replies[-2:] == [2, b"b"]


async def test_everything_works_over_a_unix_socket(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with LocalServer(config={"unixsocket": str(path), "unixsocketperm": "700"}):
        for fields in ({"unix_socket_path": str(path)}, {"url": f"unix://{path}?db=1"}):
            async with opened(kind, mapped(fields, "one")) as face:
                assert await face.send(command("one", "k", "INCR")) == [1]
                batch = [command("one", f"k{n}", "SET", b"v" * 300) for n in range(3_000)]
                assert await face.send(*batch) == [b"OK"] * 3_000
                gets = [command("one", f"k{n}", "GET") for n in range(3_000)]
                assert await face.send(*gets) == [b"v" * 300] * 3_000
                assert await face.client_call("one", "get", "k1") == b"v" * 300
                assert await face.client_call("one", "blpop", "queue", timeout=0.1) is None
