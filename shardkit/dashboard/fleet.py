"""What the servers of a topology report, sampled in the background."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from shardkit import log_records
from shardkit.admin.changes import open_changes
from shardkit.admin.check import config_facts
from shardkit.admin.growth import moves
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.store import read_epoch
from shardkit.dashboard.history import History
from shardkit.errors import RoutingError, ShardKitError, natural
from shardkit.kit.config_client import config_client, stale_map
from shardkit.kit.kit import ShardKit
from shardkit.network.connections.redis_private import learn_slots, slot_owners
from shardkit.network.rules import CheckFinding, ConfigFacts, Severity, judge
from shardkit.network.server_queries import ServerErrors, client_of, query_all
from shardkit.network.survey import (
    Login,
    ServerFacts,
    Target,
    logins_of,
    server_of,
    survey,
    targets_of,
)
from shardkit.network.topology import MapFile
from shardkit.operations.arguments import Seconds
from shardkit.operations.lua import script
from shardkit.routing.command_keys import key_positions
from shardkit.structures.base.arguments import LONGEST_WAIT, check_seconds

logger = logging.getLogger("shardkit.dashboard")

INTERVAL = 2.0  # seconds between two samples
TIMEOUT = 1.0  # seconds for an answer
_ENTRIES = 5.0  # seconds between two readings of the entries, and of a cluster's nodes
_CHECK = 30.0  # seconds between two checks of the whole fleet, and readings of slow logs
_MOST_SAMPLES = 1800  # samples of a server: an hour at the usual interval
_EVENTS = 200
_SLOW = 5000  # entries of slow logs
_DAY = 86_400
_SURVEY = 8  # commands of a check, and three for each database
_TOTALS = ("ops", "memory", "clients")
_ROLES = {"master": "master", "slave": "replica", "primary": "master"}
_LOGS = (("SLOWLOG", ()), ("COMMANDLOG", ("large-request",)), ("COMMANDLOG", ("large-reply",)))


@dataclass(frozen=True)
class Sample:
    """What a server reported at one time."""

    at: float
    latency: float  # of INFO, in seconds
    ops: int  # a second, without the dashboard's own
    memory: int
    clients: int
    cpu: float  # the share of a core since the sample before
    lag: int | None  # bytes that the slowest replica, or this one, is behind; None without one
    received: float  # bytes a second
    sent: float
    hits: float | None  # the share of look-ups that found their key; None if there were none
    evicted: float  # keys a second


@dataclass
class ServerWatch:
    """A server, its last state and its samples."""

    address: str  # ``host:port``; with Sentinels, the service
    fields: dict[str, Any] = field(repr=False)
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)  # what INFO said last
    error: str = ""  # why the last sample failed
    since: float = 0.0  # when it began to answer, or ceased to, in seconds since 1970
    own: int = 0  # commands of the dashboard that are not in a sample yet
    # The samples of the last hour, the oldest first.
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES), repr=False)
    databases: dict[int, list[str]] = field(default_factory=dict)  # the shards in each
    nodes: list[dict[str, Any]] = field(default_factory=list, repr=False)  # of a cluster, for JSON
    stopped: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def state(self) -> str:
        """``up``, ``down``, or ``unknown`` before the first answer."""
        return "down" if self.error else "up" if self.info else "unknown"

    @property
    def last(self) -> Sample | None:
        """The last sample; None while the server does not answer."""
        return self.samples[-1] if self.samples and not self.error else None

    def keys_in(self, database: int) -> int | None:
        """The keys of a database; None if the server does not answer."""
        if not self.info or self.error:
            return None
        return int(self.info.get(f"db{database}", {}).get("keys", 0))

    def summary(self) -> dict[str, Any]:
        """Return the server's state, for JSON; numbers are None while it does not answer."""
        info, facts = self.info, ServerFacts(info=self.info)
        now, last = None if self.error else info, self.last

        def number(name: str) -> int | None:
            return None if now is None else int(now.get(name, 0))

        return {
            "address": self.address,
            "state": self.state,
            "error": self.error,
            "since": self.since,
            "software": facts.software,
            "version": facts.version,
            "role": _ROLES.get(str(info.get("role")), ""),
            "shards": sum(len(names) for names in self.databases.values()),
            "keys": sum(v["keys"] for k, v in now.items() if k[:2] == "db" and "keys" in v)
            if now
            else None,
            "max_memory": number("maxmemory"),
            "max_clients": number("maxclients"),
            "blocked": number("blocked_clients"),
            "replicas": number("connected_slaves"),
            **(asdict(last) if last else dict.fromkeys(Sample.__annotations__)),
        }


class FleetWatch:
    """Watches the servers of a kit's components in the background, until it is closed.

    Args:
        kit: a blocking kit, which the caller closes afterwards.
        config_server: its entry, if there is one.
        interval: the seconds between two samples of a server.
        history: a file that keeps the last day's charts; none by default.

    Attributes:
        servers: the servers by address.
        components: the components by name.
        problems: what the last check found, the worst first.
        events: what has changed since the start, the latest first: servers that ceased to answer or
            came back, roles, versions, entries.
        banner: why the config server cannot be read; empty if it can.
        summary: the overview as JSON; made once for everybody.
    """

    def __init__(
        self,
        kit: ShardKit,
        config_server: Entry | None = None,
        *,
        interval: Seconds = INTERVAL,
        history: str | PathLike[str] | None = None,
    ) -> None:
        interval = check_seconds("dashboard", "interval", interval, 0.001, LONGEST_WAIT)
        self.kit = kit
        self.config_server = config_server
        self.interval = interval
        self.servers: dict[str, ServerWatch] = {}
        self.components: dict[str, Component] = {}
        self.broken: dict[str, str] = {}
        self.changes: list[dict[str, Any]] = []  # at work
        self.history = History(list(Sample.__annotations__), history)
        self.problems: list[dict[str, Any]] = []
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self.slow: deque[dict[str, Any]] = deque(maxlen=_SLOW)
        self.banner = ""
        self._epoch = 0  # the highest that the config server had
        self.summary = b"{}"
        self._homes: dict[str, tuple[Component, list[tuple[str, str, int, Any]]]] = {}
        self._totals: deque[tuple[float, int, int, int]] = deque(maxlen=_MOST_SAMPLES)
        self._closed, self._changed = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._repeat, self.check, _CHECK, self._changed)
        self._start(self._repeat, self._summarize, interval, self._closed)
        # The last one, as it starts others: `close` ends all of them.
        self._start(self._repeat, self._read_entries, _ENTRIES, self._closed)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._changed.set()
        for server in self.servers.values():
            server.stopped.set()
        for thread in self._threads:
            thread.join(4 * TIMEOUT)

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True, name="shardkit-dashboard")
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def _repeat(self, work: Any, pause: float, sooner: threading.Event) -> None:
        while not self._closed.is_set():
            try:
                work()
            except Exception:  # whatever it is, the page goes on
                _log_fault("fleet")
            sooner.wait(pause)
            if sooner is self._changed:
                sooner.clear()
                self._closed.wait(min(pause, self.interval))  # to see what else happens

    def _note(self, where: str, text: str) -> None:
        self.events.appendleft({"at": time.time(), "where": where, "text": text})
        self._changed.set()

    # ---- entries

    def _read_entries(self) -> None:
        """Follow the components, and the servers that their entries name."""
        components: dict[str, Component] = {}
        broken: dict[str, str] = {}
        try:
            self._require_newest()
            for name in self.kit.components():
                try:
                    components[name] = self.kit.component(name)
                except ShardKitError as error:
                    broken[name] = str(error)
            self.banner = ""
        except (ShardKitError, *ServerErrors) as error:
            self.banner = str(error)
            return
        for name, component in components.items():
            before = self.components.get(name)
            if before is not None and before.entries() != component.entries():
                self._note(name, f"new entries, epoch {component.epoch}")
        self.components, self.broken = components, broken
        self._follow(list(targets_of(components.values(), self.config_server)))

    def _require_newest(self) -> None:
        """Refuse a config server that was restored or lost its data: it would empty the page."""
        if self.config_server is None:
            return
        with config_client(self.config_server) as config:
            epoch = read_epoch(config)
            self.changes = list(changes_at_work(config))
        if epoch < self._epoch:
            source: Any = self.kit.topology.source
            raise source.went_back("config:epoch", self._epoch, epoch)
        self._epoch = epoch

    def _follow(self, targets: list[Target]) -> None:
        logins, failed = logins_of((n, t.where, t.entry) for n, t in enumerate(targets))
        unresolved = {str(targets[n].shard): str(error) for n, error in failed.items()}
        self.broken = self.broken | unresolved
        wanted: dict[str, Login[int]] = {}
        databases: dict[str, dict[int, list[str]]] = {}
        for login in logins:
            wanted.setdefault(login.address, login)
            for n, database in login.databases.items():
                target = targets[n]
                name = "config server" if target.shard is None else str(target.shard)
                label = f"{name} {target.node}".strip()
                places = databases.setdefault(login.address, {})
                places.setdefault(database, []).append(label)
        for address in self.servers.keys() - wanted.keys():
            self.servers.pop(address).stopped.set()
            self._note(address, "no entry names it any more")
        added = {}
        for address, login in wanted.items():
            known = self.servers.get(address)
            if known is None or known.fields != login.fields:
                if known is not None:
                    known.stopped.set()
                known = added[address] = ServerWatch(address, login.fields)
            known.databases = databases[address]
        self.servers |= added  # at once: who asks for their states misses none
        for server in added.values():
            self._start(self._watch, server)

    # ---- servers

    def _watch(self, server: ServerWatch) -> None:
        while not server.stopped.is_set() and not self._closed.is_set():
            try:
                with client_of(server.fields, TIMEOUT) as client:
                    logs = [(*log, 0) for log in _LOGS]
                    checked, learned = 0.0, time.monotonic()
                    known: dict[str, Any] = {}  # nodes, also those that the cluster calls failed
                    while not server.stopped.is_set() and not self._closed.is_set():
                        in_cluster = not isinstance(client, redis.Redis)
                        if in_cluster and time.monotonic() - learned >= _ENTRIES:
                            learned = time.monotonic()
                            learn_slots(client)
                        self._sample(server, client, known)
                        if time.monotonic() - checked >= _CHECK:
                            checked = time.monotonic()
                            logs = list(self._read_logs(server.address, client, logs))
                        server.stopped.wait(self.interval)
            except Exception as error:  # whatever it is, this server is watched again
                if not isinstance(error, (ShardKitError, *ServerErrors)):
                    _log_fault(server.address)
                if server.state != "down":
                    server.since = time.time()
                    self._note(server.address, f"does not answer: {error}")
                server.error = str(error) or type(error).__name__
                server.stopped.wait(self.interval)

    def _sample(self, server: ServerWatch, client: Any, known: dict[str, Any]) -> None:
        began = time.monotonic()
        if isinstance(client, redis.Redis):
            info = client.info()
        else:
            info, server.nodes = _of_nodes(client, known)
        latency, now, before = time.monotonic() - began, time.time(), server.info
        if server.state != "up":
            if server.state == "down":
                self._note(server.address, "answers again")
            server.since = now
        for name, what in (("role", "role"), ("redis_version", "version")):
            if before and before.get(name) != info.get(name):
                self._note(server.address, f"{what}: {before.get(name)} → {info.get(name)}")
        seconds = now - server.samples[-1].at if server.samples else 0.0

        def rate(*names: str) -> float:
            """Return by how much counters grew, a second; 0 after a restart."""
            if not seconds or not before:
                return 0.0
            grown = sum(float(info.get(n, 0)) - float(before.get(n, 0)) for n in names)
            return max(0.0, grown / seconds)

        # Its own commands may be counted a sample later: what is left is subtracted then.
        commands = round(rate("total_commands_processed") * seconds) - 1 - server.own
        server.own = max(0, -commands)
        hits, missed = rate("keyspace_hits"), rate("keyspace_misses")
        server.samples.append(
            Sample(
                now,
                latency,
                round(max(0, commands) / (seconds or 1)),
                int(info.get("used_memory", 0)),
                int(info.get("connected_clients", 0)),
                rate("used_cpu_sys", "used_cpu_user"),
                ServerFacts(info=info).replication_lag,
                rate("total_net_input_bytes"),
                rate("total_net_output_bytes"),
                hits / (hits + missed) if hits + missed else None,
                rate("evicted_keys"),
            )
        )
        server.info, server.error = info, ""

    def _read_logs(
        self, address: str, client: Any, logs: list[tuple[str, tuple[str, ...], int]]
    ) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Add what is new in a server's logs of slow and large commands; names, never values."""
        if not isinstance(client, redis.Redis):
            return
        for command, kind, last in logs:
            first = last
            if server := self.servers.get(address):
                server.own += 1
            try:
                query = command, "GET", 128, *kind  # as words, so redis-py leaves the reply alone
                entries = client.execute_command(*query)  # type: ignore[no-untyped-call]
            except ResponseError:  # not of this server, or not for this user
                continue
            for number, at, amount, words, *_ in entries:
                first = max(first, number + 1)
                if number >= last and at > time.time() - _DAY:
                    name, key = _shown_command(words)
                    self.slow.appendleft(
                        {
                            "at": at,
                            "server": address,
                            "kind": kind[0] if kind else "slow",
                            "amount": amount,  # microseconds, or bytes
                            "command": name,
                            "key": key,
                        }
                    )
            yield command, kind, first

    # ---- everything together

    def check(self) -> None:
        """Judge the whole fleet, as `shardkit status` does."""
        if not self.components:
            self._closed.wait(min(1.0, self.interval))
        facts, stale = ConfigFacts(), list[CheckFinding]()
        if self.config_server is not None:
            with (
                suppress(ShardKitError, *ServerErrors),
                config_client(self.config_server) as config,
            ):
                facts = config_facts(config)
                if isinstance(source := self.kit.topology.source, MapFile):
                    stale = stale_map(config, source.shard_map)
        for server in list(self.servers.values()):
            server.own += _SURVEY + 3 * len(server.databases)
        rows = survey(targets_of(list(self.components.values()), self.config_server), TIMEOUT)
        judgement = judge(rows, facts)
        problems: dict[tuple[str, str], dict[str, Any]] = {}

        def note(where: str, text: str, remedy: str, severity: int, *shards: str) -> None:
            problem = {"where": where, "text": text, "remedy": remedy, "severity": severity}
            problems.setdefault((where, text), {**problem, "shards": []})["shards"] += shards

        for entry in judgement.entries:
            shard = str(entry.row.target.shard or "config server")
            for fault in entry.problems:
                note(entry.server.address, fault.text, fault.remedy, int(fault.severity), shard)
        for finding in (*judgement.findings, *stale):
            note(finding.where, finding.problem, finding.remedy, 1 if finding.warning else 2)
        self.problems = sorted(problems.values(), key=lambda problem: -problem["severity"])

    def _summarize(self) -> None:
        servers = self.servers.copy()
        last = [sample for server in servers.values() if (sample := server.last)]
        if last:
            ops, memory, clients = (sum(getattr(s, name) for s in last) for name in _TOTALS)
            self._totals.append((time.time(), ops, memory, clients))
        self.summary = json.dumps(self._state(), separators=(",", ":")).encode()
        try:
            self.history.note({name: list(server.samples) for name, server in servers.items()})
        except OSError as error:
            self._note(str(error.filename), f"the history is not kept: {error.strerror}")

    def overview(self) -> dict[str, Any]:
        """Return the state of all servers and components, and the last hour's totals, for JSON."""
        rows = list(self._totals)
        totals = {name: [row[n] for row in rows] for n, name in enumerate(("at", *_TOTALS))}
        return {**self._state(), "totals": totals, "day": self.history.totals(_TOTALS)}

    def _state(self) -> dict[str, Any]:
        return {
            "at": time.time(),
            "interval": self.interval,
            "banner": self.banner,
            "servers": [
                server.summary()
                for _, server in sorted(self.servers.items(), key=lambda item: natural(item[0]))
            ],
            "components": [
                {
                    "name": name,
                    "shards": len(component.shards),
                    "placement": component.placement if component.shards else "",
                    "epoch": component.epoch,
                    "servers": len({row["server"] for row in rows}),
                    "keys": sum(row["keys"] or 0 for row in rows),
                    "down": sum(row["state"] == "down" for row in rows),
                }
                for name, component in sorted(
                    self.components.items(), key=lambda item: natural(item[0])
                )
                for rows in [self.shards_of(component)]
            ],
            "broken": self.broken,
            "unusable": self.unusable(),
            "changes": self.changes,
            "problems": self.problems,
            "events": list(self.events)[:50],
        }

    def unusable(self) -> int:
        """Count the shards that cannot be used; a component without usable entries is one."""
        worst = [problem for problem in self.problems if problem["severity"] > Severity.PROBLEM]
        shards = {shard for row in worst for shard in row["shards"] if shard != "config server"}
        return len(shards | self.broken.keys())

    def shards_of(self, component: Component) -> list[dict[str, Any]]:
        """Return where each shard of a component lives, its state and its keys, for JSON."""
        known, homes = self._homes.get(component.name, (None, []))
        if known is not component:  # a login takes as long as all the rest
            homes = []
            for place, entry in component.entries():
                logins, _ = logins_of([(0, str(place), entry)])
                database = logins[0].databases[0] if logins else 0  # cannot be resolved here
                homes.append((str(place), server_of(entry.address), database, entry.held))
            self._homes[component.name] = component, homes
        rows = []
        for shard, address, database, moving in homes:
            server = self.servers.get(address)
            rows.append(
                {
                    "shard": shard,
                    "server": address,
                    "database": database,
                    "state": server.state if server else "unknown",
                    "keys": server.keys_in(database) if server else None,
                    "held": moving,
                }
            )
        return rows


@cache
def _scripts() -> dict[str, str]:
    root = Path(__file__).parents[1]
    paths = [path.relative_to(root) for path in root.rglob("lua/*.lua")]
    names = [f"{path.parents[1].as_posix()}/{path.stem}" for path in paths]
    return {script(name).sha: name for name in names}


def changes_at_work(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the changes that are not over: what, how far, how fast, and how long they still take.

    Cost: two exchanges with the config server.
    """
    try:
        progress = {move.id: move.progress for move in moves(config, [])}
        changes = open_changes(config)
    except NoPermissionError:
        return
    for change in changes:
        done, known = progress.get(change.id) or {}, ("kind", "name", "phase", "owner", "started")
        yield {name: getattr(change, name) for name in known} | {
            name: done.get(name) for name in ("text", "rate", "left")
        }


def _shown_command(words: list[bytes]) -> tuple[str, str]:
    """Return a command's name, or its script's, and its first key; no other argument."""
    name = words[0].decode(errors="replace")
    if name.upper() == "EVALSHA" and words[1:]:
        name = _scripts().get(words[1].decode(errors="replace").lower(), name)
    try:
        positions = [position for position in key_positions(words) if position < len(words)]
    except (RoutingError, ValueError):  # of a module, or cut off
        positions = []
    return name, words[positions[0]].decode(errors="replace")[:80] if positions else ""


def _log_fault(server: str) -> None:
    about = log_records.fields("dashboard-failed", server=server)
    logger.exception("the dashboard cannot show %s", server, extra=about)


def _of_nodes(
    cluster: Any, nodes_before: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the INFO of a cluster's masters, numbers added, and the state of each node.

    Nodes that were there before are still asked; the present ones are added to them.

    Raises:
        RedisError, OSError: no master answers.
    """
    total: dict[str, Any] = {}
    nodes: list[dict[str, Any]] = []
    slots = Counter(owners[0].name for owners in slot_owners(cluster).values())
    failure: Exception | None = None
    nodes_before |= {node.name: node for node in cluster.get_nodes()}
    nodes_now = sorted(nodes_before.values(), key=lambda node: (node.server_type, node.name))
    answers = query_all(
        {node.name: partial(cluster.info, target_nodes=node) for node in nodes_now}, TIMEOUT
    )
    for node in nodes_now:
        row = {"address": node.name, "role": _ROLES.get(node.server_type, node.server_type)}
        row["slots"] = slots[node.name] or None
        nodes.append(row)
        info = answers[node.name]
        if isinstance(info, Exception):
            failure = info
            row.update(state="down", error=str(info) or type(info).__name__)
            continue
        role = _ROLES.get(str(info.get("role")), "")
        row.update(
            state="up",
            error="",
            role=role,
            keys=int(info.get("db0", {}).get("keys", 0)),
            ops=int(info.get("instantaneous_ops_per_sec", 0)),
            memory=int(info.get("used_memory", 0)),
            clients=int(info.get("connected_clients", 0)),
            lag=ServerFacts(info=info).replication_lag,
        )
        for name, value in info.items() if role == "master" else ():
            known = total.get(name)
            if isinstance(value, dict) and name.startswith("db"):
                total[name] = {k: v + (known or {}).get(k, 0) for k, v in value.items()}
            elif isinstance(value, int | float) and isinstance(known, int | float):
                total[name] = known + value
            else:
                total[name] = value
    if not total and failure is not None:
        raise failure
    return total, nodes
