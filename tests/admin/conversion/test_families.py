"""Families of keys, recognised by their names."""

from __future__ import annotations

import pytest

from shardkit import ShardKitError
from shardkit.admin.conversion.forms import Pattern, families


def texts(*names: str, type_: str = "string") -> list[str]:
    return [family.text for family in families((name.encode(), type_) for name in names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["user:1:name", "user:2:name"], ["user:<n>:name"]),
        (["user:1:name", "user:2:name", "user:1:mail"], ["user:<n>:name", "user:1:mail"]),
        (["cart_12", "cart_13"], ["cart_<n>"]),
        (["{u:1}:a", "{u:2}:a"], ["{u:<n>}:a"]),
        (["day:2026-11-26", "day:2026-11-27"], ["day:<date>"]),
        (["v1:x", "v1:y"], ["v1:x", "v1:y"]),  # few words stay words
        ([f"mail:{chr(97 + n)}x" for n in range(20)], ["mail:<text>"]),
        ([f"s:{n:08x}-aaaa-4aaa-8aaa-{n:012x}" for n in range(3)], ["s:<uuid>"]),
        (["a:1:b:2", "a:1:b:3"], ["a:1:b:<n>"]),  # the same in all keys: no variable
    ],
)
def test_names_that_differ_in_variables_are_a_family(names: list[str], expected: list[str]) -> None:
    assert texts(*names) == expected


def test_a_field_is_what_lies_between_the_literal_ends() -> None:
    pattern = Pattern("user:<n>:cart:<n>:items")
    assert pattern.field_of(b"user:7:cart:12:items") == b"7:cart:12"
    assert pattern.key_of(b"7:cart:12") == b"user:7:cart:12:items"
    assert pattern.field_of(b"user:7:cart:12:other") is None
    assert pattern.name == "user:cart:items"
    assert pattern.glob == b"user:*:items"


def test_names_with_special_characters_match_themselves_only() -> None:
    pattern = Pattern("a[b]*:<n>")
    assert pattern.glob == rb"a\[b\]\*:*"
    assert pattern.field_of(b"a[b]*:5") == b"5"
    assert pattern.field_of(b"ab:5") is None


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(ShardKitError, match="is not a family of keys"):
        Pattern("user:<id>")
