"""docs/logging.md lists every log record of shardkit: event, logger, level and fields."""

from __future__ import annotations

import ast
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis
from faces import eventually

import shardkit
from shardkit import ShardMap, events
from shardkit.local import LocalServer

PACKAGE = Path(shardkit.__file__).parent
PAGE = PACKAGE.parent / "docs" / "logging.md"
Record = tuple[str, str, str, frozenset[str]]  # event, logger, level, fields


def fields_of(call: ast.Call, tree: ast.Module) -> tuple[set[str], set[str]]:
    """The events and the fields that a call of `fields` makes, or of a function that calls it."""
    names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    if ast.unparse(call.func) == "_about":  # of a task
        names |= {"task", "queue", "id", "attempt"}
    if any(keyword.arg is None for keyword in call.keywords):
        names |= {"shards", "server"} if "class Breaker:" in ast.unparse(tree) else {"kind"}
    event = call.args[0]
    if isinstance(event, ast.Constant):
        return {event.value}, names
    chosen = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(event)
    ]
    return {each.value for each in ast.walk(chosen[0]) if isinstance(each, ast.Constant)}, names


@cache
def records() -> set[Record]:
    """Every record that the package logs, but for what only its tests and programs do."""
    found: set[Record] = set()
    for path in PACKAGE.rglob("*.py"):
        if {"testing", "cli"} & set(path.parts):
            continue
        if "extra=" not in path.read_text(encoding="utf-8"):
            assert "logger." not in path.read_text(encoding="utf-8"), path
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        logger = re.search(r'getLogger\("(\S+?)"\)', path.read_text(encoding="utf-8"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for call in ast.walk(tree):
            if not (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and re.fullmatch(r"logger|logging\.getLogger\(.*\)", ast.unparse(call.func.value))
            ):
                continue
            assert logger is not None
            level = {"exception": "error", "log": "varies"}.get(call.func.attr, call.func.attr)
            [extra] = [each.value for each in call.keywords if each.arg == "extra"]
            if isinstance(extra, ast.Name):  # the nearest assignment above
                scope = [
                    each
                    for each in functions
                    if each.lineno <= call.lineno <= (each.end_lineno or 0)
                ] or [tree]
                innermost: Any = scope[-1]
                assigned = [
                    node
                    for node in (*ast.walk(innermost), *ast.walk(tree))
                    if isinstance(node, ast.Assign)
                    and ast.unparse(node.targets[0]) == extra.id
                    and node.lineno < call.lineno
                ]
                extra = max(
                    (each for each in assigned if each in set(ast.walk(innermost))),
                    key=lambda node: node.lineno,
                    default=assigned[0],
                ).value
            assert isinstance(extra, ast.Call), f"{path}:{call.lineno}"
            names, fields = fields_of(extra, tree)
            found |= {(name, logger[1], level, frozenset(fields)) for name in names}
    return found


def listed() -> set[Record]:
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\w+)(?:, `([\w.]+)`)? \| [^|]* \|([^|]*)\|$", PAGE.read_text(), re.M
    )
    return {
        (event, f"shardkit{logger}", level.lower(), frozenset(re.findall(r"`([^`]+)`", fields)))
        for event, level, logger, fields in rows
    }


def test_the_page_lists_every_record_with_its_logger_level_and_fields() -> None:
    made = {(event, logger, level) for event, logger, level, _ in records()}
    assert made == {(event, logger, level) for event, logger, level, _ in listed()}
    by_event: dict[str, set[str]] = {}
    for event, _, _, fields in records():
        by_event.setdefault(event, set()).update(fields)
    assert by_event == {event: set(fields) for event, _, _, fields in listed()}


def test_shardkit_adds_no_handler() -> None:
    assert logging.getLogger("shardkit").handlers == []
    assert logging.getLogger("shardkit").propagate


def about(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        record.shardkit  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize("breaker", ["", ", breaker: false"])
def test_a_dead_server_is_logged_once_when_it_goes_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture, breaker: str
) -> None:
    with LocalServer() as server:
        port = server.port
        text = f"components: {{shop: {{entry: {{port: {port}{breaker}}}}}}}"
        with shardkit.connect(ShardMap.parse(text)) as kit:
            client = kit.client("shop")
            client.ping()
            server.kill()

            def call() -> None:
                for _ in range(10):
                    with pytest.raises(redis.ConnectionError, match=r"^shop "):
                        client.get("k")

            with ThreadPoolExecutor(8) as threads:
                for each in [threads.submit(call) for _ in range(8)]:
                    each.result()
            server.restart()

            def answers() -> bool:
                with suppress(redis.ConnectionError):  # the breaker has not probed it yet
                    return bool(client.ping())
                return False

            assert eventually(answers)
    gone, back = about(caplog)
    place = {"shards": ["shop"], "server": f"localhost:{port}/0"}
    assert gone.items() >= {"event": "server-unavailable", **place}.items()
    assert "refused" in gone["cause"]
    assert back.items() >= {"event": "server-available", **place}.items()
    assert caplog.messages[0].startswith(f"shop (localhost:{port}/0) is unavailable: ")


def test_events_are_logged_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer() as server, caplog.at_level(logging.DEBUG, "shardkit"):
        text = f"components: {{shop: {{entry: {{port: {server.port}}}}}}}"
        stop = events.log()
        try:
            with shardkit.connect(ShardMap.parse(text)) as kit:
                kit.client("shop").set("k", 1)
        finally:
            stop()
    found = [record.shardkit for record in caplog.records if hasattr(record, "shardkit")]
    [sent] = [each for each in found if each["kind"] == "CommandsFinished"]
    assert sent["name"] == "SET"
    assert sent["shard"] == "shop"
