"""The base of structures in parts: a name, parameters stored beside the data, and parts.

::

    unique:2015-05-17:meta      HASH   its parameters (see `shardkit.structures.base.parameters`)
    unique:2015-05-17:0         part 0
    unique:2015-05-17:1         part 1
    …

A part is an ordinary key, whose name decides its shard. So a structure over sixteen servers has the
same parts as over one, and a member's part and its server are not correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from shardkit.operations.operation import Driver, Face, Operation, Page, Structure, operation
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.check import REBUILD, Damage, Suspicions, confirmed, suspected
from shardkit.structures.base.parameters import Metadata, open_all

# How many parts one exchange of a bulk operation visits.
PARTS_AT_ONCE = 1000


class PartitionedStructure(Structure[Face]):
    """A structure in parts.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        parameters: what decides where its data lives.

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
        """The parameters that decide where its data lives, as text."""
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
            create: whether to store them if there are none.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.

        Cost: one exchange; none once they have been checked.
        """
        yield from self._open(create=create)

    def _check_parameters(self) -> Operation[Page[Damage]]:
        """Return the damage to the parameters; none if they are right, or there is no data.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
        """
        self.meta.checked = False
        return (yield from confirmed(self._suspect_parameters))

    def _suspect_parameters(self) -> Operation[Suspicions]:
        damaged = yield from suspected(open_all([self.meta]), "", "")
        stores = f"{REBUILD} stores those that it is opened with"
        if not damaged or damaged[0].error.found == "nothing":
            return [suspicion._replace(repair=stores) for suspicion in damaged]
        return [
            suspicion._replace(repair=stores, loses="what the key holds") for suspicion in damaged
        ]

    def _restore_parameters(self) -> Operation[None]:
        """Store the parameters that this was opened with, if there are none that can be read.

        Raises:
            ParameterMismatchError: there are others.
        """
        meta = self.meta
        meta.checked = meta.looked = False
        damaged = yield from suspected(open_all([meta]))
        if damaged:
            meta.looked = True
            if damaged[0].error.found != "nothing":
                yield [meta.command(meta.key, "UNLINK")]
            yield from open_all([meta], create=True)

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.is_checked(create=create):
            yield from open_all([self.meta], create=create)
