"""Databases, and what a connection does before it first sends anything to one, in one exchange.

::

    CLIENT SETNAME shardkit:unique/17,hits/9;1-64@web1/4711   components and the epoch of their
                                                  entries; the databases; host and process
    SELECT 7
    ZSCORE config:witness unique                  once per client, see topology/witness.py
    EXISTS config:fence                           whether the database is closed: its shards move

A connection serves all databases of its server: it *opens* each once, so, and sends SELECT in front
of its commands from then on. Several are opened in one exchange. What the server refuses apart from
SELECT, for example for want of rights, is ignored.

A *fence* closes a database to new users while its shards move to another server, and for good once
they have moved (see `shardkit.admin.growth.shard_move`). It is asked for after the connection's
name says which database it is about to use. So whoever sets the fence first and then reads CLIENT
LIST misses nobody: a connection is listed with the database, or it finds the fence. It shows that
in its name (``shardkit:waiting/unique/17;7@web1/4711``) and waits until the fence is removed or the
entries point elsewhere. It has sent nothing by then.

While a move holds a shard, reads use connections of their own, named
``shardkit:reading/unique/17;7@web1/4711``. A fence with ``"readers": true`` lets them pass: they
read the fence (``GET config:fence``) instead of asking whether it exists.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

import hiredis
from redis.exceptions import ConnectionError

from shardkit.errors import ShardKitError
from shardkit.operations.arguments import parse_json

FENCE_KEY = "config:fence"
FENCE_WAIT = 10.0  # seconds that a connection waits for a fence to be removed
# Name prefixes of connections that wait at a fence, and of those that only read during a move.
WAITING, READING = "shardkit:waiting/", "shardkit:reading/"
_FENCE_STEP = 0.02

T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]
"""Yields calls of a connection of either face, and is sent what they return."""


class DatabaseMovedError(ConnectionError):
    """A database is closed because its shards move or have moved; nothing was executed."""

    elsewhere = False  # whether the entries point elsewhere by now


@cache
def _host() -> str:
    return re.sub(r"[^!-~]|[@/]", "-", platform.node()) or "localhost"


def lets_readers_pass(fence: bytes) -> bool:
    """Whether a fence keeps out only connections that may write."""
    try:
        return parse_json(fence)["readers"] is True
    except (ValueError, TypeError, KeyError):
        return False


def connection_name(what: str) -> str:
    """Return the name of a connection of this process: ``shardkit:unique/17;7@web1/4711``."""
    return f"shardkit:{what}@{_host()}/{os.getpid()}"


@dataclass(slots=True, eq=False, repr=False)
class ClientDatabase:
    """A database of a server, as the clients of one shard and one version of its entry use it."""

    number: int = 0
    shard: object = ""  # for messages
    label: Callable[[], str] = str  # returns the component and the epoch of its entries: unique/17
    _: KW_ONLY
    witness: Any = None  # asks whether the config server was restored from an old snapshot
    # Returns whether the entries point elsewhere by now; without it, there are no fences.
    has_moved: Callable[[], bool] | None = None
    reads: bool = False  # whether nothing is written by these clients, while a move holds the shard
    # Whether the entry has changed: connections that have opened it are closed on release.
    left: bool = False
    login: Any = None  # the credentials of new connections from then on
    has_fence: bool = False  # whether it may be closed while its shards move
    select: bytes = b""

    def __post_init__(self) -> None:
        self.select = hiredis.pack_command(("SELECT", str(self.number)))  # type: ignore[arg-type]
        self.has_fence = self.has_moved is not None

    def questions(self) -> list[tuple[str, ...]]:
        """Return what is asked in the database itself."""
        asked: list[tuple[str, ...]] = []
        if self.witness is not None and not self.witness.settled:
            asked.append(self.witness.command)
        if self.has_fence:
            asked.append(("GET" if self.reads else "EXISTS", FENCE_KEY))
        return asked

    def is_fenced(self, reply: Any) -> bool:
        """Whether the answer to the last question means that it is closed."""
        if self.reads:
            return isinstance(reply, bytes) and not lets_readers_pass(reply)
        return bool(reply == 1)

    def wait(self, connection: Any, name: str) -> Steps[None]:
        """Wait with a connection at the fence, at most for `FENCE_WAIT` seconds, renamed.

        Raises:
            DatabaseMovedError: the entries point elsewhere; or the fence has stayed too long.
        """
        assert self.has_moved is not None
        end = time.monotonic() + FENCE_WAIT
        waiting = WAITING + name.removeprefix("shardkit:").removeprefix("reading/")
        while True:
            if self.has_moved():
                error = DatabaseMovedError("the shard has moved to another server")
                error.elsewhere = True
                raise error
            if time.monotonic() > end:
                raise DatabaseMovedError(
                    "the database is closed because its shards move or have moved to another "
                    "server, and the entries still name this one. See `shardkit move status`; if "
                    f"the move was interrupted: `shardkit move resume {self.shard}`"
                )
            yield partial(connection.pause, _FENCE_STEP)
            asked = [("CLIENT", "SETNAME", waiting), *self.questions()]
            *_, fence = yield from connection.ask(asked)
            if not self.is_fenced(fence):
                return


UNNAMED = ClientDatabase()
"""That of connections without a client of the kit's."""


def name_of(
    databases: Iterable[ClientDatabase], usable: Iterable[ClientDatabase] | None = None
) -> str:
    """Return the name of a connection that serves databases; empty if it needs none.

    It lists the numbers of the ``usable`` ones: of all by default.
    """
    used = list(databases)
    labels = dict.fromkeys(label for database in used if (label := database.label()))
    if not labels:
        return ""
    usable = used if usable is None else usable
    numbers = _ranges(sorted({database.number for database in usable if database.has_fence}))
    name = connection_name(",".join(labels) + (f";{numbers}" if numbers else ""))
    return READING + name.removeprefix("shardkit:") if any(d.reads for d in used) else name


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers in short: ``1-64,70``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def numbers_in(name: str) -> set[int]:
    """Return the databases that a connection may use by its name."""
    numbers: set[int] = set()
    matched = re.search(r";([0-9,-]+)@[^@]*$", name)
    for part in matched[1].split(",") if matched else ():
        first, _, last = part.partition("-")
        numbers.update(range(int(first), min(int(last or first), int(first) + 100_000) + 1))
    return numbers


def opening(
    connection: Any, databases: Sequence[ClientDatabase], waits: bool
) -> Steps[dict[ClientDatabase, Exception]]:
    """Open databases on a connection; return the error of each that cannot be used.

    Afterwards the last of the others is selected. Without ``waits``, a closed one is left out: it
    is neither opened nor has an error.
    """
    connection.entered = None
    if not connection.opened:
        yield from connection.introduce()
    name = name_of([*connection.opened, *databases])
    if connection.client_name and not databases[0].reads:  # by the entry
        name = ""
    commands: list[tuple[str, ...]] = [("CLIENT", "SETNAME", name)] if name else []
    selects = len(databases) > 1 or databases[0].number != connection.selected
    asked: list[tuple[ClientDatabase, int, int]] = []
    for database in databases:
        questions = database.questions()
        if selects:
            commands.append(("SELECT", str(database.number)))
        commands += questions
        asked.append((database, len(commands) - len(questions), len(commands)))
    replies = (yield from connection.ask(commands)) if commands else []
    errors: dict[ClientDatabase, Exception] = {}
    fenced = []
    for database, start, end in asked:
        if selects:
            if isinstance(replies[start - 1], Exception):
                errors[database] = replies[start - 1]
                continue
            connection.selected = database.number
        witness = database.witness
        try:
            asks = end - start == 1 + database.has_fence
            if asks and (doubted := witness.doubts(replies[start])):
                yield from witness.confirm(doubted, connection.asks_for_epoch)
        except ShardKitError as error:
            errors[database] = error
            continue
        if database.has_fence and database.is_fenced(replies[end - 1]):
            fenced.append(database)
        else:
            connection.opened.add(database)
    if fenced and waits:
        # It gives up the others: who closes one of them does not look at connections that wait.
        connection.opened.clear()
        for database in fenced:
            if connection.selected != database.number:
                yield from connection.ask([("SELECT", str(database.number))])
                connection.selected = database.number
            try:
                yield from database.wait(connection, name_of([database]))
                connection.opened.add(database)
            except DatabaseMovedError as error:
                errors[database] = error
    if name and (fenced or errors):  # a mover waits for those that the name lists
        name = name_of([*connection.opened, *databases], connection.opened)
        yield from connection.ask([("CLIENT", "SETNAME", name)])
    elif fenced and waits:
        yield from connection.ask([("CLIENT", "SETNAME", connection.client_name)])
    if any(database.left for database in databases):
        connection.ends = True
    for unusable in errors.values():
        unusable.maybe_executed = False  # type: ignore[attr-defined]
    return errors
