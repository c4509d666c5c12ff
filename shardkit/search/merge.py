"""Merge the replies of an index's parts to the result of a single index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from shardkit.operations.commands import Reply
from shardkit.search.model.documents import split_values
from shardkit.search.model.results import OrderValue


class PartHit(NamedTuple):
    """A hit as a part returns it."""

    value: OrderValue
    id: str
    attributes: bytes | None  # as stored; None if they were not requested
    text: bytes | None


_by_value_and_id = itemgetter(0, 1)


def read_hits(reply: Sequence[bytes], *, text_order: bool, details: bool) -> list[PartHit]:
    """Return the hits in a script's reply: ids and values, and (``details``) attributes and text.

    With ``text_order`` values are text.
    """
    width = 4 if details else 2
    return [
        PartHit(
            reply[at + 1].decode() if text_order else float(reply[at + 1]),
            reply[at].decode(),
            reply[at + 2] if details else None,
            reply[at + 3] if details else None,
        )
        for at in range(0, len(reply), width)
    ]


def merge_hits(parts: Iterable[list[PartHit]], *, reverse: bool) -> list[PartHit]:
    """Return the hits of all parts, ordered by value and id, both in the same direction.

    Python orders text by code points, as Lua orders UTF-8 by bytes.
    """
    hits = [hit for part in parts for hit in part]
    hits.sort(key=_by_value_and_id, reverse=reverse)
    return hits


def merge_facet(
    replies: Iterable[Reply], *, text: bool, limit: int
) -> list[tuple[OrderValue, int]]:
    """Return the ``limit`` most frequent values with their counts, then by value.

    Each reply has values and counts in turn. With ``text``, a document can have several values.
    """
    counts: Counter[Any] = Counter()
    for reply in replies:
        for value, count in zip(reply[::2], reply[1::2], strict=True):
            for one in split_values(value) if text else (float(value),):
                counts[one] += count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
