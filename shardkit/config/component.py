"""A component: a named role of data, with the entries that say where it lives now.

It is made of what is stored under its keys on the config server, without I/O.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias

from shardkit import log_records
from shardkit.config.entry import Entry, load_json
from shardkit.config.fields import whole
from shardkit.config.problem import NO_CLUSTER, Problem, invalid, mask, shown, shown_name
from shardkit.config.read_from import in_use
from shardkit.errors import (
    ConfigError,
    InvalidArgumentError,
    InvalidEntryError,
    MissingEntryError,
    RetiredError,
    ShardCountError,
    counted,
)
from shardkit.operations.arguments import parse_json
from shardkit.operations.commands import Key, Shard
from shardkit.routing.keys import KeyRoutes, key_routes
from shardkit.routing.placement import DEFAULT, Place, PlaceAll, placement, placement_of_all

MAX_SHARDS = 16384  # as many as a Redis Cluster has slots
LONGEST_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)*")


@lru_cache(maxsize=4096, typed=True)
def entry_key(component: str, number: int | None = None) -> str:
    """Return the key of an entry: ``config:redis:unique`` or ``config:redis:unique:7``."""
    return f"config:redis:{Shard(component, number)}"


def shards_key(component: str) -> str:
    """Return the key of a component's count, placement and epoch: ``config:shards:unique``."""
    return f"config:shards:{component}"


def removed_key(component: str) -> str:
    """Return the key that says at which epoch a push removed a component."""
    return f"config:removed:{component}"


def pushed_key(component: str) -> str:
    """Return the key that says that a push, not a hand, wrote a component's shards."""
    return f"config:pushed:{component}"


def check_name(name: object, where: str) -> Iterator[Problem]:
    """Yield what is wrong with a component's name.

    ``unique:0`` is refused: its entry would have the key of shard 0 of ``unique``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Problem(
            where,
            shown("host", name),  # perhaps it is an address
            "",
            "is not a component's name",
            "use letters, digits, '_', '-' and '.', and ':' between words",
        )
    elif len(name) > LONGEST_NAME:
        short = f"{name[:40]}…"
        remedy = f"use at most {LONGEST_NAME}"
        yield Problem(where, short, "", f"has {counted(len(name), 'character')}", remedy)
    elif re.search(r":[0-9]+$", name):
        yield Problem(
            where,
            name,
            "",
            f"is the name of a shard of {name.rpartition(':')[0]!r}, not of a component",
            "write the component's name, which never ends in ':' and digits",
        )


Layout: TypeAlias = tuple[int, str, tuple[str, ...]]
"""The number of shards, the placement, and the rules for names of keys."""


class ByHand(NamedTuple):
    """Shards' entries that no push wrote: nothing stored says how many there should be."""

    numbers: tuple[int, ...]  # of the stored entries, in order
    server: str  # for messages: " on config server a:6379/0"

    def length(self) -> int:
        """Return how many entries follow each other from 0."""
        return next((n for n, number in enumerate(self.numbers) if n != number), len(self.numbers))

    def is_exactly(self, count: int) -> bool:
        """Return whether exactly the entries 0 to ``count`` - 1 are stored."""
        return len(self.numbers) == count == self.length()


_TAGGED = 32  # keys with a common tag, which show whether a placement obeys tags


@dataclass(frozen=True, eq=False)
class Component:
    """One version of a component's entries. A link routes a whole batch by one such version."""

    name: str  # ``unique``
    entry: Entry | None = None  # the unsharded entry, if there is one
    shards: tuple[Entry, ...] = ()  # the shards' entries; empty if the component is not sharded
    placement: str = DEFAULT  # how a key finds its shard; see `shardkit.routing.placement`
    epoch: int = 0  # grows with every push that changes the component
    by_hand: ByHand | None = None  # set if the shards' entries were written by hand
    # Why keys cannot be placed, although the component can be read: a shard's entry is broken, or
    # no caller has yet given the count of entries written by hand. The unsharded entry still works.
    problem: ConfigError | None = None
    # The rules that find the routing key in the name of a stored key; see `KeyRoutes`. Only splits,
    # and clients that follow them, use these.
    routes: tuple[str, ...] = ()
    # Grows with every component that is made in this process.
    version: int = field(init=False, repr=False, default_factory=count(1).__next__)
    place: Place = field(init=False, repr=False)  # from a key to a shard's number; 0 if unsharded
    number_of: Callable[[Key], int | None] = field(init=False, repr=False)  # None if unsharded
    place_all: PlaceAll = field(init=False, repr=False)
    # Whether reads may go to other servers than writes: to replicas, or to shards that are moved.
    splits_reads: bool = field(init=False, repr=False)
    held: bool = field(init=False, repr=False)  # whether one of its shards is being moved
    # Whether keys with a common hash tag may live on different shards.
    splits_tags: bool = field(init=False, repr=False)
    # Until when, in monotonic seconds, callers may have located keys before a split; 0 for never.
    split_until: float = field(init=False, repr=False, default=0.0)

    def __post_init__(self) -> None:
        fields = vars(self)  # frozen for all others
        if self.problem is None:
            count = max(1, len(self.shards))
            fields["place"] = placement(self.placement, count)
            fields["number_of"] = self.place if self.shards else self._unsharded
            fields["place_all"] = placement_of_all(self.placement, count)
        else:
            fields |= dict.fromkeys(("place", "number_of", "place_all"), self._raise_problem)
        tagged = [f"{{tag}}:{n}" for n in range(_TAGGED)] if len(self.shards) > 1 else []
        fields["splits_tags"] = self.problem is None and len(set(map(self.place, tagged))) > 1
        fields["held"] = any(entry.held for _, entry in self.entries())
        fields["splits_reads"] = self.held or any(entry.read_from for _, entry in self.entries())
        if self.splits_reads:
            in_use.note(self)

    def __reduce__(self) -> tuple[type[Component], tuple[Any, ...]]:
        """Pickle the arguments; unpickling makes the functions again."""
        fields = (self.name, self.entry, self.shards, self.placement, self.epoch)
        return Component, (*fields, self.by_hand, self.problem, self.routes)

    def _raise_problem(self, keys: Any = None) -> NoReturn:
        assert self.problem is not None
        raise copy(self.problem)

    def without_problem(self) -> Self:
        """Return the component itself, or raise its problem."""
        if self.problem is not None:
            self._raise_problem()
        return self

    def _unsharded(self, key: Key) -> None:
        self.place(key)  # raises InvalidKeyError

    @property
    def key_routes(self) -> KeyRoutes:
        """The rules that find the routing key in the name of a stored key."""
        return key_routes(self.routes)

    @property
    def layout(self) -> Layout:
        """What decides where keys are."""
        return len(self.shards), self.placement, self.routes

    def shard_of(self, key: Key) -> Shard:
        """Return where a key lives: its shard, or the entry of an unsharded component."""
        return Shard(self.name, self.place(key) if self.shards or self.problem else None)

    def entry_of(self, shard: Shard) -> Entry:
        """Return a shard's entry; a MissingEntryError names the key of a missing one."""
        number = shard.number
        if number is None:
            if self.entry is not None:
                return self.entry
            shards = f", but {counted(len(self.shards), 'shard')}" if self.shards else ""
            raise MissingEntryError(
                f"{entry_key(self.name)} is missing: component {self.name!r} has no unsharded "
                f"entry{shards}",
                "add `entry:` to the component in the shard map and push it",
            )
        if 0 <= number < len(self.shards):
            return self.shards[number]
        if not self.shards:
            self.without_problem()
        raise MissingEntryError(
            f"{entry_key(self.name, number)} is missing: component {self.name!r} has "
            f"{counted(len(self.shards), 'shard')}",
            "number the shards from 0 on",
        )

    def all_shards(self) -> list[Shard]:
        """Return every shard; the entry alone for an unsharded component."""
        if self.shards:
            return [Shard(self.name, n) for n in range(len(self.shards))]
        self.without_problem()
        return [Shard(self.name)]

    def entries(self) -> list[tuple[Shard, Entry]]:
        """Return every shard with its entry, the unsharded one first."""
        unsharded = [] if self.entry is None else [(Shard(self.name), self.entry)]
        return unsharded + [(Shard(self.name, n), entry) for n, entry in enumerate(self.shards)]

    def with_entries(self, change: Callable[[Shard, Entry], Entry]) -> Component:
        """Return a version whose entries are what ``change`` makes of these."""
        entries = {shard: change(shard, entry) for shard, entry in self.entries()}
        unsharded = entries.pop(Shard(self.name), None)
        return replace(self, entry=unsharded, shards=tuple(entries.values()))

    def require_shards(self, count: int | None, rule: str | None = None) -> None:
        """Refuse a caller that routes by another number of shards, or by another placement.

        A cluster's entry serves callers with any count: the cluster routes by itself. ``count`` and
        ``rule`` are the caller's ``shards=`` and ``placement=``; None for any.
        """
        count_now = len(self.shards)
        remedy = f"use shards={count_now}, or leave it out" if count_now else "leave shards= out"
        if self.entry is not None and self.entry.is_cluster:
            return
        if count is not None and self.by_hand is not None:
            self._require_by_hand(count, self.by_hand)
        if isinstance(self.problem, MissingEntryError) and self.by_hand is not None:
            # Decorators and routers take a count; structures have no such argument.
            stored = len(self.by_hand.numbers)
            if self.by_hand.is_exactly(stored):
                remedy = f"use shards={stored} in each call, or {self.problem.remedy}"
                raise MissingEntryError(self.problem.message, remedy)
        self.without_problem()
        if count is not None and count != count_now:
            if not count_now:
                raise ShardCountError(
                    f"component {self.name!r} has no shards ({entry_key(self.name, 0)} is "
                    f"missing), but this call says {count}",
                    remedy,
                )
            raise ShardCountError(
                f"component {self.name!r} has {counted(count_now, 'shard')}, but this call says "
                f"{count}: it would look up keys on the wrong shards",
                remedy,
            )
        if rule is not None and count_now and rule != self.placement:
            source = "entries say" if self.by_hand is None else "another call says"
            raise InvalidArgumentError(
                f"component {self.name!r}: this call says placement={mask('host', rule)!r}, but "
                f"{source} {self.placement!r}",
                "use one placement for all calls",
            )

    def _require_by_hand(self, count: int, by_hand: ByHand) -> None:
        length = by_hand.length()
        stored = counted(len(by_hand.numbers), "entry is stored", "entries are stored")
        if self.problem is None and self.shards:
            stored += f" and another call says {len(self.shards)}"
        says = f"this call says {counted(count, 'shard')}"
        if length < count:
            remedy = "write the missing entries"
            if by_hand.is_exactly(length) and length:
                remedy = f"use shards={length}, or {remedy}"
            raise MissingEntryError(
                f"{entry_key(self.name, length)} is missing{by_hand.server}: {says}, but {stored}",
                remedy,
            )
        if not by_hand.is_exactly(count):
            more = next(n for n in by_hand.numbers if n >= count)
            remedy = "delete what does not belong there"
            if by_hand.is_exactly(length):
                remedy = f"use shards={length}, or {remedy}"
            raise ShardCountError(
                f"{entry_key(self.name, more)} is one too many{by_hand.server}: {says}, but "
                f"{stored}",
                remedy,
            )

    def same_as(self, other: Component | None) -> bool:
        """Return whether both are equal, apart from their epochs."""
        return (
            other is not None
            and self.entry == other.entry
            and self.shards == other.shards
            and self.placement == other.placement
            and self.routes == other.routes
            and self.by_hand == other.by_hand
            and str(self.problem) == str(other.problem)
        )


def check_shards(value: object, where: str) -> tuple[int, str, int]:
    """Read ``config:shards:<component>``: the count, the placement and the epoch.

    Other programs may leave out the placement, ``crc32``, and the epoch, 0.
    """
    fields = {"placement": DEFAULT, "epoch": 0, **value} if isinstance(value, dict) else {}
    count, rule, epoch = (whole(fields.get(name)) for name in ("shards", "placement", "epoch"))
    wrong = ""
    if not fields:
        wrong = "is not an object"
    elif "shards" not in fields:
        wrong = "lacks the field shards"
    elif unknown := fields.keys() - {"shards", "placement", "epoch", "routes"}:
        wrong = f"has the unknown field {shown_name(min(unknown, key=str))}"
    elif type(count) is not int or not 1 <= count <= MAX_SHARDS:
        wrong = f"says {shown('', count)} shards, not 1 to {MAX_SHARDS}"
    elif type(epoch) is not int or epoch < 0:
        wrong = f"says epoch {shown('', epoch)}, not a number from 0"
    else:
        wrong = wrong_placement(rule, count) or wrong_routes(fields.get("routes", []))
    if wrong:
        raise InvalidEntryError(
            f"{where} {wrong}",
            'push the shard map again: the key holds {"shards": 16, "placement": "crc32", '
            '"epoch": 1}',
        )
    return count, rule, epoch


def wrong_routes(rules: object) -> str:
    """Return why the rules for names of keys cannot be used; nothing if they can."""
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        return f"has {shown('', rules)} as routes, not a list of texts"
    try:
        KeyRoutes(rules)
    except ConfigError as error:
        return f"has a rule that cannot be used: {error.message}"
    return ""


def wrong_placement(rule: object, count: int) -> str:
    """Return why a placement cannot be used for ``count`` shards; nothing if it can."""
    if not isinstance(rule, str):
        return f"names {shown('', rule)} as placement"
    try:
        placement(rule, count)
    except ConfigError as error:
        reason = f"{error.message} ({error.remedy})".replace(rule, str(mask("host", rule)))
        return f"names a placement that cannot be used: {reason}"
    return ""


Stored: TypeAlias = Mapping[str, bytes | str | None]
"""Values by key; None for a key that is missing."""

EPOCH_KEY = "config:epoch"
PUSHED_KEY = "config:pushed"  # whether pushes mark what they write, see `pushed_key`
WITNESS_KEY = "config:witness"  # on data servers, see shardkit.network.topology.witness
EXPECTED_SHARDS = 64  # read before the count is known; a missing key costs next to nothing
_LONGEST_MESSAGE = 200  # characters of the reason for a removal
PUSH = "shardkit config push"
PUSH_AGAIN = f"push the shard map again: {PUSH}"


logger = logging.getLogger("shardkit.config")

_warned = log_records.Once()  # components and counts whose further entries were logged


def reading(
    name: str, expected: int = EXPECTED_SHARDS
) -> Generator[list[str], Sequence[Any], Stored]:
    """Read everything that is stored of a component: yield keys, receive their values.

    One MGET, a few if there are more than ``expected`` shards. A single MGET never mixes two
    pushes.
    """
    problems = list(check_name(name, "component"))
    if problems:
        raise invalid(problems)
    while True:
        keys = head_keys(name)
        keys += [entry_key(name, n) for n in range(expected + 1)]  # one that must not be there
        stored = dict(zip(keys, (yield keys), strict=True))
        try:
            count, _, _ = read_shards(name, stored)
        except ConfigError:
            # Without the count, read until an entry is missing.
            count = 2 * expected if stored[keys[-1]] is not None else 0
        if count <= expected or expected >= MAX_SHARDS:
            return stored
        expected = min(count, MAX_SHARDS)


def head_keys(name: str) -> list[str]:
    """Return the keys of a component besides its shards' entries: each push of it changes some."""
    keys = [EPOCH_KEY, shards_key(name), entry_key(name), removed_key(name)]
    return [*keys, PUSHED_KEY, pushed_key(name)]


def read_shards(name: str, stored: Stored, server: str = "") -> tuple[int, str, int]:
    """Return a component's count of shards, placement and epoch; 0 shards if it is unsharded.

    A missing count is a MissingEntryError if a shard's entry is stored. ``server`` is for messages:
    ``" on config server a:6379/0"``.
    """
    key = shards_key(name)
    text = stored.get(key)
    if text is not None:
        return check_shards(load_json(text, key), key)
    numbers = _numbers(name, stored)
    if not numbers:
        return 0, DEFAULT, 0
    # Without the count, calls would use the unsharded entry for a shard's data.
    entries = counted(len(numbers), "entry is", "entries are")
    remedy = PUSH_AGAIN
    by_hand = by_hand_of(name, stored, server)
    if by_hand is not None and by_hand.is_exactly(len(numbers)):
        remedy = f"push a shard map: {PUSH}"
    raise MissingEntryError(
        f"{key} is missing{server}, but {entries} stored, from {entry_key(name, numbers[0])} on",
        remedy,
    )


def _numbers(name: str, stored: Stored) -> tuple[int, ...]:
    """Return the numbers of the shards whose entries are stored, in order."""
    shard = re.compile(re.escape(entry_key(name)) + ":(0|[1-9][0-9]{0,8})")
    matches = (shard.fullmatch(key) for key, value in stored.items() if value is not None)
    return tuple(sorted(int(match[1]) for match in matches if match is not None))


def by_hand_of(name: str, stored: Stored, server: str = "") -> ByHand | None:
    """Return the shards' entries that were written by hand; None for none, or if a push wrote them.

    Pushed entries that have lost their count have lost their placement, too. Pushes of earlier
    releases left no mark.
    """
    if stored.get(shards_key(name)) is not None or EPOCH_KEY not in stored:
        return None
    marked = stored.get(PUSHED_KEY) is not None and stored.get(pushed_key(name)) is None
    if stored[EPOCH_KEY] is not None and not marked:
        return None
    numbers = _numbers(name, stored)
    return ByHand(numbers, server) if numbers else None


def epoch_number(text: bytes | str | None) -> int:
    """Return the number in ``config:epoch``; 0 if it is missing, or no number."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) else 0


def component_of(name: str, stored: Stored, server: str = "") -> Component | None:
    """Return the stored component; None if there is none. For ``server`` see `read_shards`.

    The unsharded entry does not depend on the shards: if these cannot be used, the component has
    the entry, and a `Component.problem`. Without it, the error is raised.

    Raises:
        RetiredError: a push removed the component.
    """
    entry = _entry(entry_key(name), stored)
    by_hand = by_hand_of(name, stored, server)
    shards: list[Entry] = []
    problem: ConfigError | None = None
    count, placement, epoch = 0, DEFAULT, 0
    try:
        if by_hand is None:
            count, placement, epoch = read_shards(name, stored, server)
        else:
            count = by_hand.length()
        shards = [_shard(name, n, count, stored, server) for n in range(count)]
        if by_hand is not None:
            read_shards(name, stored, server)
    except ConfigError as error:
        if entry is None and (by_hand is None or len(shards) < count):
            raise
        problem = error.with_traceback(None)
    beyond = range(count, count + len(stored))
    more = [n for n in beyond if (text := stored.get(entry_key(name, n))) and not _is_spare(text)]
    if by_hand is None and count and more and _warned.first(name, count):
        logger.warning(
            "%s is stored%s, but %s says %d shards: data on that shard is not read; push a shard "
            'map that has the shard, delete the key, or write "spare": true into it',
            entry_key(name, more[0]),
            server,
            shards_key(name),
            count,
            extra=log_records.fields("entry-beyond-count", component=name, shards=count),
        )
    if entry is None and not shards and problem is None:
        removed = stored.get(removed_key(name))
        if removed is not None:
            raise RetiredError(
                f"component {name!r} was removed by a push{server} ({_tombstone(removed)})",
                "stop using it, or push a shard map that describes it",
            )
        return None
    described = stored.get(shards_key(name)) if problem is None else None
    routes = () if described is None else parse_json(described).get("routes", ())
    return Component(name, entry, tuple(shards), placement, epoch, by_hand, problem, tuple(routes))


def whole_component_of(name: str, stored: Stored) -> Component | None:
    """Return the stored component, or raise its problem; see `component_of`."""
    component = component_of(name, stored)
    return component and component.without_problem()


def _shard(name: str, n: int, count: int, stored: Stored, server: str) -> Entry:
    key = entry_key(name, n)
    shard = _entry(key, stored)
    if shard is None:
        raise MissingEntryError(
            f"{key} is missing{server}, but {shards_key(name)} says {counted(count, 'shard')}",
            PUSH_AGAIN,
        )
    if shard.is_cluster:
        raise InvalidEntryError(f"{key}: cluster = true makes a cluster a shard", NO_CLUSTER)
    return shard


def _is_spare(text: bytes | str) -> bool:
    """Return whether an entry beyond the count is marked as intended."""
    with suppress(ValueError):
        fields = parse_json(text)
        return isinstance(fields, dict) and fields.get("spare") is True
    return False


def tombstone(epoch: int, message: str) -> str:
    """Return the text under `removed_key` of a component that a push removed."""
    return json.dumps({"format": 1, "epoch": epoch, "message": message[:_LONGEST_MESSAGE]})


def _tombstone(stored: bytes | str) -> str:
    """Return the content of a tombstone for a message: ``epoch 18: replaced by logins``.

    Any content means that the component was removed. Earlier releases stored the epoch alone.
    """
    text = stored.decode(errors="replace") if isinstance(stored, bytes) else stored
    message = ""
    with suppress(ValueError):
        fields = parse_json(text)
        if isinstance(fields, dict):
            text, message = str(fields.get("epoch")), str(fields.get("message") or "")
    return f"epoch {text[:20]}" + (f": {message[:_LONGEST_MESSAGE]}" if message else "")


def _entry(key: str, stored: Stored) -> Entry | None:
    text = stored.get(key)
    return None if text is None else Entry.from_json(text, key)
