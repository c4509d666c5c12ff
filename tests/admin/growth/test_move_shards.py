"""Moving some of a server's shards, on real servers, under clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import client_of
from faces import eventually, faced, free_port
from growth_helpers import (
    FAST,
    PATIENT,
    PAUSE,
    Fleet,
    certified,
    filled,
    follow,
    kill_small_move,
    losing_nothing,
    on_redis_too,
    recorded,
    small,
    still_there,
    strays,
    there,
)
from moments import Killed, before, killed_at, not_seen_as_decided
from secure_server import SecureServer, TlsProxy

import shardkit
from shardkit.admin.growth import (
    abort_move,
    moves,
    plan_move,
    resume_move,
    reverse_move,
    start_move,
    verify_move,
)
from shardkit.errors import GrowthError, InvalidArgumentError
from shardkit.local import LocalServer

FENCE_KEY = "config:fence"


def fence(move: str, target: str) -> bytes:
    """What closes a database."""
    return json.dumps({"format": 1, "move": move, "attempt": "1", "to": target}).encode()


@pytest.fixture
def saving(fleet: Fleet) -> Iterator[redis.Redis]:
    """A client of the fleet's first server, whose directory can be set."""
    settings = {**FAST, "enable-protected-configs": "yes"}
    with LocalServer(config=settings) as server, server.client() as client:
        fleet.servers[0] = server
        small(fleet)
        yield client
        client.config_set("save", "")


def save(client: redis.Redis, state: str) -> None:
    client.bgsave()
    while client.info("persistence")["rdb_last_bgsave_status"] != state:
        time.sleep(0.01)


def fill_disk(client: redis.Redis, directory: Path) -> None:
    """Have a server refuse writes because it cannot save them."""
    directory.mkdir()
    client.config_set("dir", str(directory))
    directory.rmdir()
    client.config_set("save", "3600 1")
    save(client, "err")


@on_redis_too
def test_a_shard_is_moved_under_load_and_back_without_losing_anything(fleet: Fleet) -> None:
    fleet.push(0)
    before = filled(fleet)
    with losing_nothing(fleet):
        move = fleet.move_shard()
        assert fleet.masters() == [fleet.name(0), fleet.name(1)]
        assert move.phase == "done"
        assert min(move.copied, move.seconds) > 0
        certificate = certified(move)
        assert certificate["stale"] == []
        assert certificate["keys_now"] >= 106
        assert move.held is not None
        assert move.held < PATIENT
        assert there(fleet) == before
        with fleet.servers[0].client(db=2) as old, fleet.servers[1].client(db=2) as new:
            assert set(old.keys()) <= {b"config:fence", b"config:witness"}
            assert new.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
        assert certified(reverse_move(fleet.config, "users:1", hold=PATIENT))
        assert fleet.masters() == [fleet.name(0)] * 2
        assert there(fleet) == before
    assert verify_move(fleet.config, "users:1").certificate is not None


def waits(fleet: Fleet) -> bool:
    """Whether a writer waits at a fence."""
    for server in fleet.servers[:2]:
        with server.client() as client:
            if any(each["name"].startswith("shardkit:waiting/") for each in client.client_list()):
                return True
    return False


# What the mover calls while writers are held: before it is decided, before entries name the target,
# before the source is closed to readers, and before the target takes writes.
WHILE_HELD = ("last differences", "decide", "push entries", "close to readers", "open")


def test_readers_never_wait_for_a_move_of_a_shard(fleet: Fleet) -> None:
    small(fleet)
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await shardkit.aconnect(fleet.url) as akit:
            with shardkit.connect(fleet.url) as kit:
                router, arouter = kit.key_sharded("users"), akit.key_sharded("users")
                ids = kit.set("ids", component="users", total=100, members=int)
                aids = akit.set("ids", component="users", total=100, members=int)
                ids.sadd(*range(50))
                keys = [f"k{n}" for n in range(50)]
                expected = [b"%d" % n for n in range(50)]
                # Clients that somebody keeps for longer than entries hold.
                kept: Any = kit.client("users", 1)
                akept: Any = await akit.client("users", 1)
                sample = next(key for key in keys if kept.exists(key))
                assert await akept.exists(sample)

                @kit.sharded_connection("users", shards=2)
                def read(conn: Any, key: str) -> Any:
                    return conn.get(key)

                async def read_awaiting() -> None:
                    assert await arouter.mget(keys) == expected
                    assert await aids.scard() == 50
                    assert await arouter[sample].get(sample)
                    assert await akept.get(sample)
                    async with await shardkit.aconnect(fleet.url) as fresh:
                        assert await fresh.key_sharded("users").mget(keys) == expected

                def read_all() -> None:
                    assert router.mget(keys) == expected
                    assert ids.scard() == 50
                    assert [read(key) for key in keys] == expected
                    assert kept.get(sample)
                    with shardkit.connect(fleet.url) as fresh:
                        assert fresh.key_sharded("users").mget(keys) == expected
                    asyncio.run_coroutine_threadsafe(read_awaiting(), loop).result()

                writers = [
                    threading.Thread(target=lambda: router[sample].set(sample, "new")),
                    threading.Thread(target=kept.incr, args=("kept",)),
                    threading.Thread(target=ids.sadd, args=(50,)),
                ]

                def stand_still(moment: str) -> None:
                    if moment == WHILE_HELD[0]:
                        for writer in writers:
                            writer.start()
                        while not waits(fleet):
                            time.sleep(0.001)
                    if writers[0].ident and "open" not in seen:
                        read_all()
                        assert all(writer.is_alive() for writer in writers[:2]), moment
                        seen.append(moment)

                with ExitStack() as stack:
                    for moment in WHILE_HELD:
                        act = partial(stand_still, moment)
                        stack.enter_context(before(moment, act, once=False))
                    move = await asyncio.to_thread(
                        start_move, fleet.config, ["users:1"], fleet.name(1), hold=4 * PATIENT
                    )
                for writer in writers:
                    writer.join()
                assert move.phase == "done"
                assert set(seen) == set(WHILE_HELD)
                assert router[sample].get(sample) == b"new"
                assert kept.get("kept") == b"1"
                assert ids.scard() == 51
                assert fleet.masters() == [fleet.name(0), fleet.name(1)]

    asyncio.run(main())


# Where a mover can be killed: what it calls next, and whether its move is decided by then.
MOMENTS = {
    "notifications": False,
    "copy": False,
    "close": False,
    "decide": False,
    "last differences": False,
    "attest": True,
    "empty": True,
}


def test_a_move_of_a_shard_that_is_killed_at_any_point_is_resumed(fleet: Fleet) -> None:
    small(fleet)
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for moment, decided in MOMENTS.items():
            go_on = partial(resume_move, fleet.config, "users:1")
            with killed_at(moment, "let go"):
                (go_on if moves(fleet.config) else fleet.move_shard)(hold=0.3)
            router["more"].incr("more")  # waits, at most until the fence of the killed one expires
            assert (fleet.masters()[1] == fleet.name(1)) == decided, moment
            if not decided:
                assert still_there(fleet)
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert fleet.masters() == [fleet.name(0), fleet.name(1)]
        assert int(router["more"].get("more") or 0) == len(MOMENTS)
    assert still_there(fleet)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "decided after a look"])
def test_a_move_of_a_shard_that_is_killed_when_it_is_decided_is_carried_through(
    fleet: Fleet, seen: bool
) -> None:
    small(fleet)
    with nullcontext() if seen else not_seen_as_decided(), killed_at("decided"):
        fleet.move_shard()
    assert moves(fleet.config)[0].phase == "begun"
    with pytest.raises(GrowthError, match="has taken over"):
        abort_move(fleet.config, "users:1")
    with fleet.servers[1].client(db=2) as new:
        copied = sorted(strays(new))
        assert resume_move(fleet.config, "users:1").phase == "done"
        assert sorted(strays(new)) == copied
    assert still_there(fleet)


def test_what_is_decided_after_a_look_leaves_every_database_closed(fleet: Fleet) -> None:
    small(fleet)
    begin = partial(start_move, fleet.config, ["users:0", "users:1"], fleet.name(1), hold=PATIENT)
    go_on = partial(resume_move, fleet.config, "users:0")
    with not_seen_as_decided():
        for process in (begin, go_on):
            with killed_at("decided"):
                process()
            for number in (1, 2):
                assert client_of(fleet.servers[0], db=number).pttl(FENCE_KEY) == -1
    assert go_on().phase == "done"
    assert still_there(fleet)


@pytest.mark.parametrize("moment", ["push", "admit writers", "take over"])
def test_a_target_that_lost_its_data_takes_nothing_over(fleet: Fleet, moment: str) -> None:
    """Its server died after the decision, and came back empty."""
    kill_small_move(fleet, moment)
    fleet.servers[1].kill()
    if moment == "push":
        fleet.servers[1].restart()
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done", "copied again"
        assert fleet.masters() == [fleet.name(0), fleet.name(1)]
        assert still_there(fleet)
        return
    said = f"users:1: {fleet.name(1)} {{}}.* {fleet.name(0)} still has what there was"
    with pytest.raises(GrowthError, match=said.format("cannot take over: Error 111")):
        resume_move(fleet.config, "users:1")
    fleet.servers[1].restart()
    with pytest.raises(GrowthError, match=said.format("has lost what was copied to database 2")):
        resume_move(fleet.config, "users:1")
    with fleet.servers[0].client(db=2) as old:
        assert len(strays(old)) > 20


def test_a_source_that_entries_name_again_is_not_emptied(fleet: Fleet) -> None:
    kill_small_move(fleet, "take over")
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0, db=2)]}}, force=True)
    with pytest.raises(GrowthError, match=f"entries name {fleet.name(0)} again.*; push entries"):
        resume_move(fleet.config, "users:1")


def test_half_closed_shards_are_reopened(fleet: Fleet) -> None:
    small(fleet)
    both, closed = ["users:0", "users:1"], []

    def once() -> None:
        if closed:  # the first of the databases, which decides, comes last
            raise Killed
        closed.append(True)

    left = fence("earlier", fleet.name(0))  # by a move from there, long ago
    with (
        fleet.servers[0].client(db=1) as old1,
        fleet.servers[0].client(db=2) as old2,
        fleet.servers[1].client(db=1) as new1,
        fleet.servers[1].client(db=2) as new2,
    ):
        for client in (old1, old2):
            client.client_setname("shardkit:operator@test/1")
        new2.set(FENCE_KEY, left)
        with before("decide", once, once=False), killed_at("let go"):
            start_move(fleet.config, both, fleet.name(1), hold=PATIENT)
        assert closed == [True]
        assert old1.pttl(FENCE_KEY) > 0
        assert old2.pttl(FENCE_KEY) == -1
        assert abort_move(fleet.config, "users:0").phase == "aborted"
        assert not old1.exists(FENCE_KEY)
        assert not old2.exists(FENCE_KEY)
        assert still_there(fleet)
        assert new1.dbsize() == 0
        assert (new2.get(FENCE_KEY), new2.dbsize()) == (left, 1)
    assert start_move(fleet.config, both, fleet.name(1), hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)


@pytest.mark.parametrize("moment", ["attest", "push"])
def test_what_is_written_at_the_old_place_between_a_kill_and_its_emptying_is_kept(
    fleet: Fleet, moment: str
) -> None:
    kill_small_move(fleet, moment)
    with fleet.servers[0].client(db=2) as old:  # by somebody who does not ask for the fence
        keys = sorted(key for key in old.scan_iter(match="k*"))
        old.set("stray", 1)
        old.append(keys[0], "and more")
        old.expire(keys[1], 100)
        certificate = certified(resume_move(fleet.config, "users:1"))
        stale = [b"stray", *keys[:2]]
        assert sorted(certificate["stale"]) == sorted(f"2 {key.decode()}" for key in stale)
        left = [key for key in old.scan_iter() if not key.startswith(b"config:")]
        assert sorted(left) == sorted(stale)
        assert old.get("stray") == b"1"
        assert certificate["unsure"] == (moment == "attest")
    said = f"{fleet.name(0)} has keys in database 2, such as .*: delete them if nothing needs them"
    with pytest.raises(GrowthError, match=said):
        reverse_move(fleet.config, "users:1")


def test_what_nobody_wrote_at_the_old_place_after_a_kill_is_not_kept(fleet: Fleet) -> None:
    small(fleet)
    with shardkit.connect(fleet.url) as kit:
        client: Any = kit.client("users", 1)
        client.set("key", "before")
        fleet.kill_move("push")
        assert client.get("key") == b"before"
        writer = threading.Thread(target=client.set, args=("key", "after"))
        writer.start()
        move = resume_move(
            fleet.config,
            "users:1",
            progress=lambda said: writer.join() if said.startswith("emptying") else None,
        )
        assert client.get("key") == b"after"
    assert move.certificate is not None
    assert (move.certificate["stale"], move.certificate["unsure"]) == ([], False)
    assert reverse_move(fleet.config, "users:1", hold=PATIENT).phase == "done"


def test_a_mover_that_was_stopped_for_longer_than_its_hold_decides_nothing(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    small(fleet)
    lower(move_attempts=1)
    written = []

    def stopped() -> None:
        with shardkit.connect(fleet.url) as kit:  # waits until the fence has expired
            written.append(kit.client("users", 1).incr("meanwhile"))  # type: ignore[union-attr]

    said = "the shards are where they were"
    with before("decide", stopped), pytest.raises(GrowthError, match=said):
        fleet.move_shard(hold=0.5)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("users", 1).get("meanwhile") == b"1"  # type: ignore[union-attr]
    assert written == [1]


def test_differing_keys_are_copied_again(fleet: Fleet, lower: Callable[..., None]) -> None:
    small(fleet)
    lower(settled=0.1)

    def spoil() -> None:
        client_of(fleet.servers[1], db=2).set("stray", 1)

    with before("compare", spoil, once=False):
        said = "^both servers differ in 1 key, such as 2 stray: is only on the .*: nothing has ch"
        with pytest.raises(GrowthError, match=said):
            fleet.move_shard()
    assert fleet.masters() == [fleet.name(0)] * 2
    with pytest.raises(GrowthError, match="the copy was not complete within 0 s: nothing has cha"):
        resume_move(fleet.config, "users:1", copy_timeout=0)
    assert still_there(fleet)
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert not client_of(fleet.servers[1], db=2).exists("stray")
    assert still_there(fleet)


@pytest.mark.parametrize("gone", [False, True], ids=["taken over", "gone"])
def test_a_lost_target_is_fatal(fleet: Fleet, lower: Callable[..., None], gone: bool) -> None:
    small(fleet)
    lower(move_attempts=5 if gone else 1)
    attempts = 0

    def lose() -> None:
        nonlocal attempts
        attempts += 1
        if gone:
            fleet.servers[1].kill()
            raise GrowthError("the target is away", "start it")
        client_of(fleet.servers[1], db=2).set(FENCE_KEY, fence("another", fleet.name(1)))

    said = "^the target is away; start it" if gone else "^another process has taken over this move"
    with (
        before("last differences", lose, once=False),
        pytest.raises(GrowthError, match=said),
    ):
        fleet.move_shard()
    assert attempts == 1
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)
    assert not client_of(fleet.servers[0], db=2).exists(FENCE_KEY)


def test_readers_that_stay_are_closed(fleet: Fleet, lower: Callable[..., None]) -> None:
    lower(move_leave=0.05, move_read=0.0)
    follow(fleet.servers[2], fleet.servers[0])
    small(fleet)
    fleet.push(0, (2,))
    with ExitStack() as stack:
        stay = [
            stack.enter_context(
                fleet.servers[0].client(db=2, client_name="shardkit:reading/batch")
            ),
            stack.enter_context(fleet.servers[2].client(db=2, client_name="shardkit:batch")),
        ]
        before = [client.client_id() for client in stay]
        move = fleet.move_shard()
        assert move.phase == "done"
        after = [client.client_id() for client in stay]
        assert all(now > then for now, then in zip(after, before, strict=True))
    assert still_there(fleet)
    assert json.loads(fleet.config.get("config:redis:users:1")).get("replicas") is None


def test_a_late_difference_stops_a_move(fleet: Fleet, lower: Callable[..., None]) -> None:
    small(fleet)
    lower(settled=0.3, move_attempts=1)

    def written(server: int, value: str) -> None:
        client_of(fleet.servers[server], db=2).set("k1", value)

    with (
        before("finish the copy", lambda: written(0, "last")),
        before("last differences", lambda: written(1, "other")),  # as if it had lost the write
        pytest.raises(GrowthError, match="both servers differ in 1 key, such as"),
    ):
        fleet.move_shard(hold=60)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert client_of(fleet.servers[0], db=2).get(FENCE_KEY) is None, "clients go on at once"


def test_operators_that_are_stopped_while_they_connect_hold_up_no_move(fleet: Fleet) -> None:
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0)]}})
    address = "127.0.0.1", fleet.servers[0].port
    with (
        socket.create_connection(address),  # before it has sent anything
        socket.create_connection(address) as greeted,
    ):
        greeted.sendall(b"HELLO 2\r\n")
        assert fleet.move_shard().phase == "done"


def test_a_connection_that_stays_stops_a_move_and_is_named_unless_it_is_closed(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    small(fleet)
    lower(move_attempts=2)
    stranger = fleet.servers[0].client(db=2, client_name="batch-job")
    stranger.ping()
    with pytest.raises(GrowthError, match=r"did not leave within 0\.15 s: batch-job"):
        fleet.move_shard(hold=0.3)
    assert still_there(fleet)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert abort_move(fleet.config, "users:1").phase == "aborted"
    assert client_of(fleet.servers[1], db=2).dbsize() == 0
    with fleet.servers[0].client(db=2) as old:
        assert old.get("config:fence") is None
        assert old.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}

    def work() -> None:  # another library's worker, which blocks again once it is woken
        with fleet.servers[0].client(db=2) as worker, suppress(redis.ConnectionError):
            while True:
                worker.blpop(["jobs"], timeout=3)

    with ThreadPoolExecutor() as threads:
        threads.submit(work)
        move = fleet.move_shard(hold=1, kill=True)
    assert move.phase == "done"
    assert still_there(fleet)
    assert "written at" not in fleet.run("move", "verify", "users:1").output
    stranger.set("stray", 1)  # by another library, which does not ask for the fence
    stranger.close()
    assert certified(verify_move(fleet.config, "users:1"))["stale"] == ["2 stray"]
    wrong = fleet.run("move", "verify", "users:1", code=1).output
    assert f"written at {fleet.name(0)} afterwards, and kept there:" in wrong
    assert "database 2 stray" in wrong


@on_redis_too
def test_a_worker_that_blocks_is_woken_and_goes_on_at_the_new_place(fleet: Fleet) -> None:
    small(fleet)

    def work(client: Any) -> Any:
        return next(job for job in iter(lambda: client.blpop(["jobs"], 60), "") if job)

    with shardkit.connect(fleet.url) as kit, ThreadPoolExecutor() as threads:
        client: Any = kit.client("users", 1)
        worker = threads.submit(work, client)
        fleet.move_shard()
        client.rpush("jobs", "one")
        assert worker.result() == (b"jobs", b"one")


def test_a_dry_run_says_what_stands_in_the_way_of_a_shard(fleet: Fleet) -> None:
    small(fleet)
    source, target = fleet.name(0), fleet.name(1)

    def problems(to: str = target) -> tuple[str, ...]:
        return plan_move(fleet.config, ["users:1"], to).problems

    plan = plan_move(fleet.config, ["users:1"], target)
    assert plan.problems == ()
    assert plan.keys["2"] > 10
    assert any("PERSIST config:fence" in step for step in plan.steps)
    with fleet.servers[1].client(db=2) as new, fleet.servers[0].client(db=2) as old:
        new.set("somebody's", 1)
        [problem] = problems()
        assert "has keys in database 2" in problem
        new.flushdb()
        old.set("config:epoch", 1)
        assert problems() == (f"database 2 of {source} is the config server's",)
        old.delete("config:epoch")
    assert "are one server" in " ".join(problems(source))
    with pytest.raises(InvalidArgumentError, match="is neither a shard"):
        plan_move(fleet.config, ["unknown"], target)
    fleet.describe({"others": {"entry": fleet.at(0, db=2)}})
    assert problems() == ("others is in the same database: specify it as well",)
    fleet.describe({"others": {"entry": fleet.at(1, db=2)}}, check=False)
    follow(fleet.servers[0], fleet.servers[2])
    follow(fleet.servers[1], fleet.servers[2])
    plan = plan_move(fleet.config, ["users:1"], target)
    assert plan.targets == (f"{target}/0",)
    assert "(database 2 becomes 0)" in " ".join(plan.steps)
    assert plan.problems == (f"{source} is a replica", f"{target} is a replica")
    for server in fleet.servers:
        server.kill()
    for each, at in zip(problems(), (source, target), strict=True):
        assert each.startswith(f"{at} cannot be used (")
    with pytest.raises(GrowthError, match=r"cannot be used .*; correct that: nothing has changed"):
        fleet.move_shard()
    assert moves(fleet.config) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_shards_are_moved_over_tls(fleet: Fleet, tmp_path: Path) -> None:
    secure, port = SecureServer(tmp_path, None), free_port()
    proxy = TlsProxy(port, fleet.servers[1].port, secure.certificate, secure.key)
    try:
        shards = [{**secure.tls, "db": number} for number in (1, 2)]
        fleet.describe({"users": {"shards": shards}})
        with shardkit.connect(fleet.url) as kit:
            kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})
            move = start_move(fleet.config, ["users:1"], f"localhost:{port}", hold=PATIENT)
            assert certified(move)
            assert still_there(fleet)
            assert reverse_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
            assert still_there(fleet)
    finally:
        proxy.stop()
        secure.stop()


@pytest.mark.long(2)
@pytest.mark.parametrize("of_shards", [True, False])
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_private_clients_follow_a_move(fleet: Fleet, of_shards: bool, kind: str) -> None:
    small(fleet)
    counts: list[int] = []
    ended = threading.Event()

    def count() -> None:
        with faced(kind, fleet.url) as face:
            private = face.run(face.kit.client("users", 1, private=True))
            while not ended.wait(PAUSE):
                counts.append(face.run(private.incr("count")))

    with ThreadPoolExecutor() as threads:
        counting = threads.submit(count)
        try:
            move = fleet.move(of_shards, hold=PATIENT)
            before = len(counts)
            assert eventually(lambda: len(counts) >= before + 10 or counting.done())
            reverse_move(fleet.config, move.name, hold=PATIENT)
        finally:
            ended.set()
        counting.result()
    assert counts == list(range(1, len(counts) + 1))
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("users", 1).get("count") == b"%d" % len(counts)  # type: ignore[union-attr]


def test_functions_move_with_shards(fleet: Fleet) -> None:
    small(fleet)
    source, target = (fleet.servers[n].client() for n in (0, 1))
    with source, target:
        for client, code in (source, "return 1"), (target, "return 2"):
            client.function_load(
                f"#!lua name=own\nredis.register_function('one', function() {code} end)"
            )
        [problem] = plan_move(fleet.config, ["users:1"], fleet.name(1)).problems
        assert "has another library of functions named own: FUNCTION DELETE it" in problem
        target.function_delete("own")
        plan = plan_move(fleet.config, ["users:1"], fleet.name(1))
        assert f"{fleet.name(1)}: FUNCTION LOAD own" in plan.steps

        other = "#!lua name=own\nredis.register_function('x', function() end)"
        with (
            before("libraries", lambda: target.function_load(other)),
            pytest.raises(GrowthError, match="target refuses the library of functions own: L"),
        ):
            fleet.move_shard()
        target.function_delete("own")
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert target.fcall("one", 0) == 1


@pytest.mark.parametrize("of_shards", [False, True])
def test_a_dry_run_notes_lower_limits_of_encodings(fleet: Fleet, of_shards: bool) -> None:
    small(fleet)
    what = ["users:1"] if of_shards else fleet.name(0)
    assert plan_move(fleet.config, what, fleet.name(1)).notes == ()
    with fleet.servers[1].client() as client:
        client.config_set("hash-max-listpack-entries", 10)
        client.config_set("zset-max-listpack-value", 100)
    plan = plan_move(fleet.config, what, fleet.name(1))
    assert plan.problems == ()
    [note] = plan.notes
    assert note.startswith(
        f"{fleet.name(1)}: hash-max-listpack-entries is 10, and 512 at {fleet.name(0)}: each larger"
    )


@pytest.mark.parametrize(
    ("of_shards", "source", "target"),
    [
        (False, ["FAILOVER", "PSYNC", "SCAN"], ["PSYNC", "REPLCONF", "REPLICAOF"]),
        (True, ["DUMP", "CLIENT LIST"], ["RESTORE"]),
    ],
)
def test_a_dry_run_names_missing_rights(
    fleet: Fleet, of_shards: bool, source: list[str], target: list[str]
) -> None:
    small(fleet)
    servers = fleet.servers[0], fleet.servers[1], fleet.config_server
    missing = source, target, ["LPUSH"]
    for server, commands in zip(servers, missing, strict=True):
        with server.client() as client:
            refused = [f"-{each.lower().replace(' ', '|')}" for each in (*commands, "flushall")]
            client.execute_command("ACL", "SETUSER", "default", *refused)
    names = fleet.name(0), fleet.name(1), "the config server"
    plan = plan_move(fleet.config, ["users:1"] if of_shards else names[0], names[1])
    assert plan.problems == tuple(
        f"{name} does not let the user run {', '.join(sorted(each))}: see docs/rights.md"
        for name, each in zip(names, missing, strict=True)
    )
    assert plan.notes == (
        ()
        if of_shards
        else (
            f"an abort will fail: {names[1]} does not let the user run FLUSHALL: see "
            "docs/rights.md",
        )
    )
    assert (
        not client_of(fleet.servers[1])
        .info("commandstats")
        .get("cmdstat_replicaof", {})
        .get("calls")
    )


def test_shards_that_cannot_be_moved_together_are_refused(fleet: Fleet) -> None:
    fleet.describe(
        {
            "users": {"shards": [fleet.at(0, db=1), fleet.at(1, db=2)]},
            "lone": {"shards": [fleet.at(0, db=5)]},
            "open": {"entry": {"url": f"redis://{fleet.name(0)}/${{DATABASE}}"}},
        }
    )
    both = ", ".join(sorted((fleet.name(0), fleet.name(1))))
    refusals: list[tuple[list[str], str]] = [
        ([], "the shards are not specified; specify one or more, as timelines:3"),
        ([fleet.name(0)], f"{fleet.name(0)} is not a shard; see: shardkit status"),
        (["open"], "config:redis:open takes its database from the environment; write db: into"),
        (["users:0", "users:1"], f"are on 2 servers .{both}.; move the shards of one server"),
    ]
    for shards, said in refusals:
        with pytest.raises(InvalidArgumentError, match=said):
            plan_move(fleet.config, shards, fleet.name(2))
    [problem] = plan_move(fleet.config, ["users:0"], fleet.name(1)).problems
    assert problem.startswith(f"config:redis:open leads to {fleet.name(0)} by a socket, Sentinels")
    fleet.config.delete("config:redis:open")
    assert plan_move(fleet.config, ["users:0"], fleet.name(1)).problems == ()
    assert plan_move(fleet.config, ["lone"], fleet.name(1)).shards == ("lone:0",)


def test_a_move_of_shards_that_cannot_go_on_says_why(fleet: Fleet) -> None:
    small(fleet)
    b = fleet.name(1)
    recorded(fleet, True, phase="done")
    done = resume_move(fleet.config, "users:1")
    assert (done.phase, done.certificate) == ("done", None), "nothing was left to do"
    recorded(fleet, True)
    said = f"users:1 is already being moved to {b} .begun.; resume it: shardkit move resume users"
    with pytest.raises(GrowthError, match=said):
        fleet.move_shard()
    follow(fleet.servers[1], fleet.servers[2])
    with pytest.raises(GrowthError, match=f"{b} is a replica; name its master: nothing has chan"):
        resume_move(fleet.config, "users:1")
    fleet.describe({"users": {"shards": [fleet.at(0, db=1)]}}, force=True)
    with pytest.raises(GrowthError, match="users:1 is no longer a shard; push its entry again"):
        resume_move(fleet.config, "users:1")


LARGE: dict[str, list[Any]] = {
    "string": ["SET", os.urandom(700_000)],
    "list": ["RPUSH", *("x" * (n % 199) for n in range(10_000))],
    "empty elements": ["RPUSH", *[""] * 300_000],
    "hash": ["HSET", *(f"f{n}" * 9 for n in range(40_000))],
    "set": ["SADD", *(f"m{n}" for n in range(20_000))],
    "zset": ["ZADD", *(each for n in range(20_000) for each in (n / 7, f"m{n}"))],
}


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", LARGE)
def test_large_values_are_copied_in_pieces(fleet: Fleet, kind: str) -> None:
    """DUMP and RESTORE of them would hold the servers."""
    small(fleet)
    with fleet.servers[0].client() as source:  # lists and sets: also if the size is not to be had
        lacking = {"list": "-eval_ro", "set": "-memory|usage"}.get(kind, "+@all")
        source.execute_command("ACL", "SETUSER", "default", lacking)
    name, *value = LARGE[kind]

    def write(said: str = "comparing") -> None:
        if said == "comparing":
            with fleet.servers[0].client(db=2) as old:
                for key in ("large", "other"):
                    old.execute_command(name, key, *value)
                    old.expire(key, 1000)

    write()
    with fleet.servers[1].client(db=2) as target:
        target.config_set("slowlog-log-slower-than", 0)
        target.config_set("slowlog-max-len", 100_000)
        certified(fleet.move_shard(progress=write))
        assert 0 < target.ttl("large") <= 1000
        commands = [each["command"] for each in target.slowlog_get(100_000)]
        assert any(re.match(b"RESTORE k", each) for each in commands)
        assert not any(re.match(b"RESTORE (large|other)", each) for each in commands)


def test_large_streams_keep_all_that_is_known_of_them(fleet: Fleet) -> None:
    small(fleet)

    def write(said: str) -> None:
        with fleet.servers[0].client(db=2) as old:
            if said == "holding writers":
                old.xreadgroup("slow", "new one", {"s": ">"}, count=10)
                old.xadd("s", {"last": 1})
                old.xtrim("s", maxlen=7990, approximate=False)
            elif said == "comparing":
                old.xack("slow", "slow", "7-0")
                old.xdel("s", "5000-0", "8000-0")
            facts[:] = old.xinfo_stream("s", full=True), old.xinfo_stream("t", full=True)

    facts: list[dict[str, Any]] = []
    with fleet.servers[0].client(db=2) as old:
        pipe = old.pipeline()
        for n in range(1, 8001):
            pipe.xadd("s", {"f": "x" * 60}, id=f"{n}-0").xadd("t", {"f": "x" * 99}, id=f"{n}-0")
        pipe.execute()
        old.xgroup_create("s", "slow", "3-0", entries_read=3)
        old.xgroup_create("s", "idle", "$")
        old.xgroup_createconsumer("s", "idle", "nobody")
        old.xreadgroup("slow", "one", {"s": ">"}, count=2000)
        old.xgroup_create("t", "all", 0)
        old.xreadgroup("all", "one", {"t": ">"}, count=2000)
        old.xdel("t", "9-0", "10-0")  # and they are still pending
    certified(fleet.move_shard(progress=write))
    with fleet.servers[1].client(db=2) as new:
        moved = [new.xinfo_stream(key, full=True) for key in ("s", "t")]
    assert [known(each) for each in moved] == [known(each) for each in facts]


def known(stream: dict[str, Any]) -> dict[str, Any]:
    """What a copy keeps of a stream; times of calls differ by milliseconds."""
    groups = [
        {
            **{name: group[name] for name in ("name", "last-delivered-id", "entries-read", "lag")},
            "pending": [(each[0], each[1], each[3]) for each in group["pending"]],
            "consumers": [(each["name"], each["pel-count"]) for each in group["consumers"]],
        }
        for group in stream["groups"]
    ]
    return {n: v for n, v in stream.items() if not n.startswith("radix")} | {"groups": groups}


def test_fields_of_large_hashes_expire_when_they_did_before(fleet: Fleet) -> None:
    small(fleet)
    with fleet.servers[0].client(db=2) as old:
        old.hset("large", mapping={f"f{n}": "v" * 50 for n in range(20_000)})
        try:
            for n in range(50):
                old.execute_command("HPEXPIRE", "large", 900_000 + n, "FIELDS", 2, f"f{n}", f"g{n}")
        except redis.ResponseError:
            pytest.skip("the server has no HPEXPIRE")
        asked = ("HPEXPIRETIME", "large", "FIELDS", 60, *(f"f{n}" for n in range(60)))
        before = old.execute_command(*asked)
    with fleet.servers[1].client(db=2) as new:
        new.config_set("slowlog-log-slower-than", 0)
        certified(fleet.move_shard())
        assert new.execute_command(*asked) == before
        commands = [each["command"] for each in new.slowlog_get(100_000)]
        assert not any(each.startswith(b"RESTORE large") for each in commands)


def test_a_full_disk_of_the_source_stops_a_move_of_shards(
    fleet: Fleet, saving: redis.Redis, tmp_path: Path
) -> None:
    fleet.kill_move("close")
    fill_disk(saving, tmp_path / "disk")
    why = "the server cannot save its data to disk, and so refuses writes"
    said = (
        f"^the move of users:1 from {fleet.name(0)} to {fleet.name(1)} stopped in phase begun: "
        f"{why}; look at its log and its disk, and then resume it: shardkit move resume users:1"
    )
    with pytest.raises(GrowthError, match=said):
        resume_move(fleet.config, "users:1", hold=PATIENT)
    plan = plan_move(fleet.config, ["users:0"], fleet.name(1))
    assert plan.problems == (f"{fleet.name(0)} cannot be used ({why})",)
    saving.config_set("dir", str(tmp_path))
    save(saving, "ok")
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)


def test_a_server_with_a_full_disk_is_moved_once_it_takes_writes(
    fleet: Fleet, saving: redis.Redis, tmp_path: Path
) -> None:
    fill_disk(saving, tmp_path / "disk")
    with pytest.raises(GrowthError, match="the server cannot save its data to disk, and so ref"):
        fleet.move_server()
    saving.config_set("stop-writes-on-bgsave-error", "no")
    assert fleet.move_server(hold=PATIENT).phase == "done"
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("users", 1).set("k", 1)  # type: ignore[union-attr]
