"""The results of the job: tables for people, one JSON document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardkit.admin.locate import why
from shardkit.cli.demo.access_log import Visitor
from shardkit.cli.demo.counting import DayFigures, ShardLoad, VisitorMemory
from shardkit.cli.demo.replay import ReplayResult
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Column, Output, Styled, Table, number, wordy
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.cli.text import printable
from shardkit.config.component import Component
from shardkit.errors import counted
from shardkit.structures.unique.days import VisitorPlace

_ROWS: Final = 40  # of a table
_BAR: Final = 20  # columns
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_LINE: Final = 120  # characters shown of a malformed line
_UNEVEN: Final = 1.5  # times the mean


@dataclass(frozen=True)
class VisitorExample:
    """Where one visitor's id is stored."""

    visitor: Visitor
    figures: DayFigures  # those of the day of the visit
    place: VisitorPlace
    there: bool
    address: str


@dataclass(frozen=True)
class DemoReport:
    """The results of the job."""

    log: str
    damage: str  # why the log could not be read to its end; empty if it could
    replayed: ReplayResult
    component: Component
    part_size: int  # the most ids that a part is planned for
    days: Sequence[DayFigures]  # the figures of each day, as stored
    loads: Sequence[ShardLoad] = field(default=())
    memory: VisitorMemory | None = None  # the memory of the visitors; None if it was not measured
    # Where a visitor's id is stored; None if there are no visitors.
    example: VisitorExample | None = None


def show(output: Output, report: DemoReport) -> None:
    """Write the tables."""
    replayed = report.replayed
    so_far = " until it was interrupted" if replayed.interrupted else ""
    output.line(
        f"{report.log}: {counted(replayed.lines, 'line')} in {replayed.seconds:.2f} s{so_far}, "
        f"{replayed.speed:,.0f} lines a second",
        WARN if replayed.interrupted else GOOD,
    )
    for line in _malformed(replayed):
        output.warn(_cut(line, _room(output)))
    if report.damage:
        output.bad(f"the log cannot be read any further: {report.damage}")
    if report.days:
        _table(output, _days(output, report))
        if any(day.visitors > day.parts * report.part_size for day in report.days):
            output.warn(
                "Some days had more visitors than planned, and parts outgrew their compact form: "
                "use --first-day."
            )
    if report.days and report.loads:
        _table(output, _shards(output, report))
        ids = [load.ids for load in report.loads]
        if max(ids) * len(ids) > _UNEVEN * sum(ids):
            output.dim(
                "Parts are never split: the more there are, the more evenly they use the shards."
            )
    if report.memory is not None:
        _table(output, _memory(report.memory, report.part_size))
        memory = report.memory
        many = len(report.days)
        which = "all days" if memory.days == many else f"the {memory.days} busiest days"
        visitors = counted(memory.visitors, "visitor")
        output.dim(f"used_memory of new servers, {memory.server}; {visitors} of {which}")
    if report.example is not None:
        _table(output, _place(output, report.component, report.example))


def _table(output: Output, grid: Table) -> None:
    output.line()
    output.table(grid)


def _malformed(replayed: ReplayResult) -> Iterator[str]:
    if not replayed.malformed:
        return
    rest = replayed.malformed - len(replayed.examples)
    verb = "is" if replayed.malformed == 1 else "are"
    yield f"{counted(replayed.malformed, 'line')} {verb} malformed and not counted:"
    for n, line in replayed.examples.items():
        yield f"  line {n}: {_shown(line) or 'empty'}"
    if rest:
        yield f"  and {rest:,} more"


def _shown(data: bytes) -> str:
    """Return bytes of a log as text that is safe for a terminal."""
    text = printable(data[:_LINE].decode(errors="backslashreplace").rstrip("\r\n"))
    return _cut(text if len(data) <= _LINE else f"{text}…", _LINE)


def _room(output: Output) -> int:
    return min(_LINE, output.width)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _days(output: Output, report: DemoReport) -> Table:
    days = report.days
    most = max(day.visitors for day in days)
    cut = len(days) > _ROWS
    bar = _bar_fields(output, lambda day: day.visitors, most)
    shown = [*days[: _ROWS // 2], *days[-_ROWS // 2 :]] if cut else days
    grid = table_of((*_DAY_FIELDS, *bar), shown)
    if cut:
        left_out = Styled(f"… {len(days) - _ROWS:,} more", DIM)
        grid.rows.insert(_ROWS // 2, [left_out, *[""] * (len(grid.columns) - 1)])
    return grid


def _shards(output: Output, report: DemoReport) -> Table:
    loads = report.loads
    bar = _bar_fields(output, lambda load: load.ids, max(load.ids for load in loads))
    grid = table_of((*_SHARD_FIELDS, *bar), loads[:_ROWS])
    rest = loads[_ROWS:]
    if rest:
        sums = (sum(getattr(load, name) for load in rest) for name in ("keys", "size", "ids"))
        grid.row(Styled(f"{len(rest):,} more", DIM), "", *sums, *[" "] * len(bar))
    return grid


def _memory(memory: VisitorMemory, part_size: int) -> Table:
    grid = Table.of("memory", number("bytes"), number("a visitor"), number("times"))
    for name, size in (
        (f"in parts of {part_size} ids", memory.parts),
        ("one SET a day of the same ids", memory.plain_set),
        ("one SET a day of UUIDs as text", memory.uuid_text_set),
    ):
        grid.row(name, size, f"{size / memory.visitors:.1f}", f"{size / memory.parts:.1f}")
    return grid


def _place(output: Output, component: Component, example: VisitorExample) -> Table:
    place, figures = example.place, example.figures
    visitor = _shown(b" ".join(example.visitor))
    grid = Table.of("visitor", wordy(_cut(visitor, _room(output) - len("visitor  "))))
    grid.row("came on", figures.day.isoformat())
    grid.row("id", str(place.id))
    grid.row("part", f"{place.part} of {figures.parts}")
    grid.row("key", place.key)
    grid.row("shard", f"{place.shard}: {why(component, place.key).text}")
    grid.row("server", example.address)
    grid.row("there", Styled("yes", GOOD) if example.there else Styled("no", BAD))
    return grid


def _bar_fields(output: Output, value: Callable[[Any], int], most: int) -> list[Field[Any]]:
    """Return the field of a bar; nothing if the output is not a terminal."""

    def bar(row: Any) -> Styled:
        whole, eighths = divmod(round(8 * _BAR * value(row) / max(1, most)), 8)
        return Styled(("█" * whole + _EIGHTHS[eighths]).rstrip() or " ", GOOD)

    return [column_only("", bar)] if output.interactive else []


_DAY_FIELDS: tuple[Field[DayFigures], ...] = (
    Field("day", lambda day: day.day.isoformat(), Column("day")),
    Field("hits", lambda day: day.hits, number("hits")),
    Field("planned", lambda day: day.planned, number("planned")),
    Field("parts", lambda day: day.parts, number("parts")),
    Field("visitors", lambda day: day.visitors, number("visitors")),
)
_SHARD_FIELDS: tuple[Field[ShardLoad], ...] = (
    Field("shard", lambda load: str(load.shard), Column("shard")),
    Field("address", lambda load: load.address, Column("server")),
    Field("keys", lambda load: load.keys, number("keys")),
    Field("bytes", lambda load: load.size, number("bytes")),
    Field("ids", lambda load: load.ids, number("ids")),
)


def document(report: DemoReport) -> dict[str, Any]:
    """Return everything as one JSON document."""
    replayed, memory, example = report.replayed, report.memory, report.example
    return {
        "log": report.log,
        "lines": replayed.lines,
        "malformed": {
            "lines": replayed.malformed,
            "examples": [
                {"line": n, "text": _shown(line)} for n, line in replayed.examples.items()
            ],
        },
        "seconds": round(replayed.seconds, 3),
        "lines_per_second": round(replayed.speed),
        "interrupted": replayed.interrupted,
        "damage": report.damage or None,
        "days": json_rows(_DAY_FIELDS, report.days),
        "shards": json_rows(_SHARD_FIELDS, report.loads),
        "memory": memory,
        "visitor": None
        if example is None
        else {
            "address": _shown(example.visitor[0]),
            "agent": _shown(example.visitor[1]),
            "day": example.figures.day.isoformat(),
            "id": example.place.id,
            "part": example.place.part,
            "key": example.place.key,
            "shard": str(example.place.shard),
            "server": example.address,
            "there": example.there,
        },
    }
