"""Near copies under every interleaving: a call is stopped between any two of its instructions.

Other tests of near copies wait for real servers. Here a server's announcements, the clock and the
steps of a hit are in the hand of the test, so private parts are used: nothing else can stop them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import hiredis
import pytest
from faces import PATIENCE, eventually
from mutations import _python
from redis.exceptions import RedisError
from slow_way import Slow, slow

import shardkit
from shardkit.caching import near as near_module
from shardkit.local import LocalServer
from shardkit.network.connections.databases import FENCE_KEY

MAX_AGE = 1.0


class Server:
    """A server of a scripted link: its announcements and answers wait until they are taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.number, self.changed_at = 1000.0, 0, [1000.0]
        self.sent: list[Any] = []  # by the server, and not taken yet
        self.is_reading = True  # and nothing else happens
        monkeypatch.setattr(near_module.time, "monotonic", lambda: self.now)
        entries = SimpleNamespace(
            name="many",
            splits_reads=False,
            entry_of=lambda _: SimpleNamespace(is_cluster=False),
        )
        self.link = SimpleNamespace(version_of=lambda _: self.entries)
        self.entries: Any = entries
        self.copies = near_module.NearCopies(self.link, "many", ())
        self.copies.most, self.copies.max_age = 10**6, MAX_AGE
        self.feed = near_module._TrackedServer(entries)
        self.copies._server = lambda *_: self.feed  # type: ignore[method-assign]
        self.feed._other_answers = 0  # those to HELLO 3 and CLIENT TRACKING have come
        self.take()
        self.take()

    # ---- what the connection of the feed does

    def require_master(self) -> None: ...

    def send(self, name: str) -> None:
        self.sent.append("PONG" if name == "PING" else {b"role": b"master"})

    def replies(self) -> Iterator[Any]:
        while self.sent:
            yield self.sent.pop(0)

    # ---- what happens meanwhile

    def take(self) -> None:
        """Do what the feed's thread does when something has come."""
        if self.copies.entries() is self.feed.entries:
            self.feed.take(self.copies, self)  # type: ignore[arg-type]
        else:
            self.feed.confirmed = float("-inf")
            self.copies.forget_server(self.feed)

    def change(self) -> None:
        """Another client writes, which is announced."""
        self.number += 1
        self.changed_at.append(self.now)
        self.sent.append(hiredis.PushNotification([b"invalidate", [b"k"]]))

    def wait(self, seconds: float = MAX_AGE) -> None:
        self.now += seconds

    def age(self, number: int) -> float:
        return 0.0 if number == self.number else self.now - self.changed_at[number + 1]

    def read(self) -> Any:
        """Read as a router does."""
        name = near_module.name_of(True, ("GET", "k"))
        copy = self.copies.copies.get(name)
        if copy is not None and copy.usable(MAX_AGE):
            return copy.value
        note = self.copies.note(name, [b"k"])
        number = self.number
        if note is not None:
            self.copies.keep(note, number, 1, 3600)
        return number


def stopped(server: Server, at: int, instead: Callable[[], object]) -> tuple[Any, bool]:
    """Read, and do something else before an instruction; return whether there were as many."""
    left, done = at, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, done
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left <= 0 and not done and not server.copies._lock.locked():
            done = True
            sys.settrace(None)
            instead()
        return None if done else trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return server.read(), done
    finally:
        sys.settrace(before)


def changed_and_confirmed(server: Server) -> None:
    server.wait(MAX_AGE / 2)
    server.change()
    server.take()
    for _ in range(4):  # asked after the change, and answered
        server.wait(MAX_AGE / 2)
        server.take()


def changed_while_an_answer_was_late(server: Server) -> None:
    server.wait(MAX_AGE / 2)
    server.take()  # which asks
    server.change()
    del server.sent[-1]  # the connection hangs before that is announced
    server.wait(0.9 * MAX_AGE)
    server.take()
    server.wait(MAX_AGE / 2)


def changed_behind_a_connection_that_hangs(server: Server) -> None:
    server.change()
    server.wait(2 * MAX_AGE)


def changed_at_another_server(server: Server) -> None:
    server.take()
    server.entries = SimpleNamespace(**vars(server.entries))
    server.change()
    del server.sent[:]  # this one announces nothing
    server.wait(MAX_AGE / 2)


def written_here(server: Server) -> None:
    server.change()
    server.copies.forget([b"k"])


Meanwhile = Callable[[Server], None]


def check_hits(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile) -> None:
    at, more = 0, True
    while more:
        at += 1
        server = Server(monkeypatch)
        assert server.read() == 0
        assert server.copies.copies
        clock = [server.now]  # as the reader has read it last

        def read_clock(server: Server = server, clock: list[float] = clock) -> float:
            if server.is_reading:
                clock.append(server.now)
            return server.now

        def others(server: Server = server) -> None:
            server.is_reading = False
            meanwhile(server)
            server.is_reading = True

        monkeypatch.setattr(near_module.time, "monotonic", read_clock)
        number, more = stopped(server, at, others)
        # It is decided when the clock is read; no rule can shorten what comes after that.
        age = clock[-1] - server.changed_at[number + 1] if number < server.number else 0.0
        assert age <= MAX_AGE, at
        assert server.age(server.read()) <= MAX_AGE, at
    assert at > 40


def check_reads(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile) -> None:
    at, more = 0, True
    while more:
        at += 1
        server = Server(monkeypatch)
        number, more = stopped(server, at, lambda server=server: meanwhile(server))
        assert number in (server.number, server.number - 1)
        for _ in range(3):
            assert server.age(server.read()) <= MAX_AGE, at
            if meanwhile is written_here:
                assert server.read() == server.number, at
            server.wait(MAX_AGE / 3)
            server.take()
    assert at > 100


@pytest.mark.parametrize(
    "meanwhile",
    [
        changed_and_confirmed,
        changed_while_an_answer_was_late,
        changed_behind_a_connection_that_hangs,
        written_here,
    ],
)
def test_a_hit_that_is_stopped_anywhere_is_not_too_old(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    check_hits(monkeypatch, meanwhile)


@pytest.mark.parametrize(
    "meanwhile", [changed_and_confirmed, changed_at_another_server, written_here]
)
def test_what_changes_while_it_is_read_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    check_reads(monkeypatch, meanwhile)


MISTAKES: dict[str, tuple[Any, Meanwhile, str, str, str]] = {
    "a copy that was dropped is used once later changes are confirmed": (
        *(check_hits, changed_and_confirmed),
        *("NearCopies._drop", "copy.until = -inf", "pass"),
    ),
    "an answer confirms what is current when it arrives": (
        *(check_hits, changed_while_an_answer_was_late),
        *(
            "_TrackedServer.take",
            "self.confirmed, self._asked = self._asked",
            "self.confirmed, self._asked = time.monotonic()",
        ),
    ),
    "a silent server confirms": (
        *(check_hits, changed_behind_a_connection_that_hangs),
        *("NearCopy.usable", "now - confirmed <= max_age", "True"),
    ),
    "an announcement does not reach what is being read": (
        *(check_reads, changed_and_confirmed),
        *("NearCopies.note", "self._names.setdefault(key, set()).add(name)", "pass"),
    ),
    "a write of this process does not reach it": (
        *(check_reads, written_here),
        *("NearCopies.forget", "self._names.pop(key, ())", "()"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_in_near_copies_has_a_schedule(name: str) -> None:
    check, meanwhile, *change = MISTAKES[name]
    with (
        _python(*change),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(AssertionError, match=r"assert"),
    ):
        check(patch, meanwhile)


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


STALE = {
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


@pytest.mark.parametrize("scenario", dict.fromkeys(each.scenario for each in STALE.values()))
def test_near_reads_are_not_stale(
    scenario: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scenario(monkeypatch) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("name", STALE)
def test_a_mistake_in_near_reads_is_noticed(name: str) -> None:
    scenario, *change = STALE[name]
    with (
        _python(*change),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(AssertionError, match=r"assert"),
    ):
        scenario(patch)
