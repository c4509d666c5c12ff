"""Locks: one at a time, in order, told when they are lost, and never in the way for ever."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from arranged import map_of
from coordination_helpers import line, processes, say
from faces import PATIENCE, Face, eventually, faced, holder
from link_helpers import in_threads, paused

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.coordination import Hold, Leg
from shardkit.errors import (
    ClosedError,
    CrossShardError,
    DamagedDataError,
    InvalidArgumentError,
    LockLostError,
    LockTimeoutError,
    NewerFormatError,
    NotDurableError,
    NotHolderError,
    ShardErrors,
    StaleTokenError,
)
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.links import wakeups

COMPONENTS = ["one", "many"]


def waiters(lock: Any, count: int, face: Face | None = None) -> bool:
    of_lock = face.eventually if face else eventually
    return of_lock(lambda: len(lock.inspect().waiters) == count)


@pytest.mark.parametrize("component", COMPONENTS)
def test_one_holds_it_and_tokens_increase(face: Face, component: str) -> None:
    run, lock = face.run, face.kit.lock("x", component=component)
    other = face.kit.lock("x", component=component)
    tokens = []
    for _ in range(3):
        hold = run(lock.acquire(blocking_timeout=0))
        assert run(other.acquire(blocking_timeout=0)) is None
        assert run(other.acquire(blocking_timeout=0.01)) is None
        assert run(lock.locked())
        assert run(lock.held(hold))
        assert run(lock.release(hold)) is True
        assert not run(lock.locked())
        assert run(other.acquire(blocking_timeout=0))
        assert run(lock.release(hold)) is False
        assert run(other.locked())
        assert run(other.break_holds("test")) == 1
        tokens.append(hold.token)
    assert tokens == sorted(set(tokens))
    assert run(face.kit.lock("y", component=component).acquire(blocking_timeout=0))


def test_thousands_of_holds_that_have_ended_do_not_keep_a_writer_away(face: Face) -> None:
    lock = face.kit.read_write_lock("x", component="one", renew=False)
    for _ in range(6):
        readers = [lock.read.deferred.acquire(ttl=2 * PATIENCE) for _ in range(1000)]
        face.run(face.kit.together(*readers))
    last = face.run(lock.read.acquire(ttl=2 * PATIENCE))
    assert face.run(lock.write.acquire(blocking=False)) is None
    assert face.eventually(lambda: not last.remaining)
    time.sleep(0.2)  # by its own clock a hold ends earlier than on the server
    assert face.run(lock.write.acquire(blocking=False))
    assert face.run(lock.read.acquire(blocking=False)) is None


def test_a_thread_releases_its_own_hold_only(kit: ShardKit) -> None:
    lock = kit.lock("x", component="one")
    with (
        lock,
        ThreadPoolExecutor(1) as pool,
        pytest.raises(NotHolderError, match="not held by the running thread or task"),
    ):
        pool.submit(lock.release).result()


def test_a_reentrant_lock_is_acquired_again_by_its_thread_only(face: Face) -> None:
    run = face.run
    lock = face.kit.lock("x", component="one", reentrant=True, owner="job 7")
    same = face.kit.lock("x", component="one", reentrant=True, owner="job 7")
    first, second = run(lock.acquire()), run(same.acquire(blocking_timeout=0))
    assert first.token == second.token
    other = face.kit.lock("x", component="one", reentrant=True, owner="b")
    assert run(other.acquire(blocking_timeout=0)) is None
    assert run(lock.inspect()).holders[0].acquired == 2
    assert run(same.release(second))
    assert run(lock.held(first))
    assert run(lock.release(first))
    assert not run(lock.locked())


def test_a_thread_does_not_enter_the_lock_of_an_ended_one(kit: ShardKit) -> None:
    lock = kit.lock("x", component="one", reentrant=True)

    # The system gives most of these threads the number of the first.
    acquired = [in_threads(1, lambda _: lock.acquire(blocking_timeout=0)) for _ in range(8)]
    assert [hold is not None for [hold] in acquired] == [True] + 7 * [False]


FORKS = """
where = {"component": "one", "ttl": 60}
for made in (
    lambda: kit.lock("x", **where),
    lambda: kit.semaphore("x", limit=1, **where),
    lambda: kit.read_write_lock("x", **where).write,
    lambda: kit.election("x", **where),
    lambda: kit.multi_lock(["y", "z"], **where),
    lambda: kit.quorum_lock("x", components=["one", "few", "many"], ttl=60),
):
    try:
        with made() as held:
            pid = os.fork()
            if pid == 0:
                sys.exit()
            os.waitpid(pid, 0)
            print(made().acquire(blocking_timeout=0), flush=True)
    except SystemExit:
        os._exit(0)
    lock = made()
    held = lock.acquire()
    pid = os.fork()
    if pid == 0:
        for given in ((), (held,)):
            try:
                lock.release(*given)
            except shardkit.errors.NotHolderError as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(lock.release(held), flush=True)
"""


def test_a_forked_child_holds_nothing_of_its_parents(shard_map: ShardMap) -> None:
    with processes(FORKS, shard_map, None) as [process]:
        for _ in range(6):
            assert line(process) == "None"
            assert "not held" in line(process)
            assert "which forked this one; give it back there" in line(process)
            assert line(process) == "True"


async def test_the_running_task_is_the_owner_of_a_reentrant_lock(akit: AsyncShardKit) -> None:
    async def token_of(wait: float) -> int | None:
        hold = await akit.lock("x", component="one", reentrant=True).acquire(blocking_timeout=wait)
        return None if hold is None else hold.token

    async with akit.lock("x", component="one", reentrant=True) as outer:
        async with akit.lock("x", component="one", reentrant=True) as inner:
            assert inner.token == outer.token
            assert await asyncio.create_task(token_of(0)) is None
            waiting = asyncio.create_task(token_of(20))
        assert await akit.lock("x", component="one").locked()
    later = await waiting
    assert later is not None
    assert later > outer.token


async def test_a_block_that_ends_for_another_reason_gives_that_though_its_lock_is_released(
    akit: AsyncShardKit, kit: ShardKit
) -> None:
    for error in (KeyError("x"), None):
        expected: Any = NotHolderError if error is None else KeyError
        lock = akit.lock("x", component="one")
        with pytest.raises(expected, match="x"):  # noqa: PT012
            async with lock:
                await lock.release()
                if error is not None:
                    raise error
        plain = kit.lock("x", component="one")
        with pytest.raises(expected, match="x"), plain:  # noqa: PT012
            plain.release()
            if error is not None:
                raise error
    async with akit.lock("x", component="one"):
        with pytest.raises(LockTimeoutError, match=r"after 0.01 s"):
            await akit.lock("x", component="one", blocking_timeout=0.01).__aenter__()


@pytest.mark.parametrize("component", COMPONENTS)
def test_who_came_first_has_it_first(face: Face, kit: ShardKit, component: str) -> None:
    lock = face.kit.lock("x", component=component, blocking_timeout=60)
    seen, waiting = kit.lock("x", component=component), []
    hold = face.run(lock.acquire())
    for n in range(6):
        waiting.append(face.start(lock.acquire))
        assert waiters(seen, n + 1, face)
    assert face.run(lock.acquire(blocking_timeout=0)) is None
    if component == "one":  # at most one connection, which all of them share
        assert len(kit.client("one").client_list(_type="pubsub")) <= 1
    for n, acquired in enumerate(waiting):
        assert face.run(lock.release(hold))
        hold = acquired()
        assert len(seen.inspect().waiters) == 5 - n


def test_all_have_what_is_not_fair_one_at_a_time(face: Face) -> None:
    inside, most, done = 0, 0, 0
    lock = face.kit.lock("x", component="one", fair=False, blocking_timeout=60)

    def in_the_block() -> Iterator[None]:
        nonlocal inside, most, done
        inside += 1
        most, done = max(most, inside), done + 1
        yield
        inside -= 1

    async def hold_it_as_task() -> None:
        for _ in range(20):
            async with lock:
                for _ in in_the_block():
                    await asyncio.sleep(0)

    def hold_it() -> None:
        for _ in range(20):
            with lock:
                list(in_the_block())

    for ended in [face.start(hold_it_as_task if face.runner else hold_it) for _ in range(5)]:
        ended()
    assert (most, done) == (1, 100)
    assert not face.run(lock.inspect()).waiters


RENEWED = """
held = kit.lock("x", component="one", ttl=60).acquire()  # which starts a thread
if os.fork() == 0:
    own = kit.lock("y", component="one", ttl=0.3).acquire()
    time.sleep(0.6)
    print(own.lost, flush=True)
    os._exit(0)
os.wait()
print(held.lost, flush=True)
"""


def test_a_forked_child_renews_its_holds_in_a_thread_of_its_own(shard_map: ShardMap) -> None:
    with processes(RENEWED, shard_map, 1) as [process]:
        assert [line(process), line(process)] == ["False", "False"]


def test_a_kit_whose_loop_has_ended_with_a_lock_is_closed_in_another(shard_map: ShardMap) -> None:
    with asyncio.Runner() as ended, asyncio.Runner() as other:
        akit = ended.run(shardkit.aconnect(shard_map))
        hold = ended.run(akit.lock("x", component="one", ttl=60).acquire())
        ended.close()
        other.run(akit.aclose())
    assert akit.topology.closed
    assert hold is not None
    assert hold.remaining > 0  # nobody renews it: it expires


def test_a_waiter_of_a_killed_process_is_passed_over(kit: ShardKit, shard_map: ShardMap) -> None:
    lock = kit.lock("x", component="one")
    code = "print('in', flush=True)\nwith kit.lock('x', component='one'): print('held', flush=True)"
    with processes(code, shard_map, 1, 2) as (first, second):
        with lock as held:
            assert waiters(lock, 2)
            assert line(first) == line(second) == "in"
            first_label = lock.inspect().waiters[0].label
            killed, other = sorted((first, second), key=lambda p: f":{p.pid}:" not in first_label)
            killed.kill()
            killed.wait()
            # Until the server reads the end of its connection, the waiter counts as alive.
            assert eventually(lambda: len(kit.client("one").client_list(_type="pubsub")) == 1)
            held.check()
        assert line(other) == "held"
    assert eventually(lambda: not lock.inspect().waiters)


def test_a_killed_holder_is_in_the_way_until_its_time_is_over(
    kit: ShardKit, shard_map: ShardMap
) -> None:
    code = (
        "hold = kit.lock('x', component='one', ttl=0.3).acquire()\nprint(hold.token, flush=True)\n"
    )
    with processes(code + "sys.stdin.readline()", shard_map, 1) as [process]:
        token = int(line(process))
        process.kill()
        process.wait()
        with kit.lock("x", component="one") as held:
            assert held.token > token


async def test_tasks_that_waited_in_vain_leave_nothing_behind(akit: AsyncShardKit) -> None:
    def futures() -> int:
        gc.collect()
        return sum(type(each) is asyncio.Future for each in gc.get_objects())

    lock = akit.lock("x", component="one")
    async with lock:
        assert await lock.acquire(blocking_timeout=0.01) is None
        before = futures()
        for _ in range(12):
            assert await lock.acquire(blocking_timeout=0.01) is None
        assert futures() < before + 10


@pytest.mark.parametrize("component", COMPONENTS)
def test_waiters_without_a_subscription_poll_and_keep_their_order(
    face: Face, kit: ShardKit, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups.Subscriptions, "get", lambda *_, **__: None)
    test_who_came_first_has_it_first(face, kit, component)


async def test_tasks_that_are_cancelled_leave_nothing_behind(akit: AsyncShardKit) -> None:
    lock = akit.lock("x", component="one")
    for rounds in range(30):
        waiting = [asyncio.ensure_future(akit.lock("x", component="one").acquire()) for _ in "abc"]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, Hold):
                await lock.release(outcome)
        assert await lock.acquire(blocking_timeout=1)
        await lock.release()
    assert not (await lock.inspect()).waiters


def test_a_lost_lock_is_told_by_callback_check_and_the_end_of_the_block(kit: ShardKit) -> None:
    told: list[Hold[Any]] = []
    lock = kit.lock("x", component="one", ttl=0.2, on_lost=told.append)
    with pytest.raises(LockLostError, match="broken: for a test"), lock as held:  # noqa: PT012
        held.check()
        assert kit.lock("x", component="one").break_holds("for a test", held.token) == 1
        assert eventually(lambda: told)
        with pytest.raises(LockLostError, match="broken: for a test"):
            lock.check()
        assert held.lost
    assert told == [held]


def test_a_lock_is_lost_though_who_is_told_fails(
    kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(hold: Hold[Any]) -> None:
        raise RuntimeError(f"not heard: {hold.token}")

    lock = kit.lock("x", component="one", renew=False, on_lost=fail)
    hold = lock.acquire()
    hold.lose("for a test")
    with pytest.raises(LockLostError, match="for a test"):
        lock.check()
    assert "on_lost failed" in caplog.text
    assert caplog.text.count(f"not heard: {hold.token}") == 1


async def stop_everything(hold: Hold[Any]) -> None:
    raise AssertionError(hold)


def test_on_lost_must_run_when_it_is_called(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidArgumentError, match=r"on_lost=.*; give a plain function"):
        face.kit.lock("x", component="one", on_lost=stop_everything)
    lock = face.kit.lock("x", component="one", renew=False, on_lost=lambda h: stop_everything(h))
    face.run(lock.acquire()).lose("for a test")
    assert "the function returned an awaitable, which did not run" in caplog.text


def test_what_has_ended_is_renewed_no_more(face: Face) -> None:
    told: list[Hold[Any]] = []
    lock = face.kit.lock("x", component="one", renew=False, on_lost=told.append)
    assert face.run(lock.held()) is False
    hold = face.run(lock.acquire())
    assert face.run(lock.held(hold)) is True
    closing = hold.renew()
    assert next(closing)
    with pytest.raises(StopIteration) as stopped:  # its kit is closed: it is left to expire
        closing.throw(ClosedError("the kit is closed", ""))
    assert stopped.value.value is None
    assert face.run(lock.release(hold))
    assert face.run(face.kit.driver.run(hold.renew())) is None
    assert not face.run(lock.locked())
    assert not told


def test_what_is_renewed_outlasts_its_time_and_what_is_dropped_does_not(kit: ShardKit) -> None:
    lock = kit.lock("x", component="one", ttl=0.8)
    dropped = kit.lock("y", component="one", ttl=0.8)
    assert dropped.acquire()
    del dropped
    with lock as held:
        assert kit.lock("y", component="one").acquire(
            blocking_timeout=5
        )  # when nobody renews it any more
        threading.Event().wait(0.2)  # its own time is over
        held.check()
        assert lock.held()


def test_a_renewal_that_fails_for_no_known_reason_is_told_and_tried_again(
    face: Face, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renew, tried = Hold.renew, []

    def fails_once(hold: Hold[Any]) -> Any:
        tried.append(hold)
        if len(tried) == 1:
            raise RuntimeError("unforeseen")
        return renew(hold)

    monkeypatch.setattr(Hold, "renew", fails_once)
    hold = face.run(face.kit.lock("x", component="one", ttl=0.15).acquire())
    assert face.eventually(lambda: len(tried) > 1)
    assert tried[:2] == [hold, hold]
    assert "cannot renew holds" in caplog.text
    assert "RuntimeError: unforeseen" in caplog.text


def test_a_hold_whose_server_is_gone_is_lost_in_time(own_server: LocalServer) -> None:
    told: list[Hold[Any]] = []
    where = map_of(a={"entry": {"port": own_server.port}})
    with shardkit.connect(where) as kit:
        lock = kit.lock("x", component="a", ttl=0.3, on_lost=told.append)
        held = lock.acquire()
        assert held is not None
        with paused(own_server):
            assert eventually(lambda: held.lost)
            with pytest.raises(LockLostError, match=r"could not be renewed|expired"):
                held.check()


@pytest.mark.parametrize("wait", [5, 0])
def test_a_clock_that_is_set_back_delays_nobody_beyond_the_ttl(kit: Any, wait: float) -> None:
    held = kit.lock("x", component="one", renew=False, ttl=0.2).acquire()
    client: Any = kit.client("one")
    client.zadd("lock:{x}:holders", {held.id: held.token + 3_600_000_000})
    lock = kit.lock("x", component="one", blocking_timeout=wait)
    assert eventually(lambda: lock.acquire() is not None)


STOPPED = """
lock = kit.lock("x", component="one", ttl=0.3)
hold = lock.acquire()
guard = hold.guard("many")
guard.execute(("RPUSH", "log", "first"))
print(hold.token, flush=True)
sys.stdin.readline()
try:
    guard.execute(("RPUSH", "log", "late"))
except shardkit.errors.StaleTokenError as error:
    print("refused", flush=True)
try:
    hold.check()
except shardkit.errors.LockLostError:
    print("lost", flush=True)
"""


def test_a_holder_that_was_stopped_past_its_end_cannot_write(
    kit: ShardKit, shard_map: ShardMap
) -> None:
    with processes(STOPPED, shard_map, 1) as [process]:
        token = int(line(process))
        os.kill(process.pid, signal.SIGSTOP)
        with kit.lock("x", component="one") as held:
            assert held.token > token
            assert held.guard("many").execute(("RPUSH", "log", "second")) == [2]
            os.kill(process.pid, signal.SIGCONT)
            say(process)
            assert line(process) == "refused"
            assert line(process) == "lost"
        log = holder(kit, "many", "log").lrange("log", 0, -1)
    assert log == [b"first", b"second"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_commands_scripts_and_operations_are_guarded(face: Face, component: str) -> None:
    run, lock = face.run, face.kit.lock("x", component="many", renew=False)
    numbers = face.kit.hash("h", component=component, total=1000)
    queues = face.kit.queues(component=component)
    early = run(lock.acquire())
    run(lock.release(early))
    late = run(lock.acquire())
    old, new = early.guard(component), late.guard(component)
    keys = [f"h{n}" for n in range(100)]
    run(old.execute(("SET", "{a}1", 1), ("INCR", "{a}1"), ("GET", "{a}1")))
    run(old.run(numbers.deferred.hset_many([(key, b"1") for key in keys])))
    run(old.run(queues.deferred.enqueue("q", "task")))
    bank = face.kit.transfers(component=component)
    assert run(old.run(bank.deferred.issue(Leg("a", {"gold": 1}))))  # it asks where keys live
    found = run(new.eval("return {KEYS[1], #KEYS, ARGV[1], #ARGV}", 1, "{a}1", "b"))
    assert found == [b"{a}1", 1, b"b", 1]
    run(new.claim("{a}1", "queues:{q}", *(f"h:{n}" for n in range(20))))
    assert run(new.execute(("INCR", "{a}1"))) == [3]
    for write in (
        lambda: old.execute(("SET", "{a}1", 1)),
        lambda: old.eval("return redis.call('SET', KEYS[1], 1)", 1, "{a}1"),
        lambda: old.run(numbers.deferred.hset_many([(key, b"2") for key in keys])),
        lambda: old.run(queues.deferred.enqueue("q", "other")),
        lambda: old.claim("{a}1"),
    ):
        with pytest.raises(StaleTokenError, match="a later holder has written here"):
            run(write())
    assert run(numbers.hget("h1")) == b"1"
    assert run(queues.counts("q")).waiting == 1
    assert run(new.run(numbers.deferred.hset("h1", b"3"))) == 0
    with pytest.raises(InvalidArgumentError, match="blocks"):
        run(new.run(queues.deferred.take("empty", timeout=1)))


def test_what_cannot_be_guarded_is_named(face: Face) -> None:
    run, lock = face.run, face.kit.lock("x", component="many", renew=False)
    hold = run(lock.acquire())
    for remember in (0.5, 1e10):
        with pytest.raises(InvalidArgumentError, match=r"remember=.*; give seconds, 1 to"):
            hold.guard("many", remember=remember)
    guard = hold.guard("many")
    with pytest.raises(InvalidArgumentError, match="execute without a key"):
        run(guard.execute(("PING",)))
    with pytest.raises(CrossShardError, match="'a' and 'b' live apart; guard them with two calls"):
        run(guard.execute(("SET", "a", 1), ("SET", "b", 1)))
    assert run(face.kit.key_sharded("many").exists("a", "b")) == 0


def test_locks_and_guards_work_on_a_cluster_and_behind_sentinels(
    kind: str, cluster: LocalCluster
) -> None:
    with LocalSentinel() as sentinel:
        components = {
            "cluster": {"entry": dict(cluster.entry.fields)},
            "sentinel": {"entry": dict(sentinel.entry.fields)},
        }
        where = map_of(**components)
        with faced(kind, where) as face, shardkit.connect(where) as kit:
            for component in components:
                names = [f"n{n}" for n in range(8)]
                locks = [face.kit.lock(name, component=component) for name in names]
                holds = [face.run(lock.acquire(blocking_timeout=0)) for lock in locks]
                with ThreadPoolExecutor(8) as pool:
                    waiting = [pool.submit(kit.lock(n, component=component).acquire) for n in names]
                    assert all(waiters(kit.lock(name, component=component), 1) for name in names)
                    for lock, hold in zip(locks, holds, strict=True):
                        assert face.run(lock.release(hold))
                    later = [each.result(1.5) for each in waiting]  # woken: sooner than they ask
                guards = [hold.guard(component) for hold in holds]
                if component == "cluster":
                    with pytest.raises(InvalidArgumentError, match="give the key a hash tag"):
                        face.run(guards[0].execute(("INCR", "a}b")))
                for new in later:
                    assert new is not None
                    assert new.guard(component).execute(("INCR", f"{new.name}:value")) == [1]
                for old in guards:
                    with pytest.raises(StaleTokenError, match="give up the work"):
                        face.run(old.execute(("INCR", f"{old.name}:value")))
                use_the_rest(face, component)


def use_the_rest(face: Face, component: str) -> None:
    """Use what else coordinates, and a market whose users and offers live apart."""
    run, kit = face.run, face.kit
    semaphore = kit.semaphore("s", component=component, limit=2)
    acquired = [run(semaphore.acquire(blocking_timeout=0)) is not None for _ in range(3)]
    assert acquired == [True, True, False]
    shelf = kit.read_write_lock("r", component=component)
    assert run(shelf.read.acquire(blocking_timeout=0))
    assert run(shelf.write.acquire(blocking_timeout=0)) is None
    limit = kit.rate_limit("l", component=component, limit=1, per=60)
    hits = run(limit.hit_many([f"user{n % 20}" for n in range(40)]))
    assert [hit.allowed for hit in hits] == [True] * 20 + [False] * 20
    latch = kit.countdown_latch("c", component=component)
    assert run(latch.set(1))
    assert run(latch.count_down()) == 0
    assert run(kit.barrier("b", component=component, parties=1).wait(timeout=5 * PATIENCE))
    leadership = run(kit.election("e", component=component).campaign(blocking_timeout=0))
    assert run(kit.election("e", component=component).leader()).token == leadership.token
    several = kit.multi_lock(["m1", "m2", "m3"], component=component)
    assert len(run(several.acquire(blocking_timeout=0))) == 3
    market = kit.market(component=component)
    for n in range(8):
        run(market.deposit(f"seller{n}", 0, ["ring"]))
        assert run(market.list("ring", f"seller{n}", n)) is True
    run(market.deposit("bill", 100))
    assert [run(market.purchase("bill", "ring", f"seller{n}", n)) for n in range(8)] == [True] * 8
    assert run(market.user("bill")).balances == {"money": 72, "item/ring": 8}
    everything = run(market.total(["bill", *(f"seller{n}" for n in range(8))]))
    assert everything == {"money": 100, "item/ring": 8}


def test_an_acquisition_that_no_replica_acknowledges_is_given_back(face: Face) -> None:
    lock = face.kit.lock("x", component="one", durable=1, durable_timeout=0.01)
    with pytest.raises(NotDurableError, match="0 of 1 replicas"):
        face.run(lock.acquire())
    assert not face.run(lock.locked())


def test_an_acquisition_that_a_replica_acknowledges_is_kept() -> None:
    with LocalSentinel() as sentinel:
        entry = dict(sentinel.entry.fields)
        where = map_of(a={"entry": entry})
        with (
            shardkit.connect(where) as kit,
            kit.lock("x", component="a", durable=1, durable_timeout=5) as held,
        ):
            held.check()
            [holder] = kit.lock("x", component="a").inspect().holders
            assert holder.token == held.token


def test_what_is_wrong_is_named(kit: ShardKit) -> None:
    for arguments, message in (
        ({"ttl": 0}, r"lock:\{x\}: ttl=0; give seconds, 0.001 to 86,400"),
        ({"ttl": "1"}, r"ttl='1'"),
        ({"blocking_timeout": -1}, r"blocking_timeout=-1; give seconds, 0 to"),
        ({"durable": -1}, r"durable=-1"),
        ({"owner": "a"}, r"owner='a'.*reentrant=True"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            kit.lock("x", component="one", **arguments)
    with pytest.raises(InvalidArgumentError, match="leave out braces"):
        kit.lock("{x}", component="one")
    with pytest.raises(InvalidArgumentError, match="break without a reason"):
        kit.lock("x", component="one").break_holds(" ")
    with pytest.raises(InvalidArgumentError, match="limit=0"):
        kit.semaphore("x", component="one", limit=0)


def test_what_is_stored_is_checked(kit: ShardKit) -> None:
    lock = kit.lock("x", component="one", renew=False)
    client: Any = kit.client("one")
    assert lock.acquire()
    [(id_, details)] = client.hgetall("lock:{x}:details").items()
    words = details.split(b" ")
    for n in range(2, 7):  # a number of them: who looks is shown nobody's name
        client.hset("lock:{x}:details", id_, b" ".join([*words[:n], b"x", *words[n + 1 :]]))
        assert [each.label for each in lock.inspect().holders] == [""], n
    client.hset("lock:{x}:details", id_, details)
    for key, value in (("lock:{x}:details", "7 future"), ("lock:{x}", "9" * 40)):
        before = client.hgetall(key)
        field = next(iter(before)) if key.endswith("details") else "token"
        client.hset(key, field, value)
        client.zremrangebyrank("lock:{x}:holders", 0, -1) if field == "token" else None
        with pytest.raises(DamagedDataError, match=r"lock:\{x\}.* is damaged"):
            lock.acquire(blocking_timeout=1) if field == "token" else lock.extend()
        client.hset(key, mapping=before)
    client.delete("lock:{x}", "lock:{x}:details", "lock:{x}:holders")
    client.set("lock:{x}", "text")
    with pytest.raises(DamagedDataError, match="a STRING"):
        lock.acquire()


def test_a_deadline_ends_a_wait_and_leaves_nothing_behind(face: Face, kit: ShardKit) -> None:
    async def acquire() -> Any:
        async with face.kit.deadline(0.2):
            return await face.kit.lock("x", component="one").acquire()

    with kit.lock("x", component="one") as held:
        if face.runner:
            with pytest.raises(ShardErrors) as raised:
                face.runner.run(acquire())
        else:
            with pytest.raises(ShardErrors) as raised, face.kit.deadline(0.2):
                face.kit.lock("x", component="one").acquire()
        assert "deadline" in str(raised.value.exceptions[0])
        assert kit.lock("x", component="one").inspect().waiters == []
        held.check()


def test_a_lock_of_whose_holders_is_not_known_any_more_is_not_given_to_another(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    lock = face.kit.lock("x", component="one", renew=False)
    seats = face.kit.semaphore("s", component="one", limit=2, renew=False)
    hold, first, _ = (face.run(each.acquire(ttl=60)) for each in (lock, seats, seats))
    client.delete("lock:{x}:holders")
    client.zrem("semaphore:{s}:holders", first.id)
    for other in (
        face.kit.lock("x", component="one"),
        face.kit.semaphore("s", component="one", limit=2),
    ):
        assert face.run(other.acquire(blocking_timeout=0)) is None
    for held, each in ((hold, lock), (first, seats)):
        assert face.run(each.held(held)) is True
        assert face.run(each.release(held)) is True
    later = face.run(lock.acquire(blocking_timeout=5))
    assert later.token > hold.token


def test_a_lock_of_a_later_format_is_refused_by_name(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    client.hset("lock:{x}", mapping={"format": 2, "limit": 1})
    lock = face.kit.lock("x", component="one")
    for call in (lambda: lock.acquire(blocking_timeout=0), lambda: lock.inspect()):
        with pytest.raises(NewerFormatError, match=r"lock:\{x\} has format 2"):
            face.run(call())


@pytest.mark.parametrize("remember", [None, 60])
def test_a_token_is_remembered_for_as_long_as_was_said(
    face: Face, kit: ShardKit, remember: float | None
) -> None:
    hold = face.run(face.kit.lock("x", component="many").acquire())
    guard = hold.guard("one", remember=remember)
    assert face.run(guard.execute(("SET", "a", 1))) == [b"OK"]
    left = kit.client("one").pttl("lock:x:fence")
    assert left == -1 if remember is None else 50_000 < left <= 60_000


def test_a_writer_whose_details_are_lost_still_excludes_readers(face: Face, kit: ShardKit) -> None:
    def shelf() -> Any:
        return face.kit.read_write_lock("shelf", component="one", renew=False)

    client: Any = kit.client("one")
    lost = (
        lambda: client.delete("rwlock:{shelf}:details"),
        lambda: client.hdel("rwlock:{shelf}:details", *client.hkeys("rwlock:{shelf}:details")),
    )
    for lose in lost:
        hold = face.run(shelf().write.acquire())
        lose()
        assert face.run(shelf().read.acquire(blocking_timeout=0)) is None
        assert face.run(shelf().write.acquire(blocking_timeout=0)) is None
        face.run(shelf().write.break_holds("a test"))
        del hold
        shared = face.run(shelf().read.acquire(blocking_timeout=0))
        assert shared
        face.run(shelf().read.break_holds("a test"))
