"""Counting what is hot in the clients: the sketch, whole fleets of processes, bounds and faults."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arranged import exit_code, forked
from click.testing import CliRunner

import shardkit
from shardkit import ShardMap, events
from shardkit.admin import push, read_heat
from shardkit.admin.growth import measure_balance, plan_balance, with_operations
from shardkit.cli.app import app
from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.kit import heat as counting
from shardkit.kit.heat import KINDS, HeatCounter, Sketch, slot_key
from shardkit.local import LocalServers

pytestmark = pytest.mark.usefixtures("within_an_hour")
RIGHTS = Path(__file__).parents[2] / "docs" / "rights.md"

MAP = """
config_server: {port: 7000}
components:
  shop: {shards: {count: 4, over: [{port: 7001}, {port: 7002}]}}
"""


@pytest.fixture
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        yield servers


@pytest.fixture
def config(servers: LocalServers) -> Iterator[Any]:
    """A client of the config server, which has the map."""
    assert servers.config_server is not None
    with servers.config_server.client() as client:
        push(client, servers.shard_map)
        yield client


@pytest.fixture
def url(servers: LocalServers, config: Any) -> str:
    assert servers.shard_map.config_server is not None
    return servers.shard_map.config_server.url()


def listening() -> None:
    """Wait until the counter listens."""
    deadline = time.monotonic() + 10
    while not any(isinstance(getattr(e, "__self__", None), HeatCounter) for e in events.handlers):
        assert time.monotonic() < deadline
        time.sleep(0.001)  # its thread starts


def zipf(names: int, count: int) -> Iterator[int]:
    """Return ranks by Zipf's law, and the same ones at each run."""
    chosen = random.Random(5)
    weights = [1 / rank**1.1 for rank in range(1, names + 1)]
    return iter(chosen.choices(range(names), weights, k=count))


def test_a_sketch_has_the_heaviest_items_of_a_zipf_stream_in_fixed_memory() -> None:
    sketch: Sketch[int] = Sketch(256)
    true = Counter(zipf(100_000, 200_000))
    stream = list(zipf(100_000, 200_000))
    for item in stream:
        sketch.add(item)
        assert len(sketch.counts) <= 512
    heaviest = sketch.heaviest(20)
    assert [item for item, _ in heaviest] == [item for item, _ in true.most_common(20)]
    assert sketch.error <= len(stream) / 256
    for item, count in heaviest:
        assert true[item] - sketch.error <= count <= true[item]


def test_kits_of_one_process_are_counted_once(url: str, config: Any) -> None:
    with shardkit.connect(url, heat=1) as kit, shardkit.connect(url, heat=1):
        listening()
        for _ in range(100):
            kit.key_sharded("shop").get("once")
    found = read_heat(config)
    [key] = [each for each in found.kinds["key"] if each.name == "once"]
    assert key.day * found.day_seconds < 150


def test_large_batches_are_sampled_and_scaled(url: str, config: Any) -> None:
    with shardkit.connect(url, heat=1) as kit:
        router = kit.key_sharded("shop")
        listening()
        for _ in range(50):
            router.mget(["hot"] * 500 + [f"cold:{n}" for n in range(500)])
    found = read_heat(config)
    hot = found.kinds["key"][0]
    assert hot.name == "hot"
    assert 15_000 < hot.day * found.day_seconds < 40_000


def test_a_forked_child_counts_for_itself(url: str, config: Any) -> None:
    with shardkit.connect(url, heat=1) as kit:
        listening()

        def use() -> None:
            listening()
            for _ in range(50):
                kit.key_sharded("shop").get("child's")
            kit.close()

        assert exit_code(forked(use)) == 0
    assert "child's" in {each.name for each in read_heat(config).kinds["key"]}


def test_it_needs_the_rights_of_the_page_and_no_others(url: str, config: Any) -> None:
    row = next(
        line for line in RIGHTS.read_text().splitlines() if line.startswith("| client with `heat=`")
    )
    rights = row.split("`")[3].split()
    own = ["on", ">secret", "%R~config:*", "+@connection", "+mget", "+scan", *rights]
    config.execute_command("ACL", "SETUSER", "counts", *own)
    url = url.replace("redis://", "redis://counts:secret@")
    with shardkit.connect(url, heat=1) as kit:
        listening()
        kit.key_sharded("shop").get("k")
    assert [each.name for each in read_heat(config).kinds["key"]] == ["k"]


def test_balance_plans_by_the_heat_that_clients_report(url: str) -> None:
    with shardkit.connect(url, heat=1) as kit:
        router = kit.key_sharded("shop")
        router.mset({f"item:{n}": "1" for n in range(50)})
        listening()
        for _ in range(200):
            router.get("item:1")
        hot = router.shard_of("item:1")
    command = ["balance", "-c", url, "--by", "operations", "--heat", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code in (0, 1), result.output
    report = json.loads(result.stdout)
    rates = {each["shards"][0]: each["operations"] for each in report["databases"]}
    assert max(rates, key=lambda shard: rates[shard]) == f"shop:{hot}"
    assert report["plan"]["by"] == "operations"


def test_a_hot_key_is_named_first_with_what_to_do(url: str, config: Any) -> None:
    with shardkit.connect(url, heat=1) as kit:
        router = kit.key_sharded("shop")
        router.set("hot", 1)
        listening()
        for n in range(600):
            router.get("hot" if n % 3 else f"cold:{n}")
        shard = router.shard_of("hot")
    hot = read_heat(config).kinds
    report = with_operations(
        measure_balance(config, seconds=0.1), {each.name: each.now for each in hot["shard"]}, hot
    )
    [part] = [each for each in report.parts if each.name == b"hot"]
    assert (part.kind, part.shards, part.bytes > 0) == ("key", (f"shop:{shard}",), True)
    assert part.operations == hot["key"][0].now
    first = plan_balance(config, report, by="operations").uneven[0]
    assert first.startswith(f"key hot (shop:{shard}) alone has ")
    assert first.endswith("no move helps; keep near copies of it, or split it")
    cold = next(each for each in report.parts if each.name.startswith(b"cold"))
    assert cold.shards == ("shop",)  # not stored: its component is all that is known


def test_without_the_right_to_write_it_is_logged_once_and_calls_go_on(
    url: str, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own = ["on", ">secret", "%R~config:*", "+@connection", "+mget", "+scan", "+time"]
    config.execute_command("ACL", "SETUSER", "reader", *own)
    url = url.replace("redis://", "redis://reader:secret@")
    with shardkit.connect(url, heat=1) as kit, caplog.at_level(logging.WARNING, "shardkit"):
        listening()
        counter = counting._open[str(kit.topology.source)]
        for _ in range(2):
            kit.key_sharded("shop").get("k")
            counter.send()
        kit.key_sharded("shop").get("k")
    lines = [each for each in caplog.records if "heat is not reported" in each.message]
    assert len(lines) == 1
    assert "secret" not in lines[0].message


def test_it_is_off_unless_it_is_asked_for(
    url: str, servers: LocalServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {each.name for each in threading.enumerate()}
    with shardkit.connect(url):
        assert "shardkit-heat" not in {each.name for each in threading.enumerate()} - threads
    monkeypatch.setenv("SHARDKIT_HEAT", "0.5")
    with shardkit.connect(url) as kit:
        assert counting._open[str(kit.topology.source)].share == 0.5
    with shardkit.connect(servers.shard_map):  # the environment is for all kits
        pass
    with pytest.raises(ConfigError, match="config server"):
        shardkit.connect(servers.shard_map, heat=0.5)
    for wrong in (-1, 1.5, "much", True):
        with pytest.raises(InvalidArgumentError, match="share of the time"):
            shardkit.connect(url, heat=wrong)  # type: ignore[typeddict-item]
    assert not events.handlers
    assert set(KINDS) == {"key", "tag", "shard", "component", "structure", "function"}
    assert slot_key("hour", 1, "key") == "config:heat:hour:1:key"
