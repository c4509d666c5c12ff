"""Cancelled calls take nothing with them, nor do lost replies: locks and values are given back."""

from __future__ import annotations

import asyncio
import io
import signal
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from arranged import alarmed, map_of
from faces import PATIENCE, Face, faced, over

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.local import LocalServer
from shardkit.messaging import RecordTally, Total
from shardkit.testing import MemoryServers


@types.coroutine
def cancelled_at(turn: int, call: Awaitable[Any], *, late: bool) -> Generator[Any, Any, Any]:
    """Await a call, and cancel its task when it waits for the given time.

    With ``late``, what it waits for has come when it is cancelled.
    """
    task, steps = asyncio.current_task(), call.__await__()
    assert task is not None
    resume = partial(next, steps)
    for n in count():
        try:
            future = resume()
        except StopIteration as done:
            return done.value
        if n == turn and late and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        elif n == turn:
            task.cancel()
        try:
            resume = partial(steps.send, (yield future))
        except BaseException as error:
            resume = partial(steps.throw, error)


async def each_cancelled(call: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Make a call again and again, cancelled one await later each time, until it ends by itself.

    Yield after each of them: its result, None if it was cancelled.
    """

    async def cancelled(turn: int, late: bool) -> Any:
        return await cancelled_at(turn, call(), late=late)

    for late in (False, True):
        turns, ended = count(), 0
        while ended < 2:  # as a random call may take one more exchange
            task = asyncio.create_task(cancelled(next(turns), late))
            await asyncio.wait([task])
            yield None if task.cancelled() else task.result()
            ended += not task.cancelled()


OPTIONS: Any = {"component": "few", "blocking_timeout": 0.02, "ttl": 60}
HOLDABLES: dict[str, Callable[[Any], Any]] = {
    "lock": lambda kit: kit.lock("x", **OPTIONS),
    "reentrant": lambda kit: kit.lock("x", reentrant=True, **OPTIONS),
    "unfair": lambda kit: kit.lock("x", fair=False, **OPTIONS),
    "semaphore": lambda kit: kit.semaphore("x", limit=1, **OPTIONS),
    "read": lambda kit: kit.read_write_lock("x", **OPTIONS).read,
    "write": lambda kit: kit.read_write_lock("x", **OPTIONS).write,
    "election": lambda kit: kit.election("x", **OPTIONS),
    "several": lambda kit: kit.multi_lock(["x", "y", "z"], **OPTIONS),
    "quorum": lambda kit: kit.quorum_lock(
        "x", components=["few", "one", "many"], blocking_timeout=0.02
    ),
}


async def is_free(kit: AsyncShardKit, kind: str) -> bool:
    """Whether nobody holds it, and nobody is waiting."""
    lock = HOLDABLES["write" if kind == "read" else kind](kit)
    hold = await lock.acquire(blocking_timeout=0)
    return hold is not None and await lock.release(hold)


async def use(lock: Any) -> None:
    await lock.release(await lock.acquire())


async def use_in_a_block(lock: Any) -> None:
    async with lock:
        await asyncio.sleep(0)


@pytest.mark.parametrize("used", [use, use_in_a_block])
@pytest.mark.parametrize("kind", HOLDABLES)
@pytest.mark.parametrize("busy", [False, True])
async def test_a_cancelled_call_leaves_nothing_held(
    akit: AsyncShardKit, kind: str, used: Callable[[Any], Awaitable[None]], busy: bool
) -> None:
    async def use_connections() -> None:  # so that a command waits before it is sent
        while busy:
            await akit.set("s", component="few").scard()

    using = asyncio.create_task(use_connections())
    try:
        async for _ in each_cancelled(lambda: used(HOLDABLES[kind](akit))):
            assert await is_free(akit, kind)
    finally:
        using.cancel()


async def test_a_cancelled_call_leaves_earlier_acquisitions(akit: AsyncShardKit) -> None:
    lock, other = (akit.lock("x", reentrant=True, owner=by, **OPTIONS) for by in ("a", "b"))
    hold = await lock.acquire()
    async for _ in each_cancelled(lambda: use(lock)):
        assert [holder.acquired for holder in (await lock.inspect()).holders] == [1]
        assert await other.acquire(blocking_timeout=0) is None
    assert await lock.release(hold)
    assert await other.acquire(blocking_timeout=0)


@pytest.mark.parametrize("kind", HOLDABLES)
async def test_a_cancelled_wait_leaves_nobody_waiting(akit: AsyncShardKit, kind: str) -> None:
    writes = HOLDABLES["write" if kind == "read" else kind](akit)
    hold = await writes.acquire()
    async for _ in each_cancelled(HOLDABLES[kind](akit).acquire):
        if kind not in ("several", "quorum"):
            assert not (await writes.inspect()).waiters
    assert await writes.release(hold)
    assert await is_free(akit, kind)


async def test_a_cancelled_question_leaves_a_lock_held(akit: AsyncShardKit) -> None:
    lock = akit.lock("x", **OPTIONS)
    hold = await lock.acquire()
    for ask in (partial(lock.extend, 60, hold), partial(lock.held, hold), lock.locked):
        async for _ in each_cancelled(ask):
            assert await lock.held(hold)


async def test_locks_acquired_together_are_released_if_cancelled(akit: AsyncShardKit) -> None:
    async def acquire_all() -> None:
        locks = [akit.lock(name, **OPTIONS) for name in "abc"]
        holds = await akit.together(*(lock.deferred.acquire() for lock in locks))
        pairs = zip(locks, holds, strict=True)
        await akit.together(*(lock.deferred.release(hold) for lock, hold in pairs))

    async for _ in each_cancelled(acquire_all):
        assert not any([await akit.lock(name, **OPTIONS).locked() for name in "abc"])


async def test_a_barrier_does_not_open_for_a_cancelled_caller(akit: AsyncShardKit) -> None:
    barrier = akit.barrier("x", component="one", parties=2)
    async for _ in each_cancelled(lambda: barrier.wait(0.02)):
        assert not await barrier.wait(0)


SCORES = {str(n): float(n) for n in range(20)}


@pytest.mark.parametrize(
    ("kind", "add", "pop", "rest"),
    [
        ("sorted_set", lambda s: s.zadd(SCORES), "zpopmin", lambda s: s.zrange(0, -1, False, True)),
        ("sorted_set", lambda s: s.zadd(SCORES), "zpopmax", lambda s: s.zrange(0, -1, False, True)),
        ("set", lambda s: s.sadd(*SCORES), "spop", lambda s: s.smembers()),
        ("list", lambda s: s.rpush(*SCORES), "lpop", lambda s: s.lrange(0, -1)),
    ],
)
async def test_what_a_cancelled_call_popped_is_put_back(
    akit: Any, kind: str, add: Any, pop: str, rest: Any
) -> None:
    structure = getattr(akit, kind)("s", component="few")
    hold = await akit.lock("x", component="few").acquire()
    await add(structure)
    everything = await rest(structure)
    calls = [
        lambda: getattr(structure, pop)(3),
        lambda: hold.guard("few").run(getattr(structure.deferred, pop)(3)),
    ]
    for call in calls[: 1 if kind == "list" else 2]:  # a list's scripts make keys
        async for popped in each_cancelled(call):
            if popped is None:
                assert await rest(structure) == everything
            else:
                await structure.delete()
                await add(structure)


async def test_a_file_whose_taking_was_cancelled_is_free(akit: AsyncShardKit) -> None:
    files = akit.files(component="few")
    await files.create("c", ["r"])
    await files.publish("c", io.BytesIO(b"text"), name="f")
    async for taken in each_cancelled(lambda: files.take("c", "r")):
        file = taken or await files.take("c", "r")
        assert file.attempts == 1
        await files.release(file)


async def test_what_was_popped_together_is_put_back(akit: AsyncShardKit) -> None:
    def lists() -> list[Any]:
        return [akit.list(name, component="few") for name in "ab"]

    for each in lists():
        await each.rpush(*range(8))
    async for popped in each_cancelled(
        lambda: akit.together(*(each.deferred.lpop(3) for each in lists()))
    ):
        assert [await each.llen() for each in lists()] == ([8, 8] if popped is None else [5, 5])
        if popped is not None:
            for each in lists():
                await each.lpush(*range(3))


class InterruptedLink:
    """A link whose caller is interrupted once, before or after a step."""

    def __init__(self, link: Any, turn: int, *, late: bool) -> None:
        self.link, self.left, self.late = link, turn, late

    def __getattr__(self, name: str) -> Any:
        def step(request: Any) -> Any:
            self.left -= 1
            if self.left == -1 and not self.late:
                raise KeyboardInterrupt
            answer = getattr(self.link, name)(request)
            if self.left == -1:
                raise KeyboardInterrupt
            return answer

        return step


@pytest.mark.parametrize("kind", HOLDABLES)
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_call_leaves_nothing_held(kit: ShardKit, kind: str, late: bool) -> None:
    for turn in count():
        interrupted = over(kit, InterruptedLink(kit.driver.link, turn, late=late))
        try:
            with HOLDABLES[kind](interrupted):
                pass
        except KeyboardInterrupt:
            lock = HOLDABLES["write" if kind == "read" else kind](kit)
            assert lock.release(lock.acquire(blocking_timeout=0))
        else:
            break
    assert turn > 1


IN: Any = {"component": "data"}


def join(face: Face, name: str) -> Any:
    chats = face.kit.chats(**IN)
    face.run(chats.create("ada", [], chat=name))
    return chats.deferred.join(name, "bob", "eve", "ada")


def acknowledge(face: Face, name: str) -> Any:
    chats = face.kit.chats(**IN)
    face.run(chats.create("ada", [], "hello", chat=name))
    return chats.deferred.acknowledge(name, "ada", 1)


def create(face: Face, name: str) -> Any:
    return face.kit.files(**IN).deferred.create(name, ["ada"])


def close(face: Face, name: str) -> Any:
    face.run(face.kit.files(**IN).create(name, ["ada"]))
    return face.kit.files(**IN).deferred.close(name)


def release_messages(face: Face, name: str) -> Any:
    boxes = face.kit.mailboxes(**IN)
    face.run(boxes.send(name, "ada", "hello"))
    return boxes.deferred.release(name, face.run(boxes.fetch(name, lease=60)))


def flush(face: Face, name: str) -> Any:
    tally = RecordTally(str, lambda key: [Total(name, "kind", key)])
    tally.add(["a", "b", "a"])
    return face.kit.totals(**IN).deferred.flush("source", tally)


def resize(face: Face, name: str) -> Any:
    seats = face.kit.semaphore(name, limit=3, **IN)
    face.run(seats.resize(3))
    return seats.deferred.resize(5)


def break_holds(face: Face, name: str) -> Any:
    lock = face.kit.lock(name, **IN)
    assert face.run(lock.acquire())
    return lock.deferred.break_holds("test")


def release(face: Face, name: str) -> Any:
    lock = face.kit.lock(name, **IN)
    return lock.deferred.release(face.run(lock.acquire()))


CALLS: dict[Callable[[Face, str], Any], Any] = {
    join: 2,
    acknowledge: True,
    create: True,
    close: True,
    release_messages: 1,
    flush: True,
    resize: 3,
    break_holds: 1,
    release: True,
}


def losing_replies(server: Any, steps: Any) -> Any:
    """Run steps, and lose the first reply of each exchange."""
    answer = None
    try:
        while True:
            step = steps.send(answer)
            server.lose_answer()
            answer = yield step
    except StopIteration as done:
        return done.value


@pytest.fixture(params=["blocking", "awaiting"])
def lossy(request: pytest.FixtureRequest) -> Any:
    servers = MemoryServers(ShardMap.parse("components: {data: {entry: {}}}"))
    with faced(request.param, servers.shard_map, connector=servers) as face:

        def lose(steps: Any) -> Any:
            return face.run(face.kit.driver.run(losing_replies(servers.server_of("data"), steps)))

        yield face, lose


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_whose_reply_is_lost_returns_what_it_did(lossy: Any, call: Any) -> None:
    face, lose = lossy
    face.run(face.kit.driver.run(call(face, "known")))  # the servers know the scripts after that
    assert lose(call(face, "x")) == CALLS[call]


def test_a_reentrant_acquisition_and_its_release_count_once(lossy: Any) -> None:
    face, lose = lossy
    lock = face.kit.lock("x", reentrant=True, owner="ada", **IN)

    def times() -> list[int]:
        return [holder.acquired for holder in face.run(lock.inspect()).holders]

    holds = [face.run(lock.acquire()), lose(lock.deferred.acquire())]
    assert times() == [2]
    other = face.kit.lock("x", **IN)
    for hold, left in zip(holds, ([1], []), strict=True):
        assert face.run(other.acquire(blocking_timeout=0)) is None
        assert lose(lock.deferred.release(hold)) is True
        assert times() == left
        assert face.run(lock.release(hold)) is False
        assert times() == left
    assert face.run(other.acquire(blocking_timeout=0))


SOON = 0.25 * PATIENCE  # seconds; the calls wait for longer


@pytest.fixture
def waiting() -> Iterator[tuple[ShardKit, LocalServer]]:
    with LocalServer() as server:
        where = [{"port": server.port, "db": number} for number in (1, 2)]
        with shardkit.connect(map_of(many={"shards": where}, one={"entry": where[0]})) as kit:
            yield kit, server


STOPPED_CALLS: dict[str, Callable[[ShardKit, Any], Any]] = {
    "message": lambda kit, news: news.get_message(timeout=60),
    "task": lambda kit, _: kit.queues(component="one").take("mail", timeout=60),
    "lock": lambda kit, _: kit.lock("l", component="one").acquire(blocking_timeout=60),
    "latch": lambda kit, _: kit.countdown_latch("n", component="one").wait(timeout=60),
}
PAUSED: dict[str, Callable[[ShardKit, Any], Any]] = {  # which wait for paused servers
    "structure": lambda kit, _: kit.set("s", component="one").scard(),
    "client": lambda kit, _: kit.client("one").get("k"),
    "router": lambda kit, _: kit.key_sharded("many").mget(["a", "b", "c", "d"]),
    "all": lambda kit, _: kit.key_sharded("many").all.dbsize(),
    "pipeline": lambda kit, _: kit.key_sharded("many").pipeline().get("a").get("b").execute(),
    "together": lambda kit, _: kit.together(kit.set("s", component="one").deferred.scard()),
}


@pytest.mark.parametrize("raised", [StopIteration, GeneratorExit])
def test_what_ends_generators_is_no_result(
    waiting: tuple[ShardKit, LocalServer], raised: type[BaseException]
) -> None:
    kit, server = waiting
    kit.lock("l", component="one", renew=False, ttl=3600).acquire()
    kit.countdown_latch("n", component="one").set(2)
    news = kit.key_sharded("many").pubsub()
    news.subscribe("news")
    while news.get_message(timeout=SOON):
        pass

    def interrupt(*_: Any) -> None:
        raise raised("mine")

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        for name, call in (STOPPED_CALLS | PAUSED).items():
            if name in PAUSED:
                server.pause()
            with pytest.raises(raised, match=r"^mine$"):
                alarmed(partial(call, kit, news))
            server.resume()
    finally:
        signal.signal(signal.SIGALRM, former)
        news.close()
