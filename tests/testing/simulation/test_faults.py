"""Each fault does what docs/simulation.md says of it, and only that."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis
import pytest
from client_protocols import Sentinels
from mutations import MUTATIONS
from protocols import PROTOCOLS
from redis.exceptions import ResponseError

from shardkit.errors import NotDurableError
from shardkit.local import LocalCluster
from shardkit.routing.placement import slot_of
from shardkit.testing import EVERYTHING, Client, Protocol, SimulationFailure, replay, simulate
from shardkit.testing.simulation.choices import Choices
from shardkit.testing.simulation.cluster import NODES, SimulatedNode
from shardkit.testing.simulation.protocol import _Run
from shardkit.testing.simulation.replication import LAGS, Replication, SimulatedSentinels, replicate
from shardkit.testing.simulation.servers import ServerSocket, SimulatedServer
from shardkit.testing.simulation.world import World


class Incrementing(Protocol):
    """One client increments a counter until it has been answered three times."""

    clients = 1
    shards = 1
    appendfsync = "always"

    def __init__(self, fault: str, appendfsync: str = "always") -> None:
        self.faults = (fault,)
        self.most_faults = 1
        self.appendfsync = appendfsync

    def setup(self, kit: Any) -> None:
        self.answers: list[Any] = []
        self.took: list[float] = []
        self.stored = 0

    async def client(self, client: Client) -> None:
        conn = await client.kit.client("data", 0)
        while len([each for each in self.answers if isinstance(each, int)]) < 3:
            started = client.time
            try:
                self.answers.append(await conn.incr("n"))
            except Exception as error:
                self.answers.append(type(error).__name__)
                await asyncio.sleep(15)
            self.took.append(client.time - started)

    def at_end(self, kit: Any) -> None:
        self.stored = int(kit.client("data", 0).get("n") or 0)


def executed(protocol: Protocol, choices: dict[int, int] | None = None) -> _Run:
    """Run a protocol once, with these choices."""
    run = _Run(protocol, Choices(1, choices), traced=True)
    run.execute()
    return run


def injected(fault: str, appendfsync: str = "always", choices: dict[int, int] | None = None) -> Any:
    """Run with a fault at the second delivery."""
    protocol = Incrementing(fault, appendfsync)
    run = executed(protocol, choices or {1: 1})
    assert run.world.fault_count == 1, run.world.events
    return protocol, run


@pytest.mark.parametrize(
    ("fault", "answers", "stored"),
    [
        ("lose_command", [1, "ShardUnavailable", 2, 3], 3),
        ("lose_answer", [1, "ShardUnavailable", 3, 4], 4),
        ("late", [1, "ShardTimeout", 3, 4], 4),
        ("never", [1, "ShardTimeout", 2, 3], 3),
        ("kill", [1], 2),
        ("freeze", [1, 2, 3], 3),
        ("cancel", [1], 2),
        ("crash", [1, "ShardUnavailable", 2, 3], 3),
        ("cut_off", [1, 2, 3], 3),
        ("deaf", [1, 2, 3], 3),
        ("not_ready", [1, 2, 3], 3),
        ("two_masters", [1, 2, 3], 1),  # what the old one was told is lost
        ("read_only", [1, 2, 3], 3),  # kits ride out a failover: they ask again
        ("full", [1, "OutOfMemoryError", 2, 3], 3),
        ("clock", [1, 2, 3], 3),
        ("drift", [1, 2, 3], 3),
        ("time", [1, 2, 3], 3),
        ("stall", [1, 2, 3], 3),
    ],
)
def test_a_fault_is_what_its_name_says(fault: str, answers: list[Any], stored: int) -> None:
    protocol, run = injected(fault)
    assert protocol.answers == answers
    assert protocol.stored == stored
    assert any("⚡" in event.text for event in run.world.events)


def test_every_fault_is_tested() -> None:
    [mark] = [m for m in test_a_fault_is_what_its_name_says.pytestmark if m.name == "parametrize"]  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} | {"failover"} == set(EVERYTHING)


@pytest.mark.parametrize("fault", ["clock", "drift", "entry", "sentinels_fail_over", "time"])
def test_a_fault_beside_a_delivery_leaves_that_in_its_step(fault: str) -> None:
    _, run = injected(fault)
    assert run.world.steps == executed(Incrementing(fault), {}).world.steps


@pytest.mark.parametrize(
    ("fault", "appendfsync", "choices", "kept"),
    [
        ("crash", "always", {1: 1}, True),
        ("crash", "no", {1: 1}, False),
        # The last of the four: everything of the last second.
        ("crash", "everysec", {1: 1, 2: 3}, False),
        # A replica that takes over may lag.
        ("failover", "always", {1: 1}, True),
        ("failover", "always", {1: 1, 2: 3}, False),
    ],
)
def test_a_crash_or_failover_loses_what_the_aof_or_the_replica_has_not(
    fault: str, appendfsync: str, choices: dict[int, int], kept: bool
) -> None:
    last = [2, 3] if kept else [1, 2]
    assert injected(fault, appendfsync, choices)[0].answers == [1, "ShardUnavailable", *last]


@pytest.mark.parametrize(("fault", "stored"), [("cut_off", (3, 4)), ("deaf", (4,))])
def test_a_client_goes_on_when_it_is_cut_off_or_deaf_no_more(
    fault: str, stored: tuple[int, ...]
) -> None:
    protocol, _ = injected(fault)
    assert max(protocol.took) == pytest.approx(1, abs=0.1)
    protocol, _ = injected(fault, choices={1: 1, 2: 3})  # a minute
    assert protocol.answers[:2] == [1, "ShardTimeout"]
    assert protocol.stored in stored, "what a deaf client was not answered was executed"
    assert fault == "cut_off" or protocol.answers[-1] == 4


def test_a_client_of_the_old_master_moves_to_the_new_one_at_last() -> None:
    class Slow(Incrementing):
        async def client(self, client: Client) -> None:
            conn = await client.kit.client("data", 0)
            for _ in range(4):
                self.answers.append(await conn.incr("n"))
                await asyncio.sleep(0.6)

    protocol = Slow("two_masters")
    executed(protocol, {1: 1})
    assert protocol.answers == [1, 2, 3, 2]
    assert protocol.stored == 2


@pytest.mark.parametrize(
    ("fault", "mistake", "known"),
    [
        ("deaf", "locks-counted-from-the-answer", 3),
        ("two_masters", "configuration-back-in-time", 81),
        ("not_ready", "pipelines-refused-in-the-middle", 48),
    ],
)
def test_a_fault_finds_a_mistake_by_itself(fault: str, mistake: str, known: int) -> None:
    [mutation] = [each for each in MUTATIONS if each.name == mistake]

    class Alone(PROTOCOLS[mutation.protocol]):  # type: ignore[misc]
        faults = (fault,)
        renew = False  # of locks: soon after a late reply, renewing would put the lease right

    with mutation.made(), pytest.raises(SimulationFailure, match="fails under seed"):
        simulate(Alone(), 1000, seed=known, seconds=400, shrink_runs=0)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stalled_event_loop_leaves_threads_alone(stopped: bool) -> None:
    """It is blocked, or stopped; asyncio says the latter of it."""

    class Stalling(Incrementing):
        async def client(self, client: Client) -> None:
            loop = asyncio.get_running_loop()
            self.running: list[bool] = []

            def look() -> None:
                for _ in range(30):
                    time.sleep(0.1)
                    self.running.append(loop.is_running())

            looking = loop.run_in_executor(None, look)
            await super().client(client)
            await looking

    protocol = Stalling("stall")
    executed(protocol, {1: 1, 3: 1} if stopped else {1: 1})
    assert max(protocol.took) == pytest.approx(1, abs=0.1)
    assert protocol.running.count(False) == pytest.approx(10 * stopped, abs=stopped)


def test_loops_that_a_client_runs_are_closed_and_their_generators_with_them() -> None:
    ended = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            ended.append(1)

    kept = []  # as somebody would who never closes it

    async def main() -> asyncio.AbstractEventLoop:
        generator = numbers()
        kept.append(generator)
        await anext(generator)
        return asyncio.get_running_loop()

    class Running(Incrementing):
        def client(self, client: Client) -> None:  # type: ignore[override]
            for shut_down in (False, True):
                assert client.run_loop(main(), shut_down=shut_down).is_closed()
                assert len(ended) == shut_down

        def at_end(self, kit: Any) -> None:
            pass

    executed(Running("late"))


def test_a_task_that_is_left_over_ends_in_its_loop() -> None:
    ended = []

    class Leaving(Incrementing):
        async def client(self, client: Client) -> None:
            loop = asyncio.get_running_loop()

            async def wait() -> None:
                try:
                    await asyncio.sleep(1000)
                finally:
                    ended.append(asyncio.get_running_loop() is loop)

            self.left = asyncio.create_task(wait())
            await asyncio.sleep(1)

    executed(Leaving("late"))
    assert ended == [True]


def test_log_messages_appear_in_the_timeline_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Logging(Incrementing):
        async def client(self, client: Client) -> None:
            logging.getLogger("shardkit.somewhere").warning("look at %s", "this")

    run = executed(Logging("late"))
    assert [event.text for event in run.world.events or ()] == ["log: look at this"]
    assert not caplog.records


def test_a_forked_client_has_one_thread_and_no_connection() -> None:
    class Forking(Incrementing):
        def client(self, client: Client) -> None:  # type: ignore[override]
            conn: Any = client.kit.client("data", 0)
            others: list[int] = []

            def use() -> None:
                while True:
                    others.append(conn.incr("n"))
                    time.sleep(1)

            threading.Thread(target=use).start()
            time.sleep(2.5)
            assert others == [1, 2, 3]
            held = conn.connection_pool.get_connection()
            assert client.connections == ["data:1"]
            client.fork()
            assert client.connections == []
            time.sleep(5)
            assert len(others) == 3
            assert conn.incr("n") == 4
            assert client.connections == ["data:1"]
            held.send_command("INCR", "n")  # connects again
            assert held.read_response() == 5
            assert client.connections == ["data:1", "data:1"]

    executed(Forking("late"))


def test_a_crashed_server_replays_scripts_transactions_expiry_and_random_members() -> None:
    class Everything(Incrementing):
        async def client(self, client: Client) -> None:
            conn = await client.kit.client("data", 0)
            await conn.sadd("s", *range(50))
            self.popped = await conn.spop("s", 20)
            await conn.eval("return redis.call('HSET', KEYS[1], 'a', ARGV[1])", 1, "h", "1")
            async with conn.pipeline(transaction=True) as pipe:
                await pipe.set("short", 1, px=50).set("long", 1, ex=1000).execute()
            await conn.rpush("l", "a", "b")
            await conn.blpop("l", 1)
            self.before = await conn.smembers("s")
            await super().client(client)
            self.after = await conn.smembers("s")
            self.rest = await conn.hgetall("h"), await conn.lrange("l", 0, -1)
            self.left = await conn.exists("short"), await conn.exists("long")

    protocol = Everything("crash")
    run = executed(protocol, {8: 1})
    assert run.world.fault_count == 1
    assert protocol.before == protocol.after
    assert len(protocol.after) == 30
    assert protocol.rest == ({b"a": b"1"}, [b"b"])
    assert protocol.left == (0, 1)


def test_a_clock_that_drifts_runs_on_from_where_it_is() -> None:
    class Telling(Incrementing):
        async def client(self, client: Client) -> None:
            conn = await client.kit.client("data", 0)
            await asyncio.sleep(100)
            for _ in range(3):  # the second is executed after the fault
                seconds, micros = await conn.time()
                self.answers.append((client.time, time.monotonic(), seconds + micros / 1e6))
                await asyncio.sleep(100)

    for whose, rate, choices in (
        ("server", 0.999, {1: 1}),
        ("server", 1.1, {1: 1, 3: 3}),
        ("client", 0.999, {1: 1, 2: 1}),
        ("client", 0.9, {1: 1, 2: 1, 3: 2}),
    ):
        protocol = Telling("drift")
        run = executed(protocol, choices)
        assert run.world.fault_count == 1
        (true, _, _), (later, own, there), (last, own_last, there_last) = protocol.answers
        assert later - true == pytest.approx(100, abs=0.01)
        clients, servers = (own_last - own), (there_last - there)
        true = last - later
        assert clients / true == pytest.approx(rate if whose == "client" else 1, abs=1e-5)
        assert servers / true == pytest.approx(rate if whose == "server" else 1, abs=1e-5)
        assert clients == pytest.approx(100, abs=0.01), "it slept by its own clock"


def test_clocks_of_clients_and_servers_are_their_own() -> None:
    class Telling(Incrementing):
        async def client(self, client: Client) -> None:
            conn = await client.kit.client("data", 0)
            seconds, _ = await conn.time()
            self.answers.append(round(seconds - time.time()))
            seconds, _ = await conn.time()
            self.answers.append(round(seconds - time.time()))

    for choices, jump in (({1: 1}, -60), ({1: 1, 2: 1, 3: 1}, -60), ({1: 1, 3: 1}, 60)):
        protocol = Telling("clock")
        executed(protocol, choices)
        first, second = protocol.answers
        assert abs(first) <= 1
        assert abs(abs(second) - abs(jump)) <= 1


class Durable(Sentinels):
    """One writer, whose writes are to be on the only replica."""

    replicating = ("one:1", "two:2")
    faults = ("sentinels_fail_over",)
    most_faults = 1

    def setup(self, kit: Any) -> None:
        self.sure: list[str] = []

    def client_functions(self) -> Any:
        return [self.writer]

    def writer(self, client: Client) -> None:
        for key in ("a", "b", "c", "d"):
            with client.kit.durable(replicas=1):
                client.kit.key_sharded("data").pipeline().set(key, 1).execute()
            self.sure.append(key)

    def allows(self, error: Exception) -> bool:
        return isinstance(error, NotDurableError) or super().allows(error)

    def at_end(self, kit: Any) -> None:
        assert kit.client("data").exists(*self.sure, "none") == len(self.sure)


def test_a_durable_block_survives_a_failover_and_rests_between_looks_at_a_replica() -> None:
    simulate(Durable(), 40)  # without pauses it would not end within the most steps


def test_requests_to_a_server_that_is_replaced_at_that_moment_are_lost() -> None:
    replay(Sentinels(), "125:7=2,22=1,26=1,32=1,37=8,40=1,41=3,44=2,51=1,54=1,107=9")


class Changing(Incrementing):
    """An entry changes meanwhile."""

    def rename(self, kit: Any) -> None:
        kit.client("data", 0).set("n", 100)

    def changes(self) -> list[Any]:
        return [self.rename]


def test_a_change_of_entries_is_in_the_timeline_by_its_name() -> None:
    protocol = Changing("entry")
    run = executed(protocol, {1: 1})
    assert "⚡ rename" in [event.text for event in run.world.events or ()]
    assert protocol.answers == [1, 101, 102]


def test_a_fault_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault is called 'fire'; there are lose_command, "):
        injected("fire")


@pytest.mark.parametrize("fault", ["stall", "cancel"])
def test_a_client_without_an_event_loop_is_neither_stalled_nor_cancelled(fault: str) -> None:
    class Blocking(Incrementing):
        def client(self, client: Client) -> None:  # type: ignore[override]
            conn: Any = client.kit.client("data", 0)
            self.answers = [conn.incr("n") for _ in range(3)]

    protocol = Blocking(fault)
    run = executed(protocol, {1: 1})
    assert run.world.fault_count == 1
    assert protocol.answers == [1, 2, 3]
    assert not any("⚡" in event.text for event in run.world.events or ())


def test_a_client_that_has_ended_is_not_cancelled() -> None:
    class Leaving(Incrementing):
        async def client(self, client: Client) -> None:
            conn = await client.kit.client("data", 0)
            await conn.incr("n")
            self.left = asyncio.create_task(conn.incr("n"))
            await asyncio.sleep(0)  # it is sent

    protocol = Leaving("cancel")
    run = executed(protocol, {1: 1})
    assert run.world.fault_count == 1
    assert not any("⚡" in event.text for event in run.world.events or ())
    assert protocol.stored == 2


def test_cancelled_and_dropped_tasks_end_as_in_asyncio() -> None:
    done = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            done.append("generator")

    class Forgetting(Incrementing):
        async def client(self, client: Client) -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(done.append, "handle").cancel()
            slow = loop.run_in_executor(None, time.sleep, 1)
            slow.cancel()
            await anext(numbers())  # it is dropped, and closed by the loop
            await asyncio.sleep(2)
            assert done == ["generator"]
            assert slow.cancelled()
            done.append("client")

    executed(Forgetting("late"))
    assert done == ["generator", "client"]


def test_a_connection_is_readable_when_an_answer_is_there_or_comes_in_time() -> None:
    class Reading(Incrementing):
        def client(self, client: Client) -> None:  # type: ignore[override]
            conn: Any = client.kit.client("data", 0)
            conn.ping()
            connection = conn.connection_pool.get_connection()
            assert not connection.can_read(0)
            started = client.time
            assert not connection.can_read(1)
            assert client.time - started == pytest.approx(1, abs=0.1)
            connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n" * 2])
            assert connection.read_response() == b"PONG"
            assert connection.can_read(0), "both came at once"
            assert connection.read_response() == b"PONG"
            self.answers.append("done")

    protocol = Reading("late")
    executed(protocol, {})
    assert protocol.answers == ["done"]


def test_an_entry_that_says_so_is_tried_again_by_its_client() -> None:
    class Retrying(Incrementing):
        shard_map = "components: {data: {shards: [{host: data, port: 1, retries: 1}]}}"

    protocol = Retrying("lose_command")
    run = executed(protocol, {1: 1})
    assert run.world.fault_count == 1
    assert protocol.answers == [1, 2, 3]


TAG = next(f"{{t{n}}}" for n in range(1000) if slot_of(f"{{t{n}}}") < 5000)  # of the first node
SLOT = slot_of(TAG)
# Which node is asked, and what; <0> is the first node's id, <port 0> its port. Nobody listens at 9.
# Real nodes tell each other sooner or later of which node a slot is, so both are told.
STEPS: Sequence[tuple[int, str]] = [
    (int(line[0]), command)
    for line in f"""\
0 SET {TAG}1 one | SET {TAG}2 two EX 1000 | HSET {TAG}3 field value | SET {TAG}4 four
1 GET {TAG}1 | ASKING | GET {TAG}1
0 MGET {TAG}1 other
1 CLUSTER SETSLOT {SLOT} MIGRATING <2>
0 CLUSTER SETSLOT {SLOT} IMPORTING <1>
1 CLUSTER SETSLOT {SLOT} IMPORTING <0>
0 CLUSTER SETSLOT {SLOT} MIGRATING <1> | GET {TAG}1 | GET {TAG}new | MGET {TAG}1 {TAG}new
0 MGET {TAG}new {TAG}newer | EVAL redis.call('SET',KEYS[1],1) 1 {TAG}new
1 GET {TAG}1 | ASKING | GET {TAG}1 | GET {TAG}1 | ASKING | MGET {TAG}1 {TAG}2 | ASKING | MULTI
1 INCR {TAG}n | INCR {TAG}n | EXEC | GET {TAG}n
0 MULTI | GET {TAG}1 | GET {TAG}new | EXEC | MULTI | INCR {TAG}new | EXEC | MULTI | GET {TAG}1
0 DISCARD
1 MULTI | GET {TAG}1 | EXEC
0 MULTI | GET {TAG}1 | GET other | EXEC | WATCH {TAG}new | CLUSTER SETSLOT {SLOT} NODE <1>
0 CLUSTER GETKEYSINSLOT {SLOT} 10 | MIGRATE 127.0.0.1 9 {TAG}1 0 5000
1 ASKING | SET {TAG}4 other
0 MIGRATE 127.0.0.1 <port 1> {TAG}4 0 5000 | CLUSTER GETKEYSINSLOT {SLOT} 10
0 MIGRATE 127.0.0.1 <port 1> {TAG}4 0 5000 REPLACE
1 ASKING | GET {TAG}4
0 MIGRATE 127.0.0.1 <port 1> {TAG}1 0 5000 | MIGRATE 127.0.0.1 <port 1> {TAG}1 0 5000
0 GET {TAG}1 | MGET {TAG}1 {TAG}2 | MIGRATE 127.0.0.1 <port 1> '' 0 5000 KEYS {TAG}2 {TAG}3
0 CLUSTER GETKEYSINSLOT {SLOT} 10
1 CLUSTER SETSLOT {SLOT} NODE <1>
0 CLUSTER SETSLOT {SLOT} NODE <1> | GET {TAG}1
1 GET {TAG}1 | HGETALL {TAG}3 | EXPIRE {TAG}2 1000 LT | GET {TAG}n
0 CLUSTER SETSLOT {SLOT} IMPORTING <1> | CLUSTER SETSLOT {SLOT} STABLE | ASKING | GET {TAG}1
0 CLUSTER NO-SUCH-THING
""".splitlines()
    for command in line[2:].split(" | ")
]


class SimulatedNodes:
    """Three simulated nodes, and a connection to each."""

    def __init__(self) -> None:
        nodes: list[SimulatedNode] = []
        self.replies: list[bytes] = []
        self.sockets: list[tuple[SimulatedServer, ServerSocket]] = []
        for n in range(NODES):
            server = SimulatedServer(f"127.0.0.1:{n + 1}", lambda: 1.0, log=True)
            server.role = SimulatedNode(server, nodes)
            self.sockets.append((server, server.connect(0, self.replies.append)))

    def ask(self, node: int, args: list[str]) -> Any:
        server, end = self.sockets[node]
        server.execute(end, [arg.encode() for arg in args])
        reader = hiredis.Reader(replyError=ResponseError)
        reader.feed(self.replies.pop())
        return reader.gets()


def answers(ask: Callable[[int, list[str]], Any], ports: Sequence[int]) -> list[Any]:
    """Return what nodes answer to the steps, in words that do not depend on their addresses."""
    ids = [ask(n, ["CLUSTER", "MYID"]).decode() for n in range(NODES)]
    found = []
    for node, text in STEPS:
        for n in range(NODES):
            text = text.replace(f"<{n}>", ids[n]).replace(f"<port {n}>", str(ports[n]))
        reply = ask(node, [word.strip("'") for word in text.split(" ")])
        if isinstance(reply, Exception):
            reply = str(reply)
            for n in range(NODES):
                reply = reply.replace(f"127.0.0.1:{ports[n]}", f"<{n}>")
            name, *more = reply.split()
            reply = " ".join([name, *more]) if name in ("MOVED", "ASK") else name
        found.append(sorted(reply) if isinstance(reply, list) and "KEYSINSLOT" in text else reply)
    return found


class RealNodes:
    """A connection to each node of a cluster."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.sockets = [socket.create_connection(("127.0.0.1", port), 20) for port in ports]

    def ask(self, node: int, args: list[str]) -> Any:
        self.sockets[node].sendall(hiredis.pack_command(tuple(args)))
        reader = hiredis.Reader(replyError=ResponseError)
        while (reply := reader.gets()) is False:
            reader.feed(self.sockets[node].recv(65536))
        return reply

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def test_nodes_answer_as_real_ones_while_a_slot_moves() -> None:
    simulated = answers(SimulatedNodes().ask, [1, 2, 3])
    with LocalCluster() as cluster:
        ports = [node.port for node in cluster.nodes]
        nodes = RealNodes(ports)
        try:
            real = answers(nodes.ask, ports)
        finally:
            nodes.close()
    assert dict(zip(STEPS, simulated, strict=False)) == dict(zip(STEPS, real, strict=False))
    assert simulated == real


@pytest.fixture
def world() -> World:
    return World(Choices(1, {}))


def replicas_in(world: World, count: int) -> list[Replication]:
    """A master, and servers that have all that it has."""
    servers = replicate(world, *(f"10.0.0.{n}:6379" for n in range(count)))
    for each in servers[1:]:
        each.fill(servers[0])
    return servers


def write(master: Replication, value: bytes) -> None:
    """Set a key, as a client does."""
    replies: list[bytes] = []
    master.server.execute(master.server.connect(0, replies.append), [b"SET", b"k", value])
    assert replies == [b"+OK\r\n"]


def held(server: Replication) -> bytes | None:
    """What a server has of the key."""
    return server.server.ask(b"GET", b"k")


def pass_time(world: World, seconds: float) -> None:
    """Have happen what is due by then."""
    world.seconds += seconds
    world._fire_timers()


@pytest.mark.parametrize("which", [0, 1])
def test_while_a_master_or_its_replica_is_down_nothing_is_sent(world: World, which: int) -> None:
    master, replica = servers = replicas_in(world, 2)
    write(master, b"1")
    servers[which].crash(10)
    pass_time(world, max(LAGS))
    assert held(replica) is None
    pass_time(world, 10)
    pass_time(world, max(LAGS))
    assert held(replica) == b"1"
    assert replica.is_linked()


def test_sentinels_choose_no_replica_that_is_down(world: World) -> None:
    master, down, up = servers = replicas_in(world, 3)
    sentinels = SimulatedSentinels(world, ("10.0.1.0:26379",), servers)
    down.server.up = False
    sentinels.fail_over()
    assert sentinels.master is master, "until the leader promotes the replica"
    pass_time(world, 0.1)
    assert sentinels.master is up
    assert (up.master, master.master) == (None, None), "the old one is told later"


def asked(server: SimulatedServer, *args: str | int) -> Any:
    """What a server answers."""
    replies: list[bytes] = []
    server.execute(server.connect(0, replies.append), [str(arg).encode() for arg in args])
    reader = hiredis.Reader(replyError=ResponseError)
    reader.feed(b"".join(replies))
    return reader.gets()


def test_a_failover_needs_a_replica_and_ends_when_its_time_is_over(
    world: World,
) -> None:
    master, replica, other = replicas_in(world, 3)
    to = ("FAILOVER", "TO", "10.0.0.1", 6379, "TIMEOUT", 5000)
    assert "not a replica" in str(asked(other.server, *to))
    write(master, b"0")
    assert asked(master.server, *to) == b"OK"
    assert "already in progress" in str(asked(master.server, *to))
    replica.server.up = False  # it never has all
    assert asked(master.server, "SET", "k", "1") is False, "writers are held meanwhile"
    pass_time(world, 5)
    assert (master.master, replica.master) == (None, master)
    assert asked(master.server, "SET", "k", "2") == b"OK"


def test_sentinels_say_who_is_who_of_their_service_alone(world: World) -> None:
    servers = replicas_in(world, 2)
    SimulatedSentinels(world, ("10.0.1.0:26379",), servers)
    ask = partial(asked, world.server("10.0.1.0:26379"))
    assert ask("SENTINEL", "get-master-addr-by-name", "main") == [b"10.0.0.0", b"6379"]
    [replica] = ask("SENTINEL", "REPLICAS", "main")
    assert replica[:6] == [b"name", b"10.0.0.1:6379", b"ip", b"10.0.0.1", b"port", b"6379"]
    assert "No such master" in str(ask("SENTINEL", "REPLICAS", "another"))
    assert "Unknown subcommand" in str(ask("SENTINEL", "RESET", "main"))
    assert ask("SET", "k", "v") == b"OK"  # as any server


def test_servers_with_equal_data_have_one_digest_in_whatever_order_it_came() -> None:
    def digest(*commands: str) -> int:
        server = SimulatedServer("simulated", lambda: 1.0, log=False)
        for command in commands:
            asked(server, *command.split())
        return server.data.digest()

    same = {
        digest("SADD s a b", "HSET h x 1 y 2", "ZADD z 1 a"),
        digest("HSET h y 2", "ZADD z 1 a", "HSET h x 1", "SADD s b", "SADD s a"),
    }
    assert len(same) == 1
    others = (["SADD s a b"], ["SADD s a c"], ["SET s a"], ["SET s b"], [])
    assert len({digest(*each) for each in others}) == len(others)


def test_a_held_writer_that_has_gone_writes_nothing_afterwards(world: World) -> None:
    master, replica = replicas_in(world, 2)
    write(master, b"0")
    assert asked(master.server, "FAILOVER", "TO", "10.0.0.1", 6379, "TIMEOUT", 5000) == b"OK"
    replica.server.up = False  # it never has all
    replies: list[bytes] = []
    gone, waiting = (master.server.connect(0, replies.append) for _ in range(2))
    master.server.execute(gone, [b"SET", b"k", b"gone"])
    master.server.execute(waiting, [b"APPEND", b"k", b"!"])
    master.server.disconnect(gone)
    pass_time(world, 5)
    assert held(master) == b"0!"
    assert replies == [b":2\r\n"]
