"""The sample, and the laptop map."""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path

from shardkit.cli.demo import sample
from shardkit.cli.demo.access_log import AccessLogParser

CONFIGS = Path(__file__).parents[3] / "configs"

# RFC 5737 and RFC 3849.
RESERVED = [
    ipaddress.ip_network(network)
    for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]


def test_the_sample_never_changes_and_has_only_addresses_reserved_for_examples() -> None:
    digest = "0e23b6071499860720df4f032f18835b3b11daded7072ebef96b1ea9e4231d60"
    assert hashlib.sha256(sample.log()).hexdigest() == digest
    batch = AccessLogParser().parse(sample.log().splitlines(keepends=True))
    assert 20_000 <= batch.lines <= 50_000
    assert len(batch.visits) == 5
    assert len(batch.malformed) == 8
    addresses = {address.decode() for visits in batch.visits.values() for address, _ in visits}
    assert len(addresses) > 1000
    for address in map(ipaddress.ip_address, addresses):
        assert any(address in network for network in RESERVED)


def test_the_map_in_the_package_is_the_one_in_configs() -> None:
    packaged = Path(sample.__file__).with_name("local.yaml")
    assert packaged.read_text("utf-8") == (CONFIGS / "local.yaml").read_text("utf-8")
