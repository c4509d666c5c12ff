"""The commands of operators: who is connected, what is big, one command on many servers."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis
from cli_helpers import SECRET, Cli, edited_map, in_terminal

import shardkit
from shardkit import ShardKit
from shardkit.admin import PasswordRotation, PendingProcess, biggest_keys
from shardkit.admin.growth import (
    AttachedReplica,
    Fence,
    Move,
    MovePlan,
    ReplicaNode,
    Takeover,
    VerifiedReplica,
)
from shardkit.admin.growth.mover import Expected
from shardkit.admin.growth.relocation import ServerAddress
from shardkit.cli.app import COMMANDS
from shardkit.errors import InvalidArgumentError, RetiredError
from shardkit.local import LocalServers


@pytest.fixture
def kit(
    cli: Cli, pushed_map: Path, town_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShardKit]:
    """A kit on the config server, to which the map was pushed; it has used `unique`."""
    monkeypatch.setenv("SHARDKIT_CONFIG", town_url)
    with shardkit.connect(town_url) as opened:
        pipe = opened.key_sharded("unique").pipeline()
        for n in range(200):
            pipe.set(f"key:{n}", "x" * n)
        pipe.execute()
        opened.topology.expire()
        opened.key_sharded("unique")["key:1"].get("key:1")
        yield opened


def test_clients_are_shown_by_process_with_the_epoch_in_use(kit: ShardKit, cli: Cli) -> None:
    listed = cli.json("clients")["clients"]
    [this] = [each for each in listed if each["pid"] == os.getpid()]
    assert this.pop("connections") >= 3
    assert 0 <= this.pop("idle_seconds") <= this.pop("age_seconds")
    assert this == {
        "host": platform.node(),
        "pid": os.getpid(),
        "users": ["default"],
        "epoch": 1,
        "library": f"shardkit {shardkit.__version__}",
        "components": ["unique"],
        "entries": {"unique": 1},
    }
    assert "unique" in cli("clients", "--using", "unique").out
    using = cli.json("clients", "--using", "followers")["clients"]
    assert os.getpid() not in [each["pid"] for each in using]
    for epoch, there in ((1, False), (2, True)):
        old = cli.json("clients", "--older-than", epoch)["clients"]
        assert (os.getpid() in [each["pid"] for each in old]) is there


def test_a_server_that_cannot_be_asked_for_clients_is_named(
    kit: ShardKit, cli: Cli, town: LocalServers
) -> None:
    server = town.server_of("followers", 0)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-client|list")
        try:
            result = cli("clients")
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+client|list")
    assert result.code == 1
    assert f"{server.address} was not asked: the user may not run CLIENT LIST" in result.out


def test_the_biggest_keys_are_found_on_all_shards(kit: ShardKit, cli: Cli) -> None:
    kit.client("followers", 1).sadd("many", *range(500))
    document = cli.json("keys", "--biggest", "3")
    assert document["keys"][0]["key"] == "many"
    assert document["inspected"] >= 201
    rows = cli.json("keys", "--biggest", "3", "--by", "elements", "unique")["keys"]
    assert [row["elements"] for row in rows] == [199, 198, 197]
    assert [row["key"] for row in rows] == ["key:199", "key:198", "key:197"]
    assert rows[0]["shard"] == str(kit.component("unique").shard_of("key:199"))
    only = cli("keys", "--match", "key:7")
    assert "key:7 " in only.out
    assert only.lines[-1] == "1 key inspected"


def test_keys_whose_elements_may_not_be_counted_have_their_memory(
    kit: ShardKit, town: LocalServers
) -> None:
    kit.client("followers", 1).sadd("many", *range(500))
    with town.server_of("followers", 1).client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-scard")
        try:
            [found] = biggest_keys([kit.component("followers")], 1, match="many")
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+scard")
    assert (found.key, found.elements) == (b"many", 0)
    assert found.size == found.memory > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": 0}, "limit=0; give an integer"),
        ({"by": "age"}, "by='age'; give one of 'memory', 'elements'"),
        ({"limit": True}, "limit=True; give an integer"),
    ],
)
def test_how_many_keys_and_by_what_is_checked(kit: ShardKit, given: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        biggest_keys([kit.component("unique")], **given)


def replies(cli: Cli, *arguments: str, on: str, url: str) -> Any:
    result = cli("exec", "--json", "-c", url, "--on", on, *arguments, code=0)
    return {place: answer["reply"] for place, answer in json.loads(result.out).items()}


def test_a_command_runs_on_all_servers_or_shards_or_on_one(
    kit: ShardKit, cli: Cli, town: LocalServers, town_url: str
) -> None:
    everywhere = replies(cli, "--", "ECHO", "hello", on="all", url=town_url)
    assert everywhere == {town.server_of("unique", n).address: "hello" for n in (0, 1)}
    sizes = replies(cli, "--", "EXISTS", "key:7", on="unique", url=town_url)
    shard = str(kit.component("unique").shard_of("key:7"))
    assert sizes[shard] == sum(sizes.values()) == 1
    assert len(sizes) == 9  # the entry too
    one = replies(cli, "--", "GET", "key:7", on=shard, url=town_url)
    assert one == {shard: "xxxxxxx"}
    assert "has no shard 8" in cli("exec", "--on", "unique:8", "PING").error()
    shown = cli("exec", "--on", "unique", "ECHO", "hello").lines
    assert [line.split() for line in shown[:2]] == [["shard", "reply"], ["unique", "hello"]]
    refused = cli("exec", "--on", "followers", "--", "NOSUCH", code=1)
    assert "the server has no command NOSUCH" in refused.out


def test_another_user_may_run_it(
    kit: ShardKit, cli: Cli, town: LocalServers, town_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (0, 1):
        with town.server_of("unique", n).client() as client:
            client.execute_command("ACL", "SETUSER", "admin", "on", f">{SECRET}2", "+@all")
    monkeypatch.setenv("SHARDKIT_EXEC_PASSWORD", f"{SECRET}2")
    found = replies(cli, "--user", "admin", "--", "ACL", "WHOAMI", on="all", url=town_url)
    assert list(found.values()) == ["admin", "admin"]
    monkeypatch.delenv("SHARDKIT_EXEC_PASSWORD")
    words = ("exec", "--on", "all", "--user", "admin", "--", "ACL", "WHOAMI")
    asked = cli(*words, input=f"{SECRET}2\n", code=0)
    assert asked.err.startswith("Password: ")
    assert asked.out.count("admin") == 2


def test_a_check_gives_one_verdict(kit: ShardKit, cli: Cli, town: LocalServers) -> None:
    fine = cli("check", code=0)
    assert fine.lines[0] == "nothing is wrong"
    assert fine.lines[1].startswith("checked 3 servers, 13 databases and ")
    with town.server_of("followers", 1).client() as client:
        client.config_set("maxmemory", 1)
        try:
            found = cli.json("check", code=1)
            shown = cli("check", "followers")
            _, coloured = in_terminal(120, "check", "followers")
        finally:
            client.config_set("maxmemory", 0)
    assert [each["problem"] for each in found["findings"]] == [
        "is above its maxmemory: it refuses writes"
    ]
    assert not found["ok"]
    assert shown.code == 1
    assert shown.lines[-1].startswith("1 problem, 0 warnings; checked 2 servers")
    assert re.search(r"\x1b\[31m\d problem", coloured)  # red; a busy machine has more of them


def test_a_component_is_retired_and_its_data_deleted_when_nobody_uses_it(
    kit: ShardKit, cli: Cli, town_url: str
) -> None:
    where = ("-c", town_url)
    for n in range(2):
        kit.client("followers", n).mset({f"k{n}:{i}": 1 for i in range(700)})
    place = kit.client("followers", 0).connection_pool.connection_kwargs
    address = {name: place[name] for name in ("host", "port", "db", "username", "password")}
    with redis.Redis(**address, client_name="shardkit:followers/1;0@elsewhere/4711") as late:
        late.get("x")  # it is not told of the push
        removed = cli("retire", "followers", *where, "-m", "replaced", code=0)
        assert removed.lines[0].startswith("followers was removed by a push (epoch 2)")
        assert re.search(r"4711 used it \d+ s ago", removed.out)
        refused = cli("retire", "followers", *where, "--delete-data").error()
        assert re.search(r"'followers' was removed \d+ s ago, less than .* in \d+ s", refused)
    kit.topology.expire()
    with pytest.raises(
        RetiredError, match=r"component 'followers' was removed by a push .* replaced"
    ):
        kit.component("followers")
    assert cli.json("config", "history", *where)["pushes"][0]["message"] == "replaced"
    found = cli.json("retire", "followers", *where, "--delete-data", "--quiet", "0")
    assert found["deleted"] == 1400
    again = cli("retire", "followers", *where, "--delete-data", "--quiet", "0")
    assert again.lines == ["nobody has used followers for 0 s: 0 keys were deleted"]
    assert kit.client("unique", 0).dbsize() > 1
    assert "the history has no push that removed it" in cli("retire", "nope", *where).error()


def test_retire_with_delete_data_only_removes_a_component_that_is_still_there(
    kit: ShardKit, cli: Cli
) -> None:
    kit.client("followers", 0).set("k", 1)
    removed = cli("retire", "followers", "--delete-data", "--quiet", "0.5", code=1)
    assert removed.lines[0].startswith("followers was removed by a push")
    assert removed.lines[-1] == (
        "its data is still there; to delete it, run in 0.5 s: "
        "shardkit retire followers --delete-data"
    )
    found = cli.json("retire", "followers", "--delete-data", "--quiet", "0")
    assert found["deleted"] == 1


def test_data_in_a_database_of_another_component_is_not_deleted(
    kit: ShardKit, cli: Cli, town_map: Path
) -> None:
    with edited_map(town_map) as components:
        components["twin"] = {"entry": components["sessions"]["entry"]}
    assert cli("config", "push", town_map).code == 0
    assert cli("retire", "twin").code == 0
    refused = cli("retire", "twin", "--delete-data", "--quiet", "0").error()
    assert re.search(r"redis:twin \(.*\) shares a database with config:redis:sessions", refused)


def test_a_backup_is_taken_checked_and_restored_into_embedded_servers(
    kit: ShardKit, cli: Cli, town_map: Path, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    taken = cli("backup", target, "followers", code=0)
    assert re.search(r"2 servers, \d+ keys, .*; writes were held for \d+ ms", taken.out)
    assert "is as it was written: 2 servers" in cli("restore", target, "--verify").out
    assert "is not empty" in cli("backup", target).error()
    assert "is where the backup came from" in cli("restore", target, town_map).error()
    assert "say one of MAP" in cli("restore", target).error()
    kit.client("followers", 1).set("k", 1)
    queues = kit.queues(component="followers")
    queues.enqueue_many("mail", [("send", [n]) for n in range(3)])
    assert queues.take("mail", lease=600)
    assert queues.take("mail", lease=600)
    document = cli.json("backup", tmp_path / "second", "followers", "--no-pause")
    assert document["paused_ms"] == 0
    restored = cli.json("restore", tmp_path / "second", "--local")
    assert sum(restored["keys"].values()) > 1
    assert restored["leased_tasks"] == 2
    said = cli("restore", tmp_path / "second", "--local").out
    assert "2 tasks of queues were leased: handed out again when that ends" in said


OLD, NEW = ServerAddress("a.internal", 6379), ServerAddress("b.internal", 6379)
PLANNED = Move(str(OLD), "replication", str(OLD), str(NEW), [], keys={"0": 1500, "1": 20})
SERVER_MOVE = replace(PLANNED, id="1", phase="done", held=0.0123, epoch=7)
COPIED = Move("users:1", "keys", str(OLD), str(NEW), ["users:1", "users:2"], [1, 2])
SHARD_MOVE = replace(COPIED, phase="done", keys={"1": 9}, epoch=8)
EXPECTED = Expected(2.4, 1.6, 3.6)
PLAN = MovePlan(str(OLD), str(NEW), ("users:1",), {"0": 1500, "1": 20}, 4096, EXPECTED, ("x", "y"))
FULL = replace(
    PLAN, keys={"0": 9}, memory=99, expected=Expected(0, 0, 0), steps=(), problems=("it is full",)
)
SAME = {"same": True, "epoch": 7, "keys_now": 1500, "digest": "f00d", "changing": 0}
UNLIKE = {**SAME, "same": False, "differing": 1200, "different": ["0 one", "0 two"]}
ROTATED = PasswordRotation(
    "app", [str(OLD), str(NEW)], {"entry": ["users:0"], "file": ["users:1", "users:2"]}
)
WAITING = [PendingProcess("web1/4711", "it is connected: restart it")]
TAKEOVER = Takeover(("users:1", "users:2"), OLD, NEW, True, 0.25, 0, ("c:1", "d:1"), epoch=3)
LOST = replace(TAKEOVER, planned=False, held=None, behind=4096, failed={"d:1": "timed out"})


@pytest.fixture
def said(
    cli: Cli, kit: ShardKit, town_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command whose functions are replaced by such that return the given results."""

    def run(words: str, results: dict[str, Any], code: int = 0) -> str:
        places = {name: place for each in COMMANDS.values() for name, (place, _) in each.items()}
        module = import_module(f"shardkit.cli.{places[words.split()[0]].partition(':')[0]}")
        growth = import_module("shardkit.admin.growth")
        for name, found in results.items():
            owner = module if hasattr(module, name) else growth
            monkeypatch.setattr(owner, name, lambda *args, _found=found, **how: _found)
        return cli(*words.split(), "--config", town_url, code=code).out

    return run


ATTACHED = AttachedReplica(NEW, OLD, False, 4)
NAMED = replace(ATTACHED, named=True)
STALE = replace(SHARD_MOVE, certificate={**SAME, "stale": ["2 stray"]})
TREE = [
    ReplicaNode(OLD, 0, "master"),
    ReplicaNode(NEW, 1, "behind", 4096),
    ReplicaNode(ServerAddress("c.internal", 1), 2, "no link"),
]
VERDICTS = [
    VerifiedReplica(True, True, True, 0.0012),
    VerifiedReplica(True, True, None, 0.0012),
    VerifiedReplica(True, True, False, 1),
    VerifiedReplica(True, False, None, 1),
    VerifiedReplica(False, False, None, 1),
    redis.TimeoutError("Timeout reading from socket"),
]
RECEIVED = VerifiedReplica(True, True, None, 0.00123)
A_TO_B = "a.internal:6379 to b.internal:6379"
SHARDS = f"users:1, users:2, from {A_TO_B}"
# Words, the results of the functions that do the work, the exit code and what is said.
SAID: list[tuple[str, dict[str, Any], int, str]] = [
    ("failover users:1", {"fail_over": TAKEOVER, "pending_fences": []}, 0, """
b.internal:6379 is the master in place of a.internal:6379 (as planned: no write was lost, \
writers waited at most 250 ms)
shards: users:1, users:2; epoch 3
the map file is older now: shardkit config pull -o MAP
follow it: c:1, d:1
"""),
    (
        "failover a.internal:6379",
        {"fail_over": replace(LOST, shards=(), followers=()), "pending_fences": [Fence(OLD, NEW)]},
        0,
        """
b.internal:6379 is the master in place of a.internal:6379 (it was not handed over: what only the \
old master had is lost)
shards: none; epoch 3
the map file is older now: shardkit config pull -o MAP
d:1 could not be told to follow it: timed out
4,096 bytes of writes are on other replicas only
a.internal:6379 will be fenced when it is back: shardkit failover --guard SECONDS
"""),
    ("failover --guard 0", {"apply_fences": [
        Fence(OLD, NEW, applied=True, state="a replica of b.internal:6379"),
        Fence(OLD, NEW, state="it refuses the users of all entries"),
    ]}, 1, """
a.internal:6379 is back: a replica of b.internal:6379
a.internal:6379 is not fenced: it refuses the users of all entries
"""),
    (f"replicas attach {NEW} --to users:1", {"attach_replica": NAMED}, 0, """
b.internal:6379 follows a.internal:6379; entries name it since epoch 4
"""),
    (f"replicas attach {NEW} --to c.internal:6379", {"attach_replica": ATTACHED}, 0, """
b.internal:6379 follows a.internal:6379; no entry names it
"""),
    (f"replicas detach {NEW}", {"detach_replica": ATTACHED}, 0, """
b.internal:6379 no longer follows a.internal:6379; no entry names it
"""),
    ("replicas tree --timeout 0.01", {"replica_tree": TREE}, 1, """
server             state    bytes behind
a.internal:6379    master              -
  b.internal:6379  behind          4,096
    c.internal:1   no link             -
"""),
    ("verify-replica", {"verify_replicas": {}}, 0, """
no entry names a replica
"""),
    (
        "verify-replica",
        {"verify_replicas": {(OLD, ServerAddress("r", n)): v for n, v in enumerate(VERDICTS, 1)}},
        1,
        """
master           replica  a write                                    s
a.internal:6379  r:1      is there, and on disk                  0.001
a.internal:6379  r:2      is there; it has no append-only file   0.001
a.internal:6379  r:3      is there, but not on disk in time      1.000
a.internal:6379  r:4      did not arrive in time                 1.000
a.internal:6379  r:5      did not arrive: no link to the master  1.000
a.internal:6379  r:6      no answer in time                          -
"""),
    (f"move server {OLD} --to {NEW} --dry-run", {"plan_move": PLAN}, 0, """
1 shard (users:1), 1,520 keys
4,096 bytes, about 2 s (2 to 4 s) to copy and compare
1. x
2. y
"""),
    (f"move shards users:1 --to {NEW} --dry-run", {"plan_move": FULL}, 1, """
1 shard (users:1), 9 keys
99 bytes, about 0 s (0 to 0 s) to copy and compare
cannot be done: it is full
"""),
    (
        f"move server {OLD} --to {NEW}",
        {"start_move": replace(SERVER_MOVE, certificate={**SAME, "changing": 1200})},
        0,
        f"""
{A_TO_B}: done
writers waited at most 12 ms
epoch 7; 1,500 keys
both servers hold the same, digest f00d
1,200 keys were written all the time
"""),
    (
        f"move shards users:1 users:2 --to {NEW}",
        {"start_move": replace(SHARD_MOVE, certificate=SAME)},
        0,
        f"""
{SHARDS}: done
epoch 7; 1,500 keys
both servers held the same, digest f00d
"""),
    ("move abort users:1", {"abort_move": replace(SHARD_MOVE, phase="aborted")}, 0, f"""
{SHARDS}: aborted
"""),
    *(
        (f"move {verb} users:2", {f"{verb.split()[0]}_move": SHARD_MOVE}, 0, f"""
{SHARDS}: done
""")
        for verb in ("resume --kill", "reverse", "verify", "complete")
    ),
    (f"move verify {OLD}", {"verify_move": replace(SERVER_MOVE, certificate=UNLIKE)}, 1, f"""
{A_TO_B}: done
writers waited at most 12 ms
epoch 7; 1,500 keys
1,200 keys differ:
  0 one
  0 two
"""),
    ("move reverse users:1", {"reverse_move": STALE}, 1, f"""
{SHARDS}: done
epoch 7; 1,500 keys
both servers held the same, digest f00d
written at a.internal:6379 afterwards, and kept there:
  database 2 stray
"""),
    ("move status", {}, 0, """
nothing is being moved
"""),
    (
        "move status",
        {"moves": [SERVER_MOVE, replace(SERVER_MOVE, certificate=SAME, epoch=0), STALE]},
        0,
        """
what             from             to               phase   keys  epoch  same
server           a.internal:6379  b.internal:6379  done   1,520      7  -
server           a.internal:6379  b.internal:6379  done   1,520      -  yes
users:1 users:2  a.internal:6379  b.internal:6379  done       9      8  no
"""),
    ("rotate app --dry-run", {"rotate": replace(ROTATED, pending=WAITING)}, 0, """
2 servers: a.internal:6379, b.internal:6379
inline in 1 entry: pushed
in a password_file of 2 entries: written here, and to be written on other hosts
process    may use the old password: it
web1/4711  it is connected: restart it
nothing was changed: this is a dry run
"""),
    ("rotate app --resume", {"rotate": replace(ROTATED, step="removed", epoch=12)}, 0, """
rotated: 2 servers take only the new password
write it into the shard map too: the entries have it since push 12
"""),
    (
        "rotate app --resume",
        {"rotate": replace(ROTATED, step="removed", entries={"file": ["users:1"]})},
        0,
        """
rotated: 2 servers take only the new password
"""),
    ("rotate app --resume", {"rotate": replace(ROTATED, step="published", pending=WAITING)}, 1, """
process    may use the old password: it
web1/4711  it is connected: restart it
stopped: both passwords are taken; check these, then continue: shardkit rotate app --resume
"""),
    ("rotate app --abort", {"abort_rotation": replace(ROTATED, step="planned")}, 0, """
taken back: only the old password is taken
"""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "results", "code", "text"), SAID)
def test_a_command_says_what_it_did_and_exits_with_1_if_it_is_not_done_or_not_right(
    said: Callable[..., str], words: str, results: Any, code: int, text: str
) -> None:
    assert said(words, results, code) == text.removeprefix("\n")


PENDING = {"source": str(OLD), "target": str(NEW), "applied": False, "move": "", "state": ""}
DOCUMENTS: list[tuple[str, dict[str, Any], int, Any]] = [
    (
        "failover users:1",
        {"fail_over": LOST, "pending_fences": [Fence(OLD, NEW)]},
        0,
        {
            "takeover": {**asdict(LOST), "source": str(OLD), "target": str(NEW)},
            "fences": [PENDING],
        },
    ),
    ("failover --guard 0", {"apply_fences": []}, 0, {"takeover": None, "fences": []}),
    (
        "failover --guard 0",
        {"apply_fences": [Fence(OLD, NEW, state="it refuses the users of all entries")]},
        1,
        {"takeover": None, "fences": [{**PENDING, "state": "it refuses the users of all entries"}]},
    ),
    (
        f"replicas attach {NEW} --to users:1",
        {"attach_replica": ATTACHED},
        0,
        {"replica": str(NEW), "master": str(OLD), "named": False, "epoch": 4},
    ),
    (
        "replicas tree",
        {"replica_tree": TREE[::2]},
        1,
        [
            {"server": str(OLD), "depth": 0, "state": "master", "behind": None},
            {"server": "c.internal:1", "depth": 2, "state": "no link", "behind": None},
        ],
    ),
    (
        "verify-replica",
        {"verify_replicas": {(OLD, NEW): RECEIVED, (NEW, OLD): VERDICTS[5]}},
        1,
        [
            {
                "master": str(OLD),
                "replica": str(NEW),
                **asdict(RECEIVED),
                "seconds": 0.001,
                "ok": True,
            },
            {"master": str(NEW), "replica": str(OLD), "ok": False, "error": "no answer in time"},
        ],
    ),
    (f"move server {OLD} --to {NEW} --dry-run", {"plan_move": PLAN}, 0, asdict(PLAN)),
    (f"move resume {OLD}", {"resume_move": SERVER_MOVE}, 0, asdict(SERVER_MOVE)),
    (
        "rotate app --abort",
        {"abort_rotation": ROTATED},
        0,
        {**asdict(ROTATED), "done": False},
    ),
]


@pytest.mark.parametrize(("words", "results", "code", "document"), DOCUMENTS)
def test_a_document_has_all_that_was_done_or_is_not_right(
    said: Callable[..., str], words: str, results: Any, code: int, document: Any
) -> None:
    found = json.loads(said(f"{words} --json", results, code))
    assert found == json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("failover", "specify a shard or a server, or --guard"),
        ("rotate app --resume --abort", "--resume and --abort contradict each other"),
        ("exec --on all", "missing argument '-- COMMAND...'"),
    ],
)
def test_words_that_say_nothing_or_two_things_are_refused(cli: Cli, words: str, error: str) -> None:
    refused = cli(*words.split(), code=2)
    assert error in refused.error()


def test_a_new_password_that_is_named_nowhere_is_asked_for_and_never_shown(
    cli: Cli, town_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def rotate(*args: Any, **how: Any) -> PasswordRotation:
        given.append(args[3])
        return replace(ROTATED, step="removed", warnings=["a replica does not answer"])

    monkeypatch.setattr(import_module("shardkit.cli.commands.servers"), "rotate", rotate)
    done = cli("rotate", "app", "-c", town_url, secret="theNewOne", input="theNewOne\n")
    assert given == ["theNewOne"]
    assert "warning: a replica does not answer" in done.err
