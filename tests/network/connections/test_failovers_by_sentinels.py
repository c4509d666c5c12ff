"""Sentinels tell of a failover, and clients leave the former master at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import redis
from arranged import ask, map_of
from faces import PATIENCE, faced, free_port
from link_helpers import FACES, eventually, mapped, of, opened, paused
from scripted_server import bulk, scripted

from shardkit import ShardErrors, ShardKitError
from shardkit.local import LocalSentinel


@pytest.fixture
def watched() -> Iterator[LocalSentinel]:
    # With less, a busy machine has more failovers than the test.
    with LocalSentinel("main", replicas=1, sentinels=3, down_after=3) as running:
        yield running


def subscribers(watched: LocalSentinel) -> list[int]:
    """How many connections each Sentinel has that have subscribed to something."""
    clients = [ask(sentinel, "client_list") for sentinel in watched.sentinels]
    return [sum(each["sub"] != "0" for each in listed) for listed in clients]


class Writers:
    """Clients of a kit that write until they are stopped; some connect anew for each write."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[float, str]] = []  # when they began, and what they wrote
        self._ended = threading.Event()

    async def _write(self, client: Any, name: str, anew: bool) -> None:
        for n in range(100_000):
            if self._ended.is_set():
                return
            since = time.time()
            with suppress(redis.RedisError, ShardKitError):
                if anew:
                    await of(client.connection_pool.disconnect(inuse_connections=False))
                await of(client.set(f"{name}:{n}", "1"))
                self.acknowledged.append((since, f"{name}:{n}"))
            await asyncio.sleep(0.001)

    @asynccontextmanager
    async def writing(self, kind: str, watched: LocalSentinel) -> AsyncIterator[None]:
        """Write until the block ends, over connections that are kept and over new ones."""
        names = {"kept": False, "new": True}
        async with (
            opened(kind, mapped(watched.entry.fields)) as kept,
            opened(kind, mapped(watched.entry.fields)) as anew,
        ):
            tasks = []
            for name, is_new in names.items():
                client = await of((anew if is_new else kept).kit.client("data"))
                await of(client.ping())
                work = self._write(client, name, is_new)
                run = partial(asyncio.run, work)
                tasks.append(
                    asyncio.create_task(asyncio.to_thread(run) if kind == "blocking" else work)
                )
            assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
            yield
            self._ended.set()
            await asyncio.gather(*tasks)

    async def go_on(self, watched: LocalSentinel) -> None:
        """Wait until the replica is the master, and more has been written."""
        assert await eventually(lambda: promoted(watched), 30)
        written = len(self.acknowledged)
        assert await eventually(lambda: len(self.acknowledged) > written + 200, 30)

    def lost(self, watched: LocalSentinel, since: float) -> list[str]:
        """Return what was written from a time on, and is not on the promoted replica."""
        keys = [key for began, key in self.acknowledged if began > since]
        assert keys
        with watched.replicas[0].client() as there:
            held = {key.decode() for key in there.scan_iter(count=10_000)}
        return [key for key in keys if key not in held]


def promoted(watched: LocalSentinel) -> bool:
    """Whether the replica is the master."""
    with suppress(redis.ConnectionError), watched.replicas[0].client() as there:
        return bool(there.role()[0] == b"master")  # Sentinels end all connections then
    return False


def leaders(watched: LocalSentinel) -> list[Any]:
    """Return the Sentinels that say that they replace the master."""
    return [each for each in watched.sentinels if "failover_in_progress" in flags(each)]


def flags(sentinel: Any) -> list[str]:
    with sentinel.client() as client:
        state: Any = client.sentinel_masters()["main"]  # of one, redis-py 6 has a fault
    return str(state["flags"]).split(",")


def may_promote(sentinel: Any) -> bool:
    """Whether a Sentinel has heard from the replica: else it finds none, and ends a failover."""
    seen = ask(sentinel, "sentinel_slaves", "main")
    return [(each["flags"], each["master-link-status"]) for each in seen] == [("slave", "ok")]


async def test_a_crashed_master_that_is_back_while_sentinels_replace_it_gets_no_writes(
    kind: str, watched: LocalSentinel
) -> None:
    writers = Writers()
    async with writers.writing(kind, watched):
        for _ in range(5):
            watched.master.kill()
            assert await eventually(lambda: bool(leaders(watched)), 30)
            since = time.time()
            await asyncio.to_thread(watched.master.restart)
            # On a busy machine, the Sentinels may elect no leader in time, and go on with the old
            # master once it is back.
            assert await eventually(lambda: promoted(watched) or not leaders(watched), 60)
            if promoted(watched):
                break
        await writers.go_on(watched)
    assert writers.lost(watched, since) == []


async def test_a_failover_that_no_replica_confirms_ends_and_the_master_is_used_again(
    kind: str, watched: LocalSentinel
) -> None:
    [replica] = watched.replicas
    # A Sentinel that does not answer in this time does not count.
    hasty = {**watched.entry.fields, "socket_timeout": 0.5 * PATIENCE}
    entries = {"patient": {"entry": watched.entry.fields}, "hasty": {"entry": hasty}}
    async with opened(kind, map_of(**entries)) as face:
        numbers = face.kit.set("numbers", component="hasty", total=100, members=int)
        client = await of(face.kit.client("patient"))
        with paused(replica), watched.sentinels[0].client() as asked:
            asked.execute_command("SENTINEL SET", "main", "failover-timeout", 60_000)
            asked.execute_command("SENTINEL FAILOVER", "main")
            with pytest.raises(ShardErrors) as raised:
                await of(numbers.sadd(1))
            said = "the Sentinels are replacing the master of 'main'; wait until they have"
            assert said in str(raised.value.exceptions[0])
            assert leaders(watched) == watched.sentinels[:1]
            asked.execute_command("SENTINEL SET", "main", "failover-timeout", 1000)
            assert await of(client.set("k", "1"))
            assert leaders(watched) == []
    assert ask(watched.master, "get", "k") == b"1"


@pytest.fixture
def alone() -> Iterator[LocalSentinel]:
    with LocalSentinel("main", replicas=0, sentinels=1) as running:
        yield running


@pytest.mark.parametrize("given", [{}, {"password": "wrong"}, {"username": "nobody"}], ids=str)
async def test_a_login_that_the_sentinels_refuse_is_named(
    kind: str, given: dict[str, str], alone: LocalSentinel
) -> None:
    [sentinel] = alone.sentinels
    with sentinel.client() as admin:
        rights = ("-@all", "+hello", "+ping") if "username" in given else ()
        admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
        admin.execute_command("ACL", "SETUSER", "nobody", "on", "nopass", *rights)
    fields = alone.entry.fields
    where = mapped({"sentinel": {**fields["sentinel"], **given}})
    said = "correct username and password under sentinel: in its entry"
    async with opened(kind, where) as face:
        with pytest.raises(ShardErrors) as failed:
            await of(face.kit.set("s", component="data").scard())
        [failure] = failed.value.exceptions
        assert said in str(failure)
        with pytest.raises(redis.ConnectionError, match=r"password|user") as refused:
            await face.client_call("data", "get", "k")
    for error in (failure, refused.value):
        assert f"127.0.0.1:{sentinel.port}: the" in str(error)
        assert "<redis" not in str(error)


async def test_a_process_has_one_subscription_to_each_sentinel(
    kind: str, watched: LocalSentinel
) -> None:
    async with opened(kind, mapped(watched.entry.fields)) as one:
        assert await of((await of(one.kit.client("data"))).ping())
        assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
        async with opened("blocking", mapped(watched.entry.fields)) as other:
            assert other.kit.client("data").ping()
            assert await of((await of(one.kit.client("data", private=True))).ping())
            assert subscribers(watched) == [1, 1, 1]
        assert subscribers(watched) == [1, 1, 1]
        watched.sentinels[0].restart()
        assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
    assert await eventually(lambda: subscribers(watched) == [0, 0, 0])


@pytest.mark.parametrize("private", [False, True])
async def test_a_subscriber_comes_back(kind: str, private: bool, alone: LocalSentinel) -> None:
    async with opened(kind, mapped(alone.entry.fields)) as face:
        client = await of(face.kit.client("data", private=private))
        news = client.pubsub(ignore_subscribe_messages=True)
        await of(news.subscribe("news"))
        await of(news.get_message(timeout=0.2))
        with alone.master.client() as admin:
            admin.client_kill_filter(_type="pubsub")
            heard = None
            for _ in range(20):
                with suppress(redis.ConnectionError):
                    heard = heard or await of(news.get_message(timeout=0.2))
                admin.publish("news", "hello")
        assert heard["data"] == b"hello"
        await of(news.close() if face.blocks else news.aclose())


async def test_connecting_by_sentinels_is_tried_again_as_often_as_the_entry_says(kind: str) -> None:
    state = {"name": "main", "ip": "127.0.0.1", "port": free_port(), "flags": "master"}
    words = [str(word) for each in state.items() for word in each]
    masters = b"*1\r\n*%d\r\n" % len(words) + b"".join(bulk(word.encode()) for word in words)
    with scripted(SENTINEL=masters) as sentinel:
        fields = {"sentinel": {"service": "main", "sentinels": [["127.0.0.1", sentinel.port]]}}
        fields |= {"retries": 4}
        async with opened(kind, mapped(fields)) as face:
            client = await of(face.kit.client("data"))
            with pytest.raises(redis.ConnectionError, match=r"cannot be reached"):
                await of(client.ping())
            # The circuit breaker asks as well, but seldom.
            assert 5 <= sentinel.names().count("SENTINEL") < 15


@pytest.mark.parametrize("kind", FACES)
def test_a_scan_that_finds_its_master_gives_each_key_once(
    kind: str, watched: LocalSentinel
) -> None:
    described = map_of(e={"shards": [dict(watched.entry.fields)]})
    names = {f"k{n}".encode() for n in range(50)}
    ask(watched.master, "mset", dict.fromkeys(names, 1))
    with faced(kind, described) as face:
        keys = face.list(face.kit.key_sharded("e").scan_iter())
        assert sorted(keys) == sorted(names)
