"""``shardkit advise``, ``convert`` and ``replan``; and garbage for every command."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import redis
from cli_helpers import Cli
from click.testing import CliRunner, Result
from faces import drawn
from redis.utils import str_if_bytes
from relays import Relay

import shardkit
from shardkit import ShardMap, connect
from shardkit.admin import Conversion, convert, databases_with, push
from shardkit.cli.advise.servers import COMPONENT, ServerSource
from shardkit.cli.app import app
from shardkit.local import LocalCluster, LocalServer

WORDS = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Tony"]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with several families."""
    choose = random.Random(1)
    with LocalServer() as running, running.client() as client:
        pipe = client.pipeline(transaction=False)
        for n in range(1, 12_001):
            pipe.set(f"user:{n}:name", f"{choose.choice(WORDS)} {choose.randrange(1000)}")
            if n % 3:
                city = {"name": choose.choice(WORDS), "population": choose.randrange(10**6)}
                pipe.hset(f"city:{n}", mapping=city)
        pipe.sadd("ids", *[choose.getrandbits(59) for _ in range(20_000)])
        pipe.execute()
        yield running


@pytest.fixture(scope="module")
def expiring() -> Iterator[LocalServer]:
    """A server with keys that expire, a list and a stream."""
    choose = random.Random(2)
    with LocalServer() as running, running.client() as client:
        pipe = client.pipeline(transaction=False)
        for _ in range(4_000):
            name = f"session:{UUID(int=choose.getrandbits(128))}"
            pipe.set(name, "s" * choose.randrange(30, 60), px=choose.randrange(10**7, 10**8))
        pipe.rpush("log", *[f"{choose.choice(WORDS)} {n}" for n in range(20_000)])
        for n in range(1_000):
            pipe.xadd("events", {"n": n})
        pipe.execute()
        yield running


def on(server: LocalServer) -> list[str]:
    return ["--on", f"127.0.0.1:{server.port}/0"]


@pytest.fixture
def at(server: LocalServer) -> list[str]:
    return on(server)


def map_of(server: LocalServer) -> ShardMap:
    component = {"shards": [{"host": "127.0.0.1", "port": server.port}]}
    return ShardMap.parse(json.dumps({"components": {"old": component}}))


def really_taken(server: LocalServer, plan: Conversion) -> int:
    """Return what a family takes in a structure: all of it is loaded into an empty server."""
    shard_map = map_of(server)
    with shardkit.connect(shard_map) as kit, ServerSource().empty_server() as empty:
        databases = databases_with(kit, "old")
        warm = empty.kit.hash("warm", component=COMPONENT)
        warm.hset("a", "b")
        warm.delete()
        values = empty.kit.list("warm:list", component=COMPONENT)
        values.rpush_many(range(1500))
        values.lrange(0, 1)
        values.ltrim(1, 0)
        values.delete()
        before = empty.bytes_added()
        convert(empty.kit, COMPONENT, plan, databases, offline=True, share=1.0)
        return empty.bytes_added() - before


@pytest.mark.timeout(600)
def test_predictions_from_a_sample_are_within_five_percent_of_what_all_keys_take(
    server: LocalServer, expiring: LocalServer, cli: Cli
) -> None:
    families = [
        *(("user:*", 12_000, "strings"), ("log", 1, "list"), ("ids", 1, "set")),
        *(("city:*", 8_000, "hash"), ("session:*", 4_000, "strings")),
    ]
    for match, count, into in families[: drawn(1, 5)]:
        source = expiring if match in ("session:*", "log") else server
        command = ["advise", *on(source), "--match", match, "--sample", 2000]
        [family] = cli.json(*command)["families"]
        found = {each["structure"]: each for each in family["structures"]}
        for name, each in found.items():
            check = each["check"]
            assert check["predicted"] == pytest.approx(check["measured"], rel=0.05), name
        plain = next(each for each in found.values() if not each["plan"]["train"])
        assert plain["plan"]["into"] == into
        taken = really_taken(source, Conversion(**plain["plan"]))
        # The sample also estimates how many keys there are: here that is known.
        predicted = plain["memory"] * count / family["keys"]
        assert predicted == pytest.approx(taken, rel=0.05), plain["structure"]


def test_a_family_without_a_structure_says_why(expiring: LocalServer, cli: Cli) -> None:
    shown = cli("advise", *on(expiring), "--match", "events")
    assert re.search(r"a STREAM is compact at any length: \d+ bytes an entry", shown.out), shown


def test_names_that_differ_in_variables_are_a_family(cli: Cli) -> None:
    families = {
        "user:<n>:name": ["user:1:name", "user:2:name"],
        "cart_<n>": ["cart_12", "cart_13"],
        "{u:<n>}:a": ["{u:1}:a", "{u:2}:a"],
        "day:<date>": ["day:2026-11-26", "day:2026-11-27"],
        "mail:<text>": [f"mail:{chr(97 + n)}x" for n in range(20)],
        "s:<uuid>": [f"s:{n:08x}-aaaa-4aaa-8aaa-{n:012x}" for n in range(3)],
        "a:1:b:<n>": ["a:1:b:2", "a:1:b:3"],  # the same in all keys: no variable
        **{name: [name] for name in ("v1:x", "v1:y")},  # few words stay words
    }
    with LocalServer() as server, server.client() as client:
        client.mset({name: "value" for names in families.values() for name in names})
        found = cli.json("advise", *on(server), "--families", 20)["families"]
    assert {each["family"]: each["keys"] for each in found} == {
        family: len(names) for family, names in families.items()
    }


@pytest.mark.timeout(300)
def test_a_cluster_is_sampled_and_converted_as_a_whole(cli: Cli, tmp_path: Path) -> None:
    plan, where = tmp_path / "plan.json", tmp_path / "map.yaml"
    with LocalCluster() as cluster, cluster.client() as client, LocalServer() as target:
        for n in range(300):
            client.set(f"user:{n}:name", f"name {n % 7}", ex=1000)
        node = f"127.0.0.1:{cluster.nodes[0].port}"
        refused = cli("advise", "--on", f"{node}/0").error()
        assert f"--on redis+cluster://{node}" in refused
        at = ["--on", f"redis+cluster://{node}"]
        [family] = cli.json("advise", *at, "--output", plan)["families"]
        assert (family["family"], family["keys"]) == ("user:<n>:name", 300)
        entry = {"entry": {"port": target.port}}
        where.write_text(json.dumps({"components": {"new": entry}}))
        command = ["convert", plan, *at, "--component", "new", "-c", where, "--share", 1]
        assert cli.json(*command, "--offline")["copied"] == 300
        with shardkit.connect(where) as kit:
            conversion = Conversion.parse(plan.read_text())
            left = conversion.open(kit, "new").pttl(77)
            assert left == pytest.approx(client.pttl("user:77:name"), abs=1000)


def test_the_code_of_every_choice_runs(server: LocalServer, at: list[str], cli: Cli) -> None:
    document = cli.json("advise", *at, "--sample", 400)
    component = {"entry": {"host": "127.0.0.1", "port": server.port, "db": 1}}
    shard_map = ShardMap.parse(json.dumps({"components": {"data": component}}))
    codes = [each["code"] for f in document["families"] for each in f["structures"]]
    assert len(codes) > 4
    for code in codes:
        with shardkit.connect(shard_map) as kit:
            made = eval(code, {"kit": kit})  # its parameters are valid
            assert made.name in code
            if hasattr(made, "scard"):
                assert made.scard() == 0


def test_a_plan_is_carried_out_and_verified(
    server: LocalServer, at: list[str], cli: Cli, tmp_path: Path
) -> None:
    plan, where = tmp_path / "plan.json", tmp_path / "map.yaml"
    where.write_text(json.dumps({"components": {"new": {"entry": {"port": server.port, "db": 2}}}}))
    cli("advise", *at, "--match", "user:*", "--output", plan, code=0)
    command = ["convert", plan, *at, "--component", "new", "-c", where, "--share", 1]
    result = cli.json(*command, "--offline")
    assert (result["entries"], result["copied"], result["passes"]) == (12_000, 12_000, 2)
    again = cli(*command, input="\n")
    assert "12,000 entries are in strings user:name, and equal; 0 were copied" in again.out
    assert "press Enter" in again.err
    with shardkit.connect(where) as kit:
        opened = eval(again.lines[-1].removeprefix("next: "), {"kit": kit})
        with server.client() as client:
            stored = str_if_bytes(client.get("user:77:name") or "")
            assert str_if_bytes(opened.get(77)) == stored  # a codec may return text


def test_the_plot_has_each_family_and_structure(at: list[str], cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "names.svg"
    cli("advise", *at, "--match", "ids", "--sample", 50, "--plot", plot, code=0)
    assert "<!-- ids: set members=int -->" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--on", "nowhere:x/0"], "is not a server"),
        (["data", "--on", "127.0.0.1:1/0"], "exclude each other"),
    ],
)
def test_what_cannot_be_sampled_is_refused(arguments: list[str], error: str, cli: Cli) -> None:
    assert error in cli("advise", *arguments).error()


@pytest.fixture(autouse=True)
def short(lower: Callable[..., None]) -> None:
    """Nobody else uses the structures, so nothing has to wait for anybody."""
    lower(plan_grace=0.0, plan_lease=0.0, plan_short_lease=0.0)


def test_structures_that_have_outgrown_their_plan_are_replanned(cli: Cli, town_map: Path) -> None:
    at = ("-c", str(town_map))
    with shardkit.connect(town_map) as kit:
        ids = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        ids.sadd(*range(500))
        names = kit.hash("names", component="followers", total=64, part_size=16, codec="json")
        names.hset(mapping={**{n: n for n in range(500)}, **{f"f{n}": n for n in range(40)}})
        kit.set("growing", component="followers").sadd("a")
        assert cli("replan", "followers", "--dry-run", *at).code == 1
        [row] = cli.json("replan", "followers", "--dry-run", *at, code=1)
        assert row == {
            "structure": "ids",
            "kind": "set",
            "members": 500,
            "total": 64,
            "parts": 8,
            "interrupted": False,
        }
        assert cli("replan", "followers", *at, input="n\n").code == 1
        [row] = cli.json("replan", "followers", "--yes", *at)
        assert (row["total"], row["parts"]) == (1024, 128)
        assert 400 < row["members"] < 600  # of half of the parts
        fresh = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        assert fresh.smembers() == set(range(500))
        said = cli("replan", "followers", *at)
        assert said.lines == ["2 planned structures: none has outgrown its plan"]
        [row] = cli.json("replan", "followers", "names", "--total", "300", "--yes", *at)
        assert (row["total"], row["parts"], row["members"]) == (320, 40, 40)
        fresh = kit.hash("names", component="followers", total=64, part_size=16, codec="json")
        assert fresh.hget("f39") == 39
        assert fresh.hlen() == 540
        meta = kit.client("followers", kit.component("followers").shard_of("ids:meta").number)
        meta.hset("ids:meta", "planning", "copying 3 4096 2 1024")
        assert "interrupted" in cli("replan", "followers", "--dry-run", *at).out
        assert cli("replan", "followers", "--yes", *at).code == 0
        fresh = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        assert fresh.scard() == 500
        assert fresh.parts == 256
        failed = cli("replan", "followers", "growing", *at, code=1)
        assert "growing is not a set or hash that was created with a total" in failed.err


GARBAGE = (
    *(
        b"$-1\r\n",
        b":7\r\n",
        b"*0\r\n",
        b"*1\r\n*1\r\n*0\r\n",
        b"*2\r\n:1\r\n:-1\r\n",
        b"+FINE\r\n",
    ),
    *(b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", b"$2\r\n\xff\xfe\r\n", b"-WHAT is this\r\n"),
)


def run(*words: Any) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


class Asked:
    """A config server with data, and a second server, both behind relays."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        servers = [stack.enter_context(LocalServer()) for _ in range(2)]
        self.relay, self.other = (
            stack.enter_context(closing(Relay(server.port))) for server in servers
        )
        self.second: redis.Redis = stack.enter_context(servers[1].client())
        self.folder, config = folder, stack.enter_context(servers[0].client())
        path = self.map("map.yaml", self.relay, self.relay)
        push(config, ShardMap.load(path))
        with connect(f"redis://127.0.0.1:{servers[0].port}") as kit:
            names = {f"user:{n}:name": f"name {n}" for n in range(100)}
            kit.key_sharded("one").mset(names)
            kit.hash("h", component="one", total=1000).hset(mapping=dict.fromkeys(range(50), "x"))
            kit.logs(component="metrics").record("shop", "hello")
        (folder / "text.txt").write_text("hello world")
        self.at = ("-c", f"redis://127.0.0.1:{self.relay.port}")
        run("search", "index", folder / "text.txt", *self.at)
        run("backup", folder / "backup", *self.at)
        run("advise", "one", "--match", "user:*:name", "--output", folder / "names.json", *self.at)

    def map(self, name: str, one: Relay, others: Relay) -> Path:
        """Write a map whose component "one" is behind one relay, the others behind another."""
        ports = {"one": one.port, "search": others.port, "metrics": others.port}
        rows = [
            f"  {component}: {{entry: {{port: {port}, db: {number}}}}}"
            for number, (component, port) in enumerate(ports.items(), 1)
        ]
        path = self.folder / name
        path.write_text("\n".join(["components:", *rows]))
        return path


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with ExitStack() as stack:
        yield Asked(stack, tmp_path_factory.mktemp("asked"))


COMMANDS = {  # with how many replies come first; {o}: the second server is asked
    "restore {backup} {target}": 30,
    "split one --shards 2 --over {o} --dry-run {at}": 30,
    "apply {grown} --plan {at}": 30,
    "convert {names} --component one --offline --share 1 {at}": 60,
    "adopt one --on {r}/1": 3,
    "replan one --dry-run --total 100000 {at}": 25,
    "search info {at}": 11,
    "search query hello {at}": 16,
    "search verify {at}": 48,
    "search rebuild {at}": 60,
    "search export {out} {at}": 19,
    "search index {text} {at}": 7,
    "search remove nothing {at}": 8,
    "logs shop {at}": 7,
    "advise one --sample 20 --families 1 {at}": 60,
    "top --json {at}": 40,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_a_reply_is_garbage(asked: Asked, command: str) -> None:
    folder, random, wrong = asked.folder, Random(command), []
    words = command.format(
        at=" ".join(asked.at),
        backup=folder / "backup",
        target=asked.map("target.yaml", asked.other, asked.other),
        grown=asked.map("grown.yaml", asked.other, asked.relay),
        names=folder / "names.json",
        text=folder / "text.txt",
        out=folder / "out.jsonl",
        o=f"127.0.0.1:{asked.other.port}",
        r=f"127.0.0.1:{asked.relay.port}",
    ).split()
    relay = asked.other if "{target}" in command else asked.relay
    for _ in range(drawn(1, 40)):
        asked.second.flushall()
        at, reply = random.randrange(COMMANDS[command]), random.choice(GARBAGE)
        relay.count, relay.nth = 0, {at: reply}
        result = run(*words)
        relay.nth = {}
        said = result.output if result.exit_code else "nothing, as it succeeded"
        if result.exit_code not in (0, 1, 2) or "should not happen" in said or not said.strip():
            wrong.append((at, reply, result.exit_code, result.output))
    assert wrong == []
