"""``shardkit worker``: runs a worker of task queues that a module defines."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import click

import shardkit
from shardkit.cli import options as given
from shardkit.cli.options import INTERRUPTED, Session, command, opened, timed, topology_of
from shardkit.cli.output import Output
from shardkit.errors import ShardKitError, counted, naming
from shardkit.queues.worker import MOST_CONCURRENCY, AsyncWorker, Worker, WorkerSummary

Tell = Callable[[str], object]


@command(
    "shardkit worker myapp.tasks:worker",
    "shardkit worker myapp.tasks:worker --queue high --queue low --concurrency 8",
    "shardkit worker myapp.tasks:make_worker --config configs/local.yaml --burst --json",
    "shardkit worker myapp.tasks:worker --live-port 8081",
)
@click.make_pass_decorator(Session, ensure=True)
def worker(
    session: Session,
    output: Output,
    spec: str = given.argument("MODULE:WORKER"),
    where: str | None = given.config,
    queues: Sequence[str] = given.repeated(
        None, "Serve this queue; in order of priority.", short="-q", name="--queue"
    ),
    concurrency: int | None = given.number(
        None, "How many tasks to run at a time.", short="-n", most=MOST_CONCURRENCY
    ),
    live_port: int | None = given.option(
        "PORT",
        "Answer liveness probes, GET /live, on this port of all addresses.",
        type=click.IntRange(1, 65535),
    ),
    burst: bool = given.flag("Exit when no task is waiting."),
    verbose: bool = given.flag("Show every task.", short="-v"),
) -> int:
    """Run a worker of task queues until it is stopped.

    WORKER is a Worker, or a function that takes a kit (opened from --config) and returns a Worker.
    An async function takes an async kit and returns an AsyncWorker. MODULE may be in the current
    directory.

    On SIGTERM or Ctrl-C it finishes its running tasks and stops. On a second one it stops at once
    and returns them to the queue. Exit codes: 0 stopped, or --burst is done; 1 failed; 130 tasks
    were returned unfinished.
    """
    session.timed = True
    loaded = _load(spec)
    ran: Worker | AsyncWorker

    def prepare(candidate: Any) -> Worker | AsyncWorker:
        if not isinstance(candidate, Worker | AsyncWorker):
            raise ShardKitError(
                f"{spec} is a {type(candidate).__name__}",
                "name a Worker, or a function that returns one",
            )
        if queues:
            candidate.queues = list(queues)
        if concurrency is not None:
            candidate.concurrency = concurrency
        served.append(candidate)
        return candidate

    served: list[Worker | AsyncWorker] = []
    with (
        _answering_probes(live_port, served),
        _reporting(output) if verbose else nullcontext(),
        output.busy("starting") as tell,
    ):
        if isinstance(loaded, Worker):
            ran = _run(prepare(loaded), burst, tell)
        elif inspect.iscoroutinefunction(loaded):
            ran = asyncio.run(_arun(spec, where, loaded, prepare, burst, tell))
        elif isinstance(loaded, AsyncWorker) or not callable(loaded):
            raise ShardKitError(
                f"{spec} is not a Worker, nor a function",
                "name a Worker, a function that takes a kit and returns one, or an async function "
                "that takes an async kit and returns an AsyncWorker",
            )
        else:
            with opened(where) as topology:
                with _explained(spec):
                    candidate = loaded(topology.kit)
                ran = _run(prepare(candidate), burst, tell)
    output.answer(ran.summary.as_dict(), _outcome(ran.summary))
    return INTERRUPTED if ran.aborted else 0


def _run(worker: Worker | AsyncWorker, burst: bool, tell: Tell) -> Worker:
    if isinstance(worker, AsyncWorker):
        raise ShardKitError(
            "a function that is not async returned an AsyncWorker", "use an async function"
        )
    worker.run(burst=burst, on_progress=_progress_reporter(worker, tell))
    return worker


async def _arun(
    spec: str,
    where: str | None,
    make: Callable[..., Any],
    prepare: Callable[[Any], Worker | AsyncWorker],
    burst: bool,
    tell: Tell,
) -> AsyncWorker:
    async with await shardkit.aconnect(topology_of(where)) as kit:
        with _explained(spec):
            worker = await make(kit)
        worker = prepare(worker)
        if not isinstance(worker, AsyncWorker):
            raise ShardKitError("an async function returned a Worker", "return an AsyncWorker")
        await worker.run(burst=burst, on_progress=_progress_reporter(worker, tell))
    return worker


@contextmanager
def _answering_probes(port: int | None, workers: Sequence[Worker | AsyncWorker]) -> Iterator[None]:
    """Answer 200 to GET /live on a port while the worker starts or is live, else 503."""
    if port is None:
        yield
        return

    class Probes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.partition("?")[0].rstrip("/").endswith("/live")
            ok = all(worker.is_live for worker in workers)
            body = json.dumps({"ok": ok}).encode() if known else b""
            self.send_response((200 if ok else 503) if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    with naming(f"port {port}"):
        server = ThreadingHTTPServer(("", port), Probes)
    threading.Thread(target=server.serve_forever, name="shardkit-probes", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _load(spec: str) -> Any:
    module, _, name = spec.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), *name.split(".")))):
        raise click.UsageError(f"{spec!r} is not MODULE:WORKER, such as myapp.tasks:worker")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        with _explained(module):
            target = import_module(module)
    except ImportError as error:
        raise ShardKitError(
            f"{module} cannot be imported: {error}", "run it where the module is found"
        ) from error
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError:
        raise ShardKitError(
            f"{module} has no {name}", "name a Worker, or a function that returns one"
        ) from None
    return target


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Name the user's code in an error that it raises itself."""
    try:
        yield
    except (ShardKitError, ImportError):
        raise
    except Exception as error:
        raise ShardKitError(
            f"{name} raised {type(error).__name__}: {error}", "correct it: --debug shows where"
        ) from error


def _progress_reporter(
    worker: Worker | AsyncWorker, tell: Tell
) -> Callable[[WorkerSummary, int], object] | None:
    if not sys.stderr.isatty():
        return None
    queues = ", ".join(map(str, worker.queues))
    return lambda summary, running: tell(f"{queues}: {running} running, {_outcome(summary)}")


def _outcome(summary: WorkerSummary) -> str:
    parts = [f"{counted(summary.done, 'task')} done"]
    parts += [
        f"{count:,} {what}"
        for count, what in (
            (summary.failed, "failed"),
            (summary.released, "given back"),
            (summary.overtaken, "overtaken"),
            (summary.errors, "errors"),
        )
        if count
    ]
    return ", ".join(parts)


@contextmanager
def _reporting(output: Output) -> Iterator[None]:
    """Show the worker's log of every task; warnings are shown in any case."""
    logger, handler = logging.getLogger("shardkit.queues"), logging.Handler()
    before = logger.level
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    handler.emit = lambda record: output.note(timed(record))  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
