"""Waiting for tasks, and faults: whoever dies, is cancelled or cut off, no task is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from arranged import map_of
from faces import PATIENCE, Face, Time, clocked, drawn, eventually, faced
from link_helpers import paused
from queue_helpers import server_of, unclaimed

from shardkit import ShardKit, ShardMap
from shardkit.errors import ShardErrors
from shardkit.local import LocalServer
from shardkit.queues import DeadTask, NewTask, QueueCounts, Task

Waiting = list[Callable[[], Any]]  # what waits for the results of takes


@pytest.fixture
def only_tokens_wake(lower: Any) -> None:
    lower(queue_block=60.0)


def start_waiting(face: Face, kit: ShardKit, take: Callable[[], Any], count: int) -> Waiting:
    """Begin so many takes, and wait until that many clients more block on the server."""
    server = server_of(kit, "one", "q")
    before = server.info("clients")["blocked_clients"]
    waiting = [face.start(take) for _ in range(count)]
    blocked = before + count
    assert face.eventually(lambda: server.info("clients")["blocked_clients"] >= blocked)
    return waiting


@pytest.mark.parametrize("queues", ["q", ["q"], ["other", "q"], [("q", "other")]])
def test_who_waits_is_woken(face: Face, kit: ShardKit, only_tokens_wake: None, queues: Any) -> None:
    tasks = face.kit.queues(component="one")
    waiting = start_waiting(face, kit, lambda: tasks.take(queues), 5)
    face.run(tasks.enqueue_many("q", [NewTask("x", [n]) for n in range(7)]))  # five to wake
    assert sorted(taken().args[0] for taken in waiting) == [0, 1, 2, 3, 4]
    assert face.run(tasks.counts("q")) == QueueCounts(2, 0, 5, 0)


def test_who_takes_the_last_task_has_another_wait_for_what_is_due_soon(
    face: Face, kit: ShardKit, only_tokens_wake: None
) -> None:
    tasks = face.kit.queues(component="one")
    waiting = start_waiting(face, kit, lambda: tasks.take("q"), 2)
    face.run(tasks.enqueue_many("q", [NewTask("now"), NewTask("soon", delay=0.2)]))  # one token
    assert {taken().name for taken in waiting} == {"now", "soon"}


async def test_takes_that_are_cancelled_at_any_moment_lose_nothing(akit: Any, lower: Any) -> None:
    lower(queue_block=0.05)
    tasks = akit.queues(component="many")
    random = Random(7)
    taken: list[int] = []
    queued = 0
    for _ in range(drawn(10, 25)):
        takes = [
            asyncio.ensure_future(tasks.take(random.choice(["q", ["q", "r"], ["r", "q"]])))
            for _ in range(8)
        ]
        for take in takes:
            await asyncio.sleep(random.random() / 2000)
            await tasks.enqueue(random.choice("qr"), "x", [queued])
            queued += 1
            if random.random() < 0.7:
                take.cancel()
        for _ in range(8):  # for those that are left, wherever they look
            await tasks.enqueue("q", "x", [queued])
            queued += 1
        for found in await asyncio.gather(*takes, return_exceptions=True):
            if not isinstance(found, BaseException):
                taken.append(found.args[0])
                assert found.attempts == 1
                assert await tasks.acknowledge(found)
    for queue in "qr":
        assert (await tasks.counts(queue)).taken == 0  # nothing waits for a lease to end
        while (task := await tasks.take(queue, timeout=0)) is not None:
            taken.append(task.args[0])
    assert Counter(taken) == Counter(range(queued))


def die_with_token(kit: ShardKit) -> None:
    """A waiter that ends when it was given a token, before it takes: its steps stop there."""
    steps: Any = kit.queues(component="one").deferred.take("q")
    step = next(steps)
    while step[0].block is None:
        step = steps.send(kit.driver.link.send(step))
    while kit.driver.link.send(step)[0] is None:
        pass
    steps.close()


def test_a_waiter_that_dies_with_the_token_does_not_strand_the_others(
    face: Face, kit: ShardKit, lower: Any
) -> None:
    lower(queue_block=0.1)
    tasks = face.kit.queues(component="one")
    [dies] = start_waiting(Face(kit, None), kit, lambda: die_with_token(kit), 1)
    waiting = start_waiting(face, kit, lambda: tasks.take("q"), 3)
    face.run(tasks.enqueue_many("q", [NewTask("x", [n]) for n in range(3)]))
    assert sorted(taken().args[0] for taken in waiting) == [0, 1, 2]
    face.run(tasks.enqueue_many("q", [NewTask("x")] * 3))  # if it has not been given one
    dies()


@pytest.fixture(params=["blocking", "awaiting"])
def mortal(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Face, LocalServer, LocalServer]]:
    """A kit over two servers of its own, ``first`` and ``second``: two shards."""
    with LocalServer() as first, LocalServer() as second:
        shards = [
            {
                "port": server.port,
                "socket_timeout": 0.3 * PATIENCE,
                "socket_connect_timeout": 0.3 * PATIENCE,
            }
            for server in (first, second)
        ]
        shard_map = map_of(own={"shards": shards})
        with faced(request.param, shard_map) as face:
            yield face, first, second


def queue_on(kit: Any, number: int) -> str:
    topology: Any = kit.topology
    component = topology.component("own")
    return next(
        f"q{n}" for n in range(100) if component.shard_of(f"queues:{{q{n}}}").number == number
    )


def test_a_server_that_is_away_does_not_keep_tasks_of_others_from_being_done(
    mortal: tuple[Face, LocalServer, LocalServer],
) -> None:
    face, first, _ = mortal
    tasks, run = face.kit.queues(component="own"), face.run
    lost, alive = queue_on(face.kit, 0), queue_on(face.kit, 1)
    run(tasks.enqueue(alive, "x", [1]))
    run(tasks.enqueue(alive, "x", [2]))
    run(tasks.enqueue(alive, "x", [3], delay=0.05))
    first.kill()
    for order in ([lost, alive], [alive, lost], [alive, lost]):
        assert run(tasks.take(order, timeout=5 * PATIENCE)).queue == alive
    with pytest.raises(ShardErrors, match=r"1 shard failed \(own:0\)"):
        run(tasks.take([lost, alive], timeout=0))
    with pytest.raises(ShardErrors, match=r"1 shard failed \(own:0\)"):
        run(tasks.take([lost, alive], timeout=0.05))
    with pytest.raises(ShardErrors, match=r"1 shard failed \(own:0\)"):
        run(tasks.take(lost))


def test_a_server_that_is_paused_neither_loses_nor_holds_up_tasks(
    mortal: tuple[Face, LocalServer, LocalServer],
) -> None:
    face, first, _ = mortal
    tasks, run = face.kit.queues(component="own"), face.run
    held_up, alive = queue_on(face.kit, 0), queue_on(face.kit, 1)
    for queue in (held_up, alive):
        run(tasks.enqueue(queue, "x"))
    with paused(first):
        assert run(tasks.take([held_up, alive], lease=0.5, timeout=10 * PATIENCE)).queue == alive
    # The paused server took the task when it went on, for nobody: its lease ends.
    task = run(tasks.take(held_up, timeout=20 * PATIENCE))
    assert task.queue == held_up
    assert run(tasks.acknowledge(task))
    assert run(tasks.counts(held_up)) == QueueCounts(0, 0, 0, 0)


def test_a_take_whose_connection_is_cut_goes_on_waiting(
    kit: ShardKit, face: Face, only_tokens_wake: None
) -> None:
    """It can: a token is no task, so asking again for one is harmless."""
    server = server_of(kit, "one", "q")
    tasks = kit.queues(component="one")

    def waiting_client(besides: int) -> int:
        found: list[int] = []

        def look() -> bool:
            found[:] = [
                int(each["id"])
                for each in server.client_list()
                if each["cmd"] == "blpop" and "b" in each["flags"] and int(each["id"]) != besides
            ]
            return bool(found)

        assert eventually(look)
        return found[0]

    def cut() -> None:
        victim = waiting_client(0)
        server.client_kill_filter(_id=str(victim))
        waiting_client(victim)
        tasks.enqueue("q", "x")

    with ThreadPoolExecutor() as pool:
        cutting = pool.submit(cut)
        assert face.run(face.kit.queues(component="one").take("q")).name == "x"
        cutting.result(30)


DIES = """
import os, sys, shardkit
kit = shardkit.connect(sys.argv[1])
task = kit.queues(component="one").take("q", lease=float(sys.argv[2]))
print(task.id, flush=True)
sys.stdin.read()
"""


def test_the_task_of_a_process_that_was_killed_is_done_by_another(
    kit: Any, shard_map: ShardMap, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml())
    tasks = kit.queues(component="one")
    tasks.enqueue_many("q", [NewTask("x", id="first"), NewTask("x", id="second")])
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(path), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline().strip() == "first"
    process.kill()
    process.wait(10)
    process.stdin.close()
    process.stdout.close()
    assert tasks.take("q", timeout=0).id == "second"  # type: ignore[union-attr]
    before = time.monotonic()
    again = tasks.take("q", timeout=20)
    assert (again.id, again.attempts) == ("first", 2)
    assert time.monotonic() - before < 15
    assert tasks.acknowledge(again)


ATTEMPTS = 4
VERBS = (
    *("enqueue", "enqueue", "take", "take", "take", "pass", "pass", "move_due", "acknowledge"),
    *("extend", "release", "fail", "fail", "cancel", "revive", "counts", "next_due", "dead"),
)


@dataclass
class Model:
    """A queue in plain Python."""

    clock: Time
    waiting: list[str] = field(default_factory=list)
    delayed: dict[str, float] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
    buried: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)

    def enqueue(self, _: str, name: str, args: list[int], *, delay: float, id: str) -> str:  # noqa: A002
        if id not in self.tasks or id in self.buried:
            self.forget(id)
            self.tasks[id] = name, tuple(args)
            self.put(id, delay)
        return id

    def put(self, id_: str, delay: float) -> None:
        if delay > 0:
            self.delayed[id_] = self.clock() + delay
        else:
            self.waiting.append(id_)

    def forget(self, id_: str) -> None:
        for each in (self.tasks, self.attempts, self.reasons, self.claims, self.buried):
            each.pop(id_, None)  # type: ignore[attr-defined]

    def bury(self, id_: str, reason: str) -> None:
        self.buried[id_], self.reasons[id_] = self.clock(), reason

    def move_due(self, _: str, *, limit: int = 100) -> int:
        ended, due = (
            sorted((at, id_) for id_, at in place.items() if at <= self.clock())[:limit]
            for place in (self.taken, self.delayed)
        )
        for _, id_ in ended:
            del self.taken[id_]
            if self.attempts[id_] >= ATTEMPTS:
                self.bury(id_, "its lease ended, and it had no attempts left")
            else:
                self.waiting.append(id_)
        for _, id_ in due:
            del self.delayed[id_]
            self.waiting.append(id_)
        return len(ended) + len(due)

    def take(self, queue: str, *, lease: float, timeout: float) -> Task | None:
        self.move_due(queue)
        if not self.waiting:
            return None
        id_ = self.waiting.pop(0)
        self.attempts[id_] = self.attempts.get(id_, 0) + 1
        self.taken[id_] = self.clock() + lease
        return Task(id_, queue, *self.tasks[id_], self.attempts[id_])

    def holds(self, task: Task) -> bool:
        """Whether nobody has taken a task or given it back since, wherever it is now."""
        return self.claims.get(task.id) == task.claim

    def acknowledge(self, task: Task) -> bool:
        if not self.holds(task):
            return False
        self.taken.pop(task.id, None)
        if task.id in self.waiting:
            self.waiting.remove(task.id)
        self.forget(task.id)
        return True

    def extend(self, task: Task, lease: float) -> bool:
        if not self.holds(task) or task.id not in self.taken:
            return False
        self.taken[task.id] = self.clock() + lease
        return True

    def release(self, task: Task, *, delay: float) -> bool:
        if not self.extend(task, 0):
            return False
        del self.taken[task.id], self.claims[task.id]
        self.attempts[task.id] -= 1
        self.put(task.id, delay)
        if not delay:
            self.waiting.insert(0, self.waiting.pop())
        return True

    def fail(self, task: Task, reason: str, *, delay: float | None) -> bool:
        if not self.extend(task, 0):
            return False
        del self.taken[task.id], self.claims[task.id]
        if task.attempts >= ATTEMPTS:
            self.bury(task.id, reason or "it failed")
        elif delay == 0:
            self.waiting.append(task.id)
        else:
            self.put(task.id, delay or min(2.0**task.attempts, 6))
        return True

    def cancel(self, _: str, id_: str) -> bool:
        if self.delayed.pop(id_, None) is None:
            if id_ not in self.waiting:
                return False
            self.waiting.remove(id_)
        self.forget(id_)
        return True

    def revive(self, _: str, id_: str) -> bool:
        if id_ not in self.buried:
            return False
        task = self.tasks[id_]
        self.forget(id_)
        self.tasks[id_] = task
        self.waiting.append(id_)
        return True

    def counts(self, _: str) -> QueueCounts:
        return QueueCounts(len(self.waiting), len(self.delayed), len(self.taken), len(self.buried))

    def next_due(self, _: str) -> float | None:
        return min(self.delayed.values(), default=None)

    def dead(self, queue: str) -> list[DeadTask]:
        oldest_first = sorted((at, id_) for id_, at in self.buried.items())
        return [
            DeadTask(
                *(id_, queue, *self.tasks[id_]), self.attempts[id_], self.reasons[id_], at, b""
            )
            for at, id_ in oldest_first
        ]

    def stored(self) -> list[Any]:
        counted = {id_: count for id_, count in self.attempts.items() if count}
        places = [self.waiting, self.delayed, self.taken, self.buried]
        return [*places, counted, self.reasons, self.claims]


def stored(server: Any) -> list[Any]:
    """What the server has of the queue, as the model has it."""
    pipe = server.pipeline().lrange("queues:{q}", 0, -1)
    for place in ("delayed", "taken", "dead"):
        pipe.zrange(f"queues:{{q}}:{place}", 0, -1, withscores=True)
    for kind in ("attempts", "reasons", "claims"):
        pipe.hgetall(f"queues:{{q}}:{kind}")
    waiting, *places, attempts, reasons, claims = pipe.execute()
    return [
        [id_.decode() for id_ in waiting],
        *({id_.decode(): score for id_, score in place} for place in places),
        {id_.decode(): int(count) for id_, count in attempts.items() if int(count)},
        *(
            {id_.decode(): text.decode() for id_, text in each.items()}
            for each in (reasons, claims)
        ),
    ]


def one_of(random: Random, model: Model, latest: Sequence[Task]) -> Task:
    """One of the latest tasks that were taken, and often one whose lease has ended since."""
    late = [each for each in latest if model.holds(each) and each.id not in model.taken]
    return random.choice(late if late and random.random() < 0.5 else latest)


@pytest.mark.parametrize("component", ["many", "one"])
def test_a_queue_does_what_its_model_says(face: Face, kit: ShardKit, component: str) -> None:
    random, clock = Random(component), Time(1_000_000.0)
    queues: Any = clocked(face.kit, now=clock).queues(
        component=component, attempts=ATTEMPTS, retry_delay=2, longest_retry_delay=6
    )
    model, server = Model(clock), server_of(kit, component, "q")
    latest = [Task("a", "q", "x", (), 1, "of nobody")]
    for step in range(drawn(200, 1200)):
        verb, id_, task = (
            random.choice(VERBS),
            random.choice("abcdef"),
            one_of(random, model, latest),
        )
        delay, lease = random.choice([0, 0, 1.0, 5.0]), random.choice([1.0, 3.0])
        if verb == "pass":
            clock.at += random.choice([0.5, 1.0, 4.0])
            continue
        options = {
            "enqueue": {"delay": delay, "id": id_},
            "take": {"lease": lease, "timeout": 0},
            "move_due": {"limit": random.randint(1, 3)},
            "release": {"delay": delay},
            "fail": {"delay": random.choice([None, None, delay])},
        }.get(verb, {})
        args: tuple[Any, ...] = {
            "enqueue": ("q", random.choice("xy"), [step]),
            "acknowledge": (task,),
            "extend": (task, lease),
            "release": (task,),
            "fail": (task, random.choice(["", f"reason {step}"])),
            "cancel": ("q", id_),
            "revive": ("q", id_),
        }.get(verb, ("q",))
        expected = getattr(model, verb)(*args, **options)
        found = getattr(queues, verb)(*args, **options)
        if verb == "dead":
            assert [each._replace(stored=b"") for each in face.list(found)] == expected, step
            continue
        found = face.run(found)
        if verb == "take" and found is not None:
            model.claims[found.id] = found.claim
            latest = [*latest[-11:], found]
            found = unclaimed(found)
        assert found == expected, (step, verb, args, options)
        assert stored(server) == model.stored(), (step, verb, args, options)
