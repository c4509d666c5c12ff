"""What a signal handler raises in a wait passes unchanged, even what ends generators.

Of the blocking face: a coroutine cannot raise a StopIteration.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from arranged import alarmed, map_of
from faces import PATIENCE

import shardkit
from shardkit import ShardKit
from shardkit.local import LocalServer

SOON = 0.25 * PATIENCE  # seconds; the calls wait for longer


@pytest.fixture
def waiting() -> Iterator[tuple[ShardKit, LocalServer]]:
    with LocalServer() as server:
        where = [{"port": server.port, "db": number} for number in (1, 2)]
        with shardkit.connect(map_of(many={"shards": where}, one={"entry": where[0]})) as kit:
            yield kit, server


CALLS: dict[str, Callable[[ShardKit, Any], Any]] = {
    "message": lambda kit, news: news.get_message(timeout=60),
    "task": lambda kit, _: kit.queues(component="one").take("mail", timeout=60),
    "lock": lambda kit, _: kit.lock("l", component="one").acquire(blocking_timeout=60),
    "latch": lambda kit, _: kit.countdown_latch("n", component="one").wait(timeout=60),
}
PAUSED: dict[str, Callable[[ShardKit, Any], Any]] = {  # which wait for paused servers
    "structure": lambda kit, _: kit.set("s", component="one").scard(),
    "client": lambda kit, _: kit.client("one").get("k"),
    "router": lambda kit, _: kit.key_sharded("many").mget(["a", "b", "c", "d"]),
    "all": lambda kit, _: kit.key_sharded("many").all.dbsize(),
    "pipeline": lambda kit, _: kit.key_sharded("many").pipeline().get("a").get("b").execute(),
    "together": lambda kit, _: kit.together(kit.set("s", component="one").deferred.scard()),
}


@pytest.mark.parametrize("raised", [StopIteration, GeneratorExit])
def test_what_ends_generators_is_no_result(
    waiting: tuple[ShardKit, LocalServer], raised: type[BaseException]
) -> None:
    kit, server = waiting
    kit.lock("l", component="one", renew=False, ttl=3600).acquire()
    kit.countdown_latch("n", component="one").set(2)
    news = kit.key_sharded("many").pubsub()
    news.subscribe("news")
    while news.get_message(timeout=SOON):
        pass

    def interrupt(*_: Any) -> None:
        raise raised("mine")

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        for name, call in (CALLS | PAUSED).items():
            if name in PAUSED:
                server.pause()
            with pytest.raises(raised, match=r"^mine$"):
                alarmed(partial(call, kit, news))
            server.resume()
    finally:
        signal.signal(signal.SIGALRM, former)
        news.close()
