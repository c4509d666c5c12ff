"""Compares a shard map with the config server, and shows what a push would change.

::

    config server ─► components as they are ┐                 ┌─► which entries and fields change
    shard map     ─► components as wanted   ┼─► config.diff ──┤
    real servers  ─► SCAN: some keys        ┘                 └─► how many keys would move
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's own

from shardkit.admin.check import CONFIG_KEYS
from shardkit.cli.options import (
    common_options,
    config_server,
    connected,
    examples,
    sample_option,
    target_option,
)
from shardkit.cli.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Cell,
    Column,
    Output,
    Styled,
    Table,
    wordy,
)
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import percent, reason, server_of, shard_list
from shardkit.config.component import Component, entry_key
from shardkit.config.diff import ComponentChange, FieldChange, diff, sample_keys, with_counts
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import components_at, read_component, read_components, read_epoch
from shardkit.errors import ConfigError, ConfigServerError
from shardkit.network.server_queries import ServerErrors, client_of, query_all
from shardkit.operations.commands import Key, Shard

DIFFERS = 3  # what `diff --exit-code` exits with


_PAGE = 1000  # keys of one SCAN
_MAX_PAGES = 10  # pages to search for a key that is not configuration

_COLOURS = {"added": GOOD, "changed": DOUBTFUL, "removed": BAD}


@dataclass(frozen=True)
class Difference:
    """What a push of a map would change.

    Attributes:
        changes: one for each component of the push, by name.
        sample: by component, the keys whose placement was compared.
        real: the components whose sample comes from their servers.
        left: components that the map does not describe and the push does not touch.
        epoch: `config:epoch` before the push.
        current: the components of the push as they are on the config server, if readable.
    """

    changes: Sequence[ComponentChange]
    sample: Mapping[str, Sequence[Key]]
    real: frozenset[str]
    left: Sequence[str]
    epoch: int
    current: Mapping[str, Component]

    @property
    def is_empty(self) -> bool:
        """Whether the push would change nothing."""
        return all(change.kind == "unchanged" for change in self.changes)


def compare(client: redis.Redis, shard_map: ShardMap, prune: bool, size: int) -> Difference:
    """Find what a push would change.

    Args:
        client: a client of the config server.
        shard_map: the map to push.
        prune: whether the push removes components that the map does not describe.
        size: how many keys of each component to sample.

    Raises:
        ConfigServerError: the config server cannot be read.
    """
    wanted = shard_map.components
    epoch = read_epoch(client)
    current, broken = _current(client, wanted)
    left = sorted(current.keys() - wanted.keys())
    if not prune:
        current = {name: current[name] for name in current.keys() & wanted.keys()}
    moving = [c.component for c in diff(current, wanted, []) if c.kind == "changed" and c.replaced]
    real = {name: keys for name in moving if (keys := _real_keys(current[name], size))}
    sample = {name: real.get(name) or sample_keys(size) for name in moving}
    changes = diff(current, wanted, {**dict.fromkeys(wanted, ()), **sample})
    changes = with_counts(changes, current)
    for n, change in enumerate(changes):
        if change.component in broken:
            after = change.shards_after, change.placement_after
            changes[n] = ComponentChange(
                change.component, "changed", (), -1, after[0], "", after[1]
            )
    return Difference(changes, sample, frozenset(real), [] if prune else left, epoch, current)


def between(client: redis.Redis, since: int, until: int, size: int) -> Difference:
    """Find what changed between two pushes; keys that moved are counted of a synthetic sample.

    Raises:
        ConfigError: the history does not reach back so far.
        ConfigServerError: the config server cannot be read.
    """
    before, after = components_at(client, since), components_at(client, until)
    changes = diff(before, after, sample_keys(size))
    moved = [change.component for change in changes if change.replaced]
    sample = dict.fromkeys(moved, sample_keys(size))
    return Difference(changes, sample, frozenset(), [], since, before)


def holds_data(shard_map: ShardMap) -> Callable[[Component], bool]:
    """Return the function by which `shardkit.config.store.push` checks if a component holds data.

    It queries the component's current servers. For a component that stays these are its shards, or
    its entry if it has none, because only their keys would be placed by another rule. For one to be
    removed, a database that another component of the map uses as well does not count: its keys
    cannot be told apart, and most likely are the other's.
    """
    used = {e.address for c in shard_map.components.values() for _, e in c.entries()}

    def holds(component: Component) -> bool:
        entries = _entries(component)
        if component.name in shard_map.components and component.shards:
            entries = {shard: e for shard, e in entries.items() if shard.number is not None}
        if component.name not in shard_map.components:
            entries = {shard: e for shard, e in entries.items() if e.address not in used}
        answers = _ask(entries, has_keys)
        if any(answer is True for answer in answers.values()):
            return True
        for shard, answer in answers.items():
            if isinstance(answer, ServerErrors):
                server = entries[shard].address
                raise ConnectionError(f"{shard} ({server}): {reason(answer)}") from answer
            if isinstance(answer, Exception):
                raise answer
        return False

    return holds


def _current(
    client: redis.Redis, wanted: Mapping[str, Component]
) -> tuple[dict[str, Component], dict[str, ConfigError]]:
    """Read all components; if any is broken, read the wanted ones one by one."""
    try:
        return read_components(client, wanted), {}
    except ConfigServerError:
        raise
    except ConfigError:
        pass
    found: dict[str, Component] = {}
    broken: dict[str, ConfigError] = {}
    for name, like in wanted.items():
        try:
            component = read_component(client, name, like)
        except ConfigServerError:
            raise
        except ConfigError as error:
            broken[name] = error
        else:
            found |= {} if component is None else {name: component}
    return found, broken


# ---- queries to the servers


def _entries(component: Component) -> dict[Shard, Entry]:
    """Return a component's entries, one for each database."""
    found: dict[Entry, Shard] = {}
    for shard, entry in component.entries():
        found.setdefault(entry, shard)
    return {shard: entry for entry, shard in found.items()}


def _ask(
    entries: Mapping[Shard, Entry], query: Callable[[Any], Any]
) -> dict[Shard, Any | Exception]:
    def ask(shard: Shard) -> Any:
        with client_of(entries[shard].resolved(entry_key(*shard))) as client:
            return query(client)

    return query_all({shard: lambda shard=shard: ask(shard) for shard in entries})  # type: ignore[misc]


def has_keys(client: Any) -> bool:
    """Whether a client's database holds a key that is not configuration.

    Cost: one exchange for many keys or none, a few for few keys.
    """
    size = client.dbsize()
    if not size or size > _MAX_PAGES * _PAGE:
        return bool(size)
    return any(True for _ in data_keys(client))


def data_keys(client: Any) -> Iterator[bytes]:
    """Yield the keys of a client's database that are not configuration."""
    return (key for key in client.scan_iter(count=_PAGE) if not key.startswith(CONFIG_KEYS))


def _real_keys(component: Component, size: int) -> list[Key]:
    """Return keys of a component, equally many from each database; none if it is unreachable."""
    entries = _entries(component)
    if component.shards:
        entries = {shard: e for shard, e in entries.items() if shard.number is not None}
    share = -(-size // len(entries))
    answers = _ask(entries, lambda client: list(islice(data_keys(client), share)))
    lists = [answer for answer in answers.values() if isinstance(answer, list)]
    return [key for keys in lists for key in keys]


# ---- for people


def show(output: Output, server: str, difference: Difference) -> None:
    """Show what a push to a config server would change."""
    at = f", epoch {difference.epoch}" if difference.epoch else ""
    output.line(f"config server {server}{at}")
    output.line()
    table = table_of(_change_fields(difference), difference.changes)
    for name in difference.left:
        table.row(name, Styled("not in the map: stays", FAINT), None, None, None)
    output.table(table.without_empty())
    entries = Table.of(wordy("entry"), "what", wordy("now"), wordy("then"))
    for change in difference.changes:
        for row in _entry_rows(change.fields):
            entries.row(*row)
    if entries.rows:
        output.line()
        output.table(entries.without_empty())


def _change_fields(difference: Difference) -> tuple[Field[ComponentChange], ...]:
    def kind(change: ComponentChange) -> Cell:
        text = "same" if change.kind == "unchanged" else change.kind
        return Styled(text, _COLOURS.get(change.kind, FAINT))

    def shards(change: ComponentChange) -> str:
        return _change(change, _count(change.shards_before), _count(change.shards_after))

    def placement(change: ComponentChange) -> str:
        return _change(change, change.placement_before, change.placement_after)

    return (
        Field("component", lambda change: change.component, Column("component")),
        Field("change", lambda change: change.kind, Column("change"), kind),
        Field(
            "shards",
            lambda change: {"before": change.shards_before, "after": change.shards_after},
            Column("shards"),
            shards,
        ),
        Field(
            "placement",
            lambda change: {
                "before": change.placement_before or None,
                "after": change.placement_after or None,
            },
            Column("placement"),
            placement,
        ),
        Field(
            "sample",
            lambda change: _sample(difference, change),
            wordy("keys that move"),
            lambda change: _moves(difference, change),
        ),
        Field("epoch", lambda change: change.epoch or None),
        Field("fields", lambda change: json_rows(_VALUE_FIELDS, change.fields)),
    )


def _count(number: int) -> str:
    return {-1: "unreadable", 0: ""}.get(number, f"{number:,}")


def _change(change: ComponentChange, before: str, after: str) -> str:
    if change.kind in ("added", "removed") or before == after:
        return before or after
    return f"{before or 'none'} → {after or 'none'}"


def _moves(difference: Difference, change: ComponentChange) -> Cell:
    if change.component not in difference.sample:
        return None
    kind = "" if change.component in difference.real else "synthetic "
    share = percent(change.moved, change.sampled)
    return f"{share}: {change.moved:,} of {change.sampled:,} {kind}keys"


def _entry_rows(fields: Sequence[FieldChange]) -> Iterator[list[Cell]]:
    """Yield rows that group equal changes of many entries, and whole entries by server."""
    groups: dict[tuple[str, str | None, str | None], list[Shard]] = {}
    for change in fields:
        before, after = change.before, change.after
        if not change.field:
            before, after = (a and server_of(a) for a in (before, after))
        groups.setdefault((change.field, before, after), []).append(_shard(change.key))
    for (field, before, after), shards in groups.items():
        name = shard_list(shards)
        if field:
            yield [name, field, before, after]
        elif before is None:
            yield [name, Styled("added", GOOD), None, after]
        else:
            yield [name, Styled("removed", BAD), before, None]


def _shard(key: str) -> Shard:
    name = key.removeprefix(entry_key(""))
    found = re.fullmatch(r"(.+):(\d+)", name)
    return Shard(found[1], int(found[2])) if found else Shard(name)


# ---- for programs


def document(
    server: str, difference: Difference, changes: Sequence[ComponentChange]
) -> dict[str, Any]:
    """Return the changes of a push for JSON."""
    return {
        "config_server": server,
        "epoch": difference.epoch,
        "changes": json_rows(_change_fields(difference), changes),
        "not_in_map": list(difference.left),
    }


def _sample(difference: Difference, change: ComponentChange) -> dict[str, Any] | None:
    if change.component not in difference.sample:
        return None
    real = change.component in difference.real
    return {"keys": change.sampled, "moved": change.moved, "real": real}


def _value(change: FieldChange, text: str | None) -> Any:
    return json.loads(text) if change.field and text is not None else text


_VALUE_FIELDS: tuple[Field[FieldChange], ...] = (
    Field("key", lambda change: change.key),
    Field("field", lambda change: change.field or None),
    Field("before", lambda change: _value(change, change.before)),
    Field("after", lambda change: _value(change, change.after)),
)


# ---- the command


@click.command(
    "diff",
    short_help="Show what a push would change.",
    epilog=examples(
        "shardkit config diff configs/production.yaml",
        "shardkit config diff -c redis://staging configs/production.yaml --exit-code",
        "shardkit config diff 16 17",
    ),
)
@click.argument("shard_map", metavar="MAP|EPOCH", type=click.Path(path_type=Path))
@click.argument("until", metavar="[EPOCH]", required=False, type=click.IntRange(min=0))
@target_option
@sample_option
@click.option("--prune", is_flag=True, help="Like `push --prune`.")
@click.option("--exit-code", is_flag=True, help=f"Exit with {DIFFERS} if there is a difference.")
@common_options
def diff_command(
    shard_map: Path,
    until: int | None,
    where: str | None,
    size: int,
    prune: bool,
    exit_code: bool,
    as_json: bool,
) -> int:
    """Show what a push of MAP would change, and how many keys would move.

    With two epochs in place of MAP, show what changed between them.

    If a component's shard count or placement changes, a sample of its keys is placed by the old and
    the new rule. If its servers are empty or cannot be reached, the sample is synthetic.
    """
    output = Output(as_json)
    if until is None:
        wanted = ShardMap.load(shard_map)
        server = config_server(where, wanted)
        with connected(server) as client:
            difference = compare(client, wanted, prune, size)
    else:
        since = str(shard_map)
        if not since.isdecimal():
            raise click.UsageError(f"{since} {until}: give two epochs, or a map alone")
        server = config_server(where)
        with connected(server) as client:
            difference = between(client, int(since), until, size)
    if as_json:
        output.document(document(server.address, difference, difference.changes))
    else:
        show(output, server.address, difference)
        if difference.is_empty:
            output.line()
            what = "a push would change" if until is None else "those pushes changed"
            output.line(f"{what} nothing", FAINT)
    return DIFFERS if exit_code and not difference.is_empty else 0
