"""Commands without keys, sent to all shards of a router at once: ``router.all.dbsize()``.

The methods are redis-py's. `shardkit.kit.merges` says how the replies become one. A server that
several shards share is asked once, and a cluster by each of its masters that have slots.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from redis.commands import AsyncCoreCommands, CoreCommands

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import DEFAULT_PORT
from shardkit.errors import InvalidArgumentError, RoutingError
from shardkit.events import observed
from shardkit.kit.bulk import read, unusable
from shardkit.kit.merges import OF_ALL, ManyServers, OfAll, why_not
from shardkit.network.connections.redis_private import NEVER_DECODE, learn_slots, nodes_of_slot
from shardkit.network.links.cluster_clients import as_command
from shardkit.operations.commands import Partial, Replies, Shard, raise_failures
from shardkit.operations.deadlines import call
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.routing.command_keys import command_name, key_positions
from shardkit.routing.placement import SLOTS, slot_of

# The fields that tell one server from another.
_SERVER = {"host": "localhost", "port": DEFAULT_PORT, "unix_socket_path": None, "sentinel": None}
_DATABASE = {**_SERVER, "db": 0}


def by_place(component: Component, by: str) -> dict[tuple[str, ...], list[Shard]]:
    """Return the shards that live in each ``server`` or ``database``."""
    defaults = _SERVER if by == "server" else _DATABASE
    groups: dict[tuple[str, ...], list[Shard]] = {}
    for shard in component.all_shards():
        fields = defaults | component.entry_of(shard).resolved(entry_key(*shard))
        groups.setdefault(tuple(repr(fields[name]) for name in defaults), []).append(shard)
    return groups


def distinct(component: Component, by: str = "database") -> dict[Shard, list[Shard]]:
    """Return a shard for each database or server, with all shards that live there."""
    return {shards[0]: shards for shards in by_place(component, by).values()}


def tags_of_masters(client: Any) -> list[str]:
    """Return a key of each master of a cluster that has slots."""
    owners = [nodes_of_slot(client, slot) for slot in range(SLOTS)]
    left, tags = {nodes[0].name for nodes in owners if nodes}, []
    for tag in map(str, range(100 * SLOTS)):
        if (nodes := owners[slot_of(tag)]) and nodes[0].name in left:
            left.remove(nodes[0].name)
            tags.append(tag)
        if not left:
            break
    return tags


class _Recipient(NamedTuple):
    shard: Shard
    key: str  # by which a cluster chooses the node
    shards: Sequence[Shard]  # that live there


class _ForAllShards(ManyServers):
    """What both faces share."""

    _is_async_client: bool

    def __init__(self, router: Any) -> None:
        self._router = router

    def get_connection_kwargs(self) -> dict[str, Any]:
        """Have redis-py's `slowlog_get` ask for bytes, which its texts may be."""
        return {"decode_responses": True}

    def _checked(self, args: Sequence[Any], options: dict[str, Any]) -> OfAll:
        """Return how a command is merged, or refuse it."""
        name = command_name(args)
        merge = OF_ALL.get(name)
        if merge is None:
            why, remedy = why_not(name)
            if key_positions(args):
                why, remedy = "it has a key", "call it on the router itself"
            raise RoutingError(f"{name} cannot be sent to all shards: {why}", remedy)
        word = options.pop("confirm", None)
        if merge.asks and word != self._router.component:
            raise InvalidArgumentError(
                f"{name} deletes everything in the databases of {self._router.component!r}, "
                f"but confirm={word!r:.80}",
                f"use confirm={self._router.component!r} if that is intended",
            )
        return merge

    def _send(
        self, merge: OfAll, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Generator[Callable[[], Any], Any, Any]:
        """Send a command to all shards, yielding what to call; return the merged reply."""
        awaiting, router = self._is_async_client, self._router
        plane = router._plane.plane()
        client_of = plane.clients.aget if awaiting else plane.clients.get
        link_of = plane.alink if awaiting else plane.link
        with call(), observed("all"):
            values: list[Any] = []
            done = 0  # shards where a command that is sent once has been
            while True:
                component = router._now()
                targets: list[_Recipient] = []
                for shard, shards in distinct(component, merge.by).items():
                    if (shard.number or 0) < done:
                        continue
                    tags = [""]
                    if component.entry_of(shard).is_cluster:
                        client = client_of(component, shard.number)
                        if awaiting:
                            yield client.initialize
                        elif client.get_default_node() is None:
                            learn_slots(client)
                        tags = tags_of_masters(client)
                    targets += [_Recipient(shard, tag, shards) for tag in tags]
                sent = args + (merge.more if len(args) == 1 else ())
                batch = Partial([as_command(target.shard, target.key, sent) for target in targets])
                link = link_of(raw=NEVER_DECODE in options, read_from=router._site.read_from)
                replies: Replies = yield partial(link.send, batch)
                numbers = {target.shard.number for target in targets}
                tables = plane.clients.callbacks(component, numbers, awaiting)
                for target, request, reply in zip(targets, batch, replies, strict=True):
                    callback = tables[target.shard.number].get(args[0])
                    values.append(read(component, request, reply, callback, **options))
                if router._now().layout == component.layout:
                    break
                # A split has taken place: all shards again, or the new ones follow.
                values, done = (values, len(component.shards)) if merge.once else ([], 0)
        placed: dict[Shard, list[Any]] = {}
        for target, value in zip(targets, values, strict=False):
            for shard in target.shards:
                placed.setdefault(shard, []).append(value)
        if merge.partial:
            return [reply for shard in component.all_shards() for reply in placed[shard]]
        raise_failures(Replies(values), own=False)
        try:
            return merge.merged(values)
        except Exception as error:
            failure = unusable(error, component, batch, replies)
            raise_failures(Replies([failure]), own=False)

    def scan_iter(self, *args: Any, **options: Any) -> Any:
        """Iterate over the keys of all shards; see `BlockingRouter.scan_iter`."""
        return self._router.scan_iter(*args, **options)


class AllShards(_ForAllShards, CoreCommands):
    """redis-py's methods for all shards at once; made by ``router.all``.

    ``flushdb`` asks for the component's name: ``router.all.flushdb(confirm="timelines")``. Each
    method raises RoutingError if its command has no merge, and ShardErrors if shards failed that
    have no place in its reply. `docs/commands.md` has all commands. Cost: one exchange.
    """

    _is_async_client: Literal[False] = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to all shards; return the merged reply."""
        return run_steps(self._send(self._checked(args, options), args, options))


class AsyncAllShards(_ForAllShards, AsyncCoreCommands):  # type: ignore[misc]
    """The awaiting `AllShards`."""

    _is_async_client: Literal[True] = True

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to all shards; return the merged reply."""
        merge = self._checked(args, options)
        await self._router.load()
        return await arun_steps(self._send(merge, args, options))
