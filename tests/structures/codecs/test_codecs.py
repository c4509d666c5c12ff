"""The values that each codec encodes, decodes and refuses, and what decoding may cost at most."""

from __future__ import annotations

import bz2
import contextlib
import datetime
import enum
import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from functools import cache, reduce
from importlib import import_module
from typing import Any

import pytest
from faces import Face, drawn
from hypothesis import given, settings, strategies as st
from resources import bounded

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.structures import Codec, Compressed, Tokens, WholeValue, Zstd, codec, compare_codecs
from shardkit.structures.codecs.named import JSON, RAW, TEXT
from shardkit.structures.codecs.plain import Json
from shardkit.structures.codecs.token_table import TokenTable

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
keys = st.text() | st.integers(-(2**63), 2**64 - 1) | st.binary()
packable = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | keys,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=10,
)
SAMPLE = [[name, str(n), "DE"] for n in range(40) for name in ("Berlin", "Köln", "城市")]
NAMES = ["json", "msgpack", "tokens", "zstd", "tokens-msgpack", "zstd-msgpack"]


def same(one: Any, other: Any) -> bool:
    """Whether two values are one, NaN and the types of numbers included."""
    return repr(one) == repr(other)


@cache
def trained(name: str) -> Codec[Any]:
    """A codec by its name; one that compresses has a dictionary."""
    made = codec(name)
    if isinstance(made, Compressed):
        learned = made.packing.build_dictionary([made.inner.encode(value) for value in SAMPLE])
        made.coders = {1: made.packing.coder(learned)}
    return made


@pytest.fixture(params=["msgspec", "the standard library"])
def json_codec(request: pytest.FixtureRequest, without_extras: Callable[[], None]) -> Json:
    """The JSON codec, by each of what it can be made of."""
    if request.param != "msgspec":
        without_extras()
    return Json()


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the libraries of the extra look as if they were not installed."""

    def hide() -> None:
        for name in ("msgspec", "zstandard", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.mark.parametrize("name", NAMES)
def test_every_json_value_comes_back(name: str) -> None:
    made = trained(name)

    @settings(max_examples=drawn(6, 15))
    @given(json_values)
    def check(value: Any) -> None:
        try:
            stored = made.encode(value)
        except InvalidArgumentError:
            assert "msgpack" in name  # it has no integers of more than 64 bits
            return
        assert same(made.decode(stored), value)

    check()


@settings(max_examples=40)
@given(value=packable)
def test_every_messagepack_value_comes_back_bytes_and_other_keys_too(value: Any) -> None:
    made = codec("msgpack")
    assert same(made.decode(made.encode(value)), value)


@settings(max_examples=40)
@given(value=json_values)
def test_what_msgspec_writes_and_what_the_standard_library_writes_mean_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "msgspec", None)
        plain = Json()
    assert same(plain.decode(JSON.encode(value)), value)
    assert same(JSON.decode(plain.encode(value)), value)


class Size(enum.Enum):
    SMALL = 1


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [0, float("nan")]}, "value['a'][1] nan, a float"),
        ([float("inf")], "value[0] inf"),
        ({1: 2}, "the key in value 1, a int"),
        ({"born": datetime.date(2020, 1, 1)}, "value['born'] datetime.date(2020, 1, 1), a date"),
        ({"tags": {"x"}}, "value['tags'] {'x'}, a set"),
        ([b"x"], "value[0] b'x', a bytes"),
        (Size.SMALL, "value <Size.SMALL: 1>"),
        ("\ud800", "value '\\ud800'"),
        (circle, "a list, would not come back"),
        (object, "value <class 'object'>"),
        (("a", {"x"}), "value[1] {'x'}"),
    ],
)
def test_json_refuses_lossy_values(json_codec: Json, value: Any, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match="would not come back from JSON") as refused:
        json_codec.encode(value)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("made", "value", "named"),
    [
        (RAW, None, "value None is a NoneType; give str, bytes, int or float"),
        (RAW, True, "value True is a bool"),
        (RAW, ["a"], "value ['a'] is a list"),
        (RAW, "\ud800", "cannot be encoded as UTF-8; remove lone surrogates"),
        pytest.param(RAW, 10**5000, "is too long", id="too long"),
        (TEXT, b"a", "value b'a' is a bytes; codec='text' takes str"),
        (TEXT, 1, "value 1 is a int"),
        (codec("msgpack"), 2**64, "value 18446744073709551616, a int"),
        (codec("msgpack"), {"a": {1, 2}}, "value['a'] {1, 2}, a set"),
        (codec("msgpack"), [b"a", bytearray(b"a")], "value[1] bytearray(b'a')"),
        (codec("msgpack"), {"a": memoryview(bytes(300))}, "a memoryview"),
        (codec("tokens-text"), 1, "value 1 is a int"),
        (codec("zstd"), [b""], "value[0] b'', a bytes"),
    ],
)
def test_values_of_a_wrong_type_are_refused(made: Codec[Any], value: Any, named: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        made.encode(value)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("made", "stored"),
    [
        (TEXT, b"\xff"),
        (JSON, b""),
        (JSON, b'["a"'),
        (JSON, b"NaN"),
        (JSON, b"\xff"),
        (JSON, b"[" * 100_000),
        (codec("msgpack"), b"\x92"),
        (trained("tokens"), b""),
        (trained("tokens"), b"\xf8"),
        (trained("tokens"), trained("tokens").encode(SAMPLE[0]) + b"\xff"),
        (trained("zstd"), b""),
        (trained("zstd"), b"\x00\x00"),
        (trained("zstd"), b"\xf9" + b"\x17" * 50),
    ],
)
def test_stored_bytes_that_cannot_be_read_are_named(made: Codec[Any], stored: bytes) -> None:
    with pytest.raises(StructureError, match=r"cannot be read as .* write it again"):
        made.decode(stored)


@pytest.mark.parametrize("stored", [b"NaN", b"[Infinity]", b'{"a": -Infinity}'])
def test_numbers_that_json_does_not_have_are_not_read(json_codec: Json, stored: bytes) -> None:
    with pytest.raises(StructureError, match="cannot be read as JSON"):
        json_codec.decode(stored)


@pytest.mark.parametrize("name", ["tokens", "zstd", "tokens-msgpack", "zstd-msgpack"])
def test_damaged_values_are_refused_or_read_as_another_value_but_nothing_else(name: str) -> None:
    made = trained(name)

    @settings(max_examples=30)
    @given(st.binary(max_size=40))
    def check(stored: bytes) -> None:
        with contextlib.suppress(StructureError):
            made.decode(stored)

    check()


NESTED: list[Any] = reduce(lambda inner, _: [inner], range(5000), [])


@pytest.mark.parametrize(
    "given", ["pickle", "", "zstd-", "json-zstd", "zstd-none", 5, object(), NESTED]
)
def test_an_invalid_codec_is_refused(given: Any) -> None:
    if given == "zstd-":
        assert codec(given).name == "zstd-json"
        return
    with pytest.raises(InvalidArgumentError, match=r"codec=.*give None, one of text, json"):
        codec(given)


def test_a_missing_library_is_named_with_its_extra(without_extras: Callable[[], None]) -> None:
    without_extras()
    for name, library in (("msgpack", "msgspec"), ("zstd", "zstandard"), ("tokens-msgpack", "")):
        with pytest.raises(
            InvalidArgumentError, match=rf"{library}.*; pip install 'shardkit\[codec"
        ):
            codec(name)
    assert codec("tokens").name == "tokens-json"


@pytest.mark.parametrize(
    "make", [lambda: Tokens(0), lambda: Tokens(True), lambda: Zstd(level=0), lambda: Zstd(size=9)]
)
def test_parameters_of_packing_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError, match="give a"):
        make()


@pytest.mark.parametrize("values", [2, 40], ids=["too few to train on", "trained"])
def test_zstandard_and_pythons_own_zstd_read_each_others_values(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard")
    packings = [Zstd()]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    if sys.version_info < (3, 14):
        monkeypatch.setitem(sys.modules, "compression.zstd", import_module("backports.zstd"))
    packings.append(Zstd())
    sample = [f"{{'name': 'n{n}', 'city': 'Aachen', 'rank': {n % 7}}}".encode() for n in range(999)]
    for trainer in packings:
        dictionary = trainer.build_dictionary(sample[:: len(sample) // values])
        coders = [packing.coder(dictionary) for packing in packings]
        for value in (*sample[:50], b"ab" * 500, b"x" * (1 << 17)):
            for packed in [coder.pack(value) for coder in coders]:
                assert packed is not None
                assert [coder.unpack(packed) for coder in coders] == [value] * 2
        for packing, coder in zip(packings, coders, strict=True):
            assert coder.pack(b"x" * (1 << 17) + b"x") is None
            with pytest.raises(ValueError, match="no block"):
                coder.unpack(b"no block")
            for damaged in (dictionary[:-9], b"", dictionary.replace(dictionary[9:19], bytes(10))):
                with pytest.raises(StructureError, match="dictionary is damaged"):
                    packing.coder(damaged)
        with pytest.raises(StructureError, match="dictionary is damaged"):
            packings[1].coder(dictionary + dictionary)  # Python's own reads all frames


SPACES = b" " * 20_000_000
LITTLE = 1 << 24
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "lz4": lambda plain: import_module("lz4.frame").compress(plain),
}
compressors = pytest.mark.parametrize("name", COMPRESS)


def table(*, first: int = 1, following: int = 1, same: int = 0, more: int = 1) -> bytes:
    """Return a stored table that says how many tokens of one bit it has, and how long they are."""
    head = struct.pack(">64I", first, *[0] * 31, following, *[0] * 31)
    return zlib.compress(b"\x01" + head + bytes([same] * 2) + bytes([more] * 2) + b"a" * 2 * more)


@compressors
def test_a_bomb_is_not_read(name: str) -> None:
    stored = b"\1" + COMPRESS[name](SPACES)
    with bounded(LITTLE), pytest.raises(StructureError, match="would become more than"):
        codec(f"{name}-text").decode(stored)


@compressors
def test_growth_may_be_allowed(name: str) -> None:
    stored = b"\1" + COMPRESS[name](SPACES)
    assert WholeValue(name, TEXT, growth=10**6).decode(stored).encode() == SPACES
    with pytest.raises(InvalidArgumentError, match=f"{name}-text: growth=0; give an integer"):
        WholeValue(name, TEXT, growth=0)


@given(
    st.sampled_from([*COMPRESS, "tokens", "zstd"]), st.integers(0, 100_000), st.binary(max_size=9)
)
def test_what_is_written_can_be_read_however_well_it_compresses(
    name: str, times: int, text: bytes
) -> None:
    value = text.decode("latin-1") * times
    one: Any = codec(f"{name}-text")
    if name in ("tokens", "zstd"):
        one.coders = {1: one.packing.coder(one.packing.build_dictionary([value.encode() or b"x"]))}
    assert one.decode(one.encode(value)) == value


@pytest.mark.parametrize(
    "stored",
    [
        zlib.compress(SPACES),
        table(first=2**32 - 1),
        table(following=2**31),
        table(same=64, more=64),
    ],
    ids=["compressed spaces", "many tokens", "many other tokens", "long tokens"],
)
def test_a_table_larger_than_its_bytes_is_damaged(stored: bytes) -> None:
    with bounded(LITTLE), pytest.raises(StructureError, match="table of tokens is damaged"):
        Tokens().coder(stored)


def test_a_dictionary_that_claims_any_size_is_damaged() -> None:
    claims = b"\x28\xb5\x2f\xfd\xe0" + (1 << 50).to_bytes(8, "little") + b"\x01\x00\x00"
    spaces = import_module("zstandard").ZstdCompressor().compress(SPACES)
    for stored in (claims, spaces):
        with bounded(LITTLE), pytest.raises(StructureError, match="dictionary is damaged"):
            Zstd().coder(stored)


def test_packed_tokens_are_read_in_linear_time_and_make_no_more_than_they_may() -> None:
    sample = [b"a" * 640 + b"%d" % n for n in range(50)]
    learned = TokenTable.load(Tokens(64).build_dictionary(sample))
    mixed = bytes(range(256)) * 20
    packed = learned.pack(mixed)
    assert packed is not None
    with bounded():
        assert learned.unpack(packed) == mixed
    refused = 0
    for byte in (0x00, 0xAA, 0xFF):
        try:
            with bounded():
                assert len(learned.unpack(bytes([byte]) * 100_000)) <= 6_400_000
        except (StructureError, ValueError) as error:
            refused += "would become more" in str(error)
    assert refused


def test_a_bomb_in_a_hash_or_a_document_is_damage(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    pages = face.kit.hash("pages", component="one", codec="bz2")
    face.run(pages.hset("a", 1))
    [key] = client.scan_iter("pages:*:0")
    client.hset(key, "a", b"\1" + bz2.compress(SPACES))
    index = face.kit.search("docs", component="one", parts=1)
    face.run(index.index("1", "a text " * 50))
    [document] = client.scan_iter("{docs:*}:d:*")
    before = client.get(document)
    client.set(document, before[: before.rindex(b"\1x")] + b"\1" + zlib.compress(SPACES))
    for call in (lambda: pages.hget("a"), pages.hgetall, lambda: index.get("1")):
        with bounded(LITTLE), pytest.raises(DamagedDataError, match="would become more than"):
            face.run(call())


PAGE = "<li>an entry of a cached page</li>" * 300


@pytest.fixture(params=["gzip", "bz2", "lz4"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "lz4":
        pytest.importorskip("lz4.frame")
    return str(request.param)


def test_stored_bytes_that_are_damaged_are_refused(name: str) -> None:
    one = codec(name)
    stored = one.encode(PAGE)
    for damaged in (b"", b"\2" + stored[1:], stored[:20], b"\1" + b"x" * 40, stored[:-3]):
        with pytest.raises(
            StructureError,
            match=f"cannot be read as {name}-json; write it again",
        ):
            one.decode(damaged)


def test_lz4_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(
        InvalidArgumentError,
        match=r"need lz4, which is not installed; pip install 'shardkit\[codecs\]'",
    ):
        codec("lz4")


def test_codecs_are_measured_on_the_callers_values() -> None:
    values: list[Any] = [PAGE[:n] for n in range(1_000, 1_100)]
    results = compare_codecs(values, [TEXT, WholeValue("gzip", TEXT), codec("bz2-text")])
    assert [result.name for result in results][-1] == "text"
    assert results[-1].size == sum(range(1_000, 1_100)) / 100
    assert all(result.encode > 0 and result.decode > 0 for result in results)
    with pytest.raises(InvalidArgumentError, match="no values"):
        compare_codecs([], [TEXT])
    with pytest.raises(InvalidArgumentError, match="compressor='rar'"):
        WholeValue("rar", TEXT)
