"""Near copies: values in the process itself, with an age that they never exceed.

::

    HELLO 3, CLIENT TRACKING ON BCAST PREFIX cached:{ PREFIX cached:tag:{ PREFIX config:fence
    ◄── invalidate [cached:{user:7}]     as soon as anybody changes it: the copy is dropped
    PING, HELLO ──► PONG, role: master   three times in ``max_age``: what was changed before they
                                         were sent has been announced before they are answered

**No copy is older than** ``max_age``, however slow or cut off its connection is, and whenever the
process stands still:

1. A server's thread drops what is announced before it takes the answer that follows, and only then
   notes when the question of that answer was sent: `confirmed`.
2. A call reads `confirmed` first, then that the copy is not dropped, and the clock last. So nobody
   had changed the value at `confirmed`, whatever happens between these steps.
3. What is read is noted before the request is sent, and kept if the note was not dropped since. A
   server of former entries confirms nothing that is sent after these have changed.

The copies of a server are dropped when its connection is lost, it flushes a database, it is no
master any more, or a fence closes one of its databases because they move: others write elsewhere
only after that. Slots of clusters move without a fence, and a server may refuse or lack tracking:
there a copy is used for ``max_age`` after its reading began. A busy server answers HELLO, but
announces nothing: so it is sent PING, too, which it refuses. After the caching clients of RESP3,
which trust a connection until it breaks.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from math import inf
from multiprocessing.connection import wait
from typing import Any

import hiredis
from redis.exceptions import NoPermissionError, ResponseError

from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.connections.listening import FAILURES, ListeningConnection
from shardkit.network.connections.redis_private import reply_callbacks
from shardkit.network.links.grouping import place
from shardkit.operations.arguments import is_text, shown
from shardkit.operations.commands import To
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.structures.base.arguments import check_integer, check_seconds

VALUES, TAGS = "cached:{", "cached:tag:{"
SHORTEST_AGE, LONGEST_AGE = 0.01, 60.0  # seconds
_QUESTIONS = 3  # in the longest age
_OVERHEAD = 400  # bytes of a copy beside its value
_PAUSE = 1.0  # seconds before a server is connected to again


def name_of(raw: bool, row: tuple[Any, ...]) -> Any:
    """Return what is the same for equal commands only: 1 is another argument than 1.0."""
    try:
        hash(row)
    except (TypeError, ValueError):  # a bytearray, or a view of one
        return None
    return raw, row, tuple(map(type, row))


def own(value: Any) -> Any:
    """Return a reply that its caller may change."""
    if type(value) in (list, set):
        return type(value)(map(own, value))
    return {key: own(item) for key, item in value.items()} if type(value) is dict else value


class NearCopy:
    """A value in the process, or a note that it is being read.

    Attributes:
        name: what reads it.
        keys: the server's keys of which it is read.
        servers: those of these keys that announce changes.
        since, latest: when its reading began, and until when it may be fresh.
        until: when it is no longer fresh; until it is kept and once it is dropped, -inf.
        value, size: what was read, and its bytes.
    """

    __slots__ = ("keys", "latest", "name", "servers", "since", "size", "until", "value")

    def __init__(self, name: Any, keys: Iterable[bytes | None]) -> None:
        self.name = name
        self.keys: tuple[Any, ...] = tuple(keys)
        self.servers: tuple[_TrackedServer, ...] = ()
        self.since, self.latest, self.until = time.monotonic(), inf, -inf
        self.value: Any = None
        self.size = _OVERHEAD

    def usable(self, max_age: float) -> bool:
        """Whether nobody has changed it until less than ``max_age`` seconds ago."""
        confirmed = inf
        for server in self.servers:
            if server.confirmed < confirmed:
                confirmed = server.confirmed
        # In this order: see the module's text.
        return self.until > (now := time.monotonic()) and now - confirmed <= max_age


class _TrackedServer:
    """What a server announces, which a thread of its own reads."""

    def __init__(self, entries: Any, *, announces: bool = True) -> None:
        self.entries = entries  # by which the server was found
        self.announces = announces  # else copies are used for their age
        self.confirmed = -inf  # when the latest question that it has answered was sent
        self.retry_at = inf
        self._connection: ListeningConnection | None = None
        self._asked: float | None = None
        self._other_answers = 2  # that come before that to HELLO

    def follow(self, near: weakref.ref[NearCopies], pool_of: Any, words: Sequence[str]) -> None:
        """Connect, and take what comes until that fails; the thread keeps no copies alive."""
        try:
            self._connection = connection = ListeningConnection(pool_of())
            connection.send("HELLO", "3")
            connection.send("CLIENT", "TRACKING", "ON", "BCAST", *words)
            while (copies := near()) is not None and copies.entries() is self.entries:
                self.take(copies, connection)
                pause = copies.max_age / _QUESTIONS
                del copies
                wait([connection.socket], pause)
        except InvalidArgumentError:  # in memory
            self.announces = False
        except (*FAILURES, LookupError, TypeError):  # the latter two for what is no reply to these
            pass
        finally:
            self.confirmed = -inf
            if (copies := near()) is not None:
                copies.forget_server(self)
            if self.announces:
                self.retry_at = time.monotonic() + _PAUSE
            if self._connection is not None:
                self._connection.close()

    def take(self, copies: NearCopies, connection: ListeningConnection) -> None:
        """Drop what has been announced, confirm the rest, and ask again in time."""
        connection.require_master()
        for reply in connection.replies():
            if isinstance(reply, hiredis.PushNotification):
                if reply[0] == b"invalidate":
                    self._drop(copies, reply[1])
            elif isinstance(reply, Exception):  # NOPERM and ERR stay; LOADING and BUSY pass
                is_err = type(reply) is ResponseError and not str(reply)[:2].isupper()
                self.announces = not (is_err or isinstance(reply, NoPermissionError))
                raise OSError(str(reply))
            elif self._other_answers:
                self._other_answers -= 1
            elif reply[b"role"] != b"master":
                raise OSError("no master")
            elif self._asked is not None:
                self.confirmed, self._asked = self._asked, None
        now = time.monotonic()
        if self._asked is None:
            if now - self.confirmed >= copies.max_age / _QUESTIONS:
                self._asked, self._other_answers = now, self._other_answers + 1
                connection.send("PING")
                connection.send("HELLO")
        elif now - self._asked > max(1.0, 2 * copies.max_age):
            raise OSError("no answer")

    def _drop(self, copies: NearCopies, changed: list[bytes] | None) -> None:
        if changed is None:  # a database was flushed
            copies.forget_server(self)
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
        self.copies: OrderedDict[Any, NearCopy] = OrderedDict()  # and notes
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Begin anew: the connections are the parent's."""
        self.copies.clear()  # functions refer to it
        self._size = 0
        self._names: dict[bytes | None, set[Any]] = {}  # of copies, by key
        self._servers: dict[Hashable, _TrackedServer] = {}
        self._lock = threading.Lock()
        self._closed = False

    def entries(self) -> Any:
        """Return the current version of the component's entries; None if it was not read yet."""
        try:
            return None if self._closed else self._link.version_of(self._component)
        except ShardKitError:
            return None

    def reads_master(self) -> bool:
        """Whether the component was read, and replicas, which lag, answer none of its reads."""
        entries = self.entries()
        return entries is not None and not entries.splits_reads

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
        note, servers = NearCopy(name, keys), []
        for key in note.keys:
            is_covered = key is not None and key.startswith(self._prefixes)
            server = self._server(to or self._component, key) if is_covered else None
            if server is None:
                return None
            if server.announces:
                servers.append(server)
            else:
                note.latest = note.since + self.max_age
        note.servers = tuple(dict.fromkeys(servers))
        with self._lock:
            self._drop([name])
            self.copies[name] = note
            for key in note.keys:
                self._names.setdefault(key, set()).add(name)
            self._add_size(note.size)
        return note

    def keep(self, note: NearCopy, value: Any, size: int, fresh: float) -> None:
        """Keep a value of ``size`` bytes for ``fresh`` seconds, unless it has changed since."""
        with self._lock:
            if self.copies.get(note.name) is not note:
                return
            if size + _OVERHEAD > self.most or fresh <= 0:
                self._drop([note.name])
                return
            note.value, note.size = value, size + _OVERHEAD
            note.until = min(note.since + fresh, note.latest)
            self._add_size(size)

    def _add_size(self, size: int) -> None:
        self._size += size
        while self._size > self.most:
            self._drop([next(iter(self.copies))])

    def forget(self, keys: Iterable[bytes | None]) -> None:
        """Drop the copies of keys, also those being read; None among the keys stands for all."""
        with self._lock:
            for key in keys:
                self._drop(list(self.copies) if key is None else self._names.pop(key, ()))

    def forget_server(self, server: _TrackedServer) -> None:
        """Drop the copies of a server's keys, also those being read."""
        with self._lock:
            self._drop([copy.name for copy in self.copies.values() if server in copy.servers])

    def _drop(self, names: Iterable[Any]) -> None:
        for name in names:
            if (copy := self.copies.pop(name, None)) is not None:
                copy.until = -inf
                self._size -= copy.size
                for key in copy.keys:
                    if others := self._names.get(key):
                        others.discard(name)
                        if not others:
                            del self._names[key]

    def _server(self, to: To, key: Any) -> _TrackedServer | None:
        """Return what tracks a key's server, in a new thread if needed; None: not yet.

        Nothing is sent by the caller, who may be an event loop.
        """
        if (entries := self.entries()) is None:
            return None
        if entries.entry_of(place(to, key, {entries.name: entries})).is_cluster:
            return _SILENT
        name = self._link.server_of(to, key)
        server = self._servers.get(name)
        if server is None or server.entries is not entries or server.retry_at <= time.monotonic():
            with self._lock:
                if self._closed or self._servers.get(name) is not server:
                    return None
                server = self._servers[name] = _TrackedServer(entries)
            pool_of = partial(self._link.pool_of, to, key)  # it may have to ask somebody
            args = weakref.ref(self), pool_of, self._words
            thread = threading.Thread(
                target=server.follow, args=args, name="shardkit-near", daemon=True
            )
            start_thread(thread)
        # Changes before its first answer are not announced.
        return server if server.confirmed > -inf or not server.announces else None

    def close(self) -> None:
        """Close the connections, and drop all copies."""
        with self._lock:
            self._closed = True
            self._drop(list(self.copies))
        for server in list(self._servers.values()):
            server.stop()

    def __del__(self) -> None:
        self.close()


def near_copies(
    kit: Any, component: str, size: int, max_age: Any, prefixes: Iterable[str] = ()
) -> NearCopies:
    """Return a kit's near copies of a component's keys with certain beginnings.

    Calls for the same keys share them: of the sizes the larger counts, of the ages the shorter.
    """
    if not is_text(component):
        raise InvalidArgumentError(f"component={shown(component)}", "give text")
    owner = f"near copies of {shown(component)}"
    check_integer(owner, "size", size, 1, 2**40)
    max_age = check_seconds(owner, "max_age", max_age, SHORTEST_AGE, LONGEST_AGE)
    are_several = isinstance(prefixes, Iterable) and not isinstance(prefixes, str)
    texts = set(prefixes) if are_several else {""}
    if not all(is_text(text) and text for text in texts):
        raise InvalidArgumentError(f"{owner}: prefixes={shown(prefixes)}", "give texts in a tuple")
    wanted = tuple(sorted(texts))
    for first, second in pairwise(sorted({*wanted, FENCE_KEY} if wanted else ())):
        if second.startswith(first):
            raise InvalidArgumentError(
                f"{owner}: prefix {first!r} is the beginning of {second!r}", "give the shorter one"
            )
    made = NearCopies(kit.plane.link(), component, wanted)
    near: NearCopies = kit.near_copies.setdefault((component, wanted), made)
    near.most, near.max_age = max(near.most, size), min(near.max_age, max_age)
    return near
