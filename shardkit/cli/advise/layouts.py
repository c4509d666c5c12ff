"""The structures that fit a family of keys, and the bytes that each would take: predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from math import ceil
from typing import Any

from shardkit.admin.conversion.forms import PRESENT, Conversion, Into
from shardkit.cli.advise.sampling import SampledFamily, SampledKey
from shardkit.cli.advise.servers import (
    ExpiringFields,
    MemoryModel,
    entry_size,
    integer_width,
    mean_size,
)
from shardkit.errors import ShardKitError
from shardkit.structures import codec
from shardkit.structures.layouts.growing import GROUPS, max_load
from shardkit.structures.list.sharded_list import DEFAULT_PART_SIZE
from shardkit.structures.packed.record_format import RecordFormat
from shardkit.structures.unique.precision import expected_after, parts_for

LIMIT = 64  # bytes of an entry of a compact key, unless the setting is raised,
MOST = 1_024  # which is worth it up to this
_SIZES = (64, 128, 256, 512)  # of parts
_WORTH = 1.03  # larger parts must save more than this
_PART_BYTES = 32_736  # of packed records
_SPARSE = 0.1  # of the numbers exist: fewer are hashed as text
_LONG = 400  # bytes of a value that compresses by itself
_PRECISIONS = ("exact", "60-bit", "compact", "hyperloglog")
_UUID = b"\xff" * 16  # as unique visitors store one
_SHORT = 8  # bytes of a value: a dictionary helps longer ones
_STATE = 46  # bytes of the listpack of a group's state

DAY = date(2026, 11, 26)  # on which visitors come in a check

Predict = Callable[[MemoryModel, int], float]  # returns the bytes of a number of entries
Row = tuple[bytes, bytes, Any]  # key, name and raw value


@dataclass
class LayoutChoice:
    """A way to store a family."""

    conversion: Conversion
    rows: Sequence[Row]  # sampled entries, with which it is checked
    total: int  # how many entries the family has
    predict: Predict  # replaced once a dictionary is trained
    settings: Mapping[str, int] = field(default_factory=dict)  # limits of the server
    with_values: Callable[[Sequence[bytes]], Predict] | None = None  # makes it for stored values
    times: int = 1  # how many such structures there are: days
    note: str = ""  # what to know about it
    dense: bool = False  # whether its fields are numbers, nearly one after the other


def layouts_of(family: SampledFamily, model: MemoryModel) -> tuple[list[LayoutChoice], str]:
    """Return the structures that fit a family on a kind of server; or none, and why."""
    choices, reason = _fitting(family, model)
    if family.expires:
        for choice in choices:
            choice.conversion = replace(choice.conversion, expires=True)
            if not choice.conversion.by_key:
                choice.predict = _with_times(choice.predict)
    return choices, reason


def _with_times(predict: Predict) -> Predict:
    return lambda model, count: predict(replace(model, key=model.key + model.due), count)


def _fitting(family: SampledFamily, model: MemoryModel) -> tuple[list[LayoutChoice], str]:
    kind, pattern = family.family.type, family.pattern
    if pattern is not None and pattern.variables == ("date",) and kind == "set":
        return list(_visitors(family)), "its members are not sessions"
    if kind == "stream":
        entry_size = family.memory / max(family.entries, 1)
        return [], f"a STREAM is compact at any length: {entry_size:.0f} bytes an entry"
    if pattern is None and kind in _LARGE:
        if not family.large:
            return [], "one small key"
        return list(_LARGE[kind](family)), "its members are too long"
    if family.large:
        return [], "many large keys: each can be a structure; --match NAME advises on one"
    if kind == "list":
        return [], "a LIST is compact at any length"
    if pattern is None or kind not in ("string", "hash"):
        return [], f"no structure stores many small keys of type {kind}"
    known = [key for key in family.keys if key.value is not None]
    if len(known) < len(family.keys) / 2 or len(known) < 2:
        return [], "too few values of a size that is read: sample more"
    if kind == "string" and any(key.value[:4] == b"HYLL" for key in known):
        return [], "HyperLogLogs have no smaller form"
    if not family.expires:
        return [*_packed(family, known), *_values(family, known, model)], "its values are not text"
    if model.fields is None:
        return [], "its keys expire, fields of a HASH only from Redis 7.4, Valkey 9.0 on"
    return list(_values(family, known, model)), "its values are not text"


# ---- many small keys


def _rows(
    family: SampledFamily, keys: Sequence[SampledKey], numbered: bool, start: int = 4096
) -> list[Any]:
    """Return the rows of keys; numbers from a multiple on, as near to each other as they are."""
    pattern = family.pattern
    assert pattern is not None
    names = [pattern.field_of(key.name) or b"" for key in keys]
    if numbered:
        first = family.numbers[len(family.numbers) // 2] // start * start
        names = [b"%d" % (first + int(n / family.density)) for n in range(len(keys))]
    return [(key.name, name, key.value) for key, name in zip(keys, names, strict=True)]


def _values(
    family: SampledFamily, known: Sequence[SampledKey], model: MemoryModel
) -> Iterator[LayoutChoice]:
    """Yield hashes whose fields are the keys, with codecs."""
    pattern, kind = family.pattern, family.family.type
    assert pattern is not None
    numbered = bool(family.numbers) and family.density >= _SPARSE
    rows = _rows(family, known, numbered)
    into: Into = "strings" if kind == "string" else "hash"
    name = pattern.name if into == "strings" else f"{pattern.name}:hash"
    parameters = {"partition": "crc32"} if family.numbers and not numbered else {}
    conversion = Conversion(family.family.text, kind, into, name, parameters)
    expiring = model.fields if family.expires else None
    yield from _in_codecs(family, conversion, kind, rows, family.count, numbered, expiring)


def _in_codecs(
    family: SampledFamily,
    conversion: Conversion,
    kind: str,
    rows: Sequence[Row],
    total: int,
    numbered: bool,
    expiring: ExpiringFields | None = None,
) -> Iterator[LayoutChoice]:
    for coded, note in _codecs(kind, [value for _, _, value in rows]):
        if expiring is not None:
            note = "; ".join(filter(None, [note, "needs Redis 7.4 or Valkey 9.0: fields expire"]))
        chosen = conversion
        if coded is not None:
            chosen = replace(conversion, parameters={"codec": coded, **conversion.parameters})
        yield from _fields(family, chosen, rows, total, numbered, expiring, note)


def _fields(
    family: SampledFamily,
    conversion: Conversion,
    rows: Sequence[Row],
    total: int,
    numbered: bool,
    expiring: ExpiringFields | None,
    note: str,
) -> Iterator[LayoutChoice]:
    coded = conversion.codec
    trained = coded is not None and coded.startswith(("tokens", "zstd"))
    encoder = codec(coded)
    try:
        stored = [_encoded(encoder, conversion, raw) for _, _, raw in rows]
    except (ShardKitError, ValueError, UnicodeDecodeError):
        return
    parameters = dict(conversion.parameters)
    name = conversion.base

    def predicting(values: Sequence[bytes], size: int) -> Predict:
        text = mean_size([field_ for _, field_, _ in rows])
        longest = max(map(len, values))
        length = sum(map(len, values)) / len(values)
        entry = mean_size(values)

        fields = [b"%d" % (int(field) % size) if numbered else field for _, field, _ in rows]
        pairs = list(zip(fields, values, strict=False))  # of a dictionary's check half of them

        def part(model: MemoryModel, count: float) -> float:
            if expiring is not None:
                return model.expiring_part(f"{name}:1234", pairs, count, longest <= MOST)
            if longest > MOST:
                return model.table(f"{name}:1234", count, length)
            own = 2.0 + max(0.0, 1 - 128 / size) if numbered else text
            return model.part(f"{name}:1234", 7 + count * (own + entry))

        if not numbered:
            return _growing(name, size, part)
        fill = size * family.density if size > 1 else 1.0
        return lambda model, count: count / fill * part(model, fill)

    longest = max(map(len, stored))
    tables = expiring is not None and (expiring.compact is None or longest > MOST)
    size = 256
    if tables:  # Valkey's tables of more fields that expire take twice as much
        size = 64 if numbered else 128
        parameters["part_size"] = size
    elif numbered:
        any_server = replace(_ANY, fields=expiring)
        sizes = {size: predicting(stored, size)(any_server, total) for size in _SIZES}
        size = next(size for size in _SIZES if sizes[size] <= min(sizes.values()) * _WORTH)
        if size != 128:
            parameters["part_size"] = size
    settings = {
        "hash-max-listpack-value": MOST if longest > 512 else 1 << (longest - 1).bit_length()
    }
    yield LayoutChoice(
        replace(conversion, parameters=parameters, train=len(rows) // 2 if trained else 0),
        rows,
        total,
        predicting(stored, size),
        settings if LIMIT < longest <= MOST and not tables else {},
        (lambda values: predicting(values, size)) if trained else None,
        note=note,
        dense=numbered,
    )


_ANY = MemoryModel(jemalloc=False, key=64.0, entry=48.0)  # to compare part sizes


def _growing(name: str, size: int, part: Callable[[MemoryModel, float], float]) -> Predict:
    """Return the bytes of groups of parts that split as they fill."""
    load = max_load(size)

    def predict(model: MemoryModel, count: int) -> float:
        members_each = count / GROUPS
        parts = max(1, ceil(members_each / load))
        level = 1 << (parts.bit_length() - 1)
        unsplit = (2 * level - parts) * part(model, members_each / level)
        halves = 2 * (parts - level) * part(model, members_each / level / 2)
        return GROUPS * (unsplit + halves + model.part(f"{name}:{{12}}", _STATE))

    return predict


def _encoded(encoder: Any, conversion: Conversion, raw: Any) -> bytes:
    if isinstance(raw, dict):
        value: Any = {key.decode(): text.decode() for key, text in raw.items()}
    elif conversion.codec is None:
        value = raw
    else:
        value = raw.decode() if conversion.codec.endswith("text") else json.loads(raw)
        if value is None:
            raise ValueError("null")
    stored = encoder.encode(value)
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def _codecs(kind: str, values: Sequence[Any]) -> Iterator[tuple[str | None, str]]:
    """Yield the codecs that may fit values, and what to know about each."""
    whole = "a field is changed by reading and writing its record" if kind == "hash" else ""
    if kind == "string":
        yield None, ""
    documents = kind == "hash" or all(value[:1] in (b"{", b"[") for value in values)
    mean = sum(len(v if isinstance(v, bytes) else str(v)) for v in values) / len(values)
    names = ["tokens" if mean < _LONG else "lz4", "zstd"] if mean >= _SHORT else []
    names = ["json", "msgpack", *names] if documents else [f"{codec}-text" for codec in names]
    for name in names:
        try:
            codec(name)
        except ShardKitError:  # its library is not installed
            continue
        yield name, whole


def _packed(family: SampledFamily, known: Sequence[SampledKey]) -> Iterator[LayoutChoice]:
    """Yield packed records, if all values are whole numbers by number."""
    numbers, kind, pattern = family.numbers, family.family.type, family.pattern
    if not numbers or pattern is None or numbers[-1] >= 2**32:
        return
    records = [key.value if kind == "hash" else {b"value": key.value} for key in known]
    names = records[0].keys()
    types: dict[str, str] = {}
    zeros = False
    try:
        if any(record.keys() != names for record in records):
            return
        for name in names:
            values = [int(record[name]) for record in records]
            if any(b"%d" % n != record[name] for n, record in zip(values, records, strict=True)):
                return
            types[name.decode()] = _integer_type(values)
        zeros = any(all(int(text) == 0 for text in record.values()) for record in records)
        if zeros or kind == "hash":
            types[PRESENT] = "u1"
        size = RecordFormat(types).size
    except (ValueError, ShardKitError):
        return
    per_part = int(_PART_BYTES / max(size, 1))
    name = f"{pattern.name}:packed"
    all_parts = numbers[-1] // per_part - numbers[0] // per_part + 1

    def predict(model: MemoryModel, count: int) -> float:
        parts = all_parts if count == family.count else ceil(count / family.density / per_part)
        return parts * model.part(f"{name}:1234", _PART_BYTES + 6)

    yield LayoutChoice(
        Conversion(family.family.text, kind, "packed", name, {"fields": types}),
        _rows(family, known, numbered=True, start=per_part),
        family.count,
        predict,
        note="numbers of these widths only",
        dense=True,
    )


def _integer_type(values: Sequence[int]) -> str:
    """Return the type for numbers, with room for twice as high ones."""
    low, high = min(values), max(values)
    if low >= 0:
        return f"u{1 if high <= 1 else min(63, -(-(high.bit_length() + 1) // 8) * 8)}"
    bits = max(high.bit_length(), (~low).bit_length()) + 2
    return f"i{min(64, -(-bits // 8) * 8)}"


# ---- one large key


def _hash(family: SampledFamily) -> Iterator[LayoutChoice]:
    rows = [(family.keys[0].name, name, value) for name, value in family.members]
    digits = all(name.isdigit() and len(name) < 20 for name, _ in family.members)
    numbers = sorted(int(name) for name, _ in family.members) if digits else []
    dense = bool(numbers) and family.entries / (numbers[-1] - numbers[0] + 1)
    numbered = bool(numbers) and dense >= _SPARSE
    if numbered:
        family.density = min(1.0, dense)
        first = numbers[len(numbers) // 2] // 4096 * 4096
        rows = [
            (key, b"%d" % (first + int(n / family.density)), raw)
            for n, (key, _, raw) in enumerate(rows)
        ]
    text = family.family.text
    parameters = {"partition": "crc32"} if digits and not numbered else {}
    conversion = Conversion(text, "hash", "hash", f"{text}:hash", parameters)
    yield from _in_codecs(family, conversion, "string", rows, family.entries, numbered)


def _set(family: SampledFamily) -> Iterator[LayoutChoice]:
    text, members = family.family.text, [name for name, _ in family.members]
    rows = [(family.keys[0].name, name, True) for name in members]
    integers = all(entry_size(name) <= 10 and _is_integer(name) for name in members)
    name = f"{text}:set"
    if integers:
        size, parameters = 512, {"members": "int"}
        head, entry = 8, float(integer_width(map(int, members)))
    else:
        size, parameters = 128, {}
        head, entry = 7, mean_size(members)

    def part(model: MemoryModel, count: float) -> float:
        return model.part(f"{name}:{{12}}:12", head + count * entry)

    longest = max(map(len, members))
    settings = {"set-max-listpack-value": 1 << (longest - 1).bit_length()}
    settings = settings if not integers and LIMIT < longest <= MOST else {}
    if not integers and longest > MOST:
        return
    conversion = Conversion(text, "set", "set", name, parameters)
    yield LayoutChoice(
        conversion,
        rows,
        family.entries,
        _growing(name, size, part),
        settings,
        note="parts split as they fill",
    )
    total = family.entries

    def planned(model: MemoryModel, count: int) -> float:
        parts = max(1, 2 * count // size)
        return parts * part(model, count / parts)

    yield LayoutChoice(
        Conversion(text, "set", "set", name, {**parameters, "total": total}),
        rows,
        total,
        planned,
        settings,
        note="for twice as many members at most",
    )


def _is_integer(text: bytes) -> bool:
    digits = text.removeprefix(b"-")
    return digits.isdigit() and b"%d" % int(text) == text


def _sorted_set(family: SampledFamily) -> Iterator[LayoutChoice]:
    text = family.family.text
    rows = [(family.keys[0].name, name, score) for name, score in family.members]
    name = f"{text}:sorted"
    entry = mean_size([name for name, _ in family.members]) + mean_size(
        [
            b"%d" % score if abs(score) < 2**62 and score == int(score) else repr(score).encode()
            for _, score in family.members
        ]
    )
    if max(len(name) for name, _ in family.members) > LIMIT:
        return

    def part(model: MemoryModel, count: float) -> float:
        return model.part(f"{name}:{{12}}:12", 7 + count * entry)

    grown = _growing(name, 128, part)
    bound = 11  # members at least, at each end of a group, with bound=100

    def predict(model: MemoryModel, count: int) -> float:
        ends = min(1.5 * bound, count / GROUPS)
        return grown(model, count) + 2 * GROUPS * part(model, ends)

    yield LayoutChoice(Conversion(text, "zset", "sorted_set", name), rows, family.entries, predict)


def _list(family: SampledFamily) -> Iterator[LayoutChoice]:
    text, values = family.family.text, [value for _, value in family.members]
    entry = mean_size(values)
    name = f"{text}:list"

    def predict(model: MemoryModel, count: int) -> float:
        full, rest = divmod(count, DEFAULT_PART_SIZE)
        parts = full * model.list_part(f"{{{name}}}:123", DEFAULT_PART_SIZE * entry)
        return parts + model.list_part(f"{{{name}}}:123", rest * entry)

    try:
        parameters: dict[str, Any] = {}
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        parameters = {"values": "bytes"}
    yield LayoutChoice(
        Conversion(text, "list", "list", name, parameters),
        [(family.keys[0].name, name, value) for name, value in family.members],
        family.entries,
        predict,
        note="saves no memory; see docs/lists.md for what it is good at",
        dense=True,
    )


_LARGE: Mapping[str, Callable[[SampledFamily], Iterator[LayoutChoice]]] = {
    "hash": _hash,
    "set": _set,
    "zset": _sorted_set,
    "list": _list,
}


# ---- a SET of visitors for each day


def _visitors(family: SampledFamily) -> Iterator[LayoutChoice]:
    members = [name for name, _ in family.members]
    pattern = family.pattern
    if not members or pattern is None:
        return
    hexadecimal = all(map(_is_hexadecimal, members))
    name = f"{pattern.name}:unique"
    rows = [(family.keys[0].name, member, DAY) for member in members]
    per_day = ceil(family.entries / family.count)
    for precision in _PRECISIONS:
        if precision == "60-bit" and not hexadecimal:
            continue
        parameters: dict[str, Any] = {"precision": precision}
        if precision != "hyperloglog":
            parameters["first_day"] = per_day
        conversion = Conversion(family.family.text, "set", "unique_visitors", name, parameters)
        yield LayoutChoice(
            conversion,
            rows,
            per_day,
            _day(precision, name, members),
            times=family.count,
            note={"hyperloglog": "an estimate: 0.81 % standard error"}.get(precision, ""),
        )


def _is_hexadecimal(session: bytes) -> bool:
    digits = session.replace(b"-", b"")
    return len(digits) == 32 and not digits.strip(b"0123456789abcdefABCDEF")


def _day(precision: str, name: str, members: Sequence[bytes]) -> Predict:
    size = 128 if precision == "exact" else 512
    text = [_UUID if _is_hexadecimal(member) else member for member in members]
    id_size = {"exact": mean_size(text), "60-bit": 8.0, "compact": 4.0}.get(precision, 0.0)

    def predict(model: MemoryModel, count: int) -> float:
        if precision == "hyperloglog":
            return model.part(f"{name}:{DAY}", 12_304)
        parts = parts_for(expected_after(count), size)
        key = f"{name}:{DAY}:123"
        return parts * model.part(key, 8 + count / parts * id_size) + 4 * model.part(key, 40)

    return predict
