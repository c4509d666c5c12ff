"""A clock that tests set, and the bodies of messages."""

from __future__ import annotations

from typing import Any

from shardkit.messaging import Message


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


def bodies(messages: list[Message]) -> list[Any]:
    return [message.body for message in messages]
