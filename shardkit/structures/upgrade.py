"""Bring stored data into the newest form of this release, once all processes run it.

Parameters get today's names and this release's format; groups of no parameters are marked with
their fingerprint; lists and parts of indexes get the format. The parameters come first. A process
reads them again before a write, at most a second after it last read them (`LEASE`), and an earlier
release then refuses. Scripts that read a state check the format there, so they refuse at once.
Until an upgrade, every release writes the form that it reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardkit.config.component import MAX_SHARDS, Component
from shardkit.operations.commands import Command, ShardOf, To
from shardkit.operations.drivers import BlockingDriver
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base import parameters
from shardkit.structures.base.damage import stored_integer
from shardkit.structures.base.parameters import Metadata
from shardkit.structures.layouts.growing import MOST_GROUPS, state_keys

_AT_ONCE = 1000
_SCAN = 10_000
_SUFFIX = ":meta"


@dataclass(frozen=True)
class Upgrade:
    """A structure that is, or was, not in the newest form.

    Attributes:
        component, structure, kind: where it is, its name and its kind.
        changes: the changes, in words.
    """

    component: str
    structure: str
    kind: str
    changes: tuple[str, ...]


def upgrade_component(
    component: Component,
    client: Callable[[str, int | None], Any],
    driver: BlockingDriver,
    structures: Collection[str] = (),
    *,
    dry_run: bool = False,
) -> list[Upgrade]:
    """Bring the structures of a component into the newest form; see `ShardKit.upgrade`."""
    outdated: list[tuple[Any, str, dict[str, str]]] = []
    for shard in component.all_shards():
        shard_client = client(component.name, shard.number)
        for key in shard_client.scan_iter(match=f"*{_SUFFIX}", count=_SCAN, _type="HASH"):
            text = key.decode(errors="replace") if isinstance(key, bytes) else key
            name = text.removesuffix(_SUFFIX)
            if structures and name not in structures:
                continue
            stored = _text_of(shard_client.hgetall(key))
            if "kind" in stored:
                parameters.format_of(component.name, text, stored.get("format"))
                for at, most in (("groups", MOST_GROUPS), ("shards", MAX_SHARDS)):
                    stored_integer(component.name, text, at, stored.get(at), 1, most, missing=1)
                outdated.append((shard_client, name, stored))
    done = []
    for shard_client, name, stored in sorted(outdated, key=lambda row: row[1]):
        changes = _upgrade_parameters(shard_client, name, stored, dry_run)
        if any(change.startswith("format") for change in changes) and not dry_run:
            time.sleep(2 * parameters.LEASE)
        changes += driver.run(_upgrade_states(component.name, name, stored, dry_run))
        if changes:
            done.append(Upgrade(component.name, name, stored["kind"], tuple(changes)))
    return done


def _text_of(stored: Mapping[Any, Any]) -> dict[str, str]:
    return {
        field.decode(errors="replace") if isinstance(field, bytes) else field: (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
        for field, value in stored.items()
    }


def _upgrade_parameters(client: Any, name: str, stored: dict[str, str], dry_run: bool) -> list[str]:
    """Write parameters under today's names, and the format; bring ``stored`` up to date."""
    key, newest = name + _SUFFIX, str(parameters.FORMATS[-1])
    old = {field: now for field, now in parameters.RENAMED.items() if field in stored}
    changes = [f"{field} is called {now}" for field, now in sorted(old.items())]
    before = stored.get("format", "1")
    if before != newest:
        changes.append(f"format {before} becomes {newest}")
    if changes and not dry_run:

        def write(pipe: Any) -> None:
            fields = _text_of(pipe.hgetall(key))
            pipe.multi()
            for field, now in old.items():
                if field in fields:
                    pipe.hsetnx(key, now, fields[field])
                    pipe.hdel(key, field)
            if before != newest and fields:
                pipe.hset(key, "format", newest)

        client.transaction(write, key)
    for field, now in old.items():
        stored.setdefault(now, stored.pop(field))
    return changes


def _upgrade_states(
    component: str, name: str, stored: Mapping[str, str], dry_run: bool
) -> Operation[list[str]]:
    kind, newest = stored["kind"], str(parameters.FORMATS[-1])
    meta = Metadata(component, name, parameters.deciding(stored))
    if kind in ("set", "hash", "sorted-set") and "groups" in stored:
        keys: list[tuple[To, str]] = [
            (component, key) for key in state_keys(name, int(stored["groups"]))
        ]
        before = ["", *(meta.fingerprint_of(n) for n in parameters.FORMATS[:-1])]
        field, value = "of", meta.fingerprint_of(parameters.FORMATS[-1])
        change = "groups name their parameters"
    elif kind in ("search", "ads", "jobs", "list") and newest != "1":
        shards = int(stored.get("shards", 1))
        keys = (
            [(component, f"{name}:ends")]
            if kind == "list"
            else [(ShardOf(component, n, shards), f"{{{name}:{n}}}:state") for n in range(shards)]
        )
        before = ["", *map(str, parameters.FORMATS[:-1])]
        field, value, change = "format", newest, "its state says the format"
    else:
        return []
    changed, mark = 0, "structures/base/mark_format"
    for page in pages(keys, _AT_ONCE):
        if not dry_run:
            args = [field, value, *before]
            changed += sum(
                (yield [lua_call(to, mark, [key], args, idempotent=True) for to, key in page])
            )
            continue
        texts = yield [Command(to, key, ("HGET", key, field)) for to, key in page]
        existing = yield [Command(to, key, ("EXISTS", key)) for to, key in page]
        rows = zip(texts, existing, strict=True)
        changed += sum(n for text, n in rows if (text or b"").decode(errors="replace") in before)
    return [change] if changed else []
