"""redis-py's awaiting connections, which wait for blocking commands; see `connection`."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import time
from builtins import TimeoutError as BuiltinTimeoutError
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError  # noqa: A004 - redis-py's own

from shardkit.events import handlers
from shardkit.network.connections.connection_state import (
    LOST,
    ConnectionState,
    closed_error,
    timeout_for,
)
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import PackedCommands
from shardkit.network.connections.redis_private import (
    PREVIOUS_MASTER,
    AsyncLimitedParser,
    close_left,
    has_unread,
    lost_its_role,
    transport_of,
)
from shardkit.operations.deadlines import current
from shardkit.operations.steps import arun_steps


class AsyncClosable(ConnectionState):
    """The same for awaiting connections, which belong to one event loop and need no lock."""

    draining = False  # whether it is closed on release
    asks_for_login = "get_credentials_async"

    if not TYPE_CHECKING:

        def __del__(self, *args: Any) -> None:
            transport = transport_of(self)
            close_left(transport)
            if transport is not None and not transport.is_closing():
                super().__del__(*args)

    def should_reconnect(self) -> bool:
        """Whether it must be closed before the next use."""
        return self.draining or super().should_reconnect()  # type: ignore[misc]

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived, as far as can be seen."""
        return bool(self.is_connected) and not self.should_reconnect()

    def tell_closed(self) -> None:
        """Emit the event that it is being closed, if it is connected."""
        if handlers and self.is_connected:
            self._tell_closed()

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection; drop unwritten data, whose sender has got an error."""
        if self.released:
            return
        self.tell_closed()
        self.answered_at = self.idle_since
        transport = transport_of(self)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        self.due = 0
        self.ends = self.own = self.unusable = False
        self.forget_replies()
        await super().disconnect(*args, **kwargs)

    run = staticmethod(arun_steps)

    async def _retried(self, connect: Callable[[Any], Steps[None]]) -> None:
        async def ignore(_: Exception) -> None:
            """Try again."""

        await self.retry.call_with_retry(lambda: self.run(connect(self)), ignore)  # type: ignore[attr-defined]

    async def _connect_in_time(self, *args: Any, **kwargs: Any) -> None:
        try:
            async with kept_to_deadline():
                await super(ConnectionState, self).connect_check_health(*args, **kwargs)  # type: ignore[misc]
        except BaseException:  # a cancellation, too: its greeting may not be over
            await self.disconnect(nowait=True)
            raise

    async def confirm(self, witness: Any, epoch: int) -> None:
        """Read the epoch of the config server that a witness doubts."""
        await witness.aconfirm(epoch)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; raise ClosedError if the kit was closed in the meantime.

        Before Python 3.12, redis-py's `asyncio.wait_for` ignores a cancellation that comes when the
        command has just been written, and a BLPOP would continue.
        """
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        if check_health and self.health_check_interval:
            await self.check_health()
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        # See the blocking connection's.
        blocks = self._blocking_for if packed.blocks is None else packed.blocks
        self._blocking_for = blocks
        while not self.connecting and self.moved_to is not None and self.waits():
            await self.disconnect(nowait=True)
            await self.connect()  # type: ignore[attr-defined]
            self._blocking_for = blocks
        pieces = await arun_steps(self._sending(packed)) if packed.replies else packed
        try:
            try:
                async with kept_to_deadline(self), asyncio.timeout(self.socket_timeout):
                    with extended_timeout(self, math.inf):  # asyncio.timeout limits it
                        await super().send_packed_command(pieces, check_health=False)  # type: ignore[misc]
            except BuiltinTimeoutError:
                raise TimeoutError("Timeout writing to socket") from None
        except Exception as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; raise ClosedError if the kit was closed in the meantime."""
        if self._framed is not None:
            try:
                await arun_steps(self._settled())
            except BaseException:
                await self.disconnect(nowait=True)
                raise
        if self._ready:
            return self._next_ready(*args, **kwargs)
        read, blocks = super().read_response, self._blocking_for  # type: ignore[misc]
        extends = kwargs.get("timeout") is None and self.extend_blocking_timeout
        try:
            if blocks is None and current.get() is None:
                reply = await read(*args, **kwargs)
            else:
                extended: Any = nullcontext()
                if blocks is not None and extends:
                    extended = extended_timeout(self, blocks)
                with extended:
                    async with kept_to_deadline(self, reads=True):
                        reply = await read(*args, **kwargs)
        except LOST as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise
        except ResponseError as error:
            self._note_refusal(error)
            if self.is_replaced(error):
                await self.disconnect(nowait=True)
                raise ConnectionError(PREVIOUS_MASTER) from error
            pool = self.follower()
            if pool is not None and lost_its_role(error):
                await pool.leave(self, error)
            raise
        finally:
            self._blocking_for = None
        if reply is not None or (len(args) < 2 and kwargs.get("timeout") is None):
            self.due = max(0, self.due - 1)  # else perhaps nothing has come in time
        return reply


@asynccontextmanager
async def kept_to_deadline(connection: Any = None, *, reads: bool = False) -> AsyncIterator[None]:
    """Raise DeadlineExceeded inside when the caller's deadline passes, and close the connection.

    Replies that have arrived are read even if it has passed.
    """
    deadline = current.get()
    if deadline is None or deadline.at == math.inf:
        yield
        return
    if not reads:
        deadline.require_left()
    started = time.monotonic()
    try:
        async with asyncio.timeout(deadline.left()) as limit:
            yield
    except BuiltinTimeoutError:
        if not limit.expired():
            raise
        if connection is not None:
            await connection.disconnect(nowait=True)
        raise deadline.passed(time.monotonic() - started) from None


class _AsyncReplies(AsyncClosable):
    """Tells what has arrived, for awaiting connections."""

    direct = True
    _limited_parser = AsyncLimitedParser

    def lose(self) -> None:
        """Break the connection under its user."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def transport(self) -> Any:
        """The asyncio transport."""
        return transport_of(self)

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived, in redis-py or in the socket."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_reconnect():
            return False
        return not has_unread(self) and not self.reply_parser.poll(0)


@contextmanager
def extended_timeout(connection: Any, blocks: float) -> Iterator[None]:
    """Extend an awaiting connection's timeout for a command that may block for ``blocks`` seconds.

    After the ``timeout`` of read_response, redis-py would return None, and the reply would be lost.
    """
    usual = connection.socket_timeout
    connection.socket_timeout = timeout_for(blocks, usual)
    try:
        yield
    finally:
        connection.socket_timeout = usual


class _ToAnyAddress:
    """Tries a host's other addresses when the first is silent, as blocking connections do."""

    host: str
    port: int
    _address: Any = None  # the host and port to try

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[misc]
        except BuiltinTimeoutError:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            for *_, address in found[1:]:
                self._address = address[:2]
                with suppress(OSError):
                    await super()._connect()  # type: ignore[misc]
                    return
            raise
        except OSError as error:
            # asyncio words it by itself, and that of several addresses without a number.
            if said := re.search(r"\[Errno (\d+)\] Connect call failed", str(error)):
                raise OSError(int(said[1]), os.strerror(int(said[1]))) from None
            raise
        finally:
            self._address = None

    def _connection_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._connection_arguments()  # type: ignore[misc]
        if self._address is not None:
            arguments["host"], arguments["port"] = self._address
            if "ssl" in arguments:
                arguments["server_hostname"] = self.host
        return arguments


class AsyncTcpConnection(_ToAnyAddress, _AsyncReplies, aioredis.Connection):
    """The awaiting TCP connection."""


class AsyncTlsConnection(_ToAnyAddress, _AsyncReplies, aioredis.SSLConnection):
    """The awaiting TLS connection."""


class AsyncUnixConnection(_AsyncReplies, aioredis.UnixDomainSocketConnection):
    """The awaiting Unix socket connection."""
