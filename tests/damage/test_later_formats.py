"""Data that a later release stored: every call on it is refused, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import getattr_static, signature
from typing import Any

import pytest
from damages import STORED, SUBJECTS, Driver
from subjects import MAP, unchecked

from shardkit import ShardKitError, ShardMap, connect
from shardkit.errors import NewerFormatError
from shardkit.kit.catalogue import Catalogue
from shardkit.local import LocalServers
from shardkit.operations import operation, stream

# Subjects whose keys have no number; see docs/compatibility.md.
UNNUMBERED = {
    *("contacts", "daily totals", "guard", "market", "rate limit", "score ranges"),
    *("transfers", "window"),
    "queue",  # each task has its own: tests/queues/test_task_queues.py
}
# Calls that read no key which has a number, or whose keys are others.
UNCONCERNED = {
    *(("chats", "chats"), ("used chats", "chats")),
    *(("counters", call) for call in ("known", "clean", "keep_clean")),
    *((files, "create") for files in ("files", "used files")),
    *(("statistics", "slowest"),),
}
# Methods whose calls change too much for the other tests of damage.
FURTHER: dict[str, dict[str, Callable[[Any], Any]]] = {
    "planned set": {"replan": lambda s: s.replan(1000)},
    "hash": {"replan": lambda h: h.replan(1000)},
    "files": {"read": lambda files: list(files.read(files.take("logs", "ada", timeout=0)))},
    "maintenance": {"is on": lambda flags: flags.check("shop")},
}
# Keys of structures that say a format only from the second one on.
SAYING = (":meta", ":state", ":ends")


def _raised(key: str, field: bytes, value: bytes) -> bytes | None:
    """A field of a later release, of one that says a format; else None."""
    if field == b"format":
        return b"2"
    if value.startswith(b'{"'):
        return json.dumps({**json.loads(value), "format": 2}).encode()
    if key.startswith("counters:") and ":of:" in key:
        return bytes([value[0] + 16]) + value[1:]
    return None


def raise_formats(clients: list[Any]) -> int:
    """Store what a later release would say of each key; return how many keys do."""
    count = 0
    for client in clients:
        for key in map(bytes.decode, client.scan_iter(_type="hash")):
            fields = client.hgetall(key)
            later = {field: _raised(key, field, value) for field, value in fields.items()}
            later = {field: value for field, value in later.items() if value is not None}
            if key.endswith(SAYING):
                later[b"format"] = b"2"
            if later:
                client.hset(key, mapping=later)
                count += 1
    return count


def stored(clients: list[Any]) -> list[dict[bytes, bytes]]:
    """All keys of some databases, and what they hold."""
    every = []
    for client in clients:
        keys = list(client.scan_iter(count=10_000))
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
        every.append(dict(zip(keys, pipe.execute(), strict=True)))
    return every


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, connect(servers.shard_map) as kit:
        if request.param == "blocking":
            yield Driver(kit, servers.shard_map)
            return
        with asyncio.Runner() as runner:
            driver = Driver(kit, servers.shard_map, runner)
            yield driver
            runner.run(driver.awaiting.aclose())


def calls_of(name: str) -> dict[str, Callable[[Any], Any]]:
    subject = SUBJECTS[name]
    check = {"check": lambda structure: list(subject.check(structure))}
    checks = {} if subject.check is unchecked else check
    return {**subject.reads, **subject.writes, **FURTHER.get(name, {}), **checks}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_later_format_is_refused_by_every_call(driver: Driver, name: str) -> None:
    clients = [driver.kit.client(each) for each in ("data", "second", "third")]
    driver.prepare(name)
    assert (raise_formats(clients) > 0) == (name not in UNNUMBERED)
    before = stored(clients)
    for called, call in calls_of(name).items() if name not in UNNUMBERED else ():
        if (name, called) not in UNCONCERNED:
            with pytest.raises(NewerFormatError, match="format 2, this release reads 1"):
                driver.call(name, call)
            for was, now in zip(before, stored(clients), strict=True):
                assert {key: now.get(key) for key in was} == was, called


class Noting:
    """A structure that notes what is called of it."""

    def __init__(self, structure: Any, names: set[str]) -> None:
        self.structure = structure
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self.structure, name)


@pytest.mark.parametrize("driver", ["blocking"], indirect=True)
def test_every_public_method_of_every_structure_has_a_call(driver: Driver) -> None:
    methods, called, classes = set[str](), set[str](), set[str]()
    for name, subject in SUBJECTS.items():
        driver.prepare(name)
        made = type(subject.open(driver.kit))
        classes |= {each.__name__ for each in made.__mro__}
        owners = {
            each: f"{next(one for one in made.__mro__ if each in vars(one)).__name__}.{each}"
            for each in dir(made)
            if each[0] != "_" and isinstance(getattr_static(made, each), operation | stream)
        }
        methods |= set(owners.values())
        names = set[str]()
        for call in calls_of(name).values():
            driver.restore(STORED)
            with suppress(ShardKitError):  # such as of a method for another codec
                call(Noting(subject.open(driver.kit), names))
        called |= {owners[each] for each in names & owners.keys()}
    assert methods - called == set()
    makers = {name: signature(each) for name, each in vars(Catalogue).items() if name[0] != "_"}
    kinds = {name: re.split(r"[.\[]", each.return_annotation)[1] for name, each in makers.items()}
    assert set(kinds.items()) - {each for each in kinds.items() if each[1] in classes} == {
        ("access_times", "AccessTimes"),  # writes statistics
        ("read_write_lock", "ReadWriteLock"),  # has two locks
        ("timed", "TimedBlock"),
    }
