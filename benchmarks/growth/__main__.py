"""Measure moves, replicas, durable writes: ``python benchmarks/growth [moves splits reads …]``.

Each is written into benchmarks/results/growth.json as soon as it is done, beside the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, save

from growth import estimates, moves, replicas, splits, streams

CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "moves": moves.run,
    "splits": splits.run,
    "streams": streams.run,
    "estimates": estimates.run,
    "reads": replicas.reads,
    "durable": replicas.durable,
}


def main() -> None:
    path = RESULTS / "growth.json"
    for name in sys.argv[1:] or CASES:
        figures = CASES[name]()
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        save("growth", before | {name: figures})


if __name__ == "__main__":
    main()
