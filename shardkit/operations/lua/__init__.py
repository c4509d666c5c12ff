"""Loads Lua scripts from the ``lua`` folder of the package that owns them.

``script("queues/take")`` is ``shardkit/queues/lua/take.lua``; shared scripts are in this folder and
have no prefix. A script's header documents its keys, arguments and reply. In operations it is a
command like any other: ``lua_call(component, "structures/unique/add_and_count", keys, args)``.

A script with the line ``--@reads`` changes nothing, so replicas may run it, and it may be sent
again; with ``--@reads 3``, if it has at most three arguments. (On a writable replica a search may
cache its result.)

The line ``--@include queues/base`` is replaced with the text of ``shardkit/queues/lua/base.lua``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from shardkit.operations.commands import Argument, Command, Key, Script, To, script_call

_INCLUDE = re.compile(r"^--@include ([\w/]+)\n", re.MULTILINE)


@cache
def script(name: str) -> Script:
    """Return a script by its owner and its name: ``queues/take``."""
    return Script(name, _text(name))


def _text(name: str) -> str:
    owner, _, stem = name.rpartition("/")
    path = files("shardkit").joinpath(owner, "lua", f"{stem}.lua")
    text = path.read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda include: _text(include[1]), text)


def lua_call(
    to: To,
    name: str,
    keys: Sequence[Key],
    args: Iterable[Argument] = (),
    *,
    idempotent: bool = False,
) -> Command:
    """Return the command that runs the script of a name; see `script_call`."""
    return script_call(to, script(name), keys, args, idempotent=idempotent)
