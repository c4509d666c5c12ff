"""Where an index lives: its parts, their keys, and the components that it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final
from zlib import crc32

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.lua import script
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Replies,
    Reply,
    ShardOf,
    raise_failures,
    script_call,
)
from shardkit.operations.operation import Operation
from shardkit.routing.placement import Place, placement
from shardkit.search.model.schema import Schema
from shardkit.structures.base.arguments import shown
from shardkit.structures.base.parameters import Metadata

PRIMARY: Final = -1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an index.

    Attributes:
        to: where it lives.
        tag: what its keys begin with.
        state: the key of its state.
    """

    to: ShardOf
    tag: str
    state: str

    def call(self, name: str, args: Sequence[Argument], *, key: str | None = None) -> Command:
        """Return a command that runs a script which reads."""
        keys = [self.state] if key is None else [self.state, self.tag + key]
        return script_call(self.to, script(name), keys, args, idempotent=True)

    def document(self, doc_id: str) -> Command:
        """Return the command that reads a document."""
        key = self.document_key(doc_id)
        return Command(self.to, key, ("GET", key), idempotent=True)

    def document_key(self, doc_id: str) -> str:
        """Return the key of a document."""
        return f"{self.tag}d:{doc_id}"


class Parts:
    """All parts of an index, and of its replicas. Shared by all faces of an index.

    Args:
        schema: the index's parameters.
        component: where it is written.
        read_from: components of the same number of shards that are replicas of that; by default it
            is read where it is written.
    """

    def __init__(self, schema: Schema, component: str, read_from: Sequence[str] = ()) -> None:
        self._name = schema.name
        self._sources = [self._of(schema, name) for name in (*read_from, component)]
        self._place: Place = placement("crc32", schema.shards)
        self._turn = count()

    @staticmethod
    def _of(schema: Schema, component: str) -> list[Part]:
        parts = []
        for n in range(schema.shards):
            tag = f"{{{schema.name}:{n}}}:"
            parts.append(Part(ShardOf(component, n, schema.shards), tag, f"{tag}state"))
        return parts

    @property
    def written(self) -> list[Part]:
        """The parts that are written to."""
        return self._sources[PRIMARY]

    @property
    def first(self) -> list[Part]:
        """The first part of each source; the primary's is the last."""
        return [parts[0] for parts in self._sources]

    def read(self, source: int) -> list[Part]:
        """Return the parts to read: of a replica by its number, or of the primary, -1."""
        return self._sources[source]

    def number(self, doc_id: str) -> int:
        """Return the number of a document's part."""
        return self._place(doc_id)

    def source(self, session: str | None, known: int | None) -> int:
        """Return what to read from: always the same for a session, else one after another.

        Args:
            session: the session's id, if sessions shall stick.
            known: what a cursor or result says.

        Raises:
            InvalidArgumentError: what is known is none of them.
        """
        replicas = len(self._sources) - 1
        if known is not None:
            if known == PRIMARY or 0 <= known < replicas:
                return known
            raise InvalidArgumentError(
                f"{self._name}: a page of replica {known}, of {replicas}",
                "open the index with the same read_from",
            )
        if not replicas:
            return PRIMARY
        if session is None:
            return next(self._turn) % replicas
        if not isinstance(session, str):
            raise InvalidArgumentError(f"{self._name}: session={shown(session)}", "give text")
        return crc32(session.encode(errors="replace")) % replicas


def ask(meta: Metadata, commands: Sequence[Command], partial: bool) -> Operation[list[Reply]]:
    """Return replies; the parameters are compared on the way if nobody has.

    Args:
        meta: the parameters.
        commands: what is asked.
        partial: whether failures are replies too, as long as not all have failed.
    """
    opening = [] if meta.checked else [meta.opening(create=False)]
    batch = [*opening, *commands]
    replies = yield Partial(batch) if partial else batch
    answers = list(replies[len(opening) :])
    if answers and all(isinstance(answer, ShardFailure) for answer in answers):
        raise_failures(Replies(answers))
    if opening and not isinstance(replies[0], ShardFailure):
        meta.compare(replies[0], create=False)
    return answers
