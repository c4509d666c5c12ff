"""The format of a packed record: its fields side by side, in the order of their declaration.

::

    fields={"country": "u8", "score": "i12", "flag": "u1"}        21 bits, so 3 bytes a record

     byte 0            byte 1            byte 2
    ┌─────────────────┬─────────────────┬─────────────────┐     bit 0 is the first of byte 0,
    │ country         │ score                    │f│unused│     as for SETBIT and BITFIELD
    │ bits 0 to 7     │ bits 8 to 19           20│ │      │
    └─────────────────┴─────────────────┴─────────────────┘

A record of at most 4 bits takes 1, 2 or 4, so that several share a byte and none spans two; any
other takes whole bytes. Integers are big-endian, negative ones in two's complement, degrees are the
number of a cell. Pure: no I/O.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.arguments import shown
from shardkit.structures.base.arguments import check_integer

Value: TypeAlias = int | float | bytes | str | None

MAX_BYTES = 1024
_SPEC = re.compile(r"(u|i|f|bytes|lat|lon)([1-9][0-9]{0,3})")


class FieldType(ABC):
    """The type of a field.

    Args:
        spec: its text in a declaration, which is stored beside the data.
        bits: the number of bits.
        expects: a description of valid values, for messages.

    Attributes:
        signed: whether its bits are an integer in two's complement.
        is_integer: whether BITFIELD can increment it.
        summable: whether sums, minima and maxima make sense.
        groupable: whether equal values have equal bits, so that records can be grouped by it.
    """

    signed = False
    is_integer = False
    summable = False
    groupable = True

    def __init__(self, spec: str, bits: int, expects: str) -> None:
        self.spec = spec
        self.bits = bits
        self.expects = expects

    @abstractmethod
    def encode(self, value: Any) -> int:
        """Return a value's bits as an unsigned integer; TypeError or ValueError if none fit."""

    @abstractmethod
    def decode(self, code: int) -> Any:
        """Return the value that bits encode."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"


class Integer(FieldType):
    """An integer, from the lowest on as many as its bits allow."""

    is_integer = True
    summable = True

    def __init__(self, letter: str, bits: int, lowest: int) -> None:
        self._lowest = lowest
        self._highest = lowest + 2**bits - 1
        super().__init__(f"{letter}{bits}", bits, f"an integer, {lowest:,} to {self._highest:,}")

    def encode(self, value: Any) -> int:
        """Return the integer modulo 2**bits."""
        if isinstance(value, bool) and self.bits > 1:
            raise TypeError
        number = operator.index(value)
        if not self._lowest <= number <= self._highest:
            raise ValueError
        return int(number) & ((1 << self.bits) - 1)

    def decode(self, code: int) -> int:
        """Return the integer."""
        return code if code <= self._highest else code - (1 << self.bits)


class Unsigned(Integer):
    """An integer from 0."""

    def __init__(self, bits: int) -> None:
        check_integer("Unsigned", "bits", bits, 1, 63)
        super().__init__("u", bits, 0)

    def decode(self, code: int) -> int:
        """Return the integer."""
        return code  # without the check of the sign: scans spend their time here


class Signed(Integer):
    """An integer in two's complement."""

    signed = True

    def __init__(self, bits: int) -> None:
        check_integer("Signed", "bits", bits, 2, 64)
        super().__init__("i", bits, -(1 << (bits - 1)))


class Float(FieldType):
    """A number of IEEE 754, of half, single or double precision."""

    summable = True
    groupable = False  # equal numbers may have different bits

    def __init__(self, bits: int) -> None:
        if bits not in (16, 32, 64):
            raise InvalidArgumentError(f"Float: bits={shown(bits)}", "give 16, 32 or 64")
        self._format = struct.Struct({16: ">e", 32: ">f", 64: ">d"}[bits])
        largest = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}[bits]
        super().__init__(
            f"f{bits}", bits, f"a number, {-largest:.6g} to {largest:.6g}, or infinity"
        )

    def encode(self, value: Any) -> int:
        """Return the bits of the nearest such number; of 0 for -0."""
        if isinstance(value, bool | str | bytes):
            raise TypeError
        try:
            number = float(value) + 0.0
            if not math.isnan(number):
                return int.from_bytes(self._format.pack(number))
        except (OverflowError, struct.error):
            pass
        raise ValueError

    def decode(self, code: int) -> float:
        """Return the number."""
        number: float = self._format.unpack(code.to_bytes(self._format.size))[0]
        return number


class FixedBytes(FieldType):
    """A fixed number of bytes."""

    def __init__(self, size: int) -> None:
        check_integer("FixedBytes", "size", size, 1, MAX_BYTES)
        super().__init__(f"bytes{size}", 8 * size, f"{size} bytes")
        self._size = size

    def encode(self, value: Any) -> int:
        """Return the bytes as a big-endian integer."""
        if not isinstance(value, bytes) or len(value) != self._size:
            raise ValueError
        return int.from_bytes(value)

    def decode(self, code: int) -> bytes:
        """Return the bytes."""
        return code.to_bytes(self._size)


class Degrees(FieldType):
    """A latitude or longitude (``name`` is lat or lon) as the number of its cell; None is 0.

    There are 2**bits - 1 cells, from 1; ``cell`` is the size of one in degrees.
    """

    def __init__(self, name: str, bits: int) -> None:
        check_integer("Degrees", "bits", bits, 2, 32)
        self._limit = 90 if name == "lat" else 180
        expects = f"degrees, {-self._limit} to {self._limit}, or None"
        super().__init__(f"{name}{bits}", bits, expects)
        self._cells = (1 << bits) - 1
        self.cell = 2 * self._limit / self._cells

    def encode(self, value: Any) -> int:
        """Return the number of the cell that holds it."""
        if value is None:
            return 0
        if isinstance(value, bool | str | bytes):
            raise TypeError
        if not -self._limit <= value <= self._limit:
            raise ValueError
        return min(int((value + self._limit) / self.cell), self._cells - 1) + 1

    def decode(self, code: int) -> float | None:
        """Return the middle of the cell."""
        return (code - 0.5) * self.cell - self._limit if code else None


class Choice(FieldType):
    """One of some names, stored as its position among them, from 1; None is 0.

    Args:
        names: the names. Later versions of a program may append to them, but change nothing else:
            only ``bits`` is stored beside the data.
        bits: how many bits it takes: there is room for 2**bits - 1 names.

    Example: ``fields={"size": Choice(["S", "M", "L"], bits=2)}``.
    """

    def __init__(self, names: Iterable[str], bits: int = 8) -> None:
        self.names = tuple(names) if not isinstance(names, str) else ()
        check_integer("Choice", "bits", bits, 1, 32)
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise InvalidArgumentError(
                f"Choice: names={shown(names)}", "give a sequence of names, at least one"
            )
        self._positions = {name: n for n, name in enumerate(self.names, 1)}
        if len(self._positions) < len(self.names) or len(self.names) >> bits:
            raise InvalidArgumentError(
                f"Choice: {counted(len(self.names), 'name')} in {counted(bits, 'bit')}",
                f"give at most {2**bits - 1:,}, each once, or more bits",
            )
        super().__init__(f"choice{bits}", bits, f"one of {shown(self.names)}, or None")

    def encode(self, value: Any) -> int:
        """Return the position of a name."""
        if value is None:
            return 0
        try:
            return self._positions[value]
        except KeyError:
            raise ValueError from None

    def decode(self, code: int) -> str | None:
        """Return the name at a position; ``#`` and the position where this program has no name."""
        if code > len(self.names):
            return f"#{code}"
        return self.names[code - 1] if code else None


def field_type(owner: str, field: str, spec: str | FieldType) -> FieldType:
    """Return the type that a field is declared with."""
    if isinstance(spec, FieldType):
        return spec
    match = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if match:
        letter, size = match[1], int(match[2])
        if letter == "u" and size <= 63:
            return Unsigned(size)
        if letter == "i" and 2 <= size <= 64:
            return Signed(size)
        if letter == "f" and size in (16, 32, 64):
            return Float(size)
        if letter == "bytes" and size <= MAX_BYTES:
            return FixedBytes(size)
        if letter in ("lat", "lon") and 2 <= size <= 32:
            return Degrees(letter, size)
    raise InvalidArgumentError(
        f"{owner}: field {shown(field)} is declared as {shown(spec)}",
        "use u1 to u63, i2 to i64, f16, f32, f64, bytes1 to bytes1024, lat2 to lat32, "
        "lon2 to lon32, or a Choice",
    )


Record: TypeAlias = Mapping[str, Value]
Fields: TypeAlias = str | Mapping[str, str | FieldType]

# Names that can be given instead of fields.
PRESETS: dict[str, dict[str, str]] = {
    "flag": {"flag": "u1"},
    "postal": {"postal": "u24"},
    "position16": {"lat": "lat16", "lon": "lon16"},
    "position24": {"lat": "lat24", "lon": "lon24"},
}
METRES_PER_DEGREE = 111_320


class PackedField(NamedTuple):
    """A field and its position in a record."""

    name: str
    type: FieldType
    offset: int  # its first bit, counted from the record's first
    shift: int  # how many bits follow it
    mask: int  # as many ones as it has bits

    def code_in(self, record: int) -> int:
        """Return the field's bits in a packed record."""
        return record >> self.shift & self.mask


class RecordFormat:
    """Packs records into integers or bytes, and unpacks them."""

    def __init__(self, fields: Fields, owner: str = "record") -> None:
        self._owner = owner
        if isinstance(fields, str):
            if fields not in PRESETS:
                raise InvalidArgumentError(
                    f"{owner}: fields={shown(fields)}",
                    f"give a mapping from names to types, or one of {', '.join(PRESETS)}",
                )
            fields = PRESETS[fields]
        if not isinstance(fields, Mapping) or not fields:
            raise InvalidArgumentError(
                f"{owner}: fields={shown(fields)}",
                'give a mapping such as {"country": "u8", "score": "i32"}',
            )
        types = {}
        for name, spec in fields.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise InvalidArgumentError(
                    f"{owner}: field {shown(name)}", "give a name of letters, digits and _"
                )
            types[name] = field_type(owner, name, spec)
        used = sum(kind.bits for kind in types.values())
        if used > 8 * MAX_BYTES:
            raise InvalidArgumentError(
                f"{owner}: a record of {used:,} bits",
                f"give fields of at most {MAX_BYTES:,} bytes in all, or use a hash",
            )
        self.bits = 1 << (used - 1).bit_length() if used <= 4 else -(-used // 8) * 8
        self.size = -(-self.bits // 8)
        self.fields: dict[str, PackedField] = {}
        offset = 0
        for name, kind in types.items():
            shift = self.bits - offset - kind.bits
            self.fields[name] = PackedField(name, kind, offset, shift, (1 << kind.bits) - 1)
            offset += kind.bits
        self.spec = ",".join(f"{name}:{kind.spec}" for name, kind in types.items())
        # Plain tuples, as unpacking is what scans spend their time on.
        self._decoders = [(f.name, f.type.decode, f.shift, f.mask) for f in self.fields.values()]

    def field(self, name: str) -> PackedField:
        """Return a field."""
        try:
            return self.fields[name]
        except (KeyError, TypeError):
            raise InvalidArgumentError(
                f"{self._owner}: field {shown(name)} does not exist",
                f"use one of {', '.join(self.fields)}",
            ) from None

    def codes(self, record: Record) -> list[tuple[PackedField, int]]:
        """Return some fields with the bits of their values."""
        if not isinstance(record, Mapping) or not record:
            self.refuse(record)
        codes = []
        for name, value in record.items():
            field = self.field(name)
            try:
                codes.append((field, field.type.encode(value)))
            except (TypeError, ValueError):
                raise InvalidArgumentError(
                    f"{self._owner}: {name}={shown(value)}", f"give {field.type.expects}"
                ) from None
        return codes

    def refuse(self, record: object) -> NoReturn:
        """Refuse a value that is not a record."""
        raise InvalidArgumentError(
            f"{self._owner}: record {shown(record)}",
            f"give values of at least one of {', '.join(self.fields)}",
        )

    def pack(self, record: Record) -> int:
        """Return a record as an integer of ``bits`` bits; fields that are not given are zeros."""
        return join_codes(self.codes(record))

    def unpack(self, code: int) -> dict[str, Any]:
        """Return the record of such an integer."""
        return {name: decode(code >> shift & mask) for name, decode, shift, mask in self._decoders}

    def encode(self, record: Record) -> bytes:
        """Return a record as bytes; one of less than a byte is in the first bits of its byte."""
        return (self.pack(record) << (8 * self.size - self.bits)).to_bytes(self.size)

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the record of bytes that `encode` returned."""
        if not isinstance(data, bytes) or len(data) != self.size:
            raise InvalidArgumentError(
                f"{self._owner}: record {shown(data)}", f"give {self.size} bytes"
            )
        return self.unpack(int.from_bytes(data) >> (8 * self.size - self.bits))

    def precision(self) -> dict[str, float]:
        """Return the cell size of each field of degrees, in metres at the equator."""
        return {
            field.name: field.type.cell * METRES_PER_DEGREE
            for field in self.fields.values()
            if isinstance(field.type, Degrees)
        }


def join_codes(codes: Iterable[tuple[PackedField, int]]) -> int:
    """Return the packed record of what `RecordFormat.codes` returned."""
    return sum(code << field.shift for field, code in codes)
