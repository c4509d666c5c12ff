"""Commands at any exchange: killed, woken when another operator has acted, or without a server.

Each runs in a process of its own. ``CASES=all`` tries every exchange, the tests a few, by a seed
that is printed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arranged import client_of
from click.testing import CliRunner
from faces import PATIENCE, eventually
from growth_helpers import Fleet, replication, still_there
from redis.connection import AbstractConnection

import shardkit
from shardkit import ShardKit
from shardkit.admin.changes import now_of, open_changes, text_of
from shardkit.admin.conversion.forms import Conversion
from shardkit.admin.growth import attach_replica, moves
from shardkit.cli.app import app
from shardkit.local import LocalServer
from shardkit.network.connections.connection import TcpConnection
from shardkit.structures.layouts import replan

CHANGES_KEY = "config:changes"

ALL = os.environ.get("CASES") == "all"
HOME = str(Path(shardkit.__file__).parent)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["shardkit.cli.app", "shardkit.admin.growth", "shardkit.admin"])


def is_of_network(file: str) -> bool:
    """Whether a file is of another package, or of the layer that sends."""
    return not file.startswith(HOME) or file.startswith(f"{HOME}/network/")


def run(words: Sequence[str], output: Path, number: int, fate: int) -> None:
    """Run a command, which gets a signal before its n-th exchange."""
    with output.open("w") as file, Path(f"{output}.steps").open("w") as note:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        replan.GRACE = 0.1
        steps: list[Any] = []

        def noting(owner: Any, name: str) -> None:
            send = getattr(owner, name)

            def sends(connection: Any, *args: Any, **options: Any) -> Any:
                frame: Any = sys._getframe()
                while is_of_network(file := frame.f_code.co_filename):
                    if (frame := frame.f_back) is None:
                        break
                else:
                    # What loops over pages is one step; an operation has a line for all of its own.
                    step = file, frame.f_lineno, connection.port, "drivers" in file and len(steps)
                    if threading.current_thread() is threading.main_thread() and step not in steps:
                        steps.append(step)
                        writes = b"HSET" in bytes(f"{args}", "ascii", "replace")
                        print(connection.port, file + " writes" * writes, file=note, flush=True)
                        if len(steps) == number:
                            os.kill(os.getpid(), fate)
                return send(connection, *args, **options)

            setattr(owner, name, sends)

        noting(AbstractConnection, "send_packed_command")
        noting(TcpConnection, "send_packed_command")
        noting(TcpConnection, "round_trip")
        app(list(words))


class Case:
    """A command, what is there before, and what another operator does in the meantime."""

    words: list[str]
    files: list[str]  # in which each step is sent

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.new = f"127.0.0.1:{fleet.servers[2].port}"

    def setup(self) -> None:
        """Have two shards on the first server, another component on the second, and a spare one."""
        for server in self.fleet.servers:
            with server.client() as client:
                client.replicaof("NO", "ONE")
                client.flushall()
        self.fleet.config.flushall()
        shards = [self.fleet.at(0, db=db) for db in (1, 2)]
        self.fleet.describe({"users": {"shards": shards}, "other": {"entry": self.fleet.at(1)}})
        with shardkit.connect(self.fleet.url) as kit:
            kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})

    def act(self) -> None:
        """Do as the other operator: as a rule the same, after which clients write."""
        self.ends(*self.words)

    def repair(self) -> None:
        """End what was killed."""
        self.ends(*self.words)

    def check(self, woken: bool) -> None:
        """Check what is there at last."""
        assert still_there(self.fleet)

    def ends(self, *words: str, may_say: str = "nothing") -> None:
        """Run a command until it succeeds or says that nothing is to be done."""

        def done() -> bool:
            result = CliRunner().invoke(app, self.at_config(words))
            said.append(result.output)
            return not result.exit_code or may_say in result.output

        said: list[str] = []
        assert eventually(done, 5), said[-1]

    def at_config(self, words: Sequence[str]) -> list[str]:
        return [*words] if words[0] == "restore" else [*words, "--config", self.fleet.url]

    def replicas(self, key: str) -> list[int]:
        stored = json.loads(self.fleet.config.get(f"config:redis:{key}"))
        return [each["port"] for each in stored.get("replicas", [])]

    # ---- processes

    @contextmanager
    def process(self, number: int, fate: int) -> Iterator[tuple[Any, Path]]:
        """Run the command; afterwards nothing is held by it, as ten seconds later."""
        output = self.folder / f"output{time.monotonic_ns()}"
        process = PROCESSES.Process(
            target=run, args=(self.at_config(self.words), output, number, fate)
        )
        process.start()
        try:
            yield process, output
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.join(60 * PATIENCE)
            process.kill()
            process.join()

    def steps(self) -> list[int]:
        """Return the numbers of the steps after which the command's change is recorded."""
        self.setup()
        with self.process(0, 0) as (process, output):
            process.join(60 * PATIENCE)
        self.files = files = self.noted(output)
        recorded = [name.endswith("admin/changes.py") for name in files]
        first = next(n for n, at in enumerate(recorded) if at and not recorded[n + 1])
        return list(range(first + 2, len(files) + 1))

    def noted(self, output: Path) -> list[str]:
        """The steps that a command has taken: the port of each, and the file."""
        return Path(f"{output}.steps").read_text().splitlines()

    def expire(self, pid: int) -> None:
        """Have what a process holds end now; it would in ten seconds."""
        config = self.fleet.config
        if f"/{pid}/" in (config.get("config:growth:lease") or b"").decode():
            config.delete("config:growth:lease")
        for change in open_changes(config):
            if change.until and change.owner.endswith(f"/{pid}"):
                now = replace(change, until=now_of(config))
                config.hset(CHANGES_KEY, change.id, text_of(now))

    def killed(self, number: int) -> None:
        self.setup()
        with self.process(number, signal.SIGKILL) as (process, _):
            process.join(60 * PATIENCE)
        self.expire(process.pid)
        self.repair()
        self.check(woken=False)

    @contextmanager
    def stopped(self, number: int) -> Iterator[tuple[Any, Path]]:
        """Run the command, which is stopped before its n-th exchange, and woken afterwards."""
        self.setup()
        with self.process(number, signal.SIGSTOP) as (process, output):
            state = Path(f"/proc/{process.pid}/stat")
            with suppress(FileNotFoundError, ProcessLookupError):  # it has fewer steps today
                stopped = lambda: state.read_text().rpartition(")")[2].split()[0] in "TZ"  # noqa: E731
                assert eventually(stopped, 60)
            yield process, output

    def woken(self, number: int) -> None:
        with self.stopped(number) as (process, output):
            self.expire(process.pid)
            self.act()
        assert "Traceback" not in output.read_text()
        self.check(woken=True)

    # ---- servers

    def without_server(self, number: int, fault: Callable[[LocalServer], object]) -> None:
        """Have the server of the n-th exchange fail until the command has ended."""
        self.persist()
        with self.stopped(number) as (process, output):
            *_, step = self.noted(output)
            every = (self.fleet.config_server, *self.fleet.servers)
            servers = {str(each.port): each for each in every}
            if (server := servers.get(step.split()[0])) is None:
                return  # the command's own
            fault(server)
            os.kill(process.pid, signal.SIGCONT)
            process.join(60 * PATIENCE)
            said = f"{output.read_text()}, code {process.exitcode}, {step}"
            print(said)
            if server.running:
                server.resume()
            else:
                server.restart()
        assert "Traceback" not in said
        assert process.exitcode == 0 or (process.exitcode == 1 and f":{server.port}" in said), said
        self.expire(process.pid)
        self.repair()
        self.check(woken=False)

    def persist(self) -> None:
        """Have servers keep their data when they are killed."""
        for server in (self.fleet.config_server, *self.fleet.servers):
            with server.client() as client:
                client.config_set("appendfsync", "always")
                client.config_set("appendonly", "yes")
                client.config_rewrite()

                def is_saving(client: Any = client) -> bool:
                    info = client.info("persistence")
                    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

                assert eventually(lambda: not is_saving(), 30)


class Attach(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["replicas", "attach", self.new, "--to", "users:0", "--copy-timeout", "6"]

    def act(self) -> None:
        """Attach it to another server."""
        if replication(self.fleet.servers[2])["role"] == "slave":
            self.ends("replicas", "detach", self.new)
            client_of(self.fleet.servers[2]).flushall()
        self.ends("replicas", "attach", self.new, "--to", "other")

    def check(self, woken: bool) -> None:
        super().check(woken)
        master = self.fleet.servers[1 if woken else 0].port
        assert replication(self.fleet.servers[2])["master_port"] == master
        assert bool(self.replicas("other")) is woken is not bool(self.replicas("users:0"))


class Detach(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["replicas", "detach", self.new]

    def setup(self) -> None:
        super().setup()
        attach_replica(self.fleet.config, self.new, "users:0")

    def act(self) -> None:
        """Detach it, and attach it again."""
        self.repair()
        client_of(self.fleet.servers[2]).flushall()
        self.ends("replicas", "attach", self.new, "--to", "users:0")

    def repair(self) -> None:
        self.ends(*self.words, may_say="follows no server")

    def check(self, woken: bool) -> None:
        super().check(woken)
        assert bool(self.replicas("users:0")) is woken
        assert replication(self.fleet.servers[2])["role"] == ("slave" if woken else "master")


class Balance(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["balance", "users", "--to", self.new, "--move", "--hold", "3"]

    def act(self) -> None:
        """End its move, or move a shard, and move that back."""
        self.resume()
        if not moves(self.fleet.config):
            self.ends("move", "shards", "users:1", "--to", self.new, "--hold", "3")
        self.ends("move", "reverse", moves(self.fleet.config)[0].name, "--hold", "3")
        self.epoch = self.fleet.config.get("config:epoch")

    def repair(self) -> None:
        self.resume()
        self.ends(*self.words)

    def resume(self) -> None:
        for move in moves(self.fleet.config):
            if not move.is_over:
                self.ends("move", "resume", move.name, "--hold", "3")

    def check(self, woken: bool) -> None:
        super().check(woken)
        if woken:
            assert self.fleet.config.get("config:epoch") == self.epoch


class Convert(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["convert", str(self.folder / "plan"), "--component", "users", "--offline"]

    def setup(self) -> None:
        super().setup()
        with shardkit.connect(self.fleet.url) as kit:
            for n in range(60):
                key = f"user:{n}:name"
                kit.key_sharded("users")[key].set(key, f"name {n}")
        self.fleet.run("advise", "users", "--output", str(self.folder / "plan"))

    def structure(self, kit: ShardKit) -> Any:
        plan = Conversion.parse((self.folder / "plan").read_text())
        return kit.hash(plan.base, component="users", **plan.parameters)

    def steps(self) -> list[int]:
        """Leave out the write itself: between the look before it and the write, it is not safe."""
        return [n for n in super().steps() if not self.files[n - 1].endswith("writes")]

    def act(self) -> None:
        super().act()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).hset(mapping={str(n): "new" for n in range(61)})

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.fleet.url) as kit:
            found = {name: text.decode() for name, text in self.structure(kit).hgetall().items()}
        expected = {str(n): "new" if woken else f"name {n}" for n in range(60 + woken)}
        assert found == expected


class Restore(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["restore", str(self.folder / "backup"), str(self.folder / "map")]

    def setup(self) -> None:
        super().setup()
        where = {"users": {"shards": [self.fleet.at(2, db=db) for db in (5, 6)]}}
        text = {"config_server": {"port": self.fleet.config_server.port}, "components": where}
        (self.folder / "map").write_text(json.dumps(text))
        (self.folder / "target").write_text(json.dumps({"components": where}))
        if not (self.folder / "backup").exists():
            self.fleet.run("backup", str(self.folder / "backup"), "users")

    def act(self) -> None:
        self.ends(*self.words, may_say="is not empty")  # a shard of two was done
        with shardkit.connect(self.folder / "target") as kit:
            kit.key_sharded("users").mset({f"k{n}": "new" for n in range(51)})

    def repair(self) -> None:
        self.ends(*self.words, may_say="is not empty")  # it was done

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.folder / "target") as kit:
            found = kit.key_sharded("users").mget([f"k{n}" for n in range(51)])
        whole = [*(b"%d" % n for n in range(50)), None]
        assert found == (51 * [b"new"] if woken else whole)
        for db in (5, 6):
            assert not client_of(self.fleet.servers[2], db=db).keys("*:restored")


class Replan(Case):
    words = ["replan", "users", "--yes"]  # noqa: RUF012

    def setup(self) -> None:
        super().setup()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).sadd(*range(500))

    @staticmethod
    def structure(kit: ShardKit) -> Any:
        return kit.set("planned", component="users", total=64, part_size=16, members=int)

    def act(self) -> None:
        super().act()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).sadd(*range(1000, 1100))
            self.structure(kit).srem(*range(50))

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.fleet.url) as kit:
            found = {*self.structure(kit).sscan_iter()}
        assert found == ({*range(50, 500), *range(1000, 1100)} if woken else {*range(500)})


FATES: dict[str, Callable[[Case, int], None]] = {
    "killed": Case.killed,
    "woken": Case.woken,
    "server killed": lambda case, number: case.without_server(number, LocalServer.kill),
    "server hung": lambda case, number: case.without_server(number, LocalServer.pause),
}


@pytest.mark.timeout((1200 if ALL else 120) * PATIENCE)
@pytest.mark.long(5)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("case", [Attach, Detach, Balance, Convert, Restore, Replan])
def test_a_command_that_is_killed_or_wakes_at_any_step_loses_nothing_and_is_ended_by_another(
    fleet: Fleet,
    tmp_path: Path,
    lower: Callable[..., None],
    case: type[Case],
    fate: str,
) -> None:
    lower(plan_grace=0.1)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    tried = case(fleet, tmp_path)
    steps = tried.steps()
    count = 1 if "server" in fate else 2
    for number in steps if ALL else sorted(random.Random(seed).sample(steps, count)):
        print(f"step {number}")
        FATES[fate](tried, number)
