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
from itertools import chain, count
from threading import RLock
from typing import Any, Final, TypeAlias

from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.cluster import ClusterPipeline, PipelineCommand
from redis.exceptions import (
    ConnectionError,
    CrossSlotTransactionError,
    InvalidResponse,
    MovedError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from shardkit.config.component import Component
from shardkit.errors import InvalidArgumentError, RoutingError, ShardFailure, ShardUnavailable
from shardkit.network.connections.connection_state import decoded, require_open
from shardkit.network.connections.connector import (
    AsyncClusterClient,
    ClusterClient,
    registered_scripts,
)
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import ALONE, STATE, WATCHES, effects
from shardkit.network.connections.endpoints import Access, Endpoint
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.redis_private import (
    EMPTY_RESPONSE,
    NEVER_DECODE,
    learn_slots,
    nodes_of_slot,
    reply_callbacks,
    str_if_bytes,
)
from shardkit.network.links.link import AwaitingLink, BlockingLink
from shardkit.network.links.server_request import MOVING, patience_with, pause_before
from shardkit.network.links.user_clients import (
    DirectClient,
    MultiplexedClient,
    allowed,
    raise_unusable,
    reading,
)
from shardkit.operations.commands import Batch, Columns, Command, Reply, Shard, Transaction
from shardkit.operations.deadlines import earliest
from shardkit.operations.steps import arun_steps, run_by_face, run_steps, sleep
from shardkit.routing.command_keys import blocking_seconds, has_plain_form, key_positions
from shardkit.routing.placement import slot_of

_LOST = (ConnectionError, TimeoutError)
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


class _Route:
    """Where a client's commands go: takes the place of a topology and of clients for its link."""

    def __init__(self, client: Any) -> None:
        self._place, policy = client.place, client.policy
        self.run = client.run
        endpoint = Endpoint(
            Shard(client.place.component.name),
            policy.address,
            Access(client, None, policy, None, RLock()),
            None,
        )
        self._endpoints: Mapping[Any, Endpoint] = {None: endpoint}

    def component(self, name: str) -> Component:
        found: Component = self._place.left() or self._place.component
        return found

    @run_by_face
    def reread(self, name: str) -> Steps[Component]:
        yield self._place.reread
        return self.component(name)

    fresh, areread = component, reread

    def endpoints(self, component: Component, raw: bool) -> Mapping[Any, Endpoint]:
        """Return where the commands for each shard go: to the client itself, if it has no other."""
        if component is not self._place.component:
            others: Mapping[Any, Endpoint] = self._place.endpoints(component, raw)
            return others
        return self._endpoints

    aendpoints = endpoints


class _OnLink:
    """What both faces share."""

    run: Callable[[Steps[Any]], Any]
    place: Any = None  # where its component is; None for a client without a kit
    link_class: Callable[..., Any]
    _route: Any = None
    _links: Sequence[Any]
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
            return [Command(self.place.component.name, args[1], args)]
        keys = _keys(args)
        if not keys or len(set(map(slot_of, keys))) > 1:  # redis-py knows what to do
            return None
        return [as_command(self.place.component.name, keys[0], args)]

    @run_by_face
    def execute_command(self: Any, *args: Any, **options: Any) -> Steps[Any]:
        """Execute a command, over the link if it has keys."""
        batch = self._batch(args, options)
        if batch is not None:
            try:
                [reply] = yield partial(self.send, batch, NEVER_DECODE in options)
            except InvalidArgumentError:
                pass  # redis-py takes more kinds, and names the others
            else:
                return self.value(args, options, reply)
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
        if self._route is None:
            self._route = route = _Route(self)
            self._links = [self.link_class(route, route, raw=each) for each in (False, True)]
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
    """What the pipelines of both faces share. They collect, until they watch keys."""

    client: Any
    is_transaction: bool
    collected: list[_Collected]
    watches: bool  # then redis-py's own code does everything
    queues: bool
    watched: tuple[int, str] | None  # the slot and the node of watched keys
    sleep: Callable[[float], Any]

    def begin(self, client: Any, is_transaction: bool) -> None:
        self.client, self.is_transaction = client, is_transaction
        self.collected, self.watches, self.watched = [], False, None
        self.queues = False  # after MULTI

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Collect a command; with watched keys, execute it."""
        options.pop("keys", None)  # for its cache; its transactions would give it to callbacks
        if self.is_transaction and str_if_bytes(args[0]).upper() == "WATCH":
            self.start_watching()
        call = partial(super().execute_command, *args, **options)  # type: ignore[misc]
        if self.watches and not self.queues:
            return self.follow(call, args)
        self.collected.append((args, options))
        return call() if self.watches else self

    def multi(self) -> None:
        """Collect commands from now on, even if keys are watched."""
        super().multi()  # type: ignore[misc]
        self.queues = self.watches

    def start_watching(self) -> None:
        """Leave everything to redis-py's own code from now on."""
        self.watches = self.is_transaction
        for args, options in self.collected if self.watches else ():
            super().execute_command(*args, **options)  # type: ignore[misc]

    @run_by_face
    def follow(self, call: Callable[[], Any], *commands: Sequence[Any]) -> Steps[Any]:
        """Call redis-py's own code, and again if a slot has moved.

        Raises:
            WatchError: the slot of watched keys has moved.
        """
        waited, deadline = 0.0, earliest(self.client.policy.deadline)
        for attempt in count():
            pause = pause_before(attempt)
            if deadline is not None and deadline.left() <= pause:
                raise deadline.passed()
            try:
                if self.watched is not None and self._owner(self.watched[0]) != self.watched[1]:
                    raise MovedError(f"{self.watched[0]} {self._owner(self.watched[0])}")
                if pause:
                    yield partial(self.sleep, pause)
                    yield partial(learn_slots, self.client)
                with self.client.watching(*commands or [("EXEC",)]):
                    value = yield call
                break
            except MOVING as error:
                if self.watched is not None:
                    raise WatchError("Slot rebalancing occurred while watching keys") from error
                waited += pause_before(attempt + 1)
                if waited > patience_with(self.client):
                    raise
        name = str_if_bytes(commands[0][0]).upper() if len(commands) == 1 else ""
        if name == "WATCH":
            slot = slot_of(commands[0][1])
            self.watched = slot, self._owner(slot)
        elif name == "UNWATCH":
            self.watched = None
        return value

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
        """Drop what was collected."""
        self.begin(self.client, self.is_transaction)
        yield super().reset  # type: ignore[misc]

    @run_by_face
    def discard(self) -> Steps[None]:
        """Drop what was collected, if it is a transaction."""
        yield super().discard  # type: ignore[misc]
        self.collected = []

    def __len__(self) -> int:
        return len(self.collected) or int(super().__len__())  # type: ignore[misc]

    def _owner(self, slot: int) -> str:
        return next((str(node.name) for node in nodes_of_slot(self.client, slot)), "")

    def batch(self, collected: Sequence[_Collected]) -> Batch | None:
        """Return the requests for the link; None if redis-py's own code sends them."""
        if self.watches:
            return None
        name, commands = self.client.place.component.name, []
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
            if not keys and (flag in _SEVERAL_NODES or self.is_transaction):
                what = "has no key" if self.is_transaction else "needs several nodes"
                raise RedisClusterException(f"{args[0]} {what}: it cannot be in this pipeline")
            if named is not None:
                owners = nodes_of_slot(self.client, slot_of(keys[0])) if keys else ()
                if named not in [[owner] for owner in owners]:
                    return None
            commands.append(as_command(name, keys[0] if keys else b"", args))
        if not self.is_transaction or not commands:
            return commands
        slots = set(map(slot_of, chain.from_iterable(_keys(args) for args, _ in collected)))
        if len(slots) > 1:
            raise CrossSlotTransactionError(
                "All keys involved in a cluster transaction must map to the same slot"
            )
        return [Transaction(name, commands[0].key, tuple(commands))]

    def send(self, collected: Sequence[_Collected], batch: Batch) -> Any:
        """Send requests over the link; as bytes if some replies are not decoded."""
        return self.client.send(batch, any(NEVER_DECODE in options for _, options in collected))

    def by_redis_py(self, collected: Sequence[_Collected], *options: bool) -> Any:
        """Execute commands by redis-py's own code, which forgets them each time."""
        for args, given in collected:
            super().execute_command(*args, **given)  # type: ignore[misc]
        return super().execute(*options)  # type: ignore[misc]

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
        raw = encoder.decode_responses and any(NEVER_DECODE in each for _, each in collected)
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
    text = " ".join(str(str_if_bytes(each)) for each in args)
    return text if len(text) <= 100 else f"{text[:97]}..."


class LinkedPipeline(_Pipeline, ClusterPipeline):
    """redis-py's pipeline of a cluster, over a link."""

    run, sleep = staticmethod(run_steps), staticmethod(sleep)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute what was collected."""
        collected, self.collected = self.collected, []
        try:
            if (batch := self.batch(collected)) is not None:
                with suppress(InvalidArgumentError):
                    return self.values(collected, self.send(collected, batch), raise_on_error)
            commands = [args for args, _ in collected]
            if not self.is_transaction:  # without sending anything again
                stack = [PipelineCommand(*each, n) for n, each in enumerate(collected)]  # type: ignore[no-untyped-call]
                with self.client.watching(*commands):
                    return self.send_cluster_commands(stack, raise_on_error, False)  # type: ignore[no-any-return, no-untyped-call]
            queued = () if self.watches else collected
            found = self.follow(partial(self.by_redis_py, queued, raise_on_error), *commands)
            return [  # redis-py returns what EXEC does
                reply if isinstance(reply, Exception) else self.client.value(*command, reply)
                for command, reply in zip(collected, found, strict=True)
            ]
        finally:
            self.reset()

    def watch(self, *names: Any) -> Any:
        """Watch keys, if it is a transaction."""
        self.start_watching()
        return self.follow(partial(super().watch, *names), ("WATCH", *names))


class AsyncLinkedPipeline(_Pipeline, AsyncClusterPipeline):  # type: ignore[misc]  # redis-py's own
    """redis-py's awaiting pipeline of a cluster, over a link."""

    __slots__ = ()
    run, sleep = staticmethod(arun_steps), staticmethod(asyncio.sleep)

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> Any:
        """Execute what was collected."""
        collected, self.collected = self.collected, []
        try:
            if (batch := self.batch(collected)) is not None:
                with suppress(InvalidArgumentError):
                    replies = await self.send(collected, batch)
                    return self.values(collected, replies, raise_on_error)
            commands = [args for args, _ in collected]
            queued = () if self.watches else collected
            call = partial(self.by_redis_py, queued, raise_on_error, False)
            if self.is_transaction:
                return await self.follow(call, *commands)
            with self.client.watching(*commands):  # without sending anything again
                return await call()
        finally:
            await self.reset()

    async def watch(self, *names: Any) -> Any:  # type: ignore[override]  # redis-py's own
        """Watch keys, if it is a transaction."""
        await self.client.initialize()  # redis-py would do it in a loop of its own
        self.start_watching()
        return await self.follow(partial(super().watch, *names), ("WATCH", *names))


# redis-py's classes as users get them; see `Connector`.
USER_CLIENTS: Final = (
    *(DirectClient, MultiplexedClient),
    *(LinkedClusterClient, AsyncLinkedClusterClient),
)
