"""Parameters as two releases side by side read them; no operation works on data with other ones."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, NamedTuple

import pytest
import redis
from arranged import map_of
from faces import Face, faced, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import ParameterMismatchError, ShardErrors
from shardkit.local import LocalServer, LocalServers
from shardkit.log_records import Once
from shardkit.operations import Operation, operation, stream
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.base.writes import settle


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


@pytest.mark.parametrize("lease", [60.0, 0.0])  # the latter reads them before each write
def test_parts_are_read_and_created_while_the_server_of_the_parameters_is_down(
    lower: Any, lease: float
) -> None:
    lower(lease=lease)
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


@pytest.mark.parametrize("recent", [10.0, 0.0])  # seconds; with the latter the server is killed
def test_parts_are_not_created_if_a_deletion_may_have_been_missed(
    lower: Any, recent: float
) -> None:
    lower(lease=0.0, recent_parameters=recent)
    shards = {"count": 16, "over": [{"port": 7001}, {"port": 7002}]}
    refused = 0
    for kind in ("blocking", "awaiting"):
        with (
            LocalServers(map_of(many={"shards": shards}), ports="free") as servers,
            faced(kind, servers.shard_map) as face,
            faced("blocking", servers.shard_map) as other_face,
        ):
            other = other_face.kit
            ids, theirs = (
                kit.set("ids", component="many", total=20_000, members=int)
                for kit in (face.kit, other)
            )
            router = face.kit.key_sharded("many")
            face.run(ids.sadd(*range(0, 6400, 64)))
            assert theirs.delete()
            meta = router.shard_of("ids:meta")
            down = servers.server_of("many", meta)
            if recent:
                other.client("many", meta).config_set("maxmemory", 1)  # type: ignore[union-attr]
            else:
                down.kill()
            number = next(
                number
                for number in range(0, 6400, 64)
                if servers.server_of("many", router.shard_of(ids.key_of(number))) is not down
            )
            with pytest.raises(ShardErrors, match=r"many:\d+"):
                face.run(ids.sadd(number))
            part = ids.key_of(number)
            refused += not other.client("many", router.shard_of(part)).exists(part)
    assert refused == 2


DAY = date(2015, 5, 17)
SESSION = "f" * 15


class Kind(NamedTuple):
    """A structure with some parameters and with others, and how it is written."""

    make: str
    parameters: dict[str, Any]
    others: dict[str, Any]
    write: Callable[[Any], object]
    plain: Callable[[Any], object] | None = None
    name: str = "it"
    unchecked: frozenset[str] = frozenset()


KINDS = {
    "hash": Kind(
        "hash",
        {},
        {"part_size": 64},
        lambda it: it.hset("1", 1),
        lambda client: client.hset("plain", "a", 1),
        unchecked=frozenset({"train", "add_dictionary"}),  # there are none
    ),
    "hash with dictionaries": Kind(
        "hash",
        {"codec": "tokens"},
        {"codec": "tokens", "total": 999},
        lambda it: it.hset("a", "x"),
        lambda client: client.hset("plain", "a", 1),
        unchecked=frozenset({"hincrby", "hincrbyfloat"}),  # its codec stores no digits
    ),
    "set": Kind("set", {}, {"part_size": 64}, lambda it: it.sadd("1")),
    "sorted set": Kind(
        "sorted_set",
        {},
        {"bound": 5},
        lambda it: it.zadd({"1": 1}),
        lambda client: client.zadd("plain", {"a": 1}),
    ),
    "list": Kind("list", {}, {"part_size": 8}, lambda it: it.rpush("1")),
    "packed": Kind(
        "packed",
        {"fields": {"number": "u8"}},
        {"fields": {"number": "u16"}},
        lambda it: it.set(1, number=1),
    ),
    "visitors": Kind(
        "unique_visitors",
        {},
        {"precision": "exact"},
        lambda it: it.visit(SESSION),
        name="unique",
        unchecked=frozenset({"visitors"}),  # there is no set of these
    ),
}
# What an operation is given, by the names of its parameters.
GIVEN: dict[str, Any] = {
    **dict.fromkeys(["value", "refvalue"], "1"),
    "key": "plain",
    **{key: ["1"] for key in ["keys", "values", "members", "samples"]},
    **dict.fromkeys(["time", "seconds", "milliseconds"], 5),
    **dict.fromkeys(["when", "unix_time_seconds", "unix_time_milliseconds"], 4_000_000_000),
    **dict.fromkeys(["start", "index", "min"], 0),
    **dict.fromkeys(["end", "max", "limit", "amount", "count", "record_id"], 1),
    "mapping": {"1": 1},
    "pairs": [("1", 1)],
    "where": "BEFORE",
    "field": "number",
    "ids": [1],
    "amounts": {1: 1},
    "records": [(1, {"number": 1})],
    "dictionary": b"x",
    "shards": 4,
    "total": 4_000_000,
    "day": DAY,
    "days": [DAY],
    "session": SESSION,
    "sessions": [SESSION],
}
SEVERAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["keys", "values", "fields"], ("1",)),
    "ids": (1,),
    "by": ("number",),
}
NAMED: dict[str, dict[str, Any]] = {"set": {"number": 1}, "hset": {"mapping": {"1": 1}}}


# The parameters that are structures of the same kind.
TARGETS = {
    **dict.fromkeys(["lmove", "blmove"], ("destination",)),
    **dict.fromkeys(["sinterstore", "sunionstore", "sdiffstore"], ("keys",)),
}
# These only read when the key of the parameters expires.
UNCHECKED = {"ttl", "pttl"}


def call(it: Any, name: str, method: Any) -> object:
    """Call an operation of a structure with what its parameters' names say."""
    args: list[Any] = []
    for each in list(inspect.signature(method.steps).parameters.values())[1:]:
        if each.kind is each.VAR_POSITIONAL:
            args += SEVERAL.get(each.name, ())
        elif each.default is each.empty and each.kind is not each.VAR_KEYWORD:
            args.append(it if each.name in TARGETS.get(name, ()) else GIVEN[each.name])
    if "lex" in name:
        args = ["-", "+"][: len(args)]
    found = getattr(it, name)(*args, **NAMED.get(name, {}))
    return list(found) if isinstance(method, stream) else found


@pytest.mark.parametrize("holds", [True, False], ids=["with data", "with parameters alone"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_operations_refuse_other_parameters(kit: ShardKit, kind: Kind, holds: bool) -> None:
    def made(**parameters: Any) -> Any:
        return getattr(kit, kind.make)(kind.name, component="many", **parameters)

    kind.write(made(**kind.parameters))
    for key in keys_of(kit, "many"):
        if not holds and not key.endswith(":meta"):
            holder(kit, "many", key).delete(key)
    if kind.plain is not None:
        kind.plain(kit.key_sharded("many")["plain"])
    before = keys_of(kit, "many")
    methods = inspect.getmembers_static(
        type(made(**kind.parameters)), lambda each: isinstance(each, operation | stream)
    )
    checked = [
        (name, method)
        for name, method in methods
        if not name.startswith("_") and name not in UNCHECKED | kind.unchecked
    ]
    assert len(checked) > 10
    for name, method in checked:
        with pytest.raises(ParameterMismatchError, match=f"{kind.name}.*meta: "):
            call(made(**kind.others), name, method)
        assert keys_of(kit, "many") == before, name


ID = "550e8400-e29b-41d4-a716-446655440000"
# What begins again when a structure is deleted and created meanwhile.
CALLS: dict[str, Callable[[Any], Any]] = {
    "a write to parts": lambda kit: kit.hash("h", component="few", total=1000).hset("a", "b"),
    "parts that were created": (
        lambda kit: kit.driver.run(
            settle(kit.set("x", component="few", total=1000).meta, {"x:0": -1})
        )
    ),
    "a change of when parts expire": (
        lambda kit: kit.set("x", component="few", total=1000).expire(100)
    ),
    "a write to parts that split": lambda kit: kit.set("y", component="few").sadd("b"),
    "a push": lambda kit: kit.list("l", component="few").rpush("b"),
    "a move": lambda kit: kit.list("x", component="one").lmove(kit.list("y", component="one")),
    "a visit": lambda kit: kit.unique_visitors("v", component="few").visit(ID),
}


@pytest.mark.parametrize("what", CALLS)
def test_endless_recreation_is_an_error(face: Face, lower: Any, what: str) -> None:
    face.run(face.kit.set("x", component="few", total=1000).sadd("a"))
    lower(recreations=0)
    with pytest.raises(ParameterMismatchError, match="other clients keep deleting and creating it"):
        face.run(CALLS[what](face.kit))


MAP = """
components:
  data: {shards: {count: 4, over: [{port: 7001}]}}
  cached: {entry: {port: 7001}}
"""


@pytest.fixture
def full(kind: str, own_servers: LocalServers) -> Iterator[tuple[Face, Any]]:
    """A kit, and a client of its one server, whose memory limit a test may set."""
    with own_servers.servers[0].client() as client, faced(kind, own_servers.shard_map) as face:
        client.flushall()
        yield face, client
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def test_the_first_write_warns_of_eviction_once(
    full: tuple[Face, Any], caplog: pytest.LogCaptureFixture, lower: Any
) -> None:
    face, client = full
    lower(eviction_warnings=Once())
    with caplog.at_level(logging.WARNING, "shardkit.structures"):
        face.run(face.kit.set("a", component="cached").sadd("x"))
        assert caplog.records == []
        client.config_set("maxmemory-policy", "volatile-lru")
        face.run(face.kit.set("a", component="cached").sadd("y"))
        face.run(face.kit.set("b", component="cached").sadd("y"))
    [record] = caplog.records
    assert "cached: the server of a:meta has maxmemory-policy volatile-lru" in record.getMessage()
    assert "set it to noeviction" in record.getMessage()


def test_volatile_eviction_takes_parts_of_later_generations(full: tuple[Face, Any]) -> None:
    face, client = full
    names = ("first life", "expires", "created again")
    for name in names:
        made = face.kit.set(name, component="data", total=100, part_size=4, members=int)
        face.run(made.sadd(*range(40)))
        if name == "created again":
            face.run(made.delete())
            face.run(made.sadd(*range(40)))
            assert face.run(made.ttl()) == -1
        elif name == "expires":
            face.run(made.expire(1000))
    client.config_set("maxmemory-eviction-tenacity", 100)
    client.config_set("maxmemory-policy", "volatile-lru")
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError, match="maxmemory"):
        client.set("more", "x")
    client.config_set("maxmemory", 0)
    found = {}
    for name in names:
        made = face.kit.set(name, component="data", total=100, part_size=4, members=int)
        found[name] = len(face.run(made.smembers()))
    assert found == {"first life": 40, "expires": 0, "created again": 0}
