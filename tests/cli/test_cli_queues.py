"""``shardkit queues``: how queues are doing, and what becomes of their tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Result

import shardkit
from shardkit.queues import TaskQueues

Cli = Callable[..., Result]
ReadJson = Callable[..., Any]
WHERE = ("--component", "unique", "--name", "jobs")


@pytest.fixture
def queues(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskQueues[Any]]:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))
    with shardkit.connect(town_map) as kit:
        yield kit.queues("jobs", component="unique", attempts=1)


def test_queues_are_shown_with_their_tasks_and_the_oldest(
    queues: TaskQueues[Any], cli: Cli, read_json: ReadJson
) -> None:
    assert cli("queues", "show", *WHERE).out == "no queue holds a task\n"
    queues.enqueue_many("email", [("send", [n]) for n in range(5)])
    queues.enqueue("push", "later", delay=60)
    task = queues.take("email")
    assert task is not None
    queues.fail(task, "no such address")
    email, push = read_json("queues", "show", *WHERE)
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
    [watched] = read_json("queues", "show", "email", "--watch", "0.05", *WHERE)
    assert watched["growth_per_second"] == 0
    assert "email" in cli("queues", "show", *WHERE).out


def test_tasks_that_no_worker_moves_are_overdue(
    queues: TaskQueues[Any], read_json: ReadJson
) -> None:
    queues.enqueue("email", "send", delay=0.01)
    time.sleep(1.1)  # the server's clock is asked for whole seconds
    [row] = read_json("queues", "show", *WHERE)
    assert row["overdue_seconds"] > 0


def test_dead_tasks_are_shown_with_reasons_and_revived(
    queues: TaskQueues[Any], cli: Cli, read_json: ReadJson
) -> None:
    for n in range(3):
        queues.enqueue("email", "send", [n], id=f"m{n}")
        task = queues.take("email")
        assert task is not None
        queues.fail(task, f"no address {n}")
    found = read_json("queues", "dead", "email", "--limit", "2", *WHERE)
    assert found["dead"] == 3
    assert [(row["id"], row["args"], row["reason"]) for row in found["tasks"]] == [
        ("m0", [0], "no address 0"),
        ("m1", [1], "no address 1"),
    ]
    assert "3 dead tasks, 3 shown" in cli("queues", "dead", "email", *WHERE).out
    result = cli("queues", "revive", "email", "m1", "nope", *WHERE)
    assert result.code == 1
    assert result.lines == ["1 task revived", "nope is not dead"]
    assert read_json("queues", "revive", "email", "--all", *WHERE)["revived"] == 2
    assert queues.counts("email") == (3, 0, 0, 0)
    assert cli("queues", "dead", "email", *WHERE).lines == ["0 dead tasks, 0 shown"]
    assert cli("queues", "revive", "email", "--all", *WHERE).lines == ["0 tasks revived"]
    assert cli("queues", "revive", "email", *WHERE).error().startswith("name the tasks, or use")


def test_tasks_are_cancelled_and_queues_purged(
    queues: TaskQueues[Any], cli: Cli, read_json: ReadJson
) -> None:
    queues.enqueue_many("email", [("send", [n], 0, f"m{n}") for n in range(4)])
    assert read_json("queues", "cancel", "email", "m0", "m1", *WHERE) == {
        "queue": "email",
        "cancelled": 2,
        "missing": [],
    }
    gone = cli("queues", "cancel", "email", "m0", *WHERE)
    assert gone.code == 1
    assert "m0 neither waits nor is delayed" in gone.out
    assert cli("queues", "purge", "email", *WHERE, input="n\n").code == 130
    assert queues.counts("email").waiting == 2
    assert cli("queues", "purge", "email", "--yes", *WHERE).out == "2 tasks removed\n"
    assert "is empty" in cli("queues", "purge", "email", "--yes", *WHERE).error()
