"""What is known of replicas, and which of them answers the next read.

::

    every 0.5 s   INFO replication of the master (offset 900 at time t), then of each replica
    replica       link up, of this master's history, offset 900: it has all that was written by t
    a read        may go there if now - t <= max_lag, and t is after the last write that this
                  process made on the shard with read_from

A process stays with one replica as long as that can be used; the process id (or the session) picks
it, so that a fleet shares the replicas. Before a switch, the asking thread holds the shard's reads
for some milliseconds, until none is in progress and the new server has everything that the master
had by then. So reads never go back in time, nor do layouts that structures have cached.

One thread of the kit's asks the servers. It ends after a minute without reads from replicas. A
cluster's client finds its replicas by itself; their lag is not known. If this process has a zone,
one node is asked for the zones of all twice a minute, and nodes that it leaves out for their own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

from redis.exceptions import (
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.read_from import ReadFrom
from shardkit.errors import InvalidArgumentError, ShardKitError, ShardUnavailable
from shardkit.network.connections.clients import Clients, Number, ReplicaOf, reader_of
from shardkit.network.rights import missing_right
from shardkit.network.server_queries import greeting_of, query_all
from shardkit.operations.commands import Shard
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.interruptions import start_thread, tolerated
from shardkit.operations.reply_kinds import READING_ERRORS

INTERVAL = 0.5
UNUSED = 60.0  # seconds without a read, after which replicas are no longer asked
OUTDATED = 5.0  # seconds after which what is known of a server is ignored
CLUSTER_WRITES = 1.0  # seconds of reading from a cluster's masters after a write
_SMOOTHED = 0.2  # the weight of the latest of a server's times to answer
_ZONES = 30.0  # seconds between two questions for a cluster's zones
_ALIKE = 0.0002  # seconds of latency that make no difference
CATCH_UP = 0.05  # seconds that reads are held at most when they change to another server
_MOST_SAMPLES = 256  # of a master's offset
_MOST_SESSIONS = 10_000
_NEVER = float("-inf")

_session: ContextVar[str] = ContextVar("shardkit_session", default="")


@contextmanager
def session(name: str) -> Iterator[None]:
    """Keep the reads of one session inside on one replica of each shard.

    ::

        with shardkit.network.replicas.session("user-7"):
            timelines["user:7"].get("profile")

    Sessions are spread over the replicas by their names. This concerns clients; structures use one
    replica for all sessions of a process, because they cache their layouts.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"session={name!r:.80}", "give a text")
    token = _session.set(name)
    try:
        yield
    finally:
        _session.reset(token)


@dataclass
class ReplicaState:
    """A server's latest answer."""

    entry: Entry
    problem: str = "not asked yet"  # why nothing can be read from it; empty if it can be used
    linked: bool = False  # whether the link to its master is up
    is_silent: bool = False  # whether the user may not ask it for more than an answer
    complete_at: float = _NEVER  # it has everything that was written by this time
    latency: float = float("inf")  # seconds
    asked_at: float = _NEVER
    zone: str | None = None  # by its entry, or as it says itself; None if unknown

    def __post_init__(self) -> None:
        self.zone = self.entry.zone or None

    def why_not(self, read_from: ReadFrom, since: float, now: float) -> str:
        """Return why a read must not go there; empty if it may."""
        if self.problem:
            return self.problem
        if now - self.asked_at > OUTDATED:
            return "no recent answer"
        if self.is_silent and read_from.max_lag is not None:
            return "its lag is unknown: its user may not run INFO"
        if self.complete_at < since:
            return "lacks this process's last write"
        if read_from.max_lag is None:
            return ""
        if not self.linked:
            return "its link to the master is down"
        if now - self.complete_at > read_from.max_lag:
            return f"lags by more than {read_from.max_lag:g} s"
        return ""


@dataclass
class _ShardState:
    """The state of a shard's master and replicas, and of this process's reads and writes."""

    shard: Shard
    component: Component
    master: ReplicaState
    replicas: list[ReplicaState]
    is_asked: bool = False  # whether the first question was waited for
    history: str = ""  # the replication id of the master's data
    # The master's offset at times.
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    wrote_at: float = _NEVER  # the last write of this process
    last: dict[str, Entry | None] = field(default_factory=dict)  # by session; None is the master
    wanted: dict[str, Entry | None] = field(default_factory=dict)  # by session, after a switch
    reading: int = 0  # reads in progress
    held: bool = False  # whether reads are held
    used_at: float = 0.0  # the last read that asked for a replica


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """The client's number for a read, and the shard's state, if that counts reads."""

    which: Number
    state: _ShardState | None = None


class Replicas:
    """The replicas of a kit's shards. Thread-safe. ``zone`` is this process's, empty if unknown."""

    def __init__(self, clients: Clients, zone: str = "") -> None:
        self._clients = clients
        self.zone = zone
        self._lock = ForkSafeLock()
        self._shards: dict[Shard, _ShardState] = {}
        self._turn = count()
        self._thread = 0  # the process that it runs in
        self._end = threading.Event()
        self._asking: dict[str, Future[None]] = {}  # the latest question to each server

    # ---- choosing

    def begin(
        self,
        component: Component,
        number: int | None,
        read_from: ReadFrom,
        *,
        structure: bool = False,
        avoid: Collection[Entry] = (),
    ) -> ReadTarget | None:
        """Return where a read goes, and count it until `end`; None if reads are held just now.

        A ``structure`` never reads the past, whatever ``read_from`` allows. ``avoid`` has replicas
        that have just failed.

        Raises:
            ShardUnavailable: only replicas are allowed, and none can be used.
        """
        shard = Shard(component.name, number)
        entry = component.entry_of(shard)
        if read_from.mode == "master":
            return ReadTarget(number)
        if entry.is_cluster:
            return ReadTarget(self._choose_in_cluster(component, shard, read_from))
        state = self._state(component, shard)
        now = time.monotonic()
        with self._lock:
            if state.held:
                return None
            state.used_at = now
            chosen = self._choose(state, read_from, structure, avoid, now)
            state.reading += 1
        return ReadTarget(number if chosen is None else ReplicaOf(number, chosen), state)

    def end(self, choices: Iterable[ReadTarget]) -> None:
        """Note that reads have ended."""
        with self._lock:
            for choice in choices:
                if choice.state is not None:
                    choice.state.reading -= 1

    def _choose(
        self,
        state: _ShardState,
        read_from: ReadFrom,
        structure: bool,
        avoid: Collection[Entry],
        now: float,
    ) -> Entry | None:
        """Return the replica that a read goes to; None for the master."""
        name = "" if structure else _session.get()
        spread = read_from.spread and not structure
        unordered = spread or (read_from.max_lag is None and not structure)
        since = state.wrote_at if structure or read_from.read_your_writes else _NEVER
        why = {
            replica.entry: "did not answer"
            if replica.entry in avoid
            else replica.why_not(read_from, since, now)
            for replica in state.replicas
        }
        usable = [replica for replica in state.replicas if not why[replica.entry]]
        wanted = self._pick(state, usable, read_from, name, spread)
        if wanted is None and read_from.mode == "replica":
            late = [own for own in state.replicas if not own.why_not(read_from, _NEVER, now)]
            if all(replica.entry in avoid for replica in late):
                reasons = "; ".join(f"{entry.address}: {text}" for entry, text in why.items())
                raise ShardUnavailable(
                    f"{state.shard} has no usable replica ({reasons or 'its entry names none'})",
                    "see `shardkit status`, or use read_from='prefer_replica'",
                    shard=str(state.shard),
                )
        if unordered:
            return wanted
        if name not in state.last and len(state.last) >= _MOST_SESSIONS:
            state.last.clear()
        last = state.last.setdefault(name, wanted)
        if wanted == last or wanted is None or (last is not None and why.get(last) != ""):
            # The master has all that any replica had.
            state.last[name] = last = wanted if wanted == last else None
        if wanted == last:
            state.wanted.pop(name, None)
        else:
            state.wanted[name] = wanted  # the thread will switch
        return last

    def _pick(
        self,
        state: _ShardState,
        usable: list[ReplicaState],
        read_from: ReadFrom,
        name: str,
        spread: bool,
    ) -> Entry | None:
        candidates = [replica.entry for replica in usable]
        if read_from.mode == "nearest":
            quickest = min(replica.latency for replica in (*usable, state.master))
            limit = quickest * 1.25 + _ALIKE
            candidates = [replica.entry for replica in usable if replica.latency <= limit]
        elif read_from.by_zone:
            near = [replica.entry for replica in usable if replica.zone == self.zone]
            stays = read_from.mode == "zone" and state.master.zone == self.zone
            candidates = near or ([] if stays else candidates)
        if not candidates:
            return None
        if spread:
            return candidates[next(self._turn) % len(candidates)]
        last = state.last.get(name)
        if last in candidates:
            return last
        who = name or f"process {os.getpid()}"
        return max(candidates, key=lambda entry: crc32(f"{who} {entry.address}".encode()))

    def _choose_in_cluster(self, component: Component, shard: Shard, read_from: ReadFrom) -> Number:
        if read_from.mode == "nearest":
            raise InvalidArgumentError(
                f"{shard}: read_from='nearest' is impossible on a cluster, whose latencies are not "
                "known",
                "use zone, zone_replica, replica or prefer_replica",
            )
        state = self._shards.get(shard)
        if self.zone:
            state = self._state(component, shard)
            state.used_at = time.monotonic()
        if state is not None and time.monotonic() - state.wrote_at < CLUSTER_WRITES:
            return shard.number
        return ReplicaOf(shard.number, stays=read_from.mode == "zone")

    def wrote(self, component: Component, number: int | None) -> None:
        """Note that this process writes to a shard."""
        self._state(component, Shard(component.name, number)).wrote_at = time.monotonic()

    # ---- asking

    def is_known(self, component: Component, number: int | None) -> bool:
        """Whether a shard's servers were asked since its entry changed."""
        shard = Shard(component.name, number)
        entry = component.entry_of(shard)
        if not (self.zone if entry.is_cluster else entry.replicas or entry.is_sentinel):
            return True
        return self._state(component, shard).is_asked

    def ask(self, component: Component, number: int | None, read_from: ReadFrom) -> None:
        """Ask a shard's servers now; if only replicas may be read, wait for one to use. Blocks."""
        shard = Shard(component.name, number)
        state = self._state(component, shard)
        if component.entry_of(shard).is_cluster:
            self._ask_nodes(state)
        else:
            self._ask_all([state], first=True)
        state.is_asked = True
        if read_from.mode == "replica":
            servers = {_server(replica.entry) for replica in state.replicas} & self._asking.keys()
            for _ in as_completed([self._asking[server] for server in servers]):
                if not all(replica.problem for replica in state.replicas):
                    return

    def close(self) -> None:
        """Stop asking servers."""
        self._end.set()

    def _state(self, component: Component, shard: Shard) -> _ShardState:
        state = self._shards.get(shard)
        if state is None or state.component is not component:
            with self._lock:
                state = self._shards.get(shard)
                if state is None:
                    state = self._shards[shard] = _new_state(component, shard)
                elif component.version > state.component.version:
                    if state.component.entry_of(shard) != component.entry_of(shard):
                        former, state = state, _new_state(component, shard)
                        state.used_at = former.used_at
                        state.wrote_at = time.monotonic()  # perhaps, to the former master
                        state.last = dict.fromkeys(former.last)
                        self._shards[shard] = state
                    else:
                        state.component = component
        if self._thread != os.getpid():
            self._start()
        return state

    def _start(self) -> None:
        with self._lock:
            if self._thread == os.getpid() or self._end.is_set():
                return
            self._thread = os.getpid()
            self._asking = {}  # those of a parent never end
        thread = threading.Thread(
            target=_watch,
            args=(weakref.ref(self), self._end),
            name="shardkit-replicas",
            daemon=True,
        )
        try:
            start_thread(thread)
        except RuntimeError:  # no more threads can be started
            self._thread = 0

    def round(self) -> bool:
        """Ask the servers of all shards in use; return whether there are any."""
        now = time.monotonic()
        states = [own for own in list(self._shards.values()) if now - own.used_at < UNUSED]
        if not states:
            self._thread = 0
            return False
        clusters = [state for state in states if state.master.entry.is_cluster]
        for state in clusters:
            if self.zone and now - state.master.asked_at > _ZONES:
                self._ask_nodes(state)
        states = [state for state in states if state not in clusters]
        self._ask_all(states)
        for state in states:
            if state.wanted and not self._hangs(state.master):
                self._switch(state)
        return True

    def _ask_nodes(self, state: _ShardState) -> None:
        """Learn which of a cluster's nodes are in the zone of this process."""
        state.master.asked_at = time.monotonic()
        with tolerated(RedisError, RedisClusterException, ShardKitError, OSError):
            which = ReplicaOf(state.shard.number)
            client: Any = self._clients.get(state.component, which, raw=True)
            node_clients = {n.name: client.get_redis_connection(n) for n in client.get_nodes()}
            zones: dict[str, Any] = {}
            with suppress(ResponseError, *READING_ERRORS):
                zones |= _zones_in_slots(client.get_default_node(), node_clients)
            asked = {n: partial(_own_zone, node_clients[n]) for n in node_clients if n not in zones}
            for name, zone in (zones | query_all(asked)).items():
                if not isinstance(zone, Exception):
                    near = self._clients.near
                    (near.add if zone == self.zone else near.discard)(name)

    def _ask_all(self, states: list[_ShardState], *, first: bool = False) -> None:
        """Ask the masters, then the replicas; each server once, however many shards it has.

        Each answer counts when it comes. Nobody waits for a server for longer than INTERVAL; only
        a ``first`` question waits for the one before it.
        """
        self._ask_each([(state, state.master) for state in states], first)
        self._ask_each([(state, replica) for state in states for replica in state.replicas], first)

    def _ask_each(self, asked: list[tuple[_ShardState, ReplicaState]], first: bool) -> None:
        servers: dict[str, list[tuple[_ShardState, ReplicaState]]] = {}
        for state, server in asked:
            servers.setdefault(_server(server.entry), []).append((state, server))
        pool, begun = ThreadPoolExecutor(len(servers) or 1, "shardkit-replicas"), []
        with suppress(RuntimeError):  # no more threads can be started: perhaps the process ends
            for name, own in servers.items():
                if first and self._hangs(own[0][1]):
                    wait([self._asking[name]], INTERVAL)
                if self._hangs(own[0][1]):
                    continue
                self._asking[name] = future = pool.submit(self._ask_server, own)
                begun.append(future)
        wait(begun, INTERVAL)
        pool.shutdown(wait=False)

    def _hangs(self, server: ReplicaState) -> bool:
        """Whether a server has not answered the latest question yet."""
        asked = self._asking.get(_server(server.entry))
        return asked is not None and not asked.done()

    def _ask_server(self, asked: list[tuple[_ShardState, ReplicaState]]) -> None:
        """Ask a server, and note the answer for its shards."""
        for state, server in asked:
            if server is state.master:
                self._discover(state)
        state, server = asked[0]
        answer = self._ask(state, server)
        with self._lock:
            for state, server in asked:
                if server is state.master:
                    _update_master(state, answer)
                else:
                    _update_replica(state, server, answer)

    def _ask(self, state: _ShardState, server: ReplicaState) -> _Answer:
        number, entry = state.shard.number, server.entry
        began = time.monotonic()
        info: Mapping[str, Any] | Exception
        try:
            is_master = server is state.master
            which = reader_of(state.component, number) if is_master else ReplicaOf(number, entry)
            client: Any = self._clients.get(state.component, which, raw=True)
            try:
                zoneless = self.zone and not entry.zone
                info = client.info("replication", *(("server",) if zoneless else ()))
            except NoPermissionError as error:  # it answers, but does not tell how far it is
                missing_right(error, "reads from replicas", entry.address, state.shard)
                info = greeting_of(client) if self.zone and server.zone is None else {}
        except (RedisError, ShardKitError, OSError) as error:
            info = error
        return _Answer(info, began, time.monotonic() - began)

    def _discover(self, state: _ShardState) -> None:
        """Get the current replicas from the Sentinels, if the entry names a service."""
        master = state.master.entry
        if not master.is_sentinel:
            return
        try:
            client: Any = self._clients.get(state.component, state.shard.number, raw=True)
        except (RedisError, ShardKitError, OSError):
            return
        addresses: list[tuple[str, int]] | None = None  # unless one of the Sentinels answers
        for sentinel in client.connection_pool.master.sentinels.clients:
            with tolerated(RedisError, OSError):
                seen = sentinel.sentinel_slaves(master.fields["sentinel"]["service"])
                alive = [node for node in seen if not (node["is_odown"] or node["is_sdown"])]
                addresses = [(node["ip"], node["port"]) for node in alive]
                if addresses:
                    break
        if addresses is None:
            return
        shared = {n: v for n, v in master.fields.items() if n not in _OF_SERVICES}
        known = {replica.entry: replica for replica in state.replicas}
        entries = [Entry({**shared, "host": host, "port": port}) for host, port in addresses]
        state.replicas = [known.get(entry) or ReplicaState(entry) for entry in entries]

    def _switch(self, state: _ShardState) -> None:
        """Switch sessions to the replicas that they want, once these have caught up."""
        with self._lock:
            state.held = True
        try:
            end = time.monotonic() + CATCH_UP
            while state.reading and time.monotonic() < end:
                time.sleep(0.001)
            if state.reading:
                return
            _update_master(state, master := self._ask(state, state.master))
            for entry in {wanted for wanted in state.wanted.values() if wanted is not None}:
                replica = next((known for known in state.replicas if known.entry == entry), None)
                while replica is not None:
                    _update_replica(state, replica, self._ask(state, replica))
                    late = replica.complete_at < master.began
                    if replica.problem or not late or time.monotonic() > end:
                        break
                    time.sleep(0.001)
                if replica is None or replica.problem or late:
                    continue
                with self._lock:
                    for name in [name for name, to in state.wanted.items() if to == entry]:
                        state.last[name] = entry
                        del state.wanted[name]
        finally:
            state.held = False


class _Answer(NamedTuple):
    """A server's INFO, HELLO or error, when it was asked, and how long that took."""

    info: Mapping[str, Any] | Exception
    began: float
    seconds: float


def _own_zone(client: Any) -> str:
    """Return the zone of a server: by INFO (Valkey from 8.0), or by HELLO (from 8.1)."""
    try:
        info = client.info("server")
    except NoPermissionError:
        info = greeting_of(client)
    return str(info.get("availability_zone", ""))


def _zones_in_slots(node: Any, node_clients: Mapping[str, Any]) -> dict[str, str]:
    """Return zones of a cluster's nodes, by their names, as one of them says (Valkey from 9.1)."""
    zones = {}
    for _first, _last, *nodes in node_clients[node.name].execute_command("CLUSTER SLOTS"):
        for host, port, _id, *more in nodes:
            about = more[0] if more else []
            if b"availability-zone" in about[::2]:
                zone = about[about.index(b"availability-zone") + 1].decode()
                zones[f"{host.decode() if host else node.host}:{port}"] = zone
    return zones


# Fields of an entry that do not apply to the servers that Sentinels name.
_OF_SERVICES = ("sentinel", "read_from", "max_lag", "zone")


def _update_master(state: _ShardState, answer: _Answer) -> None:
    if (info := _update(state.master, answer)) is None:
        return
    history = str(info.get("master_replid", ""))
    if history != state.history:
        state.samples.clear()
        state.history = history
    state.samples.append((answer.began, int(info.get("master_repl_offset", 0))))


def _update_replica(state: _ShardState, replica: ReplicaState, answer: _Answer) -> None:
    if (info := _update(replica, answer)) is None:
        return
    replica.linked = info.get("master_link_status") == "up"
    if info.get("role") != "slave":
        replica.problem = "is a master"
    elif info.get("master_sync_in_progress"):
        replica.problem = "is being filled"
    elif state.history and info.get("master_replid") != state.history:
        replica.problem = "is not a replica of this master"
    if replica.problem:
        return
    offset = int(info.get("slave_repl_offset", -1))
    for at, known in reversed(state.samples):
        if offset >= known:
            replica.complete_at = max(replica.complete_at, at)
            break


def _update(server: ReplicaState, answer: _Answer) -> Mapping[str, Any] | None:
    """Note an answer; return the INFO, None if there is none."""
    info, server.asked_at, seconds = answer
    server.problem, server.is_silent = "", False
    if isinstance(info, Exception):
        # Without the shard, which is another one's of the same server, and without its remedy.
        server.problem = f"does not answer ({getattr(info, 'error', None) or info})"
        return None
    server.zone = server.entry.zone or str(info.get("availability_zone", server.zone or ""))
    if server.latency == float("inf"):
        server.latency = seconds
    else:
        server.latency += _SMOOTHED * (seconds - server.latency)
    server.is_silent = "master_replid" not in info
    return None if server.is_silent else info


def _watch(ref: weakref.ref[Replicas], end: threading.Event) -> None:
    while not end.wait(INTERVAL):
        replicas = ref()
        if replicas is None or not replicas.round():
            return
        del replicas


def _new_state(component: Component, shard: Shard) -> _ShardState:
    entry = component.entry_of(shard)
    replicas = [ReplicaState(replica) for replica in entry.replicas]
    return _ShardState(shard, component, ReplicaState(entry), replicas)


def _server(entry: Entry) -> str:
    return entry.address.rpartition("/")[0] or entry.address
