"""The structures and components of a kit, each by the method that makes it.

They have the kit's face: the methods of a blocking kit's structures return values, those of an
async kit's coroutines. Making one costs nothing: its first operation is the first to use a server.
Only an index without ``shards=`` may have to read its component's entry first.

Their modules are imported when the first of them is made, as `shardkit.lazy_names` says. So default
values are written out here: ``tests/docs/test_site.py`` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Required, TypeAlias, TypedDict, Unpack, overload

# Under other names, as the kit's methods have theirs.
from shardkit import (
    ads as _ads,
    completion as _completion,
    coordination as _coordination,
    geo as _geo,
    job_search as _job_search,
    market as _market,
    messaging as _messaging,
    metrics as _metrics,
    queues as _queues,
    search as _search,
    social as _social,
    structures as _structures,
)
from shardkit.config.component import Component
from shardkit.config.read_from import ReadFrom
from shardkit.coordination.hold import AsyncRenewals, Renewals
from shardkit.metrics.outbox import Background
from shardkit.network.topology import Topology
from shardkit.operations.arguments import Seconds, check_calls
from shardkit.operations.operation import Driver, Face
from shardkit.routing.placement import DEFAULT
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.server_clock import ServerClock

if TYPE_CHECKING:  # before Python 3.13, typing's type variables have no defaults
    from typing_extensions import TypeVar

    M = TypeVar("M", bound="int | str | bytes", default=str)
    V = TypeVar("V", default=bytes)
else:
    M = V = Any

ReadsFrom: TypeAlias = str | ReadFrom | None
"""Where a structure's reads go; see `Catalogue.hash`."""


class _Partitioned(TypedDict, total=False):
    """The parameters of hashes that their types do not depend on."""

    component: Required[str]
    total: int | None
    part_size: int | None
    partition: str
    parts: int
    read_from: ReadsFrom


class _QuorumOptions(TypedDict, total=False):
    ttl: Seconds
    timeout: Seconds
    blocking: bool
    blocking_timeout: Seconds | None


class Catalogue(Generic[Face]):
    """The structures and components of a kit."""

    _driver: Driver  # runs their steps; decides the face
    _clock: ServerClock
    _renewals: Renewals | AsyncRenewals  # of what is held
    _background: Background  # sends what is recorded in the process

    # A component, without an exchange if it was read before; and the driver whose reads go to
    # replicas, or the usual one for None.
    _component: Callable[[str], Component]
    _reading: Callable[[ReadsFrom], Driver]
    topology: Topology

    def _part_count(self, component: str, given: int | None, unsharded: int) -> int:
        """Return how many parts an index has: as given, or as many as its component has shards."""
        if given is None:
            return len(self._component(component).without_problem().shards) or unsharded
        self.topology.count(component, given)
        return given

    @overload
    def hash(
        self,
        name: str,
        *,
        codec: _structures.Codec[V] | None = ...,
        fields: type[M] = ...,
        **parameters: Unpack[_Partitioned],
    ) -> _structures.ShardedHash[Face, M, V]: ...
    @overload
    def hash(
        self, name: str, *, codec: str, fields: type[M] = ..., **parameters: Unpack[_Partitioned]
    ) -> _structures.ShardedHash[Face, M, Any]: ...
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        part_size: int | None = None,
        codec: _structures.Codec[Any] | str | None = None,
        fields: type[Any] = str,
        partition: str = "digits",
        parts: int = 64,
        read_from: ReadsFrom = None,
    ) -> _structures.ShardedHash[Face, Any, Any]:
        """Return a HASH in parts; see `shardkit.structures.ShardedHash`.

        With ``read_from``, here and at the structures below, what only reads goes to replicas:
        ``replica``, ``prefer_replica``, ``nearest``, ``zone``, ``zone_replica``, or a
        `shardkit.network.replicas.ReadFrom`.
        """
        driver = self._reading(read_from)
        return _structures.ShardedHash(
            driver, component, name, total, part_size, codec, fields, partition, parts
        )

    @overload
    def strings(
        self,
        name: str,
        *,
        codec: _structures.Codec[V] | None = ...,
        **parameters: Unpack[_Partitioned],
    ) -> _structures.ShardedStrings[Face, V]: ...
    @overload
    def strings(
        self, name: str, *, codec: str, **parameters: Unpack[_Partitioned]
    ) -> _structures.ShardedStrings[Face, Any]: ...
    def strings(
        self,
        name: str,
        *,
        codec: _structures.Codec[Any] | str | None = None,
        **parameters: Unpack[_Partitioned],
    ) -> _structures.ShardedStrings[Face, Any]:
        """Return a namespace's strings; see `hash` and `shardkit.structures.ShardedStrings`."""
        check_name(name)
        # Not `hash(name)`: that has the very keys, user:0, of the strings that it replaces.
        fields: Any = self.hash(f"{name}:strings", codec=codec, **parameters)
        return _structures.ShardedStrings(self._reading(parameters.get("read_from")), name, fields)

    def set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        part_size: int | None = None,
        members: type[M] = str,  # type: ignore[assignment]  # its default
        partition: str = DEFAULT,
        parts: int = 64,
        read_from: ReadsFrom = None,
    ) -> _structures.ShardedSet[Face, M]:
        """Return a SET in parts; see `shardkit.structures.ShardedSet`."""
        return _structures.ShardedSet(
            self._reading(read_from), component, name, total, part_size, members, partition, parts
        )

    def sorted_set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        part_size: int | None = None,
        bound: int = 100,
        members: type[M] = str,  # type: ignore[assignment]  # its default
        parts: int = 64,
        read_from: ReadsFrom = None,
    ) -> _structures.ShardedSortedSet[Face, M]:
        """Return a ZSET in parts; see `shardkit.structures.ShardedSortedSet`."""
        return _structures.ShardedSortedSet(
            self._reading(read_from), component, name, total, part_size, bound, members, parts
        )

    def list(
        self,
        name: str,
        *,
        component: str,
        part_size: int = 1000,
        values: type[M] = str,  # type: ignore[assignment]  # its default
        read_from: ReadsFrom = None,
    ) -> _structures.ShardedList[Face, M]:
        """Return a LIST in pieces; see `shardkit.structures.ShardedList`."""
        return _structures.ShardedList(
            self._reading(read_from), component, name, part_size, values, self._clock
        )

    def unique_visitors(
        self,
        name: str = "unique",
        *,
        component: str,
        precision: str = "60-bit",
        part_size: int | None = None,
        first_day: int | None = None,
        digits: int | None = None,
        partition: str | None = None,
        read_from: ReadsFrom = None,
    ) -> _structures.UniqueVisitors[Face]:
        """Return a counter of unique visitors; see `shardkit.structures.unique.visitors`."""
        where = self._reading(read_from), component, name
        return _structures.UniqueVisitors(
            *where, precision, part_size, first_day, digits, partition, self._clock
        )

    def packed(
        self,
        name: str,
        *,
        component: str,
        fields: _structures.Fields,
        part_size: int | None = None,
        read_from: ReadsFrom = None,
    ) -> _structures.PackedRecords[Face]:
        """Return fixed-width records by id; see `shardkit.structures.PackedRecords`."""
        return _structures.PackedRecords(
            self._reading(read_from), component, name, fields, part_size
        )

    def locations(
        self,
        name: str = "location",
        *,
        component: str,
        part_size: int | None = None,
        regions: bool = True,
        read_from: ReadsFrom = None,
    ) -> _structures.Locations[Face]:
        """Return country and region by user, in two bytes; see `shardkit.structures.Locations`."""
        return _structures.Locations(self._reading(read_from), component, name, part_size, regions)

    def ip_to_city(self, name: str = "ip2city", *, component: str) -> _geo.IpToCity[Face]:
        """Return a lookup of cities by IP address; see `shardkit.geo.ip_to_city`."""
        return _geo.IpToCity(self._driver, component, name, self._clock)

    def city_totals(
        self, name: str = "daily", *, component: str, read_from: ReadsFrom = None
    ) -> _geo.CityTotals[Face]:
        """Return totals of log lines by day and place; see `shardkit.geo.city_totals`."""
        return _geo.CityTotals(self._reading(read_from), component, name)

    def recent_contacts(
        self,
        name: str = "recent",
        *,
        component: str,
        limit: int = 100,
        order: str = "list",
        read_from: ReadsFrom = None,
    ) -> _completion.RecentContacts[Face]:
        """Return users' last contacts, completed by prefix; see `shardkit.completion.contacts`."""
        return _completion.RecentContacts(self._reading(read_from), component, name, limit, order)

    def address_book(
        self,
        name: str = "members",
        *,
        component: str,
        parts: int = 1,
        fold: Callable[[str], str] | None = None,
        read_from: ReadsFrom = None,
    ) -> _completion.AddressBook[Face]:
        """Return groups' members, completed by prefix; see `shardkit.completion.address_book`."""
        return _completion.AddressBook(self._reading(read_from), component, name, parts, fold)

    def score_ranges(
        self,
        name: str,
        *,
        component: str,
        shards: int,
        members: type[M] = str,  # type: ignore[assignment]  # its default
        one_key: bool = False,
        read_from: ReadsFrom = None,
    ) -> _structures.ScoreRanges[Face, M]:
        """Return a view of ZSETs on many shards as one; see `shardkit.structures.ScoreRanges`."""
        self.topology.count(component, shards)
        return _structures.ScoreRanges(
            self._reading(read_from), component, name, shards, members, one_key
        )

    def search(
        self,
        name: str = "search",
        *,
        component: str,
        parts: int | None = None,
        read_from: ReadsFrom | Sequence[str] = None,
        statistics_ttl: Seconds = 10.0,
        **parameters: Unpack[_search.SchemaParameters],
    ) -> _search.SearchIndex[Face]:
        """Return an index of documents; see `shardkit.search.SearchIndex`.

        Its further parameters are those of `shardkit.search.Schema`. By default it has as many
        parts as the component has shards; 4 without shards.
        Searches go to ``read_from``: to replicas as at `hash`, or to other components, whose
        servers are replicas.
        """
        schema = _search.Schema(name, self._part_count(component, parts, 4), **parameters)
        components: Sequence[str] = ()
        if read_from is not None and not isinstance(read_from, str | ReadFrom):
            components, read_from = read_from, None
        driver = self._reading(read_from)
        return _search.SearchIndex(
            driver, component, schema, components, statistics_ttl, self._clock
        )

    def ads(
        self,
        name: str = "ads",
        *,
        component: str,
        parts: int | None = None,
        analyzer: _search.Analyzer | None = None,
        averages_ttl: Seconds = 60.0,
    ) -> _ads.Ads[Face]:
        """Return ads, in one part or the component's shards; see `shardkit.ads.Ads`."""
        count = self._part_count(component, parts, 1)
        return _ads.Ads(self._driver, component, name, count, analyzer, averages_ttl, self._clock)

    def job_search(
        self,
        name: str = "jobs",
        *,
        component: str,
        parts: int | None = None,
        measure: str = "skills",
        read_from: ReadsFrom = None,
    ) -> _job_search.JobSearch[Face]:
        """Return jobs, in one part or the component's shards; see `shardkit.job_search`."""
        count = self._part_count(component, parts, 1)
        return _job_search.JobSearch(self._reading(read_from), component, name, count, measure)

    def queues(
        self,
        name: str = "queues",
        *,
        component: str,
        attempts: int = 5,
        retry_delay: Seconds = 1.0,
        longest_retry_delay: Seconds = 3600.0,
    ) -> _queues.TaskQueues[Face]:
        """Return task queues; see `shardkit.queues.TaskQueues`."""
        return _queues.TaskQueues(
            self._driver, component, name, attempts, retry_delay, longest_retry_delay, self._clock
        )

    def lock(
        self,
        name: str,
        *,
        component: str,
        renew: bool = True,
        kind: str = "lock",
        **options: Unpack[_coordination.HoldOptions],
    ) -> _coordination.Lock[Face]:
        """Return a lock; see `shardkit.coordination.Lock`.

        Args:
            component: where it lives; the shard of its name.
            renew: whether the kit renews what is held, by a thread of its own, or a task of the
                event loop, until it is released.
            kind: the prefix of its keys; ``semaphore``, ``rwlock`` or ``election`` to inspect or
                break one of these.
            options: see `shardkit.coordination.holdable.Holdable`.
        """
        return _coordination.Lock(
            self._driver, component, name, *self._args(renew), kind=kind, **options
        )

    def semaphore(
        self,
        name: str,
        *,
        component: str,
        limit: int,
        renew: bool = True,
        **options: Unpack[_coordination.HoldOptions],
    ) -> _coordination.Semaphore[Face]:
        """Return a counting semaphore; see `shardkit.coordination.Semaphore` and `lock`."""
        return _coordination.Semaphore(
            self._driver, component, name, *self._args(renew), limit=limit, **options
        )

    def read_write_lock(
        self,
        name: str,
        *,
        component: str,
        renew: bool = True,
        **options: Unpack[_coordination.HoldOptions],
    ) -> _coordination.ReadWriteLock:
        """Return a read-write lock; see `shardkit.coordination.ReadWriteLock` and `lock`."""
        return _coordination.ReadWriteLock(
            self._driver, component, name, *self._args(renew), **options
        )

    def multi_lock(
        self,
        names: Sequence[str],
        *,
        component: str,
        renew: bool = True,
        **options: Unpack[_coordination.HoldOptions],
    ) -> _coordination.MultiLock[Face]:
        """Return locks to acquire all or none; see `lock` and `shardkit.coordination.MultiLock`."""
        locks = [self.lock(name, component=component, renew=renew, **options) for name in names]
        return _coordination.MultiLock(self._driver, locks, clock=self._clock)

    def quorum_lock(
        self,
        name: str,
        *,
        components: Sequence[str],
        renew: bool = True,
        **options: Unpack[_QuorumOptions],
    ) -> _coordination.QuorumLock[Face]:
        """Return a lock on a majority of servers; see `shardkit.coordination.QuorumLock`."""
        return _coordination.QuorumLock(
            self._driver, name, components, *self._args(renew), **options
        )

    def election(
        self,
        name: str,
        *,
        component: str,
        renew: bool = True,
        **options: Unpack[_coordination.HoldOptions],
    ) -> _coordination.Election[Face]:
        """Return an election; see `shardkit.coordination.Election` and `lock`."""
        return _coordination.Election(self._driver, component, name, *self._args(renew), **options)

    def countdown_latch(self, name: str, *, component: str) -> _coordination.CountdownLatch[Face]:
        """Return a latch; see `shardkit.coordination.CountdownLatch`."""
        return _coordination.CountdownLatch(self._driver, component, name, clock=self._clock)

    def barrier(self, name: str, *, component: str, parties: int) -> _coordination.Barrier[Face]:
        """Return a barrier; see `shardkit.coordination.Barrier`."""
        return _coordination.Barrier(
            self._driver, component, name, parties=parties, clock=self._clock
        )

    def transfers(
        self,
        name: str = "transfers",
        *,
        component: str,
        grace: Seconds = 10.0,
    ) -> _coordination.Transfers[Face]:
        """Return accounts and transfers between them; see `shardkit.coordination.Transfers`."""
        return _coordination.Transfers(
            self._driver, component, name, grace=grace, clock=self._clock
        )

    def market(
        self, name: str = "market", *, component: str, grace: Seconds = 10.0
    ) -> _market.Market[Face]:
        """Return a market; see `shardkit.market.Market`."""
        return _market.Market(self._driver, component, name, grace=grace, clock=self._clock)

    def _args(self, renew: bool) -> tuple[Renewals | AsyncRenewals | None, ServerClock]:
        return self._renewals if renew else None, self._clock

    def rate_limit(
        self,
        name: str,
        *,
        component: str,
        limit: int,
        per: Seconds = 1.0,
        burst: int | None = None,
        algorithm: str = "gcra",
    ) -> _coordination.RateLimit[Face]:
        """Return a rate limit; see `shardkit.coordination.RateLimit`."""
        where = self._driver, component, name
        return _coordination.RateLimit(
            *where, limit=limit, per=per, burst=burst, algorithm=algorithm, clock=self._clock
        )

    def mailboxes(
        self,
        name: str = "mailbox",
        *,
        component: str,
        limit: int | None = None,
        byte_limit: int | None = None,
        policy: str = "refuse",
    ) -> _messaging.Mailboxes[Face]:
        """Return mailboxes by owner; see `shardkit.messaging.Mailboxes`."""
        return _messaging.Mailboxes(
            self._driver, component, name, limit, byte_limit, policy, self._clock
        )

    def chats(self, name: str = "chat", *, component: str) -> _messaging.Chats[Face]:
        """Return group chats; see `shardkit.messaging.Chats`."""
        return _messaging.Chats(self._driver, component, name, self._clock)

    def files(
        self,
        name: str = "files",
        *,
        component: str,
        attempts: int = 5,
    ) -> _messaging.Files[Face]:
        """Return channels of files for many readers; see `shardkit.messaging.Files`."""
        return _messaging.Files(self._driver, component, name, attempts, self._clock)

    def totals(
        self, name: str = "totals", *, component: str, read_from: ReadsFrom = None
    ) -> _messaging.Totals[Face]:
        """Return totals of records, added source by source; see `shardkit.messaging.Totals`."""
        return _messaging.Totals(self._reading(read_from), component, name)

    def logs(
        self,
        name: str = "logs",
        *,
        component: str,
        limit: int = 100,
        read_from: ReadsFrom = None,
    ) -> _metrics.Logs[Face]:
        """Return logs: recent messages, and how often each occurs; see `shardkit.metrics.Logs`."""
        driver = self._reading(read_from)
        return _metrics.Logs(driver, self._background, component, name, limit, self._clock)

    def counters(
        self,
        name: str = "counters",
        *,
        component: str,
        precisions: Iterable[int | timedelta] = (1, 5, 60, 300, 3600, 18000, 86400),
        samples: int = 100,
        read_from: ReadsFrom = None,
    ) -> _metrics.TimeSliceCounters[Face]:
        """Return counts at several precisions; see `shardkit.metrics.TimeSliceCounters`."""
        where = self._reading(read_from), self._background, component, name
        return _metrics.TimeSliceCounters(*where, precisions, samples, self._clock)

    def statistics(
        self, name: str = "stats", *, component: str, read_from: ReadsFrom = None
    ) -> _metrics.MeasuredValues[Face]:
        """Return statistics of measured values; see `shardkit.metrics.MeasuredValues`."""
        driver = self._reading(read_from)
        return _metrics.MeasuredValues(driver, self._background, component, name, self._clock)

    def access_times(
        self,
        name: str = "stats",
        *,
        component: str,
        overall: bool = False,
        logs: _metrics.Logs[Face] | None = None,
        read_from: ReadsFrom = None,
    ) -> _metrics.AccessTimes[Face]:
        """Return times of blocks of code; see `shardkit.metrics.AccessTimes`.

        Args:
            name: the prefix of the statistics' keys.
            component: where they live.
            overall: also record each time under the context "overall".
            logs: where `AccessTimes.warn` counts its warnings.
            read_from: see `hash`.
        """
        statistics = self.statistics(name, component=component, read_from=read_from)
        return _metrics.AccessTimes(statistics, overall=overall, logs=logs)

    def timed(self, context: str, *, component: str, errors: bool = True) -> _metrics.TimedBlock:
        """Time a block of code or a function; see `shardkit.metrics.AccessTimes.timed`."""
        return self.access_times(component=component).timed(context, errors=errors)

    def maintenance(
        self, name: str = "is-under-maintenance", *, component: str
    ) -> _metrics.Maintenance[Face]:
        """Return the maintenance flag; see `shardkit.metrics.Maintenance`."""
        return _metrics.Maintenance(self._driver, component, name, self._clock)

    def social(
        self,
        name: str = "social",
        *,
        component: str,
        timelines: str | None = None,
        followers: str | None = None,
        **parameters: Unpack[_social.SocialParameters],
    ) -> _social.SocialNetwork[Face]:
        """Return a social network; see `shardkit.social.SocialNetwork`.

        Args:
            name: its name, part of every key.
            component: where users and statuses live, and all else by default.
            timelines: another component for timelines, by key.
            followers: another one for relations, by pair of ids.
            parameters: see `SocialNetwork`.
        """
        followers = followers or component
        network: _social.SocialNetwork[Face] = _social.SocialNetwork(
            self._driver,
            name,
            users=component,
            timelines=timelines or component,
            followers=followers,
            **parameters,
        )
        self.topology.count(followers, network.layout.relation_parts)
        return network


check_calls(Catalogue, makes_only=True)
