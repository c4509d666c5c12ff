"""Odd arguments for entries, shard maps and scripts: an error of the tree that names each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardkit import Entry, LuaScript, ShardKitError, ShardMap, from_json, to_json
from shardkit.errors import InvalidArgumentError


class Text(str):
    """Text of an application's own class."""


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


ODD: list[Any] = [None, 7, True, float("nan"), 10**5_000, b"\xff", "\ud800", "\0", [], {"a": 1}]
ODD += [(), Text("x"), Odd(), object, bytearray(b"x"), "x" * 10_000]
MAP = ShardMap.parse("components: {c: {shards: [{port: 1}, {port: 2}]}}")
ENTRY = Entry({"host": "a"})
SCRIPT = LuaScript("return 1")
METHODS: list[Callable[..., Any]] = [
    *(ShardMap.load, ShardMap.decode, lambda text: ShardMap.parse(text), MAP.entry_of),
    *(Entry.from_json, ENTRY.resolved, ENTRY.url, Entry, LuaScript, to_json, from_json),
]
USUAL: dict[str, Any] = {"data": b"{}", "text": "{}", "component": "c", "number": 1, "fields": {}}


def calls(method: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls with an odd argument each: (its name, all arguments)."""
    parameters = inspect.signature(method).parameters
    usual = {name: USUAL.get(name, "x") for name in parameters if name != "environ"}
    for name in parameters:
        for value in ODD:
            yield name, usual | {name: value}


@pytest.mark.parametrize("method", METHODS)
def test_odd_arguments_of_maps_are_errors_of_the_tree(method: Callable[..., Any]) -> None:
    raw, tried = [], 0
    for name, arguments in calls(method):
        tried += 1
        try:
            method(**arguments)
        except ShardKitError:
            pass
        except Exception as error:
            raw.append((name, type(arguments[name]), error))
    assert raw == []
    assert tried >= len(ODD)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ShardMap.load(7), "ShardMap: path=7; give text or a Path"),  # type: ignore[arg-type]
        (lambda: ShardMap.decode("x", "s"), "ShardMap: data='x'; give bytes"),  # type: ignore[arg-type]
        (lambda: MAP.entry_of("c", "1"), "ShardMap: number='1'; give an integer or None"),  # type: ignore[arg-type]
        (lambda: Entry.from_json(None, "k"), "Entry: text=None; give text or bytes"),  # type: ignore[arg-type]
        (lambda: ENTRY.resolved("k", None), "Entry: environ=None; give a mapping"),  # type: ignore[arg-type]
        (lambda: LuaScript(None), "LuaScript: text=None; give text"),  # type: ignore[arg-type]
        (lambda: SCRIPT(None, args=7), "LuaScript: args=7; give a list"),  # type: ignore[call-overload]
        (lambda: to_json({"a": "\ud800"}), r"'\ud800' is not UTF-8 text; pass its bytes"),
        (lambda: from_json("[" * 100_000), "a script's reply is not JSON: nested too deeply"),
    ],
)
def test_an_odd_argument_of_a_map_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}"):
        call()
