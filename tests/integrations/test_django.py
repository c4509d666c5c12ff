"""Django's cache and sessions over shards.

With the environment variable DJANGO_TESTS, the folder ``tests`` of Django's sdist, Django's own
tests of caches and of sessions run too.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from pickle import PicklingError
from types import SimpleNamespace
from typing import Any

import django
import pytest
import redis
from arranged import map_of
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache import caches

import shardkit
from shardkit import ShardMap
from shardkit.errors import ConfigError, InvalidArgumentError, ShardErrors, StructureError
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
    options = ({"xx": True}, {"nx": True}, {"nx": True}, {"xx": True}, {"nx": True, "timeout": 0})
    replies = [found.set("x", number, **kinds) for number, kinds in enumerate(options)]
    assert (replies, found.get("x")) == ([False, True, False, True, False], 3)
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
    client: Any = shardkit.default_kit().client
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
@pytest.mark.parametrize(
    "name", ["zlib", "deflate", "gzip", "bz2", "lzma", "lz4.frame", "zstandard", "brotli"]
)
def test_a_value_that_would_become_too_large_is_not_decompressed(name: str) -> None:
    module = import_module("zlib" if name == "deflate" else name)
    packing, unpacking = module, module
    if name == "zstandard":
        packing, unpacking = module.ZstdCompressor(), module.ZstdDecompressor()
    if name == "deflate":  # without the mark at the beginning that zlib writes
        packing = SimpleNamespace(compress=partial(zlib.compress, wbits=-15))
        unpacking = SimpleNamespace(decompress=partial(zlib.decompress, wbits=-15))
    compressor = SimpleNamespace(compress=packing.compress, decompress=unpacking.decompress)
    found = cache(COMPRESSOR=compressor)
    found.set("bomb", "small")
    client: Any = shardkit.default_kit().client
    [holder] = [client("few", n) for n in range(4) if client("few", n).exists("cache::1:bomb")]
    large = packing.compress(b" " * 20_000_000)
    several = [] if name == "brotli" else [packing.compress(b"x") + large]
    for stored in (large, *several, large[:-1]):
        holder.set("cache::1:bomb", stored)
        reads: list[Callable[[], Any]] = [
            lambda: found.get("bomb"),
            lambda: found.get_many(["bomb"]),
            lambda: found.get_or_set("bomb", lambda: 7),
            lambda: found.incr("bomb"),
        ]
        for read in reads:
            with pytest.raises(StructureError, match=r"more than 64 times .*larger GROWTH"):
                read()
    text = "x" * 2_000_000
    found.set("mine", text)  # as it is, so that it can be read
    assert found.get("mine") == text
    found = cache(COMPRESSOR=compressor, GROWTH=1_000_000)
    found.set("mine", text)
    assert sum(client("few", n).strlen("cache::1:mine") for n in range(4)) < 1_000_000
    assert found.get("mine") == text
    with pytest.raises(InvalidArgumentError, match=r"growth=0; give an integer"):
        cache(GROWTH=0)


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


def test_what_is_no_setting_is_refused_by_name() -> None:
    with pytest.raises(shardkit.InvalidArgumentError, match="'TOPLOGY' is no option"):
        cache(TOPLOGY="configs/local.yaml")
    with pytest.raises(shardkit.InvalidArgumentError, match="LOCATION="):
        ShardKitCache(["redis://a", "redis://b"], {})  # type: ignore[arg-type]  # as Django's own


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
    assert lenient.get_or_set(key, lambda: 7) == 7
    assert lenient.delete_pattern("*") == 0
    for call in (
        lambda: strict.get(key),
        lambda: strict.get_or_set(key, list),
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
    assert outcomes == {"{}", "error"}


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
def test_sessions_have_the_keys_of_djangos_own(awaits: bool) -> None:
    former = DjangoSessionStore()
    former["user"] = 42
    former.save()
    session = SessionStore(former.session_key)
    assert (async_to_sync(session.aload)() if awaits else session.load()) == {"user": 42}
    session["user"] = 43
    session.save()
    assert DjangoSessionStore(former.session_key).load() == {"user": 43}
    session.flush()
    assert DjangoSessionStore(former.session_key).load() == {}


@pytest.mark.usefixtures("_default_kit")
@pytest.mark.parametrize("value", [7, None, "text"])
def test_get_or_set_computes_once(value: Any) -> None:
    found = cache("many")
    computed = []

    def compute() -> Any:
        computed.append(1)
        time.sleep(0.1)  # the computation
        return value

    with ThreadPoolExecutor(32) as threads:
        calls = [threads.submit(found.get_or_set, "k", compute, 100) for _ in range(32)]
        assert {call.result() for call in calls} == {value}
    assert computed == [1]
    assert found.get("k", "missing") == value
    assert 90 < (found.ttl("k") or 0) <= 100
    assert found.delete("k")
    assert async_to_sync(found.aget_or_set)("k", compute, None) == value
    assert found.ttl("k") is None
    assert computed == [1, 1]
    assert found.get_or_set("plain", "default") == found.get("plain") == "default"
    assert found.get_or_set("{odd", compute) == value
    assert found.get_or_set("unkept", compute, 0) == value
    assert "unkept" not in found


@pytest.mark.usefixtures("_default_kit")
def test_get_or_set_leaves_what_was_set_meanwhile_and_computes_after_an_error() -> None:
    found = cache()

    def fails() -> Any:
        raise KeyError("no value")

    with pytest.raises(KeyError, match="no value"):
        found.get_or_set("k", fails)
    with pytest.raises((AttributeError, PicklingError), match="local object"):
        found.get_or_set("k", lambda: lambda: 1)
    assert found.get_or_set("k", lambda: found.set("k", "newer") or "older") == "newer"  # type: ignore[func-returns-value]
    assert found.get("k") == "newer"


def test_get_or_set_leaves_nothing_of_its_lock_for_long() -> None:
    with LocalServer() as server, server.client() as client:
        shardkit.configure(
            ShardMap.parse(f"components: {{own: {{entry: {{port: {server.port}}}}}}}")
        )
        try:
            assert cache("own").get_or_set("k", lambda: 7) == 7
        finally:
            shardkit.configure(None)
        left = [client.ttl(key) for key in client.scan_iter("cache_lock:*")]
        assert 0 < max(left) <= 60


def test_get_or_set_works_on_a_cluster(cluster_map: ShardMap) -> None:
    shardkit.configure(cluster_map)
    try:
        found = cache("cluster")
        for key in ("k", "a{b}c", "a}b", "{}k"):
            assert found.get_or_set(key, lambda: "x") == found.get(key) == "x"
        found.set("k", 1, timeout=100)
        assert found.incr_version("k") == 2
        assert sorted(found.keys("*")) == ["a{b}c", "a}b", "{}k"]
        with found.lock("lock", timeout=10):
            assert not found.lock("lock").acquire(blocking=False)
        assert found.delete_pattern("a*") == 2
    finally:
        shardkit.configure(None)


@pytest.mark.usefixtures("_default_kit")
def test_keys_are_found_and_deleted_by_patterns() -> None:
    found = ShardKitCache("many", {"OPTIONS": {"NAME": "a*"}, "KEY_PREFIX": "p?"})
    found.set_many({f"user:{n}": n for n in range(20)} | {"other": 1})
    found.set("user:1", 1, version=2)
    ShardKitCache("many", {"OPTIONS": {"NAME": "ab"}, "KEY_PREFIX": "pq"}).set("user:1", 1)
    assert sorted(found.keys("user:?")) == [f"user:{n}" for n in range(10)]
    assert list(found.iter_keys("user:*", itersize=5, version=2)) == ["user:1"]
    assert found.delete_pattern("user:*", itersize=10) == 20
    assert found.keys("*") == ["other"]
    assert found.delete_pattern("user:*", version=2) == 1
    turned: dict[str, Any] = {"KEY_FUNCTION": lambda k, p, v: f"{v}|{k[::-1]}"}
    turned["REVERSE_KEY_FUNCTION"] = lambda k: k.partition("|")[2][::-1]
    own = ShardKitCache("many", {"OPTIONS": {"NAME": "own"}, **turned})
    own.set("key", 1)
    assert own.keys("*") == ["key"]


@pytest.mark.usefixtures("_default_kit")
def test_times_to_live_are_those_of_django_redis() -> None:
    found = cache()
    assert [found.ttl("k"), found.pttl("k"), found.expire("k", 1), found.persist("k")] == [
        *(0, 0, False, False)
    ]
    found.set("k", [1], timeout=None)
    assert [found.ttl("k"), found.pttl("k"), found.persist("k")] == [None, None, False]
    assert found.expire("k", timedelta(seconds=100))
    assert 90_000 < (found.pttl("k") or 0) <= 100_000
    assert found.pexpire("k", 50_000)
    lives, later = [found.ttl("k") or 0], time.time() + 50
    for when in (later, datetime.fromtimestamp(later)):
        assert found.expire("k", 100)
        assert found.expire_at("k", when)
        lives.append(found.ttl("k") or 0)
    assert found.pexpire_at("k", 1000 * later)
    assert all(40 < life <= 50 for life in [*lives, found.ttl("k") or 0]), lives
    assert not found.expire_at("missing", later)
    for call in (found.pexpire, found.expire_at, found.pexpire_at):
        for wrong in (None, "5", float("nan"), True):
            with pytest.raises(InvalidArgumentError, match=r"give (a number|seconds), "):
                call("k", wrong)
    assert found.expire("k", 100)
    assert found.incr_version("k") == 2
    assert "k" not in found
    assert found.get("k", version=2) == [1]
    assert 90 < (found.ttl("k", version=2) or 0) <= 100
    assert found.persist("k", version=2)
    assert async_to_sync(found.adecr_version)("k", version=2) == 1
    assert found.ttl("k") is None
    with pytest.raises(ValueError, match="not found"):
        found.incr_version("missing")
    found.set("n", 1, timeout=100)
    assert async_to_sync(found.aincr)("n") == 2
    assert (found.ttl("n") or 0) > 90, "Django's own aincr forgets it"


def test_patterns_of_entries_that_decode_replies_match(shard_map: ShardMap) -> None:
    entry = shard_map.entry_of("one").fields | {"decode_responses": True}
    shardkit.configure(map_of(one={"entry": entry}))
    try:
        found = cache("one")
        found.set_many({"user:1": "a", "user:2": "b", "other": "c"})
        assert sorted(found.keys("user:*")) == ["user:1", "user:2"]
        assert found.delete_pattern("user:*") == 2
        assert found.clear()
    finally:
        shardkit.configure(None)


@pytest.mark.usefixtures("_default_kit")
def test_a_value_that_only_begins_like_another_format_is_bounded() -> None:
    brotli = import_module("brotli")
    found = cache(COMPRESSOR=SimpleNamespace(compress=None, decompress=brotli.decompress))
    stream = brotli.Compressor(lgwin=16, quality=5)
    stream.process(b"ab")
    stream.flush()
    # Two bytes as they are, which raw DEFLATE takes for the beginning of 4096.
    bomb = b"\x10\x00\x10\xff\xef" + stream.process(bytes(10**7)) + stream.finish()
    assert len(brotli.decompress(bomb)) == 10**7 + 2
    holder: Any = shardkit.default_kit().key_sharded("few")["cache::1:odd"]
    holder.set("cache::1:odd", bomb)
    with pytest.raises(StructureError, match=r"more than 64 times"):
        found.get("odd")
