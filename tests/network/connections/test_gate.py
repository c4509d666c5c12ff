"""What changes a connection is seen where bytes leave, and reaches nobody else.

A table: each command that changes its connection, in each spelling, in each way to send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import hiredis
import pytest
import redis
import redis.asyncio as aioredis
from arranged import ask, exit_code, forked, map_of
from faces import ALL_CASES
from link_helpers import of, opened

from shardkit import ClosedError, ShardMap, ShardUnavailable
from shardkit.local import LocalServer

COMMANDS: list[tuple[Any, ...]] = [
    ("SELECT", 5),
    ("MULTI",),
    ("WATCH", "k"),
    ("SUBSCRIBE", "news"),
    ("PSUBSCRIBE", "n*"),
    ("SSUBSCRIBE", "news"),
    ("MONITOR",),
    ("HELLO", 3),
    ("AUTH", "other", "secret"),
    ("RESET",),
    ("CLIENT", "REPLY", "ON"),
    ("CLIENT", "TRACKING", "ON"),
    ("CLIENT", "NO-EVICT", "ON"),
    ("CLIENT", "SETNAME", "mine"),
    ("READONLY",),
    ("ASKING",),
]


def encoded(args: tuple[Any, ...]) -> list[bytes]:
    return [str(arg).encode() for arg in args]


SPELLINGS: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "text": lambda args: args,
    "lower case": lambda args: (args[0].lower(), *args[1:]),
    "bytes": lambda args: tuple(encoded(args)),
    "memoryview": lambda args: tuple(map(memoryview, encoded(args))),
    "one word": lambda args: (" ".join(map(str, args[:2])), *args[2:]),
    "one word of bytes": lambda args: (b" ".join(encoded(args[:2])).lower(), *args[2:]),
}


async def piped(client: Any, args: tuple[Any, ...], transaction: bool = False) -> None:
    pipe = client.pipeline(transaction=transaction)
    try:
        if (sent := pipe.execute_command(*args)) is not pipe:  # WATCH is sent at once
            await of(sent)
            await of(pipe.get("k"))
        else:
            await of(pipe.get("k").execute())
    finally:
        await of(pipe.reset())


async def while_watching(client: Any, args: tuple[Any, ...]) -> None:
    pipe = client.pipeline()
    try:
        await of(pipe.watch("k"))
        await of(pipe.execute_command(*args))
        await of(pipe.get("k"))
    finally:
        try:
            await of(pipe.reset())
        finally:  # redis-py 6 keeps a connection that refuses UNWATCH
            pipe.watching = False
            await of(pipe.reset())


async def by_transaction(client: Any, args: tuple[Any, ...]) -> None:
    def blocking(pipe: Any) -> None:
        pipe.execute_command(*args)
        pipe.multi()
        pipe.get("k")

    async def awaiting(pipe: Any) -> None:
        await pipe.execute_command(*args)
        pipe.multi()
        pipe.get("k")

    if "SUBSCRIBE" in str(bytes(args[0]) if type(args[0]) is memoryview else args[0]).upper():
        return  # redis-py then loses a connection that refuses UNWATCH
    blocks = isinstance(client, redis.Redis)
    await of(client.transaction(blocking if blocks else awaiting, "k"))


async def over_one_connection(client: Any, args: tuple[Any, ...]) -> None:
    one = client.client()
    try:
        await of(one.execute_command(*args))
        await of(one.get("k"))
    finally:
        await of(one.close() if isinstance(client, redis.Redis) else one.aclose())


def by_redis_pys_client(client: Any, args: tuple[Any, ...]) -> Any:
    kind = redis.Redis if isinstance(client, redis.Redis) else aioredis.Redis
    return of(kind(connection_pool=client.connection_pool).execute_command(*args))


async def as_a_subscriber(client: Any, args: tuple[Any, ...]) -> None:
    pubsub = client.pubsub()
    try:
        await of(pubsub.execute_command(*args))
        await of(pubsub.parse_response(timeout=0.01))
    finally:
        await of(pubsub.aclose() if hasattr(pubsub, "aclose") else pubsub.close())


def over_a_connection(send: Callable[[Any, tuple[Any, ...]], Any], reads: bool = True) -> Any:
    async def over_it(client: Any, args: tuple[Any, ...]) -> None:
        pool = client.connection_pool
        connection = await of(pool.get_connection())
        try:
            await of(send(connection, args))
            if reads:
                await of(connection.read_response())
        finally:
            await of(pool.release(connection))

    return over_it


def by_hand(args: tuple[Any, ...]) -> bytes:
    words = (
        [word for arg in args for word in bytes(arg).split()] if type(args[0]) is bytes else args
    )
    return hiredis.pack_command(tuple(words))


WAYS: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "execute_command": lambda client, args: of(client.execute_command(*args)),
    "pipeline": piped,
    "transaction pipeline": partial(piped, transaction=True),
    "watched pipeline": while_watching,
    "transaction": by_transaction,
    "single connection": over_one_connection,
    "redis-py's client": by_redis_pys_client,
    "pubsub": as_a_subscriber,
    "send_command": over_a_connection(lambda c, args: c.send_command(*args)),
    "reply not read": over_a_connection(lambda c, args: c.send_command(*args), reads=False),
    "pack_command": over_a_connection(lambda c, args: c.send_packed_command(c.pack_command(*args))),
    "pack_commands": over_a_connection(
        lambda c, args: c.send_packed_command(c.pack_commands([args, ("GET", "k")])), reads=False
    ),
    "packed by hand": over_a_connection(lambda c, args: c.send_packed_command(by_hand(args))),
    "in pieces": over_a_connection(
        lambda c, args: c.send_packed_command([by_hand(args)[:5], by_hand(args)[5:]])
    ),
    "half of another": over_a_connection(
        lambda c, args: c.send_packed_command(hiredis.pack_command(("PING",)) + by_hand(args)[:4])
    ),
    "inline": over_a_connection(
        lambda c, args: c.send_packed_command(b" ".join(encoded(args)) + b"\r\n")
    ),
}
ENTRIES = {"shared": {}, "not multiplexed": {"multiplex": False}, "RESP3": {"protocol": 3}}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        ask(server, "execute_command", "ACL", "SETUSER", "other", "on", ">secret", "~*", "+@all")
        yield server


def described(server: LocalServer, **fields: Any) -> ShardMap:
    return map_of(t={"shards": [{**server.entry.fields, "db": n, **fields} for n in range(8)]})


@pytest.mark.long(10)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_changed_connection_reaches_nobody_else(
    kind: str, way: str, entry: str, server: LocalServer
) -> None:
    states = ("user", "resp", "watch", "sub", "flags")
    async with opened(kind, described(server, socket_timeout=1.5, **ENTRIES[entry])) as face:
        third, fourth = [await of(face.kit.client("t", n)) for n in (3, 4)]
        router = face.kit.key_sharded("t")
        await of(third.set("k", 1))
        usual = await of(third.client_info())
        for number, args in enumerate(COMMANDS):
            text, *others = SPELLINGS.items()
            others = others if ALL_CASES else [others[number % len(others)]]
            for spelling, spell in [text, *others] if entry == "shared" else [text]:
                case = f"{args} as {spelling}"
                with suppress(Exception):  # redis-py's, or the server's
                    await WAYS[way](third, spell(args))
                assert await of(third.set("mine", 3)) is True, case
                assert await of(fourth.set("mine", 4)) is True, case
                assert await of(third.get("mine")) in (b"3", "3"), case
                assert await of(router.mget(["a", "b", "c"])) == [None] * 3, case
                info = await of(third.client_info())
                assert [info.get(name) for name in states] == [
                    usual.get(name) for name in states
                ], case
    with server.client() as admin:
        assert set(admin.info("keyspace")) == {"db3", "db4"}
        admin.flushall()


async def test_a_user_keeps_what_it_selects_until_the_release(
    kind: str, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        third = await of(face.kit.client("t", 3))
        one = third.client()
        await of(one.execute_command("SELECT", 6))
        await of(one.set("selected", 1))
        await of(third.set("mine", 3))
        await of(one.set("selected too", 1))
        await of(one.close() if kind == "blocking" else one.aclose())
    with server.client(db=6) as sixth, server.client(db=3) as mine:
        assert sixth.dbsize() == 2
        assert mine.keys() == [b"mine"]
        mine.flushall()


async def test_pushes_are_no_replies_to_who_has_asked_for_them(
    kind: str, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        pool = (await of(face.kit.client("t", 3))).connection_pool
        connection = await of(pool.get_connection())
        for args in (("HELLO", 3), ("CLIENT", "TRACKING", "ON"), ("GET", "a")):
            await of(connection.send_command(*args))
            await of(connection.read_response())
        commands = [("GET", "a"), ("SET", "a", 1), ("GET", "a"), ("STRLEN", "a")]
        await of(connection.send_packed_command(connection.pack_commands(commands)))
        replies = [await of(connection.read_response()) for _ in commands]
        await of(pool.release(connection))
    assert replies == [None, b"OK", b"1", 1]
    ask(server, "flushall")


async def test_a_finished_transaction_leaves_its_connection_open(
    kind: str, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        third = await of(face.kit.client("t", 3))
        known = (await of(third.client_info()))["id"]
        for ends in ("execute", "unwatch"):
            pipe = third.pipeline()
            await of(pipe.watch("k"))
            if ends == "execute":
                pipe.multi()
                pipe.set("k", 1)
            await of(getattr(pipe, ends)())
            await of(pipe.reset())
        assert (await of(third.client_info()))["id"] == known
    ask(server, "flushall")


@pytest.mark.parametrize("private", [False, True])
async def test_a_forked_child_does_not_go_on_without_the_state_of_its_parents_connection(
    kind: str, private: bool, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        third = await of(face.kit.client("t", 3, private=private))
        one, pipe = third.client(), third.pipeline()
        await of(one.execute_command("SELECT", 6))
        await of(pipe.watch("k"))
        pipe.multi()
        pipe.set("k", 1)

        async def use() -> None:
            for _ in range(2):
                with pytest.raises(redis.ConnectionError, match="is its parent process's"):
                    await of(one.set("of the child", 1))
            with pytest.raises(redis.WatchError, match="while watching"):
                await of(pipe.execute())

        assert exit_code(forked(lambda: asyncio.run(use()))) == 0
        await of(one.set("of the parent", 1))
        assert await of(pipe.execute()) == [True]
        await of(one.close() if kind == "blocking" else one.aclose())
    with server.client(db=6) as sixth, server.client(db=3) as mine:
        assert (sixth.keys(), mine.keys()) == ([b"of the parent"], [b"k"])
        mine.flushall()


@pytest.mark.parametrize("entry", [{}, {"select": "confirmed"}])
async def test_no_connection_stays_in_a_transaction_on_a_server_without_exec(
    kind: str, entry: dict[str, Any]
) -> None:
    config = {"rename-command": ("EXEC", "")}
    with LocalServer(config=config) as lacking:
        async with opened(kind, described(lacking, **entry)) as face:
            third, fourth = [await of(face.kit.client("t", n)) for n in (3, 4)]
            failed = 0
            for client, other in 2 * [(third, fourth), (fourth, third)]:
                with pytest.raises(redis.InvalidResponse, match="the server lacks EXEC"):
                    await of(client.pipeline().set("k", 1).execute())
                assert [await of(each.get("k")) for each in (client, other)] == [None, None]
                try:  # while the other's database is selected
                    assert await of(client.set("mine", 1)) is True
                except redis.InvalidResponse:
                    failed += 1
            assert failed == (0 if entry else 4)


@pytest.mark.parametrize("private", [False, True])
async def test_a_server_with_too_many_clients_says_so(
    kind: str, private: bool, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        with server.client() as admin:
            client = await of(face.kit.client("t", 3, private=private))
            most = admin.config_get("maxclients")["maxclients"]
            admin.config_set("maxclients", 1)
            try:
                with pytest.raises(ShardUnavailable, match="maxclients"):
                    await of(client.get("k"))
            finally:
                admin.config_set("maxclients", most)


@pytest.mark.parametrize("private", [False, True])
async def test_a_client_and_what_it_makes_refuse_another_event_loop(
    private: bool, server: LocalServer
) -> None:
    async with opened("awaiting", described(server)) as face:
        third = await of(face.kit.client("t", 3, private=private))
        await third.set("k", 1)
        pool = third.connection_pool
        connection, watching, subscriber = (
            await pool.get_connection(),
            third.pipeline(),
            third.pubsub(),
        )
        await watching.watch("k")
        await subscriber.subscribe("news")
        piped = third.pipeline(transaction=False).get("k")
        calls: list[Callable[[], Any]] = [
            *(lambda: third.get("k"), piped.execute, pool.get_connection, pool.disconnect),
            *(lambda: connection.send_command("GET", "k"), connection.disconnect),
            *(lambda: watching.get("k"), watching.reset, lambda: subscriber.subscribe("more")),
            *(lambda: subscriber.get_message(timeout=1), subscriber.aclose),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match=r"^this client belongs to another event loop; "):
                await asyncio.to_thread(lambda call=call: asyncio.run(of(call())))
        assert await third.get("k") == b"1"
        await connection.send_command("GET", "k")
        assert await connection.read_response() == b"1"
        await pool.release(connection)
        await watching.unwatch()
        await subscriber.aclose()
    ask(server, "flushall")


@pytest.mark.parametrize("private", [False, True])
async def test_a_released_connection_refuses_its_former_user(
    kind: str, private: bool, server: LocalServer
) -> None:
    async with opened(kind, described(server)) as face:
        third = await of(face.kit.client("t", 3, private=private))
        pool = third.connection_pool
        kept = await of(pool.get_connection())
        await of(pool.release(kept))
        for _ in range(2):  # while it is idle, and while somebody else uses it
            with pytest.raises(redis.ConnectionError, match="was released: get another one"):
                await of(kept.send_command("SET", "stolen", 1))
            with pytest.raises(redis.ConnectionError, match="was released"):
                await of(kept.read_response())
            with pytest.raises(redis.ConnectionError, match="release each once"):
                await of(pool.release(kept))
            await of(kept.disconnect())
            lent = await of(pool.get_connection())
        await of(lent.send_command("PING"))
        assert await of(lent.read_response()) == b"PONG"
        await of(pool.release(lent))
        assert await of(third.get("stolen")) is None
