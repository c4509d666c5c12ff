"""Workers, in threads and on event loops: what they do, and how they end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from arranged import map_of
from faces import Face, eventually, faced
from queue_helpers import server_of, worker_of

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import ClosedError, InvalidArgumentError, NewerFormatError, ShardErrors
from shardkit.local import LocalServer
from shardkit.queues import AsyncWorker, NewTask, QueueCounts, Worker, WorkerSummary
from shardkit.queues.worker import TRIES

NOTHING = QueueCounts(0, 0, 0, 0)


@pytest.mark.long(2)
@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_burst_does_all_that_waits_and_what_it_queues(
    face: Face, kit: ShardKit, concurrency: int
) -> None:
    worker = worker_of(face, ["high", "low"], concurrency=concurrency)
    tasks = kit.queues(component="many")
    done: list[int] = []

    @worker.task()
    def count(n: int) -> None:
        done.append(n)
        if n < 100:
            tasks.enqueue("low", "count", [n + 100])

    tasks.enqueue_many("low", [NewTask("count", [n]) for n in range(50)])
    tasks.enqueue_many("high", [NewTask("count", [n]) for n in range(50, 100)])
    told: list[tuple[int, int]] = []
    summary = face.run(
        worker.run(burst=True, on_progress=lambda s, running: told.append((s.done, running)))
    )
    assert summary == WorkerSummary(done=200)
    assert sorted(done) == [*range(200)]
    if concurrency == 1:
        assert done[:50] == [*range(50, 100)]
    assert told[-1] == (200, 0)
    assert tasks.counts("high") == tasks.counts("low") == NOTHING
    assert face.run(worker.run(burst=True)).done == 200  # nothing more


@pytest.mark.parametrize("signals", [True, False])
def test_signals_are_left_to_others_on_request(face: Face, kit: ShardKit, signals: bool) -> None:
    worker = worker_of(face, ["q"])
    handlers = []

    @worker.task()
    def look() -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))

    kit.queues(component="many").enqueue("q", "look")
    before = signal.getsignal(signal.SIGTERM)
    face.run(worker.run(burst=True, signals=signals))
    assert (handlers != [before]) is signals
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_raises_or_is_unknown_is_tried_again_and_stops_nobody(
    face: Face, kit: ShardKit, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def flaky(n: int) -> None:
        tries.append(n)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    def leave() -> None:
        raise SystemExit(3)

    worker = worker_of(face, "q", {"flaky": flaky, "leave": leave, "fine": lambda: None})
    tasks = kit.queues(component="many")
    tasks.enqueue_many("q", [NewTask("flaky", [1]), NewTask("leave"), NewTask("unknown")])
    tasks.enqueue_many("q", [NewTask("flaky", ["too", "many"]), NewTask("fine")])
    server_of(kit, "many", "q").rpush("queues:{q}", "garbage", '["fine", []]')
    with caplog.at_level(logging.INFO, "shardkit.queues"):
        assert eventually(lambda: face.run(worker.run(burst=True)) and tasks.counts("q").dead == 3)
    assert tries == [1, 1, 1]
    released = worker.summary.released
    assert released >= 1
    assert worker.summary == WorkerSummary(done=3, failed=2 + 3 + 3, released=released)
    traces = {dead.name: dead.traceback for dead in tasks.dead("q")}
    assert "in leave\n    raise SystemExit(3)" in traces["leave"]
    assert traces["leave"].startswith("Traceback (most recent call last):\n")
    assert traces[None] == ""
    letters = {dead.name: dead.reason for dead in tasks.dead("q")}
    assert letters["leave"] == "SystemExit: 3"
    assert letters["flaky"].startswith("TypeError: ")
    assert letters[None].startswith("not JSON")
    assert tasks.counts("q") == QueueCounts(0, 1, 0, 3)
    messages = [record.getMessage() for record in caplog.records]
    assert any(" done in " in message for message in messages)
    assert any("task 'unknown' has no registered callback" in message for message in messages)
    assert any("attempt 2) failed: RuntimeError: not yet" in message for message in messages)


class Speechless(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise SystemExit("not even this")


class Verbose(Exception):
    """An exception whose text is no text, or too long."""

    def __str__(self) -> Any:
        return self.args[0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Speechless(), "Speechless, without its text: __str__ raises SystemExit"),
        (Verbose(7), "Verbose, without its text: __str__ raises TypeError"),
        (Verbose("\ud800"), "Verbose: ?"),
        (Verbose("x" * 5000), "Verbose: " + "x" * 991),
    ],
    ids=["exits", "no text", "lone surrogate", "long"],  # a process cannot say all of these
)
def test_an_exception_that_cannot_be_shown_ends_its_task_only(
    face: Face, kit: ShardKit, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    # What is logged holds a lone surrogate too, which no test process can report to another.
    monkeypatch.setattr(logging.getLogger("shardkit.queues"), "propagate", False)
    kind: Any = Worker if face.runner is None else AsyncWorker
    worker = kind(face.kit.queues(component="many", attempts=1), "q", {"fine": lambda: None})

    @worker.task()
    def fails() -> None:
        raise error

    tasks = kit.queues(component="many")
    tasks.enqueue_many("q", [NewTask("fails"), NewTask("fine")])
    assert face.run(worker.run(burst=True)) == WorkerSummary(done=1, failed=1)
    assert [dead.reason for dead in tasks.dead("q")] == [reason]


def never_runs(*addresses: str) -> Iterator[str]:
    yield from addresses


async def later(error: BaseException | None = None) -> None:
    if error is not None:
        raise error


async def never_steps() -> AsyncIterator[None]:
    yield


class Later:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize("function", [never_runs, never_steps, partial(never_runs, "ann")])
def test_a_generator_is_no_callback(face: Face, function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="callback 'f' makes a generator, which would"):
        worker_of(face, "q", {"f": function})


@pytest.mark.parametrize("function", [later, partial(later), Later()])
def test_a_worker_in_threads_refuses_coroutine_functions(
    kit: ShardKit, function: Callable[..., Any]
) -> None:
    worker = Worker(kit.queues(component="many"), "q")
    with pytest.raises(InvalidArgumentError, match="callback 'f' makes a coroutine, which would"):
        worker.register("f", function)
    with pytest.raises(InvalidArgumentError, match="on_progress makes a coroutine, which would"):
        worker.run(on_progress=later)


def test_a_task_whose_function_did_not_run_has_failed(face: Face, kit: ShardKit) -> None:
    worker = worker_of(face, "q", {"rows": lambda: never_runs(), "steps": lambda: never_steps()})
    if face.runner is None:
        worker.register("later", lambda: later())
    else:
        with pytest.raises(InvalidArgumentError, match="on_progress makes a coroutine"):
            face.run(worker.run(on_progress=later))

        @worker.task("later")
        async def returns_a_generator() -> Any:
            return never_runs()

    tasks = kit.queues(component="many")
    tasks.enqueue_many("q", map(NewTask, worker.names))
    assert eventually(lambda: face.run(worker.run(burst=True)) and tasks.counts("q").dead == 3)
    assert worker.summary == WorkerSummary(failed=3 * 3)
    assert all("which did not run" in dead.reason for dead in tasks.dead("q"))


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, KeyboardInterrupt])
async def test_no_exception_of_a_function_ends_an_async_worker(
    akit: AsyncShardKit, error: type[BaseException]
) -> None:
    def fails() -> None:
        raise error

    async def fails_on_loop() -> None:
        if error is GeneratorExit:
            await asyncio.to_thread(fails)
        raise error

    worker = AsyncWorker(akit.queues(component="many", attempts=1), "q", {"fails": fails})
    worker.register("fails_on_loop", fails_on_loop)
    worker.register("fine", later)
    await worker.tasks.enqueue_many("q", map(NewTask, ["fails", "fails_on_loop", "fine"]))
    summary = await asyncio.wait_for(worker.run(burst=True), 30)
    assert summary == WorkerSummary(done=1, failed=2)


@pytest.mark.parametrize("name", ["unknown", "of a later release"])
def test_what_a_worker_cannot_do_is_left_to_others_however_often_it_is_met(
    face: Face, kit: Any, name: str
) -> None:
    tasks = kit.queues(component="many", attempts=1)

    def refuses() -> None:
        raise NewerFormatError("this job has format 2")

    old = worker_of(face, "q", {"of a later release": refuses})
    tasks.enqueue("q", name, id="t")
    server = server_of(kit, "many", "q")
    for turn in range(1, 8):  # more often than it may fail
        server.zadd("queues:{q}:delayed", {"t": 0}, xx=True)
        # On a busy machine, one run may have it twice.
        assert face.run(old.run(burst=True)).released >= turn
        assert tasks.counts("q") == QueueCounts(0, 1, 0, 0)
    server.zadd("queues:{q}:delayed", {"t": 0}, xx=True)
    task = tasks.take("q", timeout=0)
    assert (task.id, task.attempts) == ("t", 1)


def test_a_worker_is_stopped_when_it_has_finished_what_it_works_on(
    face: Face, kit: ShardKit
) -> None:
    tasks, worker = kit.queues(component="many"), worker_of(face, ["q", "r"], concurrency=3)
    begun, finish = threading.Event(), threading.Event()

    @worker.task()
    def slow() -> None:
        begun.set()
        assert finish.wait(30)

    tasks.enqueue("q", "slow")
    running = face.start(worker.run)
    assert face.eventually(begun.is_set)
    worker.stop()
    finish.set()
    assert running() == WorkerSummary(done=1)
    tasks.enqueue("q", "slow")
    assert tasks.counts("q") == QueueCounts(1, 0, 0, 0)


async def test_an_async_worker_that_is_cancelled_gives_back_what_it_works_on(
    akit: Any,
) -> None:
    tasks = akit.queues(component="many")
    begun: asyncio.Queue[None] = asyncio.Queue()
    worker = AsyncWorker(tasks, "q", concurrency=4)

    @worker.task()
    async def forever() -> None:
        begun.put_nowait(None)
        await asyncio.sleep(1000)  # until it is cancelled

    await tasks.enqueue_many("q", [NewTask("forever")] * 3)
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(30):
        for _ in range(3):
            await begun.get()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await tasks.counts("q") == QueueCounts(3, 0, 0, 0)
    task = await tasks.take("q", timeout=0)
    assert task.attempts == 1
    assert worker.summary.released == 3


@pytest.mark.parametrize("answer", ["a task", "none", "an error"])
async def test_an_async_worker_that_is_cancelled_as_an_answer_comes_gives_back_what_it_took(
    akit: AsyncShardKit, answer: str
) -> None:
    tasks, worker = akit.queues(component="many"), AsyncWorker(akit.queues(component="many"), "q")
    await tasks.enqueue("q", "work")
    asked = asyncio.Event()

    async def take(queues: Any, *, lease: float, timeout: float) -> Any:  # noqa: ASYNC109
        if not timeout:
            return None
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # the answer came at the same moment
            if answer == "an error":
                raise ConnectionError("away") from None
            return await tasks.take("q", timeout=0) if answer == "a task" else None

    worker.tasks.take = take  # type: ignore[method-assign, assignment]
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(30):
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await tasks.counts("q") == QueueCounts(1, 0, 0, 0)
    assert worker.summary.released == (answer == "a task")


async def test_an_async_callback_that_cancels_itself_has_failed(akit: AsyncShardKit) -> None:
    tasks = akit.queues(component="many", attempts=1)
    worker = AsyncWorker(tasks, "q")

    @worker.task()
    async def gives_up() -> None:
        raise asyncio.CancelledError

    await tasks.enqueue("q", "gives_up")
    assert (await worker.run(burst=True)).failed == 1
    assert [dead.name async for dead in tasks.dead("q")] == ["gives_up"]


def test_a_task_that_somebody_else_took_meanwhile_is_told_of(face: Face, kit: ShardKit) -> None:
    worker = worker_of(face, "q")
    tasks = kit.queues(component="many")
    taken: list[Any] = []

    def overtaken() -> None:
        server = server_of(kit, "many", "q")
        [id_] = server.zrange("queues:{q}:taken", 0, -1)
        server.zadd("queues:{q}:taken", {id_: 0})
        taken.append(tasks.take("q", timeout=0))

    worker.register("overtaken", overtaken)
    tasks.enqueue("q", "overtaken")
    assert face.run(worker.run(burst=True)) == WorkerSummary(done=1, overtaken=1)
    assert tasks.acknowledge(taken[0])


def test_a_task_whose_queue_moved_meanwhile_has_not_outlived_its_lease(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "map.json"

    def point_to(server: LocalServer) -> None:
        path.with_suffix(".new").write_text(
            json.dumps({"components": {"many": {"entry": {"port": server.port}}}})
        )
        path.with_suffix(".new").replace(path)

    with LocalServer() as first, LocalServer() as second:
        point_to(first)
        with faced(kind, path) as face:  # type: ignore[arg-type]
            worker = worker_of(face, "q")
            component = face.kit.topology.component

            def moves() -> None:
                point_to(second)
                assert eventually(lambda: component("many").entry.fields["port"] == second.port)

            worker.register("moves", moves)
            face.run(worker.tasks.enqueue("q", "moves"))
            assert face.run(worker.run(burst=True)) == WorkerSummary(done=1)
    messages = [record.getMessage() for record in caplog.records]
    assert any("moved to another server" in message for message in messages)
    assert not any("lease" in message for message in messages)


def test_two_workers_do_each_task_once(face: Face, kit: ShardKit) -> None:
    tasks = kit.queues(component="many")
    done: list[int] = []
    workers = [worker_of(face, ["a", "b"], {"x": done.append}, concurrency=3) for _ in "ab"]
    running = [face.start(worker.run) for worker in workers]
    for n in range(100):
        tasks.enqueue("ab"[n % 2], "x", [n], delay=(n % 3) / 50)
    assert face.eventually(lambda: len(done) >= 100)
    for worker in workers:
        worker.stop()
    assert sum(ended().done for ended in running) == 100
    assert sorted(done) == [*range(100)]
    assert tasks.counts("a") == tasks.counts("b") == NOTHING


def test_a_worker_of_a_closed_kit_ends(shard_map: ShardMap) -> None:
    with shardkit.connect(shard_map) as kit:
        worker = Worker(kit.queues(component="many"), "q", concurrency=2)
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        worker.run()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda tasks: Worker(tasks, []), r"queues=\[\]; give 1 to 100"),
        (lambda tasks: Worker(tasks, "q", concurrency=0), "concurrency=0; give an integer"),
        (lambda tasks: Worker(tasks, "q", lease=0.5), "lease=0.5; give seconds"),
        (lambda tasks: Worker(tasks, "q", {"x": None}), "callback=None; give a function"),
        (lambda tasks: Worker(tasks, "q", {"": print}), "name is empty"),
        (lambda tasks: Worker(tasks, ["a", "a"]).run(burst=True), "give 1 to 100, each once"),
        (
            lambda tasks: Worker(tasks, "q", {"x": print}).register("x", print),
            "'x' is already registered",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kit: ShardKit, make: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        make(kit.queues(component="one"))


@pytest.fixture
def short_pauses(lower: Any) -> None:
    lower(worker_pause=0.002)


@pytest.fixture(params=["blocking", "awaiting"])
def mortal(request: pytest.FixtureRequest) -> Iterator[tuple[Face, LocalServer]]:
    """A face, and the server of its component ``own``, which a test kills."""
    with LocalServer() as server:
        entry = {"port": server.port, "socket_connect_timeout": 0.5, "retries": 0}
        shard_map = map_of(own={"entry": entry})
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
    mortal: tuple[Face, LocalServer], lower: Any, caplog: pytest.LogCaptureFixture
) -> None:
    face, server = mortal
    lower(worker_lease=0.01)
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
