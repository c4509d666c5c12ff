"""What every structure in parts has: a name, parameters stored beside its data, and parts.

::

    unique:2015-05-17:meta      HASH   its parameters (see `shardkit.structures.base.parameters`)
    unique:2015-05-17:0         part 0
    unique:2015-05-17:1         part 1
    …

A part is a key like any other: its name decides its shard, so a structure over sixteen servers has
the same parts as over one, and which part and which server a member falls to are not correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.parameters import Meta, open_all

# Parts that one exchange of a bulk operation visits.
PARTS_AT_ONCE = 1000


class Parted(Structure[Face]):
    """A structure in parts.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        parameters: what decides where its data lives.

    Attributes:
        meta: its parameters as they are stored.
    """

    kind: ClassVar[str]

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        check_name(name)
        super().__init__(driver, component, name)
        self.meta = Meta(component, name, {"kind": self.kind, **parameters})

    @property
    def parameters(self) -> dict[str, str]:
        """What decides where its data lives, as text."""
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
        """Compare the parameters with those stored. Other methods do so when they are first called.

        Args:
            create: whether to store them if none are.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.

        Cost: one exchange; none once they have been compared.
        """
        yield from self._open(create=create)

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.compared:
            yield from open_all([self.meta], create=create)
