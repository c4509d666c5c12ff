"""A sharded SET against a plain SET of the server, over random operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faces import Face
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit

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
