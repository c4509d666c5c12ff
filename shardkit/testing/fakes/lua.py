"""Lua for in-memory servers: each script is compiled once, in one runtime for the whole process.

fakeredis compiles a script at every call, checks its globals at every ``redis.call``, and collects
Lua's garbage after each, which takes 0.3 ms and more.

Globals are read-only, as on a server: a script that assigns one, or reads one that does not exist,
fails. Scripts keep no state between calls, so servers can share the runtime. lupa lets one thread
in at a time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from threading import RLock
from typing import Any, Final

from lupa import lua51

from shardkit.testing.fakes.fakeredis_private import (
    AwaitingEnd,
    BlockingEnd,
    Command,
    SimpleError,
    SimpleString,
    find_command,
)

_ITEM = re.compile(r"([<>=])|([bBhHlL]|[iI]\d*|[fd]|c\d+|s|x)|(\s+)")
_WIDTHS = {"b": 1, "h": 2, "l": 8, "i": 4}
# Python's kinds, by whether they are signed, and their width.
_CODES = {
    **{(True, width): code for width, code in zip((1, 2, 4, 8), "bhiq", strict=True)},
    **{(False, width): code for width, code in zip((1, 2, 4, 8), "BHIQ", strict=True)},
}


def pack(form: bytes, *values: object) -> bytes:
    """Return values as bytes, as ``struct.pack`` of servers does.

    Raises:
        ValueError: there are too few values, one is of another kind, or a text is too short.
    """
    items, numbers = _parsed(form)
    if numbers is not None:
        with suppress(struct.error):  # out of range, or a fraction: one by one
            return numbers.pack(*values)
    packed, left = b"", iter(values)
    for order, kind, width in items:
        if kind == "x":
            packed += b"\0"
            continue
        value = next(left, None)
        if value is None:
            raise ValueError("too few values")
        match kind:
            case "s":
                packed += _bytes(value) + b"\0"
            case "c":
                text = _bytes(value)
                if len(text) < width:
                    raise ValueError("string too short")
                packed += text[: width or None]
            case "f" | "d":
                packed += struct.pack(order + kind, float(value))  # type: ignore[arg-type]
            case _:
                number = int(value) % (1 << 8 * width)  # type: ignore[call-overload]
                packed += number.to_bytes(width, "little" if order == "<" else "big")
    return packed


def unpack(form: bytes, packed: bytes, position: float = 1) -> tuple[object, ...]:
    """Return the values in bytes, and the position behind them, as servers do.

    Raises:
        ValueError: the bytes end too early.
    """
    at, parts = int(position) - 1, list[object]()
    items, numbers = _parsed(form)
    if numbers is not None and len(packed) >= at + numbers.size:
        return (*numbers.unpack_from(packed, at), at + numbers.size + 1)
    for order, kind, width in items:
        if kind == "s":
            end = packed.index(b"\0", at)
            parts.append(packed[at:end])
            at = end + 1
            continue
        piece = packed[at : at + width]
        if len(piece) < width:
            raise ValueError("data string too short")
        at += width
        match kind:
            case "x":
                pass
            case "c":
                parts.append(piece)
            case "f" | "d":
                parts.append(struct.unpack(order + kind, piece)[0])
            case _:
                little = "little" if order == "<" else "big"
                parts.append(int.from_bytes(piece, little, signed=kind.islower()))  # type: ignore[arg-type]
    return (*parts, at + 1)


def size(form: bytes) -> int:
    """Return how many bytes values of a form take."""
    return sum(width for _, _, width in _parsed(form)[0])


@lru_cache(1024)  # scripts have few, but some write lengths into them
def _parsed(form: bytes) -> tuple[tuple[tuple[str, str, int], ...], struct.Struct | None]:
    """Return a form's items, and Python's struct of them if they are numbers of one byte order."""
    items = tuple(_items(form))
    codes = [
        kind if kind in "fd" else _CODES.get((kind.islower(), width)) for _, kind, width in items
    ]
    if len({order for order, _, _ in items}) != 1 or any(kind in "scx" for _, kind, _ in items):
        return items, None
    if None in codes:
        return items, None
    return items, struct.Struct(items[0][0] + "".join(map(str, codes)))


def _items(form: bytes) -> Iterator[tuple[str, str, int]]:
    text, order, at = form.decode(), "<", 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            raise ValueError(f"servers in memory know no struct format {text[at:]!r}")
        at = match.end()
        if match[1]:
            order = "<" if match[1] == "=" else match[1]
        elif match[2]:
            kind, width = match[2][0], match[2][1:]
            if kind in "fd":
                yield order, kind, 4 if kind == "f" else 8
            elif kind in "sx":
                yield order, kind, int(kind == "x")
            else:
                yield order, kind, int(width or _WIDTHS[kind.lower()])


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


# Lua's own, and those of its libraries, which are Python here.
_FAILURES = (lua51.LuaError, ValueError, TypeError, ArithmeticError)
# Lua hands out no more values at once than its stack has room for.
_MOST_AT_ONCE: Final = 2000
_LOG: Final = logging.getLogger("shardkit.lua")
_LOG_LEVELS: Final = {0: logging.DEBUG, 1: logging.INFO, 2: logging.INFO, 3: logging.WARNING}
_NULL: Final = object()
_SETUP: Final = """
function(call, pcall_, refuse, sha1hex, log, encode, decode, null, pack, unpack_, size)
    redis = {
        call = call, pcall = pcall_, log = log,
        LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
        REPL_ALL = 3, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_NONE = 0,
        error_reply = function(text) return {err = text} end,
        status_reply = function(text) return {ok = text} end,
        sha1hex = sha1hex, setresp = function() end,
        replicate_commands = function() return true end,
    }
    cjson = {encode = encode, decode = decode, null = null}
    struct = {pack = pack, unpack = unpack_, size = size}
    KEYS, ARGV = {}, {}
    local globals, compile = _G, loadstring
    local function run(script, keys, argv)
        rawset(globals, "KEYS", keys)
        rawset(globals, "ARGV", argv)
        local done, value = pcall(script)
        if done then return value end
        if type(value) == "table" and type(value.err) == "string" then refuse(value.err) end
        error(value, 0)
    end
    local function run_flat(script, count, ...)
        local keys, argv, given = {}, {}, {...}
        for n = 1, count do keys[n] = given[n] end
        for n = count + 1, select("#", ...) do argv[n - count] = given[n] end
        return run(script, keys, argv)
    end
    local most = %d
    local function open(value)  -- of a table: its kind, and its values
        if type(value.err) == "string" then return "err", value.err end
        if type(value.ok) == "string" then return "ok", value.ok end
        local count = 0
        while value[count + 1] ~= nil do count = count + 1 end
        if count > most then return "long", count end
        return "list", unpack(value, 1, count)
    end
    local function compiled(text) return compile(text, "@user_script") end
    setmetatable(globals, {
        __newindex = function(_, name)
            error("Script attempted to set global variables: " .. tostring(name), 2)
        end,
        __index = function(_, name)
            error("Script attempted to access nonexistent global variable '"
                .. tostring(name) .. "'", 2)
        end,
    })
    return run, run_flat, open, compiled
end
"""


class _Lua:
    """The runtime, and the scripts that it has compiled."""

    def __init__(self) -> None:
        self.lock = RLock()  # held by the thread whose script runs
        self.socket: Any = None
        self.runtime: Any = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self.compiled: dict[bytes, Any] = {}
        self.commands: dict[bytes, Command] = {}
        setup = self.runtime.eval(_SETUP % _MOST_AT_ONCE)
        self.run, self.run_flat, self.open, self.compile = setup(
            self._call,
            self._pcall,
            _refuse,
            _sha1hex,
            _log,
            _encode,
            self._decode,
            _NULL,
            pack,
            unpack,
            size,
        )
        self.table = self.runtime.table_from

    def function(self, sha: bytes, text: bytes) -> Any:
        try:
            return self.compiled[sha]
        except KeyError:
            compiled = self.compile(text)
        if isinstance(compiled, tuple):
            raise SimpleError(f"ERR Error compiling script (new function): {_text(compiled[1])}")
        return self.compiled.setdefault(sha, compiled)

    def to_reply(self, value: Any, nested: bool) -> Any:
        """Return what a script returned as fakeredis' commands return replies."""
        kind = type(value)
        if kind is bytes or kind is int or value is None:
            return value
        if kind is bool:
            return 1 if value else None
        if kind is float:
            return int(value)
        if lua51.lua_type(value) != "table":
            return None
        opened = self.open(value)
        if opened == b"list":
            return []
        what = opened[0]
        if what == b"list":
            return [
                item if type(item) is bytes or type(item) is int else self.to_reply(item, True)
                for item in opened[1:]
            ]
        if what == b"long":
            return [self.to_reply(value[n], True) for n in range(1, opened[1] + 1)]
        if what == b"ok":
            return SimpleString(opened[1])
        error = SimpleError(_text(opened[1]))
        if nested:
            return error
        raise error

    def to_lua(self, reply: Any) -> Any:
        """Return a command's reply as a script sees it."""
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list:
            return self.table(
                [item if type(item) is bytes else self.to_lua(item) for item in reply]
            )
        if isinstance(reply, SimpleString):
            return self.table({b"ok": reply.value})
        if isinstance(reply, SimpleError):
            if reply.value.startswith("ERR wrong number of arguments"):
                raise SimpleError("ERR Wrong number of args calling Redis command from script")
            raise reply
        raise TypeError(f"a script cannot use a reply of type {kind.__name__}")

    def _call(self, op: bytes = b"", *args: Any) -> Any:
        try:
            command = self.commands[op]
        except (KeyError, TypeError):
            op = _argument(op)
            command, has_sub = find_command(op, _argument(args[0]) if args else None)
            if has_sub:
                args = args[1:]
            else:
                self.commands[op] = command
        reply = self.socket.call(
            command, [arg if type(arg) is bytes else _argument(arg) for arg in args]
        )
        return reply if type(reply) is bytes or type(reply) is int else self.to_lua(reply)

    def _pcall(self, op: bytes = b"", *args: Any) -> Any:
        try:
            return self._call(op, *args)
        except Exception as error:
            return self.table({b"err": str(error).encode()})

    def _decode(self, text: Any) -> Any:
        value = _to_lua_values(json.loads(text))
        return self.table(value, recursive=True) if isinstance(value, dict | list) else value


_runtime = cache(_Lua)
# Another thread of the parent may have been in the runtime.
os.register_at_fork(after_in_child=_runtime.cache_clear)


def _refuse(text: bytes) -> None:
    raise SimpleError(_text(text))


def _sha1hex(text: Any) -> bytes:
    return hashlib.sha1(_argument(text), usedforsecurity=False).hexdigest().encode()


def _argument(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) in (int, float):
        return f"{value:.17g}".encode()
    raise SimpleError("ERR Lua redis lib command arguments must be strings or integers")


def _log(level: int, *texts: Any) -> None:
    if not texts:
        raise SimpleError("ERR redis.log() requires two arguments or more.")
    if level not in _LOG_LEVELS:
        raise SimpleError("ERR Invalid debug level.")
    text = " ".join(_text(part) if type(part) is bytes else str(part) for part in texts)
    _LOG.log(_LOG_LEVELS[level], text)


def _encode(value: Any) -> bytes:
    return json.dumps(_to_python(value), separators=(",", ":")).encode()


def _to_python(value: Any) -> Any:
    """Return a value of a script as ``json`` takes it."""
    if value is _NULL:
        return None
    if type(value) is bytes:
        return value.decode()
    if lua51.lua_type(value) != "table":
        return value
    items = dict(value)
    if items.keys() == set(range(1, len(items) + 1)):
        return [_to_python(items[n]) for n in range(1, len(items) + 1)]
    return {_to_python(key): _to_python(item) for key, item in items.items()}


def _to_lua_values(value: Any) -> Any:
    """Return a value that ``json`` read, with the kinds of a script's values in it."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [_to_lua_values(item) for item in value]
    if isinstance(value, dict):
        return {_to_lua_values(key): _to_lua_values(item) for key, item in value.items()}
    return value


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class RunsScripts:
    """Runs scripts in the process's runtime; a mixin for a server's end of a connection."""

    keep_script: Any

    def run_script(self, sha: bytes, text: bytes, keys: int, given: tuple[bytes, ...]) -> Any:
        """Run a script, whose first arguments are its keys, and return its reply."""
        lua = _runtime()
        function = lua.function(sha, text)
        self.keep_script(sha, text)
        with lua.lock:
            caller, lua.socket = lua.socket, self
            try:
                if len(given) <= _MOST_AT_ONCE:
                    value = lua.run_flat(function, keys, *given)
                else:
                    value = lua.run(function, lua.table(given[:keys]), lua.table(given[keys:]))
                if type(value) is bytes or type(value) is int:
                    return value
                return lua.to_reply(value, False)
            except _FAILURES as error:
                raise SimpleError(
                    f"ERR Error running script (call to f_{sha.decode()}): @user_script:?: {error}"
                ) from None
            finally:
                lua.socket = caller


class CompilingSocket(RunsScripts, BlockingEnd):
    """The server's end of a blocking connection."""


class AsyncCompilingSocket(RunsScripts, AwaitingEnd):
    """The server's end of an awaiting connection."""
