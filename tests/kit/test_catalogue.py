"""The kit's methods that make structures, beside the classes of what they make."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from shardkit.kit.catalogue import Catalogue

METHODS = {name: method for name, method in vars(Catalogue).items() if not name.startswith("_")}


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
