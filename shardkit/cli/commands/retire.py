"""``shardkit retire``: removes a component, and its data when nobody uses it any more."""

from __future__ import annotations

import click

from shardkit.admin.retire import QUIET, delete_data, last_known, remove, still_used
from shardkit.cli.options import (
    common_options,
    config_option,
    config_server,
    connected,
    examples,
    message_option,
)
from shardkit.cli.output import DOUBTFUL, FAINT, GOOD, Output
from shardkit.cli.text import reason
from shardkit.config.store import read_epoch


@click.command(
    short_help="Remove a component, and later its data.",
    epilog=examples(
        "shardkit retire sessions -m 'replaced by logins'",
        "shardkit retire sessions --delete-data",
        "shardkit retire sessions --delete-data --quiet 3600 --json",
    ),
)
@click.argument("name", metavar="COMPONENT")
@config_option
@click.option(
    "--delete-data",
    "delete_data_",
    is_flag=True,
    help="Delete its keys, if nobody has used it for a while.",
)
@click.option(
    "--quiet",
    type=click.FloatRange(min=0),
    default=QUIET,
    show_default=True,
    metavar="SECONDS",
    help="How long nobody may have used it.",
)
@message_option
@common_options
def retire(
    name: str, where: str | None, delete_data_: bool, quiet: float, message: str, as_json: bool
) -> None:
    """Remove COMPONENT by a push, and say who used it last; its data with --delete-data.

    Clients that use it get RetiredError. The data is deleted for good, and only if no
    connection of the component's was used lately and no other component has its databases.
    """
    output = Output(as_json)
    server = config_server(where)
    with connected(server) as client:
        found = last_known(client, name)
        if not found.removed:
            remove(client, found, message)
        epoch = read_epoch(client)
        found = last_known(client, name)
    users, failed = still_used(found.component, quiet)
    deleted = None
    if delete_data_:
        with output.busy("deleting keys") as busy:

            def progress(keys: int) -> None:
                if busy is not None:
                    busy.update(f"deleting keys: {keys:,}")

            deleted = delete_data(found, quiet=quiet, progress=progress)
    if as_json:
        output.document(
            {
                "component": name,
                "epoch": epoch,
                "used_seconds_ago": users,
                "failed": {where: reason(error) for where, error in failed.items()},
                "deleted": deleted,
            }
        )
        return
    if deleted is not None:
        output.line(f"nobody has used {name} for {quiet:g} s: {deleted:,} keys were deleted", GOOD)
        return
    output.line(
        f"{name} was removed by a push (epoch {epoch}); clients that use it get RetiredError"
    )
    for who, seconds in sorted(users.items(), key=lambda each: each[1]):
        output.line(f"{who} used it {seconds} s ago", DOUBTFUL)
    for place, error in failed.items():
        output.line(f"{place} was not asked who uses it: {reason(error)}", DOUBTFUL)
    output.line(f"its data is still there: shardkit retire {name} --delete-data", FAINT)
