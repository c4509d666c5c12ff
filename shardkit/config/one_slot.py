"""A cluster as config server: its keys have one hash tag, so that one master has all of them.

::

    config:redis:shop    of one server       {config}:redis:shop    of a cluster

So a push is one transaction and a script sees all its keys, as on one server. Only connections know
of the tag (`shardkit.network.connections.slot_owner`): all callers use the plain names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardkit.config.entry import Entry
from shardkit.config.url import cluster_of, each_url

PLAIN, TAGGED = "config:", "{config}:"  # how keys begin
WHERE = "config server"


class SlotEntry(Entry):
    """The entry of a cluster's master that has the config server's keys."""

    __slots__ = ()

    def __init__(self, cluster: Entry) -> None:
        """Make the entry from that of the cluster."""
        fields = cluster.fields
        for name in ("cluster", "startup_nodes"):
            fields.pop(name, None)
        super().__init__(fields, WHERE)
        self.address = cluster.address

    def resolved(self, where: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the fields, and that of connectors for such a master."""
        return super().resolved(where, environ) | {"one_slot": True}


def entries_of_url(url: str) -> list[Entry]:
    """Return an entry for each address of a config server's URL, such as ``redis+cluster://a,b``."""
    plain = cluster_of(url)
    cluster = {} if plain is None else {"cluster": True}
    return [Entry({"url": each, **cluster}, WHERE) for each in each_url(plain or url)]


def as_one_server(entry: Entry) -> Entry:
    """Return the entry that a client of the config server needs: of a cluster, a `SlotEntry`."""
    return SlotEntry(entry) if entry.is_cluster else entry
