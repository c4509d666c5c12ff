r"""A large HASH as many small ones, each compact on its server.

A server keeps a HASH as a *listpack*, one block of bytes, as long as it has at most
``hash-max-listpack-entries`` fields (512) and none longer than ``hash-max-listpack-value`` bytes
(64), values included; a larger one becomes a hash table. So a hash is kept in parts. Fields that
are numbers in sequence share a part with their neighbours, and are stored as what is left over
(`shardkit.structures.layouts.numbered`); others are hashed, into parts that split as they fill
(`shardkit.structures.layouts.growing`), or into so many as are planned for::

    cities:meta      HASH   kind=hash part_size=128 …
    cities:parts     SET    {0, 1, … 45}                which parts of numbers there are
    cities:2890      HASH   {80: …, 81: ["London", "H9", "GB"], …}        field 370001

    field 81 of that part, in its listpack:
    ┌─────────┬──────┬────────────┬──────────────────────┬──────┐
    │ 81      │ size │ length: 20 │ ["London","H9","GB"] │ size │   2 + 22 bytes
    │ 1 byte  │ 1    │ 1          │ 20                   │ 1    │
    └─────────┴──────┴────────────┴──────────────────────┴──────┘

Values go through a codec (`shardkit.structures.codecs`).

A part is searched from its beginning, so its size is a choice between bytes and the server's time:
an HGET takes 1.0 microseconds in parts of 128 and 7.1 in parts of 1,024, for nearly the same bytes
(0.9 in one large hash). docs/memory.md shows the curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from shardkit.encodings.limits import FORMS, warn_if_not_compact
from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Argument, Key, Reply
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.routing.partition import part_count
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.members import Members
from shardkit.structures.base.partition import MOST_MEMBERS, hashed_partition
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.codecs import Codec
from shardkit.structures.codecs import codec as codec_named
from shardkit.structures.codecs.trained_values import CodedValues
from shardkit.structures.hash.field_expiry import FieldExpiry
from shardkit.structures.layouts import (
    GROUPS,
    FixedLayout,
    GrowingLayout,
    Layout,
    NumberedLayout,
    check_groups,
)

F = TypeVar("F", bound="int | str | bytes")
V = TypeVar("V")
Number: TypeAlias = int | float

DEFAULT_PART_SIZE = 128
# Parts that split as they fill are a third full on average.
DEFAULT_PART_SIZE_OF_HASHED = 256
FIELDS_AT_ONCE = 10_000
# Fields of so many parts are in memory at a time.
PARTS_READ = 64
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class ShardedHash(FieldExpiry[Face], Generic[Face, F, V]):
    """A HASH in parts, over one server or many. Made by ``kit.hash``.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        total: about how many fields it will have, when the parts of hashed fields shall be so many
            for ever. None: they split as they fill.
        part_size: how many fields a part may have: at most the servers'
            ``hash-max-listpack-entries``. By default 128, and 256 where parts split as they fill.
        codec: how values are stored: see `shardkit.structures.codecs`. None: as they are given,
            and they come back as bytes.
        fields: str, int or bytes: what its fields come back as.
        rule: ``digits``: fields that are numbers are in sequence, and share a part with their
            neighbours; ``crc32``: they are in no order, and are hashed like others.
        groups: how many groups of parts grow by themselves, if ``total`` is not given: a power of
            two, as many as shards or more.

    Attributes:
        total, part_size: as given, or the default.
        codec: the codec.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Every operation costs one more exchange the first time, for comparing the parameters; and one
    that writes numbers, for every 64 parts of them that this process has not yet written to.
    """

    kind: ClassVar[str] = "hash"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int | None = None,
        part_size: int | None = None,
        codec: Codec[V] | str | None = None,
        fields: type[F] = str,  # type: ignore[assignment]  # kit.hash has the exact overloads
        rule: str = "digits",
        groups: int = GROUPS,
    ) -> None:
        check_name(name)
        self._fields: Members[F] = Members(fields, name, "field")
        self._values: CodedValues[V] = CodedValues(component, name, codec_named(codec))
        self.codec: Codec[V] = self._values.codec
        self.total = total
        growing = total is None
        hashed = part_size or (DEFAULT_PART_SIZE_OF_HASHED if growing else DEFAULT_PART_SIZE)
        numbered = DEFAULT_PART_SIZE if part_size is None else part_size
        check_integer(name, "part_size", numbered, 1, MOST_MEMBERS)
        if rule not in ("digits", "crc32"):
            raise InvalidArgumentError(f"{name}: partition={shown(rule)}", "give digits or crc32")
        self.part_size = numbered if rule == "digits" else hashed
        rest: FixedLayout | GrowingLayout
        parameters: dict[str, object]
        if total is None:
            check_groups(name, groups)
            rest = GrowingLayout(component, name, "HASH", hashed, groups)
            parameters = {"groups": groups, "part_size": self.part_size, "hashed_size": hashed}
        else:
            part_of = hashed_partition(name, "crc32", total, hashed)
            rest = FixedLayout(component, name, part_of, part_count(total, hashed))
            parameters = {"total": total, "part_size": self.part_size}
        self._hashed = rest
        self.layout: Layout = rest
        if rule == "digits":
            self.layout = NumberedLayout(component, name, numbered, rest)
        parameters |= {"partition": rule, "codec": self.codec.name, "fields": fields.__name__}
        super().__init__(driver, component, name, parameters)
        self._largest = max(self.part_size, hashed)

    @property
    def deferred(self) -> ShardedHash[Deferred, F, V]:
        """This hash with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def hset(
        self,
        field: Key | None = None,
        value: Any = None,
        mapping: Mapping[Any, Any] | None = None,
    ) -> Operation[int]:
        """Set fields.

        Args:
            field: one field, with ``value``.
            value: what the codec takes.
            mapping: values by field.

        Returns:
            How many fields are new.

        Raises:
            InvalidArgumentError: a field or value does not fit; nothing was set then.
            ParameterMismatchError: the hash exists with other parameters.
            ShardErrors: shards failed; fields of the others were set.

        Cost: one exchange for 10,000 fields, one command a part.
        """
        given: Iterable[tuple[Any, Any]] = (mapping or {}).items()
        if field is not None:
            given = [(field, value), *given]
        new = 0
        yield from self._values.open()
        for page in pages([self._pair(*pair) for pair in given], FIELDS_AT_ONCE):
            new += yield from self._hset(page)
        return new

    @operation
    def hset_many(self, pairs: Iterable[tuple[Key, Any]]) -> Operation[int]:
        """Set any number of fields, 10,000 an exchange; return how many are new.

        Args:
            pairs: an iterable of fields with their values, also a generator: it is read as they
                are sent.

        Raises:
            InvalidArgumentError: a field or value does not fit; earlier pages were set by then.
            ParameterMismatchError: the hash exists with other parameters.
            ShardErrors: shards failed; fields of the others, and earlier pages, were set.
        """
        new = 0
        yield from self._values.open()
        for page in pages((self._pair(field, value) for field, value in pairs), FIELDS_AT_ONCE):
            new += yield from self._hset(page)
        return new

    @operation
    def hsetnx(self, field: Key, value: Any) -> Operation[bool]:
        """Set a field unless it is there; return whether it was set. Cost: one exchange."""
        yield from self._values.open()
        return bool((yield from self._write_one("HSETNX", *self._pair(field, value))))

    @operation
    def hget(self, field: Key) -> Operation[V | None]:
        """Return a field's value; None if it is not there. Cost: one exchange.

        Raises:
            InvalidArgumentError: the field does not fit.
            StructureError: what is stored was not written through the codec.
        """
        sent = self._fields.encode(field)
        if not self.meta.checked:
            yield from self._open()
        stored = yield from self.layout.read_one("HGET", sent)
        if stored is None:
            return None
        yield from self._values.ready([stored])
        return self.codec.decode(stored)

    @operation
    def hmget(self, *fields: Key) -> Operation[list[V | None]]:
        """Return the values of fields, in their order; None for those that are not there.

        Cost: one exchange for 10,000 fields, one command a part.
        """
        encode, decode = self._fields.encode, self.codec.decode
        asked = [(encode(field), n) for n, field in enumerate(fields)]
        values: list[V | None] = [None] * len(asked)
        if asked:
            yield from self._open()
        for page in pages(asked, FIELDS_AT_ONCE):
            replies = yield from self.layout.read(page, lambda some, _: ("HMGET", *some))
            for positions, stored in replies:
                yield from self._values.ready(stored)
                for n, value in zip(positions, stored, strict=True):
                    values[n] = None if value is None else decode(value)
        return values

    @operation
    def hdel(self, *fields: Key) -> Operation[int]:
        """Remove fields; return how many were there. Cost: as `hmget`."""
        sent = [(self._fields.encode(field), None) for field in fields]
        if sent:
            yield from self._open()
        removed = 0
        for page in pages(sent, FIELDS_AT_ONCE):
            replies = yield from self.layout.write(
                page, lambda some, _: ("HDEL", *some), adds=False
            )
            removed += sum(n for _, n in replies)
        return removed

    @operation
    def hexists(self, field: Key) -> Operation[bool]:
        """Return whether a field is there. Cost: one exchange."""
        sent = self._fields.encode(field)
        yield from self._open()
        return bool((yield from self.layout.read_one("HEXISTS", sent)))

    @operation
    def hstrlen(self, field: Key) -> Operation[int]:
        """Return how many bytes are stored for a field; 0 if it is not there.

        Cost: one exchange.
        """
        sent = self._fields.encode(field)
        yield from self._open()
        length: int = yield from self.layout.read_one("HSTRLEN", sent)
        return length

    @operation
    def hincrby(self, field: Key, amount: int = 1) -> Operation[int]:
        """Add to a field that holds an integer, or is not there; return what it holds then.

        Raises:
            InvalidArgumentError: the amount is no integer of 64 bits, or the codec stores numbers
                in a form of its own.
            ShardErrors: what the field holds is no integer, or the sum has more than 64 bits.

        Cost: one exchange.
        """
        check_integer(f"{self.name}: field {shown(field)}", "amount", amount, _LOWEST, _HIGHEST)
        self._check_numbers("HINCRBY")
        sent = self._fields.encode(field)
        return int((yield from self._write_one("HINCRBY", sent, amount)))

    @operation
    def hincrbyfloat(self, field: Key, amount: float) -> Operation[float]:
        """Add to a field that holds a number, or is not there; return what it holds then.

        Raises:
            InvalidArgumentError: the amount is no finite number, or the codec stores numbers in a
                form of its own.
            ShardErrors: what the field holds is no number.

        Cost: one exchange.
        """
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not number or not isfinite(amount):
            raise InvalidArgumentError(
                f"{self.name}: field {shown(field)}: amount={shown(amount)}",
                "give a finite number",
            )
        self._check_numbers("HINCRBYFLOAT")
        sent = self._fields.encode(field)
        return float((yield from self._write_one("HINCRBYFLOAT", sent, repr(amount))))

    @operation
    def hlen(self) -> Operation[int]:
        """Return how many fields there are.

        Cost: one command a part, an exchange for every 1,000; where parts split as they fill, and
        no field expires, one command a group.
        """
        yield from self._open()
        count: int | None = None
        if isinstance(self.layout, GrowingLayout):
            count = yield from self.layout.count()
        if count is None:
            yield from self.layout.refresh()
            count = 0
            for chunk in self.layout.chunks(PARTS_AT_ONCE):
                count += sum(held for _, held in (yield from self.layout.read_parts(chunk, "HLEN")))
        return count

    @stream
    def hgetall(self) -> Stream[tuple[F, V]]:
        """Iterate over the fields with their values, part by part.

        Numbers come first, those of a part together, parts in order; others come in no order. Each
        field that is there throughout comes once; the hash may be written to meanwhile, and what is
        set or removed may come or not.

        Cost: one command a part, an exchange for every 64, whose fields are in memory.
        """
        decode_field, decode = self._fields.decode, self.codec.decode
        yield from self._open()
        yield from self.layout.refresh()
        for chunk in self.layout.chunks(PARTS_READ):
            for part, flat in (yield from self.layout.read_parts(chunk, "HGETALL")):
                yield from self._values.ready(flat[1::2])
                fields = (self.layout.member(part, stored) for stored in flat[::2])
                yield Page(zip(map(decode_field, fields), map(decode, flat[1::2]), strict=True))

    @stream
    def hkeys(self) -> Stream[F]:
        """Iterate over the fields; see `hgetall`."""
        yield from self._open()
        yield from self.layout.refresh()
        for chunk in self.layout.chunks(PARTS_READ):
            for part, stored in (yield from self.layout.read_parts(chunk, "HKEYS")):
                fields = (self.layout.member(part, field) for field in stored)
                yield Page(map(self._fields.decode, fields))

    @stream
    def hvals(self) -> Stream[V]:
        """Iterate over the values; see `hgetall`."""
        yield from self._open()
        yield from self.layout.refresh()
        for chunk in self.layout.chunks(PARTS_READ):
            for _, stored in (yield from self.layout.read_parts(chunk, "HVALS")):
                yield from self._values.ready(stored)
                yield Page(map(self.codec.decode, stored))

    @operation
    def train(self, samples: Iterable[Any], *, again: bool = False) -> Operation[bool]:
        """Train a dictionary on some values, for a codec that compresses with one.

        What is set afterwards is stored with it, and what was set before stays readable.

        Args:
            samples: values; some 20,000 at random make a good dictionary.
            again: whether to train one when there is one already, for new values.

        Returns:
            Whether it was stored. Not if there is one already, or another process was first.

        Raises:
            InvalidArgumentError: the codec has no dictionary; there are no samples, or one does
                not fit; or there are seven dictionaries.

        Cost: four exchanges at most. Training takes seconds, for which an event loop stands still:
        there, call `learn` in a thread, then `adopt`.
        """
        yield from self._open(create=True)
        return (yield from self._values.train(samples, again=again))

    def learn(self, samples: Iterable[Any]) -> bytes:
        """Return a dictionary for values like these, for `adopt`. No exchange; see `train`."""
        return self._values.learn(samples)

    @operation
    def adopt(self, dictionary: bytes, *, again: bool = False) -> Operation[bool]:
        """Store a dictionary that was learned; see `train`."""
        yield from self._open(create=True)
        return (yield from self._values.adopt(dictionary, again=again))

    @operation
    def copy_from(self, key: Key) -> Operation[int]:
        """Take over a plain HASH of the same component; return how many fields are new.

        Its values are what the codec would store, uncompressed: with ``codec="json"`` JSON. The
        HASH is not changed: look, then remove it. What is written to it meanwhile may be missed; do
        it again for that.

        Args:
            key: the key of the HASH.

        Raises:
            InvalidArgumentError: a field or value does not fit; earlier ones were taken by then.
            StructureError: a value is not what the codec would store.

        Cost: two exchanges for every 1,000 fields.
        """
        new = 0
        cursor: bytes | int = 0
        while True:
            scan = self._at(key, "HSCAN", key, cursor, "COUNT", 1000, idempotent=True)
            [(cursor, flat)] = yield [scan]
            some = zip(flat[::2], map(self._values.inner.decode, flat[1::2]), strict=True)
            new += yield from self.deferred.hset_many(some)
            if cursor == b"0":
                return new

    def _open(self, *, create: bool = False) -> Operation[None]:
        if self.meta.checked:
            return
        yield from super()._open(create=create)
        if create and self._largest > FORMS["hash"].usual[0]:
            key = self._hashed.first_key
            yield from warn_if_not_compact(self.component, key, "hash", self._largest, self.name)

    def _pair(self, field: Key, value: Any) -> tuple[bytes, Argument]:
        sent = self._fields.encode(field)
        try:
            return sent, self.codec.encode(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{self.name}: field {shown(field)}: {error.message}", error.remedy
            ) from None

    def _hset(self, pairs: list[tuple[bytes, Argument]]) -> Operation[int]:
        yield from self._open(create=True)
        replies = yield from self.layout.write(pairs, _setting)
        return sum(new for _, new in replies)

    def _write_one(self, name: str, field: bytes, value: Argument) -> Operation[Reply]:
        yield from self._open(create=True)
        written = [(field, value)]
        [(_, reply)] = yield from self.layout.write(written, lambda f, v: (name, f[0], v[0]))
        return reply

    @property
    def _other_keys(self) -> tuple[str, ...]:
        return (self._values.key,)

    def _reset(self) -> None:
        super()._reset()
        self._values.reset()

    def _check_numbers(self, command: str) -> None:
        if not self.codec.integers:
            raise InvalidArgumentError(
                f"{self.name}: {command} does not work on what codec {self.codec.name!r} stores",
                "make the hash without a codec",
            )


def _setting(fields: list[bytes], values: list[Argument]) -> tuple[Argument, ...]:
    flat: list[Argument] = [None] * (2 * len(fields))  # type: ignore[list-item]
    flat[::2] = fields
    flat[1::2] = values
    return ("HSET", *flat)
