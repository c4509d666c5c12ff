"""``shardkit demo``: replay a web access log, and show what was counted and where."""

from __future__ import annotations

import io
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import click

import shardkit
from shardkit.cli import options as given
from shardkit.cli.demo import sample
from shardkit.cli.demo.access_log import AccessLog
from shardkit.cli.demo.cached import CACHE_MAP, SLICE, run_cached
from shardkit.cli.demo.counting import (
    FIRST_DAY,
    VISITORS,
    VISITORS_COMPONENT,
    VisitCounter,
    loads,
    measure_memory,
)
from shardkit.cli.demo.logs import KINDS, LOGS_MAP, count_logs, top_places
from shardkit.cli.demo.replay import BATCH_SIZE, ReplayResult, replay, started
from shardkit.cli.demo.report import DemoReport, VisitorExample, document, show
from shardkit.cli.options import INTERRUPTED, command, opened
from shardkit.cli.output import BAD, DIM, GOOD, Output, Styled, Table, number, wordy
from shardkit.cli.progress import progress
from shardkit.config.shard_map import ShardMap
from shardkit.errors import counted
from shardkit.kit.kit import ENVIRONMENT, ShardKit
from shardkit.local import LocalServers


@command(
    "shardkit demo",
    "shardkit demo --log access.log.gz",
    "zcat access.log.*.gz | shardkit demo --log - --first-day 1000000 --json",
    "shardkit demo --keep",
    "shardkit demo logs /var/log/access --kill 3",
    "shardkit demo cached",
    kind=click.Group,
    invoke_without_command=True,
)
@click.pass_context
def demo(
    context: click.Context,
    output: Output,
    path: str | None = given.option(
        "FILE",
        "An access log in Common or Combined Log Format, plain or gzip; - reads it from stdin. "
        "Without it a sample is replayed.",
        name="--log",
    ),
    where: str | None = given.option(
        "MAP|URL",
        "Use the servers of this shard map or config server, not embedded ones.",
        name="--config",
        short="-c",
    ),
    fresh: bool = given.flag("First remove the keys of earlier runs from those servers."),
    keep: bool = given.flag("Keep the embedded servers running until Ctrl-C."),
    batch_size: int = given.number(
        BATCH_SIZE, "How many lines to count at a time.", most=1_000_000, unit="LINES"
    ),
    first_day: int = given.number(
        FIRST_DAY,
        "How many visitors to plan for on a day if there was none before.",
        0,
        most=1_000_000_000,
        unit="VISITORS",
    ),
) -> int:
    """Count the hits and unique visitors per day of a web access log, over 16 shards.

    Starts a config server and four data servers on free ports, pushes the laptop's shard map, and
    replays the log through decorated functions and the unique-visitors structure. Then shows the
    counts, their distribution over the shards, their memory, and where one visitor's id is stored.
    """
    if context.invoked_subcommand is not None:
        return 0
    if keep and where:
        raise click.UsageError("--keep needs embedded servers, and cannot be used with --config")
    with _log(path) as log, _servers(output, where) as (kit, url):
        counting = VisitCounter(kit, first_day)
        if fresh:
            counting.forget()
        with progress("bytes") as tell:

            def report_lines(so_far: ReplayResult) -> None:
                read = 0 if log.size is None else log.position
                tell(f"{so_far.lines:,} lines, {so_far.speed:,.0f}/s", read, log.size)

            replayed = replay(log, counting, batch_size, report_lines)
        report = _report(output, log, counting, replayed)
        if not output.wrote_json(document(report)):
            show(output, report)
        if keep and not replayed.interrupted:
            _keep(output, url, report)
    if replayed.interrupted:
        return INTERRUPTED
    return 1 if report.damage else 0


@command(
    "shardkit demo logs /var/log/access",
    "shardkit demo logs DIR --kill 5 --json",
    short_help="Count the logs of a directory by place, with processes that are killed.",
    group=demo,
)
def logs(
    output: Output,
    folder: str = given.argument("DIR", type=click.Path(exists=True, file_okay=False)),
    workers: int = given.number(3, "How many processes count.", most=64),
    kills: int = given.number(
        0,
        "How many of them to kill while they count; each is restarted.",
        least=0,
        most=1000,
        name="--kill",
    ),
) -> int:
    """Count the web access logs of DIR by day, country, region and city.

    Starts five servers on free ports, publishes the files in chunks over their shards, and has
    processes count them, each file once, no matter which one is killed. Then counts the same files
    in one process. Exits with 1 if the counts differ. The places of addresses are made up.
    """
    with _running(output, LOGS_MAP, "counting") as (url, _), shardkit.connect(url) as kit:
        result = count_logs(kit, url, Path(folder), workers, kills)
    same = result.days == result.expected
    if output.as_json:
        countries = {
            day: {member: n for (kind, member), n in counts.items() if kind == "country"}
            for day, counts in result.days.items()
        }
        counts = {"files": result.files, "lines": result.lines, "kills": result.kills, "same": same}
        top = {kind: dict(top_places(result.days, kind)) for kind in KINDS}
        output.document(**counts, seconds=result.seconds, top=top, countries=countries)
        return 0 if same else 1
    output.line(
        f"{counted(result.files, 'file')}, {counted(result.lines, 'line')}, {result.seconds:.1f} s "
        f"with {workers} processes at a time, {result.kills} killed"
    )
    table = Table.of(wordy("country"), number("lines"))
    for country, lines in top_places(result.days, "country"):
        table.row(country, lines)
    output.table(table)
    output.line("one process counts the same" if same else "ONE PROCESS COUNTS OTHERWISE")
    return 0 if same else 1


@command(
    "shardkit demo cached",
    "shardkit demo cached --seconds 20 --json",
    short_help="Call a cached function under load, while half of its shards move.",
    group=demo,
)
def cached(
    output: Output,
    seconds: int = given.number(6, "How long there is load, beside the move.", most=3600),
) -> int:
    """Call a cached function from eight threads while prices change and half of its shards move.

    Starts three servers on free ports. Each call is checked: it must not return a price from before
    an invalidation that had ended. Exits with 1 if one does, or if a call fails.
    """
    with _running(output, CACHE_MAP, "calling") as (url, servers):
        run = run_cached(url, servers, seconds)
    good = not run.old and not run.errors
    if output.wrote_json(**asdict(run), good=good):
        return 0 if good else 1
    longest = max((longest for _, longest in run.slices), default=0.0)
    _show_figures(
        output,
        {"calls": run.calls, "computed": run.computed, "prices changed": run.changed},
        {"old prices returned": run.old, "calls failed": sum(run.errors.values())},
        {"longest call, ms": round(1000 * longest)},
    )
    plot = Table.of(wordy("second"), number("calls"), number("longest, ms"), wordy(""))
    most = max((calls for calls, _ in run.slices), default=1)
    for n, (calls, took) in enumerate(run.slices):
        moving = run.moved[0] < (n + 1) * SLICE and n * SLICE < run.moved[1]
        bar = "█" * max(1, round(30 * calls / most)) + (" shards move" if moving else "")
        plot.row(f"{n * SLICE:.1f}", f"{calls:,}", f"{1000 * took:,.0f}", bar)
    output.table(plot)
    for text, count in run.errors.items():
        output.bad(f"{counted(count, 'call')}: {text}")
    return 0 if good else 1


@command(
    "shardkit demo celery",
    "shardkit demo celery --tasks 10000 --json",
    short_help="Run tasks of Celery while their queues move and a worker is killed.",
    group=demo,
)
def celery(
    output: Output,
    tasks: int = given.number(2000, "How many tasks are sent.", 100, most=1_000_000),
) -> int:
    """Run tasks of Celery on four queues, which move to another server; kill a worker with SIGKILL.

    Starts three servers on free ports, and two workers. Needs the extra ``celery``. Exits with 1 if
    a task is lost. Tasks in the hands of the killed worker may run twice.
    """
    from shardkit.cli.demo.celery import TASKS_MAP, run_tasks

    with _running(output, TASKS_MAP, "running tasks") as (url, servers):
        run = run_tasks(url, servers, tasks)
    if output.wrote_json(run):
        return 1 if run.lost else 0
    sent = {"tasks sent": run.sent, "ran": run.ran}
    _show_figures(output, sent, {"lost": run.lost}, {"ran more than once": run.again})
    plot = Table.of(number("second"), number("tasks"), wordy(""))
    counts = [now - before for before, now in pairwise((0, *run.slices))]
    for n, count in enumerate(counts):
        bar = "█" * round(30 * count / max(1, *counts))
        if run.moved[0] < n + 1 and n < run.moved[1]:
            bar += " queues move"
        plot.row(f"{n}", f"{count:,}", bar + " a worker is killed" * (int(run.killed) == n))
    output.table(plot)
    return 1 if run.lost else 0


def _show_figures(
    output: Output, before: dict[str, int], wrong: dict[str, int], after: dict[str, int]
) -> None:
    table = Table.of(wordy("what"), number("how many"))
    for name, count in (before | wrong | after).items():
        style = (BAD if count else GOOD) if name in wrong else ""
        table.row(name, Styled(f"{count:,}", style))
    output.table(table)
    output.line()


@contextmanager
def _running(output: Output, text: str, doing: str) -> Iterator[tuple[str, LocalServers]]:
    """Start the servers of a map; give the config server's URL, and them."""
    servers = LocalServers(ShardMap.parse(text, "the map of the demo"), ports="free")
    with started(output, servers) as url, output.busy(doing):
        yield url, servers


def laptop_map() -> ShardMap:
    """Return the shard map that the embedded servers are started from."""
    text = files("shardkit.cli.demo").joinpath("local.yaml").read_text("utf-8")
    return ShardMap.parse(text, "the laptop map")


def _log(path: str | None) -> AccessLog:
    if path is None:
        return AccessLog(io.BytesIO(sample.log()), "sample")
    if path == "-":
        return AccessLog(sys.stdin.buffer, "stdin")
    return AccessLog.open(path)


@contextmanager
def _servers(output: Output, where: str | None) -> Iterator[tuple[ShardKit, str]]:
    """Open the named topology, or start the laptop map's servers; give the URL of those too."""
    if where is not None:
        with opened(where) as topology:
            yield topology.kit, ""
        return
    with (
        started(output, LocalServers(laptop_map(), ports="free")) as url,
        shardkit.connect(url) as kit,
    ):
        yield kit, url


def _report(
    output: Output, log: AccessLog, counting: VisitCounter, replayed: ReplayResult
) -> DemoReport:
    kit = counting.kit
    component = kit.component(VISITORS_COMPONENT)
    days = counting.days()
    example = None
    if replayed.visitor is not None:
        day, visitor = replayed.visitor
        place, is_counted = counting.locate(visitor, day)
        figures = next(figures for figures in days if figures.day == day)
        example = VisitorExample(
            visitor, figures, place, is_counted, component.entry_of(place.shard).address
        )
    shares, memory = [], None
    if not replayed.interrupted:
        with output.busy("querying the shards"):
            shares = list(loads(kit, VISITORS_COMPONENT, VISITORS))
        with output.busy("measuring the visitors"):
            memory = measure_memory(counting, days)
    return DemoReport(
        log.name,
        log.damage,
        replayed,
        component,
        counting.visitors.part_size,
        days,
        shares,
        memory,
        example,
    )


def _keep(output: Output, url: str, report: DemoReport) -> None:
    if not output.as_json:
        output.line()
        output.good(f"export {ENVIRONMENT}={shlex.quote(url)}")
        output.dim("shardkit status")
        if report.example is not None:
            example = report.example
            name = f"{VISITORS}:{example.figures.day}"
            output.dim(f"shardkit locate unique --in {name} {example.place.id}")
    output.note("Ctrl-C stops the servers.", DIM)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        output.note("stopped the servers", DIM)
