"""Replies of another kind to Django's cache and to Celery: an error of the tree, or a value."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import PATIENCE, drawn
from kombu.exceptions import DecodeError
from relays import Relay
from test_django import cache  # which configures Django

import shardkit
from shardkit import ShardKitError
from shardkit.errors import UnexpectedReply
from shardkit.local import LocalServer

pytest.importorskip("celery")

from celery import Celery
from kombu import Connection

GARBAGE = [
    *(b"$-1\r\n", b":7\r\n", b":9223372036854775807\r\n", b"*0\r\n", b"*1\r\n*1\r\n*0\r\n"),
    *(b"*2\r\n$-1\r\n$-1\r\n", b"*2\r\n:1\r\n:-1\r\n", b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
    *(b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$2\r\n\xff\xfe\r\n", b"-WHAT is this\r\n"),
    b"*2\r\n-WHAT is this\r\n:1\r\n",
]
# A text is what GET promises, so that a serializer may refuse it.
SERIALIZERS = pickle.UnpicklingError, EOFError, DecodeError


@pytest.fixture
def relay() -> Iterator[Relay]:
    with LocalServer() as server, closing(Relay(server.port)) as relay:
        where = {"host": "127.0.0.1", "port": relay.port, "socket_timeout": 2 * PATIENCE}
        shards = [{**where, "db": number} for number in (1, 2)]
        shardkit.configure(map_of(many={"shards": shards}))
        yield relay
        shardkit.configure(None)


def errors_of(relay: Relay, calls: dict[str, Callable[[], Any]]) -> list[Any]:
    """Make calls of which one of the first replies is garbage; return their errors."""
    errors = []
    for what, call in calls.items():
        cases = list(product(range(2), GARBAGE))
        for at, reply in Random(what).sample(cases, drawn(4, len(cases))):
            relay.count, relay.nth = 0, {at: reply}
            try:
                call()
            except Exception as error:
                errors.append((what, at, reply, error))
            finally:
                relay.nth = {}
    return errors


def raw_of(errors: list[Any]) -> list[Any]:
    """Errors of neither tree, and unexpected replies of a server that is not named."""
    return [
        each
        for each in errors
        if not isinstance(each[-1], (ShardKitError, redis.RedisError, *SERIALIZERS))
        or (isinstance(each[-1], UnexpectedReply) and not each[-1].address)
    ]


@pytest.mark.parametrize("ignores", [False, True])
def test_djangos_cache_gets_garbage(relay: Relay, ignores: bool) -> None:
    many = cache("many", IGNORE_EXCEPTIONS=ignores)
    many.set_many({"a": {"b": 1}, "n": 5})

    def of_missing(call: Callable[..., Any], *args: Any) -> None:
        with suppress(ValueError):  # Django's, for a key that is not there
            call(*args)

    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: many.get("a"),
        "set": lambda: many.set("a", {"b": 1}),
        "add": lambda: many.add("a", 1),
        "touch": lambda: many.touch("a"),
        "touch for ever": lambda: many.touch("a", None),
        "delete": lambda: many.delete("none"),
        "has_key": lambda: many.has_key("a"),
        "incr": lambda: of_missing(many.incr, "n"),
        "incr_version": lambda: of_missing(many.incr_version, "n"),
        "get_or_set": lambda: many.get_or_set("computed", lambda: 7),
        "get_many": lambda: many.get_many(["a", "n", "none"]),
        "set_many": lambda: many.set_many({"a": 1, "b": 2}),
        "delete_many": lambda: many.delete_many(["x", "y"]),
        "keys": lambda: many.keys("*"),
        "ttl": lambda: many.ttl("a"),
        "expire": lambda: many.expire("a", 9),
        "persist": lambda: many.persist("a"),
        "clear": many.clear,
    }
    errors = errors_of(relay, calls)
    assert raw_of(errors) == []
    if ignores:
        assert [each for each in errors if not isinstance(each[-1], SERIALIZERS)] == []


def test_celerys_results_and_queues_get_garbage(relay: Relay) -> None:
    app = Celery("garbage", backend="shardkit://many", broker="shardkit://many")
    results = app.backend
    part = SimpleNamespace(group="g", id="t", group_index=0, chord={"task": "a.b", "options": {}})

    def consume() -> None:
        with Connection("shardkit://many") as connection:
            queue = connection.SimpleQueue("q")
            queue.put({"a": 1})
            with suppress(queue.Empty):
                queue.get(block=False).ack()
            queue.close()

    calls: dict[str, Callable[[], Any]] = {
        "store": lambda: results.store_result("t", 1, "SUCCESS"),
        "get": lambda: results.get_task_meta("t"),
        "mget": lambda: list(results.get_many(["t"], timeout=0.2, max_iterations=1)),
        "forget": lambda: results.forget("u"),
        "chord": lambda: results.set_chord_size("g", 2),
        "part": lambda: results.on_chord_part_return(part, "SUCCESS", 1),
        "consume": consume,
    }
    assert raw_of(errors_of(relay, calls)) == []
