"""What was noted in the last second of a program is sent when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardkit
from shardkit import ShardMap

NOTE = """
import os, signal, sys, shardkit
def note():
    kit = shardkit.connect(sys.argv[1])
    kit.counters(component="many").hit("all")
    kit.logs(component="many").record("shop", "came")
    return kit
"""
ENDS = {
    "end of the script": "kit = note()",
    "a kit that was dropped": "note()",
    "sys.exit": "kit = note(); sys.exit(3)",
    "an exception": "kit = note(); raise ValueError",
    # As gunicorn's workers do.
    "a forked worker that SIGTERM ends": """
parent = shardkit.connect(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
child = os.fork()
if not child:
    kit = note()
    os.kill(os.getpid(), signal.SIGTERM)
os.waitpid(child, 0)
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_records_of_the_last_second_are_sent(
    shard_map: ShardMap, kit: shardkit.ShardKit, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml(), encoding="utf-8")
    program = NOTE + ENDS[how]
    subprocess.run([sys.executable, "-c", program, path], check=False, capture_output=True)
    assert kit.counters(component="many").total(["all"], 86_400) == 1
    assert [each.message for each in kit.logs(component="many").recent("shop")] == ["came"]
