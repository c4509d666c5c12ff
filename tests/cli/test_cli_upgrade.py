"""What an upgrade writes, and that earlier releases then refuse to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Cli

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import Upgrade
from shardkit.errors import DamagedDataError, NewerFormatError
from shardkit.local import LocalServers
from shardkit.structures.base import parameters

MAP = "components: {data: {shards: {count: 4, over: [{port: 7001}]}}}"
NEXT = range(1, 3)  # the formats of a later release


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[ShardKit, Path]]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        path = tmp_path / "map.json"
        path.write_text(servers.shard_map.to_yaml())
        with shardkit.connect(servers.shard_map) as kit:
            yield kit, path


def at(kit: ShardKit, key: str) -> Any:
    return kit.client("data", kit.component("data").shard_of(key).number)


def an_earlier_set(kit: ShardKit) -> Any:
    """A set as releases before 0.1.0 stored it."""
    ids = kit.set("ids", component="data", members=int, parts=4, part_size=64)
    ids.sadd(*range(300))
    meta = at(kit, "ids:meta")
    meta.hdel("ids:meta", "part_size")
    meta.hset("ids:meta", "shard_size", 64)
    for key in ids.layout.data_keys():
        at(kit, key).hdel(key, "of")
    return ids


@pytest.mark.parametrize("parts", ["many", "0", "1000000000", "9" * 5000])
def test_an_upgrade_refuses_damaged_parameters_before_it_writes(
    stored: tuple[ShardKit, Path], parts: str
) -> None:
    kit, _ = stored
    an_earlier_set(kit)
    at(kit, "ids:meta").hset("ids:meta", "groups", parts)
    with pytest.raises(DamagedDataError, match=r"ids:meta .*groups="):
        kit.upgrade("data")
    assert at(kit, "ids:meta").hexists("ids:meta", "shard_size")


def test_an_upgrade_gives_old_structures_the_names_of_this_release(
    stored: tuple[ShardKit, Path], cli: Cli
) -> None:
    kit, path = stored
    ids = an_earlier_set(kit)
    at(kit, "app:meta").hset("app:meta", "shard_size", 64)  # an application's own
    changes = ("shard_size is called part_size", "groups name their parameters")
    wanted = [Upgrade("data", "ids", "set", changes)]
    assert kit.upgrade("data", dry_run=True) == wanted
    assert at(kit, "ids:meta").hexists("ids:meta", "shard_size")
    assert kit.upgrade("data", ["other"]) == []
    assert "; ".join(changes) in cli("upgrade", "--dry-run", "-c", path).out
    assert cli("upgrade", "-c", path, input="n\n").code == 1
    [row] = cli.json("upgrade", "--yes", "-c", path)
    assert row == {"component": "data", "structure": "ids", "kind": "set", "changes": list(changes)}
    assert cli("upgrade", "-c", path).lines == ["everything is in the newest form"]
    assert at(kit, "ids:meta").hget("ids:meta", "part_size") == b"64"
    assert at(kit, "ids:meta").hget("ids:meta", "shard_size") is None
    assert at(kit, "app:meta").hgetall("app:meta") == {b"shard_size": b"64"}
    assert {at(kit, key).hget(key, "of").decode() for key in ids.layout.data_keys()} == {
        ids.meta.fingerprint
    }
    fresh = kit.set("ids", component="data", members=int, parts=4, part_size=64)
    fresh.sadd(1000)
    assert ids.smembers() == {*range(300), 1000}
    assert list(fresh.check()) == []


def test_of_two_upgrades_at_once_one_finds_it_done(
    stored: tuple[ShardKit, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, _ = stored
    ids = an_earlier_set(kit)
    of_clients = type(at(kit, "ids:meta"))
    transaction = of_clients.transaction

    def meanwhile(client: Any, *given: Any) -> Any:
        monkeypatch.setattr(of_clients, "transaction", transaction)
        assert kit.upgrade("data")[0].changes[0] == "shard_size is called part_size"
        return transaction(client, *given)

    monkeypatch.setattr(of_clients, "transaction", meanwhile)
    kit.upgrade("data")
    assert of_clients.transaction is transaction  # the other one ran in between
    assert at(kit, "ids:meta").hget("ids:meta", "part_size") == b"64"
    assert not at(kit, "ids:meta").hexists("ids:meta", "shard_size")
    assert kit.upgrade("data") == []
    assert ids.smembers() == set(range(300))


# The kit's method that makes a structure, its parameters, the method that writes, its arguments.
WRITES: dict[str, tuple[str, dict[str, Any], str, tuple[Any, ...]]] = {
    "set": ("set", {"members": int, "parts": 2, "part_size": 16}, "sadd", (*range(50),)),
    "planned set": ("set", {"members": int, "total": 100}, "sadd", (*range(50),)),
    "hash": ("hash", {"parts": 2, "partition": "crc32"}, "hset", ("a", "b")),
    "numbered hash": ("hash", {"part_size": 16}, "hset", (7, "b")),
    "sorted set": ("sorted_set", {"parts": 2}, "zadd", ({"a": 1},)),
    "list": ("list", {}, "rpush", ("a",)),
    "packed": ("packed", {"fields": {"a": "u8"}}, "set_many", ([(5, {"a": 1})],)),
    "search": ("search", {"parts": 4}, "index", ("1", "some words")),
    "ads": ("ads", {"parts": 4}, "index", ("1", ["Rome"], "words", "cpc", 1)),
    "jobs": ("job_search", {"parts": 4}, "index", ("1", ["python"])),
    "address book": ("address_book", {}, "join", ("elves", "Arwen")),
    "network": ("social", {"parts": 4, "relation_parts": 4}, "create_user", ("ada", "Ada")),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_process_that_opened_before_an_upgrade_refuses_to_write_after_it(
    stored: tuple[ShardKit, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, _ = stored
    method, options, writing, arguments = WRITES[name]

    def make(kit: ShardKit) -> Any:
        return getattr(kit, method)("it", component="data", **options)

    def write(structure: Any) -> None:
        getattr(structure, writing)(*arguments)

    earlier, later = make(kit), make(kit)
    write(earlier)
    monkeypatch.setattr(parameters, "LEASE", 0.0)
    monkeypatch.setattr(parameters, "FORMATS", NEXT)
    write(later)
    [done] = kit.upgrade("data")
    assert done.changes[0] == "format 1 becomes 2"
    assert kit.upgrade("data") == []
    if name in ("search", "ads", "jobs", "list"):  # their scripts are those of this release
        states = "*:ends" if name == "list" else "*:state"
        clients: list[Any] = [kit.client("data", n) for n in range(4)]
        marks = [c.hget(key, "format") for c in clients for key in c.scan_iter(states)]
        assert marks == [b"2"]
    else:
        write(later)  # and goes on with what it has open
        write(make(kit))
    monkeypatch.setattr(parameters, "FORMATS", range(1, 2))
    before = [
        {key: client.dump(key) for key in client.scan_iter()}
        for client in map(kit.client, ["data"] * 4, range(4))
    ]
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1 to 1"):
        write(earlier)
    assert before == [
        {key: client.dump(key) for key in client.scan_iter()}
        for client in map(kit.client, ["data"] * 4, range(4))
    ]
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1 to 1"):
        kit.upgrade("data")
