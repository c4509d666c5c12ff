"""Bytes a member: one plain SET against the same members in parts of several sizes.

Each layout has a fresh server to itself. What it takes is the server's ``used_memory`` after the
loader has left and the server's tables have settled, less that of the server when it was empty: so
the keys, their names and the servers' own tables are counted as well.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import redis
from report import conditions, save, show
from rich.console import Console
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages

MEMBERS = 1_000_000
BITS = 60
AT_ONCE = 10_000


class Layout(NamedTuple):
    """How the members are kept.

    Attributes:
        name: for the table.
        members: int, or str for their 32 hexadecimal digits.
        part_size: of the parts; None for one plain SET.
        total: how many members the parts are planned for.
        limit: the server's limit to a compact set; None for its own.
    """

    name: str
    members: type[int] | type[str] = int
    part_size: int | None = None
    total: int = MEMBERS
    limit: int | None = None


LAYOUTS = [
    Layout("ids, one SET"),
    Layout("ids, parts of 128", int, 128),
    Layout("ids, parts of 256", int, 256),
    Layout("ids, parts of 512", int, 512),
    Layout("ids, parts of 512, a day's plan", int, 512, 2_097_152),
    Layout("ids, parts of 1024, limit 1024", int, 1024, limit=1024),
    Layout("ids, parts of 1024, limit 512", int, 1024),
    Layout("ids, parts of 2048, limit 2048", int, 2048, limit=2048),
    Layout("ids, parts of 4096, limit 4096", int, 4096, limit=4096),
    Layout("text, one SET", str),
    Layout("text, parts of 128", str, 128),
    Layout("text, parts of 512", str, 512),
]


def members(layout: Layout) -> Iterator[int | str]:
    """The same members for all layouts."""
    random = Random(41)
    for _ in range(MEMBERS):
        number = random.getrandbits(BITS)
        yield number if layout.members is int else f"{number:032x}"


def load(layout: Layout, server: LocalServer, progress: Progress, task: Any) -> None:
    if layout.part_size is None:
        with server.client() as client:
            for page in pages(members(layout), AT_ONCE):
                client.sadd("ids", *page)
                progress.advance(task, len(page))
        return
    text = json.dumps({"components": {"ids": {"entry": {"port": server.port}}}})
    with shardkit.connect(ShardMap.parse(text)) as kit:
        ids = kit.set(
            "ids",
            component="ids",
            total=layout.total,
            part_size=layout.part_size,
            members=layout.members,
        )
        for page in pages(members(layout), AT_ONCE):
            ids.sadd(*page)
            progress.advance(task, len(page))


def settled(client: redis.Redis) -> int:
    """Return the memory that is used when it no longer changes."""
    used, same = -1, 0
    while same < 5:
        time.sleep(0.1)
        now = int(client.info("memory")["used_memory"])
        same = same + 1 if now == used and client.info("clients")["connected_clients"] == 1 else 0
        used = now
    return used


def measure(layout: Layout, binary: Path, progress: Progress) -> float:
    """Return the bytes that a layout takes a member."""
    task = progress.add_task(layout.name, total=MEMBERS)
    with LocalServer(binary=binary) as server:
        with server.client() as client:
            if layout.limit is not None:
                client.config_set("set-max-intset-entries", layout.limit)
            empty = settled(client)
            load(layout, server, progress, task)
            used = settled(client)
        progress.remove_task(task)
    return (used - empty) / MEMBERS


def version(binary: Path) -> str:
    """Return a server's name and version."""
    with LocalServer(binary=binary) as server, server.client() as client:
        info = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def rows(figures: dict[str, dict[str, float]]) -> Iterator[list[Any]]:
    """Yield the rows of the table: by server, the bytes and what they save of one plain SET."""
    for layout in LAYOUTS:
        plain = "ids, one SET" if layout.members is int else "text, one SET"
        row: list[Any] = [layout.name]
        for of_server in figures.values():
            saved = 1 - of_server[layout.name] / of_server[plain]
            row += [of_server[layout.name], "" if layout.name == plain else f"{saved:.0%}"]
        yield row


def main() -> None:
    # Parts above the server's limit are measured on purpose.
    logging.getLogger("shardkit").setLevel(logging.ERROR)
    found = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(found) if path}
    figures: dict[str, dict[str, float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        overall = progress.add_task("all", total=len(binaries) * len(LAYOUTS))
        for server, binary in binaries.items():
            figures[server] = {}
            for layout in LAYOUTS:
                taken = round(measure(layout, binary, progress), 2)
                figures[server][layout.name] = taken
                progress.advance(overall)
                progress.console.print(f"{server}, {layout.name}: {taken} bytes", highlight=False)
    show(
        f"Bytes a member, {MEMBERS:,} members: ids of {BITS} bits, text of 32 characters",
        ["layout", *(title for server in figures for title in (server, "saved"))],
        list(rows(figures)),
    )
    save(
        "memory_set",
        {
            "unit": "bytes a member: used_memory after loading less that of the empty server",
            "members": MEMBERS,
            "figures": figures,
            "conditions": conditions(", ".join(binaries)),
        },
    )


if __name__ == "__main__":
    main()
