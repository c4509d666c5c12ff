"""Rebuild the parts of an index from their documents, to repair the damage that `check` reports.

First all documents and words are read, and damage is reported before anything is changed. Then the
documents are set aside by RENAME, to ``{search:0}:o:<id>``, all that is derived from them is
deleted, and they are indexed again, each in one script.

Until the end, ``rebuild`` in a part's state names the rebuild, no other client writes to the part,
and searches return the documents indexed so far. A document has one of the two keys at any time, so
any client can start an interrupted rebuild again: it also sets aside the documents indexed so far.
Words keep their ids if documents without text refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple

from shardkit.errors import DamagedDataError
from shardkit.operations.commands import Command, Key
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation, pages
from shardkit.search.model.documents import check_ids
from shardkit.search.model.schema import Schema
from shardkit.search.parts import (
    DocumentForm,
    IndexPart,
    IndexParts,
    Words,
    first_slice,
    has_many_words,
    with_command,
    write_command,
    write_in_slices,
)
from shardkit.structures.base.check import Suspicions, contents, read_or_note, suspected
from shardkit.structures.base.damage import damage
from shardkit.structures.base.glob import escaped
from shardkit.structures.base.parameters import open_all
from shardkit.structures.base.partitioned import restore_parameters

Progress = Callable[[int, int], object]
Recover = Callable[[str, bytes, str, Words, bool], Any]

_SCANNED: Final = 2_000  # of a server's keys, in one command
_WORDS_AT_ONCE: Final = 1_000
_MOST_WORDS: Final = 2**24 - 1
_LOSSY: Final = "restore a backup, or drop the lost documents: rebuild(lossy=True)"


class _Lexicon(NamedTuple):
    """The words of a part."""

    words: dict[int, bytes]  # by their ids
    starts: list[bytes]  # the first three bytes of words
    wrong: list[tuple[bytes, bytes]]  # starts, and words with invalid ids or those of others
    free: int  # the lowest id that neither a word nor a value of text has
    gone: int  # how many ids below it have no word


_NO_WORDS: Final = _Lexicon({}, [], [], 1, 0)


def rebuild_parts(parts: IndexParts, lossy: bool, progress: Progress | None) -> Operation[int]:
    """Store lost parameters, and index all documents again; see `DocumentStructure.rebuild`."""
    form, after = parts.form, parts.form.after_rebuilt
    yield from restore_parameters(parts.parameters)
    yield from open_all([parts.parameters])
    surveys = {}
    for part in parts.primary:
        surveys[part] = yield from _survey(part, form, lossy)
    total, done = sum(documents for documents, _ in surveys.values()), 0
    if not total and not parts.parameters.checked:
        return 0
    yield from open_all([parts.parameters], create=True)
    for part, (_, keep_words) in surveys.items():
        rebuild = f"rebuild:{token_hex(8)}"
        words = yield from _set_aside(part, rebuild, keep_words)
        cursor: Key = 0
        while cursor != b"0":
            cursor, keys = yield from _scan(part, "o", cursor)
            left = yield from _read(part, keys, form.recover, words, lossy, remove=True)
            while left:
                some = left[: first_slice(left)]
                arguments = form.encode(some)
                then = after and after(part, [one.id for one in some])
                if has_many_words(some, arguments):
                    yield from write_in_slices(part, arguments, then, rebuild)
                else:
                    yield [with_command(part, write_command(part, arguments, rebuild), then)]
                done, left = done + len(some), left[len(some) :]
                if progress is not None:
                    progress(done, max(total, done))
        yield [part.call("search/end_rebuild", (), key=rebuild, write=True)]
    return done


def _survey(part: IndexPart, form: DocumentForm, lossy: bool) -> Operation[tuple[int, bool]]:
    """Return how many documents a part has, and whether any refers to words.

    Unless ``lossy``, check that all are there and can be read.
    """
    stated: list[int] = []

    def read_state() -> Operation[None]:
        [[documents, _], [rebuild]] = yield [
            part.call("search/words", ()),
            part.read_state("rebuild"),
        ]
        if not rebuild:
            stated.append(documents)

    yield from suspected(read_state())
    words = (yield from _lexicon(part)).words
    count, names = 0, False

    def seen(doc_id: str, stored: bytes, key: str, words: Words, lossy: bool) -> Any:
        nonlocal names
        names = names or form.names_words(stored)
        return form.recover(doc_id, stored, key, words, lossy)

    cursor: Key = 0
    while cursor != b"0":
        cursor, keys = yield from _scan(part, "do", cursor)
        count += len((yield from _read(part, keys, seen, words, lossy)))
    if not lossy and stated and stated[0] > count:
        raise damage(part.to, part.state, f"{stated[0]:,} documents", f"{count:,}", _LOSSY)
    return count, names


def _set_aside(part: IndexPart, rebuild: str, keep_words: bool) -> Operation[Words]:
    """Start to rebuild a part, and set its documents aside; return its words if they are kept."""
    lexicon = _NO_WORDS
    if keep_words:
        lexicon = yield from _lexicon(part)
    begin = (lexicon.free, lexicon.gone)
    yield [part.call("search/begin_rebuild", begin, key=rebuild, write=True)]
    cursor: Key = 0
    while cursor != b"0":
        arguments = (cursor, _SCANNED, int(keep_words))
        [cursor] = yield [part.call("search/set_aside", arguments, key=rebuild, write=True)]
    for starts in pages(lexicon.starts, _WORDS_AT_ONCE):
        yield [part.call("search/drop_words", (len(starts), *starts), key=rebuild, write=True)]
    for wrong in pages(lexicon.wrong, _WORDS_AT_ONCE):
        flat = [text for pair in wrong for text in pair]
        yield [part.call("search/drop_words", (0, *flat), key=rebuild, write=True)]
    return lexicon.words


def _lexicon(part: IndexPart) -> Operation[_Lexicon]:
    """Read all words of a part. Cost: a SCAN of its server, and two exchanges for 2,000 keys."""
    words: dict[int, bytes] = {}
    starts: dict[bytes, None] = {}
    wrong: dict[tuple[bytes, bytes], None] = {}
    [free] = yield from read_or_note([part.read_state("words")], [])
    free = int(free[0]) if free and (free[0] or b"").isdigit() else 1
    free = free if free <= _MOST_WORDS else 1  # the keys tell it, too
    cursor: Key = 0
    while cursor != b"0":
        cursor, keys = yield from _scan(part, "ly", cursor)
        lexicon = [key for key in keys if key.startswith(f"{part.tag}l:".encode())]
        held = yield from contents(part.to, "HASH", lexicon, [])
        for key, entries in zip(lexicon, held, strict=True):
            start = key[len(part.tag) + 2 :]
            starts[start] = None
            for word, text in entries:
                id_ = int(text) if text.isdigit() and len(text) < 9 else 0
                if not 0 < id_ <= _MOST_WORDS or word[:3] != start:
                    wrong[start, word] = None
                elif words.setdefault(id_, word) != word:
                    wrong[start, word] = wrong[words[id_][:3], words[id_]] = None
                free = max(free, min(id_, _MOST_WORDS) + 1)
        values = [key for key in keys if key not in lexicon]
        held = yield from contents(part.to, "HASH", values, [])
        for key, entries in zip(values, held, strict=True):
            bucket = key.rpartition(b":")[2]
            for index, _ in entries:
                if bucket.isdigit() and len(bucket) < 7 and index.isdigit() and len(index) < 4:
                    free = max(free, min(128 * int(bucket) + int(index), _MOST_WORDS) + 1)
    known = {id_: word for id_, word in words.items() if (word[:3], word) not in wrong}
    return _Lexicon(known, list(starts), list(wrong), free, free - 1 - len(known))


def _read(
    part: IndexPart,
    keys: Sequence[bytes],
    recover: Recover,
    words: Words,
    lossy: bool,
    remove: bool = False,
) -> Operation[list[Any]]:
    """Return the documents of some keys; leave out unreadable ones if ``lossy``."""
    notes: Suspicions = []
    reads = [Command(part.to, key, ("GET", key)) for key in keys]
    replies = yield from read_or_note(reads, notes)
    if notes and not lossy:
        raise notes[0].error
    documents: list[Any] = []
    unread: list[bytes] = []
    for key, stored in zip(keys, replies, strict=True):
        try:
            if stored is not None:
                doc_id = key[len(part.tag) + 2 :].decode()
                documents.append(recover(doc_id, stored, f"{part.tag}d:{doc_id}", words, lossy))
        except (DamagedDataError, UnicodeDecodeError) as error:
            if not lossy:
                texts = ("no UTF-8", "the id of a document")
                if isinstance(error, DamagedDataError):
                    texts = (error.found, error.expected)
                raise damage(part.to, key, *texts, _LOSSY) from None
            unread.append(key)
    if remove and unread:
        yield [Command(part.to, key, ("UNLINK", key), idempotent=True) for key in unread]
    return documents


def _scan(part: IndexPart, kinds: str, cursor: Key) -> Operation[tuple[Key, list[bytes]]]:
    """Return the next cursor, and some of a part's keys of some kinds, such as ``d``."""
    scan = ("SCAN", cursor, "MATCH", f"{escaped(part.tag)}[{kinds}]:*", "COUNT", _SCANNED)
    [(cursor, keys)] = yield [Command(part.to, part.state, scan)]
    return cursor, list(dict.fromkeys(keys))


IDS_PER_BATCH: Final = 1_000


class DocumentStructure(Structure[Face]):
    """A structure of documents in parts."""

    def __init__(
        self,
        driver: Driver,
        component: str,
        schema: Schema,
        parameters: Mapping[str, object],
        form: DocumentForm,
        read_from: Sequence[str] = (),
    ) -> None:
        self._parts = IndexParts(component, schema, parameters, form, read_from)
        super().__init__(driver, component, schema.name)
        self.schema = schema

    @operation
    def count(self) -> Operation[int]:
        """Return the number of documents, ads or jobs. Cost: one exchange."""
        return (yield from self._parts.count())

    @operation
    def remove_many(self, ids: Iterable[str]) -> Operation[int]:
        """Remove documents, ads or jobs, with all that is counted of them; return how many existed.

        Raises:
            InvalidArgumentError: an id cannot be used; none of its batch of 1,000 was removed.
            ShardErrors: shards failed; documents on the others were removed.

        Cost: an exchange with each part for 150 documents, or for one to four if their words are in
        tens of thousands of others.
        """
        removed = 0
        for page in pages(check_ids(self.schema, ids), IDS_PER_BATCH):
            removed += (yield from self._parts.write(page)).existing
        return removed

    @operation
    def delete(self, *, force: bool = False) -> Operation[int]:
        """Delete everything with the parameters; return the number of documents, ads or jobs.

        No other client must be writing to it. Cached results, and targets of ads, expire on their
        own.

        Args:
            force: delete even if other parameters are stored, such as damaged ones; this scans the
                servers for the keys of any number of parts.

        Cost: one exchange for about 2,500 documents or words of each part.
        """
        removed = yield from self._parts.delete(force)
        self._drop_cached()
        return removed

    @operation
    def rebuild(self, *, lossy: bool = False, progress: Progress | None = None) -> Operation[int]:
        """Store lost parameters, and index all documents again; return their number.

        The documents, ads (with their counts) or jobs are the source of everything else. Those of a
        search index need their text or their words in order (`phrases`).

        Until the end no other client can write, and searches return the documents indexed so far.
        After an interruption call it again: no document is lost. `check` reports the damage that it
        repairs.

        Args:
            lossy: delete documents that are lost or cannot be read, and continue.
            progress: called with the numbers of indexed documents and of all documents.

        Raises:
            DamagedDataError: documents are lost or unreadable, and ``lossy`` is False; only lost
                parameters were stored. Or another client has started to rebuild.
            ShardErrors: a shard failed; call it again.

        Cost: up to five SCANs of each part's server; all documents are read twice and written once.
        The words of a part are held in memory.
        """
        done = yield from rebuild_parts(self._parts, lossy, progress)
        self._drop_cached()
        return done

    def _drop_cached(self) -> None:
        """Drop what this process caches of the documents."""
