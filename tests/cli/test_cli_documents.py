"""What commands write for programs, and what they say at the edges of what can be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SECRET, Cli

import shardkit
from shardkit.local import LocalServers

Document = Callable[..., Any]


@pytest.fixture
def document(cli: Cli, town_map: Path) -> Document:
    """Run a command with ``--json``; return its one document."""

    def run(*arguments: str | Path, code: int = 0, **options: Any) -> Any:
        result = cli(*arguments, "--json", **options)
        assert result.code == code, result
        return json.loads(result.out)

    return run


def test_documents_report_how_much_was_ended_removed_or_deleted(
    document: Document, town_map: Path
) -> None:
    at = ("-c", town_map)
    with shardkit.connect(town_map) as kit:
        assert kit.lock("stock", component="unique", renew=False).acquire()
        kit.queues(component="unique").enqueue_many("email", [("send", [n]) for n in range(3)])
        docs = kit.search("docs", component="unique", fields={"text": 1})
        docs.index("a", {"text": "words"})
        assert document("locks", "break", "unique", "stock", "--reason", "gone", *at) == {
            "component": "unique",
            "name": "stock",
            "kind": "lock",
            "ended": 1,
        }
        purged = document("queues", "purge", "email", "--yes", "--component", "unique", *at)
        assert (purged["queue"], purged["waiting"]) == ("email", 3)
        name = ("--component", "unique", "--name", "docs")
        assert document("search", "drop", "--yes", *name, *at) == {"removed": 1}


def test_a_url_is_a_document_too(document: Document, town_map: Path) -> None:
    found = document("url", "sessions", "-c", town_map, secret="-" * 20)
    assert found["url"].startswith(f"redis://:{SECRET}@127.0.0.1:")


def test_disk_writes_are_estimated_from_figures(cli: Cli, document: Document) -> None:
    figures = ("persistence", "estimate", "--commands", "100000", "--bytes", "1000")
    found = document(*figures, "--profile", "everysec", "--data", str(1 << 30))
    assert found["append"] == 100e6
    assert "100,000 writes a second of 1,000 bytes" in cli(*figures).out
    half = cli("persistence", "estimate", "--commands", "100000")
    assert half.code == 2
    assert "give both --commands and --bytes" in half.error()


def test_a_profile_that_is_set_already_changes_nothing(cli: Cli, town_map: Path) -> None:
    apply = ("persistence", "apply", "none", "sessions", "-c", town_map)
    assert cli(*apply).code == 0
    again = cli(*apply)
    assert again.code == 0
    assert "is so already" in again.out


def test_a_history_that_reaches_back_so_far_says_so(
    cli: Cli, town_map: Path, town_url: str
) -> None:
    at = ("-c", town_url)
    assert "there is no history: nothing was pushed yet" in cli("config", "history", *at).out
    assert cli("config", "push", town_map, *at).code == 0
    gone = cli("config", "show", "nothing", "--at", "1", *at).error()
    assert gone == "component 'nothing' was not there at epoch 1; name another"
    assert "epoch 0" in cli("config", "rollback", "0", *at).error()


def test_a_backup_that_holds_no_writes_says_so_and_comes_back_with_its_objects(
    cli: Cli, document: Document, town: LocalServers, town_map: Path, town_url: str, tmp_path: Path
) -> None:
    assert cli("config", "push", town_map, "-c", town_url).code == 0
    with shardkit.connect(town_url) as kit:
        kit.directory.set("flags", "new", {"on": True})
        kit.key_sharded("unique").mset({f"k{n}": n for n in range(20)})
    taken = tmp_path / "taken"
    said = cli("backup", taken, "-c", town_url, "--no-pause")
    assert said.code == 0, said
    assert "the snapshots are of different moments" in said.out
    assert len(document("restore", taken, "--verify")["servers"]) == 2
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    back = document("restore", taken, town_map, "--to-origin", "--objects", town_url)
    assert sum(back["keys"].values()) >= 20  # and what witnesses the epoch
    assert back["objects"] == 1
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    again = cli("restore", taken, town_map, "--to-origin", "--objects", town_url)
    assert again.code == 0, again
    assert "1 object written to the config server" in again.lines
    with shardkit.connect(town_map) as kit:
        assert kit.key_sharded("unique").mget(["k0", "k19"]) == [b"0", b"19"]


def test_doctor_asks_before_it_repairs(cli: Cli, town_map: Path) -> None:
    asked = cli("doctor", "--check", "--repair", "--json", "-c", town_map)
    assert asked.code == 2
    assert "with --json give --yes too" in asked.error()


def test_all_structures_are_looked_at_if_wanted(
    cli: Cli, document: Document, town_map: Path
) -> None:
    with shardkit.connect(town_map) as kit:
        kit.set("ids", component="unique", total=100).sadd("a")
    assert document("check", "--structures", "-c", town_map, "unique")["structures"] == 1
