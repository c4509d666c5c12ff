"""Fields, formats, layouts and aggregates of packed records, without a server; locations."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pycountry
import pytest
from faces import ALL_CASES, Face, holder, keys_of
from hypothesis import given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.structures import (
    Choice,
    FieldTotals,
    FieldType,
    Location,
    LocationCounts,
    RecordGroup,
)
from shardkit.structures.packed.aggregates import Aggregator
from shardkit.structures.packed.locations import decode, encode, location_codes
from shardkit.structures.packed.part_store import RecordLayout
from shardkit.structures.packed.record_format import RecordFormat
from shardkit.structures.packed.records import aggregator_class

SIZES = Choice(["S", "M", "L"], bits=2)

KINDS: st.SearchStrategy[str | FieldType] = st.one_of(
    st.integers(1, 63).map("u{}".format),
    st.integers(2, 64).map("i{}".format),
    st.sampled_from(["f16", "f32", "f64", "lat16", "lon24", SIZES]),
    st.integers(1, 12).map("bytes{}".format),
)


def values_of(kind: FieldType) -> st.SearchStrategy[Any]:
    """Values of a kind that come back as they were given."""
    if kind.is_integer:
        low = -(2 ** (kind.bits - 1)) if kind.signed else 0
        return st.integers(low, low + 2**kind.bits - 1)
    if kind.spec.startswith("f"):
        return st.floats(width=kind.bits, allow_nan=False).map(  # type: ignore[arg-type]
            lambda number: number + 0.0
        )
    if kind.spec.startswith("bytes"):
        return st.binary(min_size=kind.bits // 8, max_size=kind.bits // 8)
    if isinstance(kind, Choice):
        return st.sampled_from([None, *kind.names])
    return st.integers(0, 2**kind.bits - 1).map(kind.decode)


@st.composite
def formats(draw: st.DrawFn, most: int = 5, kinds: Any = KINDS) -> RecordFormat:
    fields = draw(st.lists(kinds, min_size=1, max_size=most))
    return RecordFormat({f"f{n}": kind for n, kind in enumerate(fields)})


def records_of(form: RecordFormat) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: values_of(field.type) for name, field in form.fields.items()}
    )


@given(st.data())
def test_zeros_stand_for_what_was_never_written(data: st.DataObject) -> None:
    form = data.draw(formats())
    zeros = form.decode(bytes(form.size))
    assert form.pack(zeros) == 0
    assert set(map(type, zeros.values())) <= {int, float, bytes, type(None)}


def test_bits_are_numbered_as_bitfield_numbers_them() -> None:
    form = RecordFormat({"country": "u8", "score": "i12", "flag": "u1"})
    assert form.encode({"country": 5, "score": -3, "flag": True}).hex() == "05ffd8"
    assert form.spec == "country:u8,score:i12,flag:u1"
    assert repr(form.fields["country"].type) == "Unsigned('u8')"


def test_degrees_come_back_within_half_a_cell_and_the_precision_is_stated() -> None:
    coarse, fine = RecordFormat("position16"), RecordFormat("position24")
    assert {k: round(v) for k, v in coarse.precision().items()} == {"lat": 306, "lon": 612}
    assert {k: round(v, 1) for k, v in fine.precision().items()} == {"lat": 1.2, "lon": 2.4}
    for form in (coarse, fine):
        for lat, lon in [(52.52, 13.405), (-90, -180), (90, 180), (0, 0), (-33.86, 151.21)]:
            found = form.decode(form.encode({"lat": lat, "lon": lon}))
            for name, wanted in (("lat", lat), ("lon", lon)):
                assert abs(found[name] - wanted) * 111_320 <= form.precision()[name] / 2 * 1.001
    assert coarse.decode(bytes(4)) == {"lat": None, "lon": None}


def test_names_can_be_appended_to_a_choice() -> None:
    old = RecordFormat({"size": SIZES, "more": "u6"})
    with_more = Choice(["S", "M", "L"][:2], bits=2)
    assert old.spec == RecordFormat({"size": with_more, "more": "u6"}).spec
    assert with_more.decode(3) == "#3"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "fields={}"),
        (None, "fields=None"),
        ("location", "one of flag, postal"),
        (["u8"], "give a mapping"),
        ({"a": "u64"}, "field 'a' is declared as 'u64'"),
        ({"a": "u0"}, "'u0'"),
        ({"a": "i1"}, "'i1'"),
        ({"a": "f8"}, "'f8'"),
        ({"a": "bytes2000"}, "'bytes2000'"),
        ({"a": 8}, "declared as 8"),
        ({"a b": "u8"}, "field 'a b'"),
        ({1: "u8"}, "field 1"),
        ({"a": "bytes1024", "b": "u1"}, "8,193 bits"),
    ],
)
def test_invalid_fields_are_refused(fields: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        RecordFormat(fields, "users")
    assert said in str(refused.value)
    assert "users" in str(refused.value)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (([],), "a sequence of names, at least one"),
        (("SML",), "a sequence of names, at least one"),
        (([1, 2],), "a sequence of names, at least one"),
        ((["a", "a"],), "at most 255, each once"),
        ((["a"] * 4, 1), "4 names in 1 bit; give at most 1"),
    ],
)
def test_invalid_choices_are_refused(args: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Choice(*args)
    with pytest.raises(InvalidArgumentError, match="Choice: bits=0; give an integer, 1 to 32"):
        Choice(["a"], bits=0)


@pytest.mark.parametrize(
    ("kind", "value", "range_"),
    [
        ("u8", 256, "0 to 255"),
        ("u8", -1, "0 to 255"),
        ("u8", True, "0 to 255"),
        ("u8", "7", "0 to 255"),
        ("u8", 1.0, "0 to 255"),
        ("u1", 2, "0 to 1"),
        ("i8", 128, "-128 to 127"),
        ("i8", None, "-128 to 127"),
        ("i64", 2**63, "9,223,372,036,854,775,807"),
        ("f16", 70000.0, "-65504 to 65504"),
        ("f32", 1e39, "3.40282e+38"),
        ("f64", 10**400, "1.79769e+308"),
        ("f64", float("nan"), "a number"),
        ("f64", "1.0", "a number"),
        ("f64", None, "a number"),
        ("bytes3", b"ab", "3 bytes"),
        ("bytes3", "abc", "3 bytes"),
        ("lat16", 90.1, "-90 to 90"),
        ("lat16", True, "-90 to 90"),
        ("lon16", float("nan"), "-180 to 180"),
        ("lon16", "13.4", "-180 to 180"),
        (SIZES, "XL", "one of ('S', 'M', 'L')"),
        (SIZES, ["S"], "one of"),
    ],
)
def test_values_out_of_range_are_refused(kind: Any, value: Any, range_: str) -> None:
    form = RecordFormat({"some": "u8", "field": kind}, "users")
    with pytest.raises(InvalidArgumentError) as refused:
        form.pack({"field": value})
    assert str(refused.value).startswith("users: field=")
    assert range_ in str(refused.value)


def test_invalid_records_are_refused() -> None:
    form = RecordFormat({"a": "u8"}, "users")
    for record in ({}, None, 5, {"b": 1}):
        with pytest.raises(InvalidArgumentError, match="users: "):
            form.pack(record)  # type: ignore[arg-type]
    for data in (b"", b"ab", "a"):
        with pytest.raises(InvalidArgumentError, match="1 bytes"):
            form.decode(data)  # type: ignore[arg-type]


@given(
    st.sampled_from([1, 2, 4, 8, 16, 24, 72]),
    st.lists(st.integers(0, 200), max_size=60),
    st.sampled_from([8, 16, 64]),
)
def test_what_is_written_is_what_is_read(bits: int, ids: list[int], part_size: int) -> None:
    layout = RecordLayout(bits, part_size)
    records = {n: (n * 2654435761 + 1) % (1 << bits) for n in ids}
    parts: dict[int, int] = {}
    whole = 8 * layout.part_bytes
    for part, commands in layout.write_commands(records, {}).items():
        assert len(commands) <= len(records)
        for name, *args in commands:
            if name == "SETRANGE":
                args = ["SET", f"u{8 * len(args[1])}", 8 * args[0], int.from_bytes(args[1])]  # type: ignore
            for n in range(0, len(args), 4):
                size, offset, value = int(str(args[n + 1])[1:]), args[n + 2], args[n + 3]
                shift = whole - int(offset) - size
                before = parts.get(part, 0)
                assert before >> shift & ((1 << size) - 1) == 0
                parts[part] = before | int(value) << shift
    found: dict[int, int] = {}
    for read in layout.read_ranges(ids):
        data = parts.get(read.part, 0).to_bytes(layout.part_bytes)[read.first : read.last + 1]
        found |= dict(layout.extract(read, data.rstrip(b"\0")))
    assert found == records


@settings(max_examples=150 if ALL_CASES else 50)
@given(st.data())
def test_both_aggregators_find_what_a_loop_finds(data: st.DataObject) -> None:
    form = data.draw(formats())
    names = list(form.fields)
    keys = [name for name in names if form.fields[name].type.groupable]
    by = data.draw(st.lists(st.sampled_from(keys), unique=True, max_size=3)) if keys else []
    while sum(form.fields[name].type.bits for name in by) > 64:
        by.pop()
    adds = [name for name in names if form.fields[name].type.summable]
    of = data.draw(st.lists(st.sampled_from(adds), unique=True, max_size=2)) if adds else []
    some = data.draw(st.lists(records_of(form), max_size=6))
    blocks = data.draw(st.lists(st.lists(st.sampled_from([None, *some]), max_size=20), max_size=3))

    expected: dict[Any, list[dict[str, Any]]] = {}
    for record in (record for block in blocks for record in block):
        if record is not None and form.pack(record):
            expected.setdefault(tuple(record[name] for name in by), []).append(record)
    layout = RecordLayout(form.bits, 8)
    found = aggregator_class()("users", form, layout, by, of)
    plain = Aggregator("users", form, layout, by, of)
    assert type(found) is not Aggregator
    for block in blocks:
        packed = layout.join([form.pack(record) if record else 0 for record in block])
        found.add(packed)
        plain.add(packed)
    for groups in (found.groups(), plain.groups()):
        assert {key: group.count for key, group in groups.items()} == {
            key: len(group) for key, group in expected.items()
        }
        for key, group in groups.items():
            for name, totals in group.totals.items():
                values = [record[name] for record in expected[key]]
                assert (totals.min, totals.max) == (min(values), max(values))
                if form.fields[name].type.is_integer:
                    assert totals.sum == sum(values)
                    assert type(totals.sum) is int
                else:
                    near = pytest.approx(sum(values), rel=1e-9, abs=1e-290, nan_ok=True)
                    assert totals.sum == near


def test_sums_of_many_large_integers_are_exact() -> None:
    form = RecordFormat({"a": "i64", "b": "u32"})
    found = aggregator_class()("users", form, RecordLayout(form.bits, 8), (), ("a", "b"))
    least, most = -(2**63), 2**32 - 1
    found.add(form.encode({"a": least, "b": most}) * 300_000)
    found.add(form.encode({"a": 2**63 - 1, "b": 1}))
    assert found.groups() == {
        (): RecordGroup(
            300_001,
            {
                "a": FieldTotals(300_000 * least + 2**63 - 1, least, 2**63 - 1),
                "b": FieldTotals(300_000 * most + 1, 1, most),
            },
        )
    }


def test_without_numpy_it_is_counted_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "shardkit.structures.packed.numpy_aggregates", raising=False)
    form = RecordFormat({"a": "u8"})
    found = aggregator_class()("users", form, RecordLayout(8, 8), ["a"], [])
    assert type(found) is Aggregator
    text = b"abracadabra\0\0"
    found.add(text)
    counts = Counter(text.rstrip(b"\0"))
    assert found.groups() == {(byte,): RecordGroup(n, {}) for byte, n in counts.items()}


def test_a_broken_numpy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "shardkit.structures.packed.numpy_aggregates"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=name):
        aggregator_class()


@pytest.mark.parametrize(
    ("by", "of", "said"),
    [
        (["x"], [], "field 'x' does not exist"),
        ([], ["x"], "field 'x' does not exist"),
        (["f"], [], "cannot be grouped by f"),
        (["b"], [], "72 bits"),
        ([], ["b"], "cannot be added up"),
        ([], ["lat"], "cannot be added up"),
        (["a", "a"], [], "once"),
    ],
)
def test_what_cannot_be_added_up_is_refused(by: list[str], of: list[str], said: str) -> None:
    form = RecordFormat({"a": "u8", "f": "f32", "b": "bytes9", "lat": "lat16"}, "users")
    with pytest.raises(InvalidArgumentError, match=said):
        aggregator_class()("users", form, RecordLayout(form.bits, 8), by, of)


def test_the_bytes_of_the_page_are_those_that_were_measured() -> None:
    root = Path(__file__).parents[3]
    saved = json.loads((root / "benchmarks" / "results" / "packed.json").read_text())
    valkey, redis = saved["figures"].values()
    text = (root / "docs" / "packed.md").read_text(encoding="utf-8")
    assert sum(layout.startswith("packed") for layout in redis) >= 1
    for layout, on_redis in redis.items():
        row = f"| {layout} | {on_redis['bytes']:.2f} | {valkey[layout]['bytes']:.2f} |"
        assert row in text
        if layout.startswith("packed"):
            assert on_redis["bytes"] <= 2.3
            assert valkey[layout]["bytes"] <= 2.3


VECTORS = [
    ("USA", "CA", (235, 9)),
    ("CAN", "ON", (40, 9)),
    ("ABW", None, (1, 0)),
    ("ZWE", None, (249, 0)),
    (None, None, (0, 0)),
]


@pytest.mark.parametrize(("country", "region", "code"), VECTORS)
def test_codes_match_the_spec(
    country: str | None, region: str | None, code: tuple[int, int]
) -> None:
    assert encode(country, region) == bytes(code)
    assert decode(bytes(code)) == (country, region)


def test_tables_are_those_of_iso_and_of_the_posts() -> None:
    _, countries, regions = location_codes()
    assert countries == tuple(sorted(country.alpha_3 for country in pycountry.countries))
    assert len(countries) == 249
    subdivisions: Any = pycountry.subdivisions
    official = {
        country: {found.code[3:] for found in subdivisions.get(country_code=country[:2])}
        for country in ("USA", "CAN")
    }
    assert set(regions["CAN"]) == official["CAN"]
    # Beside the states the packages' list has the territories, not the forces' codes, and UM.
    assert set(regions["USA"]) == (official["USA"] - {"UM"}) | {"AA", "AE", "AP", "FM", "MH", "PW"}
    for codes in (countries, *regions.values()):
        assert list(codes) == sorted(set(codes))
        assert len(codes) <= 255
    assert {country: len(codes) for country, codes in regions.items()} == {"USA": 62, "CAN": 13}


def test_positions_of_a_version_never_change() -> None:
    """What is appended makes a new version, with a digest of its own here."""
    path = files("shardkit.structures") / "tables" / "locations.json"
    versions = json.loads(path.read_text(encoding="utf-8"))
    digests = [
        hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:16]
        for version in versions
    ]
    assert [version["version"] for version in versions] == [1]
    assert digests == ["25642ecbad265b88"]


@pytest.mark.parametrize(
    "bad",
    [
        *((country,) for country in ("usa", "US", "", 840, b"USA")),
        *(("USA", region) for region in ("ca", "", 9)),
        (None, "CA"),
    ],
)
def test_malformed_codes_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"country=|region="):
        encode(*bad)
    for data in (b"", b"abc", "ab", None):
        with pytest.raises(InvalidArgumentError, match="two bytes"):
            decode(data)  # type: ignore[arg-type]


def test_the_books_layout_is_kept(kit: ShardKit) -> None:
    users = kit.locations(component="many", part_size=2**20)
    assert users.records.place(139960061) == ("location:133", 8 * 998906)
    users.set(139960061, "USA", "CA")
    client = holder(kit, "many", "location:133")
    assert client.getrange("location:133", 998906, 998907) == b"\xeb\x09"
    assert client.strlen("location:133") == 2**21
    assert users.highest() == 139960061
    assert users.aggregate() == ({"USA": 1}, {"USA": {"CA": 1}})
    client.delete("location:133")


def test_bad_users_and_codes_are_named_and_nothing_is_written(kit: ShardKit) -> None:
    users: Any = kit.locations(component="many")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: users.set(-1, "USA"), "location: id=-1"),
        (lambda: users.set("7", "USA"), "location: id='7'"),
        (lambda: users.get(True), "location: id=True"),
        (lambda: users.aggregate([1, "2"]), "location: id='2'"),
        (lambda: users.set_many({1: ("USA", None), 2: ("usa", None)}), "user 2: country='usa'"),
        (lambda: users.set_many([(1, ("USA", None)), (3, ("USA", "ca"))]), "user 3: region='ca'"),
        (lambda: users.set_many({1: "USA"}), "user 1: location 'USA'"),
        (lambda: users.set_many({1: None}), "user 1: location None"),
        (lambda: users.set_many([5]), "5 in pairs; give tuples"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidArgumentError, match=said):
            call()
    assert keys_of(kit, "many") == set()


def test_countries_alone_take_a_byte_each(face: Face, kit: ShardKit) -> None:
    countries = face.kit.locations("of", component="many", part_size=100, regions=False)
    face.run(countries.set_many({n: ("CAN" if n % 3 else "USA", None) for n in range(250)}))
    face.run(countries.set(7, None))
    assert face.run(countries.get(3)) == Location("USA")
    found = face.run(countries.get_many([4, 7, 9999]))
    assert found == {4: Location("CAN"), 7: Location(), 9999: Location()}
    assert face.run(countries.aggregate()) == LocationCounts({"USA": 84, "CAN": 165}, {})
    assert face.run(countries.aggregate([0, 1, 1])) == LocationCounts({"USA": 1, "CAN": 2}, {})
    assert holder(kit, "many", "of:2").strlen("of:2") == 100
    with pytest.raises(InvalidArgumentError, match="region='ON'; make the locations with"):
        face.run(countries.set(8, "CAN", "ON"))
    with pytest.raises(ParameterMismatchError, match="'of' was created with other parameters:"):
        face.run(face.kit.locations("of", component="many", part_size=100).get(3))
    assert face.run(countries.remove(3, 7)) == 1
    assert face.run(countries.highest()) == 249
