"""Two operators start changes of any two kinds on the same data, under many schedules.

The pairs are those of the table of overlaps, so that each new kind is tried with all others.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import combinations_with_replacement
from typing import Any

import pytest
from faces import seed
from redis.client import Pipeline
from simulated_growth import SCHEDULES, config_of, connectors

from shardkit.admin import changes
from shardkit.admin.changes import APART, KINDS, LEASE, Change
from shardkit.errors import GrowthError
from shardkit.testing import Client, Protocol, SimulationFailure, simulate
from shardkit.testing.simulation.protocol import is_outage


class TwoOperators(Protocol):
    """Each works in steps, and looks again before each of them."""

    config_server = True
    shard_map = "components: {data: {entry: {host: old, port: 1}}}"
    faults = ("late", "kill", "freeze", "time")
    most_steps = 20_000

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def setup(self, kit: Any) -> None:
        self.at_work: dict[int, Client] = {}
        self.refused: list[str] = []

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.operate] * 2

    def operate(self, client: Client) -> None:
        config, kind = config_of(client), self.kinds[client.number]
        change = Change(kind=kind, name=kind, databases=["old:1/1"])
        time.sleep(client.choose([0.0005, 0.0, 0.1, 12.0]))  # of simulated time
        try:
            with changes.taking_part(config, change):
                for _ in range(3):
                    time.sleep(client.choose([0.001, 0.1, 6.0]))
                    began = client.time
                    changes.require_open(config, change)
                    if client.time < began + LEASE / 2:  # else it is no recent look
                        self.work(client)
                self.at_work.pop(client.number, None)
        except GrowthError as error:
            self.at_work.pop(client.number, None)
            self.refused.append(str(error))

    def work(self, client: Client) -> None:
        self.at_work[client.number] = client
        kind, other = (self.kinds[n] for n in (client.number, 1 - client.number))
        others = [each for number, each in self.at_work.items() if number != client.number]
        overlap = [each for each in others if not each._process.dead]
        assert other not in APART[kind] or not overlap, f"{kind} beside {other}"

    def at_end(self, kit: Any) -> None:
        for said in self.refused:
            named = any(f" {kind} of {kind} (" in said for kind in self.kinds)
            apart = self.kinds[1] in APART[self.kinds[0]]
            assert (named and apart) or "for longer than" in said, said

    def allows(self, error: Exception) -> bool:
        return is_outage(error)


@pytest.fixture(autouse=True)
def no_connectors() -> Iterator[None]:
    yield
    connectors.clear()


def test_no_two_kinds_overlap_that_must_not() -> None:
    """``CASES=all`` tries all pairs, a plain run some."""
    pairs = [*combinations_with_replacement(KINDS, 2)]
    if os.environ.get("CASES") != "all" and "SCHEDULES" not in os.environ:
        pairs = random.Random(seed()).sample(pairs, 20)
    reports = [simulate(TwoOperators(*kinds), SCHEDULES) for kinds in pairs]
    assert all(report.done for report in reports)


def watch_another(pipe: Any, *names: str, watch: Any = Pipeline.watch) -> Any:
    return watch(pipe, "another")


# What is left out, and a schedule that shows it.
MUTATIONS: dict[str, tuple[Any, str, Any, int]] = {
    "the record is watched": (Pipeline, "watch", watch_another, 0),
    "others are looked for": (Change, "touches", lambda *args: False, 0),
    "it is renewed": (changes, "renewing", lambda *args: nullcontext(), 0),
    "it is looked at again": (changes, "require_open", lambda *args: None, 0),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_part_of_the_record_is_needed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, part, instead, known = MUTATIONS[name]
    monkeypatch.setattr(owner, part, instead)
    with pytest.raises(SimulationFailure, match="split beside split"):
        simulate(TwoOperators("split", "split"), 1000, seed=known, shrink_runs=0)
