"""Names: checked, and folded so that ``é`` finds ``Éric``."""

from __future__ import annotations

from unicodedata import normalize

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import shown


def fold(text: str) -> str:
    """Return a text without its differences of case, and in one form of Unicode's.

    Two texts that differ only in case, or in whether an accent is a character of its own, become
    equal: ``Éric``, ``E\u0301ric`` and ``ÉRIC`` are ``éric``; ``Straße`` is ``strasse``. By
    Unicode's default caseless matching, composed (NFC), so that ``e`` does not find ``é``.
    """
    return normalize("NFC", normalize("NFD", text).casefold())


def checked(owner: str, noun: str, value: str, *, empty: bool = False) -> str:
    """Return a text that can be stored.

    Args:
        owner: what asks, for messages.
        noun: what the text is.
        value: the text.
        empty: whether it may be empty.

    Raises:
        InvalidArgumentError: it is no text, cannot be encoded, is empty, or holds a NUL.
    """
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text")
    if not value and not empty:
        raise InvalidArgumentError(f"{owner}: {noun} is empty", "give some text")
    if "\0" in value:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} holds the character NUL", "remove it"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} cannot be encoded as UTF-8", "remove lone surrogates"
        ) from None
    return value


def checked_id(owner: str, noun: str, value: str | int) -> str:
    """Return what a user or group is called in a key.

    Raises:
        InvalidArgumentError: it is neither text nor a number, is empty, or cannot be encoded.
    """
    try:
        if isinstance(value, str | int) and (encoded := key_bytes(value)):
            return encoded.decode()
    except InvalidKeyError:
        pass
    raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text or a number")
