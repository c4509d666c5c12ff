"""The work to time: commands as tuples, the same for every contestant. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Commands = list[tuple[Any, ...]]


def keys(count: int) -> list[str]:
    """Return key names of a realistic form."""
    return [f"user:{n}:name" for n in range(count)]


def value(size: int) -> bytes:
    """Return a value with the given number of bytes."""
    return b"v" * size


def gets(count: int) -> Commands:
    """GET of the given number of keys."""
    return [("GET", key) for key in keys(count)]


def sets(count: int, size: int = 16) -> Commands:
    """SET of the given number of keys."""
    return [("SET", key, value(size)) for key in keys(count)]


def hsets(count: int) -> Commands:
    """HSET of the given number of fields, ten per key."""
    return [("HSET", f"hash:{n // 10}", f"field:{n}", value(16)) for n in range(count)]


def mixed(count: int) -> Commands:
    """A mix of reads, writes, counters, hashes and sets."""
    kinds = (
        lambda n: ("GET", f"user:{n}:name"),
        lambda n: ("SET", f"user:{n}:name", value(16)),
        lambda n: ("INCRBY", f"count:{n % 100}", 1),
        lambda n: ("HSET", f"hash:{n // 10}", f"field:{n}", value(16)),
        lambda n: ("HGET", f"hash:{n // 10}", f"field:{n}"),
        lambda n: ("SADD", f"set:{n // 100}", n),
    )
    return [kinds[n % len(kinds)](n) for n in range(count)]


def columns_of(commands: Commands) -> list[Any]:
    """Return the name of uniform commands, and their arguments as columns."""
    return [commands[0][0], *map(list, zip(*(args[1:] for args in commands), strict=True))]


WORKS: dict[str, Callable[[int], Commands]] = {
    "get": gets,
    "set": sets,
    "hset": hsets,
    "mixed": mixed,
}
