"""Parameters, as two releases side by side read them."""

from __future__ import annotations

from typing import Any

import pytest
from arranged import map_of
from faces import Face, faced, holder

from shardkit import ShardKit
from shardkit.errors import ParameterMismatchError
from shardkit.local import LocalServer, LocalServers
from shardkit.operations import Operation
from shardkit.structures.base.parameters import Metadata, open_all


@pytest.fixture
def stored(face: Face, kit: ShardKit) -> Any:
    ids = face.kit.set("ids", component="many", members=int, part_size=64)
    face.run(ids.sadd(1, 2, 3))
    return holder(kit, "many", "ids:meta")


def opened(face: Face) -> Any:
    return face.kit.set("ids", component="many", members=int, part_size=64)


def test_a_hint_of_a_later_release_is_ignored_and_kept(face: Face, stored: Any) -> None:
    stored.hset("ids:meta", "hint:read_from", "replica")
    assert face.run(opened(face).sadd(4)) == 1
    assert stored.hget("ids:meta", "hint:read_from") == b"replica"


def test_what_shard_size_was_is_read_as_part_size(face: Face, stored: Any) -> None:
    size = stored.hget("ids:meta", "part_size")
    stored.hdel("ids:meta", "part_size")
    stored.hset("ids:meta", mapping={"shard_size": size, "format": 1})
    assert face.run(opened(face).smembers()) == {1, 2, 3}


def test_an_unknown_parameter_that_is_no_hint_is_refused(face: Face, stored: Any) -> None:
    stored.hset("ids:meta", "spread", "wide")
    with pytest.raises(ParameterMismatchError, match="spread is 'wide', not None"):
        face.run(opened(face).scard())


def test_a_default_is_not_written_and_an_absent_parameter_has_it(kit: ShardKit) -> None:
    def opening(**given: object) -> Operation[None]:
        given = {"kind": "set", **given}
        yield from open_all([Metadata("one", "new", given, {"spread": "even"})], create=True)

    kit.driver.run(opening(spread="even"))
    client: Any = kit.client("one")
    assert client.hgetall("new:meta") == {b"kind": b"set"}
    kit.driver.run(opening(spread="even"))
    with pytest.raises(ParameterMismatchError, match="spread is 'even', not 'wide'"):
        kit.driver.run(opening(spread="wide"))


def test_parts_are_read_and_created_while_the_server_of_the_parameters_is_down() -> None:
    shards = {"count": 16, "over": [{"port": 7001}, {"port": 7002}]}
    for kind in ("blocking", "awaiting"):
        with (
            LocalServers(map_of(many={"shards": shards}), ports="free") as servers,
            faced(kind, servers.shard_map) as face,
        ):
            ids = face.kit.set("ids", component="many", total=20_000, members=int)
            router = face.kit.key_sharded("many")
            face.run(ids.sadd(*range(0, 6400, 64)))

            def server(key: str, servers: Any = servers, router: Any = router) -> LocalServer:
                return servers.server_of("many", router.shard_of(key))

            down = server("ids:meta")
            old, new = (
                [n for n in numbers if server(ids.key_of(n)) is not down]
                for numbers in (range(0, 640, 64), range(6400, 7040, 64))
            )
            down.kill()
            for numbers in (old, new, old):
                assert face.run(ids.sadd(*numbers)) == (len(new) if numbers is new else 0)
                assert all(face.run(ids.smismember(*numbers)))
            client = face.kit.client if face.runner is None else None
            if client is not None:
                part = ids.key_of(new[0])
                assert client("many", router.shard_of(part)).ttl(part) == -1, "it is settled"
