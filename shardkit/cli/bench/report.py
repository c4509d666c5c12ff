"""The figures of benchmarks as tables, JSON and plots."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardkit.cli.bench import plots
from shardkit.cli.bench.memory import CallTime, CaseResult, LayoutResult
from shardkit.cli.bench.packed_lengths import KINDS, Speed
from shardkit.cli.bench.part_sizes import Curve, Point
from shardkit.cli.output import DIM, GOOD, Cell, Column, Styled, Table, number
from shardkit.cli.rows import Field, column_only, json_rows, rounded, table_of


def conditions() -> dict[str, Any]:
    """Return what the figures depend on besides the server."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }


# ---- memory


def _memory_fields(outcome: CaseResult) -> tuple[Field[LayoutResult], ...]:
    plain = outcome.layouts[0]

    def saving(each: LayoutResult) -> Cell:
        share = each.saving(plain)
        if each is plain:
            return Styled("plain", DIM)
        return Styled(f"{share:.0%}", GOOD) if share > 0.01 else f"{share:.0%}"

    return (
        Field("layout", lambda each: each.layout, Column(outcome.case.name)),
        Field("entries", lambda each: each.entries, number("entries")),
        Field("bytes", lambda each: each.bytes),
        rounded("bytes_each", lambda each: each.bytes_each, number("bytes each"), 2, ",.1f"),
        Field("saving", lambda each: round(each.saving(plain), 4), number("saving"), saving),
        rounded("load_seconds", lambda each: each.load_seconds, number("load s"), 3, ".1f"),
        *_call_fields("get", lambda each: each.get, plain),
        *_call_fields("put", lambda each: each.put, plain),
        rounded("whole_seconds", lambda each: each.whole_seconds, number("all s"), 4, ".2f"),
    )


def _call_fields(
    name: str, call_of: Callable[[LayoutResult], CallTime | None], plain: LayoutResult
) -> tuple[Field[LayoutResult], ...]:
    """Return the fields of one kind of call: how many per second, and the server's time."""

    def document(each: LayoutResult) -> dict[str, Any] | None:
        call, plain_call = call_of(each), call_of(plain)
        if call is None:
            return None
        return {
            "a_second": round(call.per_second),
            "microseconds": round(call.caller, 2),
            "server_microseconds": round(call.server, 2),
            "times_plain": round(call.caller / plain_call.caller, 2) if plain_call else None,
        }

    def per_second(each: LayoutResult) -> Cell:
        call = call_of(each)
        return None if call is None else round(call.per_second)

    def server(each: LayoutResult) -> Cell:
        call = call_of(each)
        return None if call is None else f"{call.server:.1f}"

    return (
        Field(name, document, number(f"{name}/s"), per_second),
        column_only(number("server µs"), server),
    )


def memory_table(outcome: CaseResult) -> Table:
    """Return the table of a case."""
    return table_of(_memory_fields(outcome), outcome.layouts).without_empty()


def memory_document(outcome: CaseResult) -> dict[str, Any]:
    """Return the figures of a case."""
    return {
        "case": outcome.case.name,
        "title": outcome.case.title,
        "entry": outcome.case.entry,
        "server": outcome.software,
        "layouts": json_rows(_memory_fields(outcome), outcome.layouts),
    }


def plot_memory(path: Path, outcomes: Sequence[CaseResult]) -> None:
    """Draw the bytes per entry of each layout, side by side for several servers."""
    values: dict[str, dict[str, float]] = {}
    for outcome in outcomes:
        for each in outcome.layouts:
            label = f"{outcome.case.name}: {each.layout}"
            values.setdefault(label, {})[outcome.software] = each.bytes_each
    plots.bars(path, "Bytes an entry", values, "bytes of used_memory")


# ---- part sizes


def _size_fields(kind: str) -> tuple[Field[Point], ...]:
    return (
        Field("part_size", lambda point: point.size, number(f"{kind}, part size")),
        rounded("bytes_each", lambda point: point.bytes_each, number("bytes each"), 2, ".2f"),
        rounded("read_microseconds", lambda point: point.read, number("read, server µs"), 2, ".2f"),
        rounded(
            "write_microseconds", lambda point: point.write, number("write, server µs"), 2, ".2f"
        ),
    )


def sizes_table(curve: Curve) -> Table:
    """Return the table of a curve."""
    return table_of(_size_fields(curve.kind), curve.points)


def sizes_document(curve: Curve) -> dict[str, Any]:
    """Return the figures of a curve."""
    points = json_rows(_size_fields(curve.kind), curve.points)
    return {"kind": curve.kind, "server": curve.software, "points": points}


def plot_sizes(path: Path, curves: Sequence[Curve]) -> None:
    """Draw bytes and server time by part size."""
    many = len({curve.software for curve in curves}) > 1
    names = [f"{c.kind}, {c.software}" if many else c.kind for c in curves]
    pairs = list(zip(names, curves, strict=True))
    panels = {
        "bytes an entry": {n: [(p.size, p.bytes_each) for p in c.points] for n, c in pairs},
        "server µs to read one": {n: [(p.size, p.read) for p in c.points] for n, c in pairs},
    }
    plots.curves(path, "What a part's size costs", panels, "entries of a part")


# ---- packed lengths


def lengths_table(speeds: Mapping[str, Sequence[Speed]]) -> Table:
    """Return the table of speeds, with a column for each kind."""
    table = Table.of(number("length"), *(number(f"{name}/s") for name in speeds))
    by_length = {name: {each.length: each for each in found} for name, found in speeds.items()}
    for length in sorted({each.length for found in speeds.values() for each in found}):
        cells = [found.get(length) for found in by_length.values()]
        table.row(length, *(None if each is None else round(each.per_second) for each in cells))
    return table


def lengths_document(software: str, speeds: Mapping[str, Sequence[Speed]]) -> dict[str, Any]:
    """Return the figures of speeds."""
    kinds = [
        {"kind": name, "title": KINDS[name].title, "speeds": json_rows(_SPEED_FIELDS, found)}
        for name, found in speeds.items()
    ]
    return {"server": software, "kinds": kinds}


_SPEED_FIELDS: tuple[Field[Speed], ...] = (
    Field("length", lambda each: each.length),
    Field("a_second", lambda each: round(each.per_second)),
    Field("encoding", lambda each: each.encoding),
    Field("passes", lambda each: each.passes),
)


def plot_lengths(path: Path, speeds: Mapping[str, Sequence[Speed]]) -> None:
    """Draw speeds by length."""
    lines = {
        name: [(each.length, each.per_second) for each in found] for name, found in speeds.items()
    }
    panels = {"operations a second": lines}
    plots.curves(path, "Long compact keys", panels, "entries", logarithmic=True)
