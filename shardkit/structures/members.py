"""Members of a set as they are sent, and as they are returned.

However a member is given, ``42``, ``"42"`` or ``b"42"``, it is one member and has one part; how it
comes back is the structure's choice: int, str or bytes.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from shardkit.commands import Key
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.routing.keys import key_bytes

M = TypeVar("M", bound="int | str | bytes")

_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Members(Generic[M]):
    """Encodes and decodes the members of one structure.

    Args:
        kind: int, str or bytes.
        name: the structure's name, for error messages.
    """

    def __init__(self, kind: type[M], name: str) -> None:
        if kind not in (int, str, bytes):
            raise InvalidArgumentError(f"members={kind!r}", "give int, str or bytes")
        self.kind: type[M] = kind
        self._name = name

    def encode(self, member: Key) -> bytes:
        """Return a member as it is sent and hashed.

        Raises:
            InvalidArgumentError: it does not fit the structure.
        """
        try:
            sent = key_bytes(member)
        except InvalidKeyError:
            raise self._refused(member, "is neither text, bytes nor an integer") from None
        if self.kind is int:
            if not _INTEGER.fullmatch(sent) or not _LOWEST <= int(sent) <= _HIGHEST:
                raise self._refused(member, "is not an integer of 64 bits")
            return b"%d" % int(sent)
        if self.kind is str:
            try:
                sent.decode()
            except UnicodeDecodeError:
                raise self._refused(member, "is not UTF-8") from None
        return sent

    def decode(self, reply: bytes) -> M:
        """Return a member as the structure gives it back."""
        value: int | str | bytes = reply
        if self.kind is int:
            value = int(reply)
        elif self.kind is str:
            value = reply.decode()
        return value  # type: ignore[return-value]  # it is of the kind

    def _refused(self, member: object, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._name}: member {member!r} {why}",
            f"give what fits, or open the set with other members than {self.kind.__name__}",
        )
