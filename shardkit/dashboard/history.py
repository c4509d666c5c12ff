"""A day of history, a point in five minutes, in a file: charts survive a restart."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from shardkit.config.entry import read_regular, replacing

STEP = 300.0  # seconds between two points
_DAY = 86_400
_FORMAT, _LARGEST = 1, 1e18


class History:
    """The means of samples by server; ``fields`` are their names, the time first.

    It is kept in ``path``, if there is one: about 30 KB for each server.
    """

    def __init__(self, fields: list[str], path: str | os.PathLike[str] | None = None) -> None:
        self._fields, self._path = fields, None if path is None else Path(path)
        self._points: dict[str, deque[list[float | None]]] = {}
        self._due = 0.0
        if self._path is not None:
            with suppress(Exception):  # whatever is wrong with the file, history begins anew
                stored = json.loads(read_regular(self._path))
                if (stored["format"], stored["fields"]) == (_FORMAT, self._fields):
                    self._points = {
                        str(name): self._bounded(filter(self._is_point, rows))
                        for name, rows in stored["servers"].items()
                    }

    def _is_point(self, row: Sequence[Any]) -> bool:
        return len(row) == len(self._fields) and all(
            (value is None and n > 0) or (type(value) in (int, float) and abs(value) < _LARGEST)
            for n, value in enumerate(row)
        )

    def _bounded(self, rows: Iterable[list[float | None]] = ()) -> deque[list[float | None]]:
        return deque(rows, maxlen=int(_DAY / STEP))

    def note(self, samples: Mapping[str, Iterable[Any]]) -> None:
        """Add the means of the servers' samples since the last point, if it is time for one.

        Raises:
            OSError: the file cannot be written.
        """
        now = time.time()
        if now < self._due:
            return
        at = now // STEP * STEP
        first, self._due = not self._due, at + STEP
        for server, rows in samples.items() if not first else ():
            recent = [sample for sample in rows if at - STEP <= sample.at < at]
            if recent:
                means = (
                    [value for sample in recent if (value := getattr(sample, name)) is not None]
                    for name in self._fields[1:]
                )
                point = [at, *(round(fmean(values), 6) if values else None for values in means)]
                self._points.setdefault(server, self._bounded()).append(point)
        for server, points in list(self._points.items()):
            while points and (points[0][0] or 0) < now - _DAY:
                points.popleft()
            if not points:
                del self._points[server]
        if self._path is not None and not first:
            servers = {name: [*points] for name, points in self._points.items()}
            stored = {"format": _FORMAT, "fields": self._fields, "servers": servers}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path, keeps=True) as file:
                file.write(json.dumps(stored, separators=(",", ":")).encode())

    def columns(self, server: str, since: float = 0.0, until: float = 1e12) -> dict[str, list[Any]]:
        """Return a server's points of a time, by field."""
        rows = [point for point in self._points.get(server, ()) if since <= (point[0] or 0) < until]
        return {name: [row[n] for row in rows] for n, name in enumerate(self._fields)}

    def totals(self, fields: Sequence[str], since: float = 0.0) -> dict[str, list[Any]]:
        """Return the sums of all servers' points, by field."""
        sums: dict[float, list[float]] = {}
        for server in list(self._points):
            points = self.columns(server, since)
            for at, *values in zip(points["at"], *(points[name] for name in fields), strict=True):
                known = sums.setdefault(at, [0.0] * len(fields))
                sums[at] = [a + (b or 0) for a, b in zip(known, values, strict=True)]
        return {
            "at": sorted(sums),
            **{name: [sums[at][n] for at in sorted(sums)] for n, name in enumerate(fields)},
        }
