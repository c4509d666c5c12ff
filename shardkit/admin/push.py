"""Pushes, and the data servers that witness them; see `shardkit.network.topology.witness`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import redis

from shardkit import log_records
from shardkit.admin.preflight import misplaced, preflight, refuse
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.diff import ComponentChange
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.stored import EPOCH_KEY
from shardkit.errors import ConfigError, ConfigServerError, few
from shardkit.network.connections import Connector
from shardkit.network.server_queries import TIMEOUT
from shardkit.network.survey import query_entries
from shardkit.network.topology.witness import read_witness, witnesses, write_witness
from shardkit.operations.arguments import Seconds, in_seconds

logger = logging.getLogger("shardkit.admin")


def push(
    config: redis.Redis,
    shard_map: ShardMap,
    *,
    timeout: Seconds = TIMEOUT,
    connector: Connector | None = None,
    check: bool = True,
    force: bool | Collection[str] = (),
    **options: Any,
) -> list[ComponentChange]:
    """Push a shard map, and have the servers of its components witness the push.

    Args:
        config: a client of the config server.
        shard_map: the map to push; components that it does not describe stay unchanged.
        timeout: seconds for one answer of a data server.
        connector: connects to the data servers; with `shardkit.testing.MemoryServers`, pass these.
        check: whether to refuse the push if an entry's new place lacks its data, or if keys on the
            shards of new components live on other shards than those that the map gives them. An
            unchanged address costs nothing, another one about ten exchanges.
        force: components to push in spite of that, or True for all.
        options: ``prune``, ``has_data``, ``sample``, ``epoch``, ``above``, ``author``
            and ``message``, as in `shardkit.config.store.push`.

    Returns:
        The changes. A server that could not witness the push is logged as a warning.

    Raises:
        PushRefusedError: the push would strand data, also data that was there before the first
            push, names a replica as a master, or another push came in between.
        ConfigError: the map cannot be pushed.
        ConfigServerError: the config server cannot be read or written.
    """
    timeout = in_seconds(timeout)
    # Include the old components: clients that have not read the push yet still use them.
    known = [*_components(config, shard_map).values(), *shard_map.components.values()]

    def require_data(pipe: Any) -> None:
        pipe.watch(EPOCH_KEY)  # a move in between has the push tried again
        before = _components(config, shard_map)
        new = [each for name, each in shard_map.components.items() if name not in before]
        findings = misplaced(new, timeout, connector)
        if connector is None:
            findings += preflight(before, shard_map.components, moved_only=True)
        forced = frozenset(() if isinstance(force, bool) else force)
        refuse([each for each in findings if not each.warning and each.component not in forced])

    if check and force is not True:
        options["guard"] = require_data
    changes = store.push(config, shard_map, force=force, **options)
    epoch = store.read_epoch(config)
    missed = attest(known, epoch, timeout, connector)
    if missed:
        logger.warning(
            "%s did not witness epoch %d; the other servers still detect a config server that was "
            "restored from an old snapshot",
            few(missed, ", "),
            epoch,
            extra=log_records.fields("epoch-not-witnessed", servers=missed, epoch=epoch),
        )
    return changes


def _components(config: redis.Redis, shard_map: ShardMap) -> Mapping[str, Component]:
    """Return the current components; none if they are unusable, which the push then reports."""
    try:
        return store.read_components(config, shard_map.components)
    except ConfigServerError:
        raise
    except ConfigError:
        return {}


def newest_witness(components: Iterable[Component], timeout: float = TIMEOUT) -> tuple[int, str]:
    """Return the latest epoch that servers of components have witnessed, and one of the servers.

    Servers that cannot be asked are left out; 0 if none has witnessed any.
    """
    answers = _ask_witnesses(components, read_witness, timeout)
    known = [(each, entry.address) for entry, each in answers.items() if isinstance(each, int)]
    return max(known, default=(0, ""))


def attest(
    components: Iterable[Component],
    epoch: int,
    timeout: float = TIMEOUT,
    connector: Connector | None = None,
) -> list[str]:
    """Have the servers of components witness an epoch; return the addresses that did not."""

    def write(client: Any, names: Collection[str]) -> None:
        write_witness(client, names, epoch)

    answers = _ask_witnesses(components, write, timeout, connector)
    return [entry.address for entry, each in answers.items() if isinstance(each, Exception)]


def _ask_witnesses(
    components: Iterable[Component],
    query: Callable[[Any, Collection[str]], Any],
    timeout: float,
    connector: Connector | None = None,
) -> dict[Entry, Any | Exception]:
    names = witnesses(components)
    return query_entries(
        {entry: entry for entry in names},
        lambda entry, client: query(client, names[entry]),
        timeout,
        connector,
    )
