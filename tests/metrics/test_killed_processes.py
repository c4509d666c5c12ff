"""Killed processes: what they counted, logged and cleaned counts once, but for one sending."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import shardkit
from shardkit import ShardMap

pytestmark = pytest.mark.usefixtures("within_an_hour")
HITS = 50  # of one sending
# Counts, logs, sends, says what was acknowledged, cleans. Its hits of long ago are due at once.
PROCESS = f"""
import sys, time, shardkit
long_ago = shardkit.ServerClock(now=lambda: 1000.0)
with shardkit.connect(sys.argv[1]) as kit, shardkit.connect(sys.argv[1], clock=long_ago) as before:
    hits = kit.counters(component="many")
    old = before.counters("old", component="many", precisions={{1: 1}})
    due = kit.counters("old", component="many", precisions={{1: 1}})
    logs = kit.logs(component="many")
    for sent in range(1, 1000):
        for n in range({HITS}):
            hits.hit("all")
            logs.record("shop", "came", common="came")
            old.hit(f"{{n}} of {{sent}}")
        hits.flush(), logs.flush(), old.flush()
        print(sent, flush=True)
        due.clean()
"""


def test_what_killed_processes_had_sent_is_counted_once_and_cleaned_without_a_rest(
    shard_map: ShardMap, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml(), encoding="utf-8")
    random = Random(7)
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, path], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    acknowledged = 0
    for process in processes:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(random.randint(2, 5))]
        time.sleep(random.random() / 50)  # somewhere in its work
        process.send_signal(signal.SIGKILL)
        said += process.communicate()[0].splitlines()  # before it was killed
        assert process.returncode == -signal.SIGKILL
        acknowledged += int(said[-1])
    with shardkit.connect(shard_map) as kit:
        most = acknowledged + len(processes)  # each may have been killed before it said so
        total = kit.counters(component="many").total(["all"], 86_400)
        [(message, logged)] = kit.logs(component="many").common("shop").counts
        due = kit.counters("old", component="many", precisions={1: 1})
        due.clean()
        assert list(due.known()) == []
        for shard in range(len(kit.component("many").shards)):
            assert not list(kit.client("many", shard).scan_iter("old:*:of:*"))
    assert message == "came"
    assert acknowledged * HITS <= total <= most * HITS
    assert acknowledged * HITS <= logged <= most * HITS


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
