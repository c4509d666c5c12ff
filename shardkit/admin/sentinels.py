"""Queries of Sentinels beyond the address of a master, which clients query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis.exceptions import RedisError

from shardkit.config.entry import Entry
from shardkit.errors import ConfigServerError
from shardkit.network.server_queries import TIMEOUT, client_of

# Fields of an entry that do not apply to the servers that Sentinels name.
_OF_SERVICES = ("sentinel", "read_from", "max_lag", "zone")


@contextmanager
def sentinels_of(entry: Entry, where: str, timeout: float = TIMEOUT) -> Iterator[list[Any]]:
    """Yield clients of all Sentinels that an entry names, even if they do not answer."""
    with client_of(entry.resolved(where), timeout) as client:
        sentinels = list(client.connection_pool.sentinel_manager.sentinels)
        try:
            yield sentinels
        finally:
            for each in sentinels:
                each.connection_pool.disconnect()


def servers_of_service(
    entry: Entry, where: str, timeout: float = TIMEOUT
) -> list[tuple[str, Entry]]:
    """Return an entry for each server of a Sentinels' service, the master first."""
    service = entry.fields["sentinel"]["service"]
    shared = {name: value for name, value in entry.fields.items() if name not in _OF_SERVICES}
    with sentinels_of(entry, where, timeout) as sentinels:
        for each in sentinels:
            with suppress(RedisError, OSError):
                found = [
                    each.execute_command("SENTINEL MASTER", service),
                    *each.sentinel_slaves(service),
                ]
                return [
                    (where, Entry({**shared, "host": said["ip"], "port": said["port"]}, where))
                    for said in found
                ]
    raise ConfigServerError(
        f"{where}: no Sentinel knows the servers of {service!r}", "start them, or correct the entry"
    )
