"""Protocols: what clients do and what must hold, and running it under many schedules."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import shutil
import textwrap
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, TypeVar

from redis.exceptions import RedisError, ResponseError

from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push
from shardkit.errors import (
    CommandRefused,
    ConfigServerError,
    DamagedDataError,
    ShardErrors,
    ShardUnavailable,
)
from shardkit.kit.kit import AsyncShardKit, ShardKit, _source as source_of
from shardkit.network.topology import FixedMap
from shardkit.operations import forks
from shardkit.operations.arguments import Seconds, check_integer
from shardkit.structures.base.arguments import wait_seconds
from shardkit.structures.base.server_clock import ServerClock
from shardkit.testing.simulation.choices import Choices, from_text, shrink, to_text
from shardkit.testing.simulation.connections import SimulatedConnector
from shardkit.testing.simulation.linearizability import Model, RecordedCall, check_linearizable
from shardkit.testing.simulation.processes import Fiber, SimulatedProcess
from shardkit.testing.simulation.replication import SimulatedSentinels, replicate
from shardkit.testing.simulation.threads import simulated_threads
from shardkit.testing.simulation.virtual_time import virtual_time
from shardkit.testing.simulation.world import CLIENTS, NETWORK, World

T = TypeVar("T")

# Of a timeline.
_TIME = 11
_MOST_ROWS = 400


class SimulationFailure(AssertionError):
    """A schedule under which a protocol fails.

    Attributes:
        schedule: the shrunk schedule, for `replay`.
        seed: the seed that found it.
        timeline: what happened, as text.
    """

    def __init__(self, text: str, schedule: str, seed: int, timeline_: str) -> None:
        super().__init__(text)
        self.schedule = schedule
        self.seed = seed
        self.timeline = timeline_


class Client:
    """A client of a protocol: its kit, and the calls by which it reports to the simulation.

    Attributes:
        kit: a kit of its own: `ShardKit` for a function, `AsyncShardKit` for a coroutine function.
        name: as the timeline has it.
        number: the how manyth client it is, from 0.
    """

    def __init__(
        self, world: World, process: SimulatedProcess, kit: Any, make_awaiting: Callable[[], Any]
    ) -> None:
        self.kit = kit
        self.name = process.name
        self.number = len(world.processes) - 1
        self._make_awaiting = make_awaiting
        self._process = process
        self._world = world

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: Hashable = "",
        name: str | None = None,
    ) -> Any:
        """Return a function's result, and record the call for the model and the timeline.

        Args:
            function: the function to call; await the result of a coroutine function.
            key: calls of different keys are checked apart.
            name: what the model calls it; None for the function's own name.
        """
        world = self._world
        named = name or str(getattr(function, "__name__", "call"))
        record = RecordedCall(self.name, named, args, key, world.steps)
        world.history.append(record)
        if world.events is not None:
            world.note(self.name, f"▸ {named}({', '.join(map(repr, args))})")
        try:
            result = function(*args)
        except BaseException as error:
            self._failed(record, error)
            raise
        if inspect.isawaitable(result):
            return self._awaited(record, result)
        return self._ended(record, result)

    async def _awaited(self, record: RecordedCall, waiting: Any) -> Any:
        try:
            result = await waiting
        except BaseException as error:
            self._failed(record, error)
            raise
        return self._ended(record, result)

    def _ended(self, record: RecordedCall, result: T) -> T:
        record.result, record.ended = result, self._world.steps
        if self._world.events is not None:
            self._world.note(self.name, f"◂ {result!r}")
        return result

    def _failed(self, record: RecordedCall, error: BaseException) -> None:
        if self._world.events is not None:
            self._world.note(self.name, f"◂ {type(error).__name__}")
        if isinstance(error, Exception) and not is_outage(error):
            self._world.history.remove(record)  # refused: it had no effect

    def choose(self, options: Sequence[T]) -> T:
        """Return one of some values, by the schedule; the first is the ordinary one."""
        return self._world.choices.one_of(options)

    def log(self, text: str) -> None:
        """Add a line to the timeline."""
        self._world.note(self.name, text)

    def fork(self) -> None:
        """Go on as a forked child, of a blocking client that is the only one of its protocol.

        Its other threads are gone, whatever they hold; its parent's connections are not its own,
        and using one is a failure.
        """
        self._world.fork(self._process)

    def awaiting_kit(self) -> Any:
        """Return an `AsyncShardKit`, of a blocking client that runs event loops; see `run_loop`."""
        return self._make_awaiting()

    def run_loop(self, main: Coroutine[Any, Any, T], *, shut_down: bool = True) -> T:
        """Run a coroutine in an event loop of its own, as asyncio.run does; of a blocking client.

        Args:
            shut_down: whether asynchronous generators are shut down before the loop is closed;
                those who only close their loops forget to.
        """
        process, fiber = self._process, Fiber.current
        assert fiber is not None, "a blocking client runs loops"
        task = process.start_awaiting(main)
        loop = process.loop
        assert loop is not None
        fiber.wait(task.done, float("inf"))
        if shut_down:
            fiber.wait(loop.create_task(loop.shutdown_asyncgens()).done, float("inf"))
        loop.end()
        process.loop = None
        return task.result()

    @property
    def connections(self) -> list[str]:
        """The addresses of the servers to which its process has connections."""
        return self._world.connections(self.number)

    @property
    def time(self) -> float:
        """The true time, in seconds since the simulation began; clocks may tell another one."""
        return self._world.seconds


class Protocol:
    """A protocol to simulate: subclass it, and define clients and checks. All else has defaults.

    Attributes:
        clients: how many run `client`. Override `client_functions` for clients of several kinds.
        shards: how many shards the component ``data`` has, each on a server of its own.
        shard_map: another map, as YAML text or a `ShardMap`.
        config_server: whether kits read their entries from a simulated config server, to which the
            map is pushed, in place of knowing the map.
        replicating: addresses of servers that can replicate each other; at first all are masters.
        sentinels: addresses of Sentinels of the service ``main``, whose servers are those that
            replicate: at first the first is the master, and the others follow it.
        faults: what may happen, by name; docs/simulation.md lists the names.
        most_faults: how many there may be in one run.
        appendfsync: what a crash loses: "always" nothing, "everysec" up to the last second, "no"
            everything.
        most_steps: how many steps a run may take.
        model: the recorded calls must be linearizable to it; None for no such check.
    """

    clients: int = 2
    shards: int = 2
    shard_map: ClassVar[str | ShardMap | None] = None
    config_server: bool = False
    replicating: tuple[str, ...] = ()
    sentinels: tuple[str, ...] = ()
    faults: tuple[str, ...] = NETWORK + CLIENTS
    most_faults: int = 3
    appendfsync: str = "everysec"
    most_steps: int = 5000
    model: Model | None = None

    def setup(self, kit: ShardKit) -> None:
        """Prepare the data, before the first step and without faults."""

    def client(self, client: Client) -> Any:
        """Do what a client does: a function that blocks, or a coroutine function."""
        raise NotImplementedError

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        """Return the functions that clients run, one for each client."""
        return [self.client] * self.clients

    def changes(self) -> Sequence[Callable[[ShardKit], object]]:
        """Return what the fault "entry" may do, such as a push; each gets a kit."""
        return ()

    def invariant(self, kit: ShardKit) -> None:
        """Check what must always hold. Its requests are no steps.

        Called after each step that changed what servers hold, and in the end.
        """

    def at_end(self, kit: ShardKit) -> None:
        """Check what must hold when all clients have ended and all that was sent has arrived."""

    def is_done(self, kit: ShardKit) -> bool:
        """Whether all clients that came to their end have done what they are for."""
        return True

    def allows(self, error: Exception) -> bool:
        """Whether a client may end with an error; by default with those of faults."""
        return is_outage(error)


@dataclass
class SimulationReport:
    """The figures of a simulation.

    Attributes:
        done: under how many schedules all clients came to their end and `Protocol.is_done`.
        seconds: how long it took, in real time.
        states: how many distinct states of servers and clients were seen; 0 if not counted.
        growth: after how many schedules there were how many states.
    """

    schedules: int = 0
    done: int = 0
    steps: int = 0
    faults: int = 0
    seconds: float = 0.0
    states: int = 0
    growth: tuple[tuple[int, int], ...] = ()


def is_outage(error: BaseException) -> bool:
    """Whether an error is what clients must expect of servers and networks that fail."""
    if isinstance(error, DamagedDataError):
        return False
    if isinstance(error, ShardErrors | BaseExceptionGroup):
        return all(map(is_outage, error.exceptions))
    if isinstance(error, CommandRefused):
        return str(error.error).startswith(_REFUSALS) or _refuses(error.error)
    if isinstance(error, ResponseError):
        return _refuses(error)
    return isinstance(
        error,
        ShardUnavailable | ConfigServerError | RedisError | OSError | asyncio.CancelledError,
    )


_REFUSING = (
    *("ReadOnlyError", "OutOfMemoryError", "BusyLoadingError"),
    *("ClusterDownError", "TryAgainError", "MasterDownError"),
)
_REFUSALS = ("OOM", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "You can't")


def _refuses(error: object) -> bool:
    return type(error).__name__ in _REFUSING or str(error).startswith(_REFUSALS)


CONFIG_ADDRESS = "config:6379"
CONFIG_SERVER = Entry({"host": "config", "port": 6379}, "config server")
_pushes: dict[int, tuple[ShardMap, list[list[bytes]]]] = {}
_maps: dict[Any, ShardMap] = {}


def _map_of(protocol: Protocol) -> ShardMap:
    given = protocol.shard_map
    if isinstance(given, ShardMap):
        return given
    key = given or protocol.shards
    if key not in _maps:
        shards = ", ".join(f"{{host: data, port: {n}}}" for n in range(1, protocol.shards + 1))
        text = given or f"components: {{data: {{entry: {{host: home}}, shards: [{shards}]}}}}"
        _maps[key] = ShardMap.parse(text, "the simulation's map")
    return _maps[key]


def _commands_of_push(shard_map: ShardMap) -> list[list[bytes]]:
    """Return what a config server executes when a map is pushed to it first.

    Each run begins with it; to push takes longer than many a schedule.
    """
    if id(shard_map) not in _pushes:
        world = World(Choices(0), faults=("crash",))
        with virtual_time(world.clock, world.sleep, world.numbers), simulated_threads():
            connector = SimulatedConnector(world, world.observer)
            source: Any = source_of(CONFIG_SERVER, {"connector": connector})[0]
            push(source.client(), shard_map)
        _pushes[id(shard_map)] = shard_map, world.server(CONFIG_ADDRESS).log
    return _pushes[id(shard_map)][1]


class _Run:
    def __init__(
        self,
        protocol: Protocol,
        choices: Choices,
        *,
        prefers: Callable[[list[str]], list[float]] | None = None,
        traced: bool = False,
        states: set[int] | None = None,
    ) -> None:
        self.protocol = protocol
        self.states = states
        self.is_done = False
        self.map = _map_of(protocol)
        self.names: list[str] = []
        self._ended: list[Callable[[], bool]] = []
        self._kits: list[tuple[Any, SimulatedProcess]] = []
        self.world = World(
            choices,
            faults=protocol.faults,
            most_steps=protocol.most_steps,
            most_faults=protocol.most_faults,
            appendfsync=protocol.appendfsync,
            prefers=prefers,
            traced=traced,
        )

    def execute(self) -> None:
        world, protocol = self.world, self.protocol
        pushing = _commands_of_push(self.map) if protocol.config_server else []
        with (
            virtual_time(world.clock, world.sleep, world.numbers),
            simulated_threads(),
            _parts_of_this_run(),
            _logged_to(world),
        ):
            source: Any = CONFIG_SERVER if protocol.config_server else FixedMap(self.map)
            observer = self._kit(world.observer, ShardKit, source)
            try:
                if pushing:
                    world.server(CONFIG_ADDRESS).load(pushing)
                servers = replicate(world, *protocol.replicating)
                if protocol.sentinels:
                    world.sentinels = SimulatedSentinels(world, protocol.sentinels, servers)
                protocol.setup(observer)
                world.changes = tuple(
                    wraps(change)(partial(change, observer)) for change in protocol.changes()
                )
                for number, function in enumerate(protocol.client_functions()):
                    self._start(number, function)
                checks = type(protocol).invariant is not Protocol.invariant

                def after_step(changed: bool) -> None:
                    self._raise_failures(world.last)
                    if checks and changed:
                        world.as_observer(protocol.invariant, observer)
                    if self.states is not None:
                        self.states.add(world.digest())

                world.run(lambda: all(ended() for ended in self._ended), after_step)
                self._raise_failures()
                for server in world.servers.values():
                    server.up, server.refuses = True, b""
                if world.sentinels is not None:
                    world.sentinels.agree()
                if checks:
                    world.as_observer(protocol.invariant, observer)
                world.as_observer(protocol.at_end, observer)
                ended = all(not p.dead and p.failure is None for p in world.processes)
                self.is_done = ended and world.as_observer(protocol.is_done, observer)
                if protocol.model is not None:
                    check_linearizable(world.history, protocol.model)
            finally:
                self._close()

    def _kit(self, process: SimulatedProcess, kind: type[Any], source: Any, **options: Any) -> Any:
        connector = SimulatedConnector(self.world, process)
        if isinstance(source, Entry):
            opened_source, clients = source_of(source, {"connector": connector})
            options["config_clients"] = clients
            source = opened_source
        clock = ServerClock(process.clock.monotonic)
        kit = kind(source, connector=connector, clock=clock, **options)
        kit.topology._clock = process.clock.monotonic
        self._kits.append((kit, process))
        return kit

    def _start(self, number: int, function: Callable[[Client], Any]) -> None:
        world = self.world
        functions = getattr(function, "__name__", "client")
        name = f"{functions} {number + 1}"
        process = SimulatedProcess(name, world.now, number)
        world.processes.append(process)
        self.names.append(name)
        source: Any = CONFIG_SERVER if self.protocol.config_server else FixedMap(self.map)
        awaits = inspect.iscoroutinefunction(function)
        kit = self._kit(process, AsyncShardKit if awaits else ShardKit, source)
        client = Client(world, process, kit, partial(self._kit, process, AsyncShardKit, source))
        if awaits:

            async def main() -> None:
                if self.protocol.config_server:
                    await kit.load(*self.map.components)
                await function(client)

            task = process.start_awaiting(main())
            self._ended.append(lambda: process.dead or self._task_ended(process, task))
        else:
            fiber = process.start_blocking(partial(function, client))
            self._ended.append(lambda: process.dead or fiber.done)

    @staticmethod
    def _task_ended(process: SimulatedProcess, task: asyncio.Task[Any]) -> bool:
        if not task.done():
            return False
        if not task.cancelled():
            error = task.exception()
            if error is not None and process.failure is None:
                process.failure = error
        return True

    def _raise_failures(self, of: SimulatedProcess | None = None) -> None:
        """Raise what a process failed with, or any process."""
        for process in self.world.processes if of is None else [of]:
            self._ended[process.number]()
            error = process.failure
            if error is None or getattr(error, "_allowed", False):
                continue
            if isinstance(error, Exception) and self.protocol.allows(error):
                self.world.note(process.name, f"ends: {type(error).__name__}")
                error._allowed = True  # type: ignore[attr-defined]
                continue
            if isinstance(error, asyncio.CancelledError):
                continue
            raise error

    def _close(self) -> None:
        for kit, process in self._kits[1:]:
            kit.topology.close()
            process.end()
            if process.loop is not None and isinstance(kit, AsyncShardKit):
                process.loop.finish(kit.aclose())
            elif isinstance(kit, ShardKit):
                kit.close()
        for kit, _ in self._kits[:1]:
            kit.close()
        self.world.close()


@contextmanager
def _logged_to(world: World) -> Iterator[None]:
    """Put what shardkit logs into the timeline, and nowhere else."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if world.events is not None:
                world.note("", f"log: {record.getMessage()}")

    logger = logging.getLogger("shardkit")
    before = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [Notes()], False
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = before


@contextmanager
def _parts_of_this_run() -> Iterator[None]:
    """Have a simulated fork renew what belongs to the simulation, and nothing else."""
    parts, forks._parts = forks._parts, weakref.WeakSet()
    try:
        yield
    finally:
        forks._parts = parts


def simulate(
    protocol: Protocol,
    schedules: int = 1000,
    *,
    seed: int = 0,
    seconds: Seconds | None = None,
    rare: bool = False,
    count_states: bool = False,
    shrink_runs: int = 300,
) -> SimulationReport:
    """Run a protocol under many schedules.

    Args:
        seed: the first schedule's seed; the next ones' follow.
        seconds: stop after this many seconds of real time.
        rare: prefer steps that were seldom taken so far to choosing all alike.
        shrink_runs: the most runs in which a schedule that failed is shrunk.
        count_states: count the distinct states that were seen; takes several times as long.

    Returns:
        The figures of the run.

    Raises:
        SimulationFailure: a schedule failed; it is shrunk, and shown as a timeline. Or none of
            several schedules was done.
    """
    report = SimulationReport()
    states: set[int] | None = set() if count_states else None
    preference = _RareSteps() if rare else None
    growth = []
    failed: tuple[Choices, Exception] | None = None
    limit = wait_seconds("simulate", seconds, "seconds")
    for name, number in (("schedules", schedules), ("shrink_runs", shrink_runs)):
        check_integer("simulate", name, number, 0, 2**63)
    check_integer("simulate", "seed", seed, -(2**63), 2**63)
    started = time.perf_counter()
    with _garbage_collected_by_turns() as collect:
        for number in range(schedules):
            if time.perf_counter() - started > limit:
                break
            choices = Choices(seed + number)
            run = _Run(protocol, choices, prefers=preference, states=states)
            try:
                run.execute()
            except Exception as error:
                failed = choices, error
                break
            report.schedules += 1
            report.done += run.is_done
            report.steps += run.world.steps
            report.faults += run.world.fault_count
            if states is not None:
                growth.append((number + 1, len(states)))
            del run
            collect(number)
    if failed is not None:
        raise _explained(protocol, *failed, shrink_runs) from failed[1]
    if not report.done and report.schedules > 1:
        name = type(protocol).__name__
        text = f"{name} is not done under any of {report.schedules} schedules from {seed}"
        raise SimulationFailure(f"{text}: it checks nothing", str(seed), seed, "")
    report.seconds = time.perf_counter() - started
    report.states = len(states or ())
    report.growth = tuple(growth)
    return report


@contextmanager
def _garbage_collected_by_turns() -> Iterator[Callable[[int], None]]:
    """Collect garbage between schedules only, and only theirs.

    Each schedule leaves cycles, of kits and tasks. Finding them whenever Python thinks fit takes a
    third of a simulation, as it looks at all modules too, and may run a ``__del__`` at any step.
    """

    def collect(number: int) -> None:
        if not number % 10:
            gc.collect()

    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield collect
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def replay(protocol: Protocol, schedule: str, *, show: bool = False) -> None:
    """Run a protocol under one schedule, exactly as it was run before.

    Args:
        schedule: what a failure printed, or a seed.
        show: whether to print the timeline.

    Raises:
        Exception: what fails, as it is raised.
    """
    run = _Run(protocol, from_text(schedule), traced=show)
    try:
        run.execute()
    finally:
        if show:
            print(_timeline(run))


class _RareSteps:
    """Weights that prefer steps which were seldom taken, by what came just before them."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()
        self._last = ""

    def __call__(self, names: list[str]) -> list[float]:
        weights = [1 / (1 + self._seen[self._last, name]) for name in names]
        rarest = max(range(len(names)), key=weights.__getitem__)
        self._seen[self._last, names[rarest]] += 1
        self._last = names[rarest]
        return weights


def _explained(
    protocol: Protocol, choices: Choices, error: Exception, most_runs: int
) -> SimulationFailure:
    """Shrink a schedule that failed, and describe it."""
    runs = 0

    def still_fails(taken: dict[int, int]) -> dict[int, int] | None:
        nonlocal runs
        runs += 1
        again = Choices(choices.seed, taken)
        try:
            _Run(protocol, again).execute()
        except Exception as failure:
            return again.taken if type(failure) is type(error) else None
        return None

    taken = shrink(choices.taken, still_fails, most_runs)
    schedule = to_text(choices.seed, taken)
    run = _Run(protocol, from_text(schedule), traced=True)
    shown: Exception = error
    try:
        run.execute()
    except Exception as failure:
        shown = failure
    kind = type(protocol).__name__
    lines = _timeline(run)
    last = traceback.extract_tb(shown.__traceback__)[-1]
    text = "\n".join(
        [
            f"{kind} fails under seed {choices.seed}: {type(shown).__name__}: {shown}",
            f"  in {last.filename}:{last.lineno}: {last.line}",
            "",
            f"{len(choices.taken)} choices, shrunk to {len(taken)} in {runs} runs. To replay it:",
            "",
            f"    def test_{kind.lower()}_under_schedule_{choices.seed}():",
            f"        replay({kind}(), {schedule!r})",
            "",
            lines,
        ]
    )
    return SimulationFailure(text, schedule, choices.seed, lines)


def _timeline(run: _Run) -> str:
    """Return what happened as text: clients by column, then servers by column.

    ::

           time  alice            bob              │ counters:0
           0 ms  ▸ visit('home')                   │
         0.4 ms                                    │ alice: GET home → nil
    """
    events = run.world.events or []
    width = max(80, shutil.get_terminal_size((100, 24)).columns)
    seen = {event.actor for event in events}
    left = [name for name in run.names if name in seen]
    right = [name for name in sorted(run.world.servers) if name in seen]
    columns = left + right
    if not columns:
        return ""
    room = (width - _TIME - 2) // len(columns)
    first = events[0].time if events else 0.0
    rows = [_row("time", columns, dict(zip(columns, columns, strict=True)), room, len(left))]
    shown = events[-_MOST_ROWS:]
    if len(shown) < len(events):
        rows.append(f"… {len(events) - len(shown)} earlier lines")
    for event in shown:
        seconds = event.time - first
        at = f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
        if event.actor not in columns:
            rows.append(f"{at:>{_TIME - 2}}  {event.text}")
            continue
        for n, line in enumerate(textwrap.wrap(event.text, room - 1) or [""]):
            text = line if not n else f"  {line}"[: room - 1]
            rows.append(_row("" if n else at, columns, {event.actor: text}, room, len(left)))
    return "\n".join(rows)


def _row(at: str, columns: list[str], texts: dict[str, str], room: int, left: int) -> str:
    cells = [texts.get(name, "").ljust(room)[:room] for name in columns]
    row = f"{at:>{_TIME - 2}}  {''.join(cells[:left])}│ {''.join(cells[left:])}"
    return row.rstrip()
