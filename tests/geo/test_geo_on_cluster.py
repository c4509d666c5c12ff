"""IP to city and totals on a component that is a cluster: nothing changes for them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from geo_helpers import BONN, OSLO, expected, local_copy, ranges, some_ranges, telling_points

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.geo.addresses import address_text
from shardkit.geo.log_tally import LogTally
from shardkit.geo.models import City


@pytest.fixture
def on_cluster(cluster_map: ShardMap) -> Iterator[ShardKit]:
    with shardkit.connect(cluster_map) as kit:
        yield kit


def test_data_is_imported_switched_found_and_deleted(on_cluster: ShardKit) -> None:
    ip = on_cluster.ip_to_city(component="cluster")
    ip.import_from(ranges(("1.0.0.0/24", BONN)))
    items = some_ranges(Random(5), 40)
    ip.import_from(items)
    points = list(telling_points(items, Random(6)))
    wanted = [expected(items, address_number) for address_number in points]
    assert ip.find_many(map(address_text, points)) == wanted
    assert ip.local().find_many(map(address_text, points)) == wanted
    assert ip.delete() is True


def test_totals_are_added_once(on_cluster: ShardKit) -> None:
    tally = LogTally(local_copy(ranges(("1.0.0.0/24", BONN), ("1.0.1.0/24", OSLO))))
    tally.lines(["1.0.0.1 2015-05-17 1 1", "1.0.1.1 2015-05-17 1 1", "1.0.1.1 2015-05-18 1 1"])
    totals = on_cluster.city_totals(component="cluster")
    assert [totals.add(file, tally) for file in ("a", "a", "b")] == [True, False, True]
    assert totals.top("country", "2015-05-18") == [(City("", "", "Norway"), 2)]
