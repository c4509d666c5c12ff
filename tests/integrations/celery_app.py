"""The application of the workers that `test_celery.py` starts."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

import shardkit.integrations.celery  # noqa: F401 - registers shardkit://

URL = os.environ["CELERY_TEST_URL"]
app = Celery("app", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    broker_transport_options={"lease": float(os.environ.get("CELERY_TEST_LEASE", "3"))},
    worker_prefetch_multiplier=int(os.environ.get("CELERY_TEST_PREFETCH", "4")),
    broker_connection_retry_on_startup=True,
    task_create_missing_queues=True,
)
done = redis.Redis.from_url(os.environ["CELERY_TEST_DONE"])


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def work(number: int, seconds: float = 0) -> None:
    """Count the runs of each number, in the order in which they start."""
    done.rpush("order", number)
    time.sleep(seconds)
    done.hincrby("done", str(number), 1)


@app.task  # type: ignore[untyped-decorator]
def double(number: int) -> int:
    """Return a result."""
    return 2 * number


@app.task  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    """Return the sum of a chord's results."""
    done.hincrby("done", "total", 1)
    return sum(numbers)


@app.task  # type: ignore[untyped-decorator]
def fail(*_: Any) -> None:
    """Raise."""
    raise ValueError("on purpose")
