"""Mistakes put into near copies of reads: each way to be stale is noticed, on a real server.

Servers in memory announce nothing, so the simulator has no schedules of announcements. Here each
scenario has the one schedule that matters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from faces import PATIENCE, eventually
from mutations import _python
from redis.exceptions import RedisError
from slow_way import Slow, slow

import shardkit
from shardkit.caching import near as near_module
from shardkit.local import LocalServer
from shardkit.network.connections.databases import FENCE_KEY

LARGE = 10_000_000


class Near(NamedTuple):
    """A kit with near copies, another client of its server, and the way between them."""

    router: Any
    copies: Any  # of private parts: nothing else shows that there is a copy
    there: Any
    way: Slow

    def keep(self, *args: Any) -> Any:
        """Read until there is a copy of the reply."""

        def is_kept() -> bool:
            self.router.execute_command(*args)
            copies = list(self.copies.copies.items())
            return any(name[1] == args and copy.until > 0 for name, copy in copies)

        assert eventually(is_kept)
        return self.router.execute_command(*args)

    def announced(self) -> None:
        """Return when all earlier changes have been announced, and taken."""
        self.keep("GET", "beacon")
        self.there.incr("beacon")
        count = self.there.get("beacon")
        assert eventually(lambda: self.router.get("beacon") == count)


@contextmanager
def opened(max_age: float = 30.0) -> Iterator[Near]:
    with LocalServer() as server, slow(server) as (way, behind), server.client() as there:
        there.mset({"k": "old", "beacon": 0})
        with shardkit.connect(behind) as kit:
            router = kit.near("many", LARGE, max_age=max_age).key_sharded("many")
            [copies] = kit.near_copies.values()
            yield Near(router, copies, there, way)


@contextmanager
def silence(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have announcements arrive after the block only."""
    over, drop = threading.Event(), near_module._TrackedServer._drop

    def late(*args: Any) -> None:
        assert over.wait(30 * PATIENCE)
        drop(*args)

    patch.setattr(near_module._TrackedServer, "_drop", late)
    try:
        yield
    finally:
        over.set()


def a_change_is_announced_before_the_reply_is_kept(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "k2")
        keep = near_module.NearCopies.keep

        def overtaken(copies: Any, note: Any, *args: Any) -> None:
            if b"k" in note.keys and near.there.get("k") == b"old":
                near.there.set("k", "new")
                assert eventually(lambda: note.name not in copies.copies)
            keep(copies, note, *args)

        patch.setattr(near_module.NearCopies, "keep", overtaken)
        assert near.router.get("k") == b"old"
        assert near.router.get("k") == b"new"


def an_own_write_is_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "k")
        near.keep("GET", "k2")
        with silence(patch):
            near.router.set("k", "new")
            assert near.router.get("k") == b"new"
            near.router.pipeline().set("k2", "new").execute()
            assert near.router.get("k2") == b"new"


def an_own_write_without_a_reply_is_read(patch: pytest.MonkeyPatch) -> None:
    for write in (
        lambda router: router.set("k", "new"),
        lambda router: router.pipeline().set("k", "new").execute(),
    ):
        with opened() as near, pytest.MonkeyPatch.context() as within:
            near.keep("GET", "k")
            with silence(within):
                near.way.stop("down")
                with pytest.raises(RedisError, match=r"(?i)time|1 shard failed"):
                    write(near.router)
                near.way.go_on("down")
                assert near.router.get("k") == b"new"


def a_change_while_the_connection_is_lost_is_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "beacon")
        near.way.cut()
        assert eventually(lambda: not near.copies.copies)
        assert near.router.get("k") == b"old"
        near.there.set("k", "new")
        near.keep("GET", "k2")
        assert near.router.get("k") == b"new"


def a_change_before_changes_are_announced_is_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.way.stop("tracking")
        assert [near.router.get("k") for _ in range(20)] == [b"old"] * 20
        near.there.set("k", "new")
        near.way.go_on("tracking")
        near.keep("GET", "k2")
        assert near.router.get("k") == b"new"


def a_flush_is_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "k")
        near.there.flushdb()
        near.there.set("beacon", 7)
        assert eventually(lambda: near.keep("GET", "beacon") == b"7")
        assert near.router.get("k") is None


def an_expired_value_is_not_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "beacon")
        near.there.set("k", "old", px=round(500 * PATIENCE))
        near.announced()
        near.keep("GET", "k")
        with silence(patch):
            assert eventually(lambda: near.there.get("k") is None)
            assert near.router.get("k") is None


def a_change_of_any_key_of_a_command_is_read(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.there.sadd("a", 1, 2)
        near.there.sadd("b", 1, 2)
        for key in ("a", "b"):
            members = near.keep("SINTER", "a", "b")
            near.there.srem(key, min(members))
            near.announced()
            assert near.router.sinter("a", "b") == members - {min(members)}


def nothing_is_read_beyond_its_age_while_the_connection_hangs(patch: pytest.MonkeyPatch) -> None:
    with opened(max_age=0.5) as near:
        near.keep("GET", "k")
        near.way.stop("down")
        near.there.set("k", "new")
        time.sleep(0.5 + 0.1 * PATIENCE)
        with suppress(RedisError):  # it must be read anew, and cannot
            assert near.router.get("k") == b"new"


def a_fence_ends_copies(patch: pytest.MonkeyPatch) -> None:
    with opened() as near:
        near.keep("GET", "k")
        forgotten, forget = [], near_module.NearCopies.forget

        def noted(copies: Any, keys: Any) -> None:
            forgotten.extend(keys)
            forget(copies, keys)

        patch.setattr(near_module.NearCopies, "forget", noted)
        near.there.set(FENCE_KEY, "closed")
        assert eventually(lambda: not near.copies.copies or FENCE_KEY.encode() in forgotten)
        assert not near.copies.copies


class Mistake(NamedTuple):
    """What is wrong, who notices it, and how it is made: see `mutations.CHANGES`."""

    scenario: Callable[[pytest.MonkeyPatch], None]
    function: str
    old: str
    new: str


MISTAKES = {
    "a reply is kept although its key has changed": Mistake(
        a_change_is_announced_before_the_reply_is_kept,
        "NearCopies.keep",
        "if self.copies.get(note.name) is not note:",
        "if self.copies.setdefault(note.name, note) is not note:",
    ),
    "written keys keep their copies": Mistake(
        an_own_write_is_read, "NearLink._steps", "written.forget(keys_in(request))", "pass"
    ),
    "writes that fail keep the copies": Mistake(
        an_own_write_without_a_reply_is_read, "NearLink._steps", "finally:", "except ValueError:"
    ),
    "a lost connection confirms": Mistake(
        a_change_while_the_connection_is_lost_is_read,
        "_TrackedServer.follow",
        "self.confirmed = -inf\n",
        "pass\n",
    ),
    "a copy is kept before changes are announced": Mistake(
        a_change_before_changes_are_announced_is_read,
        "NearCopies._server",
        "if server.confirmed > -inf or not server.announces else None",
        "",
    ),
    "a flush drops nothing": Mistake(
        a_flush_is_read, "_TrackedServer._drop", "copies.forget_server(self)", "pass"
    ),
    "a copy outlives its key": Mistake(
        an_expired_value_is_not_read, "_seconds", "life / 1000 if life >= 0 else inf", "inf"
    ),
    "only one key of a command counts": Mistake(
        a_change_of_any_key_of_a_command_is_read,
        "NearLink._read",
        "keys_in(command), command.to",
        "sorted(keys_in(command))[:1], command.to",
    ),
    "a silent server confirms": Mistake(
        nothing_is_read_beyond_its_age_while_the_connection_hangs,
        "NearCopy.usable",
        "now - confirmed <= max_age",
        "True",
    ),
    "a fence drops nothing": Mistake(
        a_fence_ends_copies, "_TrackedServer._drop", "FENCE_KEY.encode() in changed", "False"
    ),
}


@pytest.mark.parametrize("scenario", dict.fromkeys(each.scenario for each in MISTAKES.values()))
def test_near_reads_are_not_stale(
    scenario: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scenario(monkeypatch) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_near_reads_is_noticed(name: str) -> None:
    scenario, *change = MISTAKES[name]
    with (
        _python(*change),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(AssertionError, match=r"assert"),
    ):
        scenario(patch)
