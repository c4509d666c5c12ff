"""``shardkit queues``, ``locks`` and ``logs``: what is shown of them, and changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Cli, Result
from faces import clocked

import shardkit
from shardkit.queues import TaskQueues

WHERE = ("--component", "unique", "--name", "jobs")


@pytest.fixture
def queues(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskQueues[Any]]:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))
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
    assert cli.json("queues", "cancel", "email", "m0", "m1", *WHERE) == {
        "queue": "email",
        "cancelled": 2,
        "missing": [],
    }
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
        rows = json.loads(cli("locks", "show", "-c", town_map, "--json").out)
        assert [(r["component"], r["kind"], r["name"], r["state"], r["who"]) for r in rows] == [
            ("followers", "semaphore", "pages", "holds", "reader"),
            ("unique", "lock", "stock", "holds", "first"),
            ("unique", "lock", "stock", "waits", "second"),
        ]
        assert rows[1]["token"] == held.token
        shown = cli("locks", "show", "unique", "-c", town_map).out
        assert "first" in shown
        assert "reader" not in shown
        arguments = ("locks", "break", "unique", "stock", "--reason", "gone", "-c", town_map)
        assert cli(*arguments).out == "1 hold of lock 'stock' ended\n"
        assert waiting.result(20) is not None
        assert stock.extend(hold=held) is False
        assert cli("locks", "break", "unique", "nothing", "--reason", "x", "-c", town_map).code == 1
    assert cli("locks", "break", "unique", "stock", "-c", town_map).code == 2


AT = ("--component", "unique")


def test_a_log_is_shown_oldest_first_from_a_severity_on(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit:
        times = iter([1.5e9, 1.5e9 + 1, 1.5e9 + 2])
        logs = clocked(kit, now=times.__next__).logs(component="unique")
        logs.log("shop", "first [bold]ü", "error")
        logs.log("shop", "second")
        logs.log("shop", "hidden", "debug")
    shown = cli("logs", "shop", *AT, "-s", "info", "-c", town_map)
    assert shown.out.splitlines() == [
        "2017-07-14 02:40:00.000 error    first [bold]ü",
        "2017-07-14 02:40:01.000 info     second",
    ]
    lines = cli("logs", "shop", *AT, "-n", "1", "--json", "-c", town_map).out.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["first [bold]ü", "second", "hidden"]
    assert json.loads(lines[0])["time"] == "2017-07-14T02:40:00+00:00"
    assert cli("logs", "nothing", *AT, "-c", town_map) == Result(0, "", "")


def test_following_ends_with_ctrl_c(
    cli: Cli, town_map: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shardkit.connect(town_map) as kit:
        kit.logs(component="unique").log("shop", "text")

    def interrupt(link: object, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardkit.network.links.link.BlockingLink.pause", interrupt)
    found = cli("logs", "shop", *AT, "--follow", "-c", town_map)
    assert "text" in found.out
    assert found.code == 130
