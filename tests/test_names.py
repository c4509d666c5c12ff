"""One class name means one thing in the whole package, private classes included."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from parsed import PACKAGE, statements, tree_of


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in statements(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                # To a reader, a leading underscore does not make a name a different one.
                places[node.name.lstrip("_")].append(f"{path.relative_to(PACKAGE)}: {node.name}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_nothing_is_tracked_that_git_ignores() -> None:
    """A tracked environment would take the place of the one that is there."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("this is no clone")
    listing = ["git", "-C", str(root), "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(listing, capture_output=True, check=True, text=True).stdout == ""


def test_a_test_module_has_a_name_of_its_own() -> None:
    """Tests are in no packages: of two modules of a name, pytest collects one."""
    places = defaultdict(list)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        places[path.stem].append(path)
    places.pop("conftest")  # pytest imports each by its path
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
