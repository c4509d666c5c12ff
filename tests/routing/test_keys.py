"""Keys as bytes: one key in its spellings, hash tags, pairs."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from shardkit.errors import InvalidKeyError, RoutingError
from shardkit.routing.keys import hash_tag, hashed_parts, key_bytes, pair_key, text

LONG = 10**5000  # more digits than Python writes

ids = st.integers(-(2**70), 2**70)


@given(st.integers())
def test_an_integer_its_digits_and_their_bytes_are_one_key(number: int) -> None:
    assert key_bytes(number) == key_bytes(str(number)) == key_bytes(str(number).encode())


@given(st.text())
@example("é")
@example("城市")
def test_text_and_its_utf8_bytes_are_one_key(key: str) -> None:
    assert key_bytes(key) == key_bytes(key.encode()) == key.encode()


@given(st.binary())
def test_bytes_are_themselves_however_they_are_held(key: bytes) -> None:
    assert key_bytes(key) == key_bytes(bytearray(key)) == key_bytes(memoryview(key)) == key


@pytest.mark.parametrize("value", [True, False, None, 1.0, 1.5, (), [], ["a"], {}, object(), 1j])
def test_what_is_no_key_is_an_error_that_names_the_type(value: object) -> None:
    with pytest.raises(InvalidKeyError, match=type(value).__name__) as caught:
        key_bytes(value)  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, RoutingError)
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "\udc80:b"])
def test_text_with_lone_surrogates_is_no_key(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="UTF-8") as caught:
        key_bytes(key)
    str(caught.value).encode()  # the message can be printed
    with pytest.raises(InvalidKeyError, match="UTF-8"):
        hashed_parts(["a", key, "b"])


@pytest.mark.parametrize("number", [LONG, -LONG], ids=["positive", "negative"])
def test_an_integer_that_python_does_not_write_is_no_key(number: int) -> None:
    with pytest.raises(InvalidKeyError, match="bits"):
        key_bytes(number)
    with pytest.raises(InvalidKeyError, match="bits"):
        pair_key(number, 1)
    with pytest.raises(InvalidKeyError, match="bits"):
        pair_key(1, number)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"", b""),
        (b"plain", b"plain"),
        (b"{a}", b"a"),
        (b"x{a}y", b"a"),
        (b"x{a}{b}", b"a"),
        (b"x{}y", b"x{}y"),
        (b"{}{a}", b"{}{a}"),
        (b"{{a}}", b"{a"),
        (b"x{a", b"x{a"),
        (b"x}a{", b"x}a{"),
        (b"}{a}", b"a"),
        (b"{\x00}", b"\x00"),
        (b"{ }", b" "),
    ],
)
def test_only_the_first_tag_is_hashed(key: bytes, hashed: bytes) -> None:
    assert hash_tag(key) == hashed


@given(ids, ids)
@example(9, 10)
@example(0, 0)
def test_a_pair_has_one_key_in_either_order_and_spelling(a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    expected = f"{low}:{high}".encode()
    for x in (a, str(a), str(a).encode()):
        for y in (b, str(b), str(b).encode()):
            assert pair_key(x, y) == pair_key(y, x) == expected


NO_IDS = [
    "",
    "-",
    "a",
    "1.0",
    "1e3",
    " 1",
    "1 ",
    "1\n",
    "+1",
    "--1",
    "1_0",
    "0x1",
    "²",
    "\u0661",
    b"\xff",
]


@pytest.mark.parametrize("other", [*NO_IDS, "1" * 5000], ids=lambda other: repr(other)[:9])
def test_an_id_must_be_an_integer_that_python_reads(other: str | bytes) -> None:
    for pair in (other, 1), (1, other):
        with pytest.raises(InvalidKeyError, match="not an integer"):
            pair_key(*pair)


@given(st.text())
def test_a_key_as_text_is_the_same_in_every_spelling(key: str) -> None:
    assert text(key) == text(key.encode()) == key


def test_bytes_that_are_not_utf8_are_no_text() -> None:
    assert text(42) == "42"
    with pytest.raises(InvalidKeyError, match="not UTF-8"):
        text(b"\xff")
