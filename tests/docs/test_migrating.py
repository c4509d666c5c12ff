"""The maps and commands of docs/migrating.md, on keys of the other programs; those of leaving.md.

``make originals`` had them write; see tools/originals.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

import pytest
import redis
from arranged import client_of
from click.testing import CliRunner

import shardkit
from shardkit import ServerClock, ShardKit, ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.local import LocalCluster, LocalServer, LocalServers
from shardkit.testing import MemoryServers

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
TOP, *SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
PROGRAMS = {
    "rb": "rb",
    "twemproxy": "twemproxy",
    "django-redis": "django-redis",
    "Jedis": "jedis",
    "go-redis Ring": "go-redis",
    "RedisArray and Predis": "redis-array",
    "A hand-written router": "whole:crc32",
    "Redis Cluster": "",
}
FILES = {
    "rb": "rb",
    "twemproxy": "twemproxy",
    "django-redis": "django-redis",
    "jedis": "Jedis",
    "go-redis": "go-redis Ring",
    "redis-array": "RedisArray and Predis",
    "predis": "RedisArray and Predis",
    "by-hand": "A hand-written router",
}
PATIENT = "--hold 3"  # on a machine that does much else
Data = dict[str, list[str]]  # by key: the command that wrote it, and True if it expires


def section(title: str) -> str:
    return next(each for each in SECTIONS if each.partition("\n")[0] == title)


def commands(text: str) -> list[str]:
    blocks = re.findall(r"```text\n(shardkit .*?)```", text, re.DOTALL)
    return "".join(blocks).splitlines()


def described(text: str) -> str:
    """Return the map of a section: that of the page's top, with the section's placement."""
    [top], [found] = (re.findall(r"```yaml\n(.*?)```", each, re.DOTALL) for each in (TOP, text))
    if found.startswith("placement:"):
        return str(top).replace("placement: rb\n", found)
    return str(found)


def original(name: str) -> tuple[dict[str, Any], Data]:
    path = Path(__file__).parent / "originals" / f"{name}.json"
    found = json.loads(path.read_text("utf-8"))
    data = {words[2]: words for server in found["servers"] for words in server}
    assert len(data) == sum(map(len, found["servers"])) > 100
    return found, data


def load(client: Any, written: Sequence[list[str]]) -> None:
    for expires, name, *words in written:
        raw = [word.encode("latin-1") for word in words]
        client.execute_command(name, *raw)
        if expires:
            client.expire(raw[0], 1000)


def stored(client: Any, key: bytes, kind: str) -> list[Any]:
    """What a command of `Data` has written, as a client finds it."""
    if kind == "SET":
        return [client.get(key)]
    if kind == "HSET":
        return [word for pair in client.hgetall(key).items() for word in pair]
    if kind == "RPUSH":
        return list(client.lrange(key, 0, -1))
    if kind == "SADD":
        return sorted(client.smembers(key))
    found = client.zrange(key, 0, -1, withscores=True)
    return [word for member, score in found for word in (str(score).encode(), member)]


def check_all(router: Any, data: Data) -> None:
    """Every key is found, with its type, value and expiry."""
    for expires, kind, *words in data.values():
        key, *values = (word.encode("latin-1") for word in words)
        assert stored(router[key], key, kind) == values, key
        assert (router[key].ttl(key) > 0) == expires, key


@pytest.fixture(scope="module")
def running() -> Iterator[list[LocalServer]]:
    with LocalServer() as config, LocalServer() as a, LocalServer() as b, LocalServer() as c:
        yield [config, a, b, c]


@pytest.fixture
def fresh(running: list[LocalServer]) -> list[LocalServer]:
    for each in running:
        client_of(each).flushall()
    return running


def test_each_program_has_a_section() -> None:
    assert [each.partition("\n")[0] for each in SECTIONS] == list(PROGRAMS)


@pytest.mark.parametrize("text", SECTIONS, ids=list(PROGRAMS))
def test_the_map_of_a_section_can_be_used(text: str) -> None:
    component = ShardMap.parse(described(text)).components["users"]
    expected = PROGRAMS[text.partition("\n")[0]]
    if expected:
        assert component.placement.partition(" ")[0] == expected
        assert component.place("user:42") in (0, 1, 2)
    else:
        assert component.entry is not None
        assert component.entry.is_cluster


@pytest.mark.long(4)
@pytest.mark.parametrize("name", FILES)
def test_keys_of_a_program_are_adopted_used_and_split_by_the_commands_of_the_page(
    name: str, fresh: list[LocalServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, data = original(name)
    config, *others = fresh
    for server, written in zip(others, found["servers"], strict=True):
        with server.client(db=found["database"]) as client:
            load(client, written)
    monkeypatch.chdir(tmp_path)
    where = f"redis://{config.address}"
    monkeypatch.setenv("SHARDKIT_CONFIG", where)

    def give(line: str, *more: str) -> None:
        for n, server in enumerate(others, 1):
            line = line.replace(f"10.0.0.{n}:6379", server.address)
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], *more], standalone_mode=False)
        assert done.exception is None, (line, done.output, done.exception)
        assert not done.return_value, (line, done.output)

    text = section(FILES[name])
    adopting, pushing, split = commands(TOP)
    [adopt] = commands(text) or [adopting]
    names = [] if "--name" in adopt else found["names"] or []  # where it wrote to, not here
    give(adopt, *(word for each in names for word in ("--name", each)))
    users_as_adopted = ShardMap.load("users.yaml").components["users"]
    adopted = users_as_adopted.placement
    expected = name if name in ("predis", "twemproxy") else PROGRAMS[FILES[name]]
    assert adopted.partition(" ")[0] == expected
    if names == [] and name != "predis":
        of_page = ShardMap.parse(described(text)).components["users"]
        keys = [key.encode("latin-1") for key in data]
        assert [*map(users_as_adopted.place, keys)] == [*map(of_page.place, keys)]
    give(pushing)
    with shardkit.connect(where) as kit:
        users: Any = kit.key_sharded("users")
        check_all(users, data)
        users["more"].set("more", "x")
        give(split)
        give(split.replace("--dry-run", PATIENT))
        component = kit.topology.reread("users")
        assert (len(component.shards), component.placement) == (12, "crc32")
        check_all(users, {**data, "more": [False, "SET", "more", "x"]})  # type: ignore[list-item]
        # Structures work now: crc32 has hash tags.
        assert kit.set("ids", component="users", total=1000, members=int).sadd(1, 2, 3) == 3
    asyncio.run(read_awaiting(where, data))
    for line in ("shardkit move verify users", f"shardkit move reverse users {PATIENT}"):
        give(line)
    with shardkit.connect(where) as kit:
        assert kit.topology.component("users").placement == adopted
        check_all(kit.key_sharded("users"), data)


async def read_awaiting(where: str, data: Data) -> None:
    strings = [words for words in data.values() if words[1] == "SET"]
    async with await shardkit.aconnect(where) as kit:
        keys = [words[2].encode("latin-1") for words in strings]
        values = await kit.key_sharded("users").mget(keys)
        assert values == [words[3].encode("latin-1") for words in strings]


def test_keys_of_a_cluster_are_used_there_and_after_its_masters_have_left(
    fresh: list[LocalServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, data = original("cluster")
    config, *others = fresh
    text = described(section("Redis Cluster"))
    with LocalCluster(masters=3) as cluster, config.client() as client:
        with cluster.client() as writing:
            for _, kind, *words in data.values():
                writing.execute_command(kind, *(word.encode("latin-1") for word in words))
        host, port = cluster.nodes[0].address.split(":")
        push(client, ShardMap.parse(text.replace("10.0.0.1", host).replace("6379", port)))
        with shardkit.connect(f"redis://{config.address}") as kit:
            router: Any = kit.key_sharded("users")
            for _, kind, *words in data.values():
                key, *values = (word.encode("latin-1") for word in words)
                assert stored(router[key], key, kind) == values
    monkeypatch.chdir(tmp_path)
    on = [word for each in reversed(others) for word in ("--on", each.address)]
    for server, written in zip(others, found["servers"], strict=True):
        with server.client() as client:
            load(client, written)
    done = CliRunner().invoke(app, ["adopt", "users", *on, "--output", "users.yaml"])
    assert done.exit_code == 0, done.output
    shard_map = ShardMap.load("users.yaml")
    assert shard_map.components["users"].placement == "slot"
    with shardkit.connect(shard_map) as kit:
        check_all(kit.key_sharded("users"), data)


def test_our_django_cache_reads_what_django_redis_stored(
    fresh: list[LocalServer], tmp_path: Path
) -> None:
    django = pytest.importorskip("django.conf")
    found, _ = original("django-redis")
    for server, written in zip(fresh[1:], found["servers"], strict=True):
        with server.client(db=1) as client:
            load(client, written)
    rule = ShardMap.parse(described(section("django-redis"))).components["users"].placement
    names = json.dumps(found["names"], separators=(",", ":"))
    shards = [{"host": "127.0.0.1", "port": each.port, "db": 1} for each in fresh[1:]]
    users = {"shards": shards, "placement": re.sub(r'"names":\[.*?\]', f'"names":{names}', rule)}
    [code] = re.findall(r"```python\n(def .*?)```", section("django-redis"), re.DOTALL)
    own: dict[str, Any] = {}
    exec(code, own)
    if not django.settings.configured:
        django.settings.configure()
    import shardkit.integrations.django.cache as django_cache

    path = tmp_path / "users.yaml"
    path.write_text(json.dumps({"components": {"users": users}}))
    options = {"NAME": "", "TOPOLOGY": str(path)}
    cache = django_cache.ShardKitCache(
        "users", {"OPTIONS": options, "KEY_FUNCTION": own["version_and_key"]}
    )
    assert cache.get_many([f"user:{n}" for n in range(60)]) == {
        f"user:{n}": f"name {n}" for n in range(60)
    }
    cache.set("user:1", "changed")
    assert cache.get("user:1") == "changed"
    with redis.Redis(port=fresh[1].port, db=1) as client:
        assert {key.partition(b":")[2][:2] for key in client.scan_iter()} == {b"1:"}
    django_cache.kit_of(str(path)).close()


LEAVING = Path(__file__).parents[2] / "docs" / "leaving.md"
FIELDS = {str(n): f"value {n}" for n in range(500)} | {f"name {n}": f"{n}" for n in range(50)}
FIELDS["007"] = "agent"


def read_all(clients: list[Any], name: str) -> dict[str, str]:
    """Read a hash as the page's table says: HGETALL of each part."""
    found: dict[str, str] = {}
    sizes = [each.hget(f"{name}:meta", "part_size") for each in clients]
    size = next(int(each) for each in sizes if each)
    for client in clients:
        for key in client.scan_iter(f"{name}:*"):
            part = re.fullmatch(rf"{name}:(?:{{.*}}:)?(\d+)", key.decode())
            if part is None:
                continue
            assert client.type(key) == b"hash"
            for field, value in client.hgetall(key).items():
                text = field.decode()
                if text.isdigit() and str(int(text)) == text:
                    text = str(int(part[1]) * size + int(text))
                found[text] = value.decode()
    return found


def test_what_is_stored_is_found_read_and_exported_without_shardkit(tmp_path: Path) -> None:
    text = LEAVING.read_text("utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with LocalServer() as config, LocalServer() as a, LocalServer() as b:
        shards = [{"host": "127.0.0.1", "port": each.port, "db": 1} for each in (a, b, a)]
        shards[2]["db"] = 2
        components = {"timelines": {"shards": shards}}
        where = f"redis://{config.address}"
        with config.client() as client:
            push(client, ShardMap.parse(json.dumps({"components": components})))
        with shardkit.connect(where) as kit:
            users = kit.key_sharded("timelines")
            users["home:42"].zadd("home:42", {"7": 1.0})
            planned = kit.hash("planned", component="timelines", total=500)
            planned.hset(mapping=FIELDS)
            growing = kit.hash("growing", component="timelines")
            growing.hset(mapping=FIELDS)
            kit.set("ids", component="timelines", total=500, members=int).sadd(*range(500))
        # Where a key lives
        own: dict[str, Any] = {}
        *statements, last = ast.parse(code.replace("redis://127.0.0.1:7100", where)).body
        exec(compile(ast.Module(statements, []), "leaving.md", "exec"), own)
        assert isinstance(last, ast.Expr)
        shown = eval(compile(ast.Expression(last.value), "leaving.md", "eval"), own)
        assert shown == [b"7"]
        own["config"].close()
        # What is in a key
        clients = [redis.Redis(port=each["port"], db=each["db"]) for each in shards]
        assert read_all(clients, "planned") == FIELDS
        assert read_all(clients, "growing") == FIELDS
        parts = [
            client.smembers(key) for client in clients for key in client.scan_iter("ids:[0-9]*")
        ]
        assert sorted(int(each) for part in parts for each in part) == list(range(500))
        kinds = {client.type(key) for client in clients for key in client.scan_iter("*:meta")}
        assert kinds == {b"hash"}
        # Export
        target = tmp_path / "backup"
        done = CliRunner().invoke(app, ["backup", str(target), "-c", where])
        assert done.exit_code == 0, done.output
        with ExitStack() as stack:
            copies = []
            for n, file in enumerate(sorted(target.glob("server-*.rdb"))):
                folder = tmp_path / f"plain-{n}"
                folder.mkdir()
                shutil.copyfile(file, folder / "dump.rdb")
                plain = stack.enter_context(LocalServer(data_dir=folder))
                copies += [stack.enter_context(plain.client(db=number)) for number in (1, 2)]
            assert read_all(copies, "growing") == FIELDS
            assert read_all(copies, "planned") == FIELDS
        for client in clients:
            client.close()


BOOK = (Path(__file__).parents[2] / "docs" / "redis-in-action.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python\n# ([a-z ]+)\n(.*?)^```", BOOK, re.DOTALL | re.MULTILINE))
MAP = ShardMap.parse("""
components:
  book: {entry: {port: 7101}}
  shop: {shards: {count: 4, over: [{port: 7102, db: 1}, {port: 7103, db: 1}]}}
  unique:
    entry: {port: 7101, db: 1}
    shards: {count: 16, over: [{port: 7102, db: 10}, {port: 7103, db: 10}]}
    placement: redis-in-action
  timelines:
    shards: {count: 8, over: [{port: 7102, db: 30}]}
    placement: redis-in-action
  followers:
    shards: {count: 16, over: [{port: 7103, db: 40}]}
    placement: redis-in-action
""")
DAY = date(2009, 1, 1)
SESSIONS = [str(UUID(int=n * 2**100 + n, version=4)) for n in range(1, 41)]


class Bench(NamedTuple):
    """A kit, its servers, and clients of the server with the book's data."""

    connect: Callable[..., ShardKit]
    servers: LocalServers | MemoryServers
    kit: ShardKit
    book: redis.Redis
    raw: redis.Redis

    def run(self, recipe: str, **names: Any) -> dict[str, Any]:
        """Run a recipe of the page; return the names that it defined."""
        opened = SimpleNamespace(connect=self.connect, ServerClock=ServerClock)
        names |= {"kit": self.kit, "book": self.book, "shardkit": opened}
        exec(compile(RECIPES[recipe], f"docs/redis-in-action.md: {recipe}", "exec"), names)
        return names

    def shards(self, component: str) -> list[Any]:
        count = len(self.kit.component(component).shards)
        return [self.kit.client(component, number) for number in range(count)]


@pytest.fixture(scope="module")
def local_servers() -> Iterator[LocalServers]:
    with LocalServers(MAP, ports="free") as servers:
        yield servers


@pytest.fixture(params=["real", "memory"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    servers: Any
    if request.param == "real":
        servers, connector = request.getfixturevalue("local_servers"), None
    else:
        servers = connector = MemoryServers(MAP)
    server = servers.server_of("book")
    connect = partial(shardkit.connect, servers.shard_map, connector=connector)
    with (
        connect() as kit,
        server.client(decode_responses=True) as book,
        server.client() as raw,
    ):
        yield Bench(connect, servers, kit, book, raw)
        for server in servers.servers:
            client_of(server).flushall()


def shard_of(key: str, count: int) -> int:
    """The number that the book's code computes for a server, or a part of a set."""
    return crc32(b"x" + key.encode()) % count


def test_every_recipe_of_the_page_is_tested() -> None:
    tested = set(re.findall(r'\.run\("([a-z ]+)"', Path(__file__).read_text(encoding="utf-8")))
    assert RECIPES.keys() == tested | {"the program"}
    assert BOOK.count("```python") == len(RECIPES)


# ---- the program


def test_the_program_runs_on_entries_by_hand(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    shard_map = bench.servers.shard_map
    for name in ("unique", "timelines", "followers"):
        for shard, entry in shard_map.components[name].entries():
            number = "" if shard.number is None else f":{shard.number}"
            bench.book.set(f"config:redis:{name}{number}", entry.to_json())
    config = bench.servers.server_of("book").entry
    with ExitStack() as ending:
        if isinstance(bench.servers, MemoryServers):
            kit = shardkit.connect(config, connector=bench.servers)
            shardkit.configure(ending.enter_context(kit))
        else:
            monkeypatch.setenv("SHARDKIT_CONFIG", f"redis://{config.address}")
            shardkit.configure(None)
        ending.callback(shardkit.configure, None)
        exec(compile(RECIPES["the program"], "docs/redis-in-action.md: the program", "exec"), {})
    for component, chosen, key in (
        ("unique", "550e8400-e29b-41d4-a716-446655440000", "unique:2009-01-01:visits"),
        ("timelines", "home:42", "home:42"),
        ("followers", "42:99", "followers:99"),
    ):
        shards = bench.shards(component)
        held = [shard.exists(key) for shard in shards]
        assert held.index(1) == shard_of(chosen, len(shards))
        assert sum(held) == 1


# ---- in place


def test_unique_visitors_are_counted_on(bench: Bench) -> None:
    home, shards = bench.kit.client("unique"), bench.shards("unique")
    home.set("unique:2009-01-01:expected", 2048)  # type: ignore[union-attr]
    for session in SESSIONS:
        number = int(session.replace("-", "")[:15], 16)
        part = shard_of(str(number), 2 * 2048 // 512)
        if shards[shard_of(session, 16)].sadd(f"unique:2009-01-01:{part}", number):
            home.incr("unique:2009-01-01")  # type: ignore[union-attr]
    visitors = bench.run("unique visitors", day=DAY, session=SESSIONS[0])["visitors"]
    assert visitors.count(DAY) == 40
    assert visitors.visit_many(SESSIONS, DAY) == 0
    assert visitors.visit(str(UUID(int=5)), DAY)
    assert visitors.count(DAY) == 41


def test_a_sharded_set_is_read_in_place(bench: Bench) -> None:
    numbers = [383061330139657245, *range(10**17, 10**17 + 50)]
    for number in numbers:
        bench.book.sadd(f"ids:{shard_of(str(number), 2 * 2_097_152 // 512)}", number)
    ids = bench.run("sharded set")["ids"]
    assert ids.scard() == len(numbers)
    assert ids.sismember(numbers[7])
    assert ids.sadd(*numbers, 7) == 1
    assert bench.book.sismember(f"ids:{shard_of('7', 8192)}", "7")


def test_locations_are_read_and_written_in_place(bench: Bench) -> None:
    # ABW is the first country; USA the 235th, with CA the ninth state.
    for user, code in {5: b"\x01\x00", 139960061: b"\xeb\x09", 6: b"\x28\x09"}.items():
        bench.raw.setrange(f"location:{user // 2**20}", 2 * (user % 2**20), code)
    bench.book.zadd("location:max", {"max": 139960061})
    where = bench.run("locations")["where"]
    assert where.get_many([5, 6, 7, 139960061]) == {
        5: ("ABW", None),
        6: ("CAN", "ON"),
        7: (None, None),
        139960061: ("USA", "CA"),
    }
    assert where.aggregate() == (
        {"ABW": 1, "CAN": 1, "USA": 1},
        {"CAN": {"ON": 1}, "USA": {"CA": 1}},
    )
    where.set(139960062, "ZWE")
    assert bench.raw.getrange("location:133", 998908, 998909) == b"\xf9\x00"
    assert where.highest() == 139960062
    assert list(where.records.check()) == []


def test_locations_of_users_beyond_the_first_parts_are_registered_by_hand(bench: Bench) -> None:
    user = 1100 * 2**20 + 5
    bench.raw.setrange("location:1100", 10, b"\xeb\x09")
    bench.book.sadd("location:parts", 1100)
    where = bench.run("locations")["where"]
    assert where.get(user) == ("USA", "CA")
    assert where.aggregate().countries == {"USA": 1}


def test_contacts_and_guilds_are_read_and_written_in_place(bench: Bench) -> None:
    bench.book.lpush("recent:ada", "Alan", "Gregor", "Grace")
    bench.book.zadd("members:elves", dict.fromkeys(["elrond", "elros", "arwen", "celeborn"], 0))
    names = bench.run("contacts and guilds")
    assert names["contacts"].complete("ada", "gr") == ["Grace", "Gregor"]
    names["contacts"].touch("ada", "Alan")
    assert bench.book.lrange("recent:ada", 0, -1) == ["Alan", "Grace", "Gregor"]
    assert names["guilds"].complete("elves", "el") == ["elrond", "elros"]
    assert names["guilds"].join("elves", "elwing")
    assert bench.book.zscore("members:elves", "elwing") == 0


def test_ranges_of_scores_are_read_in_place(bench: Bench) -> None:
    for user in range(30):
        pair = ":".join(map(str, sorted((user, 99))))
        client = bench.shards("followers")[shard_of(pair, 16)]
        client.zadd("followers:99", {str(user): 1000 + user})
    newest = bench.run("ranges of scores")["newest"]
    found = newest.zrevrangebyscore("+inf", "-inf", start=0, num=3)
    assert found == ["29", "28", "27"]


def test_the_maintenance_flag_and_other_settings_are_read_in_place(bench: Bench) -> None:
    flag = bench.kit.maintenance(component="book")
    assert not flag.check()
    bench.book.set("is-under-maintenance", "yes")
    assert bench.kit.maintenance(component="book").check()


# ---- imports and copies


@pytest.mark.parametrize("sharded", [False, True])
def test_ranges_and_cities_are_imported(bench: Bench, sharded: bool) -> None:
    cities = {7: ["Bonn", "07", "DE"], 1030: ["Oslo", "12", "NO"]}
    for number, names in cities.items():
        key = f"cityid2city::{number // 1024}" if sharded else "cityid2city:"
        bench.book.hset(key, str(number), json.dumps(names))
    # A Java program's address 192.0.0.0 is negative.
    bench.book.zadd("ip2cityid:", {"7_0": 1 << 24, "1030_1": (192 << 24) - 2**32})
    ip = bench.run("ip to city")["ip"]
    assert ip.find("127.0.0.1") == ("Bonn", "07", "DE", 7)
    assert ip.find("192.0.2.1") == ("Oslo", "12", "NO", 1030)
    assert ip.find("0.1.2.3") is None


def test_a_sharded_hash_is_copied(bench: Bench) -> None:
    cities = {str(n): [f"City {n}", "07", "DE"] for n in range(1000, 3000)} | {"x": ["Ü", "", ""]}
    for field, value in cities.items():
        part = int(field) // 1024 if field.isdigit() else crc32(field.encode()) % 625
        bench.book.hset(f"cityid2city::{part}", field, json.dumps(value))
    for _ in range(2):
        copied = bench.run("sharded hash")["cities"]
        assert copied.hgetall() == cities
    assert copied.hget(1024) == ["City 1024", "07", "DE"]


def test_tasks_are_queued_once_however_often_they_are_copied(bench: Bench) -> None:
    bench.book.rpush("queue:high", '["mail", [1]]', '["7f", "high", "mail", [2]]')
    bench.book.rpush("queue:low", '["mail", [3]]')
    later = {'["8a", "low", "later", [4]]': time.time() + 1000, '["9b", "high", "now", []]': 0}
    bench.book.zadd("delayed:", later)
    for _ in range(2):
        tasks = bench.run("task queues")["tasks"]
    taken = [tasks.take("high", timeout=0) for _ in range(4)]
    assert [task and (task.name, task.args) for task in taken] == [
        ("mail", (1,)),
        ("mail", (2,)),
        ("now", ()),
        None,
    ]
    assert tasks.counts("low") == (1, 1, 0, 0)


def test_chats_are_copied_with_what_each_member_has_read(bench: Bench) -> None:
    bench.book.zadd("chat:7", {"ada": 3, "alan": 5})
    bench.book.zadd("seen:ada", {"7": 3})
    bench.book.set("ids:7", 5)
    for number, sender in ((4, "ada"), (5, "gone")):
        text = {"id": number, "ts": 1.5, "sender": sender, "message": f"message {number}"}
        bench.book.zadd("msgs:7", {json.dumps(text): number})
    chats = bench.run("chats")["chats"]
    [found] = chats.fetch("ada")
    assert [(m.sender, m.body) for m in found.messages] == [
        ("ada", "message 4"),
        ("gone", "message 5"),
    ]
    assert chats.fetch("alan") == []
    assert {member.user for member in chats.members("7")} == {"ada", "alan"}


def test_documents_are_found_by_the_words_of_the_old_index(bench: Bench) -> None:
    for document, text in {"1": "sharding redis keys", "2": "redis clusters"}.items():
        for word in text.split():
            bench.book.sadd(f"idx:{word}", document)
        bench.book.hset(
            f"kb:doc:{document}", mapping={"updated": document, "title": f"T{document}"}
        )
    bench.book.sadd("idx:6d1b", "1")
    bench.book.expire("idx:6d1b", 300)
    docs = bench.run("search")["docs"]
    assert [hit.id for hit in docs.search("redis", sort="-updated")] == ["2", "1"]
    [hit] = docs.search("redis keys -clusters", attributes=["title"])
    assert hit.attributes == {"title": "T1"}
    assert docs.count("6d1b") == 0


def test_ads_are_copied(bench: Bench) -> None:
    bench.book.sadd("idx:req:Berlin", "shoes")
    bench.book.sadd("idx:req:Paris", "shoes", "wine")
    bench.book.sadd("terms:shoes", "running", "shoes")
    bench.book.sadd("terms:wine", "red", "wine")
    bench.book.hset("type:", mapping={"shoes": "cpc", "wine": "cpm"})
    bench.book.zadd("ad:base_value:", {"shoes": 0.25, "wine": 0.2})
    ads = bench.run("ads")["ads"]
    assert ads.count() == 2
    assert ads.target(["Berlin"], "running")[1] == "shoes"
    assert (ads.get("wine").type, ads.get("wine").value) == ("cpm", 0.2)
    assert set(ads.get("shoes").locations) == {"Berlin", "Paris"}


def test_jobs_are_copied(bench: Bench) -> None:
    bench.book.sadd("job:analyst", "sql")
    bench.book.sadd("job:developer", "sql", "python")
    bench.book.zadd("idx:jobs:req", {"analyst": 1, "developer": 2})
    jobs = bench.run("jobs")["jobs"]
    assert [job.id for job in jobs.find(["sql"])] == ["analyst"]
    assert [job.id for job in jobs.find(["SQL", "Python"])] == ["developer", "analyst"]


def test_a_sharded_list_is_copied_in_order(bench: Bench) -> None:
    bench.book.mset({"jobs:first": -1, "jobs:last": 1})
    for n in (-1, 0, 1):
        bench.book.rpush(f"jobs:{n}", *(f"{n}.{i}" for i in range(3)))
    values = bench.run("sharded list")["values"]
    assert values.llen() == 9
    assert (values.lpop(), values.rpop(), values.blpop(0.1)) == ("-1.0", "1.2", "-1.1")


def test_a_list_of_one_part_has_no_pointers(bench: Bench) -> None:
    bench.book.rpush("jobs:0", "a", "b")
    assert bench.run("sharded list")["values"].lrange(0, -1) == ["a", "b"]


def test_a_social_network_is_copied(bench: Bench) -> None:
    book = bench.book
    for number, login in ((1, "Ada"), (2, "alan")):
        book.hset("users:", login.lower(), str(number))
        user: dict[str, Any] = {
            "login": login,
            "id": number,
            "name": login,
            "followers": 0,
            "posts": 0,
        }
        book.hset(f"user:{number}", mapping=user)
    book.zadd("following:1", {"2": 1000})
    book.zadd("followers:2", {"1": 1000})
    book.mset({"user:id:": 2, "status:id:": 11})
    for number in (9, 10, 11):
        status: dict[str, Any] = {
            "message": f"m{number}",
            "posted": 1000.5 + number,
            "id": number,
            "uid": 2,
        }
        book.hset(f"status:{number}", mapping=status | {"login": "alan"})
    names = bench.run("social network")
    network, users = names["network"], names["users"]
    page = network.home(users["1"])
    assert [status.message for status in page] == ["m11", "m10", "m9"]
    assert page[0].extras == {"first_posted": "1011.5"}
    assert network.get_user(users["2"]).followers == 1
    assert network.get_user_by_login("ada").login == "Ada"


def test_counters_are_copied_slice_by_slice(bench: Bench) -> None:
    now = int(time.time())
    counts = {60: {now // 60 * 60 - 60 * n: n + 1 for n in range(50)}, 5: {now // 5 * 5 - 5: 300}}
    for precision, slices in counts.items():
        bench.book.zadd("known:", {f"{precision}:hits:all": 0})
        bench.book.hset(
            f"count:{precision}:hits:all", mapping={str(s): n for s, n in slices.items()}
        )
    bench.run("counters")
    hits = bench.kit.counters(component="shop")
    for precision, slices in counts.items():
        assert hits.get("hits:all", precision) == sorted(slices.items())
    hits.add("hits:all")
    assert hits.total(["hits:all"], 60) == sum(counts[60].values()) + 1


def test_totals_are_copied_once(bench: Bench) -> None:
    for day, counts in {
        "2015-05-17": {"Germany": 7, "France": 2},
        "2015-05-18": {"Italy": 1},
    }.items():
        bench.book.zadd(f"daily:country:{day}", counts)
    for _ in range(2):
        totals = bench.run("totals")["totals"]
    assert totals.top("2015-05-17", "country") == [("Germany", 7), ("France", 2)]
    assert totals.top("2015-05-18", "country") == [("Italy", 1)]


def test_a_market_is_copied(bench: Bench) -> None:
    book = bench.book
    book.hset("users:17", mapping={"name": "Frank", "funds": 43})
    book.hset("users:27", mapping={"name": "Bill", "funds": 125})
    book.sadd("inventory:17", "ring", "cloak")
    book.zadd("market:", {"sword.of.dawn.17": 97})
    market = bench.run("market")["market"]
    assert market.price("sword.of.dawn", "17") == 97
    assert market.purchase("27", "sword.of.dawn", "17", 97)
    assert Counter(market.user("17").balances) == {"money": 140, "item/ring": 1, "item/cloak": 1}
    assert market.user("27").balances == {"money": 28, "item/sword.of.dawn": 1}
