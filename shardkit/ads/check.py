"""Checks ads: as an index of documents, and what is counted beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from shardkit.ads.records import read_ad
from shardkit.operations.arguments import shown
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.search.check import Documents, attributes_in, check_parts, chunks_with_documents
from shardkit.search.parts import IndexPart, IndexParts
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, contents
from shardkit.structures.base.damage import damage

_MOST_WORDS = 16_777_216  # more than a part of an index can have
_WORDS_AT_ONCE = 1_000
_AGAIN = "remove the ad, and index it again"
_LOSES = "its counts"


def check_ads(parts: IndexParts) -> Stream[Damage]:
    """Check the parameters and all parts."""
    yield from check_parts(
        parts, lambda ad_id, stored, key: read_ad(attributes_in(stored), key), _check_counts
    )
    for part in parts.primary:
        yield (yield from confirmed(partial(_check_types, part)))
        [[words]] = yield [part.read_state("words")]
        # An invalid number of words was reported before.
        is_number = words is not None and words.isdigit() and len(words) <= len(f"{_MOST_WORDS}")
        most = int(words) if is_number and int(words) <= _MOST_WORDS else 1
        for chunk in (yield from chunks_with_documents(part)):
            for some in pages(range(1, most), _WORDS_AT_ONCE):
                yield (yield from confirmed(partial(_check_bonuses, part, chunk, some)))


def _check_counts(part: IndexPart, ads: Documents) -> Operation[Suspicions]:
    notes: Suspicions = []
    keys = [f"{part.tag}ad:".encode() + ad_id for _, ad_id in ads]
    held = yield from contents(part.to, "HASH", keys, notes, _AGAIN, _LOSES)
    numbered = {(b"%d" % number, ad_id) for number, ad_id in ads}
    for (number, ad_id), key, entries in zip(ads, keys, held, strict=True):
        if not entries:
            continue
        unread = _check_numbers(part, key, entries, _AGAIN, _LOSES)
        its = dict(entries).get(b"number", b"none")
        if not unread and (its, ad_id) not in numbered:  # two numbers of an ad are reported before
            other = damage(part.to, key, f"the counts of number {its!r}", f"those of {number}")
            unread.append(Suspicion(other, _AGAIN, _LOSES))
        notes += unread
    return notes


def _check_types(part: IndexPart) -> Operation[Suspicions]:
    notes: Suspicions = []
    key = f"{part.tag}types"
    [entries] = yield from contents(part.to, "HASH", [key], notes, "delete the key", "averages")
    return notes + _check_numbers(part, key, entries, "delete the key", "averages")


def _check_numbers(
    part: IndexPart, key: str | bytes, entries: Sequence[tuple[bytes, Any]], repair: str, loses: str
) -> Suspicions:
    for name, text in entries:
        if not text.isdigit() or len(text) > 16:
            error = damage(part.to, key, f"{shown(name)}={shown(text)}", "counts")
            return [Suspicion(error, repair, loses)]
    return []


def _check_bonuses(part: IndexPart, chunk: int, words: Sequence[int]) -> Operation[Suspicions]:
    notes: Suspicions = []
    keys = [f"{part.tag}bonus:{chunk}:{word}" for word in words]
    held = yield from contents(part.to, "HASH", keys, notes, "delete the key", "bonuses")
    for key, entries in zip(keys, held, strict=True):
        for place, text in entries:
            finite = False
            with suppress(ValueError):
                finite = math.isfinite(float(text))
            if not place.isdigit() or int(place) >= part.chunk or not finite:
                error = damage(part.to, key, f"{shown(place)}={shown(text)}", "a bonus")
                notes.append(Suspicion(error, "delete the key", "bonuses"))
                break
    return notes
