"""The examples of README.md and docs/ run, one after the other, with the results that they show.

In a page's ``python`` blocks a comment ``#>`` after a statement shows the value of an expression,
``#!`` the error that it raises. ``configs/local.yaml`` stands for servers that this test starts.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.kit.kit import KitOpening
from shardkit.local import LocalServers

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {
    page.name: text
    for page in DOCS
    if "  #> " in (text := page.read_text(encoding="utf-8"))
    and page.name != "one-redis.md"  # on servers of its own: test_one_redis.py
}
# What users import from, and what is there. docs/architecture.md lists them.
PUBLIC = {
    module: list(importlib.import_module(module).__all__)
    for module in (
        "shardkit",
        *(
            f"shardkit.{name}"
            for name in (
                *("admin", "admin.growth", "ads", "completion", "coordination", "dashboard"),
                *("errors", "events", "geo", "geo.redis_in_action", "integrations.asgi"),
                *("integrations.otel", "integrations.prometheus", "integrations.wsgi"),
                *("job_search", "local", "market", "messaging", "metrics", "network.health"),
                *("network.replicas", "operations", "queues", "search", "social", "structures"),
                *("structures.encodings", "testing"),
            )
        ),
    )
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


def code_blocks(text: str) -> Iterator[str]:
    """Iterate over the Python of a page's fenced blocks, indented ones too."""
    for match in re.finditer(r"^( *)```python\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
        yield inspect.cleandoc("\n" + match[2])


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_examples_import_only_what_a_public_package_exports(path: Path) -> None:
    private = []
    for block in code_blocks(path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                used = [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                used = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            for module, name in used:
                if module.split(".")[0] == "shardkit" and (
                    module not in PUBLIC or (name is not None and name not in PUBLIC[module])
                ):
                    private.append(f"{module}.{name}" if name else module)
    assert private == []


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_package_has_what_it_exports(module: str) -> None:
    assert PUBLIC[module]
    for name in PUBLIC[module]:
        exported = getattr(importlib.import_module(module), name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert exported.__doc__, f"{module}.{name}"


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServers]:
    shard_map = ShardMap.load(ROOT / "configs" / "local.yaml")
    with LocalServers(shard_map, ports="free") as servers:
        yield servers


@pytest.fixture
def servers(running: LocalServers) -> LocalServers:
    """The servers of the pages, empty."""
    for server in running.servers:
        with server.client() as client:
            client.flushall()
            client.script_flush()
    return running


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_show_what_happens(
    page: str, servers: LocalServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGES[page]
    connect, aconnect = shardkit.connect, shardkit.aconnect
    names: dict[str, Any] = {}
    opened: list[Any] = []

    async def main() -> int:
        shown = 0
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            shown += await run(page, match[1], line, names)
        for kit in opened:
            if isinstance(kit, shardkit.AsyncShardKit):
                await kit.aclose()
            else:
                kit.close()
        return shown

    def opens(path: str, **options: Any) -> Any:
        opened.append(connect(servers.shard_map, **options))
        return opened[-1]

    def aopens(path: str, **options: Any) -> Any:
        async def opening() -> Any:
            opened.append(await aconnect(servers.shard_map, **options))
            return opened[-1]

        return KitOpening(opening())

    monkeypatch.setattr(shardkit, "connect", opens)
    monkeypatch.setattr(shardkit, "aconnect", aopens)
    assert asyncio.run(main()) == text.count("  #> ") + text.count("  #! ")


def test_start_has_the_figures_of_the_page_on_memory() -> None:
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    said = re.search(
        r"ids of 60 bits, one SET \| (.+) / (.+) \| (.+) / (.+) \(a saving of (\d+)% / (\d+)%\)",
        start,
    )
    assert said
    redis, valkey, our_redis, our_valkey = map(float, said.groups()[:4])
    assert f"| one SET | {valkey} | {redis} |" in page
    assert f"| parts that grow | {our_valkey} | {our_redis} | " in page
    savings = [
        round(100 * (1 - ours / theirs))
        for ours, theirs in ((our_redis, redis), (our_valkey, valkey))
    ]
    assert list(map(int, said.groups()[4:])) == savings
    # Valkey's table is still twice there right after loading: that figure is not compared.
    assert "right after loading" in start


def test_the_ratios_of_the_readme_follow_from_the_figures_of_other_pages() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    plain, ours = r"(.+?) / (.+?)", r"([\d.]+) / ([\d.]+)"
    ids = re.search(rf"one SET \| {plain} \| {ours}", start)
    records = re.search(rf"one HASH \| {plain} \| {ours}; compressed {ours}", start)
    calls = re.search(r"10,000 `get` \| ([\d.]+) \| .+ \| ([\d.]+), by hand", performance)
    assert ids
    assert records
    assert calls
    redis, valkey, our_redis, our_valkey = map(float, ids.groups())
    assert f"**{redis / our_redis:.0f} times** as many ids" in readme
    assert f"({our_redis} bytes each, not {redis})" in readme
    assert f"**{valkey / our_valkey:.0f} times** on Valkey" in readme
    assert f"({our_valkey}, not {valkey})" in readme
    redis, valkey, *dense = map(float, records.groups())
    one, two, three, four = (
        f"**{theirs / mine:.0f}" for theirs, mine in zip((redis, valkey) * 2, dense, strict=True)
    )
    assert f"{one} times** as many JSON records" in readme
    assert f"{three} times** when compressed; on Valkey {two}** and {four}**" in readme
    mine, theirs = map(float, calls.groups())
    assert f"**{theirs / mine:.0f} times** as fast as redis-py's pipelines" in readme
