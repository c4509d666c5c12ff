"""Calls that wait at a fence while a split moves their keys."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from faces import Exchanges, Face, eventually, faced
from growth_helpers import PATIENT, Fleet, filled
from moments import before as overtaken

import shardkit
from shardkit.admin.growth import plan_split, start_move, start_split
from shardkit.coordination import Leg
from shardkit.errors import CommandRefused, CrossShardError
from shardkit.operations import Call, Command, Operation

KEYS, OTHERS = ([f"{kind}{n}" for n in range(40)] for kind in "ko")
LIBRARY = "#!lua name=over_a_split\nredis.register_function('one', function() return 1 end)"

both_faces = pytest.mark.parametrize("face", ["blocking", "async"])


def over_a_split(
    fleet: Fleet, face: str, *calls: Callable[[Any], Any], shards: int = 5, moment: str = "decide"
) -> list[Any]:
    """Return the results of calls of a router that begin just before a split is decided."""

    async def acall(call: Callable[[Any], Any], begun: threading.Event) -> Any:
        async with await shardkit.aconnect(fleet.url) as kit:
            router = await kit.key_sharded("users").load()
            begun.set()
            return await call(router)

    def carry_out(call: Callable[[Any], Any], begun: threading.Event) -> Any:
        if face == "async":
            return asyncio.run(acall(call, begun))
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            assert len(router) == 2
            begun.set()
            return call(router)

    def waiting() -> int:
        with fleet.servers[0].client() as client:
            names = [each["name"] for each in client.client_list()]
        return sum(name.startswith("shardkit:waiting/") for name in names)

    def begin() -> None:
        for call in calls:
            begun = threading.Event()
            results.append(threads.submit(carry_out, call, begun))
            begun.wait(30)
        assert eventually(lambda: waiting() >= len(calls))

    results: list[Any] = []
    with ThreadPoolExecutor() as threads:
        with overtaken(moment, begin):
            over = [fleet.name(1)]
            split = start_split(fleet.config, "users", shards=shards, over=over, hold=PATIENT)
        assert split.phase == "done"
        return [result.result(60) for result in results]


def separated(fleet: Fleet) -> tuple[str, str]:
    """Return two keys that live together on one of two shards, but not on one of five."""
    with shardkit.connect(fleet.url) as kit:
        component = kit.topology.component("users")
    keys = [key for key in KEYS if component.place(key) == component.place(KEYS[0])]
    return keys[0], keys[-1]


@both_faces
def test_pipelines_split_their_commands_again(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    a, b = separated(fleet)

    def call(router: Any) -> Any:
        pipe = router.pipeline().incr("n").mset(dict.fromkeys(KEYS, 1)).exists(*KEYS)
        pipe.delete(*KEYS[10:]).set(KEYS[30], 2).rename(a, b).mget(KEYS).incr("n")
        return pipe.execute(raise_on_error=False)

    def blocking_call(router: Any) -> Any:
        pipe = router.pipeline().rpush("list", 1, 2).blpop("list", 1)
        pipe.mset(dict.fromkeys(OTHERS, 1)).unlink(*OTHERS).lpush("list", 0).blpop("list", 1)
        return pipe.mget(OTHERS).incr("m").execute()

    replies, others = over_a_split(fleet, face, call, blocking_call)
    assert others == [2, (b"list", b"1"), True, 40, 2, (b"list", b"0"), [None] * 40, 1]
    refused = replies.pop(5)
    assert replies[:5] == [1, True, 40, 30, True]
    assert replies[5] == [b"1"] * 10 + [None] * 20 + [b"2"] + [None] * 9
    assert replies[6] == 2
    assert isinstance(refused, CommandRefused)
    assert isinstance(refused.error, CrossShardError)
    assert not refused.maybe_executed
    said = (
        r"users:\d was split, and RENAME: the keys live on different shards .users:\d, users:\d.;"
    )
    assert re.match(said, str(refused))


@both_faces
def test_commands_of_all_shards_go_to_the_new_ones(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    filled(fleet)
    replies = over_a_split(
        fleet,
        face,
        lambda router: router.all.config_set("slowlog-max-len", 64),
        lambda router: router.all.script_load("return 1"),
        lambda router: router.all.function_load(LIBRARY),  # a server that has it refuses it
    )
    assert replies == [True, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", b"over_a_split"]
    with shardkit.connect(fleet.url) as kit:
        router: Any = kit.key_sharded("users")
        assert router.all.script_exists(replies[1]) == [True]
        assert router.all.function_delete("over_a_split") is True
        assert {each["slowlog-max-len"] for each in router.all.config_get("slowlog*")} == {"64"}


@both_faces
def test_messages_are_published_at_the_new_shards(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    calls = [lambda router, name=name: router.publish(name, "hello") for name in KEYS[:3]]
    assert over_a_split(fleet, face, *calls) == [0, 0, 0]


def live_together(users: Face, pattern: str, names: Sequence[object]) -> bool:
    """Whether the keys of two names live on one shard."""
    place = users.kit.topology.component("users").place
    return len({place(pattern.format(name)) for name in names}) == 1


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_operations_find_keys_again_that_a_split_has_separated(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        kit: Any = users.kit
        of_days = kit.unique_visitors(
            "visits", component="users", precision="exact", first_day=1000
        )
        estimates = kit.unique_visitors("rough", component="users", precision="hyperloglog")
        odd, low = (kit.set(n, component="users", total=2000, members=int) for n in ("odd", "low"))
        bank = kit.transfers("bank", component="users")
        days = [date(2026, 1, day) for day in range(1, 9)]
        pairs = list(combinations(days, 2))
        for day in days:
            users.run(estimates.visit_many(KEYS, day))
        users.run(odd.sadd(*range(1, 400, 2)))
        users.run(low.sadd(*range(200)))
        visit, union = of_days.deferred.visit_many, estimates.deferred.count_union
        begun = {
            "structures/unique/add_and_count": [visit([key], day) for day in days for key in KEYS],
            "PFCOUNT": [union(two) for two in pairs if live_together(users, "rough:{}", two)],
            "SINTER": [odd.deferred.sinter(low)],
            "coordination/transfer_direct": [
                bank.deferred.issue(*(Leg(str(day), {"gold": 1}) for day in two))
                for two in pairs
                if live_together(users, "{{{}}}", two)
            ],
        }
        calls = {name: [Exchanges(users, each) for each in begun[name]] for name in begun}
        for name, of_name in calls.items():
            for call in of_name:
                call.until(name)
        options: Any = {"shards": 5, "over": [fleet.name(1)], "hold": PATIENT}
        assert users.eventually(
            lambda: start_split(fleet.config, "users", **options).phase == "done"
        )
        results = {name: [call.end() for call in calls[name]] for name in calls}
        assert results["structures/unique/add_and_count"] == [1] * 320
        assert [users.run(of_days.count(day)) for day in days] == [40] * 8
        assert users.run(of_days.count_union(days)) == 40
        assert set(results["PFCOUNT"]) == {40}
        assert results["SINTER"] == [set(range(1, 200, 2))]
        assert set(results["coordination/transfer_direct"]) == {(True, "", "", "")}
    assert plan_split(fleet.config, "users", shards=2).problems == ()  # no key is at a wrong place


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_guarded_commands_go_on_after_a_split(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        place = users.kit.topology.component("users").place
        lock = users.kit.lock("stock", component="users", renew=False)
        keys = [key for key in KEYS if place(key) == place("lock:stock:fence")]
        guard = users.run(lock.acquire(ttl=600)).guard("users")
        users.run(guard.execute(("SET", keys[0], 1)))
        options: Any = {"shards": 5, "over": [fleet.name(1)], "hold": PATIENT}
        assert users.eventually(
            lambda: start_split(fleet.config, "users", **options).phase == "done"
        )
        replies = [users.run(guard.execute(("INCR", key), ("GET", key))) for key in keys]
        assert replies == [[2, b"2"], *[[1, b"1"]] * (len(keys) - 1)]


def beside_a_refusal(fleet: Fleet, users: Face, batch: int, operation: Operation[Any]) -> Any:
    """Run an operation; in front of one of its batches is what a split just before it refuses."""
    a, b = separated(fleet)

    def split() -> None:
        start_split(fleet.config, "users", shards=5, over=[fleet.name(1)], hold=PATIENT)
        users.kit.topology.expire()

    def beside(turns: int, last: Any) -> Operation[Any]:
        for _ in range(turns):
            yield [Command("users", a, ("GET", a))]
        yield last

    refused = beside(batch, [Command("users", a, ("SINTER", a, b))])
    return users.run(users.kit.together(refused, beside(batch - 1, Call(split)), operation))


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_a_committed_transfer_is_not_carried_out_again(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        bank: Any = users.kit.transfers("bank", component="users")
        place = users.kit.topology.component("users").place
        here, there = (next(k for k in OTHERS if place(f"bank:{{{k}}}") == n) for n in (0, 1))
        issue = bank.deferred.issue(Leg(here, {"gold": 1}), Leg(there, {"gold": 1}))
        with suppress(ExceptionGroup):
            beside_a_refusal(fleet, users, 4, issue)
        accounts = users.run(bank.read(here, there))
        assert [len(each.in_flight) + each.balances.get("gold", 0) for each in accounts] == [1, 1]


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_visits_beside_what_a_split_refuses_are_counted_or_fail(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        visits: Any = users.kit.unique_visitors(
            "visits", component="users", precision="exact", first_day=1000
        )
        day = date(2026, 1, 1)
        users.run(visits.visit_many(["of before"], day))
        with pytest.raises(ExceptionGroup) as failed:
            beside_a_refusal(fleet, users, 2, visits.deferred.visit_many(KEYS, day))
        is_counted = users.run(visits.count(day)) == 1 + len(KEYS)
        assert is_counted is (len(failed.value.exceptions) == 1)


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_what_follows_a_refused_request_names_it(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    key, _ = separated(fleet)

    def counting() -> Operation[Any]:
        yield [Command("users", key, ("GET", key))]
        yield [Command("users", key, ("INCR", key))]

    with faced(face, fleet.url) as users:
        with pytest.raises(ExceptionGroup) as failed:
            beside_a_refusal(fleet, users, 1, counting())
        [said] = [str(each) for each in failed.value.exceptions if "INCR" in str(each)]
        assert "INCR was to follow what was refused: SINTER: the keys live on" in said
        assert users.run(users.kit.key_sharded("users").get(key)) is None


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
@pytest.mark.parametrize("is_split", [True, False], ids=["split", "move"])
def test_scan_iter_misses_no_key_that_moves(fleet: Fleet, face: str, is_split: bool) -> None:
    fleet.push(0)
    names = {f"n{n}".encode() for n in range(2000)}
    with faced(face, fleet.url) as users:
        router = users.kit.key_sharded("users")
        users.run(router.mset(dict.fromkeys(names, 1)))
        keys = users.iterate(router.scan_iter("n*", count=10))
        seen = {next(keys) for _ in range(50)}
        change: Any = partial(start_split, fleet.config, "users", shards=5, over=[fleet.name(1)])
        if not is_split:
            change = partial(start_move, fleet.config, ["users:0", "users:1"], fleet.name(1))
        assert users.eventually(lambda: change(hold=PATIENT).phase == "done")
        assert seen.union(keys) == names
