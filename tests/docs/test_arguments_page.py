"""Structures are made by the words of docs/arguments.md, whose table is that of the signatures."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.config.fields import FIELDS
from shardkit.kit.catalogue import Catalogue

ROOT = Path(__file__).parent.parent.parent
MAKERS = sorted(name for name in vars(Catalogue) if name[0] != "_" and name != "topology")


@pytest.mark.parametrize("name", MAKERS)
def test_a_structure_is_made_by_name_and_component(name: str) -> None:
    taken = dict(inspect.signature(vars(Catalogue)[name]).parameters)
    options = [each.annotation for each in taken.values() if each.kind is each.VAR_KEYWORD]
    assert all(each.startswith("Unpack[") for each in options)
    where = taken.get("component") or taken.get("components")
    assert where is not None or name == "strings"  # which passes it on to a hash
    assert where is None or (where.kind, where.default) == (where.KEYWORD_ONLY, where.empty)


def test_the_table_of_methods_is_what_the_signatures_say() -> None:
    written = "import kit_methods as k, sys; sys.exit(k.page() != k.PAGE.read_text('utf-8'))"
    done = subprocess.run([sys.executable, "-c", written], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/kit_methods.py"


def test_the_page_describes_every_field_of_an_entry() -> None:
    page = Path("docs/configuration.md").read_text(encoding="utf-8")
    table = page.partition("<!-- fields -->")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == FIELDS.keys()
