"""Connections to servers in memory: fakeredis's, to which the faults of a server happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import hiredis
from fakeredis import (
    FakeAsyncRedisConnection,
    FakeRedis as FakeRedis,
    FakeRedisConnection,
    FakeServer as FakeServer,
)
from redis.exceptions import ResponseError

from shardkit.network.connections.connection import AsyncClosable, Closable
from shardkit.network.connections.connection_state import closed_error
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import PackedCommands
from shardkit.operations.deadlines import current
from shardkit.operations.steps import run_by_face
from shardkit.testing.fakes.fakeredis_private import client_id_of, complete_transport, end_of
from shardkit.testing.fakes.lua import AsyncCompilingSocket, CompilingSocket
from shardkit.testing.fakes.servers import MemoryServer, closed_by_server

# Sent to the fake server instead of a command whose answer must be an error. It refuses both, which
# aborts the transaction that the command is part of, as on a real server.
_NONSENSE: Final = hiredis.pack_command(("GET",))
_NO_EXEC: Final = hiredis.pack_command(("DISCARD",))


class _Faulty:
    """A connection that applies the faults of its server to requests and answers."""

    def __init__(self, *, memory: MemoryServer, **options: Any) -> None:
        self._memory = memory
        # For each answer that is due: None, or the error that comes instead.
        self._due: deque[Exception | None] = deque()
        self._cut = self._broken = False
        super().__init__(server=memory.fake, **options)  # type: ignore[call-arg]

    def break_off(self) -> None:
        """Break the connection, and wake up the caller that waits for an answer."""
        self._broken = True
        end = end_of(self)
        if end is not None:
            end.put_response(None)

    def passed_on(self: Any) -> Any:
        other = super().passed_on()  # type: ignore[misc]
        other._memory.note(other)
        return other

    def _begin(self) -> None:
        """Reset the state for a new connection; raises if the server refuses it."""
        self._memory.accept(self)
        self._due.clear()
        self._cut = self._broken = False

    def _let_through(self, packed: PackedCommands) -> list[bytes]:
        """Note the answers due to a request, and return the commands that reach the server."""
        seen = []
        for args in _commands(packed):
            if self._cut:
                break
            fault = self._memory.fault_of(args)
            error = None if fault is None else fault.error()
            self._due.append(error)
            if fault is None or fault.executes:
                seen.append(hiredis.pack_command(tuple(args)))  # type: ignore[arg-type]
            elif isinstance(error, ResponseError):
                seen.append(_NO_EXEC if args[0].upper() == b"EXEC" else _NONSENSE)
            self._cut = fault is not None and fault.cuts
        return seen

    def _next(self) -> tuple[Exception | None, bool]:
        """Return the error instead of the next answer, if any, and whether the server answers."""
        due = self._due.popleft() if self._due else None
        return due, not self._broken and (due is None or isinstance(due, ResponseError))

    def _lost(self: Any) -> Exception:
        return closed_error(self.closed) if self.closed else closed_by_server()

    def _instead(self: Any, error: Exception | None) -> Exception | None:
        """Return the error in place of an answer, which tells whether the command may have run."""
        if self._broken:
            error = self._lost()
        if error is not None and not isinstance(error, ResponseError):
            self.note_failure(error)
        return error

    def _spoiled(self) -> bool:
        return self._broken or bool(self._due and self._due[0] is not None)

    @run_by_face
    def can_read(self: Any, *args: Any, **kwargs: Any) -> Steps[Any]:
        return self._spoiled() or (yield partial(super().can_read, *args, **kwargs))  # type: ignore[misc]

    @run_by_face
    def send_packed_command(self: Any, command: Any, check_health: bool = True) -> Steps[None]:
        if not self.is_connected:
            yield self.connect
        if check_health:
            yield self.check_health
        if self._broken:
            yield partial(self.disconnect, True)
            raise self._instead(None)
        # In one step: no other request may come between noting the answers and sending.
        self._send(
            command if isinstance(command, PackedCommands) else PackedCommands.by_hand(command)
        )

    @run_by_face
    def read_response(self: Any, *_: Any, **options: Any) -> Steps[Any]:
        due, answered = self._next()
        answer = refusal = None
        if answered:
            try:
                answer = yield partial(super().read_response, **options)  # type: ignore[misc]
            except ResponseError as error:
                refusal = error
        instead = self._instead(due or refusal)
        if instead is None:
            return answer
        if not isinstance(instead, ResponseError):
            yield partial(self.disconnect, True)  # at once
        raise instead


class _BlockingFaulty(_Faulty):
    def shut_down(self) -> None:
        super().shut_down()  # type: ignore[misc]
        self.break_off()
        end = end_of(self)
        if end is not None:
            self._memory.unblock(client_id_of(end))

    def _connect(self) -> Any:
        self._begin()
        end = super()._connect()  # type: ignore[misc]
        end.__class__ = CompilingSocket
        return end

    def _send(self, packed: PackedCommands) -> None:
        seen = PackedCommands.doing(packed.effects, self._let_through(packed), packed.replies)
        super(_Faulty, self).send_packed_command(seen, check_health=False)  # type: ignore[misc]


class _AwaitingFaulty(_Faulty):
    _id = 0

    def is_reusable(self) -> bool:
        return not self._spoiled() and bool(super().is_reusable())  # type: ignore[misc]

    async def _connect(self) -> None:
        self._begin()
        await super()._connect()  # type: ignore[misc]
        end_of(self).__class__ = AsyncCompilingSocket
        complete_transport(self)

    async def on_connect_check_health(self: Any, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health=check_health)  # type: ignore[misc]
        await self.send_command("CLIENT", "ID", check_health=False)
        self._id = await self.read_response()

    def tell_closed(self: Any) -> None:
        super().tell_closed()  # type: ignore[misc]
        if self.closed:  # by the kit: no transport would wake a waiting caller
            self.break_off()

    async def disconnect(self: Any, nowait: bool = False, **options: Any) -> None:
        # A command that still blocks on the server would take elements meant for others.
        client_id, self._id = self._id, 0
        await super().disconnect(nowait=nowait, **options)  # type: ignore[misc]
        if client_id:
            self._memory.unblock(client_id)

    def _send(self: Any, packed: PackedCommands) -> None:
        if (deadline := current.get()) is not None:
            deadline.require_left()
        self._note(packed)
        end = end_of(self)
        for seen in self._let_through(packed):
            end.sendall(seen)


class MemoryConnection(_BlockingFaulty, Closable, FakeRedisConnection):
    """A blocking connection to a server in memory."""


class AsyncMemoryConnection(_AwaitingFaulty, AsyncClosable, FakeAsyncRedisConnection):
    """An awaiting connection to a server in memory."""


class InsideConnection(FakeRedisConnection):
    """A blocking connection that no fault affects."""

    def _connect(self) -> Any:
        end = super()._connect()
        end.__class__ = CompilingSocket
        return end


def _commands(packed: PackedCommands) -> Iterator[list[bytes]]:
    reader = hiredis.Reader()
    for piece in packed:
        reader.feed(piece)
    while (args := reader.gets()) is not False:
        yield args
