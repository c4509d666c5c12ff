"""The dictionaries of one structure, stored beside it.

::

    cityid2city:dictionary     HASH   {1: <bytes>, 2: <bytes>}      up to seven

A dictionary is written once and never changed: HSETNX lets the first of several trainers win, and
the others read what it wrote. So whatever a value says it was written with is there, as long as
the structure is. Values without a dictionary, stored before one was trained, stay readable too.

A structure wires it in with four lines::

    self._values = CodedValues(component, name, codec(given))    # in __init__
    self.codec = self._values.codec                         # whose encode and decode it uses
    yield from self._values.open()                          # before it encodes
    yield from self._values.ready(replies)                  # before it decodes replies

and gives out `CodedValues.learn`, `CodedValues.train` and `CodedValues.adopt`. The last line
matters when another process trained later than this one looked: it then meets a number that it
does not know. All this costs a codec without dictionaries nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.operations.commands import Command, To
from shardkit.operations.operation import Operation
from shardkit.structures.codecs.compression import (
    MOST_DICTIONARIES,
    Coder,
    Compressed,
    dictionary_of,
)
from shardkit.structures.codecs.plain import Codec, Raw, V

# So many values are written without a dictionary before looking again whether there is one now.
LOOK_AGAIN = 1000


class CodedValues(Generic[V]):
    """How the values of one structure are stored; shared by all its faces, like its `Metadata`.

    Args:
        to: where the dictionaries are stored.
        name: the structure's name.
        codec: the values' codec.

    Attributes:
        codec: the same, with the dictionaries of this structure: one object, kept for ever.
        key: the key of the dictionaries; it exists once one was trained.
        raw: whether values are returned as the bytes that are stored.
    """

    def __init__(self, to: To, name: str, codec: Codec[V]) -> None:
        self.key = f"{name}:dictionary"
        self.codec: Codec[V] = codec
        self._to = to
        self._name = name
        self.raw = isinstance(codec, Raw)
        self._looked = False
        self._compressed: Compressed | None = None
        if isinstance(codec, Compressed):
            self.codec = self._compressed = Compressed(codec.packing, codec.inner)

    @property
    def inner(self) -> Codec[V]:
        """The codec of values that are not compressed."""
        return self.codec if self._compressed is None else self._compressed.inner

    def open(self) -> Operation[None]:
        """Read the dictionaries that there are.

        Cost: one exchange, the first time, and after every 1,000 values that were encoded without
        a dictionary; none for a codec that has none.
        """
        compressed = self._compressed
        if compressed is None or (self._looked and compressed.without < LOOK_AGAIN):
            return
        yield from self._read(compressed)

    def ready(self, stored: Iterable[bytes | None]) -> Operation[None]:
        """Read the dictionaries again if one of these values needs one that is not known yet.

        Args:
            stored: values as replies hold them.

        Cost: none, but one exchange when another process has trained.
        """
        compressed = self._compressed
        if compressed is None:
            return
        needed = {dictionary_of(value) for value in stored if value} - {0}
        if needed - compressed.coders.keys():
            yield from self._read(compressed)

    def learn(self, samples: Iterable[Any]) -> bytes:
        """Return a dictionary for values like these, for `adopt`. Pure, and long: see `train`.

        Raises:
            InvalidArgumentError: the codec has no dictionary; there are no samples, or one does
                not fit.
        """
        compressed = self._with_dictionaries()
        return compressed.packing.learn([compressed.inner.encode(value) for value in samples])

    def train(self, samples: Iterable[Any], *, again: bool = False) -> Operation[bool]:
        """Train a dictionary in this process, and store it if there is none.

        Args:
            samples: values; some 20,000 at random make a good dictionary.
            again: whether to train one when there is one already; see `adopt`.

        Returns:
            Whether it was stored. Not if there is one already, or another process was first.

        Raises:
            InvalidArgumentError: the codec has no dictionary; there are no samples, or one does
                not fit; or there are seven dictionaries.

        Cost: three exchanges at most. Training takes seconds, for which an event loop would stand
        still: there, `learn` in a thread and then `adopt`.
        """
        compressed = self._with_dictionaries()
        yield from self._read(compressed)
        if compressed.coders and not again:
            return False
        return (yield from self.adopt(self.learn(samples), again=again))

    def adopt(self, dictionary: bytes, *, again: bool = False) -> Operation[bool]:
        """Store a dictionary that was learned, if there is none.

        Args:
            dictionary: what `learn` returned.
            again: whether to store a further one. What is written from now on is written with it,
                here and by processes that open the structure later, or read such a value; others
                go on with the one before.

        Returns:
            Whether it was stored. Not if there is one already, or another process was first.

        Raises:
            InvalidArgumentError: the codec has no dictionary, or there are seven.
            StructureError: this is no dictionary of the codec's.

        Cost: two exchanges, three when another process was first.
        """
        compressed = self._with_dictionaries()
        coder = compressed.packing.coder(dictionary)
        yield from self._read(compressed)
        if compressed.coders and not again:
            return False
        number = max(compressed.coders, default=0) + 1
        if number > MOST_DICTIONARIES:
            raise InvalidArgumentError(
                f"{self._name}: a dictionary more than {MOST_DICTIONARIES}, the most that values "
                "can tell apart",
                "copy the values into a new structure",
            )
        [stored] = yield [Command(self._to, self.key, ("HSETNX", self.key, number, dictionary))]
        if not stored:
            yield from self._read(compressed)
            return False
        compressed.coders = {**compressed.coders, number: coder}
        return True

    def reset(self) -> None:
        """Know nothing: the structure was deleted, and this key with it."""
        self._looked = False
        if self._compressed is not None:
            self._compressed.coders = {}

    def _with_dictionaries(self) -> Compressed:
        if self._compressed is None:
            raise InvalidArgumentError(
                f"{self._name}: codec {self.codec.name!r} has no dictionary",
                "make the structure with codec='tokens' or 'zstd'",
            )
        return self._compressed

    def _read(self, compressed: Compressed) -> Operation[None]:
        [flat] = yield [Command(self._to, self.key, ("HGETALL", self.key), idempotent=True)]
        coders: dict[int, Coder] = dict(compressed.coders)
        for number, dictionary in zip(map(int, flat[::2]), flat[1::2], strict=True):
            if number not in coders:
                try:
                    coders[number] = compressed.packing.coder(dictionary)
                except StructureError as error:
                    raise StructureError(f"{self.key}: {error.message}", error.remedy) from None
        compressed.coders = coders
        compressed.without = 0
        self._looked = True
