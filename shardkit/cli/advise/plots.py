"""Plots of figures, in one style. The file name's extension decides the format.

Each series has a hatching of its own, so that plots can be read in grey. The background is white;
the site inverts plots for its dark scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardkit.errors import ShardKitError, extra

COLOURS: Final = ("#0f766e", "#b4457f", "#7a8b1c", "#5c6ac4", "#a8651e", "#3b8ea5", "#6b7280")
HATCHES: Final = ("", "///", "...", "xx", "\\\\\\", "++", "--")
_RC: Final[Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.titleweight": "bold",
    "font.size": 10.0,
    "grid.color": "#e3e3e3",
    "hatch.color": "#ffffff",
    "hatch.linewidth": 0.8,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "lines.markersize": 5.0,
}


class Look(NamedTuple):
    """How the bars of a series look."""

    colour: Any
    hatch: str


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """Return the look of each series, by its label."""
    every = cycle(map(Look, COLOURS, HATCHES))
    return {label: next(every) for label in labels}


def check_plot(path: Path) -> None:
    """Check, before measuring, that a plot can be drawn."""
    pyplot = loaded_pyplot("")
    formats = pyplot.figure().canvas.get_supported_filetypes()
    pyplot.close("all")
    if path.suffix.lstrip(".").lower() not in formats:
        raise ShardKitError(
            f"{path} has no extension of a plot", f"use one of {', '.join(formats)}"
        )


def bars(
    path: Path,
    title: str,
    values: Mapping[str, Mapping[str, float]],
    unit: str,
    looks_of: Callable[[Iterable[str]], Mapping[str, Any]] = looks_of,
    finish: Callable[[Any], object] = lambda axes: None,
) -> None:
    """Draw a bar for each value, by label and series; ``finish`` may add to the axes.

    A single series is drawn in its labels' looks.
    """
    pyplot = loaded_pyplot(path.stem)
    series = list(dict.fromkeys(name for row in values.values() for name in row))
    alone = len(series) == 1
    looks = {label: looks_of([label])[label] for label in values} if alone else looks_of(series)
    height = 0.8 / len(series)
    rows = len(values) * max(1.0, 0.6 * len(series))
    figure, axes = pyplot.subplots(figsize=(7.5, 1.1 + 0.42 * rows), layout="constrained")
    for n, name in enumerate(series):
        places = [at + (n - (len(series) - 1) / 2) * height for at in range(len(values))]
        lengths = [row.get(name, 0.0) for row in values.values()]
        drawn = axes.barh(places, lengths, height * 0.9, label=name)
        for bar, label in zip(drawn, values, strict=True):
            look = looks[label if alone else name]
            bar.set(facecolor=look.colour, hatch=look.hatch)
        axes.bar_label(drawn, fmt=plain_figure, padding=3, fontsize=8)
    finish(axes)
    axes.set_yticks(range(len(values)), list(values))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(plain_figure)
    axes.grid(axis="x")
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlabel(unit)
    axes.set_title(title)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    save_plot(pyplot, figure, path)


def plain_figure(value: float, _: object = None) -> str:
    """Return a number as a reader writes it: four digits, or all of a large whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def loaded_pyplot(salt: str) -> Any:
    """Return matplotlib's pyplot in our style; the same figures and `salt` give the same file."""
    with extra("bench", "plots"):
        import matplotlib
    matplotlib.use("agg")
    matplotlib.rcParams.update(_RC)
    matplotlib.rcParams["svg.hashsalt"] = salt
    from matplotlib import pyplot

    return pyplot


def save_plot(pyplot: Any, figure: Any, path: Path) -> None:
    """Write a figure without its date, and close it."""
    dated = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, **dated)
    pyplot.close(figure)
