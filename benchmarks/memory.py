"""The complete record of memory: every case, part size and packed length, on both servers.

Bytes, loading and single calls of structures against the plain command, part sizes and packed
lengths, on the embedded server and on the ``redis-server`` of this machine. Figures of earlier runs
are kept for what is not measured again: ``python benchmarks/memory.py hash ids`` measures two cases
anew, and with ``SERVERS='redis-server valkey-server'`` on these servers instead. With
``SERVER_URL=redis://…`` they are measured on your own server, which must be empty and unused; keys
are removed and limits restored in any case. ``ENTRIES=10000`` measures fewer. In
both cases no figures are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packed_lengths
import part_sizes
from memory_cases import CASES
from memory_layouts import OwnServer, memory_document, memory_table, run
from report import RESULTS, conditions, save

from shardkit.cli.advise.servers import ServerSource
from shardkit.cli.output import Output
from shardkit.cli.progress import progress
from shardkit.local import find_server

SIZES, LENGTHS = "part-sizes", "packed-lengths"
ENTRIES = int(os.environ.get("ENTRIES", "0")) or None


def main() -> None:
    asked = sys.argv[1:] or [*CASES, SIZES, LENGTHS]
    unknown = set(asked) - {*CASES, SIZES, LENGTHS}
    if unknown:
        raise SystemExit(f"no case {', '.join(unknown)}: {', '.join([*CASES, SIZES, LENGTHS])}")
    named = os.environ.get("SERVERS", "").split() or [str(find_server()), "redis-server"]
    stands: list[ServerSource] = [
        ServerSource(path) for path in dict.fromkeys(map(shutil.which, named)) if path
    ]
    if url := os.environ.get("SERVER_URL"):
        stands = [OwnServer(url)]
    output = Output()
    with progress("entries") as tell:
        for name in asked:
            for servers in stands:
                if name == SIZES:
                    measure_sizes(servers, output, tell)
                elif name == LENGTHS:
                    measure_lengths(servers, output, tell)
                else:
                    outcome = run(CASES[name], servers, ENTRIES, tell)
                    output.table(memory_table(outcome))
                    output.line(outcome.software)
                    keep("memory", name, outcome.software, memory_document(outcome))


def measure_sizes(
    servers: ServerSource, output: Output, tell: Callable[[str, int, int], object]
) -> None:
    for kind in part_sizes.KINDS.values():
        curve = part_sizes.run(kind, servers, progress=tell)
        output.table(part_sizes.sizes_table(curve))
        keep("part_sizes", kind.name, curve.software, part_sizes.sizes_document(curve))


def measure_lengths(
    servers: ServerSource, output: Output, tell: Callable[[str, int, int], object]
) -> None:
    speeds: dict[str, list[packed_lengths.Speed]] = {}
    with servers.empty_server() as server:
        software = server.software
        for name, kind in packed_lengths.KINDS.items():
            for n, length in enumerate(packed_lengths.LENGTHS):
                tell(f"{name}, {length:,} entries", n, len(packed_lengths.LENGTHS))
                speeds.setdefault(name, []).append(packed_lengths.run(kind, server, length))
    output.table(packed_lengths.lengths_table(speeds))
    keep("packed_lengths", "all", software, packed_lengths.lengths_document(software, speeds))


def read(result: str) -> dict[str, Any]:
    path: Path = RESULTS / f"{result}.json"
    found: dict[str, Any] = {"figures": {}}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    return found


def keep(result: str, name: str, server: str, figures: dict[str, Any]) -> None:
    """Keep the figures of one case and server, beside those of others."""
    if ENTRIES or "SERVER_URL" in os.environ:
        return
    kept = read(result)
    kept["figures"].setdefault(name, {})[server] = figures
    kept["unit"] = "bytes of used_memory less that of the empty server; times as their names say"
    save(result, {**kept, "conditions": conditions()})


if __name__ == "__main__":
    main()
