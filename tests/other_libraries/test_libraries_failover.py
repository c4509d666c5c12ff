"""Workers of other libraries live through a planned failover and a move, and no job is lost.

Both are shardkit's own (docs/growth.md): the old server hands over, the entry is pushed, and
whoever still writes to the old one is refused, as it is a replica then.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from arranged import client_of, exit_code, forked, map_of
from faces import eventually

import shardkit
from shardkit.admin import push
from shardkit.admin.growth import fail_over, start_move
from shardkit.local import LocalServer

pytestmark = pytest.mark.timeout(600)  # a busy machine takes long to start workers
JOBS = 200
# How long writers may wait on a machine that does much else.
HOLD = 3.0
until = partial(eventually, seconds=120)


class Jobs:
    """A component ``jobs`` on one server, and another server that takes its place."""

    def __init__(self, config: LocalServer, old: LocalServer, new: LocalServer) -> None:
        self.url = f"redis://127.0.0.1:{config.port}"
        self.config, self.old, self.new = config, old, new

    def push(self, **fields: Any) -> None:
        entry = {"host": "127.0.0.1", "port": self.old.port, "retries": 3, **fields}
        with self.config.client() as client:
            push(client, map_of(jobs={"entry": entry}))

    def hand_over(self, how: str) -> None:
        """Have the new server take the place of the old one."""
        with self.config.client() as client:
            if how == "failover":
                assert fail_over(client, "jobs", hold=HOLD).planned
            else:
                old, new = (f"127.0.0.1:{each.port}" for each in (self.old, self.new))
                assert start_move(client, old, new, hold=HOLD).phase == "done"


@pytest.fixture(params=["failover", "move"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jobs(how: str) -> Iterator[Jobs]:
    fast = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}
    with LocalServer() as config, LocalServer(config=fast) as old, LocalServer(config=fast) as new:
        found = Jobs(config, old, new)
        if how == "move":
            found.push()
        else:
            found.push(replicas=[{"host": "127.0.0.1", "port": new.port}])
            with new.client() as client:
                client.replicaof("127.0.0.1", str(old.port))
                assert until(lambda: client.info("replication")["master_link_status"] == "up")
        yield found


def executed(server: LocalServer) -> Counter[bytes]:
    return Counter(client_of(server).lrange("executed", 0, -1))


def note(n: int) -> None:
    import rq

    job: Any = rq.get_current_job()
    job.connection.rpush("executed", n)
    time.sleep(0.03)  # as long as a short job takes


def test_rq_workers_do_each_job_once_while_another_server_takes_over(jobs: Jobs, how: str) -> None:
    rq = pytest.importorskip("rq")
    with shardkit.connect(jobs.url) as kit:
        queue = rq.Queue(connection=kit.client("jobs", private=True))
        enqueued = [queue.enqueue(note, n) for n in range(JOBS)]

        def work() -> None:
            rq.SimpleWorker([queue], connection=queue.connection).work(burst=True)

        workers = [forked(work, 100) for _ in range(3)]
        assert until(lambda: executed(jobs.old).total() >= 20)
        jobs.hand_over(how)
        assert executed(jobs.new).total() < JOBS, "it was under load"
        ended = [exit_code(worker) for worker in workers]
        assert ended == [0, 0, 0]
        assert executed(jobs.new) == Counter(b"%d" % n for n in range(JOBS))
        assert all(job.is_finished for job in enqueued)


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


def test_a_celery_worker_that_is_restarted_with_the_new_url_loses_no_job(
    jobs: Jobs, how: str, tmp_path: Path
) -> None:
    """It takes a URL only, so it is stopped warmly, and started with the URL of the new entry."""
    pytest.importorskip("celery")
    (tmp_path / "jobs.py").write_text(CELERY)

    def run(*args: str) -> subprocess.Popen[bytes]:
        with shardkit.connect(jobs.url) as kit:
            entry: Any = kit.component("jobs").entry
        return subprocess.Popen([sys.executable, str(tmp_path / "jobs.py"), entry.url(), *args])

    assert run("send", str(JOBS)).wait() == 0
    worker = run("work")
    try:
        assert until(lambda: executed(jobs.old).total() >= 20)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=120) == 0
        jobs.hand_over(how)
        worker = run("work")
        assert until(lambda: executed(jobs.new).total() >= JOBS), executed(jobs.new).total()
        assert executed(jobs.new) == Counter(b"%d" % n for n in range(JOBS))
    finally:
        worker.terminate()
        worker.wait(timeout=30)
