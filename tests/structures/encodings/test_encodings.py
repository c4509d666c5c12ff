"""Compact keys, the limits that prevent them, and recommended settings, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Face, faced
from hypothesis import given, strategies as st

from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.local import LocalServer
from shardkit.structures.encodings import check, inspect_keys, limits_at, recommend
from shardkit.structures.encodings.limits import (
    KeyEncoding,
    Limits,
    read_limits,
    warn_if_not_compact,
)

OLD = Limits({"hash-max-ziplist-entries": "512", "hash-max-ziplist-value": "64"})
NEW = Limits(
    {
        "hash-max-listpack-entries": "512",
        "hash-max-listpack-value": "64",
        "hash-max-ziplist-entries": "512",
        "hash-max-ziplist-value": "64",
        "set-max-intset-entries": "512",
    }
)


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


def seen_by_key(face: Face, *keys: str, to: Any = "own") -> dict[str, KeyEncoding]:
    return {seen.key.decode(): seen for seen in run(face, inspect_keys(to, keys))}


def test_a_recommendation_never_lowers_a_limit() -> None:
    assert recommend("hash", 100, 10, NEW) == {
        "hash-max-listpack-entries": 512,
        "hash-max-listpack-value": 64,
    }
    assert recommend("intset", 1024) == {"set-max-intset-entries": 1024}
    assert recommend("zset", 64) == {"zset-max-listpack-entries": 128}


def test_where_a_server_has_no_such_form_nothing_is_recommended() -> None:
    assert recommend("set", 1024, None, NEW) == {}
    assert recommend("list", 1024) == {}


def test_limits_are_equal_if_their_settings_are_and_show_them() -> None:
    same = Limits({**OLD.settings})
    assert same == OLD
    assert hash(same) == hash(OLD)
    assert OLD not in (NEW, OLD.settings)
    assert repr(OLD) == "Limits({'hash-max-ziplist-entries': 512, 'hash-max-ziplist-value': 64})"


def test_an_unknown_form_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="type='stream' has no compact form"):
        recommend("stream", 1)


def test_a_settings_reply_of_either_protocol_is_read_and_others_are_ignored() -> None:
    pairs = {"hash-max-listpack-entries": "512", "slowlog-max-len": "128"}
    assert read_limits(pairs) == Limits({"hash-max-listpack-entries": "512"})
    assert read_limits([word.encode() for pair in pairs.items() for word in pair]) == Limits(
        {"hash-max-listpack-entries": "512"}
    )
    assert read_limits([]) is None
    assert read_limits(None) is None


def test_what_is_within_the_limits_and_no_longer_compact_is_stale() -> None:
    assert check(KeyEncoding(b"k", "hash", "hashtable", 3, longest=5), NEW).stale
    assert not check(KeyEncoding(b"k", "hash", "hashtable", 3, longest=5), None).stale
    # no compact form of text sets there
    assert not check(KeyEncoding(b"k", "set", "hashtable", 3, longest=5), NEW).stale


@given(length=st.integers(1, 2000), longest=st.integers(0, 200), size=st.integers(1, 5000))
def test_what_is_recommended_is_always_enough(length: int, longest: int, size: int) -> None:
    settings = recommend("hash", max(size, length), longest, NEW)
    limits = Limits({**NEW.settings, **settings})  # type: ignore[dict-item]  # numbers do as well
    assert not check(
        KeyEncoding(b"k", "hash", "hashtable", length, longest=longest), limits
    ).excesses


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
    run(own, warn_if_not_compact("own", "h", "hash", 9999, "h"))
    assert caplog.messages == []
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
