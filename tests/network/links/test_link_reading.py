"""Answers are taken apart rightly wherever the network cuts them."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from shardkit.network.connections.replies import Receiver, ReplyParser

SAID = [
    (b"$1\r\na\r\n", b"a"),
    (b"*2\r\n$1\r\nb\r\n$1\r\nc\r\n", [b"b", b"c"]),
    (b":7\r\n", 7),
    (b"*3\r\n*1\r\n:1\r\n*0\r\n$-1\r\n", [[1], [], None]),
    (b"+OK\r\n", b"OK"),
    (b"*1\r\n$5\r\nhello\r\n", [b"hello"]),
]
TEXT = b"".join(text for text, _ in SAID)
VALUES = [value for _, value in SAID]


@pytest.fixture
def answers() -> Iterator[ReplyParser]:
    """A parser of answers; what arrives is said by each test."""
    connection = SimpleNamespace(
        protocol=2,
        _parser=SimpleNamespace(parse_error=ResponseError),
        encoder=SimpleNamespace(decode_responses=False, encoding="utf-8", encoding_errors="strict"),
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ReplyParser(connection, ours)


def arriving(pieces: list[bytes]) -> Any:
    """What receives from a socket to which these pieces come one by one."""
    left = iter(pieces)
    unlimited = SimpleNamespace(check_reply=lambda seconds, size: None)
    return Receiver(unlimited, SimpleNamespace(recv=lambda size: next(left)), None)


@pytest.mark.parametrize("first", range(1, len(SAID)))
def test_replies_may_be_cut_anywhere(answers: ReplyParser, first: int) -> None:
    for cut in range(len(TEXT) + 1):
        replies: list[Any] = []
        receiver = arriving([piece for piece in (TEXT[:cut], TEXT[cut:]) if piece])
        answers.read(receiver, replies, first, True, more=True)
        answers.read(receiver, replies, len(SAID), True, more=False)
        assert replies == VALUES, f"cut at {cut}"


def test_exchanges_in_many_pieces_follow_one_another(answers: ReplyParser) -> None:
    dice = random.Random(7)
    for _ in range(300):
        cuts = sorted(dice.sample(range(1, len(TEXT)), dice.randrange(1, 12)))
        ends = zip([0, *cuts], [*cuts, len(TEXT)], strict=True)
        receiver = arriving([TEXT[a:b] for a, b in ends])
        turns = sorted(dice.sample(range(1, len(SAID)), dice.randrange(0, 4)))
        replies: list[Any] = []
        for count in turns:
            answers.read(receiver, replies, count, True, more=True)
        answers.read(receiver, replies, len(SAID), True, more=False)
        assert replies == VALUES
