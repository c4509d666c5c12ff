"""Simulated replicas: who has what when servers crash and come back, and whom Sentinels choose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardkit.simulation.choices import Choices
from shardkit.simulation.replication import LAGS, Replication, replicate
from shardkit.simulation.sentinels import SimulatedSentinels
from shardkit.simulation.world import World


def replicas_in(world: World, count: int) -> list[Replication]:
    """A master, and servers that have all that it has."""
    servers = replicate(world, *(f"10.0.0.{n}:6379" for n in range(count)))
    for each in servers[1:]:
        each.fill(servers[0])
    return servers


def write(master: Replication, value: bytes) -> None:
    """Set a key, as a client does."""
    replies: list[bytes] = []
    master.server.execute(master.server.connect(0, replies.append), [b"SET", b"k", value])
    assert replies == [b"+OK\r\n"]


def held(server: Replication) -> bytes | None:
    """What a server has of the key."""
    found = server.server.fake.dbs[0].get(b"k")
    return None if found is None else found.value


def pass_time(world: World, seconds: float) -> None:
    """Have happen what is due by then."""
    world.seconds += seconds
    world._fire_timers()


def test_a_replica_that_is_down_gets_nothing_until_it_is_up_again() -> None:
    world = World(Choices(1, {}))
    master, replica = replicas_in(world, 2)
    write(master, b"1")
    replica.crash(10)
    pass_time(world, max(LAGS))
    assert held(replica) is None
    pass_time(world, 10)
    pass_time(world, max(LAGS))
    assert held(replica) == b"1"
    assert replica.is_told()


def test_a_replica_is_told_again_when_its_master_is_up_again() -> None:
    world = World(Choices(1, {}))
    master, replica = replicas_in(world, 2)
    write(master, b"1")
    master.crash(10)
    pass_time(world, max(LAGS))
    assert held(replica) is None, "what had not been sent is not sent by a server that is down"
    pass_time(world, 10)
    pass_time(world, max(LAGS))
    assert held(replica) == b"1"
    assert replica.is_told()


def test_sentinels_choose_no_replica_that_is_down() -> None:
    world = World(Choices(1, {}))
    master, down, up = servers = replicas_in(world, 3)
    sentinels = SimulatedSentinels(world, ("10.0.1.0:26379",), servers)
    down.server.up = False
    sentinels.fail_over()
    assert sentinels.master is up
    assert (up.master, master.master) == (None, None), "the old one is told later"


def test_who_connects_waits_while_cut_off_and_is_refused_by_a_server_that_is_down() -> None:
    world = World(Choices(1, {}))
    server = world.server("10.0.0.1:6379")
    process: Any = SimpleNamespace(immediate=False, cut_off={server.address: 7.0}, deaf_to={})
    assert world.connect_delay(process, server.address) == 7.0 - world.seconds
    world.seconds = 7.0
    assert world.connect_delay(process, server.address) == 0.0
    server.up = False
    with pytest.raises(ConnectionRefusedError, match="refused"):
        world.connect_delay(process, server.address)
    process.immediate = True  # an observer is never cut off
    assert world.connect_delay(process, server.address) == 0.0
