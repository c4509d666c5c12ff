"""Random operations on a queue, and what a plain model of it says they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faces import clocked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_helpers import Clock, unclaimed

from shardkit import ShardKit
from shardkit.queues import QueueCounts
from shardkit.queues.task_codec import Task

ATTEMPTS = 3
IDS = ["a", "b", "c", "d"]


@dataclass
class Model:
    """A queue in plain Python."""

    clock: Clock
    waiting: list[str] = field(default_factory=list)
    delayed: dict[str, float] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)

    def enqueue(self, id_: str, name: str, delay: float) -> None:
        if id_ in self.names and id_ not in self.dead:
            return
        self.dead.pop(id_, None)
        self.names[id_] = name
        self.attempts[id_] = 0
        self.claims.pop(id_, None)
        self.put(id_, delay)

    def put(self, id_: str, delay: float) -> None:
        if delay > 0:
            self.delayed[id_] = self.clock() + delay
        else:
            self.waiting.append(id_)

    def move_due(self) -> int:
        ended = sorted((due, id_) for id_, due in self.taken.items() if due <= self.clock())
        for _, id_ in ended:
            del self.taken[id_]
            if self.attempts[id_] >= ATTEMPTS:
                self.dead[id_] = self.clock()
            else:
                self.waiting.append(id_)
        due = sorted((due, id_) for id_, due in self.delayed.items() if due <= self.clock())
        for _, id_ in due:
            del self.delayed[id_]
            self.waiting.append(id_)
        return len(ended) + len(due)

    def take(self, lease: float) -> Task | None:
        self.move_due()
        if not self.waiting:
            return None
        id_ = self.waiting.pop(0)
        self.attempts[id_] += 1
        self.taken[id_] = self.clock() + lease
        return Task(id_, "q", self.names[id_], (), self.attempts[id_])

    def holds(self, task: Task) -> bool:
        return self.claims.get(task.id) == task.claim

    def forget(self, id_: str) -> None:
        del self.names[id_], self.attempts[id_]
        self.claims.pop(id_, None)

    def acknowledge(self, task: Task) -> bool:
        if not self.holds(task):
            return False
        for place in (self.taken, self.dead):
            if place.pop(task.id, None) is not None:
                self.forget(task.id)
                return True
        if task.id in self.waiting:
            self.waiting.remove(task.id)
            self.forget(task.id)
            return True
        return False

    def extend(self, task: Task, lease: float) -> bool:
        if not self.holds(task) or task.id not in self.taken:
            return False
        self.taken[task.id] = self.clock() + lease
        return True

    def release(self, task: Task, delay: float) -> bool:
        if not self.extend(task, 0):
            return False
        del self.taken[task.id], self.claims[task.id]
        self.attempts[task.id] -= 1
        if delay > 0:
            self.put(task.id, delay)
        else:
            self.waiting.insert(0, task.id)
        return True

    def fail(self, task: Task) -> bool:
        if not self.extend(task, 0):
            return False
        del self.taken[task.id], self.claims[task.id]
        if task.attempts >= ATTEMPTS:
            self.dead[task.id] = self.clock()
        else:
            self.put(task.id, 2.0 ** (task.attempts - 1))
        return True

    def cancel(self, id_: str) -> bool:
        if self.delayed.pop(id_, None) is None:
            if id_ not in self.waiting:
                return False
            self.waiting.remove(id_)
        self.forget(id_)
        return True

    def revive(self, id_: str) -> bool:
        if self.dead.pop(id_, None) is None:
            return False
        self.attempts[id_] = 0
        self.claims.pop(id_, None)
        self.waiting.append(id_)
        return True

    def counts(self) -> QueueCounts:
        return QueueCounts(len(self.waiting), len(self.delayed), len(self.taken), len(self.dead))


delays = st.sampled_from([0.0, 0.0, 1.0, 5.0])
leases = st.sampled_from([1.0, 3.0])
handles = st.integers(0, 7)
steps = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from(IDS), st.sampled_from("xy"), delays),
    st.tuples(st.just("take"), leases),
    st.tuples(st.just("take"), leases),
    st.tuples(st.just("acknowledge"), handles),
    st.tuples(st.just("extend"), handles, leases),
    st.tuples(st.just("release"), handles, delays),
    st.tuples(st.just("fail"), handles),
    st.tuples(st.just("cancel"), st.sampled_from(IDS)),
    st.tuples(st.just("revive"), st.sampled_from(IDS)),
    st.tuples(st.just("move_due")),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 4.0])),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=25, max_size=60))
def test_a_queue_does_what_its_model_says(kit: ShardKit, program: list[tuple[Any, ...]]) -> None:
    clock = Clock()
    model = Model(clock)
    queues = clocked(kit, now=clock).queues(component="one", attempts=ATTEMPTS)
    queues.purge("q")
    taken: list[Task] = []
    for verb, *args in program:
        if verb == "pass":
            clock.seconds += args[0]
        elif verb == "take":
            task = queues.take("q", lease=args[0], timeout=0)
            assert unclaimed(task) == model.take(args[0])
            if task is not None:
                model.claims[task.id] = task.claim
                taken.insert(0, task)
        elif verb == "enqueue":
            id_, name, delay = args
            assert queues.enqueue("q", name, id=id_, delay=delay) == id_
            model.enqueue(id_, name, delay)
        elif verb == "move_due":
            assert queues.move_due("q") == model.move_due()
        elif verb in ("cancel", "revive"):
            assert getattr(queues, verb)("q", args[0]) == getattr(model, verb)(args[0])
        elif args[0] < len(taken):
            task = taken[args[0]]
            options = {"delay": args[1]} if verb == "release" else {}
            sent = args[1:] if verb == "extend" else []
            expected = getattr(model, verb)(task, *args[1:])
            assert getattr(queues, verb)(task, *sent, **options) == expected
        assert queues.counts("q") == model.counts()
    assert {dead.id: dead.at for dead in queues.dead("q")} == model.dead
    assert queues.next_due("q") == min(model.delayed.values(), default=None)
    clock.seconds += 100
    left = []
    while True:
        task = queues.take("q", lease=1000, timeout=0)
        assert unclaimed(task) == model.take(1000)  # which also buries what has no attempts left
        if task is None:
            break
        left.append(task)
    assert queues.counts("q") == model.counts()
    assert all(queues.acknowledge(task) for task in left)
