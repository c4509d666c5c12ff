"""Merging what the parts of an index return, so that the result is that of one index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from shardkit.operations.commands import Reply
from shardkit.search.model.documents import split_values
from shardkit.search.model.results import OrderValue


class PartHit(NamedTuple):
    """A hit as a part returns it.

    Attributes:
        value: what it is ordered by.
        id: the document's id.
        attributes, text: as they are stored; None if they were not requested.
    """

    value: OrderValue
    id: str
    attributes: bytes | None
    text: bytes | None


_by_value_and_id = itemgetter(0, 1)


def read_hits(reply: Sequence[bytes], *, text_order: bool, details: bool) -> list[PartHit]:
    """Return the hits in a script's reply.

    Args:
        reply: for each hit its id and value, and (``details``) its attributes and text.
        text_order: whether values are text.
        details: whether the reply has attributes and text.
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

    Python compares text by code points, which is the order of its bytes in UTF-8, as in Lua.
    """
    hits = [hit for part in parts for hit in part]
    hits.sort(key=_by_value_and_id, reverse=reverse)
    return hits


def merge_facet(
    replies: Iterable[Reply], *, text: bool, limit: int
) -> list[tuple[OrderValue, int]]:
    """Return how many documents have each value, the most frequent first, then by value.

    Args:
        replies: of each part, values and their counts in turn.
        text: whether values are text; a document may then have several.
        limit: how many values to return.
    """
    counts: Counter[Any] = Counter()
    for reply in replies:
        for value, count in zip(reply[::2], reply[1::2], strict=True):
            for one in split_values(value) if text else (float(value),):
                counts[one] += count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
