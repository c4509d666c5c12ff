"""``shardkit bench``: memory, part sizes, long compact keys and throughput, measured.

::

    cases ─► fresh servers, or the user's own empty one ─► figures ─► table, JSON, plot
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from shardkit.bench import packed_lengths, part_sizes, report
from shardkit.bench.cases import CASES
from shardkit.bench.memory import CaseResult, run
from shardkit.bench.packed_lengths import LENGTHS, PASSES, PER_PASS, Speed
from shardkit.bench.part_sizes import Curve
from shardkit.bench.plots import check_plot
from shardkit.bench.servers import ServerSource
from shardkit.bench.throughput import measuring as throughput
from shardkit.bench.throughput.works import WORKS
from shardkit.cli.options import debug_option, examples
from shardkit.cli.output import FAINT, Output
from shardkit.cli.progress import progress

F = TypeVar("F", bound=Callable[..., Any])


@click.group(short_help="Measure memory and speed.")
def bench() -> None:
    """Measure the memory and speed of structures, on embedded servers or on your own.

    A server that holds data is refused, and everything that was written is removed afterwards.
    """


plot_option = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a plot: .svg, .png …"
)
document_option = click.option(
    "--json",
    "document",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the figures as JSON to a file; without FILE, or with -, instead of the tables.",
)


def _server_options(function: F) -> F:
    """Give a command ``--server``, ``--url``, ``--json`` and ``--plot``."""
    for option in (
        debug_option,
        plot_option,
        document_option,
        click.option("--url", metavar="URL", help="Measure on this server, which must be empty."),
        click.option(
            "--server",
            "binary",
            metavar="PATH",
            help="The server binary to start; by default the embedded one.",
        ),
    ):
        function = option(function)
    return function


def _server_source(binary: str | None, url: str | None) -> ServerSource:
    if binary and url:
        raise click.UsageError("--server and --url exclude each other")
    return ServerSource(None if binary == "embedded" else binary, url)


def _check(plot: Path | None) -> None:
    if plot is not None:
        check_plot(plot)


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
@click.option(
    "--entries",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many entries; by default each case's own number, a million for most.",
)
@_server_options
def memory(
    names: Sequence[str],
    entries: int | None,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure cases; the help is above, with their list."""
    servers = _server_source(binary, url)
    _check(plot)
    output = Output(document == "-")
    outcomes: list[CaseResult] = []
    with progress("entries") as tell:
        for name in names or CASES:
            outcomes.append(
                run(
                    CASES[name],
                    servers,
                    entries,
                    lambda case, layout, *far: tell(f"{case}: {layout}", *far),
                )
            )
            if not output.as_json:
                output.table(report.memory_table(outcomes[-1]))
                output.line()
    _remark(output, outcomes[-1].software, "bytes are the growth of used_memory")
    figures = [report.memory_document(outcome) for outcome in outcomes]
    _write(output, document, {"cases": figures})
    if plot is not None:
        report.plot_memory(plot, outcomes)
    return 0


@bench.command(
    "part-sizes",
    epilog=examples(
        "shardkit bench part-sizes",
        "shardkit bench part-sizes hash --sizes 128,512,1024 --plot sizes.svg",
    ),
)
@click.argument("names", nargs=-1, metavar="[KIND]...", type=click.Choice(list(part_sizes.KINDS)))
@click.option(
    "--sizes",
    default=",".join(map(str, part_sizes.SIZES)),
    show_default=True,
    metavar="N,N…",
    callback=lambda _ctx, _param, value: _numbers(value),
    help="How many entries a part has.",
)
@click.option(
    "--entries",
    type=click.IntRange(min=1),
    default=part_sizes.ENTRIES,
    show_default=True,
    metavar="N",
    help="How many entries there are.",
)
@_server_options
def sizes_command(
    names: Sequence[str],
    sizes: Sequence[int],
    entries: int,
    binary: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure parts of several sizes: bytes per entry, and the server's time for one.

    Kinds are hash, zset and intset. Limits are raised for the run, and restored.
    """
    servers = _server_source(binary, url)
    _check(plot)
    output = Output(document == "-")
    curves: list[Curve] = []
    with progress("sizes") as tell:
        for name in names or part_sizes.KINDS:
            curves.append(part_sizes.run(part_sizes.KINDS[name], servers, sizes, entries, tell))
            if not output.as_json:
                output.table(report.sizes_table(curves[-1]))
                output.line()
    _remark(output, curves[-1].software, "times are the server's own (INFO commandstats)")
    _write(output, document, {"kinds": [report.sizes_document(curve) for curve in curves]})
    if plot is not None:
        report.plot_sizes(plot, curves)
    return 0


@bench.command(
    "packed-lengths",
    epilog=examples(
        "shardkit bench packed-lengths",
        "shardkit bench packed-lengths hash --lengths 1,1000,50000 --passes 100",
        "shardkit bench packed-lengths --plot lengths.svg",
    ),
)
@click.argument(
    "names", nargs=-1, metavar="[KIND]...", type=click.Choice(list(packed_lengths.KINDS))
)
@click.option(
    "--lengths",
    default=",".join(map(str, LENGTHS)),
    show_default=True,
    metavar="N,N…",
    callback=lambda _ctx, _param, value: _numbers(value),
    help="How many entries the key has.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=PASSES,
    show_default=True,
    help="How many pipelines to send, within five seconds.",
)
@click.option(
    "--per-pass",
    type=click.IntRange(min=1),
    default=PER_PASS,
    show_default=True,
    help="How many operations a pipeline has.",
)
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
) -> int:
    """Measure how operations slow down with the length of one compact key.

    \b
    Kinds:
      rotate  LIST: the last element to the front
      middle  LIST: read the middle element
      intset  SET of integers: take the lowest out and put it back
      hash    HASH: write the middle field
      zset    ZSET: the highest member becomes the lowest, and again the highest

    The limit that keeps the key compact is raised for the run, and always restored. Since Redis 3.2
    a LIST is not one block but a chain of small ones, so the speed of rotate does not depend on
    length.
    """  # noqa: D301 - click's mark for text that stays as it is
    servers = _server_source(binary, url)
    _check(plot)
    output = Output(document == "-")
    speeds: dict[str, list[Speed]] = {}
    with servers.empty_server() as server, progress("lengths") as tell:
        software = str(server.software)
        for name in names or packed_lengths.KINDS:
            kind = packed_lengths.KINDS[name]
            speeds[name] = []
            for n, length in enumerate(lengths):
                tell(f"{name}, {length:,} entries", n, len(lengths))
                speeds[name].append(packed_lengths.run(kind, server, length, passes, per_pass))
    if not output.as_json:
        output.table(report.lengths_table(speeds))
        output.line()
    _remark(output, software, "operations a second, in pipelines")
    _write(output, document, report.lengths_document(software, speeds))
    if plot is not None:
        report.plot_lengths(plot, speeds)
    return 0


@bench.command(
    "throughput",
    epilog=examples(
        "shardkit bench throughput",
        "shardkit bench throughput get set --sizes 100,10000",
        "shardkit bench throughput get --shards 64 --plot throughput.svg",
    ),
)
@click.argument("names", nargs=-1, metavar="[WORK]...", type=click.Choice(list(WORKS)))
@click.option(
    "--sizes",
    default=",".join(map(str, throughput.SIZES)),
    show_default=True,
    metavar="N,N…",
    callback=lambda _ctx, _param, value: _numbers(value),
    help="How many commands a batch has; 1 is a single call.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1, max=1024),
    default=throughput.SERVERS,
    show_default=True,
    metavar="N",
    help="How many shards, over four servers.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=throughput.REPEATS,
    show_default=True,
    metavar="N",
    help="How many rounds, of which the median is shown.",
)
@click.option(
    "--server",
    "binary",
    metavar="PATH",
    help="The server binary to start; by default the embedded one.",
)
@document_option
@plot_option
@debug_option
def throughput_command(
    names: Sequence[str],
    sizes: Sequence[int],
    shards: int,
    repeats: int,
    binary: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure how long commands take, compared with hand-written code.

    Starts four servers. The limit is a loop over raw sockets with hiredis alone. The other times
    are given as multiples of it; all contestants take turns in the same rounds.

    \b
    Work:
      get    GET          hset   HSET
      set    SET          mixed  six kinds of commands

    "by column" is a batch that is given as columns of keys and values. In "coalesced" ones
    neighbours become one MGET or MSET, which is what structures send for keys that they own.
    """  # noqa: D301 - click's mark for text that stays as it is
    _check(plot)
    output = Output(document == "-")
    if binary == "embedded":
        binary = None
    with progress("works") as tell:
        software, found = throughput.run(names or list(WORKS), sizes, shards, repeats, binary, tell)
    if not output.as_json:
        output.table(report.throughput_table(found))
        output.line()
    _remark(output, f"{software}, {shards} shards", "times the limit, medians of rounds in turn")
    _write(output, document, report.throughput_document(software, shards, found))
    if plot is not None:
        report.plot_throughput(plot, found)
    return 0


def _numbers(value: str) -> tuple[int, ...]:
    words = value.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{value!r} is no list of numbers from 1")
    return tuple(sorted({int(word) for word in words}))


def _remark(output: Output, software: str, what: str) -> None:
    if not output.as_json:
        output.line(f"{software}; {what}", FAINT)


def _write(output: Output, document: str | None, figures: Mapping[str, Any]) -> None:
    """Write the figures to stdout or to a file, if they are wanted as JSON."""
    whole = {**figures, "conditions": report.conditions()}
    if document == "-":
        output.document(whole)
    elif document is not None:
        Path(document).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
