"""One run: processes, servers and the network between them, and the scheduler that chooses.

At each step a client runs until it waits, or a server executes what a client sent: whole, or one
command of it. If nothing can be done, the time advances to when something can. Each delivery may be
replaced by a fault. `Choices` says which, so a run is a function of its choices.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final, NamedTuple

from shardkit.operations import forks
from shardkit.testing.simulation.choices import Choices
from shardkit.testing.simulation.cluster import NODES, SimulatedNode
from shardkit.testing.simulation.linearizability import RecordedCall
from shardkit.testing.simulation.processes import Fiber, SimulatedProcess
from shardkit.testing.simulation.servers import SimulatedServer, Wire, describe, script_names
from shardkit.testing.simulation.virtual_time import Clock

# How long a step takes, in seconds.
STEP: Final = 0.0002
# The faults that a protocol meets unless it says otherwise.
NETWORK: Final = ("lose_command", "lose_answer", "late", "never")
CLIENTS: Final = ("kill", "freeze")
EVERYTHING: Final = (
    *NETWORK,
    *CLIENTS,
    *("cancel", "crash", "failover", "two_masters", "cut_off", "deaf", "read_only", "full"),
    *("not_ready", "clock", "drift", "time", "stall"),
)
_WAITS: Final = (1.0, 6.0, 0.05, 60.0)
# The answers of a server that loads its data, and of nodes while their cluster changes.
_NOT_READY: Final = (
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
)


class TraceRow(NamedTuple):
    """A line of the timeline: who, and what."""

    time: float
    actor: str
    text: str


class EndlessRun(AssertionError):
    """Something waits for ever although faults have stopped, or the steps do not end."""


class World:
    """Everything of one run; see `Protocol` for faults, changes and appendfsync.

    ``prefers`` returns the weights of steps by their names; None to choose all alike.
    """

    def __init__(
        self,
        choices: Choices,
        *,
        faults: tuple[str, ...] = (),
        most_steps: int = 5000,
        most_faults: int = 3,
        appendfsync: str = "everysec",
        prefers: Callable[[list[str]], list[float]] | None = None,
        traced: bool = False,
    ) -> None:
        self.choices = choices
        self.most_steps, self.most_faults = most_steps, most_faults
        self.appendfsync = appendfsync
        self.changes: tuple[Callable[[], object], ...] = ()
        self.numbers = random.Random(choices.seed)
        self.seconds = 1.0
        self.servers: dict[str, SimulatedServer] = {}
        self.processes: list[SimulatedProcess] = []
        self.observer = SimulatedProcess("", self.now)
        self.observer.immediate = True
        self.history: list[RecordedCall] = []
        self.events: list[TraceRow] | None = [] if traced else None
        self.steps = 0
        self.fault_count = 0
        self.sentinels: Any = None  # a `SimulatedSentinels`, if there are any
        self.faults = faults
        self._prefers = prefers
        self._keeps_log = bool({"crash", "failover", "two_masters"} & set(faults))
        self._wires: list[Wire] = []
        self._observers: list[Wire] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = count()
        self._acting: Clock = self.observer.clock
        self._last = 0
        self._began = 0.0
        self._names = script_names() if traced else {}
        # How often anything but the ordinary course is chosen differs from run to run.
        self._fault_chance = choices.random.choice((0.0, 0.02, 0.1, 0.3)) if faults else 0.0
        self._switch_chance = choices.random.choice((0.1, 0.4, None))

    def now(self) -> float:
        """Return the time of the simulation, in seconds."""
        return self.seconds

    def clock(self) -> Clock:
        """Return the clock of the process that runs."""
        return self._acting

    def sleep(self, seconds: float) -> None:
        """Wait: a fiber hands over; other code takes all others' time as well."""
        fiber = Fiber.current
        if fiber is not None:
            until = self.seconds + max(0.0, seconds) / fiber.process.clock.rate
            fiber.wait(None, until)
        else:
            self.seconds += max(0.0, seconds)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (self.seconds + seconds, next(self._timer_count), callback))

    # ---- servers and connections

    def server(self, address: str) -> SimulatedServer:
        """Return the server at an address; it is made if there is none."""
        known = self.servers.get(address)
        if known is None:
            known = self.servers[address] = SimulatedServer(address, self.now, self._keeps_log)
        return known

    def make_cluster(self, address: str) -> None:
        """Make the servers at an address and at the ports after it a cluster, unless they are."""
        if self.server(address).role is not None:
            return
        host, _, port = address.rpartition(":")
        nodes: list[SimulatedNode] = []
        for n in range(NODES):
            server = self.server(f"{host}:{int(port) + n}")
            server.role = SimulatedNode(server, nodes)

    def connect_delay(self, process: SimulatedProcess, address: str) -> float:
        """Return how long connecting takes; 0 if it is done at once.

        Raises:
            ConnectionRefusedError: the server is down.
        """
        if not process.immediate:
            until = max(process.cut_off.get(address, 0.0), process.deaf_to.get(address, 0.0))
            if until > self.seconds:
                return until - self.seconds
            if not self.server(address).up:
                raise ConnectionRefusedError(111, "Connection refused")
        return 0.0

    def open_wire(
        self,
        process: SimulatedProcess,
        address: str,
        db: int,
        receive: Callable[[bytes | None], None],
    ) -> Wire:
        """Connect a process to a server."""
        wire = Wire(process, self.server(address), db, receive)
        (self._observers if process.immediate else self._wires).append(wire)
        return wire

    def disconnect(self, server: SimulatedServer, staying: Iterable[Wire] = ()) -> None:
        """Close the connections to a server, but for some."""
        for wire in self._wires + self._observers:
            if wire.server is server and wire not in staying:
                wire.close_server()

    def connections(self, number: int) -> list[str]:
        """Return the addresses to which a process has connections."""
        process = self.processes[number]
        wires = [wire for wire in self._wires if wire.process is process and wire.client_open]
        return [wire.server.address for wire in wires]

    def note(self, actor: str, text: str) -> None:
        """Add a line to the timeline."""
        if self.events is not None:
            self.events.append(TraceRow(self.seconds, actor, text))

    def as_observer(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function whose requests are executed at once."""
        acting, self._acting = self._acting, self.observer.clock
        try:
            return function(*args)
        finally:
            self._acting = acting

    # ---- the scheduler

    @property
    def last(self) -> SimulatedProcess:
        """The process of the last step."""
        return self.processes[self._last]

    def run(self, is_over: Callable[[], bool], after_step: Callable[[bool], None]) -> None:
        """Run until all clients have ended (``is_over``), and all that was sent has arrived.

        ``after_step`` is called after each step, with whether what servers hold has changed.

        Raises:
            EndlessRun: it would not end.
        """
        self._began = self.seconds + STEP / 2
        while True:
            units = self._units()
            if not units:
                over = is_over()
                next_time = self._next_time(over)
                if next_time == float("inf"):
                    if over:
                        return
                    raise EndlessRun(f"waits for ever: {', '.join(self._waiting())}")
                self.seconds = max(self.seconds, next_time)
                self._fire_timers()
                continue
            self.steps += 1
            if self.steps > self.most_steps:
                raise EndlessRun(
                    f"does not end within {self.most_steps} steps: {', '.join(self._waiting())}"
                )
            self.seconds += STEP
            if self._timers:
                self._fire_timers()
            unit = units[self._choose(units)]
            if isinstance(unit, Wire):
                if not unit.server_open:
                    continue  # a timer has closed it just now
                self._last = unit.process.number
                self._deliver(unit)
            else:
                self._last = unit.number
                self._resume(unit)
            changed = [server.take_changed() for server in self.servers.values()]
            after_step(any(changed))

    def _units(self) -> list[SimulatedProcess | Wire]:
        """Return the units that can run; the one that ran last comes first."""
        units: list[SimulatedProcess | Wire] = []
        processes, count = self.processes, len(self.processes)
        ready: list[list[Wire]] = [[] for _ in processes]
        closed = False
        for wire in self._wires:
            if wire.requests:
                if wire.due <= self.seconds:
                    ready[wire.process.number].append(wire)
            elif not wire.client_open:
                wire.close_server()
                closed = True
        if closed:
            self._wires = [wire for wire in self._wires if wire.server_open]
        for number in range(self._last, self._last + count):
            process = processes[number % count]
            if process.runnable() is not None:
                units.append(process)
            units += ready[number % count]
        return units

    def _choose(self, units: list[SimulatedProcess | Wire]) -> int:
        if len(units) == 1:
            return 0
        if self._prefers is not None:
            return self.choices.weighted(self._prefers([self._step_name(u) for u in units]))
        return self.choices.draw(len(units), self._switch_chance)

    @staticmethod
    def _step_name(unit: SimulatedProcess | Wire) -> str:
        if isinstance(unit, SimulatedProcess):
            return unit.name
        name, *args = unit.requests[0]
        return f"{unit.process.name}>{unit.server.address}:{name!r}{args[:1] and args[0][:8]!r}"

    def _next_time(self, over: bool) -> float:
        """Return when anything can run; of clients only while they have not ended."""
        times = [wire.due for wire in self._wires]
        if not over or any(wire.requests for wire in self._wires):
            times += [timer[0] for timer in self._timers[:1]]
        if not over:
            times += [process.next_time() for process in self.processes]
            times += [server.next_timeout() for server in self.servers.values() if server.up]
        return min(times, default=float("inf"))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.seconds:
            heapq.heappop(self._timers)[2]()
        for server in self.servers.values():
            if server.next_timeout() <= self.seconds:
                self._acting = server.clock
                server.end_blocked()

    def _waiting(self) -> Iterable[str]:
        return [process.name for process in self.processes if process.fibers or process.loop]

    def _resume(self, process: SimulatedProcess) -> None:
        self._acting, SimulatedProcess.current = process.clock, process
        unit = process.runnable()
        assert unit is not None
        try:
            unit.resume()
        finally:
            self._acting, SimulatedProcess.current = self.observer.clock, None

    def _deliver(self, wire: Wire) -> None:
        if self.faults and self.fault_count < self.most_faults:
            chosen = self.choices.draw(len(self.faults) + 1, self._fault_chance)
            if chosen:
                self.fault_count += 1
                if self._inject(self.faults[chosen - 1], wire) or not wire.requests:
                    return  # a failover, for one, closes the connections of its master
        by_command = len(wire.requests) > 1 and self.choices.draw(2, 0.2)
        self._execute(wire)
        while not by_command and wire.requests and wire.usable:
            self._execute(wire)

    def _execute(self, wire: Wire) -> None:
        self._acting = wire.server.clock
        if self.events is None:
            wire.deliver()
            return
        replies: list[bytes] = []
        wire.listen(replies)
        args = wire.deliver()
        answer = replies[-1] if replies else b"(blocks)"
        name = wire.process.name
        lost = "" if wire.client_open and not wire.muted else ", nobody reads it"
        self.note(
            wire.server.address,
            f"{name}: {describe(args, self._names)} → {_shown(answer)}{lost}",
        )

    # ---- faults

    def _inject(self, fault: str, wire: Wire) -> bool:
        """Have a fault happen; return whether it comes in place of the delivery."""
        process, server = wire.process, wire.server
        note = self.note
        if fault == "lose_command":
            note(process.name, f"⚡ connection to {server.address} breaks, nothing arrived")
            wire.close_server()
        elif fault == "lose_answer":
            wire.muted = True
            note(process.name, f"⚡ connection to {server.address} breaks, the answer is lost")
            self._execute(wire)
            while wire.requests and wire.usable:
                self._execute(wire)
            wire.muted = False
            wire.close_server()
        elif fault == "late":
            seconds = self.choices.one_of((6.0, 0.5, 60.0))
            note(server.address, f"⚡ what {process.name} sent arrives {seconds:g} s late")
            wire.not_before = self.seconds + seconds
        elif fault == "never":
            note(server.address, f"⚡ what {process.name} sent never arrives")
            wire.muted = True
            wire.requests.clear()
        elif fault == "kill":
            note(process.name, "⚡ killed")
            self.kill(process)
        elif fault == "freeze":
            seconds = self.choices.one_of(_WAITS)
            note(process.name, f"⚡ frozen for {seconds:g} s")
            process.frozen_until = self.seconds + seconds
            return False
        elif fault == "stall":
            if process.loop is None:
                return False
            seconds = self.choices.one_of(_WAITS)
            stopped = bool(self.choices.draw(2))
            note(
                process.name, f"⚡ event loop {'stopped' if stopped else 'blocked'}, {seconds:g} s"
            )
            process.loop.hold_up(seconds, stopped=stopped)
            return False
        elif fault == "cancel":
            if process.loop is None or not process.loop.cancel_main():
                return False
            note(process.name, "⚡ cancelled")
            return False
        elif fault == "deaf":
            self._deafen(wire, self.choices.one_of(_WAITS))
            return False
        elif fault in ("crash", "failover", "two_masters"):
            self._crash(server, fault)
        elif fault == "cut_off":
            seconds = self.choices.one_of(_WAITS)
            note(process.name, f"⚡ cut off from {server.address} for {seconds:g} s")
            process.cut_off[server.address] = self.seconds + seconds
        elif fault in ("read_only", "full", "not_ready"):
            self._refuse(server, fault)
            return False
        elif fault in ("clock", "drift"):
            self._change_clock(wire, fault)
            return False
        elif fault == "time":
            seconds = self.choices.one_of((1.0, 10.0, 60.0, 3600.0, 86_400.0))
            note("", f"⚡ everything stands still for {seconds:g} s")
            self.seconds += seconds
            return False
        elif fault == "sentinels_fail_over":
            if self.sentinels is not None:
                self.sentinels.fail_over()
            return False
        elif fault == "entry":
            if self.changes:
                change = self.choices.one_of(self.changes)
                note("", f"⚡ {getattr(change, '__name__', 'an entry changes')}")
                self.as_observer(change)
            return False
        else:
            raise ValueError(f"no fault is called {fault!r}; there are {', '.join(EVERYTHING)}")
        return True

    def kill(self, process: SimulatedProcess) -> None:
        """Kill a process: what it has sent may still arrive."""
        process.dead = True
        for wire in self._wires:
            if wire.process is process:
                wire.close_client()

    def _crash(self, server: SimulatedServer, fault: str) -> None:
        policy = self.appendfsync
        if fault in ("failover", "two_masters"):
            since = self.seconds - self.choices.one_of((0.0, 2 * STEP, 10 * STEP, 1.0))
            since = max(since, self._began)  # replicas have what was prepared
        elif policy == "always":
            since = self.seconds
        elif policy == "everysec":
            since = self.seconds - self.choices.one_of((0.0, 2 * STEP, 10 * STEP, 1.0))
        else:
            since = 0.0
        staying = self._wires if fault == "two_masters" else []
        staying = [wire for wire in staying if wire.server is server]
        self.disconnect(server, staying)
        lost = server.lose(since, self.set_time)
        self._acting = self.observer.clock
        what = "crashes" if fault == "crash" else "a replica takes over"
        self.note(server.address, f"⚡ {what}, the last {lost} writes are lost")
        if staying:
            seconds = self.choices.one_of(_WAITS)
            self.note(server.address, f"who is connected stays with the old master, {seconds:g} s")

            def demote() -> None:
                self.note(server.address, "the old master is one no longer, its data is dropped")
                for wire in staying:
                    wire.close_server()

            self.after(seconds, demote)
        if fault == "crash":
            server.up = False
            seconds = self.choices.one_of((0.05, 1.0, 10.0))

            def restart() -> None:
                server.up = True
                self.note(server.address, "is up again")

            self.after(seconds, restart)

    def _deafen(self, wire: Wire, seconds: float) -> None:
        process, server = wire.process, wire.server
        self.note(process.name, f"⚡ hears nothing from {server.address} for {seconds:g} s")
        process.deaf_to[server.address] = self.seconds + seconds
        deaf = [wire for wire in self._wires if wire.process is process and wire.server is server]
        deaf = [wire for wire in deaf if wire.held is None]
        for wire in deaf:
            wire.held = []

        def resume() -> None:
            for wire in deaf:
                wire.release()

        self.after(seconds, resume)

    def set_time(self, seconds: float) -> None:
        """Set the time, to that of what is executed again."""
        self.seconds = seconds

    def _refuse(self, server: SimulatedServer, fault: str) -> None:
        seconds = self.choices.one_of((0.005, 1.0, 10.0))
        text = "READONLY You can't write against a read only replica."
        if fault == "full":
            text = "OOM command not allowed when used memory > 'maxmemory'."
        elif fault == "not_ready":
            text = self.choices.one_of(_NOT_READY)
        server.refuses, server.reads = text.encode(), fault != "not_ready"
        what = "writes" if server.reads else "everything"
        self.note(server.address, f"⚡ refuses {what} for {seconds:g} s: {text.split()[0]}")

        def accept() -> None:
            server.refuses, server.reads = b"", True
            self.note(server.address, f"accepts {what} again")

        self.after(seconds, accept)

    def _change_clock(self, wire: Wire, fault: str) -> None:
        whose = self.choices.draw(2)
        name, clock = (
            (wire.process.name, wire.process.clock)
            if whose
            else (wire.server.address, wire.server.clock)
        )
        if fault == "drift":
            clock.drift(self.choices.one_of((0.999, 1.001, 0.9, 1.1)))
            self.note(name, f"⚡ clock takes {clock.rate:g} s for a second")
            return
        seconds = self.choices.one_of((-60.0, 60.0, -3600.0, 3600.0))
        clock.offset += seconds
        self.note(name, f"⚡ clock jumps by {seconds:+g} s")

    def fork(self, process: SimulatedProcess) -> None:
        """Replace a process by its own forked child.

        What its parent sent may still arrive. The parent's connections are there, but are not the
        child's to use.
        """
        process.fork()
        for wire in [wire for wire in self._wires if wire.process is process]:
            wire.inherited = True
            wire.close_client()
        self.note(process.name, "forks, and goes on as the child")
        forks.renew()

    def close(self) -> None:
        """Drop everything that is left."""
        for process in self.processes:
            process.end()
        for wire in self._wires:
            wire.close_client()
        self._wires.clear()

    def digest(self) -> int:
        """Return a number that tells the state of the servers and clients from most others."""
        return hash(
            (
                tuple(server.data.digest() for server in self.servers.values()),
                tuple(len(wire.requests) for wire in self._wires),
                tuple(process.dead for process in self.processes),
            )
        )


def _shown(reply: bytes) -> str:
    if reply.startswith(b"$-1"):
        return "nil"
    if reply[:1] in b":+-":
        return reply[1:-2].decode(errors="replace")
    if reply.startswith(b"$"):
        text = reply.partition(b"\r\n")[2][:-2].decode(errors="backslashreplace")
        return text if len(text) < 30 else f"{text[:27]}…"
    if reply.startswith(b"*"):
        count = reply[1:].partition(b"\r\n")[0].decode()
        return f"[{count} values]"
    return reply.decode(errors="replace")
