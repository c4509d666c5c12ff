"""What a family of keys becomes, and how its entries are read there and in the structure.

An *entry* is what a structure finds by a name: a field and its value, a member, a record.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from math import ceil
from typing import Any, Literal, NamedTuple

from shardkit.admin.locate import MEMBER_TYPES
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.operations.arguments import check_calls, parse_json
from shardkit.structures import codec

_LONGEST = 64  # parts of a name that is compared with others: time grows with their square
_MANY = 16  # distinct words in one place from which on they are values, not names
_KINDS = {
    "uuid": rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "date": rb"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "n": rb"[0-9]+",
    "hex": rb"(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{16,}",
    "text": rb"[^:/|#{}]+",
}
_OUTER = re.compile(rb"([:/|#{}])")  # between words
_INNER = re.compile(rb"([._-])")  # between words, if one of them is a number
_WHOLE = {kind: re.compile(rule) for kind, rule in _KINDS.items() if kind != "text"}
_VARIABLE = re.compile(rf"<({'|'.join(_KINDS)})>")


class _NamePart(NamedTuple):
    kind: str  # of a variable; "word", or "" for what is between words
    text: bytes


@dataclass(frozen=True)
class Pattern:
    """The names of a family: ``user:<n>:name``.

    A variable varies among the keys, and is a whole word, unlike the digit in ``v1``.
    A key's *field* is its text from the first variable to the end of the last one.

    Raises:
        InvalidArgumentError: there is no variable, or an unknown one.
    """

    text: str

    def __post_init__(self) -> None:
        unknown = [word for word in re.findall(r"<(\w+)>", self.text) if word not in _KINDS]
        if unknown or not self.variables:
            listed = ", ".join(f"<{kind}>" for kind in _KINDS)
            raise InvalidArgumentError(
                f"{self.text!r:.80} is not a family of keys", f"use {listed} for what varies"
            )

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The kinds of its variables, in order."""
        return tuple(_VARIABLE.findall(self.text))

    @cached_property
    def prefix(self) -> bytes:
        """What is before the first variable."""
        return _bytes(_VARIABLE.split(self.text)[0])

    @cached_property
    def suffix(self) -> bytes:
        """What is behind the last one."""
        return _bytes(_VARIABLE.split(self.text)[-1])

    @cached_property
    def name(self) -> str:
        """A name for a structure: ``user:name``."""
        words = re.findall(r"[\w.-]+", _VARIABLE.sub(" ", self.text))
        return ":".join(filter(None, (word.strip("_.-") for word in words))) or "values"

    @cached_property
    def glob(self) -> bytes:
        """A pattern for SCAN, which more keys may match."""
        return b"*".join([_escaped(self.prefix), _escaped(self.suffix)])

    @cached_property
    def _expression(self) -> re.Pattern[bytes]:
        parts = _VARIABLE.split(self.text)
        middle = b"".join(
            b"(?:" + _KINDS[part] + b")" if n % 2 else re.escape(_bytes(part))
            for n, part in enumerate(parts[1:-1], 1)
        )
        return re.compile(
            re.escape(self.prefix) + b"(" + middle + b")" + re.escape(self.suffix), re.DOTALL
        )

    def field_of(self, key: bytes) -> bytes | None:
        """Return a key's field; None if it does not belong to the family."""
        match = self._expression.fullmatch(key)
        return match[1] if match else None

    def key_of(self, field: bytes) -> bytes:
        """Return the key with a field."""
        return self.prefix + field + self.suffix


@dataclass
class KeyFamily:
    """Keys of one type whose names differ only in variables; or a single key, without any."""

    type: str
    text: str  # user:<n>:name, or the key's name
    keys: list[bytes] = field(default_factory=list)

    @property
    def pattern(self) -> Pattern | None:
        """Its pattern; None for a single key."""
        return Pattern(self.text) if _VARIABLE.search(self.text) else None


def families(keys: Iterable[tuple[bytes, str]]) -> list[KeyFamily]:
    """Return the families of keys, given with their types, those with the most keys first."""
    shapes: dict[tuple[str, tuple[_NamePart, ...]], list[bytes]] = defaultdict(list)
    values: dict[bytes, tuple[_NamePart, ...]] = {}
    for key, type_ in keys:
        if key not in values:
            values[key] = _tokens(key)
            parts = (t if t.kind in ("", "word") else _NamePart(t.kind, b"") for t in values[key])
            shapes[type_, tuple(parts)].append(key)
    shapes = _with_texts(shapes)
    result = []
    for (type_, shape), members in shapes.items():
        tokens = [values[key] for key in members]
        text = ""
        for n, kind in enumerate(token.kind for token in shape):
            seen = {key_tokens[n].text for key_tokens in tokens}
            text += f"<{kind}>" if len(seen) > 1 else seen.pop().decode("utf-8", "surrogateescape")
        result.append(KeyFamily(type_, text, members))
    return sorted(result, key=lambda family: (-len(family.keys), family.text))


def _tokens(key: bytes) -> tuple[_NamePart, ...]:
    tokens: list[_NamePart] = []
    for n, piece in enumerate(_OUTER.split(key)):
        if len(tokens) > _LONGEST:
            break
        if n % 2 or not piece:
            tokens.append(_NamePart("", piece))
        elif kind := _kind(piece):
            tokens.append(_NamePart(kind, piece))
        else:
            inner = _INNER.split(piece, _LONGEST)
            if any(map(_kind, inner[::2])):
                tokens += [
                    _NamePart("" if n % 2 or not part else _kind(part) or "word", part)
                    for n, part in enumerate(inner)
                ]
            else:
                tokens.append(_NamePart("word", piece))
    return tuple(tokens) if len(tokens) <= _LONGEST else (_NamePart("word", key),)


def _kind(piece: bytes) -> str:
    return next((kind for kind, rule in _WHOLE.items() if rule.fullmatch(piece)), "")


def _with_texts(
    shapes: dict[tuple[str, tuple[_NamePart, ...]], list[bytes]],
) -> dict[tuple[str, tuple[_NamePart, ...]], list[bytes]]:
    """Join the shapes that differ in a word only, where there are many different words."""
    longest = max((len(shape) for _, shape in shapes), default=0)
    for at in range(longest):
        alike: dict[object, list[tuple[str, tuple[_NamePart, ...]]]] = defaultdict(list)
        for type_, shape in shapes:
            if at < len(shape) and shape[at].kind in ("word", "n", "hex", "uuid"):
                alike[type_, shape[:at], shape[at + 1 :]].append((type_, shape))
        for group in alike.values():
            if sum(shape[at].kind == "word" for _, shape in group) > _MANY:
                type_, shape = group[0]
                joined = (type_, (*shape[:at], _NamePart("text", b""), *shape[at + 1 :]))
                members = [key for old in group for key in shapes.pop(old)]
                shapes.setdefault(joined, []).extend(members)
    return shapes


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _escaped(text: bytes) -> bytes:
    return re.sub(rb"([*?\[\]\\^-])", rb"\\\1", text)


Into = Literal["strings", "hash", "packed", "set", "sorted_set", "list", "unique_visitors"]

PRESENT = "there"  # the field of packed records that tells a record of zeros from none
_SOON = 5_000  # milliseconds in which an entry may expire on one server before the other

Entry = tuple[Any, Any]  # its field or member, and its value; None for none


class Timed(NamedTuple):
    """A value of a family whose keys expire."""

    value: Any
    due: int  # milliseconds since 1970; -1 if it does not expire

    @property
    def soon(self) -> bool:
        """Whether it expires about now, so that one of two copies may be gone."""
        return 0 <= self.due < 1000 * time.time() + _SOON


@dataclass(frozen=True)
class Conversion:
    """A family of keys, and the structure that takes its place.

    Attributes:
        keys: the family, ``user:<n>:name``; or a single key.
        type: the type of its keys: ``string``, ``hash``, ``set``, ``zset`` or ``list``.
        into: the kit's method that makes the structure, such as ``strings``.
        name: the structure's name.
        parameters: the method's parameters; types by their names, ``"int"``.
        train: how many values its dictionary is trained on; 0 for none.
        expires: whether its keys may expire; then what they become expires at the same times.

    Raises:
        InvalidArgumentError: the family and the structure do not go together.
    """

    keys: str
    type: str
    into: Into
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    train: int = 0
    expires: bool = False

    def __post_init__(self) -> None:
        pattern = self.pattern
        types = ["hash", "list", "set", "string", "zset"]
        if self.type not in types:
            raise InvalidArgumentError(
                f"{self.keys}: type={self.type!r}", f"use one of {', '.join(types)}"
            )
        if self.expires and self.into == "packed":
            raise InvalidArgumentError(
                f"{self.keys}: packed records do not expire one by one", "use strings or hash"
            )
        for end in ("meta", "0"):
            key = f"{self.base}:{end}".encode()
            if key == self.keys.encode() or (pattern and pattern.field_of(key) is not None):
                raise InvalidArgumentError(
                    f"{self.keys}: the keys of {self.name!r} would belong to the family",
                    "choose another name",
                )

    @classmethod
    def parse(cls, text: str | bytes) -> Conversion:
        """Read what `to_json` has written; another text is an InvalidArgumentError."""
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"the plan cannot be read: {error}", "write one: shardkit advise --output"
            ) from error

    def to_json(self) -> str:
        """Return the conversion as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @property
    def pattern(self) -> Pattern | None:
        """The pattern of the family; None for a single key."""
        return Pattern(self.keys) if "<" in self.keys else None

    @property
    def by_key(self) -> bool:
        """Whether each of its keys becomes one entry."""
        return self.pattern is not None and self.into != "unique_visitors"

    @property
    def base(self) -> str:
        """The prefix of the structure's keys."""
        return f"{self.name}:strings" if self.into == "strings" else self.name

    @property
    def codec(self) -> str | None:
        """The name of the structure's codec."""
        return self.parameters.get("codec")

    def code(self, component: str) -> str:
        """Return the Python that opens the structure."""
        parts = [repr(self.name).replace("'", '"'), f"component={json.dumps(component)}"]
        for name, value in self.parameters.items():
            is_type = name in ("members", "values")
            text = json.dumps(value) if isinstance(value, str | dict) else repr(value)
            parts.append(f"{name}={value if is_type else text}")
        return f"kit.{self.into}({', '.join(parts)})"

    def open(self, kit: ShardKit, component: str) -> Any:
        """Return the structure, on a kit."""
        given = {
            name: MEMBER_TYPES[value] if name in ("members", "values") else value
            for name, value in self.parameters.items()
        }
        return getattr(kit, self.into)(self.name, component=component, **given)


check_calls(Conversion, "__init__")


class StructureForm:
    """Reads entries of the family as the structure has them, and writes these."""

    still: Callable[[], object] = staticmethod(lambda: None)
    """Is called before a write; it raises if others may have taken over."""

    def __init__(self, conversion: Conversion, kit: ShardKit, component: str) -> None:
        self.conversion = conversion
        self.kit, self.component = kit, component
        self.structure = conversion.open(kit, component)
        self._value = _VALUES.get(conversion.into, self._decoded)

    @property
    def fields(self) -> Any:
        """The hash that stores a structure's values."""
        if self.conversion.into != "strings":
            return self.structure
        return self.kit.hash(
            self.conversion.base, component=self.component, **self.conversion.parameters
        )

    def entry(self, key: str, name: bytes, raw: Any) -> Entry:
        """Return an entry of the family as the structure has it.

        ``raw`` is its value as redis-py returns it, or that `Timed`; None if it is gone.

        Raises:
            InvalidArgumentError: the structure cannot store it; names ``key``.
        """
        try:
            member: Any = name.decode()
            if (
                self.conversion.into == "packed"
                or self.conversion.parameters.get("members") == "int"
            ):
                member = int(member)
                if b"%d" % member != name:
                    raise ValueError(f"{member} has another spelling")
            if isinstance(raw, Timed):
                return member, Timed(self._value(self.conversion, raw.value), raw.due)
            return member, None if raw is None else self._value(self.conversion, raw)
        except (ValueError, TypeError, ShardKitError) as error:
            raise InvalidArgumentError(
                f"{key}: {self.conversion.into} cannot store it: {error}",
                "choose another structure or codec",
            ) from error

    @staticmethod
    def _decoded(conversion: Conversion, raw: Any) -> Any:
        if isinstance(raw, dict):
            return {name.decode(): value.decode() for name, value in raw.items()}
        if conversion.codec is None:
            return bytes(raw)
        if conversion.codec.endswith("text"):
            return raw.decode()
        value = codec("json").decode(raw)
        if value is None:
            raise ValueError("null is no value")
        return value

    def sync(self, entries: Sequence[Entry]) -> set[Any]:
        """Make the structure hold these entries; return those that differed.

        Entries that expire about now are copied, but do not count as different.

        Cost: one to four exchanges for 500 entries.
        """
        there = self._read([name for name, _ in entries])
        differing = [
            entry for entry, value in zip(entries, there, strict=True) if entry[1] != value
        ]
        if differing:
            self.still()
        self._write([(name, value) for name, value in differing if value is not None])
        if gone := [name for name, value in differing if value is None]:
            methods = {"hash": "hdel", "set": "srem", "sorted_set": "zrem"}
            getattr(self.structure, methods.get(self.conversion.into, "remove"))(*gone)
        return {name for name, value in differing if not (isinstance(value, Timed) and value.soon)}

    def expire(self, name: bytes, due: int) -> None:
        """Have all that became of one key, with a field ``name``, expire when it does.

        ``due`` is the time in milliseconds since 1970; -1 if it does not expire, -2 if it is gone.
        """
        self.still()
        if due > 0:
            self.structure.pexpireat(due)
        elif due == -1:
            self.structure.persist()

    def _read(self, names: Sequence[Any]) -> list[Any]:
        values = self._values(names)
        if not (self.conversion.expires and self.conversion.by_key and names):
            return values
        return [
            None if value is None else Timed(value, due)
            for value, due in zip(values, self.fields.hpexpiretime(*names), strict=True)
        ]

    def _values(self, names: Sequence[Any]) -> list[Any]:
        structure = self.structure
        match self.conversion.into:
            case "strings":
                return list(structure.mget(names))
            case "hash":
                return list(structure.hmget(names))
            case "set":
                return [is_member or None for is_member in structure.smismember(names)]
            case "sorted_set":
                return list(structure.zmscore(names))
        records = structure.get_many(names)
        return [records[name] if any(records[name].values()) else None for name in names]

    def _write(self, entries: Sequence[Entry]) -> None:
        dues: dict[int, list[Any]] = {}
        if self.conversion.expires and self.conversion.by_key:
            for name, timed in entries:
                dues.setdefault(timed.due, []).append(name)
            entries = [(name, timed.value) for name, timed in entries]
        self._write_values(entries)
        expiring = [
            self.fields.deferred.hpexpireat(due, *names) for due, names in dues.items() if due > 0
        ]
        self.kit.together(*expiring)

    def _write_values(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        match self.conversion.into:
            case "strings":
                self.structure.mset(dict(entries))
            case "hash":
                self.structure.hset(mapping=dict(entries))
            case "set":
                self.structure.sadd_many(name for name, _ in entries)
            case "sorted_set":
                self.structure.zadd_many(entries)
            case "packed":
                self.structure.set_many(entries)

    def names(self) -> Iterator[Any]:
        """Iterate over the fields or members that the structure has."""
        match self.conversion.into:
            case "strings" | "hash":
                yield from self.fields.hscan_iter(no_values=True)
            case "set":
                yield from self.structure.sscan_iter()
            case "sorted_set":
                yield from (name for name, _ in self.structure.zscan_iter())
            case "packed":
                yield from (number for number, _ in self.structure.scan_iter())


class ListForm(StructureForm):
    """The same for a list: entries are the values by their indexes, in order.

    Behind the last value comes an entry of None.
    """

    def entry(self, key: str, name: bytes, raw: Any) -> Entry:
        """See `StructureForm.entry`; ``name`` is the index."""
        is_text = self.conversion.parameters.get("values") != "bytes"
        try:
            return int(name), raw.decode() if is_text and raw is not None else raw
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"{key}: value {int(name)} is not text", 'add "values": "bytes" to the parameters'
            ) from error

    def sync(self, entries: Sequence[Entry]) -> set[Any]:
        """See `StructureForm.sync`; what differs is written again with all that follows it."""
        if not entries:
            return set()
        first = entries[0][0]
        values = [value for _, value in entries if value is not None]
        there = self.structure.lrange(first, entries[-1][0])
        if there == values:
            return set()
        self.still()
        self.structure.ltrim(*((0, first - 1) if first else (1, 0)))
        self.structure.rpush_many(values)
        return {index for index, value in entries if value is not None} or {first}

    def names(self) -> Iterator[Any]:
        """See `StructureForm.names`; `sync` has removed what the family no longer has."""
        return iter(())


class VisitorDays(StructureForm):
    """The same for unique visitors: a member is a session of a day, and never leaves it."""

    def entry(self, key: str, name: bytes, raw: Any) -> Entry:
        """See `StructureForm.entry`; ``raw`` is the day."""
        return (raw, name.decode()), True

    def sync(self, entries: Sequence[Entry]) -> set[Any]:
        """See `StructureForm.sync`; returns a day for each session that is new."""
        days: dict[date, list[str]] = {}
        for (day, session), _ in entries:
            days.setdefault(day, []).append(session)
        self.still()
        return {
            (day, n)
            for day, sessions in days.items()
            for n in range(self.structure.visit_many(sessions, day))
        }

    def expire(self, name: bytes, due: int) -> None:
        """See `StructureForm.expire`; a day expires up to a second later."""
        self.still()
        left = due - 1000 * time.time()
        if due > 0:
            day = date.fromisoformat(name.decode())
            self.structure.expire(day, max(1, ceil(left / 1000)))

    def names(self) -> Iterator[Any]:
        """See `StructureForm.names`."""
        return iter(())


def form_of(conversion: Conversion, kit: ShardKit, component: str) -> StructureForm:
    """Return the form of a conversion."""
    made = {"unique_visitors": VisitorDays, "list": ListForm}.get(conversion.into, StructureForm)
    return made(conversion, kit, component)


def _packed(conversion: Conversion, raw: Any) -> dict[str, int]:
    record = {"value": raw} if isinstance(raw, bytes) else {k.decode(): v for k, v in raw.items()}
    types = conversion.parameters["fields"]
    if record.keys() != types.keys() - {PRESENT}:
        raise ValueError(f"its fields are {', '.join(record)}")
    numbers = {}
    for name, text in record.items():
        numbers[name] = int(text)
        if b"%d" % numbers[name] != text:
            raise ValueError(f"{text!r} is not a whole number")
    return {**numbers, PRESENT: 1} if PRESENT in types else numbers


_VALUES: Mapping[str, Callable[[Conversion, Any], Any]] = {
    "packed": _packed,
    "set": lambda _conversion, _raw: True,
    "sorted_set": lambda _conversion, raw: float(raw),
}


def decode_all(form: StructureForm, rows: Iterable[tuple[bytes, bytes, Any]]) -> list[Entry]:
    """Return the entries of rows: key, name and raw value."""
    return [form.entry(key.decode(errors="backslashreplace"), name, raw) for key, name, raw in rows]
