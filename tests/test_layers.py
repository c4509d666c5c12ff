"""The layers of docs/architecture.md: a file imports only from groups below its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import shardkit

PACKAGE = Path(shardkit.__file__).parent

# Bottom first. Within a group files may import one another, as long as there is no cycle.
GROUPS = [
    "lazy_names",
    "errors",
    "callbacks",
    "log_records",
    "events",
    "operations.commands",
    "routing",
    "operations",
    "config",
    "network",
    "structures",
    "geo",
    "completion",
    "search",
    "ads",
    "job_search",
    "queues",
    "coordination",
    "market",
    "messaging",
    "social",
    "metrics",
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


def anywhere(tree: ast.Module) -> Iterator[ast.AST]:
    return ast.walk(tree)


def when_imported(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a file is imported: neither functions, nor what is for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from when_imported(node)


def imports(
    path: Path,
    known: dict[str, Path],
    nodes: Callable[[ast.Module], Iterator[ast.AST]] = anywhere,
) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
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
    known = modules()
    upward = [
        f"{module} imports {imported}"
        for module, path in known.items()
        for imported in imports(path, known)
        if group(imported) > group(module)
    ]
    assert upward == []


def test_no_imports_form_a_cycle() -> None:
    known = modules()
    graph = {module: set(imports(path, known)) - {module} for module, path in known.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError with the cycle
    assert len(order) == len(known)


def test_threads_that_import_components_at_once_do_not_wait_for_one_another() -> None:
    """A module waits for its package as well, which must not import it therefore.

    Python up to 3.14 answers such a circle by an error in one of the threads.
    """
    known = modules()
    components = GROUPS[GROUPS.index("structures") : GROUPS.index("kit")]
    graph = {}
    for module, path in known.items():
        package = module.rpartition(".")[0]
        if module.split(".")[0] in components:
            graph[module] = {*imports(path, known, when_imported), package} - {"", module}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle
    assert {"structures", "search.index", "social.network"} <= set(order)
