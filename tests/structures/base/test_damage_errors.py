"""The error that reports damage."""

from __future__ import annotations

from shardkit.structures.base.damage import damage


def test_damage_is_reported_with_what_is_there_what_should_be_and_what_to_do() -> None:
    error = damage("users", "k", "text", "a number", "rebuild it")
    assert (error.component, error.key) == ("users", "k")
    assert (error.found, error.expected) == ("text", "a number")
    assert str(error).index("text") < str(error).index("a number") < str(error).index("rebuild it")
