"""A backup is one cut over all servers, and comes back with everything that was in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from arranged import BINARIES, client_of, emptied, map_of, meanwhile
from click.testing import CliRunner
from faces import eventually
from resources import bounded

import shardkit
from shardkit import ShardMap
from shardkit.admin import (
    PersistenceState,
    apply_profile,
    backup,
    estimate_disk_rate,
    measure_disk_rate,
    persistence_of,
    push,
    restore,
    restore_objects,
    rewrite_aof,
    save_snapshot,
    verify,
)
from shardkit.admin.backup import CONFIG, MANIFEST, MAP as MAP_FILE
from shardkit.cli.app import app
from shardkit.errors import ConfigError, InvalidArgumentError, PersistenceError
from shardkit.local import LocalServer, LocalServers

FENCE_KEY = "config:fence"

backups: Any = import_module("shardkit.admin.backup")
LIBRARY = "#!lua name=l\nredis.register_function('f', function() return 1 end)"
MAP = """
components:
  data: {shards: [{port: 7001, db: 1}, {port: 7002, db: 1}, {port: 7002, db: 2}]}
  one: {entry: {port: 7001}}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free", config={"appendonly": True}) as running:
        yield running


@pytest.fixture
def kit(servers: LocalServers) -> Iterator[shardkit.ShardKit]:
    with emptied(servers) as opened:
        yield opened


@pytest.fixture
def others() -> Iterator[LocalServers]:
    """Empty servers, into which a backup is restored."""
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


def everything(servers: LocalServers) -> dict[str, Any]:
    """All keys of all shards, as DUMP gives them, with their times to live."""
    with shardkit.connect(servers.shard_map) as opened:
        found = {}
        for name in ("data", "one"):
            for shard, _ in opened.component(name).entries():
                client: Any = opened.client(name, shard.number)
                for key in client.scan_iter():
                    found[f"{shard} {key!r}"] = client.dump(key), client.pexpiretime(key)
        return found


def components(servers: LocalServers) -> list[Any]:
    return list(servers.shard_map.components.values())


def test_a_restore_serves_nobody_else(
    kit: shardkit.ShardKit,
    servers: LocalServers,
    others: LocalServers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(kit, 10, 1)
    backup(components(servers), tmp_path / "backup")
    started: list[LocalServer] = []

    class Noted(LocalServer):
        def start(self) -> Any:
            started.append(self)
            return super().start()

    def look(keys: int) -> None:
        with socket.create_connection(("127.0.0.1", started[-1].port)) as stranger:
            stranger.sendall(b"DBSIZE\r\n")
            assert stranger.recv(100).startswith(b"-NOAUTH")

    monkeypatch.setattr(backups, "LocalServer", Noted)
    restore(tmp_path / "backup", others.shard_map, progress=look)
    assert started


def test_any_damage_of_a_manifest_is_one_clear_error(
    kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path
) -> None:
    fill(kit, 10, 1)
    target = tmp_path / "backup"
    backup(components(servers), target)
    manifest, text = target / MANIFEST, (target / MANIFEST).read_text()
    whole = json.loads(text)
    others: list[Any] = [None, True, -1, 1.5, 10**30, "", "..", "a/b", "\0", "\ud800", [], {}, [[]]]

    def damaged(value: Any) -> Iterator[Any]:
        """Yield a JSON value with one part of it replaced."""
        yield from others
        items = value.items() if isinstance(value, dict) else ()
        for at, part in enumerate(value) if isinstance(value, list) else items:
            for other in damaged(part):
                copied = value.copy()
                copied[at] = other
                yield copied

    random = Random(1)
    texts = [json.dumps(each) for each in damaged(whole) if each != whole]
    texts += ["[" * 100_000, text[:-9], "\ufeff", "1e999", "0" * 5000]
    for each in [*random.sample(texts, 200), *texts[-5:]]:
        manifest.write_text(each)
        with suppress(ConfigError):
            verify(target)
        with suppress(ConfigError):
            restore_objects(target, kit.client("one"))
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(ConfigError, match="it is no regular file"):
        verify(target)


def test_a_restore_is_whole(
    kit: shardkit.ShardKit, servers: LocalServers, others: LocalServers, tmp_path: Path
) -> None:
    fill(kit, 1500, 50)
    kit.hash("users", component="data").hset("1", "Ada")
    kit.client("one").zadd("scores", {"a": 1, "b": 2})
    target = tmp_path / "backup"
    manifest = backup(components(servers), target)
    assert len(manifest.servers) == 2
    assert 0 < manifest.paused_ms < 5000
    before = everything(servers)
    assert sum(sum(each.keys.values()) for each in manifest.servers) == len(before)
    assert verify(target) == manifest
    assert [path.stat().st_mode & 0o077 for path in target.iterdir()] == [0] * 4
    copied = restore(target, others.shard_map)
    assert everything(others) == before
    assert sum(copied.values()) == len(before)
    with pytest.raises(ConfigError, match="is not empty"):
        restore(target, others.shard_map)
    with pytest.raises(ConfigError, match=r"is where the backup came from; .* --to-origin"):
        restore(target, servers.shard_map)


def fill(kit: shardkit.ShardKit, count: int, longest: int) -> None:
    pipe = kit.key_sharded("data").pipeline()
    for n in range(count):
        pipe.set(f"key:{n}", "x" * (n % longest), ex=3600 if n % 3 else None)
    pipe.execute()


def test_the_origin_is_kept(kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    backup(components(servers), target)
    text = servers.shard_map.to_yaml().replace("127.0.0.1", "localhost")
    renamed = ShardMap.parse(text)
    with pytest.raises(ConfigError, match=r"data:0 \(localhost:\d+/1\) is where the backup came"):
        restore(target, renamed)
    assert set(restore(target, renamed, to_origin=True)) == {"data:0", "data:1", "data:2", "one"}


def test_a_backup_is_one_cut(
    kit: shardkit.ShardKit, servers: LocalServers, others: LocalServers, tmp_path: Path
) -> None:
    """A writer counts up on one server, then on the other: no cut has the second ahead."""
    ahead, behind = kit.client("data", 0), kit.client("data", 1)
    with meanwhile(lambda: (ahead.incr("n"), behind.incr("n"))):
        assert eventually(lambda: int(behind.get("n") or 0) >= 100)
        backup(components(servers), tmp_path / "b")
    restore(tmp_path / "b", others.shard_map)
    with shardkit.connect(others.shard_map) as found:
        counts = [int(found.client("data", n).get("n") or 0) for n in (0, 1)]
    assert counts[0] - counts[1] in (0, 1)
    assert counts[1] >= 100


def test_damage_is_refused(kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path) -> None:
    kit.client("one").set("k", 1)
    target = tmp_path / "backup"
    with servers.servers[0].client() as config:
        backup(components(servers), target, config=config)
    with pytest.raises(ConfigError, match="is not empty; name a new directory"):
        backup(components(servers), target)
    smaller = ShardMap.parse("components: {data: {shards: [{port: 1}]}, one: {entry: {port: 1}}}")
    with pytest.raises(ConfigError, match="has 1 shard by crc32 in the map, and 3"):
        restore(target, smaller)
    with pytest.raises(ConfigError, match="the map has no component 'data'"):
        restore(target, ShardMap.parse("components: {one: {entry: {port: 1}}}"))
    for name in ("server-0.rdb", MAP_FILE, CONFIG):
        written = (target / name).read_bytes()
        (target / name).write_bytes(written[:-1])
        with pytest.raises(ConfigError, match=f"{name} is not what was written"):
            verify(target)
        (target / name).unlink()
        with pytest.raises(ConfigError, match=f"{name}: No such file .*; name a whole backup"):
            verify(target)
        (target / name).write_bytes(written)
    size = (target / "server-0.rdb").stat().st_size
    os.truncate(target / "server-0.rdb", 2**40)  # it has holes: reading it would take minutes
    with bounded(seconds=5), pytest.raises(ConfigError, match=r"server-0.rdb is not what was"):
        verify(target)
    os.truncate(target / "server-0.rdb", size)
    manifest = json.loads((target / MANIFEST).read_text())
    (target / MANIFEST).write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(ConfigError, match="no manifest that this release can read"):
        verify(target)
    del manifest["files"]  # by an earlier release
    (target / MANIFEST).write_text(json.dumps(manifest))
    assert verify(target).files == {}
    (target / MANIFEST).unlink()
    with pytest.raises(ConfigError, match=r"No such file .*; name a backup's directory"):
        verify(target)


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (
            "one: {shards: [{port: 2}]}, data: {shards: [{port: 2}, {port: 2}, {port: 2}]}",
            "component 'one' has 1 shard .*, and 0 ",
        ),
        (
            "one: {entry: {port: 2}}, data: {shards: [{port: 2, db: 1}, {port: 3}, {port: 4}]}",
            r"data:\d cannot be restored: .*; start it, or grant",
        ),
        ("one: {entry: {port: PORT, db: 7}}, data: DATA", "database of one is not empty; restore"),
        (
            "one: {entry: {host: 127.0.0.1, port: PORT, db: 8}}, data: DATA",
            r"one \(127.0.0.1:\d+/8\) and data:0 \(localhost:\d+/8\) are one database; give",
        ),
    ],
)
def test_a_map_that_does_not_take_the_backup_is_refused(
    kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path, shards: str, said: str
) -> None:
    kit.client("one").set("k", 1)
    port = servers.servers[0].port
    client_of(servers.servers[0], db=7).set("of", "another")
    data = ", ".join(f"{{port: {port}, db: {number}}}" for number in (8, 9, 10))
    filled = shards.replace("PORT", str(port)).replace("DATA", f"{{shards: [{data}]}}")
    backup(components(servers), tmp_path / "backup")
    with pytest.raises(ConfigError, match=said):
        restore(tmp_path / "backup", ShardMap.parse(f"components: {{{filled}}}"), timeout=1)


def test_a_lost_entry_stops(kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path) -> None:
    both = "components: {one: {entry: {port: PORT}, shards: [{port: PORT, db: 1}]}}"
    text = both.replace("PORT", str(servers.servers[0].port))
    backup(ShardMap.parse(text).components.values(), tmp_path / "backup")
    less = ShardMap.parse("components: {one: {shards: [{port: 1}]}}")
    with pytest.raises(ConfigError, match="the map has no entry for one; add it"):
        restore(tmp_path / "backup", less)


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Any, socket.socket]]:
    """The feed of a server's snapshot, and the server's end of its connection."""
    monkeypatch.setattr(backups, "_FORK_WAIT", 0.05)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(backups, "socket_of", lambda connection: ours)
    with ours, theirs:
        yield backups._Feed(SimpleNamespace(), "a:1", tmp_path / "rdb", {"one": 0}, 0.05), theirs


@pytest.mark.parametrize(
    ("sent", "closed", "said"),
    [
        (b"-ERR no disk\r\n", False, "a:1 gives no snapshot: ERR no disk; check its log"),
        (b"\n$5\r\nREDIS", False, ""),
        (b"$50\r\nREDIS", True, "a:1: the snapshot broke off; check its log"),
        (b"$50\r\nREDIS", False, "a:1: the snapshot broke off: timed out; try again"),
    ],
)
def test_a_snapshot_that_does_not_come_whole_is_refused(
    fed: tuple[Any, socket.socket], sent: bytes, closed: bool, said: str
) -> None:
    feed, theirs = fed
    theirs.sendall(sent)
    if closed:
        theirs.close()
    if not said:
        feed.fetch()
        assert (feed.result().size, feed.path.read_bytes()) == (5, b"REDIS")
        return
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        feed.fetch()


@pytest.mark.parametrize(
    ("persistence", "sent", "said"),
    [
        ({"rdb_bgsave_in_progress": 1}, b"", "is just saving its data, .*; try again when it has"),
        ({"aof_rewrite_in_progress": 1}, b"", "is just saving its data, .*; try again when it has"),
        ({}, b"-NOPERM no rights\r\n", "gives no snapshot: NOPERM no rights; grant SYNC"),
        ({}, b"\n", "did not begin its snapshot in time; check its log"),
    ],
)
def test_a_server_that_begins_no_snapshot_says_why(
    fed: tuple[Any, socket.socket], persistence: dict[str, int], sent: bytes, said: str
) -> None:
    feed, theirs = fed
    connection = SimpleNamespace(send_command=lambda word: theirs.sendall(sent))
    feed.client = SimpleNamespace(
        info=lambda section: persistence if section == "persistence" else {},
        execute_command=lambda *words: None,
        connection_pool=SimpleNamespace(get_connection=lambda: connection),
    )

    def begin() -> None:
        feed.pause()
        feed.begin()

    with pytest.raises(ConfigError, match=f"^a:1 {said}"):
        begin()


def test_keys_are_counted(
    kit: shardkit.ShardKit, servers: LocalServers, others: LocalServers, tmp_path: Path
) -> None:
    one: Any = kit.client("one")
    one.set("stays", 1)
    one.set("ends", 1, px=1)
    while one.exists("ends"):
        pass
    backup(components(servers), tmp_path / "backup")
    with shardkit.connect(others.shard_map) as target:

        def intrude(keys: int) -> None:
            target.client("one").set("intruder", 1)

        with pytest.raises(ConfigError, match="one has 2 keys, and 1 key should be there; stop"):
            restore(tmp_path / "backup", others.shard_map, progress=intrude)


def test_an_interrupted_restore_is_continued_unless_a_move_has_closed_a_database(
    kit: shardkit.ShardKit, servers: LocalServers, others: LocalServers, tmp_path: Path
) -> None:
    fill(kit, 50, 10)
    kit.client("one").set("stays", 1)
    backup(components(servers), tmp_path / "backup")

    def interrupt(keys: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "backup", others.shard_map, progress=interrupt)
    with shardkit.connect(others.shard_map) as opened:
        client = opened.client("one")
        client.set(FENCE_KEY, '{"to": "a:1"}')
        with pytest.raises(ConfigError, match=r"one is closed by a move to a:1 .* changes repair"):
            restore(tmp_path / "backup", others.shard_map)
        client.delete(FENCE_KEY)
    restore(tmp_path / "backup", others.shard_map)
    assert everything(others) == everything(servers)
    with pytest.raises(ConfigError, match="is not empty; restore into an empty one"):
        restore(tmp_path / "backup", others.shard_map)


def test_restore_fails_if_the_target_evicts(
    kit: shardkit.ShardKit, servers: LocalServers, others: LocalServers, tmp_path: Path
) -> None:
    fill(kit, 4000, 1000)
    backup(components(servers), tmp_path / "backup")
    for server in others.servers:
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-random")
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
    said = r"data:\d has (only|lost) .* server evicted .*give the server more memory"
    with pytest.raises(ConfigError, match=said):
        restore(tmp_path / "backup", others.shard_map)


def test_a_backup_that_fails_leaves_nothing_and_no_server_paused(tmp_path: Path) -> None:
    with LocalServer() as server, server.client() as admin:
        rights = ("on", ">pw", "~*", "+@all", "-sync")
        admin.execute_command("ACL", "SETUSER", "tried", *rights)
        login = "username: tried, password: pw"
        entry = f"{{host: 127.0.0.1, port: {server.port}, {login}}}"
        shard_map = ShardMap.parse(f"components: {{one: {{entry: {entry}}}}}")
        with pytest.raises(ConfigError, match=r"gives no snapshot|cannot be backed up"):
            backup(shard_map.components.values(), tmp_path / "b")
        assert not (tmp_path / "b").exists()
        started = time.monotonic()
        with redis.Redis(port=server.port) as client:
            client.set("k", 1)
        assert time.monotonic() - started < 4


def test_a_cluster_comes_back_in_another_cluster(tmp_path: Path) -> None:
    text = "components: {many: {entry: {cluster: true, port: 7001}}}"
    first = LocalServers(ShardMap.parse(text), ports="free")
    second = LocalServers(ShardMap.parse(text), ports="free")
    with first, shardkit.connect(first.shard_map) as kit:
        client = kit.client("many")
        for n in range(200):
            client.set(f"key:{n}", n)
        manifest = backup(first.shard_map.components.values(), tmp_path / "b")
        assert len(manifest.servers) == len(client.get_primaries()) > 1
        assert sum(sum(each.keys.values()) for each in manifest.servers) == 200
        with second:
            assert restore(tmp_path / "b", second.shard_map) == {"many": 200}
            with shardkit.connect(second.shard_map) as other:
                copied = other.client("many")
                assert [int(copied.get(f"key:{n}")) for n in range(200)] == list(range(200))


def test_config_is_restored(kit: shardkit.ShardKit, servers: LocalServers, tmp_path: Path) -> None:
    with LocalServer() as server, server.client() as config:
        push(config, servers.shard_map, message="the first")
        config.set("config:flags:checkout", '{"new_basket": true}')
        backup(components(servers), tmp_path / "b", config=config)
        kept = json.loads((tmp_path / "b" / "config.json").read_text())
        assert json.loads(kept["config:history"][0])["message"] == "the first"
        assert "config:redis:data:0" in kept
        config.flushall()
        config.set("config:flags:other", "{}")
        assert restore_objects(tmp_path / "b", config) == 1
        assert sorted(config.keys()) == [b"config:flags:checkout", b"config:flags:other"]
        assert restore_objects(tmp_path / "b", config) == 0
    with pytest.raises(ConfigError, match=r"the config server cannot be written: .*; start it"):
        restore_objects(tmp_path / "b", config)
    with pytest.raises(ConfigError, match=r"the config server cannot be read: .*; start it"):
        backup(components(servers), tmp_path / "c", config=config)
    backup(components(servers), tmp_path / "d")
    with pytest.raises(
        ConfigError, match=r"No such file .*: the backup may .*; leave out --objects"
    ):
        restore_objects(tmp_path / "d", config)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"host": "127.0.0.1", "port": 1},
            r"127\.0\.0\.1:1 cannot be backed up: .*; start it, or grant it",
        ),
        ({"cluster": True, "port": 1}, r"a cluster cannot be backed up: .*; start its nodes"),
    ],
)
def test_what_cannot_be_asked_is_named(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        backup(map_of(one={"entry": entry}).components.values(), tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["x" * 300, "file", "file/b", "loop"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r"/.* cannot be written: .*; name a new directory"):
        backup([], tmp_path / name)


@pytest.mark.parametrize("binary", BINARIES)
def test_a_restore_names_what_it_leaves_out(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDKIT_SERVER", str(BINARIES[binary]))  # also of what reads its snapshot
    with LocalServer() as own_server:
        leave_out(own_server, tmp_path)


def leave_out(own_server: LocalServer, tmp_path: Path) -> None:
    where = {"host": "127.0.0.1", "port": own_server.port, "db": 1}
    shard_map = ShardMap.parse(json.dumps({"components": {"users": {"entry": where}}}))
    with own_server.client(db=1) as users, own_server.client(db=9) as other:
        users.mset({"u": 1, "config:epoch": 1, "config:witness": 1})
        users.set("soon", 1, px=2000)
        other.mset({"a": 1, "b": 2})
        users.function_load(LIBRARY)
        manifest = backup(shard_map.components.values(), tmp_path / "b")
        assert eventually(lambda: not users.exists("soon"), 10)
    unnamed = f"2 keys of {own_server.address}/9, which no component here has"
    assert manifest.servers[0].left_out == [unnamed]
    left_out: list[str] = []
    with LocalServers(shard_map, ports="free") as servers:
        copied = restore(tmp_path / "b", servers.shard_map, left_out=left_out.append)
        with shardkit.connect(servers.shard_map) as kit:
            assert len(kit.client("users").function_list()) == 1
    assert copied == {"users": 1}
    gone, configured = "1 key of users: expired since", "1 key of users: of the configuration, or"
    assert left_out == [unnamed, gone, f"{configured} just expired"]


def unmarked(target: redis.Redis) -> Any:
    return partial(backups._write_under, target, "one", b"mark", lambda: None, first=True)


def test_a_server_that_cannot_read_a_backup_says_so(
    own_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "newer.rdb"
    newer.write_bytes(b"REDIS0999")
    said = f"^{newer}: .*-server cannot read this snapshot .format REDIS0999.; set SHARDKIT_SERVER"
    with pytest.raises(ConfigError, match=said), backups._loaded(newer, 16):
        pass
    with own_server.client() as source, own_server.client(db=1) as target:
        source.set("k", "a value")
        with monkeypatch.context() as patched:
            patched.setattr(source, "info", lambda: {"redis_version": "7.4.0"})
            patched.setattr(target, "info", lambda: {"valkey_version": "9.0.0"})
            said = "^the server of one is a Valkey, which does not read what Redis 7.4 and later"
            with pytest.raises(ConfigError, match=said):
                backups._copy(source, target, "one", unmarked(target), print)
        target.config_set("maxmemory", 1)
        try:
            said = "^one: its server refuses key k: command not allowed when used memory"
            with pytest.raises(ConfigError, match=said):
                backups._copy(source, target, "one", unmarked(target), print)
        finally:
            target.config_set("maxmemory", 0)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def test_profiles_change_settings_and_say_what_changed(server: LocalServer) -> None:
    with server.client() as client:
        apply_profile(client, "none")
        assert persistence_of(client).problems == ["nothing is kept: a restart loses everything"]
        changed = apply_profile(client, "snapshot")
        assert changed["save"] == ("", "60 1000")
        assert persistence_of(client).save_points == ((60, 1000),)
        assert apply_profile(client, "everysec")["appendonly"] == ("no", "yes")
        assert apply_profile(client, "everysec") == {}
        found = persistence_of(client)
        assert found.aof
        assert found.fsync == "everysec"
        assert found.problems == []
        client.config_set("stop-writes-on-bgsave-error", "no")
        assert any("writes go on" in problem for problem in persistence_of(client).problems)
        with pytest.raises(InvalidArgumentError, match="everysec"):
            apply_profile(client, "often")
        apply_profile(client, "none")  # a server that writes its first AOF does not stop


def test_a_snapshot_is_awaited_and_one_that_fails_is_told(server: LocalServer) -> None:
    with server.client() as client:
        client.set("k", 1)
        save_snapshot(client, timeout=30)
        assert persistence_of(client).changes == 0
        with pytest.raises(PersistenceError, match="has no AOF"):
            rewrite_aof(client)
        apply_profile(client, "everysec")
        while persistence_of(client).busy:
            time.sleep(0.05)
        rewrite_aof(client, timeout=30)
        # A directory of the file's name: the snapshot cannot be put in its place.
        name = persistence_of(client).settings["dbfilename"]
        path = Path(persistence_of(client).settings["dir"]) / name
        path.unlink(missing_ok=True)
        path.mkdir()
        with pytest.raises(PersistenceError, match="failed"):
            save_snapshot(client, timeout=30)
        assert "the last snapshot failed" in persistence_of(client).problems


def test_a_snapshot_that_takes_too_long_is_waited_for_no_more(own_server: LocalServer) -> None:
    with own_server.client() as client:
        with pytest.raises(PersistenceError, match="not done within 0 s; it continues"):
            save_snapshot(client, timeout=0)
        assert save_snapshot(client) > 0
        client.config_set("rdb-key-save-delay", 60_000_000)
        client.set("k", 1)
        client.bgsave()
        try:
            with pytest.raises(PersistenceError, match="not done within 0 s; the server saves"):
                save_snapshot(client, timeout=0)
        finally:
            client.config_set("rdb-key-save-delay", 0)


def save(client: redis.Redis) -> None:
    client.bgsave()


def fill_a_replica(client: redis.Redis) -> None:
    client.config_set("repl-diskless-sync-delay", 0)
    connection = client.connection_pool.get_connection()
    connection.send_command("REPLCONF", "capa", "eof")  # filled without a file
    assert connection.read_response() == b"OK"
    connection.send_command("SYNC")
    while not client.info("persistence")["rdb_bgsave_in_progress"]:
        time.sleep(0.01)


def rewrite(client: redis.Redis) -> None:
    client.bgrewriteaof()


@pytest.mark.parametrize("others", [save, fill_a_replica, rewrite])
def test_a_snapshot_has_what_was_written_before_the_call(
    server: LocalServer, others: Callable[[redis.Redis], None]
) -> None:
    with server.client() as client:
        client.mset({f"k{n}": n for n in range(100)})
        client.config_set("rdb-key-save-delay", 5_000)
        others(client)
        client.set("late", 1)
        save_snapshot(client, timeout=30)
        found = persistence_of(client).settings
        assert b"late" in (Path(found["dir"]) / found["dbfilename"]).read_bytes()


def test_a_profile_that_a_restart_loses_is_an_error(server: LocalServer) -> None:
    with (
        server.client() as admin,
        redis.Redis(port=server.port, username="few", password="pw") as client,
    ):
        admin.execute_command(
            "ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-config|rewrite"
        )
        said = "always is in effect only until a restart: .* --appendonly yes --appendfsync always"
        with pytest.raises(PersistenceError, match=said):
            apply_profile(client, "always")
        assert persistence_of(client).fsync == "always"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"aof": False}, []),
        ({"last_rewrite_ok": False}, ["the last rewrite of the AOF failed"]),
        ({"last_rewrite_ok": False, "aof": False}, []),
        ({"fsync": "no"}, ["the AOF is synced when the system likes (appendfsync no)"]),
        ({"fsync": "no", "aof": False}, []),
        ({"save_points": ()}, []),
        ({"save_points": (), "aof": False}, ["nothing is kept: a restart loses everything"]),
        ({"last_save_ok": False}, ["the last snapshot failed"]),
    ],
)
def test_ways_to_lose_data_silently_are_named(changes: dict[str, Any], problems: list[str]) -> None:
    sound = PersistenceState(((60, 1000),), True, True, "everysec", {}, 0, True, True, 0, False)
    assert replace(sound, **changes).problems == problems


def test_a_server_is_busy_while_it_writes_a_snapshot(server: LocalServer) -> None:
    with server.client() as client:
        client.set("k", 1)
        assert not persistence_of(client).busy
        client.config_set("rdb-key-save-delay", 60_000_000)  # for each key
        client.bgsave()
        try:
            assert persistence_of(client).busy
        finally:
            client.config_set("rdb-key-save-delay", 0)


def test_the_command_shows_every_server(server: LocalServer, tmp_path: Path) -> None:
    shard_map = tmp_path / "map.yaml"
    shard_map.write_text(f"components: {{one: {{entry: {{port: {server.port}}}}}}}", "utf-8")

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["persistence", *words, "-c", str(shard_map)])
        assert done.exit_code == 0, done.output
        return done.stdout

    [state] = json.loads(run("show", "--json")).values()
    assert state["last_save_ok"]
    shown = r"^  snapshots: .*AOF.*; [0-9,]+ changes unsaved$"
    assert re.search(shown, run("show"), re.MULTILINE)
    assert re.search(r"^  done in [0-9.]+ s$", run("snapshot"), re.MULTILINE)


def test_a_server_that_cannot_be_asked_is_named_with_the_reason(tmp_path: Path) -> None:
    shard_map = tmp_path / "map.yaml"
    shard_map.write_text("components: {one: {entry: {port: 1}}}", "utf-8")
    done = CliRunner().invoke(app, ["persistence", "show", "-c", str(shard_map)])
    assert done.exit_code == 1
    server, reason = done.output.splitlines()
    assert server.endswith(":1")
    assert "onnect" in reason


EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
SNAPSHOT = {"appendonly": "no", "save": "60 1000"}


def test_what_a_disk_has_to_write_is_estimated_from_commands_and_their_size() -> None:
    everysec = estimate_disk_rate(100_000, 1000, EVERYSEC, data=1 << 30)
    assert everysec.append == 100e6
    assert everysec.rewrite == 100e6  # once more each time that it has doubled
    assert everysec.snapshot == 0
    assert everysec.total == 200e6
    snapshots = estimate_disk_rate(100_000, 1000, SNAPSHOT, data=6_000_000)
    assert (snapshots.append, snapshots.snapshot) == (0, 100_000)  # each minute, not more often
    seldom = estimate_disk_rate(10, 1000, SNAPSHOT, data=6_000_000)
    assert seldom.snapshot == 60_000  # a thousand changes take longer than that
    assert estimate_disk_rate(10, 1000, {"appendonly": "no", "save": ""}, data=1).total == 0
    never = {**EVERYSEC, "auto-aof-rewrite-percentage": "0"}
    assert estimate_disk_rate(10, 10, never, data=1).total == 100
    with pytest.raises(InvalidArgumentError, match=r"commands=-1; give a number, 0 to"):
        estimate_disk_rate(-1, 10, {})


def test_written_bytes_are_measured(server: LocalServer) -> None:
    numbers = itertools.count()
    with server.client() as client, server.client() as other:
        apply_profile(client, "always")

        def write() -> None:
            other.set(f"key{next(numbers) % 1000:03}", "v" * 100)

        with meanwhile(write):
            rate = measure_disk_rate(client, seconds=0.2)
            # *3 $3 SET $6 key000 $100 and the value, each line with its end
            assert 130 < rate.size < 150
            assert rate.append == rate.commands * rate.size > 0
            assert measure_disk_rate(client, seconds=0.2, profile="none").total == 0
            client.config_set("appendonly", "no")
            assert 130 < measure_disk_rate(client, seconds=0.2).size < 150
        with pytest.raises(InvalidArgumentError, match="everysec"):
            measure_disk_rate(client, profile="often")
