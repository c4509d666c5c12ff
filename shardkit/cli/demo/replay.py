"""The demo's servers and its main loop, which counts lines, with their speed, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from types import FrameType
from typing import Any, Final, TypeAlias

from shardkit.cli.demo.access_log import AccessLog, AccessLogParser, LogBatch, Visitor
from shardkit.cli.demo.counting import VisitCounter
from shardkit.cli.output import DIM, Output
from shardkit.config.store import push
from shardkit.errors import counted
from shardkit.local import LocalServers

BATCH_SIZE: Final = 10_000
EXAMPLES: Final = 5


@dataclass(slots=True)
class ReplayResult:
    """The result of reading a log."""

    lines: int = 0
    malformed: int = 0
    # The first malformed lines, by line number.
    examples: dict[int, bytes] = field(default_factory=dict)
    # A date and a visitor of that day; None if there is none.
    visitor: tuple[date, Visitor] | None = None
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def speed(self) -> float:
        """Lines per second."""
        return self.lines / self.seconds if self.seconds else 0.0

    def add(self, batch: LogBatch) -> None:
        """Add a counted batch."""
        for n, line in batch.malformed[: EXAMPLES - len(self.examples)]:
            self.examples[self.lines + n + 1] = line
        if self.visitor is None:
            self.visitor = next(((day, visits[0]) for day, visits in batch.visits.items()), None)
        self.malformed += len(batch.malformed)
        self.lines += batch.lines


Progress: TypeAlias = Callable[[ReplayResult], object]


def replay(
    log: AccessLog,
    counting: VisitCounter,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> ReplayResult:
    """Count all lines of a log, until it ends or Ctrl-C is pressed."""
    replayed = ReplayResult()
    parser = AccessLogParser()
    began = time.perf_counter()
    with _Interrupts() as interrupts:
        try:
            for lines in log.batches(batch_size):
                batch = parser.parse(lines)
                with interrupts.delayed():
                    counting.count(batch)
                    replayed.add(batch)
                    replayed.seconds = time.perf_counter() - began
                if progress is not None:
                    progress(replayed)
        except KeyboardInterrupt:
            replayed.interrupted = True
    return replayed


class _Interrupts:
    """Delays Ctrl-C, but not a second one, so that no batch is counted in part."""

    def __init__(self) -> None:
        self._delaying = False
        self._interrupted = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Delay the first Ctrl-C until the end of the block."""
        self._delaying = True
        try:
            yield
        finally:
            self._delaying = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted or not self._delaying:
            raise KeyboardInterrupt
        self._interrupted = True


@contextmanager
def started(output: Output, servers: LocalServers) -> Iterator[str]:
    """Start servers, push their map to the config server, and yield the config server's URL."""
    total = counted(len(servers.servers), "server")
    try:
        with output.busy(f"starting {total}"):
            servers.start()
        config_server = servers.config_server
        assert config_server is not None
        with config_server.client() as client:
            push(client, servers.shard_map)
        url = f"redis://{config_server.address}/0"
        output.note(f"started {total} and pushed their map to {url}", DIM)
        yield url
    finally:
        servers.stop()
