"""What each release stored is read, checked and written by this one; a later format is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faces import keys_of
from golden import HERE, plain, restore
from subjects import MAP, SUBJECTS

from shardkit import ShardKit, ShardMap, connect
from shardkit.errors import NewerFormatError
from shardkit.local import LocalServers

FILES = sorted(path for path in HERE.glob("*/*.json"))


@pytest.fixture(scope="module")
def opened() -> Iterator[ShardKit]:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        connect(servers.shard_map) as kit,
    ):
        yield kit


def damages(kit: ShardKit, name: str) -> list[Any]:
    return list(SUBJECTS[name].check(SUBJECTS[name].open(kit)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_what_a_release_stored_is_read_checked_and_written(opened: ShardKit, path: Path) -> None:
    client: Any = opened.client("data")
    name, subject = path.stem, SUBJECTS[path.stem]
    reads = restore(client, path)
    assert set(reads) <= set(subject.reads)
    for called, expected in reads.items():
        assert plain(subject.reads[called](subject.open(opened))) == expected, called
    assert damages(opened, name) == []
    assert opened.upgrade("data", dry_run=True) == []
    for called, write in subject.writes.items():
        restore(client, path)
        write(subject.open(opened))
        assert damages(opened, name) == [], called


def test_every_subject_is_kept() -> None:
    assert {path.stem for path in FILES} == set(SUBJECTS)


# Those whose parameters say the format of all that they store.
FORMATTED = sorted(
    name
    for name in SUBJECTS
    if any(":meta" in path.read_text() for path in FILES if path.stem == name != "ip to city")
)


@pytest.mark.parametrize("name", FORMATTED)
def test_a_later_format_is_refused_by_name_and_nothing_is_written(
    opened: ShardKit, name: str, lower: Any
) -> None:
    lower(lease=0.0)
    client: Any = opened.client("data")
    subject = SUBJECTS[name]
    restore(client, next(path for path in FILES if path.stem == name))
    for key in keys_of(opened, "data"):
        if key.endswith(":meta"):
            client.hset(key, "format", 2)
    before = {key: client.dump(key) for key in client.scan_iter()}
    for call in (*subject.reads.values(), *subject.writes.values()):
        with pytest.raises(NewerFormatError, match=":meta has format 2, this release"):
            call(subject.open(opened))
    assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_a_generation_of_a_later_format_is_refused_and_further_fields_are_ignored(
    opened: ShardKit,
) -> None:
    client: Any = opened.client("data")
    subject = SUBJECTS["ip to city"]
    reads = restore(client, next(path for path in FILES if path.stem == "ip to city"))
    current = json.loads(client.hget("ip2city:generations", "current"))
    client.hset("ip2city:generations", "current", json.dumps({**current, "new": [1]}))
    assert plain(subject.reads["find"](subject.open(opened))) == reads["find"]
    client.hset("ip2city:generations", "current", json.dumps({**current, "format": 2}))
    for call in (*subject.reads.values(), lambda ip: list(ip.check())):
        with pytest.raises(NewerFormatError, match="generation has format 2, this release reads 1"):
            call(subject.open(opened))
