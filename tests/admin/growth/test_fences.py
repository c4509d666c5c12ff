"""What closes a database, and what becomes of it when several are at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from shardkit.admin.growth.gate import (
    GuardedWrites,
    WriteRefusedError,
    change,
    close_for,
    fence_value,
    fences_of,
    is_permanent,
    lift,
    lift_unless_permanent,
    make_permanent,
    move_of,
    take,
    write_under,
)
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.errors import GrowthError
from shardkit.local import LocalServer
from shardkit.network.connections.databases import FENCE_KEY, lets_readers_pass

MINE, OTHERS = fence_value("mine", "1", "a:1"), fence_value("other's", "1", "a:1")


ZERO, THREE, FIVE = (Place(ServerAddress("a", 1), number) for number in (0, 3, 5))


class LateConnection(redis.Connection):
    """A connection that is late: something is done just before a transaction or script is sent."""

    meanwhile: list[Callable[[], object]] = []  # noqa: RUF012 - of the one test

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if any(word in b"".join(map(bytes, command)) for word in (b"MULTI", b"EVAL")):
            while self.meanwhile:
                self.meanwhile.pop()()
        super().send_packed_command(command, check_health)


def late_client(server: LocalServer, **options: Any) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=LateConnection, port=server.port, **options)
    return redis.Redis.from_pool(pool)


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"{}", b"null", b"7", 5000 * b"["])
def test_what_is_no_fence_is_of_no_move(value: bytes | None) -> None:
    assert not move_of(value)
    assert not lets_readers_pass(value or b"")
    assert move_of(MINE) == "mine"
    assert not lets_readers_pass(MINE)
    assert lets_readers_pass(fence_value("mine", "1", "a:1", readers=True))


def test_a_database_is_opened_unless_it_is_closed_for_good(own_server: LocalServer) -> None:
    with own_server.client() as client:
        close_for({ZERO: client}, MINE, 60)
        assert lift_unless_permanent(client, "other's")
        assert client.get(FENCE_KEY) == MINE
        assert lift_unless_permanent(client, "mine")
        assert not client.exists(FENCE_KEY)
        close_for({ZERO: client}, MINE, 60)
        assert make_permanent({ZERO: client}, MINE)
        assert not lift_unless_permanent(client, "mine")
        assert is_permanent(client, "mine")


def test_of_those_who_are_at_a_fence_at_once_the_first_has_it(own_server: LocalServer) -> None:
    with own_server.client() as client, late_client(own_server) as late:

        def replaced() -> None:
            client.set(FENCE_KEY, OTHERS, px=60_000)

        def left_alone() -> None:
            assert client.get(FENCE_KEY) == OTHERS
            assert client.pttl(FENCE_KEY) > 0
            client.set(FENCE_KEY, MINE, px=60_000)

        client.set(FENCE_KEY, MINE, px=60_000)
        LateConnection.meanwhile = [replaced]
        assert not make_permanent({ZERO: late}, MINE)
        left_alone()
        LateConnection.meanwhile = [replaced]
        with pytest.raises(GrowthError, match="another process has taken over this move; see: sha"):
            write_under({ZERO: late}, MINE, {ZERO: [("SET", "k", "v")]})
        assert not client.exists("k")
        left_alone()
        LateConnection.meanwhile = [replaced]
        lift({ZERO: late}, "mine")
        left_alone()
        LateConnection.meanwhile = [replaced]
        change({ZERO: late}, "mine", MINE + b" ")
        left_alone()
        LateConnection.meanwhile = [lambda: make_permanent({ZERO: client}, MINE)]
        assert not lift_unless_permanent(late, "mine"), "it was decided just before"
        assert is_permanent(client, "mine")


def test_a_fence_that_comes_late_is_not_set(own_server: LocalServer) -> None:
    """Another mover has taken the target meanwhile, has finished, and opened it."""
    has_ended = []

    def require_lease() -> None:
        if has_ended:
            raise GrowthError("the lease ended", "resume")

    with own_server.client() as client, late_client(own_server) as late:

        def finish() -> None:
            client.set(FENCE_KEY, OTHERS)
            client.delete(FENCE_KEY)
            has_ended.append(True)

        LateConnection.meanwhile = [finish]
        with pytest.raises(GrowthError, match="the lease ended"):
            take({ZERO: late}, MINE, require_lease)
        assert not client.exists(FENCE_KEY)
        has_ended.clear()
        take({ZERO: late}, MINE, require_lease)
        assert client.get(FENCE_KEY) == MINE


def test_databases_of_a_server_are_changed_together(own_server: LocalServer) -> None:
    """Those that another attempt has taken in between stay as they are."""
    with (
        own_server.client() as zero,
        own_server.client(db=3) as three,
        late_client(own_server, db=5) as late,
        own_server.client(db=5) as five,
    ):
        both = {FIVE: late, THREE: three}
        close_for(both, MINE, 60)
        with pytest.raises(GrowthError, match=f"is already closed: {FENCE_KEY} is set; wait until"):
            close_for({ZERO: zero, **both}, OTHERS, 60)
        assert fences_of({**both, ZERO: zero}) == {FIVE: MINE, THREE: MINE, ZERO: OTHERS}

        def replaced() -> None:
            three.set(FENCE_KEY, OTHERS, px=60_000)

        LateConnection.meanwhile = [replaced]
        assert not make_permanent(both, MINE)
        assert not is_permanent(three, "other's")
        three.set(FENCE_KEY, MINE, px=60_000)
        assert make_permanent(both, MINE)
        assert is_permanent(five, "mine")
        assert is_permanent(three, "mine")
        writes: Any = {FIVE: [("SET", "k", 5)], THREE: [("SET", "k", 3), ("DEL", "l")]}
        write_under(both, MINE, writes)
        assert (zero.get("k"), three.get("k"), five.get("k")) == (None, b"3", b"5")
        assert late.get("k") == b"5", "it is in its own database again"
        with pytest.raises(WriteRefusedError, match=r"[Ww]rong number of arg") as refused:
            write_under(both, MINE, {FIVE: [("RESTORE", "k"), ("SET", "l", 1)]})
        assert (refused.value.key, refused.value.place) == ("k", FIVE)
        assert not five.exists("l")
        LateConnection.meanwhile = [replaced]
        lift(both, "other's", MINE)
        assert (three.get(FENCE_KEY), five.get(FENCE_KEY)) == (OTHERS, None)


def test_writes_of_a_copy_stop_when_another_attempt_has_the_target(
    own_server: LocalServer,
) -> None:
    with own_server.client() as client:
        client.set(FENCE_KEY, MINE)
        writes = GuardedWrites(ZERO, client, MINE)
        writes.write([("SET", "a", 1)])
        writes.write([("SET", "b", 1)])
        client.set(FENCE_KEY, OTHERS)
        writes.write([("SET", "c", 1)])
        with pytest.raises(GrowthError, match="another process has taken over"):
            writes.settle()
        writes.close()
        assert (client.get("a"), client.get("b"), client.get("c")) == (b"1", b"1", None)
        with pytest.raises(GrowthError, match="another process has taken over"):
            write_under({ZERO: client}, MINE, {ZERO: []})
        writes = GuardedWrites(ZERO, client, OTHERS)
        writes.write([("RESTORE", b"k", 0, b"no value", "REPLACE")])
        with pytest.raises(WriteRefusedError, match="DUMP payload") as refused:
            writes.settle()
        assert (refused.value.key, refused.value.place) == (b"k", ZERO)
