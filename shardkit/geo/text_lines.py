"""The lines of a file, and the cells of lines with columns."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Final, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown

File: TypeAlias = "str | PathLike[str] | Iterable[str] | Iterable[bytes]"
CsvColumn: TypeAlias = int | str

LONGEST_LINE: Final = 2**20  # bytes; limits the memory for a file without line breaks
_BLANKS: Final = " \t"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Lines:
    """The numbered lines of a file, without a byte-order mark and line ends.

    Bytes that are invalid in the encoding become lone surrogates; the reader of such a line skips
    it with a reason.
    """

    def __init__(self, file: File, encoding: str) -> None:
        self._file = file
        self._encoding = encoding
        named = file if isinstance(file, str | PathLike) else getattr(file, "name", "")
        # For messages.
        self.source = fspath(named) if isinstance(named, str | PathLike) else ""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        if not isinstance(self._file, str | PathLike):
            yield from self._numbered(self._file)
            return
        path = fspath(self._file)
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            yield from self._numbered(iter(partial(file.readline, LONGEST_LINE), b""))

    def _numbered(self, lines: Iterable[str | bytes]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            text = (
                line.decode(self._encoding, "surrogateescape") if isinstance(line, bytes) else line
            )
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text.rstrip("\r\n")


class Rows:
    """The wanted cells of a file's lines (empty for None), or the reason why a line is skipped."""

    def __init__(
        self, file: File, wanted: Sequence[CsvColumn | None], delimiter: str, encoding: str
    ) -> None:
        if len(delimiter) != 1:
            raise InvalidArgumentError(f"delimiter={shown(delimiter)}", "give one character")
        self._lines = Lines(file, encoding)
        self._wanted = wanted
        self._delimiter = delimiter
        self.source = self._lines.source

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        names = {column for column in self._wanted if isinstance(column, str)}
        positions = None if names else [c for c in self._wanted if not isinstance(c, str)]
        needed = 0
        for line, text in self._lines:
            if not text.strip():
                continue
            try:
                cells = self._split(text)
            except csv.Error as error:
                yield line, str(error)
                continue
            if positions is None:
                if names <= set(cells):
                    positions = [cells.index(c) if isinstance(c, str) else c for c in self._wanted]
                before = f"comes before a heading with {', '.join(sorted(names))}"
                yield line, "is the heading" if positions else before
                continue
            if not needed:
                needed = 1 + max(position for position in positions if position is not None)
            if len(cells) < needed:
                yield line, f"has {len(cells)} columns, not {needed}"
            elif not text.isascii() and _SURROGATE.search(text):
                yield line, "is not encoded as it should be"
            else:
                yield line, ["" if n is None else cells[n].strip(_BLANKS) for n in positions]

    def _split(self, text: str) -> list[str]:
        # Line by line, so that a stray quotation mark does not swallow the following lines.
        if '"' not in text:
            return text.split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter))
