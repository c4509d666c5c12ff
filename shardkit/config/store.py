"""The config server: what is stored there, and how it is read, compared and changed.

::

    config:redis:unique       the unsharded entry of component unique
    config:redis:unique:7     the entry of its shard 7
    config:shards:unique      {"shards": 16, "placement": "crc32", "epoch": 3}
    config:epoch              the number of the last push that changed anything
    config:removed:unique     {"format": 1, "epoch": 18, "message": "replaced by logins"}, the push
                              that removed the component, if one did
    config:history            the last pushes, see shardkit.config.history
    config:pushed             that pushes mark the sharded components that they write:
    config:pushed:unique      so what has lost its count is told from what was written by hand

A push is one transaction, so a reader sees all of it or nothing. It writes the components that
changed and no others, raises each one's epoch by one and ``config:epoch`` with them. An unsharded
component is a single key that no reader can see half of: it has no ``config:shards`` and no epoch
(`Component.epoch` is 0).

Whoever reads several keys in several exchanges compares ``config:epoch`` before and after. The
epoch of a component that comes back, or becomes sharded, starts at ``config:epoch``: above every
epoch it ever had. A client refuses a ``config:epoch`` below one that it has seen: the server was
restored from an old snapshot, and a push above that number leads on from there.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import RedisError, WatchError

from shardkit.config.component import (
    ByHand,
    Component,
    check_name,
    entry_key,
    pushed_key,
    removed_key,
    shards_key,
)
from shardkit.config.diff import ComponentChange as ComponentChange
from shardkit.config.diff import FieldChange as FieldChange
from shardkit.config.diff import Sample, entries_of, with_counts
from shardkit.config.diff import diff as diff
from shardkit.config.diff import sample_keys as sample_keys
from shardkit.config.entry import Entry
from shardkit.config.history import HISTORY_KEY, MOST_PUSHES, PushRecord, author_here, undo
from shardkit.config.problem import Problem, invalid, similar_name
from shardkit.config.shard_map import ShardMap, warnings_of
from shardkit.config.stored import (
    EPOCH_KEY,
    PUSH_AGAIN,
    PUSHED_KEY,
    Stored,
    by_hand_of,
    epoch_number,
    read_shards,
    reading,
    tombstone,
    whole_component_of,
)
from shardkit.config.url import REFERENCE, url_fields
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    InvalidEntryError,
    MissingEntryError,
    PushRefusedError,
    RetiredError,
)
from shardkit.operations.server_errors import meaning
from shardkit.routing.placement import DEFAULT

_ENTRY, _SHARDS = entry_key(""), shards_key("")
_CHUNK = 1000  # keys of one MGET
_READS = 100  # attempts to read between two pushes
_PUSHES = 50  # attempts to push between two others


def read_components(
    client: redis.Redis, like: Mapping[str, Component] | None = None
) -> dict[str, Component]:
    """Read everything that was pushed, as it was between two pushes.

    Args:
        client: a client of the config server, however it decodes.
        like: read shards that were written by hand too (`Component.by_hand`). Their placement is
            that of the component of the same name here, if it has as many shards, or ``crc32``.

    Returns:
        The components by name. Cost: a SCAN of the database and one MGET for 1,000 keys.

    Raises:
        InvalidEntryError: an entry cannot be used, or a key belongs to no component; names it.
        MissingEntryError: a shard's entry, or the count of shards, is missing; names the key.
        ConfigServerError: the config server cannot be read.
    """
    with _translated_errors():
        for _ in range(_READS):
            before = _get(client, [EPOCH_KEY])
            values = _get(client, _scan(client))
            if _get(client, [EPOCH_KEY]) == before:
                _check_types(client, values)
                stored = _by_component(values)
                by_hand = {} if like is None else _count_by_hand(client, stored, like)
                read = [_component_of(*item, by_hand) for item in stored.items()]
                return {component.name: component for component in read if component is not None}
    raise ConfigServerError("the entries on the config server keep changing", "try again")


def read_epoch(client: redis.Redis) -> int:
    """Return `config:epoch`: the number of the last push that changed anything; 0 before the first.

    Raises:
        ConfigServerError: the config server cannot be read.
    """
    with _translated_errors():
        return epoch_number(_mget(client, [EPOCH_KEY])[0])


def read_component(
    client: redis.Redis, name: str, like: Component | None = None
) -> Component | None:
    """Read one component; None if it is not there.

    Args:
        client: a client of the config server, however it decodes.
        name: the component's name.
        like: read shards that were written by hand too; see `read_components`.

    Cost: one MGET, two if it has more than 64 shards. A single MGET never mixes two pushes.

    Raises:
        InvalidEntryError: the name is no component's, or an entry cannot be used; names its key.
        MissingEntryError: a shard's entry, or the count of shards, is missing; names the key.
        ConfigServerError: the config server cannot be read.
    """
    steps = reading(name)
    with _translated_errors(), suppress(StopIteration):
        keys = next(steps)
        while True:
            values = _mget(client, keys)
            stored: dict[str, Any] = dict(zip(keys, values, strict=True))
            keys = steps.send(values)
    # Outside of the handler: a StopIteration would hold what is stored, which may be a password.
    found = None if like is None else by_hand_of(name, stored)
    by_hand = {} if found is None else {name: found}
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
) -> list[ComponentChange]:
    """Write a shard map to the config server: all of what changed, at once, or nothing.

    A map that changes nothing writes nothing. Entries that cannot be read are replaced.

    Args:
        client: a client of the config server, however it decodes.
        shard_map: what shall be there. Components that it does not describe stay as they are.
        force: write also what would strand data, or looks like a typing error: of the components
            of these names, or of all (True).
        prune: remove the components that the map does not describe.
        has_data: says whether a component's shards hold data. Asked for components whose count of
            shards or placement changes, and for those to be removed, with what is stored of them
            now. Without it they are taken to hold some.
        sample: see `diff`.
        epoch: refuse the push unless this is `config:epoch`; by default the one that the map says
            it was made from, if it does.
        above: after the config server was restored from an old snapshot: the epoch that clients
            have seen, and say in their log. Every component of the map gets a higher one.
        author: who pushes, for the history; by default this process's user and host.
        message: why, for the history.

    Returns:
        What was changed; also the map's unchanged components.

    Raises:
        PushRefusedError: keys of components that hold data would be looked for on other shards,
            a component that holds data would be removed, a component would be added whose name
            differs by a typing error from one that is there, or another push came in between.
        InvalidEntryError: the map names a component what none can be called.
        ConfigError: other pushes came in between, again and again.
        ConfigServerError: the config server cannot be read or written. If the connection broke
            while the push was carried out, it says that it may have been.
    """
    problems = [
        problem
        for name, component in shard_map.components.items()
        for problem in _check_component(name, component, shard_map.source)
    ]
    if problems:
        raise invalid(problems)
    expected = shard_map.epoch if epoch is None else epoch
    record = PushRecord(0, 0, 0, author or author_here(), shard_map.source, message, {})
    with _translated_errors():
        for attempt in range(_PUSHES):
            with client.pipeline(transaction=True) as pipe:
                try:
                    return _push(
                        pipe, shard_map, force, prune, has_data, sample, expected, above, record
                    )
                except WatchError as error:
                    if isinstance(error.__context__, RedisError):
                        raise ConfigServerError(
                            "the connection to the config server broke; nobody knows whether the "
                            "push was carried out",
                            "look with: shardkit config diff",
                        ) from error
            time.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))
    raise ConfigError("other pushes came in between, again and again", "try again")


def read_history(client: redis.Redis) -> list[PushRecord]:
    """Return the last pushes, the latest first.

    Raises:
        InvalidEntryError: a record cannot be read.
        ConfigServerError: the config server cannot be read.
    """
    with _translated_errors():
        asked: Any = client
        texts = asked.execute_command("LRANGE", HISTORY_KEY, 0, -1, **{NEVER_DECODE: True})
    return [PushRecord.from_json(text) for text in texts]


def components_at(client: redis.Redis, epoch: int) -> dict[str, Component]:
    """Return the components as they were after a push, by its number.

    Raises:
        ConfigError: the history does not reach back so far, or there was no such push.
        InvalidEntryError, MissingEntryError: what was stored then cannot be used.
        ConfigServerError: the config server cannot be read.
    """
    with _translated_errors():
        for _ in range(_READS):
            before = _get(client, [EPOCH_KEY])
            values = _get(client, _scan(client))
            history = read_history(client)
            if _get(client, [EPOCH_KEY]) == before:
                stored = _by_component(values, strict=False)
                _count_by_hand(client, stored, {})
                return undo(stored, history, epoch, epoch_number(before[EPOCH_KEY]))
    raise ConfigServerError("the entries on the config server keep changing", "try again")


def pull(client: redis.Redis, config_server: Entry | None = None) -> ShardMap:
    """Return what is on the config server as a shard map.

    Args:
        client: a client of the config server, however it decodes.
        config_server: how the config server is reached, for the map to say so. A user's name and
            password are left out: who may read need not be who may push.

    Raises:
        MissingEntryError: nothing was pushed yet, or an entry is missing; names its key.
        InvalidEntryError: an entry cannot be used; names its key.
        ConfigServerError: the config server cannot be read.
    """
    epoch = read_epoch(client)  # first: a push in between makes it too old, never too new
    components = read_components(client, {})
    if not components:
        raise MissingEntryError(
            f"there is no key {_ENTRY}* on the config server",
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
    return Entry({n: v for n, v in fields.items() if n not in ("username", "password")})


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
    """Push once; WatchError says that somebody else wrote meanwhile, or the connection broke."""
    wanted = shard_map.components
    pipe.watch(EPOCH_KEY)  # from here on, no other push goes unnoticed
    [epoch] = _mget(pipe, [EPOCH_KEY])
    found = _scan(pipe)
    written = [key for component in wanted.values() for key in _texts(component, 1)]
    pipe.watch(EPOCH_KEY, *{*found, *written})  # which may be none at all
    values = _get(pipe, found)
    if _mget(pipe, [EPOCH_KEY]) != [epoch]:
        raise WatchError("another push came in between")

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
    changes = [
        _repair(change, stored[change.component]) if change.component in broken else change
        for change in changes
    ]
    changes += [ComponentChange(name, "removed") for name in sorted(broken.keys() - wanted.keys())]
    if above is None and all(change.kind == "unchanged" for change in changes):
        return changes
    if above is None and expected is not None and expected != epoch_number(epoch):
        raise PushRefusedError(
            f"nothing was pushed: the map was made from epoch {expected}, and the config server is "
            f"at epoch {epoch_number(epoch)}: other pushes came in between",
            "compare with `shardkit config diff`, merge what changed, and write epoch: "
            f"{epoch_number(epoch)} into the map",
        )
    if force is not True:
        forced = frozenset(force or ())
        others = [change for change in changes if change.component not in forced]
        _refuse(others, current, broken, has_data, stored.keys() - wanted.keys())

    epochs = {name: _epoch(name, own) for name, own in stored.items()}
    newest = max([epoch_number(epoch), above or 0, *epochs.values()]) + 1
    texts: dict[str, str] = {EPOCH_KEY: str(newest), PUSHED_KEY: "1"}
    texts |= {pushed_key(name): "1" for name in counted}
    gone: set[str] = set()
    for n, change in enumerate(changes):
        if above is None and change.kind == "unchanged":
            continue
        name = change.component
        gone |= stored.get(name, {}).keys()
        if name in wanted:
            gone.add(removed_key(name))
            number = epochs[name] + 1 if epochs.get(name) and above is None else newest
            texts |= _texts(wanted[name], number)
            if wanted[name].shards:
                texts[pushed_key(name)] = "1"
            else:
                gone.add(pushed_key(name))
                texts.pop(pushed_key(name), None)
            changes[n] = replace(change, epoch=number if wanted[name].shards else 0)
        else:
            texts[removed_key(name)] = tombstone(newest, record.message)
            texts.pop(pushed_key(name), None)
            gone.add(pushed_key(name))
    seconds, microseconds = pipe.time()
    record = replace(
        record,
        epoch=newest,
        previous=epoch_number(epoch),
        at=int(seconds) + int(microseconds) / 1e6,
        before={
            change.component: _as_texts(stored.get(change.component, {}))
            for change in changes
            if change.kind != "unchanged"
        },
    )
    pipe.multi()
    pipe.lpush(HISTORY_KEY, record.to_json())
    pipe.ltrim(HISTORY_KEY, 0, MOST_PUSHES - 1)
    pipe.mset(texts)
    if gone - texts.keys():
        pipe.delete(*sorted(gone - texts.keys()))
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
    for change in changes:
        name = change.component
        if change.kind == "added" and (meant := similar_name(name, undescribed)):
            reasons[name] = (
                f"component {name!r} would be added; did you mean {meant!r}, which the config "
                "server has?"
            )
        if change.kind != "removed" and not (change.kind == "changed" and change.replaced):
            continue
        if name in broken:
            reasons[name] = (
                f"component {name!r} may hold data on its shards, and what is stored of it cannot "
                f"be read ({broken[name].message})"
            )
        elif has_data is None or _holds_data(has_data, current[name]):
            reasons[name] = f"component {name!r} holds data, and {_consequence(change)}"
    if reasons:
        raise PushRefusedError(
            f"nothing was pushed: {'; '.join(reasons.values())}",
            f"move the data first, or push with {force_options(reasons)}",
        )


def force_options(names: Iterable[str]) -> str:
    """Return the options of `shardkit config push` that force components."""
    return " ".join(f"--force {name}" for name in names)


def _holds_data(has_data: Callable[[Component], bool], component: Component) -> bool:
    try:
        return has_data(component)
    except RedisError as error:
        raise ConfigError(
            f"nothing was pushed: cannot tell whether component {component.name!r} holds data: "
            f"{error}",
            f"start its servers, or push with {force_options([component.name])}",
        ) from error


def _consequence(change: ComponentChange) -> str:
    if change.kind == "removed":
        return "the push would remove its entries"
    steps = []
    if change.shards_before != change.shards_after:
        steps.append(f"from {change.shards_before} to {change.shards_after} shards")
    if change.placement_before != change.placement_after:
        named = change.placement_before or "none", change.placement_after or "none"
        steps.append("from placement {} to {}".format(*named))
    return (
        f"going {' and '.join(steps)} would look for {change.moved:,} of {change.sampled:,} sample "
        "keys on another shard"
    )


def _repair(change: ComponentChange, values: Stored) -> ComponentChange:
    """Return the change of a component of which what is stored cannot be read."""
    try:
        count, rule, _ = read_shards(change.component, values)
    except ConfigError:
        count, rule = -1, ""
    return replace(change, kind="changed", shards_before=count, placement_before=rule)


def _as_texts(stored: Stored) -> dict[str, str]:
    return {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value
        for key, value in stored.items()
        if value is not None
    }


def _texts(component: Component, epoch: int) -> dict[str, str]:
    """Return what is stored of a component, by key."""
    name = component.name
    texts = {key: entry.to_json() for key, entry in entries_of(name, component).items()}
    if component.shards:
        described = {
            "shards": len(component.shards),
            "placement": component.placement,
            "epoch": epoch,
        }
        texts[shards_key(name)] = json.dumps(described)
    return texts


def _check_component(name: str, component: Component, source: str) -> Iterator[Problem]:
    yield from check_name(name, source)
    if component.name != name:
        yield Problem(source, name, "", f"is component {component.name!r}", "give it its own name")
    if component.entry is None and not component.shards:
        yield Problem(source, name, "", "has neither entry nor shards", "give one, or both")


def _epoch(name: str, values: Stored) -> int:
    try:
        return read_shards(name, values)[2]
    except ConfigError:
        return 0


def _by_component(values: Stored, *, strict: bool = True) -> dict[str, dict[str, Any]]:
    """Return what is stored by component's name and key.

    Raises:
        InvalidEntryError: a key belongs to no component (if it is strict).
    """
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name = _owner(key)
        if not any(check_name(name, key)):
            found.setdefault(name, {})[key] = value
        elif strict:
            raise InvalidEntryError(
                f"{key!r} belongs to no component: {name!r} cannot be a component's name",
                "delete the key, or rename it outside of config:redis: and config:shards:",
            )
    return found


def _count_by_hand(
    client: Any, stored: Mapping[str, dict[str, Any]], like: Mapping[str, Component]
) -> dict[str, ByHand]:
    """Add the count to what is stored of components that were written by hand; return which.

    The history of a push keeps that count, so that a rollback knows it.
    """
    names = [name for name, own in stored.items() if own.keys() - {entry_key(name)}]
    names = [name for name in names if shards_key(name) not in stored[name]]
    marks = _get(client, [EPOCH_KEY, PUSHED_KEY, *map(pushed_key, names)]) if names else {}
    found = ((name, by_hand_of(name, {**stored[name], **marks})) for name in names)
    by_hand = {name: each for name, each in found if each is not None}
    for name, each in by_hand.items():
        stored[name].update(_count_texts({name: each}, like))
    return by_hand


def _count_texts(by_hand: Mapping[str, ByHand], like: Mapping[str, Component]) -> dict[str, str]:
    """Return the counts of those entries by hand that have no gap, as a push would store them."""
    texts = {}
    for name, each in by_hand.items():
        count, other = len(each.numbers), like.get(name)
        if each.is_exactly(count):
            same = other is not None and len(other.shards) == count
            rule = other.placement if other is not None and same else DEFAULT
            described = {"shards": count, "placement": rule, "epoch": 0}
            texts[shards_key(name)] = json.dumps(described)
    return texts


def _component_of(name: str, stored: Stored, by_hand: Mapping[str, ByHand]) -> Component | None:
    component = whole_component_of(name, stored)
    return component and replace(component, by_hand=by_hand.get(name))


def _owner(key: str) -> str:
    """Return the name of the component that a key belongs to."""
    if key.startswith(_SHARDS):
        return key.removeprefix(_SHARDS)
    return re.sub(r":(0|[1-9][0-9]{0,8})\Z", "", key.removeprefix(_ENTRY))


def _scan(client: Any) -> list[str]:
    """Return the keys of all entries and counts."""
    found: set[str] = set()
    cursor = 0
    while True:
        command = ("SCAN", cursor, "MATCH", "config:[rs]*", "COUNT", _CHUNK)
        cursor, keys = client.execute_command(*command, **{NEVER_DECODE: True})
        # Whatever is not UTF-8 is no component's; the escapes are what names it in the message.
        names = [bytes(key).decode(errors="backslashreplace") for key in keys]
        found.update(name for name in names if name.startswith((_ENTRY, _SHARDS)))
        if not int(cursor):
            return sorted(found)


def _get(client: Any, keys: Sequence[str]) -> dict[str, bytes | None]:
    values: dict[str, bytes | None] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        values.update(zip(chunk, _mget(client, chunk), strict=True))
    return values


def _mget(client: Any, keys: Sequence[str]) -> list[bytes | None]:
    values: list[bytes | None] = client.execute_command("MGET", *keys, **{NEVER_DECODE: True})
    return values


def _check_types(client: Any, values: Stored) -> None:
    """Raise for a key that is there and has no text; MGET says nothing of such keys."""
    for key, value in values.items():
        if value is None and client.exists(key):
            raise InvalidEntryError(f"{key} holds no text", f"delete the key and {PUSH_AGAIN}")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise our errors in place of redis-py's."""
    try:
        yield
    except RedisError as error:
        text, remedy = meaning(error) or (error, "start it, or name another one")
        raise ConfigServerError(f"the config server cannot be used: {text}", remedy) from error
