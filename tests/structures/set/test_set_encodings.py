"""Parts are as compact as planned, or a warning is logged. Both servers."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from faces import Face, faced

from shardkit import ShardMap, connect
from shardkit.local import LocalServer


@pytest.fixture(params=["blocking", "awaiting"])
def own(request: pytest.FixtureRequest, own_map: ShardMap) -> Any:
    with faced(request.param, own_map) as face:
        yield face


def encodings(server: LocalServer, keys: list[str]) -> Counter[str]:
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.object("encoding", key)
        return Counter(reply.decode() for reply in pipe.execute() if reply is not None)


def part_keys(ids: Any) -> list[str]:
    return [ids.part_key(part) for part in range(ids.parts)]


def test_parts_of_a_full_set_are_intsets(own_map: ShardMap, own_server: LocalServer) -> None:
    random = Random(41)
    with connect(own_map) as kit:
        ids = kit.set("ids", component="own", total=2**15, members=int)
        assert ids.sadd_many(random.getrandbits(60) for _ in range(2**15)) == 2**15
        assert encodings(own_server, part_keys(ids)) == {"intset": 128}


def test_parts_of_text_are_compact(own_map: ShardMap, own_server: LocalServer) -> None:
    with connect(own_map) as kit:
        names = kit.set("names", component="own", total=4096, part_size=128)
        assert names.sadd_many(f"visitor {n}" for n in range(4096)) == 4096
        with own_server.client() as client:
            limit = client.config_get("set-max-listpack-entries")
        # Redis has a compact form of text sets from 7.2 on.
        assert encodings(own_server, part_keys(names)) == {"listpack" if limit else "hashtable": 64}


def test_oversized_parts_are_logged(own: Face, caplog: pytest.LogCaptureFixture) -> None:
    name = f"large {uuid4().hex}"  # each name is told of once in a process
    with caplog.at_level(logging.WARNING, logger="shardkit"):
        fits = own.kit.set("fits", component="own", total=10, part_size=512, members=int)
        own.run(fits.sadd(1))
        large = own.kit.set(name, component="own", total=10, part_size=1024, members=int)
        assert own.run(large.scard()) == 0
        assert caplog.messages == []
        own.run(large.sadd(1))
        own.run(large.sadd(2))
    [message] = caplog.messages
    assert message.startswith(f"{name}: parts of up to 1024 members are not compact")
    assert "set-max-intset-entries is 512" in message
