"""Documents as users give them, as scripts take them, and as they are returned."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from shardkit.errors import DamagedDataError, InvalidArgumentError, StructureError
from shardkit.operations.arguments import is_number, parse_json, shown
from shardkit.operations.commands import Argument
from shardkit.routing.keys import key_bytes
from shardkit.search.schema import Schema, TermCounts, impact_byte
from shardkit.structures.codecs.plain import inflated, most_inflated

Value: TypeAlias = float | date | datetime | str | tuple[str, ...]
Text: TypeAlias = str | Mapping[str, str]
Attributes: TypeAlias = Mapping[str, Any]

MAX_ID_BYTES: Final = 1024
_END: Final = b"\xff"  # ends each of several values; UTF-8 never has it
_MISSING: Final = math.nan
_PLAIN, _PACKED = b"\0", b"\1"
_HEADER: Final = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Document:
    """A document of an index.

    Attributes:
        attributes: the attributes that it has, by name: numbers, dates (datetimes in UTC), text, or
            several texts as a tuple.
        text: its fields by name; None if the index keeps no text.
    """

    id: str
    attributes: dict[str, Value]
    text: dict[str, str] | None


class PreparedDocument(NamedTuple):
    """A document checked and split into words, before its words are numbered."""

    id: str
    attributes: bytes
    text: bytes
    columns: list[float | list[bytes]]  # numbers, or values of text, empty if missing
    fields: list[list[str]]  # the terms of each field, in order
    size: int  # the number of terms


def check_id(schema: Schema, doc_id: object) -> str:
    """Check a document's id."""
    try:
        if isinstance(doc_id, str) and 0 < len(key_bytes(doc_id)) <= MAX_ID_BYTES:
            return doc_id
    except TypeError:
        pass
    raise InvalidArgumentError(
        f"{schema.name}: document id {shown(doc_id)}",
        f"give text, 1 to {MAX_ID_BYTES:,} bytes of UTF-8",
    )


def check_ids(schema: Schema, ids: Iterable[str]) -> Iterator[str]:
    """Iterate over the ids of documents, each checked."""
    if isinstance(ids, str):
        raise InvalidArgumentError(f"{schema.name}: ids={shown(ids)}", "give a list of ids")
    return (check_id(schema, doc_id) for doc_id in ids)


def prepare(
    schema: Schema, doc_id: str, text: Text, attributes: Attributes | None
) -> PreparedDocument:
    """Check a document, and split its text into words."""
    doc_id = check_id(schema, doc_id)
    given = _texts(schema, doc_id, text)
    terms = schema.analyzer.terms
    fields = [terms(given[name]) if name in given else [] for name in schema.fields]
    stored, columns = _attributes(schema, doc_id, attributes or {})
    return PreparedDocument(
        doc_id,
        json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode(),
        _stored_text(schema, given) if schema.keep_text else b"",
        columns,
        fields,
        sum(map(len, fields)),
    )


def _texts(schema: Schema, doc_id: str, text: object) -> dict[str, str]:
    if isinstance(text, str):
        text = {next(iter(schema.fields)): text}
    if not isinstance(text, Mapping):
        raise InvalidArgumentError(
            f"{schema.name}: document {shown(doc_id)}: text={shown(text)}",
            "give text, or a mapping of fields to text",
        )
    for name, value in text.items():
        if name not in schema.fields:
            raise InvalidArgumentError(
                f"{schema.name}: document {shown(doc_id)}: text field {shown(name)} is unknown",
                f"use one of {', '.join(schema.fields)}",
            )
        if not isinstance(value, str) or re.search("[\ud800-\udfff]", value):
            raise InvalidArgumentError(
                f"{schema.name}: document {shown(doc_id)}: field {name}={shown(value)}",
                "give text that can be encoded as UTF-8",
            )
    return dict(text)


def _attributes(
    schema: Schema, doc_id: str, given: object
) -> tuple[list[Any], list[float | list[bytes]]]:
    """Return the attributes by place: the stored values, and the values of their columns."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{schema.name}: document {shown(doc_id)}: attributes={shown(given)}",
            "give a mapping by name",
        )
    for name in given:
        if name not in schema.attributes:
            raise InvalidArgumentError(
                f"{schema.name}: document {shown(doc_id)}: attribute {shown(name)} is unknown",
                f"use one of {', '.join(schema.attributes) or 'no attribute'}",
            )
    stored: list[Any] = []
    columns: list[float | list[bytes]] = []
    for name, kind in schema.attributes.items():
        value = given.get(name)
        try:
            shape, column = _READERS[kind](value) if value is not None else (None, None)
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"{schema.name}: document {shown(doc_id)}: attribute {name}={shown(value)}",
                _REMEDIES[kind],
            ) from None
        stored.append(shape)
        columns.append(column if column is not None else [] if kind == "text" else _MISSING)
    while stored and stored[-1] is None:
        stored.pop()
    return stored, columns


def _number(value: Any) -> tuple[Any, float | None]:
    if isinstance(value, float) and math.isnan(value):
        return None, None
    if not is_number(value):
        raise ValueError
    return value, float(value)


def _date(value: Any) -> tuple[Any, float | None]:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError
        return value.astimezone(UTC).isoformat(), value.timestamp()
    if not isinstance(value, date):
        raise ValueError
    return value.isoformat(), datetime.combine(value, time(), UTC).timestamp()


def _text(value: Any) -> tuple[Any, list[bytes] | None]:
    if isinstance(value, str):
        return value, [value.encode()]
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(one, str) for one in value
    ):
        raise ValueError
    several = list(dict.fromkeys(sorted(value) if isinstance(value, set | frozenset) else value))
    return (several, [one.encode() for one in several]) if several else (None, None)


_READERS: Final[dict[str, Any]] = {"number": _number, "date": _date, "text": _text}
_REMEDIES: Final = {
    "number": "give an int or a float",
    "date": "give a date, or a datetime with tzinfo",
    "text": "give text, or a list of texts",
}


def attributes_of(schema: Schema, stored: bytes) -> dict[str, Value]:
    """Return a document's attributes as they were given."""
    attributes: dict[str, Value] = {}
    for (name, kind), value in zip(schema.attributes.items(), parse_json(stored), strict=False):
        if value is None:
            continue
        if kind == "date":
            value = date.fromisoformat(value) if len(value) == 10 else datetime.fromisoformat(value)
        attributes[name] = tuple(value) if isinstance(value, list) else value
    return attributes


def text_of(schema: Schema, stored: bytes) -> dict[str, str] | None:
    """Return a document's text as it was given; None if the index did not keep it."""
    if not stored:
        return None
    packed = stored[:1] == _PACKED
    data = inflated(zlib.decompressobj(), stored[1:]) if packed else stored[1:]
    texts = zip(schema.fields, parse_json(data), strict=False)
    return {name: text for name, text in texts if text is not None}


def _stored_text(schema: Schema, texts: Mapping[str, str]) -> bytes:
    by_field = [texts.get(name) for name in schema.fields]
    plain = json.dumps(by_field, ensure_ascii=False, separators=(",", ":")).encode()
    packed = zlib.compress(plain)
    pays = len(packed) < len(plain) <= most_inflated(len(packed))
    return _PACKED + packed if pays else _PLAIN + plain


def document_of(schema: Schema, doc_id: str, attributes: bytes, text: bytes, key: str) -> Document:
    """Return a document from its stored attributes and text."""
    try:
        return Document(
            doc_id, attributes_of(schema, attributes) if attributes else {}, text_of(schema, text)
        )
    except (ValueError, TypeError, StructureError, zlib.error) as error:
        raise DamagedDataError(
            key, f"{shown(text or attributes)} ({error})", "a document"
        ) from None


def unpack(schema: Schema, doc_id: str, stored: bytes, key: str) -> Document:
    """Return a document from the value of its key."""
    try:
        _, words, attributes = _HEADER.unpack_from(stored)
    except struct.error:
        raise DamagedDataError(key, f"{len(stored)} bytes", "a document") from None
    start = _HEADER.size + words
    end = start + attributes
    if end > len(stored):
        raise DamagedDataError(key, f"{len(stored)} bytes", f"at least {end}")
    return document_of(schema, doc_id, stored[start:end], stored[end:], key)


def recovered(
    schema: Schema, doc_id: str, stored: bytes, key: str, words: Mapping[int, bytes], lossy: bool
) -> PreparedDocument:
    """Return a document as it was indexed, from its key's value; see `rebuild_parts`.

    Its words come from its text or, without text, from its words in order.
    """
    document = unpack(schema, doc_id, stored, key)
    try:
        prepared = prepare(schema, doc_id, document.text or "", document.attributes)
    except InvalidArgumentError as error:
        raise DamagedDataError(key, str(error), "a document") from None
    _, size, attributes = _HEADER.unpack_from(stored)
    text = stored[_HEADER.size + size + attributes :]
    if document.text is None:
        if not schema.phrases:
            raise DamagedDataError(key, "neither text nor the order of words", "one of both")
        fields = terms_in(stored, key, words, lossy, len(schema.fields))
        prepared = prepared._replace(fields=fields, size=sum(map(len, fields)))
    return prepared._replace(text=text)


def names_words(stored: bytes) -> bool:
    """Return whether a document has no text, so that its words cannot be recovered from it."""
    if len(stored) < _HEADER.size:
        return False
    _, words, attributes = _HEADER.unpack_from(stored)
    return len(stored) <= int(_HEADER.size + words + attributes)


def terms_in(
    stored: bytes, key: str, words: Mapping[int, bytes], lossy: bool, fields: int
) -> list[list[str]]:
    """Return the words in the value of a document's key, in order, by field.

    ``lossy`` leaves out unknown words. Words of all fields and values in no order are one field.
    """
    _, size, _ = _HEADER.unpack_from(stored)
    terms: list[list[str]] = [[]]
    for at in range(_HEADER.size, _HEADER.size + size, 3):
        number = int.from_bytes(stored[at : at + 3])
        if not number and len(terms) == fields:
            break  # behind it are values
        if not number:
            terms.append([])
        elif number in words:
            terms[-1].append(words[number].decode(errors="replace"))
        elif not lossy:
            raise DamagedDataError(key, f"word {number}", "a word of the lexicon")
    return terms


def value_term(place: int, value: bytes) -> bytes:
    """Return the lexicon's word for a value, or for several joined ones, of column ``place``.

    No text contains it. It has 96 bits of a digest, so values of any length compare as a whole.
    """
    return b"\1%c%b" % (48 + place, b64encode(blake2b(value, digest_size=12).digest()))


def join_values(values: Sequence[bytes]) -> bytes:
    """Return a document's values of an attribute as they are stored; a single one as it is."""
    return values[0] if len(values) == 1 else b"".join(value + _END for value in values)


def split_values(stored: bytes) -> list[bytes]:
    """Return the values that `join_values` joined."""
    return stored[:-1].split(_END) if stored.endswith(_END) else [stored]


def write_arguments(schema: Schema, documents: Iterable[PreparedDocument | str]) -> list[Argument]:
    """Return the arguments of ``search/write``, from the columns on, for documents of one part.

    An id removes its document.
    """
    documents = list(documents)
    indexed = [doc for doc in documents if isinstance(doc, PreparedDocument)]
    terms = dict.fromkeys(term for doc in indexed for terms in doc.fields for term in terms)
    values: dict[bytes, bytes] = {}
    for doc in indexed:
        for place, given in enumerate(doc.columns, 1):
            if isinstance(given, list) and given:
                for value in (*given, join_values(given)):
                    values[value_term(place, value)] = value
    codes = {term: place.to_bytes(3) for place, term in enumerate(terms, 1)}
    places = {term: place for place, term in enumerate(values, len(terms) + 1)}
    words: list[str | bytes] = [*terms, *values]
    postings = {word: bytearray() for word in words}
    rest: list[Argument] = []
    for number, one in enumerate(documents):
        if isinstance(one, str):
            rest += (one, b"", b"", b"", b"")
        else:
            _add_postings(schema, one, number.to_bytes(2), postings)
            rest += (one.id, one.attributes, one.text, *_encoded(schema, one, codes, places))
    arguments: list[Argument] = [schema.columns, len(words), *words]
    arguments += map(bytes, postings.values())
    arguments += (len(values), *values.values())
    return arguments + rest


def _add_postings(
    schema: Schema, doc: PreparedDocument, place: bytes, postings: Mapping[str | bytes, bytearray]
) -> None:
    average, size = schema.average_length, doc.size
    weighted: dict[str, float] = {}
    masks: dict[str, int] = {}
    for number, (terms, weight) in enumerate(zip(doc.fields, schema.fields.values(), strict=True)):
        for term, times in Counter(terms).items():
            weighted[term] = weighted.get(term, 0.0) + weight * times
            masks[term] = masks.get(term, 0) | 1 << number
    for term, tf in weighted.items():
        postings[term] += place + bytes((impact_byte(tf, size, average), masks[term]))
    for column, given in enumerate(doc.columns, 1):
        if isinstance(given, list):
            for value in given:
                postings[value_term(column, value)] += place + b"\0\0"


def _encoded(
    schema: Schema, doc: PreparedDocument, codes: Mapping[str, bytes], places: Mapping[bytes, int]
) -> tuple[bytes, bytes]:
    columns, tagged = [], []
    for place, given in enumerate(doc.columns, 1):
        if not isinstance(given, list):
            columns.append(struct.pack("<d", given))
        else:
            code = places[value_term(place, join_values(given))] if given else 0
            columns.append(struct.pack("<I", code))
            tagged += [places[value_term(place, value)].to_bytes(3) for value in given]
    if schema.phrases:
        words = b"".join(
            b"".join([codes[term] for term in terms]) + b"\0\0\0" for terms in doc.fields
        )
    else:
        words = b"".join(dict.fromkeys(codes[term] for terms in doc.fields for term in terms))
    return b"".join(columns), words + b"".join(tagged)


OrderValue: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches.

    Attributes:
        value: its value in the order: its score, a number (a date as seconds since 1970 UTC), or
            text; 0 or empty text if the document has none.
        attributes: its requested attributes.
        snippet: the part of its text that best shows why it matches, if requested and if the index
            keeps text.
    """

    id: str
    value: OrderValue
    attributes: dict[str, Value] = field(default_factory=dict)
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A page of hits. Iterating over it yields them.

    Attributes:
        total: the number of matching documents, in all parts that replied.
        hits: those of this page, in order.
        cursor: where the next page begins, for ``cursor=``; None if there is none.
        result: the cached result, for ``result=`` of further pages; None if nothing is cached.
        facets: by attribute, values and their numbers of matches, the most frequent first.
        missing: the parts that failed, if partial results were requested.
    """

    total: int
    hits: list[Hit]
    cursor: str | None = None
    result: str | None = None
    facets: dict[str, list[tuple[OrderValue, int]]] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether parts are missing."""
        return bool(self.missing)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class SearchCursor(NamedTuple):
    """The end of a page."""

    query: str  # a digest of the query and its order
    source: int  # the number of the component that was read
    value: OrderValue  # of the last hit
    id: str
    counts: TermCounts | None  # the weights of relevance

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


class CachedResult(NamedTuple):
    """A result that servers cache."""

    query: str  # a digest of the query and its order
    source: int  # the number of the component that caches it
    key: str  # the end of its keys
    counts: TermCounts | None  # the weights of relevance

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


def _token(*fields: Any) -> str:
    *given, counts = fields
    plain = json.dumps([*given, counts and [counts.documents, dict(counts.words)]])
    packed = zlib.compress(plain.encode())
    return urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(owner: str, text: str) -> SearchCursor:
    """Decode a cursor."""
    return SearchCursor(*_read(owner, "cursor", text, (str, int, (float, int, str), str)))


def read_cached_result(owner: str, text: str) -> CachedResult:
    """Decode the token of a cached result."""
    return CachedResult(*_read(owner, "result", text, (str, int, str)))


def _read(owner: str, what: str, text: str, types: tuple[Any, ...]) -> Any:
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        *given, counts = parse_json(unpacker.decompress(packed, 1_000_000))
        "".join(map(str, given)).encode()  # no lone surrogates
        if all(
            isinstance(value, kind) and not isinstance(value, bool)
            for value, kind in zip(given, types, strict=True)
        ):
            return [*given, None if counts is None else _counts(*counts)]
    except (ArithmeticError, LookupError, TypeError, ValueError, zlib.error):
        pass
    raise InvalidArgumentError(
        f"{owner}: {what}={shown(text)}", "give one that `search` returned"
    ) from None


def _counts(documents: int, words: Mapping[str, int]) -> TermCounts:
    counts = TermCounts(documents, dict(words))
    if not all(weight >= 0 for weight in counts.weights(words)):  # which raises, too
        raise ValueError
    return counts
