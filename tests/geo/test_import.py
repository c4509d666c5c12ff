"""Imports: all or nothing, whatever fails; and readers meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis
from faces import Exchanges, Face, keys_of
from geo_helpers import BONN, LIMA, OSLO, ranges

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ShardErrors, StructureError
from shardkit.geo import City, IpRange, SkippedLine
from shardkit.geo.redis_in_action import redis_in_action
from shardkit.local import LocalServers

OLD = ranges(("1.0.0.0/24", BONN), ("2001:db8::/32", OSLO))
NEW = ranges(("1.0.0.0/24", OSLO), ("5.0.0.0/24", LIMA))


def generations(kit: ShardKit, component: str, name: str = "ip2city") -> set[str]:
    """The numbers of the generations that have keys."""
    keys = keys_of(kit, component)
    return {key.split(":")[1] for key in keys if key != f"{name}:generations"}


def test_the_old_data_expires_and_everything_can_be_deleted(face: Face, kit: ShardKit) -> None:
    ip = face.kit.ip_to_city(component="both")
    old = face.run(ip.import_from(OLD)).generation
    new = face.run(ip.import_from(NEW, grace=timedelta(hours=1))).generation
    assert generations(kit, "both") == {str(old), str(new)}
    for key in keys_of(kit, "both"):
        expires = holder_of(kit, "both", key).ttl(key)
        assert expires > 0 if f":{old}:" in key else expires == -1
    assert face.run(ip.delete()) is True
    assert keys_of(kit, "both") == set()
    face.run(ip.import_from(OLD))
    assert face.run(ip.find_many(["1.0.0.1", "5.0.0.1"])) == [BONN, None]


def holder_of(kit: ShardKit, component: str, key: str) -> Any:
    found = kit.component(component)
    clients = [kit.client(component, n) for n in range(len(found.shards))]
    clients += [kit.client(component)] if found.entry is not None else []
    return next(client for client in clients if client.exists(key))


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([], "no range could be read, 0 lines skipped"),
        ([City("Bonn", "", "", 7)], "no range could be read"),
        ([IpRange.of("1.0.0.0/24", city=7)], "1 line skipped .line 0: no city has the id 7"),
    ],
)
def test_an_import_without_ranges_is_refused(
    face: Face, kit: ShardKit, items: list[Any], why: str
) -> None:
    ip = face.kit.ip_to_city(component="few")
    number = face.run(ip.import_from(OLD)).generation
    with pytest.raises(StructureError, match=why):
        face.run(ip.import_from(items))
    assert generations(kit, "few") == {str(number)}
    assert face.run(ip.find("1.0.0.1")) == BONN


def test_cities_are_numbered_once_up_to_the_most_and_skipped_lines_are_shown_up_to_some(
    face: Face, lower: Callable[..., None]
) -> None:
    ip = face.kit.ip_to_city(component="few")
    skipped = [SkippedLine(n, "x") for n in range(1000)]
    done = face.run(ip.import_from([*OLD, BONN, BONN, *skipped]))
    assert (done.cities, done.skipped) == (2, 1000)
    assert 0 < len(done.first_skipped) < 100
    assert list(done.first_skipped) == skipped[: len(done.first_skipped)]
    lower(most_cities=2)
    with pytest.raises(InvalidArgumentError, match=r"more than 2 cities; leave some out"):
        face.run(ip.import_from([BONN, OSLO, *NEW]))


@pytest.mark.parametrize("grace", [0, 9, 2**31, "60", True])
def test_bad_arguments_change_nothing(face: Face, kit: ShardKit, grace: Any) -> None:
    ip = face.kit.ip_to_city(component="few")
    with pytest.raises(InvalidArgumentError, match="grace"):
        face.run(ip.import_from(OLD, grace=grace))
    assert keys_of(kit, "few") == set()
    with pytest.raises(InvalidArgumentError, match="cannot be imported"):
        face.run(ip.import_from([("1.0.0.0", "1.0.0.255")]))
    assert generations(kit, "few") == set()


def sent(kit: ShardKit, batch: Any) -> Any:
    return kit.plane.link().send(batch)


def to_its_end(kit: ShardKit, steps: Any, batch: Any, seen: list[Any] | None = None) -> None:
    while True:
        batch = steps.send(sent(kit, batch))
        if seen is not None:
            seen.append(batch)


def writes(batch: Any) -> bool:
    """Whether a batch has blocks of an import."""
    return sum(command.args[0] == "SET" for command in batch) > 1


def calls(batch: Any, script: str) -> bool:
    return any(command.script and command.script.name == script for command in batch)


def advance(kit: ShardKit, steps: Any, until: Callable[[Any], bool]) -> Any:
    """Run an import up to a batch, which is returned and not sent."""
    batch = next(steps)
    while not until(batch):
        batch = steps.send(sent(kit, batch))
    return batch


@pytest.mark.long(2)
@pytest.mark.parametrize("overtaken", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_wherever_an_import_is_killed_or_overtaken_all_of_it_or_nothing_is_read_and_left(
    face: Face, kit: ShardKit, lower: Any, killed: bool, overtaken: bool
) -> None:
    lower(city_blocks=7)
    many = [IpRange(n << 16, (n << 16) + 9, OSLO) for n in range(10)]
    addresses = ["0.0.0.1", "0.9.0.1", "1.0.0.1", "5.0.0.1"]
    clients: list[Any] = [kit.client("few", number) for number in range(4)]
    old, new, later = [None, None, BONN, None], [OSLO, OSLO, None, None], [None, None, OSLO, LIMA]

    def opened() -> Any:
        return face.kit.ip_to_city(component="few")

    def remaining() -> set[str]:
        """The generations of keys that do not expire."""
        keys = [(client, key) for client in clients for key in client.keys("ip2city:[0-9]*")]
        return {key.decode().split(":")[1] for client, key in keys if client.ttl(key) == -1}

    exchanges, unfinished = 1, True  # the first one begins an import
    while unfinished:
        for client in clients:
            client.flushdb()
        first = face.run(opened().import_from(OLD)).generation
        late = Exchanges(face, opened().deferred.import_from(many))
        unfinished = late.stop_after(exchanges)
        if overtaken:
            face.run(opened().import_from(NEW))
        if not killed:
            try:
                assert not any(overtaken and writes(step) for step in late)
            except StructureError as error:
                assert "another import has started" in str(error)  # noqa: PT017
        found = face.run(opened().find_many(addresses))
        assert found in ([later] if overtaken else [old, new] if killed else [new]), exchanges
        if not killed:
            assert remaining() == {str(face.run(opened().info()).number)}, exchanges
        for _ in range(2):  # the first leaves lists by which the next finds what was still written
            last = face.run(opened().import_from(OLD)).generation
        # A killed one may have switched, and not made the first expire: it is kept for its grace.
        assert remaining() - {str(first)} == {str(last)}, exchanges
        assert face.run(opened().find_many(addresses)) == old
        exchanges += 1
    assert exchanges > 8


def test_an_import_that_is_killed_while_it_is_abandoned_is_removed_by_the_next(
    kit: ShardKit,
) -> None:
    ip = kit.ip_to_city(component="many")
    steps = ip.deferred.import_from(OLD)
    batch = advance(kit, steps, writes)
    sent(kit, batch)
    batch = steps.throw(StructureError("something fails now"))
    assert calls(batch, "geo/abandon")
    sent(kit, batch)
    steps.close()
    assert generations(kit, "many")
    done = ip.import_from(NEW).generation
    assert generations(kit, "many") == {str(done)}


def test_data_that_lost_its_last_list_is_not_loaded_as_if_it_were_whole(
    face: Face, kit: ShardKit
) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(IpRange(n << 16, (n << 16) + 9, BONN) for n in range(1100)))
    last = max(key for key in keys_of(kit, "one") if ":keys:" in key)
    kit.client("one").delete(last)
    with pytest.raises(StructureError, match=r"lists of \d+ blocks.*import again"):
        face.run(ip.local())


# ---- servers that fail

MAP = """
components:
  geo: {entry: {port: 7001}, shards: [{port: 7002}, {port: 7003}]}
"""
SPREAD = [IpRange(n << 16, (n << 16) + 9, LIMA) for n in range(60)]


@pytest.mark.parametrize("when", ["reading", "writing"])
def test_a_server_that_dies_during_an_import_leaves_the_old_data_on_the_others(
    mortal: Face,
    own_servers: LocalServers,
    when: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ip = mortal.kit.ip_to_city(component="geo")
    mortal.run(ip.import_from(SPREAD))
    addresses = [f"0.{n}.0.1" for n in range(60)]
    # This process keeps the city from now on, whose key may be on the server that dies.
    assert mortal.run(ip.find_many(addresses)) == [LIMA] * 60
    victim = own_servers.server_of("geo", 1)

    def items() -> Iterator[IpRange]:
        for n, item in enumerate(SPREAD):
            if when == "reading" and n == 30:
                victim.kill()
            yield IpRange(item.first, item.last, OSLO)

    def progress(what: str, count: int) -> None:
        if when == "writing":
            victim.kill()

    with (
        caplog.at_level(logging.WARNING, "shardkit"),
        pytest.raises(ShardErrors, match=r"1 shard failed \(geo:1\)"),
    ):
        mortal.run(ip.import_from(items(), progress=progress))
    assert "remains until the next" in caplog.text
    # Whose block is on a server that runs is found in the old data.
    found = []
    for address in addresses:
        with suppress(ShardErrors):
            found.append(mortal.run(ip.find(address)))
    assert set(found) == {LIMA}
    assert 10 < len(found) < 50
    victim.restart()
    mortal.run(ip.import_from(SPREAD))
    assert mortal.run(ip.find_many(addresses)) == [LIMA] * 60


def test_old_data_that_cannot_expire_does_not_fail_the_import(
    mortal: Face, own_servers: LocalServers, caplog: pytest.LogCaptureFixture
) -> None:
    ip = mortal.kit.ip_to_city(component="geo")
    mortal.run(ip.import_from(SPREAD))
    old = mortal.run(ip.info()).number
    with own_servers.server_of("geo", 0).client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-expire")
        try:
            with caplog.at_level(logging.WARNING, "shardkit"):
                done = mortal.run(ip.import_from(SPREAD))
            assert "old data remains until the next import" in caplog.text
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+expire")
    assert mortal.run(ip.info()).number == done.generation
    with own_servers.server_of("geo").client() as client:
        client.hset("ip2city:generations", f"retired:{old}", 0)  # as if its time was over
    mortal.run(ip.import_from(SPREAD))
    with own_servers.server_of("geo", 0).client() as client:
        assert not list(client.scan_iter(f"ip2city:{old}:*"))


# ---- from the layout of the book


@pytest.mark.parametrize("decode", [True, False])
def test_data_in_the_layout_of_the_book_is_taken_over(kit: ShardKit, decode: bool) -> None:
    pool = kit.client("one").connection_pool.connection_kwargs  # type: ignore[union-attr]
    where = {name: pool[name] for name in ("host", "port")}
    with redis.Redis(**where, decode_responses=decode) as client:
        client.hset("cityid2city:", mapping={"7": '["K\\u00f6ln", "07", "DE"]', "x": "nonsense"})
        client.hset("cityid2city::1", mapping={"1030": '["Oslo", "12", "NO"]'})
        starts = {f"7_{n}": (1 << 24) + (n << 8) for n in range(0, 3000, 2)}
        starts |= {f"1030_{n}": (1 << 24) + (n << 8) for n in range(1, 3000, 2)}
        client.zadd("ip2cityid:", {**starts, "9_9999": 2**31, "7_bad": 2.5})
        ip = kit.ip_to_city(component="many")
        done = ip.import_from(redis_in_action(client, cities=["cityid2city:", "cityid2city::1"]))
    assert (done.ranges, done.cities, done.skipped) == (3000, 2, 3)
    assert ip.find("0.255.255.255") is None
    assert ip.find("1.0.0.255") == ip.find("1.0.2.0") == City("Köln", "07", "DE", 7)
    assert ip.find("1.0.1.0") == ip.find("127.255.255.255") == City("Oslo", "12", "NO", 1030)
    assert ip.find("128.0.0.0") is None


def test_negative_scores_of_java_programs_are_the_upper_half_of_addresses(kit: ShardKit) -> None:
    client: Any = kit.client("one")
    client.hset("cityid2city:", mapping={str(n): f'["City {n}", "", "DE"]' for n in range(5)})
    high = {"1_1": 2**31 - 2**32, "2_2": (192 << 24) - 2**32, "3_3": -256}
    client.zadd("ip2cityid:", {"0_0": 1 << 24, "4_9": (1 << 24) + 5, **high, "0_4": -(2**31) - 1})
    client.zadd("ip2cityid:", {f"2_{n + 10}": (193 << 24) + n - 2**32 for n in range(3000)})
    ip = kit.ip_to_city(component="many")
    done = ip.import_from(redis_in_action(client))
    assert (done.cities, done.skipped) == (5, 1)
    found = ip.find_many(
        ["1.0.0.4", "127.255.255.255", "128.0.0.0", "192.0.0.0", "255.255.255.255"]
    )
    assert [city.id for city in found] == [0, 4, 1, 2, 3]
    assert ip.find("0.255.255.255") is None


def test_the_layout_of_the_book_without_ranges_gives_its_cities_only(kit: ShardKit) -> None:
    client: Any = kit.client("one")
    client.hset("cityid2city:", "7", '["Bonn", null, "DE"]')
    assert list(redis_in_action(client)) == [City("Bonn", "", "DE", 7)]


def test_a_failed_import_whose_switch_arrived_all_the_same_keeps_its_data(kit: ShardKit) -> None:
    ip = kit.ip_to_city(component="many")
    steps = ip.deferred.import_from(OLD)
    batch = advance(kit, steps, lambda batch: calls(batch, "geo/switch"))
    sent(kit, batch)  # its answer is lost
    with pytest.raises(StructureError, match="the answer is lost"):
        to_its_end(kit, steps, steps.throw(StructureError("the answer is lost")))
    assert kit.ip_to_city(component="many").find("1.0.0.1") == BONN


def test_a_wrong_first_item_is_refused_before_anything_is_sent(face: Face, kit: ShardKit) -> None:
    client = kit.client("one")
    ip = face.kit.ip_to_city(component="one")
    items: list[Any] = ["no item", IpRange(1, 9, City("DE", "", "Bonn"))]
    with pytest.raises(InvalidArgumentError, match="'no item' cannot be imported"):
        face.run(ip.import_from(items))
    with pytest.raises(StructureError, match="no range could be read"):
        face.run(ip.import_from([]))
    assert list(client.scan_iter()) == []


def test_a_lost_record_of_generations_is_found_and_replaced(face: Face, kit: ShardKit) -> None:
    client = kit.client("one")
    ip = face.kit.ip_to_city(component="one")
    assert face.list(ip.check()) == []
    face.run(ip.import_from([IpRange(1, 9, City("DE", "", "Bonn"))]))
    client.delete("ip2city:generations")
    [damage] = face.list(face.kit.ip_to_city(component="one").check())
    assert (damage.key, damage.found) == ("ip2city:generations", "nothing")
    face.run(ip.import_from([IpRange(1, 9, City("FR", "", "Paris"))]))
    assert face.list(ip.check()) == []


def test_an_import_soon_after_the_record_was_lost_keeps_nothing_of_the_lost_one(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    ip = face.kit.ip_to_city(component="one")
    for first in (1, 1 << 16):  # the second generation has a number above the minutes
        face.run(ip.import_from([IpRange(first, first + 8, City("DE", "", "Bonn"))]))
    client.delete("ip2city:generations")
    face.run(ip.import_from([IpRange(1 << 24, (1 << 24) + 8, City("FR", "", "Paris"))]))
    assert face.list(ip.check()) == []
    for address in ("0.0.0.1", "0.1.0.1"):
        assert face.run(ip.find(address)) is None
    assert face.run(ip.find("1.0.0.1")) == City("FR", "", "Paris")


def test_an_import_soon_after_a_deletion_is_another_generation(face: Face) -> None:
    ip, reader = (face.kit.ip_to_city(component="one") for _ in range(2))
    numbers = []
    for country in ("DE", "FR", "IT"):
        cities = [City(f"a city of {country}", "", country)]
        numbers.append(face.run(ip.import_from(IpRange(1, 9, city) for city in cities)).generation)
        # The reader still has the first generation, none of whose blocks are left.
        assert face.run(reader.find("0.0.0.1")) == (cities[0] if country == "DE" else None)
        assert face.run(ip.delete())
    assert numbers[0] < numbers[1] < numbers[2]


def test_progress_counts_the_cities_that_were_written(face: Face) -> None:
    ip, written = face.kit.ip_to_city(component="one"), []
    items = (IpRange(3 * n, 3 * n, City(f"C{n}", "", "DE")) for n in range(25_000))
    face.run(ip.import_from(items, progress=lambda what, n: written.append((what, n))))
    assert [n for what, n in written if what == "cities"] == [10_000, 20_000, 25_000]
