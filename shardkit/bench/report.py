"""What was measured: tables for people, JSON for programs, plots."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardkit.bench import plots
from shardkit.bench.memory import CallTime, CaseResult
from shardkit.bench.packed_lengths import KINDS, Speed
from shardkit.bench.part_sizes import Curve
from shardkit.bench.throughput.measuring import BatchTimes
from shardkit.cli.output import FAINT, GOOD, Cell, Styled, Table, number


def conditions() -> dict[str, Any]:
    """Return where this runs: what figures depend on, beside the server."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }


# ---- memory


def memory_grid(outcome: CaseResult) -> Table:
    """Return the table of a case. Times are microseconds; in brackets the server's."""
    plain = outcome.layouts[0]
    grid = Table.of(
        outcome.case.name,
        number("entries"),
        number("bytes each"),
        number("saving"),
        number("load s"),
        number("get/s"),
        number("server µs"),
        number("put/s"),
        number("server µs"),
        number("all s"),
    )
    for each in outcome.layouts:
        grid.row(
            each.layout,
            each.entries,
            f"{each.bytes_each:,.1f}",
            Styled("plain", FAINT) if each is plain else _saving(each.saving(plain)),
            f"{each.load_seconds:.1f}",
            *_call(each.get),
            *_call(each.put),
            None if each.whole_seconds is None else f"{each.whole_seconds:.2f}",
        )
    return grid.without_empty()


def _saving(share: float) -> Cell:
    return Styled(f"{share:.0%}", GOOD) if share > 0.01 else f"{share:.0%}"


def _call(call: CallTime | None) -> tuple[Cell, Cell]:
    return (None, None) if call is None else (round(call.a_second), f"{call.server:.1f}")


def memory_document(outcome: CaseResult) -> dict[str, Any]:
    """Return a case's figures."""
    plain = outcome.layouts[0]
    return {
        "case": outcome.case.name,
        "title": outcome.case.title,
        "entry": outcome.case.entry,
        "server": outcome.software,
        "layouts": [
            {
                "layout": each.layout,
                "entries": each.entries,
                "bytes": each.bytes,
                "bytes_each": round(each.bytes_each, 2),
                "saving": round(each.saving(plain), 4),
                "load_seconds": round(each.load_seconds, 3),
                "get": _call_document(each.get, plain.get),
                "put": _call_document(each.put, plain.put),
                "whole_seconds": _rounded(each.whole_seconds),
            }
            for each in outcome.layouts
        ],
    }


def _call_document(call: CallTime | None, plain: CallTime | None) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "a_second": round(call.a_second),
        "microseconds": round(call.caller, 2),
        "server_microseconds": round(call.server, 2),
        "times_plain": round(call.caller / plain.caller, 2) if plain else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def plot_memory(path: Path, outcomes: Sequence[CaseResult]) -> None:
    """Draw the bytes of every layout, side by side for every server."""
    values: dict[str, dict[str, float]] = {}
    for outcome in outcomes:
        for each in outcome.layouts:
            label = f"{outcome.case.name}: {each.layout}"
            values.setdefault(label, {})[outcome.software] = each.bytes_each
    plots.bars(path, "Bytes an entry", values, "bytes of used_memory")


# ---- part sizes


def sizes_grid(curve: Curve) -> Table:
    """Return the table of a curve."""
    grid = Table.of(
        number(f"{curve.kind}, part size"),
        number("bytes each"),
        number("read, server µs"),
        number("write, server µs"),
    )
    for point in curve.points:
        bytes_each = f"{point.bytes_each:.2f}"
        grid.row(point.size, bytes_each, f"{point.look:.2f}", f"{point.change:.2f}")
    return grid


def sizes_document(curve: Curve) -> dict[str, Any]:
    """Return a curve's figures."""
    return {
        "kind": curve.kind,
        "server": curve.software,
        "points": [
            {
                "part_size": point.size,
                "bytes_each": round(point.bytes_each, 2),
                "read_microseconds": round(point.look, 2),
                "write_microseconds": round(point.change, 2),
            }
            for point in curve.points
        ],
    }


def plot_sizes(path: Path, curves: Sequence[Curve]) -> None:
    """Draw bytes and server time by part size."""
    many = len({curve.software for curve in curves}) > 1
    names = [f"{c.kind}, {c.software}" if many else c.kind for c in curves]
    pairs = list(zip(names, curves, strict=True))
    panels = {
        "bytes an entry": {n: [(p.size, p.bytes_each) for p in c.points] for n, c in pairs},
        "server µs to read one": {n: [(p.size, p.look) for p in c.points] for n, c in pairs},
    }
    plots.curves(path, "What a part's size costs", panels, "entries of a part")


# ---- packed lengths


def lengths_grid(speeds: Mapping[str, Sequence[Speed]]) -> Table:
    """Return the table of speeds, a column for each kind."""
    grid = Table.of(number("length"), *(number(f"{name}/s") for name in speeds))
    by_length = {name: {each.length: each for each in found} for name, found in speeds.items()}
    for length in sorted({each.length for found in speeds.values() for each in found}):
        cells = [found.get(length) for found in by_length.values()]
        grid.row(length, *(None if each is None else round(each.a_second) for each in cells))
    return grid


def lengths_document(software: str, speeds: Mapping[str, Sequence[Speed]]) -> dict[str, Any]:
    """Return the figures of speeds."""
    return {
        "server": software,
        "kinds": [
            {
                "kind": name,
                "title": KINDS[name].title,
                "speeds": [
                    {
                        "length": each.length,
                        "a_second": round(each.a_second),
                        "encoding": each.encoding,
                        "passes": each.passes,
                    }
                    for each in found
                ],
            }
            for name, found in speeds.items()
        ],
    }


def plot_lengths(path: Path, speeds: Mapping[str, Sequence[Speed]]) -> None:
    """Draw speeds by length."""
    lines = {
        name: [(each.length, each.a_second) for each in found] for name, found in speeds.items()
    }
    panels = {"operations a second": lines}
    plots.curves(path, "Long compact keys", panels, "entries", logarithmic=True)


# ---- throughput


def throughput_grid(found: Sequence[BatchTimes]) -> Table:
    """Return the table of how many times the limit everybody takes."""
    names = list(dict.fromkeys(name for each in found for name in each.ratios))
    grid = Table.of("work", number("commands"), number("limit µs"), *map(number, names))
    for each in found:
        ratios = (each.ratios.get(name) for name in names)
        cells = (None if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        grid.row(each.work, each.size, f"{each.limit:,.0f}", *cells)
    return grid.without_empty()


def throughput_document(software: str, shards: int, found: Sequence[BatchTimes]) -> dict[str, Any]:
    """Return the figures."""
    return {
        "server": software,
        "shards": shards,
        "works": [
            {
                "work": each.work,
                "commands": each.size,
                "limit_microseconds": round(each.limit, 1),
                "times_the_limit": {name: round(r, 2) for name, r in each.ratios.items()},
            }
            for each in found
        ],
    }


def plot_throughput(path: Path, found: Sequence[BatchTimes]) -> None:
    """Draw how many times the limit everybody takes, by the size of a batch; a panel a work."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in found:
        panel = panels.setdefault(f"{each.work}: times the limit", {})
        for name, ratio in each.ratios.items():
            panel.setdefault(name, []).append((each.size, ratio))
    plots.curves(path, "Throughput", panels, "commands in a batch")
