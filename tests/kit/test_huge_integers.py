"""Integers that no client library can print are refused, and end no process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Face, own_client

from shardkit.errors import InvalidArgumentError


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
