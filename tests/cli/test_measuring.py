"""Servers to measure on, and plots."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Cli

from shardkit import ShardKit
from shardkit.cli.advise import plots, servers
from shardkit.cli.advise.servers import BenchServer
from shardkit.errors import ShardKitError
from shardkit.local import LocalServer


@pytest.fixture
def own() -> Iterator[LocalServer]:
    """A server of the user's own."""
    with LocalServer() as server:
        yield server


def test_a_cluster_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardKit, "client", lambda kit, name: object())
    with pytest.raises(ShardKitError, match="a cluster cannot be measured; name one server"):
        BenchServer({"host": "127.0.0.1", "port": 1, "cluster": True})


def test_a_server_that_others_use_is_not_measured(
    own: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_CLOSE_TIMEOUT", 0.0)
    with own.client() as other:
        other.ping()
        with pytest.raises(
            ShardKitError, match="has other clients, whose memory would be measured"
        ):
            BenchServer(dict(own.entry.fields))


def test_limits_are_set_as_far_as_a_server_knows_them(own: LocalServer) -> None:
    server = BenchServer(dict(own.entry.fields))
    with server.limits({"hash-max-listpack-entries": 9999, "no-such-setting": 1}):
        assert server.client.config_get("hash-max-*-entries")["hash-max-listpack-entries"] == "9999"
    assert server.client.config_get("hash-max-*-entries")["hash-max-listpack-entries"] == "512"
    server.client.set("now", "not empty")
    server.close()
    with pytest.raises(ShardKitError, match=r"server holds data \(db0: 1 keys\); name an empty"):
        BenchServer(dict(own.entry.fields))


def test_plots_that_cannot_be_drawn_are_refused_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)
        without = cli("advise", "--plot", tmp_path / "plot.svg")
    assert without.code == 1
    assert "plots need matplotlib, which is not installed" in without.err
    pytest.importorskip("matplotlib")
    plot = cli("advise", "--plot", tmp_path / "plot.xyz", code=1)
    assert "has no extension of a plot" in plot.err


def test_a_plot_of_several_series_names_them(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    values = {"a": {"ours": 1.0, "theirs": 2.0}, "b": {"ours": 3.0}}
    plots.bars(tmp_path / "two.svg", "Bars", values, "bytes")
    one = {label: {"ours": series["ours"]} for label, series in values.items()}
    plots.bars(tmp_path / "one.svg", "Bars", one, "bytes")
    two, plain = ((tmp_path / name).read_text() for name in ("two.svg", "one.svg"))
    assert 'id="legend_1"' in two
    assert 'id="legend_1"' not in plain
    assert pyplot.get_fignums() == [], "they are closed"
