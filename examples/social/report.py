"""What the social demo found: tables for people, one JSON document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any, Final

from examples.social.acting import PAGE, Activity
from examples.social.measuring import Agreement, MemoryWeights, ServerState
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Output, Table, number
from shardkit.errors import counted

_MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BuiltNetwork:
    """What was built before people did something.

    Attributes:
        users: how many users there are.
        follows: how many relations.
        most: how many follow the most popular user.
        median: how many follow the user in the middle.
        posts: how many statuses.
        seconds: how long it took.
    """

    users: int
    follows: int
    most: int
    median: int
    posts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found.

    Attributes:
        built: the network as it was at first.
        acted: what people did.
        before: the servers when they began.
        after: the servers when everything was done.
        weights: what users and timelines weigh; None after Ctrl-C.
        agreement: whether counters agree; None after Ctrl-C.
    """

    built: BuiltNetwork
    acted: Activity
    before: Sequence[ServerState]
    after: Sequence[ServerState]
    weights: MemoryWeights | None
    agreement: Agreement | None

    @property
    def seconds(self) -> float:
        """From the first post to the last entry in a timeline."""
        return self.acted.seconds + self.acted.drained

    @property
    def latencies(self) -> dict[str, float]:
        """How many milliseconds a page took: so long at most of 50, 95 and 99 in a hundred."""
        taken = self.acted.pages
        if len(taken) < 2:
            return dict.fromkeys(("p50", "p95", "p99"), round(1000 * sum(taken), 3))
        cuts = quantiles(taken, n=100, method="inclusive")
        return {f"p{n}": round(1000 * cuts[n - 1], 3) for n in (50, 95, 99)}

    def rate(self, count: int) -> float:
        """How many a second that was."""
        return count / self.seconds if self.seconds else 0.0


# ---- for people


def show(output: Output, report: DemoReport) -> None:
    """Write the tables."""
    built, acted = report.built, report.acted
    output.line(
        f"built {counted(built.users, 'user')}, {counted(built.follows, 'follow')} and "
        f"{counted(built.posts, 'post')} in {built.seconds:.1f} s; the most popular user has "
        f"{counted(built.most, 'follower')}, the one in the middle {built.median:,}",
        GOOD,
    )
    so_far = " until it was interrupted" if acted.interrupted else ""
    output.line(
        f"then {counted(acted.actions, 'action')} in {acted.seconds:.1f} s{so_far}; "
        f"the last timeline was written {acted.drained:.2f} s later",
        WARN if acted.interrupted else GOOD,
    )
    for grid in (_speeds(report), _latencies(report), _servers(report)):
        output.line()
        output.table(grid)
    if report.weights is not None:
        output.line()
        output.table(_weights(report.weights))
        output.line(f"MEMORY USAGE of {counted(report.weights.users, 'user')}", DIM)
    if report.agreement is not None:
        output.line()
        output.line(_agreed(report.agreement), BAD if report.agreement.mended else GOOD)


def _speeds(report: DemoReport) -> Table:
    acted = report.acted
    grid = Table.of("done", number("all"), number("a second"))
    for name, count in (
        ("pages of home timelines", len(acted.pages)),
        ("posts", acted.posts),
        ("timelines written", acted.writes),
        ("posts that readers fetch", acted.fetched),
        ("follows", acted.follows),
        ("unfollows", acted.unfollows),
        ("tasks of the worker", acted.tasks),
    ):
        grid.row(name, count, f"{report.rate(count):,.0f}")
    return grid


def _latencies(report: DemoReport) -> Table:
    grid = Table.of(f"a page of {PAGE}", number("ms"))
    for name, taken in report.latencies.items():
        grid.row(name, taken)
    return grid


def _servers(report: DemoReport) -> Table:
    columns = "commands", "share", "processor s", "keys", "MB"
    grid = Table.of("server", "has", *map(number, columns))
    spent = [after.commands - was.commands for was, after in _pairs(report)]
    for count, (was, after) in zip(spent, _pairs(report), strict=True):
        share = f"{100 * count / max(1, sum(spent)):.0f}%"
        cpu, size = after.cpu - was.cpu, f"{after.memory / _MB:.1f}"
        grid.row(after.address, after.name, count, share, cpu, after.keys, size)
    return grid


def _pairs(report: DemoReport) -> list[tuple[ServerState, ServerState]]:
    return list(zip(report.before, report.after, strict=True))


def _weights(weights: MemoryWeights) -> Table:
    grid = Table.of("memory", number("bytes"), number("looked at"))
    grid.row("a user", f"{weights.user:,.0f}", weights.users)
    grid.row("a follow, both halves", f"{weights.follow:,.0f}", weights.follows)
    grid.row("an entry of a home timeline", f"{weights.entry:,.1f}", weights.entries)
    grid.row("a status", f"{weights.status:,.0f}", weights.statuses)
    return grid


def _agreed(agreement: Agreement) -> str:
    unfinished = f"{counted(agreement.repaired, 'thing')} left unfinished"
    if agreement.mended:
        return (
            f"{unfinished}; reconciled {agreement.users}, of whom {agreement.mended} did not agree"
        )
    users = counted(agreement.users, "user")
    return f"{unfinished}; counters and timelines of {users} reconciled: all agree"


# ---- for programs


def document(report: DemoReport) -> dict[str, Any]:
    """Return everything as one JSON document."""
    acted = report.acted
    return {
        "built": asdict(report.built),
        "seconds": round(acted.seconds, 3),
        "drained_seconds": round(acted.drained, 3),
        "interrupted": acted.interrupted,
        "pages": len(acted.pages),
        "statuses": acted.statuses,
        "posts": acted.posts,
        "timelines_written": acted.writes,
        "fetched_posts": acted.fetched,
        "follows": acted.follows,
        "unfollows": acted.unfollows,
        "tasks": acted.tasks,
        "a_second": {
            "pages": round(report.rate(len(acted.pages)), 1),
            "posts": round(report.rate(acted.posts), 1),
            "timelines_written": round(report.rate(acted.writes), 1),
        },
        "page_milliseconds": report.latencies,
        "servers": [
            {
                "address": after.address,
                "has": after.name,
                "commands": after.commands - was.commands,
                "processor_seconds": round(after.cpu - was.cpu, 3),
                "keys": after.keys,
                "bytes": after.memory,
            }
            for was, after in _pairs(report)
        ],
        "memory": None if report.weights is None else asdict(report.weights),
        "agreement": None if report.agreement is None else asdict(report.agreement),
    }
