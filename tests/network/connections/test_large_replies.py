"""Replies of any kind and size, received in pieces of any length."""

from __future__ import annotations

import socket
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    InvalidResponse,
    ResponseError,
)

from shardkit.network.connections.connection import TcpConnection
from shardkit.network.connections.replies import Receiver, ReplyParser

SIZES = (0, 5, 65_535, 65_536, 65_537, 200_000, 2**20 - 2, 2**20 - 1, 3_000_000)


class Pieces:
    """A socket that gives a stream in pieces of random lengths, and then its end."""

    def __init__(self, stream: bytes, chance: Random) -> None:
        self.stream = stream
        self.chance = chance
        self.pair = socket.socketpair()

    def fileno(self) -> int:
        return self.pair[0].fileno()

    def recv(self, size: int) -> bytes:
        size = min(size, self.chance.choice((1, 3, 7, 20, 1000, 65_536, 2**20)))
        data, self.stream = self.stream[:size], self.stream[size:]
        return data

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        data = self.recv(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for each in self.pair:
            each.close()


def read(sock: Pieces, count: int, *, raw: bool = True, **fields: Any) -> list[Any]:
    parser = ReplyParser(TcpConnection(**fields), sock)
    receiver = Receiver(parser, sock, None)
    replies: list[Any] = []
    parser.read(receiver, replies, count, not raw, False)
    assert not parser.reader.has_data()
    return replies


def reply_of(value: Any) -> bytes:
    match value:
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case int():
            return b":%d\r\n" % value
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(reply_of, value))
        case None:
            return b"$-1\r\n"
        case _:
            return b"-%b\r\n" % str(value).encode()


@pytest.mark.parametrize("seed", range(6))
def test_replies_of_all_kinds_and_sizes_come_as_they_were_sent(seed: int) -> None:
    chance = Random(seed)

    def value() -> Any:
        if chance.random() < 0.6:
            return chance.randbytes(chance.choice(SIZES))
        return chance.choice((7, None, ResponseError("no"), [b"x" * 70_000, 1], b"\r\n$5\r\n"))

    sent = [value() for _ in range(chance.randint(1, 6))]
    stream = b"".join(map(reply_of, sent))
    for options in ({}, {"raw": False}, {"decode_responses": True}):
        sock = Pieces(stream, chance)
        assert list(map(repr, read(sock, len(sent), **options))) == list(map(repr, sent))
        assert not sock.stream
        sock.close()


def test_a_string_that_ends_wrongly_and_a_lost_connection_are_errors() -> None:
    for stream, error, said in (
        (b"$70000\r\n" + b"x" * 70_000 + b"no", InvalidResponse, "not end where it should"),
        (b"$70000\r\n" + b"x" * 60_000, ConnectionError, "server closed the connection"),
    ):
        sock = Pieces(stream, SimpleNamespace(choice=lambda _: 2**20))  # type: ignore[arg-type]
        with pytest.raises(error, match=said):
            read(sock, 1)
        sock.close()


@pytest.mark.parametrize("sent", [b"x" * 900_000, [b"x" * 20] * 40_000], ids=["string", "list"])
def test_a_too_large_reply_is_refused_even_if_it_is_there_at_once(sent: Any) -> None:
    sock = Pieces(reply_of(sent), SimpleNamespace(choice=lambda _: 2**20))  # type: ignore[arg-type]
    with pytest.raises(InvalidResponse, match="larger than 100,000 bytes"):
        read(sock, 1, max_reply_bytes=100_000)
    sock.close()
