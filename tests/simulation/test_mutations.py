"""The simulator can fail: it finds each of the mistakes in mutations.py."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from mutations import MUTATIONS
from protocols import PROTOCOLS

from shardkit.testing import SimulationFailure, simulate

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.make(*mutation.args), pytest.raises(SimulationFailure):
        simulate(PROTOCOLS[mutation.protocol](), 1000, seconds=400, shrink_runs=0)


def test_each_protocol_has_two_mistakes_that_are_found() -> None:
    count = Counter(mutation.protocol for mutation in MUTATIONS.values())
    count["waiting lists"] += count.pop("cancelled consumers")  # what is simulated is one thing
    count["pipelines"] += count.pop("one lost connection")
    assert {name for name in PROTOCOLS if count[name] < 2} <= {
        "cancelled consumers",
        "one lost connection",
    }


def test_the_page_lists_the_mistakes() -> None:
    listed = re.findall(r"^\| [\w -]+ \| (.+?) \| \d", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(mutation.mistake for mutation in MUTATIONS.values())
