"""What commands do to the connection that they are sent over, in whatever spelling. No I/O.

::

    ("GET", "a")                    READS
    ("MSET", "a", 1, "b", 2)        WRITES
    (b"blpop", "a", 5)              WRITES | ALONE      not in MULTI: blocks, waits, or is unknown
    ("CLIENT TRACKING", "ON")       … | STATE           the connection is its user's from now on
    ("WATCH", "a")                  … | WATCHES         so it is until the transaction is over
    MULTI … EXEC in one piece       WRITES | WHOLE      no state is left
    ("PING",)                       ANYWHERE            concerns no database

`PackedCommands` is what connections send: bytes with their effects. Bytes that were packed by hand
are parsed, so a SELECT in them is seen, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_, itemgetter, or_
from typing import Any

import hiredis

from shardkit.errors import RoutingError
from shardkit.routing.command_keys import blocking_seconds, command_name, containers, reads_by_name

READS = 0
WRITES = 1  # or is not known to change nothing
ALONE = 2
STATE = 4
WHOLE = 8
ANYWHERE = 16
WATCHES = 32  # a state that ends with the transaction, or with UNWATCH

_STATE = frozenset(
    {
        *("SELECT", "AUTH", "HELLO", "RESET", "QUIT", "READONLY", "READWRITE", "MONITOR", "ASKING"),
        *("MULTI", "EXEC", "DISCARD", "SYNC", "PSYNC", "REPLCONF", "HIMPORT"),
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"),
    }
)
_ANYWHERE = frozenset(
    {
        *("PING", "ECHO", "TIME", "PUBLISH", "SPUBLISH", "PUBSUB", "INFO", "CONFIG", "COMMAND"),
        *("ACL", "LATENCY", "SLOWLOG", "CLIENT", "SCRIPT", "FUNCTION", "CLUSTER"),
    }
)
_ALONE = frozenset(
    {
        *("SAVE", "BGSAVE", "BGREWRITEAOF", "MIGRATE", "SLAVEOF", "REPLICAOF", "SWAPDB", "DEBUG"),
        *("SHUTDOWN", "FAILOVER", "MODULE", "CLIENT", "SCRIPT", "FUNCTION", "CLUSTER"),
    }
)
_READS = frozenset(
    {
        *("SCAN", "HSCAN", "SSCAN", "ZSCAN", "TOUCH", "EVAL_RO", "EVALSHA_RO", "FCALL_RO"),
        *("PING", "ECHO", "TIME", "INFO", "PUBSUB"),
    }
)
# Of CLIENT, the sub-commands that leave their connection as it is.
_OF_OTHERS = frozenset(
    {
        *("LIST", "ID", "INFO", "GETNAME", "KILL", "PAUSE", "UNPAUSE", "UNBLOCK", "HELP"),
        *("TRACKINGINFO", "GETREDIR"),
    }
)
_MAY_BLOCK = frozenset({"XREAD", "XREADGROUP", "TS.READ"})  # if their arguments say so
_NAME = itemgetter(0)
_TRANSACTION = (("MULTI",), ("EXEC",))
_SPELLINGS = 4096  # cached at most
_OWN = ALONE | STATE | WATCHES | WHOLE  # effects of commands that do not use shared connections

known: dict[Any, int] = {}
"""Effects by a command's first element as callers spell it, if that decides."""
shared: dict[Any, int] = {}
"""Of these, those of commands that use a shared connection and that redis-py does not divide."""


class PackedCommands(list[Any]):
    """Packed commands, with what they do.

    Attributes:
        replies: how many replies `read_response` will read; 0 if something else reads them, and the
            commands are sent as they are.
        effects: what they do, together.
        blocks: how many seconds a single one may block, 0 for ever; None if it does not.
        asks_slots: whether it is CLUSTER SLOTS, as redis-py asks.
    """

    replies = 0
    effects = ANYWHERE
    blocks: float | None = None
    asks_slots = False

    @classmethod
    def doing(cls, does: int, pieces: Iterable[Any], replies: int) -> PackedCommands:
        """Return commands with their effects."""
        packed = cls(pieces)
        packed.effects, packed.replies = does, replies
        return packed

    @classmethod
    def of(cls, pieces: Iterable[Any], commands: Sequence[Sequence[Any]]) -> PackedCommands:
        """Return commands that are packed as ``pieces``."""
        packed = cls.doing(effects_of_all(commands), pieces, len(commands))
        if packed.effects & ALONE and len(commands) == 1:
            with suppress(RoutingError):  # the server will refuse it
                packed.blocks = blocking_seconds(_normal(commands[0]))
        return packed

    @classmethod
    def by_hand(cls, data: Any) -> PackedCommands:
        """Return bytes, in one piece or several, that were packed by hand."""
        given = [data] if isinstance(data, str | bytes | bytearray | memoryview) else list(data)
        pieces = [piece.encode() if isinstance(piece, str) else bytes(piece) for piece in given]
        whole, commands, size = b"".join(pieces), list[Any](), 0
        reader = hiredis.Reader(notEnoughData=cls)
        reader.feed(whole)
        with suppress(hiredis.ProtocolError, IndexError, TypeError):
            while isinstance(command := reader.gets(), list) and type(command[0]) is bytes:
                commands.append(tuple(command))
                size += len(hiredis.pack_command(commands[-1]))
        if not commands or size != len(whole):  # half a command, an inline one, or no usual form
            return cls.doing(WRITES | ALONE | STATE, pieces, max(1, len(commands)))
        return cls.of(pieces, commands)


def effects(args: Sequence[Any]) -> int:
    """Return what a command does; a sub-command follows its name after a space or separately."""
    try:
        bits = known.get(args[0])
    except TypeError:  # a bytearray
        bits = None
    return _learned(args) if bits is None else bits


def effects_of_all(commands: Sequence[Sequence[Any]]) -> int:
    """Return what several commands in one piece do."""
    try:
        several = set(map(known.__getitem__, set(map(_NAME, commands))))
    except (LookupError, TypeError):
        several = set(map(effects, commands))
    does = (
        several.pop()
        if len(several) == 1
        else reduce(or_, several, 0) & ~(ANYWHERE | WHOLE) | reduce(and_, several, ANYWHERE)
    )
    if (
        does & STATE
        and (_normal(commands[0]), _normal(commands[-1])) == _TRANSACTION
        and not effects_of_all(commands[1:-1]) & (STATE | WATCHES)
    ):
        return WRITES | WHOLE
    return does


def _learned(args: Sequence[Any]) -> int:
    normal = _normal(args)
    name, does = normal[0], _of(normal)
    by_name = name not in _MAY_BLOCK and (name not in containers() or len(normal) > len(args))
    by_name = by_name and normal[1:2] != ("SETNAME",)
    if by_name and type(args[0]) in (str, bytes) and len(known) < _SPELLINGS:
        known[args[0]] = does
        if type(args[0]) is str and " " not in args[0] and not does & _OWN:
            shared[args[0]] = does
    return does


def _of(args: tuple[Any, ...]) -> int:
    name, second = args[0], _text(args[1]) if len(args) > 1 else ""
    is_own_name = second == "SETNAME" and _text(args[-1]).startswith("SHARDKIT:")  # the kit's
    if (
        name in _STATE
        or (name == "CLIENT" and second not in _OF_OTHERS and not is_own_name)
        or (name, second) == ("SCRIPT", "DEBUG")
    ):
        return WRITES | ALONE | STATE
    if name in ("WATCH", "UNWATCH"):
        return WRITES | ALONE | WATCHES if name == "WATCH" else ANYWHERE | WHOLE
    does = ANYWHERE if name in _ANYWHERE else 0
    if not (name in _READS or reads_by_name(name) or reads_by_name(f"{name} {second}")):
        does |= WRITES
    try:
        alone = name in _ALONE or not command_name(args) or blocking_seconds(args) is not None
    except RoutingError:  # unknown
        alone = True
    return does | ALONE if alone else does


def _normal(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return a command with its name in capitals, and apart from its sub-command."""
    return (*(_text(args[0]).split() or [""]), *args[1:])


def _text(word: Any) -> str:
    if isinstance(word, bytes | bytearray | memoryview):
        word = bytes(word).decode("latin-1")
    return str(word).upper()
