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
    """Measure what structures take and save, on embedded servers or on your own.

    Nothing is measured on a server that holds data, and nothing of it is left afterwards.
    """


plot_option = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: .svg, .png …"
)
document_option = click.option(
    "--json",
    "document",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="The figures as JSON into a file; without one, or as -, instead of the tables.",
)


def _site_options(function: F) -> F:
    """Give a command ``--server``, ``--url``, ``--json`` and ``--plot``."""
    for option in (
        debug_option,
        plot_option,
        document_option,
        click.option("--url", metavar="URL", help="Measure on this server, which must be empty."),
        click.option(
            "--server",
            metavar="PATH",
            help="The server binary that is started; by default the embedded one.",
        ),
    ):
        function = option(function)
    return function


def _stand(server: str | None, url: str | None) -> ServerSource:
    if server and url:
        raise click.UsageError("--server starts servers, which --url does without")
    return ServerSource(None if server == "embedded" else server, url)


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
@_site_options
def memory(
    names: Sequence[str],
    entries: int | None,
    server: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure cases; the help is above, with their list."""
    stand = _stand(server, url)
    _check(plot)
    output = Output(document == "-")
    outcomes: list[CaseResult] = []
    with progress("entries") as tell:
        for name in names or CASES:
            outcomes.append(
                run(
                    CASES[name],
                    stand,
                    entries,
                    lambda case, layout, *far: tell(f"{case}: {layout}", *far),
                )
            )
            if not output.as_json:
                output.table(report.memory_grid(outcomes[-1]))
                output.line()
    _remark(output, outcomes[-1].software, "bytes are used_memory less that of the empty server")
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
@_site_options
def sizes_command(
    names: Sequence[str],
    sizes: Sequence[int],
    entries: int,
    server: str | None,
    url: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure parts of several sizes: bytes an entry, and the server's time for one.

    Kinds are hash, zset and intset. The limits are raised for it, and restored.
    """
    stand = _stand(server, url)
    _check(plot)
    output = Output(document == "-")
    curves: list[Curve] = []
    with progress("sizes") as tell:
        for name in names or part_sizes.KINDS:
            curves.append(part_sizes.run(part_sizes.KINDS[name], stand, sizes, entries, tell))
            if not output.as_json:
                output.table(report.sizes_grid(curves[-1]))
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
    help="How many pipelines are sent, as far as five seconds reach.",
)
@click.option(
    "--per-pass",
    type=click.IntRange(min=1),
    default=PER_PASS,
    show_default=True,
    help="How many operations each has.",
)
@_site_options
def lengths_command(
    names: Sequence[str],
    lengths: Sequence[int],
    passes: int,
    per_pass: int,
    server: str | None,
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

    The limit that keeps the key compact is raised for the run, and restored however it ends. A LIST
    has not been one block since Redis 3.2 but a chain of small ones: rotate stays as fast as it is.
    """  # noqa: D301 - click's mark for text that stays as it is
    stand = _stand(server, url)
    _check(plot)
    output = Output(document == "-")
    speeds: dict[str, list[Speed]] = {}
    with stand.site() as site, progress("lengths") as tell:
        software = str(site.software)
        for name in names or packed_lengths.KINDS:
            kind = packed_lengths.KINDS[name]
            speeds[name] = []
            for n, length in enumerate(lengths):
                tell(f"{name}, {length:,} entries", n, len(lengths))
                speeds[name].append(packed_lengths.run(kind, site, length, passes, per_pass))
    if not output.as_json:
        output.table(report.lengths_grid(speeds))
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
    help="How many shards there are, over four servers.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=throughput.REPEATS,
    show_default=True,
    metavar="N",
    help="How many rounds; their median counts.",
)
@click.option(
    "--server",
    metavar="PATH",
    help="The server binary that is started; by default the embedded one.",
)
@document_option
@plot_option
@debug_option
def throughput_command(
    names: Sequence[str],
    sizes: Sequence[int],
    shards: int,
    repeats: int,
    server: str | None,
    document: str | None,
    plot: Path | None,
) -> int:
    """Measure how long commands take, next to a program written by hand.

    Four servers are started here. The limit is a loop over raw sockets with hiredis alone; it is
    1.0, and the others are so many times as long, in turn with it in the same rounds.

    \b
    Work:
      get    GET          hset   HSET
      set    SET          mixed  six kinds of commands

    "by column" is a batch that is given as columns of keys and values, and "coalesced" one of which
    neighbours become one MGET or MSET: what structures send where they own the keys.
    """  # noqa: D301 - click's mark for text that stays as it is
    _check(plot)
    output = Output(document == "-")
    binary = None if server == "embedded" else server
    with progress("works") as tell:
        software, found = throughput.run(names or list(WORKS), sizes, shards, repeats, binary, tell)
    if not output.as_json:
        output.table(report.throughput_grid(found))
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
    """Write the figures where they are wanted."""
    whole = {**figures, "conditions": report.conditions()}
    if document == "-":
        output.document(whole)
    elif document is not None:
        Path(document).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
