"""The part of a batch that goes to one server: packed, and its replies unpacked. No I/O.

::

    batch      [SADD a, SADD b, SADD c, SADD d]
    requests   shard 0: [SADD a, SADD c] at positions 0, 2     shard 1: [SADD b, SADD d] at 1, 3
    chunks     each server's requests packed, cut every 256 KiB or 1,000 requests

`may_repeat`, `pause_before` and `patience_with` are the rules for retries. A script
is sent by its SHA-1. If the server may lack it, the first call sends the text, which it caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, count, pairwise, repeat
from operator import attrgetter, itemgetter, sub
from typing import Any

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from shardkit.errors import (
    CommandRefused,
    InvalidArgumentError,
    RoutingError,
    ShardFailure,
    ShardUnavailable,
    few,
    shortened,
)
from shardkit.events import CommandsSent, sent, settled
from shardkit.network.connections.connector import SOCKET_TIMEOUT
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.effects import (
    ALONE,
    READS,
    STATE,
    WATCHES,
    WHOLE,
    WRITES,
    effects,
    effects_of_all,
    known,
)
from shardkit.network.connections.endpoints import Endpoint
from shardkit.network.connections.framing import (
    ADDED,
    CONFIRMED,
    EXEC,
    MULTI,
    SELECTED,
    WRAPPED,
    form_of,
    framed,
    refusals,
    unframed,
)
from shardkit.network.connections.policy import policy_of, unreached
from shardkit.network.connections.redis_private import is_script_missing
from shardkit.network.links import resp
from shardkit.network.links.resp import (
    Arguments,
    Chunk,
    Joined,
    JoinedRun,
    columns_of,
    join,
    pack,
    pack_all,
    pack_command,
    pack_rows,
    split,
)
from shardkit.operations.commands import (
    Argument,
    Batch,
    Columns,
    Command,
    Reply,
    Shard,
    Transaction,
)
from shardkit.operations.deadlines import Deadline, earliest
from shardkit.operations.server_errors import meaning
from shardkit.routing.command_keys import key_positions, reads_only
from shardkit.routing.keys import key_bytes
from shardkit.routing.placement import slots_of

LONGEST_PAUSE = 0.5
_REFUSED = STATE | WATCHES  # in a batch

_ASKING = pack_command(("ASKING",))
# They change nothing either, but a replica answers differently.
_OF_ONE_SERVER = {"SCAN", "HSCAN", "SSCAN", "ZSCAN", "TIME", "INFO"}
# Commands for a database, on average, from which joining them takes less time than it saves.
_LEAST_JOINED = 1.5
_NAME = itemgetter(0)  # of a row
_ARGS, _SCRIPT = itemgetter(2), itemgetter(3)  # of a Command; many times faster than its names
_DATABASE = attrgetter("database")
# A cluster node's answers while slots move or masters are elected; nothing was executed.
MOVING = (AskError, ClusterDownError, MovedError, TryAgainError)
ATTEMPT_ERRORS = (
    *(RedisError, RedisClusterException, OSError, ArithmeticError, AttributeError),
    *(LookupError, MemoryError, RuntimeError, TypeError, ValueError),
)
"""What redis-py, hiredis, sockets and TLS raise; only the server's requests fail then.

Not every Exception, because a signal handler of the caller's may raise others.
"""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to send requests of a batch to a server, and its outcome.

    They are for a shard, or for several that are its databases.

    ::

        SELECT 7   commands of unique:7   SELECT 11   commands of unique:11      one write
    """

    endpoints: list[Endpoint]
    positions: Sequence[int]  # in the batch: those of the first endpoint, of the second, …
    starts: list[int]  # where each endpoint's start there, and the end
    batch: Batch = ()
    loaded: set[str] = field(default_factory=set)  # SHA-1s of scripts that the server has
    texts: Set[str] = frozenset()  # SHA-1s of scripts to send as text in any case
    asking: bool = False  # whether the requests follow an ASK redirection
    block: float | None = None  # seconds that the (only) request may block
    rows: Sequence[Arguments] | None = None  # name and arguments of each command of the batch
    joins: bool = False  # whether uniform neighbours become one command (see `resp`)
    node: Any = None  # of a cluster, where joined commands need keys of one slot
    brought: dict[str, str] = field(default_factory=dict, init=False)  # scripts sent as text
    # After packing: how to split joined replies, by database; of several databases, the replies up
    # to each one's end, and the forms, see `framing`; of a single one, the commands' effects.
    runs: list[list[JoinedRun]] = field(default_factory=list, init=False)
    ends: list[int] = field(default_factory=list, init=False)
    forms: list[int] = field(default_factory=list, init=False)
    does: int = field(default=WRITES, init=False)
    # The outcome. Replies of several databases include SELECT's; with an error, the others have
    # not come.
    replies: Sequence[Reply] = field(default=(), init=False)
    refused: bool = field(default=False, init=False)  # whether an error may be, or be in, a reply
    error: Exception | None = field(default=None, init=False)
    sent: bool = field(default=False, init=False)  # whether the server may have received something
    events: list[CommandsSent] = field(default_factory=list, init=False)  # for each shard
    # Whether it is sent behind a confirmed SELECT, or must be.
    confirms: bool = field(default=False, init=False)
    # By `time.perf_counter`, if there are event handlers: when the replies had come, and when it
    # was written to a shared connection.
    ended: float = field(default=0.0, init=False)
    written: float = field(default=0.0, init=False)

    @classmethod
    def of_shard(
        cls, endpoint: Endpoint, positions: Sequence[int], batch: Batch, **more: Any
    ) -> Attempt:
        """Return the attempt for one shard."""
        return cls([endpoint], positions, [0, len(positions)], batch, **more)

    @classmethod
    def of_all(cls, batch: Batch, endpoint: Endpoint, node: Any = None) -> Attempt:
        """Return the attempt for a whole batch."""
        return cls.of_shard(endpoint, range(len(batch)), batch, node=node)

    @property
    def shard(self) -> Shard:
        """The shard; the first of several."""
        return self.endpoints[0].shard

    @property
    def address(self) -> str:
        """The server, for messages."""
        return f"cluster node {self.node.name}" if self.node else self.endpoints[0].address

    @property
    def databases(self) -> list[ClientDatabase]:
        """The databases of the endpoints."""
        return list(map(_DATABASE, self.endpoints))

    def chunks(self) -> list[Chunk]:
        """Pack the requests; those of several databases with SELECT in front of each one's."""
        self.runs = []
        if len(self.endpoints) > 1:
            return self._chunks_of_several()
        self.does = self._effects()
        together = self._joined()
        if together is not None:
            chunks, runs = together.chunks()
            self.runs = [runs]
            return chunks
        rows = self._rows()
        if rows is not None:
            return pack_all(rows)
        packed = list(map(self._pack, self.requests))
        return join([data for data, _ in packed], [count for _, count in packed])

    def _rows(self) -> Sequence[Arguments] | None:
        """Return the names and arguments of the requests, if that is all of them."""
        if self.asking:
            return None
        columns = self._columns()
        if columns is not None:
            return columns.rows
        if self.rows is not None:
            return self._at(self.rows)
        requests = self.requests
        if set(map(type, requests)) != {Command} or set(map(_SCRIPT, requests)) != {None}:
            return None
        return list(map(_ARGS, requests))

    def _columns(self) -> Columns | None:
        """Return the requests by column, if the batch has them so."""
        batch = self.batch
        if type(batch) is not Columns or not batch.name:
            return None
        return Columns(batch.to, batch.name, *map(self._at, (batch.keys, *batch.more)))

    def _joined(self) -> Joined | None:
        """Return the requests as those of one joined command, if they may become one."""
        least = max(2, _LEAST_JOINED * len(self.endpoints))
        if not self.joins or self.asking or len(self.positions) < least:
            return None
        columns = self._columns()
        if columns is None and (rows := self._rows()) is not None:
            columns = columns_of(rows)
        if columns is None or (self.node and len(set(slots_of(columns.keys))) > 1):
            return None
        return Joined.of(columns)

    def _effects(self) -> int:
        """Return what the requests do; raises InvalidArgumentError as `effects_of` does."""
        batch = self.batch
        rows = [(batch.name,)] if isinstance(batch, Columns) and batch.name else self._rows()
        if rows is not None:
            return _harmless(effects_of_all(rows), rows[0])
        does = 0
        for request in self.requests:
            does |= effects_of(request)
        return does | ALONE if does & WHOLE and len(self.positions) > 1 else does

    def _chunks_of_several(self) -> list[Chunk]:
        """Pack the requests, without those of databases that need a confirmed SELECT."""
        may_multi = self.endpoints[0].access.way.may_multi
        selects = [endpoint.database.select for endpoint in self.endpoints]  # type: ignore[union-attr]
        self.ends, self.forms = [], []
        packed = self._packed_at_once(selects, may_multi)
        if packed is not None:
            return packed
        chunks_of_all: list[Chunk] = []
        for n, select in enumerate(selects):
            part = self.part(n)
            part.brought = dict(self.brought)
            chunks = part.chunks()
            (first, replies), *others = chunks
            count = sum(chunk.replies for chunk in chunks)
            form = form_of(part.does, len(first), count, may_multi, bool(others))
            self.forms.append(form)
            if self.joins:
                self.runs.append(part.runs[0] if part.runs else [-count])
            if form == CONFIRMED:
                chunks, count = [], 0
            else:
                self.brought |= part.brought
                count += ADDED[form]
                chunks = [Chunk(framed(form, select, first), replies + ADDED[form]), *others]
            chunks_of_all += chunks
            self.ends.append(count + (self.ends[-1] if self.ends else 0))
        counts = [chunk.replies for chunk in chunks_of_all]
        return join([chunk.data for chunk in chunks_of_all], counts) if counts else []

    def _packed_at_once(self, selects: Sequence[bytes], may_multi: bool) -> list[Chunk] | None:
        """Pack commands of one name for several databases; None if some database's are too many."""
        starts = self.starts
        numbers = counts = list(map(sub, starts[1:], starts))
        together = self._joined()
        if max(numbers) > (resp.CHUNK_REQUESTS if together is None else resp.CHUNK_JOINED):
            return None
        if together is not None:
            counts, packed = [1] * len(selects), together.packed(starts)
        else:
            rows = self._rows()
            if rows is None or list(map(_NAME, rows)).count(rows[0][0]) < len(rows):
                return None
            packed = pack_rows(rows)
            packed = [b"".join(packed[a:b]) for a, b in pairwise(starts)]
        largest = max(map(len, packed))
        form = form_of(self._effects(), largest, max(counts), may_multi)
        if form == CONFIRMED or largest > resp.CHUNK_BYTES:
            return None
        self.forms = [form] * len(selects)
        self.runs = [] if together is None else [[number] for number in numbers]
        counts = [count + ADDED[form] for count in counts]
        self.ends = list(accumulate(counts))
        packed = list(map(framed, repeat(form), selects, packed))
        return join(packed, counts)  # whole transactions: the sender may be cancelled

    @property
    def owner(self) -> Any:
        """The pool of the way to connect, or the cluster's client."""
        return self.endpoints[0].owner

    @property
    def deadline(self) -> Deadline | None:
        """The caller's deadline; or the entry's, plus the time that it may block."""
        seconds = self.endpoints[0].access.policy.deadline
        block = self.block
        if seconds is not None and block is not None:
            seconds = seconds + block if block else None
        return earliest(seconds)

    @property
    def first_refusal(self) -> Exception | None:
        """The first error among its replies, unless the command is sent again."""
        for answer in self.replies if self.refused else ():
            for reply in answer if type(answer) is list else (answer,):
                sent_again = isinstance(reply, MOVING) or is_script_missing(reply)
                if isinstance(reply, Exception) and not sent_again:
                    return reply
        return None

    @property
    def parts(self) -> list[Attempt]:
        """An attempt for each shard alone, not made yet."""
        if len(self.endpoints) == 1:
            return [self]
        return [self.part(n) for n in range(len(self.endpoints))]

    def by_shard(self) -> list[Attempt]:
        """Return the attempt for each shard alone, with its outcome."""
        if len(self.endpoints) == 1:
            return [self]
        parts, start = self.parts, 0
        for n, (part, end, form) in enumerate(zip(parts, self.ends, self.forms, strict=True)):
            part.refused, part.sent = self.refused, self.sent and form != CONFIRMED
            part.ended, part.written = self.ended, self.written
            part.runs = self.runs[n : n + 1]
            if end > len(self.replies) or (self.error is not None and form == CONFIRMED):
                part.error = self.error
            else:
                part.take(form, list(self.replies[start:end]), self.error)
            start = end
        return parts

    def take(self, form: int, replies: list[Reply], lost: Exception | None) -> None:
        """Take the replies to requests in a form; ``lost`` if the connection was, later."""
        if form == WRAPPED and isinstance(replies[0], NoPermissionError):
            self.endpoints[0].access.way.may_multi = False
        try:
            values = unframed(form, replies)
        except ConnectionError as error:
            self.error = error
            return
        if values is not None:
            self.replies = values
        elif lost is not None:
            self.refuse(next(reply for reply in replies if isinstance(reply, Exception)))
        else:
            self.confirms = True

    def outcomes(self) -> tuple[list[Attempt], list[Attempt]]:
        """Return what has ended, and what must be sent again, alone, behind a confirmed SELECT."""
        if self.confirms and self.error is None:
            again = self.part(0)
            again.confirms = True
            return [], [again]
        if len(self.endpoints) == 1 or not (self.refused or CONFIRMED in self.forms):
            return [self], []
        parts = self.by_shard()
        return [p for p in parts if not p.confirms], [e for e in parts if e.confirms]

    def refuse(self, error: Exception) -> None:
        """Note that the server refuses to select the database: the replies to all requests."""
        self.runs = []
        self.replies = refusals(error, len(self.positions))
        self.refused = True

    def divided(self, opened: Set[ClientDatabase]) -> list[Attempt]:
        """Return attempts at those of its databases that are open, and at each of the others."""
        databases = list(enumerate(self.databases))
        usable = [n for n, database in databases if database in opened]
        others = [self.part(n) for n, database in databases if database not in opened]
        return [self.part(*usable), *others] if usable else others

    def part(self, *numbers: int) -> Attempt:
        """Return an attempt, not made yet, at some of the databases."""
        slices = [slice(self.starts[n], self.starts[n + 1]) for n in numbers]
        part = replace(
            self,
            endpoints=[self.endpoints[n] for n in numbers],
            positions=list(chain.from_iterable(map(self.positions.__getitem__, slices))),
            starts=[0, *accumulate(piece.stop - piece.start for piece in slices)],
        )
        part.events = [self.events[n] for n in numbers] if self.events else []
        return part

    def tell_end(self) -> None:
        """Emit the events of its end."""
        for event in self.events:
            event.group = self.events
        for event, part in zip(self.events, self.by_shard() if self.events else (), strict=True):
            settled(
                event,
                part.error,
                maybe_executed=part.sent,
                refused=part.refused,
                refusal=part.first_refusal,
                ended=part.ended,
                written=part.written,
            )

    def values(self, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies to the requests, given all replies to what was sent."""
        if len(self.endpoints) > 1:
            ends, start = self.ends, 0
            if len(replies) == 2 * len(ends):  # SELECT's, and another
                replies = replies[1::2]
            else:
                values: list[Reply] = []
                for form, end in zip(self.forms, ends, strict=True):
                    if form == SELECTED:  # for certain: they have no error, see `outcomes`
                        values += replies[start + 1 : end]
                    elif (
                        form == WRAPPED
                        and type(executed := replies[end - 1]) is list
                        and len(executed) == end - start - 2
                    ):
                        values += executed[1:]
                    else:  # `by_shard` says whose
                        return []
                    start = end
                replies = values
        return split(replies, list(chain.from_iterable(self.runs))) if self.runs else replies

    def _at(self, values: Sequence[Any]) -> Sequence[Any]:
        positions = self.positions
        if len(positions) == len(values) and len(self.endpoints) == 1:  # in their order
            return values
        # All at once: a third of the time of one by one.
        return itemgetter(*positions, positions[0])(values)[:-1]  # type: ignore[no-any-return]

    @property
    def requests(self) -> Batch:
        """The requests."""
        return self._at(self.batch)

    def tell(self) -> list[CommandsSent]:
        """Emit the event that this is sent, for each shard."""
        return [
            sent(part.shard, part.address, len(part.positions), part._names, part._commands)
            for part in self.parts
        ]

    def _names(self) -> set[str]:
        batch = self.batch
        if isinstance(batch, Columns) and batch.name:
            return {batch.name}
        return {request.name for request in self.requests}

    def _commands(self) -> Iterator[Sequence[Argument]]:
        for request in self.requests:
            if isinstance(request, Transaction):
                yield from (command.args for command in request.commands)
            else:
                yield request.args

    def _pack(self, request: Command | Transaction) -> tuple[bytes, int]:
        asking = _ASKING if self.asking else b""  # before each, as a node forgets it afterwards
        if isinstance(request, Transaction):
            # Scripts as text, because inside MULTI NOSCRIPT would come too late to retry.
            inner = [pack(_with_text(c) if c.script else c.args) for c in request.commands]
            return b"".join([asking, MULTI, *inner, EXEC]), len(inner) + 2 + self.asking
        script, args = request.script, request.args
        trusted = script and script.sha in self.loaded and script.sha not in self.texts
        if script and not trusted and script.sha not in self.brought:
            self.brought[script.sha] = script.name
            args = tuple(_with_text(request))
        return asking + pack(args), 1 + self.asking

    def unpack(self) -> Iterator[tuple[int, Command | Transaction, Reply]]:
        """Yield each request's position and reply; an error is an exception as a value.

        If the replies are lost, that is each one's.
        """
        requests, start, lost = self.requests, 0, self.error
        replies = self.values(self.replies) if lost is None else [lost] * len(requests)
        if len(replies) == len(requests):
            yield from zip(self.positions, requests, replies, strict=True)
            return
        for position, request in zip(self.positions, requests, strict=True):
            start += int(self.asking)
            if isinstance(request, Transaction):
                count = len(request.commands)
                queued = replies[start : start + count + 1]
                executed = replies[start + count + 1]
                start += count + 2
                # EXEC only says that it was aborted; the queued command's reply says why.
                why = next((reply for reply in queued if isinstance(reply, Exception)), executed)
                if why is queued[0] and any(not isinstance(reply, Exception) for reply in queued):
                    why.maybe_executed = True  # type: ignore[union-attr]  # MULTI alone was refused
                yield position, request, executed if isinstance(executed, list) else why
            else:
                yield position, request, replies[start]
                start += 1

    def failure(self, request: Command | Transaction, error: Exception, sent: bool) -> ShardFailure:
        """Return the failure for a request without a reply; ``sent`` if it may have arrived."""
        if_away = self.endpoints[0].policy.if_away
        return unreached(self.shard, self.address, error, if_away, sent=sent, **details_of(request))

    def refusal(
        self, request: Command | Transaction, error: Exception, ran: bool = False
    ) -> ShardFailure:
        """Return the failure for a request to which the server answered with an error.

        ``ran`` if an earlier attempt may have been executed.
        """
        text, remedy = meaning(error) or (str(error), "")
        details = details_of(request)
        details |= {"shard": str(self.shard), "address": self.address, "error": error}
        where = f"{self.shard} ({self.address})"
        if not isinstance(error, ResponseError):
            # The server is up but cannot serve this client (it loads, or wants authentication).
            return ShardUnavailable(
                f"{where} refused {request.name}: {text}",
                remedy or "see `shardkit status`",
                maybe_executed=ran,
                **details,
            )
        if not remedy and not self.node and isinstance(error, AskError | ClusterDownError):
            remedy = "the server is a cluster node: give the component one entry with cluster: true"
        # A script may have written before it failed, but not before the server's own checks.
        is_script = isinstance(request, Command) and request.script is not None
        partly = is_script and not isinstance(error, _CHECKED_FIRST)
        partly = getattr(error, "maybe_executed", partly)  # SELECT's says no, MULTI's yes
        message = f"{where}: {request.name} was refused: {shortened(text)}"
        return CommandRefused(message, remedy, maybe_executed=ran or partly, **details)


def _keys_of(request: Command | Transaction) -> str | bytes:
    """Return the key that a request is about, for messages; of a command with several, all."""
    keys: Sequence[Any] = (request.key,)
    if isinstance(request, Command) and request.script is None:
        with suppress(RoutingError):  # a module's command
            keys = [request.args[at] for at in key_positions(request.args)] or keys
    if len(keys) == 1:
        return keys[0] if isinstance(keys[0], bytes) else str(keys[0])
    names = [key_bytes(key).decode(errors="backslashreplace") for key in keys]
    return f"one of {few(names, ', ')}"


_CHECKED_FIRST = (NoPermissionError, ReadOnlyError, NoScriptError, AskError, ClusterDownError)


def details_of(request: Command | Transaction) -> dict[str, Any]:
    """Return what a failure says of its request."""
    return {"command": request.name, "key": _keys_of(request)}


def refused_by_split(
    request: Command | Transaction, error: RoutingError, shard: Shard, ran: bool
) -> CommandRefused:
    """Return the failure for a request that is not sent, as a split has separated its keys.

    ``ran`` if an earlier attempt may have been executed.
    """
    return CommandRefused(
        f"{shard} was split, and {error.message}",
        error.remedy,
        shard=str(shard),
        error=error,
        maybe_executed=ran,
        **details_of(request),
    )


def _with_text(command: Command) -> Sequence[Argument]:
    """Return a script's call with its text in place of its SHA-1."""
    assert command.script is not None
    return ("EVAL", command.script.text, *command.args[2:])


def pause_before(attempt: int) -> float:
    """Return the seconds to wait before an attempt; none before the first two."""
    return min(0.0025 * 2**attempt, LONGEST_PAUSE) if attempt > 1 else 0.0


def patience_with(owner: Any) -> float:
    """Return the seconds to wait for a server that loads or was replaced: ``socket_timeout``.

    ``owner`` is a client, or a pool.
    """
    pool = getattr(owner, "connection_pool", owner)
    timeout = getattr(pool, "connection_kwargs", {}).get("socket_timeout")
    return SOCKET_TIMEOUT if timeout is None else float(timeout)


def pauses_for(client: Any) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt of a client at a server not ready.

    Raises:
        DeadlineExceeded: the deadline of the entry or the caller would pass in the next pause.
    """
    waited, deadline = 0.0, earliest(policy_of(client).deadline)
    for attempt in count(1):
        pause = pause_before(attempt)
        waited += pause
        if waited > patience_with(client):
            return
        if deadline is not None and deadline.left() <= pause:
            raise deadline.passed()
        yield pause


def effects_of(request: Command | Transaction) -> int:
    """Return what a request does to its connection.

    Raises:
        InvalidArgumentError: it would change it for others.
    """
    if isinstance(request, Transaction):
        for command in request.commands:
            effects_of(command)
        return WRITES | WHOLE
    if request.script is not None:
        return READS if only_reads(request) else WRITES
    return _harmless(effects(request.args), request.args)


def _harmless(does: int, args: Sequence[Argument]) -> int:
    if does & _REFUSED:
        raise InvalidArgumentError(
            f"{args[0]!r} in a batch: it would change a connection that others share",
            "use a private client of the shard: kit.client(name, shard, private=True)",
        )
    return does


def pack_short(
    batch: Batch, loaded: Callable[[Any, str], set[str]], owner: Any, node: Any
) -> tuple[bytes, int] | None:
    """Pack a few plain commands for a server, in one piece; return also what they do.

    Return None if a script may have to be sent as text, an argument cannot be sent, or the
    commands are too large. ``loaded`` returns the SHA-1s of a server's scripts.
    """
    does, data = 0, b""
    command: Any
    try:
        if type(batch) is Columns:
            does, data = effects_of_all(batch.rows), b"".join(map(pack_command, batch.rows))
        else:
            for command in batch:
                _, _, args, script, _, _ = command
                if script is None:
                    by_name = known.get(args[0])
                    does |= effects(args) if by_name is None else by_name
                elif script.sha in loaded(owner, "" if node is None else node.name):
                    does |= effects_of(command)
                else:
                    return None
                data += pack_command(args)
    except (TypeError, UnicodeEncodeError):
        return None
    if does & _REFUSED or (len(batch) > 1 and len(data) > resp.CHUNK_BYTES):
        return None
    return data, does


def may_repeat(request: Command | Transaction) -> bool:
    """Whether a request may be sent again although it may have been executed."""
    return changes_nothing(request) or (isinstance(request, Command) and request.idempotent)


def changes_nothing(request: Command | Transaction) -> bool:
    """Whether the order of a request among others that change nothing is no matter."""
    return only_reads(request) or (
        isinstance(request, Command) and request.args[0] in _OF_ONE_SERVER
    )


def only_reads(request: Command | Transaction) -> bool:
    """Whether a request is a command that changes nothing, so that replicas may answer it.

    By its name, or by the ``--@reads`` of its script.
    """
    if isinstance(request, Transaction) or request.block is not None:
        return False
    args, script = request.args, request.script
    return reads_only(args) if script is None else len(args) - 3 - int(args[2]) <= script.reads
