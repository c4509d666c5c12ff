"""``shardkit config push`` and ``rollback``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import redis

from shardkit.admin.difference import compare, holds_data
from shardkit.admin.preflight import PreflightFinding, preflight, refuse
from shardkit.admin.push import newest_witness, push as push_witnessed
from shardkit.cli.commands.config_diff import document, show
from shardkit.cli.options import (
    F,
    command,
    config_option,
    config_server,
    message_option,
    number_option,
    sample_option,
    target_option,
)
from shardkit.cli.output import DOUBTFUL, FAINT, GOOD, Output
from shardkit.config import store
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ConfigError, PushRefusedError
from shardkit.kit.config_client import config_client


def _push_options(function: F) -> F:
    """Give a command the options of every push."""
    for option in (
        sample_option,
        message_option,
        click.option(
            "--no-check",
            is_flag=True,
            help="Do not connect to the servers of changed entries.",
        ),
        click.option(
            "--force",
            "forced",
            multiple=True,
            metavar="COMPONENT",
            help="Push this component in spite of what speaks against it. May be repeated.",
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
    ):
        function = option(function)
    return function


@command(
    "shardkit config push configs/production.yaml --dry-run",
    "shardkit config push configs/production.yaml -m 'shard 3 moves to b'",
    "shardkit config push -c redis://staging configs/production.yaml",
    "shardkit config push configs/production.yaml --restored",
    short_help="Write a map to its config server.",
)
@click.argument("shard_map", metavar="MAP", type=click.Path(path_type=Path))
@target_option
@_push_options
@click.option("--prune", is_flag=True, help="Remove components that MAP does not describe.")
@number_option(
    "--above",
    None,
    "After the config server was restored from an old snapshot: give every component of MAP a "
    "higher epoch than this, which clients have seen and log.",
    least=0,
    unit="EPOCH",
)
@click.option(
    "--restored",
    is_flag=True,
    help="The same, above the highest epoch that the servers of the components have witnessed.",
)
def push(shard_map: Path, where: str | None, output: Output, **options: Any) -> None:
    """Write MAP to its config server, atomically.

    Refused if keys would then be looked up on other shards than those that hold them: if a
    component's shard count or placement changes, or it is removed, while its servers hold keys or
    cannot be reached. Every changed entry is connected to before: refused if it names a replica, a
    database that does not exist or does not hold the data of the present one, or a user who lacks
    rights.
    """
    wanted = ShardMap.load(shard_map)
    for problem in wanted.warnings:
        output.warning(str(problem))
    server = config_server(where, wanted)
    with config_client(server) as client:
        _push(output, client, server.address, wanted, **options)
        epoch = store.read_epoch(client)
    if wanted.epoch not in (None, epoch) and not output.as_json and not options["dry_run"]:
        output.line(f"write epoch: {epoch} into {shard_map} now", DOUBTFUL)


def _push(
    output: Output,
    client: redis.Redis,
    server: str,
    wanted: ShardMap,
    *,
    dry_run: bool,
    forced: Sequence[str],
    no_check: bool,
    message: str,
    size: int,
    prune: bool = True,
    above: int | None = None,
    restored: bool = False,
) -> None:
    """Show what a push changes, check the servers of changed entries, and carry it out."""
    difference = compare(client, wanted, prune, size)
    changes = difference.changes
    if not output.as_json:
        show(output, server, difference)
        output.line()
    for name in forced:
        if name not in {change.component for change in changes}:
            raise ConfigError(
                f"--force {name}: the push does not touch a component of this name",
                "name one that the table shows",
            )
    known = [*difference.current.values(), *wanted.components.values()]
    witnessed, witness = newest_witness(known) if restored or not no_check else (0, "")
    if restored:
        if not witnessed and above is None:
            raise ConfigError(
                "the servers of the map's components have witnessed no epoch",
                "use --above EPOCH: clients log the number",
            )
        above = max(witnessed, above or 0)
    elif witnessed > difference.epoch and above is None and not dry_run:
        raise PushRefusedError(
            f"nothing was pushed: {server} is at epoch {difference.epoch}, and "
            f"{witness} has witnessed epoch {witnessed}: the config server was restored from "
            "an old snapshot, or lost its data",
            "push the newest shard map: shardkit config push MAP --restored",
        )
    findings = [] if no_check else preflight(difference.current, wanted.components)
    _heed(output, findings, forced, dry_run)
    if not dry_run:
        changes = push_witnessed(
            client,
            wanted,
            check=False,  # just done, if asked for
            force=forced,
            prune=prune,
            has_data=holds_data(wanted),
            sample=difference.sample,
            epoch=difference.epoch if wanted.epoch is None else wanted.epoch,
            above=above,
            message=message,
        )
    if output.as_json:
        output.document(
            {
                "pushed": not dry_run,
                **document(server, difference, changes),
                "findings": findings,
            }
        )
    elif dry_run:
        output.line("nothing was pushed: this is a dry run", FAINT)
    elif difference.is_empty and above is None:
        output.line("there was nothing to push", FAINT)
    else:
        kinds = Counter(change.kind for change in changes if change.kind != "unchanged")
        summary = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
        output.line(f"pushed: {summary}", GOOD)


def _heed(
    output: Output, findings: Sequence[PreflightFinding], forced: Sequence[str], dry_run: bool
) -> None:
    """Show findings, and refuse the push for those of components that are not forced."""
    serious = [f for f in findings if not f.warning and f.component not in forced and not dry_run]
    for finding in findings:
        if finding not in serious:
            output.warning(f"{finding}; {finding.remedy}")
    refuse(serious)


@command(
    "shardkit config rollback 16 --dry-run",
    "shardkit config rollback 16 -m 'the new server is slow'",
    short_help="Push what an earlier push left.",
)
@click.argument("epoch", type=click.IntRange(min=0))
@config_option
@_push_options
def rollback(epoch: int, where: str | None, output: Output, message: str, **options: Any) -> None:
    """Push the components as they were after the push of EPOCH.

    This is a push of its own, with the next epoch, and is checked like any other: components that
    came later are removed, and nothing is pushed that would strand data.
    """
    server = config_server(where)
    with config_client(server) as client:
        then = store.components_at(client, epoch)
        if not then:
            raise ConfigError(f"epoch {epoch} had no component", "name a later epoch")
        wanted = ShardMap(then, source=f"epoch {epoch}")
        message = message or f"back to epoch {epoch}"
        _push(output, client, server.address, wanted, message=message, **options)
