"""What all benchmarks share: where they ran, their table, their JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drawings import DRAWN, RESULTS
from rich.console import Console
from rich.table import Table

from shardkit.errors import ShardKitError


def conditions(server: str = "") -> dict[str, Any]:
    """Where a benchmark ran: what its figures depend on."""
    found = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }
    return found | {"server": server} if server else found


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers to the right."""
    table = Table(title=title, title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        table.add_row(
            *(
                f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v)
                for v in row
            )
        )
    Console().print(table)


def save(name: str, result: Mapping[str, Any]) -> Path:
    """Keep a benchmark's figures as JSON, and draw their plots if all of them are there."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if name in DRAWN:
        try:
            DRAWN[name](json.loads(path.read_text(encoding="utf-8")))
        except (KeyError, ShardKitError) as error:  # the figures are kept already
            print(f"no plot: {error!r}")
    return path
