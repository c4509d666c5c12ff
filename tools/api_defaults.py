"""Show the values of default arguments in the API reference, not the names of their constants."""

from __future__ import annotations

from typing import Any

import griffe


class DefaultValues(griffe.Extension):
    """Replaces ``lease=LEASE`` by ``lease=60.0`` in signatures and tables of parameters."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit all functions of a loaded package."""
        self._visit(pkg)

    def _visit(self, owner: griffe.Module | griffe.Class) -> None:
        for member in owner.members.values():
            if isinstance(member, griffe.Module | griffe.Class):
                self._visit(member)
            elif isinstance(member, griffe.Function):
                for parameter in member.parameters:
                    parameter.default = _value(owner, parameter.default)


def _value(owner: griffe.Module | griffe.Class, default: Any) -> Any:
    if not isinstance(default, griffe.ExprName):
        return default
    try:
        constant = owner.modules_collection[default.canonical_path]
        value = constant.value if constant.is_attribute else None
    except (KeyError, griffe.AliasResolutionError):  # imported from elsewhere
        return default
    return value if isinstance(value, str | griffe.ExprBinOp) else default
