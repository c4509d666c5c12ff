"""Loads Lua scripts from the ``lua`` folder of the package that owns them.

``script("queues/take")`` is ``shardkit/queues/lua/take.lua``; shared scripts are in this folder and
have no prefix. A script's header documents its keys, arguments and reply. In operations it is a
command like any other: ``lua_call(component, "structures/unique/add_and_count", keys, args)``.

A script with the line ``--@reads`` changes nothing, so replicas may run it, and it may be sent
again; with ``--@reads 3``, if it has at most three arguments. (On a writable replica a search may
cache its result.)

The line ``--@include queues/base`` is replaced with the text of ``shardkit/queues/lua/base.lua``.

A script that writes begins with a check, added here, that its user may run each command that it
calls by name: a server would stop it at the first refused one, and keep what was written before.
The line ``--@needs HSET TIME`` puts a check of these commands in its place instead. A check takes
about 0.2 µs a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from shardkit.operations.commands import Argument, Command, Key, Script, To, script_call
from shardkit.routing.command_keys import reads_by_name

_INCLUDE = re.compile(r"^--@include ([\w/]+)\n", re.MULTILINE)
_NEEDS = re.compile(r"^--@needs ([A-Z ]+)\n", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?:local )?function (\w+)(?:[^\n]* end$|.*?^end$)", re.MULTILINE | re.DOTALL
)
# With a key for each that a command must have: a server ends abruptly that looks for it in vain.
_CHECK = """\
do local may, key = redis.acl_check_cmd, KEYS[1] if not (%s) then
for name in string.gmatch('%s', '%%u+') do if not may(name, key, key) then error({err =
"NOPERM this user has no permissions to run the '" .. string.lower(name) .. "' command"})
end end end end
"""


@cache
def script(name: str) -> Script:
    """Return a script by its owner and its name: ``queues/take``."""
    text = _text(name)
    if _NEEDS.search(text):
        return Script(name, _NEEDS.sub(lambda needs: _check(needs[1].split()), text))
    commands = [] if "\n--@reads" in text else sorted(_commands(text))
    checked = len(commands) > 1 and not all(map(reads_by_name, commands))
    return Script(name, _check(commands) + text if checked else text)


def _check(commands: Sequence[str]) -> str:
    allowed = " and ".join(f"may('{name}', key, key)" for name in commands)
    return _CHECK % (allowed, " ".join(commands))


def _commands(text: str) -> set[str]:
    """Return the commands that a script calls by name, itself and in functions that it uses.

    Commands that not every server has expire fields; scripts call them only if fields expire.
    """
    text = re.sub(r"--[^\n]*", "", text)
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(text)}
    used = reached = _FUNCTION.sub("", text)
    while used:
        names = functions.keys() & set(re.findall(r"\w+", used))
        used = "\n".join(functions.pop(name) for name in names)
        reached += used
    called = " ".join(re.findall(r"\bcall\(\s*([^,)\n]*)", reached))
    return set(re.findall(r"'((?!HPEXPIRE)[A-Z]+)'", called))


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
