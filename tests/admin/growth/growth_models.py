"""The protocols of failover and of both kinds of moves, as steps that a scheduler interleaves.

Each ``yield`` is a moment at which others go on, time passes, a mover is killed (and its move
resumed) or stopped (and another one resumes it while the first goes on later), a client is told of
new entries or not. One key stands for all: what the protocols do with one, they do with each.

The models follow `shardkit.admin.growth.shard_move`, `shardkit.admin.growth.server_move` and
`shardkit.admin.growth.failover`; ``without`` leaves a part of the protocol out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from shardkit.testing.simulation.choices import Choices
from shardkit.testing.simulation.linearizability import RecordedCall, Register, check_linearizable

HOLD = 40  # steps
MOST = 4000  # steps of one run

Steps = Generator[None, None, Any]


class FenceOf(NamedTuple):
    attempt: int
    until: float
    readers: bool = False  # whether they pass


class EntryOf(NamedTuple):
    version: int
    server: str
    held: bool = False


FOR_GOOD = float("inf")


class Server:
    """One key, and what a server knows besides."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.fence: FenceOf | None = None  # of a source
        self.guard: int | None = None  # of a target: the attempt that may copy to it
        self.connected: set[tuple[Client, bool]] = set()  # and whether they only read
        self.listeners: list[set[str]] = []  # who is told of changes
        self.alive = True
        self.is_master = True
        self.paused_until = 0.0
        self.replica: Server | None = None
        self.behind: list[int | None] = []  # what its replica has not got yet

    def write(self, value: int | None) -> None:
        self.value = value
        for each in self.listeners:
            each.add("key")
        if self.replica is not None:
            self.behind.append(value)

    def replicate(self) -> None:
        if self.behind and self.replica is not None and self.replica.alive:
            self.replica.value = self.behind.pop(0)


class World:
    """Servers ``a`` and ``b``, what the config server says, clients and movers."""

    def __init__(self, choices: Choices, without: str = "") -> None:
        self.choices = choices
        self.without = without
        self.now = 0.0
        self.servers = {"a": Server(), "b": Server()}
        self.entry = EntryOf(1, "a")
        self.journal = "begun"
        self.history: list[RecordedCall] = []
        self.attempts = 0
        self.values = 0
        self.crashed = False  # the master, of a failover
        self.calm = False  # from the end on nothing is killed

    def push(self, server: str, held: bool = False) -> None:
        self.entry = EntryOf(self.entry.version + 1, server, held)

    def closed(self, server: Server, reads: bool = False) -> bool:
        fence = server.fence
        return fence is not None and self.now < fence.until and not (reads and fence.readers)

    def run(self, clients: list[Client], mover: Callable[[World], Steps], faults: float) -> None:
        """Run to the end, and check what clients were told."""
        running: dict[object, Iterator[None]] = {client: client.steps() for client in clients}
        movers = [mover(self)]
        for step in range(MOST):
            self.now += 1
            self.calm = self.calm or step > MOST // 2
            chance = 0.0 if self.calm else faults
            fault = self.choices.draw(4, chance)
            if fault == 1 and movers:  # it is killed, and resumed elsewhere
                movers[-1].close()
                movers[-1] = mover(self)
            elif fault == 2 and 0 < len(movers) < 3:  # it is stopped, and its lease ends
                movers.append(mover(self))
            elif fault == 3:
                self.now += HOLD
            turn = self.choices.draw(3)
            if turn == 0 and running:
                who = list(running)[self.choices.draw(len(running))]
                if next(running[who], "end") == "end":
                    del running[who]
            elif turn == 1 and movers:
                at = self.choices.draw(len(movers))
                if next(movers[at], "end") == "end":
                    movers.pop(at)
                    if not movers and self.journal != "done":
                        movers.append(mover(self))
            else:
                clients[self.choices.draw(len(clients))].learn()
                self.servers["a"].replicate()
            if not running and self.journal == "done":
                break
        assert self.journal == "done", "the move comes to no end"
        last = Client(self, "last", 0)
        last.entry = self.entry
        for _ in last.call("get", ()):
            self.now += 1
        check_linearizable(self.history, Register())


class Client:
    """A process with a connection, which does what it is told at the server that it knows of."""

    def __init__(self, world: World, name: str, calls: int) -> None:
        self.world, self.name, self.calls = world, name, calls
        self.entry = world.entry
        self.connections: dict[bool, EntryOf] = {}  # by whether nothing is written over it
        self.idle = True

    def learn(self) -> None:
        self.entry = self.world.entry
        if self.idle:
            self.leave()

    def leave(self) -> None:
        for reads, entry in list(self.connections.items()):
            if entry != self.entry:
                self.world.servers[entry.server].connected.discard((self, reads))
                del self.connections[reads]

    def steps(self) -> Steps:
        for _ in range(self.calls):
            kind = ("set", "get", "get", "delete")[self.world.choices.draw(4)]
            self.world.values += 1
            yield from self.call(kind, (self.world.values,) if kind == "set" else ())
            self.idle = True
            self.leave()
            yield

    def call(self, kind: str, args: tuple[int, ...]) -> Steps:
        self.idle = False
        world = self.world
        record = RecordedCall(self.name, kind, args, started=world.now)
        world.history.append(record)
        while True:
            server, reads = yield from self.connect(kind)
            yield  # the command is on its way; its sender may be stopped meanwhile
            if (self, reads) not in server.connected or not server.alive:
                self.connections.pop(reads, None)
                return  # lost: nobody knows whether it was executed
            if world.now < server.paused_until and kind != "get":
                continue  # it waits at the server
            if not server.is_master and kind != "get":
                self.entry = world.entry  # READONLY: not executed, sent to the new one
                continue
            break
        result = server.value
        if kind != "get":
            server.write(args[0] if kind == "set" else None)
            result = None
        # What a former master, a replica now, says may be behind: docs/failover.md says so.
        tells = server.is_master or kind != "get" or server is world.servers["b"]
        yield  # the reply is on its way
        if tells:
            record.result, record.ended = result, world.now

    def connect(self, kind: str) -> Generator[None, None, tuple[Server, bool]]:
        world = self.world
        while True:
            self.leave()
            entry = self.entry
            server = world.servers[entry.server]
            reads = entry.held and kind == "get"
            if reads in self.connections:
                return server, reads
            if not server.alive:
                self.entry = world.entry
                yield
                continue
            yield
            if world.closed(server, reads) and world.without != "clients ask for the fence":
                self.entry = world.entry  # whoever waits reads the entries
                yield
                continue
            # Who asks is connected already, in CLIENT LIST, and the server answers one at a time.
            server.connected.add((self, reads))
            self.connections[reads] = entry
            return server, reads


def move_of_a_shard(world: World) -> Steps:
    """`shardkit.admin.growth.shard_move`."""
    source, target = world.servers["a"], world.servers["b"]
    if world.journal == "begun":
        fence = source.fence
        if fence is not None and fence.until == FOR_GOOD:
            world.journal = "fenced"
    if world.journal == "begun":
        world.attempts += 1
        attempt = world.attempts
        target.guard = attempt  # before the source is opened, see shardkit.admin.growth.fence
        yield
        if source.fence is not None and source.fence.until < FOR_GOOD:
            source.fence = None
        yield
        if source.fence is not None and source.fence.until == FOR_GOOD:
            return  # it was decided meanwhile
        if target.guard != attempt:
            return
        target.value = None
        yield
        told: set[str] = set()
        source.listeners.append(told)
        yield
        if not (yield from _copy(world, attempt)):
            return
        while True:
            if told and world.without != "what changes is copied again":
                told.clear()
                if not (yield from _copy(world, attempt)):
                    return
            if world.closed(source):
                return  # another mover holds it
            world.push("a", held=True)  # it will be held: clients read over other connections
            yield
            if world.closed(source):
                return
            mine = FenceOf(attempt, world.now + HOLD, readers=True)
            source.fence = mine
            yield
            world.push("a", held=True)  # clients make new connections
            yield
            while writers(source) and world.now < mine.until:
                if world.without == "the mover waits until clients have left":
                    break
                yield
            if told and world.without != "what changes is copied again":
                told.clear()
                if not (yield from _copy(world, attempt)):
                    return
            yield
            if world.without == "entries are pushed when it is decided":
                world.push("b")
                yield
            held = source.fence == mine and world.now < mine.until
            if world.without == "a mover that was stopped decides nothing":
                held = True
            left = not writers(source)
            if world.without == "the mover waits until clients have left":
                left = True
            owns = target.guard == attempt
            if world.without == "who decides looks whether the target is still its own":
                owns = True
            yield
            held = held and (source.fence == mine and world.now < mine.until)
            if world.without == "a mover that was stopped decides nothing":
                held = True
            if not owns:
                if source.fence == mine:
                    source.fence = None
                return
            if held and left and not told:
                source.fence = FenceOf(attempt, FOR_GOOD, readers=True)
                break
            if held and told and world.without == "what changes is copied again":
                source.fence = FenceOf(attempt, FOR_GOOD, readers=True)
                break
            if source.fence == mine:
                source.fence = None
            yield
        world.journal = "fenced"
        yield
    if world.journal == "fenced":
        if target.guard is not None:
            target.fence = FenceOf(target.guard, FOR_GOOD, readers=True)
        yield
        if world.entry.server != "b":
            world.push("b", held=True)
        yield
        if world.without != "the source is closed to readers":
            source.fence = FenceOf(0, FOR_GOOD)
        yield
        end = world.now + HOLD
        while source.connected and world.without != "the target waits until readers have left":
            if world.now > end:
                source.connected.clear()  # they find their connections closed
            yield
        target.guard = target.fence = None
        yield
        world.push("b")
        world.journal = "pushed"
    if world.journal == "pushed":
        yield
        source.value = None
        world.journal = "done"


def writers(server: Server) -> bool:
    return any(not reads for _, reads in server.connected)


def _copy(world: World, attempt: int) -> Generator[None, None, bool]:
    """Read the value at the source, and write it at the target if this attempt still may."""
    value = world.servers["a"].value
    yield
    target = world.servers["b"]
    if target.guard != attempt and world.without != "each copy is bound to its attempt":
        return False
    target.value = value
    return True


def move_of_a_server(world: World) -> Steps:
    """`shardkit.admin.growth.server_move`, and a planned failover: FAILOVER, then the entries."""
    source, target = world.servers["a"], world.servers["b"]
    if world.journal == "done":
        return
    if source.replica is None and source.is_master:
        target.is_master, target.value, source.replica = False, source.value, target
        yield
    if world.without == "entries are pushed after the promotion" and world.entry.server == "a":
        world.push("b")
        for _ in range(HOLD):
            yield
    while source.is_master:
        source.paused_until = world.now + HOLD
        if world.without == "writers are held":
            source.paused_until = 0.0
            source.behind.clear()
            target.is_master = True
            yield
            source.is_master = False
        yield
        # The server itself does this, at once, or gives up when the time is over.
        if not source.behind and world.now < source.paused_until:
            source.is_master, target.is_master = False, True
            source.replica, source.paused_until = None, 0.0
    source.paused_until = 0.0
    yield
    if world.entry.server != "b":
        world.push("b")
    yield
    while source.connected:  # clients leave; who reads there reads what was
        yield
    world.journal = "done"


def failover_after_a_crash(world: World) -> Steps:
    """`admin/growth/failover.py`: the replica takes over, the old master comes back fenced.

    Writes that no replica had are lost in any case, so all are replicated when it crashes.
    """
    source, target = world.servers["a"], world.servers["b"]
    if world.journal == "begun":
        while not world.crashed:
            if source.replica is None:
                target.is_master, target.value, source.replica = False, source.value, target
            elif not source.behind and len(world.history) > 3:
                source.alive, world.crashed = False, True  # with all who are connected
                source.connected.clear()
            yield
        target.is_master = True
        yield
        world.push("b")
        yield
        world.journal = "promoted"
    if world.journal == "promoted":
        yield
        if world.without != "the old master is fenced":
            source.is_master, source.alive = False, True
            source.replica = None
            world.journal = "done"
            yield
            return
        source.alive = True
        source.replica = None
        for _ in range(HOLD):
            yield
        world.journal = "done"


def check(
    mover: Callable[[World], Steps], seed: int, without: str = "", faults: float = 0.02
) -> None:
    """Run one schedule of a protocol.

    Raises:
        NotLinearizable: clients were told what no single order of their calls explains.
        AssertionError: it comes to no end.
    """
    world = World(Choices(seed), without)
    clients = [Client(world, f"client {n}", 5) for n in range(3)]
    world.run(clients, mover, faults)
