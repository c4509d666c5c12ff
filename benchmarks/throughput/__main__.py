"""Time the links: ``python benchmarks/throughput [case ...]``.

Cases: single, batches, values, shards, awaiting, uvloop, fan_out, cluster. Each is written into
benchmarks/results/throughput.json as soon as it is done, beside what is there of the others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, conditions, save, show

from shardkit import ShardMap
from throughput import cases

Figures = dict[str, dict[str, float]]


def _on_uvloop(shard_map: ShardMap) -> Figures:
    try:
        import uvloop
    except ImportError:
        print("uvloop: not installed, left out")
        return {}
    return uvloop.run(cases.awaiting(shard_map))


CASES: dict[str, Callable[[ShardMap], Figures]] = {
    "single": cases.single,
    "batches": cases.batches,
    "values": cases.value_sizes,
    "shards": cases.shard_counts,
    "awaiting": lambda shard_map: asyncio.run(cases.awaiting(shard_map)),
    "uvloop": _on_uvloop,
    "fan_out": cases.fan_out,
    "cluster": lambda shard_map: cases.cluster(),
}


def main(chosen: list[str]) -> None:
    path = RESULTS / "throughput.json"
    found: dict[str, Figures] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["figures"]
    with cases.servers() as shard_map:
        for case in chosen or CASES:
            figures = CASES[case](shard_map)
            if not figures:
                continue
            names = list(dict.fromkeys(name for row in figures.values() for name in row))
            show(
                f"{case}: times as long as the limit",
                ["", *names],
                [(work, *(row.get(n, "") for n in names)) for work, row in figures.items()],
            )
            found[case] = {
                work: {name: round(value, 2) for name, value in row.items()}
                for work, row in figures.items()
            }
            save(
                "throughput",
                {
                    "unit": "ratio to the limit of the same round, median of the rounds",
                    "figures": found,
                    "conditions": conditions(),
                },
            )


if __name__ == "__main__":
    main(sys.argv[1:])
