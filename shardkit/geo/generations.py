"""The generations of the data: the current one, and others that still have keys.

::

    ip2city:generations      HASH    last         3512350       the newest number
                                     number       3512345       the current one
                                     current      {"number": 3512345, "ranges": …}
                                     importing:3512350          an import in progress
                                     retired:3511111  175…      the previous one, kept until then
                                     left:3510000               an import that failed

An import writes a new generation, which no reader sees. Then one script sets ``number`` and
``current``: all readers switch from the complete old data to the complete new data. The old
generation expires after a grace period for readers that still use it, and stays recorded here until
the next import. The next import also removes the leftovers of a failed one.

Only one import can be in progress. When a second one starts, the first fails at its next step and
removes its blocks. So a crashed import never blocks the next one.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from shardkit.errors import NewerFormatError, StructureError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Home
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.damage import damage, stored_integer

IMPORT_AGAIN = "import again"
FORMAT = 1  # of all that is stored of a generation; absent in its record, it is 1
_STATES: Final = {b"importing", b"left", b"retired"}


class Generation(NamedTuple):
    """A complete generation.

    Attributes:
        number: later ones have larger numbers.
        ranges: the number of ranges that were read.
        cities: the number of cities, which are numbered from 0.
        blocks: the number of blocks.
        levels: the numbers of the levels that have blocks.
        imported: when the import finished, in seconds since 1970.
    """

    number: int
    ranges: int
    cities: int
    blocks: int
    levels: tuple[int, ...]
    imported: int


class Generations:
    """The record of generations of one `IpToCity`, shared by its faces: a HASH."""

    def __init__(self, component: str, name: str) -> None:
        self.home = Home(component)
        self.key = f"{name}:generations"

    def parse(self, stored: bytes) -> Generation:
        """Return a generation from its stored form."""
        try:
            fields = json.loads(stored)
            format_ = fields.get("format", FORMAT)
            if isinstance(format_, int) and format_ > FORMAT:
                raise NewerFormatError(
                    f"the current generation has format {format_}, this release reads {FORMAT}",
                    "use the release that imported it, or a later one",
                )
            known = {name: fields[name] for name in Generation._fields}  # others are later ones
            return Generation(**{**known, "levels": tuple(known["levels"])})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            found = f"current={shown(stored)}"
            remedy = "import again, or upgrade this program if a later release wrote it"
            raise damage(self.home, self.key, found, "a generation", remedy) from None

    def read_current(self) -> Command:
        """Return the command that reads the stored form of the current generation."""
        return self._at("HGET", "current")

    def begin(self) -> Operation[tuple[int, list[int], list[int]]]:
        """Begin an import; return its generation's number, and the generations to remove.

        Last come those of interrupted imports, which may still write a little more.
        """
        [reply] = yield [lua_call(self.home, "geo/begin", [self.key])]
        number, unused, interrupted = reply
        return number, unused, interrupted

    def alive(self, generation: int) -> Command:
        """Return the command that checks whether an import may continue; the reply is 1 or 0."""
        return self._at("HEXISTS", f"importing:{generation}")

    def switch(self, generation: Generation, grace: int) -> Operation[int]:
        """Make readers use a generation; return the previous one, 0 for none."""
        stored = json.dumps(generation._asdict(), separators=(",", ":"))
        arguments = (generation.number, stored, grace)
        call = lua_call(self.home, "geo/switch", [self.key], arguments, idempotent=True)
        [old] = yield [call]
        if old is None:
            raise superseded(self.key)
        return int(old)

    def abandon(self, generation: int) -> Operation[bool]:
        """Abandon an import; return whether its generation has to be removed."""
        abandon = lua_call(self.home, "geo/abandon", [self.key], [generation], idempotent=True)
        [unused] = yield [abandon]
        return bool(unused)

    def forget(self, generation: int) -> Operation[None]:
        """Record that a generation's keys are removed."""
        fields = [f"{state}:{generation}" for state in ("left", "retired")]
        yield [self._at("HDEL", *fields)]

    def read(self) -> Operation[tuple[Generation | None, dict[int, str]]]:
        """Return the current generation, and the states of others that have keys."""
        [flat] = yield [self._at("HGETALL")]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))

        def number_of(text: bytes) -> int:
            return stored_integer(self.home, self.key, "number", text)

        states = {}
        for field in fields:
            state, _, number = field.partition(b":")
            if state in _STATES:
                states[number_of(number)] = state.decode()
        if b"number" not in fields and b"current" not in fields:
            return None, states
        current, number = self.parse(fields.get(b"current", b"")), fields.get(b"number", b"")
        if number_of(number) != current.number:
            raise damage(self.home, self.key, f"number={shown(number)}", f"{current.number}")
        return current, states

    def delete(self) -> Operation[None]:
        """Remove the HASH."""
        yield [self._at("UNLINK")]

    def _at(self, name: str, *args: str) -> Command:
        return Command(self.home, self.key, (name, self.key, *args), None, True)


def superseded(key: str) -> StructureError:
    """Return the error of an import that another one interrupted."""
    return StructureError(
        f"{key}: another import has started: this one has changed nothing",
        "import again when the other one has ended, if still needed",
    )
