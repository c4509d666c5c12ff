"""Django's tasks (Django 6 or later) as tasks of `shardkit.queues`, and a worker for them.

docs/integrations.md has the settings; the worker serves ``QUEUES`` in their order. Tasks run at
least once, and are retried, as those of every worker. Their results are not kept, and their
priority is that of their queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from traceback import format_exception
from typing import Any

import django
from django.db import close_old_connections
from django.tasks import (
    DEFAULT_TASK_QUEUE_NAME,
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    task_backends,
)
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from shardkit.errors import NewerFormatError
from shardkit.integrations.kits import kit_of
from shardkit.kit.kit import ShardKit
from shardkit.queues import Worker
from shardkit.queues.task_codec import Task as QueuedTask


class ShardKitTasks(BaseTaskBackend):
    """Django's backend of tasks; see the module's text."""

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.order = list(params.get("QUEUES", [DEFAULT_TASK_QUEUE_NAME]))  # Django keeps a set

    def tasks(self, kit: ShardKit | None = None) -> Any:
        """Return the task queues."""
        kit = kit or kit_of(self.options.get("TOPOLOGY"))
        name = self.options.get("NAME", "queues")
        return kit.queues(name, component=self.options["COMPONENT"])

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Queue a task. Cost: one exchange."""
        self.validate_task(task)
        result = self.result(task, get_random_string(32), args, kwargs)
        now = timezone.now()
        delay = (task.run_after - now).total_seconds() if task.run_after else 0
        content = [result.args, result.kwargs]
        self.tasks().enqueue(task.queue_name, task.module_path, content, delay=delay, id=result.id)
        _change(result, enqueued_at=now)
        task_enqueued.send(type(self), task_result=result)
        return result

    def result(self, task: Any, id_: str, args: Any, kwargs: Any) -> Any:
        """Return what Django's callers and signals get of a task."""
        times = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
        return TaskResult(
            task=task, id=id_, status=TaskResultStatus.READY, args=args, kwargs=kwargs,
            backend=self.alias, errors=[], worker_ids=[], **times,
        )  # fmt: skip


class _DjangoWorker(Worker):
    """Finds what a task calls by its path, which must be that of a task of Django."""

    backend: ShardKitTasks

    def _callback_of(self, task: QueuedTask) -> Callable[..., Any]:
        try:
            imported = import_string(task.name)
        except ImportError:
            imported = None
        if not isinstance(imported, Task):
            raise NewerFormatError(
                f"{task.name} is no task of Django", "start a worker of the version that has it"
            )
        return partial(self._call, task, imported.using(queue_name=task.queue))

    def _call(self, queued: QueuedTask, task: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        backend, now = self.backend, timezone.now()
        result = backend.result(task, queued.id, args, kwargs)
        _change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        result.worker_ids.extend([queued.claim] * queued.attempts)
        task_started.send(type(backend), task_result=result)
        context = [TaskContext(task_result=result)] if task.takes_context else []
        close_old_connections()
        status = TaskResultStatus.FAILED
        try:
            task.call(*context, *args, **kwargs)
            status = TaskResultStatus.SUCCESSFUL
        except BaseException as error:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            traceback = "".join(format_exception(error))
            result.errors.append(TaskError(exception_class_path=path, traceback=traceback))
            raise
        finally:
            close_old_connections()
            _change(result, status=status, finished_at=timezone.now())
            task_finished.send(type(backend), task_result=result)


def make_worker(kit: ShardKit, alias: str = "default") -> Worker:
    """Return a worker of a backend's queues, for ``shardkit worker``."""
    django.setup()
    backend = task_backends[alias]
    worker = _DjangoWorker(backend.tasks(kit), backend.order)
    worker.backend = backend
    return worker


def _change(result: Any, **fields: Any) -> None:
    for name, value in fields.items():  # it is frozen; Django's own backend does so, too
        object.__setattr__(result, name, value)
