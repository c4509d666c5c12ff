"""Operators, movers, clients and servers that are killed or stopped at any moment, under load.

Each round, two operators type commands of shardkit that do not fit together. Commands are killed,
or stopped and woken when another one has taken over. Servers are killed, and so is the config
server, which may come back with an older snapshot. Then the runbook's commands repair what is left,
and every key is compared with what clients of both faces were told.

``make operators`` runs for ten minutes, ``make kills`` has fifty movers of each kind killed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import client_of
from faces import eventually, seed
from growth_helpers import (
    FAILURES,
    FAST,
    PATIENT,
    Fleet,
    certified,
    filled,
    follow,
    losing_nothing,
    replication,
    small,
    still_there,
    strays,
    there,
)
from moments import before, end_changes, open_changes

import shardkit
from shardkit.admin.growth import moves, resume_move, start_move, verify_move
from shardkit.cli.app import app
from shardkit.errors import GrowthError
from shardkit.local import LocalCluster, LocalServer

CHANGES_KEY = "config:changes"

SECONDS = float(os.environ.get("OPERATORS_SECONDS", "8"))
SEED = int(os.environ.get("OPERATORS_SEED") or seed("OPERATORS_SECONDS"))
LASTING = {**FAST, "appendonly": True, "appendfsync": "always"}
HOLD = ("--hold", "3")
MASTER, REPLICA, SPARE = 4, 5, 3  # of ``pair``, and for moves of servers
OUTAGES = ("servers", "config", "snapshot", "")  # what happens in a round, besides


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["shardkit.cli.app", "shardkit.admin.growth", "shardkit.admin"])


def run(words: Sequence[str], url: str, output: Path) -> None:
    """Run a command of shardkit in this process."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    app([*words, "--config", url])


class Load:
    """Clients of both faces that count, and note what they were told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: Counter[str] = Counter()
        self.uncertain: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._last: Counter[str] = Counter()
        self._end = threading.Event()
        targets = self._blocking, lambda: asyncio.run(self._awaiting())
        self._threads = [threading.Thread(target=each) for each in targets]

    @contextmanager
    def _noting(self, key: str) -> Iterator[list[int]]:
        counted: list[int] = []
        try:
            yield counted
        except FAILURES:
            self.uncertain[key] += 1
            return
        self.acknowledged[key] += 1
        if counted[0] <= self._last[key]:
            self.wrong.append(f"{key} is {counted[0]} after {self._last[key]}")
        self._last[key] = counted[0]

    def _blocking(self) -> None:
        with shardkit.connect(self.url) as kit:
            users, n = kit.key_sharded("users"), 0
            while not self._end.wait(0.003):
                n += 1
                with self._noting(key := f"b{n % 9}") as counted:
                    counted.append(users[key].incr(key))
                with self._noting("pair-b") as counted, kit.durable(timeout=0.5):
                    counted.append(kit.client("pair").incr("pair-b"))

    async def _awaiting(self) -> None:
        async with await shardkit.aconnect(self.url) as kit:
            users, n = kit.key_sharded("users"), 0
            while not self._end.is_set():
                await asyncio.sleep(0.003)
                n += 1
                with self._noting(key := f"a{n % 9}") as counted:
                    counted.append(await users[key].incr(key))
                with self._noting("pair-a") as counted:
                    async with kit.durable(timeout=0.5):
                        pair = await kit.client("pair")
                        counted.append(await pair.incr("pair-a"))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def lost(self, found: Callable[[str], int]) -> list[str]:
        """What is not as clients were told."""
        faults = list(self.wrong)
        for key in self.acknowledged | self.uncertain:
            sure, unsure = self.acknowledged[key], self.uncertain[key]
            now = found(key)
            sure_now = self.acknowledged[key] + self.uncertain[key] + 1  # the call at work
            if not sure <= now <= sure_now:
                faults.append(f"{key} is {now}: {sure} acknowledged, {unsure} uncertain")
        return faults


class Rounds:
    """The fleet, its operators, and what they did."""

    def __init__(self, fleet: Fleet, chance: random.Random, work: Path) -> None:
        self.fleet, self.chance, self.work = fleet, chance, work
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.deadline = 0.0
        self.began = time.monotonic()
        self.kept = filled(fleet)

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.2f} {text}", flush=True)

    # ---- commands

    def shardkit(self, *words: str, fate: str = "") -> tuple[int, str]:
        """Run a command, which is killed or stopped by fate; return its code and what it said."""
        output = self.work / f"output{threading.get_ident()}"
        output.write_text("")
        process = PROCESSES.Process(target=run, args=(words, self.fleet.url, output))
        process.start()
        assert process.pid is not None
        try:
            if fate:
                process.join(0.1 + 2 * self.chance.random())
            if process.is_alive() and fate == "kill":
                process.kill()
                self.expire(process.pid)
                self.counts["killed"] += 1
            elif process.is_alive() and fate == "stop":
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)
                self.counts["stopped"] += 1
                if self.chance.random() < 0.7:
                    self.expire(process.pid)
                time.sleep(self.chance.choice([0.3, 2, 5]))  # stopped
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
            process.join(120)
            if process.is_alive():
                self.faults.append(f"{' '.join(words)} takes longer than 120 s")
        finally:
            process.kill()
            process.join()
        said = output.read_text()
        code = process.exitcode or 0
        last = said.strip().splitlines()[-1:]
        self.note(f"{' '.join(words)} {fate and f'({fate})'} -> {code} {''.join(last)[:250]}")
        self.counts["commands"] += 1
        self.counts["succeeded"] += not code
        if "Traceback" in said:
            self.faults.append(f"{' '.join(words)}: {said}")
        return code, said

    def expire(self, pid: int) -> None:
        """Have what a process holds end now; it would in ten seconds."""
        with suppress(*FAILURES):
            config = self.fleet.config
            if f"/{pid}/" in (config.get("config:growth:lease") or b"").decode():
                config.delete("config:growth:lease")
            end_changes(config, f"/{pid}")

    def entry(self, key: str) -> dict[str, Any]:
        return dict(json.loads(self.fleet.config.get(f"config:redis:{key}") or "{}"))

    def shards(self) -> int:
        return int(json.loads(self.fleet.config.get("config:shards:users") or "{}")["shards"])

    def choose(self) -> list[str]:
        """Return a command for the state of the fleet."""
        chance, fleet = self.chance, self.fleet
        shard, place = chance.randrange(self.shards()), fleet.name(chance.randrange(3))
        at = f"127.0.0.1:{self.entry(f'users:{shard}').get('port')}"
        pair, spare = [fleet.name(each) for each in (MASTER, REPLICA)], fleet.name(SPARE)
        moved = chance.choice([f"users:{shard}", "users", at, *(fleet.name(n) for n in range(3))])
        over = [word for n in chance.sample(range(3), 2) for word in ("--over", fleet.name(n))]
        options = [
            *2 * [["move", "shards", f"users:{shard}", "--to", place, *HOLD]],
            *2 * [["split", "users", "--shards", str(chance.choice([2, 3, 4])), *over, *HOLD]],
            ["move", "server", at, "--to", spare, *HOLD],
            *2 * [["move", "resume", moved, *HOLD]],
            ["move", "abort", moved],
            ["move", "reverse", moved, *HOLD],
            ["move", "verify", moved],
            ["balance", "users", "--to", place, "--move", *HOLD],
            ["changes", "repair"],
            *2 * [["failover", "pair", "--hold", "3"]],
            ["failover", at, "--hold", "3"],
            ["failover", "--guard", "1"],
            ["replicas", "attach", chance.choice(pair), "--to", "pair", "--copy-timeout", "5"],
            ["replicas", "detach", chance.choice(pair), "--force"],
            ["backup", str(self.work / f"backup{chance.random()}"), "users", "pair"],
            ["persistence", "apply", "always", "users", "pair"],
            ["retire", "old"],
            *2 * [["retire", "old", "--delete-data", "--quiet", "0"]],
            ["config", "push", str(self.work / "old.json"), "--force", "old"],
            ["config", "push"],
        ]
        words = chance.choice(options)
        return words if words != ["config", "push"] else [*words, self.pulled()]

    def pulled(self) -> str:
        """Return a map that an operator has just pulled."""
        path = self.work / f"{threading.get_ident()}.yaml"
        path.unlink(missing_ok=True)
        with suppress(OSError):
            self.shardkit("config", "pull", "-o", str(path))
        return str(path)

    def operate(self, chance: random.Random) -> None:
        while time.monotonic() < self.deadline:
            try:
                words = self.choose()
            except (*FAILURES, ValueError, KeyError):  # the config server is down
                time.sleep(0.2)
                continue
            code, _ = self.shardkit(*words, fate=chance.choice(["", "", "kill", "stop"]))
            if words[0] == "backup" and code == 0:
                self.check_backup(Path(words[1]))

    def check_backup(self, path: Path) -> None:
        keys = json.dumps(json.loads((path / "manifest.json").read_text()))
        there = sum(sum(each["keys"].values()) for each in json.loads(keys)["servers"])
        if there < 200:
            self.faults.append(f"{path} has {there} keys")
        shutil.rmtree(path)

    # ---- what dies

    def break_(self, outage: str) -> None:
        chance, fleet = self.chance, self.fleet
        snapshot = self.work / "snapshot"
        home = fleet.config_server.directory
        while outage and time.monotonic() < self.deadline:
            if outage == "snapshot":
                shutil.rmtree(snapshot, ignore_errors=True)
                shutil.copytree(home, snapshot)
            time.sleep(chance.choice([1, 3, 6]))
            server = fleet.config_server if outage != "servers" else chance.choice(fleet.servers)
            self.note(f"{server.name} is killed ({outage})")
            server.kill()
            self.counts[f"kills ({outage})"] += 1
            if outage == "snapshot":
                shutil.rmtree(home)
                shutil.copytree(snapshot, home)
            time.sleep(chance.choice([0, 0.5, 2]))
            server.restart()

    # ---- rounds

    def round(self, load: Load) -> None:
        """Let operators work, repair what they leave, and check all keys."""
        outage = self.chance.choice(OUTAGES)
        self.note(f"---- a round with {outage or 'no outage'}")
        self.deadline = time.monotonic() + min(15, SECONDS)
        seeds = [random.Random(self.chance.random()) for _ in range(2)]
        threads = [threading.Thread(target=self.operate, args=(each,)) for each in seeds]
        threads.append(threading.Thread(target=self.break_, args=(outage,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.repair(outage == "snapshot")
        self.check(load)
        self.counts["rounds"] += 1

    def until_done(self, *words: str) -> bool:
        """Run a command until nothing prevents it, as changes of killed processes end."""
        return eventually(lambda: self.shardkit(*words)[0] == 0, 25)

    def repair(self, is_old: bool) -> None:
        """Do what the runbook says after outages."""
        fleet = self.fleet
        self.note("repairs")
        fleet.config.delete("config:growth:lease")
        if is_old:
            words = "config", "push", self.pulled(), "--restored"
            for forced in ((), ("pair",), ("users",), ("users", "pair")):
                if self.shardkit(*words, *(f"--force={each}" for each in forced))[0] == 0:
                    break
        self.shardkit("failover", "--guard", "5")
        for key in ["pair", *(f"users:{n}" for n in range(self.shards()))]:
            server = next(s for s in fleet.servers if s.port == self.entry(key)["port"])
            if replication(server)["role"] != "master":
                self.until_done("failover", key)
        self.shardkit("changes", "repair")
        for change in open_changes(fleet.config):
            if not change.until:
                verbs = self.chance.sample(["resume", "abort"], 2)
                if not any(self.shardkit("move", verb, change.name)[0] == 0 for verb in verbs):
                    self.until_done("move", "resume", change.name)
        if not eventually(lambda: not open_changes(fleet.config), 20):
            self.faults.append(f"stay open: {open_changes(fleet.config)}")
        self.shardkit("changes", "repair")
        self.tidy()

    def tidy(self) -> None:
        """Open what was left, and have the pair's replica follow again."""
        fleet = self.fleet
        _, said = self.shardkit("changes", "repair", "--dry-run", "--json")
        with suppress(ValueError):
            for found in json.loads(said):
                if found["action"] == "left":
                    address, _, number = found["database"].partition("/")
                    server = next(s for s in fleet.servers if s.address == address)
                    with server.client(db=int(number)) as client:
                        for key in strays(client):
                            client.delete(key)
                    self.shardkit("changes", "open", found["database"])
        used = {self.entry(f"users:{n}")["port"] for n in range(self.shards())}
        pair = self.entry("pair")["port"]
        for server in fleet.servers:
            if server.port not in {*used, pair}:
                master = server in fleet.servers[MASTER:]
                role = replication(server)
                if not master and role["role"] == "slave":
                    with server.client() as client:
                        client.replicaof("NO", "ONE")
                        client.flushall()
                elif master and int(role.get("master_port", 0)) != pair:
                    with server.client() as client:
                        client.replicaof("NO", "ONE")
                        client.flushall()
                    self.until_done("replicas", "attach", server.address, "--to", "pair")

    def check(self, load: Load) -> None:
        """Compare every key."""
        time.sleep(0.2)  # the last writes end
        try:
            with shardkit.connect(self.fleet.url) as kit:
                users: Any = kit.key_sharded("users")
                pair: Any = kit.client("pair")

                def found(key: str) -> int:
                    client = pair if key.startswith("pair") else users[key]
                    return int(client.get(key) or 0)

                self.faults += load.lost(found)
                users["canary"].set("canary", 1)
                pair.set("canary", 1)
            if there(self.fleet) != self.kept:
                self.faults.append("keys have changed that nobody writes")
        except FAILURES as error:
            self.faults.append(f"a client fails: {error!r}")


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    with ExitStack() as stack:
        names = "config", "a", "b", "c", "spare", "e", "f"
        config, *servers = [
            stack.enter_context(LocalServer(name=name, config=LASTING, data_dir=tmp_path / name))
            for name in names
        ]
        fleet = Fleet(config, servers)
        stack.callback(fleet.config.close)
        follow(servers[REPLICA], servers[MASTER])
        fast = {"socket_timeout": 1}
        old = {"old": {"shards": [fleet.at(2, db=9)]}}
        users = [fleet.at(0, db=db, **fast) for db in (1, 2)]
        pair = fleet.at(MASTER, replicas=[fleet.at(REPLICA)], **fast)
        fleet.describe({"users": {"shards": users}, "pair": {"entry": pair}, **old})
        (tmp_path / "old.json").write_text(json.dumps({"components": old}))
        yield Rounds(fleet, random.Random(SEED), tmp_path)


@pytest.mark.timeout(120 + 3 * SECONDS)
def test_operators_at_random_lose_nothing(rounds: Rounds) -> None:
    with Load(rounds.fleet.url) as load:
        while time.monotonic() < rounds.began + SECONDS and not rounds.faults:
            rounds.round(load)
    told = f"seed {SEED}, {load.acknowledged.total()} writes, {dict(rounds.counts)}"
    print(told, *rounds.faults, sep="\n")
    assert not rounds.faults
    assert load.acknowledged.total() > 100


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
    return random.Random(seed("KILLS"))


def killed_at_random(fleet: Fleet, chance: random.Random, command: Callable[[], list[str]]) -> None:
    """Run commands that are killed at random moments."""
    for _ in range(KILLS):
        fleet.kill_command(chance, *command(), "--hold", str(PATIENT))


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
