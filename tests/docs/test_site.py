"""The documentation site has every page, every public package and every picture.

`make docs` builds it, and fails for links without a target.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_exist_and_code_in_tables_has_no_escaped_pipe(page: Path) -> None:
    """The site would show the backslash, and readers copy commands and rights."""
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*]\(([^)#]+)\)", text)
    assert [each for each in pictures if not (page.parent / each).is_file()] == []
    assert re.findall(r"`[^`\n]*\\\|[^`\n]*`", text) == []


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
