"""Using a network for some seconds: many people at once on an event loop, a worker beside them.

Each task is a person who does one thing after another, without pausing::

    83%  the first page of a home timeline, 30 statuses; one in four goes on to the second
     6%  a post
     7%  a follow
     4%  an unfollow

Random choices come from a seed for each task; only how far they get in the time differs.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from examples.social.people import People, message
from shardkit.errors import ShardKitError
from shardkit.operations.operation import Awaiting
from shardkit.queues.task_queues import TaskQueues
from shardkit.queues.worker import AsyncWorker, WorkerSummary
from shardkit.social.network import SocialNetwork

PAGE: Final = 30
_READS, _POSTS, _FOLLOWS, _UNFOLLOWS = 83, 6, 7, 4
_GOES_ON: Final = 0.25  # of those who read the first page
_TOLD_EVERY: Final = 0.2
_CONCURRENCY: Final = 4  # tasks of the worker


@dataclass(slots=True)
class Activity:
    """What was done.

    Attributes:
        seconds: how long people did something.
        drained: how long it took after that until the worker had nothing left to do.
        pages: how long each page took, in seconds.
        statuses: how many statuses they had.
        posts: how many statuses were posted.
        writes: how many timelines these posts were to be written to.
        fetched: how many posts were not written to any, as readers fetch them.
        follows: how many relations began.
        unfollows: how many ended.
        tasks: how many tasks the worker did.
        interrupted: whether Ctrl-C ended it before its time.
    """

    seconds: float = 0.0
    drained: float = 0.0
    pages: list[float] = field(default_factory=list)
    statuses: int = 0
    posts: int = 0
    writes: int = 0
    fetched: int = 0
    follows: int = 0
    unfollows: int = 0
    tasks: int = 0
    interrupted: bool = False

    @property
    def actions(self) -> int:
        """How many things were done."""
        return len(self.pages) + self.posts + self.follows + self.unfollows


class Crowd:
    """People who use a network.

    Args:
        people: who is how popular.
        uids: their ids, by number.
        following: whom each of them follows, by number; kept up to date.
        followers: how many follow each of them; kept up to date.
        limit: with more followers than that, posts are not written to timelines; 0: they always
            are.
        seed: of what is left to chance.
    """

    def __init__(
        self,
        people: People,
        uids: Sequence[int],
        following: Sequence[list[int]],
        followers: Any,
        limit: int,
        seed: int,
    ) -> None:
        self._people = people
        self._uids = uids
        self._following = following
        self._followers = followers
        self._limit = limit
        self._seed = seed
        self._stopping = asyncio.Event()
        self.acted = Activity()

    async def act(
        self,
        network: SocialNetwork[Awaiting],
        tasks: int,
        seconds: float,
        told: Callable[[float], object],
    ) -> None:
        """Have so many people at once do something for so long, or until Ctrl-C.

        Args:
            network: the network.
            tasks: how many.
            seconds: how long.
            told: is told how many seconds have passed.

        Raises:
            ShardErrors: shards failed.
        """
        began = time.perf_counter()
        with self._interrupts():
            try:
                async with asyncio.TaskGroup() as group:
                    for n in range(tasks):
                        group.create_task(self._somebody(network, n))
                    await self._wait(began + seconds, lambda left: told(seconds - left))
            except BaseExceptionGroup as failed:  # of the group; the others were cancelled
                raise failed.exceptions[0] from None
        self.acted.seconds = time.perf_counter() - began

    async def _wait(self, until: float, told: Callable[[float], object]) -> None:
        """Wait until it is time or Ctrl-C is pressed, and have everybody stop."""
        while (left := until - time.perf_counter()) > 0 and not self._stopping.is_set():
            told(left)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _TOLD_EVERY)):
                    await self._stopping.wait()
        self._stopping.set()

    async def _somebody(self, network: SocialNetwork[Awaiting], n: int) -> None:
        dice = random.Random(f"acts {self._seed} {n}")
        doing = (self._read, self._post, self._follow, self._unfollow)
        weights = (_READS, _POSTS, _FOLLOWS, _UNFOLLOWS)
        while not self._stopping.is_set():
            [act] = dice.choices(doing, weights)
            await act(network, dice)

    async def _read(self, network: SocialNetwork[Awaiting], dice: random.Random) -> None:
        uid = self._uids[dice.randrange(self._people.count)]
        page = await self._page(network, uid, None)
        if page.cursor is not None and dice.random() < _GOES_ON:
            await self._page(network, uid, page.cursor)

    async def _page(self, network: SocialNetwork[Awaiting], uid: int, cursor: Any) -> Any:
        began = time.perf_counter()
        page: Any = await network.home(uid, limit=PAGE, cursor=cursor)
        self.acted.pages.append(time.perf_counter() - began)
        self.acted.statuses += len(page)
        return page

    async def _post(self, network: SocialNetwork[Awaiting], dice: random.Random) -> None:
        n = self._people.author(dice)
        await network.post(self._uids[n], message(dice))
        self.acted.posts += 1
        if self._limit and self._followers[n] > self._limit:
            self.acted.fetched += 1
        else:
            self.acted.writes += self._followers[n]
        self.acted.writes += 1  # of the author's profile

    async def _follow(self, network: SocialNetwork[Awaiting], dice: random.Random) -> None:
        n = dice.randrange(self._people.count)
        [other] = self._people.popular(dice, 1)
        if n == other or other in self._following[n]:
            return
        if await network.follow(self._uids[n], self._uids[other]):
            self._following[n].append(other)
            self._followers[other] += 1
            self.acted.follows += 1

    async def _unfollow(self, network: SocialNetwork[Awaiting], dice: random.Random) -> None:
        n = dice.randrange(self._people.count)
        if not self._following[n]:
            return
        other = dice.choice(self._following[n])
        if await network.unfollow(self._uids[n], self._uids[other]):
            self._following[n].remove(other)
            self._followers[other] -= 1
            self.acted.unfollows += 1

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C ends it as the end of the time does: what was begun is finished."""
        loop = asyncio.get_running_loop()

        def handle() -> None:
            self.acted.interrupted = True
            self._stopping.set()

        try:
            loop.add_signal_handler(signal.SIGINT, handle)
        except (RuntimeError, ValueError, NotImplementedError):  # not in the main thread
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)


@asynccontextmanager
async def working(
    network: SocialNetwork[Awaiting], tasks: TaskQueues[Awaiting], queue: str, acted: Activity
) -> AsyncIterator[None]:
    """Have a worker do the network's tasks, and at the end all that are left.

    Raises:
        ShardKitError: the worker could not go on, or tasks failed.
    """
    worker = AsyncWorker(tasks, [queue], network.callbacks, concurrency=_CONCURRENCY)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)  # it has seen to signals by now; whoever does so next comes before it
    try:
        yield
        began = time.perf_counter()
        acted.tasks = await drain(network, tasks, queue)
        acted.drained = time.perf_counter() - began
    finally:
        worker.stop()
        await asyncio.wait([running])
    acted.tasks += _done(running.result())


async def drain(network: SocialNetwork[Awaiting], tasks: TaskQueues[Awaiting], queue: str) -> int:
    """Do all tasks that wait; return how many.

    Raises:
        ShardKitError: tasks failed.
    """
    worker = AsyncWorker(tasks, [queue], network.callbacks, concurrency=_CONCURRENCY)
    return _done(await worker.run(burst=True))


def _done(summary: WorkerSummary) -> int:
    if summary.failed:
        raise ShardKitError(f"{summary.failed} of the network's tasks failed", "report it")
    return summary.done
