"""The layers of docs/architecture.md: a file imports only from groups below; names of classes."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from parsed import PACKAGE, statements, tree_of

# Bottom first. Within a group files may import one another, as long as there is no cycle.
GROUPS = [
    "lazy_names",
    "errors",
    "callbacks",
    "recent",
    "log_records",
    "events",
    "operations.commands",
    "routing",
    "operations",
    "config",
    "network",
    "structures",
    "queues",
    "coordination",
    "caching",
    "metrics",
    "search",
    "social",
    "market",
    "ads",
    "job_search",
    "geo",
    "messaging",
    "completion",
    "kit",
    "__init__",  # the public names; what follows uses them like everybody else
    "local",
    "testing",
    "admin",
    "integrations",
    "dashboard",
    "cli",
    "__main__",
]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def when_imported(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a file is imported: neither functions, nor what is for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from when_imported(node)


def imports(nodes: Iterator[ast.AST], path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name == "shardkit" or name.startswith("shardkit."):
                below = name.removeprefix("shardkit").lstrip(".")
                while below and below not in known:  # a name in a module
                    below = below.rpartition(".")[0]
                yield below or "__init__"


@cache
def graphs() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What each module imports: anywhere, and when it is imported itself."""
    known = modules()
    anywhere, at_once = {}, {}
    for module, path in known.items():
        tree = tree_of(path)
        anywhere[module] = set(imports(statements(tree), path, known))
        at_once[module] = set(imports(when_imported(tree), path, known))
    return anywhere, at_once


def group(module: str) -> int:
    return GROUPS.index(module if module in GROUPS else module.split(".")[0])


def test_every_file_belongs_to_a_group() -> None:
    assert {module.split(".")[0] for module in modules()} <= set(GROUPS)


ARCHITECTURE = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_architecture_page_lists_the_groups_in_their_order() -> None:
    table = ARCHITECTURE.partition("## Packages")[2].partition("\n## ")[0]
    listed = [
        name.removesuffix("/").removesuffix(".py").replace("/", ".")
        for row in re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    ]
    assert listed == [name for name in GROUPS if name != "__main__"]


def test_the_architecture_page_names_files_that_exist_and_define_what_it_says() -> None:
    lines = re.findall(r"^ *(\S.*?) {2,}([\w/]+\.(?:py|lua))$", ARCHITECTURE, re.MULTILINE)
    assert len(lines) > 20
    for said, file in lines:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            names = re.match(r"[\w.]+(?:, [\w.]+)*(?=$|[,:])", said)
            for name in names[0].split(", ") if names else ():
                assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), f"{file}: {said}"
    files = re.findall(r"`((?:\w+/)+\w+\.(?:py|lua|json))`", ARCHITECTURE)
    assert len(files) > 5
    for file in files:
        assert (PACKAGE / file).exists() or (PACKAGE.parent / file).exists(), file


def test_a_file_imports_only_from_its_own_group_or_from_below() -> None:
    upward = [
        f"{module} imports {imported}"
        for module, found in graphs()[0].items()
        for imported in found
        if group(imported) > group(module)
    ]
    assert upward == []


def test_no_imports_form_a_cycle() -> None:
    graph = {module: found - {module} for module, found in graphs()[0].items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError with the cycle
    assert len(order) == len(modules())


def test_threads_that_import_components_at_once_do_not_wait_for_one_another() -> None:
    """A module waits for its package as well, which must not import it therefore.

    Python up to 3.14 answers such a circle by an error in one of the threads.
    """
    components = GROUPS[GROUPS.index("structures") : GROUPS.index("kit")]
    graph = {}
    for module, found in graphs()[1].items():
        package = module.rpartition(".")[0]
        if module.split(".")[0] in components:
            graph[module] = {*found, package} - {"", module}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle
    assert {"structures", "search.index", "social.network"} <= set(order)


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
