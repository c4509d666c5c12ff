"""Parcels: the part of a batch that goes to one server, packed, and its replies unpacked. No I/O.

::

    batch      [SADD a, SADD b, SADD c, SADD d]
    parcels    shard 0: [SADD a, SADD c] at positions 0, 2     shard 1: [SADD b, SADD d] at 1, 3
    chunks     each parcel's requests packed, cut every 64 KiB or 1,000 requests

A chunk is what is in flight to one server at a time, while the one before it is read, so a batch of
any size needs bounded buffers and cannot deadlock: the servers' replies are always being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import hiredis
from redis.exceptions import (
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.commands import Argument, Command, Replies, Reply, Script, Shard, Transaction
from shardkit.errors import (
    CommandRefused,
    InvalidArgumentError,
    ShardErrors,
    ShardFailure,
    ShardUnavailable,
)

CHUNK_BYTES = 64 * 1024
CHUNK_REQUESTS = 1000
_MULTI = hiredis.pack_command(("MULTI",))
_EXEC = hiredis.pack_command(("EXEC",))


@dataclass(slots=True)
class Chunk:
    """Packed requests, and how many replies they will have."""

    data: bytes
    replies: int


@dataclass(slots=True)
class Parcel:
    """What goes to one server.

    Attributes:
        shard: the shard, for messages.
        address: the server, for messages.
        positions: where each request stands in the batch.
        requests: the requests.
        preamble: scripts that are loaded first, in the same exchange.
        block: how long its (only) request may block.
    """

    shard: Shard
    address: str
    positions: list[int] = field(default_factory=list)
    requests: list[Command | Transaction] = field(default_factory=list)
    preamble: list[Script] = field(default_factory=list)
    block: float | None = None

    def chunks(self) -> list[Chunk]:
        """Pack the requests.

        Raises:
            InvalidArgumentError: an argument is neither text, bytes nor a number.
        """
        pieces: list[tuple[bytes, int]] = [
            (pack(("SCRIPT", "LOAD", script.text)), 1) for script in self.preamble
        ]
        pieces += [pack_request(request) for request in self.requests]
        if len(pieces) <= CHUNK_REQUESTS and sum(len(data) for data, _ in pieces) <= CHUNK_BYTES:
            return [Chunk(b"".join([d for d, _ in pieces]), sum(n for _, n in pieces))]
        return [
            Chunk(b"".join([d for d, _ in pieces[a:b]]), sum(n for _, n in pieces[a:b]))
            for a, b in pairwise(_cuts([len(data) for data, _ in pieces]))
        ]

    def unpack(self, replies: list[Reply]) -> Iterator[tuple[int, Command | Transaction, Reply]]:
        """Yield each request's position and reply; an error is an exception as a value."""
        taken = len(self.preamble)
        if len(replies) == taken + len(self.requests):
            yield from zip(self.positions, self.requests, replies[taken:], strict=True)
            return
        for position, request in zip(self.positions, self.requests, strict=True):
            if isinstance(request, Transaction):
                count = len(request.commands)
                queued = replies[taken : taken + count + 1]
                executed = replies[taken + count + 1]
                taken += count + 2
                # EXEC says only that it was aborted; the reply to the command says why.
                why = next((reply for reply in queued if isinstance(reply, Exception)), executed)
                yield position, request, executed if isinstance(executed, list) else why
            else:
                yield position, request, replies[taken]
                taken += 1

    def failure(self, request: Command | Transaction, error: Exception, sent: bool) -> ShardFailure:
        """Return what stands in a request's slot when it failed."""
        where = f"{self.shard} ({self.address})"
        about: dict[str, Any] = {
            "shard": str(self.shard),
            "command": request.name,
            "error": error,
        }
        if isinstance(error, ResponseError):
            return CommandRefused(f"{where}: {request.name} was refused: {error}", **about)
        if not sent:
            return ShardUnavailable(
                f"{where} cannot be reached: {error}", "see `shardkit status`", **about
            )
        what = "did not answer in time" if isinstance(error, TimeoutError) else "was lost"
        return ShardUnavailable(
            f"{where} {what}: {error}",
            "the command may have been executed; look before you send it again",
            **about,
        )


def pack(args: Sequence[Argument]) -> bytes:
    """Pack one command as RESP.

    Raises:
        InvalidArgumentError: an argument is neither text, bytes nor a number.
    """
    try:
        packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        bad = next((a for a in args if not isinstance(a, str | bytes | int | float)), args[-1])
        raise InvalidArgumentError(
            f"{args[0]!r}: argument {bad!r} is a {type(bad).__name__} that cannot be sent",
            "give text, bytes or a number",
        ) from None
    return packed


def pack_request(request: Command | Transaction) -> tuple[bytes, int]:
    """Return a request packed, and how many replies it will have."""
    if not isinstance(request, Transaction):
        return pack(request.args), 1
    packed = [pack(_self_contained(command)) for command in request.commands]
    return b"".join([_MULTI, *packed, _EXEC]), len(packed) + 2


def _self_contained(command: Command) -> Sequence[Argument]:
    """Inside MULTI a script is sent as its text: a NOSCRIPT there would come too late to repeat."""
    if command.script is None:
        return command.args
    return ("EVAL", command.script.text, *command.args[2:])


def _cuts(lengths: list[int]) -> list[int]:
    cuts, size = [0], 0
    for n, length in enumerate(lengths):
        if n > cuts[-1] and (size + length > CHUNK_BYTES or n - cuts[-1] >= CHUNK_REQUESTS):
            cuts.append(n)
            size = 0
        size += length
    return [*cuts, len(lengths)]


def needed_scripts(requests: Sequence[Command | Transaction], loaded: set[str]) -> list[Script]:
    """Return the scripts that a server is not known to have, each once."""
    needed = {
        request.script.sha: request.script
        for request in requests
        if isinstance(request, Command)
        and request.script is not None
        and request.script.sha not in loaded
    }
    return list(needed.values())


def lacks_script(request: Command | Transaction, reply: Reply) -> bool:
    """Whether the server had forgotten the request's script, so that nothing was executed."""
    return (
        isinstance(reply, NoScriptError)
        and isinstance(request, Command)
        and request.script is not None
    )


def may_repeat(request: Command | Transaction) -> bool:
    """Whether a request may be sent again although it may have been executed."""
    return isinstance(request, Command) and request.idempotent


def settle(parcel: Parcel, request: Command | Transaction, reply: Reply) -> tuple[Reply, bool]:
    """Return what goes into the slot, and whether that is (or holds) a failure."""
    if isinstance(reply, Exception):
        return parcel.failure(request, reply, sent=True), True
    if isinstance(request, Transaction) and reply is not None:
        failed = False
        for n, inner in enumerate(reply):
            if isinstance(inner, RedisError):
                reply[n] = parcel.failure(request.commands[n], inner, sent=True)
                failed = True
        return reply, failed
    return reply, False


def raise_failures(replies: Replies) -> None:
    """Raise one group with a failure for each shard and kind of error; nothing if none failed.

    Raises:
        ShardErrors: something failed.
    """
    found: dict[tuple[str, type[ShardFailure], type[Exception]], ShardFailure] = {}
    for reply in replies:
        for failure in reply if isinstance(reply, list) else (reply,):
            if isinstance(failure, ShardFailure):
                kind = (failure.shard, type(failure), type(failure.error or failure))
                found.setdefault(kind, failure)
    if found:
        shards = sorted({shard for shard, _, _ in found})
        raise ShardErrors(
            f"{len(shards)} shard{'s' * (len(shards) > 1)} failed ({', '.join(shards)})",
            list(found.values()),
        )
