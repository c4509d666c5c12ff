"""The sharded SET on real servers: one, many, and both faces; algebra; encodings; a plain SET."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from faces import SESSION_ID, Exchanges, Face, faced, holder, keys_of
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit, ShardMap, connect
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.local import LocalServer
from shardkit.operations import Page
from shardkit.structures import ShardedSet
from shardkit.structures.set import sharded_set

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


@pytest.fixture(params=["blocking", "awaiting"])
def own(request: pytest.FixtureRequest, own_map: ShardMap) -> Any:
    with faced(request.param, own_map) as face:
        yield face


def encodings(server: LocalServer, keys: list[str]) -> Counter[str]:
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.object("encoding", key)
        return Counter(reply.decode() for reply in pipe.execute() if reply is not None)


def part_keys(ids: Any) -> list[str]:
    return [ids.part_key(part) for part in range(ids.parts)]


def test_parts_of_a_full_set_are_intsets(own_map: ShardMap, own_server: LocalServer) -> None:
    random = Random(41)
    with connect(own_map) as kit:
        ids = kit.set("ids", component="own", total=2**15, members=int)
        assert ids.sadd_many(random.getrandbits(60) for _ in range(2**15)) == 2**15
        assert encodings(own_server, part_keys(ids)) == {"intset": 128}


def test_parts_of_text_are_compact(own_map: ShardMap, own_server: LocalServer) -> None:
    with connect(own_map) as kit:
        names = kit.set("names", component="own", total=4096, part_size=128)
        assert names.sadd_many(f"visitor {n}" for n in range(4096)) == 4096
        with own_server.client() as client:
            limit = client.config_get("set-max-listpack-entries")
        # Redis has a compact form of text sets from 7.2 on.
        assert encodings(own_server, part_keys(names)) == {"listpack" if limit else "hashtable": 64}


def test_oversized_parts_are_logged(own: Face, caplog: pytest.LogCaptureFixture) -> None:
    name = f"large {uuid4().hex}"  # each name is told of once in a process
    with caplog.at_level(logging.WARNING, logger="shardkit"):
        fits = own.kit.set("fits", component="own", total=10, part_size=512, members=int)
        own.run(fits.sadd(1))
        large = own.kit.set(name, component="own", total=10, part_size=1024, members=int)
        assert own.run(large.scard()) == 0
        assert caplog.messages == []
        own.run(large.sadd(1))
        own.run(large.sadd(2))
    [message] = caplog.messages
    assert message.startswith(f"{name}: parts of up to 1024 members are not compact")
    assert "set-max-intset-entries is 512" in message


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
    max_examples=12,
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
