"""Random calls while connections are killed, calls cancelled and commands refused: no value strays.

Each value begins with the number of its database. ``make fuzz SECONDS=60 SEED=7`` takes longer.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import redis
from faces import PATIENCE
from link_helpers import of, opened
from resources import watched
from test_gate import described

from shardkit.local import LocalServer

SEED, SECONDS = int(os.environ.get("FUZZ_SEED") or 1), float(os.environ.get("FUZZ_SECONDS") or 3)
SHARDS = 8
BUSY = """local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local ends = now() + 15000
while now() < ends do end"""


class Calls:
    """Random calls of one kit, and the values that they have met."""

    def __init__(self, clients: list[Any], router: Any) -> None:
        self.clients, self.router = clients, router
        self.met: list[tuple[int, Any]] = []
        self.strayed: set[Any] = set()  # values whose callers were told
        self.done = 0

    async def some(self, random: Random) -> None:
        """Do one call, whatever becomes of it."""
        n = random.randrange(SHARDS)
        value = b"%d:%d" % (n, random.getrandbits(40))
        try:
            call = random.choice(CALLS)
            found = await watched(call(self, self.clients[n], f"k{random.randrange(9)}", value))
        except asyncio.CancelledError:
            pass
        except AssertionError:
            raise
        except Exception as error:  # the server's, or the lost connection's
            if "was taken away" in f"{error} {getattr(error, 'errors', '')}":
                self.strayed.add(value)
        else:
            self.done += 1
            self.met += [(n, each) for each in found if each is not None]

    async def gets(self, client: Any, key: str, value: bytes) -> list[Any]:
        return [await of(client.get(key))]

    async def sets(self, client: Any, key: str, value: bytes) -> list[Any]:
        await of(client.set(key, value))
        return []

    async def pipes(self, client: Any, key: str, value: bytes) -> list[Any]:
        pipe = client.pipeline(transaction=value[-1] % 2 == 0)
        replies = await of(pipe.set(key, value).get("k1").mget("k2", "k3").execute())
        return [replies[1], *replies[2]]

    async def errs(self, client: Any, key: str, value: bytes) -> list[Any]:
        await of(client.pipeline().set(key, value).execute_command("SET", key).execute())
        return []

    async def watches(self, client: Any, key: str, value: bytes) -> list[Any]:
        pipe = client.pipeline()
        try:
            await of(pipe.watch(key))
            found = await of(pipe.get(key))
            pipe.multi()
            pipe.set(key, value).get("k1")
            return [found, (await of(pipe.execute()))[1]]
        finally:
            await of(pipe.reset())

    async def selects(self, client: Any, key: str, value: bytes) -> list[Any]:
        await of(client.execute_command("SELECT", value[-1] % SHARDS))
        return [await of(client.get(key))]

    async def blocks(self, client: Any, key: str, value: bytes) -> list[Any]:
        await of(client.rpush("list", value))
        return [(await of(client.blpop("list", 1)) or (None, None))[1]]

    async def reads_all(self, client: Any, key: str, value: bytes) -> list[Any]:
        names = [f"b{n}" for n in range(30)]
        found = await of(self.router.mget(names))
        assert all(
            each in (None, f"b:{name}".encode()) for name, each in zip(names, found, strict=True)
        )
        return []

    async def writes_all(self, client: Any, key: str, value: bytes) -> list[Any]:
        await of(self.router.mset({f"b{n}": f"b:b{n}" for n in range(30)}))
        return []

    async def pipes_much(self, client: Any, key: str, value: bytes) -> list[Any]:
        """More than may be in flight, for all databases or for one."""
        pipe = self.router.pipeline()
        for n in range(6000):
            name = f"c{n % 9 if value[-1] % 4 else 0}"
            pipe.append(name, "c") if value[-1] % 2 else pipe.strlen(name)
        assert set(map(type, await of(pipe.execute()))) == {int}
        return []

    async def sends(self, client: Any, key: str, value: bytes) -> list[Any]:
        """A transaction that may fail, and what follows it on the same connection."""
        pool = client.connection_pool
        connection, wrong = await of(pool.get_connection()), [("SET",)][: value[-1] % 2]
        try:
            commands = [("MULTI",), ("SET", key, value), *wrong, ("EXEC",)]
            await of(connection.send_packed_command(connection.pack_commands(commands)))
            for _ in commands:
                with suppress(redis.ResponseError):
                    await of(connection.read_response())
            await of(connection.send_command("MGET", "k1", "k2"))
            found: list[Any] = await of(connection.read_response())
            return found
        finally:
            await of(pool.release(connection))


CALLS: list[Callable[..., Any]] = [
    *(Calls.gets, Calls.sets, Calls.gets, Calls.sets, Calls.pipes, Calls.errs, Calls.watches),
    *(Calls.selects, Calls.blocks, Calls.reads_all, Calls.writes_all),
    *(*[Calls.sends, Calls.gets, Calls.sets] * 4, Calls.pipes_much),
]


def disturb(server: LocalServer, random: Random, ends: float) -> None:
    """Kill connections and have commands refused, each for a few milliseconds."""
    with server.client() as admin:
        while time.monotonic() < ends:
            time.sleep(random.random() / 20)  # calls succeed in between
            with suppress(redis.RedisError):
                match random.randrange(4):
                    case 0:
                        admin.client_kill_filter(_id=random.choice(admin.client_list())["id"])
                    case 1:
                        admin.execute_command("ACL", "SETUSER", "app", "-select")
                        time.sleep(0.01)  # calls are refused in between
                    case 2:
                        admin.config_set("maxmemory", 1)
                        time.sleep(0.01)  # calls are refused in between
                    case 3:
                        admin.eval(BUSY, 0)
            with suppress(redis.RedisError):
                admin.execute_command("ACL", "SETUSER", "app", "+select")
                admin.config_set("maxmemory", 0)


@pytest.mark.bounded
async def test_no_value_reaches_another_database(kind: str) -> None:
    config = {"busy-reply-threshold": 5}
    with LocalServer(config=config) as server, server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all")
        fields = {"username": "app", "password": "any", "breaker": False, "socket_timeout": 5}
        async with opened(kind, described(server, **fields)) as face:
            clients = [await of(face.kit.client("t", n)) for n in range(SHARDS)]
            calls = Calls(clients, face.kit.key_sharded("t"))
            ends = time.monotonic() + SECONDS * PATIENCE
            disturber = threading.Thread(target=disturb, args=(server, Random(SEED), ends))
            disturber.start()

            async def work(seed: int) -> None:
                random = Random(SEED * 1000 + seed)
                while time.monotonic() < ends:
                    await calls.some(random)

            if face.blocks:
                await asyncio.gather(
                    *(asyncio.to_thread(asyncio.run, work(seed)) for seed in range(5))
                )
            else:
                tasks = [asyncio.ensure_future(work(seed)) for seed in range(20)]
                random = Random(SEED)
                while time.monotonic() < ends:
                    await asyncio.sleep(random.random() / 50)  # between two cancellations
                    random.choice(tasks).cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                assert not any(isinstance(each, AssertionError) for each in ended), ended
            await asyncio.to_thread(disturber.join)
        for n in range(SHARDS):
            with server.client(db=n) as there:
                calls.met += [(n, there.get(key)) for key in there.keys("k*")]
    assert calls.done > 10 * SECONDS
    wrong = [(n, value) for n, value in calls.met if value.split(b":")[0] != b"%d" % n]
    assert [each for each in wrong if each[1] not in calls.strayed] == [], f"{SEED=}"
