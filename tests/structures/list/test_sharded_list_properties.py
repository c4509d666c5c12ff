"""A list in pieces does, call by call, what a plain LIST does, whatever the size of its pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from faces import Face, holder
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shardkit import ShardKit

BUDGET = settings(
    max_examples=10,
    stateful_step_count=35,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
FRESH = itertools.count()
SIZES = (1, 2, 3, 8)

values = st.lists(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from(["", "ß", "a\r\n", "1"])), max_size=20
)
indexes = st.integers(-25, 25)
ends = st.sampled_from(["l", "r"])
sides = st.sampled_from(["LEFT", "RIGHT"])


def machine(face: Face, kit: ShardKit) -> type[RuleBasedStateMachine]:
    """A machine that does everything to a plain LIST, and to one in pieces of each size."""
    plain: Any = kit.client("one")

    class Lists(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.prefix = f"{next(FRESH)}"
            self.lists = [
                (
                    face.kit.list(f"a{{{self.prefix}:{size}}}", component="many", part_size=size),
                    face.kit.list(f"b{{{self.prefix}:{size}}}", component="many", part_size=size),
                )
                for size in SIZES
            ]
            self.key = f"{self.prefix}:plain"
            self.other = f"{self.prefix}:other"

        def same(self, expected: Any, call: Callable[[Any], Any]) -> None:
            for pieces, _ in self.lists:
                assert face.run(call(pieces)) == expected, pieces.part_size

        @rule(end=ends, values=values, many=st.booleans())
        def push(self, end: str, values: list[str], many: bool) -> None:
            if values:
                expected = getattr(plain, f"{end}push")(self.key, *values)
            else:
                expected = plain.llen(self.key)
            if many:
                self.same(expected, lambda p: getattr(p, f"{end}push_many")(iter(values)))
            else:
                self.same(expected, lambda p: getattr(p, f"{end}push")(*values))

        @rule(end=ends)
        def pop(self, end: str) -> None:
            expected = getattr(plain, f"{end}pop")(self.key)
            self.same(
                expected if expected is None else expected.decode(),
                lambda p: getattr(p, f"{end}pop")(),
            )

        @rule(end=ends, count=st.integers(0, 30))
        def pop_many(self, end: str, count: int) -> None:
            expected = getattr(plain, f"{end}pop")(self.key, count) or []
            self.same(
                [value.decode() for value in expected],
                lambda p: getattr(p, f"{end}pop_many")(count),
            )

        @rule(index=indexes)
        def look(self, index: int) -> None:
            expected = plain.lindex(self.key, index)
            self.same(
                expected if expected is None else expected.decode(), lambda p: p.lindex(index)
            )

        @rule(index=indexes)
        def replace(self, index: int) -> None:
            length = plain.llen(self.key)
            if -length <= index < length:
                plain.lset(self.key, index, "new")
                self.same(None, lambda p: p.lset(index, "new"))

        @rule(start=indexes, stop=indexes)
        def read(self, start: int, stop: int) -> None:
            expected = [value.decode() for value in plain.lrange(self.key, start, stop)]
            self.same(expected, lambda p: p.lrange(start, stop))

        @rule(start=indexes, stop=indexes)
        def trim(self, start: int, stop: int) -> None:
            plain.ltrim(self.key, start, stop)
            self.same(plain.llen(self.key), lambda p: p.ltrim(start, stop))

        @rule(src=sides, dest=sides, back=st.booleans(), same=st.booleans())
        def move(self, src: str, dest: str, back: bool, same: bool) -> None:
            here, there = (self.other, self.key) if back else (self.key, self.other)
            expected = plain.lmove(here, here if same else there, src, dest)
            for lists in self.lists:
                first, second = reversed(lists) if back else lists
                found = face.run(first.lmove(first if same else second, src, dest))
                assert found == (expected if expected is None else expected.decode())

        @rule()
        def delete(self) -> None:
            plain.delete(self.key)
            for pieces, _ in self.lists:
                face.run(pieces.delete())

        @rule()
        def all_is_there(self) -> None:
            expected = [value.decode() for value in plain.lrange(self.key, 0, -1)]
            others = [value.decode() for value in plain.lrange(self.other, 0, -1)]
            for pieces, other in self.lists:
                assert face.list(pieces.items()) == expected
                assert face.list(pieces.items(reverse=True)) == expected[::-1]
                assert face.list(other.items()) == others
                assert face.run(pieces.llen()) == len(expected)

        def teardown(self) -> None:
            self.all_is_there()
            for lists in self.lists:
                for pieces in lists:
                    well_kept(kit, pieces)
                    face.run(pieces.delete())
            plain.delete(self.key, self.other)

    return Lists


def well_kept(kit: ShardKit, pieces: Any) -> None:
    """What is stored is what the list says: full pieces between two ends, and at most one token."""
    client: Any = holder(kit, "many", pieces.meta_key)
    found = {
        int(key.rpartition(b":")[2]): client.llen(key)
        for key in client.scan_iter(f"{pieces.name}:*", _type="list", count=1000)
        if not key.endswith(b":signal")
    }
    ends = {k.decode(): int(v) for k, v in client.hgetall(f"{pieces.name}:ends").items()}
    tokens = client.llen(f"{pieces.name}:signal")
    if not found:
        assert not any(v for k, v in ends.items() if k != "part_size")
        assert tokens == 0
        return
    assert set(found) == set(range(ends["first"], ends["last"] + 1))
    assert found[ends["first"]] == ends["left"]
    assert found[ends["last"]] == ends["right"]
    assert all(found[n] == pieces.part_size for n in range(ends["first"] + 1, ends["last"]))
    assert max(found.values()) <= pieces.part_size
    assert tokens == 1


def test_a_list_in_pieces_does_what_a_list_does(face: Face, kit: ShardKit) -> None:
    run_state_machine_as_test(machine(face, kit), settings=BUDGET)


@pytest.mark.parametrize("size", SIZES)
def test_many_values_of_any_kind_come_back_as_they_were(
    face: Face, kit: ShardKit, size: int
) -> None:
    pieces = face.kit.list("all", component="many", part_size=size, values=bytes)
    sent = [bytes([n % 256]) * (n % 7) for n in range(2500)]
    assert face.run(pieces.rpush_many(sent[1000:])) == 1500
    assert face.run(pieces.lpush_many(sent[:1000][::-1])) == 2500
    assert face.list(pieces.items()) == sent
    assert face.list(pieces.items(reverse=True)) == sent[::-1]
    well_kept(kit, pieces)
    assert [face.run(pieces.lindex(n)) for n in (0, 7, 1249, -1)] == [
        sent[n] for n in (0, 7, 1249, -1)
    ]
    assert face.run(pieces.rpop_many(1200)) == sent[:1299:-1]
    assert face.run(pieces.lpop_many(1300)) == sent[:1300]
    assert face.run(pieces.llen()) == 0
    well_kept(kit, pieces)
