"""A server that is full in the middle of an operation: what it refuses is not half written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from damages import NOTHING, Driver
from subjects import MAP, SUBJECTS, unchecked

from shardkit import ShardErrors, ShardMap, connect
from shardkit.local import LocalServers
from shardkit.operations import Replies

MOMENTS = 5  # of each call, at which the server is full


class FillingLink:
    """Sends what a kit sends; after some commands its server is full, also within a batch."""

    def __init__(self, driver: Driver) -> None:
        self._client = driver.client
        self._driver = driver
        self._send = driver.send
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
def driver() -> Iterator[Driver]:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        connect(servers.shard_map) as kit,
    ):
        yield Driver(kit, servers.shard_map)


CHECKED = [name for name, subject in SUBJECTS.items() if subject.check is not unchecked]


@pytest.mark.long(8)
@pytest.mark.parametrize("name", CHECKED)
def test_what_a_full_server_refuses_is_not_half_written(driver: Driver, name: str) -> None:
    subject, random = SUBJECTS[name], Random(name)
    link = FillingLink(driver)
    stored = driver.prepare(name)
    assert driver.named(name) == {}
    calls = {"fill": (NOTHING, subject.fill)}
    calls |= {called: (stored, call) for called, call in subject.writes.items()}
    for called, (before, call) in calls.items():
        driver.restore(before)
        sent = link.run(lambda call=call: driver.call(name, call), 10**9)
        for most in sorted(random.sample(range(sent), min(sent, MOMENTS))):
            driver.restore(before)
            with suppress(ShardErrors):
                link.run(lambda call=call: driver.call(name, call), most)
            when = f"{called} after {most} of {sent} commands"
            # What is being rebuilt is refused until that is repeated.
            assert called == "rebuild" or driver.named(name) == {}, when
            driver.call(name, call)
            assert driver.named(name) == {}, f"{when}, and again"


@pytest.mark.parametrize("name", [n for n, each in SUBJECTS.items() if "delete" in each.writes])
def test_a_structure_on_a_full_server_can_be_deleted(driver: Driver, name: str) -> None:
    driver.prepare(name)
    delete = SUBJECTS[name].writes["delete"]
    FillingLink(driver).run(lambda: driver.call(name, delete), 0)
    kept = b":deleted", b":removed:"  # for a minute and an hour
    assert [key for key in driver.all_keys() if not any(each in key for each in kept)] == []


def test_a_transfer_that_a_full_server_refuses_is_done_or_undone(driver: Driver) -> None:
    subject, names = SUBJECTS["transfers"], ("ada", "bo", "cy")
    link, transfers = FillingLink(driver), subject.open(driver.kit)
    stored = driver.prepare("transfers")
    total = transfers.total(names)
    for called in ("transfer", "in steps"):
        call = partial(subject.writes[called], transfers)
        driver.restore(stored)
        for most in range(link.run(call, 10**9)):
            driver.restore(stored)
            with suppress(ShardErrors):
                link.run(call, most)
            assert transfers.total(names) == total
            ends = time.monotonic() + 30
            while any(account.in_flight for account in transfers.read(*names)):
                assert time.monotonic() < ends
                transfers.recover(*names)
            assert transfers.total(names) == total
            assert sum(account.balances["money"] for account in transfers.read(*names)) == 300
