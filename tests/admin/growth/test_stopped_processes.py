"""Processes that were stopped for longer than their lease wake when others have taken over.

At each step of ``test_*_at_any_step``, a place in the code that sends a command to a server.
``make kills`` tries all of them, the tests a few.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import currentframe
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import before_sending, client_of
from click.testing import CliRunner
from faces import PATIENCE, eventually, seed
from growth_helpers import PATIENT, Fleet, damage, follow, replication, small, still_there
from moments import before, killed_after_order, write_record
from redis.connection import AbstractConnection
from redis.utils import str_if_bytes

import shardkit
from shardkit import ShardKit
from shardkit.admin.changes import now_of, open_changes, text_of
from shardkit.admin.conversion.forms import Conversion
from shardkit.admin.growth import (
    Move,
    abort_move,
    attach_replica,
    fail_over,
    moves,
    resume_move,
    reverse_move,
    verify_move,
)
from shardkit.admin.growth.gate import (
    GuardedWrites,
    WriteRefusedError,
    change,
    close_for,
    fence_value,
    fences_of,
    is_permanent,
    lift,
    lift_unless_permanent,
    make_permanent,
    take,
    write_under,
)
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.cli.app import app
from shardkit.errors import ConfigError, GrowthError, ShardKitError
from shardkit.local import LocalServer
from shardkit.network.connections.connection import TcpConnection
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.structures.layouts import replan

ALL = "KILLS" in os.environ or os.environ.get("CASES") == "all"
Step = tuple[str, int, Any]


def step_of(connection: Any) -> Step | None:
    """Where in the code a command is sent, and to which server; None if not by an operator."""
    if threading.current_thread() is not threading.main_thread():
        return None
    frame: Any = currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if "/shardkit/admin/" in name:
            return name, frame.f_lineno, connection.port
        frame = frame.f_back
    return None


@contextmanager
def stopped_at(
    is_it: Callable[[list[Step], str], bool], meanwhile: Callable[[], object]
) -> Iterator[list[Step]]:
    """Have a process stop before its first command at a step; give the steps that it takes.

    ``is_it`` tells the step by those until then, and what is about to be sent.
    """
    send, steps, stopped = AbstractConnection.send_packed_command, [], False

    def asleep(connection: Any, command: Any, *args: Any, **options: Any) -> Any:
        nonlocal stopped
        step = step_of(connection)
        if step is not None and not stopped:
            if step not in steps:
                steps.append(step)
            data = command if isinstance(command, bytes | str) else b"".join(command)
            if is_it(steps, str_if_bytes(data)):
                stopped = True
                meanwhile()
        return send(connection, command, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AbstractConnection, "send_packed_command", asleep)
        yield steps


def take_over(fleet: Fleet, of_shards: bool, how: str) -> None:
    fleet.config.delete("config:growth:lease")
    name = "users:1" if of_shards else fleet.name(0)
    try:
        if how == "abort":
            with suppress(GrowthError):  # decided
                abort_move(fleet.config, name)
                return
        resume_move(fleet.config, name, hold=PATIENT)
    except ConfigError:  # it has not begun
        fleet.move(of_shards, hold=PATIENT)
    if how == "reverse":
        reverse_move(fleet.config, name, hold=PATIENT)


def anew(fleet: Fleet, replicas: tuple[int, ...] = ()) -> None:
    """Empty all servers, and describe a few keys on the first."""
    for server in fleet.servers:
        with server.client() as client:
            client.replicaof("NO", "ONE")
            client.flushall()
    fleet.config.flushall()
    for each in replicas:
        follow(fleet.servers[each], fleet.servers[0])
    fleet.push(0, replicas)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})


def check(fleet: Fleet, step: Any, written: str) -> None:
    """What was written when the other operator was done is there, and clients write."""
    for move in moves(fleet.config):
        if move.phase not in ("done", "aborted"):
            resume_move(fleet.config, move.name, hold=PATIENT)
    assert still_there(fleet), step
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for key in (f"new{n}" for n in range(9)):
            assert router[key].get(key) == written.encode(), step
            router[key].incr(key)


def every_step(
    fleet: Fleet, replicas: tuple[int, ...], work: Callable[[], object], other: Callable[[], object]
) -> None:
    anew(fleet, replicas)
    with stopped_at(lambda steps, sent: False, other) as every:
        work()
    numbers = range(1, len(every) + 1)
    for number in numbers if ALL else sorted(random.Random(seed()).sample(numbers, 2)):
        anew(fleet, replicas)

        def meanwhile(number: int = number) -> None:
            try:
                other()
            except ShardKitError as error:
                pytest.fail(f"nobody can take over at {number, steps[-1]}: {error}")
            with shardkit.connect(fleet.url) as kit:
                kit.key_sharded("users").mset({f"new{n}": number for n in range(9)})

        at_number = lambda steps, sent, number=number: len(steps) == number  # noqa: E731
        with stopped_at(at_number, meanwhile) as steps, suppress(ShardKitError):
            work()
        check(fleet, (number, steps[-1]), str(number))


@pytest.mark.long(4)
@pytest.mark.timeout(900 if ALL else 120)
@pytest.mark.parametrize("how", ["reverse", "abort", "resume"])
@pytest.mark.parametrize("of_shards", [True, False], ids=["shards", "server"])
def test_a_mover_that_wakes_at_any_step_changes_nothing(
    fleet: Fleet, of_shards: bool, how: str
) -> None:
    def work() -> None:
        fleet.move(of_shards, hold=PATIENT)

    every_step(fleet, (), work, lambda: take_over(fleet, of_shards, how))


@pytest.mark.timeout(900 if ALL else 120)
@pytest.mark.parametrize("back", [True, False], ids=["there and back", "there"])
def test_a_failover_that_wakes_at_any_step_changes_nothing(fleet: Fleet, back: bool) -> None:
    def work() -> None:
        fail_over(fleet.config, "users:0", fleet.name(1), hold=PATIENT)

    def other() -> None:
        fleet.config.delete("config:growth:lease")
        fail_over(fleet.config, "users:0", fleet.name(2), hold=PATIENT)
        if back:
            linked = lambda: replication(fleet.servers[0]).get("master_link_status")  # noqa: E731
            assert eventually(lambda: linked() == "up", 30)
            fail_over(fleet.config, "users:0", fleet.name(0), hold=PATIENT)

    every_step(fleet, (1, 2), work, other)


def test_a_failover_whose_new_master_others_have_replaced_ends(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    lower(answer_timeout=0.5)
    anew(fleet, (1, 2))

    def other() -> None:
        fleet.config.delete("config:growth:lease")
        fail_over(fleet.config, "users:0", fleet.name(2), hold=PATIENT)
        fleet.servers[1].resume()

    paused = False

    def has_ordered(steps: list[Step], sent: str) -> bool:
        nonlocal paused
        if "FAILOVER\r\n" in sent and "TIMEOUT" in sent:
            fleet.servers[1].pause()  # so that this takes longer
            paused = True
        return "GETACK" in sent and paused

    with (
        stopped_at(has_ordered, other),
        pytest.raises(GrowthError, match="another process may have replaced both"),
    ):
        fail_over(fleet.config, "users:0", fleet.name(1), hold=1.5)


ENDED = "Another process may have taken over"


def asleep(fleet: Fleet, meanwhile: Callable[[], object]) -> Callable[[], object]:
    """What others do while a mover is stopped for longer than its lease."""

    def act() -> None:
        fleet.config.delete("config:growth:lease")
        meanwhile()

    return act


def test_a_lease_is_renewed_while_it_is_held(fleet: Fleet, lower: Callable[..., None]) -> None:
    lower(change_lease=1.0)
    small(fleet)
    renewed: list[bool] = []

    def wait(said: str) -> None:
        if not renewed:
            fleet.config.pexpire("config:growth:lease", 3_600_000)
            renewed.append(eventually(lambda: fleet.config.pttl("config:growth:lease") <= 1000))

    fleet.move_server(progress=wait, hold=PATIENT)
    assert renewed == [True]
    assert not fleet.config.exists("config:growth:lease"), "others may have it"


def masters_write(fleet: Fleet) -> bool:
    """Whether the servers that entries name take writes, and have what there was."""
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for n in range(50):
            router[f"more{n}"].incr(f"more{n}")
    return still_there(fleet)


def resume_and_reverse(fleet: Fleet) -> None:
    resume_move(fleet.config, fleet.name(0), hold=PATIENT)
    reverse_move(fleet.config, fleet.name(0), hold=PATIENT)


def abort_and_move(fleet: Fleet) -> None:
    abort_move(fleet.config, fleet.name(0))
    fleet.move_server(hold=PATIENT)


def killed_and_aborted(fleet: Fleet) -> None:
    fleet.kill_move("take writes alone", of="server")
    abort_move(fleet.config, fleet.name(0))


def fail_over_to(number: int) -> Callable[[Fleet], object]:
    return lambda fleet: fail_over(fleet.config, "users:0", fleet.name(number), hold=PATIENT)


def fail_over_and_back(fleet: Fleet) -> None:
    fail_over_to(1)(fleet)
    assert eventually(lambda: replication(fleet.servers[0])["master_link_status"] == "up", 30)
    fail_over_to(0)(fleet)


def fail_over_after_a_crash(fleet: Fleet) -> None:
    fleet.servers[0].kill()
    fail_over_to(1)(fleet)


@pytest.mark.parametrize(
    ("work", "order", "meanwhile", "master"),
    [
        (Fleet.move_server, "FAILOVER", resume_and_reverse, 0),
        (Fleet.move_server, "REPLICAOF", lambda fleet: resume_move(fleet.config, fleet.name(0)), 1),
        (killed_and_aborted, "ONE", abort_and_move, 1),
        (fail_over_to(1), "FAILOVER", fail_over_and_back, 0),
        (fail_over_after_a_crash, "REPLICAOF", fail_over_to(2), 2),
    ],
    ids=["hands over", "replicates", "empties", "fails over", "promotes"],
)
def test_a_command_that_arrives_late_is_refused(
    fleet: Fleet, work: Any, order: str, meanwhile: Any, master: int
) -> None:
    """The process is stopped after its last look at the lease, and wakes when others are done."""
    small(fleet)
    if work not in (Fleet.move_server, killed_and_aborted):
        fleet.replicated(1, 2)
    is_order = lambda connection, text: f"{order}\r\n" in text and "MULTI" in text  # noqa: E731
    with (
        before_sending(is_order, asleep(fleet, lambda: meanwhile(fleet))),
        pytest.raises(GrowthError, match=ENDED),
    ):
        work(fleet)
    assert fleet.masters() == [fleet.name(master)] * 2
    assert masters_write(fleet)


def test_a_failover_ends_another_ones_handover(fleet: Fleet) -> None:
    small(fleet)
    fleet.replicated(1, 2)
    with killed_after_order("FAILOVER"):
        fail_over_to(1)(fleet)
    fail_over_to(2)(fleet)
    assert fleet.masters() == [fleet.name(2)] * 2
    assert masters_write(fleet)


@pytest.mark.parametrize("kind", ["set", "rpush"])
def test_a_lease_without_an_end_gets_one(fleet: Fleet, kind: str) -> None:
    small(fleet)
    getattr(fleet.config, kind)("config:growth:lease", "gone/1/x")
    who = "gone/1" if kind == "set" else "another process"
    with pytest.raises(GrowthError, match=f"^{who} is working on a move or failover; wait"):
        fleet.move_server()
    assert 0 < fleet.config.pttl("config:growth:lease") <= 10_000


@pytest.mark.parametrize("of_shards", [True, False])
def test_a_stale_record_points_no_entries_at_an_empty_place(fleet: Fleet, of_shards: bool) -> None:
    small(fleet)
    phase = "fenced" if of_shards else "promoted"
    move = fleet.move(of_shards, hold=PATIENT)
    reverse_move(fleet.config, move.name, hold=PATIENT)
    write_record(fleet.config, replace(move, phase=phase))
    said = f"the record is out of date; find out .*: shardkit changes end {move.name}$"
    with pytest.raises(GrowthError, match=said):
        resume_move(fleet.config, move.name)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("source", None), ("source", "a:b"), ("shards", 7), ("sources", ["1"])),
        *(("fences", []), ("fences", {"1": 1}), ("certificate", []), ("phase", "x")),
        *(("others", ["/"]), ("copying", [1]), ("format", "2"), ("placements", ["slot"])),
        *(("clusters", ["a:1"]), ("progress", {"at": 1.0}), ("progress", {"text": "", "at": ""})),
    ],
)
def test_a_damaged_record_is_named(own_server: LocalServer, field: str, value: object) -> None:
    move = Move("users:1", "keys", "a:1", "b:1", ["users:1"], ["a:1/1"], ["b:1/1"])
    with own_server.client() as config:
        write_record(config, move)
        write_record(config, Move("users:2", "keys", "a:1", "b:1", ["users:2"], phase="done"))
        assert len(moves(config)) == 2
        key = damage(config, move, **{field: value})
        said = f"^{key} does not describe a move; check it, and delete it"
        with pytest.raises(ConfigError, match=said):
            moves(config)
        with pytest.raises(ConfigError, match=said):
            resume_move(config, "users:1")
    where = f"redis://127.0.0.1:{own_server.port}"
    shown = CliRunner().invoke(app, ["move", "status", "--config", where])
    assert shown.exit_code == 1
    assert f"{key} does not describe a move" in shown.stderr
    assert "users:2" in shown.stdout


def test_a_late_failover_promotes_nothing(fleet: Fleet) -> None:
    a, b, _ = fleet.servers
    small(fleet)
    fleet.replicated(1, 2)
    a.kill()
    others = asleep(fleet, lambda: fail_over(fleet.config, "users:0", fleet.name(2)))
    with before("take writes alone", others), pytest.raises(GrowthError, match=ENDED):
        fail_over(fleet.config, "users:0", fleet.name(1))
    assert fleet.masters() == [fleet.name(2)] * 2
    assert client_of(b).info("replication")["role"] == "slave"
    assert masters_write(fleet)


def test_a_verification_keeps_a_new_move(fleet: Fleet) -> None:
    small(fleet)
    fleet.move_shard()
    others = asleep(fleet, lambda: reverse_move(fleet.config, "users:1", hold=PATIENT))
    with before("verify", others):
        assert verify_move(fleet.config, "users:1").target == fleet.name(1)
    assert [each.target for each in moves(fleet.config)] == [fleet.name(0)]
    fleet.move_server(to=2, hold=PATIENT)
    written = fleet.config.hgetall("config:changes")
    fleet.config.set("config:growth:lease", "somebody")
    assert verify_move(fleet.config, fleet.name(0)).phase == "done", "it finds what it finds"
    assert fleet.config.hgetall("config:changes") == written


MINE, OTHERS = fence_value("mine", "1", "a:1"), fence_value("other's", "1", "a:1")


ZERO, THREE, FIVE = (Place(ServerAddress("a", 1), number) for number in (0, 3, 5))


class LateConnection(redis.Connection):
    """A connection that is late: something is done just before a transaction or script is sent."""

    meanwhile: list[Callable[[], object]] = []  # noqa: RUF012 - of the one test

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if any(word in b"".join(map(bytes, command)) for word in (b"MULTI", b"EVAL")):
            while self.meanwhile:
                self.meanwhile.pop()()
        super().send_packed_command(command, check_health)


def late_client(server: LocalServer, **options: Any) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=LateConnection, port=server.port, **options)
    return redis.Redis.from_pool(pool)


def test_of_those_who_are_at_a_fence_at_once_the_first_has_it(own_server: LocalServer) -> None:
    with own_server.client() as client, late_client(own_server) as late:

        def replaced() -> None:
            client.set(FENCE_KEY, OTHERS, px=60_000)

        def left_alone() -> None:
            assert client.get(FENCE_KEY) == OTHERS
            assert client.pttl(FENCE_KEY) > 0
            client.set(FENCE_KEY, MINE, px=60_000)

        client.set(FENCE_KEY, MINE, px=60_000)
        LateConnection.meanwhile = [replaced]
        assert not make_permanent({ZERO: late}, MINE)
        left_alone()
        LateConnection.meanwhile = [replaced]
        with pytest.raises(GrowthError, match="another process has taken over this move; see: sha"):
            write_under({ZERO: late}, MINE, {ZERO: [("SET", "k", "v")]})
        assert not client.exists("k")
        left_alone()
        LateConnection.meanwhile = [replaced]
        lift({ZERO: late}, "mine")
        left_alone()
        LateConnection.meanwhile = [replaced]
        change({ZERO: late}, "mine", MINE + b" ")
        left_alone()
        LateConnection.meanwhile = [lambda: make_permanent({ZERO: client}, MINE)]
        assert not lift_unless_permanent(late, "mine"), "it was decided just before"
        assert is_permanent(client, "mine")


def test_a_fence_that_comes_late_is_not_set(own_server: LocalServer) -> None:
    """Another mover has taken the target meanwhile, has finished, and opened it."""
    has_ended = []

    def require_lease() -> None:
        if has_ended:
            raise GrowthError("the lease ended", "resume")

    with own_server.client() as client, late_client(own_server) as late:

        def finish() -> None:
            client.set(FENCE_KEY, OTHERS)
            client.delete(FENCE_KEY)
            has_ended.append(True)

        LateConnection.meanwhile = [finish]
        with pytest.raises(GrowthError, match="the lease ended"):
            take({ZERO: late}, MINE, require_lease)
        assert not client.exists(FENCE_KEY)
        has_ended.clear()
        take({ZERO: late}, MINE, require_lease)
        assert client.get(FENCE_KEY) == MINE


def test_databases_of_a_server_are_changed_together(own_server: LocalServer) -> None:
    """Those that another attempt has taken in between stay as they are."""
    with (
        own_server.client() as zero,
        own_server.client(db=3) as three,
        late_client(own_server, db=5) as late,
        own_server.client(db=5) as five,
    ):
        both = {FIVE: late, THREE: three}
        close_for(both, MINE, 60)
        with pytest.raises(GrowthError, match=f"is already closed: {FENCE_KEY} is set; wait until"):
            close_for({ZERO: zero, **both}, OTHERS, 60)
        assert fences_of({**both, ZERO: zero}) == {FIVE: MINE, THREE: MINE, ZERO: OTHERS}

        def replaced() -> None:
            three.set(FENCE_KEY, OTHERS, px=60_000)

        LateConnection.meanwhile = [replaced]
        assert not make_permanent(both, MINE)
        assert not is_permanent(three, "other's")
        three.set(FENCE_KEY, MINE, px=60_000)
        assert make_permanent(both, MINE)
        assert is_permanent(five, "mine")
        assert is_permanent(three, "mine")
        writes: Any = {FIVE: [("SET", "k", 5)], THREE: [("SET", "k", 3), ("DEL", "l")]}
        write_under(both, MINE, writes)
        assert (zero.get("k"), three.get("k"), five.get("k")) == (None, b"3", b"5")
        assert late.get("k") == b"5", "it is in its own database again"
        with pytest.raises(WriteRefusedError, match=r"[Ww]rong number of arg") as refused:
            write_under(both, MINE, {FIVE: [("RESTORE", "k"), ("SET", "l", 1)]})
        assert (refused.value.key, refused.value.place) == ("k", FIVE)
        assert not five.exists("l")
        LateConnection.meanwhile = [replaced]
        lift(both, "mine", dict.fromkeys(both, MINE))
        assert (three.get(FENCE_KEY), five.get(FENCE_KEY)) == (OTHERS, None)


def test_writes_of_a_copy_stop_when_another_attempt_has_the_target(
    own_server: LocalServer,
) -> None:
    with own_server.client() as client:
        client.set(FENCE_KEY, MINE)
        writes = GuardedWrites(ZERO, client, MINE)
        writes.write([("SET", "a", 1)])
        writes.write([("SET", "b", 1)])
        client.set(FENCE_KEY, OTHERS)
        writes.write([("SET", "c", 1)])
        with pytest.raises(GrowthError, match="another process has taken over"):
            writes.settle()
        writes.close()
        assert (client.get("a"), client.get("b"), client.get("c")) == (b"1", b"1", None)
        with pytest.raises(GrowthError, match="another process has taken over"):
            write_under({ZERO: client}, MINE, {ZERO: []})
        writes = GuardedWrites(ZERO, client, OTHERS)
        writes.write([("RESTORE", b"k", 0, b"no value", "REPLACE")])
        with pytest.raises(WriteRefusedError, match="DUMP payload") as refused:
            writes.settle()
        assert (refused.value.key, refused.value.place) == (b"k", ZERO)


CHANGES_KEY = "config:changes"

EVERY_STEP = os.environ.get("CASES") == "all"
HOME = str(Path(shardkit.__file__).parent)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["shardkit.cli.app", "shardkit.admin.growth", "shardkit.admin"])


def is_of_network(file: str) -> bool:
    """Whether a file is of another package, or of the layer that sends."""
    return not file.startswith(HOME) or file.startswith(f"{HOME}/network/")


def run(words: Sequence[str], output: Path, number: int, fate: int) -> None:
    """Run a command, which gets a signal before its n-th exchange."""
    with output.open("w") as file, Path(f"{output}.steps").open("w") as note:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        replan.GRACE = 0.1
        steps: list[Any] = []

        def noting(owner: Any, name: str) -> None:
            send = getattr(owner, name)

            def sends(connection: Any, *args: Any, **options: Any) -> Any:
                frame: Any = sys._getframe()
                while is_of_network(file := frame.f_code.co_filename):
                    if (frame := frame.f_back) is None:
                        break
                else:
                    # What loops over pages is one step; an operation has a line for all of its own.
                    step = file, frame.f_lineno, connection.port, "drivers" in file and len(steps)
                    if threading.current_thread() is threading.main_thread() and step not in steps:
                        steps.append(step)
                        writes = b"HSET" in bytes(f"{args}", "ascii", "replace")
                        print(connection.port, file + " writes" * writes, file=note, flush=True)
                        if len(steps) == number:
                            os.kill(os.getpid(), fate)
                return send(connection, *args, **options)

            setattr(owner, name, sends)

        noting(AbstractConnection, "send_packed_command")
        noting(TcpConnection, "send_packed_command")
        noting(TcpConnection, "round_trip")
        app(list(words))


class Case:
    """A command, what is there before, and what another operator does in the meantime."""

    words: list[str]
    files: list[str]  # in which each step is sent

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.new = f"127.0.0.1:{fleet.servers[2].port}"

    def setup(self) -> None:
        """Have two shards on the first server, another component on the second, and a spare one."""
        for server in self.fleet.servers:
            with server.client() as client:
                client.replicaof("NO", "ONE")
                client.flushall()
        self.fleet.config.flushall()
        shards = [self.fleet.at(0, db=db) for db in (1, 2)]
        self.fleet.describe({"users": {"shards": shards}, "other": {"entry": self.fleet.at(1)}})
        with shardkit.connect(self.fleet.url) as kit:
            kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})

    def act(self) -> None:
        """Do as the other operator: as a rule the same, after which clients write."""
        self.ends(*self.words)

    def repair(self) -> None:
        """End what was killed."""
        self.ends(*self.words)

    def check(self, woken: bool) -> None:
        """Check what is there at last."""
        assert still_there(self.fleet)

    def ends(self, *words: str, may_say: str = "nothing") -> None:
        """Run a command until it succeeds or says that nothing is to be done."""

        def done() -> bool:
            result = CliRunner().invoke(app, self.at_config(words))
            said.append(result.output)
            return not result.exit_code or may_say in result.output

        said: list[str] = []
        assert eventually(done, 5), said[-1]

    def at_config(self, words: Sequence[str]) -> list[str]:
        return [*words] if words[0] == "restore" else [*words, "--config", self.fleet.url]

    def replicas(self, key: str) -> list[int]:
        stored = json.loads(self.fleet.config.get(f"config:redis:{key}"))
        return [each["port"] for each in stored.get("replicas", [])]

    # ---- processes

    @contextmanager
    def process(self, number: int, fate: int) -> Iterator[tuple[Any, Path]]:
        """Run the command; afterwards nothing is held by it, as ten seconds later."""
        output = self.folder / f"output{time.monotonic_ns()}"
        process = PROCESSES.Process(
            target=run, args=(self.at_config(self.words), output, number, fate)
        )
        process.start()
        try:
            yield process, output
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.join(60 * PATIENCE)
            process.kill()
            process.join()

    def steps(self) -> list[int]:
        """Return the numbers of the steps after which the command's change is recorded."""
        self.setup()
        with self.process(0, 0) as (process, output):
            process.join(60 * PATIENCE)
        self.files = files = self.noted(output)
        recorded = [name.endswith("admin/changes.py") for name in files]
        first = next(n for n, at in enumerate(recorded) if at and not recorded[n + 1])
        return list(range(first + 2, len(files) + 1))

    def noted(self, output: Path) -> list[str]:
        """The steps that a command has taken: the port of each, and the file."""
        return Path(f"{output}.steps").read_text().splitlines()

    def expire(self, pid: int) -> None:
        """Have what a process holds end now; it would in ten seconds."""
        config = self.fleet.config
        if f"/{pid}/" in (config.get("config:growth:lease") or b"").decode():
            config.delete("config:growth:lease")
        for record in open_changes(config):
            if record.until and record.owner.endswith(f"/{pid}"):
                now = replace(record, until=now_of(config))
                config.hset(CHANGES_KEY, record.id, text_of(now))

    def killed(self, number: int) -> None:
        self.setup()
        with self.process(number, signal.SIGKILL) as (process, _):
            process.join(60 * PATIENCE)
        self.expire(process.pid)
        self.repair()
        self.check(woken=False)

    @contextmanager
    def stopped(self, number: int) -> Iterator[tuple[Any, Path]]:
        """Run the command, which is stopped before its n-th exchange, and woken afterwards."""
        self.setup()
        with self.process(number, signal.SIGSTOP) as (process, output):
            state = Path(f"/proc/{process.pid}/stat")
            with suppress(FileNotFoundError, ProcessLookupError):  # it has fewer steps today
                stopped = lambda: state.read_text().rpartition(")")[2].split()[0] in "TZ"  # noqa: E731
                assert eventually(stopped, 60)
            yield process, output

    def woken(self, number: int) -> None:
        with self.stopped(number) as (process, output):
            self.expire(process.pid)
            self.act()
        assert "Traceback" not in output.read_text()
        self.check(woken=True)

    # ---- servers

    def without_server(self, number: int, fault: Callable[[LocalServer], object]) -> None:
        """Have the server of the n-th exchange fail until the command has ended."""
        self.persist()
        with self.stopped(number) as (process, output):
            *_, step = self.noted(output)
            every = (self.fleet.config_server, *self.fleet.servers)
            servers = {str(each.port): each for each in every}
            if (server := servers.get(step.split()[0])) is None:
                return  # the command's own
            fault(server)
            os.kill(process.pid, signal.SIGCONT)
            process.join(60 * PATIENCE)
            said = f"{output.read_text()}, code {process.exitcode}, {step}"
            print(said)
            if server.running:
                server.resume()
            else:
                server.restart()
        assert "Traceback" not in said
        assert process.exitcode == 0 or (process.exitcode == 1 and f":{server.port}" in said), said
        self.expire(process.pid)
        self.repair()
        self.check(woken=False)

    def persist(self) -> None:
        """Have servers keep their data when they are killed."""
        for server in (self.fleet.config_server, *self.fleet.servers):
            with server.client() as client:
                client.config_set("appendfsync", "always")
                client.config_set("appendonly", "yes")
                client.config_rewrite()

                def is_saving(client: Any = client) -> bool:
                    info = client.info("persistence")
                    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

                assert eventually(lambda: not is_saving(), 30)


class Attach(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["replicas", "attach", self.new, "--to", "users:0", "--copy-timeout", "6"]

    def act(self) -> None:
        """Attach it to another server."""
        if replication(self.fleet.servers[2])["role"] == "slave":
            self.ends("replicas", "detach", self.new)
            client_of(self.fleet.servers[2]).flushall()
        self.ends("replicas", "attach", self.new, "--to", "other")

    def check(self, woken: bool) -> None:
        super().check(woken)
        master = self.fleet.servers[1 if woken else 0].port
        assert replication(self.fleet.servers[2])["master_port"] == master
        assert bool(self.replicas("other")) is woken is not bool(self.replicas("users:0"))


class Detach(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["replicas", "detach", self.new]

    def setup(self) -> None:
        super().setup()
        attach_replica(self.fleet.config, self.new, "users:0")

    def act(self) -> None:
        """Detach it, and attach it again."""
        self.repair()
        client_of(self.fleet.servers[2]).flushall()
        self.ends("replicas", "attach", self.new, "--to", "users:0")

    def repair(self) -> None:
        self.ends(*self.words, may_say="follows no server")

    def check(self, woken: bool) -> None:
        super().check(woken)
        assert bool(self.replicas("users:0")) is woken
        assert replication(self.fleet.servers[2])["role"] == ("slave" if woken else "master")


class Balance(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["balance", "users", "--to", self.new, "--move", "--hold", "3"]

    def act(self) -> None:
        """End its move, or move a shard, and move that back."""
        self.resume()
        if not moves(self.fleet.config):
            self.ends("move", "shards", "users:1", "--to", self.new, "--hold", "3")
        self.ends("move", "reverse", moves(self.fleet.config)[0].name, "--hold", "3")
        self.epoch = self.fleet.config.get("config:epoch")

    def repair(self) -> None:
        self.resume()
        self.ends(*self.words)

    def resume(self) -> None:
        for move in moves(self.fleet.config):
            if not move.is_over:
                self.ends("move", "resume", move.name, "--hold", "3")

    def check(self, woken: bool) -> None:
        super().check(woken)
        if woken:
            assert self.fleet.config.get("config:epoch") == self.epoch


class Convert(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["convert", str(self.folder / "plan"), "--component", "users", "--offline"]

    def setup(self) -> None:
        super().setup()
        with shardkit.connect(self.fleet.url) as kit:
            for n in range(60):
                key = f"user:{n}:name"
                kit.key_sharded("users")[key].set(key, f"name {n}")
        self.fleet.run("advise", "users", "--output", str(self.folder / "plan"))

    def structure(self, kit: ShardKit) -> Any:
        plan = Conversion.parse((self.folder / "plan").read_text())
        return kit.hash(plan.base, component="users", **plan.parameters)

    def steps(self) -> list[int]:
        """Leave out the write itself: between the look before it and the write, it is not safe."""
        return [n for n in super().steps() if not self.files[n - 1].endswith("writes")]

    def act(self) -> None:
        super().act()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).hset(mapping={str(n): "new" for n in range(61)})

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.fleet.url) as kit:
            found = {name: text.decode() for name, text in self.structure(kit).hgetall().items()}
        expected = {str(n): "new" if woken else f"name {n}" for n in range(60 + woken)}
        assert found == expected


class Restore(Case):
    @property
    def words(self) -> list[str]:  # type: ignore[override]
        return ["restore", str(self.folder / "backup"), str(self.folder / "map")]

    def setup(self) -> None:
        super().setup()
        where = {"users": {"shards": [self.fleet.at(2, db=db) for db in (5, 6)]}}
        text = {"config_server": {"port": self.fleet.config_server.port}, "components": where}
        (self.folder / "map").write_text(json.dumps(text))
        (self.folder / "target").write_text(json.dumps({"components": where}))
        if not (self.folder / "backup").exists():
            self.fleet.run("backup", str(self.folder / "backup"), "users")

    def act(self) -> None:
        self.ends(*self.words, may_say="is not empty")  # a shard of two was done
        with shardkit.connect(self.folder / "target") as kit:
            kit.key_sharded("users").mset({f"k{n}": "new" for n in range(51)})

    def repair(self) -> None:
        self.ends(*self.words, may_say="is not empty")  # it was done

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.folder / "target") as kit:
            found = kit.key_sharded("users").mget([f"k{n}" for n in range(51)])
        whole = [*(b"%d" % n for n in range(50)), None]
        assert found == (51 * [b"new"] if woken else whole)
        for db in (5, 6):
            assert not client_of(self.fleet.servers[2], db=db).keys("*:restored")


class Replan(Case):
    words = ["replan", "users", "--yes"]  # noqa: RUF012

    def setup(self) -> None:
        super().setup()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).sadd(*range(500))

    @staticmethod
    def structure(kit: ShardKit) -> Any:
        return kit.set("planned", component="users", total=64, part_size=16, members=int)

    def act(self) -> None:
        super().act()
        with shardkit.connect(self.fleet.url) as kit:
            self.structure(kit).sadd(*range(1000, 1100))
            self.structure(kit).srem(*range(50))

    def check(self, woken: bool) -> None:
        with shardkit.connect(self.fleet.url) as kit:
            found = {*self.structure(kit).sscan_iter()}
        assert found == ({*range(50, 500), *range(1000, 1100)} if woken else {*range(500)})


FATES: dict[str, Callable[[Case, int], None]] = {
    "killed": Case.killed,
    "woken": Case.woken,
    "server killed": lambda case, number: case.without_server(number, LocalServer.kill),
    "server hung": lambda case, number: case.without_server(number, LocalServer.pause),
}


@pytest.mark.timeout(1200 if EVERY_STEP else 120)
@pytest.mark.long(5)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("case", [Attach, Detach, Balance, Convert, Restore, Replan])
def test_a_command_that_is_killed_or_wakes_at_any_step_loses_nothing_and_is_ended_by_another(
    fleet: Fleet,
    tmp_path: Path,
    lower: Callable[..., None],
    case: type[Case],
    fate: str,
) -> None:
    lower(plan_grace=0.1)
    tried = case(fleet, tmp_path)
    steps = tried.steps()
    count = 1 if "server" in fate else 2
    for number in steps if EVERY_STEP else sorted(random.Random(seed()).sample(steps, count)):
        print(f"step {number}")
        FATES[fate](tried, number)
