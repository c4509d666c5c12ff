"""Simulated servers answer as real ones: random commands and scripts, on both, reply by reply."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from hypothesis import example, given, settings, strategies as st
from redis.exceptions import ResponseError
from shared import alone

import shardkit
from shardkit.local import LocalServer
from shardkit.operations.interruptions import start_thread
from shardkit.testing import Client, Protocol, SimulationFailure, replay, simulate
from shardkit.testing.simulation.servers import SimulatedServer

KEYS = st.sampled_from(["s", "h", "l", "z", "m", "x"])
TEXT = st.sampled_from(["", "a", "b", "7", "-3", "1.5", "\x00\xff", "long " * 20])
NUMBER = st.integers(-3, 4).map(str)
SCORE = st.sampled_from(["0", "1", "-2.5", "3", "inf", "-inf", "nan?"])
# Of each what comes after its key.
COMMANDS: dict[str, list[st.SearchStrategy[str]]] = {
    **{name: [] for name in ("GET", "DEL", "TYPE", "EXISTS", "INCR", "STRLEN", "TTL", "PERSIST")},
    **{name: [] for name in ("HGETALL", "HLEN", "SCARD", "SMEMBERS", "LLEN", "ZCARD")},
    **{name: [] for name in ("LPOP", "RPOP", "HKEYS", "HVALS", "UNLINK", "PTTL", "ZPOPMIN")},
    **{name: [TEXT] for name in ("SET", "APPEND", "SETNX", "SADD", "SREM", "SISMEMBER", "ZREM")},
    **{name: [TEXT] for name in ("LPUSH", "RPUSH", "RPUSHX", "HGET", "HDEL", "HEXISTS", "ZSCORE")},
    **{name: [TEXT, TEXT] for name in ("HSET", "HSETNX", "HMGET", "SADD", "RPUSH", "SMISMEMBER")},
    **{name: [NUMBER, NUMBER] for name in ("GETRANGE", "LRANGE", "LTRIM", "ZRANGE", "ZREVRANGE")},
    **{name: [NUMBER] for name in ("INCRBY", "DECRBY", "LINDEX", "EXPIRE")},
    "LSET": [NUMBER, TEXT],
    "LREM": [NUMBER, TEXT],
    "HINCRBY": [TEXT, NUMBER],
    "ZADD": [SCORE, TEXT],
    "ZINCRBY": [SCORE, TEXT],
    "ZCOUNT": [SCORE, SCORE],
    "ZRANGEBYSCORE": [SCORE, SCORE],
    "ZREMRANGEBYSCORE": [SCORE, SCORE],
    "ZRANK": [TEXT],
    "SETRANGE": [st.sampled_from(["0", "3"]), TEXT],
    "GETDEL": [],
    "ZREMRANGEBYRANK": [NUMBER] * 2,
}
SCRIPTS = {
    "call": "return redis.call(unpack(ARGV))",
    "pcall": "local r = redis.pcall(unpack(ARGV)); return type(r) == 'table' and r.err or r",
    "types": "return {redis.call('EXISTS', KEYS[1]), {1.9, 'a', false, 'never'}, {ok = 'OK'}}",
    "json": "return cjson.encode({redis.call('TYPE', KEYS[1]).ok, #ARGV, tonumber(ARGV[2]) or 0})",
    "text": "return {string.format('%.17g', 0.1), tostring(2^53), 10 / 4, math.floor(-1.5)}",
}


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    key = draw(KEYS)
    args = [name, key, *(draw(each) for each in COMMANDS[name])]
    if draw(st.integers(0, 3)):
        return args
    return ["EVAL", SCRIPTS[draw(st.sampled_from(sorted(SCRIPTS)))], "1", key, *args]


UNORDERED = {"SMEMBERS", "HGETALL", "HKEYS", "HVALS"}


def comparable(args: list[str], reply: Any) -> Any:
    """Return a reply without what servers may answer differently: order, and texts of errors."""
    if isinstance(reply, ResponseError):
        return "an error"
    if args[0] == "EVAL" and "pcall" in args[1] and isinstance(reply, bytes):
        return reply.partition(b" ")[0]
    ordered = not (UNORDERED & {args[0], args[4] if args[0] == "EVAL" else ""})
    if isinstance(reply, list) and not ordered:
        return sorted(map(str, reply))
    return reply


class Simulated:
    """A client of a simulated server."""

    def __init__(self) -> None:
        self.server = SimulatedServer("simulated", lambda: 1.0, log=True)
        self.replies: list[bytes] = []
        self.socket = self.server.connect(0, self.replies.append)

    def ask(self, args: list[str]) -> Any:
        self.server.execute(self.socket, [arg.encode("latin-1") for arg in args])
        reader = hiredis.Reader(replyError=ResponseError)
        reader.feed(self.replies.pop())
        return reader.gets()


def ask(client: redis.Redis, args: list[str]) -> Any:
    try:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*(arg.encode("latin-1") for arg in args))
            return connection.read_response()
        finally:
            client.connection_pool.release(connection)
    except ResponseError as error:
        return error


@settings(max_examples=60)
@given(st.lists(commands(), min_size=5, max_size=30))
@example([["HSET", "h", "", ""], ["EXPIRE", "h", "0"], ["APPEND", "h", ""]])
def test_random_commands_and_scripts_are_answered_as_by_a_real_server(
    own_server: LocalServer, steps: list[list[str]]
) -> None:
    with own_server.client() as client:
        client.flushall()
        simulated = Simulated()
        for args in steps:
            expected, found = ask(client, args), simulated.ask(args)
            assert comparable(args, found) == comparable(args, expected), args
        # A replica that takes over, or a restart, has the same: what the log makes of it.
        read = {"string": ["GET"], "hash": ["HLEN"], "list": ["LRANGE", "0", "-1"]}
        read |= {"set": ["SCARD"], "zset": ["ZRANGE", "0", "-1", "WITHSCORES"], "none": ["GET"]}

        def contents() -> list[Any]:
            found = []
            for key in "shlzmx":
                name, *more = read[simulated.ask(["TYPE", key]).decode()]
                found.append(simulated.ask([name, key, *more]))
            return found

        before = contents()
        simulated.server.lose(2.0, lambda at: None)
        simulated.socket = simulated.server.connect(0, simulated.replies.append)
        assert contents() == before


class Counting(Protocol):
    """Two threads of one client read a counter and write it back."""

    clients = 1
    faults = ()
    lock: Any = None

    def client(self, client: Client) -> None:
        lock = self.lock() if self.lock else None
        conn: Any = client.kit.client("data")

        def incr() -> None:
            if lock is not None:
                lock.acquire()
            conn.set("n", int(conn.get("n") or 0) + 1)
            if lock is not None:
                lock.release()

        threads = [threading.Thread(target=incr) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not any(thread.is_alive() for thread in threads)

    def at_end(self, kit: Any) -> None:
        assert int(kit.client("data").get("n")) == 2


class Locking(Counting):
    """The race mended by a lock, which a thread holds while it waits for its answers."""

    def lock(self) -> Any:
        return threading.Lock()


class Waiting(Protocol):
    """One thread tells another through an event and a condition; waits may end by time."""

    clients = 1
    faults = ()

    def client(self, client: Client) -> None:
        told, changed, values = threading.Event(), threading.Condition(), []

        def give() -> None:
            time.sleep(1000)
            with changed:
                values.append(time.monotonic())
                changed.notify()
            time.sleep(1000)
            told.set()

        started = time.monotonic()
        giver = threading.Thread(target=give, name="giver", daemon=True)
        start_thread(giver)  # as a kit starts its threads in the background
        giver.join(1)
        assert giver.is_alive()
        assert not told.wait(10)
        with changed:
            assert not changed.wait(10)
            assert changed.wait_for(lambda: values, 5000)
        assert told.wait()
        assert 2000 <= time.monotonic() - started < 2001


def test_a_race_of_two_threads_is_found_and_replayed() -> None:
    with pytest.raises(SimulationFailure) as found:
        simulate(Counting(), 100)
    for _ in range(2):
        with pytest.raises(AssertionError, match="assert 1 == 2"):
            replay(Counting(), found.value.schedule)


def test_a_lock_that_is_held_over_an_exchange_makes_others_wait() -> None:
    assert simulate(Locking(), 100).schedules == 100


def test_events_conditions_and_joins_wait_in_virtual_time() -> None:
    started = time.perf_counter()
    assert simulate(Waiting(), 20).schedules == 20
    assert time.perf_counter() - started < 60


def test_threading_is_as_before_afterwards() -> None:
    before = threading.Thread, threading.Event, threading.Condition, threading.Lock
    simulate(Waiting(), 1)
    assert (threading.Thread, threading.Event, threading.Condition, threading.Lock) == before


def ended(do: Any) -> bool:
    """Whether a blocking client does something to its end."""
    done: list[None] = []
    simulate(alone(lambda client: done.append(do())), 1)
    return done == [None]


def test_a_lock_that_is_held_is_waited_for_as_long_as_was_said() -> None:
    def wait() -> None:
        lock = threading.Lock()
        holder = threading.Thread(target=lock.acquire)
        holder.start()
        holder.join()
        started = time.monotonic()
        assert not lock.acquire(False)
        assert time.monotonic() == started
        assert not lock.acquire(timeout=5)
        assert time.monotonic() - started == pytest.approx(5, abs=0.1)
        threading.Thread(target=lambda: (time.sleep(3), lock.release())).start()
        assert lock.acquire(timeout=5)
        assert time.monotonic() - started == pytest.approx(8, abs=0.1)

    assert ended(wait)


def test_of_two_who_wait_for_a_lock_the_later_waits_on() -> None:
    def wait() -> None:
        lock, got = threading.Lock(), []

        def take(name: str, timeout: float) -> None:
            got.append((name, lock.acquire(timeout=timeout)))

        lock.acquire()
        takers = [threading.Thread(target=take, args=each) for each in (("a", 9), ("b", 20))]
        for taker in takers:
            taker.start()
        time.sleep(1)
        lock.release()
        time.sleep(1)
        assert len(got) == 1
        lock.release()
        for taker in takers:
            taker.join()
        assert sorted(got) == [("a", True), ("b", True)]

    assert ended(wait)


def test_each_thread_has_values_of_its_own_which_can_be_deleted() -> None:
    def use() -> None:
        own = threading.local()
        own.x = 1
        other = threading.Thread(target=lambda: seen.append(hasattr(own, "x")))
        other.start()
        other.join()
        del own.x
        seen.append(hasattr(own, "x"))
        with pytest.raises(AttributeError, match="x"):
            del own.x

    seen: list[bool] = []
    assert ended(use)
    assert seen == [False, False]


def test_a_thread_that_has_nothing_to_do_ends() -> None:
    def start() -> None:
        thread = threading.Thread()
        thread.start()
        thread.join()
        assert not thread.is_alive()

    assert ended(start)


def test_a_lock_that_may_be_acquired_again_is_its_holders_alone() -> None:
    def share() -> None:
        lock = threading.RLock()

        def try_it() -> None:
            got.append(lock.acquire(timeout=1))
            with pytest.raises(RuntimeError, match="cannot release un-acquired lock"):
                lock.release()

        got: list[bool] = []
        with lock, lock:
            other = threading.Thread(target=try_it)
            other.start()
            other.join()
        assert got == [False]
        assert lock.acquire(False)
        lock.release()

    assert ended(share)


def test_a_condition_wakes_up_all_and_says_when_the_time_is_over() -> None:
    def share() -> None:
        changed, woken = threading.Condition(), []

        def wait(name: str) -> None:
            with changed:
                woken.append((name, changed.wait(100)))

        waiting = [threading.Thread(target=wait, args=(name,)) for name in "ab"]
        for thread in waiting:
            thread.start()
        time.sleep(1)
        with changed:
            changed.notify_all()
        for thread in waiting:
            thread.join()
        assert sorted(woken) == [("a", True), ("b", True)]
        started = time.monotonic()
        with changed:
            assert changed.wait_for(list, 5) == []
        assert time.monotonic() - started == pytest.approx(5, abs=0.1)

    assert ended(share)


def test_no_module_keeps_the_sleep_of_its_import() -> None:
    """It would sleep while the simulator's time stands: `steps.sleep` looks it up."""
    keeps = re.compile(r"staticmethod\(time\.sleep|= time\.sleep$", re.MULTILINE)
    package = Path(shardkit.__file__).parent
    assert [p.name for p in package.rglob("*.py") if keeps.search(p.read_text("utf-8"))] == []
