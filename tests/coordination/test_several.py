"""Several locks at once, all or none; and one lock on a majority of servers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from arranged import ask
from coordination_helpers import forked, with_jumping_clocks
from faces import ALL_CASES, PATIENCE, Exchanges, Face, answer, eventually, faced, holder
from link_helpers import paused

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.coordination import Account, Leg, TransferResult
from shardkit.errors import (
    CommandsRefused,
    DamagedDataError,
    InvalidArgumentError,
    LockLostError,
    LockTimeoutError,
    NotHolderError,
    ShardKitError,
)
from shardkit.local import LocalServer, LocalServers
from shardkit.operations import Operation, Pause


def test_several_locks_are_acquired_all_or_none(face: Face) -> None:
    run = face.run
    several = face.kit.multi_lock(["b", "a", "c"], component="many", blocking_timeout=0.01)
    taken = face.kit.lock("c", component="many")
    hold = run(taken.acquire())
    assert run(several.acquire()) is None
    for name in "ab":
        assert not run(face.kit.lock(name, component="many").locked())
    run(taken.release(hold))
    holds = run(several.acquire())
    assert [each.name for each in holds] == ["a", "b", "c"]
    several.check()
    assert run(face.kit.lock("b", component="many").acquire(blocking_timeout=0)) is None
    assert run(several.release()) is True
    with pytest.raises(NotHolderError, match=r"a\+b\+c: not held; acquire it first"):
        run(several.release())


def test_when_one_of_several_locks_fails_the_others_are_released(face: Face, kit: ShardKit) -> None:
    holder(kit, "many", "lock:{b}").set("lock:{b}", "text")
    with pytest.raises(DamagedDataError, match="a STRING"):
        face.run(face.kit.multi_lock(["a", "b"], component="many").acquire())
    assert not kit.lock("a", component="many").locked()


def test_threads_that_want_the_same_locks_in_any_order_all_get_them(kit: ShardKit) -> None:
    def work(seed: int) -> int:
        random, done = Random(seed), 0
        for _ in range(15):
            names = random.sample("abcd", 3)
            with kit.multi_lock(names, component="many", blocking_timeout=30):
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert [each.result(60) for each in [pool.submit(work, n) for n in range(4)]] == [15] * 4


def test_several_locks_are_told_when_one_is_lost(kit: ShardKit) -> None:
    several = kit.multi_lock(["a", "b"], component="many", renew=False)
    with pytest.raises(LockLostError, match="a lock was lost"), several:
        kit.lock("a", component="many").break_holds("test")
    with (
        kit.lock("a", component="many"),
        pytest.raises(LockTimeoutError, match="a: timed out after 0 s"),
    ):
        kit.multi_lock(["a"], component="many", blocking_timeout=0).__enter__()
    for names in ([], ["a", "a"]):
        with pytest.raises(InvalidArgumentError, match="each once"):
            kit.multi_lock(names, component="many")


def test_a_hold_of_another_lock_is_refused_and_stays_held(face: Face) -> None:
    run = face.run
    lock = face.kit.lock("other", component="many")
    hold = run(lock.acquire())
    several = face.kit.multi_lock(["a", "b"], component="many")
    held = run(several.acquire())
    for release, given in (
        (face.kit.lock("a", component="many").release, hold),
        (face.kit.lock("other", component="one").release, hold),
        (face.kit.semaphore("other", component="many", limit=1).release, hold),
        (several.release, [held[0], hold]),
        (several.release, [held[0], 5]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"hold.*give .* acquire returned"):
            run(release(given))
    with pytest.raises(InvalidArgumentError, match=r"hold=<Hold of lock:\{other\}"):
        run(face.kit.lock("a", component="many").extend(hold=hold))
    assert not hold.released
    assert run(lock.release(hold)) is True
    assert run(several.release(held)) is True


@pytest.mark.parametrize("wait", [-1, -5, 1e12])
def test_how_long_to_wait_is_checked_before_anything_is_acquired(
    kit: ShardKit, wait: float
) -> None:
    several = kit.multi_lock(["a"], component="many")
    quorum = kit.quorum_lock("q", components=["x", "y", "z"])  # there are no such servers
    for lock in (several, quorum):
        with pytest.raises(InvalidArgumentError, match=r"blocking_timeout=.*give seconds, 0 to"):
            lock.acquire(blocking_timeout=wait)
    assert not kit.lock("a", component="many").locked()
    with pytest.raises(InvalidArgumentError, match="blocking_timeout="):
        kit.quorum_lock("q", components=["x", "y", "z"], blocking_timeout=wait)
    with pytest.raises(InvalidArgumentError, match="blocking_timeout="):
        kit.multi_lock(["a"], component="many", blocking_timeout=wait)
    with pytest.raises(InvalidArgumentError, match=r"components=\['x', 'y', 5\]"):
        kit.quorum_lock("q", components=["x", "y", 5])  # type: ignore[list-item]


@pytest.fixture(scope="module")
def three() -> Iterator[list[LocalServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LocalServer()) for _ in range(3)]


def map_of(servers: list[LocalServer]) -> ShardMap:
    components = {f"q{n}": {"entry": {"port": each.port}} for n, each in enumerate(servers)}
    return ShardMap.parse(
        json.dumps({"defaults": {"socket_timeout": 0.3 * PATIENCE}, "components": components})
    )


def test_a_majority_is_enough_and_tokens_increase(three: list[LocalServer], kind: str) -> None:
    with faced(kind, map_of(three)) as face:
        for server in three:
            ask(server, "flushall")
        lock = face.kit.quorum_lock("x", components=["q0", "q1", "q2"])
        other = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0.05)
        first = face.run(lock.acquire())
        first.check()
        assert face.run(other.acquire()) is None
        assert face.run(lock.release()) is True
        # A server whose clock is ahead gave the first a large token, and is gone now.
        ask(three[0], "hset", "quorum:{x}", "token", 9_000_000_000_000_000)
        ahead = face.run(lock.acquire())
        assert ahead.token == 9_000_000_000_000_001
        face.run(lock.release())
        with paused(three[0]):
            last = face.run(lock.acquire())
            assert last.token > ahead.token
            assert face.run(other.acquire()) is None
            assert face.run(lock.release()) is True
            with paused(three[1]):
                assert face.run(other.acquire()) is None


def test_what_is_damaged_on_a_minority_does_no_harm_and_on_a_majority_is_named(
    three: list[LocalServer], kind: str
) -> None:
    with faced(kind, map_of(three)) as face:
        for server in three:
            ask(server, "flushall")
        lock = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0)
        other = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0)
        for server, damaged in zip(three, (False, True, True), strict=True):
            assert face.run(lock.acquire())
            assert face.run(other.acquire()) is None
            assert face.run(lock.release()) is True
            if damaged:
                ask(server, "hset", "quorum:{x}", "token", "x")
        with pytest.raises(DamagedDataError, match=r"q[12]: quorum:\{x\} is damaged: token=x"):
            face.run(lock.acquire())


@pytest.mark.parametrize("right", ["evalsha", "zadd"])
def test_rights_that_a_majority_lacks_are_named_at_once(
    three: list[LocalServer], kind: str, right: str
) -> None:
    with faced(kind, map_of(three)) as face:
        lock = face.kit.quorum_lock("r", components=["q0", "q1", "q2"], blocking_timeout=None)
        for server in three[1:]:
            assert face.run(lock.acquire())
            assert face.run(lock.release()) is True
            ask(server, "execute_command", "ACL", "SETUSER", "default", f"-{right}")
        try:
            with pytest.raises(CommandsRefused, match="2 shards failed") as refused:
                face.run(lock.acquire())
            for failure in refused.value.exceptions:
                assert f"the user may not run {right.upper()}" in str(failure)
        finally:
            for server in three[1:]:
                ask(server, "execute_command", "ACL", "SETUSER", "default", f"+{right}")


def test_a_hold_on_a_majority_is_lost_with_it(three: list[LocalServer]) -> None:
    with shardkit.connect(map_of(three)) as kit:
        lock: Any = kit.quorum_lock("y", components=["q0", "q1", "q2"], renew=False, ttl=5)
        other = kit.quorum_lock("z", components=["q0", "q1", "q2"])
        with lock as hold:
            with pytest.raises(InvalidArgumentError, match=r"q0 quorum:.y. is of another lock"):
                other.release(hold)
            hold.holds[0].lose("test")
            hold.check()
            hold.holds[1].lose("test")
            with pytest.raises(LockLostError, match="majority"):
                hold.check()
        assert lock.acquire()
        for server in three[:2]:
            ask(server, "flushall")
        assert lock.release() is False
        with pytest.raises(InvalidArgumentError, match="at least three"):
            kit.quorum_lock("y", components=["q0", "q1"])
        with pytest.raises(NotHolderError, match=r"quorum:\{y\}: not held; acquire it first"):
            lock.release()


KILLS = 24 if ALL_CASES else 12
NAMES = [f"a{n}" for n in range(8)]


def move(source: str, target: str, amount: int, asset: str = "gold") -> tuple[Leg, Leg]:
    return Leg(source, {asset: -amount}), Leg(target, {asset: amount})


@pytest.mark.parametrize("component", ["one", "many"])
def test_amounts_move_all_or_none(face: Face, component: str) -> None:
    run, bank = face.run, face.kit.transfers("bank", component=component)
    huge = 10**17 + 1
    assert run(bank.issue(Leg("a", {"gold": huge, "corn": 5}), Leg("b", {"gold": 1})))
    assert run(bank.transfer(*move("a", "b", huge))) == TransferResult(True)
    assert run(bank.transfer(*move("b", "c", huge + 2))) == (False, "b", "short", "gold")
    assert run(
        bank.transfer(
            Leg("c", {"gold": 1}), Leg("b", {"gold": -1, "corn": -1}), Leg("a", {"corn": 1})
        )
    ) == (False, "b", "short", "corn")
    a, b, c = run(bank.read("a", "b", "c"))
    assert a.balances == {"corn": 5}
    assert b.balances == {"gold": huge + 1}
    assert c._replace(version=0) == Account({}, {}, {}, 0)
    assert run(bank.total(["a", "b", "c"])) == {"gold": huge + 1, "corn": 5}


def test_a_transfer_that_stops_anywhere_is_finished_or_undone(face: Face) -> None:
    run, bank = face.run, face.kit.transfers("bank", component="many", grace=0.01)
    assert run(bank.issue(Leg("a", {"gold": 10})))
    outcomes, before = [], 0
    for count in range(1, 7):
        stopped = Exchanges(face, bank.deferred.transfer(*move("a", "b", 1))).stop_after(count)
        assert run(bank.total(["a", "b"])) == {"gold": 10}
        if count > 1 and stopped:
            assert eventually(lambda: any(run(bank.recover("a", "b"))))
        a, b = run(bank.read("a", "b"))
        assert a.in_flight == b.in_flight == {}
        assert run(bank.total(["a", "b"])) == {"gold": 10}
        outcomes.append(b.balances.get("gold", 0) - before)
        before += outcomes[-1]
    # Undone until it was committed, finished from then on.
    assert outcomes == [0, 0, 0, 1, 1, 1]


def test_who_was_stopped_and_undone_by_others_changes_nothing(face: Face) -> None:
    run, bank = face.run, face.kit.transfers("bank", component="many", grace=0.01)
    assert run(bank.issue(Leg("a", {"gold": 10})))
    for count in (2, 3):
        late = Exchanges(face, bank.deferred.transfer(*move("a", "b", 1)))
        assert late.stop_after(count)
        assert eventually(lambda: run(bank.recover()).undone == 1)
        list(late)  # it goes on
        assert late.result.reason == "undone"
        assert run(bank.total(["a", "b"])) == {"gold": 10}
        assert run(bank.read("a"))[0].balances == {"gold": 10}


def test_what_is_sent_again_of_a_transfer_takes_nothing_twice(kit: ShardKit) -> None:
    bank = kit.transfers("bank", component="many")
    assert bank.issue(Leg("a", {"gold": 10}))
    steps = bank.deferred.transfer(*move("a", "b", 1))
    step, reply = next(steps), None
    with pytest.raises(StopIteration) as ended:  # noqa: PT012
        while True:
            for _ in range(2):  # as after an answer that was lost
                reply = answer(kit, step)
            step = steps.send(reply)
    assert ended.value.value == TransferResult(True)
    a, b = bank.read("a", "b")
    assert (a.balances, b.balances, a.in_flight, b.in_flight) == ({"gold": 9}, {"gold": 1}, {}, {})


def test_of_two_who_recover_at_once_one_counts_what_was_undone(face: Face) -> None:
    run, bank = face.run, face.kit.transfers("bank", component="many", grace=0.01)
    assert run(bank.issue(Leg("a", {"gold": 10})))
    assert Exchanges(face, bank.deferred.transfer(*move("a", "b", 1))).stop_after(3)
    assert eventually(lambda: run(bank.read("a"))[0].in_flight)
    time.sleep(0.02)  # until the grace is over, in which it is not disturbed
    recovery = Exchanges(face, bank.deferred.recover())
    assert recovery.stop_after(1)  # it knows what is old
    assert run(bank.recover()) == (0, 1)
    list(recovery)
    assert recovery.result == (0, 0)
    assert run(bank.read("a"))[0].balances == {"gold": 10}


def test_a_transfer_on_one_server_settles_what_is_in_its_way(face: Face, kit: ShardKit) -> None:
    bank = face.kit.transfers("bank", component="one", grace=0.01)
    assert face.run(bank.issue(Leg("b", {"gold": 10})))
    legs = {each: bank._leg_text(Leg(each, {}, set={"level": "2"})) for each in "ab"}
    assert Exchanges(face, bank._in_steps("t", legs)).stop_after(2)
    move = Leg("a", {"gold": 4}), Leg("b", {"gold": -4}, set={"level": "3"})
    assert face.run(bank.transfer(*move))
    a, b = face.run(bank.read("a", "b"))
    assert (a.balances, a.fields) == ({"gold": 4}, {})
    assert (b.balances, b.fields) == ({"gold": 6}, {"level": "3"})


WORK = """
import random
from shardkit.coordination import Leg

def work(number):
    chance = random.Random(number)
    bank = kit.transfers("bank", component="many", grace=0.3)
    market = kit.market(component="many", grace=0.3)
    names = [f"a{n}" for n in range(8)]
    while True:
        source, target = chance.sample(names, 2)
        amount = chance.randint(1, 30)
        bank.transfer(Leg(source, {"gold": -amount}), Leg(target, {"gold": amount}))
        market.list("ring", source, amount)
        price = market.price("ring", target)
        if price is not None:
            market.purchase(source, "ring", target, price)
"""


def test_after_any_kill_everything_is_there_to_the_last_unit(
    kit: ShardKit, shard_map: ShardMap
) -> None:
    kill_at_random(kit, shard_map)


def test_where_clocks_jump_everything_is_there_to_the_last_unit(tmp_path: Path) -> None:
    chance = Random(5)
    with (
        with_jumping_clocks(tmp_path) as (shard_map, set_clock),
        shardkit.connect(shard_map) as kit,
    ):
        kill_at_random(
            kit,
            shard_map,
            lambda: set_clock(chance.choice((-86_400, -5, 0, 5, 3600))),
            lambda: set_clock(7200),  # what was begun before a clock was set back is old now
        )


def kill_at_random(
    kit: ShardKit,
    shard_map: ShardMap,
    besides: Callable[[], None] = lambda: None,
    in_the_end: Callable[[], None] = lambda: None,
) -> None:
    """Kill processes that move amounts at random; check that sums are right after each."""
    bank = kit.transfers("bank", component="many", grace=0.3)
    market = kit.market(component="many", grace=0.3)
    assert all(bank.issue(Leg(name, {"gold": 100})) for name in NAMES)
    for name in NAMES:
        market.deposit(name, 100, ["ring"])
    traded, offers = {"money": 800, "item/ring": 8}, [("ring", name) for name in NAMES]
    chance = Random(3)
    with forked(WORK, shard_map) as fork:
        running = [fork(n) for n in range(3)]
        for n in range(KILLS):
            threading.Event().wait(chance.uniform(0.01, 0.08))
            os.kill(running.pop(0), signal.SIGKILL)
            besides()
            if n % 8 == 7:  # nobody is at it: what is in flight is counted all the same
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                running = []
                assert bank.total(NAMES) == {"gold": 800}
                assert market.total(NAMES, offers) == traded
            while len(running) < 3:
                running.append(fork(3 + 3 * n + len(running)))
    assert bank.total(NAMES) == {"gold": 800}
    assert market.total(NAMES, offers) == traded
    in_the_end()
    assert eventually(lambda: settled(bank, NAMES))
    accounts = [f"user/{name}" for name in NAMES] + [f"listing/ring/{name}" for name in NAMES]
    assert eventually(lambda: settled(market.transfers, accounts))
    assert sum(each.balances.get("gold", 0) for each in bank.read(*NAMES)) == 800
    read = market.transfers.read(*accounts)
    assert sum(each.balances.get("money", 0) for each in read) == 800
    assert sum(each.balances.get("item/ring", 0) for each in read) == 8


def settled(bank: Any, accounts: list[str]) -> bool:
    bank.recover(*accounts)
    return not any(each.in_flight for each in bank.read(*accounts))


@pytest.mark.parametrize(
    ("legs", "message"),
    [
        ([Leg("a", {"gold": -1})], "add up to"),
        ([Leg("a", {"gold": 1}), Leg("a", {"gold": -1})], "one leg for each account"),
        ([Leg("a", {"gold": 1.5})], "gold=1.5; give an integer"),
        ([Leg("a", {7: 0})], "a has a field 7; give text"),
        ([Leg("a", set={None: "x"})], "a has a field None; give text"),
        ([Leg("a", {"gold": 10**18 + 1}), Leg("b", {"gold": -(10**18) - 1})], "gold=1000"),
        ([Leg("{a}", {})], "leave out braces"),
        ([Leg("a", {}, {"f": 1})], "f=1; give text"),  # type: ignore[dict-item]
        ([], "0 legs"),
    ],
)
def test_what_is_wrong_is_named(kit: ShardKit, legs: list[Leg], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kit.transfers("bank", component="many").transfer(*legs)


def test_what_is_stored_is_checked(kit: ShardKit) -> None:
    bank = kit.transfers("bank", component="many", grace=0.01)
    assert bank.issue(Leg("a", {"gold": 5}))
    holder(kit, "many", "bank:{a}").hset("bank:{a}", "a:gold", "five")
    with pytest.raises(DamagedDataError, match=r"bank:\{a\}"):
        bank.read("a")
    with pytest.raises(DamagedDataError, match=r"bank:\{a\}"):
        bank.transfer(*move("a", "b", 1))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (b"f:\xff", "x", r"bank:\{a\} is damaged: 'utf-8' codec can't decode"),
        ("lock", "t", r"bank:\{a\} is damaged: lock=.*t.* a transfer in flight"),
    ],
)
def test_what_is_stored_of_an_account_is_checked(
    kit: ShardKit, field: Any, value: str, message: str
) -> None:
    bank = kit.transfers("bank", component="many")
    assert bank.issue(Leg("a", {"gold": 5}))
    holder(kit, "many", "bank:{a}").hset("bank:{a}", field, value)
    with pytest.raises(DamagedDataError, match=message):
        bank.read("a")


def test_a_dead_transfer_behind_many_that_fail_is_undone_for_the_next(
    face: Face, kit: ShardKit
) -> None:
    bank = face.kit.transfers("bank", component="many", grace=0.01)
    assert face.run(bank.issue(Leg("a", {"gold": 1})))
    assert Exchanges(face, bank.deferred.transfer(*move("a", "b", 1))).stop_after(2)
    for key in [f"bank:log:{{{number}}}" for number in range(16)]:
        client, ids = holder(kit, "many", key), [f"old{n}" for n in range(100)]
        client.hset(key, mapping=dict.fromkeys(ids, 'pending ["z"]'))
        client.zadd(f"{key}:times", dict.fromkeys(ids, 1))
    assert eventually(lambda: face.run(bank.transfer(*move("a", "c", 1))).done)
    assert face.run(bank.total(["a", "b", "c"])) == {"gold": 1}


@pytest.mark.parametrize("component", ["one", "many"])
def test_an_account_that_another_transfer_changes_for_long_is_busy(
    face: Face, kit: ShardKit, component: str, lower: Any
) -> None:
    lower(transfer_attempts=3)
    bank = face.kit.transfers("bank", component=component, grace=3600)
    legs = {each: bank._leg_text(Leg(each, {}, set={"level": "2"})) for each in "ab"}
    assert Exchanges(face, bank._in_steps("t", legs)).stop_after(2)
    given = Leg("a", {"gold": -1}, set={"level": "3"}), Leg("c", {"gold": 1})
    refused = face.run(bank.transfer(*given))
    assert (refused.done, refused.account, refused.reason) == (False, "a", "busy")
    a, c = face.run(bank.read("a", "c"))
    assert (list(a.in_flight), c.balances, c.in_flight) == (["t"], {}, {})


def test_accounts_that_change_all_the_time_are_not_added_up(kit: ShardKit) -> None:
    bank = kit.transfers("bank", component="many")
    assert bank.issue(Leg("a", {"gold": 5}), Leg("b", {"gold": 5}))
    pauses = []

    def disturbed(steps: Operation[Any]) -> Operation[Any]:
        answer = None
        while True:
            step = steps.send(answer)
            assert bank.issue(Leg("a", {"gold": 1}))
            if isinstance(step, Pause):
                pauses.append(step.seconds)
            answer = None if isinstance(step, Pause) else (yield step)

    with pytest.raises(ShardKitError, match="2 accounts kept changing; add up fewer"):
        kit.driver.run(disturbed(bank.deferred.total(["a", "b"])))
    assert len(pauses) > 9
    assert pauses == sorted(pauses), "each longer than the one before"


def test_what_is_damaged_of_a_transfer_is_named_and_nothing_is_moved(
    face: Face, kit: ShardKit
) -> None:
    transfers = face.kit.transfers(component="one", grace=0.01)
    client: Any = kit.client("one")
    face.run(transfers.issue(Leg("ada", {"money": 100}), Leg("bo", {"money": 5})))
    legs = Leg("ada", {"money": -7}, set={"level": "2"}), Leg("bo", {"money": 7})
    texts = {leg.account: transfers._leg_text(leg) for leg in legs}
    assert Exchanges(face, transfers._in_steps("t", texts)).stop_after(2)  # begun and prepared
    stored = {key: client.dump(key) for key in client.scan_iter()}
    log, times = sorted(key for key in stored if b":log:" in key)
    assert log == b"transfers:log:{8}"  # where every release looks for it
    wrong = [
        (b"transfers:{ada}:flight", "t", "[[]", "a leg of a transfer"),
        (b"transfers:{bo}:flight", "t", '[[["money", 7]], [], []]', "a leg of a transfer"),
        (b"transfers:{bo}:flight", "t", '[[["money", "x"]], [], []]', "a leg of a transfer"),
        (b"transfers:{bo}:flight", "t", f'[[["money", "{10**20}"]], [], []]', "a leg of a tra"),
        (log, "t", "finished [1]", "a record of a transfer"),
        (log, "t", "pending 7", "a record of a transfer"),
        (log, "t", "pending [7]", "a record of a transfer"),
        (b"transfers:{ada}", "lock", "u", "about fields"),
        (b"transfers:{bo}", "lock", "t", "about fields"),  # whose leg is about none
        (b"transfers:{ada}", "a:money", "-1", "integer"),
        (b"transfers:{ada}", "version", "x", "integer"),
    ]
    time.sleep(0.02)  # until the grace is over, in which the killed one is not disturbed
    for key, field, value, expected in wrong:
        client.hset(key, field, value)
        before = {each: client.dump(each) for each in client.scan_iter()}
        with pytest.raises(DamagedDataError, match=expected) as raised:
            face.run(transfers.recover("ada", "bo"))
        assert (raised.value.key, raised.value.shard) == (key.decode(), "one")
        after = {each: client.dump(each) for each in client.scan_iter()}
        changed = {each for each in before | after if before.get(each) != after.get(each)}
        assert key not in changed or field == "t"  # it is decided, and finished where it can be
        for each, payload in stored.items():
            client.restore(each, 0, payload, replace=True)
    client.zadd(times, {"t": 2**60})  # in the future, or not known: it is found all the same
    assert eventually(lambda: face.run(transfers.recover()) and not client.exists(log))
    accounts = face.run(transfers.read("ada", "bo"))
    assert [account.balances["money"] for account in accounts] == [100, 5]


def test_records_that_were_lost_do_not_keep_recovery_from_ending(face: Face, kit: ShardKit) -> None:
    transfers = face.kit.transfers(component="one", grace=0.01)
    client: Any = kit.client("one")
    client.zadd("transfers:log:{3}:times", {f"t{n}": n for n in range(250)})
    assert [tuple(face.run(transfers.recover())) for _ in range(3)] == [(0, 0)] * 3
    assert not client.exists("transfers:log:{3}:times")


def test_a_transfer_needs_no_server_but_those_of_its_accounts(kind: str) -> None:
    ports = [{"port": 7001 + n} for n in range(4)]
    shard_map = ShardMap.parse(json.dumps({"components": {"bank": {"shards": ports}}}))
    with LocalServers(shard_map, ports="free") as servers, faced(kind, servers.shard_map) as face:
        transfers, bank = face.kit.transfers(component="bank"), face.kit.key_sharded("bank")
        shards = {bank.shard_of(f"transfers:{{{name}}}"): name for name in "abcdefghijkl"}
        first, second = (name for shard, name in shards.items() if shard in (1, 3))
        face.run(transfers.issue(Leg(first, {"money": 30})))
        for number in (0, 2):
            servers.server_of("bank", number).kill()
        for _ in range(30):
            legs = Leg(first, {"money": -1}), Leg(second, {"money": 1})
            assert face.run(transfers.transfer(*legs)) == TransferResult(True)
        assert face.run(transfers.total([first, second])) == {"money": 30}
