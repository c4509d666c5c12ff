"""Numbers that no client library can write end no process; such integers are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis
import pytest
from faces import Face, own_client

from shardkit.errors import InvalidArgumentError
from shardkit.network.links import resp


def test_an_integer_of_thousands_of_digits_is_refused_wherever_it_is_given(face: Face) -> None:
    big, kit = 10**5000, face.kit
    router = kit.key_sharded("many")
    face.run(router.mget(["k"]))
    client: Any = own_client(kit, "one") if face.runner is None else None
    lock = face.run(kit.lock("l", component="one").acquire())

    async def by_client() -> None:
        await own_client(kit, "one").set("k", big)

    calls: list[Callable[[], Any]] = [
        lambda: router.mset({"k": big}),
        lambda: router.mset({str(n): big for n in range(100)}),
        lambda: router.pipeline().set("k", -big).execute(),
        lambda: lock.guard("one").execute(("SET", "k", big)),
        lambda: kit.hash("h", component="one").hset("k", big),
        by_client if client is None else lambda: client.set("k", big),
    ]
    if client is not None:
        calls += [
            lambda: client.pipeline().set("k", big).execute(),
            lambda: client.pubsub().subscribe(big),
            lambda: client.blpop("k", big),
        ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"an? integer .*cannot be sent|give"):
            face.run(call())
    assert face.run(router.mget(["k"])) == [None]


class Unwritable(float):
    """hiredis writes a number by its `repr`."""

    def __repr__(self) -> str:
        raise ValueError("interrupted")


def test_a_number_of_a_class_that_cannot_write_it_is_sent(face: Face) -> None:
    """One ended the process inside hiredis."""
    number, kit = Unwritable(1.5), face.kit
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", number) is True
        assert await client.pipeline().incrbyfloat("k", number).execute() == [3.0]

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", number) is True
        assert client.pipeline().incrbyfloat("k", number).execute() == [3.0]
    else:
        face.run(by_client())
    assert face.run(router.each("INCRBYFLOAT", ["k"], number)) == [1.5]
    assert face.run(router.pipeline().incrbyfloat("k", number).execute()) == [3.0]
    assert face.run(router.mset({"k": number, "l": 7})) is True
    assert face.run(router.mget(["k", "l"])) == [b"1.5", b"7"]


def test_hiredis_is_given_no_integer(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes if the handler of a signal raises while Python writes one."""
    pack, packed, kit = hiredis.pack_command, list[Any](), face.kit

    def record(args: tuple[Any, ...]) -> bytes:
        packed.extend(args)
        return pack(args)

    monkeypatch.setattr(hiredis, "pack_command", record)
    monkeypatch.setattr(resp, "_pack", record)
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", 1001, ex=100) is True
        assert await client.pipeline().incr("k", 1002).execute() == [2003]
        assert await client.lrange("none", 1003, 1004) == []

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", 1001, ex=100) is True
        assert client.pipeline().incr("k", 1002).execute() == [2003]
        assert client.lrange("none", 1003, 1004) == []
    else:
        face.run(by_client())
    assert face.run(router.incr("k", 1005)) == 1005
    assert face.run(router.pipeline().incr("k", 1006).execute()) == [2011]
    assert face.run(router.each("INCRBY", ["k", "l"], 1007)) == [3018, 1007]
    assert {"1003", "1006"} <= set(packed)
    assert int not in set(map(type, packed))
