"""Every protocol of shardkit under many schedules.

``SIMULATION_SCHEDULES=1000`` for as many of each; by default fewer, the same ones each time.
"""

from __future__ import annotations

import os

import pytest
from protocols import PROTOCOLS

from shardkit.testing import simulate

SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "5"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_hold_under_every_schedule(name: str) -> None:
    protocol = PROTOCOLS[name]()
    report = simulate(protocol, SCHEDULES)
    assert report.schedules == SCHEDULES
    assert report.faults >= SCHEDULES / 5 or not protocol.faults
