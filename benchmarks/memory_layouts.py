"""Measures the layouts of a case: bytes per entry, loading time, and single calls.

Each layout gets an empty server. They are loaded and their memory is measured one after the other.
Then single calls are timed, with the layouts taking turns, so that other load on the machine
affects them equally. A call has two times: the caller's, which includes the exchange and Python,
and the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, Final

from memory_cases import PREFIX, Case, CaseLayout, One

from shardkit.cli.advise.servers import BenchServer, ServerSource
from shardkit.cli.output import DIM, GOOD, Cell, Column, Styled, Table, number
from shardkit.cli.rows import Field, column_only, json_rows, rounded, table_of
from shardkit.operations.operation import pages

_PAGE: Final = 10_000
_TRAINING: Final = 20_000  # entries that a dictionary is trained on
_SAMPLE: Final = 500  # entries for single calls
_ROUNDS: Final = 5

# Called with the case and layout, how many entries are done, and how many there are.
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class CallTime:
    """The duration of one kind of call, in microseconds."""

    caller: float  # the caller's time, the median of several rounds
    server: float  # the server's time, in the best round

    @property
    def per_second(self) -> float:
        """Calls per second by one caller."""
        return 1e6 / self.caller


@dataclass(frozen=True)
class LayoutResult:
    """The figures of a layout."""

    layout: str
    entries: int
    bytes: int
    load_seconds: float
    # The time to read and to write one entry; None if the case has no such call.
    get: CallTime | None = None
    put: CallTime | None = None
    whole_seconds: float | None = None  # how long reading or aggregating everything takes

    @property
    def bytes_each(self) -> float:
        """Bytes per entry."""
        return self.bytes / self.entries

    def saving(self, plain: LayoutResult) -> float:
        """Return the share of the plain layout's memory that this one saves."""
        return 1 - self.bytes_each / plain.bytes_each


@dataclass(frozen=True)
class CaseResult:
    """The figures of a case on one kind of server."""

    case: Case
    software: str
    layouts: Sequence[LayoutResult]


class _LoadedLayout:
    """A layout that is loaded on its server."""

    def __init__(
        self, layout: CaseLayout, server: BenchServer, bytes_: int, entries: int, seconds: float
    ) -> None:
        self.layout, self.server = layout, server
        self.bytes, self.entries, self.seconds = bytes_, entries, seconds
        self.calls: dict[str, list[tuple[float, float]]] = {"get": [], "put": []}
        self.whole: float | None = None
        self.handle: Any = None

    def time(self, sample: Sequence[Any]) -> None:
        """Time one round of single calls, the first time after a warm-up."""
        warm = self.handle is not None
        if self.handle is None:
            self.handle = self.layout.make(self.server, self.entries)
        for name, one in (("get", self.layout.get), ("put", self.layout.put)):
            if one is None:
                continue
            calls = partial(_each, one, self.handle, sample)
            if not warm:
                calls()
            self.calls[name].append(timed(self.server, calls, len(sample)))

    def time_whole(self) -> None:
        """Time reading everything."""
        if self.layout.whole is None:
            return
        began = time.perf_counter()
        self.layout.whole(self.handle)
        self.whole = time.perf_counter() - began

    def measured(self) -> LayoutResult:
        """Return the figures."""
        get, put = map(_call, self.calls.values())
        return LayoutResult(
            self.layout.name, self.entries, self.bytes, self.seconds, get, put, self.whole
        )


def _call(rounds: Sequence[tuple[float, float]]) -> CallTime | None:
    if not rounds:
        return None
    caller, server = zip(*rounds, strict=True)
    return CallTime(median(caller), min(server))


def _each(one: One, handle: Any, sample: Sequence[Any]) -> None:
    for entry in sample:
        one(handle, entry)


def run(
    case: Case,
    servers: ServerSource,
    entries: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> CaseResult:
    """Measure the layouts of a case, with its own number of entries by default."""
    count = case.entries if entries is None else entries
    found: list[LayoutResult] = []
    with ExitStack() as stack:
        loaded: list[_LoadedLayout] = []
        for layout in case.layouts:
            own = stack.enter_context(ExitStack())
            server = own.enter_context(servers.empty_server())
            own.enter_context(server.limits(layout.settings))
            one = _load(case, layout, server, max(1, count // layout.share), progress)
            loaded.append(one)
            if servers.shared:  # one layout at a time
                _time(case, loaded)
                found.append(one.measured())
                loaded.clear()
                own.close()
            software = server.software
        _time(case, loaded)
        found += [one.measured() for one in loaded]
    return CaseResult(case, software, found)


def _load(
    case: Case, layout: CaseLayout, server: BenchServer, count: int, progress: Progress
) -> _LoadedLayout:
    handle = layout.make(server, count)
    seconds, done = 0.0, 0
    what = f"{case.name}: {layout.name}"
    progress(what, 0, count)
    if layout.prepare is not None:
        some = _sample(case, count, _TRAINING)
        began = time.perf_counter()
        layout.prepare(handle, some)
        seconds += time.perf_counter() - began
    for page in pages(case.data(count), _PAGE):
        began = time.perf_counter()
        layout.load(handle, page)
        seconds += time.perf_counter() - began
        done += len(page)
        progress(what, done, count)
    return _LoadedLayout(layout, server, server.bytes_added(layout.probe), done, seconds)


def _time(case: Case, loaded: Sequence[_LoadedLayout]) -> None:
    samples = {each.entries: _sample(case, each.entries, _SAMPLE) for each in loaded}
    for _ in range(_ROUNDS):
        for each in loaded:
            each.time(samples[each.entries])
    for each in loaded:
        each.time_whole()


def _sample(case: Case, count: int, wanted: int) -> list[Any]:
    """Return some entries, evenly spread over the case."""
    every: Iterator[Any] = islice(iter(case.data(count)), 0, None, max(1, count // wanted))
    return list(islice(every, wanted))


# The commands of the measurement itself.
_OWN_COMMANDS: Final = ("cmdstat_info", "cmdstat_config", "cmdstat_ping", "cmdstat_client")


def timed(server: BenchServer, calls: Callable[[], object], operations: int) -> tuple[float, float]:
    """Return the microseconds per operation: for the caller, and on the server."""
    client = server.client
    client.config_resetstat()
    began = time.perf_counter()
    calls()
    taken = time.perf_counter() - began
    stats: Any = client.info("commandstats")
    served = sum(each["usec"] for name, each in stats.items() if not name.startswith(_OWN_COMMANDS))
    return taken / operations * 1e6, served / operations


class OwnServer(ServerSource):
    """Provides a server of your own, which must be empty, and empties it again."""

    shared = True

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    @contextmanager
    def empty_server(self) -> Iterator[BenchServer]:
        """See `ServerSource.empty_server`."""
        server = BenchServer({"url": self._url})
        try:
            yield server
        finally:
            for pattern in (f"{PREFIX}*", f"{{{PREFIX}*"):
                for page in pages(server.client.scan_iter(match=pattern, count=1000), 1000):
                    server.client.unlink(*page)
            server.close()


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
