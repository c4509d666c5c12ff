"""The output of commands: the only module that deals with the terminal.

::

    stdout   the answer: tables and lines for people, or with --json one document and nothing else
    stderr   notes, progress, and at most one line of error: what is wrong; what to do about it

A table fits a terminal: the last columns of numbers are left out, and named below it, and texts are
folded between words. Addresses and numbers are never cut. If stdout is not a terminal, nothing is
left out, folded or coloured: one row is one line, however long, without trailing blanks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partialmethod
from typing import Any, NamedTuple, TextIO, TypeAlias

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from shardkit.cli.text import one_line, printable, reason, shortened

PROGRAM = "shardkit"
_SELDOM = 10.0  # seconds between two lines about progress, where they are not replaced
_UNLIMITED = 100_000  # columns, where nothing is folded
_WORD = 24  # characters of a word that are not folded in text, where there is room
_LEAST = 14  # the same in any case

GOOD, BAD, WARN, DIM, STRONG = "green", "red", "yellow", "dim", "bold"


class _Console(Console):
    """rich's console, which leaves it to the application what a broken pipe means."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled; rich exits."""
        raise


class Styled(NamedTuple):
    """A cell in a colour. The text alone must be clear without it."""

    text: str
    style: str


Cell: TypeAlias = "str | bytes | int | float | Styled | Sequence[str] | None"


class Column(NamedTuple):
    """A column of a table."""

    title: str  # its heading
    right: bool = False  # whether cells are aligned to the right, as numbers are
    folds: bool = False  # whether cells may take several lines in a narrow terminal
    identifies: bool = False  # whether cells are numbers without separators


def number(title: str) -> Column:
    """Return a column of numbers."""
    return Column(title, right=True)


def identifier(title: str) -> Column:
    """Return a column of numbers that are names: ports, process ids, epochs."""
    return Column(title, right=True, identifies=True)


def wordy(title: str) -> Column:
    """Return a column of text that may be folded."""
    return Column(title, folds=True)


@dataclass
class Table:
    """A table: its columns and its rows."""

    columns: list[Column]
    rows: list[list[Cell]] = field(default_factory=list)

    @classmethod
    def of(cls, *columns: str | Column) -> Table:
        """Return an empty table; a column given as text holds text that is never folded."""
        return cls([Column(c) if isinstance(c, str) else c for c in columns])

    def row(self, *cells: Cell) -> None:
        """Add a row, one cell for each column; None is shown as a hyphen."""
        assert len(cells) == len(self.columns)
        self.rows.append(list(cells))

    def without_empty(self) -> Table:
        """Return the table without its empty columns."""
        filled = [
            n
            for n in range(len(self.columns))
            if any(row[n] not in (None, "", []) for row in self.rows)
        ]
        rows = [[row[n] for n in filled] for row in self.rows]
        return Table([self.columns[n] for n in filled], rows)


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    @property
    def interactive(self) -> bool:
        """Whether the answer goes to a terminal."""
        return sys.stdout.isatty()

    @property
    def width(self) -> int:
        """The width of a line of the answer, in columns."""
        return self._out.width

    # ---- the answer

    def document(self, value: Any = None, /, *, indent: int | None = 2, **fields: Any) -> None:
        """Write the answer, or an object of these fields, as JSON."""
        sys.stdout.write(json.dumps(fields or value, indent=indent, default=_plain) + "\n")
        sys.stdout.flush()

    def wrote_json(self, value: Any = None, /, **fields: Any) -> bool:
        """Write the answer as JSON if that is asked for; return whether it is."""
        if self.as_json:
            self.document(value, **fields)
        return self.as_json

    def answer(self, document: Any, text: str, style: str = "") -> None:
        """Write an answer of one line, or the same as JSON."""
        if not self.wrote_json(document):
            self.line(text, style)

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line of the answer."""
        self._out.print(Text(printable(text), style), soft_wrap=not self.interactive)

    good = partialmethod(line, style=GOOD)
    bad = partialmethod(line, style=BAD)
    warn = partialmethod(line, style=WARN)
    dim = partialmethod(line, style=DIM)

    def text(self, text: str) -> None:
        """Write text of any number of lines as it is."""
        self._out.out(text, end="", highlight=False)

    def table(self, table: Table) -> None:
        """Write a table."""
        if self.interactive:
            self._out.print(_rendered(table, self._out.width), crop=False)
            return
        with self._out.capture() as captured:
            self._out.print(_rendered(table, _UNLIMITED))
        self.text("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    @contextmanager
    def live(self) -> Iterator[Live | None]:
        """Give what redraws a table in place; None if stdout is not a terminal."""
        if self.interactive and not self.as_json:
            with Live(console=self._out, auto_refresh=False, vertical_overflow="visible") as live:
                yield live
        else:
            yield None

    def redraw(self, live: Live, table: Table, *lines: Styled) -> None:
        """Replace the previous output by a table and lines below it."""
        parts: list[RenderableType] = [_rendered(table, self._out.width)]
        parts += [Text(printable(line.text), line.style) for line in lines]
        live.update(Group(*parts), refresh=True)

    # ---- notes

    def note(self, text: str, style: str = "") -> None:
        """Write a note to stderr."""
        self._err.print(Text(one_line(text), style), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Write a warning to stderr."""
        self.note(f"warning: {text}", WARN)

    @contextmanager
    def busy(self, text: str) -> Iterator[Callable[[str], object]]:
        """Show a text while something is done; give what replaces the text.

        If stderr is no terminal, write a line now and then.
        """
        if not sys.stderr.isatty():
            yield now_and_then(self.note)
            return
        with self._err.status(Text(text)) as status:
            yield lambda text: status.update(Text(text))


def _plain(value: Any) -> Any:
    """Return what JSON lacks as what it has: keys as text, errors as their reasons."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, set | frozenset):
        return list(value)
    return reason(value) if isinstance(value, Exception) else asdict(value)


def now_and_then(write: Callable[[str], object]) -> Callable[[str], object]:
    """Return a function that writes a text, but drops those that come within ten seconds."""
    due = time.monotonic() + _SELDOM

    def write_seldom(text: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _SELDOM
            write(text)

    return write_seldom


def write_error(message: str, remedy: str = "") -> None:
    """Write one line: what is wrong, and what to do about it."""
    line = Text()
    line.append(f"{PROGRAM}: ", DIM)
    line.append("error: ", f"{STRONG} {BAD}")
    line.append(one_line(message))
    if remedy:
        line.append(f"; {one_line(remedy)}")
    _console(sys.stderr).print(line, soft_wrap=True)


def _rendered(table: Table, width: int) -> RichTable:
    """Return rich's table for a width, with wide gaps if there is room for them."""
    rows = [list(map(_cell, row, table.columns)) for row in table.rows]
    texts = [[c.title, *(row[n].plain for row in rows)] for n, c in enumerate(table.columns)]
    widths = [_longest("\n".join(lines).split("\n")) for lines in texts]
    least = [
        min(most, _WORD, _longest(" ".join(cells).split())) if column.folds else most
        for column, cells, most in zip(table.columns, texts, widths, strict=True)
    ]
    shown = list(range(len(table.columns)))
    left_out: list[str] = []
    gap = 2 if sum(widths) + 2 * (len(shown) - 1) <= width else 1
    numbers = [n for n in shown if table.columns[n].right and not table.columns[n].identifies]
    while numbers and sum(least[n] + gap for n in shown) - gap > width:
        shown.remove(numbers[-1])
        left_out.append(table.columns[numbers.pop()].title)
    for _ in range(sum(least[n] + gap for n in shown) - gap - width):
        widest = max(shown, key=lambda n: least[n] * table.columns[n].folds)
        least[widest] -= table.columns[widest].folds and least[widest] > _LEAST
    widths = [min(most, max(width, word)) for most, word in zip(widths, least, strict=True)]
    words = [min(_longest(" ".join(cells).split()), width // 3) for cells in texts]
    for _ in range(sum(widths[n] + gap for n in shown) - gap - width):
        # Where there is room elsewhere, no word is broken.
        whole = [n for n in shown if widths[n] > max(words[n], least[n])]
        widest = max(whole or shown, key=lambda n: widths[n] - least[n])
        widths[widest] -= widths[widest] > least[widest]
    caption = f"no room for: {', '.join(reversed(left_out))}" if left_out else None
    rendered = RichTable(
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style=STRONG,
        width=sum(widths[n] + gap for n in shown) - gap,
        caption=caption and Text(caption, DIM),
        caption_justify="left",
    )
    for n in shown:
        column = table.columns[n]
        rendered.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            width=widths[n],
            no_wrap=not column.folds,
            overflow="fold",
        )
    for row in rows:
        rendered.add_row(*(row[n] for n in shown))
    return rendered


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _cell(cell: Cell, column: Column) -> Text:
    if isinstance(cell, Styled):
        return Text("\n".join(map(printable, cell.text.split("\n"))), cell.style)
    if cell is None or (not cell and isinstance(cell, str | list)):
        return Text("-", DIM)
    if isinstance(cell, int):
        return Text(str(cell) if column.identifies else f"{cell:,}")
    if isinstance(cell, float):
        return Text(f"{cell:.2f}")
    text = _plain(cell) if isinstance(cell, bytes) else cell
    text = text if isinstance(text, str) else ", ".join(text)
    return Text("\n".join(map(printable, shortened(text, _UNLIMITED).split("\n"))))


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else _UNLIMITED
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
