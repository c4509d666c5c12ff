"""How many commands a simulated server executes in a second of a processor.

Plain commands, and calls of shardkit's own scripts as its structures send them. Each is executed as
a schedule executes it: a command in, a packed reply out; nothing else runs. The clients' side of a
schedule comes on top (`tools/simulate.py --each`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from report import conditions, save, show

from shardkit import ShardKit, ShardMap
from shardkit.network.topology import FixedMap
from shardkit.testing.simulation.choices import Choices
from shardkit.testing.simulation.connections import SimulatedConnector
from shardkit.testing.simulation.servers import SimulatedServer
from shardkit.testing.simulation.threads import simulated_threads
from shardkit.testing.simulation.virtual_time import virtual_time
from shardkit.testing.simulation.world import World

MAP = ShardMap.parse("components: {data: {shards: [{host: data, port: 1}]}}")
SECONDS = 2.0


def plain(n: int) -> list[list[bytes]]:
    """A little of everything that a server does."""
    key, value = b"k%d" % (n % 100), b"value %d" % n
    return [
        [b"SET", key, value],
        [b"GET", key],
        [b"INCR", b"count"],
        [b"HSET", b"hash", key, value],
        [b"HGET", b"hash", key],
        [b"SADD", b"set", key],
        [b"ZADD", b"zset", b"%d" % n, key],
        [b"RPUSH", b"list", value],
        [b"LPOP", b"list"],
        [b"EXPIRE", key, b"100"],
    ]


def queue(kit: Any, n: int) -> None:
    """A task that is queued, taken and done."""
    queues = kit.queues(component="data")
    queues.enqueue("q", "work", [n])
    queues.acknowledge(queues.take("q", timeout=None))


def members(kit: Any, n: int) -> None:
    """A member of a set in parts that are split as it grows."""
    kit.set("s", component="data", part_size=64, parts=4).sadd(f"member {n}")


def values(kit: Any, n: int) -> None:
    """A value that is pushed and popped."""
    found = kit.list("l", component="data")
    found.rpush(f"{n}")
    found.lpop()


def lock(kit: Any, n: int) -> None:
    """A lock that is acquired and released."""
    with kit.lock(f"lock {n % 10}", component="data"):
        pass


SCRIPTS: dict[str, Callable[[Any, int], None]] = {
    "a task queued, taken, done": queue,
    "a member added to a set in parts": members,
    "a value pushed and popped": values,
    "a lock acquired and released": lock,
}


def recorded(call: Callable[[Any, int], None], count: int) -> list[list[bytes]]:
    """Return the scripts that calls send, from the log of their server."""
    world = World(Choices(0), faults=("crash",))
    with virtual_time(world.clock, world.sleep, world.numbers), simulated_threads():
        with ShardKit(FixedMap(MAP), connector=SimulatedConnector(world, world.observer)) as kit:
            for n in range(count):
                call(kit, n)
        return [args for args in world.server("data:1").log if args[0] == b"EVAL"]


def by_sha(server: SimulatedServer, socket: Any, commands: list[list[bytes]]) -> list[list[bytes]]:
    """Return calls as clients send them, whose scripts the server has."""
    shas = {}
    for text in {args[1] for args in commands}:
        server.execute(socket, [b"SCRIPT", b"LOAD", text])
    shas = {text: sha for sha, text in server.data.script_cache.items()}
    return [[b"EVALSHA", shas[args[1]], *args[2:]] for args in commands]


def rate(commands: list[list[bytes]]) -> float:
    """Return how many of them a server executes in a second of a processor."""
    server = SimulatedServer("data:1", lambda: 1.0, log=False)
    socket = server.connect(0, lambda reply: None)
    if commands[0][0] == b"EVAL":
        commands = by_sha(server, socket, commands)
    best = 0.0
    until = time.process_time() + SECONDS
    while time.process_time() < until:
        server.execute(socket, [b"FLUSHALL"])
        begun = time.process_time()
        for args in commands:
            server.execute(socket, args)
        best = max(best, len(commands) / (time.process_time() - begun))
    return best


def main() -> None:
    rates = {"plain commands": rate([args for n in range(100) for args in plain(n)])}
    for name, call in SCRIPTS.items():
        rates[name] = rate(recorded(call, 200))
    rows = [[name, round(found)] for name, found in rates.items()]
    show("Commands of a simulated server", ("", "a second of a processor"), rows)
    save(
        "simulation",
        {"conditions": conditions(), "a second": {k: round(v) for k, v in rates.items()}},
    )


if __name__ == "__main__":
    main()
