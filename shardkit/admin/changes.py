"""The record of what changes in a fleet, ``config:changes``, and which changes may overlap.

A change is written here before its first step, and only if no open change that it must not overlap
(`APART`) touches one of its databases: one transaction checks and writes. So of two commands that
start at the same time, the second is refused. A database counts by its server's address, run id and
replication id, so it does not matter by which name a command reaches it.

Moves and splits are open until they are done or aborted, and anybody can resume them. All other
changes are open for as long as their process renews them.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from socket import gethostname
from typing import Any

import redis
from redis.exceptions import RedisError, WatchError
from redis.utils import str_if_bytes

from shardkit.admin.servers import entries_of, identify_databases
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.errors import ConfigServerError, GrowthError, ShardKitError
from shardkit.kit.config_client import config_client
from shardkit.network.connections.databases import DatabaseMovedError
from shardkit.network.server_queries import ServerErrors
from shardkit.network.survey import reason, server_of
from shardkit.operations.arguments import accepts, annotations_of, parse_json
from shardkit.operations.server_errors import behind_watch, meaning, server_in

CHANGES_KEY = "config:changes"
FORMAT = 3  # 1 and 2 were those of moves alone
LEASE = 10.0  # seconds that a change stays open after its process renewed it
KEPT = 30 * 86400.0  # seconds for which changes that are over are kept
_OF_THEIR_NAME = "apply split retire restore convert replan upgrade rotate doctor balance adopt"
COMMANDS: Mapping[str, str] = {
    **{name: name for name in f"{_OF_THEIR_NAME} failover backup".split()},
    **dict.fromkeys(("move server", "move shards", "move reverse"), "move"),
    "replicas attach": "attach",
    "replicas detach": "detach",
    "persistence apply": "persistence",
}
"""The kinds of changes that commands record."""

KINDS = tuple(dict.fromkeys(COMMANDS.values()))
_PAIRS = (
    ("move split apply retire restore", "move split apply retire restore"),
    # As a copy, these rewrite what the others copy.
    ("convert replan upgrade", "move split apply retire restore"),
    ("attach detach", "move split apply restore"),
    # These log in as entries said at first.
    ("rotate", "move split apply restore attach detach rotate"),
    ("persistence doctor", "move split apply restore"),  # CONFIG SET has a move copy again
    ("persistence", "persistence"),  # parts of two profiles are none
    ("balance", "move split apply restore balance"),  # its plan is one for servers as they are
    ("adopt", "move split apply restore"),  # it looks for keys where entries lead
    ("failover backup", "restore"),
)
APART: Mapping[str, frozenset[str]] = {
    kind: frozenset(
        word
        for pair in _PAIRS
        for these, those in (pair, pair[::-1])
        if kind in these.split()
        for word in those.split()
    )
    for kind in KINDS
}
"""Which kinds of changes a kind must not overlap, if both touch a database."""

RESTLESS = frozenset({"failover", "restore"})
"""Changes during which entries do not tell which server has the data."""


@dataclass(kw_only=True)
class Change:
    """A change of a fleet, or work that relies on it standing still.

    ``databases`` is what it touches: the address, run id or replication id of a server, each with
    ``/`` and the number of a database, or ``*`` for all; ``*/*`` for all servers. Times are in
    seconds since 1970, by the config server's clock.
    """

    kind: str = ""  # the command, as ``move`` or ``retire``
    name: str  # what it works on: a component, a shard or a server
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    phase: str = ""  # how far it is; see `Move` for moves
    databases: list[str] = field(default_factory=list)
    owner: str = field(default_factory=lambda: f"{gethostname()}/{os.getpid()}")  # the process
    started: float = 0.0
    ended: float = 0.0  # 0 while it is open
    until: float = 0.0  # when it ends unless its process renews it; 0 for never
    undoes: str = ""  # the id of the change that it reverses
    within: str = ""  # the id of the change that it is a step of

    def is_open(self, now: float) -> bool:
        """Whether it is not over, by the config server's clock."""
        # If that clock was set back, a process that is alive corrects the end.
        return not self.ended and (not self.until or now < self.until <= now + 2 * LEASE)

    def touches(self, other: Change) -> bool:
        """Whether both have a database in common."""
        mine, its = (
            [database.rpartition("/") for database in of.databases] for of in (self, other)
        )
        return any(
            "*" in (server, theirs) or (server == theirs and (number == n or "*" in (number, n)))
            for server, _, number in mine
            for theirs, _, n in its
        )


def now_of(config: redis.Redis) -> float:
    """Return the time of the config server, in seconds since 1970."""
    seconds, microseconds = config.time()
    return float(seconds) + float(microseconds) / 1e6


def read_changes(config: redis.Redis) -> list[Change]:
    """Return the changes that are recorded, the oldest first; damaged records are left out."""
    return _read(config.hgetall(CHANGES_KEY))


def _read(stored: Any) -> list[Change]:
    records, kinds = [], annotations_of(Change)
    for text in stored.values():
        with suppress(ValueError, TypeError, AttributeError):
            known = parse_json(text)
            common = {name: value for name, value in known.items() if name in kinds}
            if all(accepts(kinds[name], value) for name, value in common.items()):
                records.append(Change(**common))
    return sorted(records, key=lambda change: change.started)


def open_changes(config: redis.Redis) -> list[Change]:
    """Return the changes that are not over."""
    known = read_changes(config)
    now = now_of(config)  # afterwards: this process may be stopped in between
    return [change for change in known if change.is_open(now)]


def begin(
    config: redis.Redis, change: Change, watch: Callable[[Any], object] = lambda pipe: None
) -> None:
    """Record a change, unless an open one that it must not overlap touches its databases.

    ``watch`` may have the transaction fail for another reason.

    Raises:
        GrowthError: there is such a change; the error names it, its age, its owner and the remedy.
            Or a record cannot be read. Or the change that this is a step of is no longer open.
    """
    while True:
        with config.pipeline() as pipe, suppress(WatchError):
            pipe.watch(CHANGES_KEY)  # type: ignore[no-untyped-call]
            watch(pipe)
            now = now_of(pipe)
            stored: Any = pipe.hgetall(CHANGES_KEY)
            known = _read(stored)
            damaged = [field for field, text in stored.items() if not _read({field: text})]
            if damaged and not change.started and "move" in APART.get(change.kind, ()):
                where = f"{CHANGES_KEY} {str_if_bytes(damaged[0])}"
                raise GrowthError(
                    f"{change.name}: {where} cannot be read, so it may be a move that uses the "
                    "same databases: nothing has changed",
                    f"check it. If nothing is being moved, delete it: HDEL {where}",
                )
            # A record that has ended is not renewed if another change has begun since.
            ends = [record.until for record in known if record.id == change.id and record.until]
            lapsed = min(ends, default=math.inf)
            for other in known:
                if (
                    other.id not in (change.id, change.undoes, change.within)
                    and other.within != change.id  # its own steps
                    and (other.is_open(now) or lapsed < other.started)
                    and other.kind in APART.get(change.kind, ())
                    and change.touches(other)
                ):
                    raise refusal(change, other, now)
            parents = [record.is_open(now) for record in known if record.id == change.within]
            if not any(parents) and change.within and not change.started:
                raise _lapsed(change)
            old = [record.id for record in known if record.ended and record.ended < now - KEPT]
            change.started = change.started or now
            pipe.multi()
            if old:
                pipe.hdel(CHANGES_KEY, *old)
            pipe.hset(CHANGES_KEY, change.id, text_of(change))
            pipe.execute()
            return


def refusal(change: Change, other: Change, now: float) -> GrowthError:
    """Return the error for a change that must wait for another one."""
    age = max(0, round(now - other.started))
    since = f"{age} s" if age < 120 else f"{age // 60} min" if age < 7200 else f"{age // 3600} h"
    what = f"{other.kind} of {other.name}"
    article = "an" if other.kind[0] in "au" else "a"
    return GrowthError(
        f"{change.name}: {article} {what} ({other.phase or 'at work'}, started {since} ago by "
        f"{other.owner}) uses the same databases: nothing has changed",
        f"wait until it has ended. If it was killed, it ends by itself within {LEASE:g} s"
        if other.until
        else f"wait for it, or {way_on(other)}",
    )


def way_on(move: Change) -> str:
    """Return how an open move or split is ended."""
    undecided = move.phase in ("begun", "attached")
    return f"resume it: shardkit move resume {move.name}{', or abort it' if undecided else ''}"


def text_of(change: Change) -> str:
    """Return a change as it is stored."""
    return json.dumps({"format": FORMAT, **asdict(change)})


@contextmanager
def renewing(renew: Callable[[], object], ended: threading.Event) -> Iterator[None]:
    """Renew what ends after `LEASE` seconds, in a thread, until the block or that has ended."""

    def repeat() -> None:
        while not ended.wait(LEASE / 4):
            with suppress(RedisError, GrowthError):
                renew()

    thread = threading.Thread(target=repeat, name="shardkit-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def explaining(what: Callable[[], str], then: Callable[[], str]) -> Iterator[None]:
    """Have errors of servers say which server failed, ``what`` stopped, and what to do ``then``."""
    try:
        yield
    except ConfigServerError as error:
        text, remedy = f"{what()}: {error.message}", f"{error.remedy}, and then {then()}"
        raise ConfigServerError(text, remedy) from error
    except ServerErrors as error:
        lost = behind_watch(error)
        server, known = server_in(lost), meaning(lost)
        text = f"{server and f'{server}cannot be used: '}{known.text if known else reason(lost)}"
        first = f"{known.remedy if known else 'correct that'}, and then "
        raise GrowthError(
            f"{what()}: {error if isinstance(error, ShardKitError) else text}",
            then() if isinstance(error, DatabaseMovedError) else f"{first}{then()}",
        ) from error


@contextmanager
def taking_part(config: redis.Redis, change: Change) -> Iterator[Change]:
    """Record a change for as long as this process works on it.

    A process that was stopped for longer does not get it back if another change has begun, even if
    that is over; `require_open` tells.

    Raises:
        GrowthError: as `begin`.
    """

    def renew() -> None:
        change.until = now_of(config) + LEASE
        begin(config, change)

    renew()
    try:
        with renewing(renew, threading.Event()):
            yield change
    except BaseException:
        change = replace(change, phase="failed")
        raise
    finally:
        with suppress(RedisError):  # it ends by itself otherwise
            over = replace(change, ended=now_of(config))
            config.hset(CHANGES_KEY, change.id, text_of(over))


@contextmanager
def working_on(
    config: redis.Redis | Entry | None,
    kind: str,
    name: str,
    components: Iterable[Component],
    within: str = "",
    *,
    whole: bool = False,
) -> Iterator[Callable[[], None]]:
    """Record work on the databases of components, if there is a config server that answers.

    ``within`` is the id of the change that it is a step of. ``whole`` servers are touched by a
    change of their settings. Yield a function that checks before a step that the record is still
    open; see `require_open`.

    Raises:
        GrowthError: as `begin`.
    """
    with ExitStack() as stack:
        if isinstance(config, Entry):
            config = stack.enter_context(config_client(config))
        answers = False
        with suppress(RedisError, OSError):
            answers = config is not None and bool(config.ping())
        if config is not None and answers:
            entries = entries_of(components)
            identities = identify_databases({pair: pair[1] for pair in entries})
            at_work = {one for own in identities.values() if isinstance(own, set) for one in own}
            at_work |= {  # a server that does not answer now may answer soon
                (server_of(entry.address), entry.database)
                for _, entry in entries
                if entry.database is not None and not entry.is_cluster
            }
            places = numbered(
                sorted({(at, "*" if whole else str(number)) for at, number in at_work})
            )
            change = Change(kind=kind, name=name, databases=places, within=within)
            stack.enter_context(taking_part(config, change))
            yield partial(require_open, config, change)
        else:
            yield lambda: None


def require_open(config: redis.Redis, change: Change) -> None:
    """Check that a change is still open, before a step that others must not overlap.

    Raises:
        GrowthError: this process was stopped for so long that others may have begun.
    """
    if all(other.id != change.id for other in open_changes(config)):
        raise _lapsed(change)


def _lapsed(change: Change) -> GrowthError:
    return GrowthError(
        f"{change.name}: this process was stopped, or the config server was away, for longer than "
        f"{LEASE:g} s. Another change may be at work",
        "see: shardkit changes. Repeat the command if none has",
    )


def numbered(identities: Iterable[tuple[object, ...]]) -> list[str]:
    """Return databases as `Change.databases` has them, by what identifies their server."""
    return ["/".join(map(str, identity)) for identity in identities]
