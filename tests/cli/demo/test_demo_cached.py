"""``shardkit demo cached``: no call of a cached function fails or is old while its shards move."""

from __future__ import annotations

import json

from click.testing import CliRunner

from shardkit.cli.app import app


def test_a_cached_function_is_right_while_its_shards_move() -> None:
    result = CliRunner().invoke(app, ["demo", "cached", "--seconds", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["good"], report["old"], report["errors"]) == (True, 0, {})
    assert report["moved"][1] > report["moved"][0]
    assert report["calls"] == sum(calls for calls, _ in report["slices"]) > report["computed"] > 0


def test_the_report_is_a_table_and_a_plot() -> None:
    result = CliRunner().invoke(app, ["demo", "cached", "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert "old prices returned" in result.stdout
    assert "█ shards move" in result.stdout
