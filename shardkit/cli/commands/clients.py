"""``shardkit clients``, ``keys`` and ``exec``: who is connected, what is big, a command on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import click

from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.admin.servers import ClientProcess, connected_clients, execute
from shardkit.cli.options import (
    LOGIN_PASSWORD,
    ShardOptions,
    command,
    config_option,
    login_as,
    login_option,
    number_option,
    opened,
    timeout_option,
)
from shardkit.cli.output import BAD, DIM, WARN, Column, Output, Styled, identifier, number, wordy
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.cli.text import one_line, printable, reason, size
from shardkit.errors import ConfigError, counted


@command(
    "shardkit clients -c redis://config.internal",
    "shardkit clients --using unique",
    "shardkit clients --older-than 17 --json | jq '.clients[].host'",
)
@config_option
@click.option("--using", metavar="COMPONENT", help="Only those that use this component.")
@number_option(
    "--older-than",
    None,
    "Only those that use entries of an earlier push, or whose epoch is unknown.",
    unit="EPOCH",
)
def clients(where: str | None, using: str | None, older_than: int | None, output: Output) -> int:
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
    if output.as_json:
        output.document(
            {
                "clients": json_rows(_FIELDS, shown),
                "failed": {server: reason(error) for server, error in failed.items()},
            }
        )
        return int(bool(failed))
    if shown:
        output.table(table_of(_FIELDS, shown).without_empty())
    output.line()
    connections = sum(process.connections for process in shown)
    output.line(f"{counted(len(shown), 'client')}, {counted(connections, 'connection')}", DIM)
    for server, error in failed.items():
        output.line(f"{server} was not asked: {reason(error)}", WARN)
    return int(bool(failed))


_FIELDS: tuple[Field[ClientProcess], ...] = (
    Field("host", lambda each: each.host, Column("host")),
    Field("pid", lambda each: each.pid or None, identifier("pid")),
    Field("library", lambda each: each.library or None, wordy("library")),
    Field(
        "users",
        lambda each: sorted(each.users),
        wordy("user"),
        lambda e: ", ".join(sorted(e.users)),
    ),
    Field(
        "components",
        lambda each: sorted(each.components),
        wordy("components"),
        lambda each: ", ".join(sorted(each.components)),
    ),
    Field("epoch", lambda each: each.epoch, identifier("epoch")),
    Field("entries", lambda each: each.entries),
    Field("connections", lambda each: each.connections, number("conns")),
    Field("idle_seconds", lambda each: each.idle, number("idle s")),
    Field("age_seconds", lambda each: each.age, number("age s")),
)


@command(
    "shardkit keys --biggest 20",
    "shardkit keys --biggest 5 --by elements timelines",
    "shardkit keys --biggest 10 --match 'unique:2026-*' --json",
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@number_option("--biggest", 20, "How many to show.", parameter="count")
@click.option(
    "--by",
    type=click.Choice(["memory", "elements"]),
    default="memory",
    show_default=True,
    help="The measure of a key's size.",
)
@click.option("--match", metavar="PATTERN", help="Only keys that match, as of SCAN.")
def keys(
    names: Sequence[str],
    where: str | None,
    count: int,
    by: Literal["memory", "elements"],
    match: str | None,
    output: Output,
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
    if output.as_json:
        output.document({"keys": json_rows(_KEY_FIELDS, biggest), "inspected": seen})
        return
    output.table(table_of(_KEY_FIELDS, biggest))
    output.line()
    output.line(f"{counted(seen, 'key')} inspected", DIM)


def _key(each: BigKey) -> str:
    return each.key.decode(errors="backslashreplace")


_KEY_FIELDS: tuple[Field[BigKey], ...] = (
    Field("key", _key, wordy("key"), lambda each: printable(_key(each))),
    Field("shard", lambda each: each.shard, wordy("shard")),
    Field("type", lambda each: each.kind, Column("type")),
    Field("memory", lambda each: each.memory, number("memory"), lambda each: size(each.memory)),
    Field("elements", lambda each: each.elements, number("elements")),
)


@command(
    "shardkit exec --on all -- CONFIG GET maxmemory",
    "shardkit exec --on unique -- DBSIZE",
    "shardkit exec --on unique:7 -- OBJECT FREQ unique:2026-11-22",
    f"{LOGIN_PASSWORD}=… shardkit exec --on all --user admin -- ACL LIST",
    name="exec",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@config_option
@click.option(
    "--on",
    "target",
    required=True,
    metavar="all|COMPONENT|SHARD",
    help="Each server once; or each shard of a component, or one of them, in its database.",
)
@login_option
@timeout_option(5.0)
def exec_(
    command: Sequence[str],
    where: str | None,
    target: str,
    user: str | None,
    timeout: float,
    output: Output,
) -> int:
    """Run COMMAND on all servers, on each shard of a component, or on one shard.

    All are asked at the same time. Nothing is sent twice, and nothing is undone: what COMMAND does
    is up to you. Exits with 1 if any server refuses it or cannot be reached.
    """
    login = login_as(user)
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
        each="server" if target == "all" else "shard",
        shard=shard,
        timeout=timeout,
        **login,
    )
    if output.as_json:
        output.document(
            {
                str(at): {"error": reason(answer)}
                if isinstance(answer, Exception)
                else {"reply": _plain(answer)}
                for at, answer in answers.items()
            }
        )
    else:
        fields: tuple[Field[tuple[Any, Any]], ...] = (
            column_only("server" if target == "all" else "shard", lambda row: str(row[0])),
            column_only(wordy("reply"), lambda row: _cell(row[1])),
        )
        output.table(table_of(fields, answers.items()))
    return int(any(isinstance(answer, Exception) for answer in answers.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(each) for name, each in value.items()}
    return value


def _cell(answer: Any) -> Any:
    if isinstance(answer, Exception):
        return Styled(reason(answer), BAD)
    plain = _plain(answer)
    return one_line(plain if isinstance(plain, str) else str(plain))
