"""What commands write for programs, and what they say at the edges of what can be asked."""

from __future__ import annotations

from pathlib import Path

from cli_helpers import Cli

import shardkit
from shardkit.local import LocalServers


def test_documents_report_how_much_was_ended_removed_or_deleted(cli: Cli, town_map: Path) -> None:
    at = ("-c", town_map)
    with shardkit.connect(town_map) as kit:
        assert kit.lock("stock", component="unique", renew=False).acquire()
        kit.queues(component="unique").enqueue_many("email", [("send", [n]) for n in range(3)])
        docs = kit.search("docs", component="unique", fields={"text": 1})
        docs.index("a", {"text": "words"})
        assert cli.json("locks", "break", "unique", "stock", "--reason", "gone", *at) == {
            "component": "unique",
            "name": "stock",
            "kind": "lock",
            "ended": 1,
        }
        purged = cli.json("queues", "purge", "email", "--yes", "--component", "unique", *at)
        assert (purged["queue"], purged["waiting"]) == ("email", 3)
        name = ("--component", "unique", "--name", "docs")
        assert cli.json("search", "drop", "--yes", *name, *at) == {"removed": 1}


def test_disk_writes_are_estimated_from_figures(
    cli: Cli,
) -> None:
    figures = ("persistence", "estimate", "--commands", "100000", "--bytes", "1000")
    found = cli.json(*figures, "--profile", "everysec", "--data", str(1 << 30))
    assert found["append"] == 100e6
    assert "100,000 writes a second of 1,000 bytes" in cli(*figures).out
    half = cli(*figures[:4], code=2)
    assert "give both --commands and --bytes" in half.error()


def test_a_profile_that_is_set_already_changes_nothing(cli: Cli, town_map: Path) -> None:
    apply = ("persistence", "apply", "none", "sessions", "-c", town_map)
    assert cli(*apply).code == 0
    again = cli(*apply, code=0)
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
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    with shardkit.connect(town_url) as kit:
        kit.directory.set("flags", "new", {"on": True})
        kit.key_sharded("unique").mset({f"k{n}": n for n in range(20)})
    taken = tmp_path / "taken"
    said = cli("backup", taken, "-c", town_url, "--no-pause", code=0)
    assert "the snapshots are of different moments" in said.out
    assert len(cli.json("restore", taken, "--verify")["servers"]) == 2
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    back = cli.json("restore", taken, pushed_map, "--to-origin", "--objects", town_url)
    assert sum(back["keys"].values()) >= 20  # and what witnesses the epoch
    assert back["objects"] == 1
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    again = cli("restore", taken, pushed_map, "--to-origin", "--objects", town_url, code=0)
    assert "1 object written to the config server" in again.lines
    with shardkit.connect(pushed_map) as kit:
        assert kit.key_sharded("unique").mget(["k0", "k19"]) == [b"0", b"19"]
