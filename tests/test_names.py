"""One class name means one thing in the whole package, private classes included."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import shardkit

PACKAGE = Path(shardkit.__file__).parent


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                # A leading underscore does not tell two names apart for somebody who reads them.
                places[node.name.lstrip("_")].append(f"{path.relative_to(PACKAGE)}: {node.name}")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert shared.keys() - OPEN == set(), shared


# Still shared, to be renamed.
OPEN = {
    "Answers",
    "Change",
    "Counts",
    "Cursor",
    "Hit",
    "Kept",
    "Layout",
    "Parser",
    "Part",
    "Plan",
    "Request",
    "Table",
}
