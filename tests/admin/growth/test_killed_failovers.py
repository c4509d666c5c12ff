"""Failovers under Sentinels, which are killed; and servers that die, while clients write.

``make kills`` has more of each killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from faces import eventually, seed
from growth_helpers import (
    FAST,
    REDIS,
    Fleet,
    check_nothing_lost,
    follow,
    no_redis,
    replication,
    writing,
)

import shardkit
from shardkit.admin.growth import fail_over
from shardkit.local import LocalSentinel, LocalServer
from shardkit.testing import Register, check_linearizable

KILLS = int(os.environ.get("KILLS", "1"))
LASTING = {**FAST, "appendonly": True, "appendfsync": "always"}


@contextmanager
def under_sentinels(
    binary: Path | str | None = None, **options: Any
) -> Iterator[tuple[Fleet, LocalSentinel]]:
    """Give a component ``users`` of two shards, on a master with a replica, under Sentinels."""
    with (
        LocalServer(name="config") as config,
        LocalSentinel("main", config=LASTING, binary=binary, **options) as watched,
    ):
        fleet = Fleet(config, [watched.master, *watched.replicas])
        follow(watched.replicas[0], watched.master)
        entry: dict[str, Any] = dict(watched.entry.fields)
        shards = [{**entry, "db": 1}, {**entry, "db": 2}]
        fleet.describe({"users": {"shards": shards}})
        try:
            yield fleet, watched
        finally:
            fleet.config.close()


def replicated(watched: LocalSentinel) -> bool:
    """Whether one of the two servers replicates the other one, as the Sentinels know."""
    try:
        roles = [replication(server) for server in (watched.master, *watched.replicas)]
    except redis.RedisError:
        return False
    masters = [role for role in roles if role["role"] == "master"]
    linked = [role for role in roles if role.get("master_link_status") == "up"]
    return len(masters) == len(linked) == 1


def wait_until_replicated(watched: LocalSentinel) -> None:
    # Sentinels on a busy machine stop for 30 s at a time (TILT).
    assert eventually(lambda: replicated(watched), 180), "there is no master with its replica"


@pytest.mark.timeout(120 + 20 * KILLS)
def test_failovers_by_sentinels_that_are_killed_at_random_moments_lose_nothing() -> None:
    chance = random.Random(seed("KILLS"))
    # A busy master that Sentinels take for dead would lose what its replica had not got yet.
    with under_sentinels(down_after=60) as (fleet, watched):
        environment = {**os.environ, "SHARDKIT_CONFIG": fleet.url}
        with writing(fleet) as writers:
            for turn in range(KILLS):
                replicas = [
                    server.address
                    for server in (watched.master, *watched.replicas)
                    if replication(server)["role"] == "slave"
                ]
                preferred = ["--to", *replicas[:1]] if replicas and turn % 2 else []
                process = subprocess.Popen(
                    [sys.executable, "-m", "shardkit", "failover", "users:0", *preferred],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                time.sleep(0.4 + 2 * chance.random())
                process.send_signal(signal.SIGKILL)
                process.wait()
                fleet.config.delete("config:growth:lease")  # as it ends by itself in ten seconds
            wait_until_replicated(watched)
            assert fail_over(fleet.config, "users:0").planned
        check_nothing_lost(fleet, writers)
        check_linearizable(writers.history, Register())
        assert not fleet.config.exists("config:growth:priorities")


@pytest.mark.timeout(180 + 40 * KILLS)
@pytest.mark.parametrize("binary", [None, pytest.param(REDIS, marks=no_redis)])
def test_servers_that_die_under_sentinels_lose_nothing_that_was_durable(
    binary: Path | str | None,
) -> None:
    chance = random.Random(seed("KILLS"))
    with under_sentinels(binary) as (fleet, watched):
        with writing(fleet, replicas=1) as writers:
            for turn in range(KILLS):
                servers = [watched.master, *watched.replicas]
                master = next(each for each in servers if replication(each)["role"] == "master")
                others = [each for each in servers if each is not master]
                dies = [master, *others, chance.choice(watched.sentinels)][turn % 3]
                dies.kill()
                # Before they notice, or long after; both while clients write.
                time.sleep(chance.choice([0.0, 1.0, 2.5]))
                dies.restart()
                wait_until_replicated(watched)
            enough = max(writers.acknowledged.total() + 20, 150)
            goes_on = eventually(lambda: writers.acknowledged.total() >= enough, 30)
            assert goes_on, writers.errors[-3:]
        check_nothing_lost(fleet, writers)
        with shardkit.connect(fleet.url) as kit:
            assert kit.key_sharded("users")["last"].set("last", 1)
