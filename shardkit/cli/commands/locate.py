"""``shardkit locate``: shows where a key, or a member of a set, lives and why."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from shardkit.cli.options import (
    OpenTopology,
    ShardOptions,
    common_options,
    config_option,
    examples,
    opened,
    shards_options,
)
from shardkit.cli.options import component as read_component
from shardkit.cli.output import BAD, GOOD, Cell, Column, Output, Styled, wordy
from shardkit.cli.rows import Field, write_rows
from shardkit.cli.text import reason
from shardkit.cli.why import Why, why
from shardkit.config.component import Component, entry_key
from shardkit.errors import ParameterMismatchError, ShardFailure, ShardUnavailable, StructureError
from shardkit.network.server_queries import ServerErrors, client_of
from shardkit.operations.commands import Command, Partial, Shard
from shardkit.routing.keys import hash_tag, pair_key
from shardkit.structures.base.parameters import meta_key
from shardkit.structures.set.sharded_set import DEFAULT_PART_SIZE, ShardedSet

_NUMBERED = re.compile(rb"(.+):[a-z]?([0-9]{1,5})")
_IN_NUMBERED_PARTS = (b"search", b"jobs", b"ads")
_MEMBERS: dict[str, type[Any]] = {"int": int, "str": str, "bytes": bytes}


@dataclass(frozen=True)
class _LocatedKey:
    """A key and its place."""

    key: bytes
    shard: Shard
    server: str
    why: Why
    member: str | None = None
    part: int | None = None
    there: bool | ShardFailure | None = None

    @property
    def failed(self) -> bool:
        """Whether its server could not tell if the member is there."""
        return isinstance(self.there, ShardFailure)


@click.command(
    short_help="Show where keys live, and why.",
    epilog=examples(
        "shardkit locate timelines home:42 home:43",
        "shardkit locate followers --pair 42 99",
        "shardkit locate timelines home:42 --shards 8",
        "shardkit locate unique --in unique:2015-05-17 383061330139657245",
        "shardkit locate unique --in ids --total 1000000 17",
    ),
)
@click.argument("name", metavar="COMPONENT")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@config_option
@shards_options
@click.option(
    "--pair",
    "pairs",
    nargs=2,
    multiple=True,
    metavar="ID ID",
    help="A pair of ids, in either order, instead of a key. May be repeated.",
)
@click.option(
    "--in",
    "structure",
    metavar="NAME",
    help="The keys are members of this sharded set, whose parameters are in NAME:meta.",
)
@click.option(
    "--total",
    type=click.IntRange(min=1),
    metavar="N",
    help="For a set that does not exist yet: about how many members it will have.",
)
@click.option(
    "--part-size",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Likewise: how many members a part may have.  [default: {DEFAULT_PART_SIZE}]",
)
@click.option(
    "--members",
    type=click.Choice(list(_MEMBERS)),
    help="Likewise: the type of its members.  [default: str]",
)
@common_options
def locate(
    name: str,
    keys: Sequence[str],
    where: str | None,
    sharding: ShardOptions,
    pairs: Sequence[tuple[str, str]],
    structure: str | None,
    total: int | None,
    part_size: int | None,
    members: str | None,
    as_json: bool,
) -> int:
    """Show where keys of a component live, and why: which shard, on which server.

    Connects only to the config server, unless --in names a set: then it also checks whether the
    members exist; or a key looks like one of a structure with a part on each shard, {NAME:3}…: then
    it checks whether there is such a structure. A key is a key on a shard, or the value that a
    decorator or router routes by.
    """
    output = Output(as_json)
    if not keys and not pairs:
        raise click.UsageError("name a key, or a --pair")
    if structure is None and (total or part_size or members):
        raise click.UsageError("--total, --part-size and --members describe a set: use --in NAME")
    if structure is not None and pairs:
        raise click.UsageError("--pair is for keys and --in for members: use one of them")
    with opened(where) as topology:
        component = read_component(topology, name, sharding)
        if structure is None:
            placed = [os.fsencode(key) for key in keys] + [pair_key(*pair) for pair in pairs]
            parts = _numbered(topology, component, placed)
            found = [parts.get(key) or _find(component, key) for key in placed]
        else:
            asked = {"total": total, "part_size": part_size, "members": members}
            opened_set = _set(topology, component, structure, asked)
            found = _members(topology, component, opened_set, keys)
    fields = _key_fields(component) if structure is None else _member_fields(component)
    write_rows(output, fields, found)
    return int(any(each.failed for each in found))


def _find(component: Component, key: bytes, **more: Any) -> _LocatedKey:
    reason_why = why(component, key)
    shard = Shard(component.name, reason_why.number)
    return _LocatedKey(key, shard, _server(component, shard, reason_why), reason_why, **more)


def _server(component: Component, shard: Shard, reason_why: Why) -> str:
    """Return the server of a shard; for a cluster the node that has the slot, if reachable."""
    entry = component.entry_of(shard)
    if not entry.is_cluster:
        return entry.address
    try:
        with client_of(entry.resolved(entry_key(*shard))) as client:
            node = client.nodes_manager.get_node_from_slot(reason_why.hash)
            return f"{node.host}:{node.port}"
    except ServerErrors:
        return entry.address


# ---- keys of structures that have part n on shard n


def _numbered(
    topology: OpenTopology, component: Component, keys: Sequence[bytes]
) -> dict[bytes, _LocatedKey]:
    """Return the keys of structures in numbered parts (`ShardOf`), which no hash places.

    Raises:
        ShardFailure: a shard that has to say whether there is such a structure cannot be asked.
    """
    asked: list[tuple[bytes, str, int]] = []
    for key in keys:
        match = _NUMBERED.fullmatch(hash_tag(key))
        if match and hash_tag(key) != key and int(match[2]) < len(component.shards):
            asked.append((key, match[1].decode(errors="backslashreplace"), int(match[2])))
    batch = Partial()
    for key, name, part in asked:
        meta = meta_key(name)
        batch.append(Command(Shard(component.name, part), key, ("EXISTS", key)))
        first = Shard(component.name, 0)
        batch.append(Command(first, meta, ("HGET", meta, "kind")))
    replies = topology.kit.plane.links[True].send(batch) if batch else []
    found = {}
    for (key, name, part), there, kind in zip(asked, replies[::2], replies[1::2], strict=True):
        if kind in _IN_NUMBERED_PARTS or there == 1:
            shard = Shard(component.name, part)
            text = f"part {part} of {name!r}, on shard {part}"
            reason_why = Why(part, b"", False, None, text)
            found[key] = _LocatedKey(key, shard, component.entry_of(shard).address, reason_why)
        elif isinstance(there, ShardUnavailable) or isinstance(kind, ShardUnavailable):
            raise there if isinstance(there, ShardUnavailable) else kind
    return found


# ---- members of a set


def _set(
    topology: OpenTopology, component: Component, name: str, asked: dict[str, Any]
) -> ShardedSet[Any, Any]:
    """Open a set with its stored parameters, or with the given ones if it does not exist."""
    meta = f"{name}:meta"
    [reply] = topology.kit.plane.links[True].send(
        Partial([Command(component.name, meta, ("HGETALL", meta))])
    )
    if isinstance(reply, ShardFailure) and asked["total"] is None:
        raise reply
    words = [] if isinstance(reply, ShardFailure) else [bytes(word).decode() for word in reply]
    stored = dict(zip(words[::2], words[1::2], strict=True))
    wanted = {field: str(value) for field, value in asked.items() if value is not None}
    if not stored:
        if asked["total"] is None:
            raise StructureError(
                f"{meta} is not there: nothing says how the members of {name!r} are spread",
                "say --total, and --part-size and --members, as it will be made with",
            )
        defaults = {"part_size": str(DEFAULT_PART_SIZE), "members": "str"}
        stored = {"kind": "set", "partition": "crc32", **defaults, **wanted}
    if stored.get("kind") != "set":
        raise StructureError(
            f"{name!r} is a {stored.get('kind')}, not a set", "only members of sets can be located"
        )
    for field, value in wanted.items():
        if stored.get(field) != value:
            raise ParameterMismatchError(
                f"{name!r} was made with {field} {stored.get(field)}, not {value}",
                "leave the option out: what it was made with is known",
            )
    return topology.kit.set(
        name,
        component=component.name,
        total=int(stored["total"]),
        part_size=int(stored["part_size"]),
        members=_MEMBERS[stored["members"]],
        partition=stored["partition"],
    )


def _members(
    topology: OpenTopology,
    component: Component,
    in_set: ShardedSet[Any, Any],
    members: Sequence[str],
) -> list[_LocatedKey]:
    keys = [in_set.key_of(_given(member)) for member in members]  # refuses invalid members
    sent = [os.fsencode(member) for member in members]
    if in_set.parameters["members"] == "int":
        sent = [b"%d" % int(member) for member in sent]
    batch = [
        Command(component.name, key, ("SISMEMBER", key, member))
        for key, member in zip(keys, sent, strict=True)
    ]
    replies = topology.kit.plane.links[True].send(Partial(batch))
    return [
        _find(
            component,
            key.encode(),
            member=_text(os.fsencode(member)),
            part=in_set.part_of(_given(member)),
            there=reply if isinstance(reply, ShardFailure) else bool(reply),
        )
        for member, key, reply in zip(members, keys, replies, strict=True)
    ]


def _given(text: str) -> str | bytes:
    """Return an argument of the command line; as bytes if it is not UTF-8."""
    return text if text.isprintable() else os.fsencode(text)


# ---- what is shown


def _key_fields(component: Component) -> tuple[Field[_LocatedKey], ...]:
    placement = component.placement if component.shards else None
    return (
        Field("key", lambda each: _text(each.key), wordy("key")),
        Field("shard", lambda each: str(each.shard), Column("shard")),
        Field("component", lambda each: each.shard.component),
        Field("number", lambda each: each.shard.number),
        Field("server", lambda each: each.server, wordy("server")),
        Field("placement", lambda _: placement),
        Field("hashed", lambda each: _text(each.why.hashed) or None),
        Field("is_tag", lambda each: each.why.is_tag),
        Field("hash", lambda each: each.why.hash),
        Field("why", lambda each: each.why.text, wordy("why")),
    )


def _member_fields(component: Component) -> tuple[Field[_LocatedKey], ...]:
    return (
        Field("member", lambda each: each.member, wordy("member")),
        Field("part", lambda each: each.part),
        Field("there", lambda each: None if each.failed else each.there, Column("there"), _there),
        Field("reason", lambda each: str(each.there) if each.failed else None),
        *_key_fields(component),
    )


def _there(found: _LocatedKey) -> Cell:
    if isinstance(found.there, ShardFailure):
        error = found.there.error
        return Styled(f"? {reason(error) if error else found.there}", BAD)
    return Styled("yes", GOOD) if found.there else "no"


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
