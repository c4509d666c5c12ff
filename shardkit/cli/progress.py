"""A progress bar for commands in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from shardkit.cli.text import one_line

# Called with the current step, how much is done, and the total, None if it is not known.
ProgressCallback: TypeAlias = Callable[[str, int, int | None], object]

_LONGEST_NAME = 28  # characters; with them the bar fits into 80 columns


@contextmanager
def progress(unit: str) -> Iterator[ProgressCallback]:
    """Show a bar on stderr while something is done, if stderr is a terminal."""
    console = Console(stderr=True)
    counts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn(unit))
    if unit == "bytes":
        counts = (DownloadColumn(),)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        *counts,
        TimeElapsedColumn(),
    )
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown:
        task = shown.add_task("", total=None)

        def report_progress(what: str, done: int, total: int | None) -> None:
            shown.update(task, description=_shortened(one_line(what)), completed=done, total=total)

        yield report_progress


def _shortened(name: str) -> str:
    """Leave out the middle of a long name."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = _LONGEST_NAME // 2
    return f"{name[: half - 1]}…{name[-half:]}"
