"""What is called from time to time for all servers is done on those that answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from faces import PATIENCE, Exchanges, Face, Time, clocked, faced

from shardkit import ShardErrors, ShardMap
from shardkit.coordination import Leg
from shardkit.local import LocalServers

MAP = f"""
defaults: {{socket_timeout: {0.5 * PATIENCE}}}
components:
  c: {{shards: [{{port: 7001}}, {{port: 7002}}, {{port: 7003}}, {{port: 7004}}], placement: slot}}
"""
NAMES = [f"n{number}" for number in range(40)]


@pytest.fixture(params=["blocking", "awaiting"])
def upkept(request: pytest.FixtureRequest) -> Iterator[tuple[Face, LocalServers]]:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        faced(request.param, servers.shard_map) as face,
    ):
        yield face, servers


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_server_that_fails_leaves_the_others_upkept(
    upkept: tuple[Face, LocalServers], fault: str
) -> None:
    (face, servers), now = upkept, Time(1_700_000_000)
    run = face.run
    counters = clocked(face.kit, now=now).counters(component="c", precisions={60: 1})
    bank = face.kit.transfers("bank", component="c", grace=0.01)
    network = face.kit.social(component="c", parts=4, relation_parts=4)
    users = [run(network.create_user(name, name)) for name in NAMES]
    for name in NAMES:
        run(counters.add(name))
        run(bank.issue(Leg(name, {"gold": 1})))
        legs = Leg(name, {"gold": -1}), Leg(f"{name}'s", {"gold": 1})
        Exchanges(face, bank.deferred.transfer(*legs)).stop_after(3)
    for one, other in pairwise(users):
        Exchanges(face, network.deferred.follow(one, other)).stop_after(2)
    now.at += 10**6
    down = servers.servers[0]

    def left() -> list[int]:
        counts = []
        for server in servers.servers[1:]:
            with server.client() as client:
                due = [client.zcard(key) for key in client.scan_iter("counters:*:known")]
                flights = len(list(client.scan_iter("bank:log:*")))
                notes = [client.zcard(key) for key in client.scan_iter("*pending*")]
                counts += [sum(due), flights, sum(notes)]
        return counts

    before = left()
    assert all(sum(before[kind::3]) for kind in range(3))  # where each lies is drawn
    getattr(down, fault)()
    upkeep: list[Any] = [counters.clean, bank.recover, lambda: network.repair(-10)]
    for call in upkeep:
        with pytest.raises(ShardErrors, match=r"1 shard failed \(c:0\)"):
            run(call())
    after = left()
    assert max(after[::3]) == 0
    assert [sum(after[n::3]) < sum(before[n::3]) for n in (1, 2)] == [True, True]
    if fault == "pause":
        down.resume()
