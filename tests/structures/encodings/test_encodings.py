"""Compact keys, the limits that prevent them, and recommended settings, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Face, faced

from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.local import LocalServer
from shardkit.structures.encodings import check, inspect_keys, limits_at, recommend


@pytest.fixture(params=["blocking", "awaiting"])
def own(
    request: pytest.FixtureRequest, own_map: ShardMap, own_server: LocalServer
) -> Iterator[Face]:
    """A kit of each face on an own server, whose limits are restored."""
    with own_server.client() as client:
        before = client.config_get("*-max-listpack-*")
        with faced(request.param, own_map) as face:
            yield face
        client.execute_command("ACL", "SETUSER", "default", "allcommands")
        for name in before:
            client.config_set(name, before[name])


def run(face: Face, steps: Any) -> Any:
    return face.run(face.kit.driver.run(steps))


def seen_by_key(face: Face, *keys: str, to: Any = "own") -> dict[str, Any]:
    return {seen.key.decode(): seen for seen in run(face, inspect_keys(to, keys))}


def test_an_unknown_form_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"type='stream' has no compact form"):
        recommend("stream", 1)
    assert recommend("list", 1024) == {}


@pytest.mark.parametrize(("fields", "bytes_each"), [(100, 10), (600, 10), (100, 200)])
def test_what_is_recommended_is_enough_and_lowers_no_limit(
    own: Face, own_server: LocalServer, fields: int, bytes_each: int
) -> None:
    with own_server.client() as client:
        usual = run(own, limits_at("own", "h"))
        settings = recommend("hash", fields, bytes_each, usual)
        assert all(value >= usual.settings[name] for name, value in settings.items())
        for name, value in settings.items():
            client.config_set(name, value)
        client.hset("h", mapping={str(n): "v" * bytes_each for n in range(fields)})
        limits = run(own, limits_at("own", "h"))
        assert limits == run(own, limits_at("own", "other"))
        assert (limits == usual) is (settings == {name: usual.settings[name] for name in settings})
        assert client.object("encoding", "h") == b"listpack"
        [seen] = run(own, inspect_keys("own", ["h"]))
        assert (check(seen, limits).excesses, check(seen, limits).stale) == ((), False)
        client.hset("h", "long", "v" * 5000)
        client.hdel("h", "long")  # it does not become compact again
        [seen] = run(own, inspect_keys("own", ["h"]))
        assert check(seen, limits).stale
        assert not check(seen, None).stale


def test_keys_of_every_type_are_looked_at(own: Face, own_server: LocalServer) -> None:
    with own_server.client() as client:
        client.hset("small", mapping=dict.fromkeys(range(10), "v"))
        client.hset("many", mapping=dict.fromkeys(range(600), "v"))
        client.hset("long", "x" * 70, "y" * 150)
        client.sadd("ids", *range(1000))
        client.sadd("words", "a", "b" * 70)
        client.zadd("scores", {str(n): n for n in range(129)})
        client.rpush("list", *range(1000))
        client.set("text", "abc")
        client.xadd("stream", {"a": 1})
        limits = run(own, limits_at("own", "many"))
        found = seen_by_key(
            own,
            *("small", "many", "long", "ids", "words", "scores", "list", "text", "stream", "no"),
        )
        assert found.keys() == {key.decode() for key in client.scan_iter()}
        assert found["many"].bytes == client.memory_usage("many")
    compact = {name: check(seen, limits).compact for name, seen in found.items()}
    assert [name for name, is_ in compact.items() if not is_] == [
        *("many", "long", "ids", "words", "scores")
    ]
    assert [found[name].length for name in ("many", "ids", "list", "text", "stream")] == [
        *(600, 1000, 1000, 3, 1)
    ]
    assert found["long"].longest == 150
    assert (found["ids"].integers, found["words"].integers) == (True, False)
    excess = {name: list(map(str, check(seen, limits).excesses)) for name, seen in found.items()}
    assert excess["many"] == ["hash-max-listpack-entries is 512: there are 600 fields"]
    assert excess["long"] == ["hash-max-listpack-value is 64: a field or value has 150 bytes"]
    assert excess["ids"] == ["set-max-intset-entries is 512: there are 1,000 members"]
    assert excess["scores"] == ["zset-max-listpack-entries is 128: there are 129 members"]
    if "set-max-listpack-value" in limits.settings:
        assert excess["words"] == ["set-max-listpack-value is 64: a member has 70 bytes"]
    else:  # Redis before 7.2
        assert excess["words"] == []


def test_changing_keys_are_left_out(own: Face, own_server: LocalServer) -> None:
    with own_server.client() as client:
        for key in ("list", "gone", "stays"):
            client.rpush(key, "a")

        def change_in_between() -> Any:
            steps = inspect_keys("own", ["list", "gone", "stays"])
            types = yield next(steps)
            client.delete("list", "gone")
            client.set("list", "a text now")
            queries = steps.send(types)
            try:
                steps.send((yield queries))
            except StopIteration as end:
                return end.value

        assert [seen.key for seen in run(own, change_in_between())] == [b"stays"]


def test_limits_are_unknown_without_permission(
    own: Face, own_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as client:
        client.hset("h", mapping=dict.fromkeys(range(600), "v"))
        client.execute_command("ACL", "SETUSER", "default", "-config", "-memory")
    assert run(own, limits_at("own", "h")) is None
    face_hash = own.kit.hash("large", component="own", part_size=9999, total=10)
    own.run(face_hash.hset("f", "v"))
    assert [text for text in caplog.messages if "compact" in text] == []
    [seen] = run(own, inspect_keys("own", ["h"]))
    assert seen.bytes is None
    verdict = check(seen, None)
    assert (verdict.compact, verdict.excesses) == (False, ())


def test_entries_that_may_not_be_read_are_not_measured(own: Face, own_server: LocalServer) -> None:
    with own_server.client() as client:
        client.hset("h", mapping=dict.fromkeys(range(600), "v"))
        client.sadd("s", *range(1000))
        client.execute_command("ACL", "SETUSER", "default", "-hscan")
    found = seen_by_key(own, "h", "s")
    assert (found["h"].length, found["h"].longest) == (600, None)
    assert (found["s"].length, found["s"].longest) == (1000, 3)


def test_a_shard_that_is_away_is_an_error() -> None:
    text = json.dumps({"components": {"gone": {"entry": {"port": 1}}}})
    with faced("blocking", ShardMap.parse(text)) as face, pytest.raises(ShardErrors, match="gone"):
        run(face, inspect_keys("gone", ["h"]))
