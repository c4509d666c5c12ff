"""Pipelines over shards: redis-py's commands for many keys, each routed by its keys.

A command whose keys live on different shards is refused before anything is sent, unless
`shardkit.kit.merges` says how it is split and its replies are merged.

Replies are those of redis-py's own pipeline, converted as the shard's client is configured. The
commands for one shard run in the order of the calls. A command that may block (BLPOP) has an
exchange of its own, between those of its predecessors and its successors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import wraps
from itertools import starmap
from operator import itemgetter
from typing import Any, Literal, NamedTuple, NoReturn, Self

from shardkit.config.component import Component, entry_key
from shardkit.errors import RoutingError, ShardFailure
from shardkit.events import observed
from shardkit.kit.bulk import Callbacks, converted, numbers_of, read, unusable
from shardkit.kit.lookup import CallSite, Plane
from shardkit.kit.merges import SPLIT, ManyServers, split_of, without_key
from shardkit.kit.pipeline_commands import AsyncPipelineCommands, PipelineCommands
from shardkit.network.connections.redis_private import EMPTY_RESPONSE, NEVER_DECODE
from shardkit.network.links.cluster_clients import as_command
from shardkit.network.links.grouping import cross_shard_error, locate
from shardkit.network.links.resp import pack
from shardkit.network.links.server_request import refused_by_split
from shardkit.network.topology import Topology
from shardkit.operations.commands import (
    Batch,
    Columns,
    Command,
    Key,
    Locate,
    Partial,
    Replies,
    Reply,
    Shard,
    is_separated,
    raise_failures,
)
from shardkit.operations.deadlines import call
from shardkit.routing.command_keys import command_name, has_plain_form, key_positions

_TRANSACTIONS = frozenset({"WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD"})
_SUBSCRIPTIONS = frozenset({"SSUBSCRIBE", "SUNSUBSCRIBE"})  # the others have no key

_NAME, _KEY = itemgetter(0), itemgetter(1)
_UNSENT: Any = object()  # in place of a reply


class _CollectedCommand(NamedTuple):
    """A command as redis-py gives it to execute_command."""

    args: tuple[Any, ...]
    options: dict[str, Any]


class _ShardCommand:
    """One shard's share of a command: the whole command, or the keys that live there."""

    __slots__ = ("command", "keys", "reply", "shard", "undecoded")

    def __init__(
        self, shard: Shard, key: Key, args: tuple[Any, ...], keys: Sequence[int], undecoded: bool
    ) -> None:
        self.shard = shard
        self.command = as_command(shard.component, key, args)
        self.keys = keys  # their indexes among the command's keys
        self.undecoded = undecoded  # whether the reply stays bytes even if the client decodes
        self.reply: Reply = _UNSENT

    def placed_again(self, newer: Component) -> list[_ShardCommand]:
        """Return the shares by a newer version; itself if it was executed, or is refused now."""
        if not (self.reply is _UNSENT or is_separated(self.reply)):
            return [self]
        try:
            options = {NEVER_DECODE: True} if self.undecoded else {}
            parts = _split(self.command.args, options, newer)
        except RoutingError as error:
            ran = getattr(self.reply, "maybe_executed", False)
            self.reply = refused_by_split(self.command, error, self.shard, ran)
            return [self]
        for part in parts:
            part.keys = [self.keys[n] for n in part.keys]
        return parts


class _CommandCollector(ManyServers):
    """A list of commands for the keys of one component."""

    def __init__(self, plane: Plane, site: CallSite) -> None:
        self._plane = plane
        self._site = site
        self._commands: list[tuple[Any, ...]] = []  # arguments, or _CollectedCommand

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Collect a command: its name and arguments."""
        options.pop("keys", None)
        self._commands.append(_CollectedCommand(args, options) if options else args)
        return self

    def get_connection_kwargs(self) -> dict[str, Any]:
        """Return nothing: redis-py's `slowlog_get` asks, which a pipeline over shards refuses."""
        return {}

    def reset(self) -> None:
        """Drop the collected commands."""
        self._commands = []

    def watch(self, *names: Key) -> NoReturn:
        """Refuse: see `multi`."""
        raise no_transaction("WATCH")

    def unwatch(self) -> NoReturn:
        """Refuse: see `multi`."""
        raise no_transaction("UNWATCH")

    def multi(self) -> NoReturn:
        """Raise RoutingError: no transaction spans shards."""
        raise no_transaction("MULTI")

    def _take_commands(self) -> list[tuple[Any, ...]]:
        commands, self._commands = self._commands, []
        return commands

    def __len__(self) -> int:
        return len(self._commands)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._site.component!r}, {len(self)} commands)"


class ShardedPipeline(_CommandCollector, PipelineCommands):
    """Commands for the keys of one component, executed together.

    Has every command method of redis-py's pipeline; each collects and returns the pipeline. Made
    by `KeyShardedConnection.pipeline`. After `execute`, even a failed one, it is empty and can be
    used again. For one thread.
    """

    _is_async_client: Literal[False] = False  # how redis-py's commands tell types their replies

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the collected commands and return the replies, in the order of the calls.

        Args:
            raise_on_error: whether to raise all failures as one group. Otherwise each failed
                command has a ShardFailure in its slot. All other commands run in both cases.

        Raises:
            ShardErrors: commands failed.
            CrossShardError: a command's keys live on different shards; nothing was sent.
            RoutingError: a command is unknown, has no key, or belongs to a transaction; nothing
                was sent.
            InvalidArgumentError: an argument is not text, bytes or a number; nothing was sent.
            ConfigError: the component's entries cannot be used, or its shard count differs.

        Cost: one exchange with each server, all at the same time.
        """
        commands = self._take_commands()
        plane = self._plane.plane()
        with call(), observed("pipeline"):
            component = plane.topology.component(self._site.component)
            component = self._site.checked(plane.topology, component)
            prepared = _Prepared(commands, component, plane.topology)
            for raw, batch in prepared.exchanges():
                link = plane.link(raw=raw, read_from=self._site.read_from)
                prepared.receive(link.send(batch))
            return prepared.finish(plane.clients, raise_on_error, awaiting=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.reset()


class AsyncShardedPipeline(_CommandCollector, AsyncPipelineCommands):
    """The awaiting `ShardedPipeline`, for one task: methods collect, ``execute`` is awaited."""

    _is_async_client: Literal[True] = True

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send what was collected and return the replies; see `ShardedPipeline.execute`."""
        commands = self._take_commands()
        plane = self._plane.plane()
        with call(), observed("pipeline"):
            component = await plane.topology.acomponent(self._site.component)
            component = self._site.checked(plane.topology, component)
            prepared = _Prepared(commands, component, plane.topology)
            for raw, batch in prepared.exchanges():
                link = plane.alink(raw=raw, read_from=self._site.read_from)
                prepared.receive(await link.send(batch))
            return prepared.finish(plane.clients, raise_on_error, awaiting=True)

    def __await__(self) -> Generator[Any, Any, Self]:
        """Allow ``await pipe.get(key)``, as redis-py's pipeline does. It waits for nothing."""
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.reset()


def no_transaction(name: str) -> RoutingError:
    """Return the error for what needs a transaction, which no pipeline over shards is."""
    return RoutingError(
        f"{name}: a pipeline over shards is not a transaction",
        "use router[key].pipeline() for the keys of one shard",
    )


class _Prepared:
    """Commands prepared for sending, by one version of the component.

    Most are *rows*: a name, its only key, further arguments, and no options. Rows are placed,
    packed and finished together. All other commands are split first. Commands split by one version
    of the component must not be sent by another: after a split, what is left is split again.
    """

    def __init__(
        self, commands: Sequence[tuple[Any, ...]], component: Component, topology: Topology
    ) -> None:
        self._topology = topology
        self._commands = commands
        self._component = component
        self._parts: dict[int, list[_ShardCommand]] = {}  # of split commands, by index
        self._rows: Sequence[tuple[Any, ...]] = commands
        self._keys: list[Key] = []
        self._replies = Replies()
        self._sent_parts: list[_ShardCommand] = []
        kinds: set[tuple[Any, int]] = set()
        if set(map(type, commands)) <= {tuple} and all(commands):
            try:
                kinds = set(zip(map(_NAME, commands), map(len, commands), strict=True))
            except TypeError:  # an unhashable name
                kinds = set()
        if kinds and all(starmap(has_plain_form, kinds)):
            self._keys = list(map(_KEY, commands))
        else:
            self._split_some()
        try:
            self._numbers = numbers_of(component, self._keys)
        except RoutingError:  # raise the error of the command that causes it
            for n, command in enumerate(commands):
                _split_one(n, command, component)
            raise

    def _split_some(self) -> None:
        rows: list[tuple[Any, ...]] = []
        is_row: dict[tuple[Any, int], bool] = {}
        for n, command in enumerate(self._commands):
            if type(command) is tuple and command and type(command[0]) is str:
                kind = command[0], len(command)
                if kind not in is_row:
                    is_row[kind] = has_plain_form(*kind)
                if is_row[kind]:
                    self._keys.append(command[1])
                    rows.append(command)
                    continue
            parts = self._parts[n] = _split_one(n, command, self._component)
            self._keys += [part.command.key for part in parts]
            rows += [part.command.args for part in parts]
        self._rows = rows

    def exchanges(self) -> Iterator[tuple[bool, Batch]]:
        """Yield each batch, and whether its link leaves replies undecoded.

        Usually this is one batch. A command that blocks has a connection of its own, and so has one
        whose reply stays undecoded although the client decodes. Such a command waits for its
        predecessors on its shard, and its successors wait for it.
        """
        component = self._component
        split = (part for parts in self._parts.values() for part in parts)
        plain = not any(
            part.undecoded or part.command.script or part.command.block is not None
            for part in split
        )
        if plain and self._rows:
            placed = component, self._numbers
            yield False, Columns.of_rows(component.name, self._keys, self._rows, placed)
        if plain and not (self._replies.failed and any(map(is_separated, self._replies))):
            return
        self._parts = {
            n: self._parts.get(n) or _split_one(n, command, component)
            for n, command in enumerate(self._commands)
        }
        self._sent_parts = [part for parts in self._parts.values() for part in parts]
        self.receive(self._replies)
        exchanges = self._exchanges()
        while True:
            if any(is_separated(part.reply) for part in self._sent_parts):
                newer = self._component = self._topology.last_known(component.name)
                for n, parts in self._parts.items():
                    self._parts[n] = [new for part in parts for new in part.placed_again(newer)]
                placed_keys = (part.command.key for parts in self._parts.values() for part in parts)
                self._numbers = numbers_of(newer, list(placed_keys))
                exchanges = self._exchanges()
            if not exchanges:
                return
            raw, self._sent_parts = exchanges.pop(0)
            yield raw, Partial([part.command for part in self._sent_parts])

    def _exchanges(self) -> list[tuple[bool, list[_ShardCommand]]]:
        """Return the exchanges, in their order, for the parts that have no reply."""
        exchanges: dict[tuple[int, bool], list[_ShardCommand]] = {}
        latest: dict[Shard, tuple[int, object]] = {}
        for parts in self._parts.values():
            for part in parts:
                if part.reply is not _UNSENT:
                    continue
                entry = self._component.entry_of(part.shard)
                decodes = entry.resolved(entry_key(*part.shard)).get("decode_responses", False)
                raw = part.undecoded and bool(decodes)
                kind = object() if part.command.block is not None else raw
                turn, before = latest.get(part.shard, (0, kind))
                turn += kind != before
                latest[part.shard] = turn, kind
                exchanges.setdefault((turn, raw), []).append(part)
        if len(exchanges) > 1:  # refuse arguments that cannot be sent before anything is sent
            for batch in exchanges.values():
                for part in batch:
                    pack(part.command.args)
        return [(raw, exchanges[turn, raw]) for turn, raw in sorted(exchanges)]

    def receive(self, replies: Replies) -> None:
        """Store the replies to the batch yielded last."""
        if not self._sent_parts:
            self._replies = replies
        for part, reply in zip(self._sent_parts, replies, strict=False):
            part.reply = reply

    def finish(self, clients: Any, raise_on_error: bool, awaiting: bool) -> list[Any]:
        """Return replies as redis-py's own clients convert them; raise failures on request."""
        replies = self._merged() if self._parts else self._replies
        if replies.failed and raise_on_error:
            raise_failures(replies, own=False)
        numbers, component = self._numbers, self._component
        tables = clients.callbacks(component, set(numbers), awaiting)
        values: list[Any]
        if not self._parts:
            requests = Columns.of_rows(component.name, self._keys, self._rows)
            callbacks = Callbacks(component, requests, numbers, tables)
            values = converted(list(map(_NAME, self._rows)), replies, callbacks)
        else:
            left = iter(numbers)
            values = Replies()
            for n, (command, reply) in enumerate(zip(self._commands, replies, strict=True)):
                args, options = _collected(command)
                parts = self._parts.get(n)
                here = [next(left) for _ in parts or range(parts is None)]
                if here:
                    callback = tables[here[0]].get(args[0])
                    options = {k: v for k, v in options.items() if k not in _NOT_OF_CALLBACKS}
                    request = parts[0].command if parts else Command(component.name, args[1], args)
                    reply = read(component, request, reply, callback, **options)
                values.append(reply)
        if raise_on_error and isinstance(values, Replies):
            raise_failures(values, own=False)
        return values

    def _merged(self) -> Replies:
        """Return one reply for each command. A failed part is the reply of the whole command."""
        merged, left = Replies(), iter(self._replies)
        for n, command in enumerate(self._commands):
            parts = self._parts.get(n)
            if parts is None:
                merged.append(next(left))
                continue
            args, options = _collected(command)
            if not self._sent_parts:
                for part in parts:
                    part.reply = next(left)
            merged.append(self._merge(args, parts) if parts else options[EMPTY_RESPONSE])
        merged.failed = any(isinstance(reply, ShardFailure) for reply in merged)
        return merged

    def _merge(self, args: Sequence[Any], parts: Sequence[_ShardCommand]) -> Reply:
        """Merge the replies to a command's shares. A failure is the reply of the whole command."""
        replies = [part.reply for part in parts]
        failed = next((reply for reply in replies if isinstance(reply, ShardFailure)), None)
        if len(parts) == 1 or failed is not None:
            return failed or replies[0]
        try:
            return SPLIT[command_name(args)].merged(args, [part.keys for part in parts], replies)
        except Exception as error:
            return unusable(error, self._component, [part.command for part in parts], replies)


def _split_one(n: int, command: tuple[Any, ...], component: Component) -> list[_ShardCommand]:
    """Return each shard's share of the command with index ``n``."""
    try:
        return _split(*_collected(command), component)
    except RoutingError as error:
        message = f"command {n + 1}, {error.message}"
        raise type(error)(message, error.remedy) from None


def _collected(command: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return command if isinstance(command, _CollectedCommand) else (command, {})


def _split(
    args: tuple[Any, ...], options: dict[str, Any], component: Component
) -> list[_ShardCommand]:
    """Return each shard's share of a command: one share if it cannot be split."""
    if EMPTY_RESPONSE in options:
        return []  # redis-py answers it without a server
    name, positions = command_name(args), key_positions(args)
    if name in _TRANSACTIONS:
        raise no_transaction(name)
    if name in _SUBSCRIPTIONS:
        raise RoutingError(f"{name}: a pipeline cannot subscribe", "use router.pubsub()")
    if not positions:
        raise without_key(name)
    undecoded = NEVER_DECODE in options
    if len(positions) == 1:
        key = args[positions[0]]
        return [_ShardCommand(component.shard_of(key), key, args, (0,), undecoded)]
    request = Locate([(component.name, args[position]) for position in positions])
    homes: dict[tuple[Shard, int | None], list[int]] = {}  # by shard and, on a cluster, by slot
    for n, home in enumerate(locate(request, {component.name: component})):
        homes.setdefault(home, []).append(n)
    if len(homes) == 1:
        [(shard, _)] = homes
        return [_ShardCommand(shard, args[positions[0]], args, range(len(positions)), undecoded)]
    split = split_of(args, positions)
    if split is None:
        raise cross_shard_error(name, dict.fromkeys(shard for shard, _ in homes))
    return [
        _ShardCommand(
            shard, args[positions[mine[0]]], split.share(args, positions, mine), mine, undecoded
        )
        for (shard, _), mine in homes.items()
    ]


_NOT_OF_CALLBACKS = frozenset({"keys", EMPTY_RESPONSE, NEVER_DECODE})


# Methods that send their arguments unchanged, the key first. Collecting them without redis-py's
# method body takes a fifth of the time. Calls in another form use that body.
_DIRECT = {
    **{name: (name.upper(), 1) for name in ("get", "getdel", "hgetall", "hkeys", "hlen", "hvals")},
    **{name: (name.upper(), 1) for name in ("llen", "persist", "pttl", "scard", "smembers")},
    **{name: (name.upper(), 1) for name in ("strlen", "ttl", "type", "zcard")},
    **{name: (name.upper(), 2) for name in ("hexists", "hget", "lindex", "lpush", "rpush")},
    **{name: (name.upper(), 2) for name in ("sadd", "set", "sismember", "srem", "zrem", "zscore")},
    **{name: (name.upper(), 3) for name in ("hincrby", "lrange", "zincrby")},
    "delete": ("DEL", 1),
}


def _direct(method: Callable[..., Any], name: str, count: int) -> Callable[..., Any]:
    @wraps(method)
    def collect(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != count:
            return method(self, *args, **kwargs)
        self._commands.append((name, *args))
        return self

    return collect


for _pipeline in (ShardedPipeline, AsyncShardedPipeline):
    for _method, (_name, _count) in _DIRECT.items():
        setattr(_pipeline, _method, _direct(getattr(_pipeline, _method), _name, _count))
