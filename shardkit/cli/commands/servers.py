"""``shardkit clients``, ``keys``, ``exec``, ``persistence`` and ``rotate``: servers, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from shardkit.admin import persistence as disks
from shardkit.admin.changes import working_on
from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.admin.rotate import WAIT as ROTATION_WAIT, PasswordRotation, abort_rotation, rotate
from shardkit.admin.servers import (
    ClientProcess,
    connected_clients,
    entries_of,
    execute,
    query_servers,
)
from shardkit.cli import options as given
from shardkit.cli.options import ShardOptions, command, config_server, group, opened
from shardkit.cli.output import BAD, Column, Output, Styled, Table, identifier, number, wordy
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import one_line, reason, size
from shardkit.config.entry import read_password
from shardkit.errors import ConfigError, counted
from shardkit.kit.config_client import config_client


@command(
    "shardkit clients -c redis://config.internal",
    "shardkit clients --using unique",
    "shardkit clients --older-than 17 --json | jq '.clients[].host'",
)
def clients(
    output: Output,
    where: str | None = given.config,
    using: str | None = given.option("COMPONENT", "Only those that use this component."),
    older_than: int | None = given.number(
        None,
        "Only those that use entries of an earlier push, or whose epoch is unknown.",
        unit="EPOCH",
    ),
) -> int:
    """Show the processes that are connected to the servers: their user, components and age.

    By the names of connections, which shardkit gives them; other programs are shown by address.
    Exits with 1 if a server cannot be asked.
    """
    with opened(where) as topology:
        chosen, _ = topology.components([using] if using else [], ShardOptions())
    processes, failed = connected_clients(chosen.values(), topology.config_server)
    shown = [
        process
        for process in processes
        if (using is None or using in process.components)
        and (older_than is None or (process.epoch or 0) < older_than)
    ]
    if output.wrote_json(clients=json_rows(_FIELDS, shown), failed=failed):
        return int(bool(failed))
    if shown:
        output.table(table_of(_FIELDS, shown).without_empty())
    output.line()
    connections = sum(process.connections for process in shown)
    output.dim(f"{counted(len(shown), 'client')}, {counted(connections, 'connection')}")
    for server, error in failed.items():
        output.warn(f"{server} was not asked: {reason(error)}")
    return int(bool(failed))


_FIELDS: tuple[Field[ClientProcess], ...] = (
    Field("host", lambda process: process.host, Column("host")),
    Field("pid", lambda process: process.pid or None, identifier("pid")),
    Field("library", lambda process: process.library or None, wordy("library")),
    Field("users", lambda process: sorted(process.users), wordy("user")),
    Field("components", lambda process: sorted(process.components), wordy("components")),
    Field("epoch", lambda process: process.epoch, identifier("epoch")),
    Field("entries", lambda process: process.entries),
    Field("connections", lambda process: process.connections, number("conns")),
    Field("idle_seconds", lambda process: process.idle, number("idle s")),
    Field("age_seconds", lambda process: process.age, number("age s")),
)


@command(
    "shardkit keys --biggest 20",
    "shardkit keys --biggest 5 --by elements timelines",
    "shardkit keys --biggest 10 --match 'unique:2026-*' --json",
)
def keys(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    count: int = given.number(20, "How many to show.", name="--biggest"),
    by: Literal["memory", "elements"] = given.choice(
        ["memory", "elements"], "The measure of a key's size.", default="memory"
    ),
    match: str | None = given.option("PATTERN", "Only keys that match, as of SCAN."),
) -> None:
    """Show the biggest keys of all components, or of the named ones, over all their shards.

    Every key is inspected, 500 in an exchange. Memory is the server's estimate, which samples some
    elements of each key.
    """
    with opened(where) as topology:
        chosen, _ = topology.components(names, ShardOptions())
    seen = 0
    with output.busy("inspecting keys") as tell:

        def progress(inspected: int) -> None:
            nonlocal seen
            seen = inspected
            tell(f"inspecting keys: {inspected:,}")

        biggest = biggest_keys(list(chosen.values()), count, by=by, match=match, progress=progress)
    if output.wrote_json(keys=json_rows(_KEY_FIELDS, biggest), inspected=seen):
        return
    output.table(table_of(_KEY_FIELDS, biggest))
    output.line()
    output.dim(f"{counted(seen, 'key')} inspected")


_KEY_FIELDS: tuple[Field[BigKey], ...] = (
    Field("key", lambda row: row.key, wordy("key")),
    Field("shard", lambda row: row.shard, wordy("shard")),
    Field("type", lambda row: row.kind, Column("type")),
    Field("memory", lambda row: row.memory, number("memory"), lambda row: size(row.memory)),
    Field("elements", lambda row: row.elements, number("elements")),
)


@command(
    "shardkit exec --on all -- CONFIG GET maxmemory",
    "shardkit exec --on unique -- DBSIZE",
    "shardkit exec --on unique:7 -- OBJECT FREQ unique:2026-11-22",
    f"{given.LOGIN_PASSWORD}=… shardkit exec --on all --user admin -- ACL LIST",
    name="exec",
    context_settings={"ignore_unknown_options": True},
)
def exec_(
    output: Output,
    command: Sequence[str] = given.argument(
        "-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED
    ),
    where: str | None = given.config,
    target: str = given.option(
        "all|COMPONENT|SHARD",
        "Each server once; or each shard of a component, or one of them, in its database.",
        required=True,
        name="--on",
    ),
    user: str | None = given.login,
    timeout: float = given.timeout(5.0),
) -> int:
    """Run COMMAND on all servers, on each shard of a component, or on one shard.

    All are asked at the same time. Nothing is sent twice, and nothing is undone: what COMMAND does
    is up to you. Exits with 1 if any server refuses it or cannot be reached.
    """
    login = given.login_as(user)
    name, _, digits = target.rpartition(":")
    shard = int(digits) if name and digits.isdecimal() else None
    with opened(where) as topology:
        wanted = [] if target == "all" else [target if shard is None else name]
        chosen, _ = topology.components(wanted)
    if shard is not None and shard >= max(1, len(chosen[name].shards)):
        raise ConfigError(f"component {name!r} has no shard {shard}", "count shards from 0")
    answers = execute(
        chosen.values(),
        command,
        once_per="server" if target == "all" else "shard",
        shard=shard,
        timeout=timeout,
        **login,
    )
    if not output.wrote_json(_by_place(answers, lambda answer: {"reply": _plain(answer)})):
        table = Table.of("server" if target == "all" else wordy("shard"), wordy("reply"))
        for place, answer in answers.items():
            failed = isinstance(answer, Exception)
            table.row(
                place, Styled(reason(answer), BAD) if failed else one_line(str(_plain(answer)))
            )
        output.table(table)
    return int(any(isinstance(answer, Exception) for answer in answers.values()))


def _by_place(
    answers: Mapping[Any, Any], as_document: Callable[[Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    return {
        str(at): {"error": reason(answer)} if isinstance(answer, Exception) else as_document(answer)
        for at, answer in answers.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(item) for name, item in value.items()}
    return value


_wait = given.seconds(disks.WAIT, "How long it may take.", 0.1)
_ALL = {"names": given.components, "where": given.config}  # of which servers


@group()
def persistence() -> None:
    """Show and set how servers keep their data, and save it."""


@command("shardkit persistence show", group=persistence, **_ALL)
def show(output: Output, **servers: Any) -> int:
    """Show how each server keeps its data, and what may lose data."""

    def lines(state: disks.PersistenceState) -> None:
        points = ", ".join(
            f"{changes} changes in {seconds} s" for seconds, changes in state.save_points
        )
        aof = f"AOF, synced {state.fsync}" if state.aof else "no AOF"
        output.line(f"  snapshots: {points or 'none'}; {aof}; {state.changes:,} changes unsaved")
        for problem in state.problems:
            output.warn(f"  {problem}")

    return _on_all(output, disks.persistence_of, asdict, lines, **servers)


@command("shardkit persistence apply everysec timelines", name="apply", group=persistence)
def apply_(
    output: Output,
    profile: str = given.argument(type=click.Choice(list(disks.PROFILES))),
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
        at = topology.config_server
        with working_on(at, "persistence", profile, chosen.values(), whole=True):
            apply = partial(disks.apply_profile, profile=profile)
            return _on_all(output, apply, dict, lines, names=names, where=where)


@command("shardkit persistence snapshot --timeout 60", group=persistence, **_ALL)
def snapshot(output: Output, timeout: float = _wait, **servers: Any) -> int:
    """Have servers make a snapshot, and wait until each has succeeded or failed."""
    return _timed(output, disks.save_snapshot, timeout, **servers)


@command("shardkit persistence rewrite timelines", group=persistence, **_ALL)
def rewrite(output: Output, timeout: float = _wait, **servers: Any) -> int:
    """Have servers rewrite their AOF, and wait until each has succeeded or failed."""
    return _timed(output, disks.rewrite_aof, timeout, **servers)


@command("shardkit persistence estimate --profile everysec", group=persistence, **_ALL)
def estimate(
    output: Output,
    seconds: float = given.seconds(1.0, "How long to watch the servers.", 0.1, most=60),
    profile: str | None = given.choice(list(disks.PROFILES), "Estimate for this profile."),
    commands: float | None = given.number(
        None, "Write commands a second, instead of a measurement.", 0.0
    ),
    size: float | None = given.number(
        None, "Size of a command, with --commands.", 0.0, name="--bytes"
    ),
    data: int = given.number(0, "Size of the data in bytes, with --commands.", 0, unit="BYTES"),
    **servers: Any,
) -> int:
    """Estimate what servers write to their disks: AOF, rewrites and snapshots.

    They are measured, or estimated from --commands and --bytes for a future server.
    """

    def lines(rate: disks.DiskRate) -> None:
        output.line(f"  {rate.commands:,.0f} writes a second of {rate.size:,.0f} bytes")
        output.line(
            f"  {rate.total / 1e6:,.2f} MB/s: AOF {rate.append / 1e6:,.2f}, its rewrites "
            f"{rate.rewrite / 1e6:,.2f}, snapshots {rate.snapshot / 1e6:,.2f}"
        )

    if (commands is None) != (size is None):
        raise click.UsageError("give both --commands and --bytes, or none of them")
    if commands is not None and size is not None:
        rate = disks.estimate_disk_rate(commands, size, disks.PROFILES[profile or "everysec"], data)
        if not output.wrote_json(_document(rate)):
            lines(rate)
        return 0
    measure = partial(disks.measure_disk_rate, seconds=seconds, profile=profile)
    return _on_all(output, measure, _document, lines, 2.0 + seconds, **servers)


def _document(rate: disks.DiskRate) -> dict[str, Any]:
    return {**asdict(rate), "total": rate.total}


def _timed(output: Output, query: Callable[..., float], timeout: float, **servers: Any) -> int:
    return _on_all(
        output,
        partial(query, timeout=timeout),
        lambda seconds: {"seconds": seconds},
        lambda seconds: output.good(f"  done in {seconds:.1f} s"),
        timeout,
        **servers,
    )


def _on_all(
    output: Output,
    query: Callable[[Any], Any],
    as_document: Callable[[Any], dict[str, Any]],
    lines: Callable[[Any], None],
    timeout: float = 2.0,
    *,
    names: Sequence[str],
    where: str | None,
) -> int:
    with opened(where) as topology:
        chosen, _ = topology.components(names)
    with output.busy("asking the servers"):
        answers = query_servers(entries_of(chosen.values()), query, timeout)
    failed = [server for server, answer in answers.items() if isinstance(answer, Exception)]
    if output.wrote_json(_by_place(answers, as_document)):
        return 1 if failed else 0
    for server, answer in answers.items():
        output.line(server)
        if isinstance(answer, Exception):
            output.bad(f"  {reason(answer)}")
        else:
            lines(answer)
    return 1 if failed else 0


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
    client_timeout=given.seconds(
        ROTATION_WAIT, "How long to wait for processes to change over.", 0.0
    ),
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
    login = given.login_as(user)
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
        return read_password(str(path), "--password-file")
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
        for process in rotation.pending:
            table.row(process.process, process.reason)
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
