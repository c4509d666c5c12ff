"""Lua for in-memory servers: each script is compiled once, in one runtime for the whole process.

fakeredis compiles a script at every call, checks its globals at every ``redis.call``, and collects
Lua's garbage after each, which takes 0.3 ms and more. Here::

    EVALSHA sha 1 k v ─► compiled[sha] ─► Lua: KEYS, ARGV ─► redis.call ─► fakeredis' commands
                         once a process                      op ─► function, looked up once

Globals are read-only, as on a server: a script that assigns one, or reads one that does not exist,
fails. The runtime has the ``struct`` of servers; see `shardkit.testing.fakes.struct_library`.

Scripts keep no state between calls, so servers can share the runtime. lupa lets one thread in at a
time.
"""

from __future__ import annotations

import hashlib
import os
from threading import RLock
from typing import Any, Final

from fakeredis import _msgs as msgs
from fakeredis._commands import COMMANDS_WITH_SUB, SUPPORTED_COMMANDS
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket import AsyncFakeSocket, FakeSocket
from fakeredis.commands_mixins import scripting_mixin

from shardkit.testing.fakes.commands import PlannedCommands
from shardkit.testing.fakes.reads import OTHERWISE, SHORT_READS, ShortRead
from shardkit.testing.fakes.struct_library import pack, size, unpack

_LUA = scripting_mixin.LUA_MODULE
# Lua's own, and those of its libraries, which are Python here.
_FAILURES = (_LUA.LuaError, ValueError, TypeError, ArithmeticError)
# Lua hands out no more values at once than its stack has room for.
_MOST_AT_ONCE: Final = 2000
_SETUP: Final = """
function(call, pcall_, sha1hex, log, encode, decode, null, pack, unpack_, size)
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
        return script()
    end
    local function run_flat(script, count, ...)
        local keys, argv, given = {}, {}, {...}
        for n = 1, count do keys[n] = given[n] end
        for n = count + 1, select("#", ...) do argv[n - count] = given[n] end
        rawset(globals, "KEYS", keys)
        rawset(globals, "ARGV", argv)
        return script()
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
    """The runtime, and the scripts that it has compiled.

    Attributes:
        lock: held by the thread whose script runs.
        socket: the connection whose script runs.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.socket: Any = None
        self.runtime: Any = _LUA.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self.compiled: dict[bytes, Any] = {}
        self.commands: dict[bytes, tuple[str, Any, ShortRead | None]] = {}
        null = scripting_mixin._lua_cjson_null
        setup = self.runtime.eval(_SETUP % _MOST_AT_ONCE)
        self.run, self.run_flat, self.open, self.compile = setup(
            self._call,
            self._pcall,
            _sha1hex,
            self._log,
            self._encode,
            self._decode,
            null,
            pack,
            unpack,
            size,
        )
        self.table = self.runtime.table_from

    def function(self, sha: bytes, text: bytes) -> Any:
        """Return a compiled script."""
        try:
            return self.compiled[sha]
        except KeyError:
            found = self.compile(text)
        if isinstance(found, tuple):
            raise SimpleError(f"ERR Error compiling script (new function): {_text(found[1])}")
        return self.compiled.setdefault(sha, found)

    def to_reply(self, value: Any, nested: bool) -> Any:
        """Return what a script returned as fakeredis' commands return replies."""
        kind = type(value)
        if kind is bytes or kind is int or value is None:
            return value
        if kind is bool:
            return 1 if value else None
        if kind is float:
            return int(value)
        if _LUA.lua_type(value) != "table":
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
        if isinstance(reply, SimpleError) and reply.value.startswith(
            "ERR wrong number of arguments"
        ):
            raise SimpleError(msgs.WRONG_ARGS_MSG7)
        return self.socket._convert_redis_result(self.runtime, reply)

    def _call(self, op: bytes = b"", *args: Any) -> Any:
        socket = self.socket
        try:
            name, signature, read = self.commands[op]
        except (KeyError, TypeError):
            name, signature, args = self._lookup(op, args)
            read = None
        given = [arg if type(arg) is bytes else _argument(arg) for arg in args]
        if read is not None:
            found = read(socket._db, given)
            if found is not OTHERWISE:
                return self.table(found) if type(found) is list else found
        reply = socket._run_command(getattr(socket, name), signature, given, True)
        return reply if type(reply) is bytes or type(reply) is int else self.to_lua(reply)

    def _lookup(self, op: bytes, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
        if type(op) is not bytes:
            op = _argument(op)
        name = op.decode(errors="replace").lower()
        if name in COMMANDS_WITH_SUB and args:
            name += " " + _argument(args[0]).decode(errors="replace").lower()
            args = args[1:]
            signature = SUPPORTED_COMMANDS.get(name)
        else:
            signature = SUPPORTED_COMMANDS.get(name)
            if signature is not None:
                read = SHORT_READS.get(name)
                self.commands[op] = signature.func_name, signature, read
        if signature is None:
            raise SimpleError("ERR Unknown Redis command called from script")
        return signature.func_name, signature, args

    def _pcall(self, op: bytes = b"", *args: Any) -> Any:
        try:
            return self._call(op, *args)
        except Exception as error:
            return self.table({b"err": str(error).encode()})

    def _log(self, level: int, *args: Any) -> None:
        scripting_mixin._lua_redis_log(self.runtime, self._globals(), "redis", level, *args)

    def _encode(self, value: Any) -> Any:
        return scripting_mixin._lua_cjson_encode(self.runtime, self._globals(), value)

    def _decode(self, text: Any) -> Any:
        return scripting_mixin._lua_cjson_decode(self.runtime, self._globals(), text)

    def _globals(self) -> set[Any]:
        return set(self.runtime.globals().keys())


_lua: _Lua | None = None


def _runtime() -> _Lua:
    global _lua
    if _lua is None:
        _lua = _Lua()
    return _lua


def _after_fork_in_child() -> None:
    # Another thread of the parent may have been in the runtime.
    global _lua
    _lua = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _sha1hex(text: Any) -> bytes:
    return hashlib.sha1(_argument(text), usedforsecurity=False).hexdigest().encode()


def _argument(value: Any) -> bytes:
    converted: bytes = scripting_mixin._convert_redis_arg(value)
    return converted


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class _CompiledScripts:
    """EVAL and EVALSHA with compiled scripts; a mixin for fakeredis' sockets."""

    _server: Any
    _script_resp: int | None

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        sha = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        reply = self._run_script(sha, script, numkeys, keys_and_args)
        self._server.script_cache[sha] = script
        return reply

    def evalsha(self, sha1: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        text = self._server.script_cache.get(sha1)
        if text is None:
            text = self._server.script_cache.get(sha1.lower())
        if text is None:
            raise SimpleError(msgs.NO_MATCHING_SCRIPT_MSG)
        return self._run_script(sha1, text, numkeys, keys_and_args)

    def _run_script(self, sha: bytes, text: bytes, numkeys: int, given: tuple[bytes, ...]) -> Any:
        if numkeys > len(given):
            raise SimpleError(msgs.TOO_MANY_KEYS_MSG)
        if numkeys < 0:
            raise SimpleError(msgs.NEGATIVE_KEYS_MSG)
        lua = _runtime()
        function = lua.function(sha, text)
        self._server.script_cache[sha] = text
        with lua.lock:
            self._script_resp = 2
            caller, lua.socket = lua.socket, self
            try:
                if len(given) <= _MOST_AT_ONCE:
                    found = lua.run_flat(function, numkeys, *given)
                else:
                    found = lua.run(
                        function, lua.table(given[:numkeys]), lua.table(given[numkeys:])
                    )
                if type(found) is bytes or type(found) is int:
                    return found
                if type(found) is tuple:  # a script returns one value: further ones are dropped
                    found = found[0]
                return lua.to_reply(found, False)
            except _FAILURES as error:
                raise SimpleError(msgs.SCRIPT_ERROR_MSG.format(sha.decode(), error)) from None
            finally:
                lua.socket = caller
                self._script_resp = None


class CompilingSocket(_CompiledScripts, PlannedCommands, FakeSocket):
    """fakeredis' end of a blocking connection, with compiled scripts."""


class AsyncCompilingSocket(_CompiledScripts, PlannedCommands, AsyncFakeSocket):
    """fakeredis' end of an awaiting connection, with compiled scripts."""
