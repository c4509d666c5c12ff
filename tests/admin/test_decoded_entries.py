"""Operators' commands on entries whose clients decode replies say what they say of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardkit
from shardkit.cli.app import app
from shardkit.local import LocalServer

COMMANDS = ["replan a", "replan a --dry-run --total 100000", "locks show", "keys"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_entries_that_decode_replies(tmp_path: Path, command: str) -> None:
    path, answers = tmp_path / "map.json", []
    with LocalServer() as server:
        for decodes in (False, True):
            entry = {"port": server.port, "db": 1, "decode_responses": decodes}
            path.write_text(json.dumps({"components": {"a": {"shards": [entry]}}}))
            with shardkit.connect(path) as kit:
                kit.hash("h", component="a", total=1000).hset(mapping=dict.fromkeys(range(9), 1))
                kit.lock("l", component="a", renew=False, ttl=600).acquire()
            done = CliRunner().invoke(app, [*command.split(), "--config", str(path), "--json"])
            answers.append((done.exit_code, done.stdout.count('"'), done.stderr))
            with server.client(db=1) as client:
                client.flushdb()
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
