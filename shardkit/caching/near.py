"""Near copies: values in the process itself, with an age that they never exceed.

::

    HELLO 3, CLIENT TRACKING ON BCAST PREFIX cached:{ PREFIX cached:tag:{ PREFIX config:fence
    ◄── invalidate [cached:{user:7}]     as soon as anybody changes it: the copy is dropped
    HELLO ──► role: master               three times in ``max_age``: what was changed before it was
                                         answered has been told

A copy is used as long as its server has answered on that connection to something that was sent at
most ``max_age`` seconds ago. So however slow or cut off the connection is, a copy is never older,
and a process that was stopped uses none when it wakes. All copies of a server are dropped when its
connection is lost, it flushes a database, it is no master any more, or a fence closes one of its
databases because they move: others write elsewhere only after that. Slots of clusters move without
a fence, and a server may refuse or lack tracking: there a copy is used for ``max_age`` after its
reading began.

A value that changes while it is being read is not kept: its key is noted before the read is sent,
and an invalidation removes the note. One connection for each server and one thread for each kit and
component do all that. After the caching clients of RESP3, which trust a connection until it breaks.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import inf
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, NamedTuple

import hiredis

from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.connections.listening import FAILURES, ListeningConnection
from shardkit.network.connections.redis_private import reply_callbacks
from shardkit.network.links.grouping import place
from shardkit.network.links.order import keys_in
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Key, To
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.structures.base.arguments import check_integer, check_seconds

VALUES, TAGS = "cached:{", "cached:tag:{"
SHORTEST_AGE, LONGEST_AGE = 0.01, 60.0  # seconds
_BEATS = 3  # in the longest age
_OVERHEAD = 400  # bytes of a copy beside its value
_PAUSE = 1.0  # seconds before a server is connected to again


def text_of(key: Any) -> str:
    """Return a key's bytes as text."""
    return str(key, "utf-8", "surrogateescape")


def name_of(raw: bool, row: tuple[Any, ...]) -> Any:
    """Return what is the same for equal commands only: 1 is another argument than 1.0."""
    try:
        hash(row)
    except TypeError:  # a bytearray
        return None
    return raw, row, tuple(map(type, row))


def own(value: Any) -> Any:
    """Return a reply that its caller may change."""
    if type(value) in (list, set):
        return type(value)(map(own, value))
    return {key: own(each) for key, each in value.items()} if type(value) is dict else value


class NearCopy(NamedTuple):
    """A value in the process."""

    key: Any  # what reads it
    value: Any
    until: float  # when it is no longer fresh
    feeds: tuple[_Tracker, ...]  # of the servers of its key and its tags
    tags: tuple[str, ...]
    size: int

    def usable(self, max_age: float) -> bool:
        """Whether nobody has changed it until less than ``max_age`` seconds ago."""
        now = monotonic()
        if self.until <= now:
            return False
        for feed in self.feeds:  # noqa: SIM110 - a generator takes longer than the rest
            if feed.confirmed < now - max_age:
                return False
        return True


class PendingRead(NamedTuple):
    """A value that is being read."""

    key: Any
    tags: tuple[str, ...]
    feeds: tuple[_Tracker, ...]
    since: float
    until: float  # it may be used


class _Refused(OSError):
    """The server does not tell of changes."""


class _Tracker(ListeningConnection):
    fields_expire = False  # by themselves, which it does not tell at once

    def __init__(self, pool: Any, prefixes: Sequence[str]) -> None:
        super().__init__(pool)
        self.confirmed = float("-inf")  # when what it has answered was sent
        self._asked: float | None = None
        words = [word for prefix in (*prefixes, FENCE_KEY) for word in ("PREFIX", prefix)]
        self._answers = 2  # before those to its questions
        try:
            self.send("HELLO", "3")
            self.send("CLIENT", "TRACKING", "ON", "BCAST", *(words if prefixes else ()))
            self.ask(monotonic(), 0)
        except BaseException:
            self.close()
            raise

    def ask(self, now: float, patience: float) -> None:
        """Ask for its role, unless that has not been answered; raise when that takes too long."""
        if self._asked is None:
            self._asked = now
            self.send("HELLO")
        elif now - self._asked > patience:
            raise OSError("no answer")

    def read(self) -> tuple[list[bytes] | None, float]:
        """Return the changed keys, None if all may have changed; and what they are `confirmed` by.

        Copies must be dropped before that is noted, or another thread would use an old one.
        """
        changed: list[bytes] | None = []
        confirmed = self.confirmed
        for reply in self.replies():
            if isinstance(reply, hiredis.PushNotification):
                if reply[0] == b"invalidate":
                    changed = None if reply[1] is None or changed is None else changed + reply[1]
            elif isinstance(reply, Exception):
                refused = str(reply).startswith(("NOPERM", "ERR"))  # others pass, such as LOADING
                raise (_Refused if refused else OSError)(str(reply))
            elif self._answers:
                self._answers -= 1
            elif reply[b"role"] != b"master":
                raise OSError("no master")
            elif self._asked is not None:
                confirmed, self._asked = self._asked, None
                since = (9, 0) if reply[b"server"] == b"valkey" else (7, 4)
                version = reply[b"version"].split(b".")
                self.fields_expire = tuple(map(int, version[:2])) >= since
        return changed, confirmed

    def close(self) -> None:
        self.confirmed = float("-inf")
        super().close()


class NearCopies:
    """The near copies of a component's values in this process; for threads and for tasks."""

    def __init__(self, link: Any, component: str, prefixes: Sequence[str]) -> None:
        self._link, self._component, self._prefixes = link, component, prefixes
        self.most = 0  # bytes
        self.max_age = LONGEST_AGE
        self.warm = False  # whether the component's entries were read
        self.copies: OrderedDict[Any, NearCopy] = OrderedDict()
        self._reset()
        renewed_in_children(self)

    def _reset(self) -> None:
        self.copies.clear()  # functions refer to it
        self._size = 0
        self._notes: dict[Any, PendingRead] = {}
        self._by_tag: dict[str, set[Any]] = {}
        # Or when it may be connected to again: never, where changes are not told.
        self._feeds: dict[Hashable, _Tracker | float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._version: Any = None
        self._closed = False

    def after_fork(self) -> None:
        """Begin anew: the connections are the parent's."""
        self._reset()

    def configure(self, most: int, max_age: float) -> None:
        """Take the larger size and the shorter age of all functions."""
        self.most, self.max_age = max(self.most, most), min(self.max_age, max_age)

    def reads_master(self) -> bool:
        """Whether the component was read, and replicas, which lag, answer none of its reads."""
        component: Any = self._link.version_of(self._component) if self.warm else None
        return component is not None and not component.splits_reads

    def value(self, client: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return the copy of a client's read as its callbacks convert it; None for none."""
        copy = self.copies.get(name_of(False, args)) if self.reads_master() else None
        if copy is None or options.keys() - {"keys"} or not copy.usable(self.max_age):
            return None
        callback = reply_callbacks(client).get(args[0])
        return own(copy.value) if callback is None else callback(own(copy.value))

    def covers(self, keys: Set[bytes | None]) -> bool:
        """Whether changes of these keys are told."""
        prefixes = tuple(prefix.encode() for prefix in self._prefixes) or (b"",)
        return all(key is not None and key.startswith(prefixes) for key in keys)

    def note(
        self, key: Any, tags: Sequence[str], keys: Iterable[Key], to: To | None = None
    ) -> PendingRead | None:
        """Note that a value is read from now on, of keys; None if it cannot be kept yet."""
        since, until = monotonic(), inf
        trackers = []
        for place_key in keys:
            feed = self._feed(to or self._component, place_key)
            if isinstance(feed, _Tracker):
                trackers.append(feed)
            elif feed == inf:
                until = since + self.max_age
            else:
                return None
        note = PendingRead(key, tuple(tags), tuple(dict.fromkeys(trackers)), since, until)
        with self._lock:
            self._notes[key] = note
            for tag in tags:
                self._by_tag.setdefault(tag, set()).add(key)
        return note

    def keep(self, note: PendingRead, value: Any, size: int, fresh: float) -> None:
        """Keep a value of ``size`` bytes for ``fresh`` seconds, unless it has changed since."""
        size += _OVERHEAD
        with self._lock:
            if self._notes.get(note.key) is not note:
                return
            self._drop(note.key)
            if size > self.most or fresh <= 0:
                return
            for tag in note.tags:
                self._by_tag.setdefault(tag, set()).add(note.key)
            until = min(note.since + fresh, note.until)
            self.copies[note.key] = NearCopy(note.key, value, until, note.feeds, note.tags, size)
            self._size += size
            while self._size > self.most:
                self._drop(next(iter(self.copies)))

    def forget(self, keys: Sequence[str]) -> None:
        """Drop the copies of keys, or of what has one of them as a tag; also those being read."""
        with self._lock:
            for key in keys:
                for name in (key, *self._by_tag.pop(key, ())):
                    self._drop(name)

    def forget_keys(self, keys: Set[bytes | None]) -> None:
        """Drop the copies of what was read of keys; None among them stands for all."""
        if None in keys:
            with self._lock:
                for key in [*self.copies, *self._notes]:
                    self._drop(key)
        else:
            self.forget(list(map(text_of, keys)))

    @contextmanager
    def writing(self, key: Key, args: tuple[Any, ...]) -> Iterator[None]:
        """Drop the copies of a command's keys when it has been executed, or may have been."""
        try:
            yield
        finally:
            self.forget_keys(keys_in(Command(self._component, key, args)))

    def _drop(self, key: Any) -> None:
        for dropped in (self._notes.pop(key, None), self.copies.pop(key, None)):
            for tag in dropped.tags if dropped else ():
                if tagged := self._by_tag.get(tag):
                    tagged.discard(key)
                    if not tagged:
                        del self._by_tag[tag]
            if isinstance(dropped, NearCopy):
                self._size -= dropped.size

    def _forget_server(self, feed: _Tracker) -> None:
        with self._lock:
            read: list[NearCopy | PendingRead] = [*self.copies.values(), *self._notes.values()]
            for key in [copy.key for copy in read if feed in copy.feeds]:
                self._drop(key)

    # ---- connections

    def _feed(self, to: To, key: Key) -> _Tracker | float:
        """Return the connection of a key's server, or what `_feeds` has; connect to it if needed.

        Nothing is sent by the caller, who may be an event loop.
        """
        component: Any = self._link.version_of(self._component)
        if component.entry_of(place(to, key, {component.name: component})).is_cluster:
            return inf
        server = self._link.server_of(to, key)
        feed = self._feeds.get(server)
        if isinstance(feed, _Tracker):  # changes before its first answer are not told
            return feed if feed.confirmed > 0 else 0.0
        now = monotonic()
        with self._lock:
            if self._closed or (feed is not None and now < feed):
                return 0.0 if feed is None else feed
            self._feeds[server] = now + _PAUSE
            if self._thread is None:
                self._version = self._link.version_of(self._component)
                self._wake = socket.socketpair()
                args = (weakref.ref(self), self._wake[1])
                self._thread = threading.Thread(
                    target=_watch, args=args, name="shardkit-near", daemon=True
                )
                start_thread(self._thread)
        start_thread(threading.Thread(target=self._connect, args=(server, to, key), daemon=True))
        return 0.0  # a later value is kept

    def _connect(self, server: Hashable, to: To, key: Key) -> None:
        """Connect to the server of a key, in a thread, as it may hang."""
        try:
            made = _Tracker(self._link.pool_of(to, key), self._prefixes)
        except InvalidArgumentError:  # in memory
            self._feeds[server] = inf
        except FAILURES:
            pass
        else:
            with self._lock:
                if self._wake is not None:
                    self._feeds[server] = made
                    self._wake[0].send(b"x")
                    return
            made.close()

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        with self._lock:
            return [each.socket for each in self._feeds.values() if isinstance(each, _Tracker)]

    def turn(self, readable: set[socket.socket]) -> None:
        """Read what servers have sent, and ask those that have answered."""
        now, version = monotonic(), None
        with suppress(ShardKitError):  # the kit is closed, or the entries are gone
            version = self._link.version_of(self._component)
        if version is not self._version:  # entries have changed, and with them servers
            self._version = version
            for server in list(self._feeds):
                self._leave(server, now)
            self._feeds.clear()
        for server, feed in list(self._feeds.items()):
            if not isinstance(feed, _Tracker):
                continue
            try:
                feed.require_master()
                if feed.socket in readable:
                    changed, confirmed = feed.read()
                    if changed is None:
                        self._forget_server(feed)
                    elif FENCE_KEY.encode() in changed:
                        raise OSError("a database is closed: its shards move")  # leave, too
                    else:
                        self.forget(list(map(text_of, changed)))
                    feed.confirmed = confirmed
                if now - feed.confirmed >= self.max_age / _BEATS:
                    feed.ask(now, max(1.0, 2 * self.max_age))
            except FAILURES as error:
                self._leave(server, inf if isinstance(error, _Refused) else now + _PAUSE)

    def _leave(self, server: Hashable, until: float) -> None:
        """Close the connection to a server, and drop its copies; connect to it later, if needed."""
        with self._lock:
            feed = self._feeds.pop(server, None)
            if not self._closed:
                self._feeds[server] = until
        if isinstance(feed, _Tracker):
            feed.close()
            self._forget_server(feed)

    def close(self) -> None:
        """Close the connections and end the thread."""
        with self._lock:
            self._closed = True
            wake, self._wake = self._wake, None
            feeds = [each for each in self._feeds.values() if isinstance(each, _Tracker)]
            self._feeds.clear()
            self.copies.clear()
        for feed in feeds:
            feed.close()
        if wake is not None:
            wake[0].close()  # ends the thread

    def __del__(self) -> None:
        self.close()


def near_copies(
    kit: Any, component: str, size: int, max_age: Any, prefixes: Iterable[str] = ()
) -> NearCopies:
    """Return a kit's near copies of a component's keys with certain beginnings."""
    owner = f"near copies of {shown(component)}"
    check_integer(owner, "size", size, 1, 2**40)
    max_age = check_seconds(owner, "max_age", max_age, SHORTEST_AGE, LONGEST_AGE)
    if isinstance(prefixes, str) or not all(isinstance(each, str) and each for each in prefixes):
        raise InvalidArgumentError(f"{owner}: prefixes={shown(prefixes)}", "give texts in a tuple")
    wanted = tuple(sorted(set(prefixes)))
    for first, second in pairwise(sorted({*wanted, FENCE_KEY} if wanted else ())):
        if second.startswith(first):
            raise InvalidArgumentError(
                f"{owner}: prefix {first!r} is the beginning of {second!r}", "give the shorter one"
            )
    near: NearCopies | None = kit.near_copies.get((component, wanted))
    if near is None:
        made = NearCopies(kit.plane.link(), component, wanted)
        near = kit.near_copies.setdefault((component, wanted), made)
    near.configure(size, max_age)
    return near


def _watch(near: weakref.ref[NearCopies], woken: socket.socket) -> None:
    """The thread; it does not keep what it serves alive."""
    with woken:
        while True:
            found = near()
            if found is None:
                return
            waiting, pause = found.sockets(), found.max_age / _BEATS
            del found
            try:
                readable: set[Any] = set(wait([woken, *waiting], pause))
                if woken in readable and not woken.recv(1024):
                    return
            except (OSError, ValueError):  # one of them was closed
                readable = set(waiting)
            found = near()
            if found is None:
                return
            found.turn(readable)
            del found
