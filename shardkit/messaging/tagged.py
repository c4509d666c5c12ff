"""What mailboxes, chats and channels of files share: keys with one tag, messages, and waiting.

A message is JSON, with an id and a time from the server::

    {"id":7,"at":1733000000.123456,"sender":"anna","body":"hello"}

Readers ignore further fields. The state beside each key of messages has the format.

Nobody polls::

    attempt ── nothing there: the script registers "<channel> <waiter>" ── wait ── attempt
                                          │                                 ▲
        send ── the script removes one waiter, and publishes on its channel

All waiters of a process on one server share a connection; see `shardkit.network.links.wakeups`.
Messages are stored, so a wake-up is only a hint: a caller that receives none tries again after ten
seconds, and immediately if the connection is lost. Waiters poll if their user has no permission for
the channel.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardErrors, counted
from shardkit.operations.arguments import parse_json, shown
from shardkit.operations.cancellation import Interrupted
from shardkit.operations.commands import Abandon, Argument, AwaitWakeup, Command, Subscribe
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Driver, Face, Operation, Structure
from shardkit.structures.base.arguments import check_integer, check_prefix, check_tag
from shardkit.structures.base.check import Suspicion, Suspicions, read_or_note
from shardkit.structures.base.damage import MOST_STORED, damage
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.codecs.named import encode_json

LONGEST_BODY = 2**20  # bytes
MOST_AT_ONCE = 1000

T = TypeVar("T")

RETRY_AFTER = 10.0
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1


class Message(NamedTuple):
    """A message of a mailbox or of a chat.

    Attributes:
        id: its number there: from 1, increasing, never used again.
        at: when the server received it, in seconds since 1970.
    """

    id: int
    sender: str
    body: Any
    at: float


def encode_message(owner: str, sender: str, body: Any) -> bytes:
    """Return a stored message without id and time; refuse no text, no JSON, or too much."""
    if not isinstance(sender, str):
        raise InvalidArgumentError(f"{owner}: sender={shown(sender)}", "give text")
    what = f"{owner}: a message of {shown(sender)}"
    sent = encode_json(what, {"sender": sender, "body": body})[1:]
    if len(sent) > LONGEST_BODY:
        raise InvalidArgumentError(
            f"{what} has {counted(len(sent), 'byte')}",
            f"send at most {LONGEST_BODY:,}: store the data elsewhere, and send its key",
        )
    return sent


def decode_message(component: str, key: str, id_: int, stored: bytes, remedy: str = "") -> Message:
    """Return a stored message; raise DamagedDataError if it is none, or has another id."""
    try:
        fields = parse_json(stored)
        message = Message(fields["id"], fields["sender"], fields["body"], fields["at"])
        if message.id == id_ and isinstance(message.sender, str):
            return message
    except (ValueError, TypeError, KeyError):
        pass
    raise damage(component, key, f"message {id_}: {shown(stored)}", "a message as JSON", remedy)


def ids_of(owner: str, messages: Iterable[int | Message]) -> list[int]:
    """Return the ids of messages that are given as such or as ids."""
    ids = [message.id if isinstance(message, Message) else message for message in messages]
    for id_ in ids:
        check_integer(owner, "id", id_, 1, MOST_STORED)
    return ids


class Tagged(Structure[Face]):
    """A structure whose calls are scripts with the keys of one tag, such as a mailbox's owner."""

    _scripts: ClassVar[str]  # what their names begin with
    _tag: ClassVar[str]  # what the tag is called in messages
    _parts: ClassVar[Sequence[tuple[str, str]]]  # how each key ends, and what counts its type
    _retyped: ClassVar[str] = "delete the key"  # the remedy for a key of another type

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, check_prefix(self._scripts if name is None else name))
        self._clock = clock or ServerClock()

    def _keys(self, tag: str) -> list[str]:
        base = f"{self.name}:{{{check_tag(self.name, self._tag, tag)}}}"
        return [base + part for part, _ in self._parts]

    def _call(self, action: str, tag: str, *args: Argument, idempotent: bool = False) -> Command:
        lua = f"messaging/{self._scripts}_{action}"
        return lua_call(self.component, lua, self._keys(tag), args, idempotent=idempotent)

    def _check_messages(
        self, keys: Sequence[str], start: int, repair: str, of_ids: str = ""
    ) -> Operation[Suspicions]:
        """Check that 1,000 messages can be read; ``of_ids`` repairs those with impossible ids."""
        args = (start, start + MOST_AT_ONCE - 1, "WITHSCORES")
        notes: Suspicions = []
        try:
            [flat] = yield [self._page(keys, *args)]
        except DamagedDataError as error:
            return [Suspicion(error, of_ids)]
        for id_, stored in zip(flat[::2], flat[1::2], strict=True):
            try:
                decode_message(self.component, keys[0], int(id_), stored)
            except DamagedDataError as error:
                notes.append(Suspicion(error, repair))
        return notes

    def _page(self, keys: Sequence[str], *args: Argument) -> Command:
        """Return a reading command for messages; the arguments are those of ZRANGE."""
        return lua_call(self.component, "messaging/page", [keys[0], keys[2]], args)

    def _check_types(self, keys: Sequence[str]) -> Operation[Suspicions]:
        pairs, notes = zip(keys, self._parts, strict=True), Suspicions()
        reads = [self._at(key, name, key) for key, (_, name) in pairs]
        yield from read_or_note(reads, notes, self._retyped, "its contents")
        return notes

    def _wait_for(
        self,
        key: str,
        waiters: str,
        attempt: Callable[[str], Operation[tuple[T, float]]],
        timeout: float,
    ) -> Operation[T]:
        """Repeat an attempt until its result is true or the timeout ends; return the last result.

        An attempt returns steps, given a text to register as waiting, or nothing. The steps return
        the result, and the seconds until the next attempt makes sense. ``waiters`` is the key of
        the texts.
        """
        result, again = yield from attempt("")
        if result or timeout <= 0:
            return result
        until = self._clock.monotonic() + timeout
        waiter, channel, pause = secrets.token_hex(8), "", _FIRST_PAUSE
        try:
            channel = yield Subscribe(self.component, key)
            while True:
                waiting = f"{channel} {waiter}" if channel else ""
                result, again = yield from attempt(waiting)
                if result:
                    return result
                left = until - self._clock.monotonic()
                if left <= 0:
                    yield [self._forget_waiter(waiters, waiting)]
                    return result
                longest = min(left, again, RETRY_AFTER if channel else pause)
                pause = min(_LONGEST_PAUSE, 1.5 * pause)
                yield AwaitWakeup(self.component, key, waiter, max(0.001, longest))
                channel = yield Subscribe(self.component, key)
        except (ShardErrors, DamagedDataError, Interrupted):
            yield Abandon(self._forget_waiter(waiters, f"{channel} {waiter}"))
            raise

    def _forget_waiter(self, waiters: str, waiting: str) -> Command:
        lua = "messaging/forget_waiter"
        return lua_call(self.component, lua, [waiters], [waiting], idempotent=True)


def seconds_until(microseconds: Argument) -> float:
    """Return a time that a script replied, in seconds; infinity for an empty one."""
    return float(microseconds) / 1e6 if microseconds else math.inf
