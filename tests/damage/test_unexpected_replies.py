"""Replies, states and formats that no structure expects, and servers that are full."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from inspect import getattr_static, signature
from random import Random
from typing import Any

import pytest
import redis
from arranged import client_of
from damages import NOTHING, STORED, SUBJECTS as DAMAGED, Driver, Waited
from faces import Face, drawn
from relays import Relay
from subjects import MAP, SUBJECTS, unchecked

import shardkit
from shardkit import DamagedDataError, ShardErrors, ShardKit, ShardKitError, ShardMap, connect
from shardkit.errors import NewerFormatError, ShardFailure, UnexpectedReply
from shardkit.kit.catalogue import Catalogue
from shardkit.local import LocalServer, LocalServers
from shardkit.operations import Command, Operation, Replies, Transaction, operation, stream

GARBAGE = {
    "a number": b":7\r\n",
    "an empty list": b"*0\r\n",
    "a text": b"$3\r\nabc\r\n",
    "nothing": b"$-1\r\n",
    "a list of a list": b"*1\r\n*0\r\n",
    "numbers": b"*2\r\n:1\r\n:-1\r\n",
    "bytes that are no text": b"$2\r\n\xff\xfe\r\n",
    "a list of several kinds": b"*3\r\n$2\r\n\xff\xfe\r\n$-1\r\n$1\r\nx\r\n",
}


class Relayed:
    """A kit that a relay answers, and another one that the server does."""

    def __init__(self, server: LocalServer, awaits: bool) -> None:
        self.relay = Relay(server.port)
        self.runner = asyncio.Runner() if awaits else None
        self.direct = shardkit.connect(ShardMap.parse(MAP.replace("7001", str(server.port))))
        shard_map = ShardMap.parse(MAP.replace("7001", str(self.relay.port)))
        if self.runner is None:
            self.kit: Any = shardkit.connect(shard_map)
        else:
            self.kit = self.runner.run(shardkit.aconnect(shard_map))
        self.face = Face(self.kit, self.runner)

    def call(self, name: str, call: Callable[[Any], Any]) -> None:
        opened = DAMAGED[name].open(self.kit)
        result = call(opened if self.runner is None else Waited(opened, self.runner))
        if hasattr(result, "__anext__") or hasattr(result, "__next__"):
            self.face.list(result)

    def garbled(self, call: Callable[[], Any], at: int, reply: bytes) -> Exception | None:
        """Make a call of which the reply of a number is replaced; return its error."""
        self.relay.count, self.relay.nth = 0, {at: reply}
        try:
            call()
        except Exception as error:
            return error
        finally:
            self.relay.nth = {}
        return None

    def close(self) -> None:
        if self.runner is None:
            self.kit.close()
        else:
            self.runner.run(self.kit.aclose())
            self.runner.close()
        self.direct.close()
        self.relay.close()


@pytest.fixture(params=["blocking", "awaiting"])
def relayed(request: pytest.FixtureRequest, server: LocalServer) -> Iterator[Relayed]:
    client_of(server).flushall()
    with closing(Relayed(server, request.param == "awaiting")) as relayed:
        yield relayed


@pytest.mark.long(6)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_call_says_which_reply_it_cannot_use(relayed: Relayed, name: str) -> None:
    subject = DAMAGED[name]
    subject.fill(subject.open(relayed.direct))
    random, calls = Random(name), [*subject.reads.values(), *subject.writes.values(), subject.check]
    raw, tried = [], 0
    for _ in range(drawn(20, 600)):
        call, at = random.choice(calls), random.randrange(5)
        what = random.choice(list(GARBAGE))
        error = relayed.garbled(lambda call=call: relayed.call(name, call), at, GARBAGE[what])  # type: ignore[misc]
        tried += error is not None
        if not isinstance(error, ShardKitError | redis.RedisError | None):
            raw.append((at, what, error))
        if isinstance(error, UnexpectedReply):
            assert error.shard in str(error)
            assert error.command in str(error)
    assert raw == []
    assert tried


# Steps that are shardkit's by their module's name: an error of others' code is never explained.
OWN: dict[str, Any] = {"__name__": "shardkit.structures.example"}
exec("def steps(batch, read):\n    replies = yield batch\n    return read(replies[0])", OWN)
SADD = Command("data", "s", ("SADD", "s", "a"))
WRONG = {
    "a number for GET": (Command("data", "k", ("GET", "k")), b":7\r\n"),
    "fewer values for HMGET": (
        Command("data", "h", ("HMGET", "h", "a", "b")),
        b"*1\r\n$1\r\n1\r\n",
    ),
    "a text for SADD": (SADD, b"$3\r\nabc\r\n"),
    "a number for EXEC": (Transaction("data", "s", (SADD,)), b":1\r\n"),
    "a list for SADD in EXEC": (Transaction("data", "s", (SADD,)), b"*1\r\n*0\r\n"),
}


@pytest.mark.parametrize("what", WRONG)
def test_only_a_wrong_reply_is_taken_for_the_cause(relayed: Relayed, what: str) -> None:
    relayed.direct.client("data").hset("h", mapping={"a": 1, "b": 2})
    relayed.direct.client("data").set("k", "x")
    command, wrong = WRONG[what]

    def run() -> None:
        steps: Operation[Any] = OWN["steps"]([command], [].index)  # a ValueError
        relayed.face.run(relayed.kit.driver.run(steps))

    right = relayed.garbled(run, 99, b"")
    assert type(right) is ValueError  # of the steps, unchanged
    error = relayed.garbled(run, 0, wrong)
    assert isinstance(error, ShardFailure)
    assert error.shard == "data"
    assert error.maybe_executed


def test_what_the_call_of_a_callers_function_raises_is_no_wrong_reply(relayed: Relayed) -> None:
    relayed.direct.search("docs", component="data").index("1", "a text")
    relayed.direct.sorted_set("scores", component="data").zadd({"ada": float("inf")})
    run, kit = relayed.face.run, relayed.kit
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        run(kit.search("docs", component="data").rebuild(progress=lambda done: None))
    scores = kit.sorted_set("scores", component="data")
    for read in (scores.zrange, scores.zrevrange):
        with pytest.raises(OverflowError, match="cannot convert float infinity to integer"):
            run(read(0, -1, withscores=True, score_cast_func=int))


# Subjects whose keys have no number; see docs/compatibility.md.
UNNUMBERED = {
    *("contacts", "daily totals", "guard", "market", "rate limit", "score ranges"),
    *("transfers", "window"),
    "queue",  # each task has its own: tests/queues/test_task_queues.py
}
# Calls that read no key which has a number, or whose keys are others.
UNCONCERNED = {
    *(("chats", "chats"), ("used chats", "chats")),
    *(("counters", call) for call in ("known", "clean", "keep_clean")),
    *((files, "create") for files in ("files", "used files")),
    *(("statistics", "slowest"),),
}
# Methods whose calls change too much for the other tests of damage.
FURTHER: dict[str, dict[str, Callable[[Any], Any]]] = {
    "planned set": {"replan": lambda s: s.replan(1000)},
    "hash": {"replan": lambda h: h.replan(1000)},
    "files": {"read": lambda files: list(files.read(files.take("logs", "ada", timeout=0)))},
    "maintenance": {"is on": lambda flags: flags.check("shop")},
}
# Keys of structures that say a format only from the second one on.
SAYING = (":meta", ":state", ":ends")


def _raised(key: str, field: bytes, value: bytes) -> bytes | None:
    """A field of a later release, of one that says a format; else None."""
    if field == b"format":
        return b"2"
    if value.startswith(b'{"'):
        return json.dumps({**json.loads(value), "format": 2}).encode()
    if key.startswith("counters:") and ":of:" in key:
        return bytes([value[0] + 16]) + value[1:]
    return None


def raise_formats(clients: list[Any]) -> int:
    """Store what a later release would say of each key; return how many keys do."""
    count = 0
    for client in clients:
        for key in map(bytes.decode, client.scan_iter(_type="hash")):
            fields = client.hgetall(key)
            later = {field: _raised(key, field, value) for field, value in fields.items()}
            later = {field: value for field, value in later.items() if value is not None}
            if key.endswith(SAYING):
                later[b"format"] = b"2"
            if later:
                client.hset(key, mapping=later)
                count += 1
    return count


def stored(clients: list[Any]) -> list[dict[bytes, bytes]]:
    """All keys of some databases, and what they hold."""
    every = []
    for client in clients:
        keys = list(client.scan_iter(count=10_000))
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
        every.append(dict(zip(keys, pipe.execute(), strict=True)))
    return every


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, connect(servers.shard_map) as kit:
        if request.param == "blocking":
            yield Driver(kit, servers.shard_map)
            return
        with asyncio.Runner() as runner:
            driver = Driver(kit, servers.shard_map, runner)
            yield driver
            runner.run(driver.awaiting.aclose())


def calls_of(name: str) -> dict[str, Callable[[Any], Any]]:
    subject = DAMAGED[name]
    check = {"check": lambda structure: list(subject.check(structure))}
    checks = {} if subject.check is unchecked else check
    return {**subject.reads, **subject.writes, **FURTHER.get(name, {}), **checks}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_later_format_is_refused_by_every_call(driver: Driver, name: str) -> None:
    clients = [driver.kit.client(each) for each in ("data", "second", "third")]
    driver.prepare(name)
    assert (raise_formats(clients) > 0) == (name not in UNNUMBERED)
    before = stored(clients)
    for called, call in calls_of(name).items() if name not in UNNUMBERED else ():
        if (name, called) not in UNCONCERNED:
            with pytest.raises(NewerFormatError, match="format 2, this release reads 1"):
                driver.call(name, call)
            for was, now in zip(before, stored(clients), strict=True):
                assert {key: now.get(key) for key in was} == was, called


class Noting:
    """A structure that notes what is called of it."""

    def __init__(self, structure: Any, names: set[str]) -> None:
        self.structure = structure
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self.structure, name)


@pytest.mark.parametrize("driver", ["blocking"], indirect=True)
def test_every_public_method_of_every_structure_has_a_call(driver: Driver, lower: Any) -> None:
    lower(plan_short_lease=0.05, plan_grace=0.05)
    methods, called, classes = set[str](), set[str](), set[str]()
    for name, subject in DAMAGED.items():
        driver.prepare(name)
        made = type(subject.open(driver.kit))
        classes |= {each.__name__ for each in made.__mro__}
        owners = {
            each: f"{next(one for one in made.__mro__ if each in vars(one)).__name__}.{each}"
            for each in dir(made)
            if each[0] != "_" and isinstance(getattr_static(made, each), operation | stream)
        }
        methods |= set(owners.values())
        names = set[str]()
        for call in calls_of(name).values():
            driver.restore(STORED)
            with suppress(ShardKitError):  # such as of a method for another codec
                call(Noting(subject.open(driver.kit), names))
        called |= {owners[each] for each in names & owners.keys()}
    assert methods - called == set()
    makers = {name: signature(each) for name, each in vars(Catalogue).items() if name[0] != "_"}
    kinds = {name: re.split(r"[.\[]", each.return_annotation)[1] for name, each in makers.items()}
    assert set(kinds.items()) - {each for each in kinds.items() if each[1] in classes} == {
        ("access_times", "AccessTimes"),  # writes statistics
        ("read_write_lock", "ReadWriteLock"),  # has two locks
        ("timed", "TimedBlock"),
    }


MOMENTS = 5  # of each call, at which the server is full


class FillingLink:
    """Sends what a kit sends; after some commands its server is full, also within a batch."""

    def __init__(self, full_driver: Driver) -> None:
        self._client = full_driver.client
        self._driver = full_driver
        self._send = full_driver.send
        self.left = 0

    def run(self, call: Callable[[], Any], most: int) -> int:
        """Make a call, with a server that takes so many commands; return how many it sent."""
        self.left, self._driver.send = most, self._fill
        try:
            call()
        finally:
            self._driver.send = self._send
            self._client.config_set("maxmemory", 0)
        return most - self.left

    def _fill(self, batch: Any) -> Replies:
        before, self.left = self.left, self.left - len(batch)
        if before < 0 or self.left >= 0:
            return self._send(batch)
        taken = before if type(batch) is list else 0
        replies = self._send(batch[:taken]) if taken else Replies()
        self._client.config_set("maxmemory", 1)
        refused = self._send(batch[taken:] if taken else batch)
        joined = Replies([*replies, *refused])
        joined.failed = replies.failed or refused.failed
        return joined


@pytest.fixture(scope="module")
def full_driver() -> Iterator[Driver]:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        connect(servers.shard_map) as kit,
    ):
        yield Driver(kit, servers.shard_map)


CHECKED = [name for name, subject in SUBJECTS.items() if subject.check is not unchecked]


@pytest.mark.long(8)
@pytest.mark.parametrize("name", CHECKED)
def test_what_a_full_server_refuses_is_not_half_written(full_driver: Driver, name: str) -> None:
    subject, random = SUBJECTS[name], Random(name)
    link = FillingLink(full_driver)
    stored = full_driver.prepare(name)
    assert full_driver.named(name) == {}
    calls = {"fill": (NOTHING, subject.fill)}
    calls |= {called: (stored, call) for called, call in subject.writes.items()}
    for called, (before, call) in calls.items():
        full_driver.restore(before)
        sent = link.run(lambda call=call: full_driver.call(name, call), 10**9)
        for most in sorted(random.sample(range(sent), min(sent, MOMENTS))):
            full_driver.restore(before)
            with suppress(ShardErrors):
                link.run(lambda call=call: full_driver.call(name, call), most)
            when = f"{called} after {most} of {sent} commands"
            # What is being rebuilt is refused until that is repeated.
            assert called == "rebuild" or full_driver.named(name) == {}, when
            full_driver.call(name, call)
            assert full_driver.named(name) == {}, f"{when}, and again"


@pytest.mark.parametrize("name", [n for n, each in SUBJECTS.items() if "delete" in each.writes])
def test_a_structure_on_a_full_server_can_be_deleted(full_driver: Driver, name: str) -> None:
    full_driver.prepare(name)
    delete = SUBJECTS[name].writes["delete"]
    FillingLink(full_driver).run(lambda: full_driver.call(name, delete), 0)
    kept = b":deleted", b":removed:"  # for a minute and an hour
    assert [key for key in full_driver.all_keys() if not any(each in key for each in kept)] == []


def test_a_transfer_that_a_full_server_refuses_is_done_or_undone(full_driver: Driver) -> None:
    subject, names = SUBJECTS["transfers"], ("ada", "bo", "cy")
    link, transfers = FillingLink(full_driver), subject.open(full_driver.kit)
    stored = full_driver.prepare("transfers")
    total = transfers.total(names)
    for called in ("transfer", "in steps"):
        call = partial(subject.writes[called], transfers)
        full_driver.restore(stored)
        for most in range(link.run(call, 10**9)):
            full_driver.restore(stored)
            with suppress(ShardErrors):
                link.run(call, most)
            assert transfers.total(names) == total
            ends = time.monotonic() + 30
            while any(account.in_flight for account in transfers.read(*names)):
                assert time.monotonic() < ends
                transfers.recover(*names)
            assert transfers.total(names) == total
            assert sum(account.balances["money"] for account in transfers.read(*names)) == 300


@pytest.mark.parametrize("field", ["of", "count"])
def test_rebuild_repairs_the_state_of_a_compressed_hash(
    face: Face, kit: ShardKit, field: str
) -> None:
    client: Any = kit.client("one")
    values = face.kit.hash("h", component="one", parts=1, part_size=16, codec="zstd")
    face.run(values.hset(mapping={f"word{n}": f"value {n}" for n in range(100)}))
    state = client.hgetall("h:{0}")
    client.hset("h:{0}", field, "5000" if field != "of" else "x")
    assert [damage.key for damage in face.list(values.check())] == ["h:{0}"]
    assert face.run(values.rebuild()) == 100
    assert face.list(values.check()) == []
    assert client.hgetall("h:{0}").items() >= {b"of": state[b"of"], b"count": b"100"}.items()
    client.hdel("h:{0}", "of")
    assert face.run(values.rebuild()) == 100
    assert face.list(values.check()) == []
    assert client.hget("h:{0}", "of") == state[b"of"]


def test_an_index_of_ads_that_lost_all_but_columns_and_words_is_not_an_empty_one(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    ads = face.kit.ads(component="one", parts=1)
    face.run(ads.index("1", ["USA"], "some words", "cpc", 0.5))
    kept = (b":a:", b":l:", b":d:", b":meta")
    client.delete(*(key for key in client.scan_iter() if not any(each in key for each in kept)))
    [damage] = face.list(ads.check())
    assert damage.key == "{ads:0}:state"
    assert face.run(ads.rebuild(lossy=True)) == 1
    assert face.list(ads.check()) == []


@pytest.mark.parametrize("left", [-3, 5])
def test_a_list_of_which_only_parts_are_left_is_not_an_empty_one(
    face: Face, kit: ShardKit, left: int
) -> None:
    client: Any = kit.client("one")
    jobs = face.kit.list("jobs", component="one", part_size=8)
    face.run(jobs.lpush(*range(50)))
    face.run(jobs.rpush(*range(50)))
    kept = f"{{jobs}}:{left}"
    assert client.exists(kept)
    client.delete(*(key for key in client.scan_iter() if key != kept.encode()))
    again = face.kit.list("jobs", component="one", part_size=8)
    for call in (again.llen, lambda: again.rpush("x"), lambda: again.lpop(1)):
        with pytest.raises(DamagedDataError, match=r"\{jobs\}:ends is damaged: nothing"):
            face.run(call())
    assert [damage.key for damage in face.list(again.check())] == ["{jobs}:ends"]
    assert face.run(again.rebuild()) == 8
    assert face.list(again.check()) == []
