"""Every script says what it takes and gives, names its keys, and runs on every server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from lua_keys import UNDECLARED, watched

import shardkit
from shardkit.local import LocalServer
from shardkit.operations.lua import script

PACKAGE = Path(shardkit.__file__).parent


def called(path: Path) -> str:
    """Return what `script` calls a file: ``queues/take`` is ``queues/lua/take.lua``."""
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
    if not re.search(r"KEYS     \S.*, see (\w+_)?base\.lua", said):
        assert told == set(range(1, max(told) + 1))
        assert {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code(SCRIPTS[name]))} <= told
    assert "ARGV" in said or "ARGV" not in code(script(name).text)
    assert re.search(r"Reply    \S", said)
    assert "\t" not in SCRIPTS[name]
    assert max(map(len, SCRIPTS[name].splitlines())) <= 100


# They ask for the type themselves, or run the caller's commands.
BY_THEMSELVES = {
    "coordination/guarded",
    "structures/layouts/write_unsplit",
    "structures/sorted_set/write_one",
}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - BY_THEMSELVES))
def test_a_script_of_several_keys_reports_which_is_of_another_type(name: str) -> None:
    text = code("--" + script(name).text.partition("--")[2])  # without the prologue of tests
    several = re.search(r"KEYS\[([^1]|1[^]])|#KEYS|\(KEYS\)|call\('\w+', [^K']", text)
    assert not several or "server.call('TYPE', key)" in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_keys_that_a_script_touches_are_watched_in_all_tests(name: str) -> None:
    listed = name in UNDECLARED or name.rpartition("/")[0] in UNDECLARED
    assert script(name).text.startswith(watched(name, "", listed))


def test_what_may_touch_other_keys_is_listed_by_a_name_that_exists() -> None:
    assert set(UNDECLARED) <= {*SCRIPTS, *(name.rpartition("/")[0] for name in SCRIPTS)}


@pytest.mark.parametrize(
    ("text", "listed", "refused"),
    [
        ("return redis.call('GET', KEYS[1])", False, False),
        ("return redis.call('GET', 'made up')", False, True),
        ("local call = redis.call return call('GET', KEYS[1] .. ':more')", False, True),
        ("local f = redis.pcall return f('DEL', KEYS[1], KEYS[1] .. ':more')", False, True),
        ("return redis.call('GET', '{tag}:more')", True, False),
        ("return redis.call('GET', '{other}:more')", True, True),
        ("return redis.call('TIME')[1]", False, False),
    ],
)
def test_a_script_that_makes_up_a_key_is_refused_however_it_calls(
    text: str, listed: bool, refused: bool, own_server: LocalServer
) -> None:
    with own_server.client() as client:
        run = client.register_script(watched("some/script", text, listed))
        if refused:
            with pytest.raises(redis.ResponseError, match=r"some/script touches .*more|made up"):
                run(keys=["{tag}:key"])
        else:
            assert run(keys=["{tag}:key"]) is None or text.endswith("('TIME')[1]")


@pytest.mark.parametrize("name", [name for name in FILES if "\n--@include " in FILES[name]])
def test_what_is_included_says_so_and_is_there(name: str) -> None:
    included = re.findall(r"^--@include ([\w/]+)$", FILES[name], re.MULTILINE)
    assert included
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
    text = SCRIPTS["structures/base/write_part"]
    assert script("structures/base/write_part").text.endswith(text)
    with pytest.raises(FileNotFoundError, match=r"no_such_script.lua"):
        script("no_such_script")


def test_adding_counts_only_what_is_new(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(script("structures/unique/add_and_count").text)
        assert run(keys=["count", "ids:0"], args=[1, -1, 3, 1, 2, 3]) == [3, 2]
        assert run(keys=["count", "ids:0", "ids:1"], args=[1, -1, 3, 2, 3, 4, 1, 2]) == [2, 3]
        assert run(keys=["count", "ids:0"], args=[1, -1, 1, 4]) == [0]
        assert client.get("count") == b"5"
        assert run(keys=["ids:0", "ids:1"], args=[0, -1, 1, 5, 1, 5]) == [2]
        assert run(keys=["ids:3"], args=[0, -1, 1, 1]) == [1, 1]
        assert client.get("count") == b"5"
        assert run(keys=["count", "ids:2"], args=[1, -1, 7000, *range(7000)]) == [7000, 2]


def test_adding_does_not_count_what_it_could_not_add(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(script("structures/unique/add_and_count").text)
        client.set("ids:0", "a string")
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["count", "ids:0"], args=[1, -1, 1, 1])
        assert client.exists("count") == 0
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["count", "ids:0", "ids:1"], args=[1, -1, 1, 1, 2, 1, 2])
        assert client.get("count") == b"2"
        client.sadd("no count", 1)
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["no count", "ids:2"], args=[1, -1, 1, 1])
        assert client.exists("ids:2") == 0
