"""The steps of `shardkit move server` and `shardkit failover` themselves, under many schedules.

One process moves the server or has its replica take over, another one carries on with that, as soon
or late as the schedule says, and others write and read. Simulated servers replicate each other with
delays (`shardkit.testing.simulation.replication`). ``SCHEDULES=1000`` tries more.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import combinations_with_replacement
from operator import eq
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from redis.client import Pipeline
from simulated_growth import SCHEDULES, InUse, Mutation, config_of, connectors, simulated_servers

from shardkit.admin import changes
from shardkit.admin.changes import APART, KINDS, LEASE, Change
from shardkit.admin.growth import (
    failover,
    move as server_move,
    moves,
    resume_move,
    servers,
    start_move,
)
from shardkit.admin.growth.journal import push_relocation
from shardkit.admin.growth.relocation import ServerAddress, address_of
from shardkit.config.store import read_components
from shardkit.errors import GrowthError
from shardkit.testing import Client, Protocol, SimulationFailure, simulate
from shardkit.testing.simulation.protocol import is_outage

OLD, NEW = ServerAddress("old", 1), ServerAddress("new", 2)
HOLD = 3.0
T = TypeVar("T")


class Replaced(InUse):
    """A server is replaced by another one."""

    replicating = (str(OLD), str(NEW))
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
        if named == OLD and self.new.master is None:
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
            self.attempted(client, lambda: resume_move(config, str(OLD), hold=HOLD))


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
            if failover.master_of(read_components(config), "data")[0] == OLD:
                failover.fail_over(config, "data", str(NEW), hold=HOLD)
            return True

        while not self.attempted(client, once):
            pass

    def is_done(self, kit: Any) -> bool:
        kit.topology.expire()
        return address_of(kit.component("data").entry) == NEW


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
    master.execute_command("REPLICAOF", NEW.host, NEW.port)
    return 0.0


def without_a_fence(
    master: Any, *args: Any, hand_over: Callable[..., float] = servers.hand_over
) -> float:
    held = hand_over(master, *args)
    master.execute_command("REPLICAOF", "NO", "ONE")
    return held


def push_first(
    server: Any, config: Any, *args: Any, take: Callable[..., None] = servers.take_writes_alone
) -> None:
    lease: Any = SimpleNamespace(config=config, check=lambda: None, watch=lambda pipe: None)
    push_relocation(lease, OLD, NEW, eq, keep_source=False, message="")
    time.sleep(0.5)  # simulated; clients read that
    take(server, config, *args)


class CrashedAlone(Crashed):
    """The master comes back, and takes writes."""

    asks_for_replicas = False


def nobody(*args: object) -> list[Any]:
    return []


# What is left out, in which schedules that shows, and what it leads to.
MUTATIONS = [
    Mutation(  # what it lacks has it go back to the old server in some schedules
        *("writers are held", MovedServer, servers, "hand_over", without_a_hold, 509),
        "NotLinearizable|EndlessRun",
    ),
    Mutation(
        *("the source is a replica", MovedServer, server_move.ServerMover, "_require_handover"),
        *(lambda mover, old, new: old.execute_command("REPLICAOF", "NO", "ONE"), 2),
    ),
    Mutation("entries follow", MovedServer, servers, "take_writes_alone", push_first, 458),
    Mutation("writers are held", FailedOver, servers, "hand_over", without_a_hold, 148),
    Mutation("the master is a replica", FailedOver, servers, "hand_over", without_a_fence, 10),
    Mutation("entries follow roles", FailedOver, servers, "take_writes_alone", push_first, 1),
    Mutation("no writes", CrashedAlone, failover, "MOST_DOWN", failover.MOST_DOWN, 25),
    Mutation("it is fenced", Crashed, failover, "apply_fences", nobody, 0, "not fenced"),
    Mutation(
        *("entries follow roles", Crashed, servers, "take_writes_alone", push_first, 64),
        "not fenced",
    ),
]


@pytest.mark.long(3)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_each_part_of_the_real_steps_is_needed(
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
    """``CASES=all`` tries all pairs, a plain run some, by a seed that is printed."""
    pairs = [*combinations_with_replacement(KINDS, 2)]
    if os.environ.get("CASES") != "all" and "SCHEDULES" not in os.environ:
        seed = random.randrange(1_000_000)
        print(f"seed {seed}")
        pairs = random.Random(seed).sample(pairs, 20)
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
