"""Each row of docs/other-libraries.md: the library does its work on what the row gives it.

Skipped where a library is not installed; `make others` installs them all.
"""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap

PAGE = Path(__file__).parents[2] / "docs" / "other-libraries.md"
ROWS: dict[str, Callable[..., Any]] = {}
NAMES: set[str] = set()


def row(module: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A row of the page, by the module that has to be there and what the page calls it.

    What is tried gets a kit (or an awaiting client, if it is a coroutine) and an entry's URL.
    """

    def note(use: Callable[..., Any]) -> Callable[..., Any]:
        ROWS[f"{module} {use.__name__}"] = use
        NAMES.update(names)
        return use

    return note


def private(kit: ShardKit) -> Any:
    return kit.client("one", private=True)


@pytest.mark.filterwarnings("ignore")  # what the libraries leave open is theirs
async def test_a_library_works_on_what_its_row_gives_it(
    name: str, kit: ShardKit, shard_map: ShardMap
) -> None:
    pytest.importorskip(name.split()[0])
    url = kit.component("one").entry.url()  # type: ignore[union-attr]
    use = ROWS[name]
    if not inspect.iscoroutinefunction(use):
        use(kit, url)
        return
    async with await shardkit.aconnect(shard_map) as akit:
        await use(await akit.client("one", private=True), url)


def test_sentry_sees_every_exchange(kit: ShardKit) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    page = PAGE.with_name("observability.md").read_text(encoding="utf-8")
    code = page.partition("```text\nimport time\n")[2].partition("subscribe(to_sentry)")[0]
    spans: list[tuple[str, str]] = []
    sentry_sdk.init(
        dsn="http://x@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        default_integrations=False,
        before_send_transaction=lambda event, hint: spans.extend(
            (span["description"], span["data"]["server.address"]) for span in event["spans"]
        ),
    )
    names: dict[str, Any] = {"time": time}
    exec(code, names)
    stop = shardkit.events.subscribe(names["to_sentry"])
    client = kit.client("one")
    with sentry_sdk.start_transaction(name="t"):
        client.set("a", 1)
        client.blpop("none", 0.01)
        client.pipeline().get("a").get("b").execute()
        kit.key_sharded("one").pipeline().get("a").set("a", 1).execute()
        kit.strings("s", component="one").get("a")
    stop()
    sentry_sdk.get_client().close()
    assert [name for name, _ in spans][:4] == ["SET", "BLPOP", "GET", "PIPELINE"]
    assert len(spans) > 4
    assert {address for _, address in spans} == {kit.component("one").entry.address}


def test_each_row_of_the_page_is_tried() -> None:
    _, _, rows = PAGE.read_text(encoding="utf-8").partition("| library | |\n|---|---|\n")
    table, _, _ = rows.partition("\n\n")
    assert {
        name for line in table.splitlines() for name in line.split(" | ")[0][2:].split(", ")
    } == NAMES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", ROWS)


@row("rq", "rq")
def queue_and_worker(kit: ShardKit, url: str) -> None:
    import rq

    queue = rq.Queue(connection=private(kit))
    job = queue.enqueue(len, "abc")
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    assert rq.SimpleWorker([queue], connection=private(kit)).work(burst=True, with_scheduler=True)
    for each, handler in before.items():  # its worker leaves its own
        signal.signal(each, handler)
    assert job.return_value() == 3


@row("rq", "one queue per shard")
def queue_per_shard(kit: ShardKit, url: str) -> None:
    import rq

    shards = range(len(kit.key_sharded("few")))
    queues = [rq.Queue(connection=kit.client("few", n, private=True)) for n in shards]
    job = queues[kit.component("few").place("key")].enqueue(len, "abc")
    assert sum(queue.count for queue in queues) == 1
    assert kit.key_sharded("few")["key"].exists(job.key)


@row("celery", "Celery", "kombu")
def broker_and_backend(kit: ShardKit, url: str) -> None:
    from celery import Celery

    app = Celery(broker=url, backend=url)

    def nothing() -> None: ...

    with app.connection() as connection:
        app.task(nothing, name="t").apply_async(connection=connection)
        assert connection.default_channel.client.llen("celery") == 1
    app.backend.result_consumer.stop()
    app.backend.client.close()


@row("huey", "huey")
def pool(kit: ShardKit, url: str) -> None:
    from huey import RedisHuey

    huey = RedisHuey("x", connection_pool=private(kit).connection_pool)
    result = huey.task()(lambda: 4)()
    huey.execute(huey.dequeue())
    assert result.get() == 4


@row("dramatiq", "dramatiq")
def broker(kit: ShardKit, url: str) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    found = RedisBroker(client=private(kit))
    done: list[int] = []
    actor = dramatiq.actor(done.append, broker=found, actor_name="t")
    actor.send(1)
    worker = dramatiq.Worker(found)
    worker.start()
    found.join("default", timeout=20_000)
    worker.join()
    worker.stop()
    assert done == [1]


@row("arq", "arq")
async def arq_pool(client: Any, url: str) -> None:
    from arq.connections import ArqRedis

    assert await ArqRedis(pool_or_conn=client.connection_pool).enqueue_job("x") is not None


@row("saq", "saq")
async def saq_queue(client: Any, url: str) -> None:
    from saq.queue.redis import RedisQueue

    queue = RedisQueue(client)
    await queue.connect()
    await queue.enqueue("x")
    assert await queue.count("queued") == 1
    await queue.disconnect()


@row("taskiq_redis", "taskiq")
async def taskiq_broker(client: Any, url: str) -> None:
    from taskiq_redis import ListQueueBroker

    async def nothing() -> None: ...

    found = ListQueueBroker(url)
    await found.startup()
    await found.task("t")(nothing).kiq()
    assert await client.llen("taskiq") == 1
    await found.shutdown()


@row("limits", "limits")
def storage(kit: ShardKit, url: str) -> None:
    from limits import parse, strategies
    from limits.storage import RedisStorage

    kept = RedisStorage("redis://", connection_pool=private(kit).connection_pool)
    limiter = strategies.FixedWindowRateLimiter(kept)
    assert [limiter.hit(parse("2/minute"), "a") for _ in range(3)] == [True, True, False]


@row("redis_lock", "python-redis-lock")
def lock(kit: ShardKit, url: str) -> None:
    import redis_lock

    with redis_lock.Lock(private(kit), "n"):
        assert not redis_lock.Lock(private(kit), "n").acquire(blocking=False)


@row("redis", "redis-py's own locks")
def own_lock(kit: ShardKit, url: str) -> None:
    with private(kit).lock("l", timeout=20):
        assert not private(kit).lock("l").acquire(blocking=False)


@row("pottery", "pottery")
def dictionary_and_lock(kit: ShardKit, url: str) -> None:
    from pottery import RedisDict, Redlock

    with Redlock(key="l", masters={private(kit)}):
        assert dict(RedisDict({"a": 1}, redis=private(kit), key="d")) == {"a": 1}


@row("walrus", "walrus")
def walrus_database(kit: ShardKit, url: str) -> None:
    from walrus import Database

    found = Database(connection_pool=private(kit).connection_pool).Hash("h")
    found["a"] = 1
    assert found["a"] == b"1"


@row("cachelib", "cachelib")
def cachelib_cache(kit: ShardKit, url: str) -> None:
    from cachelib import RedisCache

    cache = RedisCache(host=private(kit))
    cache.set("a", 1)
    assert cache.get("a") == 1


@row("flask_caching", "Flask-Caching")
def flask_cache(kit: ShardKit, url: str) -> None:
    from flask import Flask
    from flask_caching import Cache

    config = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_HOST": private(kit)}
    cache = Cache(Flask("x"), config=config)
    cache.set("a", 2)
    assert cache.get("a") == 2


@row("flask_session", "Flask-Session")
def flask_sessions(kit: ShardKit, url: str) -> None:
    from flask import Flask, session
    from flask_session import Session

    app = Flask("x")
    app.config.update(SESSION_TYPE="redis", SESSION_REDIS=private(kit))
    Session(app)

    def visits() -> str:
        session["n"] = session.get("n", 0) + 1
        return str(session["n"])

    app.add_url_rule("/", view_func=visits)
    visitor = app.test_client()
    assert [visitor.get("/").data for _ in range(2)] == [b"1", b"2"]


@row("django_redis", "Django's own cache", "django-redis")
def django_caches(kit: ShardKit, url: str) -> None:
    from django.conf import settings
    from django.core.cache.backends.redis import RedisCache
    from django_redis.cache import RedisCache as OtherRedisCache

    if not settings.configured:
        settings.configure()
    for kind in (RedisCache, OtherRedisCache):
        cache = kind(url, {})
        cache.set(kind.__module__, 1)
        assert cache.get(kind.__module__) == 1


@row("aiocache", "aiocache")
async def aiocache_cache(client: Any, url: str) -> None:
    from aiocache import Cache

    cache = Cache(Cache.REDIS, connection_pool_class=lambda **given: client.connection_pool)
    await cache.set("a", 1)
    assert await cache.get("a") == 1
    assert await client.exists("a")
    await cache.close()


@row("cashews", "cashews")
async def cashews_cache(client: Any, url: str) -> None:
    from cashews import cache

    cache.setup(url)
    await cache.set("a", 1)
    assert await cache.get("a") == 1
    await cache.close()


@row("channels_redis", "channels_redis")
async def channel_layer(client: Any, url: str) -> None:
    from channels_redis.core import RedisChannelLayer

    layer = RedisChannelLayer(hosts=[url])
    await layer.send("c", {"type": "x"})
    assert await layer.receive("c") == {"type": "x"}
    await layer.close_pools()


@row("aiogram", "aiogram's storage")
async def aiogram_storage(client: Any, url: str) -> None:
    from aiogram.fsm.storage.base import StorageKey
    from aiogram.fsm.storage.redis import RedisStorage

    for found in (RedisStorage.from_url(url), RedisStorage(client)):
        await found.set_data(StorageKey(1, 1, 1), {"a": 1})
        assert await found.get_data(StorageKey(1, 1, 1)) == {"a": 1}
        await found.close()
