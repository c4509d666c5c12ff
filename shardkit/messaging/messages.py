"""Messages of mailboxes and chats: JSON, with an id and a time from the server.

::

    {"id":7,"at":1733000000.123456,"sender":"anna","body":"hello"}

Readers ignore further fields. The state beside each key of messages has the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer, check_name
from shardkit.structures.base.damage import MOST_STORED, damage
from shardkit.structures.codecs.named import encode_json

LONGEST_BODY = 2**20  # bytes
LONGEST_WAIT = 10 * 365 * 86_400.0
MOST_AT_ONCE = 1000


class Message(NamedTuple):
    """A message of a mailbox or of a chat.

    Attributes:
        id: its number there: from 1, increasing, never used again.
        sender: the sender's name.
        body: the content.
        at: when the server received it, in seconds since 1970.
    """

    id: int
    sender: str
    body: Any
    at: float


def encode_message(owner: str, sender: str, body: Any) -> bytes:
    """Return the sender's part of a stored message: all but the id and the time.

    Raises:
        InvalidArgumentError: the sender is not text, or JSON cannot represent the body, or the body
            is too large.
    """
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
    """Return a stored message.

    Raises:
        DamagedDataError: it is not a message, or has another id.
    """
    try:
        fields = json.loads(stored)
        message = Message(fields["id"], fields["sender"], fields["body"], fields["at"])
        if message.id == id_ and isinstance(message.sender, str):
            return message
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise damage(component, key, f"message {id_}: {shown(stored)}", "a message as JSON", remedy)


def ids_of(owner: str, messages: Iterable[int | Message]) -> list[int]:
    """Return the ids of messages that are given as messages or ids.

    Raises:
        InvalidArgumentError: one is not an id.
    """
    ids = [each.id if isinstance(each, Message) else each for each in messages]
    for id_ in ids:
        check_integer(owner, "id", id_, 1, MOST_STORED)
    return ids


def check_seconds(owner: str, field: str, value: Seconds, least: float, most: float) -> float:
    """Return an argument in seconds.

    Raises:
        InvalidArgumentError: it is not a number, or out of range.
    """
    value = in_seconds(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}", f"give seconds, {least:g} to {most:,.0f}"
        )
    return float(value)


def wait_seconds(owner: str, timeout: Seconds | None) -> float:
    """Return the argument ``timeout``; None means for ever."""
    if timeout is None:
        return LONGEST_WAIT
    return check_seconds(owner, "timeout", timeout, 0, LONGEST_WAIT)


def check_tag(owner: str, field: str, name: str) -> str:
    """Check a name that becomes the hash tag of keys, such as a mailbox's owner.

    Raises:
        InvalidArgumentError: it is not a name, or has braces.
    """
    check_name(name)
    if "{" in name or "}" in name:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(name)}", "leave out braces: it is the keys' hash tag"
        )
    return name


def check_prefix(name: str) -> str:
    """Check the prefix of keys that have a hash tag of their own.

    Raises:
        InvalidArgumentError: it is not a name, or has braces.
    """
    check_name(name)
    if b"{" in key_bytes(name) or b"}" in key_bytes(name):
        raise InvalidArgumentError(
            f"name={shown(name)} has a tag", "leave out braces: the keys have tags of their own"
        )
    return name
