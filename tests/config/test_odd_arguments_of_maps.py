"""Odd arguments for entries, maps, scripts and operators' functions: an error that names each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from shardkit import Entry, LuaScript, ShardKitError, ShardMap, admin, from_json, to_json
from shardkit.admin import growth
from shardkit.dashboard import FleetWatch, application
from shardkit.errors import InvalidArgumentError
from shardkit.integrations import asgi, otel, prometheus, wsgi
from shardkit.network import health


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


LATER = redis.Redis(port=1)  # nothing is sent
PUBLIC = [FleetWatch, application] + [
    getattr(module, name)
    for module in (admin, growth, asgi, wsgi, otel, prometheus, health)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) or module in (asgi, wsgi)
]


@pytest.mark.parametrize("call", PUBLIC, ids=lambda call: f"{call.__module__}.{call.__qualname__}")
def test_an_odd_argument_of_an_operator_s_function_is_named(call: Callable[..., Any]) -> None:
    odd = Odd()
    parameters = [
        p for p in inspect.signature(call).parameters.values() if p.kind % 2
    ]  # have names
    required = {p.name: odd for p in parameters if p.default is p.empty}
    anything = ("Any", "Where", "BaseServer")
    checked = [p.name for p in parameters if not str(p.annotation).startswith(anything)]
    assert checked or call in (wsgi.init_flask, asgi.lifespan)
    for name in checked:
        with pytest.raises(
            InvalidArgumentError, match=rf"^{call.__name__}: {name}=(<odd>|\*+); give "
        ):
            call(**{name: odd, **required})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: growth.plan_growth("c", "h:1", growth=1, periods=1), "servers='h:1'; give a list"),
        (
            lambda: growth.plan_growth("c", [7], growth=1, periods=1),
            "servers=[7]; give a list, each",
        ),  # type: ignore[list-item]
        (
            lambda: growth.plan_growth("c", (n for n in [7]), growth=1, periods=1),
            "servers=[7]; give",
        ),  # type: ignore[arg-type]
        (lambda: admin.check([MAP]), "components=["),  # type: ignore[list-item]
        (
            lambda: admin.estimate_disk_rate(1, 1, {"save": 7}),
            "settings={'save': 7}; give a mapping",
        ),  # type: ignore[dict-item]
        (lambda: admin.execute([], ["PING"], once_per="node"), "once_per='node'; give one of"),  # type: ignore[arg-type]
        (lambda: admin.execute([], ["PING"], timeout=0), "timeout=0; give seconds, 0.001 to"),
        (
            lambda: admin.rotate(LATER, ENTRY, "u", "caf\udce9"),
            "rotate: password=***; give text or",
        ),
        (lambda: admin.verify("a\0b"), "directory='a\\x00b'; give text or a Path"),
    ],
)
def test_what_an_odd_argument_contains_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        call()
