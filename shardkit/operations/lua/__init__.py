"""Loads Lua scripts from the ``lua`` folder of the package that owns them.

``script("queues/take")`` is ``shardkit/queues/lua/take.lua``; shared scripts are in this folder and
have no prefix. A script's header documents its keys, arguments and reply. In operations it is a
command like any other: ``lua_call(component, "structures/unique/add_and_count", keys, args)``.

A script with the line ``--@reads`` changes nothing, so replicas may run it, and it may be sent
again; with ``--@reads 3``, if it has at most three arguments. (On a writable replica a search may
cache its result.)

The line ``--@include queues/base`` is replaced with the text of ``shardkit/queues/lua/base.lua``.

A script that writes begins with a check, added here, that its user may run every command that it
names: a server would stop it at the first refused one, and keep what it wrote before. The check
takes about 0.2 µs a command. It leaves out what a script tries by ``pcall`` or names in variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from shardkit.operations.commands import Argument, Command, Key, Script, To, script_call
from shardkit.routing.command_keys import reads_by_name

_INCLUDE = re.compile(r"^--@include ([\w/]+)\n", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?:local )?function (\w+)(?:[^\n]* end$|.*?^end$)", re.MULTILINE | re.DOTALL
)
_CHECK = """\
do local may = redis.acl_check_cmd if may and not (%s) then
for name in string.gmatch('%s', '%%u+') do if not may(name) then error({err =
"NOPERM this user has no permissions to run the '" .. string.lower(name) .. "' command"})
end end end end
"""


@cache
def script(name: str) -> Script:
    """Return a script by its owner and its name: ``queues/take``."""
    text = _text(name)
    names = sorted(_commands(text))
    if len(names) > 1 and not all(map(reads_by_name, names)):
        text = _CHECK % (" and ".join(f"may('{name}')" for name in names), " ".join(names)) + text
    return Script(name, text)


def _commands(text: str) -> set[str]:
    """Return the commands that a script names, in its own lines and in functions that they use."""
    text = re.sub(r"--[^\n]*", "", text)
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(text)}
    used = reached = _FUNCTION.sub("", text)
    while used:
        names = functions.keys() & set(re.findall(r"\w+", used))
        used = "\n".join(functions.pop(name) for name in names)
        reached += used
    return set(re.findall(r"\bcall\('([A-Z]+)'", reached))


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
