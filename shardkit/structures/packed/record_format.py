"""The format of a packed record: its fields side by side, in the order of their declaration.

::

    fields={"country": "u8", "score": "i12", "flag": "u1"}        21 bits, so 3 bytes a record

     byte 0            byte 1            byte 2
    ┌─────────────────┬─────────────────┬─────────────────┐     bit 0 is the first of byte 0,
    │ country         │ score                    │f│unused│     as for SETBIT and BITFIELD
    │ bits 0 to 7     │ bits 8 to 19           20│ │      │
    └─────────────────┴─────────────────┴─────────────────┘

    country=5, score=-3, flag=1   →   05 ff d8                  BITFIELD key GET u8 #0 … GET i12 8

A record of at most 4 bits takes 1, 2 or 4 of them, so that several share a byte and none is in two;
any other takes whole bytes. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import shown
from shardkit.structures.packed.field_types import MOST_BYTES, Degrees, Kind, Value, kind_of

Record: TypeAlias = Mapping[str, Value]
Fields: TypeAlias = str | Mapping[str, str | Kind]

# Names that can be given instead of fields.
PRESETS: dict[str, dict[str, str]] = {
    "flag": {"flag": "u1"},
    "postal": {"postal": "u24"},
    "position16": {"lat": "lat16", "lon": "lon16"},
    "position24": {"lat": "lat24", "lon": "lon24"},
}


class Slot(NamedTuple):
    """A field's place in a record.

    Attributes:
        name: the field's name.
        kind: what it holds.
        offset: its first bit, counted from the record's first.
        shift: how many bits follow it.
        mask: as many ones as it has bits.
    """

    name: str
    kind: Kind
    offset: int
    shift: int
    mask: int


class RecordFormat:
    """Turns records into integers of so many bits, or bytes, and back.

    Args:
        fields: what each field holds, in the order in which they are packed; see
            `shardkit.structures.packed.field_types`. Or the name of a preset.
        owner: the structure's name, for messages.

    Attributes:
        slots: the fields' places, by name.
        bits: how many bits a record takes: 1, 2, 4 or a multiple of 8.
        size: how many bytes that is; a record of less than a byte has 1 to itself here.
        text: the fields as they are stored beside the data.

    Raises:
        InvalidArgumentError: there are no fields, or one is not what a field can be.
    """

    def __init__(self, fields: Fields, owner: str = "record") -> None:
        self._owner = owner
        if isinstance(fields, str):
            if fields not in PRESETS:
                raise InvalidArgumentError(
                    f"{owner}: fields={shown(fields)}",
                    f"give a mapping from names to kinds, or one of {', '.join(PRESETS)}",
                )
            fields = PRESETS[fields]
        if not isinstance(fields, Mapping) or not fields:
            raise InvalidArgumentError(
                f"{owner}: fields={shown(fields)}",
                'give a mapping such as {"country": "u8", "score": "i32"}',
            )
        kinds = {}
        for name, spelling in fields.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise InvalidArgumentError(
                    f"{owner}: field {shown(name)}", "give a name of letters, digits and _"
                )
            kinds[name] = kind_of(owner, name, spelling)
        used = sum(kind.bits for kind in kinds.values())
        if used > 8 * MOST_BYTES:
            raise InvalidArgumentError(
                f"{owner}: a record of {used:,} bits",
                f"a record has at most {MOST_BYTES:,} bytes; keep what is longer in a hash",
            )
        self.bits = 1 << (used - 1).bit_length() if used <= 4 else -(-used // 8) * 8
        self.size = -(-self.bits // 8)
        self.slots: dict[str, Slot] = {}
        offset = 0
        for name, kind in kinds.items():
            shift = self.bits - offset - kind.bits
            self.slots[name] = Slot(name, kind, offset, shift, (1 << kind.bits) - 1)
            offset += kind.bits
        self.text = ",".join(f"{name}:{kind.text}" for name, kind in kinds.items())
        self._decoders = [
            (name, slot.kind.decode, slot.shift, slot.mask) for name, slot in self.slots.items()
        ]

    def slot(self, name: str) -> Slot:
        """Return a field's place.

        Raises:
            InvalidArgumentError: there is no such field.
        """
        try:
            return self.slots[name]
        except (KeyError, TypeError):
            raise InvalidArgumentError(
                f"{self._owner}: there is no field {shown(name)}", f"it has {', '.join(self.slots)}"
            ) from None

    def code(self, slot: Slot, value: Any) -> int:
        """Return the bits of one field's value.

        Raises:
            InvalidArgumentError: it does not fit.
        """
        try:
            return slot.kind.encode(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{self._owner}: {slot.name}={shown(value)}", f"give {slot.kind.expects}"
            ) from None

    def codes(self, record: Record) -> list[tuple[Slot, int]]:
        """Return the bits of some fields' values.

        Raises:
            InvalidArgumentError: there is no such field, or a value does not fit, or there is none.
        """
        if not isinstance(record, Mapping) or not record:
            self.refuse(record)
        return [
            (slot, self.code(slot, value))
            for slot, value in ((self.slot(name), value) for name, value in record.items())
        ]

    def refuse(self, record: object) -> NoReturn:
        """Say that something is no record.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"{self._owner}: record {shown(record)}",
            f"give values of at least one of {', '.join(self.slots)}",
        )

    def pack(self, record: Record) -> int:
        """Return a record as an integer of ``bits`` bits; fields that are not given are zeros.

        Raises:
            InvalidArgumentError: there is no such field, or a value does not fit.
        """
        return joined(self.codes(record))

    def unpack(self, code: int) -> dict[str, Any]:
        """Return the record that such an integer stands for."""
        return {name: decode(code >> shift & mask) for name, decode, shift, mask in self._decoders}

    def encode(self, record: Record) -> bytes:
        """Return a record as bytes; one of less than a byte is in the first bits of its byte.

        Raises:
            InvalidArgumentError: there is no such field, or a value does not fit.
        """
        return (self.pack(record) << (8 * self.size - self.bits)).to_bytes(self.size)

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the record in so many bytes, as `encode` gives them.

        Raises:
            InvalidArgumentError: it is not so many bytes.
        """
        if not isinstance(data, bytes) or len(data) != self.size:
            raise InvalidArgumentError(
                f"{self._owner}: record {shown(data)}", f"give {self.size} bytes"
            )
        return self.unpack(int.from_bytes(data) >> (8 * self.size - self.bits))

    def precision(self) -> dict[str, float]:
        """Return the size of a cell of each field of degrees, in metres at the equator.

        A degree is taken as 111,320 m.
        """
        return {
            name: slot.kind.cell * 111_320
            for name, slot in self.slots.items()
            if isinstance(slot.kind, Degrees)
        }


def joined(codes: Iterable[tuple[Slot, int]]) -> int:
    """Return the record that fields make, as `RecordFormat.codes` gives them."""
    return sum(code << slot.shift for slot, code in codes)
