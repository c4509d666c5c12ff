"""Every script says what it takes and gives, names its keys, and runs on every server."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import redis

from shardkit.local import LocalServer
from shardkit.scripts import script

SCRIPTS = {
    file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
    for file in files("shardkit.scripts").iterdir()
    if file.name.endswith(".lua")
}


def header(text: str) -> list[str]:
    """The comment that a script begins with, line by line."""
    lines = text.splitlines()
    length = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return [line.removeprefix("--").strip() for line in lines[:length]]


def code(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_what_a_script_does_takes_and_gives(name: str) -> None:
    summary, *fields = header(SCRIPTS[name])
    assert re.fullmatch(r"[A-Z].*\.", summary)
    said = " ".join(fields)
    keys = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code(SCRIPTS[name]))}
    assert keys == set(range(1, max(keys) + 1))
    for n in keys:
        assert re.search(rf"KEYS\[{n}\]  \S", said), f"the header does not say what KEYS[{n}] is"
    assert ("ARGV" in said) == ("ARGV" in code(SCRIPTS[name]))
    assert re.search(r"Reply    \S", said)
    assert "\t" not in SCRIPTS[name]
    assert max(map(len, SCRIPTS[name].splitlines())) <= 100


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_touches_only_the_keys_that_it_is_given(name: str) -> None:
    calls = re.findall(r"redis\.p?call\(\s*'(\w+)'\s*,\s*([^,)]+)", code(SCRIPTS[name]))
    assert calls
    assert code(SCRIPTS[name]).count("redis.call(") == len(calls)
    assert all(re.fullmatch(r"KEYS\[\d+\]", key.strip()) for _, key in calls)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_loads_on_every_server_under_its_own_sha(
    name: str, own_server: LocalServer
) -> None:
    with own_server.client() as client:
        assert client.script_load(SCRIPTS[name]) == script(name).sha
        assert client.script_exists(script(name).sha) == [True]


def test_the_catalogue_reads_a_script_once() -> None:
    assert script("add_and_count") is script("add_and_count")
    assert script("add_and_count").text == SCRIPTS["add_and_count"]
    with pytest.raises(FileNotFoundError):
        script("no_such_script")


def test_adding_counts_only_what_is_new(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["add_and_count"])
        assert run(keys=["ids:0", "count"], args=[1, 2, 3]) == 3
        assert run(keys=["ids:0", "count"], args=[2, 3, 4]) == 1
        assert run(keys=["ids:0", "count"], args=[4]) == 0
        assert client.get("count") == b"4"
        assert run(keys=["ids:1", "count"], args=range(7000)) == 7000


def test_adding_does_not_count_what_it_could_not_add(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["add_and_count"])
        client.set("ids:0", "a string")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            run(keys=["ids:0", "count"], args=[1])
        assert client.exists("count") == 0


def test_opening_creates_once_and_then_tells(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(SCRIPTS["open_structure"])
        assert run(keys=["ids:meta"], args=["kind", "set", "total", 10]) == []
        assert run(keys=["ids:meta"], args=["kind", "hash"]) == [b"kind", b"set", b"total", b"10"]
        assert client.hgetall("ids:meta") == {b"kind": b"set", b"total": b"10"}
