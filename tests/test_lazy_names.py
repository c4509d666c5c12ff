"""Packages whose public names are imported when they are first asked for."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import shardkit
from shardkit import search

ROOT = Path(shardkit.__file__).parent
PACKAGES = {
    path.parent.relative_to(ROOT.parent).as_posix().replace("/", "."): path
    for path in sorted(ROOT.rglob("__init__.py"))
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
