"""Names: checking them, and folding them so that ``é`` finds ``Éric``."""

from __future__ import annotations

from unicodedata import normalize

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import To
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.damage import damage


def fold(text: str) -> str:
    """Return a text without differences of case and Unicode form: ``éric`` for ``ÉRIC``.

    By Unicode's default caseless matching, composed (NFC), so that ``e`` does not find ``é``.
    """
    return normalize("NFC", normalize("NFD", text).casefold())


def check_text(owner: str, noun: str, value: str, *, empty: bool = False) -> str:
    """Return a text to store; ``owner`` and ``noun`` are for messages."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text")
    if not value and not empty:
        raise InvalidArgumentError(f"{owner}: {noun} is empty", "give some text")
    if "\0" in value:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} contains the character NUL", "remove it"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} cannot be encoded as UTF-8", "remove lone surrogates"
        ) from None
    return value


def stored_name(to: To, key: str, noun: str, stored: bytes) -> str:
    """Return a name as `check_text` let it be stored."""
    try:
        return check_text(key, noun, stored.decode())
    except (UnicodeDecodeError, InvalidArgumentError):
        raise damage(to, key, f"{noun} {shown(stored)}", "a name, in UTF-8") from None


def key_id(owner: str, noun: str, value: str | int) -> str:
    """Return the id of a user or group as part of a key."""
    try:
        if isinstance(value, str | int) and (encoded := key_bytes(value)):
            return encoded.decode()
    except InvalidKeyError:
        pass
    raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text or a number")
