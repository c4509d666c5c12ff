"""What an entry says of another server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from growth_helpers import PATIENT, Fleet, follow

from shardkit.admin.growth import attach_replica, fail_over
from shardkit.errors import InvalidArgumentError


def entry(fleet: Fleet) -> dict[str, Any]:
    return dict(json.loads(fleet.config.get("config:redis:data")))


@pytest.mark.parametrize("rest", ["", "/4", "/4?socket_timeout=2"])
def test_a_url_keeps_everything_but_its_server(fleet: Fleet, rest: str) -> None:
    fleet.describe(
        {"data": {"entry": {"url": f"redis://{fleet.name(0)}{rest}", "read_from": "replica"}}}
    )
    before = entry(fleet)
    fleet.move_server(hold=PATIENT)
    moved = before["url"].replace(fleet.name(0), fleet.name(1))
    assert entry(fleet) == {**before, "url": moved}


def test_a_replica_that_takes_over_brings_its_zone_and_leaves_the_others_as_they_were(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARE", "127.0.0.1")
    follow(fleet.servers[1], fleet.servers[0])
    others = [
        {"url": f"redis://{fleet.name(2)}", "zone": "north"},
        {"host": "${SPARE}", "port": 1},
    ]
    new = fleet.at(1, zone="east")
    described = fleet.at(0, db=5, zone="west", replicas=[new, *others])
    fleet.describe({"data": {"entry": described}}, check=False)
    fail_over(fleet.config, "data", fleet.name(1), hold=PATIENT)
    former = fleet.at(0, zone="west")
    assert entry(fleet) == fleet.at(1, db=5, zone="east", replicas=[*others, former])
    fleet.servers[1].kill()
    fail_over(fleet.config, "data", fleet.name(0), hold=PATIENT)
    assert entry(fleet) == fleet.at(0, db=5, zone="west", replicas=others)


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:b", "::1", "redis://a:1", "a b", "a/1"])
def test_what_is_no_address_is_refused(fleet: Fleet, text: str) -> None:
    fleet.push(0)
    with pytest.raises(InvalidArgumentError, match=f"^{text!r} is not a server; specify"):
        attach_replica(fleet.config, text, fleet.name(0))
