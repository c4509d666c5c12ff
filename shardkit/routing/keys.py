"""Keys as bytes: the first step of every placement.

``42``, ``"42"`` and ``b"42"`` are the same key; text is UTF-8. In a key with ``{…}``, only the text
between the first ``{`` and the next ``}`` is hashed, unless it is empty. This is the hash tag of
Redis Cluster: keys with the same tag are on the same shard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from shardkit.errors import ConfigError, InvalidKeyError
from shardkit.operations.commands import Key


def key_bytes(key: Key) -> bytes:
    """Return the bytes that are sent and hashed for a key.

    Raises:
        InvalidKeyError: the key is neither text, bytes nor an integer, or contains lone surrogates.
    """
    if type(key) is bytes:
        return key
    try:
        if isinstance(key, str):
            return str.encode(key)  # what redis-py sends, for members of enumerations too
        if isinstance(key, int) and not isinstance(key, bool):
            return b"%d" % key
    except UnicodeEncodeError as error:
        raise InvalidKeyError(
            f"key {key!r} cannot be encoded as UTF-8 ({error.reason})", "give it as bytes"
        ) from None
    except ValueError:
        raise _too_long(int(key)) from None
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    try:
        shown = f"key {key!r}"
    except Exception:  # an integer in it has too many digits, or of its own method
        shown = "a key"
    raise InvalidKeyError(f"{shown} is a {type(key).__name__}", "give a str, bytes or an int")


def hash_tag(key: bytes) -> bytes:
    """Return the hashed part of a key: its tag, or all of it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            return key[start + 1 : end]
    return key


def hashed_parts(keys: Sequence[Key]) -> list[bytes]:
    """Return the hashed part of each of many keys: ``hash_tag(key_bytes(key))``.

    Cost: 70 nanoseconds a key, a quarter of the time of single calls.
    """
    kinds = set(map(type, keys))
    try:
        if kinds == {str}:
            encoded = list(map(str.encode, keys))  # type: ignore[arg-type]
        elif kinds == {bytes}:
            encoded = list(keys)  # type: ignore[arg-type]
        elif kinds == {int}:
            encoded = list(map(b"%d".__mod__, keys))
        else:
            encoded = list(map(key_bytes, keys))
    except ValueError:  # key_bytes raises the error that names the key
        encoded = list(map(key_bytes, keys))
    if b"{" in b"".join(encoded):
        return list(map(hash_tag, encoded))
    return encoded


def text(value: Key) -> str:
    """Return a key or member as text.

    Raises:
        InvalidKeyError: the value is not a key, or bytes that are not UTF-8.
    """
    if type(value) is str:
        return value
    try:
        return key_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise InvalidKeyError(
            f"{value!r} is not UTF-8 ({error.reason})", "use a structure of bytes"
        ) from None


def pair_key(first: Key, second: Key) -> bytes:
    """Return ``b"<lower>:<higher>"`` for two integer ids, in either order.

    Ids are compared as numbers, so ``(9, 10)`` and ``("10", "9")`` have the same key.

    Raises:
        InvalidKeyError: an id is not an integer.
    """
    a, b = _integer(first), _integer(second)
    try:
        return b"%d:%d" % ((a, b) if a <= b else (b, a))
    except ValueError:
        raise _too_long(max(a, b, key=abs)) from None


def _integer(value: Key) -> int:
    if type(value) is int:
        return value
    spelled = key_bytes(value)
    if spelled.removeprefix(b"-").isdigit():
        try:
            return int(spelled)
        except ValueError:  # more digits than Python converts
            pass
    raise InvalidKeyError(
        f"id {value!r} of a pair is not an integer", "give both ids as integers or their digits"
    )


def _too_long(value: int) -> InvalidKeyError:
    return InvalidKeyError(
        f"an integer of {value.bit_length()} bits is too long for a key", "give its digits as text"
    )


_PAIR, _ANY = "pair ", "any "


class KeyRoutes:
    r"""Finds routing keys in the names of keys, by the first rule that matches the whole name.

    ``visits:(\d+)`` places visits:42 by 42, ``pair followers:(\d+):(\d+)`` followers:9:42 by the
    pair of 9 and 42. Keys that an ``any`` rule matches are placed by an argument that their names
    do not have, and all others by their names.

    Raises:
        ConfigError: a rule cannot be used.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules = [_compiled(rule, 1) for rule in rules if not rule.startswith(_ANY)]
        self._any = [_compiled(rule, 0) for rule in rules if rule.startswith(_ANY)]

    def of_all(self, names: Sequence[bytes]) -> Sequence[Key]:
        """Return the routing key of each name."""
        return list(map(self.of, names)) if self._rules else names

    def of(self, name: bytes) -> Key:
        """Return the routing key of a name."""
        for rule, is_pair in self._rules:
            match = rule.fullmatch(name)
            if match is not None:
                return pair_key(match[1], match[2]) if is_pair else match[1]
        return name

    def tells(self, name: bytes) -> bool:
        """Return whether a name tells its key's place; not if an ``any`` rule matches it."""
        return not any(rule.fullmatch(name) for rule, _ in self._any)


key_routes = lru_cache(maxsize=256)(KeyRoutes)


def _compiled(rule: str, groups: int) -> tuple[re.Pattern[bytes], bool]:
    is_pair = rule.startswith(_PAIR)
    text = rule.removeprefix(_PAIR).removeprefix(_ANY).strip()
    if text[:1] == text[-1:] and text[:1] in ("'", '"'):
        text = text[1:-1]
    try:
        compiled = re.compile(text.encode())
    except re.error as error:
        raise ConfigError(f"route {rule!r}: {error}", "correct the regular expression") from None
    if groups and compiled.groups != groups + is_pair:
        what = "two groups, one for each id" if is_pair else "one group, the routing key"
        raise ConfigError(f"route {rule!r} has {compiled.groups} groups", f"write {what}")
    return compiled, is_pair
