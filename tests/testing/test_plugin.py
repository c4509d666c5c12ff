"""The pytest plugin, in projects of its users."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
from faces import Face, faced

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import push
from shardkit.errors import CommandRefused, CrossShardError, ShardErrors
from shardkit.local import LocalServers
from shardkit.network.connections import Connector
from shardkit.operations import Script
from shardkit.testing import MemoryServers

pytest_plugins = ["pytester"]

MAP = """
components:
  mine: {shards: {count: 4, over: [{host: a.internal, password: "${NOT_SET}"}]}}
"""
QUIET = ["-pno:cacheprovider", "-pno:xdist", "-pno:hypothesispytest", "-pno:random_order"]
NO_LOOPS = ["-pno:asyncio", "-pno:anyio"]

# pytester has every run in this process import anew what was not imported before it.
IMPORTED = (fakeredis, shardkit.testing.MemoryServers, shardkit.connect)


def run(pytester: pytest.Pytester, *args: str, loops: str = "") -> pytest.RunResult:
    """Run a project's tests in this process, with one plugin for asyncio or none."""
    others = [arg for arg in NO_LOOPS if not arg.endswith(loops or "-")]
    return pytester.runpytest_inprocess(*QUIET, *others, *args)


def passed(pytester: pytest.Pytester, source: str, *args: str, loops: str = "", count: int) -> None:
    """Run one test file, and expect that so many tests pass."""
    pytester.makepyfile(source)
    run(pytester, *args, loops=loops).assert_outcomes(passed=count)


def test_kits_on_real_servers_and_in_memory_are_empty_for_each_test(
    pytester: pytest.Pytester,
) -> None:
    passed(
        pytester,
        """
        import pytest
        from shardkit.local import LocalServers
        from shardkit.testing.kits import MemoryServers

        session = "550e8400-e29b-41d4-a716-446655440000"
        ports = []

        @pytest.mark.parametrize("turn", [1, 2])
        def test_real(shardkit_kit, shardkit_servers, turn):
            assert isinstance(shardkit_servers, LocalServers)
            ports.append([server.port for server in shardkit_servers.servers])
            assert ports[0] == ports[-1]
            assert shardkit_kit.unique_visitors(component="unique").visit(session)
            assert shardkit_kit.set("ids", component="timelines", total=9, members=int).sadd(1) == 1

        @pytest.mark.parametrize("turn", [1, 2])
        def test_memory(memory_kit, memory_servers, turn):
            assert isinstance(memory_servers, MemoryServers)
            assert memory_kit.unique_visitors(component="unique").visit(session)
            assert memory_kit.set("ids", component="timelines", total=99, members=int).sadd(1) == 1
        """,
        count=4,
    )


def test_servers_that_a_test_killed_or_paused_run_again_for_the_next(
    pytester: pytest.Pytester,
) -> None:
    passed(
        pytester,
        """
        def test_havoc(shardkit_kit, shardkit_servers):
            shardkit_kit.client("unique").set("x", 1)
            shardkit_servers.servers[0].kill()
            shardkit_servers.servers[1].pause()

        def test_peace(shardkit_kit):
            assert shardkit_kit.client("unique").get("x") is None
            assert all(client.ping() for client in shardkit_kit.key_sharded("unique"))
        """,
        count=2,
    )


ASYNC_TESTS = """
    async def test_real(shardkit_async_kit):
        assert await shardkit_async_kit.set("s", component="unique", total=99).sadd("a", "b") == 2
        assert await shardkit_async_kit.key_sharded("timelines")["k"].set("k", 1)

    async def test_real_again(shardkit_async_kit):
        assert await shardkit_async_kit.set("s", component="unique", total=99).sadd("a", "b") == 2

    async def test_memory(async_memory_kit, memory_kit):
        assert await async_memory_kit.set("s", component="unique", total=99).sadd("a", "b") == 2
        assert memory_kit.set("s", component="unique", total=99).scard() == 2

        @memory_kit.sharded_connection("timelines")
        async def put(conn, key):
            return await conn.set(key, 1)

        assert await put("k")
"""


@pytest.mark.parametrize("scope", ["function", "session"])
def test_async_kits_serve_pytest_asyncio(pytester: pytest.Pytester, scope: str) -> None:
    pytester.makeini(f"""
        [pytest]
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = {scope}
        asyncio_default_test_loop_scope = {scope}
        filterwarnings = error
    """)
    passed(pytester, ASYNC_TESTS, loops="asyncio", count=3)


def test_async_kits_serve_anyio(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error")
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(params=["asyncio"])
        def anyio_backend(request):
            return request.param
    """)
    source = f"    import pytest\n    pytestmark = pytest.mark.anyio\n{ASYNC_TESTS}"
    passed(pytester, source, loops="anyio", count=3)


def test_async_kits_serve_tests_without_any_plugin(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error")
    passed(
        pytester,
        """
        import asyncio, unittest, pytest

        async def use(kit):
            assert await kit.set("s", component="unique", total=99).sadd("a") == 1
            assert await kit.set("s", component="unique", total=99).scard() == 1

        def test_a_loop(shardkit_async_kit, async_memory_kit):
            asyncio.run(use(shardkit_async_kit))
            asyncio.run(use(async_memory_kit))

        def test_a_loop_that_stays_open(shardkit_async_kit):
            loop = asyncio.new_event_loop()
            request_close.append(loop)
            loop.run_until_complete(use(shardkit_async_kit))

        request_close = []

        def test_its_connections_were_closed_in_it():
            [loop] = request_close
            assert not loop.is_closed()
            loop.close()

        class Test(unittest.IsolatedAsyncioTestCase):
            @pytest.fixture(autouse=True)
            def take(self, async_memory_kit):
                self.kit = async_memory_kit

            async def test_unittest(self):
                await use(self.kit)
        """,
        count=4,
    )


@pytest.mark.parametrize(
    ("ini", "named", "placed", "args"),
    [
        ("pytest.ini", "configs/test.yaml", "configs/test.yaml", []),
        # In the configuration it is beside its file.
        ("configs/pytest.ini", "test.yaml", "configs/test.yaml", ["-cconfigs/pytest.ini"]),
        # The command line goes before the configuration.
        ("pytest.ini", "nowhere.yaml", "other.yaml", ["--shardkit-map=other.yaml"]),
    ],
)
def test_the_map_is_named_in_the_configuration_or_on_the_command_line(
    pytester: pytest.Pytester, ini: str, named: str, placed: str, args: list[str]
) -> None:
    pytester.mkdir("configs")
    pytester.path.joinpath(ini).write_text(f"[pytest]\nshardkit_map = {named}")
    pytester.path.joinpath(placed).write_text(MAP)
    source = """
        def test_map(memory_kit, shardkit_kit):
            assert memory_kit.components() == shardkit_kit.components() == ['mine']
            assert memory_kit.client('mine', 3).ping() and shardkit_kit.client('mine', 3).ping()
    """
    passed(pytester, source, "--rootdir=.", *args, count=1)


def test_a_map_of_one_module_needs_servers_of_its_own(pytester: pytest.Pytester) -> None:
    own = """
        import pytest
        from shardkit import ShardMap
        from shardkit.local import LocalServers

        @pytest.fixture(scope="module")
        def shardkit_map():
            return ShardMap.parse("components: {mine: {entry: {}}}")

        def test_mine(shardkit_kit, memory_kit):
            assert shardkit_kit.components() == memory_kit.components() == ["mine"]
    """
    servers = """
        @pytest.fixture(scope="module")
        def shardkit_servers(shardkit_map):
            with LocalServers(shardkit_map, ports="free") as servers:
                yield servers
    """
    pytester.makepyfile(
        test_a="def test_usual(shardkit_kit): assert len(shardkit_kit.components()) == 2",
        test_b=own + servers,
        test_c=own.replace("module", "session"),
    )
    result = run(pytester)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*must override shardkit_servers as well*"])


def test_each_worker_of_xdist_has_its_own_servers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("n", range(6))
        def test_alone(shardkit_kit, n, worker_id):
            assert shardkit_kit.client("unique").keys() == []
            shardkit_kit.client("unique").set(f"{worker_id}:{n}", 1)
    """)
    result = pytester.runpytest_subprocess(QUIET[0], QUIET[2], *NO_LOOPS, "-n2")
    result.assert_outcomes(passed=6)


def test_without_fakeredis_only_what_is_in_memory_fails(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\nsys.modules['fakeredis'] = None")
    pytester.makepyfile("""
        def test_nothing(): pass
        def test_real(shardkit_kit): shardkit_kit.client("unique").ping()
        def test_memory(memory_kit): pass
    """)
    result = pytester.runpytest_subprocess(*QUIET, *NO_LOOPS)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*servers in memory need fakeredis*pip install 'shardkit?testing?'"]
    )


def test_the_plugin_itself_imports_nothing_but_pytest() -> None:
    code = """
import sys, types
import pytest
package = types.ModuleType("shardkit")  # what the package itself imports is another matter
package.__path__ = sys.argv[1:]
sys.modules["shardkit"] = package
before = set(sys.modules)
import shardkit.testing.plugin
print(*sorted(set(sys.modules) - before))
"""
    where = str(Path(shardkit.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, where], capture_output=True, text=True, check=True, timeout=60
    )
    own = ["shardkit.lazy_names", "shardkit.testing", "shardkit.testing.plugin"]
    assert done.stdout.split() == own


def test_the_examples_of_the_documentation_work(pytester: pytest.Pytester) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tests = 0
    for n, block in enumerate(blocks):
        named = re.match(r"# (\S+\.py)\n", block)
        if named:
            continue
        pytester.path.joinpath(f"test_{n}.py").write_text(block)
        tests += len(re.findall(r"^(?:async )?def test_", block, re.MULTILINE))
    assert tests == 6
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    run(pytester, loops="asyncio").assert_outcomes(passed=tests)


@pytest.mark.parametrize("name", ["conftest.py", "other/conftest.py", "default/conftest.py"])
def test_the_fixtures_of_the_documentation_work(pytester: pytest.Pytester, name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    [block] = re.findall(rf"^```python\n(# {name}\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    component = {"c": "carts", "o": "orders", "d": "unique"}[name[0]]
    pytester.makeconftest(block)
    passed(
        pytester,
        f"""
        import shardkit

        @shardkit.redis_connection({component!r})
        def entry(conn):
            return conn.ping()

        def test_kits(memory_kit, shardkit_kit):
            assert {component!r} in memory_kit.components()
            assert memory_kit.components() == shardkit_kit.components()
            if {name == "default/conftest.py"}:
                assert entry()
        """,
        count=1,
    )


def test_the_fixture_of_the_documentation_for_entries_works(pytester: pytest.Pytester) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    [block] = re.findall(r"^```python\n(# entries/.*?)^```$", text, re.DOTALL | re.MULTILINE)
    pytester.makeconftest(block)
    passed(
        pytester,
        """
        import shardkit

        @shardkit.sharded_connection("unique", 16)
        def visit(conn, session):
            return conn.incr(session)

        def test_one():
            assert visit("550e8400") == 1

        def test_another(memory_servers):
            assert visit("550e8400") == 1
            assert [server.address for server in memory_servers.servers] == [
                "config-server:6379", "127.0.0.1:6379"
            ]
        """,
        count=2,
    )


def test_kits_of_the_run_check_keys_if_that_is_set(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDKIT_CHECK_KEYS", "0")  # so that it is as before afterwards
    monkeypatch.delenv("SHARDKIT_CHECK_KEYS")
    pytester.makeini("[pytest]\nshardkit_check_keys = true")
    source = """
        import pytest
        from shardkit.errors import RoutingError

        def test_keys(memory_kit):
            with pytest.raises(RoutingError, match="belongs to shard"):
                for n in range(20):
                    memory_kit.key_sharded("timelines")["a"].get(f"b{n}")
    """
    passed(pytester, source, count=1)


ADD = Script("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")

Ground = tuple[ShardMap, Connector]


@pytest.fixture(params=["servers", "memory"])
def ground(request: pytest.FixtureRequest, servers: LocalServers) -> Ground:
    """What to open a kit with: real servers, or the same in memory."""
    if request.param == "servers":
        return request.getfixturevalue("shard_map"), Connector()
    memory = MemoryServers(servers.shard_map)
    return memory.shard_map, memory


@pytest.fixture
def kit(ground: Ground) -> Iterator[ShardKit]:
    with shardkit.connect(ground[0], connector=ground[1]) as kit:
        yield kit


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, ground: Ground) -> Iterator[Face]:
    with faced(request.param, ground[0], connector=ground[1]) as opened:
        yield opened


def test_pipelines_split_and_merge(face: Face) -> None:
    router = face.kit.key_sharded("many", shards=16)
    pipe = router.pipeline()
    pipe.mset({f"k{n}": n for n in range(50)}).set("k0", 7)
    pipe.mget("k1", "nope", "k49").delete("k1", "k2", "nope").exists("k1", "k3", "k4").getdel("k0")
    pipe.hset("h", mapping={"a": 1}).hgetall("h").zadd("z", {"a": 1})
    pipe.zrange("z", 0, -1, withscores=True)
    assert face.run(pipe.execute()) == [
        *(True, True, [b"1", None, b"49"], 2, 2, b"7"),
        *(1, {b"a": b"1"}, 1, [(b"a", 1.0)]),
    ]
    assert len(set(face.list(router.scan_iter("k*")))) == 47
    with pytest.raises(CrossShardError, match="1, SINTER: the keys live on different shards"):
        face.run(pipe.sinter("a", "b", "c", "d", "e").execute())
    wrong, right = face.run(pipe.incr("h").incr("n").execute(raise_on_error=False))
    assert isinstance(wrong, CommandRefused)
    assert "WRONGTYPE" in str(wrong) or "wrong kind of value" in str(wrong)
    assert right == 1


PRODUCTION = ShardMap.parse("""
config_server: {url: "rediss://config.internal:6380/0?password=${CONFIG_PASSWORD}"}
defaults: {ssl: true, password: "${DATA_PASSWORD}"}
components:
  plain:
    entry: {host: a.internal, db: 1, replicas: [{host: b.internal}]}
    shards: {count: 4, over: [{host: a.internal, db: 2}, {host: "${HOST}.internal", db: 2}]}
  grouped: {entry: {url: "rediss://app:${APP_PASSWORD}@c.internal", cluster: true}}
  watched: {entry: {db: 2, sentinel: {service: main, sentinels: [[s1, 26379]]}}}
""")


def test_a_production_map_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA_PASSWORD", raising=False)
    monkeypatch.setenv("HOST", "b")
    servers = MemoryServers(PRODUCTION)
    assert [server.address for server in servers.servers] == [
        "a.internal:6379",
        "b.internal:6379",
        "c.internal:6379",
        "sentinel:main@s1:26379",
    ]
    with shardkit.connect(servers.shard_map, connector=servers) as kit:
        for name in kit.components():
            for shard in kit.component(name).all_shards():
                assert kit.client(name, shard.number).set(str(shard), 1)
    assert servers.server_of("plain", 3).address == "b.internal:6379"
    assert servers.server_of("plain", 3).client(db=3).get("plain:3") == b"1"
    assert servers.server_of("grouped").client().get("grouped") == b"1"
    servers.flush()
    assert [server.client(db=2).dbsize() for server in servers.servers] == [0] * 4


def write_by_hand(servers: MemoryServers) -> None:
    with servers.config_server.client() as config:
        config.set("config:redis:unique", '{"host": "a.internal", "db": 99}')
        config.mset({f"config:redis:unique:{n}": f'{{"db": {n + 1}}}' for n in range(16)})


def test_entries_are_read_from_a_config_server_in_memory() -> None:
    servers = MemoryServers()
    write_by_hand(servers)
    with shardkit.connect(servers.config_server.entry, connector=servers) as kit:
        shardkit.configure(kit)
        try:
            assert expected("day")
            assert visit("550e8400")
        finally:
            shardkit.configure(None)
    assert servers.server("a.internal:6379").client(db=99).get("day") == b"1000"
    held = [servers.server("127.0.0.1:6379").client(db=n).exists("550e8400") for n in range(17)]
    assert sum(held) == 1


@shardkit.redis_connection("unique")
def expected(conn: redis.Redis, day: str) -> object:
    return conn.set(day, 1000)


@shardkit.sharded_connection("unique", 16)
def visit(conn: redis.Redis, session: str) -> object:
    return conn.set(session, 1)


@pytest.mark.parametrize("call", ["client", "pipeline", "router", "each"])
@pytest.mark.parametrize("fault", ["lose_answer", "lose_command", "hang", "down"])
def test_errors_say_what_those_of_real_servers_say(kind: str, fault: str, call: str) -> None:
    servers = MemoryServers(ShardMap.parse("components: {e: {entry: {}}}"))
    [server] = servers.servers
    with faced(kind, servers.shard_map, connector=servers) as face:
        client = face.kit.client("e") if kind == "blocking" else face.run(face.kit.client("e"))

        def piped() -> Any:
            return client.pipeline(transaction=False).incr("n").execute()

        calls = {
            "client": lambda: client.incr("n"),
            "pipeline": piped,
            "router": lambda: face.kit.key_sharded("e").incr("n"),
            "each": lambda: face.kit.key_sharded("e").each("INCR", ["n"]),
        }
        face.run(client.ping())
        getattr(server, fault)()
        with pytest.raises((redis.ConnectionError, redis.TimeoutError, ShardErrors)) as caught:
            face.run(calls[call]())
    assert caught.value.maybe_executed is (fault != "down")  # type: ignore[union-attr]


def test_a_map_is_pushed_to_a_config_server_in_memory() -> None:
    servers = MemoryServers(PRODUCTION)
    with servers.config_server.client() as config:
        changes = push(config, servers.shard_map, connector=servers)
        assert {change.kind for change in changes} == {"added"}
        again = push(config, servers.shard_map, connector=servers)
        assert {change.kind for change in again} == {"unchanged"}
    assert servers.config_server.address == "config.internal:6380"
    with shardkit.connect(servers.config_server.entry, connector=servers) as kit:
        assert kit.key_sharded("plain")["a"].set("a", 1)


@pytest.mark.parametrize(
    "entry",
    [
        {"host": "a.internal", "port": 7001},
        {"host": "::1", "port": 7001},
        {"host": "fe80::1", "port": 7001},
        {"unix_socket_path": "/run/redis/a.sock"},
        {"sentinel": {"service": "main", "sentinels": [["s1", 26379], ["s2", 26380]]}},
    ],
)
def test_a_server_gives_the_entry_that_leads_to_it(entry: dict[str, Any]) -> None:
    servers = MemoryServers()
    server = servers.server(shardkit.Entry(entry))
    assert servers.server(server.entry) is server
