"""Plots of figures, in one style. The file name's extension decides the format.

A contestant has the same colour in every plot. Its variants have lighter shades, and each series
has a marker, a line or a hatching of its own, so that plots can be read in grey. The background is
white; the site inverts plots for its dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardkit.errors import ShardKitError, extra

# By the first words of a label; the first entry that fits counts.
CONTESTANTS: Final = {
    "shardkit": "#1457b8",
    "ours": "#1457b8",
    "kit.": "#1457b8",
    "redis-py": "#d4670a",
    "redis.asyncio": "#a34700",
    "plain": "#d4670a",
    "one ": "#d4670a",
    "RedisCluster": "#8a3ab9",
    "twemproxy": "#1f7a4d",
    "the book": "#8c6d1f",
    "SQLite": "#1f7a4d",
    "RediSearch": "#8a3ab9",
    "raw sockets": "#4d4d4d",
    "the lock's scripts": "#4d4d4d",
    "the semaphore's scripts": "#4d4d4d",
    "valkey": "#3f6fd1",
    "redis ": "#c8372d",
}
OTHERS: Final = ("#0f766e", "#b4457f", "#7a8b1c", "#5c6ac4", "#a8651e", "#3b8ea5", "#6b7280")
LIMIT: Final = "#b00020"
_MARKERS: Final = "osD^vPX"
_DASHES: Final = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_HATCHES: Final = ("", "///", "...", "xx", "\\\\\\", "++", "--")
_SHADES: Final = (0.0, 0.22, 0.38, 0.11, 0.46)
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


class Style(NamedTuple):
    """How a series is drawn."""

    colour: tuple[float, float, float]
    marker: str
    dash: Any
    hatch: str


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the style of each series, by its label: the contestant's colour, a shade a variant."""
    drawn: dict[str, Style] = {}
    variants: dict[str, int] = {}
    others = iter(OTHERS * 3)
    for n, label in enumerate(dict.fromkeys(labels)):
        known = next((c for start, c in CONTESTANTS.items() if label.startswith(start)), None)
        colour = known or next(others)
        variant = variants.setdefault(colour, 0)
        variants[colour] += 1
        shade = _SHADES[variant % len(_SHADES)]
        channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (channel + (1 - channel) * shade for channel in channels)
        drawn[label] = Style(
            (red, green, blue),
            _MARKERS[n % len(_MARKERS)],
            _DASHES[variant % len(_DASHES)],
            _HATCHES[n % len(_HATCHES)],
        )
    return drawn


def check_plot(path: Path) -> None:
    """Check, before measuring, that a plot can be drawn.

    Raises:
        ShardKitError: matplotlib is not installed, or does not support the format.
    """
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
    limits: Mapping[str, float] | None = None,
    limit: str = "limit",
) -> None:
    """Draw a bar for each value, by label and series.

    A single series is drawn in its labels' colours. ``limits`` has for each label a value to mark,
    and ``limit`` says what the mark means.
    """
    pyplot = loaded_pyplot(path.stem)
    series = list(dict.fromkeys(name for each in values.values() for name in each))
    alone = len(series) == 1
    looks = {label: styles([label])[label] for label in values} if alone else styles(series)
    height = 0.8 / len(series)
    rows = len(values) * max(1.0, 0.6 * len(series))
    figure, axes = pyplot.subplots(figsize=(7.5, 1.1 + 0.42 * rows), layout="constrained")
    for n, name in enumerate(series):
        places = [at + (n - (len(series) - 1) / 2) * height for at in range(len(values))]
        lengths = [each.get(name, 0.0) for each in values.values()]
        drawn = axes.barh(places, lengths, height * 0.9, label=name)
        for bar, label in zip(drawn, values, strict=True):
            look = looks[label if alone else name]
            bar.set(facecolor=look.colour, hatch=look.hatch)
        axes.bar_label(drawn, fmt=plain_figure, padding=3, fontsize=8)
    limits = limits or {}
    marked = [(at, limits[label]) for at, label in enumerate(values) if label in limits]
    for n, (at, value) in enumerate(marked):
        meaning = limit if n == 0 else None
        axes.plot([value] * 2, [at - 0.46, at + 0.46], color=LIMIT, linewidth=2, label=meaning)
    axes.set_yticks(range(len(values)), list(values))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(plain_figure)
    axes.grid(axis="x")
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlabel(unit)
    axes.set_title(title)
    if not alone or marked:
        handles, labels = axes.get_legend_handles_labels()
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
