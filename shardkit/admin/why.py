"""Explains why a key lives on its shard. Pure.

`shardkit.routing.placement` decides; this module shows its steps with the intermediate values.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

from crcmod.predefined import mkPredefinedCrcFun

from shardkit.config.component import Component
from shardkit.operations.commands import Key
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.routing.placement import slot_of, slot_ranges


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of a key's placement."""

    number: int | None
    hashed: bytes
    is_tag: bool
    hash: int | None
    text: str


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


def _why(number: int | None, data: bytes, value: int, found: str) -> Why:
    hashed = hash_tag(data)
    is_tag = hashed != data
    tag = f"tag {hashed.decode(errors='backslashreplace')}: " if is_tag else ""
    return Why(number, hashed, is_tag, value, f"{tag}{found}")
