"""Bytes of a user, a follow and a timeline's entry; and what it costs to keep timelines compact.

Bytes are what ``used_memory`` of one fresh server grew by, so keys, their names and the server's
own tables are counted. A timeline is compact, a listpack, up to ``zset-max-listpack-entries``:
with the server's default a home of 1,000 entries is not, with 1,600 it always is: it is cut to
1,000 when it has more than 1,100, after up to 500 were added at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from memory_set import settled
from report import conditions, show
from rich.progress import track

from examples.social.people import People
from shardkit.local import Setting
from shardkit.operations.commands import Command
from shardkit.operations.operation import Operation, pages
from shardkit.social.keys import USER
from social.networks import COMPACT, Site, site

USERS = 20_000
FOLLOWS = 20
HOMES = 2000
ENTRIES = 1000
ROUNDS = 5
LIMITS: dict[str, Mapping[str, Setting]] = {
    "the server's own limit": {},
    "a limit of 1,600": COMPACT,
}


def _used(at: Site) -> int:
    """Return the memory that is used when nobody else is connected."""
    [server] = at.servers
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        return settled(client)


def relations() -> dict[str, float]:
    """Return the bytes of a user and of a follow."""
    following = list(People(USERS, FOLLOWS, 1000, 1).following())
    follows = sum(map(len, following))
    with site("1 server") as at:
        empty = _used(at)
        at.build(USERS)
        users = _used(at)
    found = {"a user": round((users - empty) / USERS, 1)}
    for parts in (1, 4, 16):
        with site("1 server", parts=parts) as at:
            at.build(USERS, following)
            name = f"a follow, relations in {parts} part{'s' * (parts > 1)}"
            found[name] = round((_used(at) - users) / follows, 1)
    return found


def _fill(at: Site) -> Operation[None]:
    """Fill homes with statuses of 1,024 parts, posted a second apart."""
    layout = at.network.layout
    posted = int(time.time() * 1e6) - ENTRIES * 10**6
    entries = [part for n in range(ENTRIES) for part in (posted + n * 10**6, 10**7 + n * 1021)]
    for page in pages(at.uids, 10):
        keys = [layout.timeline(USER, uid) for uid in page]
        yield [Command(layout.timelines, key, ("ZADD", key, *entries), None, True) for key in keys]


def timelines(config: Mapping[str, Setting]) -> dict[str, float]:
    """Return the bytes of an entry, and what it costs to write to and read from full timelines."""
    with site("1 server", config) as at:
        at.build(HOMES + 1, [[], *[[0]] * HOMES])
        author, readers = at.uids[0], at.uids[1:]
        at.uids = readers
        before = _used(at)
        at.kit.driver.run(_fill(at))
        used = _used(at) - before
        writes = [_spent(at, lambda: at.network.post(author, "x")) for _ in range(ROUNDS)]
        key = [at.network.layout.timeline(USER, uid) for uid in readers]

        def read() -> Operation[None]:
            for page in pages(key, 500):
                yield [at.network.layout.at_timeline(k, "ZRANGE", k, 0, 29, "REV") for k in page]

        reads = [_spent(at, lambda: at.kit.driver.run(read())) for _ in range(ROUNDS)]
    return {
        "bytes an entry": round(used / HOMES / ENTRIES, 1),
        "write, us of the server": round(median(writes) / HOMES * 1e6, 2),
        "page, us of the server": round(median(reads) / HOMES * 1e6, 2),
    }


def _spent(at: Site, work: Any) -> float:
    before = at.spent()
    work()
    return at.spent() - before


def run() -> dict[str, Any]:
    """Measure and show."""
    found = relations()
    limits = {name: timelines(config) for name, config in track(LIMITS.items(), "timelines")}
    show("Bytes", ["", "bytes"], [list(row) for row in found.items()])
    columns = list(next(iter(limits.values())))
    rows = [[name, *figures.values()] for name, figures in limits.items()]
    show(f"Homes of {ENTRIES:,} entries", ["", *columns], rows)
    return {
        "conditions": conditions(),
        "users": USERS,
        "homes": HOMES,
        "entries": ENTRIES,
        "bytes": found,
        "timelines": limits,
    }
