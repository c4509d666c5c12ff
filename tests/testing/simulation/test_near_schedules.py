"""Near copies under every interleaving: a call is stopped between any two of its instructions.

Other tests of near copies wait for real servers. Here a server's announcements, the clock and the
steps of a hit are in the hand of the test, so private parts are used: nothing else can stop them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import hiredis
import pytest
from mutations import _python

from shardkit.caching import near as near_module

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
