"""The background task: ``shardkit worker examples.tutorial.worker:make_worker``."""

from redis.utils import str_if_bytes

from shardkit.kit.kit import AsyncShardKit
from shardkit.queues import AsyncWorker

KEPT = 1000  # posts of a timeline


async def make_worker(kit: AsyncShardKit) -> AsyncWorker:
    """Return the worker of the queue ``posts``."""
    worker = AsyncWorker(kit.queues(component="jobs"), "posts")
    timelines = kit.key_sharded("timelines")

    @worker.task()
    async def deliver(author: str, text: str, at: float) -> None:
        # A task may run twice, after a crash: writing the same post again changes nothing.
        followers = await timelines[f"followers:{author}"].smembers(f"followers:{author}")
        async with timelines.pipeline() as pipe:
            for follower in [author, *map(str_if_bytes, followers)]:
                key = f"timeline:{follower}"
                pipe.zadd(key, {f"{author}: {text}": at})
                pipe.zremrangebyrank(key, 0, -KEPT - 1)
            await pipe.execute()

    return worker
