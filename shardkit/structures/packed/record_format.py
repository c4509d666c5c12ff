"""The format of a packed record: its fields side by side, in the order of their declaration.

::

    fields={"country": "u8", "score": "i12", "flag": "u1"}        21 bits, so 3 bytes a record

     byte 0            byte 1            byte 2
    ┌─────────────────┬─────────────────┬─────────────────┐     bit 0 is the first of byte 0,
    │ country         │ score                    │f│unused│     as for SETBIT and BITFIELD
    │ bits 0 to 7     │ bits 8 to 19           20│ │      │
    └─────────────────┴─────────────────┴─────────────────┘

A record of at most 4 bits takes 1, 2 or 4, so that several share a byte and none spans two; any
other takes whole bytes. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.structures.packed.field_types import MAX_BYTES, Degrees, FieldType, Value, field_type

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
