"""Movers, clients and servers that are killed or stopped at any moment, under load.

``make kills`` has fifty movers of each kind killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from arranged import client_of
from faces import eventually
from growth_helpers import (
    FAST,
    PATIENT,
    Fleet,
    certified,
    filled,
    losing_nothing,
    small,
    still_there,
    strays,
)
from moments import before

from shardkit.admin.growth import (
    moves,
    resume_move,
    start_move,
    verify_move,
)
from shardkit.errors import GrowthError
from shardkit.local import LocalCluster, LocalServer

KILLS = int(os.environ.get("KILLS", "3"))


def other(fleet: Fleet, shard: int) -> str:
    """The one of two servers that a shard is not on."""
    return fleet.name(1) if fleet.masters()[shard] == fleet.name(0) else fleet.name(0)


def next_step(fleet: Fleet, of_shards: bool) -> list[str]:
    """Return the arguments of ``shardkit move`` that continue or start a move."""
    for move in moves(fleet.config):
        if move.phase != "done":
            return ["resume", move.name]
    if not of_shards:
        return ["server", fleet.masters()[0], "--to", other(fleet, 0)]
    with left_behind(fleet) as client:  # as an operator who has checked these keys
        for key in strays(client):
            client.delete(key)
    return ["shards", "users:1", "--to", other(fleet, 1)]


def left_behind(fleet: Fleet) -> redis.Redis:
    """Return a client of the database that shard 1 has left.

    A resumed move leaves keys there that may have been written while no mover listened: those that
    were used in the last seconds before, and differ from the new server.
    """
    return redis.Redis(port=int(other(fleet, 1).rpartition(":")[2]), db=2)


def seeded() -> random.Random:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    return random.Random(seed)


def killed_at_random(fleet: Fleet, chance: random.Random, command: Callable[[], list[str]]) -> None:
    """Run commands that are killed at random moments."""
    environment = {**os.environ, "SHARDKIT_CONFIG": fleet.url}
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "shardkit", *command(), "--hold", str(PATIENT)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.4 + 2 * chance.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        fleet.config.delete("config:growth:lease")  # as it ends by itself in ten seconds


# A mover that is killed just when it has decided, or has closed a cluster, leaves the data closed
# until it is resumed.
CLOSED = ("the database is closed", "NOREPLICAS")


def unfinished(fleet: Fleet) -> bool:
    return any(move.phase not in ("done", "aborted") for move in moves(fleet.config))


def clean(fleet: Fleet) -> None:
    """Delete keys that were left behind, as an operator who has checked them."""
    for server in fleet.servers:
        used = {json.loads(fleet.config.get(key))["db"] for key in entries_at(fleet, server)}
        for db in set(range(8)) - used:
            with server.client(db=db) as client:
                for key in strays(client):
                    client.delete(key)


def check_splits(fleet: Fleet, step: Callable[[random.Random], list[str]]) -> None:
    """Kill processes that split, under load; ``step`` returns the arguments of a new split."""
    small(fleet)
    chance = seeded()

    def command() -> list[str]:
        if unfinished(fleet):
            return ["move", "resume", "users"]
        clean(fleet)
        return ["split", "users", *step(chance)]

    with losing_nothing(fleet, shards=None, may_fail=CLOSED):
        killed_at_random(fleet, chance, command)
        if unfinished(fleet):
            assert certified(resume_move(fleet.config, "users", hold=PATIENT))
    assert still_there(fleet)


@pytest.mark.timeout(120 + 8 * KILLS)
def test_processes_that_split_are_killed_at_random_moments_and_resumed(fleet: Fleet) -> None:
    def step(chance: random.Random) -> list[str]:
        count = int(json.loads(fleet.config.get("config:shards:users"))["shards"])
        over = [fleet.name(n) for n in chance.sample(range(3), 2)]
        return ["--shards", str(7 - count), *over_options(over)]

    check_splits(fleet, step)


@pytest.mark.timeout(120 + 12 * KILLS)
def test_processes_that_split_with_a_cluster_are_killed_at_random_moments_and_resumed(
    fleet: Fleet,
) -> None:
    with LocalCluster(replicas_per_master=1, config=FAST) as cluster:

        def step(chance: random.Random) -> list[str]:
            if fleet.config.exists("config:redis:users"):
                over = [fleet.name(n) for n in chance.sample(range(3), 2)]
                return ["--shards", str(chance.choice((2, 3))), *over_options(over)]
            for node in cluster.nodes:  # as an operator who uses it again
                with node.client() as client:
                    client.config_set("min-replicas-to-write", 0)
                    if client.info("replication")["role"] == "master":
                        client.flushall()
            return ["--to-cluster", chance.choice(cluster.nodes).address]

        check_splits(fleet, step)


def entries_at(fleet: Fleet, server: LocalServer) -> list[str]:
    """The keys of the entries that name a server."""
    keys = [key.decode() for key in fleet.config.scan_iter(match="config:redis:users*")]
    return [key for key in keys if json.loads(fleet.config.get(key))["port"] == server.port]


def over_options(servers: list[str]) -> list[str]:
    return [word for server in servers for word in ("--over", server)]


@pytest.mark.timeout(120 + 8 * KILLS)  # the check of the histories takes as long as the kills
@pytest.mark.parametrize("of_shards", [False, True], ids=["server", "shards"])
def test_processes_that_move_are_killed_at_random_moments_and_resumed(
    fleet: Fleet, of_shards: bool
) -> None:
    fleet.push(0)
    filled(fleet)
    with losing_nothing(fleet, may_fail=CLOSED):
        killed_at_random(fleet, seeded(), lambda: ["move", *next_step(fleet, of_shards)])
        step, name, *_ = next_step(fleet, of_shards)
        if step == "resume":
            move = resume_move(fleet.config, name, hold=PATIENT)
        else:
            what = [name] if of_shards else name
            move = start_move(fleet.config, what, other(fleet, 1), hold=PATIENT)
    named = certified(move).get("stale", [])
    with left_behind(fleet) as client:
        left = {f"2 {key}" for key in strays(client)} if of_shards else set()
    assert left <= set(named) or len(named) == 20, "no more are named"
    assert not named or of_shards


CLIENT = """
import sys, shardkit
from redis.exceptions import RedisError
with shardkit.connect(sys.argv[1]) as kit:
    client = kit.client("users", 1)
    client.incr("count")
    sure, unsure = 1, 0
    print("begun", flush=True)
    while True:
        try:
            if client.exists("end"):
                break
            client.incr("count")
            sure += 1
        except (RedisError, shardkit.ShardKitError):
            unsure += 1
    print(sure, unsure, flush=True)
"""


@contextmanager
def stopped_client(fleet: Fleet) -> Iterator[subprocess.Popen[str]]:
    """Give a process that was stopped somewhere in its writes to the second shard."""
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, fleet.url], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    try:
        assert client.stdout.readline() == "begun\n"
        time.sleep(0.2)  # somewhere in its writes
        client.send_signal(signal.SIGSTOP)
        yield client
    finally:
        client.kill()
        client.wait()
        client.stdout.close()


def goes_on(fleet: Fleet, client: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Have a stopped process write on at the second server, until it is told to end.

    Returns:
        How often it has counted there, how many of its calls it knows to have been executed, and of
        how many it does not know.
    """
    assert client.stdout is not None
    with fleet.servers[1].client(db=2) as new:
        before = int(new.get("count") or 0)
        client.send_signal(signal.SIGCONT)
        assert eventually(lambda: int(new.get("count") or 0) >= before + 10)
        new.set("end", 1)
        sure, unsure = map(int, client.stdout.readline().split())
        return int(new.get("count") or 0), sure, unsure


def test_a_client_that_is_stopped_in_a_call_and_goes_on_after_a_move_writes_at_the_new_place(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    lower(move_attempts=1)
    fleet.push(0)
    with stopped_client(fleet) as client:
        with pytest.raises(GrowthError, match="did not leave"):
            fleet.move_shard(hold=0.2)
        resume_move(fleet.config, "users:1", hold=PATIENT, kill=True)
        count, sure, unsure = goes_on(fleet, client)
        assert client_of(fleet.servers[0], db=2).get("count") is None
        assert sure <= count <= sure + unsure
        assert unsure <= 1  # the call in which it was stopped


def test_a_client_that_is_stopped_in_a_call_goes_on_at_the_new_server_after_it_has_moved(
    fleet: Fleet,
) -> None:
    fleet.push(0)
    with stopped_client(fleet) as client:
        fleet.move_server(hold=PATIENT)
        count, sure, unsure = goes_on(fleet, client)
        assert (count, unsure) == (sure, 0), "no call fails because of it"
        assert certified(verify_move(fleet.config, fleet.name(0))), "nothing was written there"


def lasting(fleet: Fleet) -> None:
    """Two shards on the first server; it and the second keep each write over a crash."""
    for each in fleet.servers[:2]:
        with each.client() as client:
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "always")
            client.config_rewrite()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
    small(fleet)


def restart(server: LocalServer) -> None:
    server.kill()
    server.restart()


# Moments of the mover of shards, or of servers, and the server that is killed at each.
OF_SERVERS = "wait for the copy", "hand over", "server: push entries", "compare"
PHASES = [(True, "last differences", 1), (True, "decide", 0), (True, "attest", 1)]
PHASES += [(False, OF_SERVERS[0], 1), (False, OF_SERVERS[1], 1), (False, OF_SERVERS[2], 0)]
if KILLS > 3:
    PHASES = [(False, moment, server) for moment in OF_SERVERS for server in (0, 1)]
    OF_SHARDS = "compare", "last differences", "decide", "attest"
    PHASES += [(True, moment, server) for moment in OF_SHARDS for server in (0, 1)]


@pytest.mark.parametrize(("of_shards", "moment", "server"), PHASES)
def test_a_server_that_is_killed_in_any_phase_of_a_move_loses_nothing(
    fleet: Fleet, of_shards: bool, moment: str, server: int
) -> None:
    lasting(fleet)
    try:
        with before(moment, lambda: restart(fleet.servers[server])):
            fleet.move(of_shards, hold=PATIENT)
    except (GrowthError, redis.RedisError):
        [move] = moves(fleet.config)
        assert resume_move(fleet.config, move.name, hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0 if of_shards else 1), fleet.name(1)]
    assert still_there(fleet)
