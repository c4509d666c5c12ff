"""A server is visited once, by whatever names entries have it."""

from __future__ import annotations

from typing import Any

from arranged import map_of

from shardkit.admin import execute
from shardkit.admin.servers import entries_of, identify_databases, query_servers
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.local import LocalServer


def components(*entries: dict[str, Any]) -> list[Component]:
    described = {f"c{n}": {"entry": entry} for n, entry in enumerate(entries)}
    return list(map_of(**described).components.values())


def test_a_server_with_two_names_is_visited_once(own_server: LocalServer) -> None:
    names = [{"host": host, "port": own_server.port} for host in ("127.0.0.1", "localhost")]
    found = components(*names)
    assert list(execute(found, ["INCR", "n"]).values()) == [1]
    away = components(*names, {"host": "127.0.0.1", "port": 1})
    answers = query_servers(entries_of(away), lambda client: client.dbsize())
    assert len(answers) == 2
    assert isinstance(answers["127.0.0.1:1"], Exception)


def test_unidentified_servers_are_visited_by_each_name(own_server: LocalServer) -> None:
    found = components(
        *({"host": host, "port": own_server.port} for host in ("127.0.0.1", "localhost"))
    )
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        assert sorted(execute(found, ["INCR", "n"]).values()) == [1, 2]


def test_databases_are_identified_and_what_fails_is_told(own_server: LocalServer) -> None:
    entries = {
        "here": {"host": "127.0.0.1", "port": own_server.port, "db": 1},
        "same": {"url": f"redis://localhost:{own_server.port}/1"},
        "other": {"host": "127.0.0.1", "port": own_server.port},
        "away": {"host": "127.0.0.1", "port": 1},
        "reference": {"host": "${NOT_SET_ANYWHERE}"},
    }
    found = identify_databases({name: Entry(each) for name, each in entries.items()})
    assert found["here"] == found["same"]
    assert isinstance(found["here"], set)
    assert isinstance(found["other"], set)
    assert found["here"].isdisjoint(found["other"])
    assert isinstance(found["away"], Exception)
    assert "NOT_SET_ANYWHERE" in str(found["reference"])
