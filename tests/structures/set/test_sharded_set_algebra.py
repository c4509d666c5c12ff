"""Intersections, unions and differences of sharded sets, wherever their parts live."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Exchanges, Face, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.structures.set import sharded_set

PLAN = {"total": 1000, "part_size": 50, "members": int}
# Where the sets live: together on one server; each part elsewhere; in several components.
PLACES = [
    ("one", "one", "one"),
    ("many", "many", "many"),
    ("one", "many", "few"),
    ("both", "both", "one"),
]
ONE, OTHER, THIRD = set(range(400)), set(range(200, 600)), set(range(100, 300))


@pytest.fixture(params=PLACES, ids="-".join)
def sets(request: pytest.FixtureRequest, face: Face) -> list[Any]:
    made = []
    for name, component, members in zip("abc", request.param, (ONE, OTHER, THIRD), strict=True):
        made.append(face.kit.set(name, component=component, **PLAN))
        face.run(made[-1].sadd_many(members))
    return made


def test_sets_are_combined_without_storing(face: Face, sets: list[Any]) -> None:
    a, b, c = sets
    for call, expected in [
        (a.sinter(b), ONE & OTHER),
        (a.sinter(b, c), ONE & OTHER & THIRD),
        (a.sunion(b, c), ONE | OTHER | THIRD),
        (a.sdiff(b), ONE - OTHER),
        (a.sdiff(b, c), ONE - OTHER - THIRD),
        (b.sdiff(a), OTHER - ONE),
        (a.sinter(a), ONE),
        (a.sdiff(a), set()),
    ]:
        assert face.run(call) == expected
    for stream, expected in [
        (a.sinter_iter(b, c), ONE & OTHER & THIRD),
        (a.sunion_iter(b, c), ONE | OTHER | THIRD),
        (a.sdiff_iter(b, c), ONE - OTHER - THIRD),
    ]:
        found = face.list(stream)
        assert len(found) == len(expected)
        assert set(found) == expected
    assert face.run(a.sinter([b, c])) == face.run(a.sinter([b], c)) == ONE & OTHER & THIRD


@pytest.mark.parametrize("component", ["one", "many"])
def test_empty_parts_of_a_target_are_removed(face: Face, kit: ShardKit, component: str) -> None:
    empty = face.kit.set("empty", component="few", **PLAN)
    target = face.kit.set("target", component=component, **PLAN)
    face.run(target.sadd_many(range(1000)))
    assert len(keys_of(kit, component)) == 41
    assert face.run(target.sunionstore(empty)) == 0
    assert keys_of(kit, component) == {"target:meta"}


def test_an_interrupted_store_expires(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_set, "PARTS_COMBINED", 4)  # the parts of a group
    a = kit.set("a", component="one", members=int, parts=4, part_size=8)
    a.sadd_many(range(100))
    client: Any = kit.client("one")
    states, times = set[bytes](), set[int]()
    for _ in Exchanges(kit, a.deferred.sunionstore(a, a)):
        states = set(client.scan_iter("*:storing:*}"))
        times |= {client.ttl(key) for key in client.scan_iter("*:storing*")}
        if len(states) == 4:
            break
    assert min(times) > 80_000  # no exchange has left a key that does not expire


@pytest.mark.parametrize("verb", ["sinterstore", "sunionstore", "sdiffstore"])
def test_a_failed_store_can_be_repeated(kit: ShardKit, verb: str) -> None:
    plan = {"total": 1000, "part_size": 2, "members": int}  # 1,000 parts, in pages of 256
    a, b = (kit.set(name, component="many", **plan) for name in "ab")
    a.sadd_many(ONE)
    b.sadd_many(OTHER)
    expected = {"sinterstore": ONE & OTHER, "sunionstore": ONE | OTHER, "sdiffstore": ONE - OTHER}
    batches = 0
    for step in Exchanges(kit, getattr(a.deferred, verb)(a, b)):
        if batches == 3:
            break
        batches += isinstance(step, list)
    assert set(a.smembers()) not in (ONE, expected[verb])
    assert getattr(a, verb)(a, b) == len(expected[verb])
    assert set(a.smembers()) == expected[verb]


def test_sets_with_other_parameters_are_not_combined(face: Face, kit: ShardKit) -> None:
    a = face.kit.set("a", component="many", **PLAN)
    b = face.kit.set("b", component="many", **PLAN | {"total": 2000})
    face.run(a.sadd(1))
    face.run(b.sadd(1))
    before = keys_of(kit, "many")
    pattern = "'b' and 'a' cannot be combined: total is '2000', not '1000'; combine sets with"
    for call in (a.sinter, a.sunion, a.sdiff):
        with pytest.raises(ParameterMismatchError, match=pattern):
            face.run(call(b))
    for store in (a.sinterstore, a.sunionstore, a.sdiffstore):
        with pytest.raises(ParameterMismatchError, match=pattern):
            face.run(store(b))
    assert keys_of(kit, "many") == before


def test_a_source_that_was_created_with_other_parameters_is_refused(face: Face) -> None:
    face.run(face.kit.set("b", component="many", **PLAN | {"part_size": 5}).sadd(1))
    a, b = (face.kit.set(name, component="many", **PLAN) for name in "ab")
    with pytest.raises(ParameterMismatchError, match="b:meta: 'b' was created with other"):
        face.run(a.sinter(b))
    with pytest.raises(ParameterMismatchError, match="b:meta: 'b' was created with other"):
        face.run(a.sinterstore(b))


def test_only_sharded_sets_can_be_combined(face: Face, kit: ShardKit) -> None:
    a = face.kit.set("a", component="many", **PLAN)
    for wrong in ("b", b"b", None, ["b"], {1, 2}, [[a]]):
        with pytest.raises(InvalidArgumentError, match=r"a: .* is not a sharded set; give sets as"):
            face.run(a.sinter(wrong))
        with pytest.raises(InvalidArgumentError, match="is not a sharded set"):
            face.run(a.sunionstore(wrong))
    assert keys_of(kit, "many") == set()


def test_a_store_needs_a_source(face: Face, kit: ShardKit) -> None:
    a = face.kit.set("a", component="many", **PLAN)
    for store in (a.sinterstore, a.sunionstore, a.sdiffstore):
        with pytest.raises(InvalidArgumentError, match=r"a: s\w+store without sets; give at least"):
            face.run(store([]))
    assert keys_of(kit, "many") == set()


def test_a_part_that_cannot_be_combined_fails_with_its_shard(face: Face, kit: ShardKit) -> None:
    a, b = (face.kit.set(name, component="many", **PLAN) for name in "ab")
    face.run(a.sadd_many(ONE))
    face.run(b.open(create=True))
    holder(kit, "many", "b:3").set("b:3", "a string")
    shard = kit.component("many").shard_of("b:3")
    for combine in (lambda: face.run(a.sinter(b)), lambda: face.run(a.sinterstore(a, b))):
        with pytest.raises(DamagedDataError) as caught:
            combine()
        assert caught.value.shard == str(shard)
        assert caught.value.key == "b:3"
