"""What closes a database, and what becomes of it when several are at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from shardkit.admin.growth.fence import (
    change,
    close_for,
    fence_value,
    is_permanent,
    lift,
    lift_unless_permanent,
    make_permanent,
    move_of,
    take,
    write_under,
)
from shardkit.errors import GrowthError
from shardkit.local import LocalServer
from shardkit.network.connections.databases import FENCE_KEY

MINE, OTHERS = fence_value("mine", "1", "a:1"), fence_value("other's", "1", "a:1")


class Late(redis.Redis):
    """A client that is late: something is done just before its first transaction is executed."""

    meanwhile: list[Callable[[], object]]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        pipe = super().pipeline(*args, **options)
        execute = pipe.execute

        def late(*args: Any, **options: Any) -> Any:
            while self.meanwhile:
                self.meanwhile.pop()()
            return execute(*args, **options)

        pipe.execute = late  # type: ignore[method-assign]
        return pipe


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"{}", b"null", b"7"])
def test_what_is_no_fence_is_of_no_move(value: bytes | None) -> None:
    assert move_of(value) is None
    assert move_of(MINE) == "mine"


def test_a_database_that_is_closed_is_not_closed_once_more(own_server: LocalServer) -> None:
    with own_server.client() as client:
        close_for(client, MINE, 60)
        with pytest.raises(GrowthError, match=f"is already closed: {FENCE_KEY} is set; wait until"):
            close_for(client, OTHERS, 60)
        assert client.get(FENCE_KEY) == MINE
        assert not is_permanent(client, "mine")


def test_a_database_is_opened_unless_it_is_closed_for_good(own_server: LocalServer) -> None:
    with own_server.client() as client:
        close_for(client, MINE, 60)
        assert lift_unless_permanent(client, "other's")
        assert client.get(FENCE_KEY) == MINE
        assert lift_unless_permanent(client, "mine")
        assert not client.exists(FENCE_KEY)
        close_for(client, MINE, 60)
        assert make_permanent(client, MINE)
        assert not lift_unless_permanent(client, "mine")
        assert is_permanent(client, "mine")


def test_of_those_who_are_at_a_fence_at_once_the_first_has_it(own_server: LocalServer) -> None:
    with own_server.client() as client, Late(port=own_server.port) as late:

        def replaced() -> None:
            client.set(FENCE_KEY, OTHERS, px=60_000)

        def left_alone() -> None:
            assert client.get(FENCE_KEY) == OTHERS
            assert client.pttl(FENCE_KEY) > 0
            client.set(FENCE_KEY, MINE, px=60_000)

        client.set(FENCE_KEY, MINE, px=60_000)
        late.meanwhile = [replaced]
        assert not make_permanent(late, MINE)
        left_alone()
        late.meanwhile = [replaced]
        with pytest.raises(GrowthError, match="another process has taken over this move; see: sha"):
            write_under(late, MINE, lambda pipe: pipe.set("k", "v"))
        assert not client.exists("k")
        left_alone()
        late.meanwhile = [replaced]
        lift(late, "mine")
        left_alone()
        late.meanwhile = [replaced]
        change(late, "mine", MINE + b" ")
        left_alone()
        late.meanwhile = [lambda: make_permanent(client, MINE)]
        assert not lift_unless_permanent(late, "mine"), "it was decided just before"
        assert is_permanent(client, "mine")


def test_a_fence_that_comes_late_is_not_set(own_server: LocalServer) -> None:
    """Another mover has taken the target meanwhile, has finished, and opened it."""
    has_ended = []

    def require_lease() -> None:
        if has_ended:
            raise GrowthError("the lease ended", "resume")

    with own_server.client() as client, Late(port=own_server.port) as late:

        def finish() -> None:
            client.set(FENCE_KEY, OTHERS)
            client.delete(FENCE_KEY)
            has_ended.append(True)

        late.meanwhile = [finish]
        with pytest.raises(GrowthError, match="the lease ended"):
            take(late, MINE, require_lease)
        assert not client.exists(FENCE_KEY)
        has_ended.clear()
        take(late, MINE, require_lease)
        assert client.get(FENCE_KEY) == MINE
