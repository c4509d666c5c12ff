"""A structure in parts begins, expires and ends as one key does, despite concurrent clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
from faces import Exchanges, sends

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import ParameterMismatchError

LATER = 2**41  # milliseconds since 1970


class Kind(NamedTuple):
    """How to make, write and read one kind of structure."""

    make: Callable[..., Any]
    add: Callable[[Any, Iterable[int]], Any]
    members: Callable[[Any], set[int]]
    count: Callable[[Any], int]
    other: dict[str, Any]


def hash_of(prefix: str, other: dict[str, Any], **fixed: Any) -> Kind:
    return Kind(
        lambda kit, component, **options: kit.hash("it", component=component, **fixed | options),
        lambda it, numbers: it.hset(mapping={f"{prefix}{n}": "v" for n in numbers}),
        lambda it: {int(field.lstrip("w")) for field in it.hkeys()},
        lambda it: it.hlen(),
        other,
    )


def set_of(other: dict[str, Any], **fixed: Any) -> Kind:
    return Kind(
        lambda kit, component, **options: kit.set(
            "it", component=component, members=int, **fixed | options
        ),
        lambda it, numbers: it.sadd(*numbers),
        lambda it: it.smembers(),
        lambda it: it.scard(),
        other,
    )


KINDS = {
    "hash of numbers": hash_of("", {"part_size": 8}, part_size=4, parts=4),
    "hash of words": hash_of("w", {"part_size": 64}, part_size=16, parts=4),
    "hash with a total": hash_of("w", {"total": 1000}, total=100, part_size=4),
    "set": set_of({"part_size": 64}, part_size=16, parts=4),
    "set with a total": set_of({"total": 1000}, total=100, part_size=4),
    "sorted set": Kind(
        lambda kit, component, **other: kit.sorted_set(
            "it", component=component, **{"members": int, "part_size": 16, "parts": 4, **other}
        ),
        lambda it, numbers: it.zadd({n: n for n in numbers}),
        lambda it: set(it.zrange(0, -1)),
        lambda it: it.zcard(),
        {"part_size": 64},
    ),
    "packed": Kind(
        lambda kit, component, **other: kit.packed(
            "it", component=component, fields={"a": "u8"}, **{"part_size": 4, **other}
        ),
        lambda it, numbers: it.set_many({n: {"a": 1} for n in numbers}),
        lambda it: {record_id for record_id, _ in it.scan_iter()},
        lambda it: it.count(),
        {"part_size": 8},
    ),
    "list": Kind(
        lambda kit, component, **other: kit.list(
            "it", component=component, values=int, **{"part_size": 4, **other}
        ),
        lambda it, numbers: it.rpush(*numbers),
        lambda it: set(it.lrange(0, -1)),
        lambda it: it.llen(),
        {"part_size": 8},
    ),
}
NO_LISTS = [name for name in KINDS if name != "list"]


class World(NamedTuple):
    """A component, two kits that use it, and its keys."""

    component: str
    ours: ShardKit
    theirs: ShardKit
    shard_map: ShardMap

    @property
    def clients(self) -> list[Any]:
        """A client of each shard, or of the entry."""
        shards = range(len(self.ours.component(self.component).shards))
        return [self.ours.client(self.component, n) for n in shards] or [
            self.ours.client(self.component)
        ]

    def keys(self) -> dict[str, int]:
        """When each key expires, in milliseconds since 1970; -1 if it does not.

        Without the record of the next generation after a deletion.
        """
        found = {}
        for client in self.clients:
            if keys := list(client.scan_iter()):
                pipe = client.pipeline(transaction=False)
                for key in keys:
                    pipe.pexpiretime(key)
                found |= dict(zip((key.decode() for key in keys), pipe.execute(), strict=True))
        return {
            key: -1 if due >= 2**47 else due
            for key, due in found.items()
            if not key.endswith(":deleted")
        }


@pytest.fixture(params=["one", "many", "cluster"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    found = request.getfixturevalue("cluster_map" if request.param == "cluster" else "shard_map")
    with shardkit.connect(found) as ours, shardkit.connect(found) as theirs:
        yield World(request.param, ours, theirs, found)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def flush(world: World) -> None:
    for client in world.clients:
        client.flushdb()


def opened_by_another(world: World, kind: Kind, **other: Any) -> Any:
    return kind.make(world.theirs, world.component, **other)


def check(world: World, kind: Kind, expected: set[int] | None = None) -> set[int]:
    """Check what a new client reads: members, counts, parameters and one expiry."""
    keys = world.keys()
    if keys:
        assert any(key.endswith(":meta") for key in keys), keys
        # In a later generation parts expire up to 16 ms before the parameters.
        assert max(keys.values()) - min(keys.values()) <= 16, keys
    with shardkit.connect(world.shard_map) as newcomer:
        it = kind.make(newcomer, world.component)
        found = kind.members(it)
        if kind is not KINDS["list"]:
            assert kind.count(it) == len(found)
    if expected is not None:
        assert found == expected
    return found


@pytest.mark.long(16)
@pytest.mark.parametrize("expires", [False, True])
def test_a_write_recreates_an_ended_structure(world: World, kind: Kind, expires: bool) -> None:
    kept = kind.make(world.ours, world.component)
    kind.add(kept, range(50))
    other = opened_by_another(world, kind)
    assert other.pexpire(1) if expires else other.delete()
    while expires and world.keys():
        pass
    assert world.keys() == {}
    kind.add(kept, [3, 60, 700])
    check(world, kind, {3, 60, 700})
    assert set(world.keys().values()) == {-1}


@pytest.mark.long(16)
@pytest.mark.parametrize("holds", [True, False], ids=["with data", "with parameters alone"])
def test_a_write_to_other_parameters_is_refused(
    world: World, kind: Kind, holds: bool, lower: Any
) -> None:
    """What it wrote before it noticed is removed."""
    kept = kind.make(world.ours, world.component)
    kind.add(kept, range(50))
    opened_by_another(world, kind).delete()
    created = opened_by_another(world, kind, **kind.other)
    if holds:
        kind.add(created, range(5))
        lower(lease=-1.0)  # a second later
    else:
        created.open(create=True)
        if kind is KINDS["list"]:
            kind.add(created, [1])
            created.lpop()
    with pytest.raises(ParameterMismatchError, match=r"'{?it}?' was created with other parameters"):
        kind.add(kept, [3, 60, 700])
    assert kind.members(created) == set(range(5 * holds))
    assert kind.count(created) == 5 * holds


@pytest.mark.long(8)
def test_a_time_to_live_of_nothing_deletes(world: World, kind: Kind) -> None:
    it = kind.make(world.ours, world.component)
    for time in (0, -5):
        kind.add(it, range(20))
        assert it.expire(time)
        assert world.keys() == {}
    assert not it.expire(0)
    kind.add(it, range(20))
    assert not it.expire(0, xx=True)
    assert it.expireat(1)
    assert world.keys() == {}


def run_until(kit: ShardKit, steps: Any, name: str) -> None:
    """Carry out exchanges until a script was sent, as a process that dies then does."""
    operation = Exchanges(kit, steps)
    operation.until(name)
    next(iter(operation), None)


def overtaken(kit: ShardKit, steps: Any, at: int, second: Callable[[], object]) -> bool:
    """Run steps, and something else before exchange number ``at``; return whether there is one."""
    operation = Exchanges(kit, steps)
    if more := operation.stop_after(at):
        second()
    operation.end()
    return more


OVERTAKERS: dict[str, Callable[[Any, Kind], object]] = {
    "delete": lambda it, kind: it.delete(),
    "expire": lambda it, kind: it.pexpireat(LATER),
    "persist": lambda it, kind: (it.pexpireat(LATER), it.persist()),
    "write": lambda it, kind: kind.add(it, [3, 60, 700]),
    "delete and write": lambda it, kind: (it.delete(), kind.add(it, [3, 60, 700])),
}
OVERTAKEN: dict[str, Callable[[Any, Kind], Any]] = {
    "write": lambda it, kind: kind.add(it.deferred, [3, 61, 800]),
    "delete": lambda it, kind: it.deferred.delete(),
    "expire": lambda it, kind: it.deferred.pexpireat(LATER + 1),
}


# One shard and a cluster have the orders of several shards: one is tried on a cluster.
@pytest.mark.long(16)
@pytest.mark.parametrize(
    ("first", "second", "world", "kept"),
    [
        *product(OVERTAKEN, OVERTAKERS, ["few"], [True, False]),
        *product(OVERTAKEN, ["delete and write"], ["cluster"], [True]),
    ],
    indirect=["world"],
)
def test_no_order_of_two_operations_orphans_parts(
    world: World, kind: Kind, first: str, second: str, kept: bool
) -> None:
    at = 0
    more = True
    while more:
        flush(world)
        ours = kind.make(world.ours, world.component)
        theirs = opened_by_another(world, kind)
        kind.add(theirs, range(5))
        if kept:
            kind.add(ours, [1])
        steps = OVERTAKEN[first](ours, kind)
        more = overtaken(world.ours, steps, at, partial(OVERTAKERS[second], theirs, kind))
        found = check(world, kind)
        if first == "write" and "delete" not in second:
            assert found >= {3, 61, 800}
        at += 1
    assert at > 1


BEGUN = ("structures/base/mark_deleting", "structures/base/begin_expiry")
BEGINNINGS: dict[str, Callable[[Any], Any]] = {
    "delete": lambda it: it.deferred.delete(),
    "expire": lambda it: it.deferred.pexpireat(LATER + 1),
    "persist": lambda it: it.deferred.persist(),
    "expire at once": lambda it: it.deferred.expire(0),
}


@pytest.mark.long(4)
@pytest.mark.parametrize(
    ("begun", "ends", "dies", "world"),
    [
        *product(BEGINNINGS, [True, False], [False], ["few"]),
        *product(["expire", "persist"], [True, False], [True], ["few"]),
        *product(["delete", "expire"], [True], [False], ["cluster"]),
    ],
    indirect=["world"],
)
@pytest.mark.parametrize("kind", NO_LISTS, indirect=True)
def test_a_change_never_reaches_the_next_generation(
    world: World, kind: Kind, begun: str, ends: bool, dies: bool
) -> None:
    """The client dies after its next exchange, or continues."""
    tried = 0
    for at in range(1, 20):
        flush(world)
        ours, theirs = kind.make(world.ours, world.component), opened_by_another(world, kind)
        kind.add(ours, range(40))
        if ends:
            ours.pexpireat(LATER)
        has_begun = met = False
        for number, step in enumerate(Exchanges(world.ours, BEGINNINGS[begun](ours))):
            if met and dies:
                break
            if number == at and has_begun:
                theirs.delete()
                third = opened_by_another(world, kind)
                kind.add(third, [3, 60, 700])
                if ends:
                    third.pexpireat(LATER + 10_000)
                tried, met = tried + 1, True
            has_begun |= sends(step, *BEGUN)
        if number >= at and tried:
            check(world, kind, {3, 60, 700})
            first = min(world.keys().values())
            assert first > LATER + 9_000 if ends else first == -1
            assert third.delete()
            assert world.keys() == {}
        elif tried:
            break
    assert tried or (begun == "persist" and not ends)


@pytest.mark.long(3)
@pytest.mark.parametrize("world", ["few"], indirect=True)
@pytest.mark.parametrize("kind", NO_LISTS, indirect=True)
def test_a_write_that_completes_a_deletion_keeps_later_data(world: World, kind: Kind) -> None:
    at, more = 0, True
    while more:
        flush(world)
        ours, theirs = kind.make(world.ours, world.component), opened_by_another(world, kind)
        kind.add(theirs, range(40))
        run_until(world.theirs, theirs.deferred.delete(), BEGUN[0])
        third = opened_by_another(world, kind)
        steps = kind.add(ours.deferred, [3, 61])
        more = overtaken(world.ours, steps, at, partial(kind.add, third, [3, 60, 700]))
        assert check(world, kind) == ({3, 60, 61, 700} if more else {3, 61}), at
        at += 1
    assert at > 3


@pytest.mark.long(3)
@pytest.mark.parametrize("world", ["few"], indirect=True)
def test_later_generations_without_parameters_are_repaired(world: World, kind: Kind) -> None:
    for action in ("delete", "rebuild"):
        flush(world)
        it = kind.make(world.ours, world.component)
        kind.add(it, range(40))
        assert it.delete()
        kind.add(it, range(40))
        for client in world.clients:
            client.delete("it:meta", "{it}:meta")
        newcomer = opened_by_another(world, kind)
        if action == "rebuild":
            newcomer.rebuild()
            check(world, kind, set(range(40)))
        assert newcomer.delete()
        assert world.keys() == {}


def interruptions(world: World, kind: Kind) -> Iterator[tuple[int, Any, Any, list[bool]]]:
    """Give a number of exchanges and two clients of 40 new members, while the list says true."""
    more, at = [True], 0
    while more[-1]:
        flush(world)
        ours, theirs = kind.make(world.ours, world.component), opened_by_another(world, kind)
        kind.add(ours, range(40))
        yield at, ours, theirs, more
        at += 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "expire": lambda it: it.deferred.pexpireat(LATER + 1),
    "persist": lambda it: it.deferred.persist(),
    "expire at once": lambda it: it.deferred.expire(0),
}


@pytest.mark.long(8)
@pytest.mark.parametrize("world", ["few"], indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_write_completes_an_expiry_change(world: World, kind: Kind, change: str) -> None:
    for at, ours, theirs, more in interruptions(world, kind):
        ours.pexpireat(LATER)
        more.append(Exchanges(world.ours, CHANGES[change](ours)).stop_after(at))
        found = world.keys()
        assert not found or any(key.endswith(":meta") for key in found), at  # parts are never alone
        kind.add(theirs, [3, 60])
        ends = set(world.keys().values())
        assert len(ends) == 1
        if change == "expire at once":
            # What was begun by deleting is ended so; the write comes after it.
            assert check(world, kind) in ({3, 60}, {*range(40), 60}), at
        else:
            assert check(world, kind) == {*range(40), 60}, at
            assert ends <= {-1, LATER, LATER + 1}
    assert at >= 2 - (kind is KINDS["list"])


@pytest.mark.long(12)
@pytest.mark.parametrize("world", ["few", "cluster"], indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_ttl_returns_the_expiry_being_set(
    world: World, kind: Kind, change: str, lower: Any
) -> None:
    lower(list_step=1)
    for at, ours, theirs, more in interruptions(world, kind):
        ours.pexpireat(LATER)
        before = theirs.ttl()
        assert 0 < before < 2**31
        more.append(Exchanges(world.ours, CHANGES[change](ours)).stop_after(at))
        if change == "expire":
            assert before - 30 <= theirs.ttl() <= before + 1
            assert theirs.pttl() // 1000 <= before + 1
        elif change == "persist":
            assert theirs.ttl() == -1 or before - 30 <= theirs.ttl() <= before
    assert at >= 1


@pytest.mark.parametrize("world", ["few"], indirect=True)
@pytest.mark.parametrize("kind", NO_LISTS, indirect=True)
def test_ttl_is_missing_once_the_expiry_being_set_has_passed(world: World, kind: Kind) -> None:
    ours = kind.make(world.ours, world.component)
    kind.add(ours, range(40))
    run_until(world.ours, ours.deferred.pexpire(20), BEGUN[1])
    theirs = opened_by_another(world, kind)
    while (left := theirs.pttl()) >= 0:
        assert left <= 20
    assert left == theirs.ttl() == -2
