"""Packed records on real servers: one, many, and both faces; and against a dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import ALL_CASES, Face, holder, keys_of
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from test_packed_format import formats, records_of

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.local import LocalServer
from shardkit.structures import FieldTotals, RecordGroup

COMPONENTS = ("one", "many", "few", "both")
FIELDS = {"country": "u8", "score": "i16", "height": "f32", "code": "bytes3"}


@pytest.fixture(params=COMPONENTS)
def users(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.packed("users", component=request.param, fields=FIELDS, part_size=16)


@pytest.fixture
def few(kit: ShardKit) -> Any:
    return kit.packed("users", component="many", fields=FIELDS, part_size=16)


def test_the_servers_bitfield_works_on_the_same_data(kit: ShardKit) -> None:
    fields = {"country": "u8", "score": "i12", "flag": "u1"}
    records = kit.packed("r", component="many", fields=fields, part_size=16)
    records.set(21, country=5, score=-3, flag=True)
    key, bit = records.place(21)
    assert (key, bit) == ("r:1", 5 * 24)
    client = holder(kit, "many", key)
    field = client.bitfield(key).get("u8", bit).get("i12", bit + 8).get("u1", bit + 20)
    assert field.execute() == [5, -3, 1]
    client.bitfield(key).set("i12", bit + 8, 77).execute()
    assert records.get(21) == {"country": 5, "score": 77, "flag": 1}


def test_sums_of_64_bits_are_exact(face: Face) -> None:
    records = face.kit.packed("w", component="many", fields={"a": "i64", "b": "u63"}, part_size=8)
    most = 2**63 - 1
    found = face.run(records.increment_many({1: most, 2: -most, 9: 2**53 + 1, 3: -5}, "a"))
    assert found == {1: most, 2: -most, 9: 2**53 + 1, 3: -5}
    assert face.run(records.increment(1, "a", 1, "fail")) is None
    assert face.run(records.increment(1, "b", most - 2)) == most - 2
    assert face.run(records.get(2)) == {"a": -most, "b": 0}


def test_no_concurrent_increment_is_lost(shard_map: ShardMap, kit: ShardKit) -> None:
    options: dict[str, Any] = {"fields": {"a": "u12", "b": "u20"}, "part_size": 32}

    def work() -> None:
        with shardkit.connect(shard_map) as own:
            records = own.packed("c", component="many", **options)
            for n in range(100):  # in parts that all of them create
                records.increment(n % 3, "a")
                records.increment_many({0: 1, 1: 2, 99 * n + 3: 1}, "b")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: work(), range(4)))
    records = kit.packed("c", component="many", **options)
    found = records.get_many(range(3))
    assert [(r["a"], r["b"]) for r in found.values()] == [(136, 400), (132, 800), (132, 0)]
    assert {record["b"] for record in records.get_many(range(3, 9900, 99)).values()} == {4}
    assert list(records.check()) == []


def test_groups_are_those_of_the_records(face: Face, users: Any) -> None:
    records = {
        n: {"country": n % 5, "score": -n, "height": n / 4, "code": b"%03d" % (n % 2)}
        for n in range(1, 700, 3)
    }
    face.run(users.set_many(records))

    def expected(ids: Any, by: tuple[str, ...]) -> Any:
        groups: dict[Any, list[int]] = {}
        for n in ids:
            if n in records:
                groups.setdefault(tuple(records[n][name] for name in by), []).append(n)
        return {
            key: RecordGroup(
                len(its),
                {
                    "score": FieldTotals(-sum(its), -max(its), -min(its)),
                    "height": FieldTotals(sum(its) / 4, min(its) / 4, max(its) / 4),
                },
            )
            for key, its in groups.items()
        }

    totals = ["score", "height"]
    some = [*range(0, 900, 2), 4, 10**9]
    for ids in (None, some):
        wanted = records if ids is None else some
        found = face.run(users.group_by("country", totals=totals, ids=ids))
        assert {(key,): group for key, group in found.items()} == expected(wanted, ("country",))
        both = face.run(users.group_by("country", "code", totals=totals, ids=ids))
        assert both == expected(wanted, ("country", "code"))
        assert face.run(users.aggregate(*totals, ids=ids)) == expected(wanted, ())[()]
    assert face.run(users.count(ids=iter(some))) == sum(n in records for n in some)


def test_flags_are_counted_by_their_servers(face: Face) -> None:
    flags = face.kit.packed("seen", component="many", fields="flag", part_size=64)
    face.run(flags.set_many({n: {"flag": n % 3 == 0} for n in range(1000)}))
    assert face.run(flags.count()) == face.run(flags.count("flag")) == 334
    assert face.run(flags.count(ids=range(10))) == 4
    some = face.kit.packed("more", component="many", fields={"n": "u7", "on": "u1"}, part_size=64)
    face.run(some.set_many({n: {"n": 1, "on": n % 4 == 0} for n in range(100)}))
    assert face.run(some.count("on")) == 25
    assert face.run(some.count("on", range(10))) == 3
    assert face.run(some.count()) == 100


@pytest.mark.parametrize("width", [3, 5, 7])
def test_blocks_do_not_cut_records(lower: Any, face: Face, width: int) -> None:
    lower(packed_block=16, packed_aggregate=50)
    fields = {"n": f"bytes{width}"}
    records = face.kit.packed("w", component="few", fields=fields, part_size=21)
    wanted = {n: {"n": b"%0*d" % (width, n)} for n in range(0, 200, 2)}
    face.run(records.set_many(wanted))
    assert face.list(records.scan_iter()) == list(wanted.items())
    assert face.run(records.highest()) == 198
    assert face.run(records.count()) == 100
    if width <= 8:
        groups = face.run(records.group_by("n"))
        assert {key: group.count for key, group in groups.items()} == {
            record["n"]: 1 for record in wanted.values()
        }


def test_parts_keep_their_length(own_server: LocalServer, own_map: ShardMap) -> None:
    """A string that grew would take up to twice its length."""
    with shardkit.connect(own_map) as kit, own_server.client() as client:
        records = kit.packed("r", component="own", fields={"a": "u8", "b": "u8"})
        assert records.part_size == 16376
        for n in (3, 9000, 16375, 8000, 0, 5):
            records.set(n, a=1)
        assert client.strlen("r:0") == 32752
        assert client.memory_usage("r:0") <= 32768 + 120


@pytest.mark.parametrize("bad", [-1, "7", b"7", 1.0, None, True, 2**63])
def test_ids_are_integers_from_0(kit: ShardKit, few: Any, bad: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: few.set(bad, country=1),
        lambda: few.set_many({1: {"country": 1}, bad: {"country": 1}} if bad != 1 else {bad: {}}),
        lambda: few.set_many([(2, {"country": 1}), (bad, {"country": 1})]),
        lambda: few.get(bad),
        lambda: few.get_many([1, bad]),
        lambda: few.get_field(bad, "score"),
        lambda: few.increment(bad, "score"),
        lambda: few.increment_many({2: 1, bad: 1}, "score"),
        lambda: few.remove(bad),
        lambda: few.remove(1, bad),
        lambda: few.aggregate(ids=[1, bad]),
        lambda: few.place(bad),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="users: "):
            call()
    assert keys_of(kit, "many") == set()


def test_what_does_not_fit_is_refused_and_nothing_is_written(kit: ShardKit, few: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: few.set(1, country=256),
        lambda: few.set(1),
        lambda: few.set(1, {}),
        lambda: few.set(1, {"country": 1, "nothing": 2}),
        lambda: few.set_many({1: {"country": 1}, 2: {"score": "x"}}),
        lambda: few.set_many({1: None}),
        lambda: few.set_many([1, 2]),
        lambda: few.set_many([(1, {"country": 1}, 2)]),
        lambda: few.get_field(1, "nothing"),
        lambda: few.increment(1, "height"),
        lambda: few.increment(1, "nothing"),
        lambda: few.increment(1, "score", 1.5),
        lambda: few.increment(1, "score", 2**63),
        lambda: few.increment(1, "score", 1, "clip"),
        lambda: few.increment(1, "score", 1, "FAIL"),
        lambda: few.increment_many([1, 2], "score"),
        lambda: few.count("score"),
        lambda: few.count("nothing"),
        lambda: few.group_by(),
        lambda: few.group_by("height"),
        lambda: few.group_by("country", totals="score"),
        lambda: few.aggregate("code"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="users: "):
            call()
    assert keys_of(kit, "many") == set()


@pytest.mark.parametrize("size", [0, -8, "16", 1.5, True, 2**33, 12])
def test_parts_have_whole_bytes_and_a_size_that_a_server_takes(kit: ShardKit, size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="part_size"):
        kit.packed("f", component="many", fields="flag", part_size=size)
    with pytest.raises(InvalidArgumentError, match="name="):
        kit.packed("", component="many", fields="flag")


def test_other_shards_are_written_if_one_fails(own_server: LocalServer, own_map: ShardMap) -> None:
    with shardkit.connect(own_map) as kit, own_server.client() as client:
        records = kit.packed("f", component="own", fields="postal", part_size=16)
        records.set(1, postal=1)
        client.set("f:1", "x")
        client.delete("f:1")
        client.rpush("f:1", "not a string")
        with pytest.raises(DamagedDataError, match="own: f:1 is damaged"):
            records.set_many({2: {"postal": 2}, 17: {"postal": 3}})
        assert records.get(2) == {"postal": 2}
        client.delete("f:1")
        records.set_many({17: {"postal": 3}})
        assert client.strlen("f:1") == records.part_bytes


BUDGET = settings(
    max_examples=10 if ALL_CASES else 5,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
# Some of them share a byte with others.
FORMS = st.one_of(
    formats(most=4),
    formats(most=1, kinds=st.sampled_from(["u1", "u2", "u4"])),
)
IDS = st.one_of(st.integers(0, 70), st.sampled_from([255, 256, 10**6, 2**40, 2**63 - 1]))


def machine(face: Face, component: str) -> type[RuleBasedStateMachine]:
    class Records(RuleBasedStateMachine):
        """Does everything to records of some format, and to a dictionary of those not zeros."""

        @initialize(form=FORMS, part_size=st.sampled_from([8, 16, 24]))
        def create(self, form: Any, part_size: int) -> None:
            self.form = form
            self.name = f"r{next(FRESH)}"
            self.fields = {name: field.type for name, field in form.fields.items()}
            self.zeros = form.unpack(0)
            self.model: dict[int, dict[str, Any]] = {}
            self.part_size = part_size
            self.open()

        def open(self) -> None:
            self.records = face.kit.packed(
                self.name, component=component, fields=self.fields, part_size=self.part_size
            )

        def put(self, record_id: int, record: dict[str, Any]) -> None:
            self.model[record_id] = self.model.get(record_id, self.zeros) | record
            if not self.form.pack(self.model[record_id]):
                del self.model[record_id]

        def drawn(self, data: st.DataObject) -> dict[str, Any]:
            record = data.draw(records_of(self.form))
            names = data.draw(st.sets(st.sampled_from(list(record)), min_size=1))
            return {name: record[name] for name in names}

        @rule(data=st.data(), record_id=IDS)
        def set(self, data: st.DataObject, record_id: int) -> None:
            record = self.drawn(data)
            face.run(self.records.set(record_id, record))
            self.put(record_id, record)

        @rule(data=st.data(), ids=st.lists(IDS, max_size=12), row=st.integers(0, 30))
        def set_many(self, data: st.DataObject, ids: list[int], row: int) -> None:
            whole = data.draw(records_of(self.form))
            pairs = [(record_id, self.drawn(data)) for record_id in ids]
            pairs += [(20 + n, whole) for n in range(row)]
            pairs = data.draw(st.permutations(pairs))
            face.run(self.records.set_many(pairs))
            for record_id, record in pairs:
                self.put(record_id, record)

        @rule(data=st.data(), record_id=IDS, by=st.integers(-(2**63), 2**63 - 1))
        def incr(self, data: st.DataObject, record_id: int, by: int) -> None:
            names = [name for name, kind in self.fields.items() if kind.is_integer]
            if not names:
                return
            name = data.draw(st.sampled_from(names))
            overflow = data.draw(st.sampled_from(["wrap", "sat", "fail"]))
            kind = self.fields[name]
            low = -(2 ** (kind.bits - 1)) if kind.signed else 0
            high = low + 2**kind.bits - 1
            total = self.model.get(record_id, self.zeros)[name] + by
            wanted: int | None = total
            if not low <= total <= high:
                wrapped = (total - low) % 2**kind.bits + low
                wanted = {"wrap": wrapped, "sat": low if total < low else high, "fail": None}[
                    overflow
                ]
            assert face.run(self.records.increment(record_id, name, by, overflow)) == wanted
            if wanted is not None:
                self.put(record_id, {name: wanted})

        @rule(ids=st.lists(IDS, max_size=8))
        def remove(self, ids: list[int]) -> None:
            there = {record_id for record_id in ids if record_id in self.model}
            assert face.run(self.records.remove(*ids)) == len(there)
            for record_id in there:
                del self.model[record_id]

        @rule(ids=st.lists(IDS, max_size=30))
        def read(self, ids: list[int]) -> None:
            found = face.run(self.records.get_many(ids))
            assert found == {n: self.model.get(n, self.zeros) for n in ids}
            assert list(found) == list(dict.fromkeys(ids))
            for n, record in list(found.items())[:3]:
                assert face.run(self.records.get(n)) == record
                name, value = next(reversed(record.items()))
                assert face.run(self.records.get_field(n, name)) == value
            assert face.run(self.records.count(ids=ids)) == sum(n in self.model for n in ids)

        @rule()
        def open_again(self) -> None:
            self.open()

        @invariant()
        def all_is_there(self) -> None:
            if not hasattr(self, "records"):
                return
            assert face.list(self.records.scan_iter()) == sorted(self.model.items())
            assert face.run(self.records.highest()) == max(self.model, default=None)
            assert face.run(self.records.count()) == len(self.model)

    return Records


@pytest.mark.long(2)
@pytest.mark.parametrize("component", ["one", "many"])
def test_packed_records_are_a_dictionary(face: Face, component: str) -> None:
    run_state_machine_as_test(machine(face, component), settings=BUDGET)
