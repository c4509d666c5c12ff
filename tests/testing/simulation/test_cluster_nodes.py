"""Simulated nodes of a cluster answer as real ones while a slot moves, reply by reply."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import ResponseError

from shardkit.local import LocalCluster
from shardkit.routing.placement import slot_of
from shardkit.testing.simulation.cluster import NODES, SimulatedNode
from shardkit.testing.simulation.servers import ServerSocket, SimulatedServer

TAG = next(f"{{t{n}}}" for n in range(1000) if slot_of(f"{{t{n}}}") < 5000)  # of the first node
SLOT = slot_of(TAG)
# Which node is asked, and what; <0> is the first node's id, <port 0> its port.
STEPS: Sequence[tuple[int, str]] = [
    (0, f"SET {TAG}1 one"),
    (0, f"SET {TAG}2 two EX 1000"),
    (0, f"HSET {TAG}3 field value"),
    (0, f"SET {TAG}4 four"),
    (1, f"GET {TAG}1"),
    (1, "ASKING"),
    (1, f"GET {TAG}1"),
    (0, f"MGET {TAG}1 other"),
    (1, f"CLUSTER SETSLOT {SLOT} MIGRATING <2>"),
    (0, f"CLUSTER SETSLOT {SLOT} IMPORTING <1>"),
    (1, f"CLUSTER SETSLOT {SLOT} IMPORTING <0>"),
    (0, f"CLUSTER SETSLOT {SLOT} MIGRATING <1>"),
    (0, f"GET {TAG}1"),
    (0, f"GET {TAG}new"),
    (0, f"MGET {TAG}1 {TAG}new"),
    (0, f"MGET {TAG}new {TAG}newer"),
    (0, f"EVAL redis.call('SET',KEYS[1],1) 1 {TAG}new"),
    (1, f"GET {TAG}1"),
    (1, "ASKING"),
    (1, f"GET {TAG}1"),
    (1, f"GET {TAG}1"),
    (1, "ASKING"),
    (1, f"MGET {TAG}1 {TAG}2"),
    (1, "ASKING"),
    (1, "MULTI"),
    (1, f"INCR {TAG}n"),
    (1, f"INCR {TAG}n"),
    (1, "EXEC"),
    (1, f"GET {TAG}n"),
    (0, "MULTI"),
    (0, f"GET {TAG}1"),
    (0, f"GET {TAG}new"),
    (0, "EXEC"),
    (0, "MULTI"),
    (0, f"INCR {TAG}new"),
    (0, "EXEC"),
    (0, "MULTI"),
    (0, f"GET {TAG}1"),
    (0, "DISCARD"),
    (1, "MULTI"),
    (1, f"GET {TAG}1"),
    (1, "EXEC"),
    (0, "MULTI"),
    (0, f"GET {TAG}1"),
    (0, "GET other"),
    (0, "EXEC"),
    (0, f"WATCH {TAG}new"),
    (0, f"CLUSTER SETSLOT {SLOT} NODE <1>"),
    (0, f"CLUSTER GETKEYSINSLOT {SLOT} 10"),
    (0, f"MIGRATE 127.0.0.1 9 {TAG}1 0 5000"),  # where nobody listens
    (1, "ASKING"),
    (1, f"SET {TAG}4 other"),
    (0, f"MIGRATE 127.0.0.1 <port 1> {TAG}4 0 5000"),
    (0, f"CLUSTER GETKEYSINSLOT {SLOT} 10"),
    (0, f"MIGRATE 127.0.0.1 <port 1> {TAG}4 0 5000 REPLACE"),
    (1, "ASKING"),
    (1, f"GET {TAG}4"),
    (0, f"MIGRATE 127.0.0.1 <port 1> {TAG}1 0 5000"),
    (0, f"MIGRATE 127.0.0.1 <port 1> {TAG}1 0 5000"),
    (0, f"GET {TAG}1"),
    (0, f"MGET {TAG}1 {TAG}2"),
    (0, f"MIGRATE 127.0.0.1 <port 1> '' 0 5000 KEYS {TAG}2 {TAG}3"),
    (0, f"CLUSTER GETKEYSINSLOT {SLOT} 10"),
    (1, f"CLUSTER SETSLOT {SLOT} NODE <1>"),  # of which real nodes tell each other, sooner or later
    (0, f"CLUSTER SETSLOT {SLOT} NODE <1>"),
    (0, f"GET {TAG}1"),
    (1, f"GET {TAG}1"),
    (1, f"HGETALL {TAG}3"),
    (1, f"EXPIRE {TAG}2 1000 LT"),
    (1, f"GET {TAG}n"),
    (0, f"CLUSTER SETSLOT {SLOT} IMPORTING <1>"),
    (0, f"CLUSTER SETSLOT {SLOT} STABLE"),
    (0, "ASKING"),
    (0, f"GET {TAG}1"),
    (0, "CLUSTER NO-SUCH-THING"),
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


def test_unknown_commands_are_answered_by_the_node_that_gets_them() -> None:
    nodes = SimulatedNodes()
    for command in (["NOSUCH", TAG], ["GET"]):
        for node in range(NODES):
            assert str(nodes.ask(node, command)).startswith(("ERR unknown", "ERR wrong number"))


def test_nodes_describe_commands_as_servers_did_before_version_7() -> None:
    said = SimulatedNodes().ask(0, ["COMMAND"])
    assert {len(command) for command in said} == {6}
    [(arity, _, *keys)] = [command[1:] for command in said if command[0] == b"get"]
    assert (arity, keys) == (2, [1, 1, 1])
