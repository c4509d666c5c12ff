"""A worker that writes letters: what a request leaves for later.

::

    pip install "shardkit[local,cli]"
    shardkit -c configs/local.yaml worker examples.web.letters:make_worker
"""

from shardkit.kit.kit import ShardKit
from shardkit.queues import Worker


def make_worker(kit: ShardKit) -> Worker:
    """Return the worker of the queue ``mail``."""
    worker = Worker(kit.queues(component="timelines"), "mail")
    written = kit.key_sharded("timelines")

    @worker.task()
    def write(user: str) -> None:
        written.incr(f"letters:{user}")

    return worker
