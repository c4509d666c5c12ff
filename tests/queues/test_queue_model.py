"""Random operations on a queue, and what a plain model of it says they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from faces import Face, Time, clocked, drawn
from queue_helpers import server_of, unclaimed

from shardkit import ShardKit
from shardkit.queues import DeadTask, QueueCounts, Task

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
    for step in range(drawn(300, 1200)):
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
