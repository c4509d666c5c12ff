"""The sharded SET on real servers: one, many, and both faces; algebra; encodings; a plain SET."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import SESSION_ID, Exchanges, Face, drawn, holder, keys_of
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError


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


@pytest.mark.parametrize("name", ["", None, 7, b"ids", ["ids"], "\ud800"])
def test_a_name_is_text(kit: ShardKit, name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"name=.* of a structure; give text"):
        kit.set(name, component="many", total=10)


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


def test_an_interrupted_store_expires(kit: ShardKit, lower: Any) -> None:
    lower(set_parts=4)  # the parts of a group
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


NAMES = "abc"
FRESH = itertools.count()

integers = st.one_of(
    st.integers(-3, 30),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**53, 10**18]),
)
MEMBERS: dict[type, st.SearchStrategy[Any]] = {
    int: st.builds(
        lambda n, spell: spell(n), integers, st.sampled_from([int, str, lambda n: b"%d" % n])
    ),
    str: st.builds(
        lambda text, spell: spell(text),
        st.one_of(st.sampled_from(["", "a", "ß", "城市", "\0", "a\r\n", "42", "{x}"]), st.text()),
        st.sampled_from([str, str.encode]),
    ),
    bytes: st.one_of(st.sampled_from([b"", b"\xff", b"\r\n", b"7"]), st.binary()),
}


def sent(member: Any) -> bytes:
    return member if isinstance(member, bytes) else str(member).encode()


def steps(kind: type) -> st.SearchStrategy[list[tuple[str, str, Any]]]:
    """What is done, to which set, with which members or other sets."""
    names = st.sampled_from(NAMES)

    def calls(verbs: str, given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, str, Any]]:
        return st.tuples(st.sampled_from(verbs.split()), names, given)

    of_members = calls("sadd sadd_many srem smismember", st.lists(MEMBERS[kind], min_size=1))
    of_sets = calls(
        "sinter sunion sdiff sinterstore sunionstore sdiffstore",
        st.lists(names, min_size=1, max_size=4),
    )
    others = calls("smembers delete", st.none())
    return st.lists(st.one_of(of_members, of_sets, others), min_size=20, max_size=30)


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", [int, str, bytes])
@settings(
    max_examples=drawn(6, 12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_sharded_set_does_what_a_set_does(
    face: Face, kit: ShardKit, kind: type, data: st.DataObject
) -> None:
    """Each reply, over one server and many, is what the server says about a plain SET."""
    plain: Any = kit.client("one")
    prefix = next(FRESH)
    keys = {name: f"{prefix}:plain:{name}" for name in NAMES}
    sharded: list[dict[str, Any]] = [
        {
            name: face.kit.set(
                f"{prefix}:{component}:{way}:{name}",
                component=component,
                part_size=4,
                members=kind,
                **{way: number},
            )
            for name in NAMES
        }
        for component, way, number in (
            *(("one", "total", 12), ("many", "total", 12), ("many", "parts", 2)),
        )
    ]

    def check_members(found: set[Any], expected: set[bytes]) -> None:
        assert len(found) == len(expected)
        assert {sent(member) for member in found} == expected
        assert all(type(member) is kind for member in found)

    for verb, name, given_to in data.draw(steps(kind)):
        key = keys[name]
        if verb.startswith("sadd") or verb in ("srem", "smismember"):
            several = [*map(sent, given_to)]
            sent_to = plain.smismember if verb == "smismember" else getattr(plain, verb[:4])
            expected = sent_to(key, several) if verb == "smismember" else sent_to(key, *several)
            for sets in sharded:
                call = getattr(sets[name], verb)
                found = call(iter(given_to)) if verb == "sadd_many" else call(*given_to)
                assert face.run(found) == expected
                if verb == "smismember":
                    for member, flag in zip(given_to[:2], expected, strict=False):
                        assert face.run(sets[name].sismember(member)) == bool(flag)
        elif verb == "delete":
            for sets in sharded:
                there = face.run(sets[name].scard()) > 0
                assert face.run(sets[name].delete()) or not there
            plain.delete(key)
        elif verb in ("sinter", "sunion", "sdiff"):
            expected = getattr(plain, verb)([key, *(keys[n] for n in given_to)])
            for sets in sharded:
                others = [sets[n] for n in given_to]
                check_members(face.run(getattr(sets[name], verb)(*others)), expected)
        else:
            if verb != "smembers":
                stored = getattr(plain, verb)(key, [keys[n] for n in given_to])
                for sets in sharded:
                    others = [sets[n] for n in given_to]
                    assert face.run(getattr(sets[name], verb)(*others)) == stored
            expected = plain.smembers(key)
            for sets in sharded:
                check_members(face.run(sets[name].smembers()), expected)
                assert face.run(sets[name].scard()) == len(expected)
    check_members(face.run(sharded[0]["a"].smembers()), plain.smembers(keys["a"]))
