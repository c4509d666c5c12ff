"""Whatever is damaged in what structures store: no hang, and no error that does not name it.

A sample of the cases of `damages`, by a seed; ``make damage`` makes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from damages import SUBJECTS, Driver

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
    for outcome in driver.outcomes(name, seed=1 + (driver.runner is None), most=CASES):
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
