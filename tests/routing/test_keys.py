"""Keys as bytes: one key in its spellings, hash tags, pairs."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shardkit.errors import InvalidKeyError, RoutingError
from shardkit.routing.keys import hashed_parts, key_bytes, pair_key, text

LONG = 10**5000  # more digits than Python writes

ids = st.integers(-(2**70), 2**70)


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
