"""The config server: how to read, compare and change its keys (docs/config-server.md lists them).

A push is one transaction, so a reader sees all of it or nothing. It writes only the components that
changed, and raises the epoch of each, and ``config:epoch``, by one. An unsharded component is a
single key that no reader can see half of: it has no ``config:shards`` and no epoch
(`Component.epoch` is 0).

A reader that needs several exchanges compares ``config:epoch`` before and after. The epoch of a
component that comes back, or becomes sharded, starts at ``config:epoch``: above all its earlier
epochs. A client refuses a ``config:epoch`` below one that it has seen: the server was restored from
an old snapshot, and needs a push above that number.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from getpass import getuser
from typing import Any, Literal, TypeAlias

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import InvalidResponse, RedisError, WatchError

from shardkit.config.component import (
    EPOCH_KEY,
    PUSH_AGAIN,
    PUSHED_KEY,
    ByHand,
    Component,
    Stored,
    by_hand_of,
    check_name,
    entry_key,
    epoch_number,
    pushed_key,
    read_shards,
    reading,
    removed_key,
    shards_key,
    tombstone,
    whole_component_of,
)
from shardkit.config.entry import Entry, load_json
from shardkit.config.problem import Problem, invalid, mask, similar_name
from shardkit.config.shard_map import ShardMap, warnings_of
from shardkit.config.url import REFERENCE, url_fields
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    InvalidEntryError,
    MissingEntryError,
    PushRefusedError,
    RetiredError,
    counted,
    natural,
)
from shardkit.operations.commands import Key
from shardkit.operations.reply_kinds import are_texts
from shardkit.operations.server_errors import meaning, server_in
from shardkit.operations.steps import run_steps
from shardkit.routing.placement import DEFAULT

SAMPLE_SIZE = 10_000

Kind: TypeAlias = Literal["added", "changed", "removed", "unchanged"]
Sample: TypeAlias = Sequence[Key] | Mapping[str, Sequence[Key]]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of one entry that a push changes."""

    key: str  # the entry's, ``config:redis:unique:7``
    field: str  # empty where the whole entry comes or goes
    before: str | None  # as JSON, secrets masked; None if not set; a whole entry's address
    after: str | None  # the same, after the push


@dataclass(frozen=True, slots=True)
class ComponentChange:
    """What a push does, or did, to one component."""

    component: str
    kind: Kind
    fields: tuple[FieldChange, ...] = ()  # of its entries
    shards_before: int = 0  # 0 if it is not sharded, -1 if what is stored cannot be read
    shards_after: int = 0
    placement_before: str = ""  # empty if it is not sharded
    placement_after: str = ""
    moved: int = 0  # how many keys the push assigns to another shard
    sampled: int = 0  # of how many
    epoch: int = 0  # that a push gave it; 0 if it has none, and in a diff

    @property
    def replaced(self) -> bool:
        """Whether the placement or the number of shards changes."""
        before = self.shards_before, self.placement_before
        return before != (self.shards_after, self.placement_after)


def with_counts(
    changes: Iterable[ComponentChange], current: Mapping[str, Component]
) -> list[ComponentChange]:
    """Add to the changes of a push the counts that it stores for entries written by hand."""
    counted_changes = []
    for change in changes:
        before = current.get(change.component)
        if before is not None and before.by_hand is not None and change.shards_after:
            text = f"{counted(change.shards_after, 'shard')}, {change.placement_after}"
            count = FieldChange(shards_key(change.component), "", None, text)
            change = replace(change, kind="changed", fields=(*change.fields, count))
        counted_changes.append(change)
    return counted_changes


def sample_keys(count: int = SAMPLE_SIZE) -> list[Key]:
    """Return synthetic keys for `diff`: ``sample:0``, ``sample:1`` and so on."""
    return [f"sample:{n}" for n in range(count)]


def diff(
    current: Mapping[str, Component],
    wanted: Mapping[str, Component],
    sample: Sample | None = None,
) -> list[ComponentChange]:
    """Return what has to change to get from the current components to the wanted ones, by name.

    ``sample`` are keys of which to count how many would move to another shard: one list for all
    components, or a list by component name; by default 10,000 synthetic keys.
    """
    default = None if isinstance(sample, Mapping) else sample
    changes = []
    for name in sorted({*current, *wanted}, key=natural):
        before, after = current.get(name), wanted.get(name)
        change = _change(name, before, after)
        if before is not None and after is not None:
            keys = sample.get(name) if isinstance(sample, Mapping) else default
            if keys is None and not change.replaced:  # making keys takes longer than all the rest
                changes.append(replace(change, sampled=SAMPLE_SIZE))
                continue
            if keys is None:
                keys = default = sample_keys() if default is None else default
            moved = 0
            if change.replaced:
                moved = sum(before.shard_of(key) != after.shard_of(key) for key in keys)
            change = replace(change, moved=moved, sampled=len(keys))
        changes.append(change)
    return changes


def _change(name: str, before: Component | None, after: Component | None) -> ComponentChange:
    kind: Kind = "changed"
    if before is None:
        kind = "added"
    elif after is None:
        kind = "removed"
    elif before.same_as(after):
        kind = "unchanged"
    return ComponentChange(
        name,
        kind,
        () if kind == "unchanged" else tuple(_field_changes(name, before, after)),
        len(before.shards) if before else 0,
        len(after.shards) if after else 0,
        before.placement if before and before.shards else "",
        after.placement if after and after.shards else "",
    )


def _field_changes(
    name: str, before: Component | None, after: Component | None
) -> Iterator[FieldChange]:
    routes = before.routes if before else (), after.routes if after else ()
    if routes[0] != routes[1]:
        texts = [", ".join(route) or None for route in routes]
        yield FieldChange(shards_key(name), "routes", *texts)
    old, new = entries_of(name, before), entries_of(name, after)
    for key in {**old, **new}:
        left = old[key].fields if key in old else {}
        right = new[key].fields if key in new else {}
        if key not in old:
            yield FieldChange(key, "", None, new[key].address)
        elif key not in new:
            yield FieldChange(key, "", old[key].address, None)
        else:
            for field in sorted({*left, *right}):
                if field not in left or field not in right or left[field] != right[field]:
                    yield FieldChange(key, field, _shown(left, field), _shown(right, field))


def _shown(fields: Mapping[str, Any], name: str) -> str | None:
    return json.dumps(mask(name, fields[name]), sort_keys=True) if name in fields else None


def entries_of(name: str, component: Component | None) -> dict[str, Entry]:
    """Return a component's entries by key."""
    if component is None:
        return {}
    entries = {} if component.entry is None else {entry_key(name): component.entry}
    return entries | {entry_key(name, n): entry for n, entry in enumerate(component.shards)}


HISTORY_KEY = "config:history"
MOST_PUSHES = 100
_FORMAT = 1
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "previous"), (int,)),
    "at": (int, float),
    **dict.fromkeys(("author", "source", "message"), (str,)),
    "before": (dict,),
}


@dataclass(frozen=True, slots=True)
class PushRecord:
    """One push, as ``config:history`` keeps the last 100.

    `before` has, by component, the former texts by key; none for one that it added.

    ``epoch`` is the `config:epoch` that it wrote, ``previous`` the one before it. ``at`` is in
    seconds since 1970, by the config server's clock.
    """

    epoch: int
    previous: int
    at: float
    author: str
    source: str
    message: str
    before: Mapping[str, Mapping[str, str]]

    def to_json(self) -> str:
        """Return the text that is stored."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: bytes | str) -> PushRecord:
        """Read a stored record, without the fields that this release does not know."""
        loaded = load_json(text, HISTORY_KEY)
        fields = loaded if isinstance(loaded, dict) else {}
        given: dict[str, Any] = {name: fields.get(name) for name in _KINDS}
        fits = all(type(value) in _KINDS[name] for name, value in given.items())
        owned = given["before"].values() if fits else ()
        if (
            fields.get("format") != _FORMAT
            or not fits
            or not all(isinstance(own, dict) for own in owned)
            or not all(isinstance(name, str) for own in owned for name in own.values())
        ):
            raise InvalidEntryError(
                f"{HISTORY_KEY} holds a record that this release cannot read",
                "use the release that pushed it, or delete the key, which keeps the entries",
            )
        return cls(**given)


def author_here() -> str:
    """Return this process's user and host: ``ada@ops1``."""
    user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    with suppress(OSError, KeyError):
        user = getuser()
    return f"{user}@{platform.node() or 'localhost'}"


def undo(
    stored: Mapping[str, Mapping[str, Any]], history: list[PushRecord], epoch: int, newest: int
) -> dict[str, Component]:
    """Return the components as they were after push number ``epoch``.

    ``stored`` has the texts now, by component and key; ``history`` the records, the latest first;
    ``newest`` is `config:epoch` now.
    """
    known = {newest, *(n for record in history for n in (record.epoch, record.previous))}
    if epoch not in known:
        raise ConfigError(
            f"the history has no epoch {epoch}",
            f"choose one from {min(known)} to {newest}: see `shardkit config history`",
        )
    then: dict[str, Mapping[str, Any]] = dict(stored)
    for record in history:
        if record.epoch <= epoch:
            break
        then |= record.before
    read = {name: whole_component_of(name, texts) for name, texts in then.items() if texts}
    return {name: component for name, component in read.items() if component is not None}


_ENTRY, _SHARDS = entry_key(""), shards_key("")
_CHUNK = 1000  # keys of one MGET
_READS = 100  # attempts to read between two pushes
_PUSHES = 50  # attempts to push between two others


def read_components(
    client: redis.Redis, like: Mapping[str, Component] | None = None
) -> dict[str, Component]:
    """Read all components, in the state between two pushes.

    With ``like``, shards that were written by hand are read, too (`Component.by_hand`). They get
    the placement of the component of the same name there if it has as many shards, or ``crc32``.
    Cost: a SCAN of the database and one MGET for 1,000 keys.

    Raises:
        InvalidEntryError: an entry cannot be used, or a key belongs to no component; names it.
        MissingEntryError: a shard's entry, or the count of shards, is missing; names the key.
        ConfigServerError: the config server cannot be read.
    """
    with _translated_errors():
        values, _, _ = _read_all(client)
        for key, value in values.items():
            if value is None and client.exists(key):  # of a type that MGET does not report
                raise InvalidEntryError(f"{key} holds no text", f"delete the key and {PUSH_AGAIN}")
        stored = _by_component(values)
        by_hand = {} if like is None else _count_by_hand(client, stored, like)
        components = [_component_of(*item, by_hand) for item in stored.items()]
        return {component.name: component for component in components if component is not None}


def _read_all(
    client: redis.Redis, *, history: bool = False
) -> tuple[dict[str, bytes | None], int, list[PushRecord]]:
    """Return all values by key, the epoch and perhaps the history, with no push in between."""
    for _ in range(_READS):
        before = _mget(client, [EPOCH_KEY])
        values = _get(client, _scan(client))
        records = read_history(client) if history else []
        if _mget(client, [EPOCH_KEY]) == before:
            return values, epoch_number(before[0]), records
    raise ConfigServerError("the entries on the config server keep changing", "try again")


def read_epoch(client: redis.Redis) -> int:
    """Return `config:epoch`: the number of the last push that changed anything, or 0."""
    with _translated_errors():
        return epoch_number(_mget(client, [EPOCH_KEY])[0])


def read_component(
    client: redis.Redis, name: str, like: Component | None = None
) -> Component | None:
    """Read one component; None if it is not there. For ``like`` and errors see `read_components`.

    Cost: one MGET, two if it has more than 64 shards. A single MGET never mixes two pushes.
    """
    with _translated_errors():
        stored: dict[str, Any] = dict(run_steps(reading(name), partial(_mget, client)))
    own = None if like is None else by_hand_of(name, stored)
    by_hand = {} if own is None else {name: own}
    stored |= _count_texts(by_hand, {} if like is None else {name: like})
    with suppress(RetiredError):
        return _component_of(name, stored, by_hand)
    return None


def push(
    client: redis.Redis,
    shard_map: ShardMap,
    *,
    force: bool | Collection[str] = False,
    prune: bool = False,
    has_data: Callable[[Component], bool] | None = None,
    sample: Sample | None = None,
    epoch: int | None = None,
    above: int | None = None,
    author: str | None = None,
    message: str = "",
    guard: Callable[[Any], object] = lambda pipe: None,
) -> list[ComponentChange]:
    """Write a shard map to the config server: all changes at once, or nothing.

    A map that changes nothing writes nothing. Entries that cannot be read are replaced. Components
    that the map does not describe stay as they are; ``prune`` removes them.

    ``force`` pushes changes of the named components, or of all (True), even if they would strand
    data or look like a typing error. ``has_data`` returns whether a component's shards hold data.
    It is called with the stored component if its count of shards or placement changes, or if it is
    removed; without it, all components count as holding data. For ``sample`` see `diff`. The push
    is refused unless ``epoch`` is `config:epoch`; by default the epoch that the map was made from,
    if known. After the config server was restored from an old snapshot, ``above`` is the epoch that
    clients have seen, and report in their log: every component of the map gets a higher one.
    ``author``, by default this process's user and host, and ``message``, the reason, are for the
    history. ``guard`` is called with the transaction's pipeline; it watches keys, and raises an
    error if nothing may be pushed.

    Returns:
        The changes, one for each component of the map, the unchanged ones included.

    Raises:
        PushRefusedError: calls would look for stored keys on other shards, a component that holds
            data would be removed, a new component's name differs by a typing error from an
            existing one, or another push came in between.
        InvalidEntryError: the map has a component with an invalid name.
        ConfigError: other pushes keep coming in between.
        ConfigServerError: the config server cannot be read or written. If the connection broke
            during the push, the message says that it may have been executed.
    """
    problems: list[Problem] = []
    source = shard_map.source
    for name, component in shard_map.components.items():
        problems += check_name(name, source)
        if component.name != name:
            named = f"is component {component.name!r}"
            problems.append(Problem(source, name, "", named, "give it its own name"))
        if component.entry is None and not component.shards:
            lacking = "has neither entry nor shards"
            problems.append(Problem(source, name, "", lacking, "give one, or both"))
    if problems:
        raise invalid(problems)
    expected = shard_map.epoch if epoch is None else epoch
    record = PushRecord(0, 0, 0, author or author_here(), source, message, {})
    with _translated_errors():
        for attempt in range(_PUSHES):
            with client.pipeline(transaction=True) as pipe:
                try:
                    guard(pipe)
                    return _push(
                        pipe, shard_map, force, prune, has_data, sample, expected, above, record
                    )
                except WatchError as error:
                    if isinstance(lost := error.__context__, RedisError):
                        raise ConfigServerError(
                            f"the connection to the config server {server_in(lost)}broke: the push "
                            "may have been executed or not",
                            "compare with: shardkit config diff",
                        ) from error
            time.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))
    raise ConfigError("other pushes keep coming in between", "try again")


def read_history(client: redis.Redis) -> list[PushRecord]:
    """Return the last pushes, the latest first."""
    with _translated_errors():
        texts = _raw(client, "LRANGE", HISTORY_KEY, 0, -1)
    return [PushRecord.from_json(text) for text in texts]


def components_at(client: redis.Redis, epoch: int) -> dict[str, Component]:
    """Return the components as they were after push number ``epoch``; see `undo`."""
    with _translated_errors():
        values, newest, history = _read_all(client, history=True)
        stored = _by_component(values, strict=False)
        _count_by_hand(client, stored, {})
        return undo(stored, history, epoch, newest)


def pull(client: redis.Redis, config_server: Entry | None = None) -> ShardMap:
    """Return the entries on the config server as a shard map; for errors see `read_components`.

    A user's name and password in the config server's entry are left out of it: a reader need not
    have the right to push.
    """
    epoch = read_epoch(client)  # first: a push in between makes it too old, never too new
    components = read_components(client, {})
    if not components:
        raise MissingEntryError(
            f"the config server has no key {_ENTRY}*",
            "push a shard map first: shardkit config push",
        )
    source = "config server"
    warnings = tuple(warnings_of(components, source))
    return ShardMap(components, _without_user(config_server), warnings, source, epoch)


def _without_user(config_server: Entry | None) -> Entry | None:
    if config_server is None:
        return None
    fields = config_server.fields
    url = fields.pop("url", "")
    if REFERENCE.search(url):
        return config_server
    if url:
        fields = {**url_fields(url), **fields}
    if fields.get("username", "default") == "default":
        return config_server
    return Entry({n: v for n, v in fields.items() if n not in ("username", "password", "auth")})


def _push(
    pipe: Any,
    shard_map: ShardMap,
    force: bool | Collection[str],
    prune: bool,
    has_data: Callable[[Component], bool] | None,
    sample: Sample | None,
    expected: int | None,
    above: int | None,
    record: PushRecord,
) -> list[ComponentChange]:
    """Push once; raise WatchError if another client wrote too, or the connection broke."""
    wanted = shard_map.components
    pipe.watch(EPOCH_KEY)  # from here on, no other push goes unnoticed
    [epoch_text] = _mget(pipe, [EPOCH_KEY])
    keys = _scan(pipe)
    written = [key for component in wanted.values() for key in _texts(component, 1)]
    pipe.watch(EPOCH_KEY, *{*keys, *written})
    values = _get(pipe, keys)
    if _mget(pipe, [EPOCH_KEY]) != [epoch_text]:
        raise WatchError("another push came in between")
    epoch = epoch_number(epoch_text)

    stored = _by_component(values, strict=False)
    counted = {name for name, own in stored.items() if shards_key(name) in own}
    by_hand = _count_by_hand(pipe, stored, wanted)
    current: dict[str, Component] = {}
    broken: dict[str, ConfigError] = {}
    for name, own in stored.items():
        if name in wanted or prune:
            try:
                component = _component_of(name, own, by_hand)
            except ConfigError as error:
                broken[name] = error
            else:
                current |= {} if component is None else {name: component}
    changes = with_counts(diff(current, wanted, sample), current)
    described = {name: _described(name, own) for name, own in stored.items()}
    for n, change in enumerate(changes):
        if change.component in broken:
            count, rule, _ = described[change.component] or (-1, "", 0)
            changes[n] = replace(change, kind="changed", shards_before=count, placement_before=rule)
    changes += [ComponentChange(name, "removed") for name in sorted(broken.keys() - wanted.keys())]
    if above is None and all(change.kind == "unchanged" for change in changes):
        return changes
    if above is None and expected is not None and expected != epoch:
        raise PushRefusedError(
            f"nothing was pushed: the map was made from epoch {expected}, and the config server is "
            f"at epoch {epoch}: other pushes came in between",
            "compare with `shardkit config diff`, merge the changes, and write epoch: "
            f"{epoch} into the map",
        )
    if force is not True:
        forced = frozenset(force or ())
        others = [change for change in changes if change.component not in forced]
        _refuse(others, current, broken, has_data, stored.keys() - wanted.keys())

    epochs = {name: row[2] if row else 0 for name, row in described.items()}
    newest = max([epoch, above or 0, *epochs.values()]) + 1
    texts: dict[str, str] = {EPOCH_KEY: str(newest), PUSHED_KEY: "1"}
    texts |= {pushed_key(name): "1" for name in counted}
    removed: set[str] = set()
    for n, change in enumerate(changes):
        if above is None and change.kind == "unchanged":
            continue
        name = change.component
        removed |= stored.get(name, {}).keys()
        if name in wanted:
            removed.add(removed_key(name))
            number = epochs[name] + 1 if epochs.get(name) and above is None else newest
            texts |= _texts(wanted[name], number)
            if wanted[name].shards:
                texts[pushed_key(name)] = "1"
            else:
                removed.add(pushed_key(name))
                texts.pop(pushed_key(name), None)
            changes[n] = replace(change, epoch=number if wanted[name].shards else 0)
        else:
            texts[removed_key(name)] = tombstone(newest, record.message)
            texts.pop(pushed_key(name), None)
            removed.add(pushed_key(name))
    seconds, microseconds = pipe.time()
    record = replace(
        record,
        epoch=newest,
        previous=epoch,
        at=int(seconds) + int(microseconds) / 1e6,
        before={
            change.component: {
                key: value.decode(errors="replace") if isinstance(value, bytes) else value
                for key, value in stored.get(change.component, {}).items()
                if value is not None
            }
            for change in changes
            if change.kind != "unchanged"
        },
    )
    pipe.multi()
    pipe.lpush(HISTORY_KEY, record.to_json())
    pipe.ltrim(HISTORY_KEY, 0, MOST_PUSHES - 1)
    pipe.mset(texts)
    if removed - texts.keys():
        pipe.delete(*sorted(removed - texts.keys()))
    pipe.execute()
    return changes


def _refuse(
    changes: Iterable[ComponentChange],
    current: Mapping[str, Component],
    broken: Mapping[str, ConfigError],
    has_data: Callable[[Component], bool] | None,
    undescribed: Collection[str],
) -> None:
    """Raise if any of the changes would strand data, or adds a component by a typing error."""
    reasons: dict[str, str] = {}
    misspelt: set[str] = set()
    for change in changes:
        name = change.component
        if change.kind == "added" and (meant := similar_name(name, undescribed)):
            misspelt.add(name)
            reasons[name] = f"component {name!r} is new but resembles {meant!r}"
        if change.kind != "removed" and not (change.kind == "changed" and change.replaced):
            continue
        if name in broken:
            reasons[name] = (
                f"component {name!r} may hold data on its shards, and its entries cannot be read "
                f"({broken[name].message})"
            )
            continue
        try:
            holds_data = has_data is None or has_data(current[name])
        except RedisError as error:
            raise ConfigError(
                f"nothing was pushed: cannot tell whether component {name!r} holds data: {error}",
                f"start its servers, or push with {force_options([name])}",
            ) from error
        if holds_data:
            reasons[name] = f"component {name!r} holds data, and {_consequence(change)}"
    if reasons:
        first = "check the name" if reasons.keys() == misspelt else "move the data first"
        raise PushRefusedError(
            f"nothing was pushed: {', and '.join(reasons.values())}",
            f"{first}, or push with {force_options(reasons)}",
        )


def force_options(names: Iterable[str]) -> str:
    """Return the options of `shardkit config push` that force components."""
    return " ".join(f"--force {name}" for name in names)


def _consequence(change: ComponentChange) -> str:
    if change.kind == "removed":
        return "the push would remove its entries"
    steps = []
    if change.shards_before != change.shards_after:
        steps.append(f"from {change.shards_before} to {counted(change.shards_after, 'shard')}")
    if change.placement_before != change.placement_after:
        named = change.placement_before or "none", change.placement_after or "none"
        steps.append("from placement {} to {}".format(*named))
    return (
        f"going {' and '.join(steps)} would look for {change.moved:,} of {change.sampled:,} sample "
        "keys on another shard"
    )


def _described(name: str, own: Stored) -> tuple[int, str, int] | None:
    """Return a component's count of shards, placement and epoch; None if they cannot be read."""
    try:
        return read_shards(name, own)
    except ConfigError:
        return None


def _texts(component: Component, epoch: int) -> dict[str, str]:
    """Return the texts that store a component, by key."""
    name = component.name
    texts = {key: entry.to_json() for key, entry in entries_of(name, component).items()}
    if component.shards:
        described = {
            "shards": len(component.shards),
            "placement": component.placement,
            "epoch": epoch,
            **({"routes": component.routes} if component.routes else {}),
        }
        texts[shards_key(name)] = json.dumps(described)
    return texts


def _by_component(values: Stored, *, strict: bool = True) -> dict[str, dict[str, Any]]:
    """Return the values by component's name and key; if ``strict``, refuse keys of none."""
    stored: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key.startswith(_SHARDS):
            name = key.removeprefix(_SHARDS)
        else:
            name = re.sub(r":(0|[1-9][0-9]{0,8})\Z", "", key.removeprefix(_ENTRY))
        if not any(check_name(name, key)):
            stored.setdefault(name, {})[key] = value
        elif strict:
            raise InvalidEntryError(
                f"{key!r} belongs to no component: {name!r} cannot be a component's name",
                f"delete the key, or rename it to start with neither {_ENTRY} nor {_SHARDS}",
            )
    return stored


def _count_by_hand(
    client: Any, stored: Mapping[str, dict[str, Any]], like: Mapping[str, Component]
) -> dict[str, ByHand]:
    """Add the counts of entries by hand to the stored values; return these entries.

    The history of a push keeps the counts, so that a rollback restores them.
    """
    names = [name for name, own in stored.items() if own.keys() - {entry_key(name)}]
    names = [name for name in names if shards_key(name) not in stored[name]]
    marks = _get(client, [EPOCH_KEY, PUSHED_KEY, *map(pushed_key, names)]) if names else {}
    checked = ((name, by_hand_of(name, {**stored[name], **marks})) for name in names)
    by_hand = {name: entries for name, entries in checked if entries is not None}
    for name, entries in by_hand.items():
        stored[name].update(_count_texts({name: entries}, like))
    return by_hand


def _count_texts(by_hand: Mapping[str, ByHand], like: Mapping[str, Component]) -> dict[str, str]:
    """Return the counts of entries by hand without a gap, as a push would store them."""
    texts = {}
    for name, own in by_hand.items():
        count, other = len(own.numbers), like.get(name)
        if own.is_exactly(count):
            same = other is not None and len(other.shards) == count
            rule = other.placement if other is not None and same else DEFAULT
            described = {"shards": count, "placement": rule, "epoch": 0}
            texts[shards_key(name)] = json.dumps(described)
    return texts


def _component_of(name: str, stored: Stored, by_hand: Mapping[str, ByHand]) -> Component | None:
    component = whole_component_of(name, stored)
    return component and replace(component, by_hand=by_hand.get(name))


def _scan(client: Any) -> list[str]:
    """Return the keys of all entries and counts; those that are not UTF-8 with escapes."""
    keys = client.scan_iter(match="config:[rs]*", count=_CHUNK, **{NEVER_DECODE: True})
    names = {bytes(key).decode(errors="backslashreplace") for key in keys}
    return sorted(name for name in names if name.startswith((_ENTRY, _SHARDS)))


def _get(client: Any, keys: Sequence[str]) -> dict[str, bytes | None]:
    values: dict[str, bytes | None] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        values.update(zip(chunk, _mget(client, chunk), strict=True))
    return values


def _mget(client: Any, keys: Sequence[str]) -> list[bytes | None]:
    return values_of(keys, _raw(client, "MGET", *keys))


def values_of(keys: Sequence[str], reply: Any) -> list[bytes | None]:
    """Return MGET's reply; raise redis-py's InvalidResponse for one of another kind."""
    values: list[Any] = reply if are_texts(reply) else []
    if len(values) != len(keys):
        raise InvalidResponse(f"the reply to MGET cannot be used: {reply!r:.60}")
    return values


def _raw(client: Any, *command: Any) -> Any:
    """Send a command; return its reply undecoded, whatever the client's settings."""
    return client.execute_command(*command, **{NEVER_DECODE: True})


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Replace redis-py's errors by ConfigServerError."""
    try:
        yield
    except RedisError as error:
        text, remedy = meaning(error) or (error, "start it, or use another one")
        server = server_in(error).replace(" ", ": ")
        raise ConfigServerError(
            f"the config server cannot be used: {server}{text}", remedy
        ) from error
