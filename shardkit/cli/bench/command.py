"""``shardkit bench``: measures memory, part sizes and long compact keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from shardkit.cli.bench import packed_lengths, part_sizes, report
from shardkit.cli.bench.cases import CASES
from shardkit.cli.bench.memory import CaseResult, run
from shardkit.cli.bench.packed_lengths import LENGTHS, PASSES, PER_PASS, Speed
from shardkit.cli.bench.part_sizes import Curve
from shardkit.cli.bench.plots import check_plot
from shardkit.cli.bench.servers import ServerSource
from shardkit.cli.options import binary_option, debug_option, examples, number_option, plot_option
from shardkit.cli.output import FAINT, Output, Table
from shardkit.cli.progress import progress

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure the memory and speed of structures, on embedded servers or on your own.

    A server with data is refused. Everything that is written is removed afterwards.
    """


_url_option = click.option(
    "--url", metavar="URL", help="Measure on this server, which must be empty."
)
_json_option = click.option(
    "--json",
    "document",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the figures as JSON to a file; without FILE, or with -, instead of the tables.",
)


def _server_options(function: F) -> F:
    """Give a command ``--server``, ``--url``, ``--json``, ``--plot`` and ``--debug``."""
    return binary_option(_url_option(_json_option(plot_option(debug_option(function)))))


def _names(kind: str, names: Iterable[str]) -> Callable[[F], F]:
    """Give a command the names of what it measures."""
    return click.argument("names", nargs=-1, metavar=f"[{kind}]...", type=click.Choice(list(names)))


def _numbers(name: str, default: Iterable[int], help: str) -> Callable[[F], F]:  # noqa: A002
    """Give a command an option of several numbers."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
        words = value.split(",")
        if not all(word.isascii() and word.isdigit() and int(word) for word in words):
            raise click.BadParameter(f"{value!r} is not a list of positive numbers")
        return tuple(sorted({int(word) for word in words}))

    written = ",".join(map(str, default))
    return click.option(
        name, default=written, show_default=True, metavar="N,N…", callback=read, help=help
    )


def _server_source(binary: str | None, url: str | None) -> ServerSource:
    if binary and url:
        raise click.UsageError("--server and --url exclude each other")
    return ServerSource(None if binary == "embedded" else binary, url)


class _Report:
    """The figures of one command: tables as they come; in the end the JSON and the plot.

    JSON is written to the file ``document``, or if it is ``-`` to stdout instead of the tables.
    """

    def __init__(self, document: str | None, plot: Path | None) -> None:
        if plot is not None:
            check_plot(plot)
        self._document, self._plot = document, plot
        self._output = Output(document == "-")

    def table(self, table: Table) -> None:
        """Write a table, unless stdout is for JSON."""
        if not self._output.as_json:
            self._output.table(table)
            self._output.line()

    def end(self, remark: str, figures: Mapping[str, Any], draw: Callable[[Path], None]) -> None:
        """Write what the tables' figures are, and the figures as JSON; draw the plot."""
        if not self._output.as_json:
            self._output.line(remark, FAINT)
        whole = {**figures, "conditions": report.conditions()}
        if self._document == "-":
            self._output.document(whole)
        elif self._document is not None:
            text = json.dumps(whole, indent=1) + "\n"
            Path(self._document).write_text(text, encoding="utf-8")
        if self._plot is not None:
            draw(self._plot)


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
@_names("CASE", CASES)
@number_option(
    "--entries", None, "How many entries; by default each case's own number, a million for most."
)
@_server_options
def memory(
    names: Sequence[str],
    entries: int | None,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> None:
    """Measure cases; the help text is in the decorator, as it lists them."""
    servers, written = _server_source(binary, url), _Report(document, plot)
    outcomes: list[CaseResult] = []
    with progress("entries") as tell:
        for name in names or CASES:
            outcomes.append(run(CASES[name], servers, entries, tell))
            written.table(report.memory_table(outcomes[-1]))
    written.end(
        f"{outcomes[-1].software}; bytes are the growth of used_memory",
        {"cases": [report.memory_document(outcome) for outcome in outcomes]},
        lambda path: report.plot_memory(path, outcomes),
    )


@bench.command(
    "part-sizes",
    epilog=examples(
        "shardkit bench part-sizes",
        "shardkit bench part-sizes hash --sizes 128,512,1024 --plot sizes.svg",
    ),
)
@_names("KIND", part_sizes.KINDS)
@_numbers("--sizes", part_sizes.SIZES, "How many entries a part has.")
@number_option("--entries", part_sizes.ENTRIES, "How many entries there are.")
@_server_options
def sizes_command(
    names: Sequence[str],
    sizes: Sequence[int],
    entries: int,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> None:
    """Measure parts of several sizes: bytes per entry, and the server's time for one.

    Kinds are hash, zset and intset. Limits are raised during the run, and restored.
    """
    servers, written = _server_source(binary, url), _Report(document, plot)
    curves: list[Curve] = []
    with progress("sizes") as tell:
        for name in names or part_sizes.KINDS:
            curves.append(part_sizes.run(part_sizes.KINDS[name], servers, sizes, entries, tell))
            written.table(report.sizes_table(curves[-1]))
    written.end(
        f"{curves[-1].software}; times are the server's own (INFO commandstats)",
        {"kinds": [report.sizes_document(curve) for curve in curves]},
        lambda path: report.plot_sizes(path, curves),
    )


@bench.command(
    "packed-lengths",
    epilog=examples(
        "shardkit bench packed-lengths",
        "shardkit bench packed-lengths hash --lengths 1,1000,50000 --passes 100",
        "shardkit bench packed-lengths --plot lengths.svg",
    ),
)
@_names("KIND", packed_lengths.KINDS)
@_numbers("--lengths", LENGTHS, "How many entries the key has.")
@number_option("--passes", PASSES, "How many pipelines to send, for at most five seconds.")
@number_option("--per-pass", PER_PASS, "How many operations a pipeline has.")
@_server_options
def lengths_command(
    names: Sequence[str],
    lengths: Sequence[int],
    passes: int,
    per_pass: int,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> None:
    """Measure how operations slow down with the length of one compact key.

    \b
    Kinds:
      rotate  LIST: the last element to the front
      middle  LIST: read the middle element
      intset  SET of integers: remove the lowest and add it again
      hash    HASH: write the middle field
      zset    ZSET: the highest member becomes the lowest, then the highest again

    The limit that keeps the key compact is raised during the run, and always restored. Since Redis
    3.2, a LIST is not one block but a linked list of small ones, so the speed of rotate does not
    depend on the length.
    """  # noqa: D301 - \b is click's mark for text that is not rewrapped
    servers, written = _server_source(binary, url), _Report(document, plot)
    speeds: dict[str, list[Speed]] = {}
    with servers.empty_server() as server, progress("lengths") as tell:
        software = server.software
        for name in names or packed_lengths.KINDS:
            kind = packed_lengths.KINDS[name]
            speeds[name] = []
            for n, length in enumerate(lengths):
                tell(f"{name}, {length:,} entries", n, len(lengths))
                speeds[name].append(packed_lengths.run(kind, server, length, passes, per_pass))
    written.table(report.lengths_table(speeds))
    written.end(
        f"{software}; operations a second, in pipelines",
        report.lengths_document(software, speeds),
        lambda path: report.plot_lengths(path, speeds),
    )
