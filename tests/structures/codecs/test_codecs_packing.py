"""Packing with dictionaries: stored forms, and reading them again."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.structures import Compressed, Tokens, Zstd
from shardkit.structures.codecs.compression import Packing, dictionary_of
from shardkit.structures.codecs.named import TEXT
from shardkit.structures.codecs.token_table import TokenTable, code_lengths

RECORDS = [
    b'["%b","%d","%b"]' % (name, region, country)
    for region in range(20)
    for name, country in (
        (b"Springfield", b"US"),
        (b"Newcastle", b"GB"),
        ("Zürich".encode(), b"CH"),
        ("東京".encode(), b"JP"),
    )
]
PACKINGS: list[Packing] = [Tokens(512), Zstd()]
LEARNED = {packing.name: packing.build_dictionary(RECORDS) for packing in PACKINGS}
TABLE = TokenTable.load(LEARNED["tokens"])
packings = pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: packing.name)


def with_dictionary(packing: Packing, number: int = 1) -> Compressed:
    made = Compressed(packing, TEXT)
    made.coders = {number: packing.coder(LEARNED[packing.name])}
    return made


@packings
def test_whatever_is_packed_comes_back(packing: Packing) -> None:
    coder = packing.coder(LEARNED[packing.name])

    @settings(max_examples=50)
    @given(st.one_of(st.binary(), st.lists(st.sampled_from(RECORDS)).map(b"".join)))
    def check(value: bytes) -> None:
        packed = coder.pack(value)
        if packed is not None:
            assert coder.unpack(packed) == value

    check()


@packings
def test_a_value_is_at_most_one_byte_longer_than_without_a_dictionary(packing: Packing) -> None:
    made = with_dictionary(packing, 3)

    @settings(max_examples=40)
    @given(st.text())
    def check(value: str) -> None:
        stored = made.encode(value)
        assert len(stored) <= len(value.encode()) + 1
        assert made.decode(stored) == value

    check()


@packings
def test_values_say_which_dictionary_they_were_written_with(packing: Packing) -> None:
    value = RECORDS[0].decode()
    before = Compressed(packing, TEXT).encode(value)
    first = with_dictionary(packing, 1).encode(value)
    last = with_dictionary(packing, 7).encode(value)
    assert [dictionary_of(stored) for stored in (before, first, last)] == [0, 1, 7]
    assert before == b"\xf8" + RECORDS[0]
    assert len(last) == len(first) + 1 == len(first[first[:1] == b"\xf9" :]) + 1


@packings
def test_a_value_whose_packed_form_begins_like_a_mark_is_marked(packing: Packing) -> None:
    class Unlucky:
        def pack(self, value: bytes) -> bytes:
            return b"\xff" + value[2:]

        def unpack(self, packed: bytes) -> bytes:
            return b"ab" + packed[1:]

    made = Compressed(packing, TEXT)
    made.coders = {1: Unlucky()}
    assert made.encode("abc") == b"\xf9\xffc"
    assert made.decode(b"\xf9\xffc") == "abc"


def test_a_missing_dictionary_is_named() -> None:
    stored = with_dictionary(Tokens(), 4).encode(RECORDS[0].decode())
    with pytest.raises(StructureError, match="with dictionary 4, which is missing here"):
        with_dictionary(Tokens(), 1).decode(stored)


@packings
def test_a_dictionary_cannot_be_trained_on_nothing(packing: Packing) -> None:
    with pytest.raises(InvalidArgumentError, match="trained on no values"):
        packing.build_dictionary([])


@packings
@pytest.mark.parametrize("samples", [[b"a"], [b"["] * 20, RECORDS[:3], [b"", b"x"]])
def test_tiny_samples_make_working_dictionaries(packing: Packing, samples: list[bytes]) -> None:
    coder = packing.coder(packing.build_dictionary(samples))
    for value in (b"a", b"[", *RECORDS[:3], bytes(range(256))):
        packed = coder.pack(value)
        assert packed is None or coder.unpack(packed) == value


@packings
@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-9], lambda d: d[:20] + b"x" * 99])
def test_a_damaged_dictionary_is_refused(packing: Packing, damage: Any) -> None:
    with pytest.raises(StructureError, match=r"stored .* is damaged"):
        packing.coder(damage(LEARNED[packing.name]))


def test_a_table_of_another_version_is_refused() -> None:
    with pytest.raises(StructureError, match="of a later version of shardkit"):
        TokenTable.load(zlib.compress(b"\x02" + zlib.decompress(TABLE.dump())[1:]))


def test_one_zstd_coder_serves_many_threads() -> None:
    made = with_dictionary(Zstd())
    failed: list[object] = []

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(300):
            value = "".join(random.choice(RECORDS).decode() for _ in range(random.randrange(9)))
            if made.decode(made.encode(value)) != value:
                failed.append(value)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not failed


def test_zstd_keeps_values_of_many_blocks_as_they_are() -> None:
    made = with_dictionary(Zstd())
    value = "".join(RECORDS[n % 80].decode() for n in range(10_000))
    assert made.encode(value) == b"\xf8" + value.encode()
    half = value[: len(value) // 2]
    assert len(made.encode(half)) < len(half) // 10
    assert made.decode(made.encode(half)) == half


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), st.integers(0, 2**40), min_size=1))
def test_code_lengths_make_a_prefix_code(counts: dict[str, int]) -> None:
    lengths = code_lengths({**counts, "": 0}, 8)
    assert sum(2.0**-length for length in lengths.values()) <= 1
    assert lengths[""] == max(8, *lengths.values())


def test_code_lengths_are_bounded_however_unequal_the_counts() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 80:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = code_lengths({str(n): count for n, count in enumerate(fibonacci)})
    assert max(lengths.values()) <= 24


def test_a_table_with_more_short_codes_than_there_are_is_refused() -> None:
    raw = bytearray(zlib.decompress(TABLE.dump()))
    lengths = [int.from_bytes(raw[at : at + 4]) for at in range(1, 129, 4)]
    raw[1:129] = sum(lengths).to_bytes(4) + bytes(124)  # one bit for each of the first tokens
    with pytest.raises(StructureError, match="stored table of tokens is damaged"):
        TokenTable.load(zlib.compress(bytes(raw)))


def test_a_table_caches_a_limited_number_of_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.structures.codecs.token_table._MOST_WINDOWS", 7)
    table = TokenTable.load(TABLE.dump())
    for record in RECORDS:
        assert table.pack(record) == TABLE.pack(record)
        assert len(table._matcher._ways) <= 7
