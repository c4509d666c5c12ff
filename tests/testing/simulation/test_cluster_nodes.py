"""Simulated nodes of a cluster answer as real ones while a slot moves, reply by reply."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis
import pytest
from redis.exceptions import ResponseError

from shardkit.local import LocalCluster
from shardkit.routing.placement import slot_of
from shardkit.testing.simulation.choices import Choices
from shardkit.testing.simulation.cluster import NODES, SimulatedNode
from shardkit.testing.simulation.replication import LAGS, Replication, SimulatedSentinels, replicate
from shardkit.testing.simulation.servers import ServerSocket, SimulatedServer
from shardkit.testing.simulation.world import World

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
