"""Lua scripts, one ``.lua`` file each, and their catalogue.

A script's header says its keys, its arguments and its reply. In operations it is a command like any
other: ``script_call(component, script("add_and_count"), keys, args)``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from shardkit.commands import Script


@cache
def script(name: str) -> Script:
    """Return the script in ``<name>.lua``."""
    return Script(name, files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8"))
