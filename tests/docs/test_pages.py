"""The examples in docs/ run, one after the other, and show what they say.

In a page's ``python`` blocks a comment ``#>`` behind a statement shows what an expression gives,
``#!`` which error it raises. ``configs/local.yaml`` stands for servers that this test starts.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

ROOT = Path(__file__).parents[2]
PAGES = {
    page.name: text
    for page in sorted((ROOT / "docs").glob("*.md"))
    if "  #> " in (text := page.read_text(encoding="utf-8"))
}


async def run(page: str, source: str, line: int, names: dict[str, Any]) -> int:
    """Run an example, statement by statement; return how many of them show what they do."""
    shown, lines = 0, source.splitlines()
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        _, mark, expected = lines[statement.end_lineno - 1].partition("  #")
        where = f"{page}:{line + statement.lineno}"
        if mark and expected[:1] == "!":
            with pytest.raises(shardkit.ShardKitError) as raised:
                await evaluate(page, statement, names)
            said = f"{type(raised.value).__name__}: {raised.value}"
            assert said.startswith(expected[1:].strip()), where
            shown += 1
        else:
            value = await evaluate(page, statement, names)
            if mark and expected[:1] == ">":
                assert repr(value) == expected[1:].strip(), where
                shown += 1
    return shown


async def evaluate(page: str, statement: ast.stmt, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(statement, ast.Expr):
        code = compile(ast.Expression(statement.value), page, "eval", flags)
    else:
        code = compile(ast.Module([statement], []), page, "exec", flags)
    value = eval(code, names)
    # redis-py's awaiting client can be awaited as well, so only coroutines are.
    return await value if inspect.iscoroutine(value) else value


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_show_what_happens(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGES[page]
    connect, aconnect = shardkit.connect, shardkit.aconnect
    names: dict[str, Any] = {}

    async def main() -> int:
        shown = 0
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            shown += await run(page, match[1], line, names)
        return shown

    shard_map = ShardMap.load(ROOT / "configs" / "local.yaml")
    with LocalServers(shard_map, ports="free") as servers:
        monkeypatch.setattr(shardkit, "connect", lambda path: connect(servers.shard_map))
        monkeypatch.setattr(shardkit, "aconnect", lambda path: aconnect(servers.shard_map))
        assert asyncio.run(main()) == text.count("  #> ") + text.count("  #! ")
