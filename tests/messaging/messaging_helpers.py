"""What the tests of messages share."""

from __future__ import annotations

from typing import Any

from shardkit.messaging import Message


def bodies(messages: list[Message]) -> list[Any]:
    return [message.body for message in messages]
