"""Workers of both kinds whose server is away, that are stopped at any moment, and what they log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from faces import Face, eventually, faced
from queue_helpers import server_of, worker_of

from shardkit import ShardKit, ShardMap
from shardkit.errors import ShardErrors
from shardkit.local import LocalServer
from shardkit.queues import AsyncWorker, NewTask, QueueCounts, WorkerSummary
from shardkit.queues.worker import TRIES


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.queues.worker.FIRST_PAUSE", 0.002)


@pytest.fixture(params=["blocking", "awaiting"])
def mortal(request: pytest.FixtureRequest) -> Iterator[tuple[Face, LocalServer]]:
    """A face, and the server of its component ``own``, which a test kills."""
    with LocalServer() as server:
        entry = {"port": server.port, "socket_connect_timeout": 0.5, "retries": 0}
        shard_map = ShardMap.parse(json.dumps({"components": {"own": {"entry": entry}}}))
        with faced(request.param, shard_map) as face:
            yield face, server


def hooked(worker: Any, name: str, after: Callable[[Any], Any]) -> None:
    """Have what came of each call of the worker's queues seen: its value, or an exception."""
    call = getattr(worker.tasks, name)

    @contextmanager
    def seen() -> Iterator[list[Any]]:
        found: list[Any] = []
        try:
            yield found
        except Exception as error:
            after(error)
            raise
        after(found[0])

    def blocking(*args: Any, **options: Any) -> Any:
        with seen() as found:
            found.append(call(*args, **options))
        return found[0]

    async def awaiting(*args: Any, **options: Any) -> Any:
        with seen() as found:
            found.append(await call(*args, **options))
        return found[0]

    setattr(worker.tasks, name, awaiting if isinstance(worker, AsyncWorker) else blocking)


def register_endless(
    face: Face, worker: Any, name: str, begin: Callable[[], Any], ended: threading.Event
) -> None:
    """Register what begins, and goes on until it is ended or, on the loop, cancelled."""

    def in_a_thread() -> None:
        begin()
        assert ended.wait(30)

    async def on_the_loop() -> None:
        begin()
        await asyncio.sleep(1000)  # until it is cancelled

    worker.register(name, in_a_thread if face.runner is None else on_the_loop)


def test_a_worker_goes_on_when_its_server_is_back(
    mortal: tuple[Face, LocalServer], short_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    face, server = mortal
    worker = worker_of(face, "q", component="own")
    taken: list[Any] = []

    def after(found: Any) -> None:
        taken.append(found)
        if len(taken) == 3:
            server.restart()
        elif len(taken) > 3:
            worker.stop()

    hooked(worker, "take", after)
    server.kill()
    assert face.run(worker.run()) == WorkerSummary(errors=3)
    assert [isinstance(each, ShardErrors) for each in taken] == [True] * 3 + [False]
    said = [record.getMessage() for record in caplog.records if record.name == "shardkit.queues"]
    assert len(said) == 2
    assert said[0].startswith("cannot take tasks, and tries again: ")
    assert said[1] == "takes tasks again"


def test_only_tasks_that_may_be_queued_are_said_to_be(mortal: tuple[Face, LocalServer]) -> None:
    face, server = mortal
    tasks: Any = face.kit.queues(component="own")

    async def enqueue() -> None:
        async with face.kit.deadline(0.5):
            await tasks.enqueue("q", "x", id="t")

    for stop, said in ((server.kill, False), (server.pause, True)):
        stop()
        with pytest.raises(ShardErrors) as failed:  # noqa: PT012
            if face.runner is None:
                with face.kit.deadline(0.5):
                    tasks.enqueue("q", "x", id="t")
            face.run(enqueue())
        assert ("; the tasks may be queued: " in str(failed.value)) is said
        assert "queue them again with their ids (t)" in str(failed.value)
        assert failed.value.ids == ("t",)
        if not said:
            server.restart()
            face.run(tasks.enqueue("q", "x"))


@pytest.mark.parametrize("failures", [1, TRIES - 1])
def test_an_outcome_is_reported_again_until_its_server_is_back(
    mortal: tuple[Face, LocalServer], short_pauses: None, failures: int
) -> None:
    face, server = mortal
    worker = worker_of(face, "q", component="own")
    failed: list[Any] = []

    def after(found: Any) -> None:
        failed.append(found)
        if len(failed) == failures:
            server.restart()

    hooked(worker, "_acknowledge", after)
    worker.register("kills", server.kill)
    face.run(worker.tasks.enqueue("q", "kills"))
    summary = face.run(worker.run(burst=True))
    assert (summary.done, summary.errors) == (1, 0)
    assert [isinstance(each, ShardErrors) for each in failed] == [True] * failures + [False]


def test_an_outcome_that_cannot_be_reported_is_said_and_the_worker_goes_on(
    mortal: tuple[Face, LocalServer], short_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    face, server = mortal
    worker = worker_of(face, "q", component="own")
    tries: list[Any] = []

    def after(found: Any) -> None:
        tries.append(found)
        if len(tries) == TRIES:
            server.restart()

    hooked(worker, "_acknowledge", after)
    worker.register("kills", server.kill)
    face.run(worker.tasks.enqueue("q", "kills"))
    summary = face.run(worker.run(burst=True))
    assert (summary.done, summary.errors) == (1, 1)
    assert len(tries) == TRIES
    [said] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "task kills (q " in said.getMessage()
    assert "): could not report that it is done: " in said.getMessage()


def test_a_task_that_was_taken_while_the_worker_stopped_is_given_back(
    face: Face, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(face, "q", {"x": lambda: pytest.fail("it ran")})
    tasks = kit.queues(component="many")
    tasks.enqueue("q", "x", id="t")
    hooked(worker, "take", lambda _: worker.stop())
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        assert face.run(worker.run()) == WorkerSummary(released=1)
    assert tasks.counts("q") == QueueCounts(1, 0, 0, 0)
    assert [record.getMessage() for record in caplog.records] == ["task x (q t) was requeued"]
    task = tasks.take("q", timeout=0)
    assert task.attempts == 1


def test_a_task_that_somebody_else_took_while_the_worker_stopped_is_not_given_back(
    face: Face, kit: ShardKit, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(face, "q", {"x": lambda: pytest.fail("it ran")})
    tasks, theirs = kit.queues(component="many"), []
    tasks.enqueue("q", "x", id="t")

    def overtake(_: Any) -> None:
        theirs.append(taken_again(kit, tasks))
        worker.stop()

    hooked(worker, "take", overtake)
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        assert face.run(worker.run()) == WorkerSummary()
    assert not [record for record in caplog.records if "requeued" in record.getMessage()]
    assert tasks.acknowledge(theirs[0])


def taken_again(kit: ShardKit, tasks: Any) -> Any:
    """The task that is leased, taken by another once its lease has ended."""
    server_of(kit, "many", "q").zadd("queues:{q}:taken", {"t": 0}, xx=True)
    return tasks.take("q", timeout=0)


def test_a_running_task_that_somebody_else_took_is_not_given_back_at_a_second_signal(
    face: Face, kit: ShardKit, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(face, "q")
    tasks, theirs, ended = kit.queues(component="many"), [], threading.Event()

    def overtaken() -> None:
        theirs.append(taken_again(kit, tasks))
        worker._aborting.set()

    register_endless(face, worker, "x", overtaken, ended)
    tasks.enqueue("q", "x", id="t")
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        assert face.run(worker.run()) == WorkerSummary()
    ended.set()
    assert worker.aborted
    assert not [record for record in caplog.records if "requeued" in record.getMessage()]
    assert tasks.acknowledge(theirs[0])
    if face.runner is None:
        names = {"shardkit-leases", "shardkit-0"}
        assert eventually(lambda: not {t.name for t in threading.enumerate()} & names)


def test_at_a_second_signal_running_tasks_are_given_back(
    face: Face, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(face, "q", concurrency=2)
    tasks = kit.queues(component="many")
    ended, over = threading.Event(), threading.Event()
    begun = threading.Barrier(2)

    def runs() -> None:
        if begun.wait(30) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            assert eventually(worker._stopping.is_set)
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(30)
        over.set()

    async def runs_on_the_loop() -> None:
        if len(worker._running) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await worker._stopping.wait()
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(1000)  # until it is cancelled

    worker.register("runs", runs if face.runner is None else runs_on_the_loop)
    tasks.enqueue_many("q", [NewTask("runs"), NewTask("runs")])
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        assert face.run(worker.run()) == WorkerSummary(released=2)
    assert worker.aborted
    assert signal.getsignal(signal.SIGTERM) == before
    assert tasks.counts("q") == QueueCounts(2, 0, 0, 0)
    ended.set()
    if face.runner is None:  # its threads go on, and no longer speak for their tasks
        assert over.wait(30)
        assert eventually(
            lambda: (
                not {t.name for t in threading.enumerate()}
                & {"shardkit-leases", "shardkit-0", "shardkit-1"}
            )
        )
    assert tasks.counts("q") == QueueCounts(2, 0, 0, 0)
    assert sum("was requeued" in record.getMessage() for record in caplog.records) == 2
    assert worker.summary == WorkerSummary(released=2)
    for _ in range(2):
        task = tasks.take("q", timeout=0)
        assert task.attempts == 1


def test_what_cannot_be_given_back_at_a_second_signal_is_said(
    mortal: tuple[Face, LocalServer], caplog: pytest.LogCaptureFixture
) -> None:
    face, server = mortal
    worker = worker_of(face, "q", component="own")
    ended = threading.Event()

    def kills() -> None:
        server.kill()
        worker._aborting.set()

    register_endless(face, worker, "kills", kills, ended)
    face.run(worker.tasks.enqueue("q", "kills", id="t"))
    summary = face.run(worker.run())
    ended.set()
    assert (summary.released, summary.errors) == (0, 1)
    assert "task kills (q t): could not report that it was requeued: " in caplog.text


def test_a_lease_that_cannot_be_renewed_is_said_and_others_are_renewed(
    mortal: tuple[Face, LocalServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    face, server = mortal
    monkeypatch.setattr("shardkit.queues.worker.LEAST_LEASE", 0.01)
    worker = worker_of(face, "q", component="own", lease=0.06)
    renewed, renew = [], worker._renewed

    def seen(task: Any) -> Any:
        errors = worker.summary.errors
        yield from renew(task)
        renewed.append(worker.summary.errors == errors)
        if len(renewed) == 2:
            server.restart()

    worker._renewed = seen  # type: ignore[method-assign]

    def kills() -> None:
        renewed.clear()
        server.kill()
        assert eventually(lambda: any(renewed))

    worker.register("kills", kills)
    face.run(worker.tasks.enqueue("q", "kills"))
    assert face.run(worker.run(burst=True)).errors >= 2
    assert not any(renewed[:2])
    assert any(renewed)
    assert "could not report that it still runs: " in caplog.text


def test_each_task_is_one_line_of_the_log(
    face: Face, kit: ShardKit, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(face, "q")

    @worker.task()
    def fine() -> None:
        pass

    @worker.task()
    def fails() -> None:
        raise ValueError("no")

    tasks = kit.queues(component="many")
    tasks.enqueue("q", "fine", id="a")
    tasks.enqueue("q", "fails", id="b")
    server_of(kit, "many", "q").hset("queues:{q}:attempts", "b", 1)
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        face.run(worker.run(burst=True))
    done, failed = caplog.records[:2]
    assert done.levelno == logging.INFO
    assert re.fullmatch(r"task fine \(q a\) done in \d+\.\d{3} s", done.getMessage())
    assert failed.levelno == logging.WARNING
    assert failed.getMessage() == "task fails (q b, attempt 2) failed: ValueError: no"
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], ValueError)
