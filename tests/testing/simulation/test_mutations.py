"""The simulator can fail: it finds each of the mistakes in mutations.py."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from mutations import MUTATIONS, Mutation
from protocols import PROTOCOLS

from shardkit.testing import SimulationFailure, simulate

PAGE = Path(__file__).parents[3] / "docs" / "simulated-protocols.md"
# By protocol and mistake: the how manyth schedule finds it.
LISTED = {
    (protocol, mistake): int(number)
    for protocol, mistake, number in re.findall(
        r"^\| ([\w -]+) \| (.+?) \| (\d+)", PAGE.read_text("utf-8"), re.MULTILINE
    )
}


def search(mutation: Mutation) -> None:
    protocol = PROTOCOLS[mutation.protocol]
    listed = LISTED[mutation.protocol, mutation.mistake]
    simulate(protocol(), 1, seed=listed - 1, shrink_runs=0)
    # The page is of an earlier state of the protocol.
    simulate(protocol(), 1000, seconds=400, shrink_runs=0)


@pytest.mark.long(24)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.make(*mutation.args), pytest.raises(SimulationFailure, match="fails under seed"):
        search(mutation)


def changes_code(mutation: Mutation) -> bool:
    try:
        with mutation.make(*mutation.args):
            return True
    except AssertionError:
        return False


def test_each_mistake_changes_code_that_is_there() -> None:
    assert [name for name, mutation in MUTATIONS.items() if not changes_code(mutation)] == []


def test_each_protocol_has_two_mistakes_that_are_found() -> None:
    count = Counter(mutation.protocol for mutation in MUTATIONS.values())
    count["waiting lists"] += count.pop("cancelled consumers")  # what is simulated is one thing
    count["pipelines"] += count.pop("one lost connection")
    assert {name for name in PROTOCOLS if count[name] < 2} <= {
        "cancelled consumers",
        "one lost connection",
    }


def test_the_page_lists_the_mistakes() -> None:
    assert sorted(LISTED) == sorted((each.protocol, each.mistake) for each in MUTATIONS.values())
