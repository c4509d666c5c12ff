"""Connections to the master of a cluster that has the config server's keys.

::

    GET config:epoch ──► CLUSTER SLOTS of the entry's node: who has the slot of {config}?
                     ──► GET {config}:epoch, sent to that master

The master is found as that of a service with Sentinels: the node of the entry is asked as a
Sentinel is. A master that was replaced refuses (MOVED), and is left. Keys are renamed as they are
sent, and again in replies: whatever begins as a key of the config server does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from redis.exceptions import ClusterDownError, ConnectionError, MovedError

from shardkit.config.entry import PLAIN, TAGGED
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.redis_private import PREVIOUS_MASTER, str_if_bytes
from shardkit.network.connections.reply_kinds import require_kind
from shardkit.network.connections.sentinels import Address, Sentinels
from shardkit.operations.steps import run_by_face
from shardkit.routing.placement import slot_of

SERVICE = "{config}"
_SLOT = slot_of(SERVICE)
_LEFT = (MovedError, ClusterDownError)


def _renamed(value: Any, old: Any, new: Any) -> Any:
    """Return a value whose keys begin with another prefix, in lists and maps, too."""
    if isinstance(value, list):
        return [_renamed(part, old, new) for part in value]
    if isinstance(value, dict):
        return {_renamed(k, old, new): _renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, bytes):
        old, new = old.encode(), new.encode()
    elif not isinstance(value, str):
        return value
    return new + value.removeprefix(old) if value.startswith(old) else value


tagged = partial(_renamed, old=PLAIN, new=TAGGED)  # an argument of a command as it is sent
plain = partial(_renamed, old=TAGGED, new=PLAIN)  # a reply as its reader expects it


class SlotOwner(Sentinels):
    """A node of the cluster, in place of the Sentinels: it is asked for the master."""

    @run_by_face
    def masters(self, service: str) -> Steps[list[Address]]:
        """Return the owner of the slot."""
        client = self.clients[0]
        where = client.connection_pool.connection_kwargs
        slots = yield partial(client.execute_command, "CLUSTER SLOTS")
        yield client.connection_pool.disconnect
        require_kind("CLUSTER SLOTS", slots)
        for first, last, (host, port, *_), *_ in slots:
            if first <= _SLOT <= last:
                return [(str_if_bytes(host) or where["host"], int(port))]
        raise ConnectionError(f"the cluster has no master for slot {_SLOT}")


class InOneSlot:
    """A connection that renames keys, and leaves a master that was replaced."""

    disconnect: Any

    def pack_command(self, *args: Any) -> Any:
        """Pack a command."""
        return super().pack_command(*map(tagged, args))  # type: ignore[misc]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> Any:
        """Pack commands."""
        return super().pack_commands([tuple(map(tagged, args)) for args in commands])  # type: ignore[misc]

    @run_by_face
    def read_response(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        """Read a reply."""
        try:
            return plain((yield partial(super().read_response, *args, **kwargs)))  # type: ignore[misc]
        except _LEFT as error:
            yield partial(self.disconnect, True)  # at once
            raise ConnectionError(PREVIOUS_MASTER) from error


@cache
def in_one_slot(kind: type[Any]) -> type[Any]:
    """Return a class of connections that rename keys."""
    return type(f"InOneSlot{kind.__name__}", (InOneSlot, kind), {})
