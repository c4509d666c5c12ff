"""What the holder of a client that a kit hands out does to its pool concerns nobody else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from arranged import map_of
from faces import Face, faced, own_client
from redis.backoff import NoBackoff

from shardkit import ClosedError
from shardkit.local import LocalCluster


def of(face: Face, value: Any) -> Any:
    return face.run(value) if inspect.isawaitable(value) else value


def both(face: Face) -> tuple[Any, Any]:
    """The client that is handed out, and the kit's own pool."""

    async def own() -> Any:
        return own_client(face.kit, "one")

    client = of(face, face.kit.client("one"))
    kits = face.run(own()) if face.runner else own_client(face.kit, "one")
    return client, kits.connection_pool


def line(face: Face, connection: Any) -> Any:
    """What the server calls its connection, by whatever object."""
    of(face, connection.send_command("CLIENT", "ID"))
    return of(face, connection.read_response())


def lines(face: Face, pool: Any) -> list[Any]:
    return [line(face, connection) for connection in pool.connections.idle]


def write(face: Face) -> None:
    face.run(face.kit.hash("h", component="one").hset("f", "v"))


def settings(pool: Any) -> Any:
    kept = dict(pool.connection_kwargs)
    return kept, pool.max_connections, pool.connection_class, kept["retry"].get_retries()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a database": lambda client: client.connection_pool.connection_kwargs.update(db=3),
    "a timeout": lambda client: client.connection_pool.connection_kwargs.update(socket_timeout=9),
    "a limit": lambda client: setattr(client.connection_pool, "max_connections", 1),
    "a class": lambda client: setattr(
        client.connection_pool,
        "connection_class",
        type("Own", (client.connection_pool.connection_class,), {}),
    ),
    "retries": lambda client: client.set_retry(
        type(client.connection_pool.connection_kwargs["retry"])(NoBackoff(), 7)
    ),
    "reset": lambda client: client.connection_pool.reset(),
    "disconnect": lambda client: client.connection_pool.disconnect(),
    "close": lambda client: (
        client.connection_pool.aclose() if hasattr(client, "aclose") else client.close()
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_holders_changes_do_not_affect_the_kit(face: Face, change: str) -> None:
    client, own = both(face)
    write(face)
    usual = settings(own)
    before = lines(face, own)
    of(face, CHANGES[change](client))
    if change in ("a database", "a timeout", "a class"):  # what is idle stays as it is, as anywhere
        taken = [of(face, client.connection_pool.get_connection()) for _ in range(2)]
        assert line(face, taken[0]) == before[0]
        assert taken[1] not in own.connections.lent
        other = line(face, taken[1])
        for connection in taken:
            of(face, client.connection_pool.release(connection))
        assert lines(face, client.connection_pool) == [other]
    write(face)
    assert settings(own) == usual
    assert lines(face, own) == before  # still there, still open
    of(face, client.ping())
    assert face.run(face.kit.hash("h", component="one").hget("f")) == b"v"


def test_a_call_under_way_goes_on_while_somebody_disconnects_the_shared_pool(face: Face) -> None:
    client, own = both(face)
    under_way = of(face, own.get_connection())
    lent = of(face, client.connection_pool.get_connection())
    of(face, client.connection_pool.disconnect())
    for connection in (under_way, lent):
        assert connection.is_connected
        assert not connection.should_reconnect()
    released = [line(face, lent), line(face, under_way)]
    of(face, client.connection_pool.release(lent))  # goes back to where it came from
    of(face, own.release(under_way))
    assert lines(face, own) == released
    assert not own.connections.lent
    assert client.connection_pool.connections.idle == []


def test_a_separated_pool_closes_with_its_kit(face: Face) -> None:
    client, _ = both(face)
    of(face, client.connection_pool.disconnect())
    of(face, client.blpop("none", timeout=0.01))
    held = client.connection_pool.connections.idle[-1]
    of(face, face.kit.aclose() if face.runner else face.kit.close())
    assert not held.is_connected
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        of(face, client.ping())
    of(face, client.connection_pool.disconnect())  # as a library at its end


def test_a_clusters_client_can_be_closed_by_its_holder(cluster: LocalCluster) -> None:
    for kind in ("blocking", "awaiting"):
        with faced(kind, map_of(one={"entry": cluster.entry.fields})) as face:
            write(face)
            client = of(face, face.kit.client("one"))
            of(face, client.set("k", 1))
            of(face, client.aclose() if face.runner else client.close())
            write(face)
            assert of(face, client.get("k")) == b"1"
