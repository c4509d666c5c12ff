"""The servers' time: read once a minute, never taken from this machine's clock."""

from __future__ import annotations

from datetime import date
from typing import Any

from faces import SESSION, Face, Time, clocked

from shardkit import ShardKit


def test_a_measurement_is_used_for_a_minute(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    watch = Time(1000.0)
    visitors = clocked(face.kit, monotonic=watch).unique_visitors(component="one")
    today = date.fromtimestamp(client.time()[0])
    face.run(visitors.visit(SESSION, today))
    client.config_resetstat()
    asked = []
    for later in (0, 59.5, 1, 59.5, 1):
        watch.at += later
        face.run(visitors.count())
        asked.append(client.info("commandstats").get("cmdstat_time", {"calls": 0})["calls"])
    assert asked == [1, 1, 2, 2, 3]
