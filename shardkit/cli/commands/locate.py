"""``shardkit locate`` and ``url``: where a key or member lives and why, and entries as URLs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from shardkit.admin.locate import MEMBER_TYPES, LocatedKey, locate_keys, locate_members, open_set
from shardkit.cli import options as given
from shardkit.cli.options import ShardOptions, command, opened
from shardkit.cli.output import BAD, GOOD, Cell, Column, Output, Styled, wordy
from shardkit.cli.rows import Field, write_rows
from shardkit.cli.text import reason
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import write_private
from shardkit.config.url import mask_url
from shardkit.errors import ShardFailure
from shardkit.operations.commands import Shard
from shardkit.routing.keys import pair_key
from shardkit.structures.set.sharded_set import DEFAULT_PART_SIZE


@command(
    "shardkit locate timelines home:42 home:43",
    "shardkit locate followers --pair 42 99",
    "shardkit locate timelines home:42 --shards 8",
    "shardkit locate unique --in unique:2015-05-17 383061330139657245",
    "shardkit locate unique --in ids --total 1000000 17",
)
def locate(
    output: Output,
    name: str = given.argument("COMPONENT"),
    keys: Sequence[str] = given.argument("[KEY]...", nargs=-1),
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    pairs: Sequence[tuple[str, str]] = given.repeated(
        "ID ID",
        "A pair of ids, in either order, instead of a key. May be repeated.",
        nargs=2,
        name="--pair",
    ),
    structure: str | None = given.option(
        "NAME",
        "The keys are members of this sharded set, whose parameters are in NAME:meta.",
        name="--in",
    ),
    total: int | None = given.number(
        None, "For a set that does not exist yet: about how many members it will have."
    ),
    part_size: int | None = given.number(
        None, f"Likewise: how many members a part may have.  [default: {DEFAULT_PART_SIZE}]"
    ),
    members: str | None = given.choice(
        list(MEMBER_TYPES), "Likewise: the type of its members.  [default: str]"
    ),
) -> int:
    """Show where keys of a component live, and why: which shard, on which server.

    Connects only to the config server, unless --in names a set: then it also checks whether the
    members exist; or a key looks like one of a structure with a part on each shard, {NAME:3}…: then
    it checks whether there is such a structure. A key is a key on a shard, or the value that a
    decorator or router routes by.
    """
    if not keys and not pairs:
        raise click.UsageError("name a key, or a --pair")
    if structure is None and (total or part_size or members):
        raise click.UsageError("--total, --part-size and --members describe a set: use --in NAME")
    if structure is not None and pairs:
        raise click.UsageError("--pair is for keys and --in for members: use one of them")
    with opened(where) as topology:
        component = topology.component(name, sharding)
        if structure is None:
            placed = [os.fsencode(key) for key in keys] + [pair_key(*pair) for pair in pairs]
            rows = locate_keys(topology.kit, component, placed)
        else:
            parameters = {"total": total, "part_size": part_size, "members": members}
            in_set = open_set(topology.kit, component, structure, parameters)
            rows = locate_members(topology.kit, component, in_set, keys)
    fields = _key_fields(component) if structure is None else _member_fields(component)
    write_rows(output, fields, rows)
    return int(any(row.failed for row in rows))


def _key_fields(component: Component) -> tuple[Field[LocatedKey], ...]:
    placement = component.placement if component.shards else None
    return (
        Field("key", lambda row: row.key, wordy("key")),
        Field("shard", lambda row: str(row.shard), wordy("shard")),
        Field("component", lambda row: row.shard.component),
        Field("number", lambda row: row.shard.number),
        Field("server", lambda row: row.server, Column("server")),
        Field("placement", lambda _: placement),
        Field("hashed", lambda row: row.why.hashed or None),
        Field("is_tag", lambda row: row.why.is_tag),
        Field("hash", lambda row: row.why.hash),
        Field("why", lambda row: row.why.text, wordy("why")),
    )


def _member_fields(component: Component) -> tuple[Field[LocatedKey], ...]:
    return (
        Field("member", lambda row: row.member, wordy("member")),
        Field("part", lambda row: row.part),
        Field("there", lambda row: None if row.failed else row.there, Column("there"), _there),
        Field("reason", lambda row: str(row.there) if row.failed else None),
        *_key_fields(component),
    )


def _there(row: LocatedKey) -> Cell:
    if isinstance(row.there, ShardFailure):
        error = row.there.error
        return Styled(f"? {reason(error) if error else row.there}", BAD)
    return Styled("yes", GOOD) if row.there else "no"


@command(
    "shardkit url jobs --shard 3 -o jobs.url",
    'rq worker -u "$(shardkit url jobs)"',
    "shardkit url jobs --show-secrets",
)
def url(
    output: Output,
    name: str = given.argument("COMPONENT"),
    number: int | None = given.number(None, "The entry of a shard.", 0, name="--shard"),
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    written: Path | None = given.file,
    show_secrets: bool = given.flag("The password in the clear on a terminal too."),
) -> None:
    """Write an entry as a URL, for programs that take nothing else.

    The URL is a secret: it holds the password, and ${NAME} is replaced. A terminal is shown *** in
    its place.
    """
    with opened(where) as topology:
        if number is None:  # does not depend on the shards
            described = topology.kit.component(name)
        else:
            described = topology.component(name, sharding)
        entry = described.entry_of(Shard(name, number))
    text = entry.url(entry_key(name, number))
    if written is not None:
        write_private(written, f"{text}\n")
        output.note(f"wrote {written}", GOOD)
        return
    if output.interactive and not show_secrets:
        text = mask_url(text)
    if not output.wrote_json(url=text):
        output.text(f"{text}\n")
