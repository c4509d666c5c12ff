"""What ads and jobs share: an index's parts, its parameters, and what is written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from shardkit.errors import InvalidArgumentError
from shardkit.lua import script
from shardkit.operations.commands import Argument, Command, Reply, script_call
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.search.model.schema import Schema
from shardkit.search.shards import Part, Parts, ask
from shardkit.structures.base.arguments import check_name, shown
from shardkit.structures.base.parameters import Metadata

T = TypeVar("T")


class InParts(Structure[Face]):
    """Documents of a search index, for another use than full text.

    Args:
        driver: what runs its operations.
        component: where its keys live; if it is sharded, of as many shards as there are parts.
        schema: what documents have.
        parameters: what is stored and compared.

    Attributes:
        meta: the parameters as they are stored.
    """

    def __init__(
        self, driver: Driver, component: str, schema: Schema, parameters: Mapping[str, object]
    ) -> None:
        check_name(schema.name)
        if "{" in schema.name or "}" in schema.name:
            raise InvalidArgumentError(
                f"name={shown(schema.name)} of an index", "leave out braces: keys have a tag"
            )
        super().__init__(driver, component, schema.name)
        self._schema = schema
        self._parts = Parts(schema, component)
        # With the first part, so that a component of another number of shards is refused before.
        self.meta = Metadata(self._all[0].to, schema.name, parameters)

    @operation
    def count(self) -> Operation[int]:
        """Return how many there are. Cost: one exchange."""
        replies = yield from self._ask(
            [
                Command(part.to, part.state, ("HGET", part.state, "docs"), idempotent=True)
                for part in self._all
            ]
        )
        return sum(int(reply or 0) for reply in replies)

    @property
    def _all(self) -> list[Part]:
        return self._parts.written

    def _part(self, doc_id: str) -> Part:
        return self._all[self._parts.number(doc_id)]

    def _by_part(self, items: Iterable[T], id_of: Callable[[T], str]) -> list[tuple[Part, list[T]]]:
        """Return what each part gets; of several items with one id the last."""
        found: dict[int, dict[str, T]] = {}
        for item in items:
            doc_id = id_of(item)
            found.setdefault(self._parts.number(doc_id), {})[doc_id] = item
        return [(self._all[number], list(some.values())) for number, some in found.items()]

    def _writing(self, part: Part, arguments: Sequence[Argument]) -> Command:
        """Return the command that writes documents to a part."""
        sent = [self._schema.chunk, *arguments]
        return script_call(part.to, script("search/write"), [part.state], sent)

    def _ask(self, commands: Sequence[Command], *, partial: bool = False) -> Operation[list[Reply]]:
        """Return replies; the parameters are compared on the way if nobody has.

        Args:
            commands: what is asked.
            partial: whether failures are replies too, as long as not all have failed.
        """
        return (yield from ask(self.meta, commands, partial))
