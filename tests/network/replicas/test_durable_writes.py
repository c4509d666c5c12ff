"""Writes that are on replicas, or on disk, when their block ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from arranged import BINARIES, ask, map_of
from faces import PATIENCE, Face, faced
from link_helpers import mapped

import shardkit
from shardkit.admin import push
from shardkit.errors import InvalidArgumentError, NotDurableError, ShardFailure
from shardkit.local import LocalServer
from shardkit.network.replicas import durable
from shardkit.network.replicas.durable import DurableBlock
from shardkit.operations import Pause

Pair: TypeAlias = tuple[LocalServer, LocalServer]


@pytest.fixture(scope="module", params=list(BINARIES))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A master with an AOF, and its replica, of each kind of server."""
    binary = BINARIES[request.param]
    config = {"repl-diskless-sync-delay": 0, "appendonly": True}
    with (
        LocalServer(binary=binary, config=config) as master,
        LocalServer(replica_of=master) as replica,
    ):
        yield master, replica


@pytest.fixture
def opened(kind: str, pair: Pair) -> Iterator[Face]:
    shards = [{"port": pair[0].port, "db": n} for n in range(4)]
    with faced(kind, map_of(users={"shards": shards})) as face:
        yield face


def write(
    face: Face, then: Callable[[], Any] = bool, deadline: float = 60.0, **options: Any
) -> None:
    """Write two keys on different shards in a durable block."""
    router = face.kit.key_sharded("users")

    async def awaited() -> None:
        async with face.kit.deadline(deadline), face.kit.durable(**options):
            await router.mset({"a": 1, "b": 2})
            await router["c"].set("c", 3)
            then()

    if face.runner:
        face.run(awaited())
        return
    with face.kit.deadline(deadline), face.kit.durable(**options):
        router.mset({"a": 1, "b": 2})
        router["c"].set("c", 3)
        then()


def test_a_block_ends_durable(opened: Face, pair: Pair) -> None:
    write(opened, replicas=1, fsync=True, timeout=10)
    number = opened.kit.plane.topology.component("users").place("c")
    with pair[1].client(db=number) as client:
        assert client.get("c") == b"3"


SOON = 0.5 * PATIENCE


@pytest.mark.parametrize("limits", [{"timeout": SOON}, {"timeout": 3600, "deadline": SOON}])
def test_a_hung_master_does_not_prolong_a_block(
    kind: str, limits: dict[str, float], pair: Pair
) -> None:
    entry = {"port": pair[0].port, "socket_timeout": None}
    with faced(kind, mapped(entry, "users")) as face:
        try:
            with pytest.raises(NotDurableError, match="executed, but not durable"):
                write(face, pair[0].pause, **limits)
        finally:
            pair[0].resume()


class Clock:
    """A clock that only pauses, and each look at it, move."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


def steps_of(
    replies: list[Any],
    info: str | ShardFailure,
    monkeypatch: pytest.MonkeyPatch,
    doubtful: bool = False,
    **options: Any,
) -> tuple[float, int]:
    """Run a block's end against given replies; return how long it paused, and how often it asked.

    Nothing shows from outside when a server syncs, so the server's part is played here.
    """
    clock = Clock()
    monkeypatch.setattr(durable, "time", clock)
    block = DurableBlock(lambda operation: None, timeout=5.0, **options)
    block._doubtful |= {"users:0"} if doubtful else set()
    steps = block._steps({"users:0"})
    asked, paused, reply = 0, 0.0, None
    while True:
        try:
            yielded = steps.send(reply)
        except StopIteration:
            return paused, asked
        if isinstance(yielded, Pause):
            clock.now += yielded.seconds
            paused += yielded.seconds
            reply = None
        elif yielded[0].args[0] == "INFO":
            asked += 1
            usual = f"aof_enabled:1\r\naof_pending_bio_fsync:{int(clock.now < 1.2)}"
            reply = [info if isinstance(info, ShardFailure) else f"{usual}\r\n{info}".encode()]
        else:
            reply = replies


@pytest.mark.parametrize("policy", [[b"appendfsync", b"everysec"], {b"appendfsync": b"everysec"}])
def test_early_answers_are_not_trusted(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    replies = [b"OK", [1, 0], policy]
    valkey = "redis_version:7.2.4\r\nvalkey_version:9.1.2"
    options = {"replicas": 0, "fsync": True}
    paused, _ = steps_of(replies, valkey, monkeypatch, **options)
    assert 1.1 < paused < 1.3
    assert steps_of(replies, "redis_version:7.2.5", monkeypatch, **options)[0] > 1.1
    assert steps_of(replies, "redis_version:8.0.1", monkeypatch, **options) == (0.0, 1)
    always = [b"OK", [1, 0], [b"appendfsync", b"always"]]
    assert steps_of(always, valkey, monkeypatch, **options) == (0.0, 0)
    forbidden = [b"OK", [1, 0], ShardFailure("not allowed")]
    assert steps_of(forbidden, valkey, monkeypatch, **options)[0] > 1.1


EVERY_SECOND = [b"appendfsync", b"everysec"]
SILENT = ShardFailure("it does not answer")


@pytest.mark.parametrize(
    ("options", "replies", "info", "why"),
    [
        ({"replicas": 1}, [SILENT, 1], "", "it does not answer"),
        ({"replicas": 1}, [b"OK", SILENT], "", "it does not answer"),
        ({"replicas": 1, "doubtful": True}, [b"OK", 1], SILENT, "it does not answer"),
        ({"fsync": True}, [b"OK", [0, 0], EVERY_SECOND], "", "not on disk yet"),
        ({"fsync": True}, [b"OK", SILENT, EVERY_SECOND], "", "it does not answer"),
        ({"fsync": True}, [b"OK", [1, 0], EVERY_SECOND], SILENT, "it does not answer"),
        ({"fsync": True}, [b"OK", [1, 0], EVERY_SECOND], "aof_enabled:0", "it has no AOF"),
        (
            {"fsync": True},
            [b"OK", [1, 0], EVERY_SECOND],
            "aof_pending_bio_fsync:1",
            "not on disk yet",
        ),
    ],
)
def test_why_a_block_is_not_durable_in_time_is_said(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    replies: list[Any],
    info: str | ShardFailure,
    why: str,
) -> None:
    given = {"replicas": 0, "fsync": False, **options}
    with pytest.raises(
        NotDurableError, match=rf"executed, but not durable within 5 s \(users:0: {why}"
    ):
        steps_of(replies, info, monkeypatch, **given)


def test_blocks_that_only_read_and_wrong_arguments(opened: Face) -> None:
    router = opened.kit.key_sharded("users")
    if opened.runner is None:
        with opened.kit.durable(replicas=9, timeout=0.1):
            router.mget(["a", "b"])
    for wrong in ({"replicas": -1}, {"replicas": 0}, {"timeout": 0}, {"fsync": 1}):
        with pytest.raises(InvalidArgumentError, match="durable"):
            opened.kit.durable(**wrong)


def test_a_block_is_not_durable_if_another_server_has_become_the_master_meanwhile() -> None:
    """The new master and its replica acknowledge the marker, but do not have what was written."""
    fast = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}
    with (
        LocalServer(config=fast) as master,
        LocalServer(config=fast) as heir,
        LocalServer(config=fast, replica_of=heir) as its_replica,
        LocalServer() as config,
    ):
        with heir.client() as client:
            assert client.set("k", "old")
            assert client.wait(1, 10_000) == 1
            client.replicaof("127.0.0.1", str(master.port))  # it is filled with nothing
            client.replicaof("NO", "ONE")  # and promoted, as by a failover

        def push_one(port: int) -> None:
            with config.client() as told:
                push(told, mapped({"port": port}, "one"), force=True)

        push_one(master.port)
        with shardkit.connect(f"redis://{config.address}") as kit:

            @kit.redis_connection("one")
            def write_one(conn: Any, value: str) -> None:
                conn.set("k", value)

            def block() -> None:
                with kit.durable(replicas=1, timeout=20):
                    write_one("new")
                    master.kill()
                    push_one(heir.port)

            with pytest.raises(NotDurableError, match="may have been replaced or restarted"):
                block()
            with kit.durable(replicas=1, timeout=20):
                write_one("again")
        assert ask(its_replica, "get", "k") == b"again"
