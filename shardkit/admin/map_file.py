"""The problems of a shard map's file, with their lines, and of the servers that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shardkit.admin.pushes import preflight
from shardkit.config.entry import read_regular
from shardkit.config.problem import Problem
from shardkit.config.shard_map import LinedMapping, ShardMap, load_yaml
from shardkit.config.url import read_url
from shardkit.errors import ConfigError, InvalidEntryError


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem, or warning, of a file."""

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
        return None, sorted(_with_lines(path, error.problems), key=lambda finding: finding.line)
    except ConfigError as error:
        problem = error.message.removeprefix(f"{file}: ")
        line = re.search(r" in line (\d+)", problem)
        number = int(line[1]) if line else 0
        return None, [FileProblem(file, number, "", "", problem, error.remedy)]
    return shard_map, list(_with_lines(path, shard_map.warnings))


def _with_lines(path: Path, problems: tuple[Problem, ...]) -> Iterator[FileProblem]:
    if not problems:
        return
    text = load_yaml(read_regular(path).decode(), str(path))
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
            _closest_remedy(problem),
            problem.warning,
        )


def _closest_remedy(problem: Problem) -> str:
    """Return a problem's remedy; of a long list of names only the closest one."""
    names = re.findall(r"\w+", problem.remedy.removeprefix("use one of "))
    meant = get_close_matches(problem.field.rpartition(".")[2], names, n=1)
    if meant and problem.remedy.startswith("use one of "):
        return f"perhaps {meant[0]} is meant"
    return problem.remedy


def line_of(value: Any, path: str, line: int = 0) -> int:
    """Return the line of a field in a loaded file, or of the nearest part that contains it."""
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
        names = [
            name
            for name in value
            if isinstance(name, str)
            and path.startswith(name)
            and path[len(name) : len(name) + 1] in ("", ".", "[", " ")
        ]
        if names:
            name = max(names, key=len)
            return line_of(value[name], path[len(name) :], value.lines[name])
    return line


def problems_of_servers(path: Path, shard_map: ShardMap) -> list[FileProblem]:
    """Return what is wrong with the servers that a map names."""
    return [
        FileProblem(str(path), 0, row.entry, row.address, row.problem, row.remedy, row.warning)
        for row in preflight({}, shard_map.components)
    ]


def users_of(shard_map: ShardMap) -> list[str]:
    """Return the users, except for the default user, that entries log in as."""
    users = set()
    for component in shard_map.components.values():
        for _, entry in component.entries():
            fields = entry.fields
            if "url" in fields:
                fields = {**read_url(fields["url"]), **fields}
            users.add(str(fields.get("username") or "default"))
    return sorted(users - {"default"})
