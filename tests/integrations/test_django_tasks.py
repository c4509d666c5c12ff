"""Django's tasks as tasks of the queues; Django 6 or later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from test_django import settings

import shardkit
from shardkit import ShardKit, ShardMap

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
settings.TASKS = {
    "default": {
        "BACKEND": "shardkit.integrations.django.tasks.ShardKitTasks",
        "QUEUES": ["urgent", "default"],
        "OPTIONS": {"COMPONENT": "few"},
    }
}

from django.tasks import TaskResultStatus, task  # noqa: E402 - needs settings
from django.tasks.exceptions import InvalidTask  # noqa: E402
from django.tasks.signals import task_finished  # noqa: E402
from django.utils import timezone  # noqa: E402

from shardkit.integrations.django.tasks import make_worker  # noqa: E402

ran: list[Any] = []


@task
def write(text: str, *, copies: int = 1) -> None:
    ran.append((text, copies))


@task(takes_context=True)
def fail_once(context: Any) -> None:
    ran.append(context.attempt)
    if context.attempt == 1:
        raise KeyError("not yet")


@pytest.fixture(autouse=True)
def _default_kit(shard_map: ShardMap) -> Iterator[None]:
    shardkit.configure(shard_map)
    ran.clear()
    yield
    shardkit.configure(None)


def test_tasks_of_django_run_in_the_order_of_their_queues(kit: ShardKit) -> None:
    result = write.enqueue("later", copies=2)
    assert result.status == TaskResultStatus.READY
    write.using(queue_name="urgent").enqueue("now")
    write.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("tomorrow")
    assert make_worker(kit).run(burst=True).done == 2
    assert ran == [("now", 1), ("later", 2)]
    assert kit.queues(component="few").counts("default").delayed == 1


def test_a_task_that_fails_is_tried_again(kit: ShardKit) -> None:
    finished: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        finished.append((task_result.id, task_result.status, len(task_result.errors)))

    task_finished.connect(note)
    result = fail_once.enqueue()
    worker = make_worker(kit)
    worker.run(burst=True)
    assert kit.queues(component="few").counts("default").delayed == 1
    time.sleep(1.1)  # until it is due
    worker.run(burst=True)
    assert ran == [1, 2]
    assert finished == [
        (result.id, TaskResultStatus.FAILED, 1),
        (result.id, TaskResultStatus.SUCCESSFUL, 0),
    ]
    task_finished.disconnect(note)


def test_what_cannot_be_queued_is_refused(kit: ShardKit) -> None:
    for changes in ({"priority": 5}, {"queue_name": "unknown"}):
        with pytest.raises(InvalidTask, match=r"priority|Queue 'unknown' is not valid"):
            write.using(**changes)
    with pytest.raises(TypeError, match=r"JSON|Unsupported type"):
        write.enqueue(object())
    kit.queues(component="few").enqueue("default", "os.getcwd", [[], {}])
    assert make_worker(kit).run(burst=True).released == 1
