"""The page on the architecture says how many functions a call passes, and what users import."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap, connect

PACKAGE = str(Path(shardkit.__file__).parent)
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
GUARANTEES = (DOCS / "guarantees.md").read_text(encoding="utf-8")


def passed(call: Callable[[], object]) -> tuple[int, int]:
    """How many of shardkit's functions a call passes, and in how many files."""
    for _ in range(5):
        call()
    seen: list[tuple[int, Any]] = []
    sys.setprofile(lambda frame, event, _: seen.append((id(frame), frame.f_code)))
    call()
    sys.setprofile(None)
    started: dict[tuple[int, Any], None] = {}  # a resumed generator counts once
    started.update((each, None) for each in seen if each[1].co_filename.startswith(PACKAGE))
    return len(started), len({code.co_filename for _, code in started})


@pytest.mark.parametrize("title", ["A decorated function", "A read of a hash", "A pipeline over"])
def test_a_call_passes_about_as_many_functions_as_the_page_says(
    title: str, kit: ShardKit, shard_map: ShardMap, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml(), encoding="utf-8")
    with connect(str(path)) as mapped:
        get = mapped.sharded_connection("few")(lambda conn, key: conn.get(key))
        numbers, router = mapped.hash("h", component="few"), mapped.key_sharded("few")
        numbers.hset(7, b"Ada")
        keys = [next(str(n) for n in range(99) if router.shard_of(str(n)) == m) for m in (0, 1)]

        def four() -> object:
            pipe = router.pipeline()
            for key in keys:
                pipe.set(key, 1).get(key)
            return pipe.execute()

        calls = {
            "A decorated function": lambda: get("k"),
            "A read of a hash": lambda: numbers.hget(7),
            "A pipeline over": four,
        }
        count, files = passed(calls[title])
    said = re.search(rf"\*\*{title}.*?: (\d+) calls in (\d+) files", PAGE)
    assert said is not None
    assert count <= 1.15 * int(said[1])
    assert files <= 1.15 * int(said[2])


def test_what_users_import_from_says_what_it_exports() -> None:
    [said] = re.findall(r"Users import from (.*); each has an `__all__`", PAGE)
    names = re.findall(r"`(shardkit[\w.]*)`", said)
    assert len(names) > 20
    for name in names:
        assert importlib.import_module(name).__all__, name


def test_the_quick_run_has_a_test_of_each_promise() -> None:
    tests = Path(__file__).parents[1]
    quick = (tests / "smoke.txt").read_text().splitlines()
    for each in quick:
        path, _, name = each.partition("[")[0].partition("::")
        assert f"def {name}(" in (tests.parent / path).read_text() or not name, each
    promises = re.findall(r"^\| \*\*(.*?)\.?\*\*", GUARANTEES, re.M)
    rows = [each.partition("[")[2] for each in quick]
    missing = [name for name in promises if not any(row.startswith(name) for row in rows)]
    assert len(missing) <= 4, "four have tests of their own in network/ and caching/"
