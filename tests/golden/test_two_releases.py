"""A later release beside this one on the same servers: both read and write, and nothing is lost.

The later one is a copy of the package, changed as releases may differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import NewerFormatError
from shardkit.local import LocalServers

MAP = "components: {data: {shards: {count: 4, over: [{port: 7001}]}}}"
ROUNDS = 25

# What both releases run at the same time: the one with 0 writes even numbers, the other odd ones.
WORK = """
import sys
import shardkit
from shardkit import ShardMap

def work(kit, which):
    every = range(which, 20 * ROUNDS, 2)
    options = {"component": "data", "part_size": 64}
    taken = 0
    for n in range(ROUNDS):
        some = every[10 * n : 10 * (n + 1)]
        kit.set("ids", **options, members=int, groups=4).sadd(*some)
        kit.set("planned", **options, members=int, total=2000).sadd(*some)
        kit.hash("h", **options, groups=4).hset(mapping={k: f"v{k}" for k in some})
        kit.sorted_set("s", **options, groups=4).zadd({f"m{k}": k for k in some})
        kit.list("jobs", **options, values=int).rpush(*some)
        kit.packed("p", component="data", fields={"a": "u32"}).set_many(
            {k: {"a": k + 1} for k in some}
        )
        queues = kit.queues(component="data")
        queues.enqueue("mail", "send", [n])
        task = queues.take("mail", timeout=0)
        taken += task is not None and queues.acknowledge(task)
    return taken

if __name__ == "__main__":
    with shardkit.connect(ShardMap.parse(sys.argv[1])) as kit:
        print(work(kit, 1))
""".replace("ROUNDS", str(ROUNDS))

# By file: texts and what replaces them.
CHANGES: dict[str, list[tuple[str, str]]] = {
    "structures/base/partitioned.py": [  # a further parameter, which has a default
        (
            'Metadata(component, name, {"kind": self.kind, **parameters})',
            'Metadata(component, name, {"kind": self.kind, **parameters, "order": "none"}, '
            '{"order": "none"})',
        )
    ],
    "structures/layouts/lua/grow.lua": [("local MOST_PARTS", "-- another text\nlocal MOST_PARTS")],
    "structures/list/lua/base.lua": [("local MOST_PARTS", "-- another text\nlocal MOST_PARTS")],
    "queues/task_codec.py": [  # a fifth element, with a field that may be ignored
        ("[id_, queue, name, list(args)]", '[id_, queue, name, list(args), {"priority": 3}]')
    ],
}
NEWER: dict[str, list[tuple[str, str]]] = {
    "structures/base/parameters.py": [
        ("FORMATS = range(1, 2)", "FORMATS = range(1, 3)"),
        (
            "return {n: text for n, text in self.parameters.items() if defaults.get(n) != text}",
            'return {**self.parameters, "format": "2"}',
        ),
    ],
}


@pytest.fixture
def kit() -> Iterator[tuple[ShardKit, str]]:
    """A kit, and its map as text."""
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        shardkit.connect(servers.shard_map) as opened,
    ):
        yield opened, servers.shard_map.to_yaml()


def later_release(path: Path, changes: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """Copy the package with changes; return the environment of a process that uses it."""
    package = Path(shardkit.__file__).parent
    shutil.copytree(package, path / "shardkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name, pairs in changes.items():
        file = path / "shardkit" / name
        text = file.read_text()
        for before, after in pairs:
            assert before in text, f"{name} has no {before!r}: change the copy as it is now"
            text = text.replace(before, after)
        file.write_text(text)
    return {**os.environ, "PYTHONPATH": str(path)}


def test_a_later_release_works_beside_this_one_and_nothing_is_lost(
    kit: tuple[ShardKit, str], tmp_path: Path
) -> None:
    opened, shard_map = kit
    environment = later_release(tmp_path, CHANGES)
    command = [sys.executable, "-c", WORK, shard_map]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as other:
        here: dict[str, Any] = {"__name__": "work"}
        exec(WORK, here)
        taken = here["work"](opened, 0)
        out, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    every = set(range(20 * ROUNDS))
    options: dict[str, Any] = {"component": "data", "part_size": 64}
    ids = opened.set("ids", **options, members=int, groups=4)
    planned = opened.set("planned", **options, members=int, total=2000)
    fields = opened.hash("h", **options, groups=4)
    scores = opened.sorted_set("s", **options, groups=4)
    jobs = opened.list("jobs", **options, values=int)
    records = opened.packed("p", component="data", fields={"a": "u32"})
    assert ids.smembers() == planned.smembers() == set(jobs.lrange(0, -1)) == every
    assert fields.hgetall() == {f"{n}": f"v{n}".encode() for n in every}
    assert dict(scores.zrange(0, -1, withscores=True)) == {f"m{n}": n for n in every}
    assert dict(records.scan_iter()) == {n: {"a": n + 1} for n in every}
    for each in (ids, planned, fields, scores, jobs, records):
        assert list(each.check()) == []
    queues = opened.queues(component="data")
    counts = queues.counts("mail")
    assert (counts.dead, counts.taken) == (0, 0)
    assert counts.waiting + taken + int(out) == 2 * ROUNDS


def test_a_format_of_a_later_release_is_refused_by_name(
    kit: tuple[ShardKit, str], tmp_path: Path
) -> None:
    opened, shard_map = kit
    environment = later_release(tmp_path, NEWER)
    command = [sys.executable, "-c", WORK, shard_map]
    subprocess.run(command, env=environment, cwd=tmp_path, timeout=60, check=True)
    ids = opened.set("ids", component="data", part_size=64, members=int, groups=4)
    for call in (lambda: ids.sadd(5), lambda: ids.smembers(), lambda: list(ids.check())):
        with pytest.raises(NewerFormatError, match="ids:meta has format 2, this release reads 1"):
            call()
