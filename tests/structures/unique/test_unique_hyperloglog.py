"""HyperLogLogs merged here give the same counts as servers."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import Any

import pytest
from faces import Face, sessions

from shardkit import ShardKit
from shardkit.errors import DamagedDataError
from shardkit.local import LocalServer
from shardkit.structures.unique.precision import REGISTERS, estimate, registers

FULL = b"HYLL" + bytes(12) + b"\xff" * (REGISTERS * 6 // 8)  # each says 63
DAY = date(2015, 5, 17)


def test_an_estimate_is_the_servers(any_server: LocalServer) -> None:
    """Sparse and dense, from none to 200,000."""
    with any_server.client() as client:
        client.delete("hll")
        client.pfadd("hll")
        total = 0
        for more in (0, 1, 1, 10, 100, 1000, 3000, 20_000, 175_000):
            if more:
                client.pfadd("hll", *range(total, total + more))
            total += more
            found = registers(client.get("hll"))
            assert len(found) == REGISTERS
            assert estimate(found) == client.pfcount("hll")


def test_an_estimate_is_the_servers_where_registers_are_full(any_server: LocalServer) -> None:
    dice = Random(7)
    with any_server.client() as client:
        for full in (1, 100, REGISTERS // 2):  # beyond, servers' numbers overflow
            values = [51] * full + [dice.randrange(30, 51) for _ in range(REGISTERS - full)]
            packed = sum(value << 6 * n for n, value in enumerate(values))
            body = packed.to_bytes(REGISTERS * 6 // 8, "little")
            client.set("full", b"HYLL" + bytes(11) + b"\x80" + body)  # its count is to be made
            assert registers(client.get("full")) == bytes(values)
            assert estimate(bytes(values)) == client.pfcount("full")


def test_registers_that_are_all_full_are_counted() -> None:
    assert estimate(bytes(REGISTERS)) == 0
    assert estimate(bytes([50]) * REGISTERS) > 10**18
    assert estimate(bytes([51]) * REGISTERS) == 2**64


@pytest.mark.parametrize(
    "stored", [b"", b"5", b"HYLL", b"HYLL" + bytes(12), b"HYLL\1" + bytes(99), FULL]
)
def test_a_value_that_is_not_a_hyperloglog_is_refused(stored: bytes) -> None:
    with pytest.raises(DamagedDataError, match=r"unique:1 is damaged: .*, where a HyperLogLog"):
        registers(stored, "one", "unique:1")


@pytest.mark.parametrize("component", ["one", "many", "both"])
def test_days_are_merged_wherever_they_live(face: Face, kit: ShardKit, component: str) -> None:
    visitors: Any = face.kit.unique_visitors(component=component, precision="hyperloglog")
    days = [DAY + timedelta(days=n) for n in range(12)]
    known = sessions(3000)
    for n, day in enumerate(days):
        face.run(visitors.visit_many(known[n * 200 : n * 200 + 800], day))
    found = face.run(visitors.count_union([*days, DAY, DAY - timedelta(days=1)]))
    assert found == pytest.approx(3000, rel=0.03)
    alone: Any = kit.unique_visitors("alone", component="one", precision="hyperloglog")
    alone.visit_many(known, DAY)
    assert found == alone.count(DAY)
    assert face.run(visitors.count_union([DAY])) == face.run(visitors.count(DAY))
