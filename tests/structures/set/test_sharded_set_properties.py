"""A sharded SET against a plain SET of the server, over random operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from faces import Face
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shardkit import ShardKit

BUDGET = settings(
    max_examples=12,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
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


def machine(face: Face, kit: ShardKit, kind: type) -> type[RuleBasedStateMachine]:
    """A machine that does everything to a plain SET, and to sharded ones over one server and many.

    Each reply of the sharded ones must be what the server says about the plain one.
    """
    plain: Any = kit.client("one")
    one_or_more = st.lists(MEMBERS[kind], min_size=1, max_size=30)
    names = st.sampled_from(NAMES)

    class Sets(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.prefix = f"{next(FRESH)}"
            self.sharded = [
                {
                    name: face.kit.set(
                        f"{self.prefix}:{component}:{way}:{name}",
                        component=component,
                        part_size=4,
                        members=kind,
                        **{way: number},
                    )
                    for name in NAMES
                }
                for component, way, number in (
                    ("one", "total", 12),
                    ("many", "total", 12),
                    ("many", "parts", 2),
                )
            ]

        def key(self, name: str) -> str:
            return f"{self.prefix}:plain:{name}"

        def same(self, expected: Any, call: Callable[[dict[str, Any]], Any]) -> None:
            for sets in self.sharded:
                assert face.run(call(sets)) == expected

        def same_members(self, expected: set[bytes], call: Callable[[dict[str, Any]], Any]) -> None:
            for sets in self.sharded:
                found = face.run(call(sets))
                assert len(found) == len(expected)
                assert {sent(member) for member in found} == expected
                assert all(type(member) is kind for member in found)

        @rule(name=names, members=one_or_more, many=st.booleans())
        def add(self, name: str, members: list[Any], many: bool) -> None:
            expected = plain.sadd(self.key(name), *map(sent, members))
            if many:
                self.same(expected, lambda sets: sets[name].sadd_many(iter(members)))
            else:
                self.same(expected, lambda sets: sets[name].sadd(*members))

        @rule(name=names, members=one_or_more)
        def remove(self, name: str, members: list[Any]) -> None:
            expected = plain.srem(self.key(name), *map(sent, members))
            self.same(expected, lambda sets: sets[name].srem(*members))

        @rule(name=names, members=one_or_more)
        def look(self, name: str, members: list[Any]) -> None:
            there = plain.smismember(self.key(name), [*map(sent, members)])
            self.same([bool(flag) for flag in there], lambda sets: sets[name].smismember(members))
            for member, flag in zip(members[:2], there, strict=False):
                self.same(bool(flag), lambda sets, m=member: sets[name].sismember(m))

        @rule(name=names)
        def list_all(self, name: str) -> None:
            expected = plain.smembers(self.key(name))
            self.same_members(expected, lambda sets: sets[name].smembers())
            self.same(len(expected), lambda sets: sets[name].scard())

        @rule(name=names)
        def delete(self, name: str) -> None:
            for sets in self.sharded:
                there = face.run(sets[name].scard()) > 0
                assert face.run(sets[name].delete()) or not there
            plain.delete(self.key(name))

        @rule(
            verb=st.sampled_from(["sinter", "sunion", "sdiff"]),
            operands=st.lists(names, min_size=1),
        )
        def combine(self, verb: str, operands: list[str]) -> None:
            expected = getattr(plain, verb)([self.key(name) for name in operands])
            first, *others = operands
            self.same_members(
                expected, lambda sets: getattr(sets[first], verb)(*(sets[n] for n in others))
            )

        @rule(
            verb=st.sampled_from(["sinterstore", "sunionstore", "sdiffstore"]),
            into=names,
            operands=st.lists(names, min_size=1, max_size=4),
        )
        def store(self, verb: str, into: str, operands: list[str]) -> None:
            expected = getattr(plain, verb)(self.key(into), [self.key(name) for name in operands])
            self.same(
                expected, lambda sets: getattr(sets[into], verb)(*(sets[n] for n in operands))
            )
            self.list_all(into)

    return Sets


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", [int, str, bytes])
def test_a_sharded_set_does_what_a_set_does(face: Face, kit: ShardKit, kind: type) -> None:
    run_state_machine_as_test(machine(face, kit, kind), settings=BUDGET)
