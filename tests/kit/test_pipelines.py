"""Pipelines over shards: what they split, what they refuse, and what a failure leaves."""

from __future__ import annotations

import ast
import inspect
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from arranged import map_of
from faces import Face, drawn, faced
from hypothesis import HealthCheck, given, settings, strategies as st
from redis.commands.core import DataAccessCommands
from redis.exceptions import ResponseError

import shardkit
from shardkit import (
    AsyncShardKit,
    CommandRefused,
    ShardErrors,
    ShardKit,
    ShardMap,
)
from shardkit.errors import (
    InvalidArgumentError,
    InvalidKeyError,
    MissingEntryError,
    RoutingError,
    ShardCountError,
)
from shardkit.local import LocalServers


@pytest.fixture
def router(face: Face) -> Any:
    return face.kit.key_sharded("many", shards=16)


@pytest.fixture
def direct(kit: ShardKit) -> shardkit.KeyShardedConnection:
    """What looks at the shards themselves."""
    return kit.key_sharded("many")


def apart(router: Any, count: int = 2) -> list[str]:
    """Keys that live on different shards."""
    found: dict[int, str] = {}
    for n in range(1000):
        found.setdefault(router.shard_of(f"apart:{n}"), f"apart:{n}")
    return list(found.values())[:count]


def test_a_pipeline_is_a_context_manager_has_a_length_and_a_repr(kit: ShardKit) -> None:
    with kit.key_sharded("many").pipeline() as pipe:
        assert pipe
        assert len(pipe) == 0
        assert pipe.get("a").get("b") is pipe
        assert len(pipe) == 2
        assert repr(pipe) == "ShardedPipeline('many', 2 commands)"
    assert len(pipe) == 0
    assert pipe.execute() == []
    pipe.get("a")
    pipe.reset()
    assert pipe.execute() == []


async def test_an_awaiting_pipeline_is_an_asynchronous_context_manager(
    akit: AsyncShardKit,
) -> None:
    async with akit.key_sharded("many").pipeline() as pipe:
        assert await pipe.get("k1") is pipe  # as redis-py's: nothing is waited for
        assert repr(pipe) == "AsyncShardedPipeline('many', 1 commands)"
    assert len(pipe) == 0


def refused(face: Face, collect: Any) -> str:
    """Execute a pipeline that has to be refused; nothing of it may have been sent."""
    router = face.kit.key_sharded("many", shards=16)
    pipe = router.pipeline().set("before", 1)
    collect(pipe)
    pipe.set("after", 1)
    with pytest.raises(RoutingError) as error:
        face.run(pipe.execute())
    assert face.run(router.exists("before", "after")) == 0
    return str(error.value)


def test_a_command_whose_keys_live_on_different_shards_is_refused(face: Face, router: Any) -> None:
    one, other = apart(router)
    shards = f"many:{router.shard_of(one)}, many:{router.shard_of(other)}"
    for collect in (
        lambda pipe: pipe.sinter(one, other),
        lambda pipe: pipe.rename(one, other),
        lambda pipe: pipe.zunionstore(one, [one, other]),
        lambda pipe: pipe.msetnx({one: 1, other: 2}),
        lambda pipe: pipe.lmove(one, other),
        lambda pipe: pipe.bitop("AND", one, other),
        lambda pipe: pipe.copy(one, other),
        lambda pipe: pipe.pfcount(one, other),
        lambda pipe: pipe.eval("return 1", 2, one, other),
        lambda pipe: pipe.xread({one: "0", other: "0"}, block=1),
        lambda pipe: pipe.blpop([one, other], 1),
        lambda pipe: pipe.sort(one, store=other),
    ):
        said = refused(face, collect)
        assert said.startswith("command 2, ")
        assert f"the keys live on different shards ({shards})" in said
        assert "{tag}" in said


def test_what_has_no_key_is_refused(face: Face, router: Any) -> None:
    alone, remedies = "router[key] is the client of one shard", {}
    for name, collect in {
        "PING": lambda pipe: pipe.ping(),
        "INFO": lambda pipe: pipe.info(),
        "DBSIZE": lambda pipe: pipe.dbsize(),
        "FLUSHDB": lambda pipe: pipe.flushdb(),
        "KEYS": lambda pipe: pipe.keys("*"),
        "SCAN": lambda pipe: pipe.scan(),
        "PUBLISH": lambda pipe: pipe.publish("channel", "message"),
        "EVAL": lambda pipe: pipe.eval("return 1", 0),
        "SCRIPT LOAD": lambda pipe: pipe.script_load("return 1"),
        "WAIT": lambda pipe: pipe.wait(1, 1),
        "RANDOMKEY": lambda pipe: pipe.randomkey(),
    }.items():
        said = refused(face, collect)
        problem, _, remedies[name] = said.partition("; ")
        assert problem == f"command 2, {name} has no key to route by"
    # A remedy works: `router.all` refuses these.
    assert remedies.pop("SCAN") == "use router.scan_iter()"
    assert remedies.pop("PUBLISH") == "use router.pubsub() and router.publish()"
    assert (remedies.pop("EVAL"), remedies.pop("WAIT")) == (alone, alone)
    assert set(remedies.values()) == {"use router.all, or a client: for client in router"}


def test_what_is_not_known_or_malformed_is_refused(face: Face, router: Any) -> None:
    assert "command 2, command 'GIT' is unknown" in refused(
        face, lambda pipe: pipe.execute_command("GIT", "a")
    )
    assert "command 2, DEL with 0 arguments" in refused(face, lambda pipe: pipe.delete())
    assert "command 2, MSET with" in refused(
        face, lambda pipe: pipe.execute_command("MSET", "a", 1, "b")
    )
    with pytest.raises(InvalidKeyError, match=r"command 1, key 1\.5 is a float"):
        face.run(router.pipeline().get(1.5).execute())


def test_a_subscription_is_refused(face: Face, router: Any) -> None:
    assert "command 2, SSUBSCRIBE: a pipeline cannot subscribe" in refused(
        face, lambda pipe: pipe.execute_command("SSUBSCRIBE", "channel")
    )
    assert "command 2, SUBSCRIBE has no key" in refused(
        face, lambda pipe: pipe.execute_command("SUBSCRIBE", "channel")
    )


def test_a_transaction_is_refused(face: Face, router: Any, direct: Any) -> None:
    pipe = router.pipeline()
    for name, begin in {
        "WATCH": lambda: pipe.watch("a"),
        "UNWATCH": lambda: pipe.unwatch(),
        "MULTI": lambda: pipe.multi(),
        r"pipeline\(transaction=True\)": lambda: router.pipeline(transaction=True),
    }.items():
        with pytest.raises(
            RoutingError, match=f"{name}: a pipeline over shards is not a transaction"
        ):
            begin()
    for name in ("MULTI", "EXEC", "WATCH", "DISCARD", "multi"):
        said = refused(face, lambda pipe, name=name: pipe.execute_command(name, "a"))
        assert f"command 2, {name.upper()}: a pipeline over shards is not a transaction" in said
    assert direct["a"].pipeline().set("a", 1).execute() == [True]  # one shard has transactions
    found = router.pipeline(transaction=False).get("a").execute()
    assert face.run(found) == [b"1"]


@pytest.mark.parametrize("wrong", [None, True, object(), ["a"], "\ud800"])
def test_what_cannot_be_sent_is_refused(face: Face, router: Any, direct: Any, wrong: Any) -> None:
    for precede in (lambda pipe: pipe, lambda pipe: pipe.rpush("q", 1).blpop("q", 1)):
        pipe = precede(router.pipeline().set("before", 1))
        with pytest.raises(InvalidArgumentError, match="cannot be sent; give text, bytes or a"):
            face.run(pipe.set("a", wrong).execute())
        assert direct.exists("before", "q") == 0


def test_a_wrong_count_of_shards_and_a_missing_component_are_refused(face: Face) -> None:
    with pytest.raises(ShardCountError, match="this call says 8: it would look up keys on"):
        face.run(face.kit.key_sharded("many", shards=8).pipeline().get("a").execute())
    with pytest.raises(MissingEntryError, match="config:redis:nope is missing"):
        face.run(face.kit.key_sharded("nope").pipeline().get("a").execute())


def test_refused_commands_are_values_in_their_slots_or_one_group(face: Face, router: Any) -> None:
    def collected() -> Any:
        pipe = router.pipeline()
        return pipe.set("a", "text").lpush("a", 1).set("b", 2).incr("a").get("b")

    first, wrong, second, no_number, got = face.run(collected().execute(raise_on_error=False))
    assert [first, second, got] == [True, True, b"2"]
    assert isinstance(wrong, CommandRefused)
    assert isinstance(no_number, CommandRefused)
    assert wrong.command == "LPUSH"
    assert wrong.shard == f"many:{router.shard_of('a')}"
    assert isinstance(wrong.error, redis.ResponseError)
    assert "LPUSH was refused: WRONGTYPE" in str(wrong)
    with pytest.raises(ShardErrors) as group:
        face.run(collected().execute())
    assert "WRONGTYPE" in str(group.value)
    assert face.run(router.get("b")) == b"2"


def test_what_blocks_waits_for_what_precedes_it_and_what_follows_waits_for_it(
    face: Face, router: Any
) -> None:
    one, other = apart(router)
    pipe = router.pipeline()
    pipe.rpush(one, "a", "b", "c").blpop(one, 5).blpop([one], 5).lrange(one, 0, -1)
    pipe.set(other, 1).blpop(one, 5).blpop(one, 0.01).exists(one).incr(other)
    key = one.encode()
    expected = [3, (key, b"a"), (key, b"b"), [b"c"], True, (key, b"c"), None, 0, 2]
    assert face.run(pipe.execute()) == expected


def test_blocking_commands_of_several_shards_wait_at_the_same_time(
    face: Face, router: Any, direct: Any
) -> None:
    queues = apart(router, 4)

    def serve() -> None:
        # Whoever waits first is served last: one after the other, they would wait for ever.
        for queue in reversed(queues):
            for _ in range(2000):
                if direct[queue].info("clients")["blocked_clients"]:
                    break
                time.sleep(0.005)
            direct[queue].rpush(queue, "served")

    serving = threading.Thread(target=serve)
    serving.start()
    pipe = router.pipeline()
    for queue in queues:
        pipe.blpop(queue, 20)
    assert face.run(pipe.execute()) == [(queue.encode(), b"served") for queue in queues]
    serving.join()


# They do not collect a command, or are refused, or are for redis-py itself.
LEFT_OUT = {
    "bitfield",
    "digest_local",
    "execute_command",
    "keys",
    "randomkey",
    "scan",
    "stralgo",
} | {
    *("unwatch", "wait", "waitaof", "watch"),
    *("hscan_iter", "scan_iter", "sscan_iter", "zscan_iter"),
    *("himport_discard_all_internal", "himport_discard_internal", "himport_prepare_internal"),
}


def test_every_method_for_keys_of_redis_py_is_typed_for_pipelines() -> None:
    """A new redis-py may bring new methods: list them in pipeline_commands, or leave them out."""
    tree = ast.parse((Path(shardkit.__file__).parent / "kit/pipeline_commands.pyi").read_text())
    listed = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    theirs = {
        name
        for name, _ in inspect.getmembers(DataAccessCommands, inspect.isfunction)
        if not name.startswith("_")
    }
    assert theirs - LEFT_OUT - listed == set()
    assert LEFT_OUT & listed == set()


KEYS = [f"k{n}" for n in range(8)]
key = st.sampled_from([*KEYS, b"k0", "k1", 7])
same = st.sampled_from([f"{{tag}}{n}" for n in range(4)])  # these live on one shard
# Whatever part of a text a client that decodes may be given has to be UTF-8: redis-py breaks its
# connection otherwise. So what is no text has keys of its own.
ascii = st.sampled_from(["", "a", "b", b"\x00", "10", 3, -1, 2.5])  # noqa: A001
value = st.one_of(ascii, st.sampled_from(["é", "ü".encode()]))
bits = st.sampled_from(["bits1", "bits2"])
text = st.sampled_from(["", "a", "b", "é", "10"])
field = st.sampled_from(["f", "g", b"h", 1])
number = st.integers(-3, 12)
score = st.sampled_from([0, 1, -2.5, 1e20])
mapping = st.dictionaries(field, value, min_size=1, max_size=3)
scores = st.dictionaries(text, score, min_size=1, max_size=3)
pairs = st.dictionaries(st.sampled_from(KEYS), ascii, min_size=1, max_size=8)
values = st.lists(value, min_size=1, max_size=3)
keys = st.lists(key, max_size=8)
some = st.lists(key, min_size=1, max_size=8)
sames = st.lists(same, min_size=1, max_size=3)
LATER = 4102444800  # the year 2100
flag = st.booleans()


class Call(NamedTuple):
    """A call of a pipeline's method."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def call(method: str, *args: Any, **options: Any) -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        st.just(method),
        st.tuples(*[arg if isinstance(arg, st.SearchStrategy) else st.just(arg) for arg in args]),
        st.fixed_dictionaries(options),
    )


def spread(method: str, *args: Any) -> st.SearchStrategy[Call]:
    """A call whose last argument is spread over several."""
    return st.builds(
        lambda call: Call(call.method, (*call.args[:-1], *call.args[-1]), call.options),
        call(method, *args),
    )


def each(methods: str, *args: Any, calling: Any = call) -> list[st.SearchStrategy[Call]]:
    """Calls of several methods that take the same."""
    return [calling(method, *args) for method in methods.split()]


CALLS = st.one_of(
    *each("get getdel strlen decr type expiretime persist dump", key),
    *each("hgetall hkeys hscan lpop llen smembers scard zcard zscan xlen xrange", key),
    *each("getset setnx append", key, ascii),
    *each("incrby lindex", key, number),
    *each("getrange lrange ltrim", key, number, number),
    *each("lset lrem", key, number, value),
    *each("lpos sismember", key, value),
    *each("zscore zrank", key, text),
    *each("hget hexists hstrlen", key, field),
    *each("rename renamenx rpoplpush", same, same),
    *each("sinter sunion", sames),
    *each("sdiffstore zinterstore", same, sames),
    *each("mget delete unlink exists touch", some, calling=spread),
    *each("rpush lpush sadd srem", key, values, calling=spread),
    call("set", key, ascii, nx=flag, get=flag),
    call("set", key, ascii, xx=flag, exat=st.just(LATER)),
    call("getex", key, persist=st.just(True)),
    call("setrange", key, st.integers(0, 9), ascii),
    call("incrbyfloat", key, st.sampled_from([0.5, 1])),
    call("setbit", bits, st.integers(0, 20), st.integers(0, 1)),
    call("getbit", bits, st.integers(0, 20)),
    call("bitcount", bits),
    call("bitpos", bits, 1),
    call("expireat", key, LATER),
    call("object", "encoding", key),
    call("copy", same, same, replace=flag),
    call("sort", key, alpha=st.just(True)),
    call("sort", same, alpha=st.just(True), store=same),
    call("mget", keys),
    call("mset", pairs),
    call("hset", key, mapping=mapping),
    call("hmget", key, st.lists(field, min_size=1, max_size=3)),
    spread("hdel", key, st.lists(field, min_size=1, max_size=2)),
    call("hincrby", key, field, number),
    call("hincrbyfloat", key, field, 0.5),
    call("rpop", key, st.integers(1, 3)),
    call("linsert", key, "BEFORE", value, value),
    call("lmove", same, same, "LEFT", "RIGHT"),
    call("smismember", key, values),
    call("smove", same, same, value),
    call("zadd", key, scores, gt=flag, ch=flag),
    call("zadd", key, scores, nx=flag),
    call("zincrby", key, 1.5, text),
    call("zmscore", key, st.lists(text, min_size=1, max_size=3)),
    call("zrange", key, number, number, withscores=flag, desc=flag),
    call("zrangebyscore", key, "-inf", "+inf", withscores=flag),
    call("zrevrangebylex", key, "+", "-"),
    call("zcount", key, "-inf", 1),
    spread("zrem", key, st.lists(text, min_size=1, max_size=2)),
    call("zpopmin", key, st.integers(1, 2)),
    call("zunion", sames, withscores=flag),
    call("zrangestore", same, same, 0, -1),
    call("pfadd", "{hll}1", value),
    call("pfcount", "{hll}1"),
    call("pfmerge", "{hll}2", "{hll}1"),
    call("geoadd", key, st.just((13.361389, 38.115556, "p"))),
    call("geopos", key, "p"),
    call("xadd", key, mapping, id=st.sampled_from(["1-1", "2-1", "3-1"])),
    call("xread", st.dictionaries(key, st.sampled_from(["0", "1-1"]), min_size=1)),
    call("eval", "return {KEYS[1], ARGV[1], 1}", 1, key, text),
    call("eval", "return redis.error_reply('MINE ' .. KEYS[1])", 1, key),
    call("execute_command", "get", key),
    call("execute_command", b"HGETALL", key),
    call("execute_command", "OBJECT", "ENCODING", key),
)

UNORDERED = {"smembers", "sinter", "sunion", "hgetall", "hkeys", "hscan", "zscan"}


def told(method: str, reply: Any) -> Any:
    """A reply as it can be compared: errors by what they say."""
    if isinstance(reply, CommandRefused):
        reply = reply.error
    if isinstance(reply, ResponseError):
        return type(reply).__name__, str(reply).partition(" [")[0]  # where a client got it
    if method in UNORDERED and isinstance(reply, list):
        return sorted(reply, key=repr)
    return type(reply), reply


FORMS = [
    {},
    {"decode_responses": True},
    {"protocol": 3},
    {"protocol": 3, "decode_responses": True},
]


@pytest.fixture(scope="module", params=FORMS, ids=["bytes", "text", "resp3", "resp3 text"])
def form(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(scope="module")
def one(servers: LocalServers, form: dict[str, Any]) -> dict[str, Any]:
    """A database that nobody else uses."""
    return {**servers.server_of("one").entry.fields, "db": 9, "protocol": 2, **form}


@pytest.fixture(scope="module")
def sharded(servers: LocalServers, form: dict[str, Any]) -> ShardMap:
    """Seven shards in databases that nobody else uses, three of them on one server."""
    shards = [
        {**servers.server_of("many", n % 4).entry.fields, "db": 13 + n // 4 % 2, **form}
        for n in range(7)
    ]
    seven = map_of(seven={"shards": shards})
    assert len({shard.address for shard in seven.components["seven"].shards}) == 7
    return seven


def fill(pipe: Any, calls: list[Call]) -> Any:
    for each in calls:
        assert getattr(pipe, each.method)(*each.args, **each.options) is pipe
    assert len(pipe) == len(calls)
    return pipe


def check(calls: list[Call], expected: list[Any], got: list[Any]) -> None:
    assert len(got) == len(calls)
    for each, want, have in zip(calls, expected, got, strict=True):
        assert told(each.method, have) == told(each.method, want), each


@pytest.mark.long(6)
@settings(
    max_examples=drawn(12, 40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(CALLS, min_size=1, max_size=40))
def test_random_commands_have_the_replies_of_one_server(
    kind: str, one: dict[str, Any], sharded: ShardMap, calls: list[Call]
) -> None:
    with redis.Redis(**one) as plain, faced(kind, sharded) as face:
        router = face.kit.key_sharded("seven")
        plain.flushdb()
        face.run(router.all.flushdb(confirm="seven"))
        expected = fill(plain.pipeline(transaction=False), calls).execute(raise_on_error=False)
        got = face.run(fill(router.pipeline(), calls).execute(raise_on_error=False))
        check(calls, expected, got)
