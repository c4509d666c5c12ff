"""Odd arguments for kits, routers and subscriptions: an error of the tree, before it hangs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import PATIENCE, Face, faced

from shardkit import ShardKitError
from shardkit.local import LocalServer


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


ODD: list[Any] = [None, "x", "", -1, float("nan"), float("inf"), 2**70, 10**5000, True]
ODD += [b"x", b"", [], ["a"], (), ("a",), {}, {"a": 1}, Odd()]
SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("component", "key", "channel", "name", "pattern"), "many"),
    **{name: [] for name in ("keys", "pairs", "names")},
}
SAMPLES |= {"ttl": 1, "timeout": 0.01, "command": "GET", "mapping": {"k": 1}}
TAKE_TIME = {"health", "listen", "close", "aclose", "run_in_thread"}
PYTHONS = "argument"  # of an error for missing or unexpected arguments, which names them


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with LocalServer() as server:
        shards = [{"port": server.port, "db": number} for number in (1, 2)]
        with faced(request.param, map_of(many={"shards": shards})) as face:
            yield face


def calls(method: Any) -> Iterator[tuple[str, Any, list[Any], dict[str, Any]]]:
    """Calls with one odd argument each: (its name, its value, args, kwargs)."""
    parameters = list(inspect.signature(method).parameters.values())
    required = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    for odd in parameters:
        for value in ODD:
            if value is None and "timeout" in odd.name:
                continue  # for ever, as it should
            before = [SAMPLES.get(p.name, 1) for p in required if p is not odd]
            if odd.kind is odd.VAR_POSITIONAL:
                yield odd.name, value, [*before, value], {}
            elif odd.kind is odd.KEYWORD_ONLY or odd not in required:
                yield odd.name, value, before, {odd.name: value}
            else:
                yield odd.name, value, [value if p is odd else 1 for p in required], {}


def results(face: Face, result: Any) -> None:
    """Wait for what a call returned, as far as it goes in some time."""
    if face.runner is None:
        if inspect.isgenerator(result):
            next(result, None)
        return

    async def first() -> None:
        if inspect.isawaitable(result):
            await result
        elif inspect.isasyncgen(result):
            await anext(result, None)

    face.runner.run(asyncio.wait_for(first(), 5 * PATIENCE))


def test_odd_arguments_of_kits_routers_and_subscriptions_are_errors_of_the_tree(
    face: Face,
) -> None:
    router = face.kit.key_sharded("many")
    face.run(router.mget(["k"]))
    subscriptions = router.pubsub()
    face.run(subscriptions.subscribe("news"))
    raw, tried = [], 0
    of_pairs = face.kit.id_pair_sharded("many")
    for thing in (face.kit, router, of_pairs, router.all, subscriptions):
        for name in set(dir(thing)) - TAKE_TIME - {"directory"}:
            method = getattr(thing, name)
            own = getattr(inspect.unwrap(method), "__module__", "") if callable(method) else ""
            if name[0] == "_" or inspect.isclass(method) or not str(own).startswith("shardkit"):
                continue  # redis-py's own, among others
            for argument, value, args, kwargs in calls(method):
                tried += 1
                try:
                    results(face, method(*args, **kwargs))
                except (ShardKitError, redis.RedisError):
                    pass
                except Exception as error:
                    if not (isinstance(error, TypeError) and PYTHONS in str(error)):
                        raw.append((type(thing).__name__, name, argument, type(value), error))
    subscriptions.close()
    assert raw == []
    assert tried > 1000


@pytest.mark.parametrize("timeout", ["x", b"", -1, float("nan"), float("inf"), 2**70, [], Odd()])
def test_a_wait_for_a_message_takes_seconds(face: Face, timeout: Any) -> None:
    subscriptions = face.kit.key_sharded("many").pubsub()
    with pytest.raises(ShardKitError, match=r"get_message: timeout=.*; give"):
        face.run(subscriptions.get_message(timeout=timeout))


class Name(str):
    """Text of an application's own class."""


def test_a_component_s_name_may_be_text_of_another_class(face: Face) -> None:
    names = face.kit.set("names", component=Name("many"), total=100)
    assert face.run(names.sadd("a", "b")) == 2
    assert face.run(face.kit.set("names", component="many", total=100).scard()) == 2


def test_prefixes_of_near_copies_are_texts(face: Face) -> None:
    with pytest.raises(ShardKitError, match=r"prefixes=.*; give texts"):
        face.kit.near("many", 1000, prefixes=iter(["\udcff"]))
    face.kit.near("many", 1000, prefixes=iter(["a"]))
    with pytest.raises(ShardKitError, match="is the beginning of"):
        face.kit.near("many", 1000, prefixes=iter(["a", "ab"]))
