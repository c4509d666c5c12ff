"""What an entry says of another server."""

from __future__ import annotations

import json
from operator import eq
from typing import Any

import pytest

from shardkit import ShardMap
from shardkit.admin.growth.relocation import ServerAddress, at_server, relocated
from shardkit.errors import ConfigError, InvalidArgumentError

NEW = ServerAddress("::1", 7001)


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("redis://old:1", "redis://[::1]:7001"),
        ("valkeys://old:1/4", "valkeys://[::1]:7001/4"),
        ("rediss://me:p${S}@old:1/4?timeout=2", "rediss://me:p${S}@[::1]:7001/4?timeout=2"),
        ("redis://${HOST}/4", "redis://[::1]:7001/4"),
    ],
)
def test_a_url_keeps_everything_but_its_server(url: str, there: str) -> None:
    assert at_server({"url": url, "read_from": "replica"}, NEW, "data") == {
        "url": there,
        "read_from": "replica",
    }


def test_a_url_that_is_a_reference_cannot_name_another_server() -> None:
    with pytest.raises(ConfigError, match="data: its url is a reference"):
        at_server({"url": "${URL}"}, NEW, "data")


def test_a_replica_that_takes_over_brings_its_zone_and_leaves_the_others_as_they_were() -> None:
    replicas = [
        {"port": 2, "zone": "east"},
        {"url": "redis://c:3", "zone": "north"},
        {"host": "${SPARE}", "port": 4},
    ]
    entry = {"host": "a", "port": 1, "db": 5, "zone": "west", "replicas": replicas}
    components = ShardMap.parse(json.dumps({"components": {"data": {"entry": entry}}})).components
    old, new = ServerAddress("a", 1), ServerAddress("a", 2)

    def fields(keep_source: bool) -> dict[str, Any]:
        changed = relocated(components, old, new, eq, keep_source=keep_source)["data"].entry
        assert changed is not None
        return changed.fields

    there = {"host": "a", "port": 2, "db": 5, "zone": "east", "replicas": replicas[1:]}
    assert fields(keep_source=False) == there
    former = {"host": "a", "port": 1, "zone": "west"}
    assert fields(keep_source=True) == {**there, "replicas": [*replicas[1:], former]}
    assert relocated(components, new, old, eq, keep_source=True) == {}


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:b", "::1", "redis://a:1", "a b", "a/1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{text!r} is not a server; specify"):
        ServerAddress.parse(text)
