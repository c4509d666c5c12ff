"""Prepare the API reference: what packages import, defaults as values, examples as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

# "    low, high: the bounds" and the lines that continue it.
_SEVERAL = re.compile(r"(?m)^( {4})(\w+(?:, \w+)+): (.*(?:\n {5,}.*)*)")


def _split(match: re.Match[str]) -> str:
    return "\n".join(f"{match[1]}{name}: {match[3]}" for name in match[2].split(", "))


class ApiReference(griffe.Extension):
    """Shows ``lease=60.0`` for ``lease=LEASE``, no ``::``, and ``low, high:`` as two entries."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit everything in a loaded package."""
        self._visit(pkg)

    def _visit(self, item: griffe.Object) -> None:
        if item.is_init_module and not item.exports:
            item.exports = [name for name, member in item.members.items() if _is_name(member)]
        if item.docstring:
            text = re.sub(r"(?m)^::$", "", item.docstring.value)
            text = re.sub(r"(?m)::$", ":", text)
            item.docstring.value = _SEVERAL.sub(_split, text)
        if isinstance(item, griffe.Function):
            for parameter in item.parameters:
                parameter.default = _value(item, parameter.default)
        for member in item.members.values():
            if isinstance(member, griffe.Object):
                self._visit(member)


def _is_name(member: Any) -> bool:
    """Whether a package, or its stub, imports a name of its users, or a module has that of one."""
    if member.is_alias:
        path = member.target_path
        return path.startswith("shardkit.") and not path.startswith("shardkit.lazy_names")
    return member.is_module and member.name in member.members


def _value(function: griffe.Function, default: Any) -> Any:
    if not isinstance(default, griffe.ExprName):
        return default
    try:
        constant = function.modules_collection[default.canonical_path]
        value = constant.value if constant.is_attribute else None
    except (KeyError, griffe.AliasResolutionError):  # imported from elsewhere
        return default
    return value if isinstance(value, str | griffe.ExprBinOp) else default
