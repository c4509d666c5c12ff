"""Entries saved on disk: programs start while the config server is away."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arranged import map_of
from link_helpers import eventually, of, opened, paused
from topology_helpers import follows, one_at

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import ConfigError, ConfigServerError
from shardkit.local import LocalServer


@pytest.fixture
def config(server: LocalServer) -> Iterator[LocalServer]:
    with LocalServer() as running:
        shards = [{"port": server.port, "db": n} for n in (1, 2)]
        with running.client() as client:
            push(client, map_of(one={"entry": {"port": server.port}}, two={"shards": shards}))
        yield running


def url(config: LocalServer) -> str:
    return f"redis://127.0.0.1:{config.port}/0"


async def save(kind: str, config: LocalServer, file: Path) -> None:
    """Have a kit save all entries."""
    async with opened(kind, url(config), cache=file) as face:
        for name in ("one", "two"):
            await of(face.kit.component(name))
        assert await eventually(lambda: file.exists() and '"two"' in file.read_text())
    for thread in threading.enumerate():  # it may write once more
        if thread.name == "shardkit-cache":
            thread.join()


async def test_a_kit_starts_without_its_config_server(
    kind: str, config: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "entries.json"
    await save(kind, config, file)
    assert file.stat().st_mode & 0o777 == 0o600
    config.kill()
    async with opened(kind, url(config), cache=file) as face:
        users = face.kit.hash("users", component="two")
        await face.value(users.hset("1", b"Ada"))
        assert await face.value(users.hget("1")) == b"Ada"
        assert await face.client_call("one", "set", "k", "v")
        assert sorted(await of(face.kit.components())) == ["one", "two"]
        assert "component 'one' has the entries that were saved" in caplog.text
        health = await of(face.kit.health())
        assert health.ok
        assert health.saved == ("one", "two")
        assert all(0 < age < 60 for age in health.ages.values())
        config.restart()
        with config.client() as writing:
            push(writing, one_at(config.port), force=True, above=5)
        assert await follows(face, config.port)


async def test_what_is_older_than_the_limit_is_refused(
    kind: str, config: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "entries.json"
    await save(kind, config, file)
    config.kill()
    monkeypatch.setenv("SHARDKIT_CACHE", str(file))
    monkeypatch.setenv("SHARDKIT_CACHE_MAX_AGE", "0.001")
    with pytest.raises(ConfigServerError, match=r"more than cache_max_age=0.001 allows|cannot be"):
        async with opened(kind, url(config)) as face:
            await of(face.kit.client("one"))
    monkeypatch.setenv("SHARDKIT_CACHE_MAX_AGE", "60")
    async with opened(kind, url(config)) as face:
        assert await face.client_call("one", "ping")


async def test_entries_that_grow_too_old_in_use_are_reported_once(
    config: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "entries.json"
    await save("blocking", config, file)
    config.kill()
    with shardkit.connect(url(config), cache=file, cache_max_age=3) as kit:
        client: Any = kit.client("one")

        def reported() -> list[str]:
            client.ping()
            kit.component("one")
            errors = [each for each in caplog.records if each.levelno == logging.ERROR]
            return [text for each in errors if "cache_max_age" in (text := each.getMessage())]

        assert await eventually(lambda: bool(reported()))
        kit.topology.expire()
        assert len(reported()) == 1


def _linked(file: Path) -> None:
    file.with_name("another").hardlink_to(file)


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _owned(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(file, 65534, 65534)


def _rewritten(change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda file: file.write_text(change(file.read_text()))


# Why a file cannot be used, and what is done to it; some are named so.
UNUSABLE: dict[str, Callable[[Path], object]] = {
    "second name": _linked,
    "no regular file": _fifo,
    "another user's": _owned,
    "others may write it": lambda file: file.chmod(0o666),
    "no JSON": _rewritten(lambda text: text[:-20]),
    "nothing": _rewritten(lambda text: ""),
    "another host": _rewritten(lambda text: text.replace('\\"port\\": ', '\\"port\\": 1')),
    "another type": _rewritten(lambda text: json.dumps([1, 2])),
    "a later format": _rewritten(lambda text: text.replace('"format": 1', '"format": 2')),
    "another server": _rewritten(lambda text: text.replace('"server": "', '"server": "x')),
}
NAMED = {"second name", "no regular file", "another user's", "others may write it"}


@pytest.mark.long(7)
@pytest.mark.parametrize("why", UNUSABLE)
async def test_a_file_that_is_damaged_or_that_others_may_have_made_is_not_used_and_is_replaced(
    why: str, config: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "entries.json"
    await save("blocking", config, file)
    UNUSABLE[why](file)
    with (
        paused(config),
        shardkit.connect(url(config), cache=file) as kit,
        pytest.raises(ConfigServerError, match="cannot be read"),
    ):
        kit.client("one")
    assert f"the saved entries in {file} are not used: " in caplog.text
    assert [each for each in NAMED if each in caplog.text] == [why][: why in NAMED]
    await save("blocking", config, file)
    with paused(config), shardkit.connect(url(config), cache=file) as kit:
        assert kit.client("one").ping()


PROGRAM = """
import sys, time
from shardkit.network.topology.saved import SavedEntries
saved = SavedEntries(sys.argv[1], 1000, "s")
for n in range(60):
    saved.note(sys.argv[2], {"config:epoch": b"%d" % n, "config:redis:" + sys.argv[2]: b"{}" * n})
    time.sleep(0.002)
"""


def test_processes_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    names = ("a", "b", "c")
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(file), name]) for name in names]
    while any(each.poll() is None for each in running):
        if file.exists():
            json.loads(file.read_text())  # at any time it is whole
    assert [each.returncode for each in running] == [0, 0, 0]
    content = json.loads(file.read_text())["components"]
    assert {name: content[name]["stored"]["config:epoch"] for name in content} == dict.fromkeys(
        names, "59"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["entries.json"]


def test_what_cannot_be_a_cache_is_refused(tmp_path: Path) -> None:
    url = "redis://127.0.0.1:1"
    with pytest.raises(ConfigError, match="its folder does not exist"):
        shardkit.connect(url, cache=tmp_path / "none" / "entries.json")
    with pytest.raises(ConfigError, match=r"cache_max_age=-1 is not a number of seconds above 0"):
        shardkit.connect(url, cache=tmp_path / "entries.json", cache_max_age=-1)
    with pytest.raises(ConfigError, match="the entries of a shard map are not saved"):
        shardkit.connect(ShardMap.parse("components: {a: {entry: {}}}"), cache=tmp_path / "x")
