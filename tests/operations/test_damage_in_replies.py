"""What a refused command says of the key that it was sent for."""

from __future__ import annotations

import pytest
import redis

from shardkit.errors import ShardFailure
from shardkit.local import LocalServer
from shardkit.operations.commands import damage_in

COMMANDS = {
    "a STRING": [
        *("APPEND k a", "BITCOUNT k", "DECRBY k 1", "GETRANGE k 0 1", "INCR k", "PFADD k a"),
        *("SETRANGE k 0 a", "STRLEN k"),
    ],
    "a HASH": ["HGET k f", "HSETNX k f a"],
    "a SET": ["SADD k a", "SISMEMBER k a"],
    "a ZSET": ["GEOADD k 1 1 a", "ZADD k 1 a"],
    "a LIST": ["LPOP k", "RPUSH k a"],
    "a STREAM": ["XADD k * f a"],
}


@pytest.mark.parametrize("expected", COMMANDS)
def test_a_key_of_another_type_is_damaged(expected: str, own_server: LocalServer) -> None:
    with own_server.client() as client:
        if expected == "a STRING":
            client.rpush("k", "a")
        else:
            client.set("k", "a")
        for line in COMMANDS[expected]:
            with pytest.raises(redis.ResponseError, match="WRONGTYPE") as raised:
                client.execute_command(*line.split())
            name = line.split()[0]
            failure = ShardFailure("", shard="c:1", command=name, error=raised.value, key="k")
            damage = damage_in(failure)
            assert damage is not None
            assert (damage.key, damage.expected, damage.shard) == ("k", expected, "c:1")
