"""Plots of figures: bars and curves. The file name's extension decides the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shardkit.errors import ShardKitError, extra

COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_LIMIT: Final = "#cc3311"


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
) -> None:
    """Draw a bar for each value, by label and series; each series has a colour.

    ``limits`` has for each label a value to mark.
    """
    pyplot = _pyplot(path.stem)
    series = list(dict.fromkeys(name for each in values.values() for name in each))
    height = 0.8 / len(series)
    rows = len(values) * max(1.0, 0.55 * len(series))
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.45 * rows), layout="constrained")
    for n, name in enumerate(series):
        places = [at + (n - (len(series) - 1) / 2) * height for at in range(len(values))]
        lengths = [each.get(name, 0.0) for each in values.values()]
        drawn = axes.barh(
            places, lengths, height * 0.9, color=COLOURS[n % len(COLOURS)], label=name
        )
        axes.bar_label(drawn, fmt="{:,.4g}", padding=2, fontsize=7)
    for at, label in enumerate(values):
        if limits and label in limits:
            axes.plot([limits[label]] * 2, [at - 0.45, at + 0.45], color=_LIMIT, linewidth=2)
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left")
    if len(series) > 1:
        axes.legend(frameon=False)
    _save(pyplot, figure, path)


def curves(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    across: str,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw the points of curves by their labels, for each panel by its y axis' label.

    The x axis, labelled ``across``, is logarithmic; the y axis is if ``logarithmic``. Panels with
    the same curves have one legend.
    """
    pyplot = _pyplot(path.stem)
    one_legend = len(panels) > 1 and len({tuple(lines) for lines in panels.values()}) == 1
    width = 5.5 if len(panels) == 1 else 4.2 * len(panels)
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(width, 4), squeeze=False, layout="constrained"
    )
    for axes, (name, lines) in zip(all_axes[0], panels.items(), strict=True):
        for n, (label, points) in enumerate(lines.items()):
            xs, ys = zip(*points, strict=True)
            colour = COLOURS[n % len(COLOURS)]
            axes.plot(xs, ys, marker="o", markersize=3, color=colour, label=label)
        if _powers_of_two(lines):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        else:
            axes.set_xscale("log")
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across)
        axes.set_ylabel(name)
        if not one_legend:
            axes.legend(frameon=False, fontsize=8)
    if one_legend:
        handles, labels = axes.get_legend_handles_labels()
        place = "outside lower center"
        figure.legend(handles, labels, loc=place, ncols=len(labels), frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left")
    _save(pyplot, figure, path)


def _powers_of_two(lines: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
    return all(
        float(x).is_integer() and int(x) & int(x) - 1 == 0 for p in lines.values() for x, _ in p
    )


def _pyplot(salt: str) -> Any:
    with extra("bench", "plots"):
        import matplotlib
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = salt  # so that the same figures give the same file
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    dated = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, **dated)
    pyplot.close(figure)
