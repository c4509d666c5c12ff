"""Plans the growth of a component: shards, servers, and moves of each period. No I/O.

::

    plan_growth("users", ["a:6379"], growth=4, periods=4)

    period   servers   shards on each   moved
    now            1              256
    1              4               64     192      shardkit move shards users:64 … --to new1:6379
    2             16               16     192
    …
    4            256                1     192

There are as many shards as there will be servers in the end, so keys stay in their shards, and
shards move. Each has its own database number, so any can go to any server. Databases of a server
share its single thread; with ``separate`` each shard has its own server from the start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardkit.admin.growth.journal import KEYS
from shardkit.admin.growth.mover import duration
from shardkit.admin.growth.relocation import ServerAddress
from shardkit.config.component import MAX_SHARDS, check_name
from shardkit.config.problem import invalid
from shardkit.errors import InvalidArgumentError, counted
from shardkit.network.rules import NEARLY
from shardkit.operations.arguments import check_integer, check_number
from shardkit.operations.commands import Shard

# Memory divided by data: pages written during a snapshot are copied, and clients have buffers.
HEADROOM = 1.5
_MAX_CLIENTS = 10_000  # a server's default


@dataclass(frozen=True)
class GrowthStep:
    """One period of a plan: the servers by then, and the moves that lead there.

    Attributes:
        period: its number; 0 is now.
        servers: the number of servers.
        shards: the largest number of shards on a server.
        data: approximate bytes of data on a server.
        memory: the memory that a server needs, in bytes.
        connections: connections to a server from all processes.
        append: bytes a second that a server appends to its AOF.
        moves: the moves: source, target and shards.
        moved: approximate bytes that move.
        seconds: approximate duration of all moves, one after the other.
    """

    period: int
    servers: int
    shards: int
    data: float
    memory: float
    connections: int
    append: float
    moves: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    moved: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class GrowthPlan:
    """A plan for a component.

    Attributes:
        component: its name.
        count: how many shards it needs.
        databases: the ``databases`` that servers must have.
        entries: where each shard is now.
        steps: the periods, now first.
        separate: whether each shard has a server of its own.
        warnings: what speaks against it.
    """

    component: str
    count: int
    databases: int
    entries: tuple[dict[str, Any], ...]
    steps: tuple[GrowthStep, ...]
    separate: bool = False
    warnings: tuple[str, ...] = field(default=())

    def to_yaml(self) -> str:
        """Return the shard map as it is now."""
        lines = ["components:", f"  {self.component}:", "    shards:"]
        lines += [f"      - {json.dumps(entry)}" for entry in self.entries]
        return "\n".join(lines) + "\n"

    def commands(self, step: GrowthStep) -> list[str]:
        """Return the commands that a step takes."""
        if self.separate:
            return [
                f"shardkit move server {source} --to {target}" for source, target, _ in step.moves
            ]
        return [
            f"shardkit move shards {' '.join(shards)} --to {target}"
            for _, target, shards in step.moves
        ]


def plan_growth(
    component: str,
    servers: Sequence[str],
    *,
    growth: float,
    periods: int,
    new: Sequence[str] = (),
    data: float = 0.0,
    commands: float = 0.0,
    size: float = 0.0,
    processes: int = 1,
    connections: int = 1,
    separate: bool = False,
) -> GrowthPlan:
    """Plan how a component grows.

    Args:
        component: its name.
        servers: the first servers, or with ``separate`` machines, ``host:port``.
        growth: growth factor per period.
        periods: the number of periods.
        new: future servers, in order; later ones are called ``new1:6379`` and so on.
        data: bytes of data now.
        commands: write commands a second now.
        size: the size of a command in the AOF, in bytes.
        processes: the number of processes that use it.
        connections: the connections of a process to a server: one for each thread that uses it at
            the same time, or for each event loop.
        separate: whether each shard has its own server, on ports from its machine's port.

    Returns:
        The plan: ``growth ** periods`` shards for each server, rounded up to a power of two.

    Raises:
        InvalidArgumentError: a number is none that can be planned with.
    """
    problems = list(check_name(component, "component"))
    if problems:
        raise invalid(problems)
    loads = {"data": data, "commands": commands, "size": size}
    _check(servers, growth, periods, **loads, processes=processes, connections=connections)
    machines = [ServerAddress.parse(server) for server in servers]
    if len(set(machines)) < len(machines):
        raise InvalidArgumentError("a server is named twice", "name each once")
    ends = math.ceil(len(machines) * growth**periods - 1e-9)
    count = 1 << (ends - 1).bit_length()
    coming = [ServerAddress.parse(server) for server in new]
    homes = [n % len(machines) for n in range(count)]  # of each shard, by its machine
    steps = []
    for period in range(periods + 1):
        by_then = growth**period
        wanted = min(count, math.ceil(len(servers) * by_then - 1e-9))
        while len(machines) < wanted:
            at = len(machines) - len(servers)
            extra = at - len(coming) + 1
            machines.append(coming[at] if at < len(coming) else ServerAddress(f"new{extra}", 6379))
        taken = _balance(homes, wanted)
        most = max(homes.count(machine) for machine in range(wanted))
        share = most / count
        bytes_of_shard = data * by_then / count
        moved = bytes_of_shard * len(taken)
        steps.append(
            GrowthStep(
                period,
                wanted,
                most,
                data * by_then * share,
                HEADROOM * data * by_then * share,
                processes * connections,
                commands * size * by_then * share,
                _moves(component, taken, machines, separate),
                moved,
                duration(KEYS, 0, moved),
            )
        )
    entries: list[dict[str, Any]] = []
    for n in range(count):
        host, port = machines[n % len(servers)]
        own = {"port": port + n} if separate else {"port": port, "db": n + 1}
        entries.append({"host": host, **own})
    warnings = []
    if not separate and len(servers) < count:
        warnings.append(
            "the databases of a server share its single thread: they prepare for growth, and add "
            "no speed; --separate has servers instead"
        )
    if processes * connections >= NEARLY * _MAX_CLIENTS:
        clients = counted(processes * connections, "connection")
        wanted = math.ceil(processes * connections / NEARLY)
        warnings.append(
            f"{clients} to a server are too many for the default maxclients of {_MAX_CLIENTS:,}: "
            f"set `maxclients {wanted}`, and let the server open as many files"
        )
    if separate and max(entry["port"] for entry in entries) > 65535:
        raise InvalidArgumentError("the ports go beyond 65535", "begin at a lower one")
    return GrowthPlan(
        component,
        count,
        1 if separate else count + 1,
        tuple(entries),
        tuple(steps),
        separate,
        tuple(warnings),
    )


def _check(servers: Sequence[str], growth: float, periods: int, **numbers: float) -> None:
    if not servers:
        raise InvalidArgumentError(
            "the servers are not specified", "list the servers to start with"
        )
    check_number("plan", "growth", growth, 1, MAX_SHARDS)
    check_integer("plan", "periods", periods, 0, 100)
    for name, number in numbers.items():
        check_number("plan", name, number, 0, 2**63)
    if growth**periods * len(servers) > MAX_SHARDS:  # a power of two, as the count of shards
        raise InvalidArgumentError(
            f"growth {growth:g} in {counted(periods, 'period')} needs too many shards: a component "
            f"has at most {MAX_SHARDS:,}",
            "plan fewer periods",
        )


def _balance(homes: list[int], machines: int) -> list[tuple[int, int, int]]:
    """Balance shards over machines by the fewest moves; return shard, source and target of each."""
    has: list[list[int]] = [[] for _ in range(machines)]
    for shard, home in enumerate(homes):
        has[home].append(shard)
    least, more = divmod(len(homes), machines)
    # Those that have most may keep one more.
    order = sorted(range(machines), key=lambda machine: (-len(has[machine]), machine))
    room = {machine: least + (rank < more) for rank, machine in enumerate(order)}
    free = [shard for machine in order for shard in has[machine][room[machine] :]]
    moved = []
    for machine in order:
        for _ in range(room[machine] - len(has[machine])):
            shard = free.pop(0)
            moved.append((shard, homes[shard], machine))
            homes[shard] = machine
    return moved


def _moves(
    component: str,
    taken: Sequence[tuple[int, int, int]],
    machines: Sequence[ServerAddress],
    separate: bool,
) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    shards_of: dict[tuple[str, str], list[str]] = {}
    for shard, source, target in taken:
        pair = tuple(
            str(ServerAddress(at.host, at.port + shard) if separate else at)
            for at in (machines[source], machines[target])
        )
        shards_of.setdefault((pair[0], pair[1]), []).append(str(Shard(component, shard)))
    return tuple((source, target, tuple(shards)) for (source, target), shards in shards_of.items())
