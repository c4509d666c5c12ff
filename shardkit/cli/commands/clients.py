"""``shardkit clients``, ``keys`` and ``exec``: who is connected, what is big, a command on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import click

from shardkit.admin.client_list import ClientProcess, connected_clients
from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.admin.servers import execute
from shardkit.cli import options as given
from shardkit.cli.options import LOGIN_PASSWORD, ShardOptions, command, login_as, opened
from shardkit.cli.output import BAD, Column, Output, Styled, identifier, number, wordy
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.cli.text import one_line, printable, reason, size
from shardkit.errors import ConfigError, counted


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
    if output.wrote_json(
        clients=json_rows(_FIELDS, shown),
        failed={server: reason(error) for server, error in failed.items()},
    ):
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
    if not output.wrote_json(
        {
            str(at): {"error": reason(answer)}
            if isinstance(answer, Exception)
            else {"reply": _plain(answer)}
            for at, answer in answers.items()
        }
    ):
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
