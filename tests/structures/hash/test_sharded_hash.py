"""A hash in parts does what one HASH does, over one server and many, and in random operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import Face, drawn, holder, keys_of
from hypothesis import given, settings, strategies as st

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    InvalidArgumentError,
    ShardErrors,
    StructureError,
)
from shardkit.local import LocalServer

LAYOUTS: dict[str, dict[str, Any]] = {
    "numbers and growing": {"part_size": 16, "parts": 4},
    "numbers and fixed": {"part_size": 16, "total": 400},
    "growing": {"part_size": 16, "parts": 4, "partition": "crc32"},
    "fixed": {"part_size": 16, "total": 400, "partition": "crc32"},
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The parameters of a hash with small parts."""
    return LAYOUTS[request.param]


def test_fields_and_values_are_given_in_any_form(face: Face, layout: dict[str, Any]) -> None:
    cities, run = face.kit.hash("cities", component="many", **layout), face.run
    assert run(cities.hset(1, "Aachen")) == 1
    assert run(cities.hset("1", b"Berlin")) == 0
    assert run(cities.hset("field", "value", {b"two": "y", "other": 7})) == 3
    assert run(cities.hset(items=["zwei", 3.5, "three", "z"])) == 2
    asked = cities.hmget("zwei", 1, "none", b"1", "two", "zwei")
    assert run(asked) == [b"3.5", b"Berlin", None, b"Berlin", b"y", b"3.5"]
    assert run(cities.hmget(["other", 1], "none")) == [b"7", b"Berlin", None]
    assert sorted(face.list(cities.hscan_iter("t*", no_values=True))) == ["three", "two"]
    assert run(cities.hincrby("new")) == 1


@pytest.mark.parametrize("component", ["one", "many"])
def test_random_fields_come_from_all_parts(
    face: Face, component: str, layout: dict[str, Any]
) -> None:
    cities = face.kit.hash("cities", component=component, **layout)
    assert face.run(cities.hrandfield()) is None
    assert face.run(cities.hrandfield(3)) == []
    every = {str(n): b"%d" % n for n in range(100)} | {f"f{n}": b"y" for n in range(100)}
    face.run(cities.hset(mapping=every))
    assert face.run(cities.hrandfield()) in every
    assert sorted(face.run(cities.hrandfield(1000))) == sorted(every)
    some = face.run(cities.hrandfield(150))
    assert len(some) == len(set(some)) == 150
    pairs = face.run(cities.hrandfield(-400, withvalues=True))
    assert len(pairs) == 400
    assert dict(pairs).items() <= every.items()
    assert len(dict(pairs)) > 100, "drawn from all parts"


@pytest.mark.long(1)
@pytest.mark.parametrize("digits", [4300])
def test_a_field_of_many_digits_is_one_of_all_fields(face: Face, digits: int) -> None:
    orders = face.kit.hash("orders", component="many")
    number = "9" * digits
    assert face.run(orders.hset(mapping={1: "a", number: "b"})) == 2
    assert face.run(orders.expire(1000))
    assert face.run(orders.rebuild()) == face.run(orders.hlen()) == 2
    assert face.list(orders.check()) == []
    assert face.run(orders.hgetall()) == {"1": b"a", number: b"b"}
    assert face.run(orders.delete())
    assert face.run(orders.hget(number)) is None


@pytest.mark.parametrize("layout", ["numbers and growing", "numbers and fixed"])
def test_digits_with_leading_zeros_are_fields_of_their_own(kit: ShardKit, layout: str) -> None:
    odd = ["007", "7", "00", "0", "-7", "7.0", "²", "٣", "", "9" * 5000, "+7", " 7"]
    agents = kit.hash("agents", component="many", **LAYOUTS[layout])
    agents.hset(mapping={field: field for field in odd})
    assert agents.hlen() == len(odd)
    assert agents.hmget(odd) == [field.encode() for field in odd]
    assert agents.hgetall() == {field: field.encode() for field in odd}


def test_values_and_amounts_that_do_not_fit_are_named(kit: ShardKit) -> None:
    cities = kit.hash("cities", component="many")
    for value in (None, [1], {"a": 1}, object(), "\ud800"):
        with pytest.raises(InvalidArgumentError, match=r"cities: field 'x'"):
            cities.hset("x", value)
    with pytest.raises(InvalidArgumentError, match=r"cities: field 'bad'"):
        cities.hset(mapping={"good": 1, "bad": None})
    for amount in (1.5, "1", None, 2**63, True):
        with pytest.raises(InvalidArgumentError, match="amount="):
            cities.hincrby("x", amount)  # type: ignore[arg-type]
    for amount in (float("nan"), float("inf"), "1", None):
        with pytest.raises(InvalidArgumentError, match="amount="):
            cities.hincrbyfloat("x", amount)  # type: ignore[arg-type]
    coded = kit.hash("coded", component="many", codec="gzip")
    for call in (coded.hincrby, coded.hincrbyfloat):
        with pytest.raises(InvalidArgumentError, match=r"does not work on what codec .* stores"):
            call("x", 1)
    assert keys_of(kit, "many") == set()
    assert (
        cities.hincrbyfloat("x", type("Degrees", (float,), {"__repr__": lambda _: "half"})(0.5))
        == 0.5
    )
    large = type("Large", (int,), {"__repr__": lambda _: "x"})(2**60 + 1)
    assert cities.hincrbyfloat("many", large) == 2.0**60
    assert cities.hget("many") == str(2**60 + 1).encode()


def test_fields_expire_one_by_one(face: Face, layout: dict[str, Any]) -> None:
    sessions = face.kit.hash("sessions", component="many", **layout)
    run = face.run
    run(sessions.hset(mapping=dict.fromkeys(range(50), "x") | {f"s{n}": "y" for n in range(50)}))
    assert run(sessions.hexpire(100, 1, "s1", "none", 99_999)) == [1, 1, -2, -2]
    assert run(sessions.hexpire(50, 1, 2, nx=True)) == [0, 1]
    assert run(sessions.hpexpire(90_000, 1, 2, 3, lt=True)) == [1, 0, 1]
    assert run(sessions.hexpire(100, 1)) == [1]
    assert run(sessions.hpersist(3)) == [1]
    assert [80 < left <= 100 for left in run(sessions.httl(1, "s1"))] == [True, True]
    left = run(sessions.hpttl(1, "s1", 2, 3, "none"))
    assert 90_000 < left[0] <= 100_000
    assert 90_000 < left[1] <= 100_000
    assert 40_000 < left[2] <= 50_000
    assert left[3:] == [-1, -2]
    assert run(sessions.hpersist(1, 3, "none")) == [1, -1, -2]
    later = datetime(2100, 1, 1, tzinfo=UTC)
    assert run(sessions.hpexpireat(later, "s1")) == [1]
    assert run(sessions.hpexpiretime("s1", 1)) == [int(later.timestamp() * 1000), -1]
    assert run(sessions.hexpireat(later, 1)) == [1]
    assert run(sessions.hexpiretime("s1", 1)) == [int(later.timestamp())] * 2
    assert run(sessions.hpexpireat(1, "s1", 3)) == [2, 2], "that time is past"
    assert run(sessions.hmget("s1", 3, "s2")) == [None, None, b"y"]
    assert run(sessions.hlen()) == 98


def test_a_field_keeps_its_time_to_live_when_its_part_is_split(kit: ShardKit) -> None:
    sessions = kit.hash(
        "sessions", component="one", part_size=16, parts=1, partition="crc32", fields=int
    )
    sessions.hset(mapping=dict.fromkeys(range(20), "x"))
    sessions.hexpire(1000, *range(10))
    sessions.hset(mapping=dict.fromkeys(range(20, 2000), "x"))
    assert all(0 < left <= 1_000_000 for left in sessions.hpttl(*range(10)))
    assert sessions.hpttl(*range(10, 2000)) == [-1] * 1990


def test_a_hash_whose_fields_come_and_expire_does_not_grow_forever(kit: ShardKit) -> None:
    sessions = kit.hash("sessions", component="one", part_size=16, parts=1, partition="crc32")
    for turn in range(40):
        fields = [f"{turn}:{n}" for n in range(100)]
        sessions.hset(mapping=dict.fromkeys(fields, "x"))
        sessions.hexpire(1000, *fields)
        sessions.hpexpireat(1, *fields)
    assert sessions.hlen() == 0
    state = holder(kit, "one", "sessions:{0}").hgetall("sessions:{0}")
    assert int(state[b"parts"]) < 300, "4,000 came, never more than 100 at a time"


def test_servers_without_field_expiry_are_named(own_server: LocalServer, own_map: ShardMap) -> None:
    with own_server.client() as client:
        can, sets = (
            any(client.execute_command("COMMAND INFO", name)) for name in ("HEXPIRE", "HSETEX")
        )
    with shardkit.connect(own_map) as kit:
        sessions = kit.hash("sessions", component="own_shards")
        sessions.hset(mapping={1: "x", "a": "x"})
        for field in (1, "a"):
            if sets:
                assert sessions.hsetex(field, "y", ex=10) == 1
            else:
                with pytest.raises(StructureError, match=r"no HSETEX; use Redis 8\.0"):
                    sessions.hsetex(field, "y", ex=10)
            if can:
                assert sessions.hexpire(10, field) == [1]
                continue
            with pytest.raises(StructureError, match=r"no HEXPIRE; use Redis 7\.4"):
                sessions.hexpire(10, field)
            with pytest.raises(StructureError, match="no HPTTL"):
                sessions.hpttl(field)


def test_a_server_that_does_not_answer_is_not_taken_for_one_that_cannot_expire_fields() -> None:
    with LocalServer() as server:
        component = {"entry": {"port": server.port}}
        shard_map = map_of(own=component)
        with shardkit.connect(shard_map) as kit:
            sessions = kit.hash("sessions", component="own")
            sessions.hset(mapping={1: "x", "a": "x"})
            server.stop()
            for call in (
                lambda: sessions.hsetex(1, "y", ex=10),
                lambda: sessions.hexpire(10, "a"),
                lambda: sessions.hpttl(1),
            ):
                with pytest.raises(ShardErrors, match="own"):
                    call()


def test_invalid_times_and_conditions_are_named(kit: ShardKit) -> None:
    sessions = kit.hash("sessions", component="many")
    for attempt, named in (
        (lambda: sessions.hexpire(0, 1), "time=0"),
        (lambda: sessions.hexpire(5, 1, nx=True, gt=True), "nx and gt exclude each other"),
        (lambda: sessions.hpexpireat(datetime(2030, 1, 1), 1), "has no timezone"),
        (lambda: sessions.hpexpireat(-1, 1), "when=-1"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            attempt()


def test_a_plain_hash_is_copied(face: Face, kit: ShardKit) -> None:
    client = holder(kit, "many", "cityid2city:")
    client.hset("cityid2city:", mapping={str(n): f'["City {n}"]' for n in range(2500)})
    cities = face.kit.hash("cities", component="many")
    assert face.run(cities.copy_from("cityid2city:")) == 2500
    assert face.run(cities.copy_from("cityid2city:")) == 0
    assert face.run(cities.hget(2499)) == b'["City 2499"]'
    assert client.hlen("cityid2city:") == 2500
    assert face.run(cities.copy_from("nothing")) == 0
    records = face.kit.hash("records", component="many", codec="json")
    assert face.run(records.copy_from("cityid2city:")) == 2500
    assert face.run(records.hget(7)) == ["City 7"]


class TestStrings:
    """Strings of one namespace."""

    def test_strings_of_a_namespace_are_fields_of_its_hash(self, face: Face, kit: ShardKit) -> None:
        users = face.kit.strings("user", component="many")
        run = face.run
        assert run(users.set(139960, "abc")) is True
        assert run(users.set(139960, "def", nx=True)) is None
        assert run(users.get(139960)) == b"abc"
        assert run(users.mset({1: "x", "y": "z"})) is True
        assert run(users.mget("y", 1, 2)) == [b"z", b"x", None]
        assert run(users.mget([1, 2])) == [b"x", None]
        assert run(users.exists(1, 2, 1)) == 2
        assert run(users.remove(1, 2)) == 1
        assert run(users.incr("n", 5)) == 5
        assert run(users.decr("n")) == 4
        assert run(users.incrbyfloat("f", 0.5)) == 0.5
        key = "user:strings:1093"
        assert holder(kit, "many", key).hgetall(key) == {b"56": b"abc"}
        assert run(users.delete()) is True
        assert keys_of(kit, "many") == set()

    def test_strings_expire_where_fields_do(self, face: Face) -> None:
        users = face.kit.strings("user", component="many")
        face.run(users.set(1, "x"))
        run = face.run
        assert (run(users.expire(1, 60)), run(users.expire(2, 60))) == (True, False)
        assert run(users.expire(1, 90, nx=True)) is False
        assert 30 < run(users.ttl(1)) <= 60
        assert 30_000 < run(users.pttl(1)) <= 60_000
        assert (run(users.persist(1)), run(users.persist(1))) == (True, False)
        assert (run(users.ttl(1)), run(users.ttl(2))) == (-1, -2)

    def test_strings_are_set_with_a_time_to_live(self, face: Face, kit: ShardKit) -> None:
        can = any(kit.client("one").execute_command("COMMAND INFO", "HSETEX"))
        users = face.kit.strings("user", component="many", parts=4)
        run = face.run
        for name in (1, "one"):
            if not can:
                with pytest.raises(StructureError, match=r"no HSETEX; use Redis 8\.0"):
                    run(users.set(name, "x", ex=60))
                continue
            assert run(users.set(name, "x", ex=60)) is True
            assert 30 < run(users.ttl(name)) <= 60
            assert run(users.set(name, "y", px=90_000, nx=True)) is None
            assert run(users.set(name, "y", keepttl=True)) is True
            assert run(users.get(name)) == b"y"
            assert 30 < run(users.ttl(name)) <= 60
            assert run(users.set(f"{name}1", "z", xx=True)) is None
            assert run(users.set(name, "z", xx=True)) is True
            assert run(users.ttl(name)) == -1
            assert run(users.set(name, "v", exat=datetime.now(UTC) + timedelta(hours=1))) is True
            assert 3000 < run(users.ttl(name)) <= 3600
        for options, said in (
            ({"nx": True, "xx": True}, "nx and xx exclude each other"),
            ({"ex": 1, "px": 1}, "several times to live; give one of ex, px"),
            ({"ex": 0}, "time=0; give an integer"),
        ):
            with pytest.raises(InvalidArgumentError, match=said):
                run(users.set(1, "x", **options))


FIELDS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40).map(str),
    st.sampled_from(["007", "a", "b", "c", "é", "", "12345678901234567890", "x" * 70]),
    st.integers(0, 400).map("f{}".format),
)
VALUES = st.one_of(st.integers(-1000, 1000), st.text(max_size=5), st.just("v" * 80))
SOME = st.lists(FIELDS, min_size=1, max_size=20)
# A field given as a number and as text is one field: the last value counts.
MAPPINGS = st.dictionaries(FIELDS, VALUES, min_size=1, max_size=40).map(
    lambda mapping: {str(field): value for field, value in mapping.items()}
)
# A method of redis-py and its arguments.
STEPS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("hset"), st.tuples(st.none(), st.none(), MAPPINGS)),
    st.tuples(
        st.just("hset"),
        st.tuples(FIELDS, VALUES, MAPPINGS, MAPPINGS.map(lambda m: sum(m.items(), ()))),
    ),
    st.tuples(st.just("hsetnx"), st.tuples(FIELDS, VALUES)),
    st.tuples(st.just("hdel"), SOME),
    st.tuples(st.just("hincrby"), st.tuples(FIELDS, st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just("hincrbyfloat"), st.tuples(FIELDS, st.sampled_from([0.5, -1e300]))),
    st.tuples(st.just("hmget"), st.tuples(SOME)),
    st.tuples(st.sampled_from(["hget", "hexists", "hstrlen"]), st.tuples(FIELDS)),
    st.tuples(st.sampled_from(["hlen", "hgetall", "hkeys", "hvals"]), st.just(())),
    st.tuples(
        st.just("hscan_iter"),
        st.tuples(st.sampled_from([None, "*", "f1?", "[13]*"]), st.sampled_from([None, 1, 100])),
    ),
)
ARGUMENTS: list[dict[str, Any]] = [
    {"part_size": 4, "parts": 2},
    {"part_size": 4, "total": 20},
    {"part_size": 4, "parts": 2, "partition": "crc32"},
    {"part_size": 4, "total": 20, "partition": "crc32"},
]


def outcome(collect: Callable[[Any], Any], owner: Any, name: str, *args: Any) -> Any:
    """What a call returns, with fields as text and in one order."""
    try:
        reply = collect(getattr(owner, name)(*args))
    except (redis.ResponseError, ShardErrors) as error:
        return "overflow" if "overflow" in str(error) else "refused"
    if name in ("hgetall", "hscan_iter"):
        pairs = dict(reply)
        assert len(pairs) == len(reply)
        return {text(field): value for field, value in pairs.items()}
    return sorted(map(text, reply)) if name in ("hkeys", "hvals") else reply


def whole(client: Any) -> Iterator[tuple[str, Any]]:
    """Steps that read everything, and some fields, as they are by then."""
    yield from ((name, ()) for name in ("hgetall", "hkeys", "hvals", "hscan_iter"))
    for field in client.hkeys("plain")[:5]:
        yield from ((name, (field,)) for name in ("hget", "hexists", "hstrlen"))


def text(field: str | bytes) -> str:
    return field if isinstance(field, str) else field.decode()


@pytest.mark.long(4)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@settings(max_examples=drawn(8, 30))
@given(steps=st.lists(STEPS, max_size=30))
def test_a_hash_in_parts_does_what_one_hash_does(
    face: Face, kit: ShardKit, arguments: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    client: Any = kit.client("one")
    fields = face.kit.hash("parts", component="few", **arguments)
    client.delete("plain")
    face.run(fields.delete())
    for name, args in chain(steps, whole(client)):
        streams = name == "hscan_iter"
        expected = outcome(list if streams else lambda reply: reply, client, name, "plain", *args)
        found = outcome(face.list if streams else face.run, fields, name, *args)
        assert found == expected, (name, args)
    assert face.run(fields.hlen()) == client.hlen("plain")
