"""A closed kit has no socket open, whatever its users still hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from arranged import map_of
from faces import Face, eventually, faced
from left_open import sockets
from link_helpers import FACES

from shardkit import ClosedError
from shardkit.local import LocalServer


def woken(face: Face) -> Any:
    """What waits for a wake-up."""
    face.run(face.kit.lock("busy", component="c").acquire())
    other = face.kit.lock("busy", component="c")
    assert face.run(other.acquire(blocking_timeout=0.05)) is None
    return lambda: other.acquire(blocking_timeout=0.05)


def subscribed(face: Face, **options: Any) -> Any:
    channel = face.run(face.kit.client("c", **options)).pubsub()
    face.run(channel.subscribe("news"))
    return channel.get_message


def routed(face: Face) -> Any:
    channel = face.kit.key_sharded("c").pubsub()
    face.run(channel.psubscribe("*"))
    return lambda: channel.get_message(timeout=1)


def private(face: Face) -> Any:
    return subscribed(face, private=True)


def single(face: Face) -> Any:
    client = face.run(face.kit.client("c")).client()
    face.run(client.get("k"))
    face.end = client.aclose if face.runner else client.close  # type: ignore[attr-defined]
    return lambda: client.get("k")


def watched(face: Face) -> Any:
    pipe = face.run(face.kit.client("c")).pipeline()
    face.run(pipe.watch("k"))
    face.end = pipe.reset  # type: ignore[attr-defined]
    return lambda: pipe.get("k")


def lent(face: Face) -> Any:
    connection = face.run(face.run(face.kit.client("c")).connection_pool.get_connection())
    return lambda: connection.send_command("PING")


@pytest.mark.parametrize("held", [woken, subscribed, routed, private, single, watched, lent])
@pytest.mark.parametrize("kind", FACES)
def test_what_a_user_still_holds_is_closed_with_its_kit(
    kind: str, held: Callable[[Face], Any]
) -> None:
    with (
        LocalServer() as server,
        faced(
            kind, map_of(c={"entry": {"port": server.port}, "shards": [{"port": server.port}]})
        ) as face,
    ):
        before = sockets()
        use = held(face)
        assert sockets() != before
        face.run(face.kit.aclose() if face.runner else face.kit.close())
        assert sockets() == before
        with pytest.raises(ClosedError, match="the kit is closed"):
            face.run(use())
        assert sockets() == before
        if hasattr(face, "end"):
            face.run(face.end())


def test_a_subscriber_that_reads_in_a_thread_closes_its_connection_itself() -> None:
    with (
        LocalServer() as server,
        faced("blocking", map_of(c={"entry": {"port": server.port}})) as (face),
    ):
        before = sockets()
        channel = face.kit.client("c").pubsub()
        channel.subscribe("news")
        failures: list[BaseException] = []

        def listen() -> None:
            try:
                for _ in channel.listen():
                    pass
            except ClosedError as error:
                failures.append(error)

        reader = threading.Thread(target=listen)
        reader.start()
        connection = channel.connection
        assert eventually(lambda: connection.calls)
        face.kit.close()
        reader.join(20)
        assert len(failures) == 1
        assert sockets() == before
