"""Clients in processes of their own, and what they notice of what goes on beside them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Any

import shardkit

KEYS = 1000
Span = tuple[float, float]
"""From when to when, by `time.monotonic`."""
_VALUE = b"v" * 100


@dataclass(frozen=True)
class Window:
    """What a client did in a stretch of time.

    Attributes:
        rate: calls a second.
        p99: of their times, in milliseconds.
        longest: of them.
    """

    rate: float
    p99: float
    longest: float


class Neighbour:
    """A process that reads and writes in turn.

    Args:
        url: the config server's.
        component: what it works on.
        rate: calls a second; 0 for as many as it can.
    """

    def __init__(self, url: str, component: str, rate: float) -> None:
        context = get_context("fork")
        self._stop = context.Event()
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(url, component, rate, self._stop, sender)
        )
        self._process.start()
        self._receiver.recv()  # it has begun
        self._calls: Sequence[float] = ()

    def stop(self) -> None:
        """Have it end, and take what it has noted."""
        self._stop.set()
        self._calls = array("d", self._receiver.recv_bytes())
        self._process.join()

    def window(self, spans: Sequence[Span]) -> Window:
        """What it did in some stretches of time; after `stop`."""
        began, took = self._calls[::2], self._calls[1::2]
        times = sorted(
            t
            for b, t in zip(began, took, strict=True)
            if any(begin <= b < end for begin, end in spans)
        )
        seconds = sum(end - begin for begin, end in spans)
        return Window(len(times) / seconds, 1000 * times[int(len(times) * 0.99)], 1000 * times[-1])


@contextmanager
def neighbours(url: str, components: Sequence[str], rate: float) -> Iterator[list[Neighbour]]:
    """Have a process work on each component inside."""
    found = [Neighbour(url, component, rate) for component in components]
    try:
        yield found
    finally:
        for each in found:
            each.stop()


def _work(url: str, component: str, rate: float, stop: Event, sender: Any) -> None:
    calls = array("d")
    with shardkit.connect(url) as kit:
        router = kit.key_sharded(component)
        for n in range(KEYS):
            router[f"n{n}"].set(f"n{n}", _VALUE)
        sender.send(None)
        at, n = time.monotonic(), 0
        while not stop.is_set():
            n += 1
            began = time.monotonic()
            if rate:
                at += 1 / rate
                if at > began:
                    time.sleep(at - began)
                    began = time.monotonic()
                else:  # a call before took so long that this one is late
                    began = at
            key = f"n{n % KEYS}"
            if n % 2:
                router[key].set(key, _VALUE)
            else:
                router[key].get(key)
            calls.extend((began, time.monotonic() - began))
    sender.send_bytes(calls.tobytes())
