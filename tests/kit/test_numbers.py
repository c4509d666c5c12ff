"""What is no number that can be used is refused before anything is sent, wherever one is given."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import hiredis
import pytest
from faces import Face, own_client

import shardkit
from shardkit.coordination import Guard
from shardkit.dashboard import FleetWatch
from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.integrations.asgi import SessionMiddleware
from shardkit.integrations.wsgi import FlaskSessions
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.health import wsgi
from shardkit.network.links import resp
from shardkit.network.replicas import ReadFrom
from shardkit.operations.arguments import annotations_of, kind_of
from shardkit.structures import Degrees, FixedBytes, Float, Signed, Tokens, Unsigned, Zstd

NUMBERS: list[Any] = [10**5000, -(10**5000), 10**400, math.nan, -math.inf]
OTHERS: list[Any] = [Decimal(1), Decimal("nan"), Fraction(1, 2), "5", 1j, [5]]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "token": lambda kit, bad: Guard(kit.driver, "one", "lock", "l", bad),
    "asgi": lambda kit, bad: SessionMiddleware(None, component="one", ttl=bad),  # type: ignore[arg-type]
    "flask": lambda kit, bad: FlaskSessions(kit, component="one", ttl=bad),
    "router": lambda kit, bad: kit.key_sharded("many").client(bad),
    "deadline": lambda kit, bad: kit.deadline(bad),
    "durable": lambda kit, bad: kit.durable(timeout=bad),
    "replicas": lambda kit, bad: kit.durable(replicas=bad),
    "health": lambda kit, bad: kit.health(bad),
    "shard": lambda kit, bad: kit.client("many", bad),
    "shards": lambda kit, bad: kit.key_sharded("many", bad),
    "max_age": lambda kit, bad: kit.redis_connection("one", max_age=bad),
    "ttl": lambda kit, bad: kit.cached("one", ttl=bad, key="k")(int)(1),
    "averages_ttl": lambda kit, bad: kit.ads(component="one", averages_ttl=bad),
    "weight": lambda kit, bad: kit.search(component="one", fields={"text": bad}),
    "sort": lambda kit, bad: kit.search(component="one").search("x", sort={"relevance": bad}),
    "wait": lambda kit, bad: kit.rate_limit("r", component="one", limit=1).wait("k", timeout=bad),
    "amount": lambda kit, bad: kit.hash("h", component="one").hincrbyfloat("k", bad),
    "value": lambda kit, bad: kit.statistics(component="one").record("a", "b", bad),
    "older_than": lambda kit, bad: kit.social(component="one", parts=1).repair(older_than=bad),
    "max_lag": lambda kit, bad: ReadFrom("replica", max_lag=bad),
    "threshold": lambda kit, bad: wsgi(kit, threshold=bad),
    "interval": lambda kit, bad: FleetWatch(kit, interval=bad),
    "masters": lambda kit, bad: LocalCluster(bad),
    "down_after": lambda kit, bad: LocalSentinel(down_after=bad),
    "databases": lambda kit, bad: LocalServer(databases=bad),
    **{
        made.__name__: lambda kit, bad, made=made: made(bad)
        for made in (Unsigned, Signed, Float, FixedBytes, Tokens, Zstd)
    },
    "Degrees": lambda kit, bad: Degrees("lat", bad),
    "size": lambda kit, bad: Zstd(size=bad),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(face: Face, name: str) -> None:
    for bad in NUMBERS + OTHERS:
        with pytest.raises(InvalidArgumentError, match=r"give|use"):
            face.run(CALLS[name](face.kit, bad))


MODULES = ["admin", "admin.growth", "admin.growth.awaiting", "events", "geo", "integrations.otel"]
MODULES += ["integrations.prometheus", "messaging", "metrics", "network.health", "operations"]
MODULES += ["search", "structures", "structures.encodings", "testing"]
# What some arguments must be for a call to reach its numbers; all others are None.
GIVEN: dict[str, Any] = {"values": [1], "component": "c", "servers": ["h:1"], "rates": {}}
GIVEN |= {"commands": 1, "size": 1, "growth": 1, "periods": 1, "form": "hash", "name": "n"}
# They first look at what they are about, which a call here does not have.
LATER = {"apply_balance", "apply_map", "compare", "convert", "replan", "resume_move"}
LATER |= {"reverse_move", "verify_move", "snippet", "range_over", "limits_at"}
LATER |= {"plan_split shards", "start_split shards"}


def numbers() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """The numbers that public functions take: names, the function, the argument."""
    for module in MODULES:
        public = importlib.import_module(f"shardkit.{module}")
        for name in public.__all__:
            function = getattr(public, name)
            if not inspect.isfunction(function) or name in LATER:
                continue
            for argument, hint in annotations_of(function).items():
                kind = kind_of(hint)
                if argument == "options" and "MoveOptions" in str(hint):
                    arguments = ["hold", "copy_timeout", "share"]
                elif kind and kind.accepts(1) and not (kind.accepts("1") or kind.accepts(b"1")):
                    arguments = [argument] * (hint is not bool and argument != "return")
                else:
                    continue
                for each in arguments:
                    if f"{name} {each}" not in LATER:
                        yield f"{module}.{name} {each}", function, each


@pytest.mark.parametrize(
    ("function", "argument"), [pytest.param(*rest, id=name) for name, *rest in numbers()]
)
async def test_a_function_refuses_a_number_before_it_looks_at_anything_else(
    function: Callable[..., Any], argument: str
) -> None:
    required = {
        each.name: GIVEN.get(each.name)
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind < each.VAR_KEYWORD and each.name != "files"
    }
    for bad in (*NUMBERS, "5", 1j):
        with pytest.raises(InvalidArgumentError, match=rf"{argument}=|give"):
            await outcome(function(**{**required, argument: bad}))


async def outcome(made: Any) -> None:
    if inspect.isawaitable(made):
        await made
    elif inspect.isgenerator(made):
        next(made)


@pytest.mark.parametrize("option", ["deadline", "heat"])
def test_options_of_a_kit_that_are_no_numbers_are_refused(
    shard_map: shardkit.ShardMap, option: Any
) -> None:
    for bad in (*NUMBERS, "x"):
        with pytest.raises((InvalidArgumentError, ConfigError), match=r"give|use"):
            shardkit.connect(shard_map, **{option: bad})


def test_an_integer_of_thousands_of_digits_is_refused_wherever_it_is_given(face: Face) -> None:
    big, kit = 10**5000, face.kit
    router = kit.key_sharded("many")
    face.run(router.mget(["k"]))
    client: Any = own_client(kit, "one") if face.runner is None else None
    lock = face.run(kit.lock("l", component="one").acquire())

    async def by_client() -> None:
        await own_client(kit, "one").set("k", big)

    calls: list[Callable[[], Any]] = [
        lambda: router.mset({"k": big}),
        lambda: router.mset({str(n): big for n in range(100)}),
        lambda: router.pipeline().set("k", -big).execute(),
        lambda: lock.guard("one").execute(("SET", "k", big)),
        lambda: kit.hash("h", component="one").hset("k", big),
        by_client if client is None else lambda: client.set("k", big),
    ]
    if client is not None:
        calls += [
            lambda: client.pipeline().set("k", big).execute(),
            lambda: client.pubsub().subscribe(big),
            lambda: client.blpop("k", big),
        ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"an? integer .*cannot be sent|give"):
            face.run(call())
    assert face.run(router.mget(["k"])) == [None]


class Unwritable(float):
    """hiredis writes a number by its `repr`."""

    def __repr__(self) -> str:
        raise ValueError("interrupted")


def test_a_number_of_a_class_that_cannot_write_it_is_sent(face: Face) -> None:
    """One ended the process inside hiredis."""
    number, kit = Unwritable(1.5), face.kit
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", number) is True
        assert await client.pipeline().incrbyfloat("k", number).execute() == [3.0]

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", number) is True
        assert client.pipeline().incrbyfloat("k", number).execute() == [3.0]
    else:
        face.run(by_client())
    assert face.run(router.each("INCRBYFLOAT", ["k"], number)) == [1.5]
    assert face.run(router.pipeline().incrbyfloat("k", number).execute()) == [3.0]
    assert face.run(router.mset({"k": number, "l": 7})) is True
    assert face.run(router.mget(["k", "l"])) == [b"1.5", b"7"]


def test_hiredis_is_given_no_integer(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes if the handler of a signal raises while Python writes one."""
    pack, packed, kit = hiredis.pack_command, list[Any](), face.kit

    def record(args: tuple[Any, ...]) -> bytes:
        packed.extend(args)
        return pack(args)

    monkeypatch.setattr(hiredis, "pack_command", record)
    monkeypatch.setattr(resp, "_pack", record)
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", 1001, ex=100) is True
        assert await client.pipeline().incr("k", 1002).execute() == [2003]
        assert await client.lrange("none", 1003, 1004) == []

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", 1001, ex=100) is True
        assert client.pipeline().incr("k", 1002).execute() == [2003]
        assert client.lrange("none", 1003, 1004) == []
    else:
        face.run(by_client())
    assert face.run(router.incr("k", 1005)) == 1005
    assert face.run(router.pipeline().incr("k", 1006).execute()) == [2011]
    assert face.run(router.each("INCRBY", ["k", "l"], 1007)) == [3018, 1007]
    assert {"1003", "1006"} <= set(packed)
    assert int not in set(map(type, packed))
