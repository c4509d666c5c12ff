"""Whatever is damaged in what structures store: no hang, and no error that does not name it.

A sample of the cases of `damages`, by a seed; ``make damage`` makes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from inspect import getattr_static, signature
from random import Random
from typing import Any, TypeAlias

import pytest
from cancellations import left_behind
from damages import BOMBS, DEEP, STORED, SUBJECTS as DAMAGED, Driver, cases
from faces import Face
from subjects import MAP, RANGES, SESSIONS, SUBJECTS, _tally

from shardkit import DamagedDataError, ShardKit, ShardKitError, ShardMap, connect, operations
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.local import LocalServers

CASES = 6  # of each subject, on each face


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, connect(servers.shard_map) as kit:
        if request.param == "blocking":
            yield Driver(kit, servers.shard_map, checks=True)
            return
        with asyncio.Runner() as runner:
            driver = Driver(kit, servers.shard_map, runner)
            yield driver
            runner.run(driver.awaiting.aclose())


# What a call returns in silence, although the format could tell: none. What it cannot tell are
# members that were lost one by one, values, and counts that nothing else is stored of.
READ_WHOLE = {
    ("set", "smembers"),
    ("set", "sscan_iter"),
    ("set", "sunion"),
    ("hash", "hkeys"),
    ("sorted set", "zscan_iter"),
    ("sorted set", "zrange"),
    ("list", "items"),
    ("list", "lrange"),
}


@pytest.mark.long(16)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_damage_is_named_or_changes_nothing(driver: Driver, name: str) -> None:
    outcomes = list(driver.outcomes(name, seed=1 + (driver.runner is None), some=str(CASES)))
    assert len(outcomes) >= 4
    for outcome in outcomes:
        assert outcome.result not in ("blind", "other", "raw", "hang"), outcome
        # A score, of which only check() sees that it is wrong, or parts of a list, which have no
        # members of their own.
        value = " at " in outcome.what or (name == "list" and "swapped" in outcome.what)
        if (name, outcome.call) in READ_WHOLE and "more" not in outcome.what and not value:
            assert outcome.result not in ("wrong", "check"), outcome


# Calls that take something away, or wait for it; indexes store what they were told to remove.
TAKING = """
    acknowledge acknowledge_many blpop break_holds cancel checkpoint clean clear close
    count_down delete expire expireat extend fail fetch fetch_from hdel hexpire hexpireat
    hpersist items keep leave linsert list_timeline llen lmove lpop lrem lset ltrim move_due
    open persist pexpire pexpireat pop pop_all purge read rebuild records recount recover
    release remove remove_all remove_group remove_many reset restore revive rpop spop srem take
    take_all transfer turn_off unlist zpopmax zpopmin zrem zremrangebyrank zremrangebyscore
"""
CREATING = {(f"unique {precision}", "expected") for precision in ("exact", "60-bit", "compact")}
CREATING |= {("changed list", "rebuild")}


@pytest.mark.long(40)
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_reading_and_taking_away_create_nothing(driver: Driver, name: str, known: bool) -> None:
    """On a new object, or on one that has read what others have deleted since."""
    subject = DAMAGED[name]
    if known:
        driver.prepare(name)
    calls = subject.reads | {
        each: subject.writes[each] for each in TAKING.split() if each in subject.writes
    }
    for called, call in calls.items():
        opened = driver.open(name)
        if known:
            driver.restore(STORED)
            for read in subject.reads.values():
                read(opened)
        driver.client.flushdb()
        with suppress(ShardKitError):  # what was never created or imported
            call(opened)
        assert stored(driver) == {} or (name, called) in CREATING, called


@pytest.mark.long(30)
@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_is_found_in_nothing_or_in_what_was_written(driver: Driver, name: str) -> None:
    driver.client.flushall()
    assert list(driver.call(name, DAMAGED[name].check)) == []
    driver.prepare(name)
    assert list(driver.call(name, DAMAGED[name].check)) == []


@pytest.mark.long(5)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_cancelled_call_leaves_no_damage_and_nothing_taken(name: str) -> None:
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, connect(servers.shard_map) as kit, asyncio.Runner() as runner:
        driver = Driver(kit, servers.shard_map, runner)
        for called, call in {**DAMAGED[name].reads, **DAMAGED[name].writes}.items():
            assert left_behind(driver, name, called, call) == [], called
        runner.run(driver.awaiting.aclose())


LONG = "9" * 5000  # more digits than Python makes a number of
OF_LONG: dict[str, Callable[[Any], Any]] = {
    "network": lambda client: (
        client.hset(next(client.scan_iter("user:*")), "posts", LONG),
        client.zadd("pending:{social:u1}", {f"post:{LONG}:4": 1}),
    ),
    "search": lambda client: client.hset(next(client.scan_iter("*:n:0")), LONG, "7"),
    "ads": lambda client: client.hset("{ads:0}:bonus:0:1", LONG, "0.5"),
    "queue": lambda client: client.hset("queues:{mail}:rates", f"enqueued:{LONG}", LONG),
    "chats": lambda client: client.hset("chat:user:{bo}", "gone", f"1 {LONG}"),
}


@pytest.mark.parametrize("name", OF_LONG)
def test_thousands_of_digits_end_no_check_and_are_no_wrong_reply(driver: Driver, name: str) -> None:
    driver.prepare(name)
    OF_LONG[name](driver.client)
    subject = DAMAGED[name]
    calls = {**subject.reads, **subject.writes, "check": lambda it: list(subject.check(it))}
    checks = calls.keys() & {"rates", "unread", "repair", "check"}
    assert checks
    for called in checks:
        with suppress(DamagedDataError):  # whatever else is raised fails the test
            driver.call(name, calls[called])


def stored(driver: Driver) -> dict[bytes, bytes]:
    """What is stored, but for logs: the kit may still send what an earlier test has recorded."""
    keys = [key for key in driver.all_keys() if not key.startswith(b"logs:")]
    return {key: driver.client.dump(key) for key in keys}


# A set or hash of fewer members than there are is told by a whole read only.
NUMBERS = [
    (name, field, number)
    for name in ("set", "hash", "sorted set")
    for field in ("parts", "count")
    for number in ("2147483648", "5000", "-1", "0", "1e3", "", "digits")
    if (field, number) not in (("parts", "5000"), ("count", "0"))
    or (name, number) == ("sorted set", "0")
]


@pytest.mark.parametrize(("name", "field", "number"), NUMBERS)
def test_no_number_of_a_group_makes_a_client_or_server_work_without_end(
    driver: Driver, name: str, field: str, number: str
) -> None:
    driver.prepare(name)
    for key in list(driver.client.scan_iter("*}")):
        driver.client.hset(key, field, BOMBS.get(number, number))
    before = stored(driver)
    subject = SUBJECTS[name]
    call = next(iter(subject.writes.values()))
    with pytest.raises(DamagedDataError) as raised:
        driver.call(name, call)
    assert raised.value.shard == "data"
    assert stored(driver) == before
    driver.call(name, DAMAGED[name].writes["rebuild"])
    assert list(driver.call(name, DAMAGED[name].check)) == []


@pytest.mark.parametrize("key", ["queues:{mail}:claims", "queues:{mail}:dead", "lock:stock:fence"])
def test_the_key_of_another_type_is_named_not_its_neighbour(
    face: Face, kit: ShardKit, key: str
) -> None:
    client: Any = kit.client("one")
    queues = face.kit.queues(component="one")
    face.run(queues.enqueue("mail", "send"))
    hold = face.run(face.kit.lock("stock", component="one", renew=False).acquire())
    client.rpush(key, "of another type")
    calls = {
        "queues:{mail}:claims": lambda: queues.take("mail", timeout=0),
        "queues:{mail}:dead": lambda: queues.counts("mail"),  # one of several of a MULTI
        "lock:stock:fence": lambda: hold.guard("one").execute(("SET", "stock:7", "4")),
    }
    with pytest.raises(DamagedDataError) as raised:
        face.run(calls[key]())
    assert (raised.value.shard, raised.value.key) == ("one", key)


def _cut(client: Any, key: str) -> None:
    client.set(key, client.get(key)[:-1])


def _hdel_any(client: Any, key: str) -> None:
    client.hdel(key, client.hrandfield(key))


def _write_all(value: bytes, key: str = "") -> Callable[[Any, str], object]:
    return lambda client, named: client.hset(
        key or named, mapping=dict.fromkeys(client.hkeys(key or named), value)
    )


# What is lost: of which subject, in which key, by which command on it, and the calls that miss it.
Loss: TypeAlias = tuple[str, str, Sequence[Any] | Callable[[Any, str], object], str]
LOST: dict[str, Loss] = {
    "a part": ("sorted set", "s:{0}:0", ["delete"], "top of more, zcount, zrevrank, zrangebyscore"),
    "a top": ("sorted set", "s:{0}:top", ["delete"], "top"),
    "most of a top": ("sorted set", "s:{0}:top", ["zremrangebyrank", 0, -2], "top"),
    "a member": ("sorted set", "s:{0}:0", ["zpopmin"], "top of more, zcount, zrevrank"),
    "a field": ("hash", "h:{0}:0", _hdel_any, "hgetall, hkeys, hvals, hscan_iter"),
    "a state": ("set", "ids:{0}", ["delete"], "scard, smembers, sismember, sadd"),
    "most records": ("packed", "p:1", ["set", b"x"], "count, scan_iter, get, get_many, set"),
    "a part's bytes": (
        *("packed", "p:1", ["set", b""]),
        "count, aggregate, scan_iter, get, get_many, set, increment",
    ),
    "a bitmap's bytes": (
        *("unique bitmap", "u:2015-05-17:0", ["set", b""]),
        "ids, counts, recount, visit",
    ),
    "the end of a bitmap": ("unique bitmap", "u:2015-05-17:0", _cut, "ids, counts, recount"),
    "the length of a bitmap": ("unique bitmap", "u:2015-05-17:0", ["append", b"x"], "ids, counts"),
    "most of a day's size": (
        *("unique 60-bit", "u:2015-05-17:meta", ["hset", "total", 100]),
        "visit, visit_many, ids, recount",
    ),
    "the text of a name": ("address book", "members:elves:0", ["zadd", {b"": 0}], "names"),
    "the type of values": (
        *("list", "{jobs}:ends", ["hset", "values", "int"]),
        "llen, items, lindex, rpush",
    ),
    "a time": ("contacts", "recent:ada", ["zadd", {"a": "inf"}], "times"),
    "readable readers": ("files", "files:{logs}", ["hset", "readers", DEEP], "status"),
    "a readable generation": (
        *("ip to city", "ip2city:generations", ["hset", "current", DEEP]),
        "find",
    ),
    "a readable source": ("totals", "totals:{d}:done", ["hset", DEEP, "1 1 1"], "sources"),
    "a count of documents": (
        *("search", "{docs:1}:state", ["hset", "docs", 3]),
        "count, info, count of a word",
    ),
    "ids of documents": ("search", "{docs:1}:n:0", ["delete"], "phrase, count of a phrase, sorted"),
    "marks": ("search", "{docs:1}:v:0", ["delete"], "count of a range"),
    "a column": ("search", "{docs:1}:a:1:0", _cut, "sorted, weights, facets"),
    "the length of a column": (
        *("search", "{docs:1}:a:1:0", ["append", bytes(800)]),
        "sorted, weights, facets, count of a range",
    ),
    "the length of ads' incomes": ("ads", "{ads:0}:a:1:0", ["append", bytes(800)], "target"),
    "the length of jobs' numbers": ("jobs", "{posts:0}:a:1:0", ["append", bytes(800)], "find, all"),
    "an id in UTF-8": (
        *("search", "{docs:1}:state", _write_all(b"\xff", "{docs:1}:n:0")),
        "sorted, weights, facets, page, search",
    ),
    "an ad's id": ("ads", "{ads:0}:state", _write_all(b"\xff", "{ads:0}:n:0"), "target"),
    "a job's id": ("jobs", "{posts:0}:state", _write_all(b"\xff", "{posts:0}:n:0"), "find, all"),
    "an ad": ("ads", "{ads:0}:d:1", ["append", b"x"], ""),
    "the postings of an ad": ("ads", "{ads:0}:r:0:0", _write_all(bytes(100_001)), "remove"),
    "a user's time": ("network", "user:{social:u3}:7", ["hset", "signup", -1], "get"),
    "a status's time": (
        "network",
        "status:{social:u3}:15",
        ["hset", "posted", "007"],
        "get, profile",
    ),
    "the login of a status": (
        "network",
        "status:{social:u3}:15",
        ["hset", "login", ""],
        "get, profile",
    ),
    "a list's time": ("network", "list:{social:u0}:8", ["hset", "created", "9" * 30], "get, lists"),
    "a document": ("search", "{docs:3}:d:45", ["delete"], "attributes"),
    "the end of a document": (
        *("search", "{docs:2}:d:7", lambda c, key: c.set(key, c.get(key)[:25])),
        "get, get_many",
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_a_loss_is_named_by_calls_that_could_miss_it(driver: Driver, what: str) -> None:
    name, key, lose, calls = LOST[what]
    driver.prepare(name)
    if callable(lose):
        lose(driver.client, key)
    else:
        getattr(driver.client, lose[0])(key, *lose[1:])
    before = stored(driver)
    every = DAMAGED[name].reads | DAMAGED[name].writes
    named = {key, key.rpartition(":")[0]}  # or the state that counts it
    for call in calls.split(", ") if calls else ():
        with pytest.raises(DamagedDataError) as raised:
            driver.call(name, every[call])
        assert raised.value.key in named, (call, raised.value)
        assert raised.value.shard == "data"
    assert stored(driver) == before
    noted = {each.key for each in driver.call(name, DAMAGED[name].check)}
    assert noted if name in ("search", "ads", "jobs") else noted & named  # ids are in others' keys


# What the other keys are found by.
INDEXES = (b"}", b"parts", b":ends", b":starts", b":n:0", b":state", b":generations", b":keys:0")


@pytest.mark.parametrize(
    "name",
    [
        *("set", "hash", "sorted set", "numbered hash", "packed", "list", "changed list"),
        *("search", "ads", "jobs", "ip to city"),
    ],
)
def test_nothing_is_left_of_a_structure_whatever_is_damaged(driver: Driver, name: str) -> None:
    before = driver.prepare(name)
    damages = [each for each in cases(driver.client, Random(1)) if each.key.endswith(INDEXES)]
    for damage in damages:
        driver.restore(before)
        damage.act(driver.client)
        assert driver.call(name, DAMAGED[name].writes["delete"]), damage
        kept = (b":deleted", b":removed:")  # for a minute, and an hour
        assert not [key for key in driver.all_keys() if not any(each in key for each in kept)]
    assert len(damages) > 4


def test_members_that_cannot_be_read_are_put_back_when_they_are_popped(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    ids = face.kit.set("ids", component="one", members=int, parts=2, part_size=16)
    face.run(ids.sadd_many(range(100)))
    key = next(k for k in client.scan_iter("ids:{*}:*"))
    client.srem(key, client.srandmember(key))
    client.sadd(key, b"\xff")

    def members() -> set[bytes]:
        return set().union(*map(client.smembers, client.scan_iter("ids:{*}:*")))

    before = members()
    with pytest.raises(DamagedDataError, match=r"^one: ids:{.}:\d+ is damaged: member b'.xff'"):
        face.run(ids.spop(100))
    assert members() == before


@pytest.mark.parametrize("call", ["lpop", "rpop", "blpop", "brpop", "lmove", "blmove"])
def test_a_value_that_cannot_be_read_is_not_lost_when_it_is_popped(
    face: Face, kit: ShardKit, call: str
) -> None:
    client: Any = kit.client("one")
    jobs, done = (face.kit.list(f"{{j}}:{name}", component="one") for name in ("jobs", "done"))
    face.run(jobs.rpush("a"))
    client.lset("{j}:jobs:0", 0, b"\xff")
    args: tuple[Any, ...] = () if call in ("lpop", "rpop") else (0.01,)
    if "move" in call:
        args = (done, *args) if call == "blmove" else (done,)
    popped = rf"^one: {{j}}:{'done' if 'move' in call else 'jobs'}:0 is damaged: value b'.xff'"
    with pytest.raises(DamagedDataError, match=popped):
        face.run(getattr(jobs, call)(*args))
    kept = done if "move" in call else jobs
    assert face.run(kept.llen()) == 1
    assert client.lrange(f"{{j}}:{'done' if 'move' in call else 'jobs'}:0", 0, -1) == [b"\xff"]


def test_the_part_of_a_value_or_member_that_cannot_be_read_is_named(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    words = [f"word{n}" for n in range(300)]
    values = face.kit.hash("h", component="one", codec="json", part_size=16)
    ids = face.kit.set("ids", component="one", members=int, part_size=16)
    planned = face.kit.set("planned", component="one", total=300, part_size=16)
    scores = face.kit.sorted_set("s", component="one", part_size=16)
    jobs = face.kit.list("jobs", component="one", part_size=16)
    numbers = face.kit.hash("numbers", component="one", codec="json", part_size=16)
    face.run(values.hset(mapping=dict.fromkeys(words, 1)))
    face.run(numbers.hset(mapping=dict.fromkeys(range(100), 1)))
    face.run(ids.sadd_many(range(300)))
    face.run(planned.sadd_many(words))
    face.run(scores.zadd(dict.fromkeys(words, 1)))
    face.run(jobs.rpush(*words))
    field = client.hkeys("h:{1}:1")[0]
    client.hset("h:{1}:1", field, b"[" * 100_000 + b"]" * 100_000)
    client.hset("numbers:2", 5, b"[1")
    for key in ("ids:{1}:1", "planned:3"):
        client.sadd(key, b"\xff")
    client.zadd("s:{1}:1", {b"\xff": 0})
    client.lset("{jobs}:3", 5, b"\xff")
    reads = {
        "h:{1}:1": [
            lambda: values.hget(field.decode()),
            lambda: values.hmget(words),
            values.hgetall,
            values.hvals,
            lambda: values.hrandfield(-9999, withvalues=True),
        ],
        "numbers:2": [lambda: numbers.hget(37), numbers.hgetall],
        "ids:{1}:1": [ids.smembers],
        "planned:3": [planned.smembers, lambda: planned.sunion([])],
        "s:{1}:1": [lambda: scores.zrange(0, -1), lambda: scores.zrangebyscore(0, 9)],
        "{jobs}:3": [lambda: jobs.lrange(0, -1), lambda: jobs.lindex(53)],
    }
    for key, calls in reads.items():
        for call in calls:
            with pytest.raises(DamagedDataError) as raised:
                face.run(call())
            assert (raised.value.shard, raised.value.key) == ("one", key)
    for key, stream in {
        "h:{1}:1": values.hscan_iter(),
        "planned:3": planned.sscan_iter(),
        "s:{1}:1": scores.zscan_iter(),
        "{jobs}:3": jobs.items(),
    }.items():
        with pytest.raises(DamagedDataError) as raised:
            face.list(stream)
        assert (raised.value.shard, raised.value.key) == ("one", key)
    with pytest.raises(ExceptionGroup) as together:
        face.run(face.kit.together(ids.deferred.smembers()))
    assert [each.key for each in together.value.exceptions] == ["ids:{1}:1"]


def test_sets_of_which_a_part_is_lost_are_not_combined(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    a, b, c = (
        face.kit.set(name, component="one", members=int, parts=1, part_size=16) for name in "abc"
    )
    for each in (a, b, c):
        face.run(each.sadd_many(range(300)))
    client.delete("b:{0}:3")
    lost = r"b:\{0\} is damaged: 29\d members"
    calls = (lambda: a.sinter(b), lambda: a.sdiff(b), lambda: c.sunionstore([a, b]))
    for call in calls:
        with pytest.raises(DamagedDataError, match=lost):
            face.run(call())
    with pytest.raises(DamagedDataError, match=lost):
        face.list(a.sunion_iter(b))
    assert face.run(c.scard()) == 300


def test_a_group_whose_parameters_are_unreadable_is_not_taken_for_another_structures(
    face: Face, kit: ShardKit
) -> None:
    ids = face.kit.set("ids", component="one", members=int, parts=2, part_size=16)
    face.run(ids.sadd_many(range(300)))
    client: Any = kit.client("one")
    for state in list(client.scan_iter("ids:{*}")):
        client.hset(state, "of", "")
    for use in (lambda: ids.sadd(1000, 2000), lambda: ids.srem(*range(50))):
        with pytest.raises(DamagedDataError, match=r"of=, where"):
            face.run(use())
    assert [each.found for each in face.list(ids.check())] == ["of=b''"] * 2
    assert face.run(ids.rebuild()) == 300
    assert face.list(ids.check()) == []
    assert face.run(ids.sadd(1000)) == 1


def test_a_day_that_has_lost_ids_says_so_when_they_are_listed(face: Face, kit: ShardKit) -> None:
    day = date(2015, 5, 17)
    counter = face.kit.unique_visitors("u", component="one", precision="exact", first_day=500)
    face.run(counter.visit_many(SESSIONS, day))
    assert len(face.list(counter.ids(day))) == 300
    client: Any = kit.client("one")
    client.delete(next(key for key in client.scan_iter("u:*") if client.type(key) == b"set"))
    with pytest.raises(DamagedDataError, match=r"a count of 300.*recount"):
        face.list(counter.ids(day))
    assert face.run(counter.recount(day)) == len(face.list(counter.ids(day))) < 300


def test_a_city_that_a_block_names_and_that_is_lost_is_no_address_without_a_city(
    face: Face, kit: ShardKit
) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(RANGES))
    client: Any = kit.client("one")
    client.delete(*client.scan_iter("*:cities:0"))
    fresh = face.kit.ip_to_city(component="one")
    for look in (lambda: fresh.find("0.0.1.1"), lambda: fresh.find_many(["9.9.9.9", "0.0.1.1"])):
        with pytest.raises(DamagedDataError, match=r"cities:0.*city 1, which a block refers to"):
            face.run(look())
    assert face.run(fresh.find("9.9.9.9")) is None


def test_a_block_of_another_type_is_not_one_without_addresses(face: Face, kit: ShardKit) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(RANGES))
    client: Any = kit.client("one")
    [block] = client.scan_iter("ip2city:*:4:0000")
    # A city that there is not; lists of pages that are not there, and that lead to themselves.
    page = f"{block.decode()}:0"
    for content, paged in ((b"\0\0\0\x63\0\0\0", b""), (b"\1\0\0", b""), (b"\1\0\0", b"\1\0\0")):
        client.set(block, content)
        if paged:
            client.set(page, paged)
        fresh = face.kit.ip_to_city(component="one")
        with pytest.raises(DamagedDataError, match=r"^one: ip2city:\d+:"):
            face.run(fresh.find("0.0.1.1"))
        if not content[0]:
            with pytest.raises(DamagedDataError, match=r":4:0000 is damaged: city 99 of \d+"):
                face.run(fresh.local())
            assert [each.key for each in face.list(fresh.check())] == [block.decode()]
    client.delete(block, page)
    fresh = face.kit.ip_to_city(component="one")
    with pytest.raises(DamagedDataError, match=r":4:0000 is damaged: nothing.*import again"):
        face.run(fresh.local())
    client.rpush(block, "x")
    for addresses in (["0.0.1.1"], ["9.9.9.9", "0.0.1.1"]):
        with pytest.raises(DamagedDataError, match=r":4:0000 is damaged") as raised:
            face.run(fresh.find_many(addresses))
        assert raised.value.shard == "one"
    client.delete(block)
    client.set(block, "x")
    with pytest.raises(DamagedDataError, match=r":4:0000 is damaged: .*import again"):
        face.run(fresh.find("0.0.1.1"))


def test_a_bitmap_day_whose_list_of_parts_is_lost_says_so_before_and_after_a_visit(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    day = date(2015, 5, 17)
    counter = face.kit.unique_visitors("u", component="one", precision="bitmap")
    face.run(counter.visit_many(range(250), day))
    client.delete("u:2015-05-17", "u:2015-05-17:parts")

    def named() -> list[str]:
        fresh = face.kit.unique_visitors("u", component="one", precision="bitmap")
        return [each.key for each in face.list(fresh.check(day))]

    assert named() == ["u:2015-05-17:parts"]
    fresh = face.kit.unique_visitors("u", component="one", precision="bitmap")
    assert face.run(fresh.visit(1000, day)) is True
    assert named() == ["u:2015-05-17"]  # its count
    assert face.run(fresh.rebuild(day)) == 251
    assert named() == []
    client.delete("u:2015-05-17:parts")
    fresh = face.kit.unique_visitors("u", component="one", precision="bitmap")
    assert face.run(fresh.rebuild(day)) == 251
    assert named() == []


def test_a_day_whose_parameters_are_lost_gets_them_back(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    day, meta = date(2015, 5, 17), "u:2015-05-17:meta"
    counter = face.kit.unique_visitors("u", component="one", first_day=500)
    face.run(counter.visit_many(SESSIONS, day))
    stored = client.hgetall(meta)
    client.delete(meta)
    fresh = face.kit.unique_visitors("u", component="one", first_day=500)
    assert [each.key for each in face.list(fresh.check(day))] == [meta]
    assert face.run(fresh.rebuild(day)) == 300
    assert client.hgetall(meta) == stored
    assert face.list(fresh.check(day)) == []


def test_attempts_of_a_dead_task_that_are_no_number_are_named(face: Face, kit: ShardKit) -> None:
    queues = face.kit.queues(component="one", attempts=1)
    face.run(queues.enqueue("mail", "send", id="m1"))
    face.run(queues.fail(face.run(queues.take("mail", timeout=0)), "a test"))
    kit.client("one").hset("queues:{mail}:attempts", "m1", "x")
    with pytest.raises(DamagedDataError, match=r"queues:\{mail\}:attempts is damaged"):
        face.list(queues.dead("mail"))


@pytest.mark.parametrize(("field", "value"), [("f:price", "x"), ("f:price", None), ("item", None)])
def test_an_offer_of_which_half_is_damaged_is_not_one_that_never_was(
    face: Face, kit: ShardKit, field: str, value: str | None
) -> None:
    client: Any = kit.client("one")
    market = face.kit.market(component="one")
    face.run(market.deposit("ada", 5, ["lamp"]))
    face.run(market.deposit("bo", 100))
    assert face.run(market.list("lamp", "ada", 30))
    assert face.run(market.purchase("bo", "lamp", "ada", 29)) is None
    key = "market:{listing/lamp/ada}"
    [field] = [each.decode() for each in client.hkeys(key) if field in each.decode()]
    client.hset(key, field, value) if value else client.hdel(key, field)
    with pytest.raises(DamagedDataError) as raised:
        face.run(market.purchase("bo", "lamp", "ada", 30))
    assert raised.value.key == key
    if field != "f:price":
        with pytest.raises(DamagedDataError, match="0 items with a price"):
            face.run(market.unlist("lamp", "ada"))


@pytest.mark.parametrize("pages", ["0 1", "-1 1", "1 -1", "3 1", "1 0", "1"])
def test_pages_of_a_source_that_cannot_be_are_named(face: Face, kit: ShardKit, pages: str) -> None:
    client: Any = kit.client("one")
    totals = face.kit.totals(component="one")
    face.run(totals.flush("a.log", _tally("d", "DE")))
    [(field, added)] = [
        each for each in client.hgetall("totals:{d}:done").items() if b"[" in each[0]
    ]
    digest = added.split()[2].decode()
    client.hset("totals:{d}:done", field, f"{pages} {digest}")
    with pytest.raises(DamagedDataError, match=r"totals:\{d\}:done is damaged"):
        face.run(totals.sources("d"))


@pytest.mark.parametrize("score", ["inf", "-inf", "3.5", 2**53 + 2, 1e18])
def test_a_message_whose_id_cannot_be_is_named_and_nobody_reads_for_ever(
    face: Face, kit: ShardKit, score: Any
) -> None:
    client: Any = kit.client("one")
    boxes = face.kit.mailboxes(component="one")
    chats = face.kit.chats(component="one")
    face.run(chats.create("ada", ["bo"], "hello", chat="room", history=5))
    for n in range(3):
        face.run(boxes.send("ada", "bo", n))
        face.run(chats.send("room", "ada", n))
    for key in ("mailbox:{ada}", "chat:{room}"):
        client.zadd(key, {client.zrange(key, -1, -1)[0]: score})
    assert [each.key for each in face.list(boxes.check("ada"))] == ["mailbox:{ada}"]
    if score != "-inf":
        with pytest.raises(DamagedDataError, match=r"mailbox:\{ada\}"):
            face.run(boxes.fetch("ada"))
        for _ in range(2):  # no id is given that cannot be, or twice
            with pytest.raises(DamagedDataError, match=r"mailbox:\{ada\} is damaged: a score of"):
                face.run(boxes.send("ada", "bo", "new"))
            with pytest.raises(DamagedDataError, match=r"chat:\{room\} is damaged: a score of"):
                face.run(chats.send("room", "ada", "new"))
    assert "chat:{room}" in [each.key for each in face.list(chats.check("room"))]
    with pytest.raises(DamagedDataError, match=r"chat:\{room\}"):
        face.run(chats.history("room"))


@pytest.mark.parametrize("lost", ["state", "members"])
def test_a_chat_that_lost_a_key_is_not_one_that_never_was(
    face: Face, kit: ShardKit, lost: str
) -> None:
    client: Any = kit.client("one")
    chats = face.kit.chats(component="one")
    face.run(chats.create("ada", ["bo"], "hello", chat="room"))
    client.delete(f"chat:{{room}}:{lost}")
    calls = {
        "fetch": lambda: chats.fetch("bo"),
        "send": lambda: chats.send("room", "ada", "more"),
        "acknowledge": lambda: chats.acknowledge("room", "bo", 1),
        "create": lambda: chats.create("cy", ["bo"], "new", chat="room"),
    }
    for name, call in calls.items():
        if (lost, name) != ("members", "create"):  # which returns the one that there is
            with pytest.raises(DamagedDataError, match=rf"chat:\{{room\}}:{lost} is damaged"):
                face.run(call())
    if lost == "members":
        with pytest.raises(DamagedDataError, match=r"chat:\{room\}:members is damaged"):
            face.list(chats.members("room"))
    assert client.zcard("chat:{room}") == 1
    assert [each.key for each in face.list(chats.check("room"))] == [f"chat:{{room}}:{lost}"]


def test_what_is_popped_in_vain_is_damaged_and_nobody_tries_for_ever(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    scores = face.kit.sorted_set("s", component="one", parts=2, part_size=16, bound=10)
    face.run(scores.zadd({f"m{n}": n for n in range(100)}))
    [part] = [key for key in client.scan_iter("s:*}:[0-9]*") if client.zscore(key, "m0") == 0]
    client.zadd(part, {"m0": "inf"})
    with pytest.raises(DamagedDataError, match=r":bottom is damaged: b'm0' at 0.*rebuild\(\)"):
        face.run(scores.zpopmin())
    assert face.run(scores.rebuild()) == 100
    assert face.list(scores.check()) == []


@pytest.mark.parametrize("precision", ["exact", "60-bit", "compact"])
def test_a_count_of_yesterday_that_cannot_be_does_not_keep_visitors_from_being_counted_today(
    face: Face, kit: ShardKit, precision: str
) -> None:
    client: Any = kit.client("one")
    today = date(2015, 5, 18)

    def fresh() -> Any:
        return face.kit.unique_visitors("u", component="one", precision=precision, first_day=500)

    for count in (10**12, 10**15, -5, "x"):
        client.set("u:2015-05-17", count)
        assert face.run(fresh().visit_many(SESSIONS, today)) == 300
        assert int(client.get("u:2015-05-18:expected")) == 1024
        assert face.run(fresh().count(today)) == 300
        assert face.run(fresh().remove(today))
    face.run(fresh().visit_many(SESSIONS[:100], today))
    for planned in (10**13, "1e3"):
        client.set("u:2015-05-18:expected", planned)
        with pytest.raises(DamagedDataError, match=r"u:2015-05-18:expected is damaged: expected="):
            face.run(fresh().visit_many(SESSIONS, today))
    client.set("u:2015-05-18:expected", 1024)
    field = "parts" if precision == "compact" else "total"
    size = client.hget("u:2015-05-18:meta", field)
    client.hset("u:2015-05-18:meta", field, 3 * int(size))  # nobody is counted twice
    with pytest.raises(DamagedDataError, match=r"u:2015-05-18:meta is damaged.*as it was planned"):
        face.run(fresh().visit_many(SESSIONS, today))
    client.hset("u:2015-05-18:meta", field, size)
    assert face.run(fresh().visit_many(SESSIONS, today)) == 200


# What is refused depends on what is stored, or is read while the call writes.
SENT_FIRST = {("list", "lset"), ("changed list", "lset"), ("ip to city", "import_from")}
NOWHERE = "components: {data: &a {entry: {port: 1}}, second: *a, third: *a}"


def refusal(structure: Any, method: str, value: object) -> str:
    """Call a method with a value for each argument that it needs; return what it refuses."""
    call = getattr(structure, method)
    needed = [each for each in signature(call).parameters.values() if each.default is each.empty]
    plain = [value for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: value for each in needed if each.kind is each.KEYWORD_ONLY}
    try:
        result = call(*plain, **named)
        if isinstance(result, Iterator):
            next(result, None)
    except (InvalidArgumentError, InvalidKeyError) as error:
        return str(error)
    except Exception:
        pass
    return ""


@pytest.mark.parametrize("driver", ["blocking"], indirect=True)
def test_what_a_call_refuses_it_refuses_before_it_sends(driver: Driver) -> None:
    sent = []
    with connect(ShardMap.parse(NOWHERE)) as absent:
        for name, subject in SUBJECTS.items():
            there, away = subject.open(driver.kit), subject.open(absent)
            for method in dir(type(there)):
                if not isinstance(getattr_static(type(there), method), operations.operation):
                    continue
                waits = {"blocking_timeout", "timeout"} & signature(
                    getattr(there, method)
                ).parameters.keys()
                for value in ("", -1) if not waits else ():
                    refused = refusal(there, method, value)
                    if refused and not refusal(away, method, value):
                        sent.append((name, method, refused))
    assert [each for each in sent if each[:2] not in SENT_FIRST] == []


@pytest.mark.parametrize("left", ["starts", "n:0", "y:0", "v:0", "r:0:0"])
def test_an_index_that_lost_its_state_is_not_an_empty_one(
    face: Face, kit: ShardKit, left: str
) -> None:
    client: Any = kit.client("one")
    docs = face.kit.search("docs", component="one", parts=1, attributes={"kind": "text"})
    face.run(docs.index("1", "one two three four", {"kind": "a"}))
    assert client.exists(f"{{docs:0}}:{left}")
    known = (f"{{docs:0}}:{left}".encode(), b"{docs:0}:d:1", b"docs:meta")
    client.delete(*(key for key in client.scan_iter() if key not in known))
    lost = r"\{docs:0\}:state is damaged: nothing"
    with pytest.raises(DamagedDataError, match=lost):
        face.run(docs.index("2", "four"))
    with pytest.raises(DamagedDataError, match=lost):
        face.run(docs.search("four"))
    assert face.list(docs.check())[0].key == "{docs:0}:state"
    assert face.run(docs.rebuild()) == 1
    assert face.list(docs.check()) == []
