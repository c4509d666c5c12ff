"""The recipes of docs/redis-in-action.md, on data in the formats of the book's code.

Each ``python`` block of the page begins with a comment that names it. The data are written here,
from what is known of the formats. Servers are real ones, and those in memory.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
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

import shardkit
from shardkit import ServerClock, ShardKit, ShardMap
from shardkit.local import LocalServers
from shardkit.testing import MemoryServers

PAGE = (Path(__file__).parents[2] / "docs" / "redis-in-action.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python\n# ([a-z ]+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
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
            with server.client() as client:
                client.flushall()


def shard_of(key: str, count: int) -> int:
    """The number that the book's code computes for a server, or a part of a set."""
    return crc32(b"x" + key.encode()) % count


def test_every_recipe_of_the_page_is_tested() -> None:
    tested = set(re.findall(r'\.run\("([a-z ]+)"', Path(__file__).read_text(encoding="utf-8")))
    assert RECIPES.keys() == tested | {"the program"}
    assert PAGE.count("```python") == len(RECIPES)


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
