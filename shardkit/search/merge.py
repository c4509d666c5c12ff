"""Merging what the parts of an index found: by value and id, as one index would have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardkit.operations.commands import Reply
from shardkit.search.model.documents import parted
from shardkit.search.model.results import OrderValue


class PartHit(NamedTuple):
    """A document that a part found.

    Attributes:
        value: what it is put in order by.
        id: its id.
        attributes, text: as they are stored, None if they were not asked for.
    """

    value: OrderValue
    id: str
    attributes: bytes | None
    text: bytes | None


def part_hits(reply: Sequence[bytes], *, text_order: bool, blobs: bool) -> list[PartHit]:
    """Return the documents in a script's reply.

    Args:
        reply: ids and values, one after the other, and (``blobs``) attributes and text.
        text_order: whether values are text.
        blobs: whether attributes and text are there.
    """
    width = 4 if blobs else 2
    return [
        PartHit(
            reply[at + 1].decode() if text_order else float(reply[at + 1]),
            reply[at].decode(),
            reply[at + 2] if blobs else None,
            reply[at + 3] if blobs else None,
        )
        for at in range(0, len(reply), width)
    ]


def merged(parts: Iterable[list[PartHit]], *, reverse: bool) -> list[PartHit]:
    """Return the documents of all parts, in order of value and id, both in the same direction.

    Python compares text by code points: the order of its bytes in UTF-8, which is the scripts'.
    """
    everything = [one for part in parts for one in part]
    everything.sort(key=_by_value_and_id, reverse=reverse)
    return everything


def _by_value_and_id(found: PartHit) -> tuple[Any, str]:
    return found[:2]


def facet_of(replies: Iterable[Reply], *, text: bool, size: int) -> list[tuple[OrderValue, int]]:
    """Return how many documents have each value, the most frequent first, then by value.

    Args:
        replies: of each part values and counts, one after the other.
        text: whether values are text; a document may then have several.
        size: how many values are wanted.
    """
    counts: Counter[Any] = Counter()
    for reply in replies:
        for value, count in zip(reply[::2], reply[1::2], strict=True):
            for one in parted(value) if text else (float(value),):
                counts[one] += count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:size]
