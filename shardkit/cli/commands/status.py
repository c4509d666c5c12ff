"""``shardkit status``: every shard, its server, and how that is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from shardkit.cli.commands.status_survey import (
    LOADING,
    OK,
    REFUSED,
    STALE,
    UNREACHABLE,
    UNUSABLE,
    ServerHealth,
    ShardStatus,
    survey,
)
from shardkit.cli.options import (
    common_options,
    components,
    config_option,
    examples,
    opened,
)
from shardkit.cli.output import BAD, DOUBTFUL, FAINT, Cell, Output, Styled, Table, number, wordy
from shardkit.cli.server_queries import TIMEOUT
from shardkit.cli.text import counted, shard_list, size
from shardkit.errors import ConfigError

CONFIG_SERVER = "config server"
_WIDE = 110  # from so many columns on, there is room for what is nice to have


@click.command(
    short_help="Show every shard and its server.",
    epilog=examples(
        "shardkit status -c configs/local.yaml",
        "shardkit status -c redis://config.internal unique timelines",
        "shardkit status --servers --watch 2",
        "shardkit status --json | jq '.shards[] | select(.state != \"ok\")'",
    ),
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@click.option("--servers", is_flag=True, help="One row a server, and not one a shard.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.01),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long a server has to answer.",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Ask again and again, until Ctrl-C.",
)
@common_options
def status(
    names: Sequence[str],
    where: str | None,
    servers: bool,
    timeout: float,
    watch: float | None,
    as_json: bool,
) -> int:
    """Show every shard: its server, and how that is.

    All servers are asked at the same time; one that is dead does not hold up the others. Keys are
    those of the shard's database; the other figures are the whole server's. Exits with 1 if
    anything is not as it should be.
    """
    output = Output(as_json)
    if watch is None:
        return _show(output, servers, *_look(where, names, timeout))
    code = 0
    try:
        with output.live() as live:
            while True:
                rows, broken = _look(where, names, timeout)
                code = _code(rows, broken)
                if live is not None:
                    output.redraw(live, _grid(output, rows, servers), *_remarks(rows, broken))
                elif as_json:
                    output.document(_document(rows, broken), indent=None)
                else:
                    _show(output, servers, rows, broken)
                time.sleep(watch)
    except KeyboardInterrupt:
        return code


def _look(
    where: str | None, names: Sequence[str], timeout: float
) -> tuple[list[ShardStatus], dict[str, ConfigError]]:
    with opened(where) as topology:
        found, broken = components(topology, names)
    server = None if names else topology.config_server
    return survey(found.values(), server, timeout), broken


def _code(rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> int:
    return int(bool(broken) or any(row.health.state != OK for row in rows))


def _show(
    output: Output, servers: bool, rows: Sequence[ShardStatus], broken: dict[str, ConfigError]
) -> int:
    if output.as_json:
        output.document(_document(rows, broken))
    else:
        output.table(_grid(output, rows, servers))
        remarks = list(_remarks(rows, broken))
        if remarks:
            output.line()
        for remark in remarks:
            output.line(*remark)
    return _code(rows, broken)


# ---- for people


def _grid(output: Output, rows: Sequence[ShardStatus], servers: bool) -> Table:
    wide = output.width >= _WIDE
    grid = Table.of(
        wordy("server" if servers else "shard"),
        wordy("shards" if servers else "server"),
        "version",
        "role",
        number("keys"),
        number("memory"),
        number("conns"),
        number("ops/s"),
        number("ms"),
    )
    for names, row, keys in _by_server(rows) if servers else _by_shard(output, rows):
        health = row.health
        version = f"{health.software} {health.version}".strip() if wide else health.version
        grid.row(
            *names,
            version,
            _role(row),
            keys,
            None if health.memory is None else size(health.memory),
            health.connections,
            health.ops,
            health.latency,
        )
    return grid


def _role(row: ShardStatus) -> Cell:
    health = row.health
    if health.state == OK:
        return Styled(health.role, FAINT) if health.role == "replica" else health.role
    return Styled(health.state, DOUBTFUL if health.state in (LOADING, STALE) else BAD)


def _by_shard(
    output: Output, rows: Sequence[ShardStatus]
) -> Iterator[tuple[tuple[Cell, Cell], ShardStatus, int | None]]:
    above: object = ()
    for row in rows:
        node = row.node if output.width >= _WIDE else row.node.removeprefix("slots ")
        name: Cell = " ".join(filter(None, [_name(row), node]))
        if output.interactive and row.shard == above:  # where nobody greps, less is clearer
            name = Styled(f"  {node}", FAINT)
        yield (name, _place(row)), row, row.keys
        above = row.shard


def _place(row: ShardStatus) -> str:
    """Return where a shard is: its server, with the database where it is another than 0."""
    server = row.health.server
    return f"{server}/{row.database}" if row.database else server


def _by_server(
    rows: Sequence[ShardStatus],
) -> Iterator[tuple[tuple[Cell, Cell], ShardStatus, int | None]]:
    groups: dict[tuple[str, str], list[ShardStatus]] = {}
    for row in rows:
        groups.setdefault((row.health.server, row.health.state), []).append(row)
    for (server, _), group in groups.items():
        databases = {row.database: row.keys for row in group}
        known = [keys for keys in databases.values() if keys is not None]
        yield (server, _names(group)), group[0], sum(known) if known else None


def _names(rows: Sequence[ShardStatus]) -> str:
    config = [CONFIG_SERVER] if any(row.shard is None for row in rows) else []
    shards = [row.shard for row in rows if row.shard is not None]
    return ", ".join([*config, shard_list(shards)] if shards else config)


def _name(row: ShardStatus) -> str:
    return CONFIG_SERVER if row.shard is None else str(row.shard)


_SAID = {
    LOADING: "loads its data",
    REFUSED: "refuses us",
    STALE: "has lost its master",
    UNREACHABLE: "cannot be reached",
    UNUSABLE: "is not asked",
}


def _remarks(rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> Iterator[Styled]:
    """Yield a line for each server, and each component, that is not as it should be."""
    ill: dict[ServerHealth, list[ShardStatus]] = {}
    for row in rows:
        if row.health.state != OK:
            bare = ServerHealth(row.health.state, row.health.reason, row.health.server)
            ill.setdefault(bare, []).append(row)
    for health, group in ill.items():
        why = f": {health.reason}" if health.reason else ""
        yield Styled(f"{health.server} {_SAID[health.state]}{why} ({_names(group)})", BAD)
    for name, error in broken.items():
        yield Styled(f"{name} cannot be used: {error}", BAD)
    if not ill and not broken:
        servers = len({row.health.server for row in rows})
        yield Styled(f"{counted(servers, 'server')}, all well", FAINT)


# ---- for programs


def _document(rows: Sequence[ShardStatus], broken: dict[str, ConfigError]) -> dict[str, Any]:
    return {
        "ok": not _code(rows, broken),
        "config_server": next((_json(row) for row in rows if row.shard is None), None),
        "shards": [_json(row) for row in rows if row.shard is not None],
        "broken": {name: str(error) for name, error in broken.items()},
    }


def _json(row: ShardStatus) -> dict[str, Any]:
    health = row.health
    named: dict[str, Any] = {}
    if row.shard is not None:
        named = {
            "shard": str(row.shard),
            "component": row.shard.component,
            "number": row.shard.number,
            "node": row.node or None,
        }
    return named | {
        "address": row.address,
        "server": health.server,
        "database": row.database,
        "state": health.state,
        "reason": health.reason or None,
        "software": health.software or None,
        "version": health.version or None,
        "role": health.role or None,
        "keys": row.keys,
        "memory": health.memory,
        "connections": health.connections,
        "ops_per_second": health.ops,
        "latency_ms": None if health.latency is None else round(health.latency, 3),
    }
