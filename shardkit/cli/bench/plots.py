"""Plots of figures: bars and curves, in one style. The file name's extension decides the format.

A contestant has the same colour in every plot. Its variants have lighter shades, and each series
has a marker, a line or a hatching of its own, so that plots can be read in grey. The background is
white; the site inverts plots for its dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    pyplot = _pyplot("")
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
    pyplot = _pyplot(path.stem)
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
        axes.bar_label(drawn, fmt=_figure, padding=3, fontsize=8)
    limits = limits or {}
    marked = [(at, limits[label]) for at, label in enumerate(values) if label in limits]
    for n, (at, value) in enumerate(marked):
        meaning = limit if n == 0 else None
        axes.plot([value] * 2, [at - 0.46, at + 0.46], color=LIMIT, linewidth=2, label=meaning)
    axes.set_yticks(range(len(values)), list(values))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(_figure)
    axes.grid(axis="x")
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlabel(unit)
    axes.set_title(title)
    if not alone or marked:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    _save(pyplot, figure, path)


def curves(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    across: str,
    *,
    logarithmic: bool = False,
    limit: str = "",
) -> None:
    """Draw the points of curves by their labels, for each panel by its y axis' label.

    The x axis, labelled ``across``, is logarithmic; the y axis is if ``logarithmic``. ``limit``
    says what a line across at 1 means. Panels share one legend.
    """
    pyplot = _pyplot(path.stem)
    looks = styles(label for lines in panels.values() for label in lines)
    width = 7.5 if len(panels) == 1 else 3.7 * len(panels)
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(width, 4.4), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for axes, (name, lines) in zip(all_axes[0], panels.items(), strict=True):
        for label, points in lines.items():
            xs, ys = zip(*points, strict=True)
            look = looks[label]
            [handles[label]] = axes.plot(
                xs, ys, color=look.colour, marker=look.marker, linestyle=look.dash, linewidth=1.8
            )
        if limit and not name.endswith("ms"):
            handles[limit] = axes.axhline(1, color=LIMIT, linewidth=1.2)
        marks = sorted({float(x) for points in lines.values() for x, _ in points})
        axes.set_xscale("log")
        apart = (marks[-1] / marks[0]) ** 0.08
        for mark in marks[::-1]:  # leave out those whose labels would overlap
            if any(mark < other < mark * apart for other in marks):
                marks.remove(mark)
        axes.set_xticks(marks, [_figure(mark) for mark in marks])
        axes.set_xticks([], minor=True)
        if logarithmic:
            axes.set_yscale("log")
            _tick_plainly(axes)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(_figure)
        axes.grid(axis="y")
        axes.set_xlabel(across)
        axes.set_ylabel(name)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), 2 if len(panels) == 1 else 4),
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    _save(pyplot, figure, path)


def _figure(value: float, _: object = None) -> str:
    """Return a number as a reader writes it: four digits, or all of a large whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _tick_plainly(axes: Any) -> None:
    """Label a logarithmic axis with 1, 2 and 5 in each power of ten, or with the powers alone."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.get_ylim()
    wide = high / low > 1000
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_figure)


def _pyplot(salt: str) -> Any:
    with extra("bench", "plots"):
        import matplotlib
    matplotlib.use("agg")
    matplotlib.rcParams.update(_RC)
    matplotlib.rcParams["svg.hashsalt"] = salt  # so that the same figures give the same file
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    dated = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, **dated)
    pyplot.close(figure)
