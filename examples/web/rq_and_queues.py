"""rq beside shardkit's queues: both on the entries of one map, each with a component of its own.

rq's jobs are on the one server of ``hits``, by a private client that follows its entry. What they
cause is in queues over the shards of ``timelines``. Celery is used alike: give it
``kit.component("hits").entry.url()`` as its broker.

::

    pip install "shardkit[local]" rq
    python -m examples.web.rq_and_queues
"""

import rq

import shardkit
from examples.web import CONFIG
from shardkit.kit.kit import ShardKit
from shardkit.queues import NewTask, Worker


def send_letters(where: str, names: list[str]) -> int:
    """Enqueue a task for each of these names: a job of rq."""
    with shardkit.connect(where) as kit:
        tasks = kit.queues(component="timelines")
        return len(tasks.enqueue_many("letters", [NewTask("write", [name]) for name in names]))


def work(kit: ShardKit, where: str, names: list[str]) -> list[str]:
    """Have rq's worker enqueue what shardkit's worker does; return for whom letters were written.

    Args:
        kit: an open kit.
        where: the map or config server that the job connects to.
        names: who gets letters.
    """
    client = kit.client("hits", private=True)
    rq.Queue("nightly", connection=client).enqueue(send_letters, where, names)
    rq.SimpleWorker(["nightly"], connection=client).work(burst=True)

    written: list[str] = []
    worker = Worker(kit.queues(component="timelines"), "letters")
    worker.task("write")(written.append)
    worker.run(burst=True)
    return written


if __name__ == "__main__":
    with shardkit.connect(CONFIG) as kit:
        print(sorted(work(kit, CONFIG, ["Ann", "Bob"])))
