"""The sharded SET on real servers: one, many, and both faces."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any

import pytest
from faces import SESSION_ID, Exchanges, Face, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.operations import Page
from shardkit.structures import ShardedSet

COMPONENTS = ("one", "many", "few", "both")


@pytest.fixture(params=COMPONENTS)
def ids(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.set("ids", component=request.param, total=1000, part_size=50, members=int)


def test_members_are_iterated_over_by_pattern_and_by_count(face: Face, ids: Any) -> None:
    assert face.list(ids.sscan_iter()) == []
    face.run(ids.sadd(*range(3000)))
    for count in (None, 1, 500, 10**9):
        assert sorted(face.list(ids.sscan_iter(count=count))) == list(range(3000))
    assert sorted(face.list(ids.sscan_iter("12?"))) == list(range(120, 130))
    assert sorted(face.list(ids.sscan_iter(match="[13]", count=100))) == [1, 3]
    with pytest.raises(InvalidArgumentError, match="count=0"):
        face.list(ids.sscan_iter(count=0))


@pytest.mark.parametrize("plan", [{"total": 1000, "part_size": 50}, {"part_size": 16, "parts": 4}])
def test_random_members_are_popped_once(face: Face, kit: ShardKit, plan: dict[str, Any]) -> None:
    ids = face.kit.set("ids", component="many", members=int, **plan)
    run = face.run
    assert (run(ids.srandmember()), run(ids.srandmember(5))) == (None, [])
    assert (run(ids.spop()), run(ids.spop(5))) == (None, set())
    assert keys_of(kit, "many") == set()
    run(ids.sadd(*range(500)))
    assert run(ids.srandmember()) in range(500)
    assert sorted(run(ids.srandmember(1000))) == list(range(500))
    assert len(set(run(ids.srandmember(300)))) == 300
    again = run(ids.srandmember(-2000))
    assert len(again) == 2000
    assert len(set(again)) > 400, "drawn from all parts, evenly: 491 are expected"
    assert run(ids.srandmember(0)) == []
    assert run(ids.scard()) == 500
    popped = run(ids.spop())
    some = run(ids.spop(100))
    assert len(some | {popped}) == 101
    assert run(ids.smembers()) == set(range(500)) - some - {popped}
    assert run(ids.scard()) == 399
    assert len(run(ids.spop(1000))) == 399
    assert (run(ids.scard()), run(ids.spop(0))) == (0, set())
    with pytest.raises(InvalidArgumentError, match="count=-1"):
        run(ids.spop(-1))


def test_one_member_is_one_however_it_is_given(face: Face) -> None:
    class Town(StrEnum):
        FULDA = "Fulda"

    ids = face.kit.set("ids", component="many", total=1000, part_size=4, members=int)
    assert face.run(ids.sadd(42)) == 1
    assert face.run(ids.sadd("42", b"42", "042", bytearray(b"42"))) == 0
    assert face.run(ids.sadd("-0")) == 1
    assert face.run(ids.smismember(0, "0", b"0")) == [True] * 3
    assert sorted(face.run(ids.smembers())) == [0, 42]

    towns = face.kit.set("towns", component="many", total=1000, part_size=4)
    assert face.run(towns.sadd("Köln", Town.FULDA, 7)) == 3
    assert face.run(towns.sadd("Köln".encode(), "Fulda", b"Fulda", "7")) == 0
    assert sorted(face.run(towns.smembers())) == ["7", "Fulda", "Köln"]

    raw = face.kit.set("raw", component="many", total=1000, part_size=4, members=bytes)
    assert face.run(raw.sadd(b"\xff", "é", 7)) == 3
    assert sorted(face.run(raw.smembers())) == [b"7", "é".encode(), b"\xff"]


def test_a_stream_asks_for_some_hundred_parts_at_a_time(kit: ShardKit) -> None:
    ids = kit.set("ids", component="many", total=100_000, part_size=50, members=int)
    ids.sadd_many(range(100_000))
    assert ids.parts == 4000
    scan = Exchanges(kit, ids.deferred.sscan_iter())
    assert all(len(step) < (100 if isinstance(step, Page) else 257) for step in scan)
    assert len(scan.values) == 100_000


def test_members_that_stay_come_once_whatever_is_written_meanwhile(face: Face) -> None:
    ids = face.kit.set("ids", component="many", total=4000, part_size=4, members=int)
    face.run(ids.sadd_many(range(3000)))

    seen = []
    for member in face.iterate(ids.sscan_iter()):
        seen.append(member)
        if member % 50 == 0:
            face.run(ids.sadd(10_000 + len(seen)))
            face.run(ids.srem(2000 + member % 1000))
    assert len(seen) == len(set(seen))
    assert set(range(2000)) <= set(seen)


def test_a_stream_that_is_left_early_leaves_its_connections_usable(face: Face) -> None:
    ids = face.kit.set("ids", component="many", total=4000, part_size=4, members=int)
    face.run(ids.sadd_many(range(3000)))
    for _ in range(3):
        assert 0 <= next(face.iterate(ids.sscan_iter())) < 3000
        assert face.run(ids.scard()) == 3000


def test_a_number_lives_where_the_published_rule_puts_it(kit: ShardKit) -> None:
    ids = kit.set(
        "ids", component="many", total=2_097_152, members=int, partition="redis-in-action"
    )
    assert ids.parts == 8192
    assert ids.part_of(SESSION_ID) == ids.part_of(str(SESSION_ID)) == 7628
    assert ids.key_of(SESSION_ID) == "ids:7628"
    ids.sadd(SESSION_ID)
    assert holder(kit, "many", "ids:7628").smembers("ids:7628") == {str(SESSION_ID).encode()}


def test_a_part_lives_on_the_shard_of_its_key(face: Face, kit: ShardKit) -> None:
    ids = face.kit.set("ids", component="many", total=1000, part_size=50, members=int)
    face.run(ids.sadd(*range(300)))
    for key, members in ids.by_key(range(300)).items():
        assert holder(kit, "many", key).smembers(key) == set(members)
        assert all(ids.key_of(member) == key for member in members)
    assert keys_of(kit, "many") == {"ids:meta", *ids.by_key(range(300))}


def test_a_long_member_is_cut_in_messages(kit: ShardKit) -> None:
    ids = kit.set("ids", component="many", total=1000, members=int)
    with pytest.raises(InvalidArgumentError) as caught:
        ids.sadd("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["", None, 7, b"ids", ["ids"], "\ud800"])
def test_a_name_is_text(kit: ShardKit, name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"name=.* of a structure; give text"):
        kit.set(name, component="many", total=10)


def test_the_largest_parameters_are_taken(kit: ShardKit) -> None:
    assert kit.set("ids", component="many", total=2**31, part_size=1).parts == 2**32
    assert kit.set("ids", component="many", total=2**63 - 1, part_size=2**63 - 1).parts == 2


PARAMETERS = {"total": 1000, "part_size": 50, "members": int}


def test_another_kind_of_structure_is_refused_by_name(face: Face) -> None:
    visitors = face.kit.unique_visitors("unique", component="both")
    face.run(visitors.visit("f" * 15))
    taken = face.kit.set("unique", component="both", total=10)
    # The counter's parameters are on the entry, the set's would be on a shard, unless it has none.
    alone = face.kit.unique_visitors("unique", component="one")
    face.run(alone.visit("f" * 15))
    clash = face.kit.set("unique", component="one", total=10)
    with pytest.raises(ParameterMismatchError, match="kind is 'unique-visitors', not 'set'"):
        face.run(clash.sadd("a"))
    assert face.run(taken.sadd("a")) == 1


def test_many_threads_that_open_at_once_agree(kit: ShardKit) -> None:
    barrier = threading.Barrier(8)
    outcomes: list[object] = []

    def open_one(total: int) -> None:
        ids = kit.set("ids", component="many", total=total, members=int)
        barrier.wait()
        try:
            outcomes.append(ids.sadd(total))
        except ParameterMismatchError as error:
            outcomes.append(error)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(open_one, [1000, 2000] * 4))
    refused = [outcome for outcome in outcomes if isinstance(outcome, ParameterMismatchError)]
    assert len(outcomes) == 8
    assert len(refused) == 4  # whichever came first, all of the others' were refused
    assert sum(outcome for outcome in outcomes if isinstance(outcome, int)) == 1


def test_binary_parameters_are_shown(face: Face, kit: ShardKit) -> None:
    holder(kit, "many", "ids:meta").hset("ids:meta", mapping={"kind": b"\xff"})
    with pytest.raises(ParameterMismatchError, match="kind is '\ufffd'"):
        face.run(face.kit.set("ids", component="many", **PARAMETERS).scard())


def test_a_part_of_another_type_fails_alone(face: Face, kit: ShardKit) -> None:
    ids = face.kit.set("ids", component="many", **PARAMETERS)
    face.run(ids.open(create=True))
    key = ids.key_of(1)
    holder(kit, "many", key).set(key, "a string")
    others = [n for n in range(2, 50) if ids.key_of(n) != key]
    with pytest.raises(DamagedDataError) as caught:
        face.run(ids.sadd(1, *others))
    assert caught.value.key == key
    assert caught.value.expected == "a SET"
    assert face.run(ids.smismember(*others)) == [True] * len(others)


def test_a_set_says_what_it_is(kit: ShardKit) -> None:
    ids = kit.set("ids", component="many", total=1000, members=int)
    assert repr(ids) == "ShardedSet('ids', component='many')"
    assert (ids.total, ids.part_size, ids.parts, ids.meta_key) == (1000, 512, 3, "ids:meta")
    assert ids.parameters["members"] == "int"
    text = ShardedSet(kit.driver, "many", "names", 1000)
    assert (text.part_size, text.parts) == (128, 15)
