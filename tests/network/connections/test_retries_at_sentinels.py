"""An entry's ``retries`` count once, also where Sentinels name the server."""

from __future__ import annotations

import pytest
import redis
from faces import free_port
from link_helpers import of, opened
from scripted_server import bulk, scripted

from shardkit import ShardMap


async def test_connecting_by_sentinels_is_tried_again_as_often_as_the_entry_says(kind: str) -> None:
    state = {"name": "main", "ip": "127.0.0.1", "port": free_port(), "flags": "master"}
    words = [str(word) for each in state.items() for word in each]
    masters = b"*1\r\n*%d\r\n" % len(words) + b"".join(bulk(word.encode()) for word in words)
    with scripted(SENTINEL=masters) as sentinel:
        fields = {"sentinel": {"service": "main", "sentinels": [["127.0.0.1", sentinel.port]]}}
        fields |= {"retries": 4}
        where = ShardMap.parse(str({"components": {"data": {"entry": fields}}}))
        async with opened(kind, where) as face:
            client = await of(face.kit.client("data"))
            with pytest.raises(redis.ConnectionError, match=r"cannot be reached"):
                await of(client.ping())
            # The circuit breaker asks as well, but seldom.
            assert 5 <= sentinel.names().count("SENTINEL") < 15
