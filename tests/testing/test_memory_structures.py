"""Every structure and component of a kit runs on servers in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.catalogue import Catalogue
from shardkit.geo.models import City, IpRange
from shardkit.testing.memory import MemoryServers

MAP = "components: {c: {shards: [{port: 7001}, {port: 7002}]}, one: {entry: {port: 7003}}}"


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


USES: dict[str, Callable[[ShardKit], object]] = {
    name.removeprefix("use_"): use for name, use in globals().items() if name.startswith("use_")
}


def test_all_are_used_here() -> None:
    public = {name for name in vars(Catalogue) if not name.startswith("_")}
    assert public == USES.keys()


@pytest.mark.parametrize("name", sorted(USES))
def test_a_structure_or_component_runs_in_memory(kit: ShardKit, name: str) -> None:
    assert USES[name](kit)
