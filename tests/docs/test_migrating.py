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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.local import LocalCluster, LocalServer

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
        with each.client() as client:
            client.flushall()
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
