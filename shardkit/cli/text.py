"""Short texts for tables and messages: lists of shards, reasons, sizes. Pure.

All text from a server, a file or the command line passes through `printable`, so that an escape
sequence in a key cannot control the terminal, and `masked`, so that no URL shows its password.
Imports what takes long when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardkit.operations.commands import Shard

_PROGRESSION = 4  # more numbers than this in even steps are written as first, second, …, last
_LONGEST = 5_000  # characters of a message: whoever names a key decides how long it is
typed: list[str] = []  # the words of the command line; a message shows none that may be a password
_UNITS = ("B", "K", "M", "G", "T", "P")


def printable(text: str) -> str:
    """Return a text on one line, with unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def masked(text: str) -> str:
    """Return a message in which no URL shows a password."""
    if "://" not in text:
        return text
    from shardkit.config.url import mask_url

    def mask(url: re.Match[str]) -> str:
        is_page = url[0].startswith(("http://", "https://")) and "@" not in url[0]
        return url[0] if is_page else mask_url(url[0])

    return re.sub(r"(?<![\w+.-])[\w+.-]+://\S+", mask, text)  # from each word's start alone


def one_line(text: str) -> str:
    """Return a message on one line; of more than two lines only the first and the last."""
    from shardkit.config.problem import mask

    for word in typed:
        for part in (word, word.partition("=")[2]):
            if part and part in text and (hidden := mask("host", part)) != part:
                text = text.replace(part, hidden)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 2:
        lines = [lines[0], "…", lines[-1]]
    return shortened(masked(printable(" ".join(lines))), _LONGEST)


def shortened(text: str, most: int) -> str:
    """Return a text without its middle, if it is too long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def percent(part: int, whole: int) -> str:
    """Return a share: ``50%``, or ``<1%`` if it is small but not zero."""
    if not whole:
        return "-"
    share = 100 * part / whole
    return "<1%" if 0 < share < 1 else f"{share:.0f}%"


def size(number: int) -> str:
    """Return a number of bytes for people: ``1.2M``."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}{_UNITS[unit]}" if unit and value < 99.95 else f"{value:.0f}{_UNITS[unit]}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in short form: ``0-3``, ``0,4,…,252`` for even steps, ``1,5`` for a few."""
    rest = sorted(set(numbers))
    written = []
    while rest:
        length = _even(rest)
        first, last = rest[0], rest[length - 1]
        if length > 2 and rest[1] - first == 1:
            written.append(f"{first}-{last}")
        elif length > _PROGRESSION:
            written.append(f"{first},{rest[1]},…,{last}")
        else:
            length = 1
            written.append(str(first))
        rest = rest[length:]
    return ",".join(written)


def _even(numbers: Sequence[int]) -> int:
    """Return how many of the first numbers are in even steps."""
    length = min(2, len(numbers))
    while (
        length < len(numbers) and numbers[length] - numbers[length - 1] == numbers[1] - numbers[0]
    ):
        length += 1
    return length


def shard_list(shards: Iterable[Shard]) -> str:
    """Return shards in short form, by component: ``hits unique unique:0,4,8,12``."""
    numbers: dict[str, list[int]] = {}
    whole = set()
    for shard in shards:
        of_component = numbers.setdefault(shard.component, [])
        if shard.number is None:
            whole.add(shard.component)
        else:
            of_component.append(shard.number)
    words = []
    for name, of_component in numbers.items():
        words += [name] if name in whole else []
        words += [f"{name}:{spans(of_component)}"] if of_component else []
    return " ".join(words)


def reason(error: Exception) -> str:
    """Return on one line why a server cannot be used: ``connection refused``."""
    from shardkit.network.survey import reason as unprintable_reason

    return one_line(unprintable_reason(error))


def server_list(addresses: Iterable[str]) -> str:
    """Return the servers of entries, grouped by host: ``a.internal:7101-7104 b:6379``."""
    from shardkit.network.survey import server_of

    ports: dict[str, list[int]] = {}
    others = []
    for server in dict.fromkeys(map(server_of, addresses)):
        host, _, port = server.rpartition(":")
        if port.isdigit() and ":" not in host.strip("[]"):
            ports.setdefault(host, []).append(int(port))
        else:
            others.append(server)
    return " ".join([*(f"{host}:{spans(numbers)}" for host, numbers in ports.items()), *others])
