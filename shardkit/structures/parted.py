"""What every structure in parts has: a name, parameters stored beside its data, and parts.

::

    unique:2015-05-17:meta      HASH   kind=set total=2097152 shard_size=512 partition=crc32 …
    unique:2015-05-17:0         part 0
    unique:2015-05-17:1         part 1
    …

The parameters decide where data lives, so they are written with the first data, compared whenever
a structure is opened, and never changed in silence. A part is a key like any other: its name
decides its shard, so a structure over sixteen servers has the same parts as over one, and which
part and which server a member falls to are not correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from shardkit.commands import script_call
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.operation import Driver, Face, Operation, Structure
from shardkit.scripts import script

# Parts that one exchange of a bulk operation visits.
PARTS_AT_ONCE = 1000


class _Opened:
    """Whether a structure's parameters were compared; shared by all faces of it."""

    def __init__(self) -> None:
        self.done = False


class Parted(Structure[Face]):
    """A structure in parts.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        parameters: what decides where its data lives.
    """

    kind: ClassVar[str]

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"name={name!r}", "give the structure a name")
        super().__init__(driver, component, name)
        self.parameters = {"kind": self.kind} | {k: str(v) for k, v in parameters.items()}
        self._opened = _Opened()

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.name}:{part}"

    @property
    def meta_key(self) -> str:
        """The key of the parameters."""
        return f"{self.name}:meta"

    def _open(self, *, write: bool) -> Operation[None]:
        """Compare the parameters with those stored, once; when writing, store them if none are.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
        """
        if self._opened.done:
            return
        if write:
            flat = [text for pair in self.parameters.items() for text in pair]
            opening = script_call(
                self.component, script("open_structure"), [self.meta_key], flat, idempotent=True
            )
        else:
            opening = self._at(self.meta_key, "HGETALL", self.meta_key, idempotent=True)
        [flat_stored] = yield [opening]
        words = [word.decode() for word in flat_stored]
        stored = dict(zip(words[::2], words[1::2], strict=True))
        if stored and stored != self.parameters:
            raise self._mismatch(stored)
        # A reader does not create what is not there; it looks again next time.
        self._opened.done = write or bool(stored)

    def _mismatch(self, stored: Mapping[str, str]) -> ParameterMismatchError:
        names = [
            n for n in {**stored, **self.parameters} if stored.get(n) != self.parameters.get(n)
        ]
        differing = ", ".join(
            f"{name} is {stored.get(name)!r}, not {self.parameters.get(name)!r}" for name in names
        )
        return ParameterMismatchError(
            f"{self.meta_key}: {self.name!r} was created with other parameters: {differing}",
            "open it with those it has: its data is where they say",
        )
