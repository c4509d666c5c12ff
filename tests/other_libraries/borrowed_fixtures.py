"""A pytest plugin: what the suites of libraries expect of the machine that they run on."""

from __future__ import annotations

import json
import os
import sys
import types
import unittest
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

PORT = int(os.environ.get("SUITES_PORT", "6379"))


class RedisContainer:
    """arq's suite runs its server in a container; here it is there already."""

    port = PORT

    def __init__(self, image: str = "") -> None: ...

    def __enter__(self) -> RedisContainer:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def get_container_host_ip(self) -> str:
        return "localhost"

    def get_exposed_port(self, port: int) -> int:
        return port


_containers = types.ModuleType("testcontainers.redis")
_containers.RedisContainer = RedisContainer  # type: ignore[attr-defined]
sys.modules.setdefault("testcontainers", types.ModuleType("testcontainers"))
sys.modules["testcontainers.redis"] = _containers


async def create_redis_queue(*args: Any, **kwargs: Any) -> Any:
    """What saq's tests/helpers.py, which its sdist lacks, makes of a queue's options."""
    from saq.queue import Queue

    queue: Any = Queue.from_url(f"redis://localhost:{PORT}", **kwargs)
    await queue.connect()
    return queue


async def cleanup_queue(queue: Any) -> None:
    await queue.redis.flushdb()
    await queue.disconnect()


async def no_postgresql(*args: Any, **kwargs: Any) -> Any:
    raise unittest.SkipTest("there is no PostgreSQL here")


_helpers = types.ModuleType("tests.helpers")
for _name, _function in (
    ("create_redis_queue", create_redis_queue),
    ("cleanup_queue", cleanup_queue),
    ("create_postgres_queue", no_postgresql),
    ("setup_postgres", no_postgresql),
    ("teardown_postgres", no_postgresql),
):
    setattr(_helpers, _name, _function)


def note(**said: str) -> None:
    """Write a line to what `suites` reads, at once: some tests can kill the process."""
    with Path(os.environ["SUITES_REPORT"]).open("a") as file:
        file.write(json.dumps(said) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        note(test=item.nodeid, outcome="not run")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        note(test=report.nodeid, outcome=report.outcome)


def pytest_sessionfinish() -> None:
    note(ended="")
    if "on_private_clients" in sys.modules:  # the end of the process may wait for workers
        sys.modules["on_private_clients"].tell()


def pytest_configure() -> None:
    if Path("saq").is_dir():
        sys.modules["tests.helpers"] = _helpers


@pytest.fixture
def redis() -> Iterator[Any]:  # pottery's sdist has no conftest
    from redis import Redis

    client: Any = Redis.from_url(f"redis://localhost:{PORT}/1", socket_timeout=1)
    client.flushdb()
    yield client
    client.flushdb()


@pytest_asyncio.fixture
async def aioredis() -> AsyncIterator[Any]:
    from redis.asyncio import Redis

    client: Any = Redis.from_url(f"redis://localhost:{PORT}/1", socket_timeout=1)
    await client.flushdb()
    yield client
    await client.flushdb()
    await client.aclose()


class Services:
    """What pytest-docker gives limits' suite; the servers are there already."""

    def start(self, *names: str) -> None: ...

    def wait_for_service(self, *args: Any) -> None: ...


@pytest.fixture(scope="session")
def docker_services() -> Services:
    return Services()
