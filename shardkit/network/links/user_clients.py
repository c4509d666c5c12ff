"""The clients that users get: redis-py's, with a shorter way from the method to the socket.

::

    DirectClient         GET a ─► pack ─► one idle connection: write, read ─► redis-py's callback

    MultiplexedClient    await client.get("a")    ┐
                         await client.incr("n")   ├─► one connection, one write a turn of the loop
                         await client.hgetall(…)  ┘
                         await client.blpop(…)    ──► a connection of its own, as with redis-py

redis-py's awaiting client uses one connection for each call in flight. Here, commands that neither
block nor change the state of their connection go to a `MultiplexedConnection`, as operations do. In
everything else they are redis-py's clients: types, methods, callbacks, errors. Pipelines, pub/sub,
locks, WATCH, SELECT and so on run redis-py's code, and so does each command if the entry says
``retries``. On a stalled server, all tasks of a loop fail together after the socket timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import call
from traceback import walk_tb
from typing import Any, NoReturn

import redis
import redis.asyncio as aioredis
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline
from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    NoScriptError,
    RedisError,
    ResponseError,
    WatchError,
)

from shardkit.errors import DeadlineExceeded, RoutingError, few
from shardkit.events import CommandsSent, handlers, sent, settled, watched
from shardkit.network.connections.connection_state import ServerReplacedError
from shardkit.network.connections.connector import RegistersScripts, registered_scripts
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import WATCHES, WRITES, effects, shared
from shardkit.network.connections.policy import CallPolicy, policy_of
from shardkit.network.connections.redis_private import (
    EMPTY_RESPONSE,
    NEVER_DECODE,
    is_script_missing,
    is_unblocked,
    reply_callbacks,
    str_if_bytes,
)
from shardkit.network.links.multiplexer import multiplexed
from shardkit.network.links.resp import pack_command
from shardkit.network.links.server_request import pauses_for
from shardkit.operations.deadlines import earliest, within
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.reply_kinds import is_over_reply
from shardkit.operations.steps import arun_steps, run_by_face, run_steps, sleep
from shardkit.routing.command_keys import blocking_seconds, reads_only

# redis-py's, which read replies and join those of a cluster's nodes, and which pack arguments.
_READERS = {"parse_response", "_execute_transaction", "parse_scan_result", "<lambda>"}
_PACKERS = {"pack_command", "pack_commands"}


def _may_go_on(client: Any, args: Sequence[Any], error: Exception) -> bool:
    """Whether a command was not executed because the shard's server was replaced or loads."""
    if client.successor is None or client.connection is not None:
        return False
    error = getattr(error, "error", None) or error  # redis-py's
    waits_for_data = str_if_bytes(args[0]) not in ("WAIT", "WAITAOF")
    return policy_of(client).waits_after(error) or (waits_for_data and is_unblocked(error))


class _KitClient(RegistersScripts):
    # Return the client for a command: after its entry was read again, and of reads during a move.
    successor: Callable[[Sequence[Any]], Any] | None = None
    reader: Callable[[Sequence[Any]], Any] | None = None
    pipelines: Any
    redis_pys: Any
    sleep: Callable[[float], Any]
    _takes_redis_pys_way: bool | None = None

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """Return redis-py's pipeline, whose execution keeps to the deadline of the entry."""
        client: Any = self
        callbacks = reply_callbacks(client)
        return self.pipelines(client.connection_pool, callbacks, transaction, shard_hint)

    @run_by_face
    def evalsha(self: Any, sha: Any, numkeys: Any, *args: Any) -> Steps[Any]:
        """Run a script by its SHA-1; a registered one that the server lacks, by its text."""
        try:
            return (yield partial(super().evalsha, sha, numkeys, *args))  # type: ignore[misc]
        except NoScriptError as error:
            # SCRIPT LOAD has no key, by which it would follow the script's keys after a move.
            script = registered_scripts.get(sha) if is_script_missing(error) else None
            if script is None:
                raise
            return (yield partial(self.eval, script.text, numkeys, *args))

    def _packed(self: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return a command packed, and what it does; None if redis-py's own code sends it."""
        try:
            does = shared.get(args[0])
            if does is None:
                effects(args)  # perhaps the name decides from now on
                does = shared.get(args[0])
        except (LookupError, TypeError):
            return None
        if self._takes_redis_pys_way is None:
            pool: Any = self.connection_pool
            settings = pool.connection_kwargs
            retry = settings.get("retry")
            self._takes_redis_pys_way = (
                getattr(pool, "as_redis_py", False)
                or not getattr(pool.connection_class, "direct", False)
                or (retry is not None and retry.get_retries() > 0)
                or settings.get("encoding", "utf-8") != "utf-8"
                or settings.get("encoding_errors", "strict") != "strict"
            )
        if (
            does is None
            or self._takes_redis_pys_way
            or self.connection is not None
            or NEVER_DECODE in options
            or EMPTY_RESPONSE in options
        ):
            return None
        try:
            return pack_command(args), does
        except (TypeError, UnicodeEncodeError):  # redis-py accepts more, and names the others
            return None

    def _value(
        self: Any,
        name: Any,
        options: dict[str, Any],
        reply: Any,
        refused: bool,
        event: CommandsSent | None,
        written: float = 0.0,
    ) -> Any:
        failure = reply if refused and isinstance(reply, Exception) else None
        if event is not None:
            settled(event, None, refused=refused, refusal=failure, written=written)
        if failure is not None:
            raise self.connection_pool.policy.named(failure)
        callback = self.response_callbacks.get(name)
        if callback is None:
            return reply
        options.pop("keys", None)
        try:
            return callback(reply, **options)
        except Exception as error:
            raise_unusable(error, self.connection_pool.policy, name)

    def _instead(self: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
        """Return what executes a command in place of this client: a reader while the shard moves.

        Or redis-py's own code, if a library has given this class a pool of redis-py's.
        """
        draining = getattr(self.connection_pool, "draining", None)
        if draining is None:
            return super().execute_command  # type: ignore[misc, no-any-return]
        if not draining or self.reader is None or self.connection is not None:
            return None
        reader = self.reader(args) if reads_only(args) else None
        return None if reader is None else reader.execute_command

    @run_by_face
    def _as_redis_py(self: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        with allowed(self.connection_pool, args), reading(policy_of(self), (args,)):
            return (yield partial(super().execute_command, *args, **options))  # type: ignore[misc]

    def _once_more(self: Any, args: Any, error: Exception) -> Callable[..., Any] | None:
        """Return what executes a command again that was refused; None if it must not be."""
        if isinstance(error, ServerReplacedError):
            return None if self.connection is not None else self._as_redis_py
        return partial(self._again, error) if _may_go_on(self, args, error) else None

    @run_by_face
    def _again(self: Any, last: Exception, args: Any, options: Any) -> Steps[Any]:
        """Execute a command once more, at a server that was not ready, until it is."""
        for pause in pauses_for(self):
            try:
                yield partial(self.sleep, pause)
                client = yield partial(self.successor, args)
                execute = client.execute_command
                if isinstance(client, self.redis_pys):
                    execute = partial(self.redis_pys.execute_command, client)
                return (yield partial(execute, *args, **options))
            except (ResponseError, ConnectionError) as error:
                last = error
                if not _may_go_on(self, args, error):
                    break
        raise policy_of(self).named(last) from last.__cause__


@contextmanager
def _taking_a_connection(client: Any) -> Iterator[None]:
    try:
        with allowed(client.connection_pool, ()):
            yield
    except RedisError as error:
        raise policy_of(client).named(error) from error.__cause__


def raise_unusable(error: BaseException, policy: CallPolicy, name: Any) -> NoReturn:
    """Raise the error of a server whose reply redis-py cannot read; an error of another kind."""
    if not is_over_reply(error):
        raise error
    text = f"the reply to {name} cannot be used ({type(error).__name__})"
    raise policy.named(InvalidResponse(text)) from error


class reading(watched):  # noqa: N801 - a context manager
    """Send the events of commands that redis-py's own code sends, and name its errors.

    ``wrote`` is called at the end if some may have changed something.
    """

    __slots__ = ("_wrote",)

    def __init__(
        self,
        policy: CallPolicy,
        commands: Sequence[Sequence[Any]],
        wrote: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(policy, commands)
        self._wrote = wrote

    def _writes(self) -> bool:
        return any(effects(args) & (WRITES | WATCHES) == WRITES for args in self._commands)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, WatchError):
                # redis-py raises it for what a signal handler raises and for lost connections, too.
                # A caller would repeat what EXEC, or a write before MULTI, may have done.
                reraise_handlers(error)
                lost = error.__context__
                is_write = getattr(lost, "maybe_executed", False) and self._writes()
                if is_write or isinstance(lost, DeadlineExceeded):
                    raise lost from None  # type: ignore[misc]
            frames = walk_tb(error.__traceback__) if error and is_over_reply(error) else ()
            called = {frame.f_code.co_name for frame, _ in frames}
            if error and called & _READERS and not called & _PACKERS:
                names = [args[0] for args in self._commands] or ["EXEC"]
                raise_unusable(error, self._policy, few(list(dict.fromkeys(map(str, names))), ", "))
        except BaseException as behind:
            error = behind
            raise
        finally:
            if self._wrote is not None and self._writes():
                self._wrote()
            super().__exit__(kind, error, traceback)


class _KitPipeline:
    """redis-py's pipeline, which keeps to the deadline of the entry."""

    run: Callable[[Steps[Any]], Any]
    wrote: Callable[[], None] | None = None  # notes that it wrote to its shard

    @run_by_face
    def execute(self: Any, *args: Any, **kwargs: Any) -> Steps[Any]:
        """Execute what was collected."""
        commands = [command[0] for command in self.command_stack]
        with allowed(self.connection_pool, ()), reading(policy_of(self), commands, self.wrote):
            return (yield partial(super().execute, *args, **kwargs))  # type: ignore[misc]

    @run_by_face
    def immediate_execute_command(self: Any, *args: Any, **options: Any) -> Steps[Any]:
        """Execute a command that comes before MULTI."""
        with allowed(self.connection_pool, args), reading(policy_of(self), (args,), self.wrote):
            return (yield partial(super().immediate_execute_command, *args, **options))  # type: ignore[misc]

    def reset(self: Any) -> Any:
        """Drop what was collected, and watch no more keys."""
        self.watching = self.watching and not getattr(self.connection_pool, "closed", False)
        return self._unwatch() if self.watching else super().reset()  # type: ignore[misc]

    @run_by_face
    def _unwatch(self: Any) -> Steps[None]:
        with allowed(self.connection_pool, ()):
            yield super().reset  # type: ignore[misc]


class DirectPipeline(_KitPipeline, Pipeline):
    """The blocking pipeline."""

    run = staticmethod(partial(run_steps, errors=BaseException))


class MultiplexedPipeline(_KitPipeline, AsyncPipeline):  # type: ignore[misc]  # redis-py's own
    """The awaiting pipeline."""

    run = staticmethod(partial(arun_steps, errors=BaseException))


class DirectClient(_KitClient, redis.Redis):
    """redis-py's blocking client, in one pass from the method to the socket.

    Commands that a server refuses because it loads its data, or is a replica now, are retried for
    as long as the entry's ``socket_timeout``, at the server that the entry names by then.
    """

    pipelines, redis_pys = DirectPipeline, redis.Redis
    run = staticmethod(partial(run_steps, errors=BaseException))
    sleep = staticmethod(sleep)
    in_thread: Any = staticmethod(call)

    def client(self) -> Any:
        """Return a client with a connection of its own, which is taken now."""
        with _taking_a_connection(self):
            return super().client()  # type: ignore[no-untyped-call]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command, in one pass if it can be."""
        packed = self._packed(args, options)
        if packed is None or getattr(self.connection_pool, "draining", True):
            instead = self._instead(args)
            if instead is not None:
                return instead(*args, **options)
        try:
            return self._execute(packed, args, options)
        except (ResponseError, ConnectionError) as error:
            again = self._once_more(args, error)
            if again is None:
                raise
            return again(args, options)

    def _execute(self, packed: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if packed is None:
            return self._as_redis_py(args, options)
        pool: Any = self.connection_pool
        deadline = earliest(pool.policy.deadline)
        event = _event_of(pool, args) if handlers else None
        try:
            [reply], refused = pool.exchange(packed[0], False, deadline, 1, packed[1])
        except BaseException as error:
            if event is not None:
                settled(event, error, maybe_executed=getattr(error, "maybe_executed", True))
            if isinstance(error, RedisError):
                named = pool.policy.named(error)
                if named is not error:
                    raise named from error
            raise
        return self._value(args[0], options, reply, refused, event)


class MultiplexedClient(_KitClient, aioredis.Redis):  # type: ignore[misc]  # redis-py's own
    """redis-py's awaiting client, over one connection for all tasks of an event loop.

    See `DirectClient` for servers that are not ready.
    """

    pipelines, redis_pys = MultiplexedPipeline, aioredis.Redis
    run = staticmethod(partial(arun_steps, errors=BaseException))
    sleep = staticmethod(asyncio.sleep)
    in_thread: Any = staticmethod(asyncio.to_thread)

    async def initialize(self) -> Any:
        """Take the connection of a client with one of its own."""
        with _taking_a_connection(self):
            return await super().initialize()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command, over the shared connection if it can be."""
        packed = self._packed(args, options)
        if packed is None or getattr(self.connection_pool, "draining", True):
            instead = self._instead(args)
            if instead is not None:
                return await instead(*args, **options)
        try:
            return await self._execute(packed, args, options)
        except (ResponseError, ConnectionError) as error:
            again = self._once_more(args, error)
            if again is None:
                raise
            return await again(args, options)

    async def _execute(self, packed: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if packed is None:
            return await self._as_redis_py(args, options)
        pool: Any = self.connection_pool
        connection = pool.multiplexed or multiplexed(pool)
        if connection is None or pool.draining:
            return await self._as_redis_py(args, options)
        deadline = earliest(pool.policy.deadline)
        event = _event_of(pool, args) if handlers else None
        (data, does), databases = packed, (pool.database,)
        received = await connection.submit(((data, 1),), databases, False, deadline, does)
        error, sent = received.error, received.sent
        if error is not None:
            if event is not None:
                settled(event, error, maybe_executed=sent)
            raise pool.policy.named(error, sent=sent) from error.__cause__
        refused = received.refused
        value = self._value(args[0], options, received[0], refused, event, received.written)
        return await value if hasattr(value, "__await__") else value


def _event_of(pool: Any, args: tuple[Any, ...]) -> CommandsSent:
    return sent(pool.policy.shard, pool.policy.address, 1, lambda: args[:1], lambda: (args,))


def allowed(pool: Any, args: tuple[Any, ...]) -> Any:
    """Return the context of a command or pipeline of redis-py's: the entry's deadline."""
    seconds = pool.policy.deadline if hasattr(pool, "policy") else None
    if seconds is None:
        return nullcontext()
    try:
        block = blocking_seconds(args) if args else None
    except RoutingError:  # the server will refuse it
        block = None
    if block is not None:
        seconds = seconds + block if block else None
    return within(earliest(seconds))
