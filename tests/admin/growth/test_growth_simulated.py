"""The steps of moves, splits and clusters themselves, and real clients, under many schedules.

One process moves a shard, another one resumes that, as soon or late as the schedule says, and two
write and read. What simulated servers cannot tell is told in their place: their roles, and which
keys change. Simulated nodes have no ``CLIENT PAUSE``, on which nothing depends but how long writers
wait. Real servers show that who was stopped decides and copies nothing: `test_stopped_processes`,
`test_move_shards`. ``SCHEDULES=1000`` tries more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import eq
from typing import Any

import pytest
from simulated_growth import SCHEDULES, InUse, Mutation, config_of, simulated_servers

from shardkit.admin.growth import (
    MovePlan,
    gate,
    journal,
    moves,
    resume_move,
    reverse_move,
    shard_move,
    start_move,
    start_split,
)
from shardkit.admin.growth.certificate import ServerComparison
from shardkit.admin.growth.gate import fence_key
from shardkit.admin.growth.mover import Expected
from shardkit.admin.growth.relocation import ServerAddress
from shardkit.admin.growth.servers import ServerRole
from shardkit.admin.growth.shard_copy import DatabaseCopy
from shardkit.admin.growth.shard_move import ShardMover
from shardkit.errors import ConfigError, GrowthError, MissedChangesError
from shardkit.network.connections import clients, databases
from shardkit.network.connections.databases import ClientDatabase
from shardkit.testing import Client, simulate
from shardkit.testing.fakes.fakeredis_private import SimpleError, writes
from shardkit.testing.simulation.servers import SimulatedServer

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


def push_first(mover: Any) -> None:
    """Push the entries, let clients write there, and find at first that a copy is needed again."""
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
    Mutation("entries follow the decision", of, ShardMover, "_require_target", push_first, known)
    for of, known in ((ReadLate, 19), (SplitData, 458))
]
MUTATIONS += [
    Mutation("no change is missed", UntoldChanges, Capture, "require_complete", nothing, 185),
    Mutation(
        *("who has waited finds the shard of its key", SplitData, clients._Successors, "number"),
        *(lambda self, component, args: self._shard.number, 46),
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
    Mutation("all shards are closed", SplitData, gate.CopyGate, "close", close_first, 157),
]


@pytest.mark.parametrize(
    "protocol", [MovedShard, UntoldChanges, LostTarget, LostLater, SplitData, KeptSplit]
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
