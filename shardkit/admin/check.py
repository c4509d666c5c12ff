"""One verdict on a fleet: servers, the shards on them, rights, unfinished moves, structures.

Servers are asked in parallel, each once; `shardkit.network.rules` judges. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError

from shardkit.admin.doctor.check import check_all
from shardkit.admin.doctor.scan import scan
from shardkit.config.component import Component
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch, read_history
from shardkit.config.stored import whole_component_of
from shardkit.errors import ConfigError, ConfigServerError, ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.network.rules import (
    CONFIG,
    CheckFinding,
    ConfigFacts,
    JudgedEntry,
    OpenMove,
    ServerProblem,
    Severity,
    group_by_server,
    judge,
)
from shardkit.network.server_queries import TIMEOUT
from shardkit.network.survey import SurveyedEntry, survey, targets_of
from shardkit.operations.arguments import Seconds, in_seconds

_LEASE_KEY = "config:growth:lease"  # see shardkit.admin.growth.journal


@dataclass
class CheckReport:
    """The findings of a check, and what it covered.

    Attributes:
        findings: what is wrong first, then warnings.
        servers: how many servers answered.
        shards: how many databases of entries were checked.
        keys: how many keys were sampled.
    """

    findings: list[CheckFinding] = field(default_factory=list)
    servers: int = 0
    shards: int = 0
    keys: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; there may be warnings."""
        return all(finding.warning for finding in self.findings)


def check(
    components: Iterable[Component], timeout: Seconds = TIMEOUT, *, config: Any = None
) -> CheckReport:
    """Check the servers of components.

    Args:
        components: the components.
        timeout: seconds to wait for one answer of a server.
        config: a client of the config server, to find out whether it went back in time, and which
            moves and failovers are unfinished; None if there is no config server.

    Returns:
        The findings, each with its remedy. Cost: about ten exchanges with each server and two with
        each of its databases, all servers in parallel; at most about four times ``timeout``.

    Raises:
        ConfigServerError: the config server cannot be read.
    """
    timeout = in_seconds(timeout)
    rows = survey(targets_of(components), timeout, thorough=True)
    judgement = judge(rows, ConfigFacts() if config is None else config_facts(config))
    report = CheckReport(list(judgement.findings))
    for group in group_by_server(judgement.entries).values():
        name = _names([entry.row for entry in group])
        report.findings += _findings(name, group[0], of_server=True)
        for entry in group:
            where = f"{entry.row.target.shard} ({entry.row.target.entry.address})"
            report.findings += _findings(where, entry, of_server=False)
        facts = group[0].row.server
        if facts.error is None:
            report.servers += 1
            report.shards += len(group)
            report.keys += sum(len(each.keys or ()) for each in facts.databases.values())
    report.findings.sort(key=lambda finding: finding.warning)
    return report


def _names(rows: Sequence[SurveyedEntry]) -> str:
    """Return a server with some of its shards: ``a:7101 (unique:0, unique:4 and 6 more)``."""
    shards = list(dict.fromkeys(str(row.target.shard) for row in rows))
    shown = ", ".join(shards[:2]) + (f" and {len(shards) - 2} more" if len(shards) > 2 else "")
    return f"{rows[0].server.address} ({shown})"


def _findings(where: str, entry: JudgedEntry, *, of_server: bool) -> list[CheckFinding]:
    return [
        finding_of(where, problem) for problem in entry.problems if problem.of_server == of_server
    ]


def finding_of(where: str, problem: ServerProblem) -> CheckFinding:
    """Return a problem with where it is."""
    warning = problem.severity == Severity.WARNING
    return CheckFinding(where, problem.text, problem.remedy, warning, problem.kind)


def config_facts(config: Any) -> ConfigFacts:
    """Read the epoch, unfinished moves and failovers of a config server.

    What the client's user must not read is left out.

    Raises:
        ConfigServerError: it cannot be read.
    """
    from shardkit.admin.growth import moves, pending_fences  # much, rarely needed

    unreadable: list[ShardKitError] = []

    def read(query: Callable[[], Iterable[Any]]) -> list[Any]:
        try:
            return list(query())
        except ConfigServerError:
            raise
        except NoPermissionError:
            return []
        except ConfigError as error:
            unreadable.append(error)
            return []

    epoch = read_epoch(config)
    return ConfigFacts(
        epoch,
        [
            OpenMove(move.name, move.target, move.phase, move.shards)
            for move in read(lambda: moves(config, unreadable))
            if not move.is_over
        ],
        [(str(each.source), str(each.target)) for each in read(lambda: pending_fences(config))],
        bool(read(lambda: [1] * config.exists(_LEASE_KEY))),
        unreadable,
    )


def stale_map(config: Any, shard_map: ShardMap) -> list[CheckFinding]:
    """Return the finding that a shard map is older than the entries; nothing if it is not.

    A map that was changed, and not pushed yet, is not older.

    Raises:
        ConfigError: the entries or the history cannot be read.
    """
    now = read_components(config, shard_map.components)
    differing = {
        name: each for name, each in shard_map.components.items() if not each.same_as(now.get(name))
    }
    for record in read_history(config) if differing else ():
        for name, each in differing.items():
            if each.same_as(whole_component_of(name, record.before.get(name) or {})):
                return [
                    CheckFinding(
                        shard_map.source,
                        f"is older than the entries: {name} changed at epoch {record.epoch} "
                        f"({record.message or record.source})",
                        f"shardkit config pull -o {shard_map.source}",
                        warning=True,
                        kind=CONFIG,
                    )
                ]
    return []


def check_structures(
    kit: ShardKit,
    components: Mapping[str, Component],
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> tuple[list[CheckFinding], int]:
    """Read all structures of components, and compare their counts with what is there.

    Args:
        kit: a kit on their topology.
        components: the components.
        progress: called with a structure's name, how many are done, and how many there are.

    Returns:
        What is damaged, and how many structures were read. Cost: all of it is read, in slices; see
        ``check()`` of each structure.
    """
    seen = scan(kit, components, 1, progress=progress)
    checked = check_all(kit, components, seen, progress=progress)
    findings = [
        CheckFinding(
            f"{each.component}/{each.name} ({damage.shard})",
            f"{damage.key} is damaged: {damage.found}, where {damage.expected} was expected",
            damage.repair or "restore it from a backup",
            kind="damage",
        )
        for each in checked
        for damage in each.damages
    ]
    findings += [
        CheckFinding(
            f"{each.component}/{each.name}", f"was not read: {each.unchecked}", "", True, "unread"
        )
        for each in checked
        if each.unchecked
    ]
    findings += [
        CheckFinding(shard, f"was not read: {error}", "see the server's findings", True, "unread")
        for shard, error in seen.failures.items()
    ]
    return findings, len(checked)
