"""The clients of clusters that users get: redis-py's, whose commands with keys go over links.

::

    get, set, mget_nonatomic, pipeline(), …      ─► link: slots, order, deadlines, events, errors
    dbsize, scan_iter, target_nodes=, WATCH, …   ─► redis-py's own code, over the same nodes

If the cluster's component was split into shards, commands with keys go there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.cluster import ClusterPipeline, PipelineCommand
from redis.exceptions import (
    ConnectionError,
    CrossSlotTransactionError,
    InvalidResponse,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from shardkit.errors import (
    InvalidArgumentError,
    InvalidKeyError,
    RoutingError,
    ShardFailure,
    ShardUnavailable,
)
from shardkit.network.connections.connection_state import require_open
from shardkit.network.connections.connector import (
    AsyncClusterClient,
    ClusterClient,
    registered_scripts,
)
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import ALONE, STATE, WATCHES, effects
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.redis_private import (
    EMPTY_RESPONSE,
    NEVER_DECODE,
    learn_slots,
    nodes_of_slot,
    pool_of_node,
    reply_callbacks,
    str_if_bytes,
)
from shardkit.network.connections.replies import decoded
from shardkit.network.links.link import AwaitingLink, BlockingLink
from shardkit.network.links.server_request import MOVING, pauses_for
from shardkit.network.links.user_clients import (
    DirectClient,
    DirectPipeline,
    MultiplexedClient,
    MultiplexedPipeline,
    allowed,
    raise_unusable,
    reading,
)
from shardkit.operations.commands import Batch, Columns, Command, Reply, Transaction
from shardkit.operations.deadlines import call
from shardkit.operations.steps import arun_steps, run_by_face, run_steps, sleep
from shardkit.routing.command_keys import blocking_seconds, has_plain_form, key_positions
from shardkit.routing.placement import slot_of

_LOST = (ConnectionError, TimeoutError)
# Redis-py takes more kinds of arguments and keys, and names the others.
_REDIS_PYS = (InvalidArgumentError, InvalidKeyError)
_SEVERAL_NODES = frozenset({"primaries", "replicas", "all"})
# Options of redis-py's that are not a callback's.
_OF_REDIS_PY = frozenset({"target_nodes", EMPTY_RESPONSE})
_NOT_OF_CALLBACKS = _OF_REDIS_PY | {"keys", NEVER_DECODE}


def as_command(to: Any, key: Any, args: tuple[Any, ...]) -> Command:
    """Return a command, given as to redis-py's ``execute_command``.

    Raises:
        RoutingError: the command is unknown, or lacks arguments.
    """
    block = blocking_seconds(args)
    name = str_if_bytes(args[0])
    if " " in name:  # redis-py joins subcommands to the name
        args = (*name.split(), *args[1:])
    script = registered_scripts.get(str_if_bytes(args[1])) if name == "EVALSHA" else None
    return Command(to, key, args, script, block=block)


class _OnLink:
    """What both faces share."""

    run: Callable[[Steps[Any]], Any]
    place: Any = None  # where its component is; None for a client without a kit
    link_class: Callable[..., Any]
    _links: Sequence[Any] = ()
    policy: Any
    encoder: Any
    retry: Any

    @property
    def linked(self) -> bool:
        """Whether a link sends its commands, as the entry asks for nothing of redis-py's code."""
        strict = self.encoder.encoding_errors == "strict"
        return self.place is not None and strict and not self.retry.get_retries()

    def _batch(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Command] | None:
        """Return a command for the link; None if redis-py's own code sends it."""
        if not self.linked or not _OF_REDIS_PY.isdisjoint(options):
            return None
        if has_plain_form(args[0], len(args)):
            return [Command(self.place.shard.component, args[1], args)]
        keys = _keys(args)
        if not keys or len(set(map(slot_of, keys))) > 1:  # redis-py knows what to do
            return None
        return [as_command(self.place.shard.component, keys[0], args)]

    @run_by_face
    def execute_command(self: Any, *args: Any, **options: Any) -> Steps[Any]:
        """Execute a command, over the link if it has keys."""
        batch, replies = None, []
        with suppress(*_REDIS_PYS), call():
            if (batch := self._batch(args, options)) is not None:
                replies = yield partial(self.send, batch, NEVER_DECODE in options)
        if replies:
            return self.value(args, options, replies[0])
        if self.place is not None and (component := self.place.left()) is not None:
            self.place.number(component, args)  # refuses it if it has no key
        with self.watching(args):
            self._open()
            return (yield partial(super().execute_command, *args, **options))  # type: ignore[misc]

    def _open(self) -> None:
        """Discover the cluster again if it was closed."""

    def send(self, batch: Batch, raw: bool = False) -> Any:
        """Send requests over the link; with ``raw``, replies are bytes."""
        self._open()
        require_open(self)
        if not self._links:
            place = self.place
            self._links = [self.link_class(place, place, raw=is_raw) for is_raw in (False, True)]
        return self._links[raw].send(batch)

    def value(self, args: Sequence[Any], options: Mapping[str, Any], reply: Any) -> Any:
        """Return a reply as redis-py's methods do; raise the error of a failure."""
        if isinstance(reply, ShardFailure):
            raise self.error(reply)
        own: Mapping[Any, Callable[..., Any]] = getattr(self, "cluster_response_callbacks", {})
        for callbacks in (reply_callbacks(self), own):
            if (callback := callbacks.get(args[0])) is not None:
                kept = {n: v for n, v in options.items() if n not in _NOT_OF_CALLBACKS}
                try:
                    reply = callback(reply, **kept)
                except Exception as error:
                    raise_unusable(error, self.policy, args[0])
        return reply

    def error(self, failure: ShardFailure) -> Exception:
        """Return the error of a client for a link's failure."""
        error = failure.error
        lost = type(error) in _LOST or isinstance(error, ShardUnavailable)
        if isinstance(error, RedisError) and not lost:
            policy: CallPolicy = replace(self.policy, address=failure.address)
            return policy.named(error)
        failure.__cause__ = error
        return failure

    @contextmanager
    def watching(self, *commands: Sequence[Any]) -> Iterator[None]:
        """Have redis-py's own code keep to deadlines, emit events and raise the usual errors."""
        args = tuple(commands[0]) if len(commands) == 1 else ()
        with allowed(self, args), reading(self.policy, commands):
            try:
                yield
            except Exception as error:  # closing a kit makes redis-py raise several kinds
                require_open(self)
                if isinstance(error, RedisClusterException):
                    cause: Any = error
                    first = None  # the command's, before the cluster was asked for its slots
                    while cause := cause.__context__:
                        first = cause if isinstance(cause, _LOST) else first
                    if first is not None:
                        raise first from error
                raise

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        """Return redis-py's pipeline, over the link unless it watches keys."""
        pipe: Any = super().pipeline(transaction, shard_hint)  # type: ignore[misc]
        if self.linked:
            is_async = isinstance(pipe, AsyncClusterPipeline)
            pipe.__class__ = AsyncLinkedPipeline if is_async else LinkedPipeline
            pipe.begin(self, bool(transaction))
        return pipe


def _keys(args: Sequence[Any]) -> list[Any]:
    """Return the keys by which a link may route a command; none if it must not."""
    try:
        if effects(args) & (STATE | WATCHES):
            return []
        blocking_seconds(args)
        return [args[n] for n in key_positions(args)]
    except (RoutingError, TypeError, LookupError):
        return []


class LinkedClusterClient(_OnLink, ClusterClient):
    """redis-py's cluster client over a link.

    After one holder has closed it, it discovers the cluster again, because others share it.
    """

    link_class = BlockingLink
    run = staticmethod(partial(run_steps, errors=BaseException))

    def _open(self) -> None:
        if self.get_default_node() is None and not self.closed:  # type: ignore[no-untyped-call]
            learn_slots(self)


class AsyncLinkedClusterClient(_OnLink, AsyncClusterClient):  # type: ignore[misc]  # redis-py's own
    """redis-py's awaiting cluster client over a link."""

    link_class = AwaitingLink
    run = staticmethod(partial(arun_steps, errors=BaseException))


_Collected: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""A command's arguments and options."""


class _Pipeline:
    """What the pipelines of both faces share.

    They collect. From WATCH on, the pipeline of a node sends what comes before MULTI, and the rest.
    """

    client: Any
    is_transaction: bool
    collected: list[_Collected]
    on_node: Any  # the pipeline of the node with the watched keys; None if there are none
    slot: int  # theirs
    sleep: Callable[[float], Any]
    discover: Callable[[Any], Any]  # the nodes, if the client does not know them
    pipeline_of: Callable[[Any, Any], Any]  # the client, and a node
    redirects: tuple[bool, ...] = ()  # what the async face's own code takes

    def begin(self, client: Any, is_transaction: bool) -> None:
        self.client, self.is_transaction = client, is_transaction
        self.collected, self.on_node = [], None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Collect a command; between WATCH and MULTI, execute it."""
        options.pop("keys", None)  # for redis-py's cache
        name = str_if_bytes(args[0]).upper()
        if self.is_transaction and name in ("WATCH", "UNWATCH"):
            return self.watch(*args[1:]) if name == "WATCH" else self.unwatch()
        if self.on_node is None:
            self.collected.append((args, options))
            return self
        self._require_slot(_keys(args))
        options.pop("target_nodes", None)
        call = partial(self.on_node.execute_command, *args, **options)
        if not self.on_node.explicit_transaction:
            return self._at_node(call)
        call()
        return self

    def multi(self) -> None:
        """Collect commands from now on, even if keys are watched."""
        pipe: Any = super() if self.on_node is None else self.on_node
        pipe.multi()

    def _require_slot(self, keys: Sequence[Any]) -> None:
        if any(slot_of(key) != self.slot for key in keys):
            raise CrossSlotTransactionError("Cannot watch or send commands on different slots")

    @run_by_face
    def watch(self, *names: Any) -> Steps[Any]:
        """Watch keys of one slot, if it is a transaction."""
        if not (self.is_transaction and names):  # it says why
            return (yield partial(super().watch, *names))  # type: ignore[misc]
        client = self.client
        keys = [client.encoder.encode(name) for name in names]
        if self.on_node is None:
            self.slot = slot_of(keys[0])
        self._require_slot(keys)
        if self.on_node is not None:
            return (yield partial(self._at_node, partial(self.on_node.watch, *names)))
        yield partial(self.discover, client)
        pauses = pauses_for(client)
        while True:
            nodes = nodes_of_slot(client, self.slot) or [client.get_node_from_key(names[0])]
            on_node = self.pipeline_of(client, nodes[0])
            try:
                value = yield partial(on_node.watch, *names)
                break
            except (Exception, asyncio.CancelledError) as error:
                yield on_node.reset
                if not isinstance(error, MOVING) or (pause := next(pauses, None)) is None:
                    raise
            yield partial(self.sleep, pause)
            with allowed(client, ()):
                yield partial(learn_slots, client)
        for args, options in self.collected:
            on_node.pipeline_execute_command(*args, **options)
        self.collected, self.on_node = [], on_node
        return value

    @run_by_face
    def unwatch(self) -> Steps[bool]:
        """Watch no more keys."""
        on_node, self.on_node = self.on_node, None
        if on_node is not None:
            yield on_node.reset
        return True

    @run_by_face
    def _at_node(self, call: Callable[[], Any]) -> Steps[Any]:
        """Have the node of the watched keys execute commands.

        Raises:
            WatchError: their slot has moved.
        """
        try:
            return (yield call)
        except MOVING as error:
            raise WatchError("Slot rebalancing occurred while watching keys") from error

    def delete(self, *names: Any) -> Any:
        """Delete keys of one slot."""
        return self.execute_command("DEL", *names)

    def unlink(self, *names: Any) -> Any:
        """Delete keys of one slot in the background."""
        return self.execute_command("UNLINK", *names)

    def exists(self, *keys: Any) -> Any:
        """Count which of some keys of one slot exist."""
        return self.execute_command("EXISTS", *keys)

    @run_by_face
    def reset(self) -> Steps[None]:
        """Drop what was collected, and watch no more keys."""
        yield self.unwatch
        self.begin(self.client, self.is_transaction)
        yield super().reset  # type: ignore[misc]

    @run_by_face
    def discard(self) -> Steps[None]:
        """Drop what was collected, if it is a transaction."""
        yield super().discard  # type: ignore[misc]
        yield self.reset

    def __len__(self) -> int:
        return len(self.collected if self.on_node is None else self.on_node)

    def batch(self, collected: Sequence[_Collected]) -> Batch | None:
        """Return the requests for the link; None if redis-py's own code sends them."""
        name, commands = self.client.place.shard.component, []
        plain = [args for args, options in collected if _is_plain(args, options)]
        if len(plain) == len(collected) and not self.is_transaction:
            return Columns.of_rows(name, [args[1] for args in plain], plain)
        for args, options in collected:
            if _is_plain(args, options):
                commands.append(Command(name, args[1], args))
                continue
            keys, named = _keys(args), options.get("target_nodes")
            if not keys and (not args or effects(args) & (ALONE | STATE | WATCHES)):
                return None  # unknown, or it concerns a connection
            flag = self.client.command_flags.get(str_if_bytes(args[0]).upper())
            if not keys and flag in _SEVERAL_NODES:
                raise RedisClusterException(
                    f"{args[0]} needs several nodes: it cannot be in this pipeline"
                )
            if named is not None:
                owners = nodes_of_slot(self.client, slot_of(keys[0])) if keys else ()
                if named not in [[owner] for owner in owners]:
                    return None
            commands.append(as_command(name, keys[0] if keys else b"", args))
        if not self.is_transaction or not commands:
            return commands
        keys = list(chain.from_iterable(_keys(args) for args, _ in collected))
        if len(set(map(slot_of, keys))) > 1:
            raise CrossSlotTransactionError(
                "All keys involved in a cluster transaction must map to the same slot"
            )
        return [Transaction(name, keys[0] if keys else b"", tuple(commands))]

    @run_by_face
    def execute(self, raise_on_error: bool = True, *_: Any, **__: Any) -> Steps[list[Any]]:
        """Execute what was collected."""
        collected, self.collected = self.collected, []
        try:
            if self.on_node is not None:
                call_node = partial(self.on_node.execute, raise_on_error)
                return (yield partial(self._at_node, call_node))  # type: ignore[no-any-return]
            with suppress(*_REDIS_PYS), call():
                if (batch := self.batch(collected)) is not None:
                    raw = any(NEVER_DECODE in options for _, options in collected)
                    replies = yield partial(self.client.send, batch, raw)
                    return self.values(collected, replies, raise_on_error)
            with self.client.watching(*[args for args, _ in collected]):
                return (yield partial(self.by_redis_py, collected, raise_on_error))  # type: ignore[no-any-return]
        finally:
            yield self.reset

    def by_redis_py(self, collected: Sequence[_Collected], raise_on_error: bool) -> Any:
        """Execute commands by redis-py's own code, without sending anything again."""
        for args, given in collected:
            super().execute_command(*args, **given)  # type: ignore[misc]
        return super().execute(raise_on_error, *self.redirects)  # type: ignore[misc]

    def values(
        self,
        collected: Sequence[_Collected],
        replies: Sequence[Reply],
        raise_on_error: bool,
    ) -> list[Any]:
        """Return the replies as redis-py's pipeline does."""
        if self.is_transaction and collected:
            [replies] = (
                replies if isinstance(replies[0], list) else [list(replies) * len(collected)]
            )
        if len(replies) != len(collected):
            wrong = InvalidResponse("the reply to EXEC cannot be used: not one for each command")
            raise self.client.policy.named(wrong)
        values, encoder = [], self.client.encoder
        raw = encoder.decode_responses and any(NEVER_DECODE in options for _, options in collected)
        for n, ((args, options), reply) in enumerate(zip(collected, replies, strict=True), 1):
            if not isinstance(reply, ShardFailure):
                if raw and NEVER_DECODE not in options:
                    reply = decoded(reply, encoder)
                values.append(self.client.value(args, options, reply))
                continue
            error = self.client.error(reply)
            if raise_on_error:
                if isinstance(error, ResponseError):
                    text = (
                        f"Command # {n} ({_shown(args)}) of pipeline caused error: {error.args[0]}"
                    )
                    error.args = (text, *error.args[1:])
                raise error
            values.append(error)
        return values


def _is_plain(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return bool(args) and _OF_REDIS_PY.isdisjoint(options) and has_plain_form(args[0], len(args))


def _shown(args: Sequence[Any]) -> str:
    text = " ".join(str(str_if_bytes(arg)) for arg in args)
    return text if len(text) <= 100 else f"{text[:97]}..."


class LinkedPipeline(_Pipeline, ClusterPipeline):
    """redis-py's pipeline of a cluster, over a link."""

    run = staticmethod(partial(run_steps, errors=BaseException))
    sleep = staticmethod(sleep)
    discover = staticmethod(LinkedClusterClient._open)

    @staticmethod
    def pipeline_of(client: Any, node: Any) -> Any:
        """Return the pipeline of a node."""
        pool = client.get_redis_connection(node).connection_pool
        return DirectPipeline(pool, reply_callbacks(client), True, None)

    def by_redis_py(self, collected: Sequence[_Collected], raise_on_error: bool) -> Any:
        """See `_Pipeline.by_redis_py`."""
        if self.is_transaction:
            return super().by_redis_py(collected, raise_on_error)
        stack = [PipelineCommand(*pair, n) for n, pair in enumerate(collected)]  # type: ignore[no-untyped-call]
        return self.send_cluster_commands(stack, raise_on_error, False)  # type: ignore[no-untyped-call]


class AsyncLinkedPipeline(_Pipeline, AsyncClusterPipeline):  # type: ignore[misc]  # redis-py's own
    """redis-py's awaiting pipeline of a cluster, over a link."""

    __slots__ = ()
    run = staticmethod(partial(arun_steps, errors=BaseException))
    sleep = staticmethod(asyncio.sleep)
    discover = staticmethod(AsyncLinkedClusterClient.initialize)
    redirects = (False,)

    @staticmethod
    def pipeline_of(client: Any, node: Any) -> Any:
        """Return the pipeline of a node."""
        callbacks: Any = reply_callbacks(client)
        return MultiplexedPipeline(pool_of_node(node), callbacks, True, None)


# redis-py's classes as users get them; see `Connector`.
USER_CLIENTS: Final = (
    *(DirectClient, MultiplexedClient),
    *(LinkedClusterClient, AsyncLinkedClusterClient),
)
