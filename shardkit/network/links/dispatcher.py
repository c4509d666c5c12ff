"""Dispatching a batch, written once for the blocking and the awaiting link.

::

    batch ─► components ─► groups by shard ─► endpoints ─► attempts, one a server ─► replies
               ▲                                                               │
               └── retry in order: missing scripts, moved slots, lost     ◄────┘
                   idempotent, servers that load, or are replicas now

`Dispatcher.dispatch` is a generator without I/O: it yields calls of the link for what it needs
(components, endpoints, attempts to carry out, a pause), and is sent what they return. A request is
sent again only if it was certainly not executed, only reads, or is marked idempotent.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, starmap, zip_longest
from math import inf
from typing import Any, NamedTuple

from redis.exceptions import (
    AskError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MaxConnectionsError,
    RedisClusterException,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from shardkit.config.component import Component
from shardkit.errors import ClosedError, CrossShardError, ShardFailure, ShardKitError
from shardkit.events import CommandsRetried, ScriptLoaded, emit, handlers
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.endpoints import Endpoint
from shardkit.network.connections.policy import unreached
from shardkit.network.connections.redis_private import (
    is_closed,
    is_replica,
    is_script_missing,
    is_unblocked,
    node_of,
    reads_replicas,
    replica_in,
    slot_owners,
)
from shardkit.network.links import order
from shardkit.network.links.grouping import (
    components_in,
    components_of,
    cross_shard_error,
    group_by_shard,
    place,
    require_together,
    separated,
    was_split_lately,
)
from shardkit.network.links.server_request import (
    ATTEMPT_ERRORS,
    MOVING,
    Attempt,
    details_of,
    may_repeat,
    only_reads,
    patience_with,
    pause_before,
    refused_by_split,
)
from shardkit.operations.commands import (
    Batch,
    Columns,
    Command,
    Replies,
    Shard,
    Transaction,
    coalesced,
)
from shardkit.operations.deadlines import earliest, within
from shardkit.operations.interruptions import tolerated
from shardkit.operations.kept import kept_with
from shardkit.recent import MOST
from shardkit.routing.command_keys import has_plain_form
from shardkit.routing.keys import key_bytes
from shardkit.routing.placement import SLOTS, slot_of, slots_of

# Answers of a cluster's replica to a read that its master may answer.
_REPLICA_REFUSES = (ClusterDownError, MasterDownError)
# For retries after NOSCRIPT, a moved slot or, of an idempotent request, a lost connection. Servers
# that are not ready are retried for as long as their entry's timeout.
MAX_ATTEMPTS = 5
_ASKED_EVERY = 0.5  # seconds


def turns_of(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """Group attempts that need a connection each, so that a server has one at a time."""
    by_server: defaultdict[Any, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_server[attempt.owner, getattr(attempt.node, "name", "")].append(attempt)
    return [[part for part in turn if part] for turn in zip_longest(*by_server.values())]


class _OrderScope(NamedTuple):
    """Whose requests keep their order: a shard's, or those of a slot of a cluster."""

    shard: Shard
    address: str
    slot: int | None

    @classmethod
    def of(cls, endpoint: Endpoint, request: Command | Transaction) -> _OrderScope:
        slot = slot_of(request.key) if endpoint.database is None else None
        return cls(endpoint.shard, endpoint.address, slot)


@dataclass(slots=True, eq=False)
class _Dispatched:
    """A batch that is dispatched, and its replies so far."""

    batch: Batch
    out: Replies
    # What was not executed, or has to be once more.
    pending: dict[int, _OrderScope] = field(default_factory=dict)
    # Nodes by position; None for the master of the slot, as its replica cannot answer.
    redirected: dict[int, tuple[str, int] | None] = field(default_factory=dict)
    # What is sent again although it may have been executed.
    uncertain: set[int] = field(default_factory=set)

    def fail(self, scopes: Mapping[int, _OrderScope], error: Exception) -> None:
        """Have requests fail that were not sent again."""
        for position, scope in scopes.items():
            sent, details = position in self.uncertain, details_of(self.batch[position])
            failure = unreached(scope.shard, scope.address, error, "", sent=sent, **details)
            self.out[position] = failure
        self.out.failed = True

    def refuse_separated(self, todo: Sequence[int], component: Component) -> Sequence[int]:
        """Refuse requests whose keys a split has separated, and those behind on their shards."""
        kept, closed, first = [], set[Shard](), ""
        for position in todo:
            request = self.batch[position]
            shards = separated(request, component)
            if not shards and component.name in components_of((request.to,)):
                shards = [place(request.to, request.key, {component.name: component})]
            if len(shards) > 1 or closed.intersection(shards):
                if len(shards) > 1:
                    why = cross_shard_error(request.name, shards)
                    first = first or why.message
                else:
                    text = f"{request.name} was to follow what was refused: {first}"
                    why = CrossShardError(text, "repeat it")
                closed.update(shards)
                ran = position in self.uncertain
                self.out[position] = refused_by_split(request, why, shards[0], ran)
                self.out.failed = True
            else:
                kept.append(position)
        return kept

    def end_round(self, attempts: Iterable[Attempt], outcome: _Outcome) -> None:
        """Note what must be sent, again or for the first time, so that order is kept."""
        refused: defaultdict[_OrderScope, list[int]] = defaultdict(list)
        executed: defaultdict[_OrderScope, list[int]] = defaultdict(list)
        places: dict[int, _OrderScope] = {}
        batch, out, pending = self.batch, self.out, self.pending
        for attempt in attempts:
            for part in attempt.parts:
                for position in part.positions:
                    places[position] = _OrderScope.of(part.endpoints[0], batch[position])
        for position in outcome.failures:
            refused[places[position]].append(position)
        for position in set(places).difference(outcome.failures):
            if places[position] in refused:
                executed[places[position]].append(position)
        left = {n: scope for n, scope in pending.items() if n not in places and out[n] is None}
        for scope, positions in refused.items():
            repeated, failed = order.again(batch, positions, executed[scope])
            for position in failed:
                out[position], out.failed = outcome.failures[position](), True
            for position in repeated:
                out[position] = None
                left[position] = scope
        self.pending = left


@dataclass(slots=True)
class _Outcome:
    """What the attempts of one round mean for the next."""

    retry: int  # the round's number
    tries: int  # the number of rounds that did not only wait
    waited: float  # seconds of pauses before the next round
    redirected: dict[int, tuple[str, int] | None] = field(default_factory=dict)
    stale: dict[Any, None] = field(default_factory=dict)  # clusters' that must refresh their slots
    unready: set[str] = field(default_factory=set)  # components whose servers are not ready
    # What is sent again: how each fails if it cannot be, and which wait for their server.
    failures: dict[int, Callable[[], ShardFailure]] = field(default_factory=dict)
    stalled: set[int] = field(default_factory=set)
    pause: float = 0.0  # seconds before the next round, by the entries' ``retry``


class Dispatcher:
    """The part of a link that dispatches batches, and remembers which scripts servers have."""

    # Of the link.
    pause: Callable[[float], Any]
    component: Callable[..., Any]
    _endpoints: Callable[..., Mapping[Any, Endpoint]]
    _initialize: Callable[[Any], Any]
    _learn: Callable[[Any], Any]
    _exchange: Callable[[list[Attempt]], Any]

    def loaded(self, owner: Any, node: str = "") -> set[str]:
        """Return the SHA-1s of the scripts that a server is known to have.

        ``owner`` is a pool, or the client of a cluster with a ``node``. A restarted server may lack
        them: then it answers NOSCRIPT.
        """
        scripts: set[str] = kept_with(owner, self).setdefault(node, set())
        return scripts

    def dispatch(
        self, batch: Batch, clients: Any, attempt: Attempt | None = None
    ) -> Steps[Replies]:
        """Send a batch and return its replies in order, failures among them.

        ``attempt`` is the first attempt at the whole batch, if the link has already made it.
        """
        call = _Dispatched(batch, Replies([None] * len(batch)))
        todo: Sequence[int] = range(len(batch))
        attempts = []
        if attempt is not None:
            attempt.loaded = self.loaded(attempt.owner, getattr(attempt.node, "name", ""))
            attempts = [attempt]
        waited = asked = 0.0
        retry = -1  # rounds since the last one in which something was executed
        tries = 0  # of these, those that did not only wait for a server
        while True:
            retry += 1
            pause = max(pause_before(retry), asked)
            if pause:  # a cluster is moving slots or electing a master, or a server loads
                yield partial(self.pause, pause)
                waited += pause
            deadline = earliest(None)
            if retry and deadline is not None and deadline.left() <= 0:
                call.fail(call.pending, deadline.passed())
                break
            if retry and handlers:
                emit(CommandsRetried(len(todo), retry))
            if retry or not attempts:
                try:
                    # A slot on the move refuses joined commands (TRYAGAIN), not single ones.
                    joins = coalesced(batch) and not retry
                    attempts = yield from self._attempt(clients, call, todo, joins)
                except (ShardKitError, *ATTEMPT_ERRORS) as error:
                    if not call.pending:  # nothing was sent: the whole batch can be refused
                        raise
                    call.fail(call.pending, error)
                    break
            outcome = _Outcome(retry, tries, waited + pause_before(retry + 1))
            for attempt in attempts:
                try:
                    self._settle_all(attempt, outcome, call)
                except ATTEMPT_ERRORS as error:
                    why = InvalidResponse(f"the replies do not match the requests: {error!r}")
                    why.__cause__ = error
                    attempt.error, attempt.sent, attempt.replies = why, True, []
                    self._settle_all(attempt, _Outcome(MAX_ATTEMPTS, MAX_ATTEMPTS, inf), call)
            for client in outcome.stale:
                yield from self._learned(client)
            for name in outcome.unready:
                with suppress(ShardKitError):  # the next attempt tells
                    yield partial(self.component, name, again=True)
            before, asked = len(call.pending), outcome.pause
            if outcome.failures or call.pending:
                call.end_round(attempts, outcome)
            if not (pending := call.pending):
                break
            tries += not outcome.stalled.issuperset(outcome.failures)
            if retry and len(pending) < before:
                retry = tries = 0
            sent = set(todo)
            others = {n: where for n, where in call.redirected.items() if n not in sent}
            call.redirected = others | outcome.redirected
            stalled = {pending[n] for n in outcome.stalled if n in pending}
            todo = order.sent_in_pieces(pending, call.redirected, stalled)
        return call.out

    def _learned(self, client: Any) -> Steps[None]:
        with tolerated(*ATTEMPT_ERRORS), within(earliest(client.policy.deadline)):
            yield partial(self._learn, client)  # if not, the next attempt tells

    def _attempt(
        self, clients: Any, call: _Dispatched, todo: Sequence[int], joins: bool
    ) -> Steps[list[Attempt]]:
        """Send the requests at the positions ``todo`` once, and return the attempts.

        Those that must wait for others become pending.
        """
        batch, pending = call.batch, call.pending
        components: dict[str, Component] = {}
        for name in components_in(batch, todo):
            component = components[name] = yield partial(self.component, name)
            if component.splits_tags:
                require_together(batch, component)
            elif was_split_lately(component) and (type(batch) is not Columns or not batch.name):
                todo = call.refuse_separated(todo, component)
        groups = group_by_shard(batch, todo, components)
        attempts: list[Attempt] = []
        lanes: defaultdict[Any, list[tuple[Endpoint, list[int]]]] = defaultdict(list)
        common: dict[str, Any] = {"rows": groups.rows, "joins": joins}
        scripts = groups.rows is None and type(batch) is not Columns  # perhaps

        def place(
            name: str, by_number: Mapping[int | None, list[int]], block: float | None = None
        ) -> Steps[None]:
            component = components[name]
            endpoints = self._endpoints(clients, component)
            for number, positions in by_number.items():
                try:
                    endpoint = endpoints[number]
                    if endpoint.lane is None:
                        yield partial(self._initialize, endpoint.owner)
                except (ShardFailure, RedisError, RedisClusterException, OSError) as error:
                    why, shard = getattr(error, "error", None) or error, Shard(name, number)
                    scope = _OrderScope(shard, component.entry_of(shard).address, None)
                    call.fail(dict.fromkeys(positions, scope), why)
                    continue
                if endpoint.lane is None:
                    if not pending and self._lacks_slots(endpoint, batch, positions):
                        yield from self._learned(endpoint.owner)
                    delayed = () if block is not None else order.waiting(batch, positions)
                    for position in delayed:
                        pending[position] = _OrderScope.of(endpoint, batch[position])
                    if delayed:
                        positions = [n for n in positions if n not in delayed]
                    more = common if block is None else {"block": block}
                    attempts.extend(self._attempts_on_nodes(call, endpoint, positions, **more))
                elif block is None:
                    lanes[endpoint.lane].append((endpoint, positions))
                else:
                    loaded = self.loaded(endpoint.owner)
                    attempts.append(
                        Attempt.of_shard(endpoint, positions, batch, loaded=loaded, block=block)
                    )

        for name, by_number in groups.by_shard.items():
            yield from place(name, by_number)
        for shards in lanes.values():
            endpoints, lists = map(list, zip(*shards, strict=True))
            positions = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
            starts = [0, *accumulate(map(len, lists))]
            loaded = self.loaded(endpoints[0].owner) if scripts else set()
            attempts.append(Attempt(endpoints, positions, starts, batch, loaded=loaded, **common))
        for shard, positions, block in groups.alone:
            yield from place(shard.component, {shard.number: positions}, block)
        for attempt in attempts:
            if scripts and attempt.loaded:
                attempt.texts = order.as_text(attempt.requests, attempt.loaded)
            if handlers:
                attempt.events = attempt.tell()
        attempts = yield partial(self._exchange, attempts)
        for attempt in attempts if handlers else ():
            attempt.tell_end()
        return attempts

    def _attempts_on_nodes(
        self, call: _Dispatched, endpoint: Endpoint, positions: Sequence[int], **common: Any
    ) -> list[Attempt]:
        """Return the attempts on a cluster: one for each node, and one for what asks it."""
        batch, redirected, client = call.batch, call.redirected, endpoint.access.client
        owners, reads = slot_owners(client), reads_replicas(client)
        if isinstance(batch, Columns):
            keys = list(map(batch.keys.__getitem__, positions))
        else:
            keys = [batch[position].key for position in positions]
        by_node: dict[tuple[str, bool], tuple[Any, list[int]]] = {}
        for position, slot in zip(positions, slots_of(keys), strict=True):
            where = redirected.get(position)
            try:
                if where is not None:
                    node = node_of(client, *where)
                elif slot not in owners:  # it says why
                    node = client.get_node_from_key(key_bytes(batch[position].key))
                elif reads and position not in redirected and only_reads(batch[position]):
                    node = replica_in(owners[slot], client.policy.near, client.policy.stays)
                else:
                    node = owners[slot][0]
            except ATTEMPT_ERRORS as error:
                scope = _OrderScope(endpoint.shard, "cluster", slot)
                call.fail({position: scope}, error)
                continue
            try:
                by_node[node.name, where is not None][1].append(position)
            except KeyError:
                by_node[node.name, where is not None] = node, [position]
        attempts = []
        for (name, asking), (node, own) in by_node.items():
            loaded = self.loaded(client, name)
            common |= {"node": node, "loaded": loaded, "asking": asking}
            attempts.append(Attempt.of_shard(endpoint, own, batch, **common))
        return attempts

    def _lacks_slots(self, endpoint: Endpoint, batch: Batch, positions: Sequence[int]) -> bool:
        """Whether a cluster's client must ask for the node of a slot: at most twice a second."""
        known = slot_owners(endpoint.owner)
        if len(known) in (0, SLOTS) or all(slot_of(batch[n].key) in known for n in positions):
            return False
        kept, now = kept_with(endpoint.owner, self), time.monotonic()
        if now < kept.get("asked", -inf) + _ASKED_EVERY:
            return False
        kept["asked"] = now
        return True

    def _settle_all(self, attempt: Attempt, outcome: _Outcome, call: _Dispatched) -> None:
        """Note the replies to an attempt, and what must be sent again."""
        if attempt.error is None:
            for sha in attempt.brought.keys() - attempt.loaded if handlers else ():
                emit(ScriptLoaded(str(attempt.shard), attempt.address, attempt.brought[sha]))
            if len(attempt.loaded) >= MOST:  # they are sent as text once more
                attempt.loaded.clear()
            attempt.loaded.update(attempt.brought)
            if not attempt.refused:
                replies, out = attempt.values(attempt.replies), call.out
                if len(replies) == len(attempt.positions):  # no transactions
                    for position, reply in zip(attempt.positions, replies, strict=True):
                        out[position] = reply
                    return
        for part in attempt.by_shard():
            self._settle(part, outcome, call)

    def _settle(self, attempt: Attempt, outcome: _Outcome, call: _Dispatched) -> None:
        """Note the replies of one shard, but of what must be sent again.

        If they are lost, so may be all of its requests.
        """
        out, uncertain = call.out, call.uncertain
        lost, owner, node = attempt.error, attempt.owner, attempt.node
        if isinstance(lost, ClosedError):
            raise lost
        is_sent = lost is not None and attempt.sent
        of_replica = node is not None and is_replica(node)
        is_patient = outcome.waited <= patience_with(owner)
        policy = attempt.endpoints[0].policy
        pause = None if lost is None else policy.pause_before_retry(outcome.retry + 1, lost)
        for position, request, reply in attempt.unpack():
            if not isinstance(reply, Exception):
                out[position] = reply
                if isinstance(request, Transaction) and reply is not None:
                    for n, (command, inner) in enumerate(zip(request.commands, reply, strict=True)):
                        if isinstance(inner, Exception):
                            reply[n], out.failed = attempt.refusal(command, inner), True
                continue
            ran = is_sent or position in uncertain
            failing = partial(
                attempt.refusal if lost is None else attempt.failure, request, reply, ran
            )
            # Of several, some may have been executed before or after a reply that was lost.
            refused = policy.waits_after(reply) and not (is_sent and len(attempt.positions) > 1)
            refused = refused or (attempt.block is not None and is_unblocked(reply))
            # A split may have left the cluster, and refuses what its clients have not read of yet.
            left = node is not None and is_closed(reply)
            refused = refused or (left and (outcome.retry == 0 or getattr(owner, "held", False)))
            moving = node is not None and isinstance(reply, MOVING)
            waits = refused or (moving and isinstance(reply, TryAgainError))
            lacks = is_script_missing(reply) and getattr(request, "script", None) is not None
            replica_refuses = refused or isinstance(reply, _REPLICA_REFUSES)
            if of_replica and (replica_refuses or (lost and only_reads(request))):
                outcome.redirected[position] = None
            elif waits and is_patient:
                if refused:
                    outcome.unready.add(attempt.shard.component)
                outcome.stalled.add(position)
            elif (moving or lacks) and not (waits or outcome.tries >= MAX_ATTEMPTS - 1):
                if lacks:
                    attempt.loaded.clear()
                elif isinstance(reply, AskError):
                    outcome.redirected[position] = reply.node_addr
                else:
                    outcome.stale[owner] = None
            elif lost is None or not self._repeats(attempt, request, lost, outcome, pause):
                out[position], out.failed = failing(), True
                continue
            outcome.failures[position] = failing
            if lost is not None and position not in outcome.stalled:
                outcome.pause = max(outcome.pause, pause or 0.0)
                if is_sent:
                    uncertain.add(position)
        if lost is not None and node is not None and outcome.stalled.isdisjoint(attempt.positions):
            outcome.stale[owner] = None

    def _repeats(
        self,
        attempt: Attempt,
        request: Command | Transaction,
        error: Exception,
        outcome: _Outcome,
        pause: float | None,
    ) -> bool:
        """Whether a request without a reply is sent again: not executed, or it may be repeated."""
        moved = not attempt.sent and attempt.node is not None  # perhaps, to another node
        repeatable = attempt.sent and may_repeat(request)
        if pause is not None and (repeatable or isinstance(error, MaxConnectionsError)):
            return True  # the connection itself has retried connecting
        # Once, as the request itself may break the connection; and never after a timeout.
        again = outcome.retry == 0 and not isinstance(error, TimeoutError)
        return again and (moved or repeatable)


def node_of_short(client: Any, batch: Batch) -> Any:
    """Return the node of a cluster to which a few commands go; None if that is not so easy.

    They are one, or have one key each, so that a slot on the move refuses none of them alone.
    """
    if handlers or reads_replicas(client):
        return None
    try:
        owners = slot_owners(client)
        if len(batch) == 1:
            return owners[slot_of(batch[0].key)][0]
        if type(batch) is not Columns or not all(starmap(has_plain_form, batch.kinds())):
            return None
        nodes = [owners[slot][0] for slot in slots_of(batch.keys)]
        names = {node.name for node in nodes}  # redis-py 6 cannot hash nodes
    except LookupError:
        return None
    return nodes[0] if len(names) == 1 else None
