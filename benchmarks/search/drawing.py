"""Plots of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report import PLOTS

from shardkit.cli.bench import plots

Rows = Mapping[str, Mapping[str, float]]
_SHOWN = ("rare word", "three words", "frequent word", "phrase", "prefix")


def draw(found: Mapping[str, Any], documents: int) -> None:
    """Draw the cases that there are."""
    if "peers" in found:
        plots.bars(
            PLOTS / "search_peers.svg",
            f"A query, {documents:,} passages (0: cannot be asked)",
            {
                kind: {
                    name: (each["caller, us"] + each["servers, us"]) / 1000
                    for name, each in row.items()
                }
                for kind, row in found["peers"]["queries"].items()
                if kind in _SHOWN
            },
            "ms of processor time, the caller's and the servers'",
        )
    if "shards" in found:
        near, away = found["shards"], found["shards"]["1 ms away"]
        turns = {name.split(",")[0]: row for name, row in away.items() if "after" in name}
        at_once = {name: row for name, row in away.items() if "," not in name}
        pings = {name: row for name, row in away.items() if "EXISTS" in name}
        plots.curves(
            PLOTS / "search_shards.svg",
            "More shards",
            {
                "us of the busiest server": {
                    "a query": _points(near["queries"], "busiest server, us"),
                    "a document indexed": _points(near["indexing"], "busiest server, us"),
                },
                "median ms, servers 1 ms away": {
                    "all at once": _points(at_once),
                    "one after another": _points({"1 shard": at_once["1 shard"], **turns}),
                    "next to nothing, all at once": _points(pings),
                },
            },
            "shards",
        )
    if "pages" in found:
        plots.curves(
            PLOTS / "search_pages.svg",
            f"A page of 10 of {documents:,} documents, by an attribute, 4 shards",
            {
                "ms of processor time": {
                    name: [(float(page), ms) for page, ms in row.items()]
                    for name, row in found["pages"].items()
                }
            },
            "page",
            logarithmic=True,
        )


def _points(rows: Rows, what: str = "median, ms") -> list[tuple[float, float]]:
    return [(float(name.split()[0]), row[what]) for name, row in rows.items()]
