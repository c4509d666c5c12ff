"""The contract with redis-py: what shardkit uses of it beyond its documentation is there.

A failure here means that a new redis-py has changed something: adapt
shardkit/network/connections/redis_private.py, where each of these has its one place.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.commands import AsyncCoreCommands, CoreCommands
from redis.connection import parse_url

import shardkit
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.connections import Connector, redis_private
from shardkit.network.connections.connection import AsyncTcpConnection, TcpConnection
from shardkit.network.connections.pool import AsyncPool, Pool

PACKAGE = Path(shardkit.__file__).parent


@contextmanager
def contract(name: str, question: str) -> Iterator[None]:
    """Say what to look at when redis-py does not do any more what an adapter relies on."""
    try:
        yield
    except Exception as error:
        pytest.fail(
            f"redis-py {redis.__version__} breaks redis_private.{name} ({error!r}): {question} "
            "Look at shardkit/network/connections/redis_private.py."
        )


@pytest.fixture
def connection(server: LocalServer) -> Iterator[TcpConnection]:
    connection = TcpConnection(host="127.0.0.1", port=server.port, health_check_interval=9)
    connection.connect()
    yield connection
    connection.disconnect()


@pytest.fixture
async def awaiting(server: LocalServer) -> AsyncIterator[AsyncTcpConnection]:
    connection = AsyncTcpConnection(host="127.0.0.1", port=server.port)
    await connection.connect()
    yield connection
    await connection.disconnect()


def test_blocking_socket_and_address(connection: TcpConnection, server: LocalServer) -> None:
    with contract("socket_of", "where does a connection keep its socket?"):
        assert redis_private.socket_of(connection).getpeername()[1] == server.port
        connection.disconnect()
        assert redis_private.socket_of(connection) is None
    with contract("address_of", "what names the server in a connection's own errors?"):
        assert str(server.port) in redis_private.address_of(connection)


def test_a_health_check_can_be_postponed(connection: TcpConnection) -> None:
    with contract("postpone_health_check", "when does check_health() send a PING?"):
        redis_private.postpone_health_check(connection, 100.0)
        assert not redis_private.health_check_is_due(connection, 108.0)
        assert redis_private.health_check_is_due(connection, 110.0)


def test_errors_are_made_by_the_parser() -> None:
    with contract("parse_error", "what makes an exception of an error reply?"):
        assert isinstance(redis_private.parse_error("NOSCRIPT no"), redis.exceptions.NoScriptError)


async def test_a_subscriber_is_told_of_each_connect(server: LocalServer) -> None:
    with contract("has_connect_callbacks", "how does a subscriber learn that it reconnected?"):
        with redis.Redis(port=server.port) as client, client.pubsub() as listener:
            client.ping()
            idle = client.connection_pool.get_connection()
            client.connection_pool.release(idle)
            assert not redis_private.has_connect_callbacks(idle)
            listener.subscribe("news")
            assert redis_private.has_connect_callbacks(listener.connection)
        async with aioredis.Redis(port=server.port) as aclient, aclient.pubsub() as alistener:
            await alistener.subscribe("news")
            assert redis_private.has_connect_callbacks(alistener.connection)


async def test_a_connection_tells_what_it_received_and_nobody_read(
    connection: TcpConnection, awaiting: AsyncTcpConnection
) -> None:
    with contract("has_unread", "where does a parser keep what it has read from its socket?"):
        connection.send_packed_command([b"PING\r\nPING\r\n"])
        assert not redis_private.has_unread(connection)
        connection.read_response()
        if not redis_private.has_unread(connection):  # the second came later
            assert connection.can_read(timeout=5)
        else:
            assert connection.can_read()
        connection.read_response()
        assert not redis_private.has_unread(connection)
        await awaiting.send_packed_command([b"PING\r\nPING\r\n"])
        await awaiting.read_response()
        while not redis_private.has_unread(awaiting):  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.001)
        await awaiting.read_response()
        assert not redis_private.has_unread(awaiting)


async def test_an_awaiting_connection_has_a_transport(awaiting: AsyncTcpConnection) -> None:
    with contract("transport_of", "where does an awaiting connection keep its stream?"):
        transport = redis_private.transport_of(awaiting)
        assert transport.get_extra_info("socket") is not None
        assert hasattr(transport.get_protocol(), "connection_lost")
        await awaiting.disconnect()
        assert redis_private.transport_of(awaiting) is None


@pytest.mark.parametrize(
    ("own", "theirs"), [(Pool, redis.ConnectionPool), (AsyncPool, aioredis.ConnectionPool)]
)
def test_a_pool_is_redis_pys_in_name_only(own: type[Any], theirs: type[Any]) -> None:
    with contract("Pool", "which public methods does a pool have?"):
        names = {name for name in dir(theirs) if name[0] != "_" and name[0].islower()}
        inherited = {name for name in names if getattr(own, name) is getattr(theirs, name)}
        # These use public parts alone.
        assert inherited <= {"from_url", "close", "get_encoder", "get_protocol", "owns_connection"}
        assert issubclass(own, theirs)
        for name in names:
            kinds = [inspect.iscoroutinefunction(getattr(each, name)) for each in (own, theirs)]
            assert kinds[0] == kinds[1] or name == "get_connection", name


def test_replies_are_turned_into_values_by_callbacks() -> None:
    with contract("reply_callbacks", "what turns a reply into a method's value?"):
        assert redis_private.reply_callbacks(redis.Redis())["SET"](b"OK") is True
        assert redis_private.reply_callbacks(aioredis.Redis())["SET"](b"OK") is True


def test_what_pipelines_and_entries_import_means_the_same() -> None:
    with contract("NEVER_DECODE", "which options does execute_command take?"):
        assert redis_private.NEVER_DECODE == "NEVER_DECODE"
        assert redis_private.EMPTY_RESPONSE == "EMPTY_RESPONSE"
        assert redis_private.str_if_bytes(b"GET") == "GET"
    with contract("NOT_GIVEN", "what is the default of read_response's timeout?"):
        default = redis_private.LimitedParser.__mro__[2].read_from_socket.__defaults__
        assert default is not None
        assert default[0] is redis_private.NOT_GIVEN
    with contract("parse_url", "what does redis.connection.parse_url return?"):
        assert parse_url("redis://a:1/2") == {"host": "a", "port": 1, "db": 2}


def test_commands_go_through_execute_command() -> None:
    with contract("_is_async_client", "what do command methods ask of the object they are on?"):
        sent: list[tuple[object, ...]] = []

        class Blocking(CoreCommands):  # type: ignore[misc]
            _is_async_client = False
            _event_dispatcher = None

            def execute_command(self, *args: object, **options: object) -> object:
                sent.append(args)
                return self

        class Awaiting(AsyncCoreCommands):  # type: ignore[misc]
            _is_async_client = True
            _event_dispatcher = None
            execute_command = Blocking.execute_command

        Blocking().set("k", "v")
        Awaiting().get("k")
        assert sent == [("SET", "k", "v"), ("GET", "k")]


def test_connecting_goes_through_one_method() -> None:
    with contract("_connect", "which method of a connection opens the socket?"):
        assert callable(redis.Connection._connect)
        assert callable(aioredis.Connection._connect)
        assert callable(aioredis.Connection._connection_arguments)


async def test_a_clusters_client_shows_its_slots_and_nodes(cluster: LocalCluster) -> None:
    ports = [node.port for node in cluster.nodes]
    port = ports[0]
    with contract("slot_owners", "where does a cluster's client keep its slots?"):
        client = redis.RedisCluster(host="127.0.0.1", port=port)
        assert redis_private.slot_owners(client)[0][0].port in ports
        redis_private.learn_slots(client)
        assert redis_private.reply_callbacks(client)["SET"](b"OK") is True
        client.close()
    awaiting: Any = Connector().awaiting({"host": "127.0.0.1", "port": port, "cluster": True})
    with contract("pool_of_node", "where does a node take its connections, and put them back?"):
        await awaiting.initialize()
        for _ in range(2):
            for node in awaiting.get_nodes():
                pool = redis_private.pool_of_node(node)
                connection = node.acquire_connection()
                assert list(pool.connections.lent) == [connection]
                await connection.connect()
                node.release(connection)
                assert await node.execute_command("PING") in (b"PONG", True)
                assert pool.connections.counts() == (1, 0)
            await redis_private.learn_slots(awaiting)
            await asyncio.sleep(0.05)  # redis-py before 7 closes former nodes in tasks
        assert redis_private.reply_callbacks(awaiting)["SET"](b"OK") is True
        awaiting.close_for_good()
        assert not any(pool.connections.idle for pool in awaiting.below)


@pytest.mark.parametrize("name", ["abandon_connections", "close_connection_now"])
def test_connections_can_be_closed_after_their_loop(server: LocalServer, name: str) -> None:
    with contract(name, "where does asyncio keep a transport's socket, and how is it closed?"):
        pool = AsyncPool(host="127.0.0.1", port=server.port)
        loop = asyncio.new_event_loop()
        connection = loop.run_until_complete(pool.get_connection())
        sock = redis_private.transport_of(connection).get_extra_info("socket")
        loop.close()
        getattr(redis_private, name)(pool if name == "abandon_connections" else connection)
        assert sock.fileno() == -1
        assert redis_private.transport_of(connection) is None
        gc.collect()  # warns of nothing


def test_a_parser_without_a_socket_says_that_the_connection_is_closed(server: LocalServer) -> None:
    limited = TcpConnection(host="127.0.0.1", port=server.port)
    limited.connect()
    with contract("LimitedParser", "what does its parser do after on_disconnect()?"):
        parser = limited._parser
        limited.disconnect()
        with pytest.raises(redis.ConnectionError, match="Connection closed by server"):
            parser.read_response()


PRIVATE = re.compile(
    r"\b(_sock|_parser\.parse_error|_host_error|_should_reconnect|_writer|slots_cache|nodes_cache|"
    r"manager\.startup_nodes|_in_use_connections|_available_connections|response_callbacks|"
    r"next_health_check)\b"
)
ALLOWED = {
    "network/connections/redis_private.py",
    "testing/simulation/connections.py",  # redis-py's connection over a simulated network
    "testing/fakes/fakeredis_private.py",  # fakeredis's parts
    "network/links/user_clients.py",  # subclasses of redis-py's clients
    "network/replicas/reading.py",  # readers answer as the clients whose reads they take
}


def test_no_other_file_uses_private_parts_of_redis_py() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert found == ALLOWED
