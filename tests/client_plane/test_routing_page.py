"""docs/routing.md: its examples run, and show what they say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit.local import LocalServers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "routing.md"


async def run(source: str, line: int, names: dict[str, Any]) -> int:
    """Run an example, statement by statement; return how many of them show what they do."""
    shown, lines = 0, source.splitlines()
    for statement in ast.parse(source).body:
        _, mark, expected = lines[statement.end_lineno - 1].partition("  #")
        where = f"{PAGE.name}:{line + statement.lineno}"
        if mark and expected[:1] == "!":
            with pytest.raises(Exception) as raised:  # noqa: PT011
                await evaluate(statement, names)
            said = f"{type(raised.value).__name__}: {raised.value}"
            assert said.startswith(expected[1:].strip()), where
            shown += 1
        else:
            value = await evaluate(statement, names)
            if mark and expected[:1] == ">":
                assert repr(value) == expected[1:].strip(), where
                shown += 1
    return shown


async def evaluate(statement: ast.stmt, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(statement, ast.Expr):
        code = compile(ast.Expression(statement.value), str(PAGE), "eval", flags)
    else:
        code = compile(ast.Module([statement], []), str(PAGE), "exec", flags)
    value = eval(code, names)
    # redis-py's awaiting client can be awaited as well, so only coroutines are.
    return await value if inspect.iscoroutine(value) else value


def test_the_examples_show_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    shard_map = shardkit.ShardMap.load(ROOT / "configs" / "local.yaml")
    connect = shardkit.connect
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")

    async def main() -> int:
        shown = 0
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            shown += await run(match[1], line, names)
        return shown

    with LocalServers(shard_map, ports="free") as servers:
        monkeypatch.setattr(shardkit, "connect", lambda path: connect(servers.shard_map))
        assert asyncio.run(main()) == text.count("  #> ") + text.count("  #! ")
