"""Transfers: all or none, to the last unit, whatever is killed and whoever comes late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from coordination_helpers import forked, with_jumping_clocks
from faces import ALL_CASES, Exchanges, Face, answer, eventually, holder

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.coordination import Account, Leg, TransferResult
from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardKitError
from shardkit.operations import Operation, Pause

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


@pytest.mark.parametrize("component", ["one", "many"])
def test_fields_are_required_and_set(face: Face, component: str) -> None:
    run, bank = face.run, face.kit.transfers("bank", component=component)
    assert run(bank.issue(Leg("a", {"gold": 9}, {"open": None}, {"open": "yes"})))
    pays = Leg("a", {"gold": -1}, {"open": "yes"})
    assert run(bank.transfer(pays, Leg("b", {"gold": 1}, set={"seen": "1"})))
    assert run(bank.transfer(Leg("a", {"gold": -1}, {"open": "no"}), Leg("b", {"gold": 1}))) == (
        False,
        "a",
        "required",
        "open",
    )
    assert run(bank.transfer(Leg("a", {"gold": -8}, {}, {"open": None}), Leg("b", {"gold": 8})))
    a, b = run(bank.read("a", "b"))
    assert (a.balances, a.fields, b.balances, b.fields) == ({}, {}, {"gold": 9}, {"seen": "1"})


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


def test_a_note_that_is_in_no_log_is_undone(face: Face) -> None:
    run, bank = face.run, face.kit.transfers("bank", component="many", grace=0.01)
    assert run(bank.issue(Leg("a", {"gold": 10})))
    late = Exchanges(face, bank.deferred.transfer(*move("a", "b", 4)))
    assert late.stop_after(2)  # begun; prepare is next
    assert eventually(lambda: run(bank.recover()).undone == 1)
    next(iter(late))  # it goes on, and dies
    assert run(bank.read("a"))[0].balances == {"gold": 6}
    assert run(bank.total(["a", "b"])) == {"gold": 10}
    # Who needs what is missing undoes it; so does recover, where it is told to look.
    assert eventually(lambda: run(bank.transfer(*move("a", "b", 8))))
    assert run(bank.recover("a", "b")).undone == 1
    assert [each.balances for each in run(bank.read("a", "b"))] == [{"gold": 2}, {"gold": 8}]


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
        ([Leg("a", {"gold": 10**18 + 1}), Leg("b", {"gold": -(10**18) - 1})], "at most"),
        ([Leg("{a}", {})], "leave out braces"),
        ([Leg("a", {}, {"f": 1})], "f=1; give text"),  # type: ignore[dict-item]
        ([], "0 legs"),
    ],
)
def test_what_is_wrong_is_named(kit: ShardKit, legs: list[Leg], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kit.transfers("bank", component="many").transfer(*legs)


@pytest.mark.parametrize("grace", [0, 0.001, 100_000])
def test_a_grace_that_is_out_of_range_is_named(kit: ShardKit, grace: float) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"bank: grace={grace}; give seconds, 0.01 to 86,400"
    ):
        kit.transfers("bank", component="many", grace=grace)


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


@pytest.mark.parametrize("component", ["one", "many"])
def test_an_account_that_another_transfer_changes_for_long_is_busy(
    face: Face, kit: ShardKit, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.coordination.transfers.ATTEMPTS", 3)
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
        (b"transfers:{ada}", "lock", "u", "t, which is in flight"),
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
