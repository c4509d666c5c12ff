"""The small applications of examples/web, on the servers of configs/local.yaml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shardkit
from examples.web import fastapi_app, flask_app, rq_and_queues
from shardkit import ShardMap
from shardkit.local import LocalServers

with warnings.catch_warnings():  # it wants a newer httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    shard_map = ShardMap.load(ROOT / "configs" / "local.yaml")
    with LocalServers(shard_map, ports="free") as servers:
        path = tmp_path_factory.mktemp("web") / "map.yaml"
        path.write_text(servers.shard_map.to_yaml(), encoding="utf-8")
        yield str(path)


def kept(config: str, user: str) -> tuple[int, set[str]]:
    """How often a user was looked at, and the routes that were timed."""
    with shardkit.connect(config) as kit:
        times = kit.access_times(component="hits").slowest()
        hits = kit.counters(component="hits").total([user], 86_400)
        return hits, {context for context, _ in times}


@contextmanager
def fastapi_client(config: str) -> Iterator[Any]:
    with TestClient(fastapi_app.make_app(config)) as client:
        yield client


@contextmanager
def flask_client(config: str) -> Iterator[Any]:
    app = flask_app.make_app(config)
    client = app.test_client()
    with app.extensions["shardkit"]:
        yield SimpleNamespace(
            get=partial(client.get, buffered=True), put=partial(client.put, buffered=True)
        )


@pytest.mark.parametrize(
    ("opened", "user", "rule"),
    [(fastapi_client, 7, "/users/{number}"), (flask_client, 8, "/users/<int:number>")],
)
def test_an_application_keeps_names_counts_hits_and_times_its_routes(
    config: str, opened: Callable[[str], AbstractContextManager[Any]], user: int, rule: str
) -> None:
    with opened(config) as client:
        assert client.get(f"/users/{user}").status_code == 404
        assert client.put(f"/users/{user}?name=Ann").status_code == 200
        assert json.loads(client.get(f"/users/{user}").text) == {"name": "Ann"}
    hits, routes = kept(config, f"user:{user}")
    assert hits == 1
    assert routes >= {f"GET {rule}", f"PUT {rule}"}


def test_a_django_site_keeps_its_sessions_and_its_cache_on_shards(config: str) -> None:
    visits = (
        "from examples.web import django_site as site; site.settings.configure(**site.SETTINGS)\n"
        "import django; django.setup()\n"
        "from django.test import Client; client = Client()\n"
        "client.get('/log-in?name=Ann')\n"
        "print([client.get('/').content.decode() for _ in range(2)])\n"
    )
    environment = {**os.environ, "SHARDKIT_CONFIG": config, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", visits], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == ("['Ann, visit 1', 'Ann, visit 2']\n", "")


def test_a_job_of_rq_enqueues_tasks_that_a_worker_of_ours_does(config: str) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with shardkit.connect(config) as kit:
            assert sorted(rq_and_queues.work(kit, config, ["Ann", "Bob"])) == ["Ann", "Bob"]
    finally:
        for each, handler in before.items():  # rq's worker leaves its own
            signal.signal(each, handler)
