"""What ``shardkit doctor`` finds and mends, on the embedded server and on those of the machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import redis
from arranged import client_of
from cli_helpers import Cli, Result, in_terminal, plain
from faces import holder, sessions

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin.doctor.scan import scan
from shardkit.cli.commands import doctor
from shardkit.completion import fold
from shardkit.errors import ConfigError, ShardErrors, ShardUnavailable
from shardkit.geo import City, IpRange
from shardkit.local import LocalServer, LocalServers, find_server
from shardkit.network.survey import loses_scripts
from shardkit.operations import pages

BINARIES = {Path(p).name: p for p in (find_server(), shutil.which("redis-server")) if p}


class Ward(NamedTuple):
    """Two servers, empty: `geo` has a shard on each and one more beside, `plain` has an entry."""

    servers: list[LocalServer]
    path: Path
    kit: ShardKit

    def client(self, component: str, shard: int | None = None) -> redis.Redis:
        client = self.kit.client(component, shard)
        assert isinstance(client, redis.Redis)
        return client

    def deny(self, right: str, servers: int = 2) -> None:
        """Take a right from the default user of some servers."""
        for server in self.servers[:servers]:
            client_of(server).execute_command("ACL", "SETUSER", "default", right)

    def settings(self, pattern: str) -> list[dict[str, str]]:
        return [client_of(server).config_get(pattern) for server in self.servers]


@pytest.fixture(scope="module", params=list(BINARIES))
def pair(request: pytest.FixtureRequest) -> Iterator[list[LocalServer]]:
    with ExitStack() as stack:
        binary = BINARIES[request.param]
        yield [stack.enter_context(LocalServer(binary=binary)) for _ in range(2)]


@pytest.fixture
def ward(pair: list[LocalServer], tmp_path: Path) -> Iterator[Ward]:
    befores = []
    for server in pair:
        with server.client() as client:
            client.flushall()
            befores.append(client.config_get("*-max-listpack-*", "set-max-intset-entries"))
    one, two = (server.port for server in pair)
    components = {
        "geo": {"shards": [{"port": one}, {"port": two}, {"port": one, "db": 3}]},
        "plain": {"entry": {"port": two, "db": 5}},
    }
    path = tmp_path / "ward.yaml"
    path.write_text(json.dumps({"components": components}))
    with shardkit.connect(ShardMap.load(path)) as kit:
        yield Ward(pair, path, kit)
    for server, before in zip(pair, befores, strict=True):
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "allcommands")
            for name in before:
                client.config_set(name, before[name])


def fill(ward: Ward, name: str, total: int, part_size: int, members: int) -> Any:
    random = Random(name)
    ids = ward.kit.set(name, component="geo", total=total, part_size=part_size, members=int)
    ids.sadd_many(random.getrandbits(60) for _ in range(members))
    return ids


def by_name(found: Any) -> dict[str, Any]:
    return {each["structure"]: each for each in found["structures"]}


def test_data_that_is_compact_is_found_so(cli: Cli, ward: Ward) -> None:
    fine = "inspected {} keys on 2 servers: all that can be compact is\n"
    assert cli("doctor", "-c", ward.path) == Result(0, fine.format(0), "")
    fill(ward, "ids", 5000, 512, 5000)
    ward.client("plain").hset("user:1", mapping={"name": "Ada", "born": 1815})
    ward.client("plain").set("greeting", "hello")
    found = cli.json("doctor", "-c", ward.path)
    assert (found["ok"], found["findings"], found["estimated"]) == (True, [], False)
    ids = by_name(found)["ids"]
    assert (ids["kind"], ids["parts"], ids["entries"], ids["compact"]) == ("set", 19, 5000, 1)
    assert 5000 * 8 < ids["bytes"] < 5000 * 12
    assert {(each["type"], each["encoding"], each["keys"]) for each in found["others"]} == {
        ("hash", "listpack", 1),
        ("string", "embstr", 1),
    }
    result = cli("doctor", "-c", ward.path, code=0)
    assert result.lines[0].startswith("structure")
    assert result.lines[1].split()[:4] == ["geo/ids", "set", "19", "5,000"]
    assert result.out.endswith(fine.format(22))


def test_a_plan_that_does_not_fit_is_found_before_its_parts_are_full(cli: Cli, ward: Ward) -> None:
    fill(ward, "new", 6_000, 1024, 100)
    found = cli.json("doctor", "-c", ward.path, code=1)
    [finding] = found["findings"]
    assert (finding["problem"], finding["needed"], finding["keys"]) == ("plan", 1024, 0)
    assert by_name(found)["new"]["compact"] == 1


@pytest.mark.parametrize("size", [1_000_000, 4_000_000_000])
def test_no_limit_is_raised_to_what_no_part_should_have(cli: Cli, ward: Ward, size: int) -> None:
    ward.kit.set("ids", component="geo", members=int, parts=4).sadd_many(range(6000))
    for client in (ward.client("geo", n) for n in range(len(ward.kit.component("geo").shards))):
        if client.exists("ids:meta"):
            client.hset("ids:meta", "part_size", size)
    fixed = cli.json("doctor", "-c", ward.path, "--fix", code=1)
    assert fixed["changes"] == []
    assert fixed["findings"][0]["remedy"] == "create it again with part_size up to 65,536"


def test_fixed_limits_make_new_parts_compact_and_old_ones_when_they_are_repacked(
    cli: Cli, ward: Ward
) -> None:
    ids = fill(ward, "big", 6_000, 1024, 5_600)
    before = set(ids.smembers())
    key = ids.part_key(0)
    ward.client("geo", ward.kit.component("geo").shard_of(key).number).expire(key, 1000)

    fixed = cli.json("doctor", "-c", ward.path, "--fix", code=1)
    assert [(each["before"], each["after"], each["error"]) for each in fixed["changes"]] == [
        (512, 1024, None)
    ] * 2
    assert ward.settings("set-max-intset-entries") == [{"set-max-intset-entries": "1024"}] * 2
    [finding] = fixed["findings"]
    assert finding["problem"] == "stale"

    fill(ward, "later", 6_000, 1024, 5_600)
    after = by_name(cli.json("doctor", "-c", ward.path, code=1))
    assert after["later"]["compact"] == 1
    assert after["big"]["compact"] < 1

    repacked = cli.json("doctor", "-c", ward.path, "--repack")
    assert repacked["ok"]
    assert repacked["repacked"] == finding["keys"]
    assert by_name(repacked)["big"]["compact"] == 1
    assert set(ids.smembers()) == before
    left = ward.client("geo", ward.kit.component("geo").shard_of(key).number).ttl(key)
    assert 900 < left <= 1000
    assert "rewritten" not in cli("doctor", "-c", ward.path, "--repack").out


def test_the_changes_of_fix_are_shown(cli: Cli, ward: Ward) -> None:
    fill(ward, "big", 6_000, 1024, 5_600)
    result = cli("doctor", "-c", ward.path, "--fix", code=1)
    rows = [line.split() for line in result.lines if "set-max-intset-entries" in line]
    assert [row[1:] for row in rows] == [["set-max-intset-entries", "512", "1,024", "yes"]] * 2
    assert any("--repack rewrites them" in line for line in result.lines)
    assert any("--rewrite saves them" in line for line in result.lines)
    result = cli("doctor", "-c", ward.path, "--fix", "--rewrite", "--repack", code=0)
    assert sum("has saved its settings in its file" in line for line in result.lines) == 2
    assert any(line.endswith("parts rewritten") for line in result.lines)
    for server in ward.servers:
        assert "set-max-intset-entries 1024" in (server.directory / "server.conf").read_text()


def test_values_that_are_too_long_are_found_on_the_server_that_has_them(
    cli: Cli, ward: Ward
) -> None:
    ward.client("plain").hset("h", "field", "x" * 150)
    ward.client("plain").hset("hh", "field", "x" * 5000)
    ward.client("plain").hset("hhh", mapping=dict.fromkeys(range(20_000), "x"))
    found = cli.json("doctor", "-c", ward.path, "plain", code=1)
    findings = {each["problem"]: each for each in found["findings"]}
    assert findings["bytes"]["found"] == 5000
    assert findings["bytes"]["keys"] == 2
    assert findings["bytes"]["needed"] is None
    assert "codec=" in findings["bytes"]["remedy"]
    assert findings["entries"]["found"] == 20_000
    assert findings["entries"]["remedy"] == "store it in parts (kit.hash)"
    fixed = cli.json("doctor", "-c", ward.path, "plain", "--fix", code=1)
    assert fixed["changes"] == []


def test_parts_that_outgrew_their_size_are_no_reason_for_a_higher_limit(
    cli: Cli, ward: Ward
) -> None:
    fill(ward, "tight", 100, 512, 6_000)
    found = cli.json("doctor", "-c", ward.path, code=1)
    [finding] = found["findings"]
    assert (finding["problem"], finding["needed"]) == ("entries", None)
    assert "create it again with a larger total" in finding["remedy"]


def test_a_sample_is_counted_up_to_all(cli: Cli, ward: Ward) -> None:
    fill(ward, "ids", 30_000, 64, 30_000)
    found = cli.json("doctor", "-c", ward.path, "--sample", "200")
    assert found["estimated"]
    assert found["seen"] < 700 < found["keys"]
    assert 0.8 < by_name(found)["ids"]["entries"] / 30_000 < 1.25
    whole = cli.json("doctor", "-c", ward.path, "--all")
    assert by_name(whole)["ids"]["entries"] == 30_000
    result = cli("doctor", "-c", ward.path, "--sample", "200")
    assert "~" in result.lines[1]
    assert re.search("figures with ~ are estimated from them|all that can", result.lines[-1])


def test_a_structure_that_the_sample_has_nothing_of_is_looked_at_where_it_is(
    cli: Cli, ward: Ward
) -> None:
    fill(ward, "lost", 100, 1024, 600)  # one part
    grown = ward.kit.set("grown", component="geo", members=int)
    grown.sadd_many(range(600))
    for client in (ward.client("geo", n) for n in range(3)):
        client.mset({f"other:{n}": n for n in range(5000)})
    found = cli.json("doctor", "-c", ward.path, "--sample", "10", code=1)
    names = by_name(found)
    assert names["lost"]["entries"] >= 600  # more, if the sample has it
    assert names["grown"]["entries"] > 0
    assert [each["structure"] for each in found["findings"] if each["problem"] == "entries"] == [
        "lost"
    ]


def test_a_shard_that_fails_when_it_is_looked_at_again_is_among_the_failures(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward.kit.set("lost", component="geo", members=int).sadd_many(range(10))
    away = ShardErrors("geo:1 is away", [ShardUnavailable("away")])

    def inspect(shard: Any, keys: Any) -> Any:
        if isinstance(keys[0], str):  # not what a scan has found, but what may be there
            raise away
        yield from ()
        return []

    monkeypatch.setattr("shardkit.admin.doctor.scan.inspect_keys", inspect)
    told: dict[str, list[tuple[int, int]]] = {}

    def progress(what: str, done: int, total: int) -> None:
        told.setdefault(what, []).append((done, total))

    found = scan(ward.kit, {"geo": ward.kit.component("geo")}, progress=progress)
    assert len(told) >= 2
    for steps in told.values():  # each is told of as it begins, and after each database
        assert steps == [(n, len(steps) - 1) for n in range(len(steps))]
    assert found.failures == {f"geo:{n}": away for n in range(3)}
    assert [name for _, name in found.structures] == ["lost"]


def test_a_structure_that_is_deleted_meanwhile_is_not_broken(
    cli: Cli, ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[bytes] = []
    client = ward.client("plain")
    client.hset("ids:meta", "kind", "set")

    def deleted_meanwhile(names: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
        for page in pages(names, size):
            listed.extend(page)
            client.delete("ids:meta")
            yield page

    monkeypatch.setattr("shardkit.admin.doctor.scan.pages", deleted_meanwhile)
    result = cli("doctor", "plain", "-c", ward.path, code=0)
    assert listed == [b"ids:meta"]
    assert "ids" not in result.out


def test_only_servers_that_tell_their_limits_are_given_others(cli: Cli, ward: Ward) -> None:
    fill(ward, "big", 6_000, 1024, 5_600)
    ward.deny("-config", servers=1)
    result = cli("doctor", "-c", ward.path, "--fix")
    rows = [line.split() for line in result.lines if "set-max-intset-entries" in line]
    assert [row for row in rows if "yes" in row] == [
        [f"localhost:{ward.servers[1].port}", "set-max-intset-entries", "512", "1,024", "yes"]
    ]


def test_limits_that_fix_leaves_to_the_operator_are_reported(cli: Cli, ward: Ward) -> None:
    fill(ward, "big", 6_000, 1024, 5_600)
    first, second = ward.servers
    kept_by, lost_by = (f"localhost:{server.port}" for server in ward.servers)
    file = second.directory / "server.conf"
    kept = file.rename(second.directory / "kept.conf")
    file.mkdir()
    try:
        with LocalServer(replica_of=first):
            result = cli("doctor", "-c", ward.path, "--fix", "--rewrite")
    finally:
        file.rmdir()
        kept.rename(file)
    assert "Replicas have limits of their own: set them there too." in result.lines
    assert f"{kept_by} has saved its settings in its file" in result.lines
    [line] = [line for line in result.lines if line.startswith(lost_by) and "file" in line]
    assert line.startswith(f"{lost_by} could not write its file: ")
    assert not any("--rewrite saves them" in line for line in result.lines)


def test_shards_that_share_a_database_are_inspected_once(
    cli: Cli, ward: Ward, tmp_path: Path
) -> None:
    path = tmp_path / "twice.yaml"
    shard = {"port": ward.servers[0].port, "db": 9}
    path.write_text(json.dumps({"components": {"twice": {"shards": [shard, shard]}}}))
    client_of(ward.servers[0], db=9).mset({"a": 1, "b": 2, "c": 3})
    assert cli("doctor", "-c", path).lines[-1].startswith("inspected 3 keys on 1 server: ")


def test_a_change_that_is_refused_is_an_error(cli: Cli, ward: Ward) -> None:
    fill(ward, "big", 6_000, 1024, 5_600)
    ward.deny("-config|set")
    result = cli("doctor", "-c", ward.path, "--fix", code=1)
    assert sum("no: the user may not run CONFIG SET" in line for line in result.lines) == 2


def test_a_shard_that_is_away_holds_nobody_up(cli: Cli, ward: Ward, tmp_path: Path) -> None:
    fill(ward, "ids", 1000, 512, 1000)
    text = json.loads(ward.path.read_text())
    text["components"]["gone"] = {"shards": [{"port": 1}, {"port": 1, "db": 1}]}
    path = tmp_path / "gone.yaml"
    path.write_text(json.dumps(text))
    found = cli.json("doctor", "-c", path, code=1)
    assert by_name(found)["ids"]["entries"] == 1000
    assert set(found["failures"]) == {"gone:0", "gone:1"}
    assert "refused" in found["failures"]["gone:0"]


def test_a_terminal_sees_what_programs_read(ward: Ward) -> None:
    fill(ward, "big", 6_000, 1024, 5_600)
    code, text = in_terminal(100, "doctor", "-c", str(ward.path))
    assert code == 1
    assert "geo/big" in plain(text)


def test_meta_keys_that_describe_no_structure_are_named(cli: Cli, ward: Ward) -> None:
    client = ward.client("plain")
    client.set("text:meta", "x")
    client.hset("nothing:meta", "part_size", "5")
    client.hset("strange:meta", "kind", "stew")
    client.hset("odd:meta", mapping={"kind": "set", "part_size": "many"})
    client.hset("many:meta", mapping={"kind": "set", "part_size": "5", "groups": 2**31})
    client.hset(b"\xff:meta", mapping={"kind": "set", "part_size": "5"})
    found = cli.json("doctor", "-c", ward.path, code=1)["findings"]
    assert {each["structure"]: each["text"] for each in found if each["problem"] == "broken"} == {
        "text": "its :meta is not a HASH",
        "nothing": "its :meta does not say the kind of its structure",
        "strange": "its :meta says kind='stew', which is not known",
        "odd": "its :meta says part_size='many', which cannot be",
        "many": "its :meta says groups='2147483648', which cannot be",
        "\\xff": "its :meta is not UTF-8",
    }
    assert "restore it from a backup" in cli("doctor", "-c", ward.path).out


def test_the_rights_of_the_default_user_are_unknown_without_permission(ward: Ward) -> None:
    with ward.servers[0].client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all")
        with ward.servers[0].client(username="app", password="x") as app:
            app.execute_command("ACL", "SETUSER", "default", "off", "-@all")
            try:
                assert loses_scripts(app, {"aof_enabled": 1})
                assert not loses_scripts(app, {"aof_enabled": 1, "valkey_version": "9.1.2"})
                app.execute_command("ACL", "SETUSER", "app", "-acl|list")
                assert not loses_scripts(app, {"aof_enabled": 1})
            finally:
                app.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "+@all")


def test_a_server_that_will_lose_what_scripts_wrote_is_named(cli: Cli, ward: Ward) -> None:
    client_of(ward.servers[0]).execute_command(
        "ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all"
    )
    path = ward.path.with_name("app.yaml")
    entry = {"port": ward.servers[0].port, "username": "app", "password": "x"}
    path.write_text(json.dumps({"components": {"a": {"entry": entry}}}))
    with ward.servers[0].client(username="app", password="x") as client:
        is_redis = "valkey_version" not in client.info("server")
        client.execute_command("ACL", "SETUSER", "default", "off", "-@all")
        client.config_set("appendonly", "yes")
        try:
            found = cli.json("doctor", "-c", path, code=int(is_redis))["findings"]
            client.execute_command("ACL", "SETUSER", "default", "off", "~*", "&*", "+@all")
            assert cli.json("doctor", "-c", path)["findings"] == []
        finally:
            client.config_set("appendonly", "no")
            client.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")
    assert [each["problem"] for each in found] == ["rights"] * is_redis
    assert all("it loses what scripts and MULTI wrote" in each["text"] for each in found)


MAP = """
components:
  geo: {shards: {count: 4, over: [{port: 7001}]}}
  plain: {entry: {port: 7001, db: 9}}
"""
PARTS: dict[str, Any] = {"parts": 4, "relation_parts": 4}


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[ShardKit, Path]]:
    """A kit on servers with one structure of each kind, and the map's file."""
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        path = tmp_path / "map.json"
        path.write_text(servers.shard_map.to_yaml())
        with shardkit.connect(servers.shard_map) as kit:
            options: dict[str, Any] = {"component": "geo", "part_size": 64}
            kit.set("ids", **options, members=int, parts=4).sadd_many(range(300))
            kit.set("planned", **options, total=300).sadd_many(map(str, range(300)))
            kit.hash("h", component="geo", parts=2).hset(mapping=dict.fromkeys(range(300), "v"))
            kit.hash("w", **options, codec="json").hset(mapping={"a": 1, "7": 2})
            kit.list("jobs", **options).rpush(*range(300))
            kit.sorted_set("s", **options, parts=2).zadd({f"m{n}": n for n in range(300)})
            kit.packed("p", **options, fields={"a": "u8", "b": "f32"}).set(5, a=1, b=2.5)
            kit.locations(component="geo").set(7, "DEU")
            visitors = kit.unique_visitors(component="geo", first_day=500)
            visitors.visit_many(sessions(100), date(2015, 5, 17))
            kit.queues(component="plain").enqueue("mail", "send")
            kit.search("docs", component="plain").index("1", text="some words")
            kit.ads(component="plain").index("1", ["Rome"], "some words", "cpc", 1)
            kit.job_search(component="plain").index("1", ["python"])
            kit.address_book(component="geo", parts=2, fold=fold).join_many("elves", ["Éa", "b"])
            network = kit.social(component="plain", timelines="geo", followers="geo", **PARTS)
            network.follow(network.create_user("ada", "Ada"), network.create_user("bo", "Bo"))
            plain: Any = kit.client("plain")
            for what, place in (("country", "Peru"), ("region", '["","Peru"]')):
                plain.zadd(f"daily:{what}:{{2015-05-17}}", {place: 1})
            plain.zadd("daily:city:{2015-05-17}", {'["Lima","","Peru"]': 1})
            plain.sadd("daily:done:{2015-05-17}", "a.log")
            kit.ip_to_city(component="geo").import_from([IpRange(0, 255, City("DE", "", "Ulm"))])
            yield kit, path


def test_every_kind_of_structure_is_checked_and_repaired(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    found = cli.json("doctor", "--check", "-c", path)
    assert found["ok"], found
    kinds = {(each["structure"], each["kind"]): each["unchecked"] for each in found["structures"]}
    assert {kind for kind in kinds if not kind[0].endswith(":cities")} == {
        *(("ids", "set"), ("planned", "set"), ("h", "hash"), ("w", "hash"), ("{jobs}", "list")),
        *(("s", "sorted-set"), ("p", "packed"), ("location", "packed"), ("docs", "search")),
        *(("unique", "unique-visitors"), ("queues:{mail}", "queue"), ("ip2city", "ip-to-city")),
        *(("ads", "ads"), ("jobs", "jobs"), ("{members}", "address-book"), ("social", "social")),
        ("daily", "city-totals"),
    }
    assert set(kinds.values()) == {None}
    result = cli("doctor", "--check", "-c", path)
    assert (result.code, result.lines) == (0, ["checked 18 structures: no damage"])

    group = next(k.decode() for k in holder(kit, "geo", "ids:{4}:0").scan_iter("ids:*}"))
    holder(kit, "geo", group).delete(group)
    holder(kit, "geo", "{jobs}:1").delete("{jobs}:1")
    holder(kit, "geo", "unique:2015-05-17").incr("unique:2015-05-17")
    found = cli.json("doctor", "--check", "-c", path, code=1)
    keys = {each["key"]: each for each in found["damages"]}
    assert {group, "{jobs}:1", "unique:2015-05-17"} <= set(keys)
    assert keys["{jobs}:1"]["loses"] == "64 values, lost already"
    assert keys["unique:2015-05-17"]["repair"] == "recount() counts the ids"
    only = cli.json("doctor", "--check", "-c", path, "--structure", "{jobs}", code=1)
    assert {each["structure"] for each in only["damages"]} == {"{jobs}"}

    result = cli("doctor", "--check", "--repair", "-c", path, input="n\n", code=1)
    assert "64 values, lost already" in result.out
    assert kit.client("geo", kit.component("geo").shard_of(group).number).exists(group) == 0
    result = cli("doctor", "--check", "--repair", "--yes", "-c", path)
    assert "geo/ids: rebuilt" in result.out
    assert "geo/{jobs}: rebuilt" in result.out
    assert kit.set("ids", component="geo", part_size=64, members=int, parts=4).scard() == 300
    found = cli.json("doctor", "--check", "-c", path, code=1)
    assert [each["key"] for each in found["damages"]] == ["unique:2015-05-17"]


def test_a_structure_that_cannot_be_rebuilt_says_why() -> None:
    rebuild = Mock(side_effect=[None, ConfigError("a shard is away", "start it")])
    structure: Any = SimpleNamespace(rebuild=rebuild)
    assert doctor._rebuilt(structure) == "rebuilt"
    assert doctor._rebuilt(structure) == "not rebuilt: a shard is away; start it"


def test_structures_without_parameters_are_found(cli: Cli, stored: tuple[ShardKit, Path]) -> None:
    kit, path = stored
    for key in ("ids:meta", "{jobs}:meta", "p:meta"):
        holder(kit, "geo", key).delete(key)
    found = cli.json("doctor", "--check", "-c", path, code=1)
    assert {each["key"] for each in found["damages"]} == {"ids:meta", "{jobs}:meta", "p:meta"}


def test_parameters_that_have_lost_the_size_of_parts_are_damage(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    kit.unique_visitors("rough", component="plain", precision="hyperloglog").visit_many(
        sessions(9), date(2015, 5, 17)
    )
    wrong = {"ids", "planned", "h", "{jobs}", "s", "p", "unique"}
    for name in wrong:
        client: Any = holder(kit, "geo", f"{name}:meta")
        # One wrong byte
        client.hset(f"{name}:meta", "qart_size", client.hget(f"{name}:meta", "part_size"))
        client.hdel(f"{name}:meta", "part_size")
    holder(kit, "geo", "w:meta").hset("w:meta", "part_size", "0")
    found = cli.json("doctor", "--check", "-c", path, code=1)
    damages = {(each["key"], each["found"]) for each in found["damages"]}
    assert damages == {(f"{name}:meta", "no part_size") for name in {*wrong, "w"}}
    assert {each["unchecked"] for each in found["structures"]} == {None}


def test_a_structure_whose_codec_is_the_applications_is_not_checked(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    holder(kit, "geo", "w:meta").hset("w:meta", "codec", "ours")
    found = cli.json("doctor", "--check", "-c", path, "--structure", "w", code=1)
    [checked] = found["structures"]
    assert (checked["structure"], found["damages"]) == ("w", [])
    assert checked["unchecked"].startswith("its codec is the application's: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--repair", "--structure, --repair and --yes go with --check"),
        ("--structure x", "--structure, --repair and --yes go with --check"),
        ("--check --fix", "--check goes with --structure, --repair and --yes only"),
        ("--check --repack", "--check goes with --structure, --repair and --yes only"),
        ("--check --repair --json", "with --json give --yes too"),
        ("--rewrite", "--rewrite saves what --fix sets"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, options: str, said: str) -> None:
    assert said in cli("doctor", *options.split(), code=2).error()


def test_a_server_that_evicts_keys_of_structures_is_found(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    client: Any = kit.client("plain")
    client.config_set("maxmemory-policy", "allkeys-lru")
    found = cli.json("doctor", "-c", path, code=1)
    found = [each for each in found["findings"] if each["problem"] == "eviction"]
    assert [each["component"] for each in found] == ["geo", "plain"]
    assert found[0]["remedy"] == "CONFIG SET maxmemory-policy noeviction"
    rows = [line.split() for line in cli("doctor", "-c", path).lines if "noeviction" in line]
    assert [row[0] for row in rows] == ["geo", "plain"]
