"""``shardkit check``: one verdict on the whole fleet."""

from __future__ import annotations

from collections.abc import Sequence

from shardkit.admin.check import CheckReport, check, check_structures
from shardkit.cli import options as given
from shardkit.cli.options import ShardOptions, command, opened
from shardkit.cli.output import BAD, WARN, Output, Styled, Table, wordy
from shardkit.cli.progress import progress
from shardkit.errors import counted
from shardkit.kit.config_client import config_client, stale_map
from shardkit.network.rules import CheckFinding
from shardkit.network.server_queries import TIMEOUT


@command(
    "shardkit check -c redis://config.internal",
    "shardkit check unique timelines",
    "shardkit check --json | jq '.findings[].problem'",
    name="check",
)
def check_command(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    structures: bool = given.flag("Also read all structures, and compare their counts."),
    strict: bool = given.flag("Exit with 1 for warnings too."),
    timeout: float = given.timeout(TIMEOUT),
) -> int:
    """Check all servers, or those of the specified components.

    Whether each is reachable, quick, a master where an entry says so; its memory, clients,
    persistence, replicas and clock; the rights of the user; whether each database exists, is open,
    is a shard's own, and holds the shard's keys (100 are sampled); unfinished moves and failovers;
    whether the config server went back in time. With --structures all data is read. Changes
    nothing. Exits with 1 if anything is wrong.
    """
    with opened(where) as topology:
        chosen, broken = topology.components(names, sharding)
        if topology.config_server is None:
            report = check(chosen.values(), timeout)
        else:
            with config_client(topology.config_server) as config:
                report = check(chosen.values(), timeout, config=config)
                if topology.shard_map is not None:
                    report.findings += stale_map(config, topology.shard_map)
        structures_read = 0
        if structures:
            with progress("structures") as report_progress:
                damaged, structures_read = check_structures(topology.kit, chosen, report_progress)
            report.findings += damaged
    findings = [CheckFinding(name, error.message, error.remedy) for name, error in broken.items()]
    report.findings[:0] = findings
    failed = not report.ok or (strict and bool(report.findings))
    if not output.wrote_json(
        ok=not failed,
        servers=report.servers,
        shards=report.shards,
        sampled_keys=report.keys,
        structures=structures_read,
        findings=report.findings,
    ):
        _show(output, report, structures_read)
    return int(failed)


def _show(output: Output, report: CheckReport, structures: int) -> None:
    checked = (
        f"checked {counted(report.servers, 'server')}, {counted(report.shards, 'database')} and "
        f"{counted(report.keys, 'key')}"
        + (f", and read {counted(structures, 'structure')}" if structures else "")
    )
    if not report.findings:
        output.good("nothing is wrong")
        output.dim(checked)
        return
    table = Table.of(wordy("where"), wordy("problem"), wordy("remedy"))
    for finding in report.findings:
        style = WARN if finding.warning else BAD
        problem = Styled(f"{'warning: ' * finding.warning}{finding.problem}", style)
        table.row(finding.where, problem, finding.remedy)
    output.table(table)
    output.line()
    wrong = sum(not finding.warning for finding in report.findings)
    verdict = f"{counted(wrong, 'problem')}, {counted(len(report.findings) - wrong, 'warning')}"
    output.line(f"{verdict}; {checked}", BAD if wrong else WARN)
