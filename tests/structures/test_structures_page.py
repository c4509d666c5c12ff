"""docs/structures.md: its examples run and show what they say, and its figures are right."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers
from shardkit.structures import unique_visitors

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "structures.md"
TEXT = PAGE.read_text(encoding="utf-8")


def statements() -> list[tuple[ast.stmt, str, str]]:
    """Each statement of the page's examples, with its mark (``>``, ``!`` or none) and comment."""
    found = []
    for example in re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        lines = example.splitlines()
        for statement in ast.parse(example).body:
            _, _, comment = lines[statement.end_lineno - 1].partition("  #")
            found.append((statement, comment[:1], comment[1:].strip()))
    return found


async def evaluate(statement: ast.stmt, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(statement, ast.Expr):
        code = compile(ast.Expression(statement.value), str(PAGE), "eval", flags)
    else:
        code = compile(ast.Module([statement], []), str(PAGE), "exec", flags)
    value = eval(code, names)
    return await value if inspect.iscoroutine(value) else value


def test_the_examples_show_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    connect, aconnect = shardkit.connect, shardkit.aconnect

    async def main() -> None:
        for statement, mark, expected in statements():
            if mark == "!":
                with pytest.raises(shardkit.ShardKitError) as raised:
                    await evaluate(statement, names)
                said = f"{type(raised.value).__name__}: {raised.value}"
                assert said.startswith(expected)
            else:
                value = await evaluate(statement, names)
                assert mark != ">" or repr(value) == expected

    shard_map = ShardMap.load(ROOT / "configs" / "local.yaml")
    with LocalServers(shard_map, ports="free") as servers:
        monkeypatch.setattr(shardkit, "connect", lambda path: connect(servers.shard_map))
        monkeypatch.setattr(shardkit, "aconnect", lambda path: aconnect(servers.shard_map))
        asyncio.run(main())


def test_the_odds_are_what_they_are() -> None:
    """In the page and in the module's own text."""
    stated = " ".join([TEXT, unique_visitors.__doc__ or ""])
    for millions, bits, claims in [
        (1, 60, ["{missed:.1e}"]),
        (1, 56, ["{missed:.1e}", "one in {years:.0f} years", "one miss in {years:.0f} years"]),
        (25, 60, ["{missed:.1e}", "one in {years:.0f} years"]),
        (25, 56, ["{missed:.1e}", "one in {days:.0f} days"]),
        (250, 60, ["{missed:.1e}", "on {some:.1%} of days", "{some:.1%} of days have one"]),
        (250, 56, ["{missed:.1e}", "on {some:.0%} of days", "{some:.0%} of days have one"]),
    ]:
        missed = (millions * 1e6) ** 2 / 2 ** (bits + 1)
        figures = {
            "missed": missed,
            "days": 1 / missed,
            "years": 1 / missed / 365.25,
            "some": 1 - math.exp(-missed),
        }
        for claim in claims:
            told = re.sub(r"e-0", "e-", claim.format(**figures))
            assert told in stated, told


def test_the_bytes_are_those_that_were_measured() -> None:
    path = ROOT / "benchmarks" / "results" / "memory_set.json"
    valkey, redis = json.loads(path.read_text())["figures"].values()
    rows = re.findall(r"^\| (ids|text), (.*?) \| ([0-9.]+) \| ([0-9.]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 10
    for kind, layout, on_valkey, on_redis in rows:
        name = f"{kind}, {layout}".replace("`set-max-intset-entries`", "limit")
        assert abs(valkey[name] - float(on_valkey)) <= 0.051
        assert abs(redis[name] - float(on_redis)) <= 0.051
