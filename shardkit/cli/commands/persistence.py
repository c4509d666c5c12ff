"""``shardkit persistence``: how servers keep their data; saves it on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from shardkit.admin.changes import working_on
from shardkit.admin.persistence import (
    PROFILES,
    WAIT,
    DiskRate,
    PersistenceState,
    apply_profile,
    estimate_disk_rate,
    measure_disk_rate,
    persistence_of,
    rewrite_aof,
    save_snapshot,
)
from shardkit.admin.servers import entries_of, query_servers
from shardkit.cli import options as given
from shardkit.cli.options import command, group, opened
from shardkit.cli.output import Output
from shardkit.cli.text import reason

_wait = given.seconds(WAIT, "How long it may take.", 0.1)


@group(
    "shardkit persistence show",
    "shardkit persistence apply everysec timelines",
    "shardkit persistence snapshot --wait 60",
    "shardkit persistence estimate --commands 100000 --bytes 1024 --profile everysec",
)
def persistence() -> None:
    """Show and set how servers keep their data, and save it."""


@command(group=persistence)
def show(
    output: Output, names: Sequence[str] = given.components, where: str | None = given.config
) -> int:
    """Show how each server keeps its data, and what may lose data."""

    def lines(state: PersistenceState) -> None:
        points = ", ".join(
            f"{changes} changes in {seconds} s" for seconds, changes in state.save_points
        )
        aof = f"AOF, synced {state.fsync}" if state.aof else "no AOF"
        output.line(f"  snapshots: {points or 'none'}; {aof}; {state.changes:,} changes unsaved")
        for problem in state.problems:
            output.warn(f"  {problem}")

    return _on_all(output, names, where, persistence_of, asdict, lines)


@command(name="apply", group=persistence)
def apply_(
    output: Output,
    profile: str = given.argument(type=click.Choice(list(PROFILES))),
    names: Sequence[str] = given.components,
    where: str | None = given.config,
) -> int:
    """Apply PROFILE to servers, without a restart, and show what changed."""

    def lines(changed: dict[str, tuple[str, str]]) -> None:
        for name, (before, now) in changed.items():
            output.line(f"  {name}: {before or 'nothing'} is now {now or 'nothing'}")
        if not changed:
            output.line("  is so already")

    with opened(where) as topology:
        chosen, _ = topology.components(names)
        with working_on(topology.config_server, "persistence", profile, chosen.values()):
            apply = partial(apply_profile, profile=profile)
            return _on_all(output, names, where, apply, dict, lines)


@command(group=persistence)
def snapshot(
    output: Output,
    names: Sequence[str] = given.components,
    wait: float = _wait,
    where: str | None = given.config,
) -> int:
    """Have servers make a snapshot, and wait until each has succeeded or failed."""
    return _timed(output, names, where, lambda client: save_snapshot(client, wait), wait)


@command(group=persistence)
def rewrite(
    output: Output,
    names: Sequence[str] = given.components,
    wait: float = _wait,
    where: str | None = given.config,
) -> int:
    """Have servers rewrite their AOF, and wait until each has succeeded or failed."""
    return _timed(output, names, where, lambda client: rewrite_aof(client, wait), wait)


@command(group=persistence)
def estimate(
    output: Output,
    names: Sequence[str] = given.components,
    seconds: float = given.seconds(1.0, "How long to watch the servers.", 0.1, most=60),
    profile: str | None = given.choice(list(PROFILES), "Estimate for this profile."),
    commands: float | None = given.number(
        None, "Write commands a second, instead of a measurement.", 0.0
    ),
    size: float | None = given.number(
        None, "Size of a command, with --commands.", 0.0, name="--bytes"
    ),
    data: int = given.number(0, "Size of the data in bytes, with --commands.", 0, unit="BYTES"),
    where: str | None = given.config,
) -> int:
    """Estimate what servers write to their disks: AOF, rewrites and snapshots.

    They are measured, or estimated from --commands and --bytes for a future server.
    """

    def lines(rate: DiskRate) -> None:
        output.line(f"  {rate.commands:,.0f} writes a second of {rate.size:,.0f} bytes")
        output.line(
            f"  {rate.total / 1e6:,.2f} MB/s: AOF {rate.append / 1e6:,.2f}, its rewrites "
            f"{rate.rewrite / 1e6:,.2f}, snapshots {rate.snapshot / 1e6:,.2f}"
        )

    if (commands is None) != (size is None):
        raise click.UsageError("give both --commands and --bytes, or none of them")
    if commands is not None and size is not None:
        rate = estimate_disk_rate(commands, size, PROFILES[profile or "everysec"], data)
        if not output.wrote_json(_document(rate)):
            lines(rate)
        return 0
    return _on_all(
        output,
        names,
        where,
        lambda client: measure_disk_rate(client, seconds, profile),
        _document,
        lines,
        2.0 + seconds,
    )


def _document(rate: DiskRate) -> dict[str, Any]:
    return {**asdict(rate), "total": rate.total}


def _timed(
    output: Output,
    names: Sequence[str],
    where: str | None,
    query: Callable[[Any], float],
    wait: float,
) -> int:
    def lines(seconds: float) -> None:
        output.good(f"  done in {seconds:.1f} s")

    return _on_all(output, names, where, query, lambda seconds: {"seconds": seconds}, lines, wait)


def _on_all(
    output: Output,
    names: Sequence[str],
    where: str | None,
    query: Callable[[Any], Any],
    as_document: Callable[[Any], dict[str, Any]],
    lines: Callable[[Any], None],
    timeout: float = 2.0,
) -> int:
    """Run a query on all servers; return the exit code."""
    with opened(where) as topology:
        chosen, _ = topology.components(names)
    with output.busy("asking the servers"):
        answers = query_servers(entries_of(chosen.values()), query, timeout)
    failed = [server for server, answer in answers.items() if isinstance(answer, Exception)]
    if output.wrote_json(
        {
            server: {"error": reason(answer)}
            if isinstance(answer, Exception)
            else as_document(answer)
            for server, answer in answers.items()
        }
    ):
        return 1 if failed else 0
    for server, answer in answers.items():
        output.line(server)
        if isinstance(answer, Exception):
            output.bad(f"  {reason(answer)}")
        else:
            lines(answer)
    return 1 if failed else 0
