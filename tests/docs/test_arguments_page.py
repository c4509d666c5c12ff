"""Structures are made by the words of docs/arguments.md, whose table is that of the signatures."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from shardkit import ShardKit, ShardMap
from shardkit.errors import ConfigError
from shardkit.operations import Face

ROOT = Path(__file__).parent.parent.parent


def makes_a_structure(function: Any) -> bool:
    """Whether what a method returns is blocking or async as its kit."""
    made = typing.get_type_hints(function).get("return") if inspect.isfunction(function) else None
    return Face in getattr(made, "__parameters__", ()) or function is ShardKit.read_write_lock


METHODS = {
    name: method
    for name in dir(ShardKit)
    if name[0] != "_" and makes_a_structure(method := getattr(ShardKit, name))
}
MAKERS = sorted(METHODS)


@pytest.mark.parametrize("name", MAKERS)
def test_a_structure_is_made_by_name_and_component(name: str) -> None:
    taken = dict(inspect.signature(METHODS[name]).parameters)
    options = [each.annotation for each in taken.values() if each.kind is each.VAR_KEYWORD]
    assert all(each.startswith("Unpack[") for each in options)
    where = taken.get("component") or taken.get("components")
    assert where is not None or name == "strings"  # which passes it on to a hash
    assert where is None or (where.kind, where.default) == (where.KEYWORD_ONLY, where.empty)


def test_the_table_of_methods_is_what_the_signatures_say() -> None:
    written = "import kit_methods as k, sys; sys.exit(k.page() != k.PAGE.read_text('utf-8'))"
    done = subprocess.run([sys.executable, "-c", written], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/kit_methods.py"


def test_the_page_describes_every_field_of_an_entry() -> None:
    page = Path("docs/configuration.md").read_text(encoding="utf-8")
    table = page.partition("<!-- fields -->")[2].partition("\n\n")[0]
    with pytest.raises(ConfigError, match=r"x is not a field of an entry; use one of ") as raised:
        ShardMap.parse("components: {a: {entry: {x: 1}}}")
    fields = str(raised.value).partition("use one of ")[2].split(", ")
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == fields


def defaults(function: Any) -> dict[str, Any]:
    """The default values that say something: for None the method finds a value."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.default not in (each.empty, None)}


def test_default_values_are_those_of_the_classes() -> None:
    compared = 0
    for name, method in METHODS.items():
        made = typing.get_type_hints(method)["return"]
        of_class = defaults((typing.get_origin(made) or made).__init__)
        both = {each: value for each, value in defaults(method).items() if each in of_class}
        assert {name: both} == {name: {each: of_class[each] for each in both}}
        compared += len(both)
    assert compared > 40
    # Which the class does not have.
    assert defaults(METHODS["market"])["grace"] == defaults(METHODS["transfers"])["grace"]
