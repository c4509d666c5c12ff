"""Packed records against a dictionary, over random formats and operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faces import ALL_CASES, Face
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from test_packed_format import formats, records_of

from shardkit.structures.packed.record_format import RecordFormat

BUDGET = settings(
    max_examples=10 if ALL_CASES else 5,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
# Some of them share a byte with others.
FORMS = st.one_of(
    formats(most=4),
    st.sampled_from(["u1", "u2", "u4"]).map(lambda kind: RecordFormat({"f0": kind})),
)
IDS = st.one_of(st.integers(0, 70), st.sampled_from([255, 256, 10**6, 2**40, 2**63 - 1]))


def machine(face: Face, component: str) -> type[RuleBasedStateMachine]:
    class Records(RuleBasedStateMachine):
        """Does everything to records of some format, and to a dictionary of those not zeros."""

        @initialize(form=FORMS, part_size=st.sampled_from([8, 16, 24]))
        def create(self, form: RecordFormat, part_size: int) -> None:
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
