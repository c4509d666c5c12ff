"""A later release beside this one on the same servers: both read and write, and nothing is lost.

The later one is a copy of the package, changed as releases may differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
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
        kit.set("ids", **options, members=int, parts=4).sadd(*some)
        kit.set("planned", **options, members=int, total=2000).sadd(*some)
        kit.hash("h", **options, parts=4).hset(mapping={k: f"v{k}" for k in some})
        kit.sorted_set("s", **options, parts=4).zadd({f"m{k}": k for k in some})
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
    # One that counts no rates of queues, and so has a key less.
    "queues/commands.py": [('"claims", "rates")', '"claims")'), ("            self.rates,\n", "")],
    "queues/lua/base.lua": [
        ("10 * n - 9", "9 * n - 8"),
        ("if many == 0 then return end", "if true then return end"),
    ],
    "queues/lua/take.lua": [("#KEYS / 10", "#KEYS / 9")],
    "queues/task_codec.py": [  # a fifth element, with a field that may be ignored
        ("[id_, queue, name, list(args)]", '[id_, queue, name, list(args), {"priority": 3}]')
    ],
}
# A parameter renamed: the next release reads both names and writes the old one, as the one after it
# may be beside this one; that one writes the new name. Groups go on by the old name.
_NAMED = """self.parameters = {field: str(value) for field, value in parameters.items()}"""
_RENAMED_HERE = """self.parameters = {
            ("entries" if field == "part_size" else field): str(value)
            for field, value in parameters.items()
        }"""
_WRITTEN = "return {n: text for n, text in self.parameters.items() if defaults.get(n) != text}"
_OLD_NAMES = """return {
            ("part_size" if n == "entries" else n): text
            for n, text in self.parameters.items()
            if defaults.get(n) != text
        }"""
_BOTH_NAMES = '{"shard_size": "entries", "part_size": "entries"}'
RENAMING: dict[str, list[tuple[str, str]]] = {
    "structures/base/parameters.py": [
        ('{"shard_size": "part_size"}', _BOTH_NAMES),
        (_NAMED, _RENAMED_HERE),
        (_WRITTEN, _OLD_NAMES),
    ],
    "structures/list/lua/base.lua": [  # a script that reads it, too
        (
            "local first = redis.call('HMGET', KEYS[key], 'part_size', 'values')",
            "local first = redis.call('HMGET', KEYS[key], 'part_size', 'values', 'entries')\n"
            "    first[1] = first[1] or first[3]",
        ),
    ],
}
RENAMED: dict[str, list[tuple[str, str]]] = {
    **RENAMING,
    "structures/base/parameters.py": [
        *RENAMING["structures/base/parameters.py"],
        (
            "flat = [text for pair in self._written.items() for text in pair]",
            "named = {'entries' if n == 'part_size' else n: t for n, t in self._written.items()}\n"
            "        flat = [text for pair in named.items() for text in pair]",
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
    ids = opened.set("ids", **options, members=int, parts=4)
    planned = opened.set("planned", **options, members=int, total=2000)
    fields = opened.hash("h", **options, parts=4)
    scores = opened.sorted_set("s", **options, parts=4)
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


# What remains is read in a process of its own: this release does not know the new name.
SEEN = """
import sys
import shardkit
from shardkit import ShardMap

with shardkit.connect(ShardMap.parse(sys.argv[1])) as kit:
    options = {"component": "data", "part_size": 64}
    ids = kit.set("ids", **options, members=int, parts=4)
    planned = kit.set("planned", **options, members=int, total=2000)
    h = kit.hash("h", **options, parts=4)
    s = kit.sorted_set("s", **options, parts=4)
    jobs = kit.list("jobs", **options, values=int)
    for each in (ids, planned, h, s, jobs):
        assert not list(each.check()), each
    print(ids.scard(), planned.scard(), h.hlen(), s.zcard(), jobs.llen())
"""


def test_a_renamed_parameter_is_read_by_both_names_for_a_release(
    kit: tuple[ShardKit, str], tmp_path: Path
) -> None:
    opened, shard_map = kit
    environments = [
        later_release(tmp_path / name, changes)
        for name, changes in (("next", RENAMING), ("after", RENAMED))
    ]
    few = WORK.replace(f"{ROUNDS}", "6")
    seen = ["120"] * 5

    def run(text: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", text, shard_map]
        return subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )

    # This release and the next one, on what either of them creates.
    with run(few, environments[0]) as other:
        here: dict[str, Any] = {"__name__": "work"}
        exec(few, here)
        here["work"](opened, 0)
        assert other.wait(60) == 0
    options: dict[str, Any] = {"component": "data", "part_size": 64}
    assert opened.set("ids", **options, members=int, parts=4).smembers() == set(range(120))
    assert sorted(opened.list("jobs", **options, values=int).items()) == list(range(120))
    # The next two, on what either of them creates: the later one first, by the new name.
    for number in range(4):
        client: Any = opened.client("data", number)
        client.flushall()
    with run(few.replace("work(kit, 1)", "work(kit, 0)"), environments[1]) as other:
        home: Any = opened.client("data", opened.component("data").shard_of("ids:meta").number)
        while not home.exists("ids:meta"):
            assert other.poll() is None
            time.sleep(0.02)
        with run(few, environments[0]) as next_:
            assert [other.wait(60), next_.wait(60)] == [0, 0]
    assert (home.hget("ids:meta", "entries"), home.hget("ids:meta", "part_size")) == (b"64", None)
    with run(SEEN, environments[0]) as other:
        assert other.communicate(timeout=60)[0].split() == seen
