"""``shardkit status``: every shard, its server, and the server's health."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import click

from shardkit.cli.commands.status_survey import (
    EVICTS,
    FULL,
    LOADING,
    OK,
    PROBLEMS,
    SHARED,
    SLOW,
    STALE,
    ServerHealth,
    ShardStatus,
    survey,
)
from shardkit.cli.options import (
    ShardOptions,
    common_options,
    components,
    config_option,
    connected,
    examples,
    opened,
    shards_options,
    timeout_option,
)
from shardkit.cli.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    Cell,
    Column,
    Output,
    Styled,
    Table,
    number,
    wordy,
)
from shardkit.cli.rows import Field, column_only, json_row, json_rows, table_of
from shardkit.cli.text import counted, shard_list, size
from shardkit.config.entry import Entry
from shardkit.config.store import read_epoch
from shardkit.errors import ConfigError, few
from shardkit.network.server_queries import TIMEOUT

CONFIG_SERVER = "config server"
_WIDE = 110  # columns from which on there is room for details


@click.command(
    short_help="Show every shard and its server.",
    epilog=examples(
        "shardkit status -c configs/local.yaml",
        "shardkit status -c redis://config.internal unique timelines",
        "shardkit status --servers --watch 2",
        "shardkit status --check || alert",
        "shardkit status --json | jq '.shards[] | select(.state != \"ok\")'",
    ),
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@shards_options
@click.option("--servers", is_flag=True, help="Show one row per server, not per shard.")
@click.option(
    "--check",
    is_flag=True,
    help="Print one line, for probes; exit with 0, 1 (a warning) or 2 (critical).",
)
@timeout_option(TIMEOUT)
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Repeat at this interval until Ctrl-C.",
)
@common_options
def status(
    names: Sequence[str],
    where: str | None,
    sharding: ShardOptions,
    servers: bool,
    check: bool,
    timeout: float,
    watch: float | None,
    as_json: bool,
) -> int:
    """Show every shard, its server, and the server's health.

    All servers are queried in parallel; a dead one does not delay the others. Keys are those of the
    shard's database, the other figures those of the whole server; ms is the slowest of four PINGs.
    Looks at roles, databases, maxmemory, shards that share a database and whether the config server
    went back in time, not at data. Exits with 1 if anything is wrong. With --check it exits with 2
    if a shard cannot be used, and with 1 for everything else that is wrong.
    """
    output = Output(as_json)
    if check:
        return _check(output, *_survey(where, names, sharding, timeout))
    if watch is None:
        return _show(output, servers, *_survey(where, names, sharding, timeout))
    code = 0
    try:
        with output.live() as live:
            while True:
                rows, broken = _survey(where, names, sharding, timeout)
                code = _code(rows, broken)
                if live is not None:
                    output.redraw(live, _table(output, rows, servers), *_summary(rows, broken))
                elif as_json:
                    output.document(_document(output, rows, broken), indent=None)
                else:
                    _show(output, servers, rows, broken)
                time.sleep(watch)
    except KeyboardInterrupt:
        return code


_HARMLESS = (OK, EVICTS)
_USABLE = (*_HARMLESS, SLOW, STALE, FULL, SHARED)


def _check(output: Output, rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> int:
    """Say in one line how it is, as monitoring systems want it; return the exit code."""
    unusable = [row for row in rows if row.health.state not in _USABLE]
    doubtful = [row for row in rows if row.health.state not in _HARMLESS and row not in unusable]
    code = 2 if unusable or broken else int(bool(doubtful))
    if output.as_json:
        output.document({**_document(output, rows, broken), "code": code})
        return code
    found = [
        f"{_name(row)} {row.health.server} {PROBLEMS[row.health.state]}"
        for row in [*unusable, *doubtful]
    ]
    found += [f"{name} cannot be used: {error}" for name, error in broken.items()]
    text = few(found, "; ") if found else counted(len(rows), "shard")
    output.line(f"{('OK', 'WARNING', 'CRITICAL')[code]}: {text}")
    return code


def _survey(
    where: str | None, names: Sequence[str], sharding: ShardOptions, timeout: float
) -> tuple[list[ShardStatus], dict[str, ConfigError]]:
    with opened(where) as topology:
        found, broken = components(topology, names, sharding)
        epoch = _epoch(topology.config_server)
    server = None if names else topology.config_server
    rows = survey(found.values(), server, timeout)
    newest = max((_witnessed(row) for row in rows), default=0)
    if epoch is not None and newest > epoch:
        broken[CONFIG_SERVER] = ConfigError(
            f"it went back in time: its servers have witnessed epoch {newest}, and it is at "
            f"{epoch}: it was restored from an old snapshot, or lost its data",
            "push the newest shard map: shardkit config push MAP --restored",
        )
    return rows, broken


def _epoch(config_server: Entry | None) -> int | None:
    """Return the config server's epoch; None if there is none, or it cannot be read."""
    if config_server is None:
        return None
    try:
        with connected(config_server) as client:
            return read_epoch(client)
    except ConfigError:
        return None


def _witnessed(row: ShardStatus) -> int:
    """Return the latest epoch that a shard's database has witnessed of its component."""
    if row.shard is None:
        return 0
    return row.health.witnessed.get(row.database, {}).get(row.shard.component, 0)


def _code(rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> int:
    return int(bool(broken) or any(row.health.state not in (OK, EVICTS) for row in rows))


def _show(
    output: Output, servers: bool, rows: Sequence[ShardStatus], broken: dict[str, ConfigError]
) -> int:
    if output.as_json:
        output.document(_document(output, rows, broken))
    else:
        output.table(_table(output, rows, servers))
        output.line()
        for line in _summary(rows, broken):
            output.line(*line)
    return _code(rows, broken)


# ---- for people


class _StatusRow(Protocol):
    """What one row shows: a shard, or with --servers a server."""

    @property
    def health(self) -> ServerHealth: ...
    @property
    def keys(self) -> int | None: ...


@dataclass(frozen=True)
class _ServerStatus:
    """A server, and the shards that live on it."""

    health: ServerHealth
    shards: str
    keys: int | None


def _table(output: Output, rows: Sequence[ShardStatus], servers: bool) -> Table:
    wide = output.width >= _WIDE
    if not servers:
        return table_of(_shard_fields(output, rows, wide), rows)
    fields: tuple[Field[_ServerStatus], ...] = (
        column_only(wordy("server"), lambda row: row.health.server),
        column_only(wordy("shards"), lambda row: row.shards),
        *_health_fields(wide),
    )
    return table_of(fields, _by_server(rows))


def _shard_fields(
    output: Output, rows: Sequence[ShardStatus], wide: bool
) -> tuple[Field[ShardStatus], ...]:
    # In a terminal, where nobody greps, a shard's name is shown once and not for each node.
    repeated = {id(row) for above, row in pairwise(rows) if row.shard == above.shard}

    def name(row: ShardStatus) -> Cell:
        node = row.node if wide else row.node.removeprefix("slots ")
        if output.interactive and id(row) in repeated:
            return Styled(f"  {node}", FAINT)
        return " ".join(filter(None, [_name(row), node]))

    return (
        Field("shard", lambda row: str(row.shard), wordy("shard"), name),
        Field("component", lambda row: row.shard and row.shard.component),
        Field("number", lambda row: row.shard and row.shard.number),
        Field("node", lambda row: row.node or None),
        *_PLACE_FIELDS,
        *_health_fields(wide),
    )


def _health_fields(wide: bool) -> tuple[Field[_StatusRow], ...]:
    def version(row: _StatusRow) -> str:
        health = row.health
        return f"{health.software} {health.version}".strip() if wide else health.version

    def memory(row: _StatusRow) -> Cell:
        return None if row.health.memory is None else size(row.health.memory)

    def latency(row: _StatusRow) -> float | None:
        return None if row.health.latency is None else round(row.health.latency, 3)

    return (
        Field("state", lambda row: row.health.state),
        Field("reason", lambda row: row.health.reason or None),
        Field("software", lambda row: row.health.software or None),
        Field("version", lambda row: row.health.version or None, Column("version"), version),
        Field("role", lambda row: row.health.role or None, Column("role"), _role),
        Field("keys", lambda row: row.keys, number("keys")),
        Field("memory", lambda row: row.health.memory, number("memory"), memory),
        Field("connections", lambda row: row.health.connections, number("conns")),
        Field("ops_per_second", lambda row: row.health.ops, number("ops/s")),
        Field("latency_ms", latency, number("ms")),
    )


def _role(row: _StatusRow) -> Cell:
    health = row.health
    if health.state == OK:
        return Styled(health.role, FAINT) if health.role == "replica" else health.role
    return Styled(health.state, DOUBTFUL if health.state in (EVICTS, LOADING, SLOW, STALE) else BAD)


def _address(row: ShardStatus) -> str:
    """Return where a shard is: its server, with the database unless that is 0."""
    server = row.health.server
    return f"{server}/{row.database}" if row.database else server


_PLACE_FIELDS: tuple[Field[ShardStatus], ...] = (
    Field("address", lambda row: row.address),
    Field("server", lambda row: row.health.server, wordy("server"), _address),
    Field("database", lambda row: row.database),
)


def _by_server(rows: Sequence[ShardStatus]) -> Iterator[_ServerStatus]:
    groups: dict[tuple[str, str], list[ShardStatus]] = {}
    for row in rows:
        groups.setdefault((row.health.server, row.health.state), []).append(row)
    for group in groups.values():
        databases = {row.database: row.keys for row in group}
        known = [keys for keys in databases.values() if keys is not None]
        yield _ServerStatus(group[0].health, _names(group), sum(known) if known else None)


def _names(rows: Sequence[ShardStatus]) -> str:
    config = [CONFIG_SERVER] if any(row.shard is None for row in rows) else []
    shards = [row.shard for row in rows if row.shard is not None]
    return ", ".join([*config, shard_list(shards)] if shards else config)


def _severity(health: ServerHealth) -> str:
    return DOUBTFUL if health.state == EVICTS else BAD


def _name(row: ShardStatus) -> str:
    return CONFIG_SERVER if row.shard is None else str(row.shard)


def _summary(rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> Iterator[Styled]:
    """Yield a line for each server and each component that has a problem."""
    unhealthy: dict[ServerHealth, list[ShardStatus]] = {}
    for row in rows:
        if row.health.state != OK:
            bare = ServerHealth(row.health.state, row.health.reason, row.health.server)
            unhealthy.setdefault(bare, []).append(row)
    for health, group in unhealthy.items():
        why = f": {health.reason}" if health.reason else ""
        yield Styled(
            f"{health.server} {PROBLEMS[health.state]}{why} ({_names(group)})", _severity(health)
        )
    for name, error in broken.items():
        yield Styled(f"{name} cannot be used: {error}", BAD)
    if not unhealthy and not broken:
        servers = len({row.health.server for row in rows})
        looked_at = "roles, databases, memory and response times are good; data was not looked at"
        yield Styled(f"{counted(servers, 'server')}: {looked_at}", FAINT)


# ---- for programs


def _document(
    output: Output, rows: Sequence[ShardStatus], broken: dict[str, ConfigError]
) -> dict[str, Any]:
    config_server = next((row for row in rows if row.shard is None), None)
    described: tuple[Field[ShardStatus], ...] = (*_PLACE_FIELDS, *_health_fields(wide=True))
    shards = [row for row in rows if row.shard is not None]
    return {
        "ok": not _code(rows, broken),
        "config_server": config_server and json_row(described, config_server),
        "shards": json_rows(_shard_fields(output, rows, wide=True), shards),
        "broken": {name: str(error) for name, error in broken.items()},
    }
