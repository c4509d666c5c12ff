"""One word for one thing in public signatures, as docs/arguments.md says."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardkit.kit.catalogue import Catalogue

ROOT = Path(__file__).parent.parent.parent
# Words that are gone: each meant what another one means.
GONE = {"wait", "patience", "groups", "shard_size", "relation_shards", "rule", "count_of"}
WAITS = {"timeout", "blocking_timeout", "copy_timeout", "client_timeout", "durable_timeout"}
LIVES = {"ttl", "averages_ttl", "statistics_ttl", "status_ttl", "lease", "stale", "remember"}
AGES = {"max_age", "older_than", "quiet", "settled"}
OTHERS = {"delay", "retry_delay", "longest_retry_delay", "grace", "hold", "interval", "per"}
SECONDS = {"measure_balance", "measure_disk_rate", "record", "simulate"}  # what is measured


def public() -> Iterator[tuple[str, Any]]:
    """Yield the functions, and the methods of the classes, that users can call."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    [packages] = re.findall(r"Users import from (.*); each has an `__all__`", page)
    for package in re.findall(r"`(shardkit[\w.]*)`", packages):
        module = importlib.import_module(package)
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isfunction(item):
                yield name, item
            elif inspect.isclass(item) and item.__module__.startswith("shardkit"):
                for key in dir(item):
                    static = inspect.getattr_static(item, key)
                    method = getattr(static, "steps", None) or inspect.unwrap(static)
                    ours = str(getattr(method, "__module__", "")).startswith("shardkit")
                    if inspect.isfunction(method) and ours and (key[0] != "_" or key == "__init__"):
                        yield (name if key == "__init__" else key), method


def parameters(method: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method).parameters)


def test_no_public_signature_has_a_word_that_is_gone() -> None:
    used = {
        f"{name}({word}=)" for name, method in public() for word in GONE & {*parameters(method)}
    }
    assert used == set()


def test_durations_have_the_words_of_the_page() -> None:
    allowed = WAITS | LIVES | AGES | OTHERS
    found = {
        f"{name}({word}=)"
        for name, method in public()
        for word, parameter in parameters(method).items()
        if "Seconds" in str(parameter.annotation)
        and word not in allowed | ({"seconds"} if name in SECONDS else {"watch"})
    }
    assert found == set()


MAKERS = sorted(name for name in vars(Catalogue) if name[0] != "_" and name != "topology")


@pytest.mark.parametrize("name", MAKERS)
def test_a_structure_is_made_by_name_and_component(name: str) -> None:
    taken = parameters(inspect.unwrap(vars(Catalogue)[name]))
    for options in taken.values():
        if options.kind is options.VAR_KEYWORD:
            assert options.annotation.startswith("Unpack["), "typed"
    if name != "strings":  # a hash's
        where = taken.get("component") or taken["components"]
        assert where.kind is where.KEYWORD_ONLY
        assert where.default is where.empty


def test_the_table_of_methods_is_what_the_signatures_say() -> None:
    written = "import kit_methods as k, sys; sys.exit(k.page() != k.PAGE.read_text('utf-8'))"
    done = subprocess.run([sys.executable, "-c", written], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/kit_methods.py"
