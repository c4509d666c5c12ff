"""fakeredis's private parts: servers in memory and the simulator use them only through this file.

fakeredis documents its clients, its connections and `FakeServer`. It does not document the objects
that execute commands, which scripts compiled once, virtual time and replayed logs need. A release
may change them, so pyproject.toml has an upper bound for fakeredis, and
tests/testing/fakes/test_fakeredis_private.py checks what is used here.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

import fakeredis
import redis
from fakeredis import _msgs as msgs
from fakeredis._command_args_parsing import DbIndex
from fakeredis._commands import COMMANDS_WITH_SUB, SUPPORTED_COMMANDS, Signature, command
from fakeredis._core import CommandItem, Database
from fakeredis._helpers import (
    OK as OK,
    NoResponse,
    SimpleError as SimpleError,
    SimpleString as SimpleString,
)
from fakeredis._socket import AsyncFakeSocket, FakeSocket, _notifications
from fakeredis._socket._resp import convert_to_resp2
from fakeredis.commands_mixins import (
    _mixin_base,
    generic_mixin,
    pubsub_mixin,
    scripting_mixin,
)
from fakeredis.model import (
    AccessControlList,
    ClientInfo,
    get_all_commands_info,
    get_command_info,
    is_write_command,
)

from shardkit.structures.base.members import glob_filter

VERSION: Final = (7, 2)
"""The version of Redis that servers are."""
_PLAIN: Final = frozenset({bytes, int, type(None), SimpleString, SimpleError})
_SCRIPTS: Final = frozenset({b"EVAL", b"EVALSHA"})
_READ_SCRIPTS: Final = frozenset({b"EVAL_RO", b"EVALSHA_RO"})


# ---- commands


class _Glob(NamedTuple):
    """A pattern, matched in linear time; fakeredis' own expressions may take for ever."""

    match: Callable[[bytes], bool]


@lru_cache(1024)
def _glob(pattern: bytes) -> _Glob:
    return _Glob(glob_filter(pattern))


_patterns: Any
for _patterns in (_notifications, _mixin_base, generic_mixin, pubsub_mixin, scripting_mixin):
    _patterns.compile_pattern = _glob


class _AnyDatabase(DbIndex):
    MAX_VALUE = 2**31 - 1


def _with_any_database(signature: Signature) -> Signature:
    changed: Any = copy.copy(signature)
    changed.fixed = tuple(_AnyDatabase if kind is DbIndex else kind for kind in signature.fixed)
    return changed


# A server has any database that is selected; fakeredis' have 16.
_WIDENED: Final = {
    signature: _with_any_database(signature)
    for signature in SUPPORTED_COMMANDS.values()
    if DbIndex in signature.fixed
}


@cache
def writes(name: bytes) -> bool:
    """Whether a command, named in capitals, may change data."""
    return name in _SCRIPTS or (name not in _READ_SCRIPTS and bool(is_write_command(name.lower())))


@cache
def _writes_unnoticed(signature: Signature) -> bool:
    """Whether a command without keys of its own changes data, which no watching client learns."""
    name = signature.name
    return name not in ("eval", "evalsha", "exec") and writes(name.upper().encode())


def command_infos() -> list[list[Any]]:
    """Return what servers before version 7 answer to COMMAND: without key specifications."""
    return [info[:6] for info in map(get_command_info, get_all_commands_info()) if info]


Command: TypeAlias = tuple[str, Signature]
"""A command: the name of the method that executes it, and its signature."""


def find_command(op: bytes, argument: bytes | None = None) -> tuple[Command, bool]:
    """Return a command, and whether its first argument is part of the name.

    Raises:
        SimpleError: there is no such command.
    """
    name = op.decode(errors="replace").lower()
    has_sub = name in COMMANDS_WITH_SUB and argument is not None
    if has_sub:
        assert argument is not None
        name += " " + argument.decode(errors="replace").lower()
    signature = SUPPORTED_COMMANDS.get(name)
    if signature is None:
        raise SimpleError("ERR Unknown Redis command called from script")
    return (signature.func_name, signature), has_sub


_INFO: Final[dict[str, dict[str, object]]] = {
    "server": {"redis_version": ".".join(map(str, (*VERSION, 0))), "redis_mode": "standalone"},
    "memory": {"used_memory": 1_000_000, "maxmemory": 0, "maxmemory_policy": "noeviction"},
    "persistence": {"loading": 0, "aof_enabled": 0},
    "replication": {"role": "master", "connected_slaves": 0, "master_repl_offset": 0},
    "cluster": {"cluster_enabled": 0},
}


class _Executing:
    """Executes commands and scripts; a mixin for fakeredis's sockets."""

    _db: Any
    _pubsub: int
    _resp_version: int
    _script_resp: int | None
    _server: Any
    _keyspace_notifications: Any

    def run_script(self, sha: bytes, text: bytes, keys: int, given: tuple[bytes, ...]) -> Any:
        """Run a script, whose first arguments are its keys, and return its reply."""
        raise NotImplementedError

    @command((), (bytes,), flags="s")  # type: ignore[untyped-decorator]
    def info(self, *sections: bytes) -> bytes:
        """Describe the server as a master of its own; sizes are made up."""
        wanted = {section.decode(errors="replace").lower() for section in sections}
        keyspace = {
            f"db{number}": f"keys={len(db)},expires=0,avg_ttl=0"
            for number, db in sorted(self._server.dbs.items())
            if len(db)
        }
        lines: list[str] = []
        described: list[tuple[str, dict[str, Any]]] = [*_INFO.items(), ("keyspace", keyspace)]
        for name, known in described:
            if not wanted or wanted & {name, "all", "default", "everything"}:
                lines += [f"# {name.capitalize()}", *(f"{k}:{v}" for k, v in known.items()), ""]
        return "\r\n".join(lines).encode()

    def call(self, command: Command, args: list[bytes]) -> Any:
        name, signature = command
        return self._run_command(getattr(self, name), signature, args, True)

    def _run_command(
        self, function: Any, signature: Signature, given: list[Any], from_script: bool
    ) -> Any:
        """Execute a command: in fewer steps than fakeredis does for all protocols and versions."""
        server = self._server
        signature = _WIDENED.get(signature, signature)
        if self._pubsub or (self._script_resp or self._resp_version) != 2:
            return super()._run_command(function, signature, given, from_script)  # type: ignore[misc]
        items: Iterable[CommandItem] = ()
        try:
            applied: Any = signature.apply(given, self._db, VERSION)
            if from_script and msgs.FLAG_NO_SCRIPT in signature.flags:
                raise SimpleError(msgs.COMMAND_IN_SCRIPT_MSG)
            if len(applied) == 1:
                return applied[0]
            args, items = applied
            result = function(*args)
            if (
                type(result) not in _PLAIN
                and msgs.FLAG_SKIP_CONVERT_TO_RESP2 not in signature.flags
            ):
                result = convert_to_resp2(result, "redis")
        except SimpleError as error:
            result = error
        for item in items:
            item.writeback(remove_empty_val=msgs.FLAG_LEAVE_EMPTY_VAL not in signature.flags)
        if not items and _writes_unnoticed(signature):
            server.changed = True
        if server.subscribers or server.psubscribers:
            self._keyspace_notifications(items, signature.name.encode())
        return result

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        sha = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        return self._run_script(sha, script, numkeys, keys_and_args)

    def evalsha(self, sha1: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        text = self._server.script_cache.get(sha1.lower())
        if text is None:
            raise SimpleError(msgs.NO_MATCHING_SCRIPT_MSG)
        return self._run_script(sha1, text, numkeys, keys_and_args)

    def _run_script(self, sha: bytes, text: bytes, numkeys: int, given: tuple[bytes, ...]) -> Any:
        if numkeys > len(given):
            raise SimpleError(msgs.TOO_MANY_KEYS_MSG)
        if numkeys < 0:
            raise SimpleError(msgs.NEGATIVE_KEYS_MSG)
        self._script_resp = 2
        try:
            return self.run_script(sha, text, numkeys, given)
        finally:
            self._script_resp = None

    def keep_script(self, sha: bytes, text: bytes) -> None:
        self._server.script_cache[sha] = text


class BlockingEnd(_Executing, FakeSocket):
    """The server's end of a blocking connection of fakeredis."""


class AwaitingEnd(_Executing, AsyncFakeSocket):
    """The server's end of an awaiting connection of fakeredis."""


# ---- fakeredis's connections


def end_of(connection: Any) -> Any:
    """Return the server's end of a connection; None if it is not connected."""
    return getattr(connection, "_sock", None)


def client_id_of(end: Any) -> int:
    """Return the number by which CLIENT UNBLOCK names a connection."""
    return int(end._client_info["id"])


def complete_transport(connection: Any) -> None:
    """Give an awaiting connection's transport the methods that redis-py does not call."""
    transport: Any = getattr(connection._writer, "transport", None)
    if transport is not None:
        transport.abort, transport.get_write_buffer_size = connection._writer.close, lambda: 0


# ---- servers that one thread uses, in virtual time


class _NoLock:
    def __enter__(self, *_: object) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    acquire, release, locked = __enter__, __exit__, __exit__  # a condition asks for them


class _KeySpace(Database):
    def __init__(self, data: Data, lock: Any) -> None:
        super().__init__(lock)
        self._data = data

    def notify_watch(self, key: bytes) -> None:
        self._data.changed = True
        for end in self._watches.get(key, ()):
            end.notify_watch()

    def setdefault(self, key: bytes, default: Any = None) -> Any:
        """Return what a key holds, after it was given a default if it held nothing."""
        item = self._dict.get(key)
        if item is not None and (item.expireat is None or not self.expired(item)):
            return item
        self[key] = default
        return default


class _Databases(defaultdict[int, Any]):
    """Databases by number; fakeredis goes through them while other threads use new ones."""

    def values(self) -> Any:
        """Return those that there are now."""
        return list(super().values())


class Data(fakeredis.FakeServer):
    """The data of a server."""

    changed = False  # whether a command has changed it since this was set to False

    def __init__(self, time: Callable[[], float]) -> None:
        # fakeredis would look at every command to make the users.
        self.__dict__.update({name: make() for name, make in _fields_of_servers()})
        self.lastsave = int(time())
        self.time = time
        lock: Any = _NoLock()
        self.lock = lock
        self.dbs: dict[int, Any] = _Databases(lambda: _KeySpace(self, lock))

    @cached_property
    def acl(self) -> AccessControlList:
        """Its users."""
        return copy.deepcopy(_users())

    def script(self, sha: bytes) -> bytes | None:
        """Return the text of a loaded script."""
        text: bytes | None = self.script_cache.get(sha.lower())
        return text

    def sizes(self) -> dict[int, int]:
        """Return how many keys each database has."""
        return {number: len(db) for number, db in self.dbs.items()}

    def clear(self) -> None:
        """Delete all keys."""
        for db in self.dbs.values():
            db.clear()

    def digest(self) -> int:
        """Return a number that tells the data from most others."""
        return hash(
            tuple(
                (number, key, _text(item.value), item.expireat)
                for number, db in sorted(self.dbs.items())
                for key, item in sorted(db._dict.items())
            )
        )


def _text(value: Any) -> str:
    inner = getattr(value, "_values", None) or getattr(value, "_bylex", None) or value
    return repr(sorted(inner, key=repr) if isinstance(inner, set | dict) else inner)


@cache
def _users() -> AccessControlList:
    return AccessControlList()


_Fields: TypeAlias = list[tuple[str, Callable[[], Any]]]


def _makers(first: dict[str, Any], *own: str) -> _Fields:
    """Return what makes each attribute of another object like the first, except its own ones."""
    return [
        (name, value.copy if isinstance(value, dict | list | set) else partial(_same, value))
        for name, value in first.items()
        if name not in own
    ]


def _same(value: Any) -> Any:
    return value


@cache
def _fields_of_servers() -> _Fields:
    return _makers(vars(fakeredis.FakeServer(version=VERSION)), "lock", "dbs", "acl")


@cache
def _first_end() -> FakeSocket:
    return FakeSocket(fakeredis.FakeServer(version=VERSION), 0, client_class=redis.Redis)


@cache
def _fields_of_ends() -> _Fields:
    return _makers(vars(_first_end()), "_server", "_db", "_db_num", "_client_info")


Waiting: TypeAlias = tuple[Callable[[bool], Any], float, Callable[[Any], Any] | None]
"""A blocked command: the function to try again, the seconds to wait, and the shape of its reply."""


class DirectEnd(_Executing, FakeSocket):
    """The server's end of a connection, which executes one command at a time and never waits."""

    def __init__(self, data: Data, db: int) -> None:
        info = dict(_first_end()._client_info)
        info["id"] = data.get_next_client_id()
        info["-created"] = int(data.time())
        self.__dict__.update({name: make() for name, make in _fields_of_ends()})
        self._server: Any = data
        self._client_info = ClientInfo.__new__(ClientInfo)
        self._client_info.update(info)
        self.select_database(db)
        data.sockets.append(self)
        self.waiting: Waiting | None = None

    def answer(self, reply: Any) -> None:
        """Give out a reply or a message."""
        raise NotImplementedError

    @property
    def database(self) -> int:
        """The number of the database that it has selected."""
        return self._db_num

    def select_database(self, number: int) -> None:
        """Select a database."""
        self._db_num, self._db = number, self._server.dbs[number]

    def belongs_to(self, data: Data) -> bool:
        """Whether it executes commands on this data."""
        return self._server is data

    @property
    def queues(self) -> bool:
        """Whether it is in a transaction."""
        return self._transaction is not None

    @property
    def aborts(self) -> bool:
        """Whether EXEC would execute nothing."""
        return self._transaction_failed or self._watch_notified

    def fail_transaction(self) -> None:
        """Have EXEC refuse to execute anything."""
        self._transaction_failed = True

    def drop_transaction(self) -> None:
        """Forget the transaction and the watched keys."""
        self._forget_transaction()
        self._clear_watches()

    def execute(self, args: list[bytes]) -> None:
        """Execute a command: in fewer steps than fakeredis, if nothing but the data matters."""
        signature = _plain_command(args[0])
        server = self._server
        if (
            signature is None
            or self._transaction is not None
            or self._pubsub
            or self._reply_off
            or self._reply_skip
            or self._reply_skip_next
            or self._client_info["user"] != "default"
        ):
            self._process_command(args)
            return
        now = server.time()
        for db in server.dbs.values():
            db.time = now
        result = self._run_command(getattr(self, signature.func_name), signature, args[1:], False)
        if not isinstance(result, NoResponse):
            self.answer(result)

    def put_response(self, msg: Any) -> None:
        """Give out a message of a channel."""
        self.answer(msg)

    def close(self) -> None:
        """Close the connection."""
        server = self._server
        super().close()
        server.closed_sockets.clear()
        self._cleanup(server)

    def _decode_result(self, result: Any) -> Any:
        return result

    def _expireat(self, key: CommandItem, timestamp: float, *args: bytes, **more: Any) -> int:
        done: int = super()._expireat(key, timestamp, *args, **more)
        if done and timestamp <= self._db.time:  # at once, though no time has passed
            key.value = None
        return done

    def _blocking(
        self,
        timeout: float | None,
        func: Callable[[bool], Any],
        shape: Callable[[Any], Any] | None = None,
    ) -> Any:
        reply = func(True)
        if reply is not None or self._in_transaction:
            return reply if shape is None else shape(reply)
        self.waiting = func, timeout or float("inf"), shape
        return NoResponse()


@cache
def _plain_command(name: bytes) -> Signature | None:
    """Return the signature of a command that is one word; None of others, and of ACL's."""
    known = name.decode(errors="replace").lower()
    return None if known in COMMANDS_WITH_SUB else SUPPORTED_COMMANDS.get(known)
