"""The maps and commands of docs/migrating.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from shardkit import ShardMap
from shardkit.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
PROGRAMS = {
    "rb": "rb",
    "twemproxy": "twemproxy",
    "django-redis": "django-redis",
    "Jedis": "jedis",
    "go-redis Ring": "go-redis",
    "RedisArray and Predis": "redis-array",
    "A hand-written router": "whole:crc32",
    "Redis Cluster": "",
}


def test_each_program_has_a_section() -> None:
    assert [each.partition("\n")[0] for each in SECTIONS[1:]] == list(PROGRAMS)


@pytest.mark.parametrize("section", SECTIONS[1:], ids=list(PROGRAMS))
def test_the_map_of_a_section_can_be_used(section: str) -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    component = ShardMap.parse(text).components["users"]
    expected = PROGRAMS[section.partition("\n")[0]]
    if expected:
        assert component.placement.partition(" ")[0] == expected
        assert component.place("user:42") in (0, 1)
    else:
        assert component.entry is not None
        assert component.entry.is_cluster


@pytest.mark.parametrize("section", SECTIONS, ids=["top", *PROGRAMS])
def test_adopt_understands_its_command_lines(section: str) -> None:
    command = app.get_command(None, "adopt")  # type: ignore[arg-type]
    assert command is not None
    blocks = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    assert blocks
    for line in "".join(blocks).splitlines():
        words = shlex.split(line)
        if words[1] == "adopt":
            context = command.make_context("adopt", words[2:])
            assert context.params["component"] == "users"
            assert len(context.params["on"]) == 2
