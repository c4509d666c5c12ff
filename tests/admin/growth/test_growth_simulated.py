"""The steps of moves, splits, failovers and records themselves, and real clients, simulated.

One process moves a shard, another one resumes that, as soon or late as the schedule says, and two
write and read. What simulated servers cannot tell is told in their place: their roles, and which
keys change. Simulated nodes have no ``CLIENT PAUSE``, on which nothing depends but how long writers
wait. Simulated servers replicate each other with delays. Real servers show that who was stopped
decides and copies nothing: `test_stopped_processes`, `test_move_shards`. ``SCHEDULES=1000`` tries
more.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import combinations_with_replacement
from operator import call, eq
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest
from faces import seed
from redis.client import Pipeline

from shardkit.admin import changes
from shardkit.admin.changes import APART, KINDS, LEASE, Change
from shardkit.admin.growth import (
    MovePlan,
    failover,
    gate,
    journal,
    move as server_move,
    moves,
    resume_move,
    reverse_move,
    servers,
    shard_move,
    start_move,
    start_split,
)
from shardkit.admin.growth.certificate import ServerComparison
from shardkit.admin.growth.gate import fence_key
from shardkit.admin.growth.journal import push_relocation
from shardkit.admin.growth.mover import Expected
from shardkit.admin.growth.relocation import ServerAddress, address_of
from shardkit.admin.growth.servers import ServerRole
from shardkit.admin.growth.shard_copy import DatabaseCopy
from shardkit.admin.growth.shard_move import ShardMover
from shardkit.admin.servers import ServerIdentity
from shardkit.config.store import read_components
from shardkit.errors import ConfigError, GrowthError, MissedChangesError
from shardkit.network.connections import clients, databases
from shardkit.network.connections.databases import ClientDatabase
from shardkit.operations.steps import run_steps
from shardkit.testing import Client, Protocol, Register, SimulationFailure, simulate
from shardkit.testing.fakes.fakeredis_private import SimpleError, writes
from shardkit.testing.simulation.connections import SimulatedConnection, SimulatedConnector
from shardkit.testing.simulation.processes import SimulatedProcess
from shardkit.testing.simulation.protocol import is_outage
from shardkit.testing.simulation.servers import SimulatedServer

SCHEDULES = int(os.environ.get("SCHEDULES", "8"))
MOST_FOR_A_MUTATION = 200
connectors: dict[SimulatedProcess, SimulatedConnector] = {}


def config_of(client: Client) -> Any:
    """Return a client of the config server, for functions of growth that this process calls."""
    connectors[client._process] = SimulatedConnector(client._world, client._process)
    return client.kit.topology.source.client()


class InUse(Protocol):
    """Clients write, read and delete a key while an operator works on its server."""

    config_server = True
    shard_map: Any = "components: {data: {entry: {host: old, port: 1}}}"
    faults = ("late", "kill", "time")
    most_faults = 2
    most_steps = 20_000
    model = Register()

    def write(self, client: Client) -> None:
        router = client.kit.key_sharded("data")

        def set_(value: str) -> None:
            router["k"].set("k", value)

        def delete() -> None:
            router["k"].delete("k")

        for n in range(8):
            if n % 3 == 2:
                self.call(client, "delete", delete)
            else:
                self.call(client, "set", set_, f"{n}")
            time.sleep(client.choose([0.02, 0.3, 1.0]))
        client.kit.close()

    def read(self, client: Client) -> None:
        def get() -> Any:
            value = client.kit.key_sharded("data")["k"].get("k")
            return None if value is None else value.decode()

        for _ in range(16):
            self.call(client, "get", get)
            time.sleep(client.choose([0.01, 0.1, 0.5]))
        client.kit.close()

    def attempt(self, client: Client, function: Callable[[], Any], pause: float = 0.0) -> None:
        """Call a function of growth; if that cannot be done, wait so many simulated seconds."""
        try:
            function()
        except GrowthError as error:
            client.log(str(error))
            if pause:
                time.sleep(pause)  # simulated seconds

    def call(self, client: Client, name: str, function: Callable[..., Any], *args: str) -> None:
        """Call, and record that for the history of the key."""
        client.call(function, *args, key="k", name=name)

    def is_done(self, kit: Any) -> bool:
        phases = {each.phase for each in moves(kit.topology.source.client())}
        return phases == {"done"}

    def allows(self, error: Exception) -> bool:
        return is_outage(error)


class Mutation(NamedTuple):
    """A part of the steps that is left out, what that leads to, and a schedule that shows it."""

    what: str
    protocol: type[InUse]
    owner: Any
    name: str
    instead: Any
    known: int
    why: str = "NotLinearizable"

    def shows(self, patched: pytest.MonkeyPatch) -> None:
        """Check that without this part the protocol fails."""
        patched.setattr(self.owner, self.name, self.instead)
        with pytest.raises(SimulationFailure, match=self.why):
            simulate(self.protocol(), schedules=MOST_FOR_A_MUTATION, seed=self.known, shrink_runs=0)


@contextmanager
def simulated_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have growth work on simulated servers, and give what patches more of it."""
    with monkeypatch.context() as patched:

        @contextmanager
        def client_of(fields: Any, timeout: float = 1.0) -> Iterator[Any]:
            process = SimulatedProcess.current
            assert process is not None
            client: Any = connectors[process].blocking({**fields, "decode_responses": False})
            listed = client.client_list
            client.client_list = lambda: [{"flags": "N", **each} for each in listed()]
            try:
                yield client
            finally:
                client.connection_pool.disconnect()

        patched.setattr("shardkit.admin.growth.servers.client_of", client_of)
        patched.setattr("shardkit.admin.growth.servers.query_all", lambda queries: {})
        patched.setattr("shardkit.admin.growth.servers.same_server", eq)
        patched.setattr(
            "shardkit.admin.growth.servers.identify",
            lambda client: ServerIdentity(repr(client), repr(client)),
        )
        connect = SimulatedConnection.on_connect_check_health

        def introduce(self: Any, *args: Any, **options: Any) -> None:
            connect(self, *args, **options)
            if self.client_name:
                run_steps(self.ask([("CLIENT", "SETNAME", self.client_name)]), call)

        patched.setattr(SimulatedConnection, "on_connect_check_health", introduce)
        patched.setattr(SimulatedConnector, "shares", True)
        try:
            yield patched
        finally:
            connectors.clear()


FENCE_KEY = "config:fence"

SPLIT_KEYS = "b", "m"  # on shards 1 and 0 of two, both on shard 2 of three
OLD, NEW = ServerAddress("old", 1), ServerAddress("new", 1)
HOLD = 3.0


class Capture:
    """Tells of changed keys, as `KeyCapture` does."""

    listeners: list[Capture] = []  # noqa: RUF012 - of the one run
    is_told = True
    settings = 0  # calls of CONFIG SET
    is_refused = False  # a decision
    loses_data = False  # the target, before the entries are pushed

    def __init__(self, client: Any, databases: Sequence[int]) -> None:
        self.address = "{host}:{port}".format(**client.connection_pool.connection_kwargs)
        self.changed: dict[tuple[int, bytes], bool] = {}
        self.settings = Capture.settings
        Capture.is_told = True  # as the mover sets it
        Capture.listeners.append(self)

    def require_complete(self) -> None:
        if self.settings != Capture.settings:
            raise MissedChangesError("CONFIG SET was called", "copy again")

    def take(self, most: int | None = None) -> dict[tuple[int, bytes], bool]:
        taken, self.changed = self.changed, {}
        return taken

    def note(self, database: int, keys: Iterable[bytes]) -> None:
        self.changed.update(((database, key), True) for key in keys)

    def wait_until_told(self) -> None:
        pass

    def close(self) -> None:
        Capture.listeners.remove(self)


class MovedShard(InUse):
    """A shard is moved by a process that may be killed.

    Its clients use another database of the server, too, over the same connections.
    """

    shard_map: Any = """components: {data: {entry: {host: old, port: 1, db: 1}},
                                     other: {entry: {host: old, port: 1}}}"""

    def setup(self, kit: Any) -> None:
        Capture.listeners = []
        Capture.is_told, Capture.settings, Capture.is_refused = True, 0, False
        Capture.loses_data = False

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.move, self.resume, self.write, self.read]

    def call(self, client: Client, name: str, function: Callable[..., Any], *args: str) -> None:
        super().call(client, name, function, *args)
        with suppress(Exception):  # an outage
            client.kit.client("other").get("k")  # type: ignore[union-attr]

    def move(self, client: Client) -> None:
        config = config_of(client)
        self.attempt(client, lambda: self.start(config))

    def start(self, config: Any) -> None:
        start_move(config, ["data"], "new:1", hold=HOLD, kill=True)

    def resume(self, client: Client) -> None:
        """Carry on with what somebody else began, who was killed perhaps, or only delayed."""
        config = config_of(client)
        time.sleep(client.choose([0.5, 0.05, 2.0, 12.0]))  # simulated seconds
        while [each for each in moves(config) if each.phase != "done"]:
            self.attempt(client, lambda: resume_move(config, "data", hold=HOLD, kill=True), 1)


class LostTarget(MovedShard):
    """The target dies after the decision, and comes back empty."""

    def setup(self, kit: Any) -> None:
        super().setup(kit)
        Capture.loses_data = True


class LostLater(MovedShard):
    """The target comes back empty when the source is about to be emptied, which keeps its keys."""

    model = None
    faults = ()

    def setup(self, kit: Any) -> None:
        super().setup(kit)
        kit.key_sharded("data")["kept"].set("kept", 1)

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.move, self.write]

    def start(self, config: Any) -> None:
        clear = ShardMover._clear

        def lose(mover: ShardMover, *args: Any, **options: Any) -> None:
            for client in mover._new.values():
                client.flushdb()
            clear(mover, *args, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ShardMover, "_clear", lose)
            super().start(config)

    def at_end(self, kit: Any) -> None:
        old = kit._connector.blocking({"host": "old", "port": 1, "db": 1})
        assert old.get("kept") == b"1", "the only copy was emptied"

    def is_done(self, kit: Any) -> bool:
        return {each.phase for each in moves(kit.topology.source.client())} == {"pushed"}


class ReadLate(MovedShard):
    """Most reads follow the cutover."""

    def read(self, client: Client) -> None:
        time.sleep(client.choose([3.0, 2.0]))  # simulated seconds
        super().read(client)


class SplitData(MovedShard):
    """Two shards on two servers become three; clients use keys that go to different ones."""

    writes, reads = 8, 16
    pauses: Sequence[float] = (0.02, 0.3, 1.0)
    shard_map: Any = """components: {data: {shards: [{host: old, port: 1, db: 1},
                                                     {host: other, port: 1, db: 1}]},
                                     other: {entry: {host: old, port: 1}}}"""

    def start(self, config: Any) -> None:
        start_split(config, "data", shards=3, hold=HOLD, kill=True)

    def write(self, client: Client) -> None:
        router = client.kit.key_sharded("data")
        for n in range(self.writes):
            key = SPLIT_KEYS[n % 2]
            if n % 8 in (4, 5):
                self.call(
                    client, "delete", lambda key=key: router[key].delete(key) and None, key=key
                )
            else:

                def set_(value: str, key: str = key) -> None:
                    router[key].set(key, value)

                self.call(client, "set", set_, f"{n}", key=key)
            with suppress(Exception):  # an outage
                router["soon"].set("soon", n, px=300)
            time.sleep(client.choose(self.pauses))
        self.leave(client)

    def read(self, client: Client) -> None:
        router = client.kit.key_sharded("data")
        for n in range(self.reads):
            key = SPLIT_KEYS[n % 2]

            def get(key: str = key) -> Any:
                value = router[key].get(key)
                return None if value is None else value.decode()

            self.call(client, "get", get, key=key)
            time.sleep(client.choose(self.pauses) / 2)
        self.leave(client)

    def leave(self, client: Client) -> None:
        """Do what a client does at its end."""
        client.kit.close()

    def call(
        self, client: Client, name: str, function: Callable[..., Any], *args: str, key: str = "k"
    ) -> None:
        client.call(function, *args, key=key, name=name)

    def at_end(self, kit: Any) -> None:
        assert kit.key_sharded("data")["soon"].pttl("soon") != -1


class KeptSplit(SplitData):
    """And back, while the old shards are kept up to date."""

    writes, reads = 24, 80  # so that they read after the way back
    pauses = 0.4, 0.1, 1.0

    def start(self, config: Any) -> None:
        start_split(config, "data", shards=3, hold=HOLD, kill=True, keep=True)

    def leave(self, client: Client) -> None:
        """Ask for the way back, too: of three that do, two may be killed."""
        self.resume(client)
        super().leave(client)

    def resume(self, client: Client) -> None:
        config = config_of(client)

        def resume() -> None:
            with suppress(GrowthError, ConfigError):
                resume_move(config, "data", hold=HOLD, kill=True)

        time.sleep(client.choose([2.0, 0.5, 12.0]))  # simulated seconds
        for _ in range(40):
            found = moves(config)
            if found and found[0].phase == "done":
                return
            if found and found[0].phase == "kept":
                time.sleep(2)
                self.attempt(client, lambda: reverse_move(config, "data", hold=HOLD, kill=True))
            elif found:
                threading.Thread(target=resume).start()
            time.sleep(2)


class UntoldChanges(MovedShard):
    """And ``notify-keyspace-events`` is set to something else during some writes."""

    def write(self, client: Client) -> None:
        call = client.call

        def untold(*args: Any, **options: Any) -> Any:
            Capture.is_told = client.choose([True, False])
            Capture.settings += not Capture.is_told
            try:
                return call(*args, **options)
            finally:
                Capture.is_told = True

        client.call = untold  # type: ignore[method-assign]
        super().write(client)


@contextmanager
def simulated_shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have simulated servers tell of changes, too."""
    with simulated_servers(monkeypatch) as patched:
        role = ServerRole(True, None, True, 0, "", 0, (), {})
        patched.setattr(shard_move, "role_of", lambda client: role)
        patched.setattr(shard_move, "KeyCapture", Capture)
        patched.setattr(shard_move, "turn_on_notifications", lambda client: "")
        patched.setattr(shard_move, "attest", lambda components, epoch: None)
        patched.setattr(DatabaseCopy, "_without_large", lambda self, number, lists: lists)
        patched.setattr(shard_move.ShardMover, "_run_of", staticmethod(lambda clients: ""))
        places: dict[str, Any] = {"sources": ("old:1/1",), "targets": ("new:1/1",)}
        plan = MovePlan(str(OLD), str(NEW), ("data",), {}, 0, Expected(0, 0, 0), (), **places)
        patched.setattr("shardkit.admin.growth.move.plan_of", lambda *args: plan)
        names = "old:1, other:1", "new:1"
        split = MovePlan(
            *names, ("data:0", "data:1"), {}, 0, Expected(0, 0, 0), (), sources=("old:1/1",)
        )
        patched.setattr("shardkit.admin.growth.move.plan_split_of", lambda *args: split)
        patched.setattr(
            "shardkit.admin.growth.move.new_split",
            lambda *args: journal.Move(
                *("data", journal.KEYS, *names, ["data:0", "data:1"]),
                ["old:1/1", "other:1/1"],
                ["new:1/1", "new:1/2", "new:1/3"],
                ["crc32", "crc32"],
            ),
        )
        push = ShardMover._push

        def lose(mover: ShardMover, *args: Any) -> None:
            if Capture.loses_data:
                Capture.loses_data = False
                for client in mover._new.values():
                    client.flushdb()
            push(mover, *args)

        patched.setattr(ShardMover, "_push", lose)
        execute = SimulatedServer.execute

        queued: dict[Any, list[list[bytes]]] = {}

        def tell(self: SimulatedServer, socket: Any, args: list[bytes]) -> bool:
            database, commands = socket.database, [args]
            if socket.queues:
                commands = [*queued.pop(socket, ()), args]
                if args[0] != b"EXEC":
                    queued[socket], commands = commands, []
            done = execute(self, socket, args)
            for name, *rest in commands:
                if name == b"SELECT":
                    database = int(rest[0])
                elif rest and writes(name.upper()) and Capture.is_told:
                    for listener in Capture.listeners:
                        if listener.address == self.address:
                            listener.note(database, rest[:1])
            return done

        patched.setattr(SimulatedServer, "execute", tell)
        yield


def nothing(*args: Any, **options: Any) -> None:
    pass


def take_fences(capture: Capture, most: int | None = None) -> dict[tuple[int, bytes], bool]:
    fence = 1, FENCE_KEY.encode()
    return {fence: True} if capture.changed.pop(fence, False) else {}


def forget(mover: Any, copies: Any, captures: Any) -> str:
    """Take the place of `ShardMover._follow`: copy nothing back."""
    while True:
        for capture in captures.values():
            capture.take()
        record = journal.read(mover._config, "data")
        if record.phase != "kept" or record.wanted:
            return record.wanted
        time.sleep(0.5)


def close_first(
    of: Any, clients: dict[Any, Any], *args: Any, close: Any = gate.CopyGate.close
) -> None:
    """Take back the fences of all shards but the first, which tell of changes all the same."""
    close(of, clients, *args)
    [first, *others] = clients
    for place in others:
        clients[place].delete(FENCE_KEY)
    of.decide = lambda clients, value, rest: gate.make_permanent({first: clients[first]}, value)


def push_first(mover: Any, compared: Any, finish: Any = ShardMover._finish) -> None:
    """Push the entries, let clients write there, and find at first that a copy is needed again."""
    finish(mover, compared)
    for client in mover._new.values():
        client.delete(FENCE_KEY)
    shard_move.push_changed(
        mover._lease, lambda components: mover._rule.changed(components, eq), "", witnessed=False
    )
    time.sleep(2.0)  # simulated; some clients read that
    for client in mover._new.values():
        client.set(FENCE_KEY, mover._attempt)
    if not Capture.is_refused:
        Capture.is_refused = True
        raise MissedChangesError("the decision came too late", "try again")


# What is left out of the steps of moves and of splits, and which schedules show that.
MUTATIONS = [
    Mutation(what, protocol, owner, name, instead, known)
    for what, owner, name, instead, schedules in [
        ("writers are held until none is left", gate, "_wait_until_left", nothing, (36, 46)),
        ("writers wait until no reader is left", gate, "wait_for_readers", nothing, (31, 43)),
        ("readers are sent away from the source", gate.CopyGate, "turn_away", nothing, (42,)),
        ("what changes is copied again", Capture, "take", take_fences, (4, 6)),
        ("clients ask for the fence", ClientDatabase, "is_fenced", lambda *args: False, (36, 46)),
        ("connections name databases", databases, "_ranges", lambda numbers: "", (3,)),
    ]
    for protocol, known in zip((MovedShard, SplitData), schedules, strict=False)
]
MUTATIONS += [
    Mutation(  # the next attempt finds entries that were not planned, for ever
        *("entries follow the decision", of, ShardMover, "_finish", push_first, known),
        "EndlessRun",
    )
    for of, known in ((ReadLate, 4), (SplitData, 6))
]
MUTATIONS += [
    Mutation("no change is missed", UntoldChanges, Capture, "require_complete", nothing, 185),
    Mutation(
        *("who has waited finds the shard of its key", SplitData, clients._Successors, "number"),
        *(lambda self, component, args: self.shard.number, 46),
    ),
    Mutation("targets are looked at", LostTarget, ShardMover, "_lost", lambda *args: "", 3),
    Mutation(  # it refuses to empty the sources then, for ever
        *("clients find their keys", LostTarget, ShardMover, "_require_targets", nothing, 2),
        "EndlessRun",
    ),
    Mutation(
        *("targets are looked at again", LostLater, ShardMover, "_require_takeover", nothing, 0),
        "the only copy was emptied",
    ),
    Mutation("all shards are closed", SplitData, gate.CopyGate, "close", close_first, 309),
]


@pytest.mark.parametrize(
    "protocol",
    [MovedShard, UntoldChanges, LostTarget, LostLater, SplitData, KeptSplit],
)
def test_real_steps_are_safe(monkeypatch: pytest.MonkeyPatch, protocol: type[MovedShard]) -> None:
    with simulated_shards(monkeypatch):
        simulate(protocol(), schedules=SCHEDULES)


@pytest.mark.long(6)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_each_part_of_the_real_steps_is_needed(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    with simulated_shards(monkeypatch):
        mutation.shows(monkeypatch)


def test_the_reverse_copy_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison, which finds what was not copied back."""
    compare = ShardMover._caught_up

    def unseen(mover: Any, *args: Any) -> Any:
        return ServerComparison() if mover._move.undoes else compare(mover, *args)

    with simulated_shards(monkeypatch):
        monkeypatch.setattr(ShardMover, "_caught_up", unseen)
        what = "what changes is copied back"
        Mutation(what, KeptSplit, ShardMover, "_follow", forget, 28).shows(monkeypatch)


NODES = ("node:1", "node:2", "node:3")
CLOSED: dict[str, bytes] = {}  # the setting of each node


class LeftCluster(SplitData):
    """The nodes of a cluster become shards on two servers."""

    shard_map: Any = """components: {data: {entry: {cluster: true, host: node, port: 1}},
                                     other: {entry: {host: old, port: 1}}}"""
    options: dict[str, Any] = {"over": ["old:1", "other:1"]}  # noqa: RUF012 - of the one run

    def setup(self, kit: Any) -> None:
        super().setup(kit)
        CLOSED.clear()

    def move(self, client: Client) -> None:
        client._world.make_cluster(NODES[0])
        super().move(client)

    def start(self, config: Any) -> None:
        start_split(config, "data", hold=HOLD, **self.options)


class EnteredCluster(LeftCluster):
    """Two shards on two servers become the nodes of a cluster."""

    shard_map: Any = SplitData.shard_map
    options: dict[str, Any] = {"to_cluster": NODES[0]}  # noqa: RUF012 - of the one run


def a_split(components: Any, *args: Any) -> journal.Move:
    """Return the split of one of the protocols; the mover finds the nodes."""
    shards, nodes = ["old:1/1", "other:1/1"], [f"{each}/0" for each in NODES]
    names = "old:1, other:1", ", ".join(NODES)
    if components["data"].shards:
        return journal.Move(
            *("data", journal.KEYS, *names, ["data:0", "data:1"], shards, nodes),
            placements=["crc32", ""],
            clusters=["", NODES[0]],
        )
    return journal.Move(
        *("data", journal.KEYS, *reversed(names), ["data"], nodes, shards),
        placements=["", "crc32"],
        clusters=[NODES[0], ""],
    )


def set_if_marked(client: Any, value: bytes, number: str) -> bool:
    """Take the place of a transaction, in which simulated servers have no CONFIG."""
    marked = gate._SETTING, number, fence_key(client), value
    done = client.execute_command("CONFIG", "SET", *marked)
    return bool(done in (b"OK", True))


@contextmanager
def simulated_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have simulated nodes refuse writes, too."""
    with simulated_shards(monkeypatch), monkeypatch.context() as patched:
        patched.setattr("shardkit.admin.growth.move.new_split", a_split)
        patched.setattr(Capture, "expect_setting", nothing, raising=False)
        patched.setattr(gate, "persist_roles", nothing)
        patched.setattr(gate, "moving_slots", lambda client: False)
        patched.setattr(gate, "set_if_marked", set_if_marked)
        execute = SimulatedServer.execute

        def refuse(self: SimulatedServer, socket: Any, args: list[bytes]) -> bool:
            name = args[0].upper()
            if name == b"CLIENT" and args[1].upper() in (b"PAUSE", b"UNPAUSE"):
                socket.answer(b"OK")
                return True
            if self.address in NODES and name == b"CONFIG":
                if args[1].upper() == b"GET":
                    socket.answer([args[2], CLOSED.get(self.address, b"0")])
                elif len(args) < 6 or self.ask(b"GET", args[4]) == args[5]:
                    CLOSED[self.address] = args[3]
                    socket.answer(b"OK")
                else:
                    socket.answer(b"")
                return True
            if CLOSED.get(self.address, b"0") != b"0" and writes(name):
                socket.answer(SimpleError("NOREPLICAS Not enough good replicas to write."))
                return True
            return execute(self, socket, args)

        patched.setattr(SimulatedServer, "execute", refuse)
        yield


def unclosed(*args: Any) -> bool:
    return True


def only_first(
    mover: Any,
    *args: Any,
    proven: bool = False,
    require: Callable[..., None] = ShardMover._require_same,
) -> None:
    """Copy the rest before the nodes are closed, some time before, and not afterwards."""
    if not proven:
        require(mover, *args)
        time.sleep(0.5)  # simulated


def push_open(mover: Any, *args: Any, push: Callable[..., None] = ShardMover._push) -> None:
    """Leave the nodes open, and send readers away from the shards some time afterwards."""
    turn_away = mover._old_gate.turn_away

    def turn_away_later(*args: Any) -> None:
        time.sleep(0.5)  # simulated; some clients read the entries
        turn_away(*args)

    mover._new_gate.admit_readers, mover._old_gate.turn_away = nothing, turn_away_later
    push(mover, *args)


def take_marks(capture: Capture, most: int | None = None) -> dict[tuple[int, bytes], bool]:
    marks = [each for each in capture.changed if each[1].startswith(b"config:fence")]
    return {each: capture.changed.pop(each) for each in marks}


# What is left out, and in which schedules that shows.
OF_CLUSTERS = [
    Mutation("nodes are closed", LeftCluster, gate.ClusterGate, "_close_nodes", unclosed, 57),
    Mutation("late writes are copied", LeftCluster, ShardMover, "_require_same", only_first, 46),
    Mutation("what nodes change is copied again", LeftCluster, Capture, "take", take_marks, 2),
    Mutation("all know that nodes are left", LeftCluster, gate, "wait_until_read", nothing, 508),
    Mutation(
        *("the cluster takes no writes while shards are still read", EnteredCluster),
        *(ShardMover, "_push", push_open, 282),
    ),
    Mutation(
        "what shards change is copied again", EnteredCluster, Capture, "take", take_fences, 19
    ),
]


@pytest.mark.parametrize("protocol", [LeftCluster, EnteredCluster])
def test_steps_with_a_cluster_are_safe(
    monkeypatch: pytest.MonkeyPatch, protocol: type[LeftCluster]
) -> None:
    with simulated_cluster(monkeypatch):
        simulate(protocol(), schedules=SCHEDULES)


@pytest.mark.long(2)
@pytest.mark.parametrize("mutation", OF_CLUSTERS, ids=lambda mutation: mutation.what)
def test_each_part_of_the_steps_with_a_cluster_is_needed(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    with simulated_cluster(monkeypatch):
        mutation.shows(monkeypatch)


OLD_SERVER, NEW_SERVER = ServerAddress("old", 1), ServerAddress("new", 2)
T = TypeVar("T")


class Replaced(InUse):
    """A server is replaced by another one."""

    replicating = (str(OLD_SERVER), str(NEW_SERVER))
    shard_map = (
        "components: {data: {entry: {host: old, port: 1, replicas: [{host: new, port: 2}]}}}"
    )
    replicated = True

    def setup(self, kit: Any) -> None:
        self.world = kit._connector._world
        self.old, self.new = (self.world.server(each).replication for each in self.replicating)
        if self.replicated:
            self.new.fill(self.old)

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.operate, self.carry_on, self.write, self.read]

    def call(self, client: Client, name: str, function: Callable[..., Any], *args: str) -> None:
        """Continue after a call that fails as calls may fail."""
        named = address_of(client.kit.component("data").entry) if name == "get" else None
        try:
            super().call(client, name, function, *args)
        except Exception as error:
            if not self.allows(error):
                raise
        if named == OLD_SERVER and self.new.master is None:
            # A former master's reply may be behind: docs/failover.md says so.
            history = client._world.history
            mine = [each for each in history if each.client == client.name]
            history.remove(mine[-1])

    def attempted(self, client: Client, function: Callable[[], T]) -> T | None:
        """Call a function of growth; a little later again if that cannot be done."""
        try:
            return function()
        except Exception as error:
            if not (isinstance(error, GrowthError) or is_outage(error)):
                raise
            client.log(str(error))
            time.sleep(1)  # simulated seconds
            return None

    def operate(self, client: Client) -> None:
        """Begin."""
        raise NotImplementedError

    def carry_on(self, client: Client) -> None:
        """Go on with what somebody else began, who was killed perhaps, or only delayed."""
        raise NotImplementedError

    def allows(self, error: Exception) -> bool:
        # While nobody carries on with what was killed after the roles had changed, writes fail.
        return is_outage(error) and ("read only" not in str(error) or self.world.fault_count > 0)


class MovedServer(Replaced):
    """All that a server holds is moved to another one."""

    shard_map = "components: {data: {entry: {host: old, port: 1}}}"
    replicated = False

    def operate(self, client: Client) -> None:
        config = config_of(client)
        self.attempted(client, lambda: start_move(config, *self.replicating, hold=HOLD))

    def carry_on(self, client: Client) -> None:
        config = config_of(client)
        time.sleep(client.choose([0.5, 0.05, 2.0, 12.0]))  # simulated seconds
        while [each for each in moves(config) if each.phase != "done"]:
            self.attempted(client, lambda: resume_move(config, str(OLD_SERVER), hold=HOLD))


class FailedOver(Replaced):
    """A master hands over to its replica."""

    def operate(self, client: Client) -> None:
        time.sleep(client.choose([0.05, 0.5, 2.0]))  # simulated seconds
        self.fail_over(client, config_of(client))

    def carry_on(self, client: Client) -> None:
        time.sleep(client.choose([0.5, 0.05, 2.0, 12.0]))  # simulated seconds
        self.fail_over(client, config_of(client))

    def fail_over(self, client: Client, config: Any) -> None:
        def once() -> bool:
            if failover.master_of(read_components(config), "data")[0] == OLD_SERVER:
                failover.fail_over(config, "data", str(NEW_SERVER), hold=HOLD)
            return True

        while not self.attempted(client, once):
            pass

    def is_done(self, kit: Any) -> bool:
        kit.topology.expire()
        return address_of(kit.component("data").entry) == NEW_SERVER


class Crashed(FailedOver):
    """A master dies, its replica takes over, and the master comes back.

    All has been replicated when it dies: what no replica has is lost in any case.
    """

    asks_for_replicas = True

    def setup(self, kit: Any) -> None:
        super().setup(kit)
        self.has_crashed = self.is_fenced = False
        if self.asks_for_replicas:
            for each in (self.old, self.new):
                each.settings[b"min-replicas-to-write"] = b"1"

    def fail_over(self, client: Client, config: Any) -> None:
        if not self.has_crashed:
            self.has_crashed = True
            while self.new.is_behind():
                time.sleep(0.001)
            self.old.crash(client.choose([2.0, 0.5, 15.0]))
        super().fail_over(client, config)
        while not self.attempted(client, lambda: self.guard(config)):
            pass
        self.is_fenced = True

    def guard(self, config: Any) -> bool:
        """Fence the old master when it is back, as ``shardkit failover --guard``."""
        while not all(fence.applied for fence in failover.apply_fences(config)):
            time.sleep(0.3)
        return True

    def at_end(self, kit: Any) -> None:
        assert not self.is_fenced or self.old.master is self.new, "the old master was not fenced"

    def allows(self, error: Exception) -> bool:
        return super().allows(error) or "NOREPLICAS" in str(error)


@contextmanager
def replicating_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have growth work on simulated servers that replicate each other."""
    with simulated_servers(monkeypatch) as patched:
        patched.setattr(servers, "_addresses", lambda host: {host})
        patched.setattr("shardkit.admin.growth.journal.attest", lambda components, epoch: None)
        witness = "shardkit.admin.growth.journal.newest_witness"  # none: it asks real servers
        patched.setattr(witness, lambda components: (0, ""))
        rights = "shardkit.admin.growth.move_plan.missing_rights"  # nobody lacks any
        patched.setattr(rights, lambda client, commands: ())
        unknown = "shardkit.admin.growth.move_plan._unknown"  # each has all commands
        patched.setattr(unknown, lambda server, client, commands: [])
        yield patched


@pytest.mark.parametrize("protocol", [MovedServer, FailedOver, Crashed])
def test_every_schedule_is_safe(monkeypatch: pytest.MonkeyPatch, protocol: type[Replaced]) -> None:
    with replicating_servers(monkeypatch):
        simulate(protocol(), schedules=SCHEDULES // 2 if protocol is Crashed else SCHEDULES)


def without_a_hold(master: Any, replica: Any, *args: object) -> float:
    replica.execute_command("REPLICAOF", "NO", "ONE")
    master.execute_command("REPLICAOF", NEW_SERVER.host, NEW_SERVER.port)
    return 0.0


def without_a_fence(
    master: Any, *args: Any, hand_over: Callable[..., float] = servers.hand_over
) -> float:
    held = hand_over(master, *args)
    master.execute_command("REPLICAOF", "NO", "ONE")
    return held


def push_early(
    server: Any, config: Any, *args: Any, take: Callable[..., None] = servers.take_writes_alone
) -> None:
    lease: Any = SimpleNamespace(config=config, check=lambda: None, watch=lambda pipe: None)
    push_relocation(lease, OLD_SERVER, NEW_SERVER, eq, keep_source=False, message="")
    time.sleep(0.5)  # simulated; clients read that
    take(server, config, *args)


class CrashedAlone(Crashed):
    """The master comes back, and takes writes."""

    asks_for_replicas = False


def nobody(*args: object) -> list[Any]:
    return []


# What is left out, in which schedules that shows, and what it leads to.
OF_SERVERS = [
    Mutation(  # what it lacks has it go back to the old server in some schedules
        *("writers are held", MovedServer, servers, "hand_over", without_a_hold, 509),
        "NotLinearizable|EndlessRun",
    ),
    Mutation(
        *("the source is a replica", MovedServer, server_move.ServerMover, "_require_handover"),
        *(lambda mover, old, new: old.execute_command("REPLICAOF", "NO", "ONE"), 2),
    ),
    Mutation(
        *("entries follow", MovedServer, servers, "take_writes_alone", push_early, 458),
        "NotLinearizable|EndlessRun",
    ),
    Mutation("writers are held", FailedOver, servers, "hand_over", without_a_hold, 148),
    Mutation("the master is a replica", FailedOver, servers, "hand_over", without_a_fence, 10),
    Mutation("entries follow roles", FailedOver, servers, "take_writes_alone", push_early, 1),
    Mutation("no writes", CrashedAlone, failover, "MOST_DOWN", failover.MOST_DOWN, 25),
    Mutation("it is fenced", Crashed, failover, "apply_fences", nobody, 0, "not fenced"),
    Mutation(
        *("entries follow roles", Crashed, servers, "take_writes_alone", push_early, 64),
        "not fenced",
    ),
]


@pytest.mark.long(3)
@pytest.mark.parametrize("mutation", OF_SERVERS, ids=lambda mutation: mutation.what)
def test_each_part_of_a_failover_is_needed(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    with replicating_servers(monkeypatch) as patched:
        mutation.shows(patched)


class TwoOperators(Protocol):
    """Each works in steps, and looks again before each of them."""

    config_server = True
    shard_map = "components: {data: {entry: {host: old, port: 1}}}"
    faults = ("late", "kill", "freeze", "time")
    most_steps = 20_000

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def setup(self, kit: Any) -> None:
        self.at_work: dict[int, Client] = {}
        self.refused: list[str] = []

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.operate] * 2

    def operate(self, client: Client) -> None:
        config, kind = config_of(client), self.kinds[client.number]
        change = Change(kind=kind, name=kind, databases=["old:1/1"])
        time.sleep(client.choose([0.0005, 0.0, 0.1, 12.0]))  # of simulated time
        try:
            with changes.taking_part(config, change):
                for _ in range(3):
                    time.sleep(client.choose([0.001, 0.1, 6.0]))
                    began = client.time
                    changes.require_open(config, change)
                    if client.time < began + LEASE / 2:  # else it is no recent look
                        self.work(client)
                self.at_work.pop(client.number, None)
        except GrowthError as error:
            self.at_work.pop(client.number, None)
            self.refused.append(str(error))

    def work(self, client: Client) -> None:
        self.at_work[client.number] = client
        kind, other = (self.kinds[n] for n in (client.number, 1 - client.number))
        others = [each for number, each in self.at_work.items() if number != client.number]
        overlap = [each for each in others if not each._process.dead]
        assert other not in APART[kind] or not overlap, f"{kind} beside {other}"

    def at_end(self, kit: Any) -> None:
        for said in self.refused:
            named = any(f" {kind} of {kind} (" in said for kind in self.kinds)
            apart = self.kinds[1] in APART[self.kinds[0]]
            assert (named and apart) or "for longer than" in said, said

    def allows(self, error: Exception) -> bool:
        return is_outage(error)


@pytest.fixture(autouse=True)
def no_connectors() -> Iterator[None]:
    yield
    connectors.clear()


def test_no_two_kinds_overlap_that_must_not() -> None:
    """``CASES=all`` tries all pairs, a plain run some."""
    pairs = [*combinations_with_replacement(KINDS, 2)]
    if os.environ.get("CASES") != "all" and "SCHEDULES" not in os.environ:
        pairs = random.Random(seed()).sample(pairs, 20)
    reports = [simulate(TwoOperators(*kinds), SCHEDULES) for kinds in pairs]
    assert all(report.done for report in reports)


def watch_another(pipe: Any, *names: str, watch: Any = Pipeline.watch) -> Any:
    return watch(pipe, "another")


# What is left out, and a schedule that shows it.
OF_RECORDS: dict[str, tuple[Any, str, Any, int]] = {
    "the record is watched": (Pipeline, "watch", watch_another, 0),
    "others are looked for": (Change, "touches", lambda *args: False, 0),
    "it is renewed": (changes, "renewing", lambda *args: nullcontext(), 0),
    "it is looked at again": (changes, "require_open", lambda *args: None, 0),
}


@pytest.mark.parametrize("name", OF_RECORDS)
def test_each_part_of_the_record_is_needed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, part, instead, known = OF_RECORDS[name]
    monkeypatch.setattr(owner, part, instead)
    with pytest.raises(SimulationFailure, match="split beside split"):
        simulate(TwoOperators("split", "split"), 1000, seed=known, shrink_runs=0)
