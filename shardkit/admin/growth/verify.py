"""Checks whether writes to a master reach its replicas and their disks.

::

    ZADD sync:wait <now> <token>      on the master; removed at the end, with older ones
    ZSCORE sync:wait <token>          on the replica, while its link to the master is up
    INFO persistence                  aof_pending_bio_fsync 0, a second after the token arrived

After Redis in Action, section 4.2.4, whose version waits for ever while the link is up, and fails
on a server that is not a replica or has no append-only file.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.relocation import Login, ServerAddress, address_of, masters_in
from shardkit.admin.growth.servers import KnownServers, connected_to
from shardkit.config.component import Component
from shardkit.network.server_queries import STEPS, query_all
from shardkit.operations.arguments import Seconds, in_seconds

KEY = "sync:wait"
TIMEOUT = 5.0
_OLD = 900  # seconds
_STEP = 0.005
_ANSWER = 2.0  # seconds
_EVERY_SECOND = 1.0  # the interval in which an append-only file is synced


@dataclass(frozen=True)
class VerifiedReplica:
    """How far a write to a master got.

    Attributes:
        linked: whether the replica's link to the master is up.
        written: whether the replica has the write.
        synced: whether it is on the replica's disk; None if it has no append-only file.
        seconds: how long this took.
    """

    linked: bool
    written: bool
    synced: bool | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the replica has the write, on disk too unless it has no append-only file."""
        return self.linked and self.written and self.synced is not False


def verify_replica(master: Any, replica: Any, timeout: Seconds = TIMEOUT) -> VerifiedReplica:
    """Check whether a write to a master reaches a replica, and its disk, in time.

    Args:
        master: a redis-py client of the master.
        replica: a client of the replica, with the same database.
        timeout: seconds.

    Raises:
        redis.RedisError: the master or the replica does not answer within two seconds more,
            whatever the timeouts of the clients, or refuses.

    Cost: a few exchanges with both, one more with the replica every 5 ms, and a second if the
    replica has an append-only file.
    """
    timeout = in_seconds(timeout)
    check = partial(_verify, master, replica, timeout)
    [answer] = query_all({0: check}, (timeout + _ANSWER) / STEPS).values()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _verify(master: Any, replica: Any, timeout: float) -> VerifiedReplica:
    began = time.monotonic()
    end = began + timeout
    token = secrets.token_hex(16)
    linked = written = False
    synced: bool | None = False
    now = master.time()[0]
    master.zadd(KEY, {token: now})
    try:
        linked = replica.info("replication")["role"] != "master" and _until(
            end, lambda: replica.info("replication").get("master_link_status") == "up"
        )
        written = linked and _until(end, lambda: replica.zscore(KEY, token) is not None)
        if written and not replica.info("persistence")["aof_enabled"]:
            synced = None
        elif written:
            # A sync that was due when the token arrived has started a second later at most.
            seen = time.monotonic()
            synced = _until(
                end,
                lambda: (
                    time.monotonic() > seen + _EVERY_SECOND
                    and not replica.info("persistence").get("aof_pending_bio_fsync", 0)
                ),
            )
    finally:
        master.zrem(KEY, token)
        master.zremrangebyscore(KEY, "-inf", now - _OLD)
    return VerifiedReplica(linked, written, synced, time.monotonic() - began)


def _until(end: float, holds: Callable[[], bool]) -> bool:
    while not holds():
        if time.monotonic() >= end:
            return False
        time.sleep(_STEP)
    return True


def verify_replicas(
    components: Iterable[Component], timeout: Seconds = TIMEOUT
) -> dict[tuple[ServerAddress, ServerAddress], VerifiedReplica | Exception]:
    """Verify all replicas that entries name, in parallel.

    Args:
        components: the components.
        timeout: seconds.

    Returns:
        By master and replica, each pair once whatever its names, how far a write got, or the error.
    """
    timeout = in_seconds(timeout)
    components = list(components)
    same = KnownServers(components).same
    pairs: dict[tuple[ServerAddress, ServerAddress], Login] = {}
    for master, login in masters_in(components):
        for replica in map(address_of, login.entry.replicas):
            if replica is not None and not any(
                same(master, one) and same(replica, other) for one, other in pairs
            ):
                pairs[master, replica] = login

    def verify(
        pair: tuple[ServerAddress, ServerAddress], login: Login
    ) -> VerifiedReplica | Exception:
        database = login.entry.resolved(login.where).get("db", 0)
        try:
            with (
                connected_to(pair[0], login, database=database) as master,
                connected_to(pair[1], login, database=database) as replica,
            ):
                return verify_replica(master, replica, timeout)
        except (RedisError, OSError) as error:
            return error

    with ThreadPoolExecutor(max_workers=16) as threads:
        asked = {pair: threads.submit(verify, pair, login) for pair, login in pairs.items()}
        return {pair: answer.result() for pair, answer in asked.items()}
