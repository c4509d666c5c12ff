"""A server is visited once, by whatever names entries have it."""

from __future__ import annotations

from typing import Any

from arranged import map_of

from shardkit.admin import execute
from shardkit.local import LocalServer


def components(*entries: dict[str, Any]) -> list[Any]:
    described = {f"c{n}": {"entry": entry} for n, entry in enumerate(entries)}
    return list(map_of(**described).components.values())


def test_unidentified_servers_are_visited_by_each_name(own_server: LocalServer) -> None:
    found = components(
        *({"host": host, "port": own_server.port} for host in ("127.0.0.1", "localhost"))
    )
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        assert sorted(execute(found, ["INCR", "n"]).values()) == [1, 2]
