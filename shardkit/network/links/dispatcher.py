"""Dispatching a batch, written once for the blocking and the awaiting link.

::

    batch ─► components ─► groups by shard ─► clients ─► attempts, one a server ─► replies
               ▲                                                             │
               └── retry: missing scripts, moved slots, lost idempotent,  ◄──┘
                          servers that load, or are replicas now

`Dispatcher.dispatch` is a generator without I/O: it yields what it needs (components, clients,
attempts to carry out, a pause) and is sent the answer by the link. A request is sent again only if
it was certainly not executed, only reads, or is marked idempotent.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from redis.exceptions import (
    AskError,
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    MovedError,
    TimeoutError,  # noqa: A004 - redis-py's own
    TryAgainError,
)

from shardkit.config.component import Component
from shardkit.errors import ClosedError, ShardFailure, ShardKitError
from shardkit.events import CommandsRetried, CommandsSent, emit, handlers, settled
from shardkit.network.connections.policy import policy_of
from shardkit.network.connections.redis_private import (
    is_script_missing,
    is_unblocked,
    is_unready,
    node_of,
    reads_replicas,
    replica_in,
    slot_owners,
)
from shardkit.network.links.coalescing import split
from shardkit.network.links.grouping import ServerGroup, components_in, group_by_shard
from shardkit.network.links.server_request import (
    ATTEMPT_ERRORS,
    ServerRequest,
    lacks_script,
    may_repeat,
    patience_with,
    pause_before,
    settle,
)
from shardkit.operations.commands import (
    Batch,
    Columns,
    Command,
    Pause,
    PlainCommands,
    Replies,
    Reply,
    Shard,
    coalesced,
)
from shardkit.operations.deadlines import earliest
from shardkit.routing.keys import key_bytes
from shardkit.routing.placement import slots_of

# A cluster node's answers while slots move or masters are elected; nothing was executed.
_MOVING = (AskError, ClusterDownError, MovedError, TryAgainError)
# For retries after NOSCRIPT, a moved slot or, of an idempotent request, a lost connection. Servers
# that are not ready are retried for as long as their entry's timeout.
MAX_ATTEMPTS = 5


class NeedComponents(NamedTuple):
    """Yielded: look up these components."""

    names: set[str]


class NeedClients(NamedTuple):
    """Yielded: get the clients of shards, or ShardFailures."""

    shards: list[tuple[Component, int | None]]


class NeedEntries(NamedTuple):
    """Yielded: read the entries of these components again."""

    names: set[str]


class NeedRefresh(NamedTuple):
    """Yielded: refresh a cluster client's slots."""

    client: Any


class Attempt:
    """One attempt to send a request to a server, and its outcome."""

    __slots__ = (
        *("client", "ended", "error", "node", "refused", "replies", "sent", "server_request"),
        *("told", "written"),
    )

    def __init__(self, server_request: ServerRequest, client: Any, node: Any = None) -> None:
        self.server_request = server_request
        self.client = client  # kept, so that its pool outlives the exchange
        self.node = node  # of a cluster
        self.replies: list[Reply] = []
        self.refused = False  # whether an error may be among the replies, or inside one
        self.error: Exception | None = None
        self.sent = False  # whether the server may have received something
        self.told: CommandsSent | None = None
        # By `time.perf_counter`, if there are event handlers: when the replies had come, and when
        # the request was written to a shared connection.
        self.ended = self.written = 0.0

    @classmethod
    def of_all(cls, batch: Batch, component: Component, number: int | None, client: Any) -> Attempt:
        """Return the attempt for a whole batch."""
        where, positions = Shard(component.name, number), range(len(batch))
        server_request = ServerRequest(where, component.entry_of(where).address, positions, batch)
        return cls(server_request, client)

    @property
    def allowed(self) -> float | None:
        """The seconds that the entry allows: its deadline, plus the time that it may block."""
        seconds, block = policy_of(self.client).deadline, self.server_request.block
        if seconds is None or block is None:
            return seconds
        return seconds + block if block else None

    @property
    def refusal(self) -> Exception | None:
        """The first error among its replies, unless the command is sent again."""
        if not self.refused:
            return None
        replies = (one for each in self.replies for one in (each if type(each) is list else [each]))
        errors = (one for one in replies if isinstance(one, Exception))
        return next(
            (one for one in errors if not is_script_missing(one) and not isinstance(one, _MOVING)),
            None,
        )

    @property
    def timed_out(self) -> bool:
        """Whether it failed because no reply came in time."""
        return isinstance(self.error, TimeoutError)


@dataclass(slots=True)
class _Outcome:
    """What the attempts of one round mean for the next."""

    retry: int  # the round's number
    waited: float  # seconds of pauses before the next round
    redirected: dict[int, tuple[str, int]] = field(default_factory=dict)  # nodes by position
    stale: dict[Any, None] = field(default_factory=dict)  # clients that must refresh their slots
    unready: set[str] = field(default_factory=set)  # components whose servers are not ready
    pause: float = 0.0  # seconds before the next round, by the entries' ``retry``


Need: TypeAlias = NeedComponents | NeedClients | NeedEntries | NeedRefresh | Pause | list[Attempt]


class Dispatcher:
    """Dispatches batches to servers; remembers which scripts each server has loaded."""

    def __init__(self) -> None:
        # By client and cluster node. A restarted server may lack them: then it answers NOSCRIPT.
        self._loaded: weakref.WeakKeyDictionary[Any, dict[str, set[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def loaded(self, client: Any, node: str = "") -> set[str]:
        """Return the SHA-1s of the scripts that a server is known to have."""
        try:
            return self._loaded[client][node]
        except KeyError:
            return self._loaded.setdefault(client, {}).setdefault(node, set())

    def dispatch(
        self, batch: Batch, attempt: Attempt | None = None
    ) -> Generator[Need, Any, Replies]:
        """Send a batch and return its replies in order, failures among them.

        ``attempt`` is the first attempt at the whole batch, if the link has already made it.
        """
        out = Replies([None] * len(batch))
        todo: Sequence[int] = range(len(batch))
        redirected: dict[int, tuple[str, int]] = {}
        uncertain: set[int] = set()
        attempts = [attempt] if attempt else []
        waited = asked = 0.0
        for retry in count():
            pause = max(pause_before(retry), asked)
            if pause:  # a cluster is moving slots or electing a master, or a server loads
                yield Pause(pause)
                waited += pause
            deadline = earliest(None)
            if retry and deadline is not None and deadline.left() <= 0:
                _fail(attempts, set(todo), deadline.passed(), uncertain, out)
                break
            if retry and handlers:
                emit(CommandsRetried(len(todo), retry))
            if retry or not attempts:
                try:
                    # A slot on the move refuses joined commands (TRYAGAIN), not single ones.
                    joins = coalesced(batch) and not retry
                    attempts = yield from self._attempt(batch, todo, redirected, joins, out)
                except (ShardKitError, *ATTEMPT_ERRORS) as error:
                    if not retry:  # nothing was sent: the whole batch can be refused
                        raise
                    _fail(attempts, set(todo), error, uncertain, out)
                    break
            again: list[int] = []
            outcome = _Outcome(retry, waited + pause_before(retry + 1))
            for attempt in attempts:
                try:
                    again += self._settle(attempt, outcome, uncertain, out)
                except ATTEMPT_ERRORS as error:
                    why = InvalidResponse(f"the replies do not match the requests: {error!r}")
                    why.__cause__ = error
                    attempt.error, attempt.sent = why, True
                    self._settle(attempt, _Outcome(MAX_ATTEMPTS, inf), uncertain, out)
            redirected, asked = outcome.redirected, outcome.pause
            for client in outcome.stale:
                yield NeedRefresh(client)
            if outcome.unready:
                yield NeedEntries(outcome.unready)
            todo = again
            if not todo:
                break
        return out

    def _attempt(
        self,
        batch: Batch,
        todo: Sequence[int],
        redirected: dict[int, tuple[str, int]],
        joins: bool,
        out: Replies,
    ) -> Generator[Need, Any, list[Attempt]]:
        """Send the requests at the positions ``todo`` once, and return the attempts."""
        components = yield NeedComponents(components_in(batch, todo))
        groups = group_by_shard(batch, todo, components)
        shards = [(components[group.shard.component], group.shard.number) for group in groups]
        clients = yield NeedClients(shards)
        attempts: list[Attempt] = []
        for group, (component, _), client in zip(groups, shards, clients, strict=True):
            attempts += self._attempts(batch, group, component, client, redirected, joins, out)
        if handlers:
            for attempt in attempts:
                attempt.told = attempt.server_request.tell()
        yield attempts
        for attempt in attempts:
            if attempt.told is not None:
                settled(
                    attempt.told,
                    attempt.error,
                    maybe_executed=attempt.sent,
                    refused=attempt.refused,
                    refusal=attempt.refusal,
                    ended=attempt.ended,
                    written=attempt.written,
                )
        return attempts

    def _attempts(
        self,
        batch: Batch,
        group: ServerGroup,
        component: Component,
        client: Any,
        redirected: dict[int, tuple[str, int]],
        joins: bool,
        out: Replies,
    ) -> list[Attempt]:
        """Return a group's attempts: one, or on a cluster one for each node."""
        shard, positions, block, rows, uniform = group
        entry = component.entry_of(shard)
        if isinstance(client, ShardFailure):
            server_request = ServerRequest(shard, entry.address)
            for position in positions:
                error = client.error or client
                out[position] = server_request.failure(batch[position], error, sent=False)
            out.failed = True
            return []
        if entry.is_cluster:
            return self._attempts_on_nodes(batch, group, client, redirected, joins, out)
        loaded = self.loaded(client)
        server_request = ServerRequest(
            shard, entry.address, positions, batch, loaded, block=block, joins=joins
        )
        server_request.rows, server_request.uniform = rows, uniform
        return [Attempt(server_request, client)]

    def _attempts_on_nodes(
        self,
        batch: Batch,
        group: ServerGroup,
        client: Any,
        redirected: dict[int, tuple[str, int]],
        joins: bool,
        out: Replies,
    ) -> list[Attempt]:
        attempts: dict[str, Attempt] = {}
        found: dict[str, list[int]] = {}
        rows = batch.rows if isinstance(batch, Columns) and not redirected else group.rows

        def attempt_on(node: Any, asking: bool) -> Attempt:
            server_request = ServerRequest(
                group.shard,
                f"cluster node {node.name}",
                batch=batch,
                loaded=self.loaded(client, node.name),
                asking=asking,
                block=group.block,
                joins=joins,
                in_slots=True,
                rows=rows,
            )
            return Attempt(server_request, client, node)

        known = None if redirected else _nodes_of(client, batch, group.positions)
        if known is not None:
            made = [attempt_on(node, asking=False) for node, _ in known]
            for attempt, (_, positions) in zip(made, known, strict=True):
                attempt.server_request.positions = positions
            return made
        for position in group.positions:
            request = batch[position]
            try:
                asking = position in redirected
                if asking:
                    node = node_of(client, *redirected[position])
                elif reads_replicas(client):
                    [slot] = slots_of([request.key])
                    node = replica_in(slot_owners(client)[slot])
                else:
                    node = client.get_node_from_key(key_bytes(request.key))
                name = f"{node.name} asking" if asking else node.name
            except ATTEMPT_ERRORS as error:
                server_request = ServerRequest(group.shard, "cluster")
                out[position] = server_request.failure(request, error, sent=False)
                out.failed = True
                continue
            if name not in attempts:
                attempts[name] = attempt_on(node, asking)
            found.setdefault(name, []).append(position)
        for name, positions in found.items():
            attempts[name].server_request.positions = positions
        return list(attempts.values())

    def _settle(
        self,
        attempt: Attempt,
        outcome: _Outcome,
        uncertain: set[int],
        out: Replies,
    ) -> list[int]:
        """Put an attempt's replies into ``out``, and return the positions to send again.

        ``uncertain`` gets the positions that are sent again although they may have been executed.
        """
        server_request, retry = attempt.server_request, outcome.retry
        again: list[int] = []
        if isinstance(attempt.error, ClosedError):
            raise attempt.error
        if attempt.error is not None:
            # Of several, some may have been executed before or after this reply.
            if (
                (not attempt.sent or len(server_request.positions) == 1)
                and is_unready(attempt.error)
                and outcome.waited <= patience_with(attempt.client)
            ):
                outcome.unready.add(server_request.shard.component)
                return list(server_request.positions)
            # Once, as the request itself may break the connection; and never after a timeout.
            repeats = retry == 0 and not attempt.timed_out
            pause = policy_of(attempt.client).pause_before_retry(retry + 1, attempt.error)
            # The connection itself has retried connecting.
            unsent = isinstance(attempt.error, MaxConnectionsError) and pause is not None
            moved = not attempt.sent and attempt.node is not None  # perhaps, to another node
            for position, request in zip(
                server_request.positions, server_request.requests, strict=True
            ):
                repeatable = attempt.sent and may_repeat(request)
                if (
                    (repeats and (moved or repeatable))
                    or unsent
                    or (repeatable and pause is not None)
                ):
                    outcome.pause = max(outcome.pause, pause or 0.0)
                    again.append(position)
                    if attempt.sent:
                        uncertain.add(position)
                else:
                    sent = attempt.sent or position in uncertain
                    out[position] = server_request.failure(request, attempt.error, sent)
                    out.failed = True
            if attempt.node is not None:
                outcome.stale[attempt.client] = None
            return again
        if handlers:
            server_request.tell_loaded()
        server_request.loaded.update(server_request.brought)
        if server_request.runs:
            attempt.replies = split(attempt.replies, server_request.runs)
        if not attempt.refused and len(attempt.replies) == len(
            server_request.positions
        ):  # no transactions
            for position, reply in zip(server_request.positions, attempt.replies, strict=True):
                out[position] = reply
            return again
        last = retry >= MAX_ATTEMPTS - 1
        for position, request, reply in server_request.unpack(attempt.replies):
            if type(request) is Command and not isinstance(reply, Exception):
                out[position] = reply
                continue
            unblocked = server_request.block is not None and is_unblocked(reply)
            if (unblocked or is_unready(reply)) and outcome.waited <= patience_with(attempt.client):
                outcome.unready.add(server_request.shard.component)
                again.append(position)
                continue
            if isinstance(reply, Exception) and not last:
                if lacks_script(request, reply):
                    server_request.loaded.clear()
                    again.append(position)
                    continue
                if attempt.node is not None and isinstance(reply, _MOVING):
                    if isinstance(reply, MovedError | ClusterDownError):
                        outcome.stale[attempt.client] = None
                    elif isinstance(reply, AskError):
                        outcome.redirected[position] = reply.node_addr
                    again.append(position)
                    continue
            out[position], failed = settle(server_request, request, reply)
            out.failed = out.failed or failed
        return again


def _fail(
    attempts: Iterable[Attempt],
    positions: set[int],
    error: Exception,
    uncertain: set[int],
    out: Replies,
) -> None:
    """Put failures into ``out`` for requests that could not be sent again."""
    for attempt in attempts:
        server_request = attempt.server_request
        for position, request in zip(
            server_request.positions, server_request.requests, strict=True
        ):
            if position in positions:
                out[position] = server_request.failure(request, error, position in uncertain)
    out.failed = True


def _nodes_of(
    client: Any, batch: Batch, positions: Sequence[int]
) -> list[tuple[Any, list[int]]] | None:
    """Return a cluster's nodes, each with its positions; None if not known.

    Placing all keys at once takes a fifth of the time of asking the client for each.
    """
    try:
        nodes = slot_owners(client)
        if isinstance(batch, Columns | PlainCommands):
            keys = [batch.keys[position] for position in positions]
        else:
            keys = [batch[position].key for position in positions]
        pick = replica_in if reads_replicas(client) else itemgetter(0)
        owners = [pick(nodes[slot]) for slot in slots_of(keys)]
    except (AttributeError, LookupError):
        return None
    by_name: dict[str, tuple[Any, list[int]]] = {}
    for position, node in zip(positions, owners, strict=True):
        try:
            by_name[node.name][1].append(position)
        except KeyError:
            by_name[node.name] = node, [position]
    return list(by_name.values())


__all__ = [
    "Attempt",
    "Dispatcher",
    "Need",
    "NeedClients",
    "NeedComponents",
    "NeedEntries",
    "NeedRefresh",
]
