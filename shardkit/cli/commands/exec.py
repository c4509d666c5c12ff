"""``shardkit exec``: one command on many servers, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from shardkit.admin.servers import execute
from shardkit.cli.options import (
    LOGIN_PASSWORD,
    command,
    config_option,
    login_as,
    login_option,
    opened,
    timeout_option,
)
from shardkit.cli.output import BAD, Output, Styled, wordy
from shardkit.cli.rows import Field, column_only, table_of
from shardkit.cli.text import one_line, reason
from shardkit.errors import ConfigError


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
