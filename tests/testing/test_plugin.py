"""The pytest plugin, in projects of its users."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import fakeredis
import pytest

import shardkit

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
