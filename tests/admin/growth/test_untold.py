"""Changes that no notification tells of, by any command or while a source stops telling."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from arranged import paused
from faces import eventually
from growth_helpers import PATIENT, Fleet, certified, on_redis_too
from moments import before, uncounted_calls
from test_looks_again import call, faces

import shardkit
from shardkit.admin.changes import open_changes
from shardkit.admin.growth import (
    Move,
    compare,
    moves,
    resume_move,
    reverse_move,
    start_move,
    verify_move,
)
from shardkit.admin.growth.certificate import differing, unequal
from shardkit.admin.growth.exchange import ask, one_connection
from shardkit.admin.growth.journal import KEYS
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.rule import rule_of
from shardkit.admin.growth.shard_copy import (
    NEAR,
    TOLD,
    UNTOLD,
    DatabaseCopy,
    KeyCapture,
    following,
    turn_on_notifications,
)
from shardkit.errors import GrowthError, MissedChangesError
from shardkit.local import LocalServer

FENCE_KEY = "config:fence"

# Calls that change or read what `_prepare` writes; {} is a DUMP of the string.
_CALLS = """
append s x | bitcount s | bitfield s SET u8 0 9 | bitfield_ro s GET u8 0 | bitop NOT new s
bitpos s 1 | blmove l new LEFT RIGHT 1 | blmpop 1 1 l LEFT | blpop l 1 | brpop l 1
brpoplpush l new 1 | bzmpop 1 1 z MIN | bzpopmax z 1 | bzpopmin z 1 | copy s new | decr n
decrby n 2 | del s | delifeq n 5 | dump s | exists s | expire s 9 | expire s -1
expireat s 9999999999 | expireat s 1 | expiretime e | geoadd g 1 1 m | geodist g a b
geohash g a | geopos g a | georadius g 13 38 900 km STORE new | georadius g 0 0 1 m STORE s
georadius_ro g 13 38 900 km | georadiusbymember g a 900 km STORE new
georadiusbymember_ro g a 900 km | geosearch g FROMMEMBER a BYRADIUS 900 km ASC
geosearchstore new g FROMMEMBER a BYRADIUS 900 km | get s | getbit s 1 | getdel s | getex s EX 9
getex e PERSIST | getex s PXAT 1 | getrange s 0 1 | getset s x | hdel h a | hdel h a b c
hexists h a | hexpire h 9 FIELDS 1 a | hexpire h 0 FIELDS 1 a | hexpireat h 1 FIELDS 1 a
hexpiretime h FIELDS 1 a | hget h a | hgetall h | hgetdel h FIELDS 1 a | hgetdel h FIELDS 3 a b c
hgetex h EX 9 FIELDS 1 a | hgetex h PXAT 1 FIELDS 1 a | hincrby h c 1 | hincrbyfloat h c 1.5
hkeys h | hlen h | hmget h a | hmset h a 2 | hpersist f FIELDS 1 a | hpexpire h 9 FIELDS 1 a
hpexpireat h 1 FIELDS 1 a | hpexpireat h 1 FIELDS 3 a b c | hpexpiretime f FIELDS 1 a
hpttl f FIELDS 1 a | hrandfield h | hscan h 0 | hset h a 2 | hsetex h EX 9 FIELDS 1 a 2
hsetex h PXAT 1 FIELDS 1 a 2 | hsetnx h d 1 | hstrlen h a | httl f FIELDS 1 a | hvals h | incr n
incrby n 2 | incrbyfloat n 1.5 | lcs s e | lindex l 0 | linsert l BEFORE a x | llen l
lmove l new LEFT RIGHT | lmpop 1 l LEFT | lpop l | lpos l a | lpush l x | lpushx l x
lrange l 0 -1 | lrem l 0 a | lset l 0 x | ltrim l 1 1 | ltrim l 9 9 | memory|usage s | mget s e
move s 1 | mset s x new y | msetex 1 s x EX 9 | msetnx new y | object|encoding s | object|freq s
object|idletime s | object|refcount s | persist e | pexpire s 9000 | pexpire s -1
pexpireat s 9999999999999 | pexpiretime e | pfadd p x | pfcount p | pfcount p q
pfdebug TODENSE p | pfdebug GETREG p | pfmerge new p q | pfmerge p q | psetex s 9000 x | pttl e
rename s new | renamenx s new | restore new 0 {} | restore s 0 {} REPLACE
restore s 1 {} REPLACE ABSTTL | restore-asking new 0 {} | rpop l | rpoplpush l new | rpush l x
rpushx l x | sadd t x | scard t | sdiff t u | sdiffstore new t u | sdiffstore s t t
set s x | set s x GET | set s x PXAT 1 | setbit s 1 0 | setex s 9 x | setnx new x
setrange s 1 x | sinter t u | sintercard 2 t u | sinterstore new t u | sinterstore s t none
sismember t a | smembers t | smismember t a | smove t u a | sort l ALPHA STORE new
sort none STORE s | sort_ro l ALPHA | spop t | spop t 9 | srandmember t | srem t a | srem t a b c
sscan t 0 | strlen s | substr s 0 1 | sunion t u | sunionstore new t u | touch s | ttl e | type s
unlink s | vadd v VALUES 2 3 4 new | vadd new VALUES 2 3 4 a
vcard v | vdim v | vemb v a | vgetattr v a | vinfo v
vismember v a | vlinks v a | vrandmember v | vrem v a | vsetattr v a {"x":1} | vsim v ELE a
xack x g 1-1 | xackdel x g IDS 1 1-1 | xadd x * a b | xautoclaim x g c2 0 0
xclaim x g c2 0 1-1 | xclaim x g c 0 1-1 JUSTID | xclaim x g c 0 3-1 FORCE | xdel x 2-1
xdelex x IDS 1 2-1 | xgroup|create x g2 0 | xgroup|createconsumer x g c2
xgroup|delconsumer x g c | xgroup|destroy x g | xgroup|setid x g 0 | xinfo|consumers x g
xinfo|groups x | xinfo|stream x | xlen x | xpending x g | xrange x - +
xreadgroup GROUP g c STREAMS x > | xreadgroup GROUP g c STREAMS x 0
xreadgroup GROUP g c NOACK STREAMS x > | xreadgroup GROUP g c2 STREAMS x 0
xread STREAMS x 0 | xrevrange x + - | xsetid x 9-9 | xtrim x MAXLEN 1 | zadd z 1 x | zcard z
zcount z 0 9 | zdiff 2 z y | zdiffstore new 2 z y | zincrby z 1 a | zinter 2 z y
zintercard 2 z y | zinterstore new 2 z y | zlexcount z - + | zmpop 1 z MIN | zmscore z a
zpopmax z | zpopmin z | zpopmin z 9 | zrandmember z | zrange z 0 -1 | zrangebylex z - +
zrangebyscore z 0 9 | zrangestore new z 0 -1 | zrank z a | zrem z a | zrem z a b c
zremrangebylex z - + | zremrangebyrank z 0 0 | zremrangebyscore z 0 9 | zrevrange z 0 -1
zrevrangebylex z + - | zrevrangebyscore z 9 0 | zrevrank z a | zscan z 0 | zscore z a
zunion 2 z y | zunionstore new 2 z y
"""
# Commands that take no key, or run others; `change_by_every_command` tries MIGRATE.
_OTHERS = {
    *("clusterscan", "eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro", "migrate"),
    *("function|delete", "function|flush", "function|load", "function|restore"),
    *("spublish", "ssubscribe", "sunsubscribe", "watch"),
}


def _commands(infos: Any) -> Iterator[str]:
    """Yield the commands of a reply to COMMAND that have keys, or write."""
    for name, _, flags, first, *_, nested in infos:  # 10 of each
        if nested:
            yield from _commands(nested)
        elif first or {b"movablekeys", b"write"} & set(flags):
            yield name.decode().lower()


def _prepare(client: Any) -> None:
    client.flushall()
    client.mset({"s": "string", "n": 5})
    client.set("e", "x", ex=1000)
    client.rpush("l", "a", "b", "c")
    client.sadd("t", "a", "b", "c")
    client.sadd("u", "a", "x")
    client.hset("h", mapping={"a": 1, "b": 2, "c": 3})
    client.hset("f", mapping={"a": 1, "b": 2})
    client.zadd("z", {"a": 1, "b": 2, "c": 3})
    client.zadd("y", {"a": 1})
    client.geoadd("g", (13.36, 38.11, "a", 15.08, 37.5, "b"))
    client.pfadd("p", "a", "b")
    client.pfadd("q", "c")
    for n in (1, 2, 3):
        client.xadd("x", {"n": n}, id=f"{n}-1")
    client.xgroup_create("x", "g", "0")
    client.xreadgroup("g", "c", {"x": ">"}, count=1)
    for each in ("HEXPIRE f 1000 FIELDS 1 a", "VADD v VALUES 2 1 2 a"):
        with one_connection(client) as line:  # which not every server has
            line.ask([each.split()])


def _state(client: Any) -> dict[Any, Any]:
    return {
        key: (client.type(key), client.dump(key), client.pexpiretime(key))
        for key in client.scan_iter()
    }


def test_every_change_sends_a_notification_or_is_known_to_send_none() -> None:
    with LocalServer(databases=2) as server, server.client() as client, server.client(db=1) as copy:
        turn_on_notifications(client)
        capture = KeyCapture(client, [0, 1])
        [listed] = ask(client, [("COMMAND",)])
        known = set(_commands(listed))
        tried, silent = set(), set()
        for call in _CALLS.replace("\n", " | ").split(" | "):
            name, *words = call.split() or [""]
            if name not in known:
                continue
            tried.add(name)
            _prepare(client)
            args = [client.dump("s") if word == "{}" else word for word in words]
            capture.wait_until_told()
            capture.take()
            before = _state(client)
            time.sleep(0.002)  # a stream has times in milliseconds
            with one_connection(client) as line:
                line.ask([(*name.split("|"), *args)])
            after = _state(client)
            capture.wait_until_told()
            told = {key for _, key in capture.take()}
            for key in before.keys() | after.keys():
                if before.get(key) == after.get(key) or key in told:
                    continue
                silent.add(name)
                kind, value, _ = before[key]
                copy.restore(key, 0, value, replace=True)
                assert (
                    name in UNTOLD or kind.decode() not in TOLD or not unequal(client, copy, [key])
                ), call
        capture.close()
        assert known - tried <= {*_OTHERS, *UNTOLD}
        assert silent >= {"pfcount", "xack", "xclaim", "xreadgroup"}


@contextmanager
def moving(fleet: Fleet) -> Iterator[tuple[Any, Any]]:
    """The database of a shard, with what `_prepare` writes, and the one that it moves to."""
    fleet.push(0)
    with fleet.servers[0].client(db=2) as old, fleet.servers[1].client(db=2) as new:
        _prepare(old)
        yield old, new


def move(
    fleet: Fleet, old: Any, moment: str, meddle: Callable[[str], object], **options: Any
) -> Any:
    """Move the shard, and do something else when the mover has come so far."""

    def tell(what: str) -> None:
        if what.startswith(moment):
            meddle(what)
            old.connection_pool.disconnect()  # else it is a writer that stays

    old.connection_pool.disconnect()
    options |= {"progress": tell, "hold": PATIENT}
    return start_move(fleet.config, ["users:1"], fleet.name(1), **options)


def needs(client: Any, command: str) -> None:
    [[known]] = ask(client, [("COMMAND", "INFO", command)])
    if known is None:
        pytest.skip(f"the server has no {command}")


MOMENTS = pytest.mark.parametrize("moment", ["copied", "comparing", "holding writers"])


@MOMENTS
@pytest.mark.parametrize(
    "call",
    [
        "PFCOUNT p",
        "XACK x g 1-1",
        "XCLAIM x g c 0 1-1 JUSTID",
        "XREADGROUP GROUP g c STREAMS x 0",
        "XREADGROUP GROUP g d STREAMS x >",
        "XAUTOCLAIM x g d 0 0",
    ],
)
def test_consumers_of_a_stream_and_counts_of_a_hyperloglog_move(
    fleet: Fleet, moment: str, call: str
) -> None:
    with moving(fleet) as (old, new):
        at_last: list[Any] = []

        def meddle(what: str) -> None:
            old.execute_command(call)
            at_last[:] = [old.dump("x")]

        certified(move(fleet, old, moment, meddle))
        assert [new.dump("x")] == at_last
        assert new.pfcount("p") == 2


def test_writers_wait_only_for_streams_that_have_changed(fleet: Fleet) -> None:
    with moving(fleet) as (old, new):
        old.delete("v")  # a vector set has no other mark than its value
        for n in range(20):
            old.restore(f"x{n}", 0, old.dump("x"))
        before: list[int] = []

        def calls() -> int:
            return int(old.info("commandstats")["cmdstat_dump"]["calls"])

        certified(move(fleet, old, "holding writers", lambda _: before.append(calls())))
        assert calls() == before[-1]
        assert new.xpending("x19", "g")["pending"] == 1


def test_acknowledgements_since_the_cutover_return_with_a_kept_move(fleet: Fleet) -> None:
    with moving(fleet) as (old, new):
        mover = threading.Thread(
            target=move, args=(fleet, old, "", lambda _: None), kwargs={"keep": True}
        )
        mover.start()
        assert eventually(
            lambda: any(each.kind == "keep" for each in open_changes(fleet.config)), 30
        )
        new.xack("x", "g", "1-1")
        new.connection_pool.disconnect()
        reverse_move(fleet.config, "users:1", hold=PATIENT)
        mover.join()
        assert old.xpending("x", "g")["pending"] == 0


def test_fields_that_expire_at_the_old_place_are_not_taken_for_writes(fleet: Fleet) -> None:
    with moving(fleet) as (old, new):
        needs(old, "HPEXPIRE")
        old.hset("all", "a", 1)

        def meddle(what: str) -> None:
            if what == "holding writers":
                for key in ("h", "all"):
                    old.execute_command("HPEXPIRE", key, 1500, "FIELDS", 1, "a")
            elif what.startswith("emptying"):
                assert eventually(lambda: old.hlen("h") == 2 and not old.exists("all"), 10)

        moved = move(fleet, old, "", meddle)
        assert certified(moved)["stale"] == []
        assert (new.hkeys("h"), new.exists("all")) == ([b"b", b"c"], 0)


@MOMENTS
@pytest.mark.parametrize(
    "call",
    [
        "VADD v VALUES 2 3 4 new",
        "VADD new VALUES 2 3 4 a",
        "VREM v a",
        'VSETATTR v b {"x":1}',
        "VREM single a",
    ],
)
def test_vector_sets_move_with_all_changes(fleet: Fleet, moment: str, call: str) -> None:
    with moving(fleet) as (old, new):
        needs(old, "VADD")
        for n in range(50):
            old.execute_command("VADD", "v", "VALUES", 2, n, n * n, f"e{n}")
        old.execute_command("VADD", "v", "VALUES", 2, 7, 7, "b")
        old.execute_command("VADD", "single", "VALUES", 2, 7, 7, "a")
        expected: list[Any] = []

        def vectors(client: Any) -> Any:
            names = {key: client.execute_command("VRANDMEMBER", key, 99) for key in ("v", "new")}
            return (
                [
                    (key, name, client.execute_command("VEMB", key, name, "RAW"))
                    for key, found in names.items()
                    for name in sorted(found)
                ],
                client.exists("single"),
                client.execute_command("VGETATTR", "v", "b"),
            )

        def meddle(what: str) -> None:
            old.execute_command(*call.split())
            expected[:] = [vectors(old)]

        certified(move(fleet, old, moment, meddle))
        assert [vectors(new)] == expected


@pytest.mark.parametrize("entries", [3, 1000])
def test_entries_of_streams_that_differ_elsewhere_are_not_read_again(
    own_server: LocalServer, entries: int
) -> None:
    """As they do between versions, which pack consumers in other ways."""
    with own_server.client(db=1) as one, own_server.client(db=2) as other:

        def copied() -> None:
            one.config_resetstat()
            other.restore("s", 0, one.dump("s") or b"", replace=True)

        for n in range(entries):
            one.xadd("s", {"n": n, "text": "x" * 40})
        one.xgroup_create("s", "g", "0")
        one.xreadgroup("g", "a", {"s": ">"}, count=2)
        copied()
        time.sleep(0.002)  # a change in the middle
        one.xreadgroup("g", "a", {"s": "0"})  # its consumer has another time
        assert one.dump("s") != other.dump("s")
        assert differing(one, other, [b"s"]) == []
        assert one.info("commandstats")["cmdstat_xrange"]["calls"] == 2, "of one entry"
        for change in (
            lambda: one.xack("s", "g", one.xrange("s", count=1)[0][0]),
            lambda: one.xadd("s", {"n": 0}),
            lambda: one.xgroup_create("s", "h", "0"),
        ):
            copied()
            change()
            with pytest.raises(GrowthError, match="1 key could not be compared while writers"):
                differing(one, other, [b"s"], until=time.monotonic())
            assert differing(one, other, [b"s"]) == ["s: has another value"]
        copied()
        other.pexpire("s", 100_000)
        assert differing(one, other, [b"s"]) == ["s: expires at another time"]
        other.delete("s")
        assert differing(one, other, [b"s"]) == ["s: is a stream here and a none there"]


@contextmanager
def capturing(client: redis.Redis) -> Iterator[KeyCapture]:
    turn_on_notifications(client)
    capture = KeyCapture(client, [0])
    try:
        yield capture
    finally:
        capture.close()


def test_a_silent_or_lost_server_stops_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.admin.growth.shard_copy._BARRIER", 0.05)
    with LocalServer() as server, server.client() as client:
        with capturing(client) as capture:
            client.mset({f"k{n}": n for n in range(5)})
            capture.wait_until_told()
            assert [len(capture.take(3)), len(capture.take(3))] == [3, 2]
            with paused(server), pytest.raises(GrowthError, match="does not answer; resume"):
                capture.wait_until_told()
        client.execute_command("ACL", "SETUSER", "default", "-psubscribe")
        said = r"does not tell of changed keys: .*psubscribe.*; see docs/rights\.md"
        with pytest.raises(GrowthError, match=said):
            KeyCapture(client, [0])


def test_a_value_that_the_target_refuses_stops_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalServer() as server, server.client(db=0) as old, server.client(db=1) as new:
        old.set("k", "v" * 100)
        new.set(FENCE_KEY, b"mine")
        server_is_full = "maxmemory", 1
        old.config_set(*server_is_full)
        source, target = Place(ServerAddress("old", 1), 0), Place(ServerAddress("new", 1), 1)
        move = Move("users:1", KEYS, "old:1", "new:1", ["users:1"], [str(source)], [str(target)])
        nobody: Any = None
        copy = DatabaseCopy(source.server, {0: old}, {target: new}, rule_of(move), b"mine", nobody)
        said = "^users:1: the target refuses key k: command not allowed when used memory"
        with pytest.raises(GrowthError, match=said):
            copy._copy_changed([(0, b"k")])
        old.config_set("maxmemory", 0)
        copy._copy_changed([])  # what failed before is copied again
        assert new.get("k") == b"v" * 100
        old.set("k2", 1)
        with monkeypatch.context() as patched:
            take = copy._take
            patched.setattr(copy, "_take", lambda *args: take(*args[:3], [-1, b"a value"]))
            said = "^users:1: the target refuses key k2: DUMP payload version or checksum are wr"
            with pytest.raises(GrowthError, match=said):
                copy._copy_changed([(0, b"k2")])
        new.set(FENCE_KEY, b"another's")
        with pytest.raises(GrowthError, match="another process has taken over this move; see:"):
            copy._copy_changed([])


def test_what_a_capture_needs(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server.client() as client:
        client.config_set("notify-keyspace-events", "Ex")
        with pytest.raises(MissedChangesError, match="notify-keyspace-events was changed"):
            KeyCapture(client, [0])
        turn_on_notifications(client)
        monkeypatch.setattr(
            "shardkit.admin.growth.shard_copy._calls", lambda stats: defaultdict(str)
        )
        with pytest.raises(GrowthError, match=r"does not count calls .*; move the whole server: "):
            KeyCapture(client, [0])
        assert client.client_list(_type="pubsub") == []


def test_a_capture_is_complete_until_keys_may_change_without_a_notification() -> None:
    with LocalServer() as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-object")  # refused, and counted
        for command in ("CONFIG RESETSTAT", "SWAPDB 0 1", "REPLICAOF NO ONE"):
            with capturing(client) as capture:
                client.set("k", 1)
                client.config_get("notify-keyspace-events")
                capture.require_complete()
                client.execute_command(*command.split())
                name = command.split()[0] if "CONFIG" not in command else command
                with pytest.raises(MissedChangesError, match=f"{name}.* was called; copy again"):
                    capture.require_complete()


@pytest.mark.parametrize(("patience", "looks"), [(60.0, 3), (-1.0, 1)])
def test_a_copy_catches_up(monkeypatch: pytest.MonkeyPatch, patience: float, looks: int) -> None:
    monkeypatch.setattr("shardkit.admin.growth.shard_copy._PATIENCE", patience)
    much = {(number, FENCE_KEY.encode()): True for number in range(NEAR + 1)}
    little = {(number, FENCE_KEY.encode()): True for number in range(NEAR)}
    capture: Any = Mock(take=Mock(side_effect=[much, much, little]))
    nobody: Any = None
    DatabaseCopy(nobody, {}, {}, nobody, b"", capture).follow(lambda: True)
    assert capture.take.call_count == looks


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GrowthError("the target is full", "empty it"), "^the target is full; empty it$"),
        (redis.ConnectionError("away"), "^the copy was interrupted: away; resume it$"),
    ],
)
def test_a_copy_reports_that_it_could_not_follow(error: Exception, said: str) -> None:
    nobody: Any = None
    copy = DatabaseCopy(nobody, {}, {}, nobody, b"", nobody)
    copy.follow = Mock(side_effect=error)  # type: ignore[method-assign]
    with pytest.raises(GrowthError, match=said), following([copy]):
        pass


def described(client: Any, key: str) -> Any:
    """A stream as XINFO STREAM FULL has it, but for times of delivery."""
    found = client.xinfo_stream(key, full=True)
    for name in ("radix-tree-keys", "radix-tree-nodes"):
        del found[name]
    for group in found["groups"]:
        group["pending"] = [[*each[:2], each[3]] for each in group["pending"]]
        for consumer in group["consumers"]:
            consumer["pending"] = [[each[0], each[2]] for each in consumer["pending"]]
            for name in ("seen-time", "active-time"):
                consumer.pop(name, None)
    return found


def fill(client: redis.Redis, key: str, seed: int, size: int) -> None:
    """Write a stream with consumers, and delete some of what they have."""
    chance = random.Random(seed)
    ids: list[bytes] = []
    for group in ("a", "b", "empty"):
        client.xgroup_create(key, group, "0", mkstream=True)
    client.xgroup_createconsumer(key, "a", "idle")
    for n in range(60):
        ids.append(client.xadd(key, {"n": n, "v": "x" * size}))  # type: ignore[arg-type]
        if chance.random() < 0.6:
            names = chance.choice("ab"), chance.choice(["one", "two"])
            client.xreadgroup(*names, {key: ">"}, count=chance.randrange(1, 9))
        if chance.random() < 0.2:
            client.xdel(key, *chance.sample(ids, min(len(ids), 4)))
        if chance.random() < 0.1:
            client.xack(key, "a", *chance.sample(ids, min(len(ids), 3)))
        if chance.random() < 0.1:
            pending = client.xpending_range(key, "a", "-", "+", 5)
            held = [each["message_id"] for each in pending]
            if held:
                client.xclaim(key, "a", "two", 0, held)
    end = seed % 4
    if end == 1:
        client.xtrim(key, maxlen=3, approximate=False)
    elif end == 2:
        client.xtrim(key, maxlen=0, approximate=False)
    elif end == 3:
        client.xdel(key, ids[-1])


@faces
@pytest.mark.parametrize("size", [10, 20_000])
def test_streams_keep_pending_entries_that_were_deleted(fleet: Fleet, face: str, size: int) -> None:
    fleet.push(0)
    with fleet.servers[0].client(db=2) as old:
        for seed in range(4):
            fill(old, f"{{3}}{seed}", seed, size)
        before = {seed: described(old, f"{{3}}{seed}") for seed in range(4)}
        gone = [
            each
            for seed, found in before.items()
            for group in found["groups"]
            for each in group["pending"]
            if not old.xrange(f"{{3}}{seed}", each[0], each[0])
        ]
        assert gone
    move = ["users:1"], fleet.name(1)
    certified(call(face, "start_move", fleet.config, *move, hold=PATIENT))
    with fleet.servers[1].client(db=2) as new:
        for seed, found in before.items():
            assert described(new, f"{{3}}{seed}") == found, seed


@faces
def test_changes_alone_of_a_large_stream_are_copied_while_writers_wait(
    fleet: Fleet, face: str
) -> None:
    """Even if pending entries were deleted."""
    fleet.push(0)
    key = "{3}large"
    with fleet.servers[0].client(db=2) as old, fleet.servers[1].client(db=2) as new:
        pipe = old.pipeline()
        for n in range(4000):
            pipe.xadd(key, {"text": "x" * 200}, id=f"{n + 1}-0")
        pipe.xgroup_create(key, "g", 0).xgroup_create(key, "h", 0)
        pipe.xreadgroup("g", "c", {key: ">"}, count=300).xreadgroup("h", "d", {key: ">"}, count=9)
        pipe.xdel(key, *(f"{n}-0" for n in range(1, 300, 2))).execute()
        added: list[int] = []
        facts: list[Any] = []

        def meddle(what: str) -> None:
            if what == "holding writers":
                added.append(new.info("commandstats")["cmdstat_xadd"]["calls"])
                old.xreadgroup("g", "e", {key: ">"}, count=20)
                old.xadd(key, {"n": 1})
                old.xdel(key, "2-0", "302-0", "3000-0", old.xadd(key, {"n": 2}))
                old.xack(key, "g", "1-0", "4-0")
                old.xgroup_delconsumer(key, "h", "d")
                old.xgroup_create(key, "new", "$")
                facts.append(described(old, key))
                old.connection_pool.disconnect()

        old.connection_pool.disconnect()
        move = ["users:1"], fleet.name(1)
        options: Any = {"hold": PATIENT, "progress": meddle}
        certified(call(face, "start_move", fleet.config, *move, **options))
        assert [described(new, key)] == facts
        assert new.info("commandstats")["cmdstat_xadd"]["calls"] < added[0] + 10


def test_a_deleted_pending_entry_that_is_missing_is_a_difference(fleet: Fleet) -> None:
    with fleet.servers[0].client() as one, fleet.servers[1].client() as other:
        fill(one, "s", 2, 10)
        other.restore("s", 0, one.dump("s"))  # type: ignore[arg-type]
        clients = (lambda _: one), (lambda _: other)
        assert compare(*clients, [0]).same
        [first, *_] = one.xpending_range("s", "a", "-", "+", 1)
        assert not one.xrange("s", first["message_id"], first["message_id"])
        other.xack("s", "a", first["message_id"])
        assert not compare(*clients, [0]).same


SETTING = "notify-keyspace-events"


class Shard:
    """The keys of ``users:1``, which is in database 2 of the first server."""

    def __init__(self, fleet: Fleet) -> None:
        fleet.push(0)
        self.fleet = fleet
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            self.keys = [key for key in (f"k{n}" for n in range(200)) if router.shard_of(key) == 1]
            router.mset(dict.fromkeys(self.keys, "old"))

    def write(self, value: str = "new") -> None:
        """Set half of the keys, and delete the others."""
        with shardkit.connect(self.fleet.url) as kit:
            router = kit.key_sharded("users")
            for key in self.keys[::2]:
                router[key].set(key, value)
            for key in self.keys[1::2]:
                router[key].delete(key)

    def has(self, value: str = "new") -> bool:
        """Whether entries lead to what `write` wrote."""
        with shardkit.connect(self.fleet.url) as kit:
            found = kit.key_sharded("users").mget(self.keys)
        return bool(found[::2] == [value.encode()] * len(found[::2]) and not any(found[1::2]))

    def move(
        self, moment: str, meddle: Callable[[], object], times: int = 1, *, kill: bool = False
    ) -> Move:
        """Move it, and do something else when the mover has come so far."""
        left = [times]

        def tell(what: str) -> None:
            if what.startswith(moment) and left[0]:
                left[0] -= 1
                meddle()

        options: Any = {"hold": PATIENT, "kill": kill, "progress": tell}
        return start_move(self.fleet.config, ["users:1"], self.fleet.name(1), **options)


def set_by_somebody(source: redis.Redis, write: Callable[[], object]) -> None:
    source.config_set(SETTING, "Ex")
    write()


def set_and_set_back(source: redis.Redis, write: Callable[[], object]) -> None:
    before = source.config_get(SETTING)[SETTING]
    source.config_set(SETTING, "Ex")
    write()
    source.config_set(SETTING, before)


def set_back_and_statistics_reset(source: redis.Redis, write: Callable[[], object]) -> None:
    set_and_set_back(source, write)
    source.config_resetstat()
    # As many calls as the mover has seen in the beginning.
    source.config_set(SETTING, source.config_get(SETTING)[SETTING])


def subscription_lost(source: redis.Redis, write: Callable[[], object]) -> None:
    source.client_kill_filter(_type="pubsub")
    write()


def flushed(source: redis.Redis, write: Callable[[], object]) -> None:
    source.client().execute_command("FLUSHALL")
    write()


MEDDLERS = [set_by_somebody, set_and_set_back, set_back_and_statistics_reset]
MEDDLERS += [subscription_lost, flushed]


@pytest.mark.long(6)
@pytest.mark.parametrize("moment", ["copied", "comparing", "holding writers"])
@pytest.mark.parametrize("meddle", MEDDLERS)
def test_doubtful_copies_are_redone(fleet: Fleet, meddle: Callable[..., None], moment: str) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source:
        source.config_resetstat()
        move = shard.move(moment, lambda: meddle(source, shard.write))
        assert source.config_get(SETTING)[SETTING] == ""
    assert move.phase == "done"
    assert fleet.masters()[1] == fleet.name(1)
    assert shard.has("new")
    assert certified(move)
    assert verify_move(fleet.config, "users:1").certificate == move.certificate | {
        "at": pytest.approx(move.certificate["at"], abs=60)
    }


@on_redis_too
def test_databases_that_are_swapped_during_the_copy_are_copied_again(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[0].client(db=9) as other:
        other.mset(dict.fromkeys(shard.keys[::2], "new"))
        shard.move("copied", lambda: source.swapdb(2, 9))
    assert shard.has("new")


def test_a_move_whose_copies_all_miss_changes_gives_up_and_names_the_cause(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[1].client(db=2) as target:
        said = (
            rf"^users:1 \({fleet.name(0)}\): each of 3 copies may have missed changes "
            r"\(CONFIG SET was called\): nothing has changed for clients; "
            r"correct that, and resume: shardkit move resume users:1$"
        )
        with pytest.raises(GrowthError, match=said):
            shard.move("copied", lambda: set_by_somebody(source, shard.write), times=99)
        assert fleet.masters()[1] == fleet.name(0)
        assert shard.has("new")
        assert [each.phase for each in moves(fleet.config)] == ["begun"]
        shard.write("newer")
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert shard.has("newer")
        assert not target.exists(FENCE_KEY)


def test_a_fence_that_nobody_tells_of_is_noticed(fleet: Fleet) -> None:
    """Even if calls of CONFIG SET were not counted."""
    shard = Shard(fleet)
    with uncounted_calls(), fleet.servers[0].client() as source:
        shard.move("holding writers", lambda: set_by_somebody(source, shard.write))
    assert shard.has("new")


def test_only_held_writers_give_a_same(fleet: Fleet) -> None:
    shard = Shard(fleet)
    seen: list[Any] = []

    def look() -> None:
        [move] = moves(fleet.config)
        seen.append(move.certificate)

    with before("decide", look):
        shard.move("holding writers", look)
    assert seen[0] is None
    assert seen[1]["same"]


def test_what_is_written_at_the_old_place_unnoticed_is_kept(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[0].client(db=2) as old:

        def meddle() -> None:
            source.config_set(SETTING, "Ex")
            old.set("stray", 1)

        move = shard.move("emptying", meddle)
        assert move.certificate is not None
        assert move.certificate["stale"] == ["2 stray"]
        assert old.get("stray") == b"1"


def test_a_target_that_evicts_copied_keys_does_not_take_over(fleet: Fleet) -> None:
    shard = Shard(fleet)
    shard.write()
    with fleet.servers[1].client() as target, fleet.servers[1].client(db=2) as new:

        def evict() -> None:
            fence = new.get(FENCE_KEY)
            target.config_set("maxmemory-policy", "allkeys-random")
            target.config_set("maxmemory", 1)
            while new.dbsize():
                target.ping()  # a server evicts keys before it executes a command
            target.config_set("maxmemory", 0)
            new.set(FENCE_KEY, fence)

        said = f"{fleet.name(1)} was restarted or has evicted keys"
        with pytest.raises(GrowthError, match=said):
            shard.move("holding writers", evict)
        assert fleet.masters()[1] == fleet.name(0)
        assert shard.has("new")
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert shard.has("new")


def change_by_every_command(source: redis.Redis, other: redis.Redis, second: redis.Redis) -> None:
    """Change keys in all ways that send notifications."""
    run: Any = source.execute_command
    run("RENAME", "renamed", "renamed.new")
    run("COPY", "copied", "copied.new")
    run("RESTORE", "restored", 0, source.dump("copied"), "REPLACE")
    other.set("moved", "in")
    other.execute_command("MOVE", "moved", 2)
    second.set("migrated", "in")
    port = source.connection_pool.connection_kwargs["port"]
    second.execute_command("MIGRATE", "127.0.0.1", port, "migrated", 2, 1000)
    run("PEXPIRE", "expired", 1)
    run("EXPIRE", "expires", 1000)
    run("PERSIST", "persists")
    run("HPEXPIRE", "fields", 1, "FIELDS", 1, "gone")
    run("HEXPIRE", "fields", 1000, "FIELDS", 1, "later")
    run("EVAL", "redis.call('SET', KEYS[1], 'in')", 1, "scripted")
    code = "redis.register_function('f', function(k) return redis.call('SET', k[1], 'in') end)"
    source.function_load(f"#!lua name=l\n{code}", replace=True)
    run("FCALL", "f", 1, "called")
    run("LMOVE", "list", "list.new", "LEFT", "RIGHT")
    run("SORT", "list", "ALPHA", "STORE", "sorted")
    run("SUNIONSTORE", "union", "set")
    run("GETEX", "got", "PX", 1)
    with source.pipeline() as pipe:
        pipe.set("in transaction", "in")
        pipe.execute()
    run("XGROUP", "CREATE", "stream", "g", 0)


def dumped(client: redis.Redis) -> dict[Any, Any]:
    return {key: client.dump(key) for key in client.scan_iter() if not key.startswith(b"config:")}


@pytest.mark.parametrize("moment", ["comparing", "holding writers"])
def test_changes_by_every_command_are_copied(fleet: Fleet, moment: str) -> None:
    shard = Shard(fleet)
    a, b = fleet.servers[:2]
    with (
        a.client(db=2) as source,
        a.client(db=5) as other,
        b.client(db=7) as second,
        b.client(db=2) as target,
    ):
        for key in ("renamed", "copied", "expired", "expires", "got"):
            source.set(key, "in")
        source.set("persists", "in", ex=1000)
        source.set("restored", "old")
        source.hset("fields", mapping={"gone": 1, "later": 2, "stays": 3})
        source.rpush("list", "b", "a", "c")
        source.sadd("set", "x")
        for n in (1, 2, 3):
            source.xadd("stream", {"n": n}, id=f"{n}-1")
        done: list[Any] = []

        def meddle() -> None:
            change_by_every_command(source, other, second)
            source.xreadgroup("g", "c", {"stream": ">"}, count=2)
            while moment == "comparing" and target.dump("stream") != source.dump("stream"):
                pass
            # This sends no notification. Streams are copied again at the end.
            source.xack("stream", "g", "1-1")
            while source.hlen("fields") > 2 or source.exists("expired", "got"):
                pass
            done.append(dumped(source))

        assert certified(shard.move(moment, meddle, kill=True))  # MIGRATE keeps a connection
        [expected] = done
        found = dumped(target)
        assert {k for k in expected if found.get(k) != expected[k]} <= {b"fields"}
        assert found.keys() == expected.keys()
        assert target.hgetall("fields") == {b"later": b"2", b"stays": b"3"}
        [ttl] = target.execute_command("HTTL", "fields", "FIELDS", 1, "later")
        assert ttl > 900
        assert (target.ttl("expires") > 900, target.ttl("persists")) == (True, -1)
        assert target.xpending("stream", "g")["pending"] == 1


@faces
def test_streams_that_were_written_anew_trimmed_or_emptied_are_copied(
    fleet: Fleet, face: str
) -> None:
    fleet.push(0)
    streams = ["{3}anew", "{3}other", "{3}trimmed", "{3}emptied"]

    def fill(client: Any, key: str, first: int, count: int, text: str = "x") -> None:
        pipe = client.pipeline()
        for n in range(first, first + count):
            pipe.xadd(key, {"text": text * 200}, id=f"{n}-0")
        pipe.execute()

    facts: list[Any] = []

    def meddle(what: str) -> None:
        if what != "holding writers":
            return
        with fleet.servers[0].client(db=2) as old:
            old.delete(streams[0], streams[1], streams[3])
            fill(old, streams[0], 5000, 4000)
            fill(old, streams[1], 1, 4100, "y")
            old.xtrim(streams[2], maxlen=5, approximate=False)
            old.xgroup_create(streams[3], "g", mkstream=True)
            old.xgroup_destroy(streams[3], "g")
            facts.append([described(old, key) for key in streams])

    with fleet.servers[0].client(db=2) as old:
        for key in streams:
            fill(old, key, 1, 4000)
        old.xgroup_create(streams[2], "g", "2-0", entries_read=2)
    options: Any = {"hold": PATIENT, "progress": meddle}
    certified(call(face, "start_move", fleet.config, ["users:1"], fleet.name(1), **options))
    with fleet.servers[1].client(db=2) as new:
        assert [described(new, key) for key in streams] == facts[-1]
