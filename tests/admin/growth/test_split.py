"""Another number of shards, on real servers, under clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from arranged import client_of
from faces import PATIENCE, Exchanges, Face, eventually, faced
from growth_helpers import (
    PATIENT,
    PAUSE,
    Fleet,
    certified,
    filled,
    losing_nothing,
    on_redis_too,
    there,
)
from moments import before as overtaken, killed_at

import shardkit
import shardkit.admin.growth.awaiting as awaiting
from shardkit.admin.growth import (
    abort_move,
    complete_move,
    moves,
    plan_split,
    resume_move,
    reverse_move,
    start_move,
    start_split,
    verify_move,
)
from shardkit.coordination import Leg
from shardkit.errors import (
    CommandRefused,
    ConfigError,
    CrossShardError,
    GrowthError,
    InvalidArgumentError,
    RoutingError,
    StaleTokenError,
)
from shardkit.operations import Call, Command, Operation


@on_redis_too
def test_shards_are_split_under_load_and_back_without_losing_anything(fleet: Fleet) -> None:
    fleet.push(0)
    before = filled(fleet)
    with losing_nothing(fleet, shards=None):
        over = [fleet.name(1), fleet.name(2)]
        move = start_split(fleet.config, "users", shards=5, over=over, hold=PATIENT)
        assert move.phase == "done"
        assert certified(move)["stale"] == []
        assert json.loads(fleet.config.get("config:shards:users"))["shards"] == 5
        with fleet.servers[0].client(db=1) as old:
            assert set(old.keys()) <= {b"config:fence", b"config:witness"}
            assert old.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
        assert there(fleet) == before
        assert certified(reverse_move(fleet.config, "users", hold=PATIENT))
        assert fleet.masters() == [fleet.name(0)] * 2
        assert there(fleet) == before
    assert verify_move(fleet.config, "users").certificate is not None


def on_two_servers(fleet: Fleet) -> dict[str, Any]:
    """Describe two shards on two servers, and fill them."""
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(1, db=0)]}})
    return filled(fleet)


def stored(fleet: Fleet) -> tuple[int, str, int]:
    """How many shards there are, how keys are placed, and over how many servers; 0 for none."""
    with shardkit.connect(fleet.url) as kit:
        users = kit.topology.component("users")
    ports = {entry.fields["port"] for _, entry in users.entries()}
    return len(users.shards), users.placement, len(ports)


@pytest.mark.long(2)
@pytest.mark.parametrize(
    ("component", "new", "then"),
    [
        ("one", {"shards": 4, "over": [0, 1]}, (4, "crc32", 2)),
        ("one", {"shards": 1, "placement": "slot"}, (1, "slot", 1)),
        ("three", {"shards": 1, "over": [2]}, (1, "crc32", 1)),
        ("three", {"placement": "rendezvous"}, (3, "rendezvous", 2)),
        ("three", {"over": [2]}, (3, "crc32", 1)),
    ],
    ids=["from one", "one shard", "merge", "placement", "other servers"],
)
def test_counts_and_placements_change_under_load_and_back(
    fleet: Fleet, component: str, new: dict[str, Any], then: tuple[int, str, int]
) -> None:
    if component == "one":
        fleet.describe({"users": {"entry": fleet.at(0, db=0)}})
    else:
        fleet.describe(
            {"users": {"shards": [fleet.at(0, db=1), fleet.at(1, db=0), fleet.at(1, db=3)]}}
        )
    before = filled(fleet)
    at_first = stored(fleet)
    over = [fleet.name(n) for n in new.pop("over", [])]
    with losing_nothing(fleet, shards=None):
        assert certified(start_split(fleet.config, "users", over=over, hold=PATIENT, **new))
        assert stored(fleet) == then
        assert there(fleet) == before
        assert certified(reverse_move(fleet.config, "users", hold=PATIENT))
        assert stored(fleet) == at_first
        assert there(fleet) == before


def test_clients_that_are_kept_over_a_split_find_each_key_or_refuse(fleet: Fleet) -> None:
    fleet.push(0)
    keys = [f"k{n}" for n in range(40)]

    async def main() -> None:
        async with await shardkit.aconnect(fleet.url) as akit:
            with shardkit.connect(fleet.url) as kit:
                router: Any = kit.key_sharded("users")
                router.mset({key: key for key in keys})
                kept: dict[str, Any] = {key: router[key] for key in keys}
                akept: dict[str, Any] = {key: await akit.key_sharded("users")[key] for key in keys}
                private: Any = kit.client("users", 1, private=True)
                assert private.ping()
                pipe = router.pipeline()
                for key in keys:
                    pipe.get(key)
                over = [fleet.name(1)]
                await awaiting.start_split(fleet.config, "users", shards=5, over=over, hold=PATIENT)
                for key in keys:
                    assert kept[key].get(key) == key.encode()
                    assert await akept[key].append(key, "!") == len(key) + 1
                    assert kept[key].append(key, "!") == len(key) + 2
                expected = [f"{key}!!".encode() for key in keys]
                assert pipe.execute() == expected
                assert router.mget(keys) == expected
                with pytest.raises(
                    RoutingError, match="was split into 5 shards, and DBSIZE names no"
                ):
                    kept["k0"].dbsize()
                with pytest.raises(RoutingError, match=r"keys of several of them .it was not exec"):
                    kept["k0"].mset(dict.fromkeys(keys, 1))
                with pytest.raises(RoutingError, match="users:1 was split: the component has 5"):
                    private.get("k0")
                assert router.mget(keys) == expected

    asyncio.run(main())


MOMENTS = {
    "capture": False,
    "copy": False,
    "close": False,
    "decide": False,
    "attest": True,
    "empty": True,
}


def test_a_split_that_is_killed_at_any_point_is_resumed_or_aborted(fleet: Fleet) -> None:
    before = on_two_servers(fleet)
    at_first = stored(fleet)
    over = [fleet.name(2), fleet.name(1)]
    begin = partial(start_split, fleet.config, "users", shards=3, over=over)
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for moment, decided in MOMENTS.items():
            again = moves(fleet.config) and moment != "close"
            with killed_at(moment, "let go"):
                step = partial(resume_move, fleet.config, "users") if again else begin
                step(hold=0.3 * PATIENCE)
            router["more"].incr("more")  # waits, at most until the fence of the killed one expires
            assert (stored(fleet) == (3, "crc32", 2)) == decided, moment
            assert there(fleet) == before
            if moment == "copy":
                assert abort_move(fleet.config, "users").phase == "aborted"
                assert stored(fleet) == at_first
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert int(router["more"].get("more") or 0) == len(MOMENTS)
    assert there(fleet) == before
    assert set(client_of(fleet.servers[1], db=0).keys()) <= {b"config:fence", b"config:witness"}


def test_keys_that_do_not_tell_their_place_are_named_and_found_by_rules(fleet: Fleet) -> None:
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        visits, pairs = kit.key_sharded("users"), kit.id_pair_sharded("users")
        for n in range(100):
            visits[n].set(f"visits:{n}", n)
            pairs[n, 7].set(f"follows:{n}:7", n)
        plan = plan_split(fleet.config, "users", shards=3)
        [problem] = plan.problems
        assert "of 200 keys at the shards are not where their names say, such as " in problem
        assert "route:" in problem
        routes = [r"visits:(\d+)", r"pair follows:(\d+):(\d+)"]
        [problem] = plan_split(fleet.config, "users", shards=3, routes=routes[:1]).problems
        assert "such as follows:" in problem
        with pytest.raises(ConfigError, match="has 0 groups; write one group, the routing key"):
            plan_split(fleet.config, "users", shards=3, routes=["visits"])
        assert certified(start_split(fleet.config, "users", shards=3, routes=routes, hold=PATIENT))
        assert kit.topology.reread("users").routes == tuple(routes)
        kept: Any = visits[5]
        assert [visits[n].get(f"visits:{n}") for n in range(100)] == [b"%d" % n for n in range(100)]
        assert pairs[9, 7].get("follows:9:7") == b"9"
        # The rules are stored now, and clients that are kept use them, too.
        assert certified(start_split(fleet.config, "users", shards=4, hold=PATIENT))
        assert kept.get("visits:5") == b"5"
        assert [visits[n].get(f"visits:{n}") for n in range(100)] == [b"%d" % n for n in range(100)]


def test_a_key_that_comes_to_a_wrong_place_during_a_copy_stops_it(fleet: Fleet) -> None:
    fleet.push(0)
    before = filled(fleet)
    at_first = stored(fleet)

    def disturb() -> None:
        client_of(fleet.servers[0], db=1).mset({f"wrong{n}": n for n in range(40)})

    said = r"not where their names say, such as wrong.*, so the"
    with overtaken("copy all", disturb), pytest.raises(GrowthError, match=said):
        start_split(fleet.config, "users", shards=3, hold=PATIENT)
    assert abort_move(fleet.config, "users").phase == "aborted"
    assert stored(fleet) == at_first
    assert there(fleet) == before


def test_a_dry_run_of_a_split_says_what_would_be_done_and_what_stands_in_the_way(
    fleet: Fleet,
) -> None:
    fleet.push(0)
    filled(fleet)
    a, b, c = (fleet.name(n) for n in range(3))
    command = ["split", "users", "--shards", "6", "--over", b, "--over", c, "--dry-run"]
    said = " ".join(fleet.run(*command).output.split())
    assert f"{a}, databases 1, 2: CONFIG SET notify-keyspace-events, and PSUBSCRIBE" in said
    assert "push {shards: 6, placement: crc32} with epoch + 1" in said
    assert f"{b}: users:0 in 0, users:2 in 1, users:4 in 2" in said
    assert "calls that say shards=2 for users will be refused" in said
    assert re.search(rf"{c}: \d+ connections?, up to \d+ at the cutover, of 10,000 allowed", said)
    with fleet.servers[1].client(db=0) as client:
        client.set("somebody's", 1)
        client.config_set("maxmemory", 1_000_000)
        said = " ".join(fleet.run(*command, code=1).output.split())
        assert f"{b}: users:0 in 1" in said
        assert f"cannot be done: {b} has too little memory" in said
        client.config_set("maxmemory", 0)
        client.config_set("maxclients", 5)
        plan = plan_split(fleet.config, "users", shards=6, over=[b])
        assert plan.connections[b]["needed"] > plan.connections[b]["allowed"] == 5
        [problem] = plan.problems
        assert f"{b} allows too few connections: maxclients is 5, and up to " in problem
        client.config_set("maxclients", 10_000)
    with pytest.raises(InvalidArgumentError, match="users already has 2 shards and placem"):
        plan_split(fleet.config, "users")
    with pytest.raises(InvalidArgumentError, match="component 'user' is not known"):
        plan_split(fleet.config, "user", shards=3)
    with pytest.raises(InvalidArgumentError, match="too few for its share of 90 sh"):
        plan_split(fleet.config, "users", shards=90, over=[b])
    with pytest.raises(ConfigError, match="placement 'x' is unknown"):
        plan_split(fleet.config, "users", placement="x")
    assert moves(fleet.config) == []
    fleet.describe({"others": {"entry": fleet.at(0, db=2)}})
    [problem] = plan_split(fleet.config, "users", shards=3).problems
    assert problem == (
        f"others is in database 2 of {a}, too: its keys cannot be told from those of users"
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_split_offline_needs_no_notifications(fleet: Fleet, is_killed: bool) -> None:
    fleet.push(0)
    before = filled(fleet)
    over = [fleet.name(1)]
    with fleet.servers[0].client() as client:
        for right in ("-config|set", "-psubscribe"):
            client.execute_command("ACL", "SETUSER", "default", right)
        [problem] = plan_split(fleet.config, "users", shards=3, over=over).problems
        assert "does not let the user run CONFIG SET" in problem
        plan = plan_split(fleet.config, "users", shards=3, over=over, offline=True)
        assert plan.problems == ()
        assert any("writes wait for ten seconds" in step for step in plan.steps)
        options: Any = {"offline": True, "hold": PATIENT}
        start = partial(start_split, fleet.config, "users", shards=3, over=over)
        if is_killed:
            with killed_at("decide"):
                start(**options)
            start = partial(resume_move, fleet.config, "users")
        assert certified(start(**options))
    assert stored(fleet) == (3, "crc32", 1)
    assert there(fleet) == before


def kept(fleet: Fleet, old: set[tuple[int, int]]) -> dict[bytes, Any]:
    """Every key in databases, by server and number, as they are kept up to date."""
    found = {}
    for server, db in old:
        with fleet.servers[server].client(db=db) as client:
            client.client_setname("shardkit:operator@test/1")
            for key in client.scan_iter(match="[abdk]*"):
                found[key] = client.dump(key)
    return found


def in_use(fleet: Fleet) -> dict[bytes, Any]:
    """Every key where entries say that it is."""
    with shardkit.connect(fleet.url) as kit:
        users = kit.topology.component("users")
        places = {(entry.fields["port"], entry.fields["db"]) for entry in users.shards}
    numbers = {server.port: n for n, server in enumerate(fleet.servers)}
    return kept(fleet, {(numbers[port], db) for port, db in places})


OLD = {(0, 1), (1, 0)}


@pytest.mark.parametrize("is_killed", [False, True])
def test_old_databases_are_kept_up_to_date_until_a_split_is_reversed(
    fleet: Fleet, is_killed: bool
) -> None:
    before = on_two_servers(fleet)
    at_first = stored(fleet)
    new: Any = {"shards": 3, "over": [fleet.name(2)], "keep": True, "hold": PATIENT}
    copied: list[str] = []
    with ThreadPoolExecutor() as threads:
        with losing_nothing(fleet, shards=None):
            split = threads.submit(start_split, fleet.config, "users", **new)
            assert eventually(lambda: stored(fleet) == (3, "crc32", 1) and fleet.is_kept())
            time.sleep(0.3)  # some writes are copied back
            if is_killed:  # its copy is lost with it
                with killed_at("keep up to date"):
                    fleet.servers[2].client().client_kill_filter(_type="pubsub")
                    split.result()
            back = reverse_move(fleet.config, "users", hold=PATIENT, progress=copied.append)
            assert certified(back)
            assert back.phase == "done"
            assert stored(fleet) == at_first
            assert any("copied" in said for said in copied) == is_killed
        if not is_killed:
            assert split.result().id == back.id
    assert there(fleet) == before


def phase(fleet: Fleet) -> str:
    return moves(fleet.config)[0].phase


@pytest.mark.parametrize("server", [1, 2], ids=["same server", "another"])
def test_old_databases_are_kept_over_missed_changes_and_kills_until_a_split_is_completed(
    fleet: Fleet, server: int
) -> None:
    on_two_servers(fleet)
    new: Any = {"shards": 3, "over": [fleet.name(server)], "keep": True, "hold": PATIENT}
    with ThreadPoolExecutor() as threads:
        split = threads.submit(start_split, fleet.config, "users", **new)
        assert eventually(fleet.is_kept)
        with shardkit.connect(fleet.url) as kit, fleet.servers[server].client() as client:
            router = kit.key_sharded("users")
            router["k1"].set("k1", "new")
            router["k2"].delete("k2")
            assert eventually(lambda: kept(fleet, OLD) == in_use(fleet))
            assert b"k2" not in kept(fleet, OLD)
            client.config_set("notify-keyspace-events", "")
            router["k3"].set("k3", "not told")
            client.config_set("notify-keyspace-events", "KA")
            assert eventually(lambda: kept(fleet, OLD) == in_use(fleet))
            with pytest.raises(
                GrowthError, match=r"users is already being moved to .* .kept.; resume it: sh"
            ):
                start_split(fleet.config, "users", shards=5)
            with killed_at("keep up to date"):
                client.client_kill_filter(_type="pubsub")
                split.result()
            router["k4"].set("k4", "while nobody keeps them")
            again = threads.submit(resume_move, fleet.config, "users", hold=PATIENT)
            assert eventually(lambda: kept(fleet, OLD) == in_use(fleet))
        fleet.run("move", "complete", "users")
        assert again.result().wanted == "complete"
    assert phase(fleet) == "done"
    assert kept(fleet, OLD) == {}
    for each in fleet.servers:
        with each.client() as client:
            setting = client.config_get("notify-keyspace-events")["notify-keyspace-events"]
            assert setting in ("", "AK")
    with pytest.raises(GrowthError, match="is done, not kept; see: shardkit move status"):
        complete_move(fleet.config, "users")


def test_the_old_database_of_a_moved_shard_is_kept_up_to_date(fleet: Fleet) -> None:
    fleet.push(0)
    filled(fleet)
    with ThreadPoolExecutor() as threads, shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        begin = partial(start_move, what=["users:1"], to=fleet.name(1), keep=True, hold=PATIENT)
        move = threads.submit(begin, fleet.config)
        assert eventually(fleet.is_kept)
        router.mset({f"k{n}": "new" for n in range(200)})
        assert eventually(lambda: kept(fleet, {(0, 2)}) == kept(fleet, {(1, 2)}) != {})
        back = reverse_move(fleet.config, "users:1", hold=PATIENT)
        assert certified(back)
        assert move.result().phase == "done"
        assert fleet.masters() == [fleet.name(0)] * 2
        assert router.mget([f"k{n}" for n in range(200)]) == [b"new"] * 200


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_merged_writes_and_pipelines_go_on_over_a_split(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    filled(fleet)
    ended, written = threading.Event(), dict.fromkeys(range(8), 0)

    def write() -> None:
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            while not ended.wait(PAUSE):
                for key in written:
                    router.mset({f"m{key}": written[key] + 1})
                    router.pipeline().set(f"p{key}", written[key] + 1).execute()
                    written[key] += 1

    async def awrite() -> None:
        async with await shardkit.aconnect(fleet.url) as kit:
            router = kit.key_sharded("users")
            while not ended.is_set():
                await asyncio.sleep(PAUSE)
                for key in written:
                    await router.mset({f"m{key}": written[key] + 1})
                    await router.pipeline().set(f"p{key}", written[key] + 1).execute()
                    written[key] += 1

    with ThreadPoolExecutor() as threads:
        writer = threads.submit(write if face == "blocking" else partial(asyncio.run, awrite()))
        try:
            split = start_split(fleet.config, "users", shards=5, over=[fleet.name(1)], hold=PATIENT)
        finally:
            ended.set()
        writer.result(60)  # a call in flight at the cutover failed
    assert split.phase == "done"
    with shardkit.connect(fleet.url) as kit:
        for kind in "mp":
            values = kit.key_sharded("users").mget([f"{kind}{key}" for key in written])
            assert values == [b"%d" % count for count in written.values()]


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


@pytest.mark.parametrize("keep", [False, True], ids=["copied back", "kept"])
@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_late_holders_are_refused_at_every_shard_of_a_split(
    fleet: Fleet, face: str, keep: bool
) -> None:
    fleet.push(0)

    def claim_at_last(key: str) -> None:
        with shardkit.connect(fleet.url) as kit, kit.lock("stock", component="users") as held:
            held.guard("users").claim(key)

    with faced(face, fleet.url) as users, ThreadPoolExecutor() as threads:
        place = users.kit.topology.component("users").place
        one, other = (next(key for key in KEYS if place(key) == n) for n in (0, 1))

        def guard(name: str = "stock", remember: float | None = None) -> Any:
            lock = users.kit.lock(name, component="users")
            hold = users.run(lock.acquire())
            users.run(lock.release(hold))
            return hold.guard("users", remember=remember)

        def writable(guard: Any) -> list[str]:
            accepted = []
            for key in KEYS:
                with suppress(StaleTokenError):
                    users.run(guard.execute(("INCR", key)))
                    accepted.append(key)
            return accepted

        first, second = guard(), guard()
        users.run(first.claim(one))
        users.run(second.claim(other))
        users.run(guard("forgotten", 600).claim(one))
        options: Any = {"shards": 5, "over": [fleet.name(1)], "hold": PATIENT, "keep": keep}
        with overtaken("hold writers", lambda: claim_at_last(other)):
            split = threads.submit(start_split, fleet.config, "users", **options)
            assert users.eventually(lambda: split.done() or (keep and fleet.is_kept()))
        assert writable(first) == writable(second) == []
        shards = users.kit.topology.component("users").shards
        ends = [
            client_of(fleet.servers[1], db=each.database).ttl("lock:forgotten:fence")
            for each in shards
        ]
        assert [0 < end <= 600 for end in ends] == [True] * 5
        third = guard()
        assert writable(third) == KEYS
        with overtaken("hold writers", lambda: claim_at_last(other)):
            back = threads.submit(reverse_move, fleet.config, "users", hold=PATIENT)
            assert users.eventually(back.done)
        assert back.result().phase == "done"
        assert split.result().id == (back.result().id if keep else back.result().undoes)
        assert writable(third) == []
        assert writable(guard()) == KEYS


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_a_key_that_only_has_the_name_of_a_fence_stops_a_split(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        key = "lock:stock:fence"
        node = users.kit.key_sharded("users")

        def write() -> None:
            with shardkit.connect(fleet.url) as kit:
                kit.key_sharded("users").hset(key, mapping={"a": 1})

        said = r"lock:stock:fence is no guard's fence"
        options: Any = {"shards": 5, "over": [fleet.name(1)], "hold": 1.0}
        with overtaken("hold writers", write), pytest.raises(GrowthError, match=said):
            users.eventually(lambda: start_split(fleet.config, "users", **options))
        assert users.run(node.hgetall(key)) == {b"a": b"1"}
        assert fleet.masters() == [fleet.name(0)] * 2


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
