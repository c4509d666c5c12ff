"""Named configuration of any type, on a real config server (spec 14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from link_helpers import of, opened

import shardkit
from shardkit import ConfigError
from shardkit.errors import ConfigServerError, InvalidEntryError, MissingEntryError
from shardkit.local import LocalServer


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def url(server: LocalServer) -> str:
    return f"redis://127.0.0.1:{server.port}"


async def test_an_object_is_set_read_listed_and_deleted(server: LocalServer, kind: str) -> None:
    async with opened(kind, url(server)) as face:
        directory = face.kit.directory
        await of(directory.set("flags", "checkout", {"new": True, "é": [1, None]}))
        found = await of(directory.get("flags", "checkout"))
        assert found == {"new": True, "é": [1, None]}
        found["new"] = False
        assert (await of(directory.get("flags", "checkout")))["new"] is True
        assert (await of(directory.get("flags", "checkout", max_age=0)))["new"] is True
        assert await of(directory.names("flags")) == ["checkout"]
        assert await of(directory.delete("flags", "checkout"))
        assert not await of(directory.delete("flags", "checkout"))
        with pytest.raises(MissingEntryError, match="config:flags:checkout is missing; set it, or"):
            await of(directory.get("flags", "checkout"))


@pytest.mark.parametrize("value", [{7: 1}, {"a": [{None: 1}]}, {"a": ({True: 1},)}])
async def test_keys_that_are_not_text_are_refused(
    server: LocalServer, kind: str, value: Any
) -> None:
    message = "config:flags:x: (7|None|True) is no key of a JSON object; use text"
    async with opened(kind, url(server)) as face:
        with pytest.raises(InvalidEntryError, match=message):
            await of(face.kit.directory.set("flags", "x", value))
        assert await of(face.kit.directory.names("flags")) == []


def test_an_object_is_read_again_only_after_the_wait(server: LocalServer) -> None:
    with shardkit.connect(url(server)) as kit, server.client() as client:
        kit.directory.set("flags", "checkout", {"v": 1})
        assert kit.directory.get("flags", "checkout", max_age=60) == {"v": 1}
        client.set("config:flags:checkout", '{"v": 2}')
        assert kit.directory.get("flags", "checkout", max_age=60) == {"v": 1}
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 2}


def test_the_last_good_object_is_kept_while_the_server_is_broken_or_away(
    server: LocalServer,
) -> None:
    with shardkit.connect(url(server)) as kit, server.client() as client:
        kit.directory.set("flags", "checkout", {"v": 1})
        kit.directory.get("flags", "checkout")
        client.set("config:flags:checkout", "{broken")
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 1}
        with pytest.raises(MissingEntryError, match="config:flags:never is missing; set it, or"):
            kit.directory.get("flags", "never")
        client.set("config:flags:list", "[1]")
        with pytest.raises(InvalidEntryError, match="config:flags:list holds no JSON object; set"):
            kit.directory.get("flags", "list")
        server.kill()
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 1}
        with pytest.raises(ConfigServerError, match="config:flags:never cannot be read"):
            kit.directory.get("flags", "never")
        assert repr(kit.directory) == "<Directory: 1 cached, 3 failing>"


@pytest.mark.parametrize("value", [None, 1, [("a", 1)], "x", {"x": float("nan")}, {"x": object()}])
def test_what_is_no_json_object_is_refused(server: LocalServer, value: Any) -> None:
    with (
        shardkit.connect(url(server)) as kit,
        pytest.raises(InvalidEntryError, match="config:flags:checkout: the value is no JSON"),
    ):
        kit.directory.set("flags", "checkout", value)


def test_entries_are_left_to_a_push_and_names_are_checked(server: LocalServer) -> None:
    with shardkit.connect(url(server)) as kit:
        with pytest.raises(ConfigError, match="config:redis:unique is an entry"):
            kit.directory.set("redis", "unique", {"host": "a"})
        for kind, component, said in (
            ("a:b", "x", "type 'a:b' cannot be used"),
            ("flags", "x:0", "is the name of a shard of 'x'"),
            ("", "x", "type '' cannot be used"),
            ("flags", "", "is not a component's name"),
        ):
            with pytest.raises(ConfigError, match=said):
                kit.directory.get(kind, component)


def test_a_kit_of_a_shard_map_says_that_it_has_no_directory(kit: shardkit.ShardKit) -> None:
    with pytest.raises(ConfigError, match="it has no directory"):
        _ = kit.directory
