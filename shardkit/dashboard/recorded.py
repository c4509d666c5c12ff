"""What applications record with `shardkit.metrics`, for charts: found by a SCAN, read together."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shardkit.errors import MissingExtraError
from shardkit.kit.kit import ShardKit
from shardkit.metrics import Statistics
from shardkit.metrics.logs import SEVERITIES
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
    found = RecordedNames()
    for shard in kit.component(component).all_shards():
        client: Any = kit.client(component, shard.number)
        for n, key in enumerate(client.scan_iter(match="*:{*}:*", count=_PAGE)):
            if n >= _PAGE * _PAGES:
                found.whole = False
                break
            text = key if isinstance(key, str) else key.decode(errors="replace")
            if match := _KNOWN.fullmatch(text):
                found.counters.add(match[1])
            elif match := _STATISTIC.fullmatch(text):
                found.statistics.add((match[1], match[2], match[3]))
            elif match := _LOG.fullmatch(text):
                found.logs.add((match[1], match[2]))
    return found


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
            asked = [counters.deferred.get(name, 60) for name in known]
            slices = self._kit.together(*asked) if asked else []
            busiest = sorted(
                zip(known, slices, strict=True),
                key=lambda each: -sum(count for _, count in each[1]),
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
        asked = [
            self._kit.statistics(structure, component=component).deferred.get(context, kind)
            for structure, context, kind in wanted
        ]
        found = self._kit.together(*asked) if asked else []
        for each, statistics in zip(wanted, found, strict=True):
            if statistics is not None:
                structure, context, kind = each
                yield {
                    "component": component,
                    "structure": structure,
                    "context": context,
                    "kind": kind,
                    "hour": statistics.hour.timestamp(),
                    **{name: getattr(statistics, name) for name in ("count", "min", "max", "mean")},
                    **_quantiles(statistics),
                    "recent": self._recent((component, *each), statistics, now),
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
        wanted = [(*each, level) for each in sorted(names.logs)[:_LOGS] for level in SEVERITIES]
        asked = [
            self._kit.logs(structure, component=component).deferred.recent(log, level, 20)
            for structure, log, level in wanted
        ]
        found = self._kit.together(*asked) if asked else []
        entries = [
            (entry.time or datetime.fromtimestamp(0, UTC), log, entry)
            for (_, log, _), some in zip(wanted, found, strict=True)
            for entry in some
        ]
        for at, log, entry in sorted(entries, key=lambda each: each[0], reverse=True)[:_ENTRIES]:
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
