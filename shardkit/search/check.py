"""Checks the parts of an index: see `shardkit.structures.base.check`.

They check each part's state, its lexicon, its documents against their marks, columns and postings,
and all postings against the documents. Each script checks a piece atomically, so concurrent writes
cause no false reports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

from shardkit.errors import DamagedDataError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command
from shardkit.operations.operation import Cursor, Operation, Page, Step, Stream, pages
from shardkit.search.parts import MOST_WORDS, IndexPart, IndexParts
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    REBUILD,
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    contents,
    raised_twice,
    read_or_note,
)
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.partitioned import check_parameters

# A document's number and id.
Documents = Sequence[tuple[int, bytes]]
ReadDocument = Callable[[str, bytes, str], object]
Checked = Operation[Suspicions]


AGAIN: Final = f"{REBUILD} indexes all documents again"
_LOST: Final = "the document"
_WORDS_PER_CALL: Final = 500  # of documents, with their postings
_POSTINGS_PER_CALL: Final = 20_000


def check_parts(
    parts: IndexParts,
    read: ReadDocument,
    beside: Callable[[IndexPart, Documents], Checked] | None = None,
) -> Stream[Damage]:
    """Check the parameters and all parts of an index; ``beside`` checks further keys of documents.

    ``read`` reads a document from its id, the value of its key, and the key. Each word of a part
    takes a byte of memory.
    """
    parts.parameters.data_ruled_out = False
    yield from check_parameters(parts.parameters)
    for part in parts.primary:
        if (yield from raised_twice(state_of, part, repair=AGAIN)):
            continue
        yield from confirmed(_check_lexicon, part)
        number, place = 0, 1
        while place:
            arguments = (parts.schema.columns, number, place, _WORDS_PER_CALL)
            call = part.call("search/check_documents", arguments)
            [number, place] = yield from _run_check(call, [0, 0])
        chunk = word = 0
        while chunk >= 0:
            call = part.call("search/check_postings", (chunk, word, _POSTINGS_PER_CALL))
            [chunk, word] = yield from _run_check(call, [-1, 0])
        yield from check_documents(part, partial(_check_readable, part, read))
        if beside is not None:
            yield from check_documents(part, partial(beside, part))


def check_documents(part: IndexPart, check: Callable[[Documents], Checked]) -> Stream[Damage]:
    """Check the documents of a part, 64 at a time. Cost: as `check`, and one exchange."""
    _, last, chunks = yield from state_of(part)
    ends = ((chunk * part.chunk, min((chunk + 1) * part.chunk, last)) for chunk in chunks)
    numbers = (bucket for low, high in ends for bucket in range(low // 128, -(-high // 128)))
    for buckets in pages(dict.fromkeys(numbers), KEYS_CHECKED):
        keys = [f"{part.tag}n:{bucket}" for bucket in buckets]
        all_entries = yield from contents(part.to, "HASH", keys, [])
        documents = [
            (128 * bucket + int(index), id_)
            for bucket, entries in zip(buckets, all_entries, strict=True)
            for index, id_ in entries
            if index.isdigit() and len(index) < 4
        ]
        for page in pages(documents, KEYS_CHECKED):
            yield from confirmed(check, page)


def state_of(part: IndexPart) -> Operation[tuple[int, int, list[int]]]:
    """Return the next word's id, the next document's number, and the chunks with documents.

    Cost: one exchange.
    """
    [[_, words, number, _, *chunks]] = yield [part.call("search/state", ())]
    return words + 1, number, chunks


def _check_readable(part: IndexPart, read: ReadDocument, documents: Documents) -> Checked:
    notes: Suspicions = []
    keys = [f"{part.tag}d:".encode() + id_ for _, id_ in documents]
    reads = [Command(part.to, key, ("GET", key)) for key in keys]
    replies = yield from read_or_note(reads, notes, AGAIN, _LOST)
    for (_, id_), key, stored in zip(documents, keys, replies, strict=True):
        if stored is not None and len(stored) >= 12:  # else it was removed, or reported before
            text = key.decode(errors="replace")
            try:
                read(id_.decode(errors="replace"), stored, text)
            except DamagedDataError as error:
                unread = damage(part.to, key, error.found, error.expected)
                notes.append(Suspicion(unread, AGAIN, _LOST))
    return notes


def _run_check(call: Command, end: list[int]) -> Generator[Step | Page[Damage], Any, list[int]]:
    """Yield the damage that a checking script reports twice; return where it continues.

    It continues at ``end`` if the script meets a key that it cannot read.
    """
    following = end

    def check() -> Operation[Suspicions]:
        nonlocal following
        try:
            [reply] = yield [call]
        except DamagedDataError as error:
            return [Suspicion(error, AGAIN)]
        following = reply[: len(end)]
        notes: Suspicions = []
        for key, what, expected in reply[len(end) :]:
            unsound = damage(call.to, key, what.decode(errors="replace"), expected.decode())
            notes.append(Suspicion(unsound, AGAIN, _LOST if b"}:d:" in key else ""))
        return notes

    yield from confirmed(check)
    return following


def _check_lexicon(part: IndexPart) -> Operation[Suspicions]:
    most, *_ = yield from state_of(part)
    [[given_up]] = yield [part.read_state("gone")]
    removed = stored_integer(part.to, part.state, "gone", given_up, missing=0)
    seen, starts = bytearray(most), f"{part.tag}starts"
    notes: Suspicions = []
    cursor = Cursor(part.to, starts)
    while (names := (yield from cursor.read("SSCAN", KEYS_CHECKED))) is not None:
        keys = [f"{part.tag}l:".encode() + start for start in names]
        read = yield from contents(part.to, "HASH", keys, notes, AGAIN)
        for key, entries in zip(keys, read, strict=True):
            notes += _check_words(part, key, entries, seen)
    lost = seen.count(0, 1)
    if lost > removed and not notes:
        expected = f"words with all ids below {most}, not {lost - removed} without"
        notes.append(Suspicion(damage(part.to, starts, f"{most - 1 - lost} words", expected)))
    return [note._replace(repair=AGAIN) for note in notes]


def _check_words(
    part: IndexPart, key: bytes, entries: list[tuple[bytes, Any]], seen: bytearray
) -> Suspicions:
    for word, text in entries:
        try:
            id_ = stored_integer(part.to, key, shown(word), text, 1, MOST_WORDS)
        except DamagedDataError as error:
            return [Suspicion(error)]
        if not key.endswith(b":" + word[:3]):
            return [Suspicion(damage(part.to, key, shown(word), "words that begin so"))]
        if id_ < len(seen):  # else it is new
            if seen[id_]:
                double = f"{shown(word)} with the id {id_} of another word"
                return [Suspicion(damage(part.to, key, double, "an id of its own"))]
            seen[id_] = 1
    return []


def attributes_in(stored: bytes) -> bytes:
    """Return the attributes in the value of a document's key, which is one of 12 bytes or more."""
    words, size = (int.from_bytes(stored[at : at + 4], "little") for at in (4, 8))
    return stored[12 + words : 12 + words + size]
