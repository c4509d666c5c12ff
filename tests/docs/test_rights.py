"""Users with exactly the rights that docs/rights.md names can do what the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import arranged
import pytest
from arranged import client_of
from damages import Waited
from faces import PATIENCE, faced
from redis.exceptions import NoPermissionError
from rights_of_features import (
    BEGIN,
    END,
    FEATURES,
    GROUPS,
    RIGHTS,
    Servers,
    call_whole,
    record,
    table,
    two_servers,
)
from subjects import MAP, SUBJECTS

import shardkit
from shardkit import ShardMap
from shardkit.admin import (
    Conversion,
    Retirement,
    apply_profile,
    backup,
    biggest_keys,
    check,
    config_client,
    connected_clients,
    convert,
    databases_with,
    delete_data,
    persistence_of,
    push,
    queue_names,
    queue_status,
    restore,
    restore_objects,
    rewrite_aof,
    rotate,
    save_snapshot,
)
from shardkit.admin.doctor.scan import scan
from shardkit.admin.growth import (
    VerifiedReplica,
    apply_fences,
    attach_replica,
    detach_replica,
    fail_over,
    replica_tree,
    start_move,
    verify_replicas,
)
from shardkit.admin.pushes import preflight
from shardkit.cli.advise.sampling import take
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.errors import ConfigError, ShardErrors
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.replicas import ReadFrom
from shardkit.network.rules import judge
from shardkit.network.survey import survey, targets_of

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"


def rights(who: str) -> list[str]:
    """Return the rights in the first code of the row of the table that begins so."""
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {who}")]
    return re.findall(r"`([^`]+)`", row.split(" | ")[-1])[0].split()


def user(server: LocalServer, *granted: str) -> dict[str, Any]:
    """Make a user with these rights and no others; return the entry of its connections."""
    client_of(server).execute_command("ACL", "SETUSER", "tried", "reset", "on", ">pw", *granted)
    return {"host": "127.0.0.1", "port": server.port, "username": "tried", "password": "pw"}


def user_on(servers: Iterable[LocalServer], *rows: str) -> dict[str, Any]:
    """Make a user with the rights of rows on servers; return its entry on the last one."""
    granted = [right for row in rows for right in rights(row)]
    return [user(each, *granted) for each in servers][-1]


def map_of(entry: dict[str, Any]) -> ShardMap:
    entry = {"host": "127.0.0.1", **entry}
    return arranged.map_of(a={"entry": entry, "shards": [{**entry, "db": n} for n in (1, 2)]})


@contextmanager
def opened(server: LocalServer, *rows: str) -> Iterator[shardkit.ShardKit]:
    """A kit with the rights of rows."""
    with shardkit.connect(map_of(user_on([server], *rows))) as kit:
        yield kit


def described(server: LocalServer, *rows: str, more: Iterable[str] = ()) -> Mapping[str, Component]:
    """The components of a map, with the rights of rows and some more."""
    granted = [right for row in rows for right in rights(row)]
    return map_of(user(server, *granted, *more)).components


@contextmanager
def growing(server: LocalServer) -> Iterator[Any]:
    """A client of the config server, as who changes entries."""
    with server.client(**credentials(user_on([server], "growth: "))) as config:
        yield config


@pytest.fixture(autouse=True)
def _empty(server: LocalServer) -> None:
    client_of(server).flushall()


def write(kit: shardkit.ShardKit) -> None:
    """Use every structure and component."""
    kit.set("ids", component="a", total=1000, members=int).sadd_many(range(500))
    kit.sorted_set("scores", component="a", members=int).zadd({n: n for n in range(500)})
    kit.hash("users", component="a").hset("1", "Ada")
    kit.list("recent", component="a").rpush("x", "y")
    kit.packed("places", component="a", fields={"age": "u8"}).set(7, age=3)
    kit.unique_visitors("visits", component="a").visit("550e8400-e29b-41d4-a716-446655440000")
    kit.search("docs", component="a").index("d1", {"text": "hello world"})
    queues = kit.queues(component="a")
    queues.enqueue("q", "task")
    task = queues.take(["q"])
    assert task is not None
    queues.acknowledge(task)
    network = kit.social(component="a", relation_parts=2)
    network.follow(network.create_user("ada", "Ada") or 0, network.create_user("bob", "Bob") or 0)


def read(kit: shardkit.ShardKit) -> None:
    """Read what `write` wrote, but for what has to write in order to read."""
    ids = kit.set("ids", component="a", total=1000, members=int)
    assert ids.scard() == 500
    assert ids.sismember(3)
    assert len(list(ids.smembers())) == 500
    scores = kit.sorted_set("scores", component="a", members=int)
    assert scores.zrange(0, 2) == [0, 1, 2]
    assert scores.zscore(5) == 5
    assert kit.hash("users", component="a").hget("1") == b"Ada"
    assert kit.list("recent", component="a").lrange(0, -1) == ["x", "y"]
    assert kit.search("docs", component="a").search("hello").total == 1


def test_an_application_does_everything(server: LocalServer) -> None:
    with opened(server, "application: ") as kit:
        write(kit)
        read(kit)


ALWAYS = ("%R~config:fence", "%R~config:witness", "&shardkit:wake:*")
OF_LOCKS = ("lock", "semaphore", "quorum", "election", "latch", "barrier", "guard")


@pytest.mark.long(7)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_structure_needs_no_other_keys(server: LocalServer, name: str) -> None:
    subject = SUBJECTS[name]
    row = "locks, semaphores" if any(each in name for each in OF_LOCKS) else "all others"
    keys = " ".join(rights("social networks" if name == "network" else row))
    login = "{host: 127.0.0.1, username: tried, password: pw}"
    text = MAP.replace("7001", str(server.port))
    with shardkit.connect(ShardMap.parse(f"defaults: {login}\n{text}")) as kit:
        structure = subject.open(kit)  # connects to nothing
        names = {"several locks": ["a", "b"], "guard": ["stock"]}.get(name) or [structure.name]
        granted = " ".join(keys.replace("users", each) for each in names).split()
        if name == "guard":
            granted += ["~*:stock:fence*", "~stock:*"]  # the latter is the data that it guards
        user(server, *rights("application: ")[1:], *ALWAYS, *granted)
        subject.fill(structure)
        for call in (*subject.reads.values(), subject.check, *subject.writes.values()):
            call_whole(call, structure)
        with pytest.raises(NoPermissionError, match="access"):
            kit.client("data").get("another:key")


def test_a_reader_reads_and_cannot_write(server: LocalServer) -> None:
    with shardkit.connect(map_of({"port": server.port})) as kit:
        write(kit)
    with opened(server, "application that only reads") as kit:
        read(kit)
        with pytest.raises(ShardErrors) as refused:
            kit.set("ids", component="a", total=1000, members=int).sadd(7777)
    assert "the user may not run SADD" in str(refused.value)


def test_entries_are_read_and_pushed(server: LocalServer) -> None:
    own, other = map_of({"port": server.port}), arranged.map_of(b={"entry": {}})
    login = credentials(user_on([server], "`shardkit config push` |"))
    with server.client(**login) as client:
        for shard_map, prune in ((own, False), (other, True), (own, False)):
            store.push(client, shard_map, prune=prune, force=True)
    user_on([server], "client: reads entries")
    with shardkit.connect(f"redis://tried:pw@{server.address}") as kit:
        assert kit.components() == ["a", "b"]
        assert len(kit.component("a").shards) == 2


def test_what_is_pushed_is_checked_with_an_applications_rights(server: LocalServer) -> None:
    assert preflight({}, described(server, "application: ", more=["+info"])) == []


def test_status_and_doctor_look_at_servers(server: LocalServer) -> None:
    looked_at = described(server, "`shardkit status`").values()
    assert {each.state for each in judge(survey(targets_of(looked_at))).entries} == {"ok"}
    with shardkit.connect(map_of({"port": server.port})) as kit:
        write(kit)
    components = described(server, "`shardkit doctor`")
    with shardkit.connect(ShardMap(components)) as kit:
        found = scan(kit, components)
    assert not found.failures
    assert ("a", "ids") in found.structures


def test_check_clients_and_keys_look_at_servers(server: LocalServer) -> None:
    with shardkit.connect(map_of({"port": server.port})) as kit:
        write(kit)
    checked = check(described(server, "application: ", more=["+info", "+time"]).values())
    assert {finding.warning for finding in checked.findings} <= {True}
    assert connected_clients(described(server, "`shardkit clients`").values())[1] == {}
    [biggest] = biggest_keys(list(described(server, "`shardkit keys`").values()), 1)
    assert biggest.memory > 0


def test_who_asks_what_keys_would_take_and_converts_them(server: LocalServer) -> None:
    with server.client() as client:
        client.mset({f"user:{n}": n for n in range(100)})
        client.sadd("ids", *range(2000))
    with opened(server, "`shardkit advise`") as kit:
        found = take(databases_with(kit, "a"), 1000)
        assert {family.family.text for family in found.families} == {"user:<n>", "ids"}
    with opened(server, "application: ", "`shardkit convert`") as kit:
        users = Conversion("user:<n>", "string", "strings", "users")
        assert convert(kit, "a", users, databases_with(kit, "a"), share=1.0).copied == 100


def test_backups_are_taken_and_restored(server: LocalServer, tmp_path: Path) -> None:
    client_of(server).set("k", 1)
    one = arranged.map_of(one={"entry": user_on([server], "`shardkit backup` |")})
    backup(one.components.values(), tmp_path / "backup")
    with LocalServer() as other:
        one = arranged.map_of(one={"entry": user_on([other], "`shardkit restore`")})
        assert restore(tmp_path / "backup", one) == {"one": 1}


def test_who_deletes_the_data_of_a_retired_component(server: LocalServer) -> None:
    with LocalServer() as other, other.client() as old:
        old.set("k", 1)
        entry = user_on([other], "`shardkit retire")
        component = arranged.map_of(one={"entry": entry}).components["one"]
        retirement = Retirement(component, True, map_of({"port": server.port}).components, 1, 9e9)
        with pytest.raises(ConfigError, match="is still used, so nothing was deleted: key k"):
            delete_data(retirement)
        old.restore("k", 0, old.dump("k"), replace=True, idletime=100)
        assert delete_data(retirement) == 1


def test_who_keeps_and_restores_objects(server: LocalServer, tmp_path: Path) -> None:
    shard_map = map_of({"port": server.port})
    with server.client() as config:
        push(config, shard_map)
        config.set("config:flags:checkout", "{}")
    reader = credentials(user(server, *rights("`shardkit backup` of objects")))
    with server.client(**reader) as config:
        backup(shard_map.components.values(), tmp_path / "backup", config=config)
    client_of(server).delete("config:flags:checkout")
    writer = credentials(user_on([server], "`shardkit restore --objects`"))
    with server.client(**writer) as config:
        assert restore_objects(tmp_path / "backup", config) == 1


def test_queues_and_indexes_are_administered(server: LocalServer) -> None:
    with opened(server, "application: ") as kit:
        write(kit)
        queues = kit.queues(component="a")
        queues.enqueue("q", "task", id="t")
        assert queue_names(kit, "a") == ["q"]
        assert queue_status(queues, ["q"])[0].counts.waiting == 1
        assert queues.cancel("q", "t")
        docs = kit.search("docs", component="a")
        assert list(docs.check()) == []
        assert docs.delete() == 1


def test_who_rotates_passwords(server: LocalServer) -> None:
    shard_map = map_of(user_on([server], "`shardkit rotate`"))
    with server.client() as config:
        push(config, shard_map)
        rotated = rotate(config, server.entry, "tried", "new", settled=0, client_timeout=0)
        assert rotated.done, rotated


def test_who_fails_over_moves_and_attaches_replicas(server: LocalServer) -> None:
    allowed = "application: ", "`shardkit failover`, `replicas"
    with LocalServer() as a, LocalServer() as b, LocalServer() as c:
        login = user_on((a, b, c), *allowed)
        with server.client() as config:
            push(config, map_of({**login, "port": a.port}))
        with growing(server) as config:
            attach_replica(config, b.address, a.address)
            user_on((a, b), "`shardkit verify-replica`")
            components = store.read_components(config).values()
            [verdict] = verify_replicas(components).values()
            assert isinstance(verdict, VerifiedReplica)
            assert verdict.ok
            user_on((a, b), "`shardkit replicas tree`")
            assert [node.ok for node in replica_tree(components)] == [True, True]
            user_on((a, b), *allowed)
            assert str(fail_over(config, a.address).target) == b.address
            detach_replica(config, a.address)
            assert start_move(config, b.address, c.address, hold=3 * PATIENCE).phase == "done"
            # A crash, and the former master is back.
            attach_replica(config, b.address, c.address)
            c.kill()
            fail_over(config, c.address)
            c.restart()
            user_on([c], "`shardkit failover`, to fence")
            assert [fence.applied for fence in apply_fences(config, timeout=5)] == [True]


def test_who_moves_shards(server: LocalServer) -> None:
    with LocalServer() as a, LocalServer() as b:
        login = user_on((a, b), "application: ", "`shardkit move shards`")
        with server.client() as config:
            push(config, map_of({**login, "port": a.port}))
        client_of(a, db=1).set("key", 1)
        with growing(server) as config:
            moved = start_move(config, ["a:0"], b.address, kill=True, hold=3 * PATIENCE)
            assert moved.phase == "done"
        assert client_of(b, db=1).get("key") == b"1"


def pushed(server: LocalServer, entry: dict[str, Any]) -> None:
    """Push a component with this entry."""
    with server.client() as config:
        push(config, arranged.map_of(a={"entry": entry}))


def test_who_uses_sentinels_and_fails_them_over(server: LocalServer) -> None:
    with LocalSentinel("main", sentinels=2) as watched:
        servers = [watched.master, *watched.replicas]
        login = credentials(user_on(watched.sentinels, "application with Sentinels"))
        user_on(servers, "application: ")
        addresses = [["127.0.0.1", each.port] for each in watched.sentinels]
        pushed(server, {"sentinel": {"service": "main", "sentinels": addresses, **login}, **login})
        with shardkit.connect(f"redis://{server.address}") as kit:
            write(kit)
            reads = kit.key_sharded("a", read_from="prefer_replica")
            reads["k"].get("k")
        user_on(watched.sentinels, "`shardkit failover` with Sentinels | Sentinels")
        user_on(servers, "`shardkit failover` with Sentinels | data")
        with growing(server) as config:
            done = fail_over(config, "a")
        assert str(done.target) == watched.replicas[0].address


def test_who_uses_a_cluster_and_fails_it_over(server: LocalServer) -> None:
    with LocalCluster(replicas_per_master=1) as cluster:
        pushed(server, {**user_on(cluster.nodes, "application: "), "cluster": True})
        with shardkit.connect(f"redis://{server.address}") as kit:
            write(kit)
        user_on(cluster.nodes, "`shardkit failover` of a cluster")
        with growing(server) as config:
            done = fail_over(config, cluster.nodes[1].address)
        assert str(done.target) == cluster.nodes[4].address


def test_who_reads_entries_of_a_cluster(server: LocalServer) -> None:
    pushes = [
        right.replace("~config:", "~{config}:") for right in rights("`shardkit config push` |")
    ]
    with LocalCluster() as cluster:
        for each in cluster.nodes:
            user(each, *pushes, "+cluster|slots")
        url = f"redis+cluster://tried:pw@127.0.0.1:{cluster.nodes[0].port}"
        with config_client(url) as config:
            store.push(config, map_of(user(server, *rights("application: "))))
        user_on(cluster.nodes, "client, if the config server is a cluster")
        with shardkit.connect(url) as kit:
            assert kit.components() == ["a"]
            assert kit.key_sharded("a").set("k", 1)


def test_who_sees_to_persistence(server: LocalServer) -> None:
    with server.client(**credentials(user_on([server], "`shardkit persistence`"))) as client:
        apply_profile(client, "everysec")
        assert persistence_of(client).aof
        rewrite_aof(client)
        save_snapshot(client)
        apply_profile(client, "none")


def credentials(entry: dict[str, Any]) -> dict[str, Any]:
    return {"username": entry["username"], "password": entry["password"]}


LOGIN = ", username: tried, password: pw"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with two_servers() as running:
        yield running


def test_the_page_has_what_was_written() -> None:
    known = {feature: text.split() for feature, text in json.loads(RIGHTS.read_text()).items()}
    assert list(known) == list(FEATURES)
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table(known)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_sends_nothing_else_and_needs_no_other_rights(
    servers: Servers, feature: str
) -> None:
    known = json.loads(RIGHTS.read_text())[feature].split()
    assert set(record(servers, feature)) <= set(known)
    client_of(servers.master).flushall()
    servers.set_user("~*", "&*", "+@connection", *(f"+{name}" for name in known))
    for use in FEATURES[feature]:
        client_of(servers.master).flushall()
        with servers.kit(LOGIN) as kit:
            use(kit)


@pytest.mark.long(6)
@pytest.mark.parametrize("feature", GROUPS)
def test_a_feature_needs_no_other_rights_when_it_is_awaited(servers: Servers, feature: str) -> None:
    known = json.loads(RIGHTS.read_text())[feature].split()
    servers.set_user("~*", "&*", "+@connection", *(f"+{name}" for name in known))
    called = 0
    for subject in map(SUBJECTS.__getitem__, GROUPS[feature]):
        client_of(servers.master).flushall()
        with servers.kit(LOGIN) as kit, faced("awaiting", servers.map(LOGIN)) as face:
            subject.fill(subject.open(kit))
            assert face.runner is not None
            structure = Waited(subject.open(face.kit), face.runner)
            for call in (*subject.reads.values(), subject.check, *subject.writes.values()):
                call(structure)
                called += 1
    assert called > len(GROUPS[feature])


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_an_error_names_the_right_to_grant(servers: Servers, kind: str) -> None:
    servers.set_user("~*", "&*", "+@connection")
    remedy = r"may not run (\w+); grant it: ACL SETUSER <user> \+(?i:\1) \(docs/rights\.md\)"
    with faced(kind, servers.map(LOGIN)) as face:
        for subject in (SUBJECTS[names[0]] for names in GROUPS.values()):
            structure = subject.open(face.kit)
            call = next(iter(subject.writes.values()))
            with pytest.raises(ShardErrors) as refused:
                call(Waited(structure, face.runner) if face.runner else structure)
            assert re.search(remedy, str(refused.value))


def test_reads_reach_replicas_with_an_applications_rights(servers: Servers) -> None:
    servers.set_user(*rights("application: "))
    with servers.kit(LOGIN) as kit:
        for mode in ("replica", "prefer_replica"):
            reads = kit.key_sharded("data", read_from=mode)
            servers.sent(replica=True)
            for _ in range(20):
                reads["a"].get("a")
            assert "get" not in commands_at(servers.master)
            assert "get" in commands_at(servers.replica)
            assert client_of(servers.replica).info("commandstats")["cmdstat_get"]["calls"] == 20


def commands_at(server: LocalServer) -> set[str]:
    with server.client() as admin:
        return {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}


def test_without_info_a_replica_is_read_if_any_lag_will_do(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    servers.set_user("~*", "+@all", "-@dangerous")
    with servers.kit(LOGIN) as kit:
        with pytest.raises(shardkit.ShardUnavailable, match="may not run INFO"):
            kit.key_sharded("data", read_from="replica")["a"].get("a")
        servers.sent(replica=True)
        lagging = ReadFrom("replica", max_lag=None)
        for _ in range(3):
            kit.key_sharded("data", read_from=lagging)["a"].get("a")
        assert client_of(servers.replica).info("commandstats")["cmdstat_get"]["calls"] == 3
    said = [each for each in caplog.records if "reads from replicas" in each.getMessage()]
    assert len(said) == 2  # the master and the replica


def test_a_push_names_the_features_that_a_user_may_not_use(server: LocalServer) -> None:
    finding = preflight({}, described(server, "application: ", more=["-rpush"]))[0]
    assert finding.warning
    assert "does not let the user run RPUSH" in finding.problem
    assert "lists" in finding.problem
    without = ["-zadd", "-sadd", "-rpush"]
    finding = preflight({}, described(server, "application: ", more=without))[0]
    assert not finding.warning
    limited = ["~users:*", *rights("application: ")[1:]]
    found = preflight({}, map_of(user(server, *limited)).components)
    assert not [each for each in found if "does not let" in each.problem]
