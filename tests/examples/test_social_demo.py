"""The social demo: made-up people, the bulk load against following one by one, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import emptied
from click.testing import CliRunner, Result
from faces import eventually
from redis.backoff import NoBackoff
from redis.retry import Retry

import shardkit
from examples.social.acting import Activity, working
from examples.social.command import demo, social_map
from examples.social.loading import BulkFollow, create_users
from examples.social.measuring import agree
from examples.social.people import People
from shardkit import ShardKit
from shardkit.errors import ShardKitError
from shardkit.local import LocalServers

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.social"]
PLACES = {"component": "users", "timelines": "timelines", "followers": "followers"}


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(social_map(), ports="free") as running:
        yield running


@pytest.fixture
def kit(servers: LocalServers) -> Iterator[ShardKit]:
    with emptied(servers) as opened:
        yield opened


def ignore(*_: Any) -> None:
    pass


def run(*args: str) -> Result:
    return CliRunner().invoke(demo, args, standalone_mode=False)


# ---- the bulk load


def everything(servers: LocalServers, kit: ShardKit) -> dict[str, Any]:
    """All keys of the network and what is in them; versions as their ranks, counts without them."""
    found: dict[str, Any] = {}
    for component in ("users", "timelines", "followers"):
        for shard in kit.component(component).all_shards():
            client: Any = kit.client(component, shard.number)
            for key in client.scan_iter(count=1000):
                name = key.decode()
                if client.type(key) == b"zset":
                    rows = client.zrange(key, 0, -1, withscores=True)
                    # What is to be fetched is in no order; all else is in that of the versions.
                    order = sorted if name.startswith("pull:") else list
                    found[name] = order(member for member, _ in rows)
                    assert len({score for _, score in rows}) == len(rows)
                elif client.type(key) == b"hash":
                    values = {
                        field.decode(): value.decode().split()[-1]
                        for field, value in client.hgetall(key).items()
                        if field not in (b"signup", b":version")
                    }
                    # A count of 0 may be absent as well.
                    found[name] = {field: value for field, value in values.items() if value != "0"}
                else:
                    found[name] = client.get(key)
    return found


def test_the_bulk_load_leaves_the_same_keys_as_following_one_by_one(
    servers: LocalServers, kit: ShardKit
) -> None:
    people = list(People(24, 6, 1000, 3).following())
    limit = 8
    seen = []
    for bulk in (True, False):
        network = kit.social(**PLACES, fan_out_limit=limit)
        uids = create_users(kit, network, 24, ignore)
        if bulk:
            load = BulkFollow(network, uids, limit)
            kit.driver.run(load.run(people, ignore))
            assert load.follows == sum(map(len, people))
            assert max(load.followers) > limit
        else:
            for n, others in enumerate(people):
                for other in others:
                    assert network.follow(uids[n], uids[other])
        # Versions go on where they ended: a later change has a later one.
        clocks = [kit.client("followers", n).get(f"clock:{{social:{n}}}") for n in range(16)]
        for n in range(16):
            for key in kit.client("followers", n).scan_iter(match="follow*"):
                [(_, last)] = kit.client("followers", n).zrange(key, -1, -1, withscores=True)
                assert last <= int(clocks[n])
        assert network.pending(0) == []
        found = everything(servers, kit)
        seen.append({key: value for key, value in found.items() if not key.startswith("clock:")})
        assert agree(kit, network, uids, 1).mended == 0
        with emptied(servers):
            pass
    assert seen[0] == seen[1]


def test_what_does_not_agree_is_said(kit: ShardKit) -> None:
    network = kit.social(**PLACES)
    uids = create_users(kit, network, 5, ignore)
    network.follow(uids[0], uids[1])
    place = network.layout.places("following", uids[0])
    for to, key in place:
        kit.driver.run(_delete(to, key))
    found = agree(kit, network, uids, 1)
    assert (found.users, found.mended) == (5, 1)
    assert agree(kit, network, uids, 1).mended == 0


def _delete(to: Any, key: str) -> Any:
    yield [shardkit.operations.commands.Command(to, key, ("DEL", key))]


# ---- the worker


async def test_the_worker_ends_with_nothing_left_and_failed_tasks_are_an_error(
    servers: LocalServers, kit: ShardKit
) -> None:
    acted = Activity()
    plain = kit.social(**PLACES)
    uids = create_users(kit, plain, 12, ignore)
    kit.driver.run(BulkFollow(plain, uids, 0).run([[], *[[0]] * 11], ignore))
    async with await shardkit.aconnect(servers.shard_map) as akit:
        tasks = akit.queues(component="tasks")
        network = akit.social(**PLACES, queues=tasks, pass_size=1)
        async with working(network, tasks, "social", acted):
            await network.post(uids[0], "to all")
        assert acted.tasks > 0
        assert all(len(plain.home(uid)) == 1 for uid in uids[1:])
        once = akit.queues(component="tasks", attempts=1)
        with pytest.raises(ShardKitError, match="1 of the network's tasks failed"):
            async with working(network, once, "social", acted):
                await tasks.enqueue("social", "social.backfill", ["no uid"])


# ---- the command


def test_the_report_is_a_document() -> None:
    result = run("--json", "--users", "100", "--seconds", "0.3", "--follows", "6", "--seed", "5")
    assert result.exception is None, result.output
    assert result.return_value == 0
    found = json.loads(result.stdout)
    assert (found["built"]["users"], found["built"]["posts"]) == (100, 50)
    assert found["built"]["most"] > found["built"]["median"]
    assert found["pages"] > 0
    assert 0 < found["page_milliseconds"]["p50"] <= found["page_milliseconds"]["p99"]
    assert len({server["address"] for server in found["servers"]}) == 4
    assert all(server["commands"] > 0 < server["bytes"] for server in found["servers"])
    assert found["agreement"] == {"repaired": 0, "users": 100, "mended": 0}
    assert all(found["memory"][what] > 0 for what in ("user", "follow", "entry", "status"))
    assert found["a_second"]["timelines_written"] >= found["a_second"]["posts"]


def test_people_get_tables_and_celebrities_are_fetched() -> None:
    result = run("--users", "100", "--seconds", "0.2", "--follows", "8", "--fan-out-limit", "10")
    assert result.exception is None, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("built 100 users, ")
    assert lines[1].startswith("then ")
    heads = {line.split()[0] for line in lines if line}
    assert {"done", "a", "server", "memory", "p50", "p95", "p99", "timelines"} <= heads
    assert lines[-1].endswith("counters and timelines of 100 users reconciled: all agree")
    assert all(line == line.rstrip() for line in lines)


def test_help_has_an_example_and_a_mistake_is_one_line() -> None:
    said = subprocess.run([*COMMAND, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0
    assert "Usage: python -m examples.social [OPTIONS]" in said.stdout
    assert "python -m examples.social --users" in said.stdout
    said = subprocess.run(
        [*COMMAND, "--fan-out-limit", "3"], cwd=ROOT, capture_output=True, text=True
    )
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)


def test_ctrl_c_ends_it_with_a_report_and_without_servers() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--users", "50", "--seconds", "600", "--follows", "3", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "redis://127.0.0.1:" in line
    port = int(line.rpartition(":")[2].split("/")[0])
    _until_somebody_reads(port)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    found = json.loads(stdout)
    assert found["interrupted"]
    assert found["agreement"] is None
    with pytest.raises(redis.ConnectionError, match="Connection refused"):
        redis.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()


def _until_somebody_reads(port: int) -> None:
    """Wait until pages are read: after the build, when the servers have met ZRANGE often."""
    with redis.Redis(port=port) as config:
        where = json.loads(config.get("config:redis:users:0") or b"{}")

    def reads() -> bool:
        stats: Any = client.info("commandstats")
        return stats.get("cmdstat_smembers", {}).get("calls", 0) > 3  # whom a reader has muted

    with redis.Redis(host=where["host"], port=where["port"]) as client:
        assert eventually(reads, 30)
