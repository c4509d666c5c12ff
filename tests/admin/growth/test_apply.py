"""``shardkit apply``: random pairs of maps, under load, killed and applied again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from arranged import client_of
from faces import eventually
from growth_helpers import FAST, PATIENT, Fleet, follow, strays

import shardkit
import shardkit.admin.growth.awaiting as awaiting
from shardkit import ShardMap
from shardkit.admin.growth import ApplyPlan, apply_map, moves, plan_apply
from shardkit.errors import GrowthError, PushRefusedError
from shardkit.local import LocalServer

PAIRS = int(os.environ.get("PAIRS", "1"))


@pytest.fixture
def farm() -> Iterator[Fleet]:
    """A config server, and four empty servers."""
    with ExitStack() as stack:
        config, *servers = (
            stack.enter_context(LocalServer(name=name, config=FAST))
            for name in ("config", "a", "b", "c", "d")
        )
        fleet = Fleet(config, servers)
        yield fleet
        fleet.config.close()


def map_of(components: dict[str, Any], **top: Any) -> ShardMap:
    return ShardMap.parse(json.dumps({"components": components, **top}))


def fill(fleet: Fleet, component: str, count: int = 200) -> None:
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded(component)
        for n in range(count):
            router[f"k{n}"].set(f"k{n}", n)


def check(fleet: Fleet, component: str, count: int = 200) -> None:
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded(component)
        assert [router[f"k{n}"].get(f"k{n}") for n in range(count)] == [
            str(n).encode() for n in range(count)
        ]


def is_true(fleet: Fleet, wanted: ShardMap) -> bool:
    with shardkit.connect(fleet.url) as kit:
        there = {name: kit.component(name) for name in kit.components()}
    return there.keys() == wanted.components.keys() and all(
        component.same_as(wanted.components[name]) for name, component in there.items()
    )


def test_a_map_becomes_true_by_every_kind_of_step_and_a_second_run_does_nothing(
    farm: Fleet, tmp_path: Path
) -> None:
    farm.describe(
        {
            "users": {"shards": [farm.at(0, db=1), farm.at(0, db=2)]},
            "feeds": {"shards": [farm.at(0, db=n) for n in (3, 4, 5)]},
            "one": {"entry": farm.at(1, db=1)},
            "old": {"entry": farm.at(1, db=9)},
        }
    )
    fill(farm, "users")
    fill(farm, "feeds")
    fill(farm, "one")
    wanted = {
        # Two shards change places, over another server; one of four lands where one was.
        "users": {"shards": [farm.at(0, db=2), farm.at(2, db=1)]},
        "feeds": {"shards": [farm.at(n % 3, db=3 + n) for n in range(2)]},
        "one": {
            "shards": [farm.at(n, db=7, socket_timeout=9) for n in (1, 2)],
            "placement": "rendezvous",
        },
        "new": {"entry": farm.at(2, db=11)},
    }
    follow(farm.servers[3], farm.servers[2])
    for entries in wanted.values():
        for entry in [entries.get("entry", {}), *entries.get("shards", ())]:
            if entry.get("port") == farm.servers[2].port:
                entry["replicas"] = [farm.at(3)]
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"components": wanted}), encoding="utf-8")

    shown = farm.run("apply", str(path), "--plan", "--prune").output
    assert "back: shardkit move reverse feeds" in shown
    assert "writers wait at most" in shown
    assert not is_true(farm, map_of(wanted))
    done = json.loads(
        farm.run("apply", str(path), "--yes", "--prune", "--json", "--hold", str(PATIENT)).stdout
    )
    kinds = [each["kind"] for each in done["done"]]
    assert {*kinds} == {"move", "split", "merge", "attach", "retire", "push"}
    assert kinds == [each["kind"] for each in done["steps"]]
    assert is_true(farm, map_of(wanted))
    for name in ("users", "feeds", "one"):
        check(farm, name)
    epoch = farm.config.get("config:epoch")
    assert "nothing to do" in farm.run("apply", str(path), "--yes", "--prune").output
    assert farm.config.get("config:epoch") == epoch


def test_what_no_step_does_is_refused_before_anything_is_changed(farm: Fleet) -> None:
    follow(farm.servers[1], farm.servers[0])
    both = farm.at(0, db=1, replicas=[farm.at(1)])
    farm.describe({"users": {"shards": [both, farm.at(0, db=2)]}, "one": {"entry": farm.at(2)}})
    epoch = farm.config.get("config:epoch")
    shards = [both, farm.at(0, db=2)]
    client_of(farm.servers[3], db=5).set("somebody's", 1)

    def problems(components: dict[str, Any], **top: Any) -> str:
        wanted = map_of(components, **top)
        found = plan_apply(farm.config, wanted).problems
        with pytest.raises(GrowthError) as refused:
            apply_map(farm.config, wanted)
        assert refused.value.remedy == "correct that: nothing has changed"
        return " ".join(found)

    promoted = {"users": {"shards": [farm.at(1, db=1), shards[1]]}}
    assert f"shardkit failover {farm.name(0)} --to {farm.name(1)}" in problems(promoted)
    there = {"users": {"shards": [farm.at(3, db=5), shards[1]]}}
    assert "somebody's" in problems(there)
    onto = {"users": {"shards": [both, farm.at(2)]}}
    assert "uses and keeps" in problems(onto)
    socket = {"one": {"entry": {"unix_socket_path": "/run/redis"}}}
    assert "write host, port and db" in problems(socket)
    filled = {"one": {"entry": farm.at(2, replicas=[farm.at(3)])}}
    assert "is not empty" in problems(filled)
    assert "shardkit config pull" in problems({"one": {"entry": farm.at(3, db=1)}}, epoch=0)
    assert farm.config.get("config:epoch") == epoch
    assert not moves(farm.config)


def test_a_push_after_the_comparison_is_not_overwritten(farm: Fleet) -> None:
    before = {"users": {"entry": farm.at(0)}}
    farm.describe(before)

    def push_first(text: str) -> None:
        if text.startswith("step 1 of 1: push events"):
            farm.describe({"events": {"entry": farm.at(2)}})

    wanted = map_of({**before, "events": {"entry": farm.at(1)}})
    with pytest.raises(PushRefusedError, match=r"other pushes came in between"):
        apply_map(farm.config, wanted, progress=push_first)
    with shardkit.connect(farm.url) as kit:
        [(_, entry)] = kit.component("events").entries()
    assert entry.address.startswith(farm.name(2))


def test_an_interrupted_run_says_what_is_done_and_the_next_one_continues(
    farm: Fleet, tmp_path: Path
) -> None:
    farm.describe({"users": {"shards": [farm.at(0, db=1), farm.at(0, db=2)]}})
    fill(farm, "users", 3000)
    wanted = {"users": {"shards": [farm.at(0, db=1), farm.at(1, db=2)]}}
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"components": wanted}), encoding="utf-8")
    command = [sys.executable, "-m", "shardkit", "apply", str(path), "--yes", "--share", "0.01"]
    process = subprocess.Popen([*command, "-c", farm.url], stderr=subprocess.PIPE)
    assert eventually(lambda: moves(farm.config), 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert b"interrupted: 0 steps of about 1 done; give the command again" in said
    assert process.returncode == 130
    assert "resume users:1" in farm.run("apply", str(path), "--plan").output
    shown = farm.run("apply", str(path), "--yes", "--hold", str(PATIENT)).output
    assert "the map is true: 1 step done" in shown
    assert is_true(farm, map_of(wanted))
    check(farm, "users", 3000)


async def test_a_map_is_applied_in_an_event_loop(farm: Fleet) -> None:
    farm.describe({"users": {"shards": [farm.at(0, db=1), farm.at(0, db=2)]}})
    fill(farm, "users")
    wanted = map_of({"users": {"shards": [farm.at(0, db=1), farm.at(1, db=3)]}})
    plan: ApplyPlan = await awaiting.plan_apply(farm.config, wanted)
    steps: list[Any] = []
    assert plan.steps == tuple(
        await awaiting.apply_map(farm.config, wanted, finished=steps.append, hold=PATIENT)
    )
    await asyncio.sleep(0)
    assert tuple(steps) == plan.steps
    assert is_true(farm, wanted)


def random_map(fleet: Fleet, chance: random.Random) -> dict[str, Any]:
    """Return components on databases that are theirs alone, sometimes with a replica."""
    places = [(server, db) for server in range(3) for db in range(1, 6)]
    chance.shuffle(places)

    def entry() -> dict[str, Any]:
        server, db = places.pop()
        return fleet.at(server, db=db, **({"health_check_interval": 5} if db == 5 else {}))

    def shards() -> dict[str, Any]:
        rule = chance.choice(["crc32", "rendezvous"])
        return {"shards": [entry() for _ in range(chance.randint(1, 4))], "placement": rule}

    return {
        "users": shards(),
        "feeds": shards(),
        "one": chance.choice([lambda: {"entry": entry()}, shards])(),
    }


@contextmanager
def counting(fleet: Fleet) -> Iterator[dict[str, int]]:
    """Increment counters of each component all the time; yield what was acknowledged last."""
    counts: dict[str, int] = {}
    failures: list[Exception] = []
    stop = threading.Event()

    def write(name: str) -> None:
        chance = random.Random(name)
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded(name)
            while not stop.is_set():
                key = f"{name}:{chance.randrange(100)}"
                try:
                    counts[key] = router[key].incr(key)
                except Exception as error:
                    failures.append(error)
                time.sleep(0.002)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("users", "feeds", "one")]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    # A killed process that has just decided a move leaves the data closed until it is resumed.
    assert all("the database is closed" in str(error) for error in failures), failures


def clean(fleet: Fleet) -> None:
    """Delete keys that were left behind, as an operator who has checked them."""
    with shardkit.connect(fleet.url) as kit:
        used = [
            (entry.fields["port"], entry.fields["db"])
            for name in kit.components()
            for _, entry in kit.component(name).entries()
        ]
    for move in moves(fleet.config):
        if move.phase not in ("done", "aborted"):
            places = [re.split("[:/]", each) for each in (*move.sources, *move.targets)]
            used += [(int(port), int(number)) for _, port, number in places]
    for server in fleet.servers:
        for db in range(16):
            if (server.port, db) not in used:
                with server.client(db=db) as client:
                    for key in strays(client):
                        client.delete(key)


@pytest.mark.timeout(60 + 90 * PAIRS)
def test_random_maps_are_applied_under_load_by_processes_that_are_killed(
    farm: Fleet, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    farm.describe(random_map(farm, chance))
    path = tmp_path / "map.json"
    with counting(farm) as counts:
        for _ in range(PAIRS):
            wanted = random_map(farm, chance)
            path.write_text(json.dumps({"components": wanted}), encoding="utf-8")
            while not is_true(farm, map_of(wanted)):
                clean(farm)
                command = [sys.executable, "-m", "shardkit", "apply", str(path), "--yes"]
                process = subprocess.Popen(
                    [*command, "--hold", str(PATIENT), "-c", farm.url],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                is_killed = chance.random() < 0.5
                if is_killed:
                    time.sleep(1 + 4 * chance.random())
                    process.send_signal(signal.SIGKILL)
                shown, _ = process.communicate(timeout=120)
                assert is_killed or process.returncode == 0, shown.decode()
        written = dict(counts)
    with shardkit.connect(farm.url) as kit:
        for key, count in written.items():
            client = kit.key_sharded(key.partition(":")[0])[key]
            assert int(client.get(key) or 0) in (count, count + 1), key  # one was in flight
