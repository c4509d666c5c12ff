"""Damages what structures store, one thing at a time, and looks at what calls make of it.

A *subject* is a structure with some data and its documented calls. A *case* is one damage to one of
its keys. After each, every call is made on a new object, from the same state. Its outcome is

* ``same``: what it returns on undamaged data;
* ``damage``: a DamagedDataError (or another ShardKitError that says what is wrong);
* ``check``: another result, silently, of damage that `check()` names;
* ``wrong``: another result, silently, of damage that even `check()` does not find: only who wrote
  the data, or a checksum, could tell;
* ``spread``: after a write `check()` names a key that it did not name before the write;
* ``raw``: an error of Python, of redis-py or of the server;
* ``hang``: no answer in time.

``python tests/damage/damages.py`` makes all cases and prints a table; ``make damage`` does that.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import redis

import shardkit
from shardkit import DamagedDataError, ShardErrors, ShardKit, ShardKitError, ShardMap
from shardkit.geo import City, IpRange
from shardkit.local import LocalServers

MAP = "components: {data: {entry: {port: 7001}}}"
DAY = date(2015, 5, 17)
SECONDS = 5.0  # after which a call hangs

Calls = dict[str, Callable[[Any], Any]]


class Subject(NamedTuple):
    """A structure: how it is opened, filled, read and written."""

    open: Callable[[ShardKit], Any]
    fill: Callable[[Any], Any]
    reads: Calls
    writes: Calls
    check: Callable[[Any], Any] = lambda structure: structure.check()


def _sessions(count: int) -> list[str]:
    random = Random(0)
    return [str(UUID(int=random.getrandbits(128), version=4)) for _ in range(count)]


SESSIONS = _sessions(300)
WORDS = [f"word{n}" for n in range(300)]
RANGES = [IpRange(n * 256, n * 256 + 255, City("DE", "", f"City {n % 7}")) for n in range(400)]


def _set(**options: Any) -> Subject:
    return Subject(
        lambda kit: kit.set("ids", component="data", members=int, **options),
        lambda s: s.sadd_many(range(300)),
        {
            "scard": lambda s: s.scard(),
            "smembers": lambda s: s.smembers(),
            "smismember": lambda s: s.smismember(*range(0, 600, 7)),
            "sscan_iter": lambda s: sorted(s.sscan_iter()),
        },
        {
            "sadd": lambda s: s.sadd(*range(250, 350)),
            "srem": lambda s: s.srem(*range(50)),
            "expire": lambda s: s.expire(1000),
            "delete": lambda s: s.delete(),
        },
    )


def _hash(**options: Any) -> Subject:
    return Subject(
        lambda kit: kit.hash("h", component="data", **options),
        lambda h: h.hset(mapping={word: f"value of {word}" for word in WORDS}),
        {
            "hlen": lambda h: h.hlen(),
            "hgetall": lambda h: h.hgetall(),
            "hmget": lambda h: h.hmget(WORDS[::7]),
            "hget": lambda h: [h.hget(word) for word in WORDS[:5]],
            "hscan_iter": lambda h: sorted(h.hscan_iter()),
        },
        {
            "hset": lambda h: h.hset(mapping=dict.fromkeys(("new", *WORDS[:9]), "x")),
            "hdel": lambda h: h.hdel(*WORDS[:50]),
            "delete": lambda h: h.delete(),
        },
    )


def _numbers() -> Subject:
    return _hash(part_size=16)._replace(
        fill=lambda h: h.hset(mapping={n: f"value {n}" for n in range(300)}),
        reads={
            "hlen": lambda h: h.hlen(),
            "hgetall": lambda h: h.hgetall(),
            "hmget": lambda h: h.hmget(list(range(0, 300, 7))),
        },
        writes={"hset": lambda h: h.hset(mapping={5: "x"}), "delete": lambda h: h.delete()},
    )


def _unique(precision: str, **options: Any) -> Subject:
    came: Any = list(range(0, 3000, 10)) if precision == "bitmap" else SESSIONS
    planned = {} if precision in ("bitmap", "hyperloglog") else {"first_day": 500}
    reads: Calls = {"count": lambda u: u.count(DAY)}
    if precision != "hyperloglog":
        reads["ids"] = lambda u: sorted(u.ids(DAY))
    return Subject(
        lambda kit: kit.unique_visitors("u", component="data", precision=precision, **planned),
        lambda u: u.visit_many(came[:250], DAY),
        reads,
        {
            "visit": lambda u: u.visit(came[0], DAY),
            "visit_many": lambda u: u.visit_many(came, DAY),
            **({} if precision == "hyperloglog" else {"recount": lambda u: u.recount(DAY)}),
        },
        lambda u: u.check(DAY),
    )


def _uid(network: Any, login: str) -> int:
    user = network.get_user_by_login(login)
    return int(user.id) if user else 10**9


def _fill_network(network: Any) -> None:
    for login in ("ada", "bo", "cy"):
        network.create_user(login, login.title())
    ada, bo, cy = (_uid(network, login) for login in ("ada", "bo", "cy"))
    network.follow(ada, bo)
    network.follow(cy, bo)
    network.post(bo, "hello")
    network.post(bo, "again")
    network.block(ada, cy)
    network.create_list(ada, "friends")


def _fill_chat(chats: Any) -> None:
    chats.create("ada", ["bo", "cy"], "hello", chat="room", history=5)
    for n in range(4):
        chats.send("room", "ada", {"n": n})


def _fill_files(files: Any) -> None:
    files.create("logs", ["ada", "bo"], chunk_size=1024)
    for n in range(3):
        files.publish("logs", io.BytesIO(b"a line\n" * 500), name=f"{n}.log")


def _fill_market(market: Any) -> None:
    market.deposit("ada", 5, ["lamp", "rug"])
    market.deposit("bo", 100)
    market.list("lamp", "ada", 30)


SUBJECTS: dict[str, Subject] = {
    "set": _set(groups=2, part_size=16),
    "planned set": _set(total=300, part_size=16),
    "hash": _hash(groups=2, part_size=16, partition="crc32"),
    "numbered hash": _numbers(),
    "json hash": _hash(groups=2, part_size=16, codec="json"),
    "compressed hash": _hash(groups=2, part_size=16, codec="zstd"),
    "list": Subject(
        lambda kit: kit.list("jobs", component="data", part_size=8),
        lambda jobs: jobs.rpush(*range(100)),
        {
            "llen": lambda jobs: jobs.llen(),
            "lrange": lambda jobs: jobs.lrange(0, -1),
            "lindex": lambda jobs: [jobs.lindex(n) for n in (0, 50, -1)],
            "items": lambda jobs: list(jobs.items()),
            "lpos": lambda jobs: jobs.lpos("77"),
        },
        {
            "lpop": lambda jobs: jobs.lpop(20),
            "rpop": lambda jobs: jobs.rpop(20),
            "rpush": lambda jobs: jobs.rpush("x", "y"),
            "lrem": lambda jobs: jobs.lrem(0, "50"),
            "ltrim": lambda jobs: jobs.ltrim(10, 20),
            "linsert": lambda jobs: jobs.linsert("BEFORE", "50", "x"),
            "expire": lambda jobs: jobs.expire(1000),
            "delete": lambda jobs: jobs.delete(),
        },
    ),
    "sorted set": Subject(
        lambda kit: kit.sorted_set("s", component="data", groups=2, part_size=16, bound=10),
        lambda s: s.zadd({word: n for n, word in enumerate(WORDS)}),
        {
            "zcard": lambda s: s.zcard(),
            "zrange": lambda s: s.zrange(0, 9),
            "zrevrange": lambda s: s.zrevrange(0, 50),
            "zscan_iter": lambda s: sorted(s.zscan_iter()),
            "zrank": lambda s: s.zrank("word77"),
            "zmscore": lambda s: s.zmscore(WORDS[::9]),
        },
        {
            "zadd": lambda s: s.zadd({"word5": 1000, "new": 1}),
            "zrem": lambda s: s.zrem(*WORDS[:20]),
            "zpopmin": lambda s: s.zpopmin(5),
            "rebuild": lambda s: s.rebuild(),
            "delete": lambda s: s.delete(),
        },
    ),
    "packed": Subject(
        lambda kit: kit.packed("p", component="data", fields={"a": "u8", "b": "u8"}, part_size=64),
        lambda p: p.set_many({n: {"a": n % 200 + 1, "b": 7} for n in range(300)}),
        {
            "get": lambda p: [p.get(n) for n in (0, 63, 64, 299)],
            "get_many": lambda p: p.get_many(range(300)),
            "scan_iter": lambda p: list(p.scan_iter()),
        },
        {"set": lambda p: p.set(70, a=3, b=4), "delete": lambda p: p.delete()},
    ),
    "ip to city": Subject(
        lambda kit: kit.ip_to_city(component="data"),
        lambda ip: ip.import_from(RANGES),
        {
            "find": lambda ip: [ip.find(a) for a in ("0.0.1.1", "0.0.77.0", "0.1.50.1")],
            "find_many": lambda ip: ip.find_many([f"0.0.{n}.5" for n in range(0, 250, 9)]),
            "local": lambda ip: ip.local().find_many([f"0.0.{n}.5" for n in range(0, 250, 9)]),
            "info": lambda ip: ip.info(),
        },
        {"delete": lambda ip: ip.delete()},
    ),
    "address book": Subject(
        lambda kit: kit.address_book(component="data", parts=4),
        lambda book: book.join_many("elves", WORDS),
        {
            "complete": lambda book: book.complete("elves", "word1", 10),
            "count": lambda book: book.count("elves"),
            "names": lambda book: list(book.names("elves")),
        },
        {"join": lambda book: book.join("elves", "Arwen")},
        lambda book: book.check("elves"),
    ),
    "contacts": Subject(
        lambda kit: kit.recent_contacts(component="data", order="time"),
        lambda known: known.touch_many(("ada", word) for word in WORDS[:50]),
        {"complete": lambda known: known.complete("ada", "word")},
        {"touch": lambda known: known.touch("ada", "Grace")},
        lambda known: known.check("ada"),
    ),
    **{
        f"unique {precision}": _unique(precision)
        for precision in ("exact", "60-bit", "compact", "hyperloglog", "bitmap")
    },
    "queue": Subject(
        lambda kit: kit.queues(component="data", new_id=iter(map(str, range(999))).__next__),
        lambda queues: [
            queues.enqueue("mail", "send", [n], delay=10**9 * (n % 2)) for n in range(10)
        ],
        {"counts": lambda queues: list(queues.counts("mail"))},
        {
            "take": lambda queues: queues.acknowledge(queues.take("mail", timeout=0)),
            "enqueue": lambda queues: queues.enqueue("mail", "send", id="other"),
        },
        lambda queues: queues.check("mail"),
    ),
    "search": Subject(
        lambda kit: kit.search("docs", component="data", attributes={"size": "number"}),
        lambda docs: [
            docs.index(f"{n}", f"word{n % 7} and others {n}", {"size": n}) for n in range(50)
        ],
        {
            "search": lambda docs: sorted(hit.id for hit in docs.search("word3", limit=99)),
            "phrase": lambda docs: [hit.id for hit in docs.search('"others 33"')],
        },
        {
            "index": lambda docs: docs.index("51", "word3 more"),
            "remove": lambda docs: docs.remove("3"),
            "rebuild": lambda docs: docs.rebuild(lossy=True),
        },
    ),
    "ads": Subject(
        lambda kit: kit.ads(component="data", new_id=iter(map(str, range(999))).__next__),
        lambda ads: [
            ads.index(f"{n}", ["USA"], f"words of ad {n}", "cpc", n / 10) for n in range(1, 9)
        ],
        {"get": lambda ads: getattr(ads.get("5"), "value", None)},
        {"target": lambda ads: ads.target(["USA"], "words")},
    ),
    "jobs": Subject(
        lambda kit: kit.job_search("posts", component="data"),
        lambda jobs: [jobs.index(f"{n}", ["python", f"skill{n}"]) for n in range(20)],
        {"find": lambda jobs: sorted(str(j.id) for j in jobs.find(["python", "skill7"]))},
        {"index": lambda jobs: jobs.index("new", ["sql"])},
    ),
    "network": Subject(
        lambda kit: kit.social(component="data", parts=4),
        _fill_network,
        {
            "users": lambda network: [
                getattr(network.get_user_by_login(login), "name", None)
                for login in ("ada", "bo", "cy")
            ],
            "home": lambda network: [
                status.message for status in network.home(_uid(network, "ada"))
            ],
            "follows": lambda network: network.follows(_uid(network, "cy"), _uid(network, "bo")),
        },
        {
            "post": lambda network: network.post(_uid(network, "bo"), "more"),
            "create_user": lambda network: network.create_user("di", "Di"),
            "reconcile": lambda network: network.reconcile(_uid(network, "ada")),
        },
    ),
    "mailboxes": Subject(
        lambda kit: kit.mailboxes(component="data"),
        lambda boxes: [boxes.send("ada", "bo", {"n": n}) for n in range(5)],
        {
            "counts": lambda boxes: tuple(boxes.counts("ada")),
            "unread": lambda boxes: boxes.unread("ada"),
        },
        {
            "send": lambda boxes: boxes.send("ada", "cy", "more"),
            "fetch": lambda boxes: [(m.id, m.sender, m.body) for m in boxes.fetch("ada")],
            "pop": lambda boxes: [(m.id, m.sender, m.body) for m in boxes.pop("ada")],
        },
        lambda boxes: boxes.check("ada"),
    ),
    "chats": Subject(
        lambda kit: kit.chats(component="data"),
        _fill_chat,
        {
            "unread": lambda chats: chats.unread("bo"),
            "members": lambda chats: sorted(tuple(each) for each in chats.members("room")),
            "history": lambda chats: [(m.id, m.sender, m.body) for m in chats.history("room")],
        },
        {
            "send": lambda chats: chats.send("room", "ada", "more"),
            "join": lambda chats: chats.join("room", "di"),
            "acknowledge": lambda chats: chats.acknowledge("room", "bo", 2),
        },
        lambda chats: chats.check("room"),
    ),
    "files": Subject(
        lambda kit: kit.files(component="data"),
        _fill_files,
        {"status": lambda files: tuple(files.status("logs"))[:5]},
        {
            "take": lambda files: getattr(files.take("logs", "bo", timeout=0), "name", None),
            "close": lambda files: files.close("logs"),
            "delete": lambda files: files.delete("logs"),
        },
        lambda files: files.check("logs"),
    ),
    "market": Subject(
        lambda kit: kit.market(component="data"),
        _fill_market,
        {
            "user": lambda market: [market.user(name) for name in ("ada", "bo")],
            "price": lambda market: market.price("lamp", "ada"),
        },
        {
            "purchase": lambda market: market.purchase("bo", "lamp", "ada", 30),
            "unlist": lambda market: market.unlist("lamp", "ada"),
        },
        lambda market: [],
    ),
}


class Case(NamedTuple):
    """A damage to one key."""

    key: bytes
    what: str
    act: Callable[[redis.Redis], Any]


NUMBERS = (b"0", b"1", b"-1", b"3", b"2147483648", b"1000000000000", b"1e3", b"x", b"", b"9" * 30)


def cases(client: redis.Redis, random: Random) -> Iterator[Case]:
    """All damages to what a server holds, a few of each kind for each key."""
    for key in sorted(client.scan_iter()):
        kind = client.type(key).decode()
        yield Case(key, "deleted", lambda c, k=key: c.delete(k))
        other = "set" if kind == "hash" else "hash"
        yield Case(key, f"a {other}", lambda c, k=key, o=other: _retype(c, k, o))
        yield Case(key, "a string", lambda c, k=key: c.set(k, "a string"))
        if kind == "string":
            held = client.get(key)
            if held.isdigit():
                for number in NUMBERS:
                    yield Case(key, f"={number!r}", lambda c, k=key, n=number: c.set(k, n))
                continue
            for cut in {0, 1, len(held) // 2, len(held) - 1}:
                short = held[:cut]
                yield Case(key, f"cut to {cut}", lambda c, k=key, s=short: c.set(k, s))
            yield Case(key, "longer", lambda c, k=key: c.append(k, b"\0x"))
            for at in random.sample(range(8 * len(held)), min(8 * len(held), 6)):
                yield Case(
                    key, f"bit {at}", lambda c, k=key, n=at: c.setbit(k, n, 1 - c.getbit(k, n))
                )
        elif kind == "hash":
            fields = sorted(client.hgetall(key).items())
            whole = (b":meta", b":ends", b":generations", b":state")
            if key.endswith(whole) or b"parts" in dict(fields) or len(fields) <= 6:
                chosen = fields
            else:
                chosen = random.sample(fields, min(2, len(fields)))
            yield Case(key, "further field", lambda c, k=key: c.hset(k, "unheard of", 1))
            for field, value in chosen:
                name = field.decode(errors="replace")
                yield Case(key, f"{name} deleted", lambda c, k=key, f=field: c.hdel(k, f))
                new = list(
                    NUMBERS if value.lstrip(b"-").isdigit() else (b"", b"\xff\0", value[:-1])
                )
                for other in new:
                    if other != value:
                        yield Case(
                            key,
                            f"{name}={other!r}",
                            lambda c, k=key, f=field, v=other: c.hset(k, f, v),
                        )
        elif kind == "set":
            member = random.choice(sorted(client.smembers(key)))
            yield Case(key, "a member lost", lambda c, k=key, m=member: c.srem(k, m))
            yield Case(key, "a member more", lambda c, k=key: c.sadd(k, b"\xff\0"))
            yield Case(key, "a number more", lambda c, k=key: c.sadd(k, 2**62))
        elif kind == "list":
            yield Case(key, "cut", lambda c, k=key: c.lpop(k))
            yield Case(key, "longer", lambda c, k=key: c.rpush(k, "y"))
        elif kind == "zset":
            yield Case(key, "a member lost", lambda c, k=key: c.zpopmin(k))
            yield Case(key, "a member more", lambda c, k=key: c.zadd(k, {b"\xff\0": 7}))


def swaps(client: redis.Redis, random: Random) -> Iterator[Case]:
    """Two keys of a structure that changed places, and the loss of half of all keys."""
    keys = sorted(client.scan_iter())
    kinds = {key: (client.type(key), key.rpartition(b":")[0]) for key in keys}
    pairs = [(a, b) for n, a in enumerate(keys) for b in keys[n + 1 :] if kinds[a] == kinds[b]]
    for one, other in random.sample(pairs, min(4, len(pairs))):
        yield Case(one, f"swapped with {other.decode()}", partial(_swap, one=one, other=other))
    for _ in range(4):
        lost = random.sample(keys, len(keys) // 2)
        if lost:
            yield Case(lost[0], "and half of the keys gone", partial(_lose, keys=lost))


def _swap(client: redis.Redis, one: bytes, other: bytes) -> None:
    client.rename(one, "between")
    client.rename(other, one)
    client.rename("between", other)


def _lose(client: redis.Redis, keys: Sequence[bytes]) -> None:
    client.delete(*keys)


def _retype(client: redis.Redis, key: bytes, kind: str) -> None:
    client.delete(key)
    if kind == "set":
        client.sadd(key, "a")
    else:
        client.hset(key, "a", "b")


class Outcome(NamedTuple):
    """What a call made of a damage."""

    subject: str
    key: str
    what: str
    call: str
    result: str
    detail: str


class Waited:
    """A structure of the awaiting face whose calls wait, as those of the blocking face do."""

    def __init__(self, structure: Any, runner: asyncio.Runner) -> None:
        self._structure = structure
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._structure, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def collect(stream: Any) -> list[Any]:
            return [value async for value in stream]

        result = call(*args, **options)
        if hasattr(result, "__aiter__"):
            result = collect(result)
        return self._runner.run(result) if inspect.iscoroutine(result) else result


class Driver:
    """Makes cases on a server of its own.

    Args:
        kit: a kit of MAP.
        shard_map: the map, with the ports of the servers.
        runner: runs calls on the awaiting face; None for the blocking one.
        checks: whether to ask `check` what it says of each damage, before and after writes.
    """

    def __init__(
        self,
        kit: ShardKit,
        shard_map: ShardMap,
        runner: asyncio.Runner | None = None,
        checks: bool = False,
    ) -> None:
        self.kit = kit
        self.client: Any = kit.client("data")
        self.runner = runner
        self.checks = checks
        self.awaiting: Any = None
        if runner is not None:
            self.awaiting = runner.run(shardkit.aconnect(shard_map))

    def prepare(self, name: str) -> dict[bytes, bytes]:
        """Fill the server with a subject; return all of it."""
        subject = SUBJECTS[name]
        self.client.flushall()
        subject.fill(subject.open(self.kit))
        return self.snapshot()

    def snapshot(self) -> dict[bytes, bytes]:
        """Return all that is stored."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def restore(self, stored: dict[bytes, bytes]) -> None:
        """Make the server hold this and nothing else."""
        pipe = self.client.pipeline(transaction=False)
        pipe.flushall()
        for key, value in stored.items():
            pipe.restore(key, 0, value)
        pipe.execute()

    def cases(self, name: str, random: Random) -> list[Case]:
        """Return the damages of what is stored now."""
        return [*cases(self.client, random), *swaps(self.client, random)]

    def call(self, name: str, call: Callable[[Any], Any]) -> Any:
        """Make a call on a new object."""
        if self.runner is None:
            return call(SUBJECTS[name].open(self.kit))
        return call(Waited(SUBJECTS[name].open(self.awaiting), self.runner))

    def named(self, name: str) -> set[str] | None:
        """Return the keys that `check` names as damaged; None if it refuses."""
        try:
            return {damage.key for damage in list(self.call(name, SUBJECTS[name].check))}
        except ShardKitError as error:
            if isinstance(error, ShardErrors):
                raise
            return None

    def run(
        self, name: str, stored: dict[bytes, bytes], right: dict[str, Any], case: Case
    ) -> Iterator[Outcome]:
        """Make one case: all calls, each from the same damaged state."""
        self.restore(stored)
        case.act(self.client)
        damaged = self.snapshot()
        subject = SUBJECTS[name]
        named: set[str] | None = None
        if self.checks:
            try:
                named = self.named(name)
            except Exception as error:
                found = (case.key.decode(errors="replace"), case.what, "check", "raw", str(error))
                yield Outcome(name, *found)
        for called, call in {**subject.reads, **subject.writes}.items():
            if called in subject.writes:
                self.restore(damaged)
            begin = time.monotonic()
            result, detail = "same", ""
            try:
                found = self.call(name, call)
                if called in right and found != right[called]:
                    result, detail = "wrong", f"{found!r}"[:80]
            except DamagedDataError as error:
                result, detail = "damage", str(error)
            except ShardErrors as error:
                result, detail = "raw", str(error)
            except ShardKitError as error:
                result, detail = "damage", f"{type(error).__name__}: {error}"
            except Exception as error:
                result, detail = "raw", f"{type(error).__name__}: {error}"
            if time.monotonic() - begin > SECONDS:
                result = "hang"
            if result == "wrong" and self.checks and named != set():
                result = "check"
            if called in subject.writes and self.checks and named is not None and detail == "":
                after = self.named(name) or set()
                # A part that is split hands on what nobody of ours wrote: as much as before.
                if after - named and (called == "delete" or not named - after):
                    result, detail = "spread", f"{sorted(after)[:3]}, of {sorted(named)[:3]}"
            yield Outcome(
                name, case.key.decode(errors="replace"), case.what, called, result, detail
            )

    def outcomes(self, name: str, seed: int = 0, most: int | None = None) -> Iterator[Outcome]:
        """Make the cases of a subject, or so many of them."""
        random = Random(f"{name} {seed}")
        stored = self.prepare(name)
        right: dict[str, Any] = {}
        for called, call in SUBJECTS[name].reads.items():
            right[called] = self.call(name, call)
        for called, call in SUBJECTS[name].writes.items():
            self.restore(stored)
            right[called] = self.call(name, call)
        self.restore(stored)
        made = self.cases(name, random)
        if most is not None:
            made = random.sample(made, min(most, len(made)))
        for case in made:
            yield from self.run(name, stored, right, case)


RESULTS = ("same", "damage", "check", "wrong", "spread", "raw", "hang")


def main() -> int:
    """Make all cases, or those of the subjects given; print what went wrong, and a table a face."""
    names = [name for name in SUBJECTS if not sys.argv[1:] or name in sys.argv[1:]]
    failed = False
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, shardkit.connect(servers.shard_map) as kit, asyncio.Runner() as runner:
        blocking = Driver(kit, servers.shard_map, checks=True)
        awaiting = Driver(kit, servers.shard_map, runner)
        for driver in (blocking, awaiting):
            counts: Counter[tuple[str, str]] = Counter()
            for name in names:
                for outcome in driver.outcomes(name):
                    counts[name, outcome.result] += 1
                    silent = outcome.result in ("same", "damage", "check")
                    if not silent and (driver.checks or outcome.result != "wrong"):
                        print(*outcome, sep=" | ", flush=True)
            print(f"{'blocking' if driver.checks else 'awaiting, without check()':25}", end="")
            print(*(f"{result:>8}" for result in RESULTS))
            for name in names:
                print(f"{name:25}", *(f"{counts[name, result]:8,}" for result in RESULTS))
            print(f"{'all':25}", *(f"{_sum(counts, result):8,}" for result in RESULTS), flush=True)
            failed = failed or any(_sum(counts, each) for each in ("spread", "raw", "hang"))
        runner.run(awaiting.awaiting.aclose())
    return int(failed)


def _sum(counts: Counter[tuple[str, str]], result: str) -> int:
    return sum(count for (_, each), count in counts.items() if each == result)


if __name__ == "__main__":
    sys.exit(main())
