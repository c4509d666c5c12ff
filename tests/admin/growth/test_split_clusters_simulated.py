"""The steps of splits into and out of a cluster, and real clients, under many schedules.

See `test_growth_simulated`. Simulated nodes have no ``CLIENT PAUSE``, on which nothing depends but
how long writers wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from simulated_growth import SCHEDULES, Mutation
from test_growth_simulated import HOLD, Capture, SplitData, nothing, simulated_shards, take_fences

from shardkit.admin.growth import gate, journal, start_split
from shardkit.admin.growth.gate import fence_key
from shardkit.admin.growth.shard_move import ShardMover
from shardkit.testing import Client, simulate
from shardkit.testing.fakes.fakeredis_private import SimpleError, writes
from shardkit.testing.simulation.servers import SimulatedServer

NODES = ("node:1", "node:2", "node:3")
CLOSED: dict[str, bytes] = {}  # the setting of each node


class LeftCluster(SplitData):
    """The nodes of a cluster become shards on two servers."""

    shard_map: Any = """components: {data: {entry: {cluster: true, host: node, port: 1}},
                                     other: {entry: {host: old, port: 1}}}"""
    options: dict[str, Any] = {"over": ["old:1", "other:1"]}  # noqa: RUF012 - of the one run

    def setup(self, kit: Any) -> None:
        super().setup(kit)
        CLOSED.clear()

    def move(self, client: Client) -> None:
        client._world.make_cluster(NODES[0])
        super().move(client)

    def start(self, config: Any) -> None:
        start_split(config, "data", hold=HOLD, **self.options)


class EnteredCluster(LeftCluster):
    """Two shards on two servers become the nodes of a cluster."""

    shard_map: Any = SplitData.shard_map
    options: dict[str, Any] = {"to_cluster": NODES[0]}  # noqa: RUF012 - of the one run


def a_split(components: Any, *args: Any) -> journal.Move:
    """Return the split of one of the protocols; the mover finds the nodes."""
    shards, nodes = ["old:1/1", "other:1/1"], [f"{each}/0" for each in NODES]
    names = "old:1, other:1", ", ".join(NODES)
    if components["data"].shards:
        return journal.Move(
            *("data", journal.KEYS, *names, ["data:0", "data:1"], shards, nodes),
            placements=["crc32", ""],
            clusters=["", NODES[0]],
        )
    return journal.Move(
        *("data", journal.KEYS, *reversed(names), ["data"], nodes, shards),
        placements=["", "crc32"],
        clusters=[NODES[0], ""],
    )


def set_if_marked(client: Any, value: bytes, number: str) -> bool:
    """Take the place of a transaction, in which simulated servers have no CONFIG."""
    marked = gate._SETTING, number, fence_key(client), value
    done = client.execute_command("CONFIG", "SET", *marked)
    return bool(done in (b"OK", True))


@contextmanager
def simulated_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have simulated nodes refuse writes, too."""
    with simulated_shards(monkeypatch), monkeypatch.context() as patched:
        patched.setattr("shardkit.admin.growth.move.new_split", a_split)
        patched.setattr(Capture, "expect_setting", nothing, raising=False)
        patched.setattr(gate, "persist_roles", nothing)
        patched.setattr(gate, "moving_slots", lambda client: False)
        patched.setattr(gate, "set_if_marked", set_if_marked)
        execute = SimulatedServer.execute

        def refuse(self: SimulatedServer, socket: Any, args: list[bytes]) -> bool:
            name = args[0].upper()
            if name == b"CLIENT" and args[1].upper() in (b"PAUSE", b"UNPAUSE"):
                socket.answer(b"OK")
                return True
            if self.address in NODES and name == b"CONFIG":
                if args[1].upper() == b"GET":
                    socket.answer([args[2], CLOSED.get(self.address, b"0")])
                elif len(args) < 6 or self.ask(b"GET", args[4]) == args[5]:
                    CLOSED[self.address] = args[3]
                    socket.answer(b"OK")
                else:
                    socket.answer(b"")
                return True
            if CLOSED.get(self.address, b"0") != b"0" and writes(name):
                socket.answer(SimpleError("NOREPLICAS Not enough good replicas to write."))
                return True
            return execute(self, socket, args)

        patched.setattr(SimulatedServer, "execute", refuse)
        yield


def unclosed(*args: Any) -> bool:
    return True


def only_first(
    mover: Any,
    *args: Any,
    proven: bool = False,
    require: Callable[..., None] = ShardMover._require_same,
) -> None:
    """Copy the rest before the nodes are closed, some time before, and not afterwards."""
    if not proven:
        require(mover, *args)
        time.sleep(0.5)  # simulated


def push_open(mover: Any, *args: Any, push: Callable[..., None] = ShardMover._push) -> None:
    """Leave the nodes open, and send readers away from the shards some time afterwards."""
    turn_away = mover._old_gate.turn_away

    def turn_away_later(*args: Any) -> None:
        time.sleep(0.5)  # simulated; some clients read the entries
        turn_away(*args)

    mover._new_gate.admit_readers, mover._old_gate.turn_away = nothing, turn_away_later
    push(mover, *args)


def take_marks(capture: Capture, most: int | None = None) -> dict[tuple[int, bytes], bool]:
    marks = [each for each in capture.changed if each[1].startswith(b"config:fence")]
    return {each: capture.changed.pop(each) for each in marks}


# What is left out, and in which schedules that shows.
MUTATIONS = [
    Mutation("nodes are closed", LeftCluster, gate.ClusterGate, "_close_nodes", unclosed, 57),
    Mutation("late writes are copied", LeftCluster, ShardMover, "_require_same", only_first, 46),
    Mutation("what nodes change is copied again", LeftCluster, Capture, "take", take_marks, 2),
    Mutation("all know that nodes are left", LeftCluster, gate, "wait_until_read", nothing, 508),
    Mutation(
        *("the cluster takes no writes while shards are still read", EnteredCluster),
        *(ShardMover, "_push", push_open, 282),
    ),
    Mutation(
        "what shards change is copied again", EnteredCluster, Capture, "take", take_fences, 19
    ),
]


@pytest.mark.parametrize("protocol", [LeftCluster, EnteredCluster])
def test_steps_with_a_cluster_are_safe(
    monkeypatch: pytest.MonkeyPatch, protocol: type[LeftCluster]
) -> None:
    with simulated_cluster(monkeypatch):
        simulate(protocol(), schedules=SCHEDULES)


@pytest.mark.long(2)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_each_part_of_the_steps_with_a_cluster_is_needed(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    with simulated_cluster(monkeypatch):
        mutation.shows(monkeypatch)
