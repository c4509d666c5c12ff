"""What a fleet notices: servers that end, hang and come back, a config server that is away."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from arranged import map_of
from fleets import shown_fleet, until
from starlette.testclient import TestClient

import shardkit
from shardkit.admin import push
from shardkit.dashboard import FleetWatch, application
from shardkit.local import LocalCluster


def answered(watch: FleetWatch, view: str) -> Any:
    """What the dashboard's API answers."""
    client = TestClient(application(watch), base_url="http://127.0.0.1")
    return client.get(f"/api/{view}").json()


def test_a_server_that_ends_and_comes_back_is_noted_once_each() -> None:
    with shown_fleet() as shown:
        server, fleet = shown.server(0), shown.fleet
        server.kill()
        until(lambda: fleet.servers[server.address].state == "down")
        until(lambda: json.loads(fleet.summary)["components"][1]["down"] == 4)
        server.restart()
        until(lambda: fleet.servers[server.address].state == "up")
        texts = [each["text"] for each in fleet.events if each["where"] == server.address]
        assert texts[0] == "answers again"
        assert len(texts) == 2
        assert texts[1].startswith("does not answer: ")


def test_charts_of_a_day_survive_a_restart_and_begin_with_their_first_sample(
    tmp_path: Path, lower: Callable[..., None]
) -> None:
    lower(dashboard_step=1.0)
    path = tmp_path / "state" / "history.json"
    with shown_fleet() as shown:
        address = shown.server(0).address
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as fleet:
            totals = fleet.overview()["totals"]
            until(lambda: len(fleet.overview()["day"]["at"]) >= 2)
            assert all(fleet.overview()["totals"]["memory"])
        assert totals["at"] == [] or all(totals["memory"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)  # for those who read it, too
        written = path.stat().st_ino
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as again:
            assert min(again.overview()["day"]["memory"]) > 1_000_000
            until(lambda: address in again.servers and again.servers[address].samples)
            until(lambda: path.stat().st_ino != written)
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            view = answered(again, f"servers/{quote(address, safe='')}")
            assert view["samples"]["at"] == sorted(view["samples"]["at"])
            assert view["samples"]["at"][0] == view["day"]["at"][0]
        kept = path.read_text()
        first = json.loads(kept)["servers"][address][0][0]
        path.write_text(kept.replace(str(first), '"soon"', 1))
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as damaged:
            assert first not in damaged.history.columns(address)["at"]
        for wrong in ("not this", "[" * 100_000, kept.replace('"format":1', '"format":2')):
            path.write_text(wrong)
            with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as empty:
                assert empty.overview()["day"]["at"] == []
        path.unlink()
        os.mkfifo(path)  # reading it would hang
        FleetWatch(shown.kit, interval=0.2, history=path).close()


def test_a_server_that_hangs_delays_nothing_else() -> None:
    with shown_fleet() as shown:
        server, fleet = shown.server(0), shown.fleet
        other = fleet.servers[shown.server(1).address]
        server.pause()
        try:
            until(lambda: fleet.servers[server.address].state == "down")
            before = len(other.samples)
            until(lambda: len(other.samples) >= before + 5)
            assert other.state == "up"
        finally:
            server.resume()
        until(lambda: fleet.servers[server.address].state == "up")


def test_a_config_server_that_is_away_is_a_banner_over_what_is_known() -> None:
    with shown_fleet() as shown:
        assert shown.servers.config_server is not None
        shown.servers.config_server.kill()
        until(lambda: json.loads(shown.fleet.summary)["banner"])
        summary = json.loads(shown.fleet.summary)
        assert len(summary["components"]) == 2
        assert sum(each["state"] == "up" for each in summary["servers"]) == 2
        shown.servers.config_server.restart()  # without its data
        until(lambda: "went back in time" in json.loads(shown.fleet.summary)["banner"])
        assert len(shown.fleet.components) == 2
        assert len(shown.fleet.servers) == 3
        with shown.servers.config_server.client() as client:
            push(client, shown.servers.shard_map)
        until(lambda: not json.loads(shown.fleet.summary)["banner"])
        assert len(shown.fleet.components) == 2


def test_a_cluster_is_shown_by_node_even_when_one_is_away() -> None:
    with (
        LocalCluster(replicas_per_master=1) as cluster,
        shardkit.connect(map_of(wide={"entry": cluster.entry.fields})) as kit,
        closing(FleetWatch(kit, interval=0.2)) as fleet,
    ):
        kit.client("wide").set("k", "v")
        until(lambda: any(each.nodes for each in fleet.servers.values()))
        [server] = fleet.servers.values()
        roles = ["master"] * 3 + ["replica"] * 3
        until(lambda: [each["role"] for each in server.nodes] == roles)
        until(lambda: all(each["state"] == "up" for each in server.nodes))
        until(lambda: sum(each["keys"] for each in server.nodes[:3]) == 1)
        assert sum(each["slots"] or 0 for each in server.nodes) == 16384
        for view in ("components/wide", f"servers/{quote(server.address, safe='')}"):
            assert len(answered(fleet, view)["nodes"]) == 6
        cluster.nodes[5].kill()
        until(lambda: "down" in {each["state"] for each in server.nodes})
        with cluster.nodes[0].client() as asked:
            failed = "slave,fail"
            until(lambda: failed in [n["flags"] for n in asked.cluster("NODES").values()])
        with closing(FleetWatch(kit, interval=0.2)) as later:
            until(lambda: any(len(each.nodes) == 5 for each in later.servers.values()))
            assert [each["role"] for each in server.nodes] == roles
            assert server.state == "up"
            cluster.nodes[5].restart()
            [beside] = later.servers.values()
            for each in (server, beside):
                until(lambda each=each: [node["state"] for node in each.nodes] == ["up"] * 6)
