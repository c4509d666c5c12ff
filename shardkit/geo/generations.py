"""The generations of the data: which one readers use, and which others have keys.

::

    ip2city:generations      HASH    last         3512350       the newest number
                                     number       3512345       what readers use,
                                     current      {"number": 3512345, "ranges": …}
                                     importing:3512350          an import that is under way
                                     retired:3511111  175…      used until lately, kept until then
                                     left:3510000               an import that failed

An import writes a generation of its own, which nobody sees, and then one script changes ``number``
and ``current``: all readers go from complete old data to complete new data. The old generation is
kept for some time for those that are still reading it, and expires; it stands here until the next
import. What an import that failed has left is removed by the next.

Only one import can be under way: when a second one begins, the first is refused when it goes on,
and removes what it has written. So after a crash there is nothing to wait for.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shardkit.errors import StructureError
from shardkit.lua import script
from shardkit.operations.commands import Command, Home, script_call
from shardkit.operations.operation import Operation


class Generation(NamedTuple):
    """A complete generation.

    Attributes:
        number: later ones have larger numbers.
        ranges: how many ranges were read.
        cities: how many cities there are, numbered from 0.
        blocks: how many blocks there are.
        levels: the numbers of the levels that have blocks.
        imported: when it was switched to, in seconds since 1970.
    """

    number: int
    ranges: int
    cities: int
    blocks: int
    levels: tuple[int, ...]
    imported: int

    def to_json(self) -> str:
        """Return it as it is stored."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes) -> Generation:
        """Return what is stored.

        Raises:
            StructureError: that is none.
        """
        try:
            fields = json.loads(text)
            return cls(**{**fields, "levels": tuple(fields["levels"])})
        except (ValueError, TypeError, KeyError):
            raise StructureError(
                f"the current generation {text[:60]!r} cannot be read",
                "a newer version of shardkit may have written it; import again",
            ) from None


class Generations:
    """The generations of one IP to city; shared by its faces.

    Args:
        component: where it lives.
        name: the prefix of the keys.

    Attributes:
        key: the key of the HASH.
        home: where that lives.
    """

    def __init__(self, component: str, name: str) -> None:
        self.home = Home(component)
        self.key = f"{name}:generations"

    def reading(self) -> Command:
        """Return the command that reads which generation is used, as `Generation` stores it."""
        return Command(self.home, self.key, ("HGET", self.key, "current"), None, True)

    def begin(self) -> Operation[tuple[int, list[int], list[int]]]:
        """Begin an import.

        Returns:
            Its generation; those that have to be removed; and those that have to be removed and may
            still be written to for a moment.
        """
        [reply] = yield [script_call(self.home, script("geo/begin"), [self.key])]
        number, unused, told_off = reply
        return number, unused, told_off

    def alive(self, generation: int) -> Command:
        """Return the command that asks whether an import may go on; the reply is 1 or 0."""
        return Command(
            self.home, self.key, ("HEXISTS", self.key, f"importing:{generation}"), None, True
        )

    def switch(self, generation: Generation, grace: int) -> Operation[int]:
        """Have readers use a generation; return which they used before, 0 for none.

        Raises:
            StructureError: another import has begun.
        """
        arguments = (generation.number, generation.to_json(), grace)
        call = script_call(self.home, script("geo/switch"), [self.key], arguments, idempotent=True)
        [old] = yield [call]
        if old is None:
            raise superseded(self.key)
        return int(old)

    def abandon(self, generation: int) -> Operation[bool]:
        """Give an import up; return whether what it wrote has to be removed."""
        call = script_call(
            self.home, script("geo/abandon"), [self.key], [generation], idempotent=True
        )
        [unused] = yield [call]
        return bool(unused)

    def forget(self, generation: int) -> Operation[None]:
        """Note that a generation's keys are gone."""
        fields = [f"{state}:{generation}" for state in ("left", "retired")]
        yield [Command(self.home, self.key, ("HDEL", self.key, *fields), None, True)]

    def all(self) -> Operation[list[int]]:
        """Return every generation that has keys."""
        [fields] = yield [Command(self.home, self.key, ("HKEYS", self.key), None, True)]
        [current] = yield [Command(self.home, self.key, ("HGET", self.key, "number"), None, True)]
        named = [field.rpartition(b":")[2] for field in fields if b":" in field]
        return sorted({int(number) for number in [*named, *([current] if current else [])]})

    def delete(self) -> Operation[None]:
        """Remove the HASH."""
        yield [Command(self.home, self.key, ("UNLINK", self.key), None, True)]


def superseded(key: str) -> StructureError:
    """Return the error of an import while which another one began."""
    return StructureError(
        f"{key}: another import has begun meanwhile: this one has changed nothing",
        "leave it, or import again when the other one has ended",
    )
