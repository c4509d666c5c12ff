"""Sends reads to replicas: batches of links, and single commands of clients.

::

    link.send(batch) ── reads only? ── no ──► masters; the shards are noted as written to
                            └─ yes ─► a replica for each shard ─► failed? ─► ask, once more

A batch that also writes goes to the masters as a whole. If a server does not answer, or refuses
because it has lost its master, the read is sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, MasterDownError, TimeoutError

from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.read_from import ReadFrom, in_use
from shardkit.errors import ShardFailure, ShardUnavailable
from shardkit.network.connections.clients import (
    AsyncClient,
    Client,
    Clients,
    Number,
    ReplicaOf,
    reader_of,
)
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.endpoints import Endpoint
from shardkit.network.links.grouping import components_in, group_by_shard
from shardkit.network.links.server_request import only_reads
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.network.replicas.replicas import ReadTarget, Replicas
from shardkit.operations.commands import (
    Batch,
    Columns,
    Replies,
    Shard,
)
from shardkit.operations.kept import kept_with
from shardkit.routing.command_keys import reads_only

ATTEMPTS = 3
_MASTER = ReadFrom("master")
HELD = 0.002  # seconds between checks whether reads are still held
_LOST = (ConnectionError, TimeoutError, MasterDownError, OSError)


def is_read(batch: Batch) -> bool:
    """Whether a batch changes nothing, so that replicas may answer it."""
    if isinstance(batch, Columns):
        rows = [batch[0].args] if batch.name and batch.keys else batch.rows
        return bool(rows) and all(map(reads_only, rows))
    return all(map(only_reads, batch))


class _ChosenClients(NamedTuple):
    clients: Clients
    choices: dict[Shard, ReadTarget]

    def endpoints(self, component: Component, raw: bool) -> _ChosenEndpoints:
        return _ChosenEndpoints(self.choices, component, self.clients.endpoints(component, raw))

    def aendpoints(self, component: Component, raw: bool) -> _ChosenEndpoints:
        return _ChosenEndpoints(self.choices, component, self.clients.aendpoints(component, raw))


@dataclass(frozen=True, slots=True)
class _ChosenEndpoints:
    choices: dict[Shard, ReadTarget]
    component: Component
    all: Mapping[Number, Endpoint]

    def __getitem__(self, number: int | None) -> Endpoint:
        choice = self.choices.get(Shard(self.component.name, number))
        if choice is not None and isinstance(choice.which, ReplicaOf):
            return self.all[choice.which]
        return self.all[reader_of(self.component, number)]


class LinkReads:
    """Sends a link's batches of reads to replicas.

    ``read_from`` overrides the entries' settings; ``structures`` if structures use the link.
    """

    def __init__(
        self, replicas: Replicas, clients: Clients, read_from: ReadFrom | None, structures: bool
    ) -> None:
        self._replicas = replicas
        self._clients = clients
        self._read_from = read_from
        self._structures = structures
        if read_from is not None:
            in_use.note(self)

    def _of(self, component: Component, number: int | None) -> ReadFrom | None:
        return self._read_from or component.entry_of(Shard(component.name, number)).read_from

    def send(self, link: Any, batch: Batch) -> Any:
        """Send a batch over a link, like the link itself; of an awaiting one, a coroutine."""
        return link.run(self._steps(link, batch))

    def _steps(self, link: Any, batch: Batch) -> Steps[Replies]:
        """Send a batch to replicas if it only reads, else to the masters."""
        components: dict[str, Component] = {}
        for name in components_in(batch, range(len(batch))):
            components[name] = yield partial(link.component, name)
        replies: Replies
        if self._read_from is None and not any(c.splits_reads for c in components.values()):
            replies = yield partial(link.send, batch, clients=self._clients)
            return replies
        groups = group_by_shard(batch, range(len(batch)), components)
        shards = {shard: (components[shard.component], shard.number) for shard in groups.shards}
        modes = {shard: self._of(*where) for shard, where in shards.items()}
        if not is_read(batch):
            try:
                replies = yield partial(link.send, batch, clients=self._clients)
                return replies
            finally:
                for shard, where in shards.items():
                    if modes[shard] is not None:
                        self._replicas.wrote(*where)
        for shard, where in shards.items():
            mode = modes[shard]
            if mode is not None and not self._replicas.is_known(*where):
                yield partial(link.in_thread, self._replicas.ask, *where, mode)
        out = Replies()
        todo: Sequence[int] = range(len(batch))
        avoid: set[Entry] = set()
        for attempt in range(ATTEMPTS):
            choices: dict[Shard, ReadTarget] = {}
            try:
                for shard, where in shards.items():
                    mode = modes[shard]
                    if mode is None:
                        choices[shard] = ReadTarget(where[1])
                    else:
                        begin = partial(self._replicas.begin, structure=self._structures)
                        begun = _begun(link, partial(begin, *where, mode, avoid=avoid))
                        choices[shard] = yield from begun
                part = batch if attempt == 0 else [batch[position] for position in todo]
                replies = yield partial(
                    link.send, part, clients=_ChosenClients(self._clients, choices)
                )
            finally:
                self._replicas.end(choices.values())
            if attempt == 0:
                out = replies
            for position, reply in zip(todo, replies, strict=True):
                out[position] = reply
            if not replies.failed:
                break
            by_name = {str(shard): shard for shard in shards}
            failed: set[Shard] = set()
            again = []
            for position, reply in zip(todo, replies, strict=True):
                is_lost = isinstance(reply, ShardUnavailable) or (
                    isinstance(reply, ShardFailure) and isinstance(reply.error, _LOST)
                )
                shard_of = by_name.get(reply.shard) if is_lost else None
                which = choices[shard_of].which if shard_of is not None else None
                if shard_of is not None and isinstance(which, ReplicaOf):
                    failed.add(shard_of)
                    again.append(position)
                    if which.entry is not None:
                        avoid.add(which.entry)
                    else:  # a cluster's: its masters, then
                        modes[shard_of] = None
            if not again:
                break
            shards = {shard: shards[shard] for shard in failed}
            todo = again
            for shard, where in shards.items():
                if (mode := modes[shard]) is not None:
                    yield partial(link.in_thread, self._replicas.ask, *where, mode)
        out.failed = any(isinstance(reply, ShardFailure) for reply in out)
        return out


def _begun(face: Any, begin: Callable[[], ReadTarget | None]) -> Steps[ReadTarget]:
    """Choose where a read goes, once reads are not held; see `Replicas.begin`."""
    while (choice := begin()) is None:
        yield partial(face.sleep, HELD)
    return choice


# ---- clients of users


class ReaderClients:
    """Clients that send reads to replicas; ``read_from`` overrides the entries' settings."""

    def __init__(self, clients: Clients, replicas: Replicas, read_from: ReadFrom | None) -> None:
        self._clients = clients
        self._replicas = replicas
        self._read_from = read_from

    def get(self, component: Component, number: int | None) -> Client:
        """Return the blocking client of a shard."""
        reader: Client = self._reader(component, number, self._clients.get, ReaderClient)
        return reader

    def aget(self, component: Component, number: int | None) -> AsyncClient:
        """Return the awaiting client of a shard."""
        reader: AsyncClient = self._reader(component, number, self._clients.aget, AsyncReaderClient)
        return reader

    def _reader(self, component: Component, number: int | None, get: Any, kind: Any) -> Any:
        entry = component.entry_of(Shard(component.name, number))
        read_from = self._read_from or entry.read_from or (_MASTER if entry.held else None)
        if read_from is None:
            return get(component, number)
        if entry.is_cluster:
            choice = self._replicas.begin(component, number, read_from)
            return get(component, number if choice is None else choice.which)
        master = get(component, number)
        kept = kept_with(master, self)  # it is replaced with its entry, and is of one event loop
        reader = kept.get("reader")
        if reader is None:
            reader = kind(connection_pool=master.connection_pool)
            reader.response_callbacks = master.response_callbacks
            reader.successor = getattr(master, "successor", None)
            reader.reads = _ClientReads(self._replicas, read_from, component, number, get)
            kept["reader"] = reader
        elif reader.reads.component is not component:
            reader.reads.component = component
        return reader


@dataclass(slots=True)
class _ClientReads:
    replicas: Replicas
    read_from: ReadFrom
    component: Component
    number: int | None
    get: Any

    def wrote(self) -> None:
        if self.read_from is not _MASTER:
            self.replicas.wrote(self.component, self.number)

    def attempts(self, face: Any, args: Any, options: Any) -> Steps[Any]:
        """Execute a command on servers until one answers: yield what is needed."""
        where = self.component, self.number
        if self.read_from is not _MASTER and not self.replicas.is_known(*where):
            yield partial(face.in_thread, self.replicas.ask, *where, self.read_from)
        avoid: set[Entry] = set()
        error: Exception | None = None
        for _ in range(ATTEMPTS):
            begin = partial(self.replicas.begin, *where, self.read_from, avoid=avoid)
            choice = yield from _begun(face, begin)
            try:
                which = choice.which
                if not isinstance(which, ReplicaOf):
                    which = reader_of(*where)
                client = self.get(self.component, which, False)
                return (yield partial(client.execute_command, *args, **options))
            except _LOST as lost:
                error = lost
            finally:
                self.replicas.end([choice])
            entry = choice.which.entry if isinstance(choice.which, ReplicaOf) else None
            if entry is None:
                break
            avoid.add(entry)
            yield partial(face.in_thread, self.replicas.ask, *where, self.read_from)
        assert error is not None
        raise error


class _Reads:
    reads: _ClientReads

    def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        """Execute a command, on a replica if it only reads."""
        writes = self.connection is not None or not reads_only(args)
        steps = self._written if writes else partial(self.reads.attempts, self)
        return self.run(steps(args, options))

    def _written(self, args: Any, options: Any) -> Steps[Any]:
        try:
            return (yield partial(super().execute_command, *args, **options))  # type: ignore[misc]
        finally:
            self.reads.wrote()

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        pipe = super().pipeline(transaction, shard_hint)  # type: ignore[misc]
        pipe.wrote = self.reads.wrote
        return pipe


class ReaderClient(_Reads, DirectClient):
    """A master's blocking client whose single reading commands go to replicas.

    The master serves everything else: pipelines, transactions, scripts, subscriptions, locks.
    """


class AsyncReaderClient(_Reads, MultiplexedClient):  # type: ignore[misc]  # redis-py's own
    """The awaiting `ReaderClient`."""
