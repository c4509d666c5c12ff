"""``shardkit bench memory``: bytes and speed of structures, on embedded servers or your own."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from shardkit.cli.bench import plots
from shardkit.cli.bench.cases import CASES
from shardkit.cli.bench.memory import CallTime, CaseResult, LayoutResult, run
from shardkit.cli.bench.servers import ServerSource
from shardkit.cli.options import binary_option, debug_option, examples, number_option, plot_option
from shardkit.cli.output import DIM, GOOD, Cell, Column, Output, Styled, Table, number
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, column_only, json_rows, rounded, table_of


@click.group()
def bench() -> None:
    """Measure the memory and speed of structures, on embedded servers or on your own.

    A server with data is refused. Everything that is written is removed afterwards.
    """


@bench.command(
    epilog=examples(
        "shardkit bench memory",
        "shardkit bench memory ids hash --entries 100000",
        "shardkit bench memory --server /usr/bin/redis-server --plot memory.svg",
        "shardkit bench memory list --url redis://127.0.0.1:6399 --json figures.json",
    ),
    help="Measure the bytes and the speed of structures against the plain command.\n\n"
    "\b\nCases:\n" + "\n".join(f"  {name:<10} {case.title}" for name, case in CASES.items()),
)
@click.argument("names", nargs=-1, metavar="[CASE]...", type=click.Choice(list(CASES)))
@number_option(
    "--entries", None, "How many entries; by default each case's own number, a million for most."
)
@binary_option
@click.option("--url", metavar="URL", help="Measure on this server, which must be empty.")
@click.option(
    "--json",
    "document",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the figures as JSON to a file; without FILE, or with -, instead of the tables.",
)
@plot_option
@debug_option
def memory(
    names: Sequence[str],
    entries: int | None,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> None:
    """Measure cases; the help text is in the decorator, as it lists them."""
    if binary and url:
        raise click.UsageError("--server and --url exclude each other")
    if plot is not None:
        plots.check_plot(plot)
    servers = ServerSource(None if binary == "embedded" else binary, url)
    output = Output(document == "-")
    outcomes: list[CaseResult] = []
    with progress("entries") as tell:
        for name in names or CASES:
            outcomes.append(run(CASES[name], servers, entries, tell))
            if not output.as_json:
                output.table(memory_table(outcomes[-1]))
                output.line()
    if not output.as_json:
        output.line(f"{outcomes[-1].software}; bytes are the growth of used_memory", DIM)
    figures = {
        "cases": [memory_document(outcome) for outcome in outcomes],
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "redis-py": version("redis"),
            "hiredis": version("hiredis"),
        },
    }
    if output.as_json:
        output.document(figures)
    elif document is not None:
        Path(document).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        _plot(plot, outcomes)


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


def _plot(path: Path, outcomes: Sequence[CaseResult]) -> None:
    """Draw the bytes per entry of each layout, side by side for several servers."""
    values: dict[str, dict[str, float]] = {}
    for outcome in outcomes:
        for each in outcome.layouts:
            label = f"{outcome.case.name}: {each.layout}"
            values.setdefault(label, {})[outcome.software] = each.bytes_each
    plots.bars(path, "Bytes an entry", values, "bytes of used_memory")
