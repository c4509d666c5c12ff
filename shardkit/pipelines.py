"""Pipelines over shards: redis-py's commands for many keys, each routed by its keys.

::

    pipe = timelines.pipeline()
    pipe.zadd("home:1", {"7": 1.0}).zadd("home:2", {"7": 1.0}).mget("a", "b", "c")
    added, added_too, values = pipe.execute()      # one exchange with each shard, all at once

A command whose keys live on different shards is refused before anything is sent: it could not be
right. Six commands can be split and their replies merged without a change of meaning, because each
of their keys is a matter of its own:

======================== ==============================================
MGET                     each key's value, in the order of the keys
MSET                     True; atomic on each shard, not over them
DEL UNLINK EXISTS TOUCH  the sum
======================== ==============================================

Replies are what redis-py's own pipeline would give, as the shard's client is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.commands import AsyncCoreCommands, CoreCommands
from redis.utils import str_if_bytes

from shardkit.client_plane import ClientPlane
from shardkit.clients import AsyncClient, Client
from shardkit.commands import Command, Key, Locate, Partial, Replies, Reply, Shard
from shardkit.drivers import AwaitingDriver, BlockingDriver
from shardkit.errors import CrossShardError, RoutingError, ShardFailure
from shardkit.links.parcels import raise_failures
from shardkit.operation import Operation
from shardkit.routing.command_keys import blocking_seconds, key_positions

_SUMMED = frozenset({"DEL", "UNLINK", "EXISTS", "TOUCH"})
_SPLIT = _SUMMED | {"MGET", "MSET"}
_TRANSACTIONS = frozenset({"WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD"})


# By the command's number: the shard of its (first) piece, and the reply.
_Answers: TypeAlias = dict[int, tuple[Shard | None, Reply]]


class _Collected(NamedTuple):
    """A command as redis-py gives it to execute_command."""

    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return str(str_if_bytes(self.args[0])).upper()


class _Piece(NamedTuple):
    """What one shard gets of a command: all of it, or of a split one the keys that live there."""

    shard: Shard
    key: Key
    args: tuple[Any, ...]
    keys: Sequence[int]


class _Collecting:
    """A list of commands for the keys of one component.

    Args:
        plane: where clients come from; looked at when the pipeline is executed.
        component: the component.
        shards: how many shards the caller says it has.
    """

    _event_dispatcher: Any = None  # redis-py's commands declare that they want one

    def __init__(self, plane: Any, component: str, shards: int | None = None) -> None:
        self._plane = plane
        self._component = component
        self._shards = shards
        self._commands: list[_Collected] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Collect a command: its name and arguments."""
        self._commands.append(_Collected(args, options))
        return self

    def _take(self) -> list[_Collected]:
        commands, self._commands = self._commands, []
        return commands

    def __len__(self) -> int:
        return len(self._commands)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._component!r}, {len(self)} commands)"


class ShardedPipeline(_Collecting, CoreCommands):
    """Commands for the keys of one component, executed together.

    Has every command method of redis-py's pipeline; each collects and returns the pipeline. Made
    by `KeyShardedConnection.pipeline`.
    """

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send what was collected and return the replies, in the order of the calls.

        Args:
            raise_on_error: raise what failed, as one group; otherwise each failure stands in its
                command's slot. Either way everything else was executed.

        Raises:
            ShardErrors: commands failed.
            CrossShardError: a command's keys live on different shards; nothing was sent.
            RoutingError: a command has no key; nothing was sent.
            ConfigError: where the component lives is not known, or its shard count differs.

        Cost: one exchange with each shard concerned, all at the same time.
        """
        commands = self._take()
        plane: ClientPlane = self._plane.plane()
        component = plane.topology.component(self._component)
        component.require_shards(self._shards)
        replies: _Answers = {}
        for raw, part in _by_rawness(commands).items():
            replies |= BlockingDriver(plane.links[raw]).run(_carry_out(self._component, part))

        def client(shard: Shard) -> Client:
            return plane.clients.get(component, shard.number)

        return _finish(commands, replies, client, raise_on_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._take()


class AsyncShardedPipeline(_Collecting, AsyncCoreCommands):  # type: ignore[misc]  # redis-py's
    """The awaiting `ShardedPipeline`: command methods collect, ``execute`` is awaited."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send what was collected and return the replies; see `ShardedPipeline.execute`."""
        commands = self._take()
        plane: ClientPlane = self._plane.plane()
        component = await plane.topology.acomponent(self._component)
        component.require_shards(self._shards)
        replies: _Answers = {}
        for raw, part in _by_rawness(commands).items():
            steps = _carry_out(self._component, part)
            replies |= await AwaitingDriver(plane.alinks[raw]).run(steps)

        def client(shard: Shard) -> AsyncClient:
            return plane.clients.aget(component, shard.number)

        return _finish(commands, replies, client, raise_on_error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._take()


def _by_rawness(commands: Sequence[_Collected]) -> dict[bool, dict[int, _Collected]]:
    """Part the few commands whose replies are never text from the others."""
    parts: dict[bool, dict[int, _Collected]] = {}
    for n, command in enumerate(commands):
        parts.setdefault(NEVER_DECODE in command.options, {})[n] = command
    return parts


def _carry_out(component: str, commands: Mapping[int, _Collected]) -> Operation[_Answers]:
    """Route, split, send and merge; return for each command its (first) shard and reply."""
    positions = {n: _positions(n, command) for n, command in commands.items()}
    keys = [commands[n].args[p] for n, found in positions.items() for p in found]
    places = iter((yield Locate([(component, key) for key in keys])))
    cuts = {
        n: _cut(n, commands[n], found, [next(places) for _ in found])
        for n, found in positions.items()
    }
    batch = Partial(_command(piece) for cut in cuts.values() for piece in cut)
    replies = iter((yield batch) if batch else ())
    return {
        n: (cut[0].shard, _merged(commands[n], cut, [next(replies) for _ in cut]))
        if cut
        else (None, commands[n].options[EMPTY_RESPONSE])
        for n, cut in cuts.items()
    }


def _positions(n: int, command: _Collected) -> tuple[int, ...]:
    """Return where a command's keys are; () for one that redis-py answers without a server."""
    if EMPTY_RESPONSE in command.options:
        return ()
    if command.name in _TRANSACTIONS:
        raise RoutingError(
            f"command {n + 1}, {command.name}: a pipeline over shards is no transaction",
            "use router[key].pipeline() for the keys of one shard",
        )
    positions = key_positions(command.args)
    if not positions:
        raise RoutingError(
            f"command {n + 1}, {command.name}, has no key to route by",
            "send it to each shard: for client in router",
        )
    return positions


def _cut(
    n: int,
    command: _Collected,
    positions: Sequence[int],
    places: Sequence[tuple[Shard, int | None]],
) -> list[_Piece]:
    """Cut a command into what each shard gets of it: one piece, if it cannot be split."""
    args = command.args
    if not positions:
        return []
    if len(set(places)) == 1:
        return [_Piece(places[0][0], args[positions[0]], args, range(len(positions)))]
    if command.name not in _SPLIT:
        shown = ", ".join(dict.fromkeys(str(shard) for shard, _ in places))
        raise CrossShardError(
            f"command {n + 1}, {command.name}: its keys live on different shards ({shown})",
            "keep keys that are used together on one shard by a common {tag} in their names",
        )
    width = 2 if command.name == "MSET" else 1
    by_place: dict[tuple[Shard, int | None], list[int]] = {}
    for index, place in enumerate(places):
        by_place.setdefault(place, []).append(index)
    return [
        _Piece(
            shard,
            args[positions[mine[0]]],
            (args[0], *(args[positions[i] + w] for i in mine for w in range(width))),
            mine,
        )
        for (shard, _), mine in by_place.items()
    ]


def _command(piece: _Piece) -> Command:
    args = piece.args
    # redis-py joins sub-commands to the name by a space; servers want them apart.
    words = str(str_if_bytes(args[0])).split()
    sent = (*words, *args[1:]) if len(words) > 1 else args
    return Command(piece.shard, piece.key, sent, block=blocking_seconds(args))


def _merged(command: _Collected, cut: Sequence[_Piece], replies: Sequence[Reply]) -> Reply:
    """Merge the replies to a command's pieces; a failure of one is a failure of all."""
    if len(cut) == 1:
        return replies[0]
    failed = next((reply for reply in replies if isinstance(reply, ShardFailure)), None)
    if failed is not None:
        return failed
    if command.name in _SUMMED:
        return sum(replies)
    if command.name == "MSET":
        return replies[0]
    values: list[Reply] = [None] * sum(len(piece.keys) for piece in cut)
    for piece, reply in zip(cut, replies, strict=True):
        for index, value in zip(piece.keys, reply, strict=True):
            values[index] = value
    return values


def _finish(
    commands: Sequence[_Collected],
    replies: _Answers,
    client: Callable[[Shard], Any],
    raise_on_error: bool,
) -> list[Any]:
    """Give each reply the form that redis-py's own clients give it; raise failures if asked."""
    finished = Replies()
    callbacks: dict[Shard, Any] = {}
    for n, command in enumerate(commands):
        shard, reply = replies[n]
        if shard is not None and not isinstance(reply, ShardFailure):
            if shard not in callbacks:
                callbacks[shard] = _callbacks(client(shard))
            callback = callbacks[shard].get(command.args[0])
            if callback is not None:
                options = {k: v for k, v in command.options.items() if k not in _OURS}
                reply = callback(reply, **options)
        finished.append(reply)
    if raise_on_error:
        raise_failures(finished)
    return list(finished)


# Options of execute_command that are not its callback's.
_OURS = frozenset({"keys", EMPTY_RESPONSE, NEVER_DECODE})


def _callbacks(client: Any) -> Any:
    if hasattr(client, "response_callbacks"):
        return client.response_callbacks
    node = client.get_default_node()  # a cluster's
    return getattr(node, "redis_connection", node).response_callbacks
