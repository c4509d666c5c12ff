"""A few stored bytes cannot make a reader use much memory or time."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from faces import Face
from hypothesis import given, strategies as st
from resources import bounded

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.structures import Tokens, WholeValue, Zstd, codec
from shardkit.structures.codecs.named import TEXT
from shardkit.structures.codecs.token_table import TokenTable

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
    st.sampled_from([*COMPRESS, "tokens", "zstd"]), st.integers(0, 300_000), st.binary(max_size=9)
)
def test_what_is_written_can_be_read_however_well_it_compresses(
    name: str, times: int, text: bytes
) -> None:
    value = text.decode("latin-1") * times
    one: Any = codec(f"{name}-text")
    if name in ("tokens", "zstd"):
        one.coders = {1: one.packing.coder(one.packing.build_dictionary([value.encode() or b"x"]))}
    assert one.decode(one.encode(value)) == value


@compressors
def test_streams_behind_a_value_are_damage(name: str) -> None:
    packed = COMPRESS[name](b"a" * 100)
    with pytest.raises(StructureError, match="cannot be read"):
        codec(f"{name}-text").decode(b"\1" + packed * 2)


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
