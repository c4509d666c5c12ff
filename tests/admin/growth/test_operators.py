"""Two operators at random, under load, with commands, servers and the config server that die.

Each round, two operators type commands of shardkit that do not fit together. Commands are killed,
or stopped and woken when another one has taken over. Servers are killed, and so is the config
server, which may come back with an older snapshot. Then the runbook's commands repair what is left,
and every key is compared with what clients of both faces were told.
``make operators`` runs for ten minutes.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faces import eventually, seed
from growth_helpers import (
    FAILURES,
    FAST,
    Fleet,
    filled,
    follow,
    replication,
    strays,
    there,
)
from moments import end_changes, open_changes

import shardkit
from shardkit.cli.app import app
from shardkit.local import LocalServer

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
