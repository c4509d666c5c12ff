"""The commands of docs/growth.md and docs/failover.md, as they stand there; and growth awaited."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from inspect import isfunction
from pathlib import Path
from zlib import crc32

import pytest
from arranged import client_of
from click.testing import CliRunner
from faces import eventually
from growth_helpers import (
    PATIENT,
    Fleet,
    certified,
    follow,
    losing_nothing,
)

import shardkit
import shardkit.admin.growth.awaiting as awaiting
from shardkit.admin import growth
from shardkit.admin.growth import moves
from shardkit.cli.app import app
from shardkit.errors import InvalidArgumentError
from shardkit.local import LocalServer

DOCS = Path(__file__).parents[3] / "docs"
GROWTH = (DOCS / "growth.md").read_text(encoding="utf-8")
FAILOVER = (DOCS / "failover.md").read_text(encoding="utf-8")


def test_the_page_shows_what_happens(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", fleet.url)
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(20)})
    text = GROWTH + FAILOVER
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if not language]
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if "shardkit balance" not in line]  # see test_apply
    assert len(lines) == 27
    new = LocalServer().start()  # the replica that is attached
    for line in lines:
        if line == "shardkit failover 127.0.0.1:7001":  # a master of that address, with a replica
            client_of(fleet.servers[2]).flushall()  # after the shard was there
            follow(fleet.servers[2], fleet.servers[0])
            fleet.push(0, (2,))
        words = line
        for port, address in enumerate((*map(fleet.name, (1, 2)), new.address), start=7011):
            words = words.replace(f"127.0.0.1:{port}", address)
        words = words.replace("127.0.0.1:7001", fleet.name(0))
        done = CliRunner().invoke(app, shlex.split(words)[1:], standalone_mode=False)
        if line.startswith("shardkit move abort"):  # it is done already
            assert "nothing to abort is left" in str(done.exception)
        else:
            assert done.exception is None, (line, done.output, done.exception)
            assert not done.return_value, (line, done.output)
    new.stop(0)
    assert fleet.masters() == [fleet.name(2)] * 2
    with shardkit.connect(fleet.url) as kit:
        found = kit.key_sharded("users").mget([f"k{n}" for n in range(20)])
    assert found == [b"%d" % n for n in range(20)]


# ``make growth MEGABYTES=1000`` has as many in values of 4 KB, and says what it measured.
MEGABYTES = int(os.environ.get("MEGABYTES", "0"))
KEYS, VALUE = (256 * MEGABYTES, 4000) if MEGABYTES else (1500, 10)


def write_by_hand(servers: Sequence[LocalServer]) -> dict[str, bytes]:
    """Have a hand-written router place keys; return some of them."""
    by_tag = re.compile("{(.+?)}")
    keys = [f"{{user:{n % 300}}}:{n}" if n % 3 else f"user:{n}" for n in range(KEYS)]
    chance = random.Random(5)
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client(db=1)) for server in servers]
        pipes = [client.pipeline(transaction=False) for client in clients]
        kept = {}
        for n, key in enumerate(keys):
            tag = by_tag.search(key)
            shard = crc32((tag[1] if tag else key).encode()) % len(pipes)
            value = chance.randbytes(VALUE)
            pipes[shard].set(key, value, ex=100_000 if n % 5 else None)
            if n % max(1, KEYS // 1000) == 0:
                kept[key] = value
            if n % 2000 == 0 or n == KEYS - 1:
                for pipe in pipes:
                    pipe.execute()
    return kept


@pytest.mark.timeout(120 + 3 * MEGABYTES)
@pytest.mark.long(1)
@pytest.mark.parametrize(
    ("servers", "shards"), [(4, 16), (16, 64), (16, 256)], ids=["to_16", "to_64", "to_256"]
)
def test_shards_of_another_program_are_adopted_and_split_by_the_pages_commands_under_load(
    servers: int, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GROWTH, re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if "--shards 64 --over=" in block]
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        config_server = stack.enter_context(LocalServer(name="config"))
        running = [stack.enter_context(LocalServer(databases=32)) for _ in range(servers)]
        fleet = Fleet(config_server, running)
        stack.enter_context(fleet.config)
        monkeypatch.setenv("SHARDKIT_CONFIG", fleet.url)

        def give(line: str) -> str:
            line = line.replace("10.0.0.{1..16}:6379", ",".join(each.address for each in running))
            line = line.replace("--shards 64", f"--shards {shards}")
            began = time.monotonic()
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, (line, done.output)
            if MEGABYTES:
                print(f"\n$ {line}\n{done.output}({time.monotonic() - began:.1f} s)")
            return done.output

        kept = write_by_hand(running[:4])
        on = " ".join(f"--on {each.address}/1" for each in running[:4])
        give(f"shardkit adopt users {on} --output users.yaml")
        give("shardkit config push users.yaml")
        dry_run, split = block.splitlines()
        with losing_nothing(fleet, shards=None) as writers, shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            assert router.mget(list(kept)) == list(kept.values())
            assert "certificate" not in give(dry_run)
            give(f"{split} --hold {PATIENT}")
            users = kit.topology.reread("users")
            assert len({entry.address for entry in users.shards}) == len(users.shards) == shards
            assert len({entry.fields["port"] for entry in users.shards}) == servers
            assert router.mget(list(kept)) == list(kept.values())
            there = moves(fleet.config)[0]
            assert certified(there)
            give(f"shardkit move reverse users --hold {PATIENT}")
            assert certified(moves(fleet.config)[0])
            assert len(kit.topology.reread("users").shards) == 4
            assert router.mget(list(kept)) == list(kept.values())
        if MEGABYTES:
            held = there.held, moves(fleet.config)[0].held
            calls = sum(writers.acknowledged.values())
            print(f"{MEGABYTES} MB, {shards} shards: writers held {held} seconds")
            print(f"{calls:,} acknowledged increments; longest calls: {writers.longest}")


def test_every_function_that_works_on_servers_can_be_awaited() -> None:
    offered = {name for name in growth.__all__ if isfunction(getattr(growth, name))}
    of_no_server = {"plan_growth", "compare", "with_operations"}
    awaited = {name: vars(awaiting)[name] for name in offered if name in vars(awaiting)}
    assert awaited.keys() == offered - of_no_server
    assert all(each.__wrapped__ is getattr(growth, name) for name, each in awaited.items())


def test_who_waits_no_more_is_not_told_what_came_of_it() -> None:
    troubles: list[dict[str, object]] = []

    def working() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name.startswith("shardkit-moves")]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, trouble: troubles.append(trouble))
        server.pause()
        task = asyncio.create_task(awaiting.moves(config))
        [thread] = await asyncio.to_thread(eventually, working)
        task.cancel()
        with pytest.raises(asyncio.CancelledError, match=r"^$"):
            await task
        server.resume()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # what the thread has left for the loop to do is done first

    with LocalServer() as server, server.client() as config:
        asyncio.run(main())
    assert troubles == []


def test_moves_are_awaited_while_the_event_loop_goes_on(fleet: Fleet) -> None:
    fleet.push(0)
    told: list[tuple[str, threading.Thread]] = []

    async def main() -> None:
        turns, moved = 0, asyncio.Event()

        async def write() -> None:
            nonlocal turns
            while not moved.is_set():
                await router["count"].incr("count")
                turns += 1

        async with await shardkit.aconnect(fleet.url) as akit:
            router = akit.key_sharded("users")
            task = asyncio.create_task(write())
            move = await awaiting.start_move(
                fleet.config,
                ["users:1"],
                fleet.name(1),
                hold=3,
                progress=lambda what: told.append((what, threading.current_thread())),
            )
            assert move.phase == "done"
            assert [each.phase for each in await awaiting.moves(fleet.config)] == ["done"]
            back = await awaiting.reverse_move(fleet.config, "users:1", hold=3)
            assert back.phase == "done"
            whole = await awaiting.start_move(fleet.config, fleet.name(0), fleet.name(2))
            assert whole.phase == "done"
            moved.set()
            await task
            assert turns > 3
            assert int(await router["count"].get("count")) == turns
        with pytest.raises(InvalidArgumentError, match="is neither a shard"):
            await awaiting.fail_over(fleet.config, "nobody:1")

    asyncio.run(main())
    assert {thread for _, thread in told} == {threading.main_thread()}
    assert "holding writers" in {what for what, _ in told}
