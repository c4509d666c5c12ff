"""The progress of commands: a bar in a terminal, lines elsewhere."""

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

from shardkit.cli.output import Output, now_and_then
from shardkit.cli.text import one_line

# Called with the current step, how much is done, and the total, None if it is not known.
ProgressCallback: TypeAlias = Callable[[str, int, int | None], object]

_LONGEST_NAME = 28  # characters; with them the bar fits into 80 columns


@contextmanager
def progress(unit: str) -> Iterator[ProgressCallback]:
    """Show a bar on stderr while something is done; without a terminal, a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        write = now_and_then(Output().note)
        yield lambda what, done, total: write(
            f"{what}: {done:,}{'' if total is None else f' of {total:,}'} {unit}"
        )
        return
    counts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn(unit))
    if unit == "bytes":
        counts = (DownloadColumn(),)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        *counts,
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None)

        def report_progress(what: str, done: int, total: int | None) -> None:
            name, half = one_line(what), _LONGEST_NAME // 2
            if len(name) > _LONGEST_NAME:
                name = f"{name[: half - 1]}…{name[-half:]}"
            shown.update(task, description=name, completed=done, total=total)

        yield report_progress
