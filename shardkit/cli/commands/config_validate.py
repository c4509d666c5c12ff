"""``shardkit config validate``: finds the problems of a shard map's file, with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from shardkit.admin.preflight import preflight
from shardkit.cli.options import common_options, examples
from shardkit.cli.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Output, Styled, wordy
from shardkit.cli.rows import Field, column_only, table_of
from shardkit.cli.text import counted
from shardkit.config.problem import Problem
from shardkit.config.shard_map import ShardMap
from shardkit.config.url import read_url
from shardkit.config.yaml_text import LinedMapping, load_yaml
from shardkit.errors import ConfigError, InvalidEntryError, few

_WIDE = 140  # columns; in a narrower terminal the table has three


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem, or warning, of a file.

    Attributes:
        file: its path.
        line: the line of the field, or of the part that contains it; 0 if unknown.
        field: the path of the field: ``components.unique.shards[3].port``.
        value: its value, masked; empty if that does not help.
        problem: what is wrong.
        remedy: what to do about it.
        warning: whether the map can be used nevertheless.
    """

    file: str
    line: int
    field: str
    value: str
    problem: str
    remedy: str
    warning: bool = False

    @property
    def place(self) -> str:
        """``configs/local.yaml:12``."""
        return f"{self.file}:{self.line}" if self.line else self.file


def examine(path: Path) -> tuple[ShardMap | None, list[FileProblem]]:
    """Return a file's shard map, if it is valid, and its problems and warnings."""
    file = str(path)
    try:
        shard_map = ShardMap.load(path)
    except InvalidEntryError as error:
        return None, sorted(_found(path, error.problems), key=lambda finding: finding.line)
    except ConfigError as error:
        problem = error.message.removeprefix(f"{file}: ")
        line = re.search(r" in line (\d+)", problem)
        number = int(line[1]) if line else 0
        return None, [FileProblem(file, number, "", "", problem, error.remedy)]
    return shard_map, list(_found(path, shard_map.warnings))


def _found(path: Path, problems: tuple[Problem, ...]) -> Iterator[FileProblem]:
    if not problems:
        return
    text = load_yaml(path.read_text(encoding="utf-8"), str(path))
    for problem in problems:
        field = problem.where.removeprefix(str(path)).lstrip(":0123456789 ")
        field = ".".join(filter(None, [field, problem.field]))
        line = problem.line or line_of(text, field)
        yield FileProblem(
            str(path),
            line,
            field,
            problem.value,
            problem.problem,
            _remedy(problem),
            problem.warning,
        )


def _remedy(problem: Problem) -> str:
    """Return a problem's remedy; of a long list of names only the closest one."""
    names = re.findall(r"\w+", problem.remedy.removeprefix("there are "))
    meant = get_close_matches(problem.field.rpartition(".")[2], names, n=1)
    if meant and problem.remedy.startswith("there are "):
        return f"perhaps {meant[0]} is meant"
    return problem.remedy


def line_of(value: Any, path: str, line: int = 0) -> int:
    """Return the line of a field in a loaded file, or of the nearest part that contains it.

    Args:
        value: the result of `shardkit.config.yaml_text.load_yaml`.
        path: ``components.unique.shards[3].port``. Names may contain dots.
        line: the line of ``value``.
    """
    path = path.lstrip(". ")
    index = re.match(r"\[(\d+)\]", path)
    number = int(index[1]) if index else None
    if isinstance(value, list) and number is not None and number < len(value):
        inner = value[number]
        if isinstance(inner, LinedMapping) and inner.lines:
            line = min(inner.lines.values())
        return line_of(inner, path[len(f"[{number}]") :], line)
    if isinstance(value, LinedMapping):
        if number in value:
            return line_of(value[number], path[len(f"[{number}]") :], value.lines[number])
        names = [name for name in value if isinstance(name, str) and _starts(path, name)]
        if names:
            name = max(names, key=len)
            return line_of(value[name], path[len(name) :], value.lines[name])
    return line


def _starts(path: str, name: str) -> bool:
    return path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "[", " ")


def _met(path: Path, shard_map: ShardMap) -> list[FileProblem]:
    """Return what is wrong with the servers that a map names."""
    return [
        FileProblem(str(path), 0, each.entry, each.address, each.problem, each.remedy, each.warning)
        for each in preflight({}, shard_map.components)
    ]


# ---- the command


@click.command(
    short_help="Show what is wrong with shard maps.",
    epilog=examples(
        "shardkit config validate configs/*.yaml",
        "shardkit config validate --strict --json configs/production.yaml",
    ),
)
@click.argument("maps", metavar="MAP...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--connect", is_flag=True, help="Also connect to the servers, as a push does.")
@common_options
def validate(maps: Sequence[Path], strict: bool, connect: bool, as_json: bool) -> int:
    """Show everything that is wrong with shard maps.

    Connects to nothing, unless --connect. So it does not see what servers say of themselves: a
    wrong role or database, a file that two of them save to, or that a restart loses what scripts
    and MULTI wrote, as of a Redis 7.0 with an append-only file whose default user has no rights.
    Exits with 1 if a map cannot be used.
    """
    output = Output(as_json)
    examined = [(path, *examine(path)) for path in maps]
    if connect:
        for path, shard_map, found in examined:
            found += [] if shard_map is None else _met(path, shard_map)
    findings = [finding for _, _, found in examined for finding in found]
    failed = any(strict or not finding.warning for finding in findings)
    if as_json:
        output.document(
            {
                "valid": all(shard_map is not None for _, shard_map, _ in examined),
                "maps": [
                    {
                        "file": str(path),
                        "valid": shard_map is not None,
                        "problems": [asdict(finding) for finding in found],
                    }
                    for path, shard_map, found in examined
                ],
            }
        )
        return int(failed)
    if findings:
        output.table(table_of(_problem_fields(output), findings))
        output.line()
    for path, shard_map, found in examined:
        if shard_map is None:
            output.line(f"{path} cannot be used: {counted(len(found), 'problem')}", BAD)
        else:
            warned = f", {counted(len(found), 'warning')}" if found else ""
            colour = DOUBTFUL if found else GOOD
            output.line(f"{path} can be used: {contents_of(shard_map)}{warned}", colour)
            if not connect and (users := _users(shard_map)):
                output.line(
                    f"its servers have users of their own ({few(users, ', ')}): whether a restart "
                    "would lose writes is seen with --connect",
                    FAINT,
                )
    return int(failed)


def _users(shard_map: ShardMap) -> list[str]:
    """Return the users that entries log in as, but the default user: so their servers have ACLs."""
    found = set()
    for component in shard_map.components.values():
        for _, entry in component.entries():
            fields = entry.fields
            if "url" in fields:
                fields = {**read_url(fields["url"]), **fields}
            found.add(str(fields.get("username") or "default"))
    return sorted(found - {"default"})


def _problem_fields(output: Output) -> tuple[Field[FileProblem], ...]:
    if output.interactive and output.width < _WIDE:
        return (
            column_only(wordy("place"), lambda finding: finding.place),
            column_only(wordy("field and value"), _field_and_value),
            column_only(wordy("problem and remedy"), lambda f: f"{_problem(f)}\n→ {f.remedy}"),
        )

    def problem(finding: FileProblem) -> Cell:
        return Styled(_problem(finding), DOUBTFUL if finding.warning else BAD)

    return (
        column_only("place", lambda finding: finding.place),
        column_only(wordy("field"), lambda finding: finding.field),
        column_only(wordy("value"), lambda finding: finding.value),
        column_only(wordy("problem"), problem),
        column_only(wordy("remedy"), lambda finding: finding.remedy),
    )


def _field_and_value(finding: FileProblem) -> str:
    return "\n".join(filter(None, [finding.field.removeprefix("components."), finding.value]))


def _problem(finding: FileProblem) -> str:
    return f"warning: {finding.problem}" if finding.warning else finding.problem


def contents_of(shard_map: ShardMap) -> str:
    """Return what a map describes: ``3 components, 24 shards``."""
    shards = sum(len(component.shards) for component in shard_map.components.values())
    named = counted(len(shard_map.components), "component")
    return f"{named}, {counted(shards, 'shard')}"
