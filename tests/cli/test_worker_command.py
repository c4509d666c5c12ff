"""shardkit worker: runs a module's worker, and stops as it is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from cli_helpers import COMMAND, Cli, Result, in_terminal, plain
from faces import PATIENCE, clocked, eventually, free_port

import shardkit
from shardkit import ShardKit
from shardkit.local import LocalServers
from shardkit.queues import NewTask, QueueCounts, TaskQueues, Worker

MODULE = """
import asyncio, os, time
from pathlib import Path
import shardkit
from shardkit.queues.worker import AsyncWorker
from shardkit.queues.worker import Worker

HERE = Path(__file__).parent

def note(text):
    with open(HERE / "done", "a") as file:
        file.write(f"{text}\\n")

def slow(seconds):
    note("begun")
    time.sleep(seconds)
    note("ended")

def fails():
    raise ValueError("no good")

CALLBACKS = {"note": note, "slow": slow, "fails": fails}

class Lazy:
    pass

if "TOWN" in os.environ:
    kit = shardkit.connect(os.environ["TOWN"])
    worker = Worker(kit.queues(component="unique"), ["q"], CALLBACKS)

def make(kit):
    return Worker(kit.queues(component="unique"), ["q"], CALLBACKS, lease=1)

async def amake(kit):
    worker = AsyncWorker(kit.queues(component="unique"), ["q"], concurrency=2)
    async def note_it(text):
        await asyncio.sleep(0)
        note(text)
    worker.register("note", note_it)
    return worker

def mixed(kit):
    return AsyncWorker(kit.queues(component="unique"), ["q"])

async def amixed(kit):
    blocking = shardkit.connect(os.environ["TOWN"])
    try:
        return Worker(blocking.queues(component="unique"), ["q"])
    finally:
        blocking.close()

def wrong(kit):
    return 7

number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module of workers, which is the current one."""
    (tmp_path / "town_tasks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    imported = sys.modules.pop("town_tasks", None)
    if hasattr(imported, "kit"):
        imported.kit.close()


@pytest.fixture(autouse=True)
def _topology(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))


@pytest.fixture
def kit(town: LocalServers, town_map: Path) -> Iterator[ShardKit]:
    with shardkit.connect(town.shard_map) as opened:
        yield opened


def done(module: Path) -> list[str]:
    path = module / "done"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("name", ["worker", "make", "amake"])
def test_a_burst_does_what_waits_and_tells(
    cli: Cli,
    module: Path,
    kit: ShardKit,
    town_map: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("TOWN", str(town_map))
    tasks = kit.queues(component="unique")
    tasks.enqueue_many("q", [NewTask("note", [n]) for n in range(5)])
    result = cli("worker", f"town_tasks:{name}", "--burst")
    assert (result.code, result.out) == (0, "5 tasks done\n"), result
    assert sorted(done(module)) == [*"01234"]
    tasks.enqueue("other", "note", ["x"])
    arguments = ("-q", "other", "-q", "q", "-n", "3", "--burst", "--json")
    result = cli("worker", f"town_tasks:{name}", *arguments)
    assert json.loads(result.out)["done"] in (1, 6)  # a module's worker is one object
    assert done(module)[-1] == "x"


def test_failures_are_shown_and_every_task_where_it_is_wanted(
    cli: Cli, module: Path, kit: ShardKit
) -> None:
    tasks = kit.queues(component="unique")
    tasks.enqueue_many("q", [NewTask("note", ["x"]), NewTask("fails")])
    result = cli("worker", "town_tasks:make", "--burst", "--verbose", code=0)
    assert result.out == "1 task done, 1 failed\n"
    assert "task note (q " in result.err
    assert "failed: ValueError: no good" in result.err
    assert "\nTraceback (most recent call last):\n" in result.err
    assert 'raise ValueError("no good")' in result.err


def started(
    module: Path, town_map: Path, *arguments: str, name: str = "make"
) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    environment = {**os.environ, "SHARDKIT_CONFIG": str(town_map), "PYTHONPATH": ""}
    return subprocess.Popen(
        [*COMMAND, "worker", f"town_tasks:{name}", *arguments],
        cwd=module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_signal_has_it_finish_what_it_works_on(
    module: Path, kit: ShardKit, town_map: Path
) -> None:
    tasks = kit.queues(component="unique")
    tasks.enqueue_many("q", [NewTask("slow", [0.3]), NewTask("note", ["not begun"])])
    process = started(module, town_map, "--json")
    assert eventually(lambda: done(module) == ["begun"])
    process.send_signal(signal.SIGINT)  # Ctrl-C; the next test sends SIGTERM
    out, err = process.communicate(timeout=20 * PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out)["done"] == 1
    assert done(module) == ["begun", "ended"]
    assert tasks.counts("q") == QueueCounts(1, 0, 0, 0)


def test_a_second_signal_has_it_give_back_what_it_works_on(
    module: Path, kit: ShardKit, town_map: Path
) -> None:
    tasks = kit.queues(component="unique")
    tasks.enqueue("q", "slow", [60])
    process = started(module, town_map)
    assert eventually(lambda: done(module) == ["begun"])
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # another one, as two of a kind at once are one
    out, err = process.communicate(timeout=20 * PATIENCE)
    assert (process.returncode, out) == (130, "0 tasks done, 1 given back\n"), err
    task = tasks.take("q", timeout=0)
    assert task is not None
    assert task.attempts == 1


def test_a_terminal_shows_how_it_goes(module: Path, kit: ShardKit) -> None:
    kit.queues(component="unique").enqueue("q", "slow", [0.5])
    code, shown = in_terminal(80, "worker", "town_tasks:make", "--burst")
    assert code == 0, shown
    assert "q: 1 running, 0 tasks done" in plain(shown)
    assert plain(shown).splitlines()[-1].strip().endswith("1 task done")


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ("town_tasks", 2, "is not MODULE:WORKER"),
        ("no_such_module:worker", 1, "no_such_module cannot be imported"),
        ("town_tasks:missing", 1, "town_tasks has no missing"),
        ("town_tasks:number", 1, "is not a Worker, nor a function"),
        ("town_tasks:wrong", 1, "is a int"),
        ("town_tasks:mixed", 1, "not async"),
        ("town_tasks:amixed", 1, "an async function returned a Worker; return an AsyncWorker"),
    ],
)
def test_an_invalid_worker_is_one_line_of_error(
    cli: Cli,
    module: Path,
    town_map: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("TOWN", str(town_map))
    result = cli("worker", spec, "--burst")
    assert result.code == code
    assert said in result.error()


def test_a_factory_that_raises_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raising.py").write_text(
        "def make(kit):\n    raise ValueError('no good')\n"
        "async def amake(kit):\n    raise ValueError('no good')\n"
    )
    (tmp_path / "raising_module.py").write_text("1 / 0\n")
    for name in ("make", "amake"):
        refused = cli("worker", f"raising:{name}")
        assert refused.error() == (
            f"raising:{name} raised ValueError: no good; correct it: --debug shows where"
        )
    module = cli("worker", "raising_module:worker")
    assert "raising_module raised ZeroDivisionError" in module.error()


@pytest.mark.parametrize("name", ["make", "amake"])
def test_liveness_probes_are_answered_on_a_port(
    module: Path, kit: ShardKit, town_map: Path, name: str
) -> None:
    port = free_port()
    worker = started(module, town_map, "--live-port", str(port), name=name)

    def status(path: str) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    try:
        assert eventually(lambda: status("/live") == 200)
        assert status("/secrets") == 404
        kit.queues(component="unique").enqueue("q", "note", ["here"])
        assert eventually(lambda: done(module) == ["here"])  # it handles signals by now
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert worker.returncode == 0


def test_a_stuck_worker_is_not_live(kit: ShardKit) -> None:
    worker = Worker(kit.queues(component="unique"), ["q"], {})
    assert worker.is_live
    later = time.monotonic() + 61
    with patch("time.monotonic", lambda: later):
        assert not worker.is_live


@pytest.mark.parametrize("name", ["make", "amake"])
def test_a_burst_ends_when_no_server_can_be_reached(
    module: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "away.yaml"
    path.write_text("components: {unique: {entry: {port: 1}}}")
    process = started(module, path, "--burst", name=name)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    *warnings, error = err.splitlines()
    assert "unique (localhost:1/0) cannot be reached" in error
    when = r"warning: [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} "
    said = [re.sub(when, "", line).partition(":")[0] for line in warnings]
    assert said == ["unique (localhost", "cannot take tasks, and tries again"]


def test_an_interrupt_while_it_starts_is_one_line() -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'shardkit.cli.app': raise KeyboardInterrupt\n"
        "from shardkit.__main__ import main\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "shardkit: error: interrupted\n")


WHERE = ("--component", "unique", "--name", "jobs")


@pytest.fixture
def queues(town_map: Path) -> Iterator[TaskQueues[Any]]:
    with shardkit.connect(town_map) as kit:
        yield kit.queues("jobs", component="unique", attempts=1)


def fail(queues: TaskQueues[Any], reason: str) -> None:
    task = queues.take("email")
    assert task is not None
    queues.fail(task, reason)


def test_queues_are_shown_with_their_tasks_and_the_oldest(
    queues: TaskQueues[Any], cli: Cli
) -> None:
    assert cli("queues", "show", *WHERE).out == "no queue holds a task\n"
    queues.enqueue_many("email", [("send", [n]) for n in range(5)])
    queues.enqueue("push", "later", delay=60)
    fail(queues, "no such address")
    email, push = cli.json("queues", "show", *WHERE)
    assert 0 <= email.pop("oldest_seconds") < 5
    assert email.pop("enqueued_per_second") == pytest.approx(5 / 330, abs=0.002)
    assert email.pop("failed_per_second") == pytest.approx(1 / 330, abs=0.001)
    assert email == {
        "queue": "email",
        "waiting": 4,
        "delayed": 0,
        "taken": 0,
        "dead": 1,
        "overdue_seconds": None,
        "finished_per_second": 0.0,
        "growth_per_second": None,
    }
    assert (push["delayed"], push["oldest_seconds"]) == (1, None)
    [watched] = cli.json("queues", "show", "email", "--watch", "0.05", *WHERE)
    assert watched["growth_per_second"] == 0
    assert "email" in cli("queues", "show", *WHERE).out


def test_tasks_that_no_worker_moves_are_overdue(queues: TaskQueues[Any], cli: Cli) -> None:
    queues.enqueue("email", "send", delay=0.01)
    time.sleep(1.1)  # the server's clock is asked for whole seconds
    [row] = cli.json("queues", "show", *WHERE)
    assert row["overdue_seconds"] > 0


def test_dead_tasks_are_shown_with_reasons_and_revived(queues: TaskQueues[Any], cli: Cli) -> None:
    for n in range(3):
        queues.enqueue("email", "send", [n], id=f"m{n}")
        fail(queues, f"no address {n}")
    found = cli.json("queues", "dead", "email", "--limit", "2", *WHERE)
    assert found["dead"] == 3
    assert [(row["id"], row["args"], row["reason"]) for row in found["tasks"]] == [
        ("m0", [0], "no address 0"),
        ("m1", [1], "no address 1"),
    ]
    assert "3 dead tasks, 3 shown" in cli("queues", "dead", "email", *WHERE).out
    result = cli("queues", "revive", "email", "m1", "nope", *WHERE, code=1)
    assert result.lines == ["1 task revived", "nope is not dead"]
    assert cli.json("queues", "revive", "email", "--all", *WHERE)["revived"] == 2
    assert queues.counts("email") == (3, 0, 0, 0)
    assert cli("queues", "dead", "email", *WHERE).lines == ["0 dead tasks, 0 shown"]
    assert cli("queues", "revive", "email", "--all", *WHERE).lines == ["0 tasks revived"]
    assert cli("queues", "revive", "email", *WHERE).error().startswith("name the tasks, or use")


def test_tasks_are_cancelled_and_queues_purged(queues: TaskQueues[Any], cli: Cli) -> None:
    queues.enqueue_many("email", [("send", [n], 0, f"m{n}") for n in range(4)])
    found = cli.json("queues", "cancel", "email", "m0", "m1", *WHERE)
    assert found == {"queue": "email", "cancelled": 2, "missing": []}
    gone = cli("queues", "cancel", "email", "m0", *WHERE, code=1)
    assert "m0 neither waits nor is delayed" in gone.out
    assert cli("queues", "purge", "email", *WHERE, input="n\n").code == 130
    assert queues.counts("email").waiting == 2
    assert cli("queues", "purge", "email", "--yes", *WHERE).out == "2 tasks removed\n"
    assert "is empty" in cli("queues", "purge", "email", "--yes", *WHERE).error()


def test_holders_and_waiters_are_shown_and_holds_are_ended(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit, ThreadPoolExecutor(1) as pool:
        stock = kit.lock("stock", component="unique", label="first", renew=False)
        held = stock.acquire()
        assert held is not None
        assert kit.semaphore("pages", component="followers", limit=2, label="reader").acquire()
        second = kit.lock("stock", component="unique", label="second")
        waiting = pool.submit(second.acquire)
        while not stock.inspect().waiters:
            pass
        rows = json.loads(cli("locks", "show", "--json").out)
        assert [(r["component"], r["kind"], r["name"], r["state"], r["who"]) for r in rows] == [
            ("followers", "semaphore", "pages", "holds", "reader"),
            ("unique", "lock", "stock", "holds", "first"),
            ("unique", "lock", "stock", "waits", "second"),
        ]
        assert rows[1]["token"] == held.token
        shown = cli("locks", "show", "unique").out
        assert "first" in shown
        assert "reader" not in shown
        arguments = ("locks", "break", "unique", "stock", "--reason", "gone")
        assert cli(*arguments).out == "1 hold of lock 'stock' ended\n"
        assert waiting.result(20) is not None
        assert stock.extend(hold=held) is False
        assert cli("locks", "break", "unique", "nothing", "--reason", "x").code == 1
    assert cli("locks", "break", "unique", "stock").code == 2


AT = ("--component", "unique")


def test_a_log_is_shown_oldest_first_from_a_severity_on(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit:
        times = iter([1.5e9, 1.5e9 + 1, 1.5e9 + 2])
        logs = clocked(kit, now=times.__next__).logs(component="unique")
        logs.log("shop", "first [bold]ü", "error")
        logs.log("shop", "second")
        logs.log("shop", "hidden", "debug")
    shown = cli("logs", "shop", *AT, "-s", "info")
    assert shown.out.splitlines() == [
        "2017-07-14 02:40:00.000 error    first [bold]ü",
        "2017-07-14 02:40:01.000 info     second",
    ]
    lines = cli("logs", "shop", *AT, "-n", "1", "--json").out.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["first [bold]ü", "second", "hidden"]
    assert json.loads(lines[0])["time"] == "2017-07-14T02:40:00+00:00"
    assert cli("logs", "nothing", *AT) == Result(0, "", "")
