"""Writes the table of docs/arguments.md: the methods of a kit and their arguments.

``python tools/kit_methods.py`` writes the page's part below the mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, getattr_static, isfunction, signature
from pathlib import Path
from textwrap import fill
from typing import Any, Required, get_args, get_origin, get_type_hints

import shardkit

PAGE = Path(__file__).parent.parent / "docs" / "arguments.md"
LINES: Any = {"width": 90, "subsequent_indent": 22 * " ", "break_on_hyphens": False}
MARK = "<!-- below: written by tools/kit_methods.py -->\n"


def page() -> str:
    """Return the page with its table as the kits' signatures are now."""
    return PAGE.read_text("utf-8").partition(MARK)[0] + MARK + table()


def table() -> str:
    """Return the table of all public methods of both kits."""
    rows = {}
    for kit in (shardkit.AsyncShardKit, shardkit.ShardKit):
        for name in dir(object.__new__(kit)):  # without what is hidden from users
            method = getattr_static(kit, name)
            if isfunction(method):
                rows[name] = fill(f"{name:<21} {' '.join(arguments(method))}", **LINES).rstrip()
    return "\n".join(["\n```text", *map(rows.get, sorted(rows)), "```\n"])


def arguments(method: Any) -> Iterator[str]:
    """Yield a method's arguments as the table shows them, those of its options too."""
    for parameter in list(signature(method).parameters.values())[1:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            [options] = get_args(get_type_hints(method)[parameter.name])
            hints = get_type_hints(options, include_extras=True)
            yield from (f"{n}{'' if get_origin(h) is Required else '='}" for n, h in hints.items())
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            yield f"*{parameter.name}"
        else:
            yield f"{parameter.name}{'' if parameter.default is Parameter.empty else '='}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
