"""Cached functions on both faces: computed once, invalidated, stale; and what is refused."""

from __future__ import annotations

import asyncio
import enum
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from faces import Face, eventually, faced

import shardkit
from shardkit import InvalidArgumentError, ShardErrors, ShardMap
from shardkit.errors import CoordinationError, InvalidKeyError
from shardkit.local import LocalServers
from shardkit.testing import MemoryServers


def cached(face: Face, compute: Callable[..., Any], component: str = "many", **options: Any) -> Any:
    """A function of one argument, ``name``, on a face; see `ShardKit.cached`."""
    decorate = face.kit.cached(component, **{"ttl": 60, "key": "k:{name}"} | options)
    if face.runner is None:
        return decorate(lambda name: compute(name))

    async def function(name: Any) -> Any:
        found = compute(name)
        return await found if asyncio.iscoroutine(found) else found

    return decorate(function)


class Computing:
    """What is cached: counts its calls, and can be held."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.value: Any = None  # or the call's number
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, name: Any) -> Any:
        self.calls.append(name)
        number = len(self.calls)
        assert self.go_on.wait(30)
        if self.error is not None:
            raise self.error
        return number if self.value is None else self.value


class Pickled:
    """Methods that other processes get by their names."""

    @shardkit.cached("many", ttl=60, key="{page}")
    @classmethod
    def of_class(cls, page: int) -> None: ...

    @staticmethod
    @shardkit.cached("many", ttl=60, key="{page}")
    def of_none(page: int) -> None: ...

    @shardkit.cached("many", ttl=60, key="{page}")
    def of_object(self, page: int) -> None: ...


@pytest.fixture
def computing() -> Computing:
    return Computing()


def test_a_value_is_computed_once_and_again_when_it_is_removed(
    face: Face, computing: Computing
) -> None:
    load = cached(face, computing, tags=("all", "of:{name}"))
    assert [face.run(load("a")), face.run(load(name="a")), face.run(load("b"))] == [1, 1, 2]
    face.run(load.invalidate("a"))
    assert [face.run(load("a")), face.run(load("b"))] == [3, 2]
    face.run(load.invalidate_tag("of:b"))
    assert [face.run(load("a")), face.run(load("b"))] == [3, 4]
    face.run(face.kit.cached("many", ttl=1, key="").invalidate_tag("all", "none"))
    assert [face.run(load("a")), face.run(load("b"))] == [5, 6]
    assert [face.run(load.refresh("a")), face.run(load("a"))] == [7, 7]


@pytest.mark.long(4)
@pytest.mark.parametrize("value", [0, "", False, [1, [2]], {"a": None}, "é", 1.5])
def test_a_computed_value_is_what_a_stored_one_is(
    face: Face, computing: Computing, value: Any
) -> None:
    computing.value = value
    load = cached(face, computing)
    assert [face.run(load("a")), face.run(load("a"))] == [value, value]
    assert computing.calls == ["a"]


def test_threads_and_tasks_compute_once(face: Face, computing: Computing) -> None:
    async def slowly(name: str) -> int:
        number = computing(name)
        await asyncio.sleep(0.2)  # so that all of them wait
        return int(number)

    if face.runner is not None:
        load = cached(face, slowly)

        async def together() -> list[int]:
            return await asyncio.gather(*(load("a") for _ in range(64)))

        assert face.run(together()) == [1] * 64
        return
    load = cached(face, computing)
    computing.go_on.clear()
    waiting = [face.start(lambda: load("a")) for _ in range(32)]
    assert eventually(lambda: computing.calls)
    computing.go_on.set()
    assert [each() for each in waiting] == [1] * 32


def test_if_the_computation_fails_the_next_one_that_waits_computes(
    face: Face, computing: Computing
) -> None:
    load = cached(face, computing)
    computing.error = OSError("no database")
    with pytest.raises(OSError, match="no database"):
        face.run(load("a"))
    computing.error = None
    assert face.run(load("a")) == 2


def test_chosen_exceptions_and_none_are_stored(face: Face, computing: Computing) -> None:
    load = cached(face, computing, exceptions=(LookupError, KeyError))
    computing.error = KeyError("a", 7)
    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            face.run(load("a"))
        assert raised.value.args == ("a", 7)
    assert computing.calls == ["a"]
    computing.error = ValueError("others")
    for _ in range(2):
        with pytest.raises(ValueError, match="others"):
            face.run(load("b"))
    assert computing.calls == ["a", "b", "b"]

    class Missing(LookupError):
        def __init__(self, *, code: int) -> None:
            super().__init__(code)

    computing.error = Missing(code=3)
    with pytest.raises(InvalidArgumentError, match="arguments of Missing"):
        face.run(cached(face, computing, exceptions=Missing)("c"))


@pytest.mark.parametrize(("kept", "calls"), [(True, 1), (False, 2)])
def test_none_is_stored_unless_it_is_not_wanted(face: Face, kept: bool, calls: int) -> None:
    count: list[Any] = []
    load = cached(face, count.append, cache_none=kept)
    assert [face.run(load("a")), face.run(load("a"))] == [None, None]
    assert len(count) == calls


def test_what_is_removed_while_it_is_computed_is_not_stored(
    kit: shardkit.ShardKit, computing: Computing
) -> None:
    load = cached(Face(kit, None), computing, tags=("t",))
    for remove in (lambda: load.invalidate("a"), lambda: load.invalidate_tag("t")):
        computing.go_on.clear()
        before = len(computing.calls)
        started = Face(kit, None).start(lambda: load("a"))
        assert eventually(lambda before=before: len(computing.calls) > before)
        remove()
        computing.go_on.set()
        assert started() == before + 1
        assert load("a") == before + 2
        load.invalidate("a")


def test_a_stale_value_is_used_while_one_caller_computes(
    kit: shardkit.ShardKit, computing: Computing
) -> None:
    load = cached(Face(kit, None), computing, ttl=0.05, stale=60)
    assert load("a") == 1
    time.sleep(0.1)  # until it is stale
    computing.go_on.clear()
    started = Face(kit, None).start(lambda: load("a"))
    assert eventually(lambda: len(computing.calls) == 2)
    assert [load("a"), load("a")] == [1, 1]
    computing.go_on.set()
    assert started() == 2


def test_an_old_value_is_not_used_for_longer_because_it_is_being_computed(
    kit: shardkit.ShardKit, computing: Computing
) -> None:
    load = cached(Face(kit, None), computing, ttl=0.2)
    assert load("a") == 1
    computing.go_on.clear()
    refreshing = Face(kit, None).start(lambda: load.refresh("a"))
    assert eventually(lambda: len(computing.calls) == 2)
    time.sleep(0.3)  # until it is too old
    with kit.deadline(0.2), pytest.raises(ShardErrors, match="1 shard failed"):
        load("a")
    computing.go_on.set()
    assert refreshing() == 2
    computing.error = OSError("no database")
    with pytest.raises(OSError, match="no database"):
        load.refresh("a")
    computing.error = None
    time.sleep(0.3)  # until it is too old
    assert load("a") == len(computing.calls) == 4


async def test_a_cancelled_caller_gives_the_computation_to_the_next(akit: Any) -> None:
    begun = asyncio.Event()
    wait = True

    @akit.cached("many", ttl=60, key="k")  # type: ignore[untyped-decorator]
    async def load() -> int:
        begun.set()
        await asyncio.sleep(60 if wait else 0)  # it is cancelled
        return 1

    task = asyncio.ensure_future(load())
    await begun.wait()
    waiting = asyncio.ensure_future(load())
    await asyncio.sleep(0.05)  # until it waits
    wait = False
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):  # less than the lease
        assert await waiting == 1


PROGRAM = """
import os, sys, threading, time, shardkit
kit = shardkit.connect(sys.argv[1])
@kit.cached("many", ttl=60, key="slow")
def slow():
    kit.client("one").rpush("computes", os.getpid())
    time.sleep(float(sys.argv[2]))
    return os.getpid()
found = []
threads = [threading.Thread(target=lambda: found.append(slow())) for _ in range(16)]
for each in threads: each.start()
for each in threads: each.join()
print(*set(found))
kit.close()
"""


def processes(map_path: Path, seconds: float) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(map_path), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]


def test_four_processes_compute_once_and_once_more_if_the_one_is_killed(
    shard_map: ShardMap, kit: shardkit.ShardKit, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml())
    running = processes(path, 2)
    queue: Any = kit.client("one")
    [first] = [int(pid) for pid in eventually(lambda: queue.lrange("computes", 0, -1))]
    os.kill(first, signal.SIGKILL)
    printed = {process.communicate()[0].strip() for process in running} - {""}
    computed = {pid.decode() for pid in queue.lrange("computes", 0, -1)}
    assert len(computed) == 2
    assert len(printed) == 1
    assert printed <= computed


def test_damaged_values_are_computed_again(face: Face, computing: Computing) -> None:
    load = cached(face, computing)
    assert face.run(load("a")) == 1
    with shardkit.connect(face.kit.topology.source.shard_map) as other:
        client = other.key_sharded("many")[load.key("a")]
        deep = 5000 * b"["
        damages = b"v{", b"x", b"", b'e["A",1]', b"e[", b"e" + deep, b"v" + deep
        for number, damage in enumerate(damages, 2):
            client.hset(load.key("a"), "value", damage)
            assert face.run(load("a")) == number
        client.set(load.key("a"), "other")
        with pytest.raises(shardkit.DamagedDataError, match="another type"):
            face.run(load("a"))


def test_keys_of_different_arguments_differ(kit: shardkit.ShardKit) -> None:
    @kit.cached("many", ttl=1, key="{a}:{b}")
    def load(a: Any, b: Any = "x", *, c: Any = 0) -> None: ...

    class Color(enum.Enum):
        RED = 1

    given = ["", "1", "1:2", "2", ":", "%", "{", "}", "{}", "é", "%3A", 1.5, None, -1]
    given += [date(2026, 1, 2), uuid.UUID(int=5), Color.RED, b"\xff", "\xff", True]
    keys = {load.key(a, b) for a in given for b in given}
    assert len(keys) == len(given) ** 2
    assert load.key(1) == load.key("1", "x") == load.key(b=b"x", a=1) == "cached:{1:x}"


async def test_methods_have_bound_keys_and_invalidations(
    kit: shardkit.ShardKit, akit: shardkit.AsyncShardKit
) -> None:
    class Shop:
        def __init__(self, number: int) -> None:
            self.number = number
            self.calls = 0

        @kit.cached("many", ttl=60, key="shop:{self.number}:{page}")
        def items(self, page: int) -> list[int]:
            self.calls += 1
            return [self.number, page]

        @kit.cached("many", ttl=60, key="{cls.__name__}:{page}")
        @classmethod
        def of_all(cls, page: int) -> int:
            return page

        @staticmethod
        @kit.cached("many", ttl=60, key="shops:{page}")
        def of_none(page: int) -> int:
            return page

        @kit.cached("many", ttl=60, key="also:{page}")
        @staticmethod
        def also_of_none(page: int) -> int:
            return page

        @akit.cached("many", ttl=60, key="later:{self.number}:{page}")
        async def later(self, page: int) -> int:
            self.calls += 1
            return page

    one, two = Shop(1), Shop(2)
    assert [one.items(5), two.items(5), one.items(page=5)] == [[1, 5], [2, 5], [1, 5]]
    assert (one.calls, two.calls) == (1, 1)
    assert one.items.key(5) == Shop.items.key(one, 5) == "cached:{shop:1:5}"
    one.items.invalidate(5)
    assert [one.items(5), two.items(5), one.items.refresh(5)] == [[1, 5], [2, 5], [1, 5]]
    assert (one.calls, two.calls) == (3, 1)
    assert one.items.__wrapped__(6) == [1, 6]
    either: list[Any] = [Shop, one]
    calls = [call for of in either for call in (of.of_all, of.of_none, of.also_of_none)]
    assert [call(5) for call in calls] == [5] * len(calls)
    keys = [call.key(5) for call in calls]
    assert keys == [f"cached:{{{name}:5}}" for name in ("Shop", "shops", "also")] * 2

    before = one.calls
    assert [await one.later(7), await one.later(7)] == [7, 7]
    await one.later.invalidate(7)
    assert [await one.later(7), one.calls] == [7, before + 2]


def test_methods_are_pickled_by_name() -> None:
    one: Any = Pickled()
    methods = [Pickled.of_class, Pickled.of_none, Pickled.of_object, one.of_class, one.of_object]
    copies: list[Any] = [pickle.loads(pickle.dumps(method)) for method in methods]
    unbound = copies.pop(2)
    assert [call.key(5) for call in copies] == ["cached:{5}"] * 4
    assert unbound.key(one, 5) == "cached:{5}"


def test_a_value_that_needs_itself_is_an_error_and_not_a_wait(face: Face) -> None:
    def compute(name: str) -> Any:
        return load("a") if name == "b" else load({"a": "b", "c": "a", "d": "e"}.get(name, "d"))

    async def acompute(name: str) -> Any:
        return (await asyncio.gather(compute(name)))[0]

    load = cached(face, compute if face.runner is None else acompute)
    for name in "abcd":
        with pytest.raises(CoordinationError, match="needs the value itself"):
            face.run(load(name))
    fibonacci = cached(face, lambda n: n if face.runner or n < 2 else fibonacci(n - 1))
    assert face.run(fibonacci(9)) == (9 if face.runner else 1)


@pytest.mark.parametrize("near", [0, 10_000])
def test_a_hit_accepts_no_other_arguments_than_the_function(
    kit: shardkit.ShardKit, near: int
) -> None:
    def take(a: int, b: int = 1, *, c: int = 2) -> list[int]:
        return [a]

    load: Any = kit.cached("many", ttl=60, key="k:{a}", near=near)(take)
    assert [load(1), load(1, 2), load(a=1, c=3)] == [[1]] * 3
    assert not near or eventually(lambda: load(1) is load(1)), "no copy"
    for args, kwargs in (((1, 2, 3), {}), ((1,), {"d": 1}), ((1,), {"a": 1}), ((), {})):
        with pytest.raises(TypeError, match="argument"):
            load(*args, **kwargs)


def test_parameters_may_have_any_name(face: Face) -> None:
    decorate = face.kit.cached("many", ttl=60, key="k:{x}")

    @decorate
    def load(x: int, *_text_x: int, **_text: int) -> list[Any]:
        return [x, _text_x, _text]

    @decorate
    async def aload(x: int, *_text_x: int, **_text: int) -> list[Any]:
        return [x, _text_x, _text]

    call: Any = load if face.runner is None else aload
    assert face.run(call(1, 2, y=3)) == [1, [2], {"y": 3}]


def test_keys_are_made_of_the_arguments_that_the_function_gets(face: Face) -> None:
    decorate = face.kit.cached("many", ttl=60, key="k:{name}:{page}")

    @decorate
    def load(name: str = "default", /, page: int = 1, **more: str) -> list[Any]:
        return [name, page, more]

    @decorate
    async def aload(name: str = "default", /, page: int = 1, **more: str) -> list[Any]:
        return [name, page, more]

    call: Any = load if face.runner is None else aload
    assert face.run(call("a", more="b")) == ["a", 1, {"more": "b"}]
    assert call.key() == "cached:{k:default:1}"
    for method in (call.key, call.invalidate):
        with pytest.raises(TypeError, match="too many positional"):
            face.run(method("a", 1, 2))
        with pytest.raises(TypeError, match="positional only"):
            face.run(method(name="a"))
    with pytest.raises(InvalidArgumentError, match="would contain of 16610 bits"):
        face.run(call("a", 10**5000))
    with pytest.raises(InvalidArgumentError, match="would contain of 16610 bits"):
        cached(face, print).key(10**5000)


@pytest.mark.parametrize("kind", [max, None, property(print), type("Generates", (), {})])
def test_what_has_no_parameters_or_yields_is_refused_by_name(face: Face, kind: Any) -> None:
    if isinstance(kind, type):
        kind.__call__ = lambda self, name: (yield name)  # type: ignore[operator]
    function = kind() if isinstance(kind, type) else kind
    with pytest.raises(InvalidArgumentError, match=r"@cached\('many'\) of .*: it is"):
        face.kit.cached("many", ttl=1, key="{name}")(function)


async def test_an_object_with_an_async_call_is_awaited(akit: Any) -> None:
    class Load:
        async def __call__(self, name: str) -> str:
            return name

    for function in (Load(), Load().__call__):
        load: Any = akit.cached("many", ttl=60, key="{name}")(function)
        assert inspect.iscoroutinefunction(load)
        assert await load("a") == "a"
    assert [await load("a"), await load("a")] == ["a", "a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "users"}, "key='users' names no argument"),
        ({"key": "user:{id}"}, "key='user:{id}' names 'id'"),
        ({"key": "user:{name!r}"}, "has a format"),
        ({"key": "user:{name:3}"}, "has a format"),
        ({"key": "user:{name"}, "is no template"),
        ({"key": "user:{name.}"}, "names 'name.'"),
        ({"key": "user:{name.id[0]}"}, "names 'name.id[0]'"),
        ({"key": "user:{id}"}, "name a parameter: name"),
        ({"key": "user:{name}", "tags": None}, "tags=None"),
        ({"key": "user:{name}", "tags": ("{x}",)}, "tags='{x}' names 'x'"),
        ({"key": "user:{name}", "tags": "all"}, "tags='all'"),
        ({"key": "user:{name}", "tags": 7}, "tags=7"),
        ({"key": "user:{name}", "cache_none": "no"}, "cache_none='no'"),
        ({"key": "user:{name}", "ttl": 0}, "ttl=0"),
        ({"key": "user:{name}", "stale": -1}, "stale=-1"),
        ({"key": "user:{name}", "near": "1 MB"}, "near='1 MB'"),
        ({"key": "user:{name}", "max_age": 0}, "max_age=0"),
        ({"key": "user:{name}", "codec": "zstd"}, "needs a trained dictionary"),
        ({"key": "user:{name}", "codec": "pickle"}, "codec='pickle'"),
        ({"key": "user:{name}", "exceptions": "KeyError"}, "exceptions has 'KeyError'"),
    ],
)
def test_wrong_options_are_refused_by_name(
    face: Face, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        cached(face, print, **options)
    assert message in str(refused.value)


def test_wrong_values_and_arguments_are_refused_by_name(face: Face, computing: Computing) -> None:
    load = cached(face, computing)
    computing.value = {1: 2}
    for each in (load, cached(face, computing, exceptions=ValueError)):
        with pytest.raises(InvalidArgumentError, match="it returned what cannot be stored"):
            face.run(each("a"))
    computing.value = 5
    assert face.run(load("a")) == 5
    with pytest.raises(InvalidArgumentError, match=r"key='k:\{name\}' would contain \['a'\]"):
        face.run(load(["a"]))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        face.run(load())
    with pytest.raises(InvalidArgumentError, match="is a generator"):
        face.kit.cached("many", ttl=1, key="{a}")(lambda a: (yield a))
    with pytest.raises(InvalidArgumentError, match="instead of a component's name"):
        face.kit.cached(print, ttl=1, key="{a}")


def test_without_its_server_a_call_fails_or_computes(kind: str, computing: Computing) -> None:
    shards = "components: {many: {shards: [{port: 7001, socket_timeout: 1}]}}"
    with (
        LocalServers(ShardMap.parse(shards), ports="free") as servers,
        faced(kind, servers.shard_map) as face,
    ):
        load = cached(face, computing)
        falling = cached(face, computing, fallback=True)
        assert face.run(load("a")) == 1
        servers.servers[0].kill()
        with pytest.raises(ShardErrors, match="many:0"):
            face.run(load("a"))
        assert [face.run(falling("a")), face.run(falling("a"))] == [2, 3]


def test_servers_in_memory_serve_both_kinds_of_functions(computing: Computing) -> None:
    memory = MemoryServers()
    shard_map = ShardMap.parse("components: {many: {shards: [{port: 1}, {port: 2}]}}")
    with shardkit.connect(shard_map, connector=memory) as kit:
        load = cached(Face(kit, None), computing, near=1000)
        assert [load("a"), load("a")] == [1, 1]

        @kit.cached("many", ttl=60, key="k:{name}")
        async def also(name: str) -> int:
            raise AssertionError

        async def call() -> int:
            found = await also("a")
            await kit.aclose()
            return found

        assert asyncio.run(call()) == 1


def test_clusters_serve_cached_functions(cluster_map: ShardMap, computing: Computing) -> None:
    with shardkit.connect(cluster_map) as kit:
        load = cached(Face(kit, None), computing, "cluster", tags=("t", "u:{name}"), near=10_000)
        assert [load(n) for n in range(20)] * 2 == [load(n) for n in (*range(20), *range(20))]
        load.invalidate_tag("t")
        assert load(0) == 21


def test_the_default_kit_is_opened_by_the_first_call(
    shard_map: ShardMap, computing: Computing
) -> None:
    load = shardkit.cached("many", ttl=60, key="k:{name}")(lambda name: computing(name))
    shardkit.configure(shard_map)
    try:
        assert [load("a"), load("a")] == [1, 1]
    finally:
        shardkit.configure()


def cached_arguments_cached(face: Face, **options: Any) -> Any:
    """A function on a face, whose key does not name all of its arguments."""
    decorate = face.kit.cached("many", ttl=60, key="k:{name}", **options)
    if face.runner is None:
        return decorate(lambda name, other=None: name)

    async def function(name: Any, other: Any = None) -> Any:
        return name

    return decorate(function)


def test_a_tag_that_is_no_text_is_refused_by_name(face: Face) -> None:
    for invalidate in (
        cached_arguments_cached(face).invalidate_tag,
        face.kit.cached("many", ttl=1, key="").invalidate_tag,
    ):
        with pytest.raises(InvalidArgumentError, match=r"tags?[ =]5; give (a )?text"):
            face.run(invalidate("t", 5))


@pytest.mark.parametrize("near", [0, 10_000])
def test_a_key_that_is_no_utf_8_is_refused_by_name(face: Face, near: int) -> None:
    load = cached_arguments_cached(face, near=near)
    assert face.run(load("a")) == "a"  # so its entries have been read
    for call in (load, load.refresh, load.invalidate):
        with pytest.raises((InvalidArgumentError, InvalidKeyError), match="udc80"):
            face.run(call("\udc80"))
