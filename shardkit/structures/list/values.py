"""Encode and decode values of a list: text, bytes or integers."""

from __future__ import annotations

import re

from shardkit.errors import InvalidKeyError
from shardkit.operations.commands import Argument
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.members import Find, M, Members

_INTEGER = re.compile(rb"-?[0-9]{1,4300}")  # Python parses no more digits


class Values(Members[M]):
    """The values of one list: like members, but also floats, and integers of any size."""

    takes = "a value is text, bytes or a number; rpush_many takes any iterable of them"

    def __init__(self, kind: type[M], name: str, find: Find) -> None:
        super().__init__(kind, name, find, "value")

    def encode(self, value: Argument) -> bytes:
        """Return a value as it is sent. A float is sent as Python writes it."""
        if isinstance(value, float) and self.kind is not int:
            return float.__repr__(value).encode()
        if self.kind is not int:
            return super().encode(value)  # type: ignore[arg-type]  # it refuses other types
        try:
            sent = b"" if isinstance(value, float) else key_bytes(value)
        except InvalidKeyError:
            raise self._refused_type(value) from None
        if not _INTEGER.fullmatch(sent):
            raise self._refused(
                value, "is not an integer", "give one, or use a list with values=str"
            )
        return b"%d" % int(sent)
