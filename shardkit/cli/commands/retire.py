"""``shardkit retire``: removes a component, and its data once it is unused."""

from __future__ import annotations

import click

from shardkit.admin.retire import QUIET, delete_data, last_known, remove, still_used
from shardkit.cli.options import (
    command,
    config_option,
    config_server,
    message_option,
    number_option,
)
from shardkit.cli.output import DOUBTFUL, FAINT, GOOD, Output
from shardkit.cli.text import reason
from shardkit.config.store import read_epoch
from shardkit.kit.config_client import config_client


@command(
    "shardkit retire sessions -m 'replaced by logins'",
    "shardkit retire sessions --delete-data",
    "shardkit retire sessions --delete-data --quiet 3600 --json",
)
@click.argument("name", metavar="COMPONENT")
@config_option
@click.option(
    "--delete-data",
    "delete_data_",
    is_flag=True,
    help="Delete its keys, once it is removed and unused for a while.",
)
@number_option(
    "--quiet",
    QUIET,
    "How long it must be removed and unused before its keys are deleted.",
    least=0.0,
    unit="SECONDS",
)
@message_option
def retire(
    name: str, where: str | None, delete_data_: bool, quiet: float, message: str, output: Output
) -> int:
    """Remove COMPONENT by a push, and show its last users. A later call deletes its data.

    Clients that use it get RetiredError. With --delete-data, a component that is still there is
    only removed, with exit code 1. Its data is deleted for good by a later call, if no client has
    used it since and no other component has its databases.
    """
    server = config_server(where)
    with config_client(server) as client:
        known = last_known(client, name)
        deletes = delete_data_ and known.removed
        if not known.removed:
            remove(client, known, message)
        epoch = read_epoch(client)
        known = last_known(client, name)
        users, failed = still_used(known.component, quiet)
        deleted = None
        if deletes:
            with output.busy("deleting keys") as tell:
                deleted = delete_data(
                    known, quiet=quiet, progress=lambda keys: tell(f"deleting keys: {keys:,}")
                )
    code = 1 if delete_data_ and deleted is None else 0
    if output.as_json:
        output.document(
            {
                "component": name,
                "epoch": epoch,
                "used_seconds_ago": users,
                "failed": {where: reason(error) for where, error in failed.items()},
                "deleted": deleted,
            }
        )
        return code
    if deleted is not None:
        output.line(f"nobody has used {name} for {quiet:g} s: {deleted:,} keys were deleted", GOOD)
        return code
    output.line(
        f"{name} was removed by a push (epoch {epoch}); clients that use it get RetiredError"
    )
    for who, seconds in sorted(users.items(), key=lambda each: each[1]):
        output.line(f"{who} used it {seconds} s ago", DOUBTFUL)
    for place, error in failed.items():
        output.line(f"{place} was not asked who uses it: {reason(error)}", DOUBTFUL)
    then = f"shardkit retire {name} --delete-data"
    when = f" in {quiet:g} s" if quiet else ""
    output.line(f"its data is still there; to delete it, run{when}: {then}", FAINT)
    return code
