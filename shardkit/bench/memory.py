"""Measuring the layouts of a case: bytes an entry, loading, and single calls against the plain one.

Every layout gets an empty server. All are loaded and weighed one after the other; then single
calls are timed, the layouts in turn, so that a busy moment is shared. A call's time is given twice:
as the caller sees it, exchange and Python included, and as its server counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, Final

from shardkit.bench.cases import Case, CaseLayout, One
from shardkit.bench.servers import BenchServer, ServerSource
from shardkit.operations.operation import pages

_PAGE: Final = 10_000
_PREPARED: Final = 20_000  # entries that a dictionary is learned from
_SAMPLE: Final = 500  # entries that single calls are about
_ROUNDS: Final = 5

# Is told the case, the layout, how much of it is done, and of how much.
Progress = Callable[[str, str, int, int], object]


@dataclass(frozen=True)
class CallTime:
    """What one call of a kind takes, microseconds.

    Attributes:
        caller: as its caller sees it, the median of some rounds.
        server: of its server's time, the best round.
    """

    caller: float
    server: float

    @property
    def a_second(self) -> float:
        """How many calls one caller makes a second."""
        return 1e6 / self.caller


@dataclass(frozen=True)
class LayoutResult:
    """What was measured of a layout.

    Attributes:
        layout: its name.
        entries: how many were loaded.
        bytes: what they take, all together.
        load_seconds: what loading took.
        get, put: what reading and writing one takes; None where the case has no such call.
        whole_seconds: what reading or aggregating everything takes.
    """

    layout: str
    entries: int
    bytes: int
    load_seconds: float
    get: CallTime | None = None
    put: CallTime | None = None
    whole_seconds: float | None = None

    @property
    def bytes_each(self) -> float:
        """Bytes an entry."""
        return self.bytes / self.entries

    def saving(self, plain: LayoutResult) -> float:
        """Return the share of the plain layout's memory that it saves."""
        return 1 - self.bytes_each / plain.bytes_each


@dataclass(frozen=True)
class CaseResult:
    """What was measured of a case, on one kind of server.

    Attributes:
        case: the case.
        software: the server, its version and allocator.
        layouts: the layouts, the plain one first.
    """

    case: Case
    software: str
    layouts: Sequence[LayoutResult]


class _LoadedLayout:
    """A layout on its server, loaded and weighed."""

    def __init__(
        self, layout: CaseLayout, site: BenchServer, bytes_: int, entries: int, seconds: float
    ) -> None:
        self.layout, self.site = layout, site
        self.bytes, self.entries, self.seconds = bytes_, entries, seconds
        self.calls: dict[str, list[tuple[float, float]]] = {"get": [], "put": []}
        self.whole: float | None = None
        self.handle: Any = None

    def time(self, sample: Sequence[Any]) -> None:
        """Time one round of single calls; the first one is preceded by one that is not counted."""
        warm = self.handle is not None
        if self.handle is None:
            self.handle = self.layout.make(self.site, self.entries)
        for name, one in (("get", self.layout.get), ("put", self.layout.put)):
            if one is None:
                continue
            calls = _each(one, self.handle, sample)
            if not warm:
                calls()
            self.calls[name].append(self.site.timed(calls, len(sample)))

    def time_whole(self) -> None:
        """Time reading everything."""
        if self.layout.whole is None:
            return
        began = time.perf_counter()
        self.layout.whole(self.handle)
        self.whole = time.perf_counter() - began

    def measured(self) -> LayoutResult:
        """Return what was measured."""
        get, put = map(_call, self.calls.values())
        return LayoutResult(
            self.layout.name, self.entries, self.bytes, self.seconds, get, put, self.whole
        )


def _call(rounds: Sequence[tuple[float, float]]) -> CallTime | None:
    if not rounds:
        return None
    caller, server = zip(*rounds, strict=True)
    return CallTime(median(caller), min(server))


def _each(one: One, handle: Any, sample: Sequence[Any]) -> Callable[[], None]:
    def calls() -> None:
        for entry in sample:
            one(handle, entry)

    return calls


def run(
    case: Case,
    stand: ServerSource,
    entries: int | None = None,
    progress: Progress = lambda case, layout, done, total: None,
) -> CaseResult:
    """Measure the layouts of a case.

    Args:
        case: the case.
        stand: where its servers come from.
        entries: how many entries; None for as many as the case has.
        progress: is told how far it is.

    Raises:
        NotEmptyError: the user's own server holds data.
        ShardKitError: something cannot be used.
    """
    count = case.entries if entries is None else entries
    found: list[LayoutResult] = []
    with ExitStack() as stack:
        loaded: list[_LoadedLayout] = []
        for layout in case.layouts:
            own = stack.enter_context(ExitStack())
            site = own.enter_context(stand.site())
            own.enter_context(site.limits(layout.settings))
            one = _load(case, layout, site, max(1, count // layout.share), progress)
            loaded.append(one)
            if stand.shared:  # only one at a time
                _time(case, loaded, count)
                found.append(one.measured())
                loaded.clear()
                own.close()
            software = str(site.software)
        _time(case, loaded, count)
        found += [one.measured() for one in loaded]
    return CaseResult(case, software, found)


def _load(
    case: Case, layout: CaseLayout, site: BenchServer, count: int, progress: Progress
) -> _LoadedLayout:
    handle = layout.make(site, count)
    seconds, done = 0.0, 0
    progress(case.name, layout.name, 0, count)
    if layout.prepare is not None:
        some = _sample(case, count, _PREPARED)
        began = time.perf_counter()
        layout.prepare(handle, some)
        seconds += time.perf_counter() - began
    for page in pages(case.data(count), _PAGE):
        began = time.perf_counter()
        layout.load(handle, page)
        seconds += time.perf_counter() - began
        done += len(page)
        progress(case.name, layout.name, done, count)
    return _LoadedLayout(layout, site, site.weight(layout.probe), done, seconds)


def _time(case: Case, loaded: Sequence[_LoadedLayout], count: int) -> None:
    samples = {each.entries: _sample(case, each.entries, _SAMPLE) for each in loaded}
    for _ in range(_ROUNDS):
        for each in loaded:
            each.time(samples[each.entries])
    for each in loaded:
        each.time_whole()


def _sample(case: Case, count: int, wanted: int) -> list[Any]:
    """Return so many entries from all over the case."""
    every: Iterator[Any] = islice(iter(case.data(count)), 0, None, max(1, count // wanted))
    return list(islice(every, wanted))
