"""Measure social networks: ``python benchmarks/social [fan_out] [reading] [memory]``.

Each is written into benchmarks/results/social.json as soon as it is done, beside the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for examples.social
sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, save

from social import fan_out, memory, reading

CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "fan_out": fan_out.run,
    "reading": reading.run,
    "memory": memory.run,
}


def main() -> None:
    path = RESULTS / "social.json"
    for name in sys.argv[1:] or CASES:
        figures = CASES[name]()
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        save("social", before | {name: figures})


if __name__ == "__main__":
    main()
