"""Django's cache and sessions over shards.

With the environment variable DJANGO_TESTS, the folder ``tests`` of Django's sdist, Django's own
tests of caches and of sessions run too.
"""

from __future__ import annotations

import os
import pickle
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
import redis
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache import caches

import shardkit
from shardkit import ShardMap
from shardkit.errors import ConfigError, ShardErrors
from shardkit.local import LocalServer

BACKEND = "shardkit.integrations.django.cache.ShardKitCache"
if not settings.configured:
    settings.configure(
        CACHES={"default": {"BACKEND": BACKEND, "LOCATION": "few"}},
        SESSION_ENGINE="shardkit.integrations.django.sessions",
        SECRET_KEY="only for tests",
        INSTALLED_APPS=["django.contrib.sessions", "django.contrib.contenttypes"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    django.setup()

from django.contrib.sessions.backends.cache import (  # noqa: E402
    SessionStore as DjangoSessionStore,
)

from shardkit.integrations.django.cache import ShardKitCache  # noqa: E402 - needs settings
from shardkit.integrations.django.sessions import SessionStore  # noqa: E402


@pytest.fixture
def _default_kit(shard_map: ShardMap) -> Iterator[None]:
    shardkit.configure(shard_map)
    yield
    shardkit.configure(None)


class Deflate:
    """A compressor as django-redis has them: made with the options; leaves short values."""

    def __init__(self, options: Any) -> None:
        assert options["PICKLE_VERSION"] == 4

    def compress(self, data: bytes) -> bytes:
        return zlib.compress(data) if len(data) > 15 else data

    def decompress(self, data: bytes) -> bytes:
        return zlib.decompress(data)


class Pickle:
    """A serializer as django-redis has them: made with the options, for integers too."""

    def __init__(self, options: Any) -> None:
        self.protocol = options["PICKLE_VERSION"]

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value, self.protocol)

    def loads(self, stored: bytes) -> Any:
        return pickle.loads(stored)


def cache(location: str = "few", **options: Any) -> ShardKitCache:
    return ShardKitCache(location, {"OPTIONS": options})


@pytest.mark.usefixtures("_default_kit")
def test_values_live_on_the_shards_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cache("many")
    data = {f"key{n}": {"n": n} for n in range(100)}
    assert found.set_many(data, timeout=60) == []
    assert found.get_many([*data, "missing"]) == data
    kit = shardkit.kit.kit.default_kit()
    counts = [kit.client("many", n).dbsize() for n in range(16)]
    assert sum(count > 0 for count in counts) == 16
    assert 50 < (found.ttl("key1") or 0) <= 60
    assert found.ttl("missing") == 0
    found.delete_many(["key1", "key2"])
    assert len(found.get_many(data)) == 98
    kit.client("many", 0).set("other", "x")
    monkeypatch.setattr("shardkit.integrations.django.cache._UNLINKED_AT_ONCE", 3)
    assert found.clear()
    assert found.get_many(data) == {}
    assert kit.client("many", 0).get("other") == b"x"


@pytest.mark.usefixtures("_default_kit")
def test_single_values_behave_as_django_says() -> None:
    found = cache()
    assert found.add("a", 1)
    assert not found.add("a", 2)
    assert found.incr("a", 4) == 5
    assert found.decr("a") == 4
    assert found.touch("a", None)
    assert found.touch("a", None)
    assert found.ttl("a") is None
    assert not found.touch("missing", None)
    found.set("text", "x", timeout=0)
    assert "text" not in found
    assert found.add("text", "x", timeout=0)  # there was none, and there is none
    assert "text" not in found
    assert not found.add("a", "x", timeout=0)
    assert found.touch("a", 100)
    assert 90 < (found.ttl("a") or 0) <= 100
    assert not found.touch("missing", 100)
    assert found.get_many([]) == {}
    assert found.touch("a", None)
    found.set("text", "x")
    with pytest.raises(ValueError, match="not an integer"):
        found.incr("text")
    with pytest.raises(ValueError, match="not an integer"):
        found.incr("a", 1.5)  # type: ignore[arg-type]
    assert found.get("a") == 4
    with pytest.raises(ValueError, match="not found"):
        found.incr("missing")
    assert found.add("none", None)
    assert found.get("none", "default") is None
    assert found.delete("none")
    assert not found.delete("none")
    assert found.get("a", version=2) is None


@pytest.mark.usefixtures("_default_kit")
@pytest.mark.parametrize("serializer", [{}, {"SERIALIZER": f"{__name__}.Pickle"}])
@pytest.mark.parametrize("compressor", [{}, {"COMPRESSOR": f"{__name__}.Deflate"}])
def test_values_are_serialized_and_compressed_as_with_django_redis(
    serializer: dict[str, Any], compressor: dict[str, Any]
) -> None:
    found = cache(PICKLE_VERSION=4, **serializer, **compressor)
    data = {"long": "x" * 10_000, "empty": "", "true": True, "none": None, "7": "7", "float": 1.5}
    assert found.set_many(data) == []
    assert found.get_many(data) == data
    assert [found.get(key, "missing") for key in data] == [*data.values()]
    client: Any = shardkit.kit.kit.default_kit().client
    size = max(client("few", n).strlen("cache::1:long") for n in range(4))
    assert (0 < size < 200) is bool(compressor)
    for number in (7, 2**53, 2**63 - 2, 2**63 - 1, 2**70, -(2**63)):
        found.set("number", number, timeout=100)
        assert found.incr("number") == found.get("number") == number + 1
        assert found.decr("number", 2**65) == number + 1 - 2**65
        assert 90 < (found.ttl("number") or 0) <= 100
    for key in ("long", "true", "float"):
        with pytest.raises(ValueError, match=f"'{key}' is not an integer"):
            found.incr(key)


@pytest.mark.usefixtures("_default_kit")
def test_clear_deletes_no_other_cache() -> None:
    others = [cache(NAME=name) for name in ("shop:sessions", "shop2", "shop:")]
    sessions = ShardKitCache("few", {"OPTIONS": {"NAME": "shop"}, "KEY_PREFIX": "sessions"})
    for each in (*others, sessions):
        each.set("s1", 7)
    shop = cache(NAME="shop")
    shop.set("a", 1)
    shop.set("a:b", 1, version=20)
    assert shop.clear()
    assert "a" not in shop
    assert not shop.has_key("a:b", version=20)
    assert sessions.clear()
    assert "s1" not in sessions
    assert [each.get("s1") for each in others] == [7, 7, 7]
    own = ShardKitCache("few", {"OPTIONS": {"NAME": "own"}, "KEY_FUNCTION": lambda k, p, v: f"{k}"})
    own.set("a", 1)
    assert own.clear()
    assert "a" not in own


@pytest.fixture
def _half_dead() -> Iterator[None]:
    with LocalServer() as alive:
        with LocalServer() as dead:
            shards = [{"port": alive.port}, {"port": dead.port}]
        parsed = ShardMap.parse(str({"components": {"half": {"shards": shards}}}))
        shardkit.configure(parsed)
        yield
        shardkit.configure(None)


@pytest.mark.usefixtures("_half_dead")
def test_a_dead_shard_is_an_error_or_a_miss_as_it_is_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict, lenient = cache("half"), cache("half", IGNORE_EXCEPTIONS=True, LOG_IGNORED_EXCEPTIONS=1)
    data = {f"key{n}": n for n in range(20)}
    failed = lenient.set_many(data)
    assert 0 < len(failed) < 20
    assert lenient.get_many(data) == {key: n for key, n in data.items() if key not in failed}
    assert "ignored: 1 shard failed" in caplog.text
    key = failed[0]
    assert lenient.get(key, "default") == "default"
    assert not lenient.add(key, 1)
    assert not lenient.touch(key, None)
    assert not lenient.delete(key)
    lenient.delete_many([key])
    assert not lenient.clear()
    for call in (
        lambda: strict.get(key),
        lambda: strict.set(key, 1),
        lambda: strict.get_many(data),
        lambda: strict.delete_many(data),
    ):
        with pytest.raises(ShardErrors, match=r"1 shard failed \(half:1\)"):
            call()
    with pytest.raises(redis.ConnectionError, match="refused"):
        strict.clear()
    missing = cache("no such component", IGNORE_EXCEPTIONS=True)
    assert missing.get("x") is None
    assert missing.set_many({"x": 1}) == ["x"]
    with pytest.raises(ConfigError, match="no such component"):
        cache("no such component").get("x")


@pytest.mark.usefixtures("_default_kit")
def test_sessions_are_kept_in_the_cache() -> None:
    session = SessionStore()
    session["user"] = 7
    session.save()
    assert SessionStore(session.session_key)["user"] == 7
    other = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(caches.settings, "other", other)
        patch.setattr(settings, "SESSION_CACHE_ALIAS", "other")
        assert SessionStore(session.session_key).load() == {}
        elsewhere = SessionStore()
        elsewhere["user"] = 8
        elsewhere.save()
        assert SessionStore(elsewhere.session_key)["user"] == 8
    assert SessionStore(session.session_key)["user"] == 7
    assert SessionStore().exists(session.session_key)
    old = session.session_key
    session.cycle_key()
    assert session.session_key != old
    session.flush()
    assert SessionStore(old).load() == {}


@pytest.mark.usefixtures("_half_dead")
def test_a_session_on_a_dead_shard_is_an_error_and_nobody_is_logged_out() -> None:
    lost = SessionStore("a" * 32)
    lost._cache = cache("half", IGNORE_EXCEPTIONS=True).raising()
    outcomes = set()
    for n in range(20):
        lost._session_key = f"{n:032}"
        try:
            outcomes.add(str(lost.load()))
        except ShardErrors:
            outcomes.add("error")
    assert outcomes <= {"{}", "error"}  # a missing one is looked for under two keys
    assert "error" in outcomes


@pytest.mark.skipif("DJANGO_TESTS" not in os.environ, reason="needs the tests of Django's sdist")
def test_djangos_own_tests_of_caches_and_sessions_pass(shard_map: ShardMap) -> None:
    import subprocess

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("django_suite.py")
    shardkit_map = shard_map.to_yaml()
    done = subprocess.run(
        [sys.executable, str(script)], input=shardkit_map, text=True, capture_output=True,
        env=environment, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.usefixtures("_default_kit")
@pytest.mark.parametrize("awaits", [False, True])
def test_a_session_of_djangos_own_backend_is_moved_when_it_is_loaded(awaits: bool) -> None:
    former = DjangoSessionStore()
    former["user"] = 42
    former.save()
    session = SessionStore(former.session_key)
    assert (async_to_sync(session.aload)() if awaits else session.load()) == {"user": 42}
    assert DjangoSessionStore(former.session_key).load() == {}
    session["user"] = 43
    session.save()
    assert SessionStore(former.session_key)["user"] == 43
    session.flush()
    assert SessionStore(former.session_key).load() == {}
