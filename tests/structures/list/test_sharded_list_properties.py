"""A list in parts does, call by call, what a plain LIST does, whatever the size of its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from faces import ALL_CASES, Face, holder
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shardkit import ShardKit
from shardkit.structures.list import scripts

BUDGET = settings(
    max_examples=10 if ALL_CASES else 5,
    stateful_step_count=35,
    suppress_health_check=list(HealthCheck),
)
FRESH = itertools.count()
SIZES = (1, 2, 3, 8)

few = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["", "ß", "a\r\n", "1"]))
values = st.lists(few, max_size=20)
indexes = st.integers(-25, 25)
ends = st.sampled_from(["l", "r"])
sides = st.sampled_from(["LEFT", "RIGHT"])


def decoded(reply: Any) -> Any:
    """What redis-py returned, as a list with values=str returns it."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [*map(decoded, reply)] if isinstance(reply, list) else reply


def machine(face: Face, kit: ShardKit) -> type[RuleBasedStateMachine]:
    """A machine that does everything to a plain LIST, and to one in parts of each size."""
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

        def same(self, method: str, *args: Any, **options: Any) -> None:
            """Each list returns what redis-py's method of the same arguments does."""
            expected = decoded(getattr(plain, method)(self.key, *args, **options))
            self.gives(expected, lambda each: getattr(each, method)(*args, **options))

        def gives(self, expected: Any, call: Callable[[Any], Any]) -> None:
            for each, _ in self.lists:
                assert face.run(call(each)) == expected, each.part_size

        @rule(end=ends, values=values, many=st.booleans())
        def push(self, end: str, values: list[str], many: bool) -> None:
            if values and not many:
                self.same(f"{end}push", *values)
                return
            expected = plain.llen(self.key)
            if values:
                expected = getattr(plain, f"{end}push")(self.key, *values)
            self.gives(expected, lambda each: getattr(each, f"{end}push_many")(iter(values)))

        @rule(end=ends, count=st.one_of(st.none(), st.integers(0, 30)))
        def pop(self, end: str, count: int | None) -> None:
            self.same(f"{end}pop", count)

        @rule(index=indexes)
        def read_one(self, index: int) -> None:
            self.same("lindex", index)

        @rule(index=indexes)
        def replace(self, index: int) -> None:
            length = plain.llen(self.key)
            if -length <= index < length:
                self.same("lset", index, "new")

        @rule(start=indexes, end=indexes)
        def read(self, start: int, end: int) -> None:
            self.same("lrange", start, end)

        @rule(start=indexes, end=indexes)
        def trim(self, start: int, end: int) -> None:
            self.same("ltrim", start, end)

        @rule(
            value=few,
            rank=st.one_of(st.none(), st.integers(1, 4), st.integers(-4, -1)),
            count=st.one_of(st.none(), st.integers(0, 4)),
            maxlen=st.one_of(st.none(), st.integers(0, 20)),
        )
        def find(self, value: str, rank: int | None, count: int | None, maxlen: int | None) -> None:
            self.same("lpos", value, rank, count, maxlen)

        @rule(where=st.sampled_from(["BEFORE", "after"]), at=few, value=few)
        def insert(self, where: str, at: str, value: str) -> None:
            self.same("linsert", where, at, value)
            self.well_formed()

        @rule(count=st.integers(-4, 4), value=few)
        def remove(self, count: int, value: str) -> None:
            self.same("lrem", count, value)
            self.well_formed()

        def well_formed(self) -> None:
            for each, _ in self.lists:
                check_parts(kit, each)

        @rule(src=sides, dest=sides, back=st.booleans(), same=st.booleans())
        def move(self, src: str, dest: str, back: bool, same: bool) -> None:
            here, there = (self.other, self.key) if back else (self.key, self.other)
            expected = plain.lmove(here, here if same else there, src, dest)
            for lists in self.lists:
                first, second = reversed(lists) if back else lists
                found = face.run(first.lmove(first if same else second, src, dest))
                assert found == decoded(expected)

        @rule()
        def delete(self) -> None:
            plain.delete(self.key)
            for parts, _ in self.lists:
                face.run(parts.delete())

        @rule()
        def all_is_there(self) -> None:
            expected = [value.decode() for value in plain.lrange(self.key, 0, -1)]
            others = [value.decode() for value in plain.lrange(self.other, 0, -1)]
            for parts, other in self.lists:
                assert face.list(parts.items()) == expected
                assert face.list(parts.items(reverse=True)) == expected[::-1]
                assert face.list(other.items()) == others
                assert face.run(parts.llen()) == len(expected)

        def teardown(self) -> None:
            self.all_is_there()
            for lists in self.lists:
                for parts in lists:
                    check_parts(kit, parts)
                    face.run(parts.delete())
            plain.delete(self.key, self.other)

    return Lists


def check_parts(kit: ShardKit, parts: Any) -> None:
    """What is stored is what the list says: full parts between two ends, and at most one token."""
    client: Any = holder(kit, "many", parts.meta_key)
    found = {
        int(key.rpartition(b":")[2]): client.llen(key)
        for key in client.scan_iter(f"{parts.name}:*", _type="list", count=1000)
        if not key.endswith(b":signal")
    }
    ends = client.hgetall(f"{parts.name}:ends")
    ends.pop(b"values", None)
    ends = {k.decode(): int(v) for k, v in ends.items()}
    tokens = client.llen(f"{parts.name}:signal")
    if not found:
        assert not any(v for k, v in ends.items() if k != "part_size")
        assert tokens == 0
        return
    assert set(found) == set(range(ends["first"], ends["last"] + 1))
    assert found[ends["first"]] == ends["left"]
    assert found[ends["last"]] == ends["right"]
    assert all(found[n] == parts.part_size for n in range(ends["first"] + 1, ends["last"]))
    assert max(found.values()) <= parts.part_size
    assert tokens == 1


def test_a_list_in_parts_does_what_a_list_does(
    face: Face, kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "VALUES_PER_SEARCH", 6)
    monkeypatch.setattr(scripts, "PARTS_PER_SEARCH", 2)
    monkeypatch.setattr(scripts, "PARTS_PER_STEP", 2)
    run_state_machine_as_test(machine(face, kit), settings=BUDGET)
