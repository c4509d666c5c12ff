"""A component's keys on the config server, and the component that they describe. No I/O."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from shardkit import log_records
from shardkit.config.component import (
    MAX_SHARDS,
    ByHand,
    Component,
    check_name,
    check_shards,
    entry_key,
    pushed_key,
    removed_key,
    shards_key,
)
from shardkit.config.entry import Entry, load_json
from shardkit.config.problem import NO_CLUSTER, invalid
from shardkit.errors import ConfigError, InvalidEntryError, MissingEntryError, RetiredError, counted
from shardkit.routing.placement import DEFAULT

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

    ``server`` is for messages: ``" on config server a:6379/0"``.

    Raises:
        InvalidEntryError: `shards_key` holds something else.
        MissingEntryError: the count is missing, but a shard's entry is stored.
    """
    key = shards_key(name)
    text = stored.get(key)
    if text is not None:
        return check_shards(load_json(text, key), key)
    numbers = _numbers(name, stored)
    if not numbers:
        return 0, DEFAULT, 0
    # Without the count, calls would use the unsharded entry for a shard's data.
    there = counted(len(numbers), "entry is", "entries are")
    remedy = PUSH_AGAIN
    by_hand = by_hand_of(name, stored, server)
    if by_hand is not None and by_hand.is_exactly(len(numbers)):
        remedy = f"push a shard map: {PUSH}"
    raise MissingEntryError(
        f"{key} is missing{server}, but {there} stored, from {entry_key(name, numbers[0])} on",
        remedy,
    )


def _numbers(name: str, stored: Stored) -> tuple[int, ...]:
    """Return the numbers of the shards whose entries are stored, in order."""
    shard = re.compile(re.escape(entry_key(name)) + ":(0|[1-9][0-9]{0,8})")
    there = (shard.fullmatch(key) for key, value in stored.items() if value is not None)
    return tuple(sorted(int(match[1]) for match in there if match is not None))


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
    routes = () if described is None else json.loads(described).get("routes", ())
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
        fields = json.loads(text)
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
        fields = json.loads(text)
        if isinstance(fields, dict):
            text, message = str(fields.get("epoch")), str(fields.get("message") or "")
    return f"epoch {text[:20]}" + (f": {message[:_LONGEST_MESSAGE]}" if message else "")


def _entry(key: str, stored: Stored) -> Entry | None:
    text = stored.get(key)
    return None if text is None else Entry.from_json(text, key)
