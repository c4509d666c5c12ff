"""What the config server holds of a component, and the component that it describes. No I/O."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from shardkit.config.component import (
    Component,
    check_name,
    check_shards,
    entry_key,
    pushed_key,
    removed_key,
    shards_key,
    wrong_placement,
)
from shardkit.config.entry import Entry, load_json
from shardkit.config.problem import invalid
from shardkit.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    MissingEntryError,
    RetiredError,
)
from shardkit.routing.placement import DEFAULT

Stored: TypeAlias = Mapping[str, bytes | str | None]
"""Values by key; None for a key that is missing."""

EPOCH_KEY = "config:epoch"
PUSHED_KEY = "config:pushed"  # whether pushes mark what they write, see `pushed_key`
WITNESS_KEY = "config:witness"  # on data servers, see shardkit.topology.witness
EXPECTED_SHARDS = 64  # read before the count is known; a missing key costs next to nothing
_LONGEST_MESSAGE = 200  # characters of why a component was removed
PUSH_AGAIN = "push the shard map again: shardkit config push"


logger = logging.getLogger("shardkit.config")

_warned: set[tuple[str, int]] = set()  # components and counts whose further entries were logged
_declared: dict[str, dict[int, str]] = {}


def declare(name: str, shards: int | None, rule: str | None = None) -> None:
    """Note how many shards a caller says that a component has, and how keys find them.

    Entries that were written by hand, without ``config:shards:<component>``, are served to callers
    who say so, if exactly as many are there, and no push wrote them. No I/O.

    Args:
        name: the component.
        shards: the number; None for a caller who does not say.
        rule: the placement; None for ``crc32``.

    Raises:
        InvalidArgumentError: the placement cannot be used for so many shards, or another caller of
            this process says another.
    """
    if shards is None:
        if rule is not None:
            raise InvalidArgumentError(f"placement={rule!r} without shards=", "say shards= too")
        return
    if type(shards) is not int or shards < 1:
        return  # refused where it is compared with the entries
    wrong = wrong_placement(rule or DEFAULT, shards)
    if wrong:
        raise InvalidArgumentError(f"component {name!r}: placement={rule!r} {wrong}", "correct it")
    known = _declared.setdefault(name, {}).setdefault(shards, rule or DEFAULT)
    if known != (rule or DEFAULT):
        raise InvalidArgumentError(
            f"component {name!r}, {shards} shards: placement={rule or DEFAULT!r}, and another "
            f"caller says {known!r}",
            "name the same placement everywhere",
        )


def reading(
    name: str, expected: int = EXPECTED_SHARDS, place: str = ""
) -> Generator[list[str], Sequence[Any], Stored]:
    """Read all that is stored of a component: yield keys, be sent their values.

    One MGET, two if there are more shards than expected. A single MGET never mixes two pushes.

    Args:
        name: the component's name.
        expected: how many shards it probably has.
        place: see `read_shards`.

    Raises:
        InvalidEntryError: the name is no component's, or what describes its shards cannot be used.
        MissingEntryError: see `read_shards`.
    """
    problems = list(check_name(name, "component"))
    if problems:
        raise invalid(problems)
    # One more than there are, and than any caller says: that must not be there.
    expected = 1 + max(expected, *_declared.get(name, {}), 0)
    while True:
        keys = [EPOCH_KEY, shards_key(name), entry_key(name), removed_key(name)]
        keys += [PUSHED_KEY, pushed_key(name)]
        keys += [entry_key(name, n) for n in range(expected)]
        stored = dict(zip(keys, (yield keys), strict=True))
        count, _, _ = read_shards(name, stored, place)
        if count < expected:
            return stored
        expected = count + 1


def read_shards(name: str, stored: Stored, place: str = "") -> tuple[int, str, int]:
    """Return a component's count of shards, placement and epoch; 0 shards if it is unsharded.

    Args:
        name: the component's name.
        stored: what is stored of it.
        place: where, for messages: ``" on config server a:6379/0"``.

    Raises:
        InvalidEntryError: it cannot be used.
        MissingEntryError: the count is missing, but a shard's entry is stored.
    """
    key = shards_key(name)
    text = stored.get(key)
    if text is not None:
        return check_shards(load_json(text, key), key)
    others = (EPOCH_KEY, entry_key(name), removed_key(name), PUSHED_KEY, pushed_key(name))
    there = [k for k, value in stored.items() if value is not None and k not in others]
    # What a push wrote has lost its count, and with it the placement. Pushes of earlier releases
    # left no mark.
    by_hand = EPOCH_KEY in stored and (
        stored[EPOCH_KEY] is None
        or (stored.get(PUSHED_KEY) is not None and stored.get(pushed_key(name)) is None)
    )
    for count, rule in _declared.get(name, {}).items():
        if there and by_hand and set(there) == {entry_key(name, n) for n in range(count)}:
            return count, rule, 0
    if there:
        # Without the count, a shard's data would be looked for behind the unsharded entry.
        said = "".join(f", and callers say {count} shards" for count in _declared.get(name, {}))
        raise MissingEntryError(
            f"{key} is missing{place}, but {there[0]} is stored ({len(there)} shards' entries"
            f"{said})",
            f"{PUSH_AGAIN}; or have callers say shards=, as many as there are entries",
        )
    return 0, DEFAULT, 0


def epoch_number(text: bytes | str | None) -> int:
    """Return the number that ``config:epoch`` holds; 0 if it is missing, or no number."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) else 0


def component_of(name: str, stored: Stored, place: str = "") -> Component | None:
    """Return the component that is stored; None if nothing is.

    Args: see `read_shards`.

    Raises:
        InvalidEntryError: an entry cannot be used; names its key.
        MissingEntryError: a shard's entry, or the count, is missing; names the key.
        RetiredError: a push removed it.
    """
    count, placement, epoch = read_shards(name, stored, place)
    entry = _entry(entry_key(name), stored)
    shards = []
    for n in range(count):
        key = entry_key(name, n)
        shard = _entry(key, stored)
        if shard is None:
            raise MissingEntryError(
                f"{key} is missing{place}, but {shards_key(name)} says {count} shards", PUSH_AGAIN
            )
        if shard.is_cluster:
            raise InvalidEntryError(
                f"{key}: cluster = true makes a cluster a shard",
                "a cluster shards itself: make it the component's entry",
            )
        shards.append(shard)
    beyond = range(count, count + len(stored))
    more = [n for n in beyond if (text := stored.get(entry_key(name, n))) and not _is_spare(text)]
    if count and more and (name, count) not in _warned:
        _warned.add((name, count))
        logger.warning(
            "%s is stored%s, but %s says %d shards: what is on it is not read; push a shard map "
            'that has the shard, delete the key, or write "spare": true into it if it is meant',
            entry_key(name, more[0]),
            place,
            shards_key(name),
            count,
        )
    if entry is None and not shards:
        removed = stored.get(removed_key(name))
        if removed is not None:
            raise RetiredError(
                f"component {name!r} was removed by a push{place} ({_tombstone(removed)})",
                "stop using it, or push a shard map that describes it",
            )
        return None
    return Component(name, entry, tuple(shards), placement, epoch)


def _is_spare(text: bytes | str) -> bool:
    """Return whether an entry beyond the count says that it is meant: a rest of an older map."""
    with suppress(ValueError):
        found = json.loads(text)
        return isinstance(found, dict) and found.get("spare") is True
    return False


def tombstone(epoch: int, message: str) -> str:
    """Return what is stored of a component that a push removed, see `removed_key`."""
    return json.dumps({"format": 1, "epoch": epoch, "message": message[:_LONGEST_MESSAGE]})


def _tombstone(stored: bytes | str) -> str:
    """Return what a tombstone says: ``epoch 18: replaced by logins``.

    Whatever is stored, the component was removed. Earlier releases stored the epoch alone.
    """
    text = stored.decode(errors="replace") if isinstance(stored, bytes) else stored
    message = ""
    with suppress(ValueError, AttributeError):
        found = json.loads(text)
        if isinstance(found, dict):
            text, message = str(found.get("epoch")), str(found.get("message") or "")
    return f"epoch {text[:20]}" + (f": {message[:_LONGEST_MESSAGE]}" if message else "")


def _entry(key: str, stored: Stored) -> Entry | None:
    text = stored.get(key)
    return None if text is None else Entry.from_json(text, key)
