"""Replies of simulated servers as RESP2."""

from __future__ import annotations

from typing import Any

from shardkit.testing.fakes.fakeredis_private import SimpleError, SimpleString


class Packed(bytes):
    """A reply that is packed already."""


def pack_reply(value: Any) -> bytes:
    """Return a reply as RESP2."""
    kind = type(value)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if kind is Packed:
        return bytes(value)
    if kind is int:
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    if kind is list or kind is tuple:
        return b"*%d\r\n%b" % (len(value), b"".join(map(pack_reply, value)))
    if isinstance(value, SimpleString):
        return b"+%b\r\n" % value.value
    if isinstance(value, SimpleError):
        return b"-%b\r\n" % value.value.replace("\r", " ").replace("\n", " ").encode()
    if kind is bool:
        return b":%d\r\n" % value
    if kind is float:
        return pack_reply(repr(value).encode())
    if kind is str:
        return pack_reply(value.encode())
    if isinstance(value, dict):
        return pack_reply([each for item in value.items() for each in item])
    return pack_reply(list(value))
