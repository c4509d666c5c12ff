"""What search indexes, ads and job search share: documents in the parts of an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shardkit.operations.operation import Driver, Face, Operation, Structure, operation, pages
from shardkit.search.model.documents import check_ids
from shardkit.search.model.schema import Schema
from shardkit.search.parts import DocumentForm, IndexParts
from shardkit.search.rebuild import Progress, rebuild_parts

IDS_PER_BATCH: Final = 1_000


class DocumentStructure(Structure[Face]):
    """A structure of documents in parts."""

    def __init__(
        self,
        driver: Driver,
        component: str,
        schema: Schema,
        parameters: Mapping[str, object],
        form: DocumentForm,
        read_from: Sequence[str] = (),
    ) -> None:
        self._parts = IndexParts(component, schema, parameters, form, read_from)
        super().__init__(driver, component, schema.name)
        self.schema = schema

    @operation
    def count(self) -> Operation[int]:
        """Return the number of documents, ads or jobs. Cost: one exchange."""
        return (yield from self._parts.count())

    @operation
    def remove_many(self, ids: Iterable[str]) -> Operation[int]:
        """Remove documents, ads or jobs, with all that is counted of them; return how many existed.

        Raises:
            InvalidArgumentError: an id cannot be used; none of its batch of 1,000 was removed.
            ShardErrors: shards failed; documents on the others were removed.

        Cost: an exchange with each part for 150 documents, or for one to four if their words are in
        tens of thousands of others.
        """
        removed = 0
        for page in pages(check_ids(self.schema, ids), IDS_PER_BATCH):
            removed += (yield from self._parts.write(page)).existing
        return removed

    @operation
    def delete(self, *, force: bool = False) -> Operation[int]:
        """Delete everything with the parameters; return the number of documents, ads or jobs.

        No other client must be writing to it. Cached results, and targets of ads, expire on their
        own.

        Args:
            force: delete even if other parameters are stored, such as damaged ones; this scans the
                servers for the keys of any number of parts.

        Cost: one exchange for about 2,500 documents or words of each part.
        """
        removed = yield from self._parts.delete(force)
        self._drop_cached()
        return removed

    @operation
    def rebuild(self, *, lossy: bool = False, progress: Progress | None = None) -> Operation[int]:
        """Store lost parameters, and index all documents again; return their number.

        The documents, ads (with their counts) or jobs are the source of everything else. Those of a
        search index need their text or their words in order (`phrases`).

        Until the end no other client can write, and searches return the documents indexed so far.
        After an interruption call it again: no document is lost. `check` reports the damage that it
        repairs.

        Args:
            lossy: delete documents that are lost or cannot be read, and continue.
            progress: called with the numbers of indexed documents and of all documents.

        Raises:
            DamagedDataError: documents are lost or unreadable, and ``lossy`` is False; only lost
                parameters were stored. Or another client has started to rebuild.
            ShardErrors: a shard failed; call it again.

        Cost: up to five SCANs of each part's server; all documents are read twice and written once.
        The words of a part are held in memory.
        """
        done = yield from rebuild_parts(self._parts, lossy, progress)
        self._drop_cached()
        return done

    def _drop_cached(self) -> None:
        """Drop what this process caches of the documents."""
