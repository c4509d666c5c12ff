from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from arranged import ask, map_of
from redis.exceptions import (
    AuthenticationError,
    ClusterCrossSlotError,
    OutOfMemoryError,
    ReadOnlyError,
)

import shardkit
from shardkit import AsyncShardKit, Entry, ShardKit, ShardMap, ShardUnavailable
from shardkit.errors import (
    ClosedError,
    InvalidEntryError,
    MissingExtraError,
)
from shardkit.local import LocalServer
from shardkit.operations import Command, Replies, Shard, Transaction
from shardkit.testing.fakes import servers as fake_servers
from shardkit.testing.fakes.servers import MemoryConnector

MAP = ShardMap.parse("""
components:
  data: {shards: [{host: a}, {host: b}, {host: c}, {host: d}]}
  one: {entry: {host: a, db: 3}}
  locked: {entry: {url: "rediss://app:secret@e:6380/1", client_name: tests}}
  text: {entry: {host: e, decode_responses: true, protocol: 3}}
  socket: {entry: {unix_socket_path: /run/some.sock, db: 1}}
  watched: {entry: {sentinel: {service: main, sentinels: [[s1, 26379], [s2, 26379]]}}}
  slots: {entry: {host: f, cluster: true}}
""")

# A key for each shard of `data`.
KEYS = ["k0", "k1", "k2", "k3"]

Send = Callable[..., Awaitable[Replies]]
Call = Callable[..., Awaitable[Any]]


@pytest.fixture
def memory() -> MemoryConnector:
    return MemoryConnector()


@pytest.fixture
def kit(memory: MemoryConnector) -> Iterator[ShardKit]:
    with shardkit.connect(MAP, connector=memory) as opened:
        yield opened


@pytest.fixture
async def akit(memory: MemoryConnector) -> AsyncIterator[AsyncShardKit]:
    async with await shardkit.aconnect(MAP, connector=memory) as opened:
        yield opened


@pytest.fixture(params=["blocking", "awaiting"])
def send(request: pytest.FixtureRequest, kit: ShardKit, akit: AsyncShardKit) -> Send:
    """Sends a batch over one link or the other."""

    async def send(*batch: Command | Transaction) -> Replies:
        if request.param == "blocking":
            return kit.driver.link.send(list(batch))
        return await akit.driver.link.send(list(batch))

    return send


@pytest.fixture(params=["blocking", "awaiting"])
def call(request: pytest.FixtureRequest, kit: ShardKit, akit: AsyncShardKit) -> Call:
    """Calls a method of the client that users get for component `one`."""

    async def call(name: str, *args: Any) -> Any:
        if request.param == "blocking":
            return getattr(kit.client("one"), name)(*args)
        return await getattr(await akit.client("one"), name)(*args)

    return call


def to_all(*args: Any, idempotent: bool = False) -> list[Command]:
    """One command for each shard of `data`; {} stands for the key."""
    return [
        Command(
            Shard("data", n),
            key,
            tuple(key if arg == "{}" else arg for arg in args),
            idempotent=idempotent,
        )
        for n, key in enumerate(KEYS)
    ]


def test_one_server_has_one_address_however_it_is_written(memory: MemoryConnector) -> None:
    server = memory.server("127.0.0.1:6379")
    for where in ("localhost", "localhost:6379", "redis://localhost/5", "127.0.0.1:6379/2"):
        assert memory.server(where) is server
    assert memory.server(Entry({"db": 4})) is server
    assert memory.server("127.0.0.1:7001") is not server
    assert memory.server("[fe80::2]:7001").address == "[fe80::2]:7001"
    with pytest.raises(InvalidEntryError, match="url"):
        memory.server("a b")


async def test_blocking_and_awaiting_clients_of_all_kits_find_the_same_data(
    memory: MemoryConnector, kit: ShardKit, akit: AsyncShardKit
) -> None:
    for name in MAP.components:
        shard = 2 if name == "data" else None
        kit.client(name, shard).set("x", name)
        found = await (await akit.client(name, shard)).get("x")
        assert found == (name if name == "text" else name.encode())
    with shardkit.connect(MAP, connector=memory) as other:
        assert other.client("data", 2).get("x") == b"data"
    with shardkit.connect(MAP, connector=MemoryConnector()) as stranger:
        assert stranger.client("data", 2).get("x") is None


def test_users_passwords_and_tls_are_passed_over(memory: MemoryConnector, kit: ShardKit) -> None:
    client = kit.client("locked")
    client.set("x", "1")
    assert client.client_getname() == "tests"
    assert memory.server("e:6380").client(db=1).get("x") == b"1"


def test_sockets_and_sentinels_services_are_servers_by_name(
    memory: MemoryConnector, kit: ShardKit
) -> None:
    kit.client("socket").set("x", "1")
    kit.client("watched").set("x", "2")
    assert memory.server("unix:/run/some.sock").client(db=1).get("x") == b"1"
    assert memory.server("sentinel:main@s1:26379,s2:26379").client().get("x") == b"2"
    memory.server("unix:/run/some.sock").down()
    with pytest.raises(redis.ConnectionError, match=r"unix:/run/some\.sock"):
        kit.client("socket").ping()


async def test_a_cluster_refuses_keys_of_several_slots(kit: ShardKit, akit: AsyncShardKit) -> None:
    with pytest.raises(ClusterCrossSlotError, match="hash to the same slot"):
        kit.client("slots").mset({"a": 1, "b": 2})
    kit.client("slots").mset({"{t}a": 1, "{t}b": 2})
    [refused] = kit.driver.link.send([Command("slots", "a", ("MGET", "a", "b"))])
    assert isinstance(refused.error, ClusterCrossSlotError)
    with pytest.raises(redis.ResponseError, match="unknown command"):
        kit.client("slots").execute_command("NOSUCHCOMMAND", "a", "b")
    pipe = akit.key_sharded("slots").pipeline()
    assert await pipe.set("a", 1).set("b", 2).mget("a", "b").execute() == [True, True, [b"1", b"2"]]


async def test_a_cluster_that_failed_is_asked_again(memory: MemoryConnector, send: Send) -> None:
    memory.server("f").lose_command()
    [done] = await send(Command("slots", "a", ("SET", "a", 1), idempotent=True))
    assert done == b"OK"
    memory.server("f").lose_command()
    [lost] = await send(Command("slots", "a", ("SET", "a", 1)))
    assert isinstance(lost, ShardUnavailable)
    for redirection in ("ASK 15495 f:6379", "MOVED 15495 f:6379"):
        memory.server("f").answer(redirection, "GET")
        assert await send(Command("slots", "a", ("GET", "a"))) == [b"1"]


def test_without_fakeredis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_servers._connections.cache_clear()
    monkeypatch.setitem(sys.modules, "lupa", None)
    with pytest.raises(MissingExtraError, match=r"need lupa.*pip install 'shardkit\[testing\]'"):
        MemoryConnector()


async def test_a_server_that_is_down_costs_its_own_replies_only(
    memory: MemoryConnector, send: Send
) -> None:
    await send(*to_all("INCR", "{}"))
    memory.server("b").down()
    first, failed, *others = await send(*to_all("INCR", "{}"))
    assert [first, *others] == [2, 2, 2]
    assert isinstance(failed, ShardUnavailable)
    assert failed.shard == "data:1"
    assert "cannot be reached" in failed.message
    assert memory.server("b").client().get("k1") == b"1"
    memory.server("b").up()
    assert await send(*to_all("INCR", "{}")) == [3, 2, 3, 3]


def somebody_waits(memory: MemoryConnector) -> bool:
    return any(sock._blocked for sock in memory.server("a").fake.sockets)


async def until_somebody_waits(memory: MemoryConnector) -> None:
    async with asyncio.timeout(10):
        while not somebody_waits(memory):  # noqa: ASYNC110 - a task of the test makes it so
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_client_that_waits_is_thrown_out_when_its_kit_is_closed(
    memory: MemoryConnector, blocks: bool
) -> None:
    if blocks:
        opened = shardkit.connect(MAP, connector=memory)
        waiting = asyncio.create_task(asyncio.to_thread(opened.client("one").blpop, "queue", 30))
    else:
        aopened = await shardkit.aconnect(MAP, connector=memory)
        waiting = asyncio.create_task((await aopened.client("one")).blpop("queue", 30))
    await until_somebody_waits(memory)
    async with asyncio.timeout(10):
        opened.close() if blocks else await aopened.aclose()
        with pytest.raises(ClosedError, match="the kit is closed"):
            await waiting


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_connection_that_was_broken_says_so_once_and_connects_again(
    memory: MemoryConnector, kit: ShardKit, akit: AsyncShardKit, blocks: bool
) -> None:
    async def value(found: Any) -> Any:
        return found if blocks else await found

    client: Any = kit.client("one") if blocks else await akit.client("one")
    pool = client.connection_pool
    connection = await value(pool.get_connection())
    memory.server("a").down()
    memory.server("a").up()
    with pytest.raises(redis.ConnectionError, match="Connection closed by server"):
        await value(connection.send_command("PING"))
    for _ in range(2):
        await value(connection.send_command("PING"))
        assert await value(connection.read_response()) == b"PONG"
        await value(connection.disconnect())
    await value(pool.release(connection))


async def test_a_cancelled_wait_takes_nothing_that_is_meant_for_others(
    memory: MemoryConnector, akit: AsyncShardKit
) -> None:
    client = await akit.client("one")
    waiting = asyncio.create_task(client.blpop("queue", timeout=0))
    await until_somebody_waits(memory)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.lpush("queue", "x")
    await asyncio.sleep(0.01)  # time in which who waits still would have taken it
    assert await client.lrange("queue", 0, -1) == [b"x"]


@pytest.mark.parametrize("executed", [False, True])
async def test_only_idempotent_commands_are_repeated_and_once(
    memory: MemoryConnector, send: Send, executed: bool
) -> None:
    server = memory.server("b")
    lose = server.lose_answer if executed else server.lose_command
    lose()
    first, failed, *others = await send(*to_all("INCR", "{}"))
    assert [first, *others] == [1, 1, 1]
    assert isinstance(failed, ShardUnavailable)
    assert "may have been executed" in failed.remedy
    assert await send(*to_all("GET", "{}")) == [b"1", b"1" if executed else None, b"1", b"1"]
    server.client().set("k1", 1)
    lose()
    # INCR tells how often it was executed.
    replies = await send(*to_all("INCR", "{}", idempotent=True))
    assert replies == [2, 3 if executed else 2, 2, 2]


async def test_a_connection_breaks_at_the_command_that_is_struck(
    memory: MemoryConnector, send: Send
) -> None:
    memory.server("b").lose_answer("SET")
    shard = Shard("data", 1)
    batch = [Command(shard, "n", args) for args in (("INCR", "n"), ("SET", "x", 1), ("INCR", "m"))]
    replies = await send(*batch)
    # The reply that came before the break is lost with the connection: nobody knows what happened.
    assert all(isinstance(reply, ShardUnavailable) for reply in replies)
    client = memory.server("b").client()
    assert [client.get(key) for key in ("n", "x", "m")] == [b"1", b"1", None]


async def test_a_server_that_hangs_is_a_timeout_at_once_and_executes_late(
    memory: MemoryConnector, send: Send, call: Call
) -> None:
    memory.server("b").hang()
    first, failed, *others = await send(*to_all("INCR", "{}", idempotent=True))
    assert [first, *others] == [1, 1, 1]
    assert isinstance(failed, ShardUnavailable)
    assert isinstance(failed.error, redis.TimeoutError)
    assert "did not answer in time" in failed.message
    assert memory.server("b").client().get("k1") == b"1"
    memory.server("a").hang()
    with pytest.raises(redis.TimeoutError, match="Timeout reading from a:6379"):
        await call("incr", "n")
    assert await call("get", "n") == b"1"


async def test_a_server_that_asks_for_a_password_breaks_the_connection_as_redis_py_does(
    memory: MemoryConnector, send: Send, call: Call
) -> None:
    memory.server("a").answer("NOAUTH Authentication required.", times=2)
    with pytest.raises(AuthenticationError, match="Authentication required"):
        await call("get", "x")
    [failed] = await send(Command("one", "x", ("INCR", "x")))
    assert isinstance(failed, ShardUnavailable)
    assert isinstance(failed.error, AuthenticationError)
    assert await call("get", "x") is None


async def test_a_transactions_answer_can_be_lost(memory: MemoryConnector, send: Send) -> None:
    incr = Command("one", "n", ("INCR", "n"), idempotent=True)
    memory.server("a").lose_answer("EXEC")
    [lost] = await send(Transaction("one", "n", (incr, incr)))
    assert isinstance(lost, ShardUnavailable)
    assert memory.server("a").client(db=3).get("n") == b"2"


async def test_faults_strike_in_order_as_often_as_they_say(
    memory: MemoryConnector, call: Call
) -> None:
    server = memory.server("a")
    server.answer("OOM first", times=2)
    server.answer("READONLY second")
    server.lose_command(times=0)
    for error, said in (
        (OutOfMemoryError, "first"),
        (OutOfMemoryError, "first"),
        (ReadOnlyError, "second"),
    ):
        with pytest.raises(error, match=said):
            await call("incr", "n")
    assert await call("incr", "n") == 1


@pytest.mark.parametrize(
    ("form", "position"),
    [("<i4>i2", 1), ("c2<Hs", 1), ("s>I3xB", 2), ("<bxh>L", 3), (">c3i8", 2), ("<I4>I4c1s", 1)],
)
def test_a_script_unpacks_as_on_a_real_server(
    memory: MemoryConnector, own_server: LocalServer, form: str, position: int
) -> None:
    script = "return {struct.size('<i4c3'), struct.unpack(ARGV[1], ARGV[2], tonumber(ARGV[3]))}"
    packed = b"ab\xffc\x01\x02\x03\0\x05\x06\x07\x08z\0\x11"
    expected = ask(own_server, "eval", script, 0, form, packed, position)
    assert len(expected) > 3
    assert memory.server("a").client().eval(script, 0, form, packed, position) == expected


PACKING = [
    "struct.pack('>dsf', 1.5, 'a', 2.5)",
    "struct.pack('<I2xBc3', 1, 2, 'abcdef')",
    "struct.pack('>c0 h', 'abc', -2)",
    "struct.pack('<c3', 'ab')",
    "struct.pack('<I4', 7, 8)",
    "struct.pack('<I4I4', 7)",
    "struct.pack('q', 1)",
    "struct.pack('<d', 'x')",
    "struct.pack('<i4c1', {}, 'x')",
    "struct.size('< I2 d')",
    "{struct.unpack('<fs', '\\0\\0\\192\\63abc\\0')}",
    "{struct.unpack('<I4', 'abc')}",
    "{struct.unpack('<s', 'abc')}",
    "{struct.unpack('c4', 'abc')}",
]
MANY = [f"a{n}" for n in range(8_000)]


@pytest.mark.parametrize(
    ("script", "given"),
    [
        *((f"return {packing}", (0,)) for packing in PACKING),
        ("return nil", (0,)),
        ("return true", (0,)),
        ("return false", (0,)),
        ("return 3.99", (0,)),
        ("return -3.99", (0,)),
        ("return 'text', 2", (0,)),
        ("return 2, 'text'", (0,)),
        ("return {1, 2.5, 'x', {3, {}}, true, false, 4}", (0,)),
        ("return {1, nil, 3}", (0,)),
        ("return {1, {ok = 'FINE'}, 2}", (0,)),
        ("return {ok = 'FINE'}", (0,)),
        ("return {ok = 1}", (0,)),
        ("return {err = {}, 1}", (0,)),
        ("return {err = 'MINE is wrong', ok = 'FINE'}", (0,)),
        ("return {1, {err = 'MINE is wrong'}}", (0,)),
        ("return {1, redis.pcall('INCR', KEYS[1])}", (1, "list")),
        ("return {err = 'MINE is wrong'}", (0,)),
        ("return redis.error_reply('MINE is wrong')", (0,)),
        ("local t = {}; for n = 1, 9000 do t[n] = n end; return t", (0,)),
        ("return {#KEYS, #ARGV, KEYS[2], ARGV[1]}", (2, "k", "l", "a")),
        ("return {#KEYS, #ARGV, KEYS[1], ARGV[7999]}", (1, *MANY)),
        ("return function() end", (0,)),
        ("return redis.call('GET', KEYS[1])", (1, "number")),
        ("return redis.call('XGROUP', 'CREATE', KEYS[1], 'g', '$', 'MKSTREAM')", (1, "s")),
        ("return redis.call('INCRBYFLOAT', KEYS[1], 0.5)", (1, "number")),
        ("return {redis.pcall('INCR', KEYS[1]).err ~= nil, 1}", (1, "list")),
        ("return redis.sha1hex('')", (0,)),
        ("return cjson.decode(cjson.encode({1, 'x', {a = 2}}))[3].a", (0,)),
        ("return cjson.decode('{')", (0,)),
        ("return cjson.encode(function() end)", (0,)),
        ("return pcall(cjson.decode, '{') and 1 or 2", (0,)),
        ("return (", (0,)),
        ("return redis.call()", (0,)),
        ("return redis.pcall().err ~= nil", (0,)),
        ("return redis.call('NOSUCHCOMMAND', 1)", (0,)),
        ("return redis.call(7, 'x')", (0,)),
        ("return redis.call({}, 'x')", (0,)),
        ("return redis.call('TIME', 'x')", (0,)),
        ("return #redis.call('TIME')", (0,)),
        ("redis.log(redis.LOG_DEBUG, 'said'); return 1", (0,)),
        ("return {redis.pcall('CONFIG', 'NOSUCH').err ~= nil}", (0,)),
        ("return redis.call('GET')", (0,)),
        ("return redis.call('INCR', KEYS[1])", (1, "list")),
        ("return redis.call('GET', {})", (0,)),
        ("return redis.call('SUBSCRIBE', 'x')", (0,)),
        ("return unknown_global", (0,)),
        ("error('mine')", (0,)),
        ("error({err = 'MINE is damaged'})", (0,)),
        ("redis.pcall('INCR', KEYS[1]); error({err = 'MINE'})", (1, "list")),
        ("return 1", (2, "k")),
        ("return 1", (-1,)),
    ],
)
def test_a_script_ends_as_on_a_real_server(
    memory: MemoryConnector, own_server: LocalServer, script: str, given: tuple[Any, ...]
) -> None:
    with own_server.client() as real:
        assert ended(memory.server("a").client(), script, *given) == ended(real, script, *given)


def ended(client: redis.Redis, script: str, *given: Any) -> Any:
    """What a script returned."""
    client.set("number", 2.5)
    client.rpush("list", "a")
    try:
        return shown(client.eval(script, *(given or (0,))))
    except redis.ResponseError as error:
        return "refused", str(error).startswith("MINE")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12
def test_a_forked_child_has_what_is_in_memory_whatever_threads_do(memory: MemoryConnector) -> None:
    client, script = memory.server("a").client(), "return redis.call('INCRBY', KEYS[1], 2)"
    client.eval(script, 1, "n")
    ended = threading.Event()

    def use() -> None:
        with memory.server("a").client() as own:
            while not ended.is_set():
                own.eval(script, 1, "others")
                own.incr("counts", 2)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(20):
            if not (pid := os.fork()):
                fails = True
                try:
                    signal.alarm(20)  # a lock that a thread of the parent has is never free
                    fails = client.eval(script, 1, "n") != 4
                finally:
                    os._exit(fails)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        ended.set()
        thread.join()
    assert client.get("n") == b"2"


def shown(reply: Any) -> Any:
    """A reply whose errors can be compared."""
    if isinstance(reply, list):
        return [shown(each) for each in reply]
    return type(reply) if isinstance(reply, Exception) else reply


def test_the_inside_of_a_server_is_beyond_its_faults(memory: MemoryConnector) -> None:
    server = memory.server("a")
    server.down()
    server.hang(times=None)
    server.client().set("x", 1)
    assert server.client().get("x") == b"1"
    server.flush()
    assert server.client().get("x") is None
    assert repr(server) == "<MemoryServer a:6379, down>"


def test_a_health_check_that_fails_makes_a_new_connection(memory: MemoryConnector) -> None:
    where = map_of(x={"entry": {"host": "a", "health_check_interval": 1}})
    with shardkit.connect(where, connector=memory) as kit:
        client = kit.client("x")
        client.ping()
        connection = client.connection_pool.get_connection()
        connection.next_health_check = 0
        client.connection_pool.release(connection)
        memory.server("a").lose_command("PING")
        assert client.get("x") is None
        assert client.connection_pool.get_connection() is not connection
