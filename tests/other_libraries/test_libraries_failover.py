"""Workers of other libraries live through a planned failover, and no job is lost.

The old master holds writes back until its replica has all of them; that becomes the master, the
entry is changed, and the old one lets nobody write until every client has gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardkit
from shardkit.local import LocalServer

JOBS = 200


@pytest.fixture
def servers() -> Iterator[tuple[LocalServer, LocalServer]]:
    with LocalServer() as old, LocalServer() as new, new.client() as client:
        client.replicaof("127.0.0.1", old.port)
        assert until(lambda: client.info("replication")["master_link_status"] == "up")
        yield old, new


@pytest.fixture
def path(tmp_path: Path, servers: tuple[LocalServer, LocalServer]) -> Path:
    write(tmp_path / "map.yaml", servers[0])
    return tmp_path / "map.yaml"


def write(path: Path, server: LocalServer) -> None:
    """Point the entry at a server. What was lost on the way is sent again, as redis-py does."""
    entry = {"host": "127.0.0.1", "port": server.port, "retries": 3}
    other = path.with_suffix(".new")
    other.write_text(yaml.safe_dump({"components": {"jobs": {"entry": entry}}}))
    other.replace(path)


def until(done: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def fail_over(old: LocalServer, new: LocalServer, path: Path) -> None:
    with old.client() as before, new.client() as after:
        before.client_pause(20_000, all=False)  # writes wait

        def offset(client: Any, name: str) -> int:
            return int(client.info("replication")[name])

        assert until(
            lambda: offset(after, "slave_repl_offset") == offset(before, "master_repl_offset")
        )
        after.replicaof("NO", "ONE")
        write(path, new)

        time.sleep(1.5)  # longer than a kit takes to look at its map
        before.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.1)
        assert len(before.client_list(_type="normal")) == 1  # nobody came back
        before.replicaof("127.0.0.1", new.port)
        before.client_unpause()


def executed(server: LocalServer) -> Counter[bytes]:
    with server.client() as client:
        return Counter(client.lrange("executed", 0, -1))


def note(n: int) -> None:
    import rq

    job: Any = rq.get_current_job()
    job.connection.rpush("executed", n)
    time.sleep(0.01)


def test_rq_workers_do_each_job_once_over_a_failover(
    servers: tuple[LocalServer, LocalServer], path: Path
) -> None:
    rq = pytest.importorskip("rq")
    with shardkit.connect(path) as kit:
        queue = rq.Queue(connection=kit.client("jobs", private=True))
        jobs = [queue.enqueue(note, n) for n in range(JOBS)]

        def work() -> int:
            worker = os.fork()
            if worker == 0:
                code = 1
                try:
                    rq.SimpleWorker([queue], connection=queue.connection).work(burst=True)
                    code = 0
                finally:
                    os._exit(code)
            return worker

        workers = [work(), work()]
        assert until(lambda: executed(servers[0]).total() >= 20)
        fail_over(*servers, path)
        ended = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
        assert ended == [0, 0]
        assert executed(servers[1]) == Counter(b"%d" % n for n in range(JOBS))
        assert all(job.is_finished for job in jobs)


CELERY = """
import sys, time
from celery import Celery
app = Celery("jobs", broker=sys.argv[1])
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)
@app.task(name="note")
def note(n):
    with app.connection() as connection:
        connection.default_channel.client.rpush("executed", n)
    time.sleep(0.01)
if sys.argv[2] == "work":
    app.worker_main(["worker", "--pool=solo", "--loglevel=error", "--without-mingle"])
else:
    for n in range(int(sys.argv[3])):
        note.delay(n)
"""


def test_a_celery_worker_that_is_restarted_at_a_failover_loses_no_job(
    servers: tuple[LocalServer, LocalServer], path: Path, tmp_path: Path
) -> None:
    """It takes a URL only, so it is stopped warmly, and started with the URL of the new entry."""
    pytest.importorskip("celery")
    (tmp_path / "jobs.py").write_text(CELERY)

    def run(*args: str) -> subprocess.Popen[bytes]:
        with shardkit.connect(path) as kit:
            entry: Any = kit.component("jobs").entry
        url = entry.url()
        return subprocess.Popen([sys.executable, str(tmp_path / "jobs.py"), url, *args])

    assert run("send", str(JOBS)).wait() == 0
    worker = run("work")
    try:
        assert until(lambda: executed(servers[0]).total() >= 20)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 0
        fail_over(*servers, path)
        worker = run("work")
        assert until(lambda: executed(servers[1]).total() >= JOBS)
        assert executed(servers[1]) == Counter(b"%d" % n for n in range(JOBS))
    finally:
        worker.terminate()
        worker.wait(timeout=30)
