"""No write is executed in another shard's database, whatever the server refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from arranged import ask, map_of
from faulty_proxy import faulty
from link_helpers import count_of, of, opened
from test_gate import described

from shardkit.errors import ShardsUnavailable
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.mark.parametrize("fields", [{}, {"select": "confirmed"}], ids=str)
async def test_writes_use_multi_unless_selects_are_confirmed(
    kind: str, fields: dict[str, str], server: LocalServer
) -> None:
    async with opened(kind, described(server, **fields)) as face:
        before = count_of(server, "multi")
        clients = [await of(face.kit.client("t", n)) for n in (3, 4)]
        router = face.kit.key_sharded("t")
        keys = [f"key{n}" for n in range(40)]
        for n in range(3):
            for client in clients:
                await of(client.set("k", n))
                await of(client.pipeline(transaction=False).set("k", n).get("k").execute())
            await of(router.mset(dict.fromkeys(keys, n)))
            assert await of(router.mget(keys)) == [b"%d" % n] * 40
        assert (count_of(server, "multi") > before) is not bool(fields)
    ask(server, "flushall")


class Refusal(NamedTuple):
    """How a server comes to refuse commands on connections that are open, and ends it."""

    begins: tuple[tuple[Any, ...], ...]
    ends: tuple[tuple[Any, ...], ...] = ()


def user(*rights: str) -> tuple[Any, ...]:
    return ("ACL", "SETUSER", "app", *rights)


REFUSALS = {
    "no SELECT": Refusal((user("-select"),), (user("+select"),)),
    "no SET": Refusal((user("-set", "-mset", "-hset", "-eval"),), (user("+@all"),)),
    "no MULTI": Refusal((user("-multi"),), (user("+multi"),)),
    "only writes": Refusal((user("-@all", "+@write", "+@read"),), (user("+@all"),)),
    "OOM": Refusal((("CONFIG", "SET", "maxmemory", 1),), (("CONFIG", "SET", "maxmemory", 0),)),
    "READONLY": Refusal((("REPLICAOF", "127.0.0.1", 1),), (("REPLICAOF", "NO", "ONE"),)),
    "NOAUTH": Refusal(
        (user("resetpass", ">other"), ("CLIENT", "KILL", "USER", "app")), (user("nopass"),)
    ),
    "BUSY": Refusal(
        (("CONFIG", "SET", "busy-reply-threshold", 1), ("EVAL", "while true do end", 0)),
        (("SCRIPT", "KILL"),),
    ),
}


async def sets(face: Any, clients: list[Any]) -> None:
    await of(clients[1].set("k", "new"))


async def pipes(face: Any, clients: list[Any], transaction: bool = False) -> None:
    pipe = clients[1].pipeline(transaction=transaction)
    await of(pipe.set("k", "new").get("k").execute())


async def decorated(face: Any, clients: list[Any]) -> None:
    if face.blocks:
        face.kit.sharded_connection("one")(lambda conn, key: conn.set("k", "new"))("key")
    else:

        async def call(conn: Any, key: str) -> None:
            await conn.set("k", "new")

        await face.kit.sharded_connection("one")(call)("key")


USES: dict[str, Callable[..., Any]] = {
    "client": sets,
    "private client": sets,
    "pipeline": pipes,
    "transaction": partial(pipes, transaction=True),
    "decorated": decorated,
    "router": lambda face, _: of(face.kit.key_sharded("one")["any"].set("k", "new")),
    "structure": lambda face, _: of(face.kit.hash("h", component="one").hset("k", "new")),
}


@pytest.mark.long(40)
@pytest.mark.parametrize("refused", REFUSALS)
@pytest.mark.parametrize("use", USES)
async def test_what_is_refused_strays_nowhere_without_a_word(
    kind: str, use: str, refused: str, server: LocalServer
) -> None:
    with server.client() as admin, server.client(db=1) as other, server.client(db=2) as own:
        admin.execute_command(*user("on", "nopass", "~*", "&*", "+@all"))
        place = {**server.entry.fields, "username": "app", "password": "any", "breaker": False}
        components = {"before": {"entry": {**place, "db": 1}}, "one": {"entry": {**place, "db": 2}}}
        async with opened(kind, map_of(**components)) as face:
            private = use == "private client"
            clients = [await of(face.kit.client(c, private=private)) for c in components]
            await USES[use](face, clients)  # both databases are open
            await of(clients[0].set("k", "old"))
            admin.execute_command("FLUSHALL")
            error: Any = None
            spinning = other.connection_pool.get_connection()
            for command in REFUSALS[refused].begins:
                if command[0] == "EVAL":
                    spinning.send_command(*command)  # without waiting for its reply
                else:
                    admin.execute_command(*command)
            try:
                await USES[use](face, clients)
            except Exception as raised:
                error = raised
            finally:
                for command in REFUSALS[refused].ends:
                    admin.execute_command(*command)
                spinning.disconnect()
                other.connection_pool.release(spinning)
            told = getattr(error, "maybe_executed", None)  # redis-py's own errors have none
            executed = bool(own.dbsize())
            if error is None:
                assert executed
            elif executed:
                assert told is not False, error
            elif use != "structure":  # a script may have written before it was refused
                assert not told or refused == "only writes", error
            assert not other.dbsize() or (told and refused == "only writes"), error
            await USES[use](face, clients)  # as before
            assert own.dbsize()
        admin.flushall()


async def test_what_follows_a_cancelled_read_is_not_read_elsewhere(server: LocalServer) -> None:
    with faulty(server.port) as proxy:
        shard_map = described(server, host="127.0.0.1", port=proxy.port)
        async with opened("awaiting", shard_map) as face:
            router = face.kit.key_sharded("t")
            key = next(key for key in map(str, range(1000)) if router.shard_of(key) == 3)
            third, fourth = [await face.kit.client("t", n) for n in (3, 4)]
            for _ in range(2):
                await third.set(key, 3)
                await fourth.set(key, 4)
            proxy.answer("NOPERM no permissions to run the 'select' command", "SELECT")
            large = router.pipeline()
            for _ in range(5000):  # more than may be in flight
                large.get(key)
            reading, following = [
                asyncio.ensure_future(c) for c in (large.execute(), third.get(key))
            ]
            for _ in range(3):  # it has begun to write
                await asyncio.sleep(0)
            reading.cancel()
            found = [await following, await third.get(key), await fourth.get(key)]
            assert found == [b"3", b"3", b"4"]
    ask(server, "flushall")


async def test_a_connection_that_is_lost_while_it_opens_databases_carries_nothing(
    kind: str, server: LocalServer
) -> None:
    with faulty(server.port) as proxy:
        entry = {"host": "127.0.0.1", "port": proxy.port}
        async with opened(kind, described(server, **entry)) as face:
            router = face.kit.key_sharded("t")
            pairs = {f"k{n}": f"v{n}" for n in range(30)}
            for lost in range(3):
                proxy.seen.clear()
                for _ in range(4):  # as often as it is tried again
                    proxy.lose_command("EXISTS")
                with pytest.raises(ShardsUnavailable, match="8 shards failed"):
                    await of(router.mset(pairs))
                assert "MSET" not in proxy.seen, lost
                proxy.clear()
            await of(router.mset(pairs))
            for n in range(8):
                assert await of((await of(face.kit.client("t", n))).get("none")) is None
            assert await of(router.mget(list(pairs))) == [v.encode() for v in pairs.values()]


@pytest.mark.parametrize("fields", [{}, {"select": "confirmed"}], ids=str)
async def test_simultaneous_calls_keep_their_order_when_some_need_a_confirmed_select(
    fields: dict[str, str], server: LocalServer
) -> None:
    async with opened("awaiting", described(server, **fields)) as face:
        router = face.kit.key_sharded("t")
        first = {router.shard_of(key): key for key in map(str, range(1000))}
        third, fourth, fifth = (first[shard] for shard in (3, 4, 5))

        def large(key: str, *more: str) -> Any:
            """Write more than a transaction takes to one database, and to others."""
            pipe = router.pipeline()
            for _ in range(1001):
                pipe.append(key, "1")
            for other in more:
                pipe.append(other, "1")
            return pipe.execute()

        await router.mset(dict.fromkeys(first.values(), ""))
        for _ in range(3):
            await router[fifth].get(fifth)  # its database is selected
            await asyncio.gather(
                large(third),  # over a connection of its own
                router.mset({third: "2", fourth: "2"}),  # so the first part waits, and not this
                router[fourth].append(fourth, "3"),
                large(fourth, fifth),
                router[fourth].append(fourth, "4"),
                router[third].append(third, "5"),
                router[fifth].append(fifth, "6"),
            )
            found = await router.mget([third, fourth, fifth])
            assert found[:2] == [b"25", b"23" + b"1" * 1001 + b"4"]
            assert found[2].endswith(b"16")
    ask(server, "flushall")


@pytest.mark.parametrize("private", [False, True])
async def test_each_number_is_confirmed_once_for_a_connection(
    kind: str, private: bool, server: LocalServer
) -> None:
    """Writes to alternating databases select them in MULTI from then on."""
    with faulty(server.port) as proxy:
        places = [{"host": "127.0.0.1", "port": proxy.port, "db": n} for n in range(1, 5)]
        async with opened(kind, map_of(t={"shards": places})) as face:
            clients = [await of(face.kit.client("t", n, private=private)) for n in range(4)]
            for n in range(20):
                for client in clients:
                    await of(client.rpush("k", n))
            written = [*proxy.seen]
            for client in clients:
                assert await of(client.lrange("k", 0, -1)) == [b"%d" % n for n in range(20)]
        selects = [n for n, name in enumerate(written) if name == "SELECT"]
        confirmed = [n for n in selects if written[n - 1] != "MULTI"]
        assert len(confirmed) == 4, written
    ask(server, "flushall")
