"""The calls of each subject that are not in `subjects`, so that every public method is damaged.

Releases stored what the reads of `subjects` returned (tests/golden), so these are apart.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any

from subjects import (
    DAY,
    RANGES,
    SESSIONS,
    SUBJECTS,
    WORDS,
    Calls,
    Subject,
    _read_files,
    _send,
    _uid,
    calls,
)

from shardkit.coordination import Leg
from shardkit.geo import City, IpRange
from shardkit.operations import Command
from shardkit.queues import NewTask
from shardkit.social.delivery import FanOutJob
from shardkit.social.network import RELATION_SHARDS
from shardkit.structures import Zstd

NEXT_DAY = DAY + timedelta(1)


def _listed(call: str, *args: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda structure: list(getattr(structure, call)(*args, **options))


def _own(structure: Any) -> Any:
    """The structure itself, as an argument of its calls."""
    return getattr(structure, "structure", structure)


def _copied(*written: Any) -> Callable[[Any], Any]:
    def copy(structure: Any) -> Any:
        _send(structure, Command("data", "plain", written))
        return structure.copy_from("plain")

    return copy


def _resigned(election: Any) -> Any:
    leadership = election.acquire(blocking_timeout=0)
    return leadership and election.resign(leadership)


def _set_stock() -> Generator[Any, Any, Any]:
    return (yield [Command("data", "stock:7", ("SET", "stock:7", "3"))])


def _clicked(ads: Any) -> bool:
    served = ads.target(["USA"], "words")
    return served is not None and bool(ads.record_click(served.target, served.ad))


LIFETIME: tuple[Calls, Calls] = (
    calls("ttl", "pttl"),
    {
        "pexpire": methodcaller("pexpire", 10**6),
        "expireat": methodcaller("expireat", 2 * 10**9),
        "pexpireat": methodcaller("pexpireat", 2 * 10**12),
        **calls("persist", "open", "rebuild"),
    },
)

# An operand is another structure of the same parameters, so here it is the structure itself.
SETS: tuple[Calls, Calls] = (
    {
        **LIFETIME[0],
        "sismember": lambda s: [s.sismember(n) for n in (0, 77, 299, 300)],
        "sdiff": lambda s: s.sdiff([]),
        "sinter": lambda s: s.sinter([]),
        "iterated": lambda s: sorted((*s.sdiff_iter(), *s.sinter_iter(), *s.sunion_iter())),
        "srandmember": lambda s: len(s.srandmember(-5)),
    },
    {
        **LIFETIME[1],
        "sadd_many": lambda s: s.sadd_many(range(290, 320)),
        "sdiffstore": lambda s: s.sdiffstore([_own(s), _own(s)]),
        "sinterstore": lambda s: s.sinterstore([_own(s)]),
        "sunionstore": lambda s: s.sunionstore([_own(s)]),
        "spop": lambda s: len(s.spop(5)),
    },
)
HASHES: tuple[Calls, Calls] = (
    {
        **LIFETIME[0],
        "hexists": lambda h: [h.hexists(word) for word in WORDS[:5]],
        "hkeys": lambda h: sorted(h.hkeys()),
        "hvals": lambda h: sorted(map(str, h.hvals())),
        "hstrlen": lambda h: [h.hstrlen(word) for word in WORDS[:5]],
        "hrandfield": lambda h: len(h.hrandfield(-5)),
        "httl": lambda h: (h.httl(*WORDS[:4]), h.hpttl(*WORDS[:4])),
        "hexpiretime": lambda h: (h.hexpiretime(*WORDS[:4]), h.hpexpiretime(*WORDS[:4])),
    },
    {
        **LIFETIME[1],
        "copy_from": _copied("HSET", "plain", "new", "1"),
        "expire": methodcaller("expire", 1000),
        "hset_many": lambda h: h.hset_many((word, "x") for word in WORDS[5:15]),
        "hsetnx": lambda h: (h.hsetnx(WORDS[5], "x"), h.hsetnx("new", "x")),
        "hexpire": lambda h: (h.hexpire(1000, *WORDS[:4]), h.hpexpire(10**6, *WORDS[4:9])),
        "hexpireat": lambda h: (
            h.hexpireat(2 * 10**9, *WORDS[:4]),
            h.hpexpireat(2 * 10**12, *WORDS[4:9]),
        ),
        "hpersist": lambda h: h.hpersist(*WORDS[:4]),
        "hsetex": lambda h: h.hsetex(WORDS[3], "x", ex=1000),
    },
)
FURTHER: dict[str, tuple[Calls, Calls]] = {
    "set": SETS,
    "planned set": SETS,
    "hash": (
        HASHES[0],
        {
            **HASHES[1],
            "hincrby": lambda h: h.hincrby("new", 3),
            "hincrbyfloat": lambda h: h.hincrbyfloat("new", 0.5),
        },
    ),
    "numbered hash": (LIFETIME[0], {**LIFETIME[1], "hincrby": lambda h: h.hincrby(300, 3)}),
    "json hash": HASHES,
    "compressed hash": (
        HASHES[0],
        {
            **HASHES[1],
            "train": lambda h: h.train([f"value of {word}" for word in WORDS]),
            "add_dictionary": methodcaller(
                "add_dictionary", Zstd().build_dictionary([b"value of word"])
            ),
        },
    ),
    "list": (
        LIFETIME[0],
        {
            **{name: call for name, call in LIFETIME[1].items() if name != "rebuild"},
            "blpop": lambda jobs: (jobs.blpop(0.01), jobs.brpop(0.01)),
            "lpush": lambda jobs: (jobs.lpush("x"), jobs.lpush_many([1, 2]), jobs.rpush_many([3])),
            "lset": lambda jobs: jobs.lset(40, "x"),
            "lmove": lambda jobs: (jobs.lmove(_own(jobs)), jobs.blmove(_own(jobs), 0.01)),
        },
    ),
    "sorted set": (
        {
            **LIFETIME[0],
            "top": lambda s: (s.top(10), s.bottom(10)),
            "top of more": lambda s: (s.top(50), s.bottom(50)),
            "lex_range_iter": lambda s: list(s.lex_range_iter("[word10", "[word12")),
            "page": lambda s: s.page(limit=30),
            "range_iter": lambda s: list(s.range_iter(100, 150)),
            "zcount": lambda s: (s.zcount(100, 150), s.zlexcount("[word10", "[word12")),
            "zrangebylex": lambda s: (
                s.zrangebylex("[word1", "+"),
                s.zrevrangebylex("+", "[word1"),
            ),
            "zrangebyscore": lambda s: s.zrangebyscore(100, 150, start=5, num=20, withscores=True),
            "zrevrangebyscore": lambda s: s.zrevrangebyscore(150, 100),
            "zrevrank": lambda s: (s.zrevrank("word77"), s.zscore("word77"), s.zscore("none")),
        },
        {
            **LIFETIME[1],
            "copy_from": _copied("ZADD", "plain", "7", "new"),
            "expire": methodcaller("expire", 1000),
            "zadd_many": lambda s: s.zadd_many([("word5", 1000), ("new", 1)]),
            "zincrby": lambda s: s.zincrby(3, "word77"),
            "zpopmax": lambda s: s.zpopmax(5),
            "zremrangebyrank": lambda s: s.zremrangebyrank(5, 20),
            "zremrangebyscore": lambda s: s.zremrangebyscore(5, 20),
        },
    ),
    "packed": (
        {
            **LIFETIME[0],
            "aggregate": lambda p: p.aggregate("a", "b"),
            "count": lambda p: p.count(),
            "get_field": lambda p: [p.get_field(n, "a") for n in (0, 63, 64, 299)],
            "group_by": lambda p: p.group_by("b", totals=["a"]),
            "highest": lambda p: p.highest(),
        },
        {
            **LIFETIME[1],
            "expire": methodcaller("expire", 1000),
            "increment": lambda p: p.increment(70, "a"),
            "increment_many": lambda p: p.increment_many({7: 1, 70: 2}, "a"),
            "remove": lambda p: p.remove(7, 70),
            "set_many": lambda p: p.set_many({n: {"a": 3, "b": 4} for n in (7, 70, 400)}),
        },
    ),
    "ip to city": (
        {},
        {
            "import_from": lambda ip: ip.import_from(
                [*RANGES[1:], IpRange(1, 9, City("FR", "", "P"))]
            )
        },
    ),
    "address book": (
        {"contains": lambda book: [book.contains("elves", word) for word in WORDS[:9]]},
        {
            "join_many": lambda book: book.join_many("elves", ["Arwen", *WORDS[:9]]),
            "leave": lambda book: (
                book.leave("elves", "word7"),
                book.leave_many("elves", WORDS[:9]),
            ),
            "rebuild": lambda book: book.rebuild("elves"),
            "remove_group": lambda book: book.remove_group("elves"),
        },
    ),
    "contacts": (
        {
            "count": lambda known: known.count("ada"),
            "oldest": lambda known: known.oldest("ada"),
            "times": lambda known: [name for name, _ in known.times("ada")],
        },
        {
            "touch_many": lambda known: known.touch_many([("ada", "Grace"), ("ada", "word7")]),
            "remove": lambda known: known.remove("ada", "word7"),
            "remove_all": lambda known: known.remove_all("ada"),
        },
    ),
    "unique exact": (
        {
            "counts": lambda u: u.counts([DAY, NEXT_DAY]),
            "count_union": lambda u: (u.count_union([DAY]), u.count_intersection([DAY])),
            "expected": lambda u: u.expected(NEXT_DAY),
            "locate": lambda u: tuple(u.locate(SESSIONS[0], DAY)),
        },
        {
            "count_intersection": lambda u: u.count_intersection([DAY, NEXT_DAY]),
            "expire": lambda u: u.expire(DAY, 1000),
            "rebuild": lambda u: u.rebuild(DAY),
            "remove": lambda u: u.remove(DAY),
            "keep": lambda u: (u.remove(DAY, keep_count=True), u.count(DAY)),
        },
    ),
    "queue": (
        {
            "length": lambda queues: queues.length("mail"),
            "next_due": lambda queues: queues.next_due("mail") is None,
            "dead": lambda queues: list(queues.dead("mail")),
            "overdue": lambda queues: (queues.overdue("mail"), queues.oldest("mail") is None),
            "rates": lambda queues: bool(queues.rates("mail")),
        },
        {
            "enqueue_many": lambda queues: queues.enqueue_many("mail", [NewTask("send", id="x")]),
            "cancel": lambda queues: [queues.cancel("mail", f"{n}") for n in range(12)],
            "fail": lambda queues: queues.fail(queues.take("mail", timeout=0), "a test"),
            "extend": lambda queues: queues.extend(queues.take("mail", timeout=0)),
            "release": lambda queues: queues.release(queues.take("mail", timeout=0)),
            "move_due": lambda queues: queues.move_due("mail"),
            "purge": lambda queues: tuple(queues.purge("mail")),
            "restore": lambda queues: queues.restore("mail"),
            "revive": lambda queues: (queues.revive("mail", "1"), queues.revive_all("mail")),
        },
    ),
    "search": (
        {
            "all": lambda docs: sorted(hit.id for hit in docs.all("word3")),
            "count": lambda docs: docs.count(),
            "count of a word": lambda docs: docs.count("word3"),
            "count of a phrase": lambda docs: docs.count('"others 33"'),
            "count of a range": lambda docs: docs.count("size:10..20"),
            "sorted": lambda docs: [hit.id for hit in docs.search("others", sort="-size")],
            "weights": lambda docs: [hit.id for hit in docs.search("others", sort={"size": 1.0})],
            "facets": lambda docs: docs.search("others", facets=["size"]).facets,
            "attributes": lambda docs: [
                hit.attributes for hit in docs.search("word3", attributes=True)
            ],
            "prefix": lambda docs: docs.count("wor*"),
            "get": lambda docs: getattr(docs.get("7"), "attributes", None),
            "get_many": lambda docs: sorted(docs.get_many(["7", "8", "99"])),
            "info": lambda docs: repr(docs.info()),
            "page": lambda docs: [hit.id for hit in docs.page("others", 2)],
            "words": lambda docs: docs.words("wor"),
        },
        {
            "index_many": lambda docs: docs.index_many([("51", "word3 more"), ("7", "other")]),
            "remove_many": lambda docs: docs.remove_many(["3", "4"]),
            "delete": lambda docs: docs.delete(),
        },
    ),
    "ads": (
        {"averages": lambda ads: ads.averages(), "count": lambda ads: ads.count()},
        {
            "index": lambda ads: ads.index("9", ["USA"], "words", "cpc", 0.5),
            "index_many": lambda ads: ads.index_many([("9", ["USA"], "words", "cpc", 0.5)]),
            "record_click": lambda ads: _clicked(ads),
            "rebuild": lambda ads: ads.rebuild(lossy=True),
            "remove": lambda ads: (ads.remove("3"), ads.remove_many(["4", "5"])),
            "update": lambda ads: ads.update("5"),
            "delete": lambda ads: ads.delete(),
        },
    ),
    "jobs": (
        {
            "all": lambda jobs: sorted(hit.id for hit in jobs.all(["python", "skill7"])),
            "count": lambda jobs: jobs.count(),
            "get": lambda jobs: jobs.get("7"),
            "qualified": lambda jobs: jobs.qualified("7", ["python", "skill7"]),
        },
        {
            "index_many": lambda jobs: jobs.index_many([("7", ["sql"]), ("8", ["c"])]),
            "rebuild": lambda jobs: jobs.rebuild(lossy=True),
            "remove": lambda jobs: (jobs.remove("7"), jobs.remove_many(["8", "9"])),
            "delete": lambda jobs: jobs.delete(),
        },
    ),
    "network": (
        {
            "followers": lambda n: len(n.followers(_uid(n, "bo"))),
            "following": lambda n: len(n.following(_uid(n, "ada"))),
            "profile": lambda n: [each.message for each in n.profile(_uid(n, "bo"))],
            "lists": lambda n: n.lists(_uid(n, "ada")),
            "blocks": lambda n: n.blocks(_uid(n, "ada"), _uid(n, "bo")),
            "pending": lambda n: n.pending(),
            "get": lambda n: (
                n.get_user(_uid(n, "bo")),
                [n.get_status(each.id) for each in n.profile(_uid(n, "bo"))],
                [n.get_list(each.id) for each in n.lists(_uid(n, "ada"))],
            ),
            "get_users": lambda n: [user and user.name for user in n.get_users([1, 2, 3])],
            "get_statuses": lambda n: [each and each.message for each in n.get_statuses([1, 2, 3])],
        },
        {
            "backfill": lambda n: n.backfill("user", _uid(n, "ada")),
            "open": methodcaller("open"),
            "follow": lambda n: n.follow(_uid(n, "bo"), _uid(n, "cy")),
            "unfollow": lambda n: n.unfollow(_uid(n, "ada"), _uid(n, "bo")),
            "block": lambda n: n.block(_uid(n, "bo"), _uid(n, "ada")),
            "unblock": lambda n: n.unblock(_uid(n, "bo"), _uid(n, "ada")),
            "mute": lambda n: (n.mute(_uid(n, "ada"), _uid(n, "bo")), n.unmute(1, 2)),
            "create_list": lambda n: n.create_list(_uid(n, "ada"), "friends"),
            "list_timeline": lambda n: len(n.list_timeline(1)),
            "follow_into_list": lambda n: n.follow_into_list(1, _uid(n, "bo")),
            "unfollow_from_list": lambda n: n.unfollow_from_list(1, _uid(n, "bo")),
            "reconcile_list": lambda n: n.reconcile_list(1),
            "delete_status": lambda n: n.delete_status(_uid(n, "bo"), 1),
            "repair": lambda n: n.repair(0),
            "rebuild": lambda n: n.rebuild(),
            "resume_fan_out": lambda n: n.resume_fan_out(
                *FanOutJob.begin(*("post", _uid(n, "bo"), RELATION_SHARDS, "a note"), subject=1)
            ),
        },
    ),
    "mailboxes": (
        {"unread_many": lambda boxes: boxes.unread_many(["ada", "bo"])},
        {
            "acknowledge": lambda boxes: boxes.acknowledge("ada", boxes.fetch("ada")[:2]),
            "clear": lambda boxes: boxes.clear("ada"),
            "pop_all": lambda boxes: [message.body for message in boxes.pop_all("ada")],
            "release": lambda boxes: boxes.release("ada", boxes.fetch("ada")[:2]),
            "send_many": lambda boxes: boxes.send_many([("ada", "bo", 1), ("cy", "bo", 2)]),
        },
    ),
    "chats": (
        {"chats": lambda chats: chats.chats("bo")},
        {
            "acknowledge_many": lambda chats: chats.acknowledge_many("bo", {"room": 2}),
            "fetch_from": lambda chats: len(chats.fetch_from("room", "bo") or ()),
            "listen": _listed("listen", "room", "no member"),  # of others it does not end
            "repair": lambda chats: chats.repair("room"),
        },
    ),
    "files": (
        {},
        {
            "create": lambda files: files.create("new", ["bo"]),
            "publish again": lambda files: files.publish("logs", io.BytesIO(b""), name="1.log"),
            "checkpoint": lambda files: files.checkpoint(files.take("logs", "bo", timeout=0)),
            "release": lambda files: files.release(files.take("logs", "bo", timeout=0)),
            "records": lambda files: len(
                list(files.records(files.take("logs", "bo", timeout=0), 4)),
            ),
            "publish_parts": lambda files: len(
                list(
                    files.publish_parts("logs", __file__, part_size=9999, lease=0.1, timeout=0.1),
                ),
            ),
            "publish_directory": _listed(
                *("publish_directory", "logs", Path(__file__).parent),
                pattern="further.py",
                lease=0.1,
                timeout=0.1,
            ),
            "take_all": lambda files: len(list(files.take_all("logs", "bo", timeout=0))),
        },
    ),
    "market": (
        {"total": lambda market: market.total(["ada", "bo"], [("lamp", "ada")])},
        {
            "deposit": lambda market: market.deposit("ada", 5, ["chair"]),
            "list": lambda market: market.list("lamp", "ada", 7),
        },
    ),
    "strings": (
        {
            "get": lambda users: [users.get(word) for word in WORDS[:5]],
            "ttl": lambda users: (users.ttl("word5"), users.pttl("word5")),
        },
        {
            "decr": lambda users: users.decr("new"),
            "incrbyfloat": lambda users: users.incrbyfloat("new", 0.5),
            "mset": lambda users: users.mset(dict.fromkeys(WORDS[:9], "x")),
            "expire": lambda users: (users.expire("word5", 1000), users.persist("word5")),
        },
    ),
    "locations": (
        {"get": lambda where: [where.get(n) for n in (0, 70, 149)]},
        {"set_many": lambda where: where.set_many({7: ("USA", "CA"), 200: ("FRA", None)})},
    ),
    "score ranges": (
        {
            "zrangebyscore": lambda ranges: ranges.zrangebyscore("-inf", "+inf", withscores=True),
            "zrevrangebyscore": lambda ranges: ranges.zrevrangebyscore("+inf", "-inf", 2, 9),
        },
        {},
    ),
    "daily totals": ({}, {"expire": lambda totals: totals.expire(DAY, 1000)}),
    "election": (
        {},
        {
            "campaign": lambda election: (
                election.leader(),
                bool(election.campaign(blocking_timeout=0)),
            ),
            "resign": _resigned,
        },
    ),
    "guard": (
        {},
        {
            "eval": lambda guard: guard.eval("return 1", 1, "stock:7"),
            "run": lambda guard: guard.run(_set_stock()),
        },
    ),
    "semaphore": ({}, {"resize": lambda seats: seats.resize(2)}),
    "transfers": ({}, {"issue": lambda transfers: transfers.issue(Leg("ada", {"money": 5}))}),
    "counters": (
        {"sum": lambda counters: len(counters.sum(["hits", "misses"], 60))},
        {
            "add_many": lambda counters: counters.add_many({"hits": 1, "new": 2}),
            "keep_clean": lambda counters: tuple(counters.keep_clean(lambda: True)),
        },
    ),
    "statistics": ({"merge": lambda stats: bool(stats.merge(["shop"], "latency"))}, {}),
}
FURTHER["unique compact"] = FURTHER["unique exact"]
FURTHER["unique 60-bit"] = (
    FURTHER["unique exact"][0],
    {
        **FURTHER["unique exact"][1],
        "gather": lambda u: u.gather(DAY, shards=1),
        "visitors": lambda u: u.visitors(DAY).total,
    },
)
FURTHER |= {
    f"unique {precision}": (
        {"counts": lambda u: (u.counts([DAY, NEXT_DAY]), u.count_union([DAY]))},
        {"expire": lambda u: u.expire(DAY, 1000), "remove": lambda u: u.remove(DAY)},
    )
    for precision in ("bitmap", "hyperloglog")
}


def _used(name: str, *uses: Callable[[Any], Any]) -> Subject:
    """A subject after some of its calls."""

    def fill(structure: Any) -> None:
        SUBJECTS[name].fill(structure)
        for use in uses:
            use(structure)

    return SUBJECTS[name]._replace(fill=fill)


def _lost(leased: Any) -> None:
    """Lose a lease of a millisecond."""
    time.sleep(0.01)  # until it has ended


def _begun(files: Any) -> None:
    """Begin to publish a file, as a process that is still at it."""
    _send(files, files._call("begin", "logs", "", "begun.log", "a claim", 10**13))


# Subjects whose data is not as it was written at first.
USED = {
    "used mailboxes": _used(
        "mailboxes",
        lambda boxes: boxes.fetch("ada", 1, lease=86_400),
        lambda boxes: _lost(boxes.fetch("ada", 2, lease=0.001)),
    ),
    "used chats": _used(
        "chats",
        lambda chats: chats.acknowledge_many("bo", {"room": 3}),
        lambda chats: (chats.leave("room", "cy"), chats.join("room", "cy")),
    ),
    "used files": _used(
        "files",
        _read_files,
        lambda files: files.publish("logs", io.BytesIO(b"a line\n" * 500), name="3.log"),
        lambda files: next(files.lines(files.take("logs", "ada", lease=86_400))),
        lambda files: _lost(files.take("logs", "bo", lease=0.001)),
        _begun,
    ),
}
