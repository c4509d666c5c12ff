"""Each structure with some data, and its calls: what tests damage, and what releases stored."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator
from datetime import date
from operator import methodcaller
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from faces import clocked

from shardkit import ShardErrors, ShardKit
from shardkit.coordination import Guard, Leg
from shardkit.geo import City, IpRange, LogTally
from shardkit.messaging import RecordTally, Total
from shardkit.operations import Command

# Subjects are in `data`; others are there for what needs several servers.
MAP = """
components:
  data: {entry: {port: 7001}}
  second: {entry: {port: 7001, db: 1}}
  third: {entry: {port: 7001, db: 2}}
"""
DAY = date(2015, 5, 17)

Calls = dict[str, Callable[[Any], Any]]


def calls(*names: str) -> Calls:
    """Methods without arguments, by name."""
    return {name: methodcaller(name) for name in names}


def unchecked(_: Any) -> list[Any]:
    """Of what has no check()."""
    return []


class Subject(NamedTuple):
    """A structure: how it is opened, filled, read and written."""

    open: Callable[[ShardKit], Any]
    fill: Callable[[Any], Any]
    reads: Calls
    writes: Calls
    check: Callable[[Any], Any] = lambda structure: structure.check()
    passing: Collection[str] = ()  # reads whose results pass with time


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
            **calls("scard", "smembers"),
            "smismember": lambda s: s.smismember(*range(0, 600, 7)),
            "sscan_iter": lambda s: sorted(s.sscan_iter()),
            "sunion": lambda s: s.sunion([]),
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
            **calls("hlen", "hgetall"),
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
            **calls("hlen", "hgetall"),
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


def _read_chat(chats: Any) -> Any:
    news = [(each.chat, each.messages) for each in chats.fetch("bo")]
    return [(chat, [(m.id, m.sender, m.body) for m in found]) for chat, found in news]


def _fill_files(files: Any) -> None:
    files.create("logs", ["ada", "bo"], chunk_size=1024)
    for n in range(3):
        files.publish("logs", io.BytesIO(b"a line\n" * 500), name=f"{n}.log", lease=0.1)


def _read_files(files: Any) -> Any:
    """Read all files for one reader, as an analysis does."""
    lines = []
    for _ in range(4):
        if file := files.take("logs", "ada", timeout=0):
            lines.append((file.name, Counter(files.lines(file))))
            files.done(file)
    return lines


def _fill_market(market: Any) -> None:
    market.deposit("ada", 5, ["lamp", "rug"])
    market.deposit("bo", 100)
    market.list("lamp", "ada", 30)


NOW = 1_431_850_000.0  # of structures that take their time from the caller


def now() -> float:
    """Return the same time always."""
    return NOW


def _counting_ids(kit: Any) -> Any:
    return clocked(kit, new_id=iter(map(str, range(999))).__next__)


def _send(structure: Any, *batch: Any) -> Any:
    """Send a batch as the structure's operations do."""

    def steps() -> Generator[Any, Any, Any]:
        return (yield batch)

    return structure._driver.run(steps())


def _begin(structure: Any, steps: Generator[Any, Any, Any], batches: int) -> None:
    """Run so many batches of an operation, as one that is killed then."""
    step = next(steps)
    for _ in range(batches):
        step = steps.send(_send(structure, *step))
    steps.close()


def _change_list(jobs: Any) -> None:
    """Remove values until parts are being filled from those behind them."""
    jobs.rpush(*("x" if n % 3 else n for n in range(100)))
    jobs._scripts.searched = 3
    _begin(jobs, jobs.deferred.lrem(0, "x"), 7)


def _incr(users: Any) -> Any:
    try:
        return users.incr("word5")
    except ShardErrors as error:  # documented: what it holds is the application's
        if "not an integer" not in str(error):
            raise


def _holdable(make: Callable[..., Any], owner: str, **options: Any) -> Subject:
    """What can be held, by ada: seen by ada, or by bo, who waits for it."""

    def fill(found: Any) -> None:
        held = type(found)(found._driver, "data", found.name, **{**_BY, "owner": "ada"}, **options)
        held.acquire()
        bo = "owner-bo", found._mode, 10**12, found.limit, "bo", "-", 10**12, 0, 1, 0
        _send(found, found._call("acquire", *bo))

    def inspected(found: Any) -> Any:
        state = found.inspect()
        holders = [(each.label, each.mode, each.acquired) for each in state.holders]
        return state.limit, holders, [(each.label, each.mode) for each in state.waiters]

    def held(found: Any) -> Any:
        hold = found.acquire(blocking_timeout=0)
        return hold and (found.extend(hold=hold), found.held(hold), found.release(hold))

    return Subject(
        lambda kit: make(kit, owner),
        fill,
        {"inspect": inspected, "locked": lambda found: found.locked()},
        {
            "acquire": held,
            "wait": lambda found: found.acquire(blocking_timeout=0.01) and True,
            "break_holds": lambda found: found.break_holds("a test"),
        },
        lambda found: found.check_stored(),
        {"inspect", "locked"},
    )


# A lock of many days, so that its data can be read again at any time.
_BY: dict[str, Any] = {"ttl": 86_400.0, "reentrant": True, "label": "someone"}


def _decided(decision: Any) -> Any:
    return decision.allowed, decision.remaining


def _rate(algorithm: str) -> Subject:
    return Subject(
        lambda kit: kit.rate_limit(
            "rate", component="data", limit=10, per=864_000.0, algorithm=algorithm
        ),
        lambda rate: [rate.hit("ada", 2), rate.hit("ada", 2)],
        {"peek": lambda rate: _decided(rate.peek("ada"))},
        {
            "hit": lambda rate: [_decided(rate.hit("ada", hits)) for hits in (1, 7)],
            "hit_many": lambda rate: [_decided(each) for each in rate.hit_many([("ada", 3), "bo"])],
            "wait": lambda rate: rate.wait("ada", 9, timeout=0.01),
            "reset": lambda rate: rate.reset("ada"),
        },
        lambda rate: rate.check("ada"),
        {"peek"},
    )


def _in_steps(transfers: Any, id_: str, *legs: Leg) -> Generator[Any, Any, Any]:
    """A transfer as between accounts that do not live together."""
    steps: Generator[Any, Any, Any] = transfers._in_steps(
        id_, {leg.account: transfers._leg_text(leg) for leg in legs}
    )
    return steps


def _fill_transfers(transfers: Any) -> None:
    for name in ("ada", "bo", "cy"):
        transfers.issue(Leg(name, {"money": 100, "rug": 3}, set={"level": "1"}))
    pays = Leg("ada", {"money": -7}, {"level": "1"}, {"level": "2"}), Leg("bo", {"money": 7})
    _begin(transfers, _in_steps(transfers, "pending", *pays), 2)
    gives = Leg("bo", {"rug": -1}), Leg("cy", {"rug": 1}, set={"level": "3"})
    _begin(transfers, _in_steps(transfers, "committed", *gives), 3)
    time.sleep(0.01)  # their grace, after which others may finish or undo them


def _accounts(transfers: Any) -> list[Any]:
    return [tuple(each) for each in transfers.read("ada", "bo", "cy")]


def _tally(day: str, *places: str) -> RecordTally[Any]:
    tally = RecordTally(lambda place: place, lambda place: [Total(day, "country", place)])
    tally.add(places)
    return tally


def _by_city(*names: str) -> LogTally:
    tally = object.__new__(LogTally)  # counted already, without a copy of the cities
    cities = [City(name, f"Region of {name}", "DE") for name in names]
    tally.counts = {f"{DAY}": Counter({city: n for n, city in enumerate(cities, 1)})}
    return tally


def _fill_ranges(ranges: Any) -> None:
    for n, (to, key) in enumerate(ranges.places):
        pairs = [each for k in range(50) for each in (10 * k + n, f"m{10 * k + n}")]
        _send(ranges, Command(to, key, ("ZADD", key, *pairs)))


def _top(kind: str) -> Callable[[Any], Any]:
    return lambda totals: totals.top(kind, DAY)


def _stopped() -> bool:
    return True


def _described(found: Any) -> Any:
    return found and (repr(found), sorted(found.buckets.items()), found.quantile(0.5))


SUBJECTS: dict[str, Subject] = {
    "set": _set(parts=2, part_size=16),
    "planned set": _set(total=300, part_size=16),
    "hash": _hash(parts=2, part_size=16, partition="crc32"),
    "numbered hash": _numbers(),
    "json hash": _hash(parts=2, part_size=16, codec="json"),
    "compressed hash": _hash(parts=2, part_size=16, codec="zstd"),
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
    "changed list": Subject(
        lambda kit: kit.list("jobs", component="data", part_size=8),
        _change_list,
        {},
        {
            "llen": lambda jobs: jobs.llen(),
            "items": lambda jobs: list(jobs.items()),
            "lpop": lambda jobs: jobs.lpop(20),
            "rpush": lambda jobs: jobs.rpush("x", "y"),
            **calls("rebuild", "delete"),
        },
    ),
    "sorted set": Subject(
        lambda kit: kit.sorted_set("s", component="data", parts=2, part_size=16, bound=10),
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
            **calls("rebuild", "delete"),
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
        lambda kit: _counting_ids(kit).queues(component="data"),
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
        lambda kit: _counting_ids(kit).ads(component="data"),
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
            "fetch": lambda chats: _read_chat(chats),
            "members": lambda chats: sorted(tuple(each) for each in chats.members("room")),
            "history": lambda chats: [(m.id, m.sender, m.body) for m in chats.history("room")],
        },
        {
            "send": lambda chats: (chats.send("room", "ada", "more"), _read_chat(chats)),
            "create": lambda chats: chats.create("cy", ["bo"], "new", chat="room") == "room",
            "leave": lambda chats: (chats.leave("room", "bo"), _read_chat(chats)),
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
            "read": _read_files,
            "publish": lambda files: (
                files.publish(
                    "logs", io.BytesIO(b"new\n" * 500), name="new.log", lease=0.1, timeout=0.1
                ).number,
                _read_files(files),
            ),
            "fail": lambda files: files.fail(files.take("logs", "bo"), "a test", retry=False),
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
        lambda market: market.check(["ada", "bo"], [("lamp", "ada")]),
    ),
    "strings": Subject(
        lambda kit: kit.strings("user", component="data", parts=2, part_size=16),
        lambda users: users.mset({word: n for n, word in enumerate(WORDS[:100])}),
        {
            "mget": lambda users: users.mget(WORDS[:100:7]),
            "exists": lambda users: users.exists(*WORDS[:9]),
        },
        {
            "set": lambda users: users.set("word5", "new", nx=True),
            "incr": _incr,
            "remove": lambda users: users.remove("word5", "word6"),
            "delete": lambda users: users.delete(),
        },
        lambda users: users._driver.iterate(users._fields.check()),
    ),
    "locations": Subject(
        lambda kit: kit.locations(component="data", part_size=64),
        lambda where: where.set_many(dict.fromkeys(range(150), ("USA", "CA"))),
        {
            "get_many": lambda where: where.get_many(range(150)),
            **calls("aggregate", "highest"),
        },
        {
            "set": lambda where: where.set(70, "FRA"),
            "remove": lambda where: where.remove(3, 70),
            "delete": lambda where: where.delete(),
        },
        lambda where: where.records.check(),
    ),
    "score ranges": Subject(
        lambda kit: kit.score_ranges("ranked", component="data", shards=3),
        _fill_ranges,
        {
            "page": lambda ranges: ranges.page(limit=20),
            "range_iter": lambda ranges: list(ranges.range_iter(desc=True)),
        },
        {},
        unchecked,
    ),
    "daily totals": Subject(
        lambda kit: kit.city_totals(component="data"),
        lambda totals: totals.add("a.log", _by_city("Bonn", "Ulm", "Köln")),
        {kind: _top(kind) for kind in ("country", "region", "city")},
        {
            "add": lambda totals: totals.add("b.log", _by_city("Ulm")),
            "add again": lambda totals: totals.add("a.log", _by_city("Bonn", "Ulm", "Köln")),
        },
        lambda totals: totals.check(DAY),
    ),
    "totals": Subject(
        lambda kit: kit.totals(component="data"),
        lambda totals: totals.flush("a.log", _tally("d", "DE", "DE", "FR")),
        {
            "top": lambda totals: totals.top("d", "country"),
            "get": lambda totals: totals.get("d", "country", "DE", "FR", "IT"),
            "all": lambda totals: sorted(totals.all("d", "country")),
            "sources": lambda totals: totals.sources("d"),
        },
        {
            "flush": lambda totals: (
                totals.flush("b.log", _tally("d", "DE", "IT")),
                totals.get("d", "country", "DE", "IT"),
            ),
            "flush again": lambda totals: (
                totals.flush("a.log", _tally("d", "DE", "DE", "FR")),
                totals.get("d", "country", "DE"),
            ),
            "expire": lambda totals: totals.expire("d", 1000, "country"),
        },
        lambda totals: totals.check("d", "country"),
    ),
    "lock": _holdable(
        lambda kit, owner: kit.lock("stock", component="data", renew=False, owner=owner, **_BY),
        "ada",
    ),
    "awaited lock": _holdable(
        lambda kit, owner: kit.lock("stock", component="data", renew=False, owner=owner, **_BY),
        "bo",
    ),
    "semaphore": _holdable(
        lambda kit, owner: kit.semaphore(
            "seats", component="data", limit=1, renew=False, owner=owner, **_BY
        ),
        "bo",
        limit=1,
    ),
    "read lock": _holdable(
        lambda kit, owner: (
            kit.read_write_lock("doc", component="data", renew=False, owner=owner, **_BY).read
        ),
        "bo",
        kind="rwlock",
        mode="x",
        limit=0,
    ),
    "several locks": Subject(
        lambda kit: kit.multi_lock(
            ["a", "b"], component="data", renew=False, **{**_BY, "reentrant": False}
        ),
        lambda locks: locks.release(locks.acquire()),
        {},
        {"acquire": lambda locks: locks.release(locks.acquire(blocking_timeout=0))},
        unchecked,
    ),
    "quorum": Subject(
        lambda kit: kit.quorum_lock(
            "x", components=["data", "second", "third"], renew=False, ttl=86_400.0
        ),
        lambda lock: lock.release(lock.acquire()),
        {},
        # Of three servers one is damaged: no harm.
        {"acquire": lambda lock: lock.release(lock.acquire(blocking_timeout=0))},
        unchecked,
    ),
    "election": _holdable(
        lambda kit, owner: kit.election(
            "cleaner", component="data", renew=False, owner=owner, **_BY
        ),
        "ada",
    ),
    "guard": Subject(
        lambda kit: Guard(kit._driver, "data", "lock", "stock", 7),
        lambda guard: guard.execute(("SET", "stock:7", "3")),
        {},
        {
            "execute": lambda guard: guard.execute(("SET", "stock:8", "3")),
            "claim": lambda guard: guard.claim("stock:7"),
        },
        unchecked,
    ),
    "latch": Subject(
        lambda kit: kit.countdown_latch("loaded", component="data"),
        lambda latch: (latch.set(3), _send(latch, latch._call("ask", "channel waiter"))),
        {"count": lambda latch: latch.count()},
        {
            "set": lambda latch: latch.set(2),
            "count_down": lambda latch: (latch.count_down(2), latch.count_down(), latch.count()),
            "wait": lambda latch: latch.wait(timeout=0.01),
        },
    ),
    "barrier": Subject(
        lambda kit: kit.barrier("begin", component="data", parties=3),
        lambda barrier: _send(barrier, barrier._call("arrive", "another", "-", 0)),
        {},
        {"wait": lambda barrier: barrier.wait(timeout=0.01)},
    ),
    "rate limit": _rate("gcra"),
    "window": _rate("sliding_window"),
    "transfers": Subject(
        lambda kit: kit.transfers(component="data", grace=0.01),
        _fill_transfers,
        {
            "read": _accounts,
            "total": lambda transfers: transfers.total(["ada", "bo", "cy"]),
        },
        {
            "transfer": lambda transfers: (
                transfers.transfer(
                    Leg("ada", {"money": -5}),
                    Leg("bo", {"money": 5}),
                    Leg("cy", {}, {"level": "1"}),
                ),
                _accounts(transfers),
            ),
            "in steps": lambda transfers: (
                transfers._driver.run(
                    _in_steps(transfers, "new", Leg("ada", {"money": -5}), Leg("bo", {"money": 5}))
                ),
                _accounts(transfers),
            ),
            "recover": lambda transfers: (transfers.recover("ada", "bo"), _accounts(transfers)),
        },
        lambda transfers: transfers.check("ada", "bo", "cy"),
    ),
    "logs": Subject(
        lambda kit: clocked(kit, now=now).logs(component="data"),
        lambda logs: [logs.log("shop", f"failure {n % 3}", "error") for n in range(9)],
        {
            "recent": lambda logs: [tuple(each) for each in logs.recent("shop", "error")],
            "common": lambda logs: logs.common("shop", "error"),
            "follow": lambda logs: [each.message for each in logs.follow("shop", stopped=_stopped)],
        },
        {
            "log": lambda logs: (logs.log("shop", "failure 1", "error"), logs.common("shop", 40)),
            "record": lambda logs: (
                logs.record("shop", "failure 1", "error"),
                logs.flush(),
                logs.common("shop", "error"),
            ),
            "remove": lambda logs: logs.remove("shop"),
        },
        lambda logs: logs.check("shop"),
    ),
    "counters": Subject(
        lambda kit: clocked(kit, now=now).counters(component="data", precisions=[1, 60]),
        lambda counters: counters.add_many({"hits": 300, "misses": 5}),
        {
            "get": lambda counters: counters.get("hits", 60),
            "total": lambda counters: counters.total(["hits", "misses"], 1),
            "known": lambda counters: sorted(counters.known()),
        },
        {
            "add": lambda counters: (counters.add("hits", 70_000), counters.get("hits", 1)),
            "hit": lambda counters: (
                counters.hit("hits", 3),
                counters.flush(),
                counters.get("hits", 1),
            ),
            "clean": lambda counters: tuple(counters.clean()),
            "remove": lambda counters: (counters.remove("hits"), counters.get("hits", 1)),
        },
        lambda counters: counters.check("hits", "misses"),
    ),
    "statistics": Subject(
        lambda kit: clocked(kit, now=now).statistics(component="data"),
        lambda stats: [stats.update("shop", "latency", value) for value in (0.5, 0.25, 0.5)],
        {
            "get": lambda stats: _described(stats.get("shop", "latency")),
            "slowest": lambda stats: stats.slowest("latency"),
        },
        {
            "update": lambda stats: (
                stats.update("shop", "latency", 0.5),
                _described(stats.get("shop", "latency")),
            ),
            "record": lambda stats: (
                stats.record("shop", "latency", 0.5),
                stats.flush(),
                _described(stats.get("shop", "latency")),
            ),
        },
        lambda stats: stats.check("shop", "latency"),
    ),
    "maintenance": Subject(
        lambda kit: kit.maintenance(component="data"),
        lambda flags: flags.turn_on("shop", reason="a new till"),
        {"state": lambda flags: flags.state("shop")},
        {
            "turn_on": lambda flags: (flags.turn_on("shop"), flags.state("shop")),
            "turn_off": lambda flags: (flags.turn_off("shop"), flags.state("shop")),
        },
        lambda flags: flags.check_stored("shop"),
    ),
}
