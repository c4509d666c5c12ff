"""Part sizes and long compact keys, end to end, with few entries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Cli

from shardkit.cli.bench import packed_lengths, part_sizes, plots
from shardkit.cli.bench.servers import BenchServer, ServerSource
from shardkit.local import LocalServer, find_server

BINARIES = {Path(p).name: p for p in (find_server(), shutil.which("redis-server")) if p}
COMPACT = {"intset", "listpack", "quicklist"}


@pytest.fixture(scope="module", params=list(BINARIES))
def server(request: pytest.FixtureRequest) -> Iterator[BenchServer]:
    with LocalServer(binary=BINARIES[request.param]) as local:
        found = BenchServer(dict(local.entry.fields))
        yield found
        found.close()


@pytest.mark.parametrize("name", packed_lengths.KINDS)
def test_a_long_key_stays_compact_and_the_limits_are_restored(
    server: BenchServer, name: str
) -> None:
    kind = packed_lengths.KINDS[name]
    before = server.client.config_get("*-max-*-entries")
    for length in (1, 2, 2500):
        speed = packed_lengths.run(kind, server, length, passes=2, per_pass=3)
        assert (speed.length, speed.passes) == (length, 2)
        assert speed.encoding in COMPACT
        assert speed.per_second > 0
    assert server.client.config_get("*-max-*-entries") == before
    assert server.client.dbsize() == 0


@pytest.mark.parametrize("name", packed_lengths.KINDS)
def test_work_leaves_a_key_as_long_as_it_was(server: BenchServer, name: str) -> None:
    kind = packed_lengths.KINDS[name]
    count = {"rotate": "LLEN", "middle": "LLEN", "intset": "SCARD", "hash": "HLEN", "zset": "ZCARD"}
    client: Any = server.client
    client.execute_command(*kind.fill(0, 50))
    for command in [*kind.work(50), *kind.work(50)]:
        client.execute_command(*command)
    assert client.execute_command(count[name], packed_lengths.KEY) == 50
    client.delete(packed_lengths.KEY)


def test_limits_are_restored_when_a_run_fails(server: BenchServer) -> None:
    kind = packed_lengths.KINDS["hash"]
    broken = replace(kind, work=lambda length: [["NO-SUCH-COMMAND"]])
    before = server.client.config_get("hash-max-*")
    with pytest.raises(Exception, match="unknown command"):
        packed_lengths.run(broken, server, 1000, passes=1, per_pass=1)
    assert server.client.config_get("hash-max-*") == before
    assert server.client.dbsize() == 0


@pytest.mark.parametrize("name", part_sizes.KINDS)
def test_parts_of_every_size_are_compact(name: str) -> None:
    curve = part_sizes.run(part_sizes.KINDS[name], ServerSource(), (64, 1024), 3000)
    assert [point.size for point in curve.points] == [64, 1024]
    for point in curve.points:
        assert 5 < point.bytes_each < 45  # a table takes more
        assert point.read > 0
        assert point.write > 0


SIZES = ["part-sizes", "intset", "--sizes", "64,128", "--entries", "500"]
LENGTHS = ["packed-lengths", "hash", "--lengths", "10,1", "--passes", "1", "--per-pass", "2"]


def test_commands_write_tables_and_json(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    result = cli("bench", *LENGTHS, "--json", path, code=0)
    assert result.lines[0].split() == ["length", "hash/s"]
    [kind] = json.loads(path.read_text())["kinds"]
    assert [each["length"] for each in kind["speeds"]] == [1, 10]
    [kind] = cli.json("bench", *SIZES)["kinds"]
    assert [each["part_size"] for each in kind["points"]] == [64, 128]
    assert cli("bench", "packed-lengths", "--lengths", "1,0").code == 2


def test_commands_draw_plots(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for plot, words in ((tmp_path / "sizes.svg", SIZES), (tmp_path / "lengths.png", LENGTHS)):
        cli("bench", *words, "--plot", plot, code=0)
        assert plot.stat().st_size > 1000


def test_a_plot_of_several_series_names_them_and_marks_limits(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    values = {"a": {"ours": 1.0, "theirs": 2.0}, "b": {"ours": 3.0}}
    plots.bars(tmp_path / "two.svg", "Bars", values, "bytes", limits={"a": 1.5})
    one = {label: {"ours": series["ours"]} for label, series in values.items()}
    plots.bars(tmp_path / "one.svg", "Bars", one, "bytes")
    two, plain = ((tmp_path / name).read_text() for name in ("two.svg", "one.svg"))
    for mark in ('id="legend_1"', plots.LIMIT):
        assert mark in two
        assert mark not in plain
    assert pyplot.get_fignums() == [], "they are closed"


def test_panels_share_one_legend_and_contestants_keep_their_colours(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ours, theirs = [(4, 1.0), (16, 2.0)], [(4, 3.0), (16, 9.0)]
    panels = {"one": {"redis-py": theirs, "shardkit": ours}, "two": {"shardkit": ours}}
    path = tmp_path / "curves.svg"
    plots.curves(path, "Curves", panels, "shards", logarithmic=True, limit="the limit")
    drawn = path.read_text()
    assert drawn.count('id="legend_') == 1
    for colour in (plots.CONTESTANTS["shardkit"], plots.CONTESTANTS["redis-py"], plots.LIMIT):
        assert colour in drawn
    first, second, other = plots.styles(["shardkit", "shardkit, awaited", "mine"]).values()
    assert first.colour < second.colour, "a lighter shade"
    assert len({(each.marker, each.hatch) for each in (first, second, other)}) == 3
