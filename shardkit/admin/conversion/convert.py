"""Copies a family of keys into a structure while clients use the family.

While it listens to changes, every entry is read, and what the structure lacks is written; again,
until a whole pass finds no difference. Then changes are followed until no client writes the family.

Clients read and write the family alone until the end, so nothing has to be atomic: each change is
reported before the key is read, so the last copy of an entry is younger than its last change. A
copy that was interrupted is repeated: what is equal is only read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from redis.exceptions import MovedError, NoPermissionError
from redis.utils import str_if_bytes

from shardkit.admin.conversion.forms import Conversion, Entry, Timed, decode_all, form_of
from shardkit.admin.doctor.scan import Database, by_server
from shardkit.admin.growth.exchange import Slices, at_work, check_share
from shardkit.admin.growth.gate import moving_slots
from shardkit.admin.growth.shard_copy import KeyCapture, turn_on_notifications
from shardkit.errors import GrowthError, counted
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import pages

SHARE = 0.2  # of the time for reading the family; the rest are pauses
_SCAN = 200
_PAGE = 500  # entries that are compared at a time
_PASSES = 5  # until a whole pass finds no difference
_POLL = 0.02
_READS: Mapping[str, str] = {"string": "GET", "hash": "HGETALL"}
_SCANS: Mapping[str, str] = {"hash": "hscan", "set": "sscan", "zset": "zscan"}
_GONE = -2  # PEXPIRETIME of a key that does not exist
_CONTAINS: Mapping[str, str] = {"hash": "HEXISTS", "set": "SISMEMBER", "zset": "ZSCORE"}

Progress = Callable[[str, int], object]
Row = tuple[bytes, bytes, Any]


@dataclass(frozen=True)
class Converted:
    """The result of a copy.

    Attributes:
        entries: how many entries the family has.
        passes: how many passes there were; the last one found no difference.
        copied: how many entries were written.
        removed: how many entries of the structure were removed, which the family no longer has.
        followed: how many changes were copied after the first pass had read them.
    """

    entries: int
    passes: int
    copied: int
    removed: int
    followed: int


def convert(
    kit: ShardKit,
    component: str,
    conversion: Conversion,
    databases: Sequence[Database],
    *,
    offline: bool = False,
    stopped: Callable[[], bool] = lambda: True,
    still: Callable[[], object] = lambda: None,
    share: float = SHARE,
    progress: Progress = lambda step, entries: None,
) -> Converted:
    """Copy a family of keys into a structure of a component, and verify the copy.

    ``databases`` are those with the family's keys. Unless ``offline``, clients may write the
    family, which is watched for changes; ``stopped`` tells whether all have stopped, and is called
    until then, once both are equal. ``still`` is called before each write: it raises if others may
    have taken over. ``share`` is that of the time in which the family is read.
    ``progress`` is called with the current step and how many entries it has read.

    Raises:
        InvalidArgumentError: the structure cannot store an entry; it names the key.
        GrowthError: a server does not report changes, or a change may have been missed, also
            because slots of a cluster have moved; call again.
        ShardErrors: a shard failed; call again.

    Cost: each pass reads the family, 32 keys or 500 members at a time, and the structure.
    """
    copy = _Copy(kit, component, conversion, databases, still, share, progress)
    return copy.run(offline, stopped)


class _Copy:
    def __init__(
        self,
        kit: ShardKit,
        component: str,
        conversion: Conversion,
        databases: Sequence[Database],
        still: Callable[[], object],
        share: float,
        progress: Progress,
    ) -> None:
        self._conversion, self._databases = conversion, databases
        self._pattern = conversion.pattern
        self._form = form_of(conversion, kit, component)
        self._form.still = still
        self._share, self._progress = check_share("convert", share), progress
        self._by_key = conversion.by_key
        self._captures: list[tuple[KeyCapture, dict[int, Database]]] = []
        self._slices = Slices()
        self._dirty = False  # whether a key with many entries has changed since the last pass began
        self.entries = self.copied = self.removed = self.followed = 0

    def run(self, offline: bool, stopped: Callable[[], bool]) -> Converted:
        self._masters = _masters_of(self._databases)
        with ExitStack() as stack:
            if not offline:
                for group in by_server(self._databases):
                    kwargs = [one.client.connection_pool.connection_kwargs for one in group]
                    numbers = [int(own.get("db") or 0) for own in kwargs]
                    numbered = dict(zip(numbers, group, strict=True))
                    self._captures.append((stack.enter_context(_captured(numbered)), numbered))
            self._train()
            passes = self._until_equal()
            while not stopped():
                self._follow()
                time.sleep(_POLL)
            self._wait_until_told()
            self._follow()
            for capture, _ in self._captures:
                capture.require_complete()
            if self._dirty:
                passes += self._until_equal(settled=True)
            if self._conversion.expires and not self._by_key:
                self._expire()
        self._require_same_masters()
        return Converted(self.entries, passes, self.copied, self.removed, self.followed)

    def _require_same_masters(self) -> None:
        self._form.still()
        if _masters_of(self._databases) != self._masters:
            raise GrowthError(
                f"{self._conversion.keys}: a server was restarted, slots of the cluster have "
                "moved, or a replica was promoted, so changes may have been missed",
                "check that all servers have their data, and convert again",
            )

    def _train(self) -> None:
        """Train the dictionary on values drawn at random, unless there is one."""
        if not self._conversion.train:
            return
        chosen: list[Any] = []
        entries = (entry for page in self._pages("training") for entry in page)
        for n, (_, value) in enumerate(entries):
            value = value.value if isinstance(value, Timed) else value
            if len(chosen) < self._conversion.train:
                chosen.append(value)
            elif (at := random.randrange(n + 1)) < len(chosen):
                chosen[at] = value
            if n >= 20 * self._conversion.train:
                break
        if chosen:
            self._form.fields.train(chosen)

    # ---- passes

    def _until_equal(self, settled: bool = False) -> int:
        """Compare and copy until a whole pass finds no difference; return how many there were."""
        for number in range(1, _PASSES + 1):
            self._dirty = False
            differing = self._pass("copying" if number == 1 and not settled else "comparing")
            if not differing:
                return number
        raise GrowthError(
            f"{self._conversion.keys}: {counted(len(differing), 'entry', 'entries')} differ after "
            f"pass {_PASSES} again, for example {sorted(map(str, differing))[0]:.60}",
            "find what else writes to the structure",
        )

    def _pass(self, step: str) -> set[Any]:
        """Compare all entries and copy what differs; return what no change explains."""
        differing: set[Any] = set()
        count = 0
        for page in self._pages(step):
            count += sum(value is not None for _, value in page)
            changed = self._form.sync(page)
            self.copied += len(changed)
            differing |= changed
            differing -= self._follow()
        self.entries = count
        for names in pages(self._form.names(), _PAGE):
            gone = self._missing(names)
            if gone:  # and not because a server came back empty
                self._require_same_masters()
                if not count:
                    raise GrowthError(
                        f"{self._conversion.keys} has no keys, and {self._conversion.name} has "
                        f"{counted(len(gone), 'entry', 'entries')} or more: nothing was removed",
                        "check that the servers have their data. If the keys were deleted after "
                        "the conversion, nothing is left to do",
                    )
            changed = self._form.sync([(name, None) for name in gone]) if gone else set()
            self.removed += len(changed)
            differing |= changed
            differing -= self._follow()
        if differing:  # a change that was read may be reported only now
            self._wait_until_told()
            differing -= self._follow()
        return set() if self._dirty else differing

    def _pages(self, step: str) -> Iterator[list[Entry]]:
        """Yield every entry of the family, in pages that are read when they are asked for.

        Nothing is kept from one page for the next: changes are copied in between.
        """
        count = 0
        page: list[Entry] = []
        for database in self._databases:
            for rows in self._rows(database):
                count += len(rows)
                self._progress(step, count)
                page += decode_all(self._form, rows)
                if len(page) >= _PAGE:
                    yield page
                    page = []
        if not count and self._conversion.type == "list":
            page.append((0, None))
        yield page

    def _rows(self, database: Database) -> Iterator[list[Row]]:
        if self._pattern is None:
            with suppress(MovedError):  # another node of the cluster has it
                yield from self._members(database, self._conversion.keys.encode(), None)
            return
        client: Any = database.client
        cursor: Any = None
        while cursor != 0:
            with at_work(self._share):
                cursor, keys = client.scan(cursor or 0, match=self._pattern.glob, count=_SCAN)
            cursor = int(cursor)
            named = [(key, field) for key in keys if (field := self._pattern.field_of(key))]
            if self._by_key:
                for slice_ in self._slices.of(named):
                    rows = self._values(database, slice_)
                    yield [row for row in rows if row[2] is not None]
                continue
            for key, name in named:
                yield from self._members(database, key, date.fromisoformat(name.decode()))

    def _expire(self) -> None:
        """Have the structure, or its days, expire when the keys do."""
        for database in self._databases:
            client: Any = database.client
            if self._pattern is None:
                with suppress(MovedError):
                    self._form.expire(b"", client.pexpiretime(self._conversion.keys))
                continue
            for key in client.scan_iter(match=self._pattern.glob, count=_SCAN):
                if name := self._pattern.field_of(key):
                    self._form.expire(name, client.pexpiretime(key))

    def _values(self, database: Database, named: Sequence[tuple[bytes, bytes]]) -> list[Row]:
        """Read the values of some keys, None for those that are gone."""
        with at_work(self._share):
            pipe: Any = database.client.pipeline(transaction=False)
            for key, _ in named:
                pipe.execute_command(_READS[self._conversion.type], key)
                if self._conversion.expires:
                    pipe.execute_command("PEXPIRETIME", key)
            values = pipe.execute()
        dues = [-1] * len(named)
        if self._conversion.expires:
            values, dues = values[::2], values[1::2]
        self._slices.note(len(named), sum(_size(value) for value in values))
        rows: list[Row] = []
        for (key, name), value, due in zip(named, values, dues, strict=True):
            raw = None if value in (None, {}) or due == _GONE else value
            timed = raw is not None and self._conversion.expires
            rows.append((key, name, Timed(raw, due) if timed else raw))
        return rows

    def _members(self, database: Database, key: bytes, day: date | None) -> Iterator[list[Row]]:
        kind = str_if_bytes(database.client.type(key))
        if kind not in (self._conversion.type, "none"):
            raise GrowthError(
                f"{self._conversion.keys}: {key.decode(errors='backslashreplace')} "
                f"({database.address}) is a {kind}, not a {self._conversion.type}",
                "rename it, or delete it if nothing needs it, and convert again",
            )
        if self._conversion.type == "list":
            yield from self._list(database, key)
            return
        scan = getattr(database.client, _SCANS[self._conversion.type])
        cursor: Any = None
        while cursor != 0:
            with at_work(self._share):
                cursor, page = scan(key, cursor or 0, count=_PAGE)
            cursor = int(cursor)
            if isinstance(page, dict):
                entries = list(page.items())
            else:
                entries = [row if isinstance(row, tuple) else (row, day or True) for row in page]
            yield [(key, name, value) for name, value in entries]

    def _list(self, database: Database, key: bytes) -> Iterator[list[Row]]:
        """Yield the values of a list by their indexes, and None behind the last one."""
        client: Any = database.client
        start, page = 0, [b""] * _PAGE
        while len(page) == _PAGE:
            with at_work(self._share):
                page = client.lrange(key, start, start + _PAGE - 1)
            yield [(key, b"%d" % n, value) for n, value in enumerate(page, start)]
            start += len(page)
        if start:
            yield [(key, b"%d" % start, None)]

    def _missing(self, names: Sequence[Any]) -> list[Any]:
        """Return those of the structure's entries that the family does not have."""
        left = {name: str(name).encode() for name in names}
        key, kind = self._conversion.keys, self._conversion.type
        for database in self._databases:
            with at_work(self._share):
                pipe: Any = database.client.pipeline(transaction=False)
                for name in left.values():
                    if self._pattern is not None:
                        pipe.execute_command("EXISTS", self._pattern.key_of(name))
                    else:
                        pipe.execute_command(_CONTAINS[kind], key, name)
                replies = pipe.execute(raise_on_error=False)
            for reply in replies:  # another node of the cluster has the key's slot
                if isinstance(reply, Exception) and not isinstance(reply, MovedError):
                    raise reply
            replies = [None if isinstance(reply, MovedError) else reply for reply in replies]
            gone = [reply is None if kind == "zset" else not reply for reply in replies]
            left = dict(item for item, is_gone in zip(left.items(), gone, strict=True) if is_gone)
        return list(left)

    # ---- changes

    def _name_of(self, key: bytes) -> bytes | None:
        """Return the field of a key of the family; None for another key."""
        if self._pattern is not None:
            return self._pattern.field_of(key)
        return key if key == self._conversion.keys.encode() else None

    def _wait_until_told(self) -> None:
        for capture, _ in self._captures:
            capture.wait_until_told()

    def _follow(self) -> set[Any]:
        """Copy what has changed; return the fields."""
        changed: set[Any] = set()
        for capture, numbered in self._captures:
            by_database: dict[int, list[tuple[bytes, bytes]]] = {}
            for number, key in capture.take():
                if (name := self._name_of(key)) is not None:
                    by_database.setdefault(number, []).append((key, name))
            if by_database and not self._by_key:
                self._dirty = True
                continue
            for number, named in by_database.items():
                for slice_ in self._slices.of(named):
                    entries = decode_all(self._form, self._values(numbered[number], slice_))
                    self._form.sync(entries)
                    changed |= {name for name, _ in entries}
                self.followed += len(named)
        return changed


def _masters_of(databases: Sequence[Database]) -> dict[str, Any]:
    """Return each server's run, and the slots of a cluster's; refuse slots that move."""
    masters: dict[str, Any] = {}
    for database in databases:
        client: Any = database.client
        masters[database.address] = client.info("server")["run_id"]
        if int(client.info("cluster").get("cluster_enabled", 0)):
            if moving_slots(client):
                raise GrowthError(
                    f"{database.address}: slots of the cluster are being moved",
                    "wait until that is done",
                )
            own = client.execute_command("CLUSTER MYID")
            listed = client.execute_command("CLUSTER SLOTS")
            masters[database.address] = (
                masters[database.address],
                own,
                sorted(
                    [int(first), int(last)]
                    for first, last, master, *_ in listed
                    if master[2] == own
                ),
            )
    return masters


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(len(name) + len(text) for name, text in value.items())
    return len(value or b"")


@contextmanager
def _captured(databases: Mapping[int, Database]) -> Iterator[KeyCapture]:
    """Listen to the changes of a server's databases; its setting is restored at the end."""
    first = next(iter(databases.values()))
    client: Any = first.client
    with ExitStack() as undone:
        try:
            before = turn_on_notifications(client)
            undone.callback(client.config_set, "notify-keyspace-events", before)
            capture = KeyCapture(client, databases)
        except NoPermissionError as error:
            raise GrowthError(
                f"{first.address}: {error}", "grant it (docs/rights.md), or use --offline"
            ) from error
        undone.callback(capture.close)
        yield capture
