"""Decorated functions of every kind, on real servers, with either kit and with the default kit."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import traceback
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

import decorated
import pytest
import redis
import redis.asyncio as aioredis
from decorated import Timeline
from link_helpers import of

import shardkit
from shardkit import AsyncShardKit, ConfigError, ShardKit, ShardMap
from shardkit.errors import InvalidKeyError, MissingEntryError, RoutingError, ShardCountError


@pytest.fixture(autouse=True)
def _default(shard_map: ShardMap) -> Iterator[None]:
    shardkit.configure(shard_map)
    yield
    shardkit.configure(None)


@pytest.fixture(params=["kit", "akit", "default"])
def source(request: pytest.FixtureRequest, kit: ShardKit, akit: AsyncShardKit) -> Any:
    """What decorators come from; all of them serve blocking and async functions."""
    return {"kit": kit, "akit": akit, "default": shardkit}[request.param]


def owner(kit: ShardKit, key: Any) -> int:
    return kit.component("many").place(key)


async def test_functions_of_all_kinds_work_when_imported_before_configuring(
    kit: ShardKit,
) -> None:
    assert decorated.set_expected("monday", count=7) is True
    assert kit.client("both").get("expected:monday") == b"7"
    assert decorated.count_visit("x") == 1
    assert decorated.count_visit(session="x", by=2) == 3
    assert await decorated.acount_visit("x") == 4
    assert kit.client("many", owner(kit, "x")).get("visits:x") == b"4"
    assert list(decorated.visits("x")) == [4]
    assert [n async for n in decorated.avisits("x")] == [4]


async def test_methods_of_all_kinds_work(kit: ShardKit) -> None:
    timeline = Timeline(42)
    assert timeline.add("hello", 7) == (42, True)
    assert timeline.add(post=8, text="again") == (42, True)
    assert kit.client("many", owner(kit, 7)).get("post:7") == b"hello"
    assert kit.client("many", owner(kit, 8)).get("post:8") == b"again"
    assert Timeline.add(timeline, "unbound", 9) == (42, True)
    kit.key_sharded("many")["post:7"].set("post:7", "there")
    assert await timeline.aget("post:7") == (42, b"there")
    assert list(timeline.posts("post:7")) == [42, b"there"]
    assert [p async for p in timeline.aposts("post:7")] == [42, b"there"]
    for owner_of in (Timeline, timeline):
        assert owner_of.of(1) == ("timeline", b"1")
        assert owner_of.echo("a") == b"a"
        assert await owner_of.aof(2) == ("timeline", b"2")
        assert await owner_of.aecho("b") == b"b"


async def test_a_method_awaits_its_components_entries_at_its_first_call(
    akit: AsyncShardKit,
) -> None:
    class Visits:
        @akit.sharded_connection("many", shards=16)
        async def add(self, conn: aioredis.Redis, session: str) -> int:
            return int(await conn.incr(f"visits:{session}"))

        @akit.sharded_connection("few", shards=16)
        async def lost(self, conn: aioredis.Redis, session: str) -> int:
            raise AssertionError("it has another number of shards")

        @akit.sharded_connection("many")
        @staticmethod
        async def of(conn: aioredis.Redis, session: str) -> bytes:
            return bytes(await conn.get(f"visits:{session}"))

        @akit.sharded_connection("many", key=lambda session: session)
        @classmethod
        async def named(cls, *conn_and_sessions: Any) -> tuple[str, bytes]:
            conn, session = conn_and_sessions
            return cls.__name__, await conn.get(f"visits:{session}")

    akit.topology.expire()  # as if the kit had not read them while it was opened
    assert await Visits().add("x") == 1
    with pytest.raises(ShardCountError, match="'few' has 4 shards, but this call says 16"):
        await Visits().lost("x")
    assert await Visits.of("x") == await Visits().of("x") == b"1"
    assert await Visits.named("x") == await Visits().named("x") == ("Visits", b"1")
    assert list(inspect.signature(Visits.named).parameters) == ["conn_and_sessions"]


def test_objects_that_can_be_called_and_partial_functions_can_be_decorated(kit: ShardKit) -> None:
    class Getter:
        def __call__(self, conn: Any, key: str) -> Any:
            return conn

    class AsyncGetter:
        async def __call__(self, conn: Any, key: str) -> Any:
            return conn

    def plain(suffix: str, conn: Any, key: str) -> Any:
        return conn

    async def aplain(suffix: str, conn: Any, key: str) -> Any:
        return conn

    decorate = kit.sharded_connection("many")
    client = kit.key_sharded("many")["k"]
    for function in (Getter(), Getter().__call__, functools.partial(plain, "s")):
        assert decorate(function)("k") is client
    for function in (AsyncGetter(), functools.partial(aplain, "s")):
        got = asyncio.run(decorate(function)("k"))
        assert isinstance(got, aioredis.Redis)
    bound = functools.partial(decorate(lambda conn, key, more: (conn, key, more)), "k")
    assert bound(more=1) == (client, "k", 1)


def test_decorators_stack(kit: ShardKit) -> None:
    many, one = kit.key_sharded("many")["k"], kit.client("one")

    @kit.redis_connection("one")
    @kit.sharded_connection("many", key="key")
    def below(shard: Any, whole: Any, key: str) -> Any:
        return shard, whole, key

    @kit.sharded_connection("many")
    @kit.redis_connection("one")
    def above(whole: Any, shard: Any, key: str) -> Any:
        return shard, whole, key

    @functools.lru_cache
    @kit.sharded_connection("many")
    def cached(conn: Any, key: str) -> Any:
        return conn

    expected = (many, one, "k")
    assert below("k") == below(key="k") == above("k") == above(key="k") == expected
    assert list(inspect.signature(below).parameters) == ["key"]
    assert list(inspect.signature(above).parameters) == ["key"]
    assert cached("k") is cached("k") is many


def test_a_stacked_decorator_without_a_named_key_is_refused_without_telling_secrets(
    kit: ShardKit,
) -> None:
    @kit.redis_connection("one")
    @kit.sharded_connection("many")
    def wrong(shard: Any, whole: Any, key: str) -> Any: ...

    with pytest.raises(InvalidKeyError, match="is a DirectClient"):
        wrong("k")


def keyed(kit: ShardKit, function: Callable[..., Any], key: Any = None) -> Callable[..., Any]:
    decorate: Any = kit.sharded_connection("many", key=key)
    return decorate(function)


def test_the_key_is_found_however_it_is_given(kit: ShardKit) -> None:
    def shard(conn: Any) -> int:
        return next(n for n in range(16) if kit.client("many", n) is conn)

    k, other = owner(kit, "k"), owner(kit, "other")
    assert k != other
    first = keyed(kit, lambda conn, key, b=1: shard(conn))
    assert first("k") == first(key="k") == first("k", 2) == first(b=2, key="k") == k
    named = keyed(kit, lambda conn, a, key: shard(conn), "key")
    assert named("other", "k") == named("other", key="k") == named(key="k", a="other") == k
    default = keyed(kit, lambda conn, a=0, key="k": shard(conn), "key")
    assert default() == default("other") == k
    assert default(key="other") == default(0, "other") == other
    only = keyed(kit, lambda conn, *rest, key="k": shard(conn), "key")
    assert only() == only("other", "other") == k
    assert only("k", key="other") == other
    several = keyed(kit, lambda conn, *keys: shard(conn))
    assert several("k", "other") == k
    positional = keyed(kit, positional_only, "key")
    assert shard(positional("other", "k")) == k
    computed = keyed(kit, lambda conn, a, b: shard(conn), lambda a, b: f"{a}{b}")
    assert computed("oth", "er") == computed(b="er", a="oth") == other
    free = keyed(kit, lambda conn, a, **options: shard(conn), "key")
    assert free("other", key="k") == k


def positional_only(conn: Any, a: Any, key: Any, /) -> Any:
    return conn


def test_a_missing_key_is_a_type_error_as_pythons(kit: ShardKit) -> None:
    class Users:
        @kit.sharded_connection("many")
        def get(self, conn: Any, user: int) -> Any: ...

    with pytest.raises(
        TypeError, match=r"Users\.get\(\) missing 1 required argument: 'user', which decides"
    ):
        Users().get()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        keyed(kit, lambda conn, a, b: None, lambda a, b: a)(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        keyed(kit, lambda conn, a: None)("k", c=1)
    with pytest.raises(TypeError, match="missing 1 required argument: 'key'"):
        asyncio.run(keyed(kit, coroutine)())
    with pytest.raises(TypeError, match="missing 1 required argument: 'key'"):
        next(keyed(kit, generator)())


async def coroutine(conn: Any, key: str) -> Any:
    return conn


def generator(conn: Any, key: str) -> Generator[Any, Any, Any]:
    yield conn


def test_a_function_that_cannot_be_routed_is_refused_where_it_is_decorated(kit: ShardKit) -> None:
    for function, key, said in [
        (lambda: None, None, "has no parameter for a connection"),
        (lambda **options: None, None, "has no parameter for a connection"),
        (lambda *, conn: None, None, "has no parameter for a connection"),
        (lambda self: None, None, "has no parameter for a connection"),
        (lambda conn: None, None, "has no parameter to route by"),
        (lambda conn, **options: None, None, "has no parameter to route by"),
        (lambda self, conn: None, None, "has no parameter to route by"),
        (lambda conn, a: None, "b", "has no parameter 'b'"),
        (lambda conn, a: None, "conn", "has no parameter 'conn'"),
    ]:
        with pytest.raises(RoutingError, match=said):
            keyed(kit, function, key)


def test_a_component_used_the_wrong_way_is_named(kit: ShardKit) -> None:
    with pytest.raises(
        MissingEntryError,
        match="config:redis:many is missing: component 'many' has no unsharded entry",
    ):
        kit.redis_connection("many")(lambda conn: None)()
    with pytest.raises(MissingEntryError, match="config:redis:nope is missing"):
        kit.redis_connection("nope")(lambda conn: None)()
    with pytest.raises(MissingEntryError, match="config:redis:nope is missing"):
        asyncio.run(kit.sharded_connection("nope")(coroutine)("k"))


def test_without_a_topology_the_first_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shardkit.configure(None)
    monkeypatch.delenv("SHARDKIT_CONFIG", raising=False)
    with pytest.raises(ConfigError, match="no shard map or config server is specified"):
        decorated.count_visit("x")
    with pytest.raises(ConfigError, match="no shard map or config server is specified"):
        asyncio.run(decorated.acount_visit("x"))


async def test_a_generator_is_sent_values_errors_and_its_end(source: Any, kind: str) -> None:
    log: list[Any] = []

    def steps(conn: redis.Redis, key: str) -> Generator[Any, Any, None]:
        try:
            log.append((yield conn.set(key, 0)))
            try:
                yield 2
            except ValueError as error:
                log.append(error)
                yield "caught"
            yield 3
        finally:
            log.append(conn.ping())

    async def asteps(conn: aioredis.Redis, key: str) -> AsyncGenerator[Any, Any]:
        try:
            log.append((yield await conn.set(key, 0)))
            try:
                yield 2
            except ValueError as error:
                log.append(error)
                yield "caught"
            yield 3
        finally:
            log.append(await conn.ping())

    decorated_steps = source.sharded_connection("many")(steps if kind == "blocking" else asteps)
    prefix = "" if kind == "blocking" else "a"

    async def call(made: Any, name: str, *args: Any) -> Any:
        return await of(getattr(made, prefix + name)(*args))

    made = decorated_steps("k")
    assert inspect.isasyncgen(made) if prefix else inspect.isgenerator(made)
    assert await call(made, "send", None) is True
    assert await call(made, "send", "sent") == 2
    error = ValueError("x")
    assert await call(made, "throw", error) == "caught"
    assert await call(made, "send", None) == 3
    if prefix:
        with pytest.raises(StopAsyncIteration):
            await anext(made)
    else:
        assert list(made) == []
    assert log == ["sent", error, True]

    made = decorated_steps("k")
    await call(made, "send", None)
    await call(made, "close")
    assert len(log) == 4
    made = decorated_steps("k")
    await call(made, "send", None)
    with pytest.raises(KeyError, match="unhandled") as raised:
        await call(made, "throw", KeyError("unhandled"))
    assert len(log) == 5
    assert raised.value.__context__ is None
    await call(decorated_steps("k"), "close")  # never started: nothing to close
    assert len(log) == 5


async def test_the_connection_of_a_generator_is_found_when_it_is_advanced(kit: ShardKit) -> None:
    made = kit.sharded_connection("many", shards=3)(generator)("k")
    with pytest.raises(ShardCountError, match="this call says 3: it would look up keys on"):
        next(made)
    amade = kit.sharded_connection("many", shards=3)(agenerator)("k")
    with pytest.raises(ShardCountError, match="this call says 3: it would look up keys on"):
        await anext(amade)


async def agenerator(conn: Any, key: str) -> AsyncGenerator[Any, None]:
    yield conn


def test_metadata_is_the_functions_own() -> None:
    for function, name in [
        (decorated.count_visit, "count_visit"),
        (decorated.acount_visit, "acount_visit"),
        (decorated.visits, "visits"),
        (decorated.avisits, "avisits"),
        (Timeline.add, "Timeline.add"),
    ]:
        assert function.__qualname__ == name
        assert function.__name__ == name.rpartition(".")[2]
        assert function.__module__ == "decorated"
        assert function.__doc__
    assert inspect.iscoroutinefunction(decorated.acount_visit)
    assert inspect.iscoroutinefunction(Timeline(1).aget)
    assert inspect.iscoroutinefunction(Timeline.aof)
    assert inspect.isgeneratorfunction(decorated.visits)
    assert inspect.isasyncgenfunction(decorated.avisits)
    assert not inspect.iscoroutinefunction(decorated.count_visit)


def test_signatures_and_type_hints_lack_the_connection() -> None:
    assert (
        str(inspect.signature(decorated.count_visit))
        == "(session: 'Day', *, by: 'int' = 1) -> 'int'"
    )
    assert str(inspect.signature(decorated.visits)) == "(*sessions: 'Day') -> 'Iterator[int]'"
    assert list(inspect.signature(Timeline.add).parameters) == ["self", "text", "post"]
    assert list(inspect.signature(Timeline(1).add).parameters) == ["text", "post"]
    assert list(inspect.signature(Timeline.of).parameters) == ["user"]
    assert list(inspect.signature(Timeline.aecho).parameters) == ["text"]
    found = typing.get_type_hints(decorated.count_visit)
    assert found == {"session": str, "by": int, "return": int}
    assert typing.get_type_hints(Timeline.add)["post"] is int
    assert "conn" not in decorated.set_expected.__annotations__
    assert "conn" in decorated.set_expected.__wrapped__.__annotations__


def test_decorated_functions_pickle_by_name() -> None:
    for function in (decorated.count_visit, decorated.acount_visit, decorated.visits):
        assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(Timeline.of))(3) == ("timeline", b"3")


async def test_exceptions_come_out_as_they_are(source: Any) -> None:
    error = LookupError("mine")

    def fail(conn: Any, key: str) -> Any:
        raise error

    async def afail(conn: Any, key: str) -> Any:
        raise error

    def gfail(conn: Any, key: str) -> Any:
        raise error
        yield

    async def agfail(conn: Any, key: str) -> Any:
        raise error
        yield

    decorate = source.sharded_connection("many")
    for call in (
        lambda: ready(lambda: decorate(fail)("k")),
        lambda: decorate(afail)("k"),
        lambda: ready(lambda: next(decorate(gfail)("k"))),
        lambda: anext(decorate(agfail)("k")),
    ):
        error.__traceback__ = None
        with pytest.raises(LookupError) as raised:
            await call()
        assert raised.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames.count("wrapper") == 1
        assert len(frames) <= 5  # the test, its helpers, the wrapper and the function


async def ready(call: Callable[[], Any]) -> Any:
    return call()
