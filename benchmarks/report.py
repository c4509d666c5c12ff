"""What all benchmarks share: where they ran, their table, their JSON, their plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardkit.cli.bench import plots
from shardkit.errors import ShardKitError

RESULTS = Path(__file__).parent / "results"
PLOTS = Path(__file__).parents[1] / "docs" / "plots"


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
    """Keep a benchmark's figures as JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def bars(
    name: str,
    title: str,
    values: Mapping[str, float],
    unit: str,
    limits: Mapping[str, float] | None = None,
) -> None:
    """Draw a bar for each value, and a mark at its limit, as docs/plots/<name>.svg."""
    RESULTS.mkdir(exist_ok=True)
    series = {label: {unit: value} for label, value in values.items()}
    try:
        plots.bars(PLOTS / f"{name}.svg", title, series, unit, limits)
    except ShardKitError as error:  # the figures are saved already
        print(f"no plot: {error}")


def lines(name: str, title: str, series: Mapping[str, Mapping[float, float]], unit: str) -> None:
    """Draw a line for each series, both axes logarithmic, as docs/plots/<name>.svg."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for label, values in series.items():
        axes.plot(list(values), list(values.values()), marker="o", label=label)
    axes.axhline(1, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [1, 1.5, 2, 3, 5, 10, 20]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    marks = sorted({at for values in series.values() for at in values})
    axes.set_xticks(marks, [f"{mark:,}" for mark in marks])
    axes.set_xticks([], minor=True)
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
