"""What type checkers see. Not run: mypy and pyright read it (test_typing.py), and must agree.

Lines that must be refused end in ``# type: ignore``, which both report when it is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, assert_type

import redis
import redis.asyncio as aioredis
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

import shardkit
from shardkit import (
    AsyncKeyShardedConnection,
    AsyncShardKit,
    IdPairShardedConnection,
    KeyShardedConnection,
    LuaScript,
    ShardKit,
)
from shardkit.ads import Ad, Ads, Served
from shardkit.completion import AddressBook, RecentContacts
from shardkit.geo import City, Imported, IpToCity
from shardkit.job_search import JobSearch
from shardkit.kit.pipelines import AsyncShardedPipeline, ShardedPipeline
from shardkit.network.connections.clients import AsyncClient, Client
from shardkit.operations import (
    Awaiting,
    Blocking,
    Deferred,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.queues import AsyncWorker, DeadTask, Task, TaskQueues, Worker
from shardkit.search import Document, Hit, Results, SearchIndex
from shardkit.social import FollowResult, SocialNetwork, TimelinePage, User
from shardkit.structures import (
    PackedRecords,
    RecordGroup,
    ScoreRanges,
    ShardedList,
    ShardedSet,
    ShardedSortedSet,
    UniqueVisitors,
)
from shardkit.structures.codecs.named import TEXT

# ---- structures of a kit that blocks


def blocking(kit: ShardKit) -> None:
    ids = kit.set("ids", component="c", total=10, members=int)
    assert_type(ids, ShardedSet[Blocking, int])
    assert_type(ids.sadd(1, 2), int)
    assert_type(ids.sismember(1), bool)
    assert_type(ids.smismember(1, 2), list[bool])
    assert_type(ids.smismember([1, 2]), list[bool])
    assert_type(ids.smembers(), set[int])
    assert_type(ids.sscan_iter("1*"), Iterator[int])
    assert_type(ids.sinter(ids, ids), set[int])
    assert_type(ids.sunion_iter(ids), Iterator[int])
    assert_type(kit.set("s", component="c", total=10), ShardedSet[Blocking, str])
    assert_type(kit.set("s", component="c", total=10).smembers(), set[str])
    assert_type(kit.set("b", component="c", total=9, members=bytes).smembers(), set[bytes])
    visitors = kit.unique_visitors(component="unique")
    assert_type(visitors, UniqueVisitors[Blocking])
    assert_type(visitors.visit("550e8400"), bool)
    assert_type(visitors.count(), int)
    assert_type(visitors.visitors(), ShardedSet[Blocking, int])
    estimate = kit.unique_visitors(precision="hyperloglog", component="unique")
    assert_type(estimate.visit_many(["a"]), int)
    assert_type(estimate.count_union([]), int)
    assert_type(
        kit.unique_visitors(precision="exact", component="unique").ids(), Iterator[int | str]
    )
    jobs = kit.list("jobs", component="c", values=int)
    assert_type(jobs, ShardedList[Blocking, int])
    assert_type(jobs.rpush(1, "2", 3.0), int)
    assert_type(jobs.blpop(0.5), int | None)
    assert_type(jobs.lpop(2), Any)
    assert_type(jobs.items(reverse=True), Iterator[int])
    assert_type(kit.list("t", component="c").lindex(0), str | None)
    assert_type(jobs.lmove(kit.list("d", component="c", values=int)), int | None)
    jobs.rpush(None)  # type: ignore
    ids.sadd(None)  # type: ignore
    ids.sadd(wrong=1)  # type: ignore
    ids.sadd("text")  # type: ignore
    ids.sismember("text")  # type: ignore
    ids.smismember()  # type: ignore
    kit.set("ids")  # type: ignore


async def awaiting(kit: AsyncShardKit) -> None:
    ids = kit.set("ids", component="c", total=10, members=int)
    assert_type(ids, ShardedSet[Awaiting, int])
    assert_type(ids.sadd(1), Coroutine[Any, Any, int])
    assert_type(await ids.sadd(1), int)
    assert_type(await ids.smismember(1), list[bool])
    assert_type(await ids.smembers(), set[int])
    assert_type([member async for member in ids.sscan_iter()], list[int])
    jobs = kit.list("jobs", component="c", values=bytes)
    assert_type(jobs, ShardedList[Awaiting, bytes])
    assert_type(await jobs.brpop(), bytes | None)
    assert_type(jobs.items(), AsyncIterator[bytes])
    assert_type(await kit.unique_visitors(component="unique").visit("550e8400"), bool)
    assert_type(await kit.client("c"), aioredis.Redis)
    for _ in ids.sscan_iter():  # type: ignore
        pass


def sorted_sets(kit: ShardKit) -> None:
    scores = kit.sorted_set("s", component="c")
    assert_type(scores, ShardedSortedSet[Blocking, str])
    added: int = scores.zadd([("a", 1), (b"b", 2.5)], gt=True)
    added = scores.zadd({"a": 1, "b": 2.5}) + added
    assert_type(scores.zadd_many([("a", 1), (b"b", 2.5)]), int)
    assert_type(scores.zscore("a"), float | None)
    assert_type(scores.top(3), list[tuple[str, float]])
    assert_type(scores.zpopmin(), list[tuple[str, float]])
    ids = kit.sorted_set("i", component="c", members=int, bound=10)
    assert_type(ids.page((7, 1.5), 10), list[tuple[int, float]])
    assert_type(ids.range_iter(0, 9), Iterator[tuple[int, float]])
    assert_type(ids.zrangebylex("[1", "+"), list[int])
    assert_type(ids.lex_range_iter("[1"), Iterator[int])
    assert_type(ids.deferred.zcard(), Operation[int])
    scores.zadd({"a": "1"})  # type: ignore
    scores.zadd("a", xx=1)  # type: ignore


# ---- task queues, and ranges of scores


def task_queues(kit: ShardKit) -> None:
    tasks = kit.queues(component="c")
    assert_type(tasks, TaskQueues[Blocking])
    assert_type(tasks.enqueue("q", "send", [1], delay=2.5), str)
    assert_type(tasks.take(["q", ("a", "b")], timeout=1), Task | None)
    assert_type(tasks.dead("q"), Iterator[DeadTask])
    assert_type(tasks.deferred.length("q"), Operation[int])
    worker = Worker(tasks, "q")

    @worker.task()
    def send(user: int) -> str:
        return str(user)

    assert_type(send(1), str)
    tasks.enqueue("q")  # type: ignore
    AsyncWorker(tasks, "q")  # type: ignore
    scores = kit.score_ranges("s", component="c", shards=4, members=int)
    assert_type(scores, ScoreRanges[Blocking, int])
    assert_type(scores.page((7, 1.5), 10, min=1, max="(2"), list[tuple[int, float]])
    assert_type(scores.range_iter(), Iterator[tuple[int, float]])


async def awaited_task_queues(kit: AsyncShardKit) -> None:
    tasks = kit.queues(component="c")
    assert_type(tasks, TaskQueues[Awaiting])
    assert_type(await tasks.take("q"), Task | None)
    assert_type(tasks.dead("q"), AsyncIterator[DeadTask])
    worker = AsyncWorker(tasks, "q")

    @worker.task("send")
    async def send(user: int) -> None:
        pass

    assert_type(await send(1), None)
    Worker(tasks, "q")  # type: ignore


# ---- the deferred face, and operations together


def deferred(kit: ShardKit) -> None:
    ids = kit.set("ids", component="c", total=10, members=int)
    assert_type(ids.deferred, ShardedSet[Deferred, int])
    assert_type(ids.deferred.scard(), Operation[int])
    assert_type(ids.deferred.sscan_iter(), Stream[int])
    assert_type(kit.together(ids.deferred.scard(), ids.deferred.scard()), list[int])
    visitors = kit.unique_visitors(component="unique")
    assert_type(
        kit.together(visitors.deferred.visit("a"), visitors.deferred.visit("b")), list[bool]
    )
    kit.together(ids.scard())  # type: ignore


def composed(ids: ShardedSet[Any, int]) -> Operation[str]:
    count = yield from ids.deferred.scard()
    assert_type(count, int)
    return str(count)


# ---- a structure of one's own


class Own(Structure[Face]):
    @operation
    def get(self, key: str, default: bytes = b"") -> Operation[bytes | None]:
        """Get."""
        [value] = yield [self._at(key, "GET", key)]
        return value or default

    @stream
    def all(self) -> Stream[bytes]:
        """Iterate."""
        yield [self._at("k", "GET", "k")]


def own_blocking(own: Own[Blocking]) -> None:
    assert_type(own.get("k"), bytes | None)
    assert_type(own.get("k", default=b"x"), bytes | None)
    assert_type(own.all(), Iterator[bytes])
    assert_type(Own.get, operation[[str, bytes], bytes | None])  # type: ignore
    own.get(1)  # type: ignore
    own.get()  # type: ignore


async def own_awaiting(own: Own[Awaiting]) -> None:
    assert_type(own.get("k"), Coroutine[Any, Any, bytes | None])
    assert_type(own.all(), AsyncIterator[bytes])


def own_deferred(own: Own[Deferred]) -> None:
    assert_type(own.get("k"), Operation[bytes | None])
    assert_type(own.all(), Stream[bytes])


# ---- packed records


def packed(kit: ShardKit) -> None:
    users = kit.packed("users", component="c", fields={"country": "u8", "score": "i32"})
    assert_type(users, PackedRecords[Blocking])
    assert_type(users.set(1, country=5), None)
    assert_type(users.set(1, {"country": 5}), None)
    assert_type(users.get(1), dict[str, Any])
    assert_type(users.get_many([1, 2]), dict[int, dict[str, Any]])
    assert_type(users.increment(1, "score", overflow="sat"), int | None)
    assert_type(users.scan_iter(), Iterator[tuple[int, dict[str, Any]]])
    assert_type(users.aggregate("score").count, int)
    assert_type(users.group_by("country", totals=["score"]), dict[Any, RecordGroup])
    assert_type(kit.together(users.deferred.count(), users.deferred.count()), list[int])
    users.increment(1, "score", overflow="clip")  # type: ignore
    kit.packed("users", component="c")  # type: ignore


# ---- IP to city


def geo(kit: ShardKit) -> None:
    ip = kit.ip_to_city(component="geo")
    assert_type(ip, IpToCity[Blocking])
    assert_type(ip.find("192.0.2.7"), City | None)
    assert_type(ip.find_many(["192.0.2.7", b"::1"]), list[City | None])
    assert_type(ip.import_from([]), Imported)
    assert_type(ip.local().find("192.0.2.7"), City | None)
    assert_type(kit.city_totals(component="geo").top("city", "2015-05-17"), list[tuple[City, int]])
    ip.find(7)  # type: ignore


# ---- completion


def completion(kit: ShardKit) -> None:
    contacts = kit.recent_contacts(component="c")
    assert_type(contacts, RecentContacts[Blocking])
    assert_type(contacts.complete("ada", "gr"), list[str])
    assert_type(contacts.deferred.touch("ada", "Grace"), Operation[None])
    book = kit.address_book(component="c", fold=str.casefold)
    assert_type(book, AddressBook[Blocking])
    assert_type(book.join("elves", "Elrond"), bool)
    assert_type(book.names("elves"), Iterator[str])
    book.join(b"elves", "Elrond")  # type: ignore


# ---- decorators remove the connection


def hashes(kit: ShardKit) -> None:
    raw = kit.hash("h", component="c")
    assert_type(raw.hget(1), bytes | None)
    assert_type(raw.hmget(1, "a"), list[bytes | None])
    assert_type(raw.hmget([1, "a"]), list[bytes | None])
    assert_type(raw.hgetall(), dict[str, bytes])
    assert_type(raw.hscan_iter("a*"), Iterator[tuple[str, bytes] | Any])
    assert_type(raw.hset(mapping={1: "a"}), int)
    assert_type(raw.hsetnx(1, "a"), bool)
    assert_type(raw.hincrbyfloat(1, 0.5), float)
    assert_type(raw.hexpire(5, 1), list[int])
    assert_type(raw.delete(), bool)
    numbered = kit.hash("h", component="c", codec=TEXT, fields=int)
    assert_type(numbered.hget(1), str | None)
    assert_type(numbered.hkeys(), list[int])
    assert_type(kit.hash("h", component="c", codec="json").hget(1), Any | None)
    assert_type(kit.strings("s", component="c").mget(1, 2), list[bytes | None])
    assert_type(kit.strings("s", component="c", codec=TEXT).get(1), str | None)


def decorators(kit: ShardKit) -> None:
    @kit.redis_connection("c")
    def plain(conn: redis.Redis, day: str, *, hour: int = 0) -> list[str]:
        return [day]

    assert_type(plain("monday", hour=1), list[str])
    plain()  # type: ignore
    plain("monday", hour="1")  # type: ignore

    @kit.sharded_connection("c", shards=4, key="user")
    async def awaited(conn: aioredis.Redis, text: str, user: int) -> bool:
        return True

    pending: Coroutine[Any, Any, bool] = awaited("x", user=1)
    wrong: Coroutine[Any, Any, str] = awaited("x", user=1)  # type: ignore
    print(pending, wrong)

    @kit.sharded_connection("c")
    def generated(conn: redis.Redis, key: str) -> Generator[int, str, bytes]:
        yield 1
        return b""

    assert_type(generated("k"), Generator[int, str, bytes])

    @kit.sharded_connection("c")
    async def agenerated(conn: aioredis.Redis, key: str) -> AsyncIterator[int]:
        yield 1

    assert_type(agenerated("k"), AsyncIterator[int])

    @shardkit.redis_connection("c")
    def by_default(conn: redis.RedisCluster) -> None: ...

    assert_type(by_default, Callable[[], None])


class Methods:
    @shardkit.sharded_connection("c")
    def method(self, conn: redis.Redis, key: str) -> int:
        return 1

    @shardkit.redis_connection("c")
    async def amethod(self, conn: aioredis.Redis, amount: float = 1) -> str:
        return ""


async def methods(things: Methods) -> None:
    assert_type(things.method("k"), int)
    assert_type(await things.amethod(2.5), str)
    things.method()  # type: ignore
    await things.amethod("much")  # type: ignore


# ---- routers and pipelines


def routers(kit: ShardKit) -> None:
    router = kit.key_sharded("c", shards=8)
    assert_type(router, KeyShardedConnection)
    assert_type(router["k"], Client)
    assert_type(kit.client("c"), redis.Redis)
    assert_type(router.shard_of("k"), int)
    assert_type(router.group(["a", 1, b"c"]), dict[int, list[str | bytes | int]])
    assert_type(router.group(["a", "b"]), dict[int, list[str]])
    assert_type(kit.id_pair_sharded("c").group([(1, 2)]), dict[int, list[tuple[int, int]]])
    assert_type(list(router), list[Client])
    assert_type(len(router), int)
    assert_type(router.pipeline(), ShardedPipeline)
    assert_type(router.pipeline().execute(), list[Any])
    assert_type(router.pipeline().set("a", 1, ex=9).get("b"), ShardedPipeline)
    assert_type(router.pipeline().zadd("a", {"m": 1.0}).mget("b", "c").execute(), list[Any])
    assert_type(router.zadd("a", {"m": 1.0}), int | float | None)
    assert_type(router.incr("a"), int)
    assert_type(router.mget(["a", 7]), list[Any])
    assert_type(router.delete("a", 7), int)
    router.incr("a", "b", "c")  # type: ignore
    router.ping()  # type: ignore
    router.pipeline().set("a", 1).nonsense("b")  # type: ignore[attr-defined]
    router.pipeline().incr("a").set("b")  # type: ignore[call-arg]
    pairs = kit.id_pair_sharded("c")
    assert_type(pairs, IdPairShardedConnection)
    assert_type(pairs[1, "2"], Client)
    assert_type(pairs.shard_of(1, 2), int)
    pairs[1]  # type: ignore
    router[1.5]  # type: ignore


async def arouters(kit: AsyncShardKit) -> None:
    router = kit.key_sharded("c")
    assert_type(router, AsyncKeyShardedConnection)
    assert_type(router["k"], AsyncClient)
    assert_type(router.pipeline(), AsyncShardedPipeline)
    assert_type(await router.incr("a"), int)
    assert_type(await router.delete("a", 7), int)
    assert_type(await router.pipeline().execute(), list[Any])
    assert_type(router.pipeline().hset("a", "f", 1).expire("a", 9), AsyncShardedPipeline)
    assert_type(await router.pipeline().incr("a").get("b").execute(), list[Any])


# ---- search


def searching(kit: ShardKit) -> None:
    index = kit.search(
        "s", component="c", fields={"title": 2, "text": 1}, attributes={"votes": "number"}
    )
    assert_type(index, SearchIndex[Blocking])
    assert_type(index.index("7", {"title": "a"}, {"votes": 1}), int)
    assert_type(index.get("7"), Document | None)
    assert_type(index.search("a", sort={"relevance": 1, "votes": 0.5}, cache=30), Results)
    assert_type(index.page("a", 2, sort="-votes"), Results)
    assert_type(index.all("a", attributes=True), Iterator[Hit])
    assert_type(index.deferred.count("a"), Operation[int])
    index.page("a", offset=3)  # type: ignore
    kit.search("s", component="c", weights=3)  # type: ignore


# ---- ads and jobs


def ads_and_jobs(kit: ShardKit) -> None:
    jobs = kit.job_search(component="c", parts=4, measure="years")
    assert_type(jobs, JobSearch[Blocking])
    assert_type(jobs.index("7", {"go": 1.5}), bool)
    assert_type(jobs.index_many([("7", ["go"]), ("8", [])]), int)
    assert_type(jobs.find(["go"], partial=True), Results)
    assert_type(jobs.all(["go"]), Iterator[Hit])
    assert_type(jobs.get("7"), dict[str, float] | None)
    assert_type(jobs.deferred.qualified("7", {"go": 1}), Operation[bool])
    ads = kit.ads(component="c", averages_ttl=0)
    assert_type(ads, Ads[Blocking])
    assert_type(ads.index("7", ["Rome"], "red", "cpc", 0.25), bool)
    assert_type(ads.target(["Rome"], "red"), Served | None)
    assert_type(ads.get("7"), Ad | None)
    assert_type(ads.deferred.count(), Operation[int])
    ads.record_click("t", "7", True)  # type: ignore
    jobs.find()  # type: ignore


# ---- a social network


def social(kit: ShardKit) -> None:
    network = kit.social(component="u", timelines="t", followers="f", fan_out_limit=100)
    assert_type(network, SocialNetwork[Blocking])
    assert_type(network.create_user("ada", "Ada", city="London"), int | None)
    assert_type(network.get_user(7), User | None)
    assert_type(network.follow(7, "8"), FollowResult)
    assert_type(network.home(7, cursor=None), TimelinePage)
    assert_type(network.deferred.post(7, "x"), Operation[int | None])
    assert_type(network.callbacks, dict[str, Callable[..., Any]])
    network.follow(7)  # type: ignore
    kit.social(component="u", fan_out=100)  # type: ignore
    network.post(7, 8)  # type: ignore


# ---- scripts


async def scripts(
    script: LuaScript,
    client: redis.Redis,
    cluster: redis.RedisCluster,
    aclient: aioredis.Redis,
    acluster: aioredis.RedisCluster,
    pipe: Pipeline,
    apipe: AsyncPipeline,
    sharded: ShardedPipeline,
    asharded: AsyncShardedPipeline,
    handed_out: Client,
    ahanded_out: AsyncClient,
) -> None:
    assert_type(script(client, ["k"], (1, b"x")), Any)
    assert_type(script(cluster), Any)
    assert_type(script(handed_out), Any)
    assert_type(script(aclient, keys=("k",), force_eval=True), Coroutine[Any, Any, Any])
    assert_type(script(acluster), Coroutine[Any, Any, Any])
    assert_type(script(ahanded_out), Coroutine[Any, Any, Any])
    assert_type(script(pipe), Pipeline)
    assert_type(script(apipe), AsyncPipeline)
    assert_type(script(sharded), ShardedPipeline)
    assert_type(script(asharded), AsyncShardedPipeline)
    script(client, keys=7)  # type: ignore
    script("client")  # type: ignore
