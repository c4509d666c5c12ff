"""Whatever is damaged in what structures store: no hang, and no error that does not name it.

A sample of the cases of `damages`, by a seed; ``make damage`` makes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from damages import RANGES, SESSIONS, SUBJECTS, Driver
from faces import Face

from shardkit import DamagedDataError, ShardKit, ShardMap, connect
from shardkit.local import LocalServers

CASES = 16  # of each subject, on each face


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    servers = LocalServers(
        ShardMap.parse("components: {data: {entry: {port: 7001}}}"), ports="free"
    )
    with servers, connect(servers.shard_map) as kit:
        if request.param == "blocking":
            yield Driver(kit, servers.shard_map)
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
    ("hash", "hkeys"),
    ("sorted set", "zscan_iter"),
    ("sorted set", "zrange"),
    ("list", "items"),
    ("list", "lrange"),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_damage_is_named_or_changes_nothing(driver: Driver, name: str) -> None:
    outcomes = list(driver.outcomes(name, seed=1 + (driver.runner is None), most=CASES))
    assert len(outcomes) >= 4
    for outcome in outcomes:
        assert outcome.result not in ("raw", "hang"), outcome
        if (name, outcome.call) in READ_WHOLE and "more" not in outcome.what:
            assert outcome.result != "wrong", outcome


@pytest.mark.parametrize("number", ["2147483648", "-1", "0", "1e3", "x", ""])
@pytest.mark.parametrize("field", ["parts", "count"])
@pytest.mark.parametrize("name", ["set", "hash", "sorted set"])
def test_no_number_of_a_group_makes_a_client_or_server_work_without_end(
    driver: Driver, name: str, field: str, number: str
) -> None:
    driver.prepare(name)
    for key in list(driver.client.scan_iter("*}")):
        driver.client.hset(key, field, number)
    before = driver.snapshot()
    subject = SUBJECTS[name]
    call = next(iter(subject.writes.values()))
    if (field, number) == ("count", "0") and name != "sorted set":
        return  # fewer than there are: only a whole read can tell
    with pytest.raises(DamagedDataError) as raised:
        driver.call(name, call)
    assert raised.value.shard == "data"
    assert driver.snapshot() == before


def test_a_lost_state_is_told_from_an_empty_group(kit: ShardKit) -> None:
    ids = kit.set("ids", component="one", members=int, groups=2, part_size=16)
    ids.sadd_many(range(300))
    client: Any = kit.client("one")
    client.delete(*client.scan_iter("*}"))
    calls = (
        lambda ids: ids.scard(),
        lambda ids: ids.smembers(),
        lambda ids: ids.sismember(7),
        lambda ids: ids.sadd(1000),
    )
    for call in calls:
        fresh = kit.set("ids", component="one", members=int, groups=2, part_size=16)
        with pytest.raises(DamagedDataError, match="no state"):
            call(fresh)


def test_a_group_whose_parameters_are_unreadable_is_not_taken_for_another_structures(
    face: Face, kit: ShardKit
) -> None:
    ids = face.kit.set("ids", component="one", members=int, groups=2, part_size=16)
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


@pytest.mark.parametrize("parts", [1, 3])
def test_nothing_is_left_of_a_structure_that_says_too_few_parts(
    face: Face, kit: ShardKit, parts: int
) -> None:
    client: Any = kit.client("one")
    for make in (face.kit.set, face.kit.hash, face.kit.sorted_set):
        name = make.__name__
        structure = make(name, component="one", groups=2, part_size=16)
        many = {f"m{n}": n for n in range(300)}
        face.run(
            structure.sadd(*many)
            if name == "set"
            else structure.zadd(many)
            if name == "sorted_set"
            else structure.hset(mapping=many)
        )
        client.hset(next(iter(client.scan_iter(name + ":{*}"))), "parts", parts)
        assert face.run(structure.delete())
        assert [key for key in client.scan_iter() if not key.endswith(b":deleted")] == []


@pytest.mark.parametrize("lost", [lambda client, key: client.delete(key), lambda c, k: c.spop(k)])
def test_nothing_is_left_of_a_structure_whose_registry_lost_parts(
    face: Face, kit: ShardKit, lost: Any
) -> None:
    client: Any = kit.client("one")
    numbers = face.kit.hash("h", component="one", part_size=16)
    packed = face.kit.packed("p", component="one", fields={"a": "u8"}, part_size=64)
    for structure in (numbers, packed):
        if structure is numbers:
            face.run(numbers.hset(mapping={n: f"value {n}" for n in range(300)}))
        else:
            face.run(packed.set_many({n: {"a": 1} for n in range(300)}))
        lost(client, f"{structure.name}:parts")
        assert face.run(structure.delete())
        assert [key for key in client.scan_iter() if not key.endswith(b":deleted")] == []


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
        with pytest.raises(DamagedDataError, match=r"cities:0.*city 1, which a block names"):
            face.run(look())
    assert face.run(fresh.find("9.9.9.9")) is None


def test_a_check_sees_what_the_next_write_would_go_by(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    scores = face.kit.sorted_set("s", component="one", groups=2, part_size=16, bound=10)
    face.run(scores.zadd({f"m{n}": n for n in range(300)}))
    assert face.list(scores.check()) == []
    state = next(iter(client.scan_iter("s:{*}")))
    size, _, worst = client.hget(state, "bottom").partition(b" ")
    client.hset(state, "bottom", size + b" " + worst[:1] + b"0" + worst[1:])
    assert [each.key for each in face.list(scores.check())] == [f"{state.decode()}:bottom"]
    assert face.run(scores.rebuild()) == 300
    assert face.list(scores.check()) == []

    counter = face.kit.unique_visitors("u", component="one", precision="exact", first_day=500)
    day = date(2015, 5, 17)
    face.run(counter.visit_many(SESSIONS, day))
    client.delete("u:2015-05-17")
    [found] = face.list(counter.check(day))
    assert (found.key, found.found) == ("u:2015-05-17", "no count")
    assert face.run(counter.recount(day)) == 300
    assert face.list(counter.check(day)) == []
