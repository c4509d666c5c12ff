"""``shardkit status``: every shard, its server, and the server's health."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from redis.exceptions import NoPermissionError

from shardkit.cli import options as given
from shardkit.cli.options import ShardOptions, command, opened
from shardkit.cli.output import BAD, DIM, WARN, Cell, Column, Output, Styled, Table, number, wordy
from shardkit.cli.rows import Field, column_only, json_row, json_rows, table_of
from shardkit.cli.text import shard_list, size
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_epoch
from shardkit.errors import ConfigError, counted, few
from shardkit.kit.config_client import config_client, stale_map
from shardkit.network import rules
from shardkit.network.server_queries import TIMEOUT
from shardkit.network.survey import ServerFacts, survey, targets_of
from shardkit.operations.commands import Shard

CONFIG_SERVER = "config server"
_WIDE = 110  # columns from which on there is room for details


@command(
    "shardkit status -c configs/local.yaml",
    "shardkit status -c redis://config.internal unique timelines",
    "shardkit status --servers --watch 2",
    "shardkit status --check || alert",
    "shardkit status --json | jq '.shards[] | select(.state != \"ok\")'",
)
def status(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    servers: bool = given.flag("Show one row per server, not per shard."),
    check: bool = given.flag(
        "Print one line, for probes; exit with 0, 1 (a warning) or 2 (critical)."
    ),
    timeout: float = given.timeout(TIMEOUT),
    watch: float | None = given.seconds(None, "Repeat at this interval until Ctrl-C.", 0.1),
) -> int:
    """Show every shard, its server, and the server's health.

    All servers are queried in parallel; a dead one does not delay the others. Keys are those of the
    shard's database, the other figures those of the whole server; ms is the slowest of four PINGs.
    Checks roles, databases, memory, fences, shards that share a database, unfinished moves and
    whether the config server went back in time, not data: see `shardkit check`. Exits with 1 if
    anything is wrong; warnings do not count. With --check it exits with 2 if a shard cannot be
    used, and with 1 for everything else that is wrong.
    """
    if check:
        return _check(output, _survey(where, names, sharding, timeout))
    if watch is None:
        return _show(output, servers, _survey(where, names, sharding, timeout))
    code = 0
    try:
        with output.live() as live:
            while True:
                fleet = _survey(where, names, sharding, timeout)
                code = int(not fleet.ok)
                if live is not None:
                    output.redraw(live, _table(output, fleet.rows, servers), *_summary(fleet))
                elif output.as_json:
                    output.document(_document(output, fleet), indent=None)
                else:
                    _show(output, servers, fleet)
                time.sleep(watch)
    except KeyboardInterrupt:
        return code


@dataclass(frozen=True)
class _Fleet:
    """The judged entries, and what is wrong with components and the config server."""

    rows: Sequence[rules.JudgedEntry]
    findings: Sequence[rules.CheckFinding]
    broken: dict[str, ConfigError]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; there may be warnings."""
        return not self.broken and self.severity < rules.Severity.PROBLEM

    @property
    def severity(self) -> int:
        of_findings = (
            rules.Severity.WARNING if finding.warning else rules.Severity.PROBLEM
            for finding in self.findings
        )
        return max((*(row.severity for row in self.rows), *of_findings), default=0)


def _survey(
    where: str | None, names: Sequence[str], sharding: ShardOptions, timeout: float
) -> _Fleet:
    with opened(where) as topology:
        chosen, broken = topology.components(names, sharding)
        server = topology.config_server
        config, stale = _config_facts(server, topology.shard_map)
    rows = survey(targets_of(chosen.values(), None if names else server), timeout)
    judgement = rules.judge(rows, config, rules.QUICK)
    return _Fleet(judgement.entries, [*judgement.findings, *stale], broken)


def _config_facts(
    server: Entry | None, shard_map: ShardMap | None
) -> tuple[rules.ConfigFacts, list[rules.CheckFinding]]:
    """Read what the config server records, and whether the map is older; as much as can be read."""
    facts, stale = rules.ConfigFacts(), list[rules.CheckFinding]()
    if server is None:
        return facts, stale
    with suppress(ConfigError), config_client(server) as client:
        facts = rules.ConfigFacts(read_epoch(client))
        with suppress(NoPermissionError):
            scanned = client.scan_iter(match="config:growth:*", count=1000)
            if client.exists("config:changes") or any(scanned):
                from shardkit.admin.check import config_facts  # loads all of admin/

                facts = config_facts(client)
        stale = [] if shard_map is None else stale_map(client, shard_map)
    return facts, stale


def _check(output: Output, fleet: _Fleet) -> int:
    """Write the one line for monitoring systems; return the exit code."""
    code = 2 if fleet.broken else max(0, fleet.severity - 1)
    if output.wrote_json(**_document(output, fleet), code=code):
        return code
    texts = [
        f"{names} {server} {problem.text}"
        + f"; {problem.remedy}" * problem.remedy.startswith("shardkit failover")
        for server, problem, names in _by_problem(fleet.rows)
        if problem.severity > rules.Severity.WARNING
    ]
    texts += [f"{finding}; {finding.remedy}" for finding in fleet.findings if not finding.warning]
    texts += [f"{name} cannot be used: {error}" for name, error in fleet.broken.items()]
    text = few(texts, "; ") if texts else counted(len(fleet.rows), "shard")
    output.line(f"{('OK', 'WARNING', 'CRITICAL')[code]}: {text}")
    return code


def _show(output: Output, servers: bool, fleet: _Fleet) -> int:
    if not output.wrote_json(_document(output, fleet)):
        output.table(_table(output, fleet.rows, servers))
        output.line()
        for line in _summary(fleet):
            output.line(*line)
    return int(not fleet.ok)


@dataclass(frozen=True)
class _ServerStatus:
    server: ServerFacts
    problems: tuple[rules.ServerProblem, ...]
    state: str
    shards: str
    keys: int | None


_StatusRow: TypeAlias = rules.JudgedEntry | _ServerStatus


def _table(output: Output, rows: Sequence[rules.JudgedEntry], servers: bool) -> Table:
    wide = output.width >= _WIDE
    if not servers:
        return table_of(_shard_fields(output, rows, wide), rows)
    fields: tuple[Field[_ServerStatus], ...] = (
        column_only("server", lambda row: row.server.address),
        column_only(wordy("shards"), lambda row: row.shards),
        *_health_fields(wide),
    )
    return table_of(fields, _by_server(rows))


def _shard_fields(
    output: Output, rows: Sequence[rules.JudgedEntry], wide: bool
) -> tuple[Field[rules.JudgedEntry], ...]:
    # In a terminal, where nobody greps, a shard's name is shown once and not for each node.
    repeated = {
        id(entry)
        for above, entry in pairwise(rows)
        if entry.row.target.shard == above.row.target.shard
    }

    def name(entry: rules.JudgedEntry) -> Cell:
        node = entry.row.node if wide else entry.row.node.removeprefix("slots ")
        if output.interactive and id(entry) in repeated:
            return Styled(f"  {node}", DIM)
        return " ".join(filter(None, [str(entry.row.target.shard or CONFIG_SERVER), node]))

    def shard(entry: rules.JudgedEntry) -> Shard:
        assert entry.row.target.shard is not None
        return entry.row.target.shard

    return (
        Field("shard", lambda entry: str(shard(entry)), wordy("shard"), name),
        Field("component", lambda entry: shard(entry).component),
        Field("number", lambda entry: shard(entry).number),
        Field("node", lambda entry: entry.row.node or None),
        *_ADDRESS_FIELDS,
        *_health_fields(wide),
    )


def _health_fields(wide: bool) -> tuple[Field[_StatusRow], ...]:
    def version(row: _StatusRow) -> str:
        server = row.server
        return f"{server.software} {server.version}".strip() if wide else server.version

    def memory(row: _StatusRow) -> Cell:
        used = row.server.info.get("used_memory")
        return None if used is None else size(used)

    def connections(row: _StatusRow) -> Cell:
        info = row.server.info
        if not info:
            return None
        counts = (row.server.own_connections, info.get("connected_clients"), info.get("maxclients"))
        return "/".join("?" if count is None else f"{count:,}" for count in counts)

    def latency(row: _StatusRow) -> float | None:
        seconds = row.server.latency
        return None if seconds is None else round(1000 * seconds, 3)

    return (
        Field("state", lambda row: row.state),
        Field("reason", lambda row: row.problems[0].text if row.problems else None),
        Field("remedy", lambda row: row.problems[0].remedy if row.problems else None),
        Field("software", lambda row: row.server.software or None),
        Field("version", lambda row: row.server.version or None, Column("version"), version),
        Field("role", lambda row: row.server.role or None, Column("role"), _role),
        Field("keys", lambda row: row.keys, number("keys")),
        Field("memory", lambda row: row.server.info.get("used_memory"), number("memory"), memory),
        Field(
            "connections",
            lambda row: row.server.info.get("connected_clients"),
            number("conns"),
            connections,
        ),
        Field("own_connections", lambda row: row.server.own_connections),
        Field("max_connections", lambda row: row.server.info.get("maxclients")),
        Field(
            "ops_per_second",
            lambda row: row.server.info.get("instantaneous_ops_per_sec"),
            number("ops/s"),
        ),
        Field("latency_ms", latency, number("ms")),
    )


def _role(row: _StatusRow) -> Cell:
    if row.state != rules.OK:
        return Styled(row.state, _style(row.problems[0]))
    return Styled(row.server.role, DIM) if row.server.role == "replica" else row.server.role


def _style(problem: rules.ServerProblem) -> str:
    mild = problem.severity < rules.Severity.CRITICAL or problem.kind == rules.LOADING
    return WARN if mild else BAD


_ADDRESS_FIELDS: tuple[Field[rules.JudgedEntry], ...] = (
    Field("address", lambda entry: entry.row.target.entry.address),
    Field(
        "server",
        lambda entry: entry.server.address,
        Column("server"),
        lambda entry: entry.server.address + (f"/{entry.row.number}" if entry.row.number else ""),
    ),
    Field("database", lambda entry: entry.row.number),
)


def _by_server(rows: Sequence[rules.JudgedEntry]) -> Iterator[_ServerStatus]:
    groups: dict[tuple[str, str], list[rules.JudgedEntry]] = {}
    for row in rows:
        groups.setdefault((row.server.address, row.state), []).append(row)
    for (_, state), group in groups.items():
        databases = {entry.row.number: entry.keys for entry in group}
        known = [keys for keys in databases.values() if keys is not None]
        first = group[0]
        keys = sum(known) if known else None
        yield _ServerStatus(first.server, first.problems, state, _names(group), keys)


def _names(rows: Sequence[rules.JudgedEntry]) -> str:
    named = [row.row.target.shard for row in rows]
    shards = [shard for shard in named if shard is not None]
    config = [CONFIG_SERVER] if None in named else []
    return ", ".join([*config, shard_list(shards)] if shards else config)


def _by_problem(
    rows: Sequence[rules.JudgedEntry],
) -> Iterator[tuple[str, rules.ServerProblem, str]]:
    """Yield problems, the worst first: the server, the problem, the names of its shards."""
    groups: dict[tuple[str, rules.ServerProblem], list[rules.JudgedEntry]] = {}
    for row in rows:
        for problem in row.problems:
            groups.setdefault((row.server.address, problem), []).append(row)
    for (server, problem), group in sorted(groups.items(), key=lambda item: -item[0][1].severity):
        yield server, problem, _names(group)


def _summary(fleet: _Fleet) -> Iterator[Styled]:
    """Yield a line for each problem of a server, of components and of the config server."""
    problems = list(_by_problem(fleet.rows))
    for server, problem, names in problems:
        yield Styled(f"{server} {problem.text} ({names}); {problem.remedy}", _style(problem))
    for finding in fleet.findings:
        style = WARN if finding.warning else BAD
        yield Styled(f"{finding}; {finding.remedy}", style)
    for name, error in fleet.broken.items():
        yield Styled(f"{name} cannot be used: {error}", BAD)
    if not problems and not fleet.findings and not fleet.broken:
        servers = counted(len({row.server.address for row in fleet.rows}), "server")
        checked = "roles, databases, memory and response times are good; data was not checked"
        yield Styled(f"{servers}: {checked}", DIM)


def _document(output: Output, fleet: _Fleet) -> dict[str, Any]:
    config_server = next((row for row in fleet.rows if row.row.target.shard is None), None)
    described: tuple[Field[rules.JudgedEntry], ...] = (*_ADDRESS_FIELDS, *_health_fields(wide=True))
    shards = [row for row in fleet.rows if row.row.target.shard is not None]
    return {
        "ok": fleet.ok,
        "config_server": config_server and json_row(described, config_server),
        "shards": json_rows(_shard_fields(output, fleet.rows, wide=True), shards),
        "findings": list(fleet.findings),
        "broken": {name: str(error) for name, error in fleet.broken.items()},
    }
