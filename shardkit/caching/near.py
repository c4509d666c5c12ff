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

A value that changes while it is being read is not kept: the copy is noted before the read is sent,
and an announcement removes it. Each server has a connection, and a thread that reads it. After the
caching clients of RESP3, which trust a connection until it breaks.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from math import inf
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

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


class NearCopy:
    """A value in the process, or one that is being read.

    Attributes:
        name: what reads it.
        keys: the server's keys that it is read of.
        feeds: of the servers of these keys.
        since, until: when its reading began, and when it is no longer fresh.
        value, size: what was read, and its bytes.
    """

    __slots__ = ("feeds", "keys", "name", "since", "size", "until", "value")

    def __init__(self, name: Any, keys: tuple[Any, ...]) -> None:
        self.name, self.keys, self.since = name, keys, monotonic()
        self.feeds: tuple[_TrackedServer, ...] = ()
        self.until = inf
        self.value: Any = None
        self.size = 0

    def usable(self, max_age: float) -> bool:
        """Whether nobody has changed it until less than ``max_age`` seconds ago."""
        now = monotonic()
        if self.until <= now:
            return False
        for feed in self.feeds:  # noqa: SIM110 - a generator takes longer than the rest
            if feed.confirmed < now - max_age:
                return False
        return True


class _TrackedServer:
    """What a server tells of changes, to a thread of its own."""

    confirmed = -inf  # when what it has answered was sent
    again = inf  # when its server may be connected to again
    _connection: ListeningConnection | None = None
    _asked: float | None = None
    _answers = 2  # before those to its questions

    def __init__(self, component: Any, *, announces: bool = True) -> None:
        self.component = component  # the entries by which the server was found
        self.announces = announces  # else copies are used for their age

    def follow(self, near: weakref.ref[NearCopies], pool_of: Any, words: Sequence[str]) -> None:
        """Connect, and take what it tells until that fails; the thread keeps no copies alive."""
        try:
            self._connection = connection = ListeningConnection(pool_of())
            connection.send("HELLO", "3")
            connection.send("CLIENT", "TRACKING", "ON", "BCAST", *words)
            while (copies := near()) is not None and self.take(copies, connection):
                pause = copies.max_age / _BEATS
                del copies
                wait([connection.socket], pause)
        except InvalidArgumentError:  # in memory
            self.announces = False
        except FAILURES:
            pass
        finally:
            self.confirmed = -inf
            if (copies := near()) is not None:
                copies.drop_all(self)
            if self.announces:
                self.again = monotonic() + _PAUSE
            if self._connection is not None:
                self._connection.close()

    def take(self, copies: NearCopies, connection: ListeningConnection) -> bool:
        """Take what the server has told, and ask it in time; False if it is no longer used."""
        if not copies.follows(self.component):
            return False
        connection.require_master()
        for reply in connection.replies():
            if isinstance(reply, hiredis.PushNotification):
                if reply[0] == b"invalidate":
                    self._drop(copies, reply[1])
            elif isinstance(reply, Exception):  # NOPERM or ERR stays, LOADING passes
                self.announces = not str(reply).startswith(("NOPERM", "ERR"))
                raise OSError(str(reply))
            elif self._answers:
                self._answers -= 1
            elif reply[b"role"] != b"master":
                raise OSError("no master")
            elif self._asked is not None:  # what it had told before, has been dropped
                self.confirmed, self._asked = self._asked, None
        now = monotonic()
        if self._asked is None and now - self.confirmed >= copies.max_age / _BEATS:
            self._asked = now
            connection.send("HELLO")
        elif self._asked is not None and now - self._asked > max(1.0, 2 * copies.max_age):
            raise OSError("no answer")
        return True

    def _drop(self, copies: NearCopies, changed: list[bytes] | None) -> None:
        if changed is None:  # a database was flushed
            copies.drop_all(self)
        elif FENCE_KEY.encode() in changed:
            raise OSError("a database is closed: its shards move")
        else:
            copies.forget(changed)

    def stop(self) -> None:
        """Have the thread end."""
        if self._connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)


_SILENT = _TrackedServer(None, announces=False)  # of clusters


class NearCopies:
    """The near copies of a component's values in this process; for threads and for tasks."""

    def __init__(self, link: Any, component: str, prefixes: Sequence[str]) -> None:
        self._link, self._component = link, component
        self._prefixes = tuple(prefix.encode() for prefix in prefixes) or (b"",)
        tracked = (*prefixes, FENCE_KEY) if prefixes else ()
        self._words = [word for prefix in tracked for word in ("PREFIX", prefix)]
        self.most = 0  # bytes
        self.max_age = LONGEST_AGE
        self.copies: OrderedDict[Any, NearCopy] = OrderedDict()
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Begin anew: the connections are the parent's."""
        self.copies.clear()  # functions refer to it
        self._size = 0
        self._notes: dict[Any, NearCopy] = {}  # of what is being read
        self._names: dict[bytes, set[Any]] = {}  # of copies and notes, by key
        self._feeds: dict[Hashable, _TrackedServer] = {}  # by server
        self._lock = threading.Lock()
        self._closed = False

    def reads_master(self) -> bool:
        """Whether the component was read, and replicas, which lag, answer none of its reads."""
        with suppress(ShardKitError):
            return not self._link.version_of(self._component).splits_reads
        return False

    def value(self, client: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return the copy of a client's read as its callbacks convert it; None for none."""
        copy = self.copies.get(name_of(False, args)) if self.reads_master() else None
        if copy is None or options.keys() - {"keys"} or not copy.usable(self.max_age):
            return None
        callback = reply_callbacks(client).get(args[0])
        return own(copy.value) if callback is None else callback(own(copy.value))

    def note(
        self, name: Any, keys: Iterable[bytes | None], to: To | None = None
    ) -> NearCopy | None:
        """Note that a value is read of keys from now on; None if it cannot be kept yet."""
        note, feeds = NearCopy(name, tuple(keys)), []
        for key in note.keys:
            is_covered = key is not None and key.startswith(self._prefixes)
            feed = self._feed(to or self._component, key) if is_covered else None
            if feed is None:
                return None
            if feed.announces:
                feeds.append(feed)
            else:
                note.until = note.since + self.max_age
        note.feeds = tuple(dict.fromkeys(feeds))
        with self._lock:
            self._notes[name] = note
            self._list(note)
        return note

    def _list(self, note: NearCopy) -> None:
        for key in note.keys:
            self._names.setdefault(key, set()).add(note.name)

    def keep(self, note: NearCopy, value: Any, size: int, fresh: float) -> None:
        """Keep a value of ``size`` bytes for ``fresh`` seconds, unless it has changed since."""
        size += _OVERHEAD
        with self._lock:
            if self._notes.get(note.name) is not note:
                return
            self._drop([note.name])
            if size > self.most or fresh <= 0:
                return
            self._list(note)
            note.value, note.size, note.until = value, size, min(note.since + fresh, note.until)
            self.copies[note.name] = note
            self._size += size
            while self._size > self.most:
                self._drop([next(iter(self.copies))])

    def forget(self, keys: Iterable[bytes | None]) -> None:
        """Drop the copies of keys, also those being read; None among the keys stands for all."""
        with self._lock:
            for key in keys:
                self._drop(
                    [*self.copies, *self._notes] if key is None else self._names.pop(key, ())
                )

    @contextmanager
    def writing(self, key: Key, args: tuple[Any, ...]) -> Iterator[None]:
        """Drop the copies of a command's keys when it has been executed, or may have been."""
        try:
            yield
        finally:
            self.forget(keys_in(Command(self._component, key, args)))

    def drop_all(self, feed: _TrackedServer) -> None:
        """Drop the copies of a server's keys, also those being read."""
        with self._lock:
            read = [*self.copies.values(), *self._notes.values()]
            self._drop([copy.name for copy in read if feed in copy.feeds])

    def _drop(self, names: Iterable[Any]) -> None:
        for name in names:
            for dropped in (self._notes.pop(name, None), self.copies.pop(name, None)):
                for key in dropped.keys if dropped else ():
                    if others := self._names.get(key):
                        others.discard(name)
                        if not others:
                            del self._names[key]
                self._size -= dropped.size if dropped else 0

    # ---- what servers tell

    def _feed(self, to: To, key: Any) -> _TrackedServer | None:
        """Return what tells of a key's changes, in a new thread if needed; None if it cannot yet.

        Nothing is sent by the caller, who may be an event loop.
        """
        try:
            component: Any = self._link.version_of(self._component)
        except ShardKitError:  # not read yet
            return None
        if component.entry_of(place(to, key, {component.name: component})).is_cluster:
            return _SILENT
        server = self._link.server_of(to, key)
        feed = self._feeds.get(server)
        if feed is None or feed.component is not component or feed.again <= monotonic():
            with self._lock:
                if self._closed or self._feeds.get(server) is not feed:
                    return None
                feed = self._feeds[server] = _TrackedServer(component)
            pool_of = partial(self._link.pool_of, to, key)  # it may have to ask somebody
            args = weakref.ref(self), pool_of, self._words
            thread = threading.Thread(
                target=feed.follow, args=args, name="shardkit-near", daemon=True
            )
            start_thread(thread)
        # Changes before its first answer are not told.
        return feed if feed.confirmed > 0 or not feed.announces else None

    def follows(self, component: object) -> bool:
        """Whether these entries of the component are still used; raise as `last_known` does."""
        return not self._closed and self._link.version_of(self._component) is component

    def close(self) -> None:
        """Close the connections, and drop all copies."""
        with self._lock:
            self._closed = True
            self.copies.clear()
            self._notes.clear()
        for feed in list(self._feeds.values()):
            feed.stop()

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
    near.most, near.max_age = max(near.most, size), min(near.max_age, max_age)
    return near
