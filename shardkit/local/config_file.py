"""A server's configuration file: directives, their arguments, and users.

Users' passwords are written as hashes. Passwords that a server sends to another one
(``masterauth``) must be plain text, so only this user can read the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Setting: TypeAlias = str | int | bool | Sequence[str | int]
Settings: TypeAlias = list[tuple[str, Setting]]


def write_settings(path: Path, settings: Iterable[tuple[str, Setting]]) -> None:
    """Write directives, some perhaps several times, into a file that only this user can read."""
    text = "".join(f"{name} {_written(value)}\n" for name, value in settings)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def user_settings(users: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    """Yield the directives that create users, each with all permissions.

    A password of "" is none. Unless it is among the users, the default user is off.
    """
    if users and "default" not in users:
        # No client can log in as it, but when Redis 7.0 starts, it runs transactions and scripts
        # of its append-only file as this user. Without rights they would be lost.
        yield "user", ("default", "off", "~*", "&*", "+@all")
    for name, password in users.items():
        secret = f"#{hashlib.sha256(password.encode()).hexdigest()}" if password else "nopass"
        yield "user", (name, "on", secret, "~*", "&*", "+@all")


def _written(value: Setting) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | str):
        return _quoted(str(value))
    return " ".join(_quoted(str(argument)) for argument in value)


def _quoted(text: str) -> str:
    """Quote an argument, so that a line break in it cannot begin another directive."""
    if text.isascii() and text.replace("-", "").replace("_", "").isalnum():
        return text
    escaped = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in text.encode()
    )
    return '"' + "".join(escaped) + '"'
