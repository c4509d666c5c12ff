"""Looking at the keys of components: all of them, or a sample of each database.

A database gives its keys in the order of their hashes, so the first thousand of a SCAN are a fair
sample of it; each of them stands for as many as there are for one that was looked at. Structures
are found first, by a SCAN of every database for ``*:meta``: names only, whatever there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component
from shardkit.doctor.summary import (
    KeyGroup,
    KeyStatistics,
    StoredStructure,
    StructureLookup,
    is_part,
)
from shardkit.doctor.targets import Database, ServerInfo, by_server, places_of, server_at, shards_of
from shardkit.encodings.inspection import KEYS_AT_ONCE, look
from shardkit.encodings.limits import KeyEncoding, Limits, check
from shardkit.errors import ShardErrors, ShardKitError
from shardkit.kit import ShardKit
from shardkit.lua import script
from shardkit.operations.commands import Shard, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.parameters import meta_key
from shardkit.structures.layouts.growing import tags

SAMPLE: Final = 1_000
_SCAN: Final = 1_000  # keys of one SCAN
_SCAN_NAMES: Final = 10_000  # of one that looks for few
_WORKERS: Final = 8
_REPACKED_AT_ONCE: Final = 100
_PROBED: Final = 16  # parts of a structure of which the sample has none

Progress = Callable[[str, int, int], object]


@dataclass
class ScanResult:
    """What was seen of components.

    Attributes:
        sample: how many keys of a database were looked at, at most; None for all.
        servers: the servers, by their id.
        homes: the ids of each component's servers.
        structures: the structures, by component and name.
        tallies: the keys, by group.
        keys: how many keys there are.
        seen: how many were looked at.
        repacked: how many parts were written anew.
        failures: by shard, why it could not be examined.
        ids: the id of the server of each place, by shard and address.
    """

    sample: int | None
    servers: dict[str, ServerInfo] = field(default_factory=dict)
    homes: dict[str, set[str]] = field(default_factory=dict)
    structures: dict[tuple[str, str], StoredStructure] = field(default_factory=dict)
    tallies: dict[KeyGroup, KeyStatistics] = field(default_factory=dict)
    keys: int = 0
    seen: int = 0
    repacked: int = 0
    failures: dict[str, Exception] = field(default_factory=dict)
    ids: dict[tuple[Shard, str], str] = field(default_factory=dict)

    @property
    def estimated(self) -> bool:
        """Whether figures are estimates, because not all keys were looked at."""
        return self.seen < self.keys

    def limits_of(self, component: str) -> set[Limits]:
        """Return the different limits of a component's servers."""
        found = (self.servers[each].limits for each in self.homes.get(component, ()))
        return {limits for limits in found if limits is not None}


def examine(
    kit: ShardKit,
    components: Mapping[str, Component],
    sample: int | None = SAMPLE,
    *,
    repack: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> ScanResult:
    """Look at components' keys: how they are stored, what they take, which limits they are beyond.

    Args:
        kit: a kit on their topology.
        components: the components.
        sample: how many keys of each database to look at; None for all of them.
        repack: write parts anew that would be compact then.
        progress: is told what is being done, how many databases are done, and of how many.

    Returns:
        What was seen. Shards that cannot be examined are among its failures.

    Cost: of each database a SCAN for structures, its names staying there, and some exchanges for
    the keys that are looked at, their entries only if they are not compact.
    """
    return _Scanner(kit, components, sample, repack, progress).run()


class _Scanner:
    def __init__(
        self,
        kit: ShardKit,
        components: Mapping[str, Component],
        sample: int | None,
        repack: bool,
        progress: Progress,
    ) -> None:
        self._kit = kit
        self._components = components
        self._repack = repack
        self._progress = progress
        self._lock = threading.Lock()
        self._result = ScanResult(sample)
        self._owners: dict[str, StructureLookup] = {}

    def run(self) -> ScanResult:
        places: list[Database] = []
        for component in self._components.values():
            for shard in shards_of(component):
                try:
                    places += places_of(self._kit, component, shard)
                except ShardKitError as error:
                    self._result.failures[str(shard)] = error
        met = self._each("finding structures", places, self._meet)
        for name in self._components:
            names = [each for component, each in self._result.structures if component == name]
            self._owners[name] = StructureLookup(names)
        self._each("looking at keys", met, self._survey)
        for structure in self._result.structures.values():
            tally = self._result.tallies.get(KeyGroup(structure.component, structure.name, ""))
            if tally is None or not tally.seen:
                self._probe(structure)
        return self._result

    def _each(
        self, what: str, places: Sequence[Database], visit: Callable[[Database], None]
    ) -> list[Database]:
        """Visit places, those of different servers side by side; return those that answered."""
        answered: list[Database] = []

        def visit_all(group: Sequence[Database]) -> None:
            dead: Exception | None = None
            for place in group:
                try:
                    if dead is None:
                        visit(place)
                        answered.append(place)
                except (RedisError, RedisClusterException, OSError, ShardErrors) as error:
                    dead = error
                with self._lock:
                    if dead is not None:
                        self._result.failures.setdefault(str(place.shard), dead)
                    self._done += 1
                    self._progress(what, self._done, len(places))

        self._done = 0
        self._progress(what, 0, len(places))
        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(visit_all, by_server(places)))
        return answered

    # ---- first: which servers there are, and which structures

    def _meet(self, place: Database) -> None:
        server = server_at(place)
        component = place.shard.component
        with self._lock:
            self._result.servers.setdefault(server.id, server)
            self._result.homes.setdefault(component, set()).add(server.id)
            self._result.ids[place.shard, place.address] = server.id
        names = place.client.scan_iter(match=meta_key("*"), count=_SCAN_NAMES)
        for page in pages(names, _SCAN):
            pipe = place.client.pipeline(transaction=False)
            for key in page:
                pipe.hgetall(key)
            for key, fields in zip(page, pipe.execute(raise_on_error=False), strict=True):
                found = _described(component, key, fields)
                if found is not None:
                    with self._lock:
                        self._result.structures[component, found.name] = found

    # ---- then: the keys

    def _survey(self, place: Database) -> None:
        sample = self._result.sample
        total = int(place.client.dbsize())
        names = place.client.scan_iter(count=_SCAN if sample is None else min(sample, _SCAN))
        if sample is not None:
            names = islice(names, sample)
        seen = 0
        for page in pages(names, max(KEYS_AT_ONCE, sample or 0)):
            # A sample is one page; everything stands for itself.
            weight = 1.0 if sample is None else max(1.0, total / len(page))
            self._add(
                place.shard,
                self._limits(place),
                self._kit.driver.run(look(place.shard, page)),
                weight,
            )
            seen += len(page)
        with self._lock:
            self._result.keys += max(total, seen)
            self._result.seen += seen

    def _limits(self, place: Database) -> Limits | None:
        return self._result.servers[self._result.ids[place.shard, place.address]].limits

    def _add(
        self, shard: Shard, limits: Limits | None, found: Sequence[KeyEncoding], weight: float
    ) -> None:
        tallies: dict[KeyGroup, KeyStatistics] = {}
        owner = self._owners[shard.component].owner
        if self._repack:
            found = self._written_anew(shard, limits, found)
        for seen in found:
            structure = owner(seen.key)
            if structure is None:
                group = KeyGroup(shard.component, None, seen.type, seen.encoding)
            else:
                group = KeyGroup(shard.component, structure, "")
            tally = tallies.setdefault(group, KeyStatistics())
            if structure is None or is_part(seen.key):
                tally.add(seen, weight, limits)
            else:
                tally.beside(seen, weight)
        with self._lock:
            for group, tally in tallies.items():
                self._result.tallies.setdefault(group, KeyStatistics()).merge(tally)

    def _written_anew(
        self, shard: Shard, limits: Limits | None, found: Sequence[KeyEncoding]
    ) -> list[KeyEncoding]:
        """Write parts anew that would be compact then; return all as they are now."""
        owner = self._owners[shard.component].owner
        stale = [
            seen.key
            for seen in found
            if owner(seen.key) is not None and is_part(seen.key) and check(seen, limits).stale
        ]
        if not stale:
            return list(found)
        now = {seen.key: seen for seen in self._kit.driver.run(_repack(shard, stale))}
        with self._lock:
            self._result.repacked += len(now)
        return [now.get(seen.key, seen) for seen in found]

    def _probe(self, structure: StoredStructure) -> None:
        """Look at a structure that the sample has nothing of: where its first parts would be."""
        name, groups = structure.name, structure.parameters.get("groups", "")
        keys = [f"{name}:{part}" for part in range(_PROBED)]
        if groups.isdigit():
            keys += [f"{name}:{{{tag}}}:0" for tag in islice(tags(int(groups)), _PROBED)]
        component = self._components[structure.component]
        try:
            for shard, owned in _by_shard(component, keys):
                found = self._kit.driver.run(look(shard, owned))
                limits = next(iter(self._result.limits_of(component.name)), None)
                self._add(shard, limits, found, 1.0)
        except (ShardErrors, ShardKitError) as error:
            self._result.failures.setdefault(component.name, error)


def _by_shard(component: Component, keys: Sequence[str]) -> Iterator[tuple[Shard, list[str]]]:
    found: dict[Shard, list[str]] = {}
    for key in keys:
        found.setdefault(component.shard_of(key), []).append(key)
    yield from found.items()


def _repack(shard: Shard, keys: Sequence[bytes]) -> Operation[list[KeyEncoding]]:
    """Write keys anew, each in one step."""
    for page in pages(keys, _REPACKED_AT_ONCE):
        yield [script_call(shard, script("doctor/repack"), [key]) for key in page]
    return (yield from look(shard, keys))


def _described(component: str, key: bytes, fields: object) -> StoredStructure | None:
    """Return the structure that a key describes, if it does."""
    if not isinstance(fields, dict) or b"kind" not in fields:
        return None
    words = {n.decode(errors="replace"): v.decode(errors="replace") for n, v in fields.items()}
    try:
        name = key.decode().removesuffix(meta_key(""))
    except UnicodeDecodeError:
        return None
    return StoredStructure(component, name, words)
