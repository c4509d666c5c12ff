"""The application of the workers that `test_celery.py` starts; SHARDKIT_CONFIG has their map."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

import shardkit.integrations.celery  # noqa: F401 - registers shardkit://

url = os.environ["CELERY_TEST_URL"]
app = Celery("celery_app", broker=url, backend=url)
app.conf.update(
    task_acks_late=True,
    broker_transport_options={"lease": float(os.environ["CELERY_TEST_LEASE"])},
    worker_prefetch_multiplier=int(os.environ["CELERY_TEST_PREFETCH"]),
    broker_connection_retry_on_startup=True,
)
done = redis.Redis.from_url(os.environ["CELERY_TEST_DONE"])


@app.task(ignore_result=True)
def work(number: int, seconds: float = 0) -> None:
    """Note that a number's task has started, and that it has ended."""
    done.rpush("started", number)
    time.sleep(seconds)  # the task's work
    done.hincrby("done", str(number), 1)


@app.task
def double(number: int) -> int:
    """Return a result."""
    return 2 * number


@app.task
def total(numbers: list[int]) -> int:
    """Return the sum of a chord's results."""
    done.incr("totals")
    return sum(numbers)


@app.task
def fail() -> None:
    """Raise."""
    raise ValueError("on purpose")
