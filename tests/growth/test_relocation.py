"""What an entry says of another server."""

from __future__ import annotations

import pytest

from shardkit.errors import ConfigError
from shardkit.growth.relocation import ServerAddress, at_server

NEW = ServerAddress("::1", 7001)


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("redis://old:1", "redis://[::1]:7001"),
        ("rediss://me:p${S}@old:1/4?timeout=2", "rediss://me:p${S}@[::1]:7001/4?timeout=2"),
        ("redis://${HOST}/4", "redis://[::1]:7001/4"),
    ],
)
def test_a_url_keeps_everything_but_its_server(url: str, there: str) -> None:
    assert at_server({"url": url, "read_from": "replica"}, NEW, "data") == {
        "url": there,
        "read_from": "replica",
    }


def test_host_and_port_are_replaced_where_there_is_no_url() -> None:
    fields = {"host": "old", "port": 1, "db": 4}
    assert at_server(fields, NEW, "data") == {"host": "::1", "port": 7001, "db": 4}
    assert fields["host"] == "old"


def test_a_url_that_is_a_reference_cannot_name_another_server() -> None:
    with pytest.raises(ConfigError, match="data: its url is a reference"):
        at_server({"url": "${URL}"}, NEW, "data")
