"""The simulator can fail: it finds each of the mistakes in mutations.py."""

from __future__ import annotations

from collections import Counter

import pytest
from mutations import CHANGES, MUTATIONS, Mutation
from protocols import PROTOCOLS

from shardkit.testing import SimulationFailure, simulate


def search(mutation: Mutation) -> None:
    protocol = PROTOCOLS[mutation.protocol]
    simulate(protocol(), 1, seed=mutation.schedule - 1, shrink_runs=0)
    # The page is of an earlier state of the protocol.
    simulate(protocol(), 1000, seconds=400, shrink_runs=0)


@pytest.mark.long(12)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.protocol}-{each.name}")
def test_a_mistake_is_found(mutation: Mutation) -> None:
    with mutation.made(), pytest.raises(SimulationFailure, match="fails under seed"):
        search(mutation)


def test_each_mistake_changes_code_that_is_there() -> None:
    assert {mutation.name for mutation in MUTATIONS} == CHANGES.keys()
    for mutation in MUTATIONS:
        with mutation.made():
            pass


def test_each_protocol_has_two_mistakes_that_are_found() -> None:
    count = Counter(mutation.protocol for mutation in MUTATIONS)
    count["waiting lists"] += count.pop("cancelled consumers")  # what is simulated is one thing
    count["pipelines"] += count.pop("one lost connection")
    assert {name for name in PROTOCOLS if count[name] < 2} <= {
        "cancelled consumers",
        "one lost connection",
    }
