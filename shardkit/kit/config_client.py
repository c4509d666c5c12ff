"""A client of the config server, whatever it is: a server, behind Sentinels, or a cluster.

And what it tells of a map that is older than the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from redis.exceptions import ClusterCrossSlotError

from shardkit.config.component import EPOCH_KEY, whole_component_of
from shardkit.config.entry import WHERE, Entry, as_one_server, entries_of_url
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import HISTORY_KEY, read_components, read_history
from shardkit.errors import ConfigServerError
from shardkit.network.connections import Connector
from shardkit.network.connections.reply_kinds import check_replies
from shardkit.network.rules import CONFIG, CheckFinding
from shardkit.network.server_queries import CONFIG_LIMITS


@contextmanager
def config_client(where: str | Entry) -> Iterator[redis.Redis]:
    """Give a client of a config server, an entry or a URL, and close it afterwards.

    It is redis-py's `Redis` also for a cluster: names of keys that begin with ``config:`` get a
    hash tag as they are sent, ``{config}:``, and go to the master that has them. Of several
    addresses, the first that leads to a master is used. ConfigError and ConfigServerError say why
    an entry cannot be used.
    """
    entry = where if isinstance(where, Entry) else first_master(entries_of_url(where))
    client = Connector().blocking({**CONFIG_LIMITS, **as_one_server(entry).resolved(WHERE)})
    assert isinstance(client, redis.Redis)
    check_replies(client, reports=True)
    pool: Any = client.connection_pool
    try:
        try:
            client.exists(EPOCH_KEY, HISTORY_KEY)
        except ClusterCrossSlotError as error:
            raise ConfigServerError(
                f"config server {entry.address} is a node of a cluster",
                "write redis+cluster:// in its URL, or cluster: true in its entry",
            ) from error
        except redis.RedisError:
            pass  # what follows raises it, and tells what failed
        yield client
    finally:
        pool.close_for_good()


def first_master(entries: Sequence[Entry]) -> Entry:
    """Return the first of some entries that leads to a master; the first of all if none does."""
    for entry in entries if len(entries) > 1 else ():
        with suppress(redis.RedisError), config_client(entry) as client:
            if entry.is_cluster:
                client.ping()  # the master, as is each that can be connected to
                return entry
            if client.role()[0] in ("master", b"master"):
                return entry
    return entries[0]


def stale_map(config: Any, shard_map: ShardMap) -> list[CheckFinding]:
    """Return the finding that a shard map is older than the entries; nothing if it is not.

    A map that was changed, and not pushed yet, is not older.
    """
    now = read_components(config, shard_map.components)
    differing = {
        name: own for name, own in shard_map.components.items() if not own.same_as(now.get(name))
    }
    for record in read_history(config) if differing else ():
        for name, component in differing.items():
            if component.same_as(whole_component_of(name, record.before.get(name) or {})):
                return [
                    CheckFinding(
                        shard_map.source,
                        f"is older than the entries: {name} changed at epoch {record.epoch} "
                        f"({record.message or record.source})",
                        f"shardkit config pull -o {shard_map.source}",
                        warning=True,
                        kind=CONFIG,
                    )
                ]
    return []
