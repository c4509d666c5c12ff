"""Invalid arguments are refused, and nothing is sent; patterns match what SCAN matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import redis
from faces import Face, drawn, keys_of
from hypothesis import example, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError

# The methods with redis-py names that take any number of values, called without one.
WITHOUT_VALUES: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "hash": [
        ("hset", (), {}),
        ("hset", (), {"mapping": {}}),
        ("hset", (), {"items": []}),
        ("hmget", ([],), {}),
        *((name, (), {}) for name in ("hdel", "hpersist", "httl", "hpttl")),
        *((name, (), {}) for name in ("hexpiretime", "hpexpiretime")),
        *((name, (9,), {}) for name in ("hexpire", "hpexpire", "hexpireat", "hpexpireat")),
    ],
    "strings": [("mset", ({},), {}), ("mget", ([],), {}), ("exists", (), {})],
    "set": [("sadd", (), {}), ("srem", (), {}), ("smismember", ([],), {})],
    "sorted_set": [
        ("zadd", ({},), {}),
        ("zadd", ({},), {"incr": True}),
        ("zrem", (), {}),
        ("zmscore", ([],), {}),
    ],
    "list": [("lpush", (), {}), ("rpush", (), {})],
}


@pytest.mark.parametrize("kind", WITHOUT_VALUES)
def test_methods_without_values_act_like_redis_py(face: Face, kit: ShardKit, kind: str) -> None:
    client: Any = kit.client("one")
    structure = getattr(face.kit, kind)("it", component="one")
    for name, args, options in WITHOUT_VALUES[kind]:
        key = () if kind == "strings" else ("plain",)
        try:
            expected = getattr(client, name)(*key, *args, **options)
        except (redis.DataError, redis.ResponseError):
            with pytest.raises(InvalidArgumentError, match=r"it}?: .* (of nothing|with 0 members)"):
                face.run(getattr(structure, name)(*args, **options))
        else:
            assert face.run(getattr(structure, name)(*args, **options)) == expected
    assert keys_of(kit, "one") == set()


# How each structure is given a member, a field or a value.
GIVEN: dict[str, list[Callable[[Any, Any], Any]]] = {
    "set": [
        lambda it, member: it.sadd("1", member, "2"),
        lambda it, member: it.srem("1", member),
        lambda it, member: it.smismember("1", member),
        lambda it, member: it.sismember(member),
        lambda it, member: it.sadd_many(["1", member]),
    ],
    "sorted_set": [
        lambda it, member: it.zadd_many([("1", 1), (member, 1)]),
        lambda it, member: it.zrem("1", member),
        lambda it, member: it.zscore(member),
        lambda it, member: it.zincrby(1, member),
    ],
    "hash": [
        lambda it, field: it.hset_many([("1", 1), (field, 2)]),
        lambda it, field: it.hget(field),
        lambda it, field: it.hmget("1", field),
        lambda it, field: it.hdel(field),
        lambda it, field: it.hincrby(field),
    ],
    "list": [
        lambda it, value: it.rpush("1", value),
        lambda it, value: it.lpush_many(["1", value]),
        lambda it, value: it.lset(0, value),
    ],
}
TYPED = {"hash": "fields", "list": "values", "set": "members", "sorted_set": "members"}
NO_MEMBERS: list[tuple[Any, str]] = [
    *((value, f"is a {type(value).__name__}") for value in (None, True, [1], (1,), {1}, {"a": 1})),
    *((value, f"is a {type(value).__name__}") for value in (object(), int, 1.5)),
    *(("\ud800", "cannot be encoded"), (10**5000, "is too long")),
    *((value, "is not UTF-8") for value in (b"\xff", bytearray(b"\xc3"), memoryview(b"\xed\xa0"))),
]
NO_INTEGERS = ["", "x1", "1.0", "1e3", " 1", "1\n", "+1", "--1", "\u0663", b"\xff"]


@pytest.mark.parametrize("kind", GIVEN)
def test_no_structure_takes_an_invalid_member_field_or_value(
    face: Face, kit: ShardKit, kind: str
) -> None:
    it = getattr(face.kit, kind)("it", component="many")
    for call, (wrong, said) in product(GIVEN[kind], NO_MEMBERS):
        if (kind, wrong) != ("list", 1.5):
            with pytest.raises(InvalidArgumentError, match=rf"^\W?it\W*(\w+) .*{said}.*; .+"):
                face.run(call(it, wrong))
    numbers = getattr(face.kit, kind)("it", component="many", **{TYPED[kind]: int})
    for call, wrong in product(GIVEN[kind], NO_INTEGERS):
        with pytest.raises(
            InvalidArgumentError, match=r"^\W?it\W*(\w+) .* is not an integer.*; .+"
        ):
            face.run(call(numbers, wrong))
    assert keys_of(kit, "many") == set()


@pytest.mark.parametrize(("kind", "call"), [("set", "sadd_many"), ("list", "rpush_many")])
def test_text_is_not_taken_for_an_iterable(face: Face, kit: ShardKit, kind: str, call: str) -> None:
    for text in ("Fulda", b"Fulda"):
        with pytest.raises(InvalidArgumentError, match=r"would (add|push) its characters"):
            face.run(getattr(getattr(face.kit, kind)("it", component="many"), call)(text))
    assert keys_of(kit, "many") == set()


@pytest.mark.parametrize(
    ("kind", "call", "count"),
    [("set", "sadd_many", "scard"), ("list", "rpush_many", "llen"), ("hash", "hset_many", "hlen")],
)
def test_a_generator_is_read_no_further_than_it_is_sent(
    kit: ShardKit, kind: str, call: str, count: str
) -> None:
    it = getattr(kit, kind)("it", component="many")

    def numbers() -> Iterator[Any]:
        for n in range(10_001):
            if n == 10_000:  # the first page is there before the second is read
                assert getattr(it, count)() == 10_000
            yield (n, n) if kind == "hash" else n
        raise KeyError("the source ran dry")

    with pytest.raises(KeyError, match="ran dry"):
        getattr(it, call)(numbers())
    assert getattr(it, count)() == 10_000


TAKEN = ["n:{0}", "a:b:{17}", "{docs:0}:d", "{docs:3}:a:1", "followers:{net:6}"]


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_is_refused_that_another_structure_gives_keys(kit: ShardKit, name: str) -> None:
    makers: list[Any] = [kit.hash, kit.set, kit.sorted_set, kit.list]
    if not name.endswith("}"):  # the keys of strings go on otherwise
        makers.append(kit.strings)
    for make in makers:
        with pytest.raises(InvalidArgumentError, match="is reserved for another"):
            make(name, component="one")
    for tagged in ("{0}", "{user:1000}:following"):
        kit.set(tagged, component="one").sadd("a name with a tag")


HUGE = 10**5000
# A structure, a parameter, values that it cannot have, and what else is given.
INVALID: list[tuple[str, str, list[Any], dict[str, Any]]] = [
    ("set", "total", [0, -1, True, 1.5, "1000", HUGE], {}),
    ("set", "total", [2**60], {"part_size": 1}),
    ("set", "parts", [0, 48, 8192], {}),
    ("set", "part_size", [0], {}),
    ("set", "part_size", [0, -5, False, 2.0, HUGE], {"total": 10}),
    ("set", "members", [float, "int", []], {"total": 10}),
    ("set", "partition", ["digits", "md5", None], {"total": 10}),
    ("hash", "total", [0], {}),
    ("hash", "part_size", [0, 1.5], {}),
    ("hash", "parts", [3], {}),
    ("hash", "partition", ["redis-in-action"], {}),
    ("hash", "fields", [float], {}),
    ("hash", "codec", ["xml"], {}),
    ("sorted_set", "bound", [-1, 10**6], {}),
    ("sorted_set", "part_size", [0], {}),
    ("sorted_set", "total", [0], {}),
    ("sorted_set", "parts", [3], {}),
    ("sorted_set", "members", [float], {}),
    ("list", "part_size", [0, -1, 10_001, True, 2.0, None], {}),
    ("list", "values", [float, "str", []], {}),
    ("unique_visitors", "digits", [0, 16, True, 1.0, "15"], {}),
    ("unique_visitors", "first_day", [-1, "9", True, 10**30], {}),
    ("unique_visitors", "first_day", [10**12], {"part_size": 1}),
    ("unique_visitors", "part_size", [0, True], {}),
    ("unique_visitors", "partition", ["digits", "md5"], {}),
]


@pytest.mark.parametrize(("kind", "name", "values", "others"), INVALID)
def test_invalid_parameters_are_refused(
    kit: ShardKit, kind: str, name: str, values: list[Any], others: dict[str, Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidArgumentError) as caught:
            getattr(kit, kind)("it", component="one", **{name: value}, **others)
        message = str(caught.value)
        assert message.startswith({"list": "{it}: "}.get(kind, "it: ")) or name == "codec"
        assert (f"{name}=of 16610 bits" if value is HUGE else f"{name}={value!r}") in message
        assert caught.value.remedy


LETTERS = st.text("ab-]^[\\*?\n", max_size=8)


@settings(max_examples=drawn(100, 300))
@example(pattern=b"[\\", member=b"\\")
@example(pattern=b"[?-]?", member=b"?")
@example(pattern=b"**", member=b"")
@example(pattern=b"a*ba", member=b"aba")
@example(pattern=b"ab*b?*[a-b]a", member=b"abbaba")
@given(pattern=LETTERS.map(str.encode), member=LETTERS.map(str.encode))
def test_patterns_match_like_the_server(kit: ShardKit, pattern: bytes, member: bytes) -> None:
    client = kit.client("one")
    client.delete("members")
    client.sadd("members", member)
    _, found = client.sscan("members", match=pattern, count=10)
    names = kit.set("names", component="one", members=bytes, total=4)
    names.delete()
    names.sadd(member)
    assert list(names.sscan_iter(pattern)) == found, (pattern, member)


def test_a_pattern_of_many_stars_takes_linear_time(face: Face) -> None:
    """A matcher that tries again where a star ends would not finish."""
    names, ages = face.kit.set("names", component="one"), face.kit.hash("ages", component="one")
    face.run(names.sadd("a" * 100_000))
    face.run(ages.hset("a" * 100_000, 1))
    for scan in (names.sscan_iter, ages.hscan_iter):
        assert face.list(scan(match="*a" * 50 + "b")) == []
        assert len(face.list(scan(match="*a" * 50))) == 1
