"""Benchmarks in tests: made-up cities, which need no loading, and little of everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardkit.cli.bench import data, memory, servers


@pytest.fixture(autouse=True, scope="module")  # and not for the tests of other folders
def _little() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "_known_places", lambda: None)
        patch.setattr(servers, "_STEP", 0.005)
        patch.setattr(memory, "_SAMPLE", 20)
        patch.setattr(memory, "_ROUNDS", 1)
        yield
