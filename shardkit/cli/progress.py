"""A bar that shows how far a command is, where there is somebody to show it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shardkit.cli.text import one_line

# Is told what is being done, how much of it is done, and of how much.
Tell: TypeAlias = Callable[[str, int, int], object]


@contextmanager
def progress(unit: str) -> Iterator[Tell]:
    """Show a bar on stderr, as long as something is being done; nothing where it is no terminal.

    Args:
        unit: what is counted: ``databases``.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown:
        task = shown.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            shown.update(task, description=one_line(what), completed=done, total=total)

        yield tell
