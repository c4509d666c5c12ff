"""Processes that are killed by SIGKILL: publishers, readers that add up, members, senders.

One process starts the others, kills one again and again, and starts each anew until it has done
its work.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from faces import keys_of

from shardkit import ShardKit, ShardMap

MESSAGES = 60
SUPERVISOR = """
import os, random, signal, sys, time
import shardkit
from shardkit.errors import FileLeaseLostError, FileStalledError
from shardkit.messaging import RecordTally, Total

shard_map, folder, notes, what, kills = sys.argv[1:]
chance = random.Random(32)

def note(*words):
    line = " ".join(map(str, words)) + "\\n"
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)

def files_of(kit):
    return kit.files(component="many", attempts=1000)

def publish(kit):
    files = files_of(kit)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if "parts" in name:
            list(files.publish_parts("logs", path, part_size=30_000, lease=1))
        else:
            files.publish("logs", path, lease=1)
    files.close("logs")

def add_up(reader):
    def read(kit):
        files, totals = files_of(kit), kit.totals(component="many")
        for file in files.take_all("logs", reader, lease=1):
            tally = RecordTally(
                lambda line: line.split()[0], lambda word: [Total(reader, "word", word.decode())]
            )
            tally.add(files.lines(file))
            totals.flush(f"{reader} {file.name}", tally)
            files.done(file)
    return read

def send(kit):
    chats, mail = kit.chats(component="many"), kit.mailboxes(component="many")
    while chats.send("c", "anna", "hi") < 60:
        pass
    while mail.send("ben", "anna", "hi") < 60:
        pass
    note("sent")

def member(user):
    def follow(kit):
        chats = kit.chats(component="many")
        while True:
            for message in chats.fetch_from("c", user, 5, timeout=30):
                note(user, "got", message.id)
                chats.acknowledge("c", user, message)
                note(user, "acknowledged", message.id)
                if message.id >= 60:
                    return
    return follow

def recipient(kit):
    mail = kit.mailboxes(component="many")
    while not (os.path.exists(notes) and "sent" in open(notes).read() and not mail.unread("ben")):
        for message in mail.fetch("ben", 3, lease=1, timeout=0.2):
            note("mail got", message.id)
            if mail.acknowledge("ben", [message]):
                note("mail acknowledged", message.id)

roles = {
    "files": [publish, add_up("x"), add_up("x"), add_up("y")],
    "messages": [send, member("anna"), member("ben"), recipient, recipient],
}[what]
running = {}

def start(role):
    pid = os.fork()
    if pid == 0:
        try:
            with shardkit.connect(shard_map) as kit:
                role(kit)
            os._exit(0)
        except (FileLeaseLostError, FileStalledError):
            os._exit(1)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(2)
    running[pid] = role

for role in roles:
    start(role)
killed = 0
while running:
    if killed < int(kills):
        time.sleep(chance.uniform(0.02, 0.2))
        os.kill(chance.choice(sorted(running)), signal.SIGKILL)
        killed += 1
    pid, status = os.waitpid(-1, 0)
    role = running.pop(pid)
    if status:
        start(role)
print("killed", killed)
"""


def supervise(tmp_path: Path, shard_map: ShardMap, what: str, kills: int) -> list[str]:
    (tmp_path / "map.yaml").write_text(shard_map.to_yaml(), encoding="utf-8")
    arguments = (tmp_path / "map.yaml", tmp_path / "logs", tmp_path / "notes", what, str(kills))
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == f"killed {kills}\n"
    found = tmp_path / "notes"
    return found.read_text(encoding="utf-8").splitlines() if found.exists() else []


@pytest.fixture
def logs(tmp_path: Path) -> Counter[str]:
    """Logs in a directory, plain and gzip; returns how often each word is in them."""
    chance, words = random.Random(5), [f"word{n}" for n in range(40)]
    (tmp_path / "logs").mkdir()
    counts: Counter[str] = Counter()
    for n in range(4):
        lines = [f"{chance.choice(words)} {m}" for m in range(6000)]
        counts.update(line.split()[0] for line in lines)
        content = "\n".join(lines).encode()
        if n % 2:
            content = gzip.compress(content[:20_000]) + gzip.compress(content[20_000:])
        name = f"{n}{'-parts' if n > 1 else ''}.log{'.gz' if n % 2 else ''}"
        (tmp_path / "logs" / name).write_bytes(content)
    return counts


def test_publishers_and_aggregators_that_are_killed_count_every_line_once(
    kit: ShardKit, shard_map: ShardMap, tmp_path: Path, logs: Counter[str]
) -> None:
    files, totals = kit.files(component="many"), kit.totals(component="many")
    files.create("logs", ["x", "y"], byte_limit=100_000, chunk_size=2000)
    supervise(tmp_path, shard_map, "files", 5)
    for reader in "xy":
        assert dict(totals.all(reader, "word")) == logs
    status = files.status("logs")
    assert (status.held, status.files, status.open) == (0, [], {"x": 0, "y": 0})
    assert not status.failed
    assert not [key for key in keys_of(kit, "many") if key.startswith("files:{logs:")]


def test_members_and_recipients_that_are_killed_get_everything_and_nothing_after_acknowledging_it(
    kit: ShardKit, shard_map: ShardMap, tmp_path: Path
) -> None:
    kit.chats(component="many").create("anna", ["ben"], chat="c")
    notes = supervise(tmp_path, shard_map, "messages", 6)
    for who in ("anna", "ben", "mail"):
        got: set[int] = set()
        acknowledged: set[int] = set()
        for user, *said in map(str.split, notes):
            if user == who and said[0] == "got":
                assert int(said[1]) not in acknowledged, "it came again"
                got.add(int(said[1]))
            elif user == who:
                acknowledged.add(int(said[1]))
        assert got >= set(range(1, MESSAGES + 1))
