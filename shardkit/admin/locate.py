"""Where keys, and members of sets, live, and why: the steps of `shardkit.routing.placement`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

from crcmod.predefined import mkPredefinedCrcFun

from shardkit.config.component import Component, entry_key
from shardkit.coordination import Holder
from shardkit.errors import ParameterMismatchError, ShardFailure, ShardUnavailable, StructureError
from shardkit.kit.kit import ShardKit
from shardkit.network.server_queries import ServerErrors, client_of
from shardkit.operations.commands import Command, Key, Partial, Shard
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.routing.placement import slot_of, slot_ranges
from shardkit.structures.base.parameters import meta_key
from shardkit.structures.set.sharded_set import DEFAULT_PART_SIZE, ShardedSet

MEMBER_TYPES: dict[str, type[Any]] = {"int": int, "str": str, "bytes": bytes}
_NUMBERED = re.compile(rb"(.+):[a-z]?([0-9]{1,5})")
_IN_NUMBERED_PARTS = (b"search", b"jobs", b"ads")


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of a key's placement."""

    number: int | None
    hashed: bytes
    is_tag: bool
    hash: int | None
    text: str


@dataclass(frozen=True)
class LocatedKey:
    """A key, its shard and server, and for a member of a set whether it exists."""

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


def locate_keys(kit: ShardKit, component: Component, keys: Sequence[bytes]) -> list[LocatedKey]:
    """Return where keys of a component live; a ShardFailure if that cannot be asked."""
    parts = _numbered(kit, component, keys)
    return [parts.get(key) or locate_key(component, key) for key in keys]


def locate_key(component: Component, key: bytes, **more: Any) -> LocatedKey:
    """Return where a key lives that its hash places; ``more`` are further fields."""
    reason_why = why(component, key)
    shard = Shard(component.name, reason_why.number)
    return LocatedKey(key, shard, _server(component, shard, reason_why), reason_why, **more)


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
    kit: ShardKit, component: Component, keys: Sequence[bytes]
) -> dict[bytes, LocatedKey]:
    """Return the keys of structures in numbered parts (`ShardOf`), which no hash places."""
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
    replies = kit.plane.link().send(batch) if batch else []
    located = {}
    for (key, name, part), there, kind in zip(asked, replies[::2], replies[1::2], strict=True):
        if kind in _IN_NUMBERED_PARTS or there == 1:
            shard = Shard(component.name, part)
            text = f"part {part} of {name!r}, on shard {part}"
            reason_why = Why(part, b"", False, None, text)
            located[key] = LocatedKey(key, shard, component.entry_of(shard).address, reason_why)
        elif isinstance(there, ShardUnavailable) or isinstance(kind, ShardUnavailable):
            raise there if isinstance(there, ShardUnavailable) else kind
    return located


# ---- members of a set


def open_set(
    kit: ShardKit, component: Component, name: str, asked: dict[str, Any]
) -> ShardedSet[Any, Any]:
    """Open a set with its stored parameters, or with the given ones if it does not exist."""
    meta = f"{name}:meta"
    [reply] = kit.plane.link().send(Partial([Command(component.name, meta, ("HGETALL", meta))]))
    if isinstance(reply, ShardFailure) and asked["total"] is None:
        raise reply
    try:
        words = [] if isinstance(reply, ShardFailure) else [word.decode() for word in reply]
        stored = dict(zip(words[::2], words[1::2], strict=True))
    except (AttributeError, TypeError, ValueError):
        raise StructureError(f"{meta} cannot be used: {reply!r:.60}", "restore it") from None
    wanted = {field: str(value) for field, value in asked.items() if value is not None}
    if not stored:
        if asked["total"] is None:
            raise StructureError(
                f"{meta} is missing: how the members of {name!r} are spread is unknown",
                "specify --total, --part-size and --members, as the structure will have them",
            )
        defaults = {"part_size": str(DEFAULT_PART_SIZE), "members": "str"}
        stored = {"kind": "set", "partition": "crc32", **defaults, **wanted}
    if stored.get("kind") != "set":
        raise StructureError(
            f"{name!r} is a {stored.get('kind')}, not a set",
            "specify a set",
        )
    for field, value in wanted.items():
        if stored.get(field) != value:
            raise ParameterMismatchError(
                f"{name!r} was made with {field} {stored.get(field)}, not {value}",
                "leave the option out: the stored value is used",
            )
    return kit.set(
        name,
        component=component.name,
        total=int(stored["total"]),
        part_size=int(stored["part_size"]),
        members=MEMBER_TYPES[stored["members"]],
        partition=stored["partition"],
    )


def locate_members(
    kit: ShardKit, component: Component, in_set: ShardedSet[Any, Any], members: Sequence[str]
) -> list[LocatedKey]:
    """Return where members of a set live, and whether they exist."""
    given = [member if member.isprintable() else os.fsencode(member) for member in members]
    keys = [in_set.key_of(member) for member in given]  # refuses invalid members
    sent = [os.fsencode(member) for member in members]
    if in_set.parameters["members"] == "int":
        sent = [b"%d" % int(member) for member in sent]
    batch = [
        Command(component.name, key, ("SISMEMBER", key, member))
        for key, member in zip(keys, sent, strict=True)
    ]
    replies = kit.plane.link().send(Partial(batch))
    return [
        locate_key(
            component,
            key.encode(),
            member=os.fsencode(members[n]).decode(errors="backslashreplace"),
            part=in_set.part_of(given[n]),
            there=reply if isinstance(reply, ShardFailure) else bool(reply),
        )
        for n, (key, reply) in enumerate(zip(keys, replies, strict=True))
    ]


def why(component: Component, key: Key) -> Why:
    """Explain where a key of a component lives."""
    data = key_bytes(key)
    rule, count = component.placement, len(component.shards)
    if not count and component.entry is not None and component.entry.is_cluster:
        slot = slot_of(data)
        return _why(None, data, slot, f"slot {slot} of the cluster")
    if not count:
        return Why(None, b"", False, None, "not sharded")
    number = component.place(data)
    if rule == "redis-in-action":  # it has no tags
        value = crc32(b"x" + data)
        text = f"crc32 of x and the key = {value}, mod {count} = {number}"
        return Why(number, b"x" + data, False, value, text)
    hashed = hash_tag(data)
    if rule == "slot":
        slot = slot_of(data)
        slots = slot_ranges(count)[number]
        return _why(number, data, slot, f"slot {slot}, of its {slots[0]}-{slots[-1]}")
    if rule == "rendezvous":
        value = int.from_bytes(blake2b(hashed, digest_size=8).digest(), "big")
        return _why(number, data, value, f"blake2b = {value:016x}, highest weight of {count}")
    if rule != "crc32" and not rule.startswith("crc:"):
        program = rule.partition(" ")[0]
        return Why(number, data, False, None, f"{program} among {count} = {number}")
    name = rule.removeprefix("crc:")
    value = crc32(hashed) if rule == "crc32" else int(mkPredefinedCrcFun(name)(hashed))
    return _why(number, data, value, f"{name} = {value}, mod {count} = {number}")


def _why(number: int | None, data: bytes, value: int, rule: str) -> Why:
    hashed = hash_tag(data)
    is_tag = hashed != data
    tag = f"tag {hashed.decode(errors='backslashreplace')}: " if is_tag else ""
    return Why(number, hashed, is_tag, value, f"{tag}{rule}")


KINDS = ("lock", "semaphore", "rwlock", "election", "quorum")
_KEY = re.compile(rb"(\w+):\{([^{}]+)\}:(?:holders|waiters)")


class LockState(NamedTuple):
    """A client that holds a lock or waits for it.

    Attributes:
        component: where the lock lives.
        kind: one of `KINDS`.
        name: the lock's name.
        state: ``holds`` or ``waits``.
        holder: the client.
    """

    component: str
    kind: str
    name: str
    state: str
    holder: Holder


def lock_states(
    kit: ShardKit, component: Component, failures: dict[str, Exception] | None = None
) -> list[LockState]:
    """Return the holders and waiters of a component's locks, by kind and name.

    With ``failures``, shards that fail are added to it, with the error, instead of raising that.

    Cost: a SCAN of the component's databases, 1,000 keys at a time, and an exchange for each lock.
    """
    named: set[tuple[str, str]] = set()
    for shard, _ in component.entries():
        client: Any = kit.client(component.name, shard.number)
        try:
            for key in client.scan_iter(match="*:{*}:*", count=1000):
                match = _KEY.fullmatch(key.encode() if isinstance(key, str) else key)
                if match and match[1].decode() in KINDS:
                    named.add((match[1].decode(), match[2].decode(errors="replace")))
        except ServerErrors as error:
            if failures is None:
                raise
            failures[str(shard)] = error
    states: list[LockState] = []
    for kind, name in sorted(named):
        lock = kit.lock(name, component=component.name, kind=kind).inspect()
        states += [LockState(component.name, kind, name, "holds", owner) for owner in lock.holders]
        states += [LockState(component.name, kind, name, "waits", owner) for owner in lock.waiters]
    return states
