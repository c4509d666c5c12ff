"""Encode and decode values of a list: text, bytes or integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.members import Find, M, decoder

_INTEGER = re.compile(rb"-?[0-9]{1,4300}")  # Python parses no more digits


class Values(Generic[M]):
    """Encodes and decodes the values of one list."""

    decode: Callable[[bytes], M]

    def __init__(self, kind: type[M], name: str, find: Find) -> None:
        if kind not in (int, str, bytes):
            raise InvalidArgumentError(f"{name}: values={shown(kind)}", "give int, str or bytes")
        self.kind: type[M] = kind
        self.decode = decoder(kind, name, "value", find)
        self._name = name

    def encode(self, value: Argument) -> bytes:
        """Return a value as it is sent. A float is sent as Python writes it."""
        if isinstance(value, float) and self.kind is not int:
            return float.__repr__(value).encode()
        try:
            sent = key_bytes(value)  # type: ignore[arg-type]  # it refuses other types
        except InvalidKeyError:
            raise self._refused_type(value) from None
        if self.kind is int:
            if not _INTEGER.fullmatch(sent):
                raise self._refused(
                    value, "is not an integer", "give one, or use a list with values=str"
                )
            return b"%d" % int(sent)
        if self.kind is str and not isinstance(value, str | int):
            try:
                sent.decode()
            except UnicodeDecodeError:
                raise self._refused(value, "is not UTF-8", "use a list with values=bytes") from None
        return sent

    def encode_all(self, values: Iterable[Argument]) -> list[bytes]:
        """Return values as they are sent."""
        encode = self.encode
        return [encode(value) for value in values]

    def _refused_type(self, value: object) -> InvalidArgumentError:
        if isinstance(value, str):
            return self._refused(value, "cannot be encoded as UTF-8", "remove lone surrogates")
        if isinstance(value, float):
            return self._refused(
                value, "is not an integer", "give one, or use a list with values=str"
            )
        if isinstance(value, int) and not isinstance(value, bool):
            return self._refused(value, "is too long", "give its digits as text")
        return self._refused(
            value,
            f"is a {type(value).__name__}",
            "a value is text, bytes or a number; rpush_many takes any iterable of them",
        )

    def _refused(self, value: object, why: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._name}: value {shown(value)} {why}", remedy)
