"""The documentation site has every page, every public package, argument, call and picture.

`make docs` builds it, and fails for links without a target.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap, connect
from shardkit.errors import ConfigError
from shardkit.operations import Face
from tests.docs.test_pages import PUBLIC, SITE, navigation
from tools.publish_docs import publish
from tools.search_index import without_details

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent != DOCS / "decisions"]


NAVIGATION = list(navigation(SITE))


def test_each_page_is_in_the_navigation_once() -> None:
    pages = [str(page.relative_to(DOCS)) for page in PAGES]
    assert sorted(NAVIGATION) == sorted([*pages, "decisions/README.md"])


def test_the_readme_and_the_pages_are_short() -> None:
    readme = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(readme.split()) <= 450
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= 55_000


def test_each_public_package_has_a_page_in_the_reference() -> None:
    for module in PUBLIC:
        assert f"::: {module}\n" in (DOCS / "api" / f"{module}.md").read_text(encoding="utf-8")


def test_the_first_page_of_the_reference_has_each_name_and_begins_with_connect() -> None:
    page = (DOCS / "api" / "shardkit.md").read_text(encoding="utf-8")
    members = re.findall(r"^        - (\w+)$", page, re.MULTILINE)
    assert sorted(members) == sorted(PUBLIC["shardkit"])
    assert members[:2] == ["connect", "aconnect"]
    assert set(re.findall(r"\(#shardkit\.(\w+)\)", page)) <= set(members)


def test_search_leaves_out_decisions_and_data_classes() -> None:
    kept = ["growth/", "decisions/", "api/shardkit/#shardkit.ShardKit", "api/shardkit.queues/"]
    left_out = [
        *("decisions/0001-layers-as-built/", "api/shardkit.admin/#shardkit.admin.CheckFinding"),
        "api/shardkit.admin/#shardkit.admin.CheckFinding.remedy",
    ]
    items = [{"location": each} for each in (*kept, *left_out)]
    assert without_details(items) == [{"location": each} for each in kept]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("deployment", ["kubernetes", "docker", "systemd"]),
        *(("migrating", ["migrate"]), ("growth", ["resharding"]), ("configuration", ["connect"])),
    ],
)
def test_a_page_begins_with_the_words_that_readers_search_for(page: str, words: list[str]) -> None:
    begin = (DOCS / f"{page}.md").read_text(encoding="utf-8")[:800].lower()
    assert [word for word in words if word not in begin] == []


def test_pictures_exist_and_code_in_tables_has_no_escaped_pipe() -> None:
    """The site would show the backslash, and readers copy commands and rights."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    pictures = [
        page.parent / name
        for page, text in texts.items()
        for name in re.findall(r"!\[[^]]*]\(([^)#]+)\)", text)
    ]
    assert pictures
    assert [each for each in pictures if not each.is_file()] == []
    assert re.findall(r"`[^`\n]*\\\|[^`\n]*`", "\n\n".join(texts.values())) == []


def test_versions_of_the_site_stand_beside_each_other(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "published"
    folder.mkdir()
    for version in ("0.9.0", "0.10.0", "0.9.1"):
        site.mkdir()
        (site / "index.html").write_text(version)
        publish(folder, version, site)
        shutil.rmtree(site)
    listed = json.loads((folder / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.1", "0.9.0"]
    assert [each["version"] for each in listed if each["aliases"]] == ["0.10.0"]
    assert (folder / "latest" / "index.html").read_text() == "0.10.0"
    assert (folder / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert "latest/" in (folder / "404.html").read_text()


def makes_a_structure(function: Any) -> bool:
    """Whether what a method returns is blocking or async as its kit."""
    made = typing.get_type_hints(function).get("return") if inspect.isfunction(function) else None
    return Face in getattr(made, "__parameters__", ()) or function is ShardKit.read_write_lock


METHODS = {
    name: method
    for name in dir(ShardKit)
    if name[0] != "_" and makes_a_structure(method := getattr(ShardKit, name))
}
MAKERS = sorted(METHODS)


def is_placed(name: str) -> bool:
    """Whether the options of what makes a structure have types, and its component no default."""
    taken = dict(inspect.signature(METHODS[name]).parameters)
    options = [each.annotation for each in taken.values() if each.kind is each.VAR_KEYWORD]
    where = taken.get("component") or taken.get("components")
    return all(each.startswith("Unpack[") for each in options) and (
        name == "strings"  # which passes it on to a hash
        if where is None
        else (where.kind, where.default) == (where.KEYWORD_ONLY, where.empty)
    )


def test_structures_are_made_by_name_and_component() -> None:
    assert len(MAKERS) > 30
    assert [name for name in MAKERS if not is_placed(name)] == []


def test_the_table_of_methods_is_what_the_signatures_say() -> None:
    written = "import kit_methods as k, sys; sys.exit(k.page() != k.PAGE.read_text('utf-8'))"
    done = subprocess.run([sys.executable, "-c", written], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/kit_methods.py"


def test_the_page_describes_every_field_of_an_entry() -> None:
    page = Path("docs/configuration.md").read_text(encoding="utf-8")
    table = page.partition("<!-- fields -->")[2].partition("\n\n")[0]
    with pytest.raises(ConfigError, match=r"x is not a field of an entry; use one of ") as raised:
        ShardMap.parse("components: {a: {entry: {x: 1}}}")
    fields = str(raised.value).partition("use one of ")[2].split(", ")
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == fields


def defaults(function: Any) -> dict[str, Any]:
    """The default values that say something: for None the method finds a value."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.default not in (each.empty, None)}


def test_default_values_are_those_of_the_classes() -> None:
    compared = 0
    for name, method in METHODS.items():
        made = typing.get_type_hints(method)["return"]
        of_class = defaults((typing.get_origin(made) or made).__init__)
        both = {each: value for each, value in defaults(method).items() if each in of_class}
        assert {name: both} == {name: {each: of_class[each] for each in both}}
        compared += len(both)
    assert compared > 40
    # Which the class does not have.
    assert defaults(METHODS["market"])["grace"] == defaults(METHODS["transfers"])["grace"]


PACKAGE = str(Path(shardkit.__file__).parent)

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
    title: str,
    kit: ShardKit,
    shard_map: ShardMap,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What kits of other tests have used: reads from replicas, and deadlines of entries.
    monkeypatch.setattr("shardkit.config.read_from.in_use.any", set())
    monkeypatch.setattr("shardkit.operations.deadlines.in_use.by_entries", False)
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
    assert len(missing) <= 5, "five have tests of their own in network/, caching/ and admin/"
