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
                # To a reader, a leading underscore does not make a name a different one.
                places[node.name.lstrip("_")].append(f"{path.relative_to(PACKAGE)}: {node.name}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
