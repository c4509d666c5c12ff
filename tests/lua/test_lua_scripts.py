"""Every script says what it takes and gives, names its keys, and runs on every server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

import shardkit
from shardkit.local import LocalServer
from shardkit.lua import script

PACKAGE = Path(shardkit.__file__).parent


def called(path: Path) -> str:
    """Return what `script` calls a file: ``queues/claim`` is ``queues/lua/claim.lua``."""
    owner = path.relative_to(PACKAGE).parent.parent
    return (owner / path.stem).as_posix()


FILES = {called(path): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("lua/*.lua")}
# What others include is no script by itself.
SCRIPTS = {name: text for name, text in FILES.items() if not text.startswith("-- Included by")}


def header(text: str) -> list[str]:
    """The comment that a script begins with, line by line."""
    lines = [line for line in text.splitlines() if not line.startswith("--@include")]
    length = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return [line.removeprefix("--").strip() for line in lines[:length]]


def code(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_what_a_script_does_takes_and_gives(name: str) -> None:
    summary, *fields = header(SCRIPTS[name])
    assert re.fullmatch(r"[A-Z].*\.", summary)
    said = " ".join(fields)
    told = {int(n) for n in re.findall(r"KEYS\[(\d+)\]  \S", said)}
    assert told == set(range(1, max(told) + 1))
    assert {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code(SCRIPTS[name]))} <= told
    assert "ARGV" in said or "ARGV" not in code(script(name).text)
    assert re.search(r"Reply    \S", said)
    assert "\t" not in SCRIPTS[name]
    assert max(map(len, SCRIPTS[name].splitlines())) <= 100


@pytest.mark.parametrize("name", FILES)
def test_no_script_makes_up_the_name_of_a_key(name: str) -> None:
    """A key is given; or, of a list's pieces only, made of the prefix that is given."""
    keys = re.findall(r"redis\.p?call\(\s*[^,]+,\s*([^,)]+)", code(FILES[name]))
    assert not [key for key in keys if "'" in key or '"' in key or ".." in key]


@pytest.mark.parametrize("name", FILES)
def test_what_is_included_says_so_and_is_there(name: str) -> None:
    included = re.findall(r"^--@include ([\w/]+)$", FILES[name], re.MULTILINE)
    for other in included:
        assert FILES[other].startswith("-- Included by")
        assert code(FILES[other]).strip() in code(script(name).text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_loads_on_every_server_under_its_own_sha(
    name: str, own_server: LocalServer
) -> None:
    with own_server.client() as client:
        assert client.script_load(script(name).text) == script(name).sha
        assert client.script_exists(script(name).sha) == [True]


def test_every_script_of_the_package_is_looked_at() -> None:
    assert set(PACKAGE.rglob("*.lua")) == set(PACKAGE.rglob("lua/*.lua"))
    assert len(FILES) >= 75


def test_a_script_is_read_once() -> None:
    assert script("structures/unique/add_and_count") is script("structures/unique/add_and_count")
    assert (
        script("structures/unique/add_and_count").text == SCRIPTS["structures/unique/add_and_count"]
    )
    with pytest.raises(FileNotFoundError):
        script("no_such_script")


def test_adding_counts_only_what_is_new(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["structures/unique/add_and_count"])
        assert run(keys=["count", "ids:0"], args=[3, 1, 2, 3]) == 3
        assert run(keys=["count", "ids:0", "ids:1"], args=[3, 2, 3, 4, 1, 2]) == 2
        assert run(keys=["count", "ids:0"], args=[1, 4]) == 0
        assert client.get("count") == b"5"
        assert run(keys=["count", "ids:2"], args=[7000, *range(7000)]) == 7000


def test_adding_does_not_count_what_it_could_not_add(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["structures/unique/add_and_count"])
        client.set("ids:0", "a string")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            run(keys=["count", "ids:0"], args=[1, 1])
        assert client.exists("count") == 0
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            run(keys=["count", "ids:0", "ids:1"], args=[1, 1, 2, 1, 2])
        assert client.get("count") == b"2"
        client.sadd("no count", 1)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            run(keys=["no count", "ids:2"], args=[1, 1])
        assert client.exists("ids:2") == 0


def test_opening_creates_once_and_then_tells(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["structures/base/open_structure"])
        assert run(keys=["ids:meta"], args=["kind", "set", "total", 10]) == []
        assert run(keys=["ids:meta"], args=["kind", "hash"]) == [b"kind", b"set", b"total", b"10"]
        assert client.hgetall("ids:meta") == {b"kind": b"set", b"total": b"10"}
