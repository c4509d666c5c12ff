"""The fields of a command's rows, described once and rendered twice: as a table, and as JSON.

A `Field` with a column is in both, one without a column in JSON only, and one of `column_only` in
the table only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardkit.cli.output import Cell, Column, Output, Table

Row_contra = TypeVar("Row_contra", contravariant=True)
Row = TypeVar("Row")


@dataclass(frozen=True)
class Field(Generic[Row_contra]):
    """One field of a row."""

    name: str  # its name in JSON; empty for a field that only the table shows
    value: Callable[[Row_contra], Any]  # returns its value in JSON
    column: Column | None = None  # its column of the table; None for a field that only JSON has
    cell: Callable[[Row_contra], Cell] | None = None  # returns its cell; None to show the value


def column_only(column: str | Column, cell: Callable[[Row_contra], Cell]) -> Field[Row_contra]:
    """Return a field that only the table shows."""
    return Field("", cell, Column(column) if isinstance(column, str) else column)


def rounded(
    name: str, value: Callable[[Row_contra], float | None], column: Column, digits: int, form: str
) -> Field[Row_contra]:
    """Return a field of a number: rounded in JSON, and with a format (``.1f``) in the table."""

    def digits_of(row: Row_contra) -> float | None:
        number = value(row)
        return None if number is None else round(number, digits)

    def cell(row: Row_contra) -> str | None:
        number = value(row)
        return None if number is None else format(number, form)

    return Field(name, digits_of, column, cell)


def write_rows(
    output: Output,
    fields: Sequence[Field[Row]],
    rows: Sequence[Row],
    nothing: str = "",
    style: str = "",
) -> None:
    """Write an answer that is nothing but rows, or a line if there are none."""
    if output.as_json:
        output.document(json_rows(fields, rows))
    elif nothing and not rows:
        output.line(nothing, style)
    else:
        output.table(table_of(fields, rows))


def table_of(fields: Sequence[Field[Row]], rows: Iterable[Row]) -> Table:
    """Return rows as a table."""
    shown = [field for field in fields if field.column is not None]
    table = Table([field.column for field in shown if field.column is not None])
    for row in rows:
        table.row(*((field.cell or field.value)(row) for field in shown))
    return table


def json_row(fields: Sequence[Field[Row]], row: Row) -> dict[str, Any]:
    """Return a row as a JSON object."""
    return {field.name: field.value(row) for field in fields if field.name}


def json_rows(fields: Sequence[Field[Row]], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as a JSON array."""
    return [json_row(fields, row) for row in rows]
