"""The simulated network: what clients have sent and servers have not yet executed.

A wire is one connection. Its requests stay where they are until the scheduler delivers them: whole,
or command by command. A wire whose client has closed it may still deliver, as what was sent before
may still arrive; its replies go nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis

import shardkit
from shardkit.operations.lua import script
from shardkit.testing.simulation.servers import HANDSHAKE, ServerSocket, SimulatedServer

if TYPE_CHECKING:
    from shardkit.testing.simulation.processes import SimulatedProcess


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
        held, self.held = self.held or [], None
        for data in held:
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
        found = script(name)
        names[found.sha.encode()] = names[found.text.encode()] = name
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
    texts = [_short(each) for each in shown]
    text = " ".join([name, *texts])
    return text if len(text) <= 120 else f"{text[:117]}…"


def _short(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    text = "".join(c if c.isprintable() else "·" for c in text)
    return text if len(text) <= 24 else f"{text[:21]}…"
