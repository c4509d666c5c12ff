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
from shardkit.operations.arguments import shown
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.damage import MOST_STORED, damage
from shardkit.structures.codecs.named import encode_json

LONGEST_BODY = 2**20  # bytes
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
