"""What the views show that costs more than a sample: asked when a view is open, then remembered."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import islice
from typing import Any

from shardkit import admin
from shardkit.admin import growth
from shardkit.admin.doctor.diagnosis import diagnose
from shardkit.admin.doctor.scan import scan
from shardkit.admin.growth.mover import progress_of
from shardkit.admin.heat import hot_keys_of
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.store import diff
from shardkit.dashboard.fleet import TIMEOUT, FleetWatch, changes_at_work
from shardkit.dashboard.keys import value_of
from shardkit.errors import ConfigError, MissingExtraError, ShardKitError, natural
from shardkit.kit.kit import ShardKit
from shardkit.metrics import Statistics
from shardkit.metrics.logs import SEVERITIES
from shardkit.network.server_queries import ServerErrors, client_of
from shardkit.recent import Recent

_PAGE = 1000  # keys of one SCAN
_PAGES = 200  # of a shard
_COUNTERS, _STATISTICS, _LOGS = 200, 100, 50  # of a component, that are read
_CHARTS = 8  # counters with a chart
_ENTRIES = 100  # messages that are shown
_SAMPLES = 720  # of a statistic: an hour at one in five seconds
# Prefixes have no braces, so there is one way to read a key, in linear time.
_KNOWN = re.compile(r"([^{}]+):\{\1:\d+\}:known")
_STATISTIC = re.compile(r"([^{}]+):\{\1:\d+\}:(.+)/([^/{}]+):current")
_LOG = re.compile(rf"([^{{}}]+):\{{([^{{}}]+)\}}:recent:(?:{'|'.join(SEVERITIES)})")


@dataclass
class RecordedNames:
    """A component's counters by structure, statistics and logs; all of them, if ``whole``."""

    counters: set[str] = field(default_factory=set)
    statistics: set[tuple[str, str, str]] = field(default_factory=set)
    logs: set[tuple[str, str]] = field(default_factory=set)
    whole: bool = True


def recorded_names(kit: ShardKit, component: str) -> RecordedNames:
    """Find what a component has. Cost: a SCAN, of at most 200,000 keys of each shard."""
    recorded = RecordedNames()
    for shard in kit.component(component).all_shards():
        client: Any = kit.client(component, shard.number)
        for n, key in enumerate(client.scan_iter(match="*:{*}:*", count=_PAGE)):
            if n >= _PAGE * _PAGES:
                recorded.whole = False
                break
            text = key if isinstance(key, str) else key.decode(errors="replace")
            if match := _KNOWN.fullmatch(text):
                recorded.counters.add(match[1])
            elif match := _STATISTIC.fullmatch(text):
                recorded.statistics.add((match[1], match[2], match[3]))
            elif match := _LOG.fullmatch(text):
                recorded.logs.add((match[1], match[2]))
    return recorded


class Recorded:
    """Reads what applications record, and remembers statistics so that they have a history."""

    def __init__(self, kit: ShardKit) -> None:
        self._kit = kit
        self._history: Recent[tuple[str, ...], deque[tuple[float, int, float]]] = Recent()

    def read(self, component: str, names: RecordedNames, now: float) -> dict[str, Any]:
        """Return a component's counters, statistics and messages. Cost: some exchanges."""
        return {
            "counters": list(self._counters(component, names, now)),
            "statistics": list(self._statistics(component, names, now)),
            "messages": list(self._messages(component, names)),
        }

    def _counters(
        self, component: str, names: RecordedNames, now: float
    ) -> Iterator[dict[str, Any]]:
        for structure in sorted(names.counters):
            counters = self._kit.counters(structure, component=component)
            known = sorted(counters.known())[:_COUNTERS]
            queries = [counters.deferred.get(name, 60) for name in known]
            slices = self._kit.together(*queries) if queries else []
            busiest = sorted(
                zip(known, slices, strict=True),
                key=lambda row: -sum(count for _, count in row[1]),
            )
            for n, (name, rows) in enumerate(busiest):
                at = [start for start, _ in rows]
                yield {
                    "component": component,
                    "structure": structure,
                    "name": name,
                    "minute": rows[-1][1] if rows else 0,
                    "total": sum(count for _, count in rows),
                    "since": at[0] if at else None,
                    "slices": _last_hour(rows, now) if n < _CHARTS else None,
                }

    def _statistics(
        self, component: str, names: RecordedNames, now: float
    ) -> Iterator[dict[str, Any]]:
        wanted = sorted(names.statistics)[:_STATISTICS]
        queries = [
            self._kit.statistics(structure, component=component).deferred.get(context, kind)
            for structure, context, kind in wanted
        ]
        replies = self._kit.together(*queries) if queries else []
        for names_of, statistics in zip(wanted, replies, strict=True):
            if statistics is not None:
                structure, context, kind = names_of
                yield {
                    "component": component,
                    "structure": structure,
                    "context": context,
                    "kind": kind,
                    "hour": statistics.hour.timestamp(),
                    **{name: getattr(statistics, name) for name in ("count", "min", "max", "mean")},
                    **_quantiles(statistics),
                    "recent": self._recent((component, *names_of), statistics, now),
                }

    def _recent(self, key: tuple[str, ...], statistics: Statistics, now: float) -> dict[str, Any]:
        """Return the averages of what came between two looks, for a chart."""
        history = self._history.setdefault(key, deque(maxlen=_SAMPLES))
        if not history or now > history[-1][0]:
            history.append((now, statistics.count, statistics.sum))
        at, means = [], []
        for (_, count, total), (when, newer, more) in zip(history, list(history)[1:], strict=False):
            at.append(when)  # a new hour begins again
            means.append((more - total) / (newer - count) if newer > count else None)
        return {"at": at, "mean": means}

    def _messages(self, component: str, names: RecordedNames) -> Iterator[dict[str, Any]]:
        wanted = [(*name, level) for name in sorted(names.logs)[:_LOGS] for level in SEVERITIES]
        queries = [
            self._kit.logs(structure, component=component).deferred.recent(log, level, 20)
            for structure, log, level in wanted
        ]
        replies = self._kit.together(*queries) if queries else []
        entries = [
            (entry.time or datetime.fromtimestamp(0, UTC), log, entry)
            for (_, log, _), messages in zip(wanted, replies, strict=True)
            for entry in messages
        ]
        for at, log, entry in sorted(entries, key=lambda row: row[0], reverse=True)[:_ENTRIES]:
            yield {
                "component": component,
                "log": log,
                "at": at.timestamp(),
                "severity": entry.severity,
                "message": entry.message,
            }


def _last_hour(rows: list[tuple[int, int]], now: float) -> dict[str, list[int]]:
    """Return the counts of the last hour's minutes, including those without hits."""
    counts = dict(rows)
    at = list(range(int(now) // 60 * 60 - 3540, int(now) + 1, 60))
    return {"at": at, "count": [counts.get(start, 0) for start in at]}


def _quantiles(statistics: Statistics) -> dict[str, float]:
    with suppress(MissingExtraError):
        return {f"p{n}": statistics.quantile(n / 100) for n in (50, 99)}
    return {}


_MOMENT = 5.0  # seconds for which what a view costs is remembered
_NAMES = 60.0  # seconds for which names that take a SCAN are
_SAMPLE = 1000  # keys of a database that are looked at, to say what it is made of
_DEAD = 100  # dead tasks that are shown of a queue
_HOT = 50  # names of a kind
_MEASURED = 100  # keys of a database whose bytes are measured, for a plan of moves


Ask = Callable[..., dict[str, Any]]


def _remembered(seconds: float, *, config: bool = False) -> Callable[[Ask], Ask]:
    """Remember a view's answer for some seconds; of ``config``, it is given a client of that."""

    def remembering(ask: Ask) -> Ask:
        @wraps(ask)
        def view(self: Views) -> dict[str, Any]:
            asking = partial(ask, self)
            wanted = partial(self.with_config, asking) if config else asking
            return self.remembered(ask.__name__, seconds, wanted)  # type: ignore[no-any-return]

        return view

    return remembering


class Views:
    """Answers the page's questions, for any number of people at the price of one."""

    def __init__(self, fleet: FleetWatch) -> None:
        self._fleet = fleet
        self._kit = fleet.kit
        self._known: dict[Any, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._asking: dict[Any, threading.Lock] = {}
        self._recorded = Recorded(fleet.kit)

    def remembered(self, key: Any, seconds: float, ask: Callable[[], Any]) -> Any:
        """Return an answer of the last seconds, or ask; one caller at a time."""
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        with asking:
            at, answer = self._known.get(key, (-seconds, None))
            if time.monotonic() - at >= seconds:
                answer = ask()
                self._known[key] = time.monotonic(), answer
            return answer

    def component(self, name: str) -> dict[str, Any] | None:
        """Return where a component lives; None if there is none of that name."""
        component = self._fleet.components.get(name)
        if component is None:
            return None
        return {
            "name": name,
            "placement": component.placement if component.shards else "",
            "epoch": component.epoch,
            "shards": (shards := self._fleet.shards_of(component)),
            "nodes": [
                node
                for address in dict.fromkeys(row["server"] for row in shards)
                if (server := self._fleet.servers.get(address))
                for node in server.nodes
            ],
            "problems": [
                problem
                for problem in self._fleet.problems
                if any(shard.partition(":")[0] == name for shard in problem["shards"])
            ],
        }

    def contents(self, name: str) -> dict[str, Any] | None:
        """Return what a component is made of, by a sample of its keys; None if there is none."""
        component = self._fleet.components.get(name)
        if component is None:
            return None
        asking = partial(self._contents, component)
        return self.remembered(("contents", name), _NAMES, asking)  # type: ignore[no-any-return]

    def _contents(self, component: Component) -> dict[str, Any]:
        diagnosis = diagnose(scan(self._kit, {component.name: component}, _SAMPLE))
        return {
            "keys": diagnosis.scan.keys,
            "sampled": diagnosis.scan.seen,
            "groups": [
                {
                    "structure": report.structure.name if report.structure else "",
                    "kind": report.structure.kind if report.structure else report.group.type,
                    "encoding": report.group.encoding,
                    "keys": report.statistics.keys,
                    "bytes": report.statistics.bytes,
                    "compact": report.compact,
                }
                for report in [*diagnosis.structures, *diagnosis.others]
            ],
            "findings": [_plain(finding) for finding in diagnosis.findings],
        }

    def server(self, address: str) -> dict[str, Any] | None:
        """Return a server with its samples and slow commands; None if there is none."""
        server = self._fleet.servers.get(address)
        if server is None:
            return None
        samples, history = list(server.samples), self._fleet.history
        first = samples[0].at if samples else time.time()
        older = history.columns(address, time.time() - 3600, first)  # before a restart
        info = server.info
        return {
            **server.summary(),
            "nodes": server.nodes,
            "databases": [
                {"number": n, "shards": shards, "keys": server.keys_in(n)}
                for n, shards in sorted(server.databases.items())
            ],
            "samples": {
                name: known + [getattr(sample, name) for sample in samples]
                for name, known in older.items()
            },
            "day": history.columns(address),
            "persistence": {
                name: info.get(name)
                for name in (
                    *("rdb_last_save_time", "rdb_changes_since_last_save"),
                    *("rdb_last_bgsave_status", "aof_enabled", "aof_last_write_status"),
                    *("aof_current_size", "loading"),
                )
            },
            "replication": {
                name: value
                for name, value in info.items()
                if name in ("master_link_status", "master_host", "master_port")
                or (name.startswith("slave") and isinstance(value, dict))
            },
            "slow": [row for row in self._fleet.slow if row["server"] == address][:100],
        }

    def slow(self) -> dict[str, Any]:
        """Return the slow and large commands of all servers, the latest first."""
        return {"slow": sorted(self._fleet.slow, key=lambda row: -row["at"])[:500]}

    @_remembered(_MOMENT)
    def queues(self) -> dict[str, Any]:
        """Return the task queues of all components."""

        def read(name: str) -> list[Any]:
            names = self.remembered(
                ("queues", name), _NAMES, partial(admin.queue_names, self._kit, name)
            )
            states = admin.queue_status(self._kit.queues(component=name), names)
            return [{"component": name, **_plain(state)} for state in states]

        queues, failed = _side_by_side(read, self._fleet.components)
        return {"queues": queues, "failed": failed}

    def dead_tasks(self, component: str, queue: str) -> dict[str, Any]:
        """Return a queue's dead tasks, with their errors."""
        tasks = islice(self._kit.queues(component=component).dead(queue), _DEAD)
        return {"component": component, "queue": queue, "dead": list(map(_plain, tasks))}

    def revive(self, component: str, queue: str, task: str) -> bool:
        """Queue a dead task again; return whether it was dead."""
        self._known.pop("queues", None)
        return self._kit.queues(component=component).revive(queue, task)

    @_remembered(_MOMENT)
    def metrics(self) -> dict[str, Any]:
        """Return what applications record: counters, statistics and messages of all components."""

        def read(name: str) -> list[Any]:
            find = partial(recorded_names, self._kit, name)
            names = self.remembered(("metrics", name), _NAMES, find)
            answers = self._recorded.read(name, names, time.time())
            if not names.whole:
                cut[name] = "it has more keys than were looked at for names"
            return list(answers.items())

        cut: dict[str, str] = {}
        answers, failed = _side_by_side(read, self._fleet.components)
        answer: dict[str, Any] = {"counters": [], "statistics": [], "messages": []}
        for kind, rows in answers:
            answer[kind] += rows
        answer["messages"].sort(key=lambda row: -row["at"])
        return {**answer, "failed": failed | cut}

    @_remembered(_MOMENT, config=True)
    def heat(self, config: Any) -> dict[str, Any]:
        """Return what is hot, as clients count it, and the share of each server."""
        heat = admin.read_heat(config, _HOT)
        homes = {
            row["shard"]: row["server"]
            for component in list(self._fleet.components.values())
            for row in self._fleet.shards_of(component)
        }
        shards = [
            {**_plain(shard), "server": homes.get(shard.name, "")} for shard in heat.kinds["shard"]
        ]
        servers: dict[str, dict[str, Any]] = {}
        for shard in shards:
            row = servers.setdefault(
                shard["server"], {"server": shard["server"], "now": 0.0, "share": 0.0, "shards": 0}
            )
            row["now"] += shard["now"]
            row["share"] += shard["share"]
            row["shards"] += 1
        return {
            **{name: _plain(rows) for name, rows in heat.kinds.items()},
            "shard": shards,
            "servers": sorted(servers.values(), key=lambda row: -row["now"]),
            "seconds": heat.seconds,
            "day_seconds": heat.day_seconds,
        }

    @_remembered(_NAMES)
    def heat_of_servers(self) -> dict[str, Any]:
        """Return the hot keys that servers themselves report: HOTKEYS, and OBJECT FREQ with LFU."""

        def read(address: str) -> list[Any]:
            with client_of(up[address].fields, TIMEOUT) as client:
                rows = hot_keys_of(client, sorted(up[address].databases))
            return [{"server": address, **_plain(row)} for row in rows]

        up = {at: known for at, known in self._fleet.servers.copy().items() if known.state == "up"}
        keys, failed = _side_by_side(read, up)
        return {"keys": keys, "failed": failed}

    @_remembered(_NAMES, config=True)
    def heat_moves(self, config: Any) -> dict[str, Any]:
        """Return the moves that would even out what is hot now, and each server's share then."""
        hot = admin.read_heat(config, 10_000).kinds
        rates = {shard.name: shard.now for shard in hot["shard"]}
        if not sum(rates.values()):
            return {"banner": "no process has reported heat in the last five minutes"}
        report = growth.measure_balance(config, sample=_MEASURED, seconds=0.1)
        return _plain(  # type: ignore[no-any-return]
            growth.plan_balance(config, growth.with_operations(report, rates, hot), by="operations")
        )

    @_remembered(_MOMENT)
    def locks(self) -> dict[str, Any]:
        """Return who holds and who waits for locks."""

        def read(name: str) -> list[Any]:
            return list(map(_plain, admin.lock_states(self._kit, components[name])))

        components = self._fleet.components
        locks, failed = _side_by_side(read, components)
        return {"locks": locks, "failed": failed}

    def value(self, component: str, place: str, key: str) -> dict[str, Any]:
        """Return a key's value; see `value_of`."""
        return _plain(value_of(self._kit, component, place, key))  # type: ignore[no-any-return]

    @_remembered(_MOMENT, config=True)
    def growth(self, config: Any) -> dict[str, Any]:
        """Return moves, fences and other changes: what is open, and which moves are done."""
        unreadable: list[ShardKitError] = []
        return {
            "moves": [
                {**_plain(move), "is_over": move.is_over, "how_far": progress_of(move)}
                for move in growth.moves(config, unreadable)
            ],
            "changes": list(changes_at_work(config)),
            "fences": [fence.plain() for fence in growth.pending_fences(config)],
            "unreadable": [str(error) for error in unreadable],
        }

    @_remembered(_MOMENT, config=True)
    def configuration(self, config: Any) -> dict[str, Any]:
        """Return the entries without secrets, the last pushes, and who uses which entries."""
        pushes = store.read_history(config)
        components = dict(self._fleet.components)
        changes: list[dict[str, Any]] = []
        undone = ""
        if pushes:
            try:
                before = store.components_at(config, pushes[0].previous)
                changes = [
                    {**_plain(field), "entry": field.key.removeprefix("config:redis:")}
                    for change in diff(before, components)
                    for field in change.fields
                ]
            except ConfigError as error:
                undone = str(error)
        processes, failed = admin.connected_clients(
            components.values(), self._fleet.config_server, TIMEOUT
        )
        return {
            "epoch": store.read_epoch(config),
            "entries": {
                name: {str(shard): entry.masked() for shard, entry in component.entries()}
                for name, component in sorted(components.items(), key=lambda item: natural(item[0]))
            },
            "pushes": [
                {
                    name: getattr(push, name)
                    for name in ("epoch", "at", "author", "source", "message")
                }
                for push in pushes[:50]
            ],
            "changes": changes,
            "undone": undone,
            "processes": [_plain(process) for process in processes],
            "failed": {server: str(error) for server, error in failed.items()},
        }

    def with_config(self, ask: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return an answer of the config server, or why there is none."""
        entry = self._fleet.config_server
        if entry is None:
            return {"banner": "a shard map without a config server has no history"}
        try:
            with admin.config_client(entry) as config:
                return ask(config)
        except (ShardKitError, *ServerErrors) as error:
            return {"banner": str(error)}


def _side_by_side(
    ask: Callable[[str], list[Any]], names: Iterable[str]
) -> tuple[list[Any], dict[str, str]]:
    """Return all answers about components or servers, in order, and why others failed."""
    failed: dict[str, str] = {}

    def answers(name: str) -> list[Any]:
        try:
            return ask(name)
        except (ShardKitError, *ServerErrors) as error:
            failed[name] = str(error)
            return []

    with ThreadPoolExecutor(16) as threads:
        return [row for rows in threads.map(answers, list(names)) for row in rows], failed


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(item) for key, item in asdict(value).items()}
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
