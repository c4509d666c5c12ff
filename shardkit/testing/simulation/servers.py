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

import random
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import hiredis

import shardkit
from shardkit.operations.lua import script
from shardkit.testing.fakes.fakeredis_private import (
    Data,
    DirectEnd,
    SimpleError,
    SimpleString,
    writes,
)
from shardkit.testing.fakes.lua import RunsScripts
from shardkit.testing.simulation.processes import SimulatedProcess
from shardkit.testing.simulation.virtual_time import Clock

LogEntry: TypeAlias = tuple[float, int, list[bytes]]
"""A write that was executed: when, in which database, and what."""

# Executed at once when they are sent: the handshake of a connection is no step of a schedule.
HANDSHAKE: Final = frozenset({b"CLIENT", b"HELLO", b"SELECT", b"AUTH", b"READONLY", b"COMMAND"})


class Packed(bytes):
    """A reply that is packed already."""


def pack_reply(value: Any) -> bytes:
    """Return a reply as RESP2."""
    kind = type(value)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if kind is Packed:
        return bytes(value)
    if kind is int:
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    if kind is list or kind is tuple:
        return b"*%d\r\n%b" % (len(value), b"".join(map(pack_reply, value)))
    if isinstance(value, SimpleString):
        return b"+%b\r\n" % value.value
    if isinstance(value, SimpleError):
        return b"-%b\r\n" % value.value.replace("\r", " ").replace("\n", " ").encode()
    if kind is bool:
        return b":%d\r\n" % value
    if kind is float:
        return pack_reply(repr(value).encode())
    if kind is str:
        return pack_reply(value.encode())
    if isinstance(value, dict):
        return pack_reply([part for item in value.items() for part in item])
    return pack_reply(list(value))


class ServerSocket(RunsScripts, DirectEnd):
    """The server's end of a connection."""

    asking = False  # whether a cluster's client has announced that it was redirected here

    def __init__(self, data: Data, db: int, receive: Callable[[bytes], None]) -> None:
        super().__init__(data, db)
        self.receive = receive
        self.queued_keys: list[bytes] = []  # those of its transaction, on a cluster

    def answer(self, reply: Any) -> None:
        """Give out a reply or a message."""
        self.receive(pack_reply(reply))


class Role(Protocol):
    """The role of a server that answers some commands itself, such as a cluster's node."""

    def answer(self, socket: ServerSocket, args: list[bytes], name: bytes) -> Any:
        """Return the answer instead of executing a command; None to execute it."""


class SimulatedServer:
    """A server and its state; with ``log`` also its log, for crashes and failovers."""

    role: Role | None = None  # what answers first, if it is the node of a cluster
    replication: Any = None  # a `Replication`, if it is a master or a replica

    def __init__(self, address: str, now: Callable[[], float], log: bool) -> None:
        self.address = address
        self.clock = Clock(now)
        self.up = True
        self.refuses = b""  # the error that it answers instead of executing commands, if any
        self.reads = True  # whether it still executes commands that only read
        self.data = Data(self.clock.time)
        self.sockets: dict[ServerSocket, float] = {}
        self._now = now
        self._log: list[LogEntry] | None = [] if log else None
        self._queued: dict[ServerSocket, list[list[bytes]]] = {}
        self._blocked: dict[ServerSocket, list[bytes]] = {}
        self._inside: ServerSocket | None = None
        self._answers = hiredis.Reader()

    def connect(self, db: int, receive: Callable[[bytes], None]) -> ServerSocket:
        """Open a connection."""
        socket = ServerSocket(self.data, db, receive)
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

        It must not be used while the command blocks.
        """
        name = args[0].upper()
        if self.refuses and not (self.reads and not writes(name)):
            socket.receive(b"-%b\r\n" % self.refuses)
            return True
        if self.role is not None:
            answer = self.role.answer(socket, args, name)
            if answer is not None:
                socket.answer(answer)
                return True
        if self.replication is not None:
            answered: bool | None = self.replication.execute(socket, args, name, writes(name))
            if answered is not None:
                if answered and name == b"EXEC":
                    self._queued.pop(socket, None)
                return answered
        if not socket.belongs_to(self.data):  # the connection stayed with a former master
            socket.execute(args)
            return socket.waiting is None
        return self._execute(socket, args, name)

    def ask(self, *args: bytes) -> Any:
        """Execute a command that no fault, role or replication affects; return the reply."""
        if self._inside is None:
            self._inside = ServerSocket(self.data, 0, self._answers.feed)
        self._execute(self._inside, list(args), args[0])
        return self._answers.gets()

    def _execute(self, socket: ServerSocket, args: list[bytes], name: bytes) -> bool:
        db = socket.database
        queueing = socket.queues
        if self._log is not None and not queueing and writes(name):
            self._note(db, args, name)
        elif self._log is not None and queueing:
            if name == b"EXEC":
                queued = self._queued.pop(socket, [])
                if not socket.aborts:
                    for command in queued:
                        self._note(db, command, command[0].upper())
                        if command[0].upper() == b"SELECT":
                            db = int(command[1])
            elif name != b"DISCARD":
                self._queued.setdefault(socket, []).append(args)
        socket.execute(args)
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
        """Hold what another server's log makes, and nothing else."""
        self.data.clear()
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
            text = self.data.script(args[1])
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
                reply = retry(False)
                if reply is not None:
                    socket.waiting = None
                    self.data.changed = True
                    if self._log is not None and socket in self._blocked:
                        self._note(socket.database, self._blocked.pop(socket), b"BLPOP")
                    socket.answer(reply if shape is None else shape(reply))

    def take_changed(self) -> bool:
        """Return whether data has changed since this was called last."""
        changed, self.data.changed = self.data.changed, False
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
                socket.answer(None if shape is None else shape(None))

    def lose(self, since: float, at_time: Callable[[float], None]) -> int:
        """Lose the commands executed since a time; return how many there were."""
        assert self._log is not None
        remaining = [entry for entry in self._log if entry[0] < since]
        lost = len(self._log) - len(remaining)
        self.data = Data(self.clock.time)
        self._inside = None
        self._log = []
        self._replay(remaining, at_time)
        self._log = remaining
        self.sockets.clear()
        self._queued.clear()
        return lost

    def _replay(self, entries: list[LogEntry], at_time: Callable[[float], None]) -> None:
        now = self._now()
        socket = ServerSocket(self.data, 0, lambda reply: None)
        for number, (when, db, args) in enumerate(entries, len(self.entries)):
            at_time(when)
            _seed(args, number)
            socket.select_database(db)
            socket.execute(args)
            socket.waiting = None
        at_time(now)
        self.data.changed = True


def _seed(args: list[bytes], number: int) -> None:
    """Have a command that takes random members take the same ones in a replay."""
    name = args[0].upper()
    if b"POP" in (args[1].upper() if name in (b"EVAL", b"EVALSHA") else name):
        random.seed(number)


class Wire:
    """One connection between a client and a server.

    ``receive`` is given what arrives at the client; None when the server closed the connection.
    """

    def __init__(
        self,
        process: SimulatedProcess,
        server: SimulatedServer,
        db: int,
        receive: Callable[[bytes | None], None],
    ) -> None:
        self.process = process
        self.server = server
        self.requests: deque[list[bytes]] = deque()  # what was sent, and not yet executed
        self.not_before = 0.0  # when the next of it can be delivered
        # Whether what arrived last was executed to its end; not while a command blocks.
        self.usable = True
        self.muted = False
        self.inherited = False  # whether it is that of a forked child's parent
        # What has not reached the client, as nothing does; None while everything does.
        self.held: list[bytes | None] | None = None
        self.client_open = self.server_open = True
        self._receive: Callable[[bytes | None], None] | None = receive
        self._reader = hiredis.Reader()
        self._socket: ServerSocket | None = server.connect(db, self._answer)

    @property
    def due(self) -> float:
        """When what was sent can be delivered; infinite if nothing can be."""
        if not (self.requests and self.usable and self.server.up):
            return float("inf")
        return max(self.not_before, self.process.cut_off.get(self.server.address, 0.0))

    def write(self, data: bytes) -> None:
        """Send; to a server that has closed the connection nothing arrives."""
        socket = self._socket
        self.require_own()
        if socket is None:
            return
        self._reader.feed(data)
        while (args := self._reader.gets()) is not False:
            if not self.requests and args[0].upper() in HANDSHAKE:
                self.server.execute(socket, args)
            else:
                self.requests.append(args)

    def require_own(self) -> None:
        """Fail if a forked child uses a connection of its parent's."""
        if self.inherited:
            error = AssertionError(f"a child uses its parent's connection to {self.server.address}")
            self.process.failure = self.process.failure or error
            raise error

    def deliver(self) -> list[bytes]:
        """Have the server execute the next command, and return it."""
        assert self._socket is not None
        args = self.requests.popleft()
        self.usable = self.server.execute(self._socket, args)
        return args

    def _answer(self, reply: bytes) -> None:
        self.usable = True
        self._reach_client(reply)

    def _reach_client(self, data: bytes | None) -> None:
        if self.held is not None:
            self.held.append(data)
        elif self._receive is not None and not self.muted:
            self._receive(data)

    def release(self) -> None:
        """Have what was held reach the client, and all that comes after it."""
        chunks, self.held = self.held or [], None
        for data in chunks:
            self._reach_client(data)

    def listen(self, replies: list[bytes]) -> None:
        """Put each reply into a list as well, for the timeline."""
        socket = self._socket
        assert socket is not None

        def answer(reply: bytes) -> None:
            replies.append(reply)
            self._answer(reply)

        socket.receive = answer

    def close_client(self) -> None:
        """Close the client's end: what was sent may still be executed."""
        self._receive, self.client_open = None, False
        if not self.requests:
            self.close_server()

    def close_server(self) -> None:
        """Close the server's end: nothing more is executed, and the client is told."""
        socket, self._socket, self.server_open = self._socket, None, False
        self.requests.clear()
        if socket is not None:
            self.server.disconnect(socket)
        self._reach_client(None)


@cache
def script_names() -> dict[bytes, str]:
    """Return the names of shardkit's scripts by their SHA-1 and by their text."""
    root = Path(shardkit.__file__).parent
    names = {}
    for path in sorted(root.rglob("lua/*.lua")):
        owner = path.parent.parent.relative_to(root)
        name = path.stem if owner == Path() else f"{owner.as_posix()}/{path.stem}"
        lua = script(name)
        names[lua.sha.encode()] = names[lua.text.encode()] = name
    return names


def describe(args: list[bytes], names: dict[bytes, str]) -> str:
    """Return a command as a line of a timeline has it, with scripts by their names."""
    name = args[0].decode(errors="replace").upper()
    shown: list[Any] = args[1:]
    if name in ("EVAL", "EVALSHA") and len(args) > 2:
        name = names.get(args[1], "script")
        keys = int(args[2]) if args[2].isdigit() else 0
        more = [b"+%d keys" % (keys - 1)] if keys > 1 else []
        shown = [*args[3:4], *more, *args[3 + max(1, keys) :]]
    texts = [_short(arg) for arg in shown]
    text = " ".join([name, *texts])
    return text if len(text) <= 120 else f"{text[:117]}…"


def _short(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    text = "".join(c if c.isprintable() else "·" for c in text)
    return text if len(text) <= 24 else f"{text[:21]}…"
