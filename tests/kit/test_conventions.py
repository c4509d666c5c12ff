"""What users of redis-py and asyncio expect of calls, types and shells."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faces import Face

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import ClosedError, InvalidArgumentError
from shardkit.queues import NewTask


async def test_an_async_kit_is_entered_with_and_without_await(shard_map: ShardMap) -> None:
    async with shardkit.aconnect(shard_map) as kit:
        assert await kit.key_sharded("many").set("a", 1)
    with pytest.raises(ClosedError, match="the kit is closed"):
        await kit.key_sharded("many").get("a")
    async with await shardkit.aconnect(shard_map) as kit:
        assert await kit.key_sharded("many").get("a") == b"1"
    kit = await asyncio.create_task(shardkit.aconnect(shard_map))  # to asyncio, a coroutine
    await kit.aclose()


async def test_an_async_kit_that_cannot_be_opened_is_not_entered() -> None:
    with pytest.raises(shardkit.ConfigError, match=r"absent\.yaml"):
        async with shardkit.aconnect("/absent.yaml"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("opened", [shardkit.connect, shardkit.aconnect])
async def test_an_unknown_option_is_a_type_error_that_names_the_call(
    opened: Any, shard_map: ShardMap
) -> None:
    async def call() -> None:
        await opened(shard_map, decode_responses=True)

    with pytest.raises(TypeError, match=r"connect\(\) has no option 'decode_responses'.*entries"):
        await call()


def test_a_timedelta_is_as_good_as_seconds(face: Face) -> None:
    kit, second = face.kit, timedelta(seconds=1)
    lock = kit.lock(
        "l", component="one", ttl=timedelta(minutes=1), blocking_timeout=second, renew=False
    )
    hold = face.run(lock.acquire(blocking_timeout=timedelta(0)))
    assert 50 < hold.remaining <= 60
    assert face.run(lock.extend(timedelta(minutes=5), hold))
    assert hold.remaining > 200
    face.run(lock.release(hold))
    queues = kit.queues(component="one", retry_delay=second, longest_retry_delay=60 * second)
    face.run(queues.enqueue("q", "later", delay=timedelta(hours=1)))
    assert face.run(queues.take("q", timeout=timedelta(milliseconds=10))) is None
    face.run(queues.enqueue_many("q", [NewTask("now", [], timedelta(0))]))
    task = face.run(queues.take("q", lease=second, timeout=second))
    assert task.name == "now"
    assert face.run(queues.release(task, delay=timedelta(hours=1)))
    limit = kit.rate_limit("r", component="one", limit=1, per=timedelta(hours=1))
    assert face.run(limit.wait("k", timeout=second))
    assert not face.run(limit.wait("k", timeout=timedelta(milliseconds=1)))
    assert face.run(kit.list("list", component="one").blpop(timedelta(milliseconds=10))) is None
    mailbox = kit.mailboxes(component="one")
    assert list(face.run(mailbox.fetch("ann", lease=second, timeout=timedelta(0)))) == []
    assert face.run(kit.health(second)).ok
    with kit.deadline(timedelta(seconds=20)):
        assert face.run(kit.set("s", component="one", total=10).scard()) == 0
    with pytest.raises(InvalidArgumentError, match=r"deadline=-1\.0; give seconds, 0 to"):
        kit.deadline(-second)


KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda kit, **options: kit.lock("l", component="one", **options),
    "reentrant lock": lambda kit, **options: kit.lock(
        "l", component="one", reentrant=True, owner=str(id(options)), **options
    ),
    "semaphore": lambda kit, **options: kit.semaphore("l", component="one", limit=1, **options),
    "read lock": lambda kit, **options: kit.read_write_lock("l", component="one", **options).read,
    "write lock": lambda kit, **options: kit.read_write_lock("l", component="one", **options).write,
    "several locks": lambda kit, **options: kit.multi_lock(["l", "m"], component="one", **options),
    "quorum lock": lambda kit, **options: kit.quorum_lock(
        "l", components=["one", "few", "many"], **options
    ),
    "election": lambda kit, **options: kit.election("l", component="one", **options),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_locks_take_the_names_of_redis_py(face: Face, kind: str) -> None:
    def made(kind: str, **options: Any) -> Any:
        return KINDS[kind](face.kit, renew=False, **options)

    own = made(kind, timeout=60, blocking_timeout=0.01)
    hold = face.run(own.acquire())
    first = hold[0] if isinstance(hold, list) else hold
    assert 50 < first.remaining <= 60
    other = made("write lock" if kind == "read lock" else kind, blocking=False)
    assert face.run(other.acquire()) is None
    calls = [other.acquire, other.campaign] if kind == "election" else [other.acquire]
    for acquire in calls:
        assert face.run(acquire(blocking=False)) is None
        assert face.run(acquire(blocking_timeout=timedelta(milliseconds=10))) is None
    face.run(own.release(hold))
    assert face.run(other.acquire(blocking_timeout=None)) is not None  # for ever, as in redis-py
    with pytest.raises(TypeError, match="wait"):
        made(kind, wait=2)


def test_completion_and_repr_show_what_users_need(kit: ShardKit) -> None:
    assert {"hash", "key_sharded", "client", "together", "close"} <= set(dir(kit))
    assert not {"plane", "topology", "clients", "driver", "breakers"} & set(dir(kit))
    assert not [name for name in dir(kit) if name.startswith("_")]
    hidden = {
        "kind",
        "layout",
        "meta",
        "open",
        "driver",
        "new_attempt",
        "release_call",
        "parameters",
    }
    shown = {"acquire", "extend", "ttl"}, {"hget", "expire", "check"}, {"get", "zadd", "shard_of"}
    made = kit.lock("l", component="one"), kit.hash("h", component="one"), kit.key_sharded("many")
    for each, names in zip(made, shown, strict=True):
        assert names <= set(dir(each))
        assert not hidden & set(dir(each))
        assert not [name for name in dir(each) if name[:1] == "_" or name.endswith("_internal")]
    for each in (*made, kit.access_times(component="one").timed("page")):
        assert "\n" not in repr(each)
        assert " at 0x" not in repr(each)
    for n in range(16):
        kit.client("many", n)
    assert "\n" not in repr(kit)
    assert repr(kit).startswith(f"<ShardKit of {kit.topology.source}: many:0, ")


# Durations that are no arguments of users: moments of time.monotonic, and calls among locks.
NOT_FOR_USERS = {
    *("await_ready", "join_nodes", "extend_call", "extend_hold", "new_attempt", "pause"),
    "Hold.__init__",
}
IN_SECONDS = re.compile(
    r"seconds|(.*_)?(timeout|ttl|wait|lease|interval|delay|deadline|period|age|grace|quiet|settled)"
)
SAID_IN_SECONDS = re.compile(
    r": (the |most |least )*seconds\b|how long .* in seconds|seconds (to|for|until|after)"
)


def public_calls() -> Iterator[tuple[str, Any]]:
    """Yield the functions and methods that users import, and their names."""
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("Users import from")]
    for module in re.findall(r"`(shardkit[\w.]*)`", line):
        loaded = importlib.import_module(module)
        for name in getattr(loaded, "__all__", ()):
            found = getattr(loaded, name)
            if inspect.isfunction(found):
                yield f"{module}.{name}", found
            if not inspect.isclass(found) or issubclass(found, BaseException):
                continue
            made_by_hand = not (is_dataclass(found) or issubclass(found, tuple))
            for method in [*vars(found)] if made_by_hand else [*vars(found).keys() - {"__init__"}]:
                if {method, f"{name}.{method}"} & NOT_FOR_USERS or (
                    method[0] == "_" and method != "__init__"
                ):
                    continue
                static = vars(found)[method]
                call = getattr(static, "__func__", getattr(static, "steps", static))
                if inspect.isfunction(call):
                    yield f"{module}.{name}.{method}", call


def test_every_length_of_time_can_be_a_timedelta() -> None:
    checked, refused = 0, []
    for name, call in public_calls():
        described = inspect.getdoc(call) or ""
        for parameter in inspect.signature(call).parameters.values():
            said = re.search(rf"(?m)^ *{parameter.name}: .*(?:\n {{8,}}.*)*", described)
            text = said[0] if said else ""
            is_time = IN_SECONDS.fullmatch(parameter.name) or SAID_IN_SECONDS.search(text)
            taken = str(parameter.annotation)
            if not is_time or not re.search(r"\b(float|int|Seconds|timedelta)\b", taken):
                continue
            checked += 1
            if not re.search(r"\b(Seconds|timedelta)\b", taken):
                refused.append(f"{name}({parameter.name}: {taken})")
    assert refused == []
    assert checked > 90


# Words that are gone, as each meant what another one means: see docs/arguments.md.
GONE = {"wait", "patience", "groups", "shard_size", "relation_shards", "rule", "top", "each"}
DURATIONS = {
    *("timeout", "blocking_timeout", "copy_timeout", "client_timeout", "durable_timeout"),
    *("ttl", "averages_ttl", "statistics_ttl", "lease", "stale", "remember", "max_age"),
    *("older_than", "quiet", "settled", "delay", "retry_delay", "longest_retry_delay", "grace"),
    *("hold", "interval", "per"),
}
MEASURED = re.compile(r"(.*\.)?(measure_balance|measure_disk_rate|record|simulate|queue_status)")


def test_public_signatures_have_one_word_for_one_thing() -> None:
    others = []
    for name, call in public_calls():
        for parameter in inspect.signature(call).parameters.values():
            is_long = "Seconds" in str(parameter.annotation) and not MEASURED.fullmatch(name)
            if parameter.name in GONE or (is_long and parameter.name not in DURATIONS):
                others.append(f"{name}({parameter.name}=)")
    assert others == []
