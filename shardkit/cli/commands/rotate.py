"""``shardkit rotate``: rotates a user's password on all servers and in all clients."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardkit.admin.rotate import WAIT, PasswordRotation, abort_rotation, rotate
from shardkit.cli import options as given
from shardkit.cli.options import command, config_server, login_as
from shardkit.cli.output import Output, Table, wordy
from shardkit.errors import counted
from shardkit.kit.config_client import config_client

NEW_PASSWORD = "SHARDKIT_NEW_PASSWORD"

_SOURCES = {
    "entry": "inline in {}: pushed",
    "file": "in a password_file of {}: written here, and to be written on other hosts",
    "environment": "from the environment, for {}: processes are restarted",
}


@command(
    f"{NEW_PASSWORD}=… shardkit rotate app --dry-run",
    f"{NEW_PASSWORD}=… shardkit rotate app -m 'quarterly'",
    "shardkit rotate app --resume --distributed",
    "shardkit rotate app --abort",
    name="rotate",
    distributed=given.flag("Every host has the new password in its password_file."),
    ignore_others=given.flag("Do not wait for programs that do not name their connections."),
    wait=given.seconds(WAIT, "How long to wait for processes to change over.", 0.0),
    message=given.message,
)
def rotate_command(
    output: Output,
    name: str = given.argument("USER"),
    where: str | None = given.config,
    password_file: Path | None = given.option(
        "FILE",
        f"The new password, as the only line; by default ${NEW_PASSWORD}.",
        type=given.EXISTING,
    ),
    dry_run: bool = given.dry_run,
    resume: bool = given.flag("Continue a rotation that stopped."),
    abort: bool = given.flag("Undo a rotation before the password is published."),
    user: str | None = given.login,
    timeout: float = given.timeout(1.0),
    **options: Any,
) -> int:
    """Rotate the password of USER on all servers that entries log in to as this user.

    The servers take both passwords, the new one is published, and once no process can use the old
    one any more, it is removed. Stops with exit code 1, both being taken, if somebody must look:
    then continue with --resume. The password is never shown.
    """
    if resume and abort:
        raise click.UsageError("--resume and --abort contradict each other")
    server = config_server(where)
    login = login_as(user)
    with config_client(server) as client:
        if abort:
            rotation = abort_rotation(client, server, name, timeout=timeout, login=login)
        else:
            with output.busy("rotating") as tell:

                def progress(rotation: PasswordRotation) -> None:
                    waiting = counted(len(rotation.pending), "process")
                    tell(f"{rotation.step}; waiting for {waiting}")

                rotation = rotate(
                    client,
                    server,
                    name,
                    _new_password(password_file, required=not (resume or dry_run)),
                    resume=resume,
                    dry_run=dry_run,
                    timeout=timeout,
                    login=login,
                    progress=progress,
                    **options,
                )
    for text in rotation.warnings:
        output.warning(text)
    stopped = not (abort or dry_run or rotation.done)
    if not output.wrote_json(**asdict(rotation), done=rotation.done):
        _show(output, rotation, abort, dry_run)
    return int(stopped)


def _new_password(path: Path | None, *, required: bool) -> str | None:
    if path is not None:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    password = os.environ.get(NEW_PASSWORD)
    if password is None and required:
        password = str(click.prompt("New password", hide_input=True, err=True))
    return password


def _show(output: Output, rotation: PasswordRotation, aborted: bool, dry_run: bool) -> None:
    if dry_run:
        output.line(f"{counted(len(rotation.servers), 'server')}: {', '.join(rotation.servers)}")
        for source, entries in rotation.entries.items():
            output.line(_SOURCES[source].format(counted(len(entries), "entry", "entries")))
    if rotation.pending:
        table = Table.of(wordy("process"), wordy("may use the old password: it"))
        for each in rotation.pending:
            table.row(each.who, each.why)
        output.table(table)
    if aborted:
        output.good("taken back: only the old password is taken")
    elif dry_run:
        output.dim("nothing was changed: this is a dry run")
    elif rotation.done:
        output.good(
            f"rotated: {counted(len(rotation.servers), 'server')} take only the new password"
        )
        if "entry" in rotation.entries:
            output.warn(
                f"write it into the shard map too: the entries have it since push {rotation.epoch}"
            )
    else:
        output.bad(
            "stopped: both passwords are taken; check these, then continue: "
            f"shardkit rotate {rotation.user} --resume"
        )
