"""A look-up names the block that is damaged, not a page that a damaged list of pages names."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from faces import Face, holder

from shardkit import DamagedDataError, ShardKit
from shardkit.geo import City, IpRange

CITIES = [City("DE", "NW", "Bonn"), City("FR", "", "Paris")]
FIRST = int(ip_address("1.0.0.0"))
ENTRIES_A_PAGE = 4096
IN_PAGE_2 = str(ip_address(FIRST + 2 * ENTRIES_A_PAGE + 5))
RANGES = [IpRange(FIRST + n, FIRST + n, CITIES[n % 2]) for n in range(3 * ENTRIES_A_PAGE)]


@pytest.mark.parametrize("page_is_lost", [True, False])
def test_a_look_up_names_the_list_or_the_page(
    face: Face, kit: ShardKit, page_is_lost: bool
) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(RANGES))
    assert face.run(ip.find(IN_PAGE_2)) == CITIES[1]
    client = holder(kit, "one", "x")
    listing = min((key.decode() for key in client.scan_iter("*:4:0100*")), key=len)
    if page_is_lost:
        damaged = f"{listing}:2"
        client.delete(damaged)
    else:
        damaged = listing
        client.set(listing, b"\1" + bytes(4000))
    with pytest.raises(DamagedDataError) as raised:
        face.run(ip.find(IN_PAGE_2))
    assert raised.value.key == damaged
    assert damaged in [found.key for found in face.list(ip.check())]
