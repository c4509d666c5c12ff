"""Lua scripts, one ``.lua`` file each, and their catalogue.

A script's header says its keys, its arguments and its reply. In operations it is a command like any
other: ``script_call(component, script("add_and_count"), keys, args)``.

What several scripts share is a file of its own: the line ``--@include grow`` stands for the text of
``grow.lua``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from shardkit.commands import Script

_INCLUDE = re.compile(r"^--@include (\w+)\n", re.MULTILINE)


@cache
def script(name: str) -> Script:
    """Return the script in ``<name>.lua``."""
    return Script(name, _text(name))


def _text(name: str) -> str:
    text = files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda include: _text(include[1]), text)
