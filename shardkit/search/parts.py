"""What search indexes, ads and job search share: documents in the parts of an index.

Part n lives on shard n of a component, all its keys with the tag ``{name:n}``. On an unsharded
component or a cluster the tag decides where it lives.

`rebuild_parts` repairs the damage that `check` reports. First all documents and words are read, and
damage is reported before anything is changed. Then the documents are set aside by RENAME, to
``{search:0}:o:<id>``, all that is derived from them is deleted, and they are indexed again, each in
one script. Until the end, ``rebuild`` in a part's state names the rebuild, no other client writes
to the part, and searches return the documents indexed so far. A document has one of the two keys at
any time, so any client can start an interrupted rebuild again: it also sets aside the documents
indexed so far. Words keep their ids if documents without text refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

from shardkit.callbacks import run
from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardFailure
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Argument,
    Command,
    Key,
    Locate,
    Partial,
    Reply,
    ShardOf,
    Transaction,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Cursor,
    Driver,
    Face,
    Operation,
    Structure,
    operation,
    pages,
)
from shardkit.routing.placement import Place, placement
from shardkit.search.documents import check_ids
from shardkit.search.schema import MAX_SHARDS, Schema
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.check import Suspicions, contents, read_or_note, suspected
from shardkit.structures.base.damage import damage, whole_or_0
from shardkit.structures.base.members import escaped
from shardkit.structures.base.parameters import Metadata, open_all, send_opened
from shardkit.structures.base.partitioned import open_to_delete, restore_parameters

PRIMARY: Final = -1
WORK_PER_CALL: Final = 40_000  # steps, such as to read a posting: together some milliseconds
TERMS_PER_CALL: Final = 1_500  # that a command writes: some milliseconds
WRITE_MICROSECONDS: Final = 2_000  # that it spends on existing documents
SLICE_MICROSECONDS: Final = 4_000  # on one of them; search/sweep does the rest
WORDS_PER_SLICE: Final = 300  # of a document that has more than `TERMS_PER_CALL`
PENDING_SECONDS: Final = 60  # for which its writer may pause
PARTS_LOOKED_FOR: Final = 1_000  # in one exchange
_MOVES_FOLLOWED: Final = 10
BUCKETS_PER_CALL: Final = 10  # of 128 documents and words each


N = TypeVar("N")
Words: TypeAlias = Mapping[int, bytes]  # by their ids


@dataclass(frozen=True)
class DocumentForm:
    """How documents of a kind, which have an ``id`` and a ``size`` in terms, are stored."""

    # Returns the arguments of ``search/write`` for documents of one part; an id removes its one.
    encode: Callable[[Sequence[Any]], list[Argument]]
    # Returns a document, given its id, the value of its key, the key for messages, words, and
    # whether to leave out lost words. Raises DamagedDataError if the document cannot be read.
    recover: Callable[[str, bytes, str, Words, bool], Any]
    # Returns whether a stored value refers to words that it has nowhere else. If none of a part
    # does, a rebuild gives words new ids, and drops unused ones.
    names_words: Callable[[bytes], bool]
    # Returns a command for the same transaction as a write, also of a rebuild. The second number of
    # its reply is how many documents it did; it is sent again for the rest.
    after: Callable[[IndexPart, Sequence[str], bool], Command] | None = None
    # A script that runs before ``search/clear``, in the same transaction, with its arguments.
    clear_first: str | None = None


class Written(NamedTuple):
    """The numbers of documents of a write that existed before, and that are new."""

    existing: int
    new: int


class Span(NamedTuple):
    """The documents that a call of a query covered."""

    behind: int  # the document number behind the last one
    version: int  # the part's version then


@dataclass(frozen=True, slots=True)
class IndexPart:
    """One part of an index."""

    to: ShardOf
    tag: str  # the prefix of its keys
    state: str  # the key of its state
    chunk: int  # how many documents a chunk of postings covers

    def call(
        self, name: str, args: Sequence[Argument], *, key: str | None = None, write: bool = False
    ) -> Command:
        """Return a command that runs a script, with arguments after the chunk size.

        ``key`` is its second key, without the tag. A ``write`` must not be sent twice.
        """
        keys = [self.state] if key is None else [self.state, self.tag + key]
        return lua_call(self.to, name, keys, [self.chunk, *args], idempotent=not write)

    def read_state(self, *fields: str) -> Command:
        """Return the command that reads fields of the state."""
        return Command(self.to, self.state, ("HMGET", self.state, *fields))

    def read_document(self, doc_id: str) -> Command:
        """Return the command that reads a document."""
        key = f"{self.tag}d:{doc_id}"
        return Command(self.to, key, ("GET", key))


class IndexParts:
    """All parts of an index and of its replicas, ``read_from``. Shared by all faces of an index.

    Writes go to ``primary``, the parts of ``component``.
    """

    def __init__(
        self,
        component: str,
        schema: Schema,
        parameters: Mapping[str, object],
        form: DocumentForm,
        read_from: Sequence[str] = (),
    ) -> None:
        check_name(schema.name)
        if "{" in schema.name or "}" in schema.name:
            raise InvalidArgumentError(
                f"name={shown(schema.name)} of an index", "leave out braces: keys have a tag"
            )
        self.component = component
        self.schema = schema
        self.form = form
        self._sources = [
            [_part(name, schema, n, schema.parts) for n in range(schema.parts)]
            for name in (*read_from, component)
        ]
        # Stored with the first part, so that a component with another number of shards is refused.
        self._metas = [Metadata(parts[0].to, schema.name, parameters) for parts in self._sources]
        self.primary = self._sources[PRIMARY]
        self.parameters = self._metas[PRIMARY]
        self.parameters.data_keys = lambda: [(part.to, part.state) for part in self.primary]
        self._place: Place = placement("crc32", schema.parts)
        self._turn = count()

    def source(self, number: int) -> list[IndexPart]:
        """Return the parts of a source: a replica by its number, or `PRIMARY`."""
        return self._sources[number]

    def number(self, doc_id: str) -> int:
        """Return the number of a document's part."""
        return self._place(doc_id)

    def of(self, doc_id: str) -> IndexPart:
        """Return the part that a document is written to."""
        return self.primary[self._place(doc_id)]

    def document_key(self, doc_id: str) -> str:
        """Return the key of a document."""
        return f"{self.of(doc_id).tag}d:{doc_id}"

    def choose_source(self, session: str | None, pinned: int | None) -> int:
        """Return the source to read: that of earlier pages, a session's replica, or any in turn."""
        replicas = len(self._sources) - 1
        if pinned is not None:
            if pinned == PRIMARY or 0 <= pinned < replicas:
                return pinned
            raise InvalidArgumentError(
                f"{self.schema.name}: a page of replica {pinned}, of {replicas}",
                "open the index with the same read_from",
            )
        if not replicas:
            return PRIMARY
        if session is None:
            return next(self._turn) % replicas
        return crc32(session.encode(errors="replace")) % replicas

    def send(
        self, commands: Sequence[Command], *, source: int = PRIMARY, partial: bool = False
    ) -> Operation[list[Reply]]:
        """Send commands; see `send_opened`. A replica checks its own parameters."""
        return send_opened(self._metas[source], commands, partial=partial)

    def send_in_slices(
        self,
        command: Callable[[int, N], Command],
        following: Callable[[int, Any], N | None],
        begin: Sequence[N],
        *,
        source: int = PRIMARY,
        partial: bool = False,
    ) -> Operation[tuple[list[list[Any]], tuple[int, ...]]]:
        """Send calls, one for each of ``begin``, that continue in slices until all are done.

        ``command`` returns the call number n from some place, ``following`` where call n continues
        after a reply, or None. Returns the replies of each call that did not fail, and the numbers
        of the others; for ``partial`` see `send`. Cost: one exchange for each slice of the longest
        call.
        """
        pending = list(enumerate(begin))
        replies: Sequence[Any] = yield from self.send(
            [command(number, place) for number, place in pending], source=source, partial=partial
        )
        slices: dict[int, list[Any]] = {number: [] for number, _ in pending}
        while True:
            rest = []
            for (number, _), reply in zip(pending, replies, strict=True):
                if isinstance(reply, ShardFailure):
                    del slices[number]
                    continue
                slices[number].append(reply)
                if (place := following(number, reply)) is not None:
                    rest.append((number, place))
            if not rest:
                missing = tuple([n for n in range(len(begin)) if n not in slices])
                return list(slices.values()), missing
            pending = rest
            batch = [command(number, place) for number, place in pending]
            replies = yield Partial(batch) if partial else batch

    def query(
        self,
        command: Callable[[int, tuple[int, int]], Command],
        end: int,
        version: int,
        *,
        source: int = PRIMARY,
        partial: bool = False,
    ) -> Operation[tuple[list[tuple[IndexPart, list[Any]]], tuple[int, ...], bool]]:
        """Run a query on all documents of a source.

        ``command`` returns the call for a part and a range of document numbers. ``end`` is the
        index in a reply of two numbers: where the next call begins, and its second argument; or 0
        and the number behind the last document. ``version`` is that of the part's version.

        Returns the parts that did not fail with their replies, the numbers of those that did, and
        whether a document got another number in the meantime.
        """
        slices, missing = yield from self.send_in_slices(
            command,
            lambda _, reply: (reply[end], reply[end + 1]) if reply[end] else None,
            [(0, 0)] * len(self.source(source)),
            source=source,
            partial=partial,
        )
        numbers = [number for number in range(len(self.primary)) if number not in missing]
        replies_of = dict(zip(numbers, slices, strict=True))
        spans = {}
        for number, replies in replies_of.items():
            covered = [Span(reply[end] or reply[end + 1], reply[version]) for reply in replies]
            if covered[0].version != covered[-1].version:
                spans[number] = covered
        moved = spans and (yield from self._query_moved(spans, command, source, partial))
        for number, reply in moved or ():
            replies_of[number].append(reply)
        parts = self.source(source)
        return [(parts[number], replies_of[number]) for number in numbers], missing, bool(moved)

    def _query_moved(
        self,
        spans: Mapping[int, list[Span]],
        command: Callable[[int, tuple[int, int]], Command],
        source: int,
        partial: bool,
    ) -> Operation[list[tuple[int, Any]]]:
        """Query the documents that got another number while a query continued in several calls.

        A replaced document keeps its number, unless it has many words or long postings. Its new
        number is behind those that the query covers; if it moved before the query came to the old
        one, the query would miss it. Return the numbers of parts with their further replies.
        """
        parts = self.source(source)
        added: list[tuple[int, Any]] = []
        before: dict[int, set[int]] = {number: set() for number in spans}
        for _ in range(_MOVES_FOLLOWED):
            keys = {number: f"{parts[number].tag}m:0" for number in spans}
            reads = [Command(parts[n].to, key, ("LRANGE", key, 0, -1)) for n, key in keys.items()]
            logs = yield from self.send(reads, source=source, partial=partial)
            moved = {
                number: _moved(spans[number], log)
                for number, log in zip(spans, logs, strict=True)
                if not isinstance(log, ShardFailure)
            }
            if moved == before:
                break
            before = moved
            queries = [(number, new) for number, some in moved.items() for new in sorted(some)]
            replies = yield from self.send(
                [command(number, (new, new + 1)) for number, new in queries],
                source=source,
                partial=partial,
            )
            added = [
                (number, reply)
                for (number, _), reply in zip(queries, replies, strict=True)
                if not isinstance(reply, ShardFailure)
            ]
        return added

    def count(self) -> Operation[int]:
        """Return how many documents there are. Cost: one exchange."""
        return sum(docs for docs, *_ in (yield from self.states()))

    @contextmanager
    def naming_place(self, doc_id: str) -> Iterator[None]:
        """Have errors about a document's key name its shard."""
        try:
            yield
        except DamagedDataError as error:
            error.place = self.of(doc_id).to
            raise

    def states(self) -> Operation[list[tuple[int, int, int, int]]]:
        """Return documents, words, numbers and version of each part. Cost: one exchange."""
        calls = [part.call("search/state", ()) for part in self.primary]
        return [tuple(reply[:4]) for reply in (yield from self.send(calls))]

    def write(self, documents: Iterable[Any]) -> Operation[Written]:
        """Write documents; remove those given by their ids. Of equal ids the last one counts.

        Cost: an exchange for some 1,500 words of each part, fewer if documents exist; one more if
        the parameters have not been compared yet. In each exchange a part gets one command of some
        milliseconds, so that its server serves others in between.
        """
        by_part: dict[int, dict[str, Any]] = {}
        for one in documents:
            by_part.setdefault(self._place(id_of(one)), {})[id_of(one)] = one
        if not by_part:
            return Written(0, 0)
        created = any(one is not id_of(one) for items in by_part.values() for one in items.values())
        yield from open_all([self.parameters], create=created)
        if not self.parameters.checked:
            return Written(0, 0)  # there is nothing to remove
        rest = {number: list(items.values()) for number, items in by_part.items()}
        existing, pending = 0, set()
        while rest:
            batch: dict[int, Command | Transaction] = {}
            large: dict[int, Operation[Any]] = {}
            for number, items in rest.items():
                part, now = self.primary[number], items[: first_slice(items)]
                arguments = self.form.encode(now)
                ids = [id_of(item) for item in now]
                then = self.form.after and self.form.after(part, ids, False)
                if has_many_words(now, arguments):
                    large[number] = write_in_slices(part, arguments, then)
                else:
                    batch[number] = with_command(part, write_command(part, arguments), then)
            written: dict[int, Any] = {}
            if batch:
                written = dict(zip(batch, (yield [*batch.values()]), strict=True))
            for number, steps in large.items():
                written[number] = yield from steps
            for number, reply in written.items():
                _, left, *existed = reply if self.form.after is None else reply[0]
                existing += sum(existed)
                ids = [id_of(item) for item in rest[number][: len(existed)]]
                yield from self.finish(self.primary[number], ids, False, reply)
                rest[number] = rest[number][len(existed) :]
                if left:
                    pending.add(self.primary[number])
            rest = {number: items for number, items in rest.items() if items}
        while pending:
            sweeps = [
                part.call("search/sweep", (WRITE_MICROSECONDS, PENDING_SECONDS), write=True)
                for part in pending
            ]
            replies = yield sweeps
            pending = {part for part, left in zip(pending, replies, strict=True) if left}
        return Written(existing, sum(map(len, by_part.values())) - existing)

    def finish(
        self, part: IndexPart, ids: Sequence[str], rebuilt: bool, reply: Any
    ) -> Operation[None]:
        """Send what follows a write again for the documents that it has not done."""
        if self.form.after is not None:
            _, done = reply[1]
            while ids := ids[done:]:
                [[_, done]] = yield [self.form.after(part, ids, rebuilt)]

    def delete(self, force: bool) -> Operation[int]:
        """Delete all documents and the parameters; see `DocumentStructure.delete`."""
        meta = self.parameters
        yield from open_to_delete(meta, force)
        removed, columns = 0, len(self.schema.columns)
        parts = [*self.primary, *((yield from self._further()) if force else ())]
        places: dict[IndexPart, int | bytes] = dict.fromkeys(parts, b"s0" if force else 0)
        while places:
            replies = yield [
                Transaction(
                    part.to,
                    part.state,
                    tuple(
                        part.call(name, [columns, place, BUCKETS_PER_CALL], write=True)
                        for name in (self.form.clear_first, "search/clear")
                        if name
                    ),
                )
                for part, place in places.items()
            ]
            removed += sum(reply[-1][1] for reply in replies)
            following = zip(places, (reply[-1][0] for reply in replies), strict=True)
            places = {part: place for part, place in following if place}
        yield [Command(self.primary[0].to, meta.key, ("UNLINK", meta.key))]
        meta.checked = False
        return removed

    def _further(self) -> Operation[list[IndexPart]]:
        """Return the parts beyond the expected ones, if these are not shards."""
        first, schema = self.primary[0], self.schema
        [(shard, _)] = yield Locate([(first.to, first.state)])
        if shard.number is not None:
            return []
        further = []
        for page in pages(range(schema.parts, MAX_SHARDS), PARTS_LOOKED_FOR):
            parts = [_part(first.to.component, schema, number, MAX_SHARDS) for number in page]
            replies = yield [Command(part.to, part.state, ("EXISTS", part.state)) for part in parts]
            further += [part for part, exists in zip(parts, replies, strict=True) if exists]
        return further


def _moved(spans: Sequence[Span], log: Sequence[bytes]) -> set[int]:
    """Return the current numbers of documents that a query missed, given its spans in order.

    ``log`` has the documents that got other numbers: see ``lua/live.lua``.
    """
    missed = set[int]()
    for version, old, new in (map(int, entry.split()) for entry in log):
        if old in missed:
            missed.remove(old)
            missed.add(new)
            continue
        past = next((span.version for span in spans if old < span.behind), 0)
        if spans[0].version < version <= past:  # the old number was gone when its turn came
            missed.add(new)
    return missed


def id_of(document: Any) -> str:
    """Return the id of a document, which may be given by it alone."""
    return document if isinstance(document, str) else document.id


def first_slice(documents: Sequence[Any]) -> int:
    """Return how many of the first documents one command may write."""
    terms = 0
    for place, one in enumerate(documents):
        terms += 10 + (0 if isinstance(one, str) else one.size)
        if terms > TERMS_PER_CALL and place:
            return place
    return len(documents)


def has_many_words(documents: Sequence[Any], arguments: Sequence[Argument]) -> bool:
    """Return whether a single document has more words than one command may write."""
    return len(documents) == 1 and int(arguments[1]) > TERMS_PER_CALL


def write_command(
    part: IndexPart, arguments: Sequence[Argument], key: str | None = None
) -> Command:
    """Return the command that writes documents, given their encoding by `IndexParts.write`."""
    arguments = [*arguments, WRITE_MICROSECONDS, SLICE_MICROSECONDS]
    return part.call("search/write", arguments, key=key, write=True)


def write_in_slices(
    part: IndexPart,
    arguments: Sequence[Argument],
    then: Command | None = None,
    key: str | None = None,
) -> Operation[Any]:
    """Write a document that has many words, some of them at a time.

    The last command makes the document visible, and replaces the one with its id. If a writer stops
    before, the next write removes its words. ``key`` names the rebuild that writes. Returns the
    reply of the last command, ``[version, pending, existed]``; with ``then``, a command for the
    same transaction, both replies.
    """
    sent: list[Any] = [*arguments]
    columns, many, *rest = sent
    words, postings = rest[:many], rest[many : 2 * many]
    values = [None] * (many - rest[2 * many]) + rest[2 * many + 1 : -5]  # by place of their words
    doc_id, attributes, text, row, order = rest[-5:]
    while True:
        number: Argument = b""
        codes = [bytes(3)]
        for start in range(0, many, WORDS_PER_SLICE):
            page = slice(start, start + WORDS_PER_SLICE)
            given = [value for value in values[page] if value is not None]
            impacts = [posting[2:] for posting in postings[page]]
            sent = [number, len(words[page]), *words[page], len(given), *given, *impacts]
            [reply] = yield [part.call("search/add", sent, key=key, write=True)]
            if reply is None:
                break
            number = reply[0]
            codes += [reply[1][at : at + 3] for at in range(0, len(reply[1]), 3)]
        else:
            in_order = [codes[int.from_bytes(order[at : at + 3])] for at in range(0, len(order), 3)]
            its_row = _translated_row(columns, row, codes)
            sent = [columns, number, doc_id, attributes, text, its_row, b"".join(in_order)]
            show = part.call("search/show", sent, key=key, write=True)
            [reply] = yield [with_command(part, show, then)]
            if (reply if then is None else reply[0]) is not None:
                return reply


def _translated_row(columns: str, row: bytes, codes: Sequence[bytes]) -> bytes:
    """Return a document's columns with the ids of values' words instead of their places."""
    pieces, at = [], 0
    for kind in columns:
        if kind == "n":
            pieces.append(row[at : at + 8])
            at += 8
        else:
            place = int.from_bytes(row[at : at + 4], "little")
            pieces.append(codes[place][::-1] + b"\0")
            at += 4
    return b"".join(pieces)


def with_command(part: IndexPart, command: Command, then: Command | None) -> Command | Transaction:
    """Return a command, in one transaction with another one if there is one."""
    return command if then is None else Transaction(part.to, part.state, (command, then))


def _part(component: str, schema: Schema, number: int, shards: int) -> IndexPart:
    tag = f"{{{schema.name}:{number}}}:"
    return IndexPart(ShardOf(component, number, shards), tag, f"{tag}state", schema.chunk)


Progress = Callable[[int, int], object]
Recover = Callable[[str, bytes, str, Words, bool], Any]

_SCANNED: Final = 2_000  # of a server's keys, in one command
_WORDS_AT_ONCE: Final = 1_000
MOST_WORDS: Final = 2**24 - 1
_LOSSY: Final = "restore a backup, or drop the lost documents: rebuild(lossy=True)"


class _Lexicon(NamedTuple):
    words: dict[int, bytes]  # by their ids
    starts: list[bytes]  # the first three bytes of words
    wrong: list[tuple[bytes, bytes]]  # starts, and words with invalid ids or those of others
    free: int  # the lowest id that neither a word nor a value of text has
    removed: int  # how many ids below it have no word


_NO_WORDS: Final = _Lexicon({}, [], [], 1, 0)


def rebuild_parts(parts: IndexParts, lossy: bool, progress: Progress | None) -> Operation[int]:
    """Store lost parameters, and index all documents again; see `DocumentStructure.rebuild`."""
    form = parts.form
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
        cursor = Cursor(part.to, part.state)
        while (yield from cursor.more()):
            cursor.at, keys = yield from _scan(part, "o", cursor.at)
            left = yield from _read(part, keys, form.recover, words, lossy, remove=True)
            while left:
                page = left[: first_slice(left)]
                arguments = form.encode(page)
                ids = [document.id for document in page]
                then = form.after and form.after(part, ids, True)
                if has_many_words(page, arguments):
                    reply = yield from write_in_slices(part, arguments, then, rebuild)
                else:
                    write = write_command(part, arguments, rebuild)
                    [reply] = yield [with_command(part, write, then)]
                yield from parts.finish(part, ids, True, reply)
                done, left = done + len(page), left[len(page) :]
                if progress is not None:
                    run(progress, done, max(total, done))
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
    begin = (lexicon.free, lexicon.removed)
    yield [part.call("search/begin_rebuild", begin, key=rebuild, write=True)]
    cursor = Cursor(part.to, part.state)
    while (yield from cursor.more()):
        arguments = (cursor.at, _SCANNED, int(keep_words))
        [cursor.at] = yield [part.call("search/set_aside", arguments, key=rebuild, write=True)]
    drops: list[tuple[Key, ...]]
    drops = [(len(page), *page) for page in pages(lexicon.starts, _WORDS_AT_ONCE)]
    drops += [(0, *chain(*page)) for page in pages(lexicon.wrong, _WORDS_AT_ONCE)]
    for dropped in drops:
        yield [part.call("search/drop_words", dropped, key=rebuild, write=True)]
    return lexicon.words


def _lexicon(part: IndexPart) -> Operation[_Lexicon]:
    """Read all words of a part. Cost: a SCAN of its server, and two exchanges for 2,000 keys."""
    words: dict[int, bytes] = {}
    starts: dict[bytes, None] = {}
    wrong: dict[tuple[bytes, bytes], None] = {}
    [state] = yield from read_or_note([part.read_state("words")], [])
    stated = whole_or_0(state[0] if state else None)
    free = stated if 1 <= stated <= MOST_WORDS else 1  # the keys tell it, too
    cursor = Cursor(part.to, part.state)
    while (yield from cursor.more()):
        cursor.at, keys = yield from _scan(part, "ly", cursor.at)
        lexicon = [key for key in keys if key.startswith(f"{part.tag}l:".encode())]
        all_entries = yield from contents(part.to, "HASH", lexicon, [])
        for key, entries in zip(lexicon, all_entries, strict=True):
            start = key[len(part.tag) + 2 :]
            starts[start] = None
            for word, text in entries:
                id_ = whole_or_0(text)
                if not 0 < id_ <= MOST_WORDS or word[:3] != start:
                    wrong[start, word] = None
                elif words.setdefault(id_, word) != word:
                    wrong[start, word] = wrong[words[id_][:3], words[id_]] = None
                if id_ <= MOST_WORDS:
                    free = max(free, id_ + 1)
        values = [key for key in keys if key not in lexicon]
        all_entries = yield from contents(part.to, "HASH", values, [])
        for key, entries in zip(values, all_entries, strict=True):
            bucket = key.rpartition(b":")[2]
            for index, _ in entries:
                if bucket.isdigit() and len(bucket) < 7 and index.isdigit() and len(index) < 4:
                    id_ = 128 * int(bucket) + int(index)
                    free = max(free, id_ + 1) if id_ <= MOST_WORDS else free
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

    def __init__(self, driver: Driver, parts: IndexParts) -> None:
        super().__init__(driver, parts.component, parts.schema.name)
        self._parts, self.schema = parts, parts.schema

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

        ``lossy`` deletes documents that are lost or cannot be read, and continues. ``progress`` is
        called with the numbers of indexed documents and of all documents.

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
