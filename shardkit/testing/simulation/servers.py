"""Simulated servers: commands are executed one at a time; all that happened can be replayed.

A server is its log: the commands that it has executed, each with its time. After a crash it holds
what a prefix of the log makes of an empty server, and so does a replica that lags::

    log        SET a 1 │ INCR n │ EVAL … │ SADD s x │ INCR n        appendfsync
    survives   ────────────────────────────────────────────►        always
               ──────────────────────────►                          everysec: not the last second
               nothing                                              no AOF

fakeredis executes the commands, with scripts compiled once (`shardkit.testing.fakes.lua`). A
command that blocks is tried again after each command that the server executes, until it ends or its
time is over.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Final, Protocol, TypeAlias

import fakeredis
import redis
from fakeredis._commands import COMMANDS_WITH_SUB, SUPPORTED_COMMANDS
from fakeredis._core import CommandItem, Database
from fakeredis._helpers import NoResponse
from fakeredis.model import AccessControlList, ClientInfo, is_write_command

from shardkit.testing.fakes.lua import CompilingSocket
from shardkit.testing.simulation.replies import pack_reply
from shardkit.testing.simulation.virtual_time import Clock

LogEntry: TypeAlias = tuple[float, int, list[bytes]]
"""A write that was executed: when, in which database, and what."""

_READ_SCRIPTS: Final = frozenset({b"EVAL_RO", b"EVALSHA_RO"})
_RUN_SCRIPTS: Final = frozenset({b"EVAL", b"EVALSHA"})
# Executed at once when they are sent: the handshake of a connection is no step of a schedule.
HANDSHAKE: Final = frozenset({b"CLIENT", b"HELLO", b"SELECT", b"AUTH", b"READONLY", b"COMMAND"})


class _Data(fakeredis.FakeServer):
    """What a server holds; used by one thread, and never waited for.

    Attributes:
        changed: whether it has changed since this was set.
    """

    changed = False

    def __init__(self, clock: Clock) -> None:
        # As fakeredis has it, which looks at every command that there is to make the users.
        vars(self).update({name: make() for name, make in _fields_of_servers()})
        self.lastsave = int(clock.time())
        self.clock = clock
        lock: Any = _NoLock()
        self.lock = lock
        self.dbs = defaultdict(lambda: _KeySpace(lock))

    @cached_property
    def acl(self) -> AccessControlList:  # type: ignore[override]
        """Its users."""
        return copy.deepcopy(_users())


@cache
def _users() -> AccessControlList:
    return AccessControlList()


@cache
def _fields_of_servers() -> list[tuple[str, Callable[[], Any]]]:
    """Return what makes each attribute of a new server."""
    first = vars(fakeredis.FakeServer(version=(7, 2)))
    own = ("lock", "dbs", "acl")
    return [(name, _maker(value)) for name, value in first.items() if name not in own]


def _maker(value: Any) -> Callable[[], Any]:
    """Return what makes another value like an empty collection; of others the same is given."""
    return value.copy if isinstance(value, dict | list | set) else partial(_same, value)


def _same(value: Any) -> Any:
    return value


class _NoLock:
    def __enter__(self, *_: object) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    acquire, release = __enter__, __exit__  # a condition asks for them


class _KeySpace(Database):
    def notify_watch(self, key: bytes) -> None:
        watchers = self._watches.get(key)
        if watchers:
            for sock in watchers:
                sock.notify_watch()

    def setdefault(self, key: bytes, default: Any = None) -> Any:
        """Return what a key holds, after it was given a default if it held nothing."""
        item = self._dict.get(key)
        if item is not None and (item.expireat is None or not self.expired(item)):
            return item
        self[key] = default
        return default


class ServerSocket(CompilingSocket):
    """The server's end of a connection.

    Attributes:
        answer: is given each reply, packed.
        waiting: what a blocked command tries again, until when, and how its reply is shaped.
        asking: whether a cluster's client has announced that it was redirected here.
        queued_keys: those of its transaction, on a cluster.
    """

    asking = False

    def __init__(self, server: Any, db: int, answer: Callable[[bytes], None]) -> None:
        info = dict(_first_info())
        info["id"] = server.get_next_client_id()
        info["-created"] = int(server.clock.time())
        vars(self).update({name: make() for name, make in _fields_of_sockets()})
        self._server, self._db_num, self._db = server, db, server.dbs[db]
        self._client_info = ClientInfo.__new__(ClientInfo)
        self._client_info.update(info)
        server.sockets.append(self)
        self.answer = answer
        self.waiting: tuple[Callable[[bool], Any], float, Callable[[Any], Any] | None] | None = None
        self.queued_keys: list[bytes] = []

    def _expireat(self, key: CommandItem, timestamp: float, *args: bytes, **more: Any) -> int:
        done: int = super()._expireat(key, timestamp, *args, **more)
        if done and timestamp <= self._db.time:  # at once, though no time has passed
            key.value = None
        return done

    def put_response(self, msg: Any) -> None:
        """Give out a reply or a message."""
        self.answer(pack_reply(msg))

    def _process_command(self, fields: list[bytes]) -> None:
        """Execute a command: in fewer steps than fakeredis, if nothing but the data matters."""
        found = _plain_command(fields[0])
        server = self._server
        if (
            found is None
            or self._transaction is not None
            or self._pubsub
            or self._reply_off
            or self._reply_skip
            or self._reply_skip_next
            or self._client_info["user"] != "default"
        ):
            super()._process_command(fields)
            return
        now = server.clock.time()
        for db in server.dbs.values():
            db.time = now
        result = self._run_command(getattr(self, found.func_name), found, fields[1:], False)
        if not isinstance(result, NoResponse):
            self.put_response(result)

    def close(self) -> None:
        """Close it."""
        server = self._server
        super().close()
        server.closed_sockets.clear()
        self._cleanup(server)

    def _decode_result(self, result: Any) -> Any:
        return result

    def _blocking(
        self,
        timeout: float | None,
        func: Callable[[bool], Any],
        shape: Callable[[Any], Any] | None = None,
    ) -> Any:
        found = func(True)
        if found is not None or self._in_transaction:
            return found if shape is None else shape(found)
        self.waiting = func, timeout or float("inf"), shape
        return NoResponse()


@cache
def _fields_of_sockets() -> list[tuple[str, Callable[[], Any]]]:
    """Return what makes each attribute of a new socket."""
    first = vars(_first_socket())
    own = ("_server", "_db", "_db_num", "_client_info")
    return [(name, _maker(value)) for name, value in first.items() if name not in own]


@cache
def _first_socket() -> CompilingSocket:
    return CompilingSocket(fakeredis.FakeServer(version=(7, 2)), 0, client_class=redis.Redis)


@cache
def _first_info() -> dict[str, Any]:
    return dict(_first_socket()._client_info)


@cache
def _plain_command(name: bytes) -> Any:
    """Return the signature of a command that is one word; None of others, and of ACL's."""
    known = name.decode(errors="replace").lower()
    return None if known in COMMANDS_WITH_SUB else SUPPORTED_COMMANDS.get(known)


class Role(Protocol):
    """What a server is beside one that holds data."""

    def answer(self, socket: ServerSocket, args: list[bytes], name: bytes) -> Any:
        """Return what is answered in place of executing a command; None to execute it."""


class Replicating(Protocol):
    """What a server does as a master or a replica; see `replication.py`."""

    def execute(
        self, socket: ServerSocket, args: list[bytes], name: bytes, writes: bool
    ) -> bool | None:
        """Return None if the server is to execute a command; otherwise whether it is answered."""


class SimulatedServer:
    """A server, its log and its state.

    Args:
        address: as clients know it.
        now: tells the time of the simulation.
        log: whether to keep a log, for crashes and failovers.

    Attributes:
        clock: its clock.
        up: whether it runs.
        refuses: what it answers instead of executing a command, if anything.
        reads: whether it executes commands that only read all the same.
        sockets: its ends of the open connections.
        role: what answers first, if it is the node of a cluster.
        replication: what it does as a master or a replica, if it is one.
    """

    role: Role | None = None
    replication: Replicating | None = None

    def __init__(self, address: str, now: Callable[[], float], log: bool) -> None:
        self.address = address
        self.clock = Clock(now)
        self.up = True
        self.refuses, self.reads = b"", True
        self.fake = _Data(self.clock)
        self.sockets: dict[ServerSocket, float] = {}
        self._now = now
        self._log: list[LogEntry] | None = [] if log else None
        self._queued: dict[ServerSocket, list[list[bytes]]] = {}
        self._blocked: dict[ServerSocket, list[bytes]] = {}
        self._inside: ServerSocket | None = None

    def connect(self, db: int, answer: Callable[[bytes], None]) -> ServerSocket:
        """Open a connection."""
        socket = ServerSocket(self.fake, db, answer)
        self.sockets[socket] = self._now()
        return socket

    def disconnect(self, socket: ServerSocket) -> None:
        """Close a connection."""
        if self.sockets.pop(socket, None) is not None:
            self._queued.pop(socket, None)
            socket.waiting = None
            socket.close()

    def execute(self, socket: ServerSocket, args: list[bytes]) -> bool:
        """Execute a command; return whether its connection may be used again at once.

        It may not while the command blocks.
        """
        name = args[0].upper()
        if socket is not self._inside:
            if self.refuses and not (self.reads and not _writes(name)):
                socket.answer(b"-%b\r\n" % self.refuses)
                return True
            if self.role is not None:
                answer = self.role.answer(socket, args, name)
                if answer is not None:
                    socket.put_response(answer)
                    return True
            if self.replication is not None:
                answered = self.replication.execute(socket, args, name, _writes(name))
                if answered is not None:
                    if answered and name == b"EXEC":
                        self._queued.pop(socket, None)
                    return answered
        if socket._server is not self.fake:  # it has stayed with a master that is one no longer
            socket._process_command(args)
            return socket.waiting is None
        db = socket._db_num
        queueing = socket._transaction is not None
        if self._log is not None and not queueing and _writes(name):
            self._note(db, args, name)
        elif self._log is not None and queueing:
            if name == b"EXEC":
                queued = self._queued.pop(socket, [])
                if not (socket._transaction_failed or socket._watch_notified):
                    for each in queued:
                        self._note(db, each, each[0].upper())
            elif name != b"DISCARD":
                self._queued.setdefault(socket, []).append(args)
        socket._process_command(args)
        if socket.waiting is not None:
            retry, seconds, shape = socket.waiting
            socket.waiting = retry, self._now() + seconds, shape
            if self._log:  # it counts when it takes something
                self._blocked[socket] = self._log.pop()[2]
        if len(self.sockets) > 1:
            self.retry_blocked()
        return socket.waiting is None

    @property
    def log(self) -> list[list[bytes]]:
        """The commands that it has executed, if it keeps a log."""
        return [args for _, _, args in self._log or ()]

    @property
    def entries(self) -> list[LogEntry]:
        """Its log: each write with its time and database. After a crash it is another list."""
        if self._log is None:
            self._log = []
        return self._log

    def copy(self, entries: list[LogEntry], at_time: Callable[[float], None]) -> None:
        """Hold what another server's log makes, and nothing else.

        Args:
            entries: that log.
            at_time: sets the time of the simulation.
        """
        for db in self.fake.dbs.values():
            db.clear()
        self._log = []
        self.follow(entries, at_time)

    def follow(self, entries: list[LogEntry], at_time: Callable[[float], None]) -> None:
        """Execute what another server has executed; see `copy`."""
        self._replay(entries, at_time)
        self.entries.extend(entries)

    def load(self, commands: list[list[bytes]]) -> None:
        """Execute commands, as of a log."""
        socket = self.connect(0, lambda reply: None)
        for args in commands:
            self.execute(socket, args)
        self.disconnect(socket)

    def _note(self, db: int, args: list[bytes], name: bytes) -> None:
        assert self._log is not None
        if name == b"EVALSHA":  # of a replay the server knows no scripts
            text = self.fake.script_cache.get(args[1].lower())
            if text is None:
                return
            args = [b"EVAL", text, *args[2:]]
        _seed(args, len(self._log))
        self._log.append((self._now(), db, args))

    def retry_blocked(self) -> None:
        """Answer the blocked commands that can be executed now."""
        for socket in list(self.sockets):
            if socket.waiting is not None:
                retry, _, shape = socket.waiting
                found = retry(False)
                if found is not None:
                    socket.waiting = None
                    self.fake.changed = True
                    if self._log is not None and socket in self._blocked:
                        self._note(socket._db_num, self._blocked.pop(socket), b"BLPOP")
                    socket.put_response(found if shape is None else shape(found))

    def take_changed(self) -> bool:
        """Return whether data has changed since this was called last."""
        changed, self.fake.changed = self.fake.changed, False
        return changed

    def next_timeout(self) -> float:
        """Return when the first blocked command gives up."""
        return min(
            (s.waiting[1] for s in self.sockets if s.waiting is not None), default=float("inf")
        )

    def end_blocked(self) -> None:
        """Answer the blocked commands whose time is over."""
        for socket in list(self.sockets):
            if socket.waiting is not None and socket.waiting[1] <= self._now():
                shape = socket.waiting[2]
                socket.waiting = None
                socket.put_response(None if shape is None else shape(None))

    def lose(self, since: float, at_time: Callable[[float], None]) -> int:
        """Lose what was executed since a time: hold what the log up to it makes.

        Args:
            since: that time.
            at_time: sets the time of the simulation.

        Returns:
            How many commands were lost.
        """
        assert self._log is not None
        kept = [entry for entry in self._log if entry[0] < since]
        lost = len(self._log) - len(kept)
        self.fake = _Data(self.clock)
        self._inside = None
        self._log = []
        self._replay(kept, at_time)
        self._log = kept
        self.sockets.clear()
        self._queued.clear()
        return lost

    def _replay(self, entries: list[LogEntry], at_time: Callable[[float], None]) -> None:
        now = self._now()
        socket = ServerSocket(self.fake, 0, lambda reply: None)
        for number, (when, db, args) in enumerate(entries, len(self.entries)):
            at_time(when)
            _seed(args, number)
            socket._db_num, socket._db = db, self.fake.dbs[db]
            socket._process_command(args)
            socket.waiting = None
        at_time(now)
        self.fake.changed = True

    def inside(self, db: int = 0) -> ServerSocket:
        """Return a connection for checks, which no fault affects."""
        if self._inside is None:
            self._inside = ServerSocket(self.fake, db, lambda reply: None)
        return self._inside

    def digest(self) -> int:
        """Return a number that tells the server's data from most others."""
        return hash(
            tuple(
                (number, key, _value(item.value), item.expireat)
                for number, db in sorted(self.fake.dbs.items())
                for key, item in sorted(db._dict.items())
            )
        )


@cache
def _writes(name: bytes) -> bool:
    return name in _RUN_SCRIPTS or (
        name not in _READ_SCRIPTS and bool(is_write_command(name.lower()))
    )


def _seed(args: list[bytes], number: int) -> None:
    """Have a command that takes random members take the same ones in a replay."""
    name = args[0].upper()
    if b"POP" in (args[1].upper() if name in _RUN_SCRIPTS else name):
        random.seed(number)


def _value(value: Any) -> str:
    inner = getattr(value, "_values", None) or getattr(value, "_bylex", None) or value
    return repr(sorted(inner, key=repr) if isinstance(inner, set | dict) else inner)
