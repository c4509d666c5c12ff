"""A large HASH as many small ones, each compact on its server.

A server keeps a HASH as a *listpack*, one block of bytes, as long as it has few short fields. Those
that are numbers in sequence share a part with their neighbours, and are stored as the remainder
(`layouts.numbered`); others are hashed, into parts that split as they fill (`layouts.growing`), or
into a fixed number of parts. docs/hash.md shows the keys::

    cities:2890      HASH   {80: …, 81: ["London", "H9", "GB"], …}        field 370001

A part is searched from its beginning, so its size trades bytes for the server's time: an HGET takes
1.0 microseconds in parts of 128 and 7.1 in parts of 1,024 (docs/memory.md shows the curve).

Fields can expire one by one. Where parts split as they fill, a field keeps its time to live in the
new part. Expired fields are not subtracted from their group's count, which is only an upper bound
from then on: it is recounted before the group would split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from shardkit.config.problem import mask
from shardkit.errors import InvalidArgumentError, ShardErrors, ShardFailure, StructureError
from shardkit.operations.arguments import is_number, rows_of, shown
from shardkit.operations.commands import Argument, Key, Reply
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import (
    MOST_MEMBERS,
    Conditions,
    check_integer,
    check_some,
    duration,
    expiry_condition,
    list_or_args,
    timestamp,
)
from shardkit.structures.base.check import Damage, raised_twice
from shardkit.structures.base.damage import damage
from shardkit.structures.base.members import Members, glob_filter
from shardkit.structures.base.parameters import opened
from shardkit.structures.codecs.compression import CodedValues, Compressed
from shardkit.structures.codecs.named import codec as codec_named
from shardkit.structures.codecs.plain import Codec
from shardkit.structures.layouts.base import Chunk, FixedLayout, T
from shardkit.structures.layouts.growing import GROUPS, GroupPart, GrowingLayout, check_groups
from shardkit.structures.layouts.numbered import Layout, NumberedLayout
from shardkit.structures.layouts.replan import plan_anew
from shardkit.structures.layouts.structure import StructureWithLayout, random_members

F = TypeVar("F", bound="int | str | bytes")
V = TypeVar("V")

DEFAULT_PART_SIZE = 128
# Parts that split as they fill are a third full on average.
DEFAULT_PART_SIZE_OF_HASHED = 256
FIELDS_AT_ONCE = 10_000
# How many parts' fields are in memory at a time.
PARTS_READ = 64
MOST_RANDOM = 100_000
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_UNKNOWN_COMMAND = re.compile(r"unknown (redis )?command", re.IGNORECASE)
_MISSING = -2  # what is replied for a field that does not exist


class ShardedHash(StructureWithLayout[Face], Generic[Face, F, V]):
    """A HASH in parts, over one server or many. Made by ``kit.hash``.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        total: about how many fields it will have, for a fixed number of parts of hashed fields.
            None: they split as they fill.
        part_size: how many fields a part may have: at most the servers'
            ``hash-max-listpack-entries``. By default 128, and 256 where parts split as they fill.
        codec: how values are stored: see `shardkit.structures.codecs`. None: as they are given, and
            returned as bytes.
        fields: str, int or bytes: the type in which fields are returned.
        partition: ``digits``: fields that are numbers are in sequence, and share a part with their
            neighbours; ``crc32``: they are in no order, and are hashed like others.
        parts: how many parts it begins with, without a ``total``; each splits as it fills. A power
            of two, at least the number of shards.

    Errors and the first call: see `shardkit.structures`. The first write of this process to each
    range of 64 parts of numbers costs one more exchange, too.
    """

    deferred: DeferredFace[ShardedHash[Deferred, F, V]]

    kind: ClassVar[str] = "hash"
    _form = "hash"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int | None = None,
        part_size: int | None = None,
        codec: Codec[V] | str | None = None,
        fields: type[F] = str,  # type: ignore[assignment]  # kit.hash has the exact overloads
        partition: str = "digits",
        parts: int = GROUPS,
    ) -> None:
        self._fields: Members[F] = Members(fields, name, self._find, "field")
        self._values: CodedValues[V] = CodedValues(component, name, codec_named(codec))
        self.codec: Codec[V] = self._values.codec
        growing = total is None
        hashed = part_size or (DEFAULT_PART_SIZE_OF_HASHED if growing else DEFAULT_PART_SIZE)
        numbered = DEFAULT_PART_SIZE if part_size is None else part_size
        check_integer(name, "part_size", numbered, 1, MOST_MEMBERS)
        if partition not in ("digits", "crc32"):
            raise InvalidArgumentError(
                f"{name}: partition={shown(mask('host', partition))}", "give digits or crc32"
            )
        self.part_size = numbered if partition == "digits" else hashed
        rest: FixedLayout | GrowingLayout
        parameters: dict[str, object]
        if total is None:
            check_groups(name, parts)
            rest = GrowingLayout(component, name, "HASH", hashed, parts)
            parameters = {"groups": parts, "part_size": self.part_size, "hashed_size": hashed}
        else:
            rest = FixedLayout(component, name, "crc32", total, hashed)
            parameters = {"total": total, "part_size": self.part_size}
        self.layout: Layout = rest
        if partition == "digits":
            self.layout = NumberedLayout(component, name, numbered, rest)
        parameters |= {"partition": partition, "codec": self.codec.name, "fields": fields.__name__}
        super().__init__(driver, component, name, parameters)
        self.meta.coded = isinstance(self.codec, Compressed)
        self._largest_part = max(self.part_size, hashed)

    @property
    def total(self) -> int | None:
        """About how many fields it is planned for; None if its parts split as they fill."""
        return int(self.parameters["total"]) if "total" in self.parameters else None

    @operation
    def hset(
        self,
        key: Key | None = None,
        value: Any = None,
        mapping: Mapping[Any, Any] | None = None,
        items: Sequence[Any] | None = None,
    ) -> Operation[int]:
        """Set fields; return how many are new. Cost: one exchange for 10,000, one command per part.

        Args:
            key: one field, with ``value``.
            value: a value that the codec takes.
            mapping: values by field.
            items: fields and values in turn: ``[field, value, field, value]``.
        """
        given: list[tuple[Any, Any]] = []  # in redis-py's order: a field's last value counts
        if items:
            if len(items) % 2:
                raise InvalidArgumentError(
                    f"{self.name}: items={shown(items)} ends with a field without a value",
                    "give fields and values in turn",
                )
            given += zip(items[::2], items[1::2], strict=True)
        given += [] if key is value is None else [(key, value)]
        given += (mapping or {}).items()
        check_some(self.name, "hset", given, "field with its value")
        new = 0
        yield from self._values.load()
        for page in pages([self._pair(*pair) for pair in given], FIELDS_AT_ONCE):
            new += yield from self._hset(page)
        return new

    @operation
    def hset_many(self, pairs: Iterable[tuple[Key, Any]]) -> Operation[int]:
        """Set any number of fields, 10,000 to 200,000 per exchange; return how many are new.

        ``pairs`` is any iterable of fields with their values.
        """
        new = 0
        yield from self._values.load()
        rows = rows_of(self.name, "pairs", pairs, "(field, value)", 2, 2)
        total = len(pairs) if isinstance(pairs, Sized) else None
        for page in self.layout.pages((self._pair(*row) for row in rows), total):
            new += yield from self._hset(page)
        return new

    @operation
    def hsetnx(self, key: Key, value: Any) -> Operation[bool]:
        """Set a field unless it exists; return whether it was set. Cost: one exchange."""
        yield from self._values.load()
        return bool((yield from self._write_one("HSETNX", *self._pair(key, value))))

    @operation
    def hget(self, key: Key) -> Operation[V | None]:
        """Return a field's value; None if it does not exist. Cost: one exchange."""
        sent = self._fields.encode(key)
        if not self.meta.checked or self.meta.follow is not None:
            yield from self._open()
        stored = yield from self.layout.read_one("HGET", sent)
        if stored is None or self._values.raw:
            return stored  # type: ignore[no-any-return]
        value = partial(self._value, sent, stored)
        return (yield from self._values.decode_with([stored], value))

    @operation
    def hmget(self, keys: Key | Iterable[Key], *args: Key) -> Operation[list[V | None]]:
        """Return the values of fields, in their order; None for those that do not exist.

        ``keys`` is a list, or the first field. Cost: one exchange for 10,000, one command per part.
        """
        encode = self._fields.encode
        numbered = [(encode(field), n) for n, field in enumerate(list_or_args(keys, args))]
        check_some(self.name, "hmget", numbered, "field")
        values: list[V | None] = [None] * len(numbered)
        yield from self._open()
        for page in pages(numbered, FIELDS_AT_ONCE):
            replies = yield from self.layout.read(page, lambda fields, _: ("HMGET", *fields))
            for positions, stored in replies:
                sent = [numbered[n][0] for n in positions]
                decode = partial(self._values_or_none, sent, stored)
                decoded = yield from self._values.decode_with(stored, decode)
                for n, value in zip(positions, decoded, strict=True):
                    values[n] = value
        return values

    @operation
    def hdel(self, *keys: Key) -> Operation[int]:
        """Remove fields; return how many existed. Cost: as `hmget`."""
        sent = [(self._fields.encode(field), None) for field in keys]
        check_some(self.name, "hdel", sent, "field")
        yield from self._open()
        removed = 0
        for page in pages(sent, FIELDS_AT_ONCE):
            replies = yield from self.layout.write(
                page, lambda fields, _: ("HDEL", *fields), adds=False
            )
            removed += sum(n for _, n in replies)
        return removed

    @operation
    def hexists(self, key: Key) -> Operation[bool]:
        """Return whether a field exists. Cost: one exchange."""
        sent = self._fields.encode(key)
        yield from self._open()
        return bool((yield from self.layout.read_one("HEXISTS", sent)))

    @operation
    def hstrlen(self, key: Key) -> Operation[int]:
        """Return the stored bytes of a field; 0 if it does not exist. Cost: one exchange."""
        sent = self._fields.encode(key)
        yield from self._open()
        length: int = yield from self.layout.read_one("HSTRLEN", sent)
        return length

    @operation
    def hincrby(self, key: Key, amount: int = 1) -> Operation[int]:
        """Add to the integer in a field, 0 if it does not exist; return the sum. One exchange.

        Raises:
            InvalidArgumentError: the amount is no integer of 64 bits, or the codec has a form of
                its own.
            ShardErrors: the field does not hold an integer, or the sum exceeds 64 bits.
        """
        check_integer(f"{self.name}: field {shown(key)}", "amount", amount, _LOWEST, _HIGHEST)
        self._check_numbers("HINCRBY")
        sent = self._fields.encode(key)
        return int((yield from self._write_one("HINCRBY", sent, amount)))

    @operation
    def hincrbyfloat(self, key: Key, amount: float = 1.0) -> Operation[float]:
        """Add to the number in a field, 0 if it does not exist; return the sum. One exchange.

        Raises:
            InvalidArgumentError: the amount is not finite, or the codec has a form of its own.
            ShardErrors: the field does not hold a number.
        """
        if not is_number(amount) or not isfinite(amount):
            raise InvalidArgumentError(
                f"{self.name}: field {shown(key)}: amount={shown(amount)}", "give a finite number"
            )
        self._check_numbers("HINCRBYFLOAT")
        added = int(amount) if isinstance(amount, int) else float(amount)  # of subclasses, too
        sent = self._fields.encode(key)
        return float((yield from self._write_one("HINCRBYFLOAT", sent, repr(added))))

    @operation
    def hlen(self) -> Operation[int]:
        """Return the number of fields. Cost: one command per part, an exchange for every 1,000.

        Where parts split as they fill and no field expires, one command per group.
        """
        return (yield from self._count())

    @operation
    def hgetall(self) -> Operation[dict[F, V]]:
        """Return all fields with their values.

        Numbers come first, in order of their parts. Other clients may write: a field that exists
        throughout is returned; one that is set or removed in the meantime may be.

        Cost: one command per part, an exchange for every 64. All fields are in memory at once; for
        large hashes use `hscan_iter`.
        """
        return dict((yield from self._read_all(self._read_items)))

    @operation
    def hkeys(self) -> Operation[list[F]]:
        """Return all fields; see `hgetall`."""
        return (yield from self._read_all(self._read_fields))

    @operation
    def hvals(self) -> Operation[list[V]]:
        """Return all values; see `hgetall`."""
        return (yield from self._read_all(self._read_values))

    @stream
    def hscan_iter(
        self, match: Key | None = None, count: int | None = None, no_values: bool = False
    ) -> Stream[tuple[F, V] | Any]:  # with no_values F
        """Iterate over the fields with their values, part by part, each once; see `hgetall`.

        Args:
            match: only fields that match this pattern; filtered after they were read.
            count: about how many fields to have in memory at a time; by default those of 64 parts.
            no_values: iterate over the fields alone.

        Cost: one command per part, an exchange for every 64, or as ``count`` says.
        """
        matches = glob_filter(match)
        encode = self._fields.encode
        seen = 0
        for chunk in (yield from self._chunks(PARTS_READ, count)):
            if no_values:
                fields: list[Any] = yield from self._read_fields(chunk)
                seen += _counted(chunk, fields)
                yield Page(f for f in fields if match is None or matches(encode(f)))
            else:
                items = yield from self._read_items(chunk)
                seen += _counted(chunk, items)
                yield Page(i for i in items if match is None or matches(encode(i[0])))
        yield from self.layout.verify(seen)

    @operation
    def hrandfield(self, count: int | None = None, withvalues: bool = False) -> Operation[Any]:
        """Return a random field, each with the same probability; None if there is none.

        Args:
            count: return a list of ``count`` distinct ones, at most all; if negative, with
                repetition.
            withvalues: return pairs of fields and values; needs a count.

        Cost: one command per part, an exchange for every 1,000 parts, and a few for the fields.
        """
        number = 1 if count is None else count
        check_integer(self.name, "count", number, -MOST_RANDOM, MOST_RANDOM)
        if withvalues and count is None:
            raise InvalidArgumentError(f"{self.name}: withvalues without a count", "give a count")
        yield from self._open()
        args = ("WITHVALUES",) if withvalues else ()
        drawn = yield from random_members(self.layout, "HLEN", "HRANDFIELD", number, *args)
        results: list[Any] = []
        for part, flat in drawn:
            if withvalues:
                items = partial(self._items, part, flat)
                results += yield from self._values.decode_with(flat[1::2], items)
            else:
                results += [self._field(part, field) for field in flat]
        if number > 0:
            del results[number:]
        return results if count is not None else next(iter(results), None)

    @operation
    def hexpire(
        self,
        seconds: int | timedelta,
        *fields: Key,
        **conditions: Unpack[Conditions],
    ) -> Operation[list[int]]:
        """Set fields to expire after a time; return a code for each.

        It is 1 if its time was set, 0 if the condition was not met, -2 if it does not exist.

        Args:
            seconds: the time, at least one second.
            fields: the fields.
            conditions: ``nx=True``: only those that do not expire; ``xx``: only those that do;
                ``gt``, ``lt``: only those that would expire earlier, later.

        Raises:
            StructureError: the servers cannot: Redis can from 7.4 on, Valkey from 9.0 on.

        Cost: one exchange, one command per part.
        """
        after = duration(self.name, seconds)
        return (yield from self._expire_fields("HEXPIRE", fields, after, **conditions))

    @operation
    def hpexpire(
        self,
        milliseconds: int | timedelta,
        *fields: Key,
        **conditions: Unpack[Conditions],
    ) -> Operation[list[int]]:
        """Set fields to expire after milliseconds; see `hexpire`."""
        after = duration(self.name, milliseconds, milliseconds=True)
        return (yield from self._expire_fields("HPEXPIRE", fields, after, **conditions))

    @operation
    def hexpireat(
        self,
        unix_time_seconds: int | datetime,
        *fields: Key,
        **conditions: Unpack[Conditions],
    ) -> Operation[list[int]]:
        """Set fields to expire at a time: seconds since 1970, or a datetime with a timezone.

        Conditions and returned codes as `hexpire`; 2 if the time has passed and the field was
        removed.
        """
        when = timestamp(self.name, unix_time_seconds)
        return (yield from self._expire_fields("HEXPIREAT", fields, when, **conditions))

    @operation
    def hpexpireat(
        self,
        unix_time_milliseconds: int | datetime,
        *fields: Key,
        **conditions: Unpack[Conditions],
    ) -> Operation[list[int]]:
        """Set fields to expire at a time in milliseconds since 1970; see `hexpireat`."""
        when = timestamp(self.name, unix_time_milliseconds, milliseconds=True)
        return (yield from self._expire_fields("HPEXPIREAT", fields, when, **conditions))

    @operation
    def hpersist(self, *fields: Key) -> Operation[list[int]]:
        """Remove the time to live of fields. Cost and errors: as `hexpire`.

        Returns:
            For each field 1 if it had one, -1 if not, -2 if the field does not exist.
        """
        return (yield from self._send_expiry("HPERSIST", fields))

    @operation
    def httl(self, *fields: Key) -> Operation[list[int]]:
        """Return the seconds to live of fields: -1 if one does not expire, -2 if it is missing.

        Cost and errors: as `hexpire`.
        """
        return (yield from self._send_expiry("HTTL", fields, writes=False))

    @operation
    def hpttl(self, *fields: Key) -> Operation[list[int]]:
        """Return the milliseconds to live of fields; see `httl`."""
        return (yield from self._send_expiry("HPTTL", fields, writes=False))

    @operation
    def hexpiretime(self, *fields: Key) -> Operation[list[int]]:
        """Return when fields expire, in seconds since 1970; else as `httl`."""
        return (yield from self._send_expiry("HEXPIRETIME", fields, writes=False))

    @operation
    def hpexpiretime(self, *fields: Key) -> Operation[list[int]]:
        """Return when fields expire, in milliseconds since 1970; else as `httl`."""
        return (yield from self._send_expiry("HPEXPIRETIME", fields, writes=False))

    @operation
    def hsetex(
        self,
        key: Key,
        value: Any,
        *,
        ex: int | timedelta | None = None,
        px: int | timedelta | None = None,
        exat: int | datetime | None = None,
        pxat: int | datetime | None = None,
        data_persist_option: str | None = None,
        keepttl: bool = False,
    ) -> Operation[int]:
        """Set one field together with its time to live; return 1, or 0 if it was not set.

        Args:
            key: the field.
            value: a value that the codec takes.
            ex: expire after seconds; of all times give at most one.
            px: after milliseconds.
            exat: at a time in seconds since 1970, or a datetime with a timezone.
            pxat: the same in milliseconds.
            data_persist_option: ``FNX`` sets it only if it does not exist, ``FXX`` only if it does.
            keepttl: keep the time to live that it has.

        Raises:
            StructureError: the servers cannot: Redis can from 8.0 on, Valkey from 9.0 on.

        Cost: one exchange.
        """
        options: list[Argument] = []
        if data_persist_option is not None:
            if data_persist_option not in ("FNX", "FXX"):
                raise InvalidArgumentError(
                    f"{self.name}: data_persist_option={shown(data_persist_option)}",
                    "give FNX or FXX",
                )
            options.append(data_persist_option)
        times: list[tuple[Argument, ...]] = [("KEEPTTL",)] if keepttl else []
        for name, after in (("EX", ex), ("PX", px)):
            if after is not None:
                times.append((name, duration(self.name, after, milliseconds=name == "PX")))
        for name, when in (("EXAT", exat), ("PXAT", pxat)):
            if when is not None:
                times.append((name, timestamp(self.name, when, milliseconds=name == "PXAT")))
        if len(times) > 1:
            raise InvalidArgumentError(
                f"{self.name}: several times to live", "give one of ex, px, exat, pxat and keepttl"
            )
        yield from self._values.load()
        pair = self._pair(key, value)
        yield from self._open(create=True)
        pairs = yield from self._values.of_generation(self.meta.generation, [pair])
        with self._supported("HSETEX", "8.0"):
            [(_, done)] = yield from self.layout.write(
                pairs,
                lambda f, v: ("HSETEX", *options, *chain(*times), "FIELDS", 1, f[0], v[0]),
            )
        return int(bool(done))

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything and yield the damage; see `ShardedSet.check`."""
        yield from raised_twice(self._values.load)
        yield from super()._check()

    @operation
    def replan(self, total: int) -> Operation[int]:
        """Plan parts for more fields, while clients use the hash; see `ShardedSet.replan`."""
        return (yield from plan_anew(self.meta, self.layout, "HASH", total))

    @operation
    def rebuild(self) -> Operation[int]:
        """Repair what `check` finds, where possible; return the number of fields.

        Moved fields do not replace existing ones; see `ShardedSet.rebuild`.
        """
        yield from self._rebuild()
        return (yield from self._count())

    def _validate_member(self, member: bytes, value: Any) -> None:
        self._fields.decode(member)
        self.codec.decode(value)

    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        return ("HSETNX", members[0], values[0])

    @operation
    def train(self, samples: Iterable[Any], *, again: bool = False) -> Operation[bool]:
        """Train a dictionary on some values, for a codec that compresses with one.

        Values set afterwards are stored with it; values set before stay readable. Returns whether
        it was stored: not if there is one already, or another process was first.

        Args:
            samples: values; some 20,000 at random make a good dictionary.
            again: whether to train another one, for new values, if there is one; there may be
                seven.

        Cost: four exchanges at most. Training takes seconds, which would block an event loop: there
        call `build_dictionary` in a thread, then `add_dictionary`.
        """
        steps = self._values.train(samples, again=again)
        return (yield from opened(steps, partial(self._open, create=True)))

    def build_dictionary(self, samples: Iterable[Any]) -> bytes:
        """Return a dictionary for values like these, for `add_dictionary`. No exchange."""
        return self._values.build_dictionary(samples)

    @operation
    def add_dictionary(self, dictionary: bytes, *, again: bool = False) -> Operation[bool]:
        """Store a dictionary that `build_dictionary` returned; see `train`."""
        steps = self._values.add_dictionary(dictionary, again=again)
        return (yield from opened(steps, partial(self._open, create=True)))

    @operation
    def copy_from(self, key: Key) -> Operation[int]:
        """Copy a plain HASH of the same component; return how many fields are new.

        Its values must have the codec's format, uncompressed (else StructureError). The HASH is not
        changed: compare, then remove it. Writes to it in the meantime may be missed: copy it again.

        Cost: two exchanges for every 1,000 fields.
        """

        def add(flat: list[bytes]) -> Operation[int]:
            values = map(self._values.inner.decode, flat[1::2])
            return self.deferred.hset_many(zip(flat[::2], values, strict=True))

        return (yield from self._copy("HSCAN", key, add))

    def _expire_fields(
        self, command: str, fields: Iterable[Key], time: int, **conditions: Unpack[Conditions]
    ) -> Operation[list[int]]:
        condition = expiry_condition(self.name, **conditions)
        return (yield from self._send_expiry(command, fields, time, *condition))

    def _send_expiry(
        self, command: str, fields: Iterable[Key], *args: Argument, writes: bool = True
    ) -> Operation[list[int]]:
        sent = list(map(self._fields.encode, fields))
        check_some(self.name, command.lower(), sent, "field")
        yield from self._open()
        codes_by_field = [_MISSING] * len(sent)
        numbered = [(field, n) for n, field in enumerate(sent)]

        def build(fields: list[bytes], _: list[int]) -> tuple[Argument, ...]:
            return (command, *args, "FIELDS", len(fields), *fields)

        with self._supported(command, "7.4"):
            if writes:
                replies = yield from self.layout.write(numbered, build, adds=False)
            else:
                replies = yield from self.layout.read(numbered, build)
        for positions, codes in replies:
            for n, code in zip(positions, codes or (), strict=False):  # no such part: no codes
                codes_by_field[n] = code
        return codes_by_field

    @contextmanager
    def _supported(self, command: str, redis: str) -> Iterator[None]:
        try:
            yield
        except ShardErrors as errors:
            if any(
                isinstance(failure, ShardFailure) and _UNKNOWN_COMMAND.search(str(failure.error))
                for failure in errors.exceptions
            ):
                raise StructureError(
                    f"{self.name}: the servers have no {command}",
                    f"use Redis {redis} or later, or Valkey 9.0 or later",
                ) from errors
            raise

    def _field(self, part: int | None, stored: bytes) -> F:
        return self._fields.decode(self.layout.member(part, stored))

    def _read_all(self, read: Callable[[Chunk], Operation[list[T]]]) -> Operation[list[T]]:
        """Read the chunks of all parts; see `hgetall`."""
        everything: list[T] = []
        seen = 0
        for chunk in (yield from self._chunks(PARTS_READ)):
            replies = yield from read(chunk)
            everything += replies
            seen += _counted(chunk, replies)
        yield from self.layout.verify(seen)
        return everything

    def _read_values(self, chunk: Chunk) -> Operation[list[V]]:
        values: list[V] = []
        for _, stored in (yield from self.layout.read_parts(chunk, "HVALS")):
            decode = partial(lambda texts: list(map(self.codec.decode, texts)), stored)
            try:
                values += yield from self._values.decode_with(stored, decode)
            except StructureError:
                yield from self._read_items(chunk)  # names the field
                raise
        return values

    def _read_fields(self, chunk: Chunk) -> Operation[list[F]]:
        replies = yield from self.layout.read_parts(chunk, "HKEYS")
        return [self._field(part, stored) for part, fields in replies for stored in fields]

    def _read_items(self, chunk: Chunk) -> Operation[list[tuple[F, V]]]:
        items: list[tuple[F, V]] = []
        for part, flat in (yield from self.layout.read_parts(chunk, "HGETALL")):
            decode = partial(self._items, part, flat)
            items += yield from self._values.decode_with(flat[1::2], decode)
        return items

    def _items(self, part: int | None, flat: Sequence[bytes]) -> list[tuple[F, V]]:
        fields = [self._field(part, stored) for stored in flat[::2]]
        try:
            return list(zip(fields, map(self.codec.decode, flat[1::2]), strict=True))
        except StructureError:
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                self._value(self.layout.member(part, field), value)
            raise

    def _value(self, field: bytes, stored: bytes) -> V:
        try:
            return self.codec.decode(stored)
        except StructureError as error:
            key, actual = self.layout.key_of(field), f"{shown(field)}: {error.message}"
            raise damage(self.component, key, actual, "what was stored") from None

    def _values_or_none(
        self, fields: Iterable[bytes], stored: Iterable[bytes | None]
    ) -> list[V | None]:
        pairs = zip(fields, stored, strict=True)
        return [None if value is None else self._value(field, value) for field, value in pairs]

    def _pair(self, field: Key, value: Any) -> tuple[bytes, Argument]:
        sent = self._fields.encode(field)
        try:
            return sent, self.codec.encode(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{self.name}: field {shown(field)}: {error.message}", error.remedy
            ) from None

    def _hset(self, pairs: Sequence[tuple[bytes, Argument]]) -> Operation[int]:
        yield from self._open(create=True)
        pairs = yield from self._values.of_generation(self.meta.generation, pairs)
        replies = yield from self.layout.write(pairs, _setting)
        yield from self._correct(pairs)
        return sum(new for _, new in replies)

    def _correct(self, written: Sequence[tuple[bytes, Argument]]) -> Operation[None]:
        """Write values again if others created the hash again, with another dictionary."""
        pairs = yield from self._values.of_generation(self.meta.generation, written)
        if pairs is not written:
            yield from self.layout.write(pairs, _setting)

    def _write_one(self, name: str, field: bytes, value: Argument) -> Operation[Reply]:
        yield from self._open(create=True)
        written = yield from self._values.of_generation(self.meta.generation, [(field, value)])
        [(_, reply)] = yield from self.layout.write(written, lambda f, v: (name, f[0], v[0]))
        if reply:
            yield from self._correct(written)
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


def _counted(chunk: Chunk, replies: Sequence[Any]) -> int:
    """Return how many of a chunk's entries are counted in the states of groups."""
    return len(replies) if isinstance(chunk[0], GroupPart) else 0


def _setting(fields: list[bytes], values: list[Argument]) -> tuple[Argument, ...]:
    flat: list[Argument] = [None] * (2 * len(fields))  # type: ignore[list-item]
    flat[::2] = fields
    flat[1::2] = values
    return ("HSET", *flat)
