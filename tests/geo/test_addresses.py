from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from geo_helpers import address_text, local_copy
from hypothesis import given, strategies as st

from shardkit.errors import InvalidArgumentError
from shardkit.geo import City, IpRange

HERE = City("Here", "", "")


def ends(first: str, last: str | None = None) -> tuple[int, int]:
    return IpRange.of(first, last, city=HERE)[:2]


@given(st.ip_addresses())
def test_an_address_is_where_its_number_says(address: Any) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    number = int(mapped or address) + (2**128 if address.version == 6 and not mapped else 0)
    assert ends(str(address), address.exploded) == (number, number)
    copy = local_copy([IpRange(number, number, HERE)])
    for given_as in (address, str(address), str(address).encode(), address.exploded):
        assert copy.find(given_as) == HERE
    assert ipaddress.ip_address(address_text(number)) == (mapped or address)


NO_ADDRESSES: list[Any] = [
    *("1.2.3", "999.2.3.4", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", " 1.2.3.4", "1.2.3.4\n", ""),
    *("1.2.3.4\0", "1.2.3.-4", "0x1.2.3.4", "1,2.3.4", "a.b.c.d", "16909060", "1.2.3.4/24"),
    *("\u0661.2.3.4", "::1%eth0", ":::", "1::2::3", "12345::", "\udc80", b"\xff", b"1.2.3"),
    *(16909060, None, 1.5, True),
]


@pytest.mark.parametrize("wrong", NO_ADDRESSES)
def test_what_is_no_address_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an IP address"):
        local_copy([IpRange(0, 9, HERE)]).find(wrong)


@given(st.ip_addresses(), st.data())
def test_networks_of_any_prefix_length_are_cut_where_they_end(address: Any, data: Any) -> None:
    prefix = data.draw(st.integers(0, address.max_prefixlen))
    network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    first, last = (
        ends(str(end), str(end))[0] for end in (network.network_address, network.broadcast_address)
    )
    if (first < 2**32) != (last < 2**32):  # of IPv6, and holds all of IPv4
        with pytest.raises(ValueError, match="one end is an IPv4 address, and the other is not"):
            ends(str(network))
        return
    assert ends(f"{address}/{prefix}") == (first, last) == ends(str(network))


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        ("1.0.0.0", "1.0.0.255", ("1.0.0.0", "1.0.0.255")),
        ("16777216", "16777471", ("1.0.0.0", "1.0.0.255")),
        ("0", "4294967295", ("0.0.0.0", "255.255.255.255")),
        ("4294967295", "4294967295", ("255.255.255.255", "255.255.255.255")),
        ("281470698520576", "281470698520831", ("1.0.0.0", "1.0.0.255")),
        ("0", "281470681743359", ("::", "::fffe:ffff:ffff")),
        ("::ffff:1.0.0.0", "1.0.0.255", ("1.0.0.0", "1.0.0.255")),
        ("::ffff:1.0.0.0/120", "", ("1.0.0.0", "1.0.0.255")),
        ("::/0", None, ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
        ("10.1.2.3/8", None, ("10.0.0.0", "10.255.255.255")),
        ("1.2.3.4/31", None, ("1.2.3.4", "1.2.3.5")),
        ("1.2.3.4/0", None, ("0.0.0.0", "255.255.255.255")),
        ("2001:db8::", "2001:db8::ff", ("2001:db8::", "2001:db8::ff")),
    ],
)
def test_ranges_are_read_as_files_write_them(first: str, last: str | None, wanted: Any) -> None:
    assert tuple(map(address_text, ends(first, last))) == wanted


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        ("1.2.3", "1.2.3.4", "'1.2.3' is not an IP address"),
        ("1.2.3.4", None, "no last address"),
        ("1.2.3.4", "1.2.3.3", "ends before"),
        ("16909060", "16909059", "ends before"),
        ("16909060", "1.2.3.5", "'16909060' is not an IP address"),
        ("1.2.3.4", "::1", "one end is an IPv4"),
        ("1.2.3.0/24", "1.2.3.255", "needs no last"),
        ("1.2.3.0/33", None, "prefix length '33' is not 0 to 32"),
        ("1.2.3.0/-1", None, "prefix length"),
        ("1.2.3.0/", None, "prefix length"),
        ("1.2.3.0/255.255.255.0", None, "prefix length"),
        ("1.2.3/24", None, "'1.2.3' is not an IP address"),
        ("::1/129", None, "not 0 to 128"),
        ("::ffff:0:0/95", None, "one end is an IPv4"),
        ("0", str(2**128), "beyond all addresses"),
        ("", "", "no last"),
    ],
)
def test_what_is_no_range_is_refused_with_the_reason(
    first: str, last: str | None, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ends(first, last)
