"""Every structure and component of a kit runs on servers in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.coordination import Leg
from shardkit.geo.models import City, IpRange
from shardkit.kit.catalogue import Catalogue
from shardkit.messaging import RecordTally, Total
from shardkit.testing.memory import MemoryServers

MAP = """
components: {c: {shards: [{port: 1}, {port: 2}]}, one: {entry: {port: 3}}, two: {entry: {port: 4}}}
"""


@pytest.fixture
def kit() -> Iterator[ShardKit]:
    memory = MemoryServers(ShardMap.parse(MAP))
    with shardkit.connect(memory.shard_map, connector=memory) as kit:
        yield kit


def use_hash(kit: ShardKit) -> object:
    table = kit.hash("h", component="c", total=1_000)
    table.hset("a", "1")
    return table.hget("a") == b"1" and table.hlen() == 1


def use_strings(kit: ShardKit) -> object:
    strings = kit.strings("s", component="c", total=1_000)
    strings.set("a", "1")
    return strings.get("a") == b"1"


def use_set(kit: ShardKit) -> object:
    ids = kit.set("ids", component="c", total=1_000)
    return ids.sadd("a", "b") == ids.scard() == 2


def use_sorted_set(kit: ShardKit) -> object:
    scores = kit.sorted_set("z", component="c")
    scores.zadd({"a": 1, "b": 2})
    return scores.zcard() == 2 and scores.zscore("b") == 2


def use_list(kit: ShardKit) -> object:
    values = kit.list("l", component="c")
    values.rpush("a", "b")
    return values.llen() == 2 and values.lpop() in ("a", b"a")


def use_unique_visitors(kit: ShardKit) -> object:
    visitors = kit.unique_visitors(component="c", first_day=1_000)
    return visitors.visit("550e8400-e29b-41d4-a716-446655440000") and visitors.count() == 1


def use_packed(kit: ShardKit) -> object:
    records = kit.packed("p", component="c", fields={"votes": "u32"})
    records.set(3, {"votes": 7})
    return records.get(3)


def use_locations(kit: ShardKit) -> object:
    locations = kit.locations(component="c")
    locations.set(5, "USA", "CA")
    return locations.get(5)


def use_ip_to_city(kit: ShardKit) -> object:
    cities = kit.ip_to_city(component="c")
    bonn = City("Bonn", "North Rhine-Westphalia", "Germany")
    cities.import_from([IpRange.of("192.0.2.0/24", city=bonn)])
    return cities.find("192.0.2.1")


def use_city_totals(kit: ShardKit) -> object:
    return kit.city_totals(component="c").top("city", "2020-01-01") == []


def use_recent_contacts(kit: ShardKit) -> object:
    contacts = kit.recent_contacts(component="c")
    contacts.touch("user", "Anna")
    return list(contacts.complete("user", "an")) == ["Anna"]


def use_address_book(kit: ShardKit) -> object:
    book = kit.address_book(component="c")
    book.join("guild", "anna")
    return list(book.complete("guild", "an")) == ["anna"]


def use_score_ranges(kit: ShardKit) -> object:
    kit.client("c", 0).zadd("z:0", {"a": 1})
    return kit.score_ranges("z", component="c", shards=2)


def use_search(kit: ShardKit) -> object:
    index = kit.search("docs", component="c", attributes={"lang": "text", "votes": "number"})
    index.index_many([(f"d{n}", f"red fox w{n}", {"lang": "en", "votes": n}) for n in range(40)])
    index.remove("d3")
    found = index.search('"red fox" w* votes:>10', sort="-votes", facets=["lang"], cache=30)
    again = index.search('"red fox" w* votes:>10', sort="-votes", result=found.result, offset=20)
    return found.total == again.total == 29 and found.hits[0].id == "d39"


def use_ads(kit: ShardKit) -> object:
    ads = kit.ads(component="c")
    ads.index("shoes", ["Berlin"], "running shoes", "cpc", 0.5)
    served = ads.target(["Berlin"], "shoes")
    assert served
    return ads.record_click(served.target, "shoes") and ads.get("shoes")


def use_job_search(kit: ShardKit) -> object:
    jobs = kit.job_search(component="c")
    jobs.index("job", ["python"])
    return [hit.id for hit in jobs.find(["python", "lua"])] == ["job"]


def use_queues(kit: ShardKit) -> object:
    queues = kit.queues(component="c")
    queues.enqueue("mail", "send", ["anna"])
    task = queues.take("mail")
    return task and queues.acknowledge(task)


def use_social(kit: ShardKit) -> object:
    network = kit.social(component="one")
    anna = network.create_user("anna", "Anna")
    ben = network.create_user("ben", "Ben")
    network.follow(ben, anna)
    return network.post(anna, "hello")


def use_lock(kit: ShardKit) -> object:
    with kit.lock("stock", component="c") as held:
        held.check()
        return kit.lock("stock", component="c").acquire(wait=0) is None


def use_semaphore(kit: ShardKit) -> object:
    pages = kit.semaphore("pages", component="c", limit=2)
    return [pages.acquire(wait=0) is not None for _ in range(3)] == [True, True, False]


def use_read_write_lock(kit: ShardKit) -> object:
    shelf = kit.read_write_lock("shelf", component="c")
    return shelf.read.acquire() and shelf.write.acquire(wait=0) is None


def use_multi_lock(kit: ShardKit) -> object:
    several = kit.multi_lock(["a", "b", "c"], component="c")
    return len(several.acquire() or ()) == 3 and several.release()


def use_quorum_lock(kit: ShardKit) -> object:
    lock = kit.quorum_lock("stock", components=["c", "one", "two"])
    return lock.acquire() and lock.release()


def use_election(kit: ShardKit) -> object:
    election = kit.election("cleaner", component="c", label="worker-3")
    leader = election.campaign() and election.leader()
    return leader and leader.label == "worker-3"


def use_countdown_latch(kit: ShardKit) -> object:
    latch = kit.countdown_latch("loaded", component="c")
    return latch.set(2) and (latch.count_down(), latch.count_down(), latch.wait()) == (1, 0, True)


def use_barrier(kit: ShardKit) -> object:
    return kit.barrier("start", component="c", parties=1).wait()


def use_rate_limit(kit: ShardKit) -> object:
    limit = kit.rate_limit("api", component="c", limit=2, per=60)
    return [limit.hit("anna").allowed for _ in range(3)] == [True, True, False]


def use_transfers(kit: ShardKit) -> object:
    bank = kit.transfers("bank", component="c")
    bank.issue(Leg("ann", {"gold": 100}))
    bank.transfer(Leg("ann", {"gold": -30}), Leg("bob", {"gold": 30}))
    return (
        bank.total(["ann", "bob"]) == {"gold": 100} and bank.read("bob")[0].balances["gold"] == 30
    )


def use_market(kit: ShardKit) -> object:
    market = kit.market(component="c")
    market.deposit("frank", 0, ["ring"])
    market.deposit("bill", 125)
    market.list("ring", "frank", 97)
    return (
        market.purchase("bill", "ring", "frank", 97)
        and market.user("frank").balances["money"] == 97
    )


def use_mailboxes(kit: ShardKit) -> object:
    mail = kit.mailboxes(component="c")
    mail.send("anna", "ben", "hello")
    fetched = mail.fetch("anna", timeout=1)
    return [message.body for message in fetched] == ["hello"] and mail.acknowledge("anna", fetched)


def use_chats(kit: ShardKit) -> object:
    chats = kit.chats(component="c")
    chat = chats.create("anna", ["ben"], "hello")
    [news] = chats.fetch("ben")
    assert chats.acknowledge(chat, "ben", news.messages[-1])
    return chats.send(chat, "ben", "hi") == 2 and chats.leave(chat, "ben")


def use_files(kit: ShardKit) -> object:
    files = kit.files(component="c")
    files.create("logs", ["count"], chunk_size=4)
    assert files.publish("logs", io.BytesIO(b"one\ntwo"), name="a.log").new
    file = files.take("logs", "count")
    assert list(files.lines(file)) == [b"one", b"two"]
    files.done(file)
    return files.status("logs").held == 0


def use_totals(kit: ShardKit) -> object:
    totals = kit.totals(component="c")
    tally = RecordTally(str.strip, lambda key: [Total("today", "word", key)])
    tally.add(["a", "b", "a "])
    return totals.flush("file", tally) and totals.top("today", "word") == [("a", 2), ("b", 1)]


def use_logs(kit: ShardKit) -> object:
    logs = kit.logs(component="c")
    logs.log("web", "started")
    return [record.message for record in logs.recent("web")] == ["started"]


def use_counters(kit: ShardKit) -> object:
    hits = kit.counters(component="c")
    hits.hit("home", 3)
    hits.flush()
    hits.add("home")
    return hits.total(["home"], 3600) == 4


def use_statistics(kit: ShardKit) -> object:
    latencies = kit.statistics(component="c")
    latencies.update("home", "seconds", 0.5)
    found = latencies.get("home", "seconds")
    return found and found.mean == 0.5


def use_access_times(kit: ShardKit) -> object:
    times = kit.access_times(component="c")
    times.record("home", 0.5)
    times.flush()
    found = times.get("home")
    return found and found.count == 1


def use_timed(kit: ShardKit) -> object:
    with kit.timed("home", component="c"):
        pass
    times = kit.access_times(component="c")
    times.flush()
    return times.get("home")


def use_maintenance(kit: ShardKit) -> object:
    flag = kit.maintenance(component="c")
    flag.turn_on(reason="moving")
    state = flag.state()
    return state and state.reason == "moving"


USES: dict[str, Callable[[ShardKit], object]] = {
    name.removeprefix("use_"): use for name, use in globals().items() if name.startswith("use_")
}


def test_all_are_used_here() -> None:
    public = {name for name in vars(Catalogue) if not name.startswith("_")}
    assert public == USES.keys()


@pytest.mark.parametrize("name", sorted(USES))
def test_a_structure_or_component_runs_in_memory(kit: ShardKit, name: str) -> None:
    assert USES[name](kit)
