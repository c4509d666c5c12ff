"""The base of structures in parts: a name, parameters stored beside the data, and parts.

::

    unique:2015-05-17:meta      HASH   its parameters (see `shardkit.structures.base.parameters`)
    unique:2015-05-17:0         part 0
    unique:2015-05-17:1         part 1
    …

A part is an ordinary key, whose name decides its shard. A structure over sixteen servers has the
same parts as over one, and a member's part and its server are not correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from shardkit.errors import ParameterMismatchError
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.check import REBUILD, Report, Suspicions, confirmed, suspected
from shardkit.structures.base.parameters import Metadata, open_all

# How many parts one exchange of a bulk operation visits.
PARTS_AT_ONCE = 1000


class PartitionedStructure(Structure[Face]):
    """A structure in parts.

    Attributes:
        meta: its parameters as stored.
    """

    kind: ClassVar[str]

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        check_name(name)
        super().__init__(driver, component, name)
        self.meta = Metadata(component, name, {"kind": self.kind, **parameters})

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters that decide where the structure's data lives, as text."""
        return self.meta.parameters

    @property
    def meta_key(self) -> str:
        """The key of the parameters."""
        return self.meta.key

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.name}:{part}"

    @operation
    def open(self, *, create: bool = False) -> Operation[None]:
        """Check the parameters against those stored. Other methods do so at their first call.

        Args:
            create: store the parameters if there are none.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.

        Cost: one exchange; none once they have been checked.
        """
        yield from self._open(create=create)

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.is_checked(create=create):
            yield from open_all([self.meta], create=create)


def check_parameters(meta: Metadata) -> Report:
    """Yield, and return, the damage to parameters; none if they are right, or there is no data."""
    meta.checked = False

    def suspect() -> Operation[Suspicions]:
        stores = f"{REBUILD} stores those that it is opened with"
        damaged = yield from suspected(open_all([meta]), stores)
        if not damaged or damaged[0].error.found == "nothing":
            return damaged
        return [suspicion._replace(loses="what the key holds") for suspicion in damaged]

    return (yield from confirmed(suspect))


def restore_parameters(meta: Metadata) -> Operation[None]:
    """Store a structure's parameters if there are none that can be read.

    Raises:
        ParameterMismatchError: there are others.
    """
    meta.checked = meta.data_ruled_out = False
    if (yield from _removed_if_damaged(meta)):
        meta.data_ruled_out = True
        yield from open_all([meta], create=True)
    elif meta.checked:
        # Only the script that creates a structure returns its expiry.
        [reply] = yield [meta.opening(create=True)]
        meta.compare(reply, create=True)


def open_to_delete(meta: Metadata, force: bool = False) -> Operation[bool]:
    """Compare parameters before a deletion; return whether there are none.

    Damaged ones are removed; with ``force`` also different ones.

    Raises:
        ParameterMismatchError: there are others.
    """
    meta.checked = meta.data_ruled_out = False
    try:
        gone = yield from _removed_if_damaged(meta)
    except ParameterMismatchError:
        if not force:
            raise
        yield [meta.command(meta.key, "UNLINK")]
        gone = True
    meta.data_ruled_out = meta.data_ruled_out or gone
    return gone


def _removed_if_damaged(meta: Metadata) -> Operation[bool]:
    """Open a structure; remove unreadable parameters. Return whether there are none."""
    damaged = yield from suspected(open_all([meta]))
    if damaged and damaged[0].error.found != "nothing":
        yield [meta.command(meta.key, "UNLINK")]
    return bool(damaged)
