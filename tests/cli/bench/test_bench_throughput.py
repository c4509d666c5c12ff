"""Throughput, end to end, with short batches and one round."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path

import pytest
from cli_helpers import Cli

import shardkit
from shardkit import ShardMap
from shardkit.cli.bench import report
from shardkit.cli.bench.throughput.contestants import OurAsyncClient, OurClient, RedisPyAsyncClient
from shardkit.cli.bench.throughput.limits import RawAsyncSockets
from shardkit.cli.bench.throughput.measuring import COMPONENT, SERVERS, BatchTimes, comparison
from shardkit.cli.bench.throughput.rounds import LIMIT, aratios
from shardkit.cli.bench.throughput.works import WORKS, columns_of, gets, sets
from shardkit.local import find_server


def test_everybody_gets_the_same_replies() -> None:
    with comparison(shards=SERVERS + 2) as here:
        for name, work in WORKS.items():
            commands = work(60)
            here.limit.batch(sets(60))
            calls = here._contestants(name, commands)
            if name == "get":
                replies = [list(call()) for call in calls.values()]  # type: ignore[call-overload]
                replies.append(here.redis_py.batch_in_threads(commands))
                assert all(found == replies[0] for found in replies)
                assert replies[0] == [b"v" * 16] * 60
                ours = OurClient(here.kit, COMPONENT)
                assert list(ours.all(commands)) == replies[0]
                assert list(ours.batch(ours.coalesced(commands))) == replies[0]
            else:
                assert {len(call()) for call in calls.values()} == {60}  # type: ignore[arg-type]


async def test_awaited_contestants_get_the_same_replies() -> None:
    with comparison(shards=SERVERS + 2) as here:
        commands = gets(60)
        here.limit.batch(sets(60))
        expected = here.limit.batch(commands)
        pools = [client.connection_pool.connection_kwargs for client in here.redis_py.clients]
        addresses = [(pool["host"], pool["port"], pool["db"]) for pool in pools]
        raw, theirs = await RawAsyncSockets.open(addresses), RedisPyAsyncClient(addresses)
        try:
            assert await raw.batch(commands) == await theirs.batch(commands) == expected
            assert await raw.batch(commands[:1]) == expected[:1]
            shards = [{"host": host, "port": port, "db": db} for host, port, db in addresses]
            described = json.dumps({"components": {COMPONENT: {"shards": shards}}})
            async with await shardkit.aconnect(ShardMap.parse(described)) as akit:
                ours = OurAsyncClient(akit, COMPONENT)
                assert list(await ours.all(commands)) == expected
                for one in (raw.one, theirs.one, ours.one):
                    assert await asyncio.gather(*(one(*args) for args in commands)) == expected
            batches = {LIMIT: raw.batch, "redis-py": theirs.batch}
            calls = {name: partial(batch, commands) for name, batch in batches.items()}
            found = await aratios(calls, repeats=2, least=0.001)
        finally:
            raw.close()
            await theirs.aclose()
    assert found.keys() == {"limit, us", "redis-py"}
    assert min(found.values()) > 0


def test_a_reply_may_come_in_pieces() -> None:
    value = b"v" * 500_000
    with comparison() as here:
        assert here.limit.one("SET", "user:0:name", value) == b"OK"
        assert here.limit.one("GET", "user:0:name") == value
        assert here.limit.batch(gets(1)) == [value]


def test_commands_by_column_are_the_same_commands() -> None:
    name, *columns = columns_of(sets(3))
    assert [(name, *row) for row in zip(*columns, strict=True)] == sets(3)
    assert columns_of(gets(2)) == ["GET", ["user:0:name", "user:1:name"]]


FEW = ["bench", "throughput", "get", "mixed", "--sizes", "1,40", "--repeats", "1"]


def test_the_command_draws_a_plot(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "throughput.svg"
    cli(*FEW, "--plot", plot, code=0)
    assert plot.read_text().startswith("<?xml")


def test_the_command_writes_a_table_and_json(cli: Cli, tmp_path: Path) -> None:
    document = tmp_path / "throughput.json"
    shown = cli(*FEW, "--shards", "6", "--json", document, code=0).out
    assert "6 shards" in shown
    assert "coalesced" in shown
    found = json.loads(document.read_text())
    assert found["shards"] == 6
    assert [(each["work"], each["commands"]) for each in found["works"]] == [
        *(("get", 1), ("get", 40), ("mixed", 1), ("mixed", 40))
    ]
    [_, batch, *_] = found["works"]
    assert set(batch["times_the_limit"]) == {"shardkit", "redis-py", "by column", "coalesced"}
    assert batch["limit_microseconds"] > 0
    speeds = batch["commands_a_second"]
    assert set(speeds) == {"limit", *batch["times_the_limit"]}


def test_speeds_follow_from_the_times() -> None:
    times = BatchTimes("get", 100, 200.0, {"shardkit": 2.0})
    assert times.a_second() == pytest.approx(500_000)
    assert times.a_second("shardkit") == pytest.approx(250_000)
    [row] = report.throughput_table([times]).rows
    assert row == ["get", 100, "500k/s", "250k/s 2.00x"]
    slow = BatchTimes("get", 1, 200.0, {"shardkit": 2.0})
    [row] = report.throughput_table([slow]).rows
    assert row == ["get", 1, "5.0k/s", "2.5k/s 2.00x"]


def test_a_server_is_found_on_path(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-server").symlink_to(find_server())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["bench", "throughput", "get", "--sizes", "1", "--repeats", "1"]
    shown = cli(*words, "--server", "my-server", code=0).out
    assert "The limit is a loop over raw sockets" in shown
    assert "no-such-server" in cli(*words, "--server", "no-such-server", code=1).err
