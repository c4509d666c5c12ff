"""A command of the command line says in one line what a server answered that it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted_server import bulk, scripted

from shardkit.cli.app import app

REPLIES = [b"$-1\r\n", b":7\r\n", bulk(b"x\xffy"), b"*2\r\n*1\r\n:1\r\n$-1\r\n", b"*1\r\n:1\r\n"]
INFO = bulk(b"redis_version:7.2.4\r\nused_memory:1\r\nconnected_clients:1\r\n")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("config show", ["MGET", "SCAN"]),
        ("status", ["ZRANGE", "GET", "SCAN"]),
        ("check", ["EXISTS", "ZRANGE", "GET", "SCAN"]),
        ("locate c k --in s --total 9", ["HGETALL"]),
    ],
)
def test_garbage_is_one_error_of_a_command(tmp_path: Path, command: str, names: list[str]) -> None:
    said = ""
    for reply in REPLIES:
        for name in names:
            with scripted(INFO=INFO, **{name: reply}) as server:
                where = tmp_path / "map.yaml"
                here = f"{{port: {server.port}, socket_timeout: 2}}"
                where.write_text(
                    f"{{config_server: {here}, components: {{c: {{shards: [{here}]}}}}}}"
                )
                url = f"redis://127.0.0.1:{server.port}"
                for place in (str(where), url):
                    said += CliRunner().invoke(app, [*command.split(), "-c", place]).output
    assert "should not happen" not in said
    assert "cannot be used" in said or "expected" in said
