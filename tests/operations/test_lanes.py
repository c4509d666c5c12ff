"""What is done in the background for several servers goes on where they answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import PATIENCE, Face, clocked, faced
from slow_way import Slow

import shardkit
from shardkit.admin import push
from shardkit.dashboard import FleetWatch
from shardkit.errors import ShardErrors
from shardkit.local import LocalServer
from shardkit.queues import AsyncWorker, NewTask, Worker


class Servers:
    """Three servers; the second one behind a relay."""

    def __init__(self, stack: ExitStack) -> None:
        a, self._second, c = (stack.enter_context(LocalServer()) for _ in range(3))
        self._relay = Slow(self._second.port)
        stack.callback(self._relay.close)
        # So what waits for the second one until it times out waits for longer than the test.
        ports = [a.port, self._relay.port, c.port]
        entries = [{"port": port, "socket_timeout": 120.0} for port in ports]
        self.direct = [stack.enter_context(each.client()) for each in (a, self._second, c)]
        self.first = stack.enter_context(a.client(db=1))
        self.entries = entries
        named = {name: {"entry": each} for name, each in zip("abc", entries, strict=True)}
        self.map = map_of(**named, both={"shards": [{**each, "db": 1} for each in entries[:2]]})

    @contextmanager
    def trouble(self, kind: str) -> Iterator[None]:
        """Have the second one stopped, silent or slow."""
        if kind == "stopped":
            self._second.pause()
        if kind == "silent":
            self._relay.stop("down")
        self._relay.delay = 4.0 if kind == "slow" else 0.0
        try:
            yield
        finally:
            self._relay.delay = 0.0
            self._relay.go_on("down")
            self._second.resume()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Face]:
    with faced(request.param, servers.map) as opened:
        yield opened


def on_each(face: Face, key_of: Callable[[str], str]) -> list[str]:
    """A name on each of the two servers of ``both``."""
    router = face.kit.key_sharded("both")
    names = [f"n{n}" for n in range(100)]
    return [next(n for n in names if router.shard_of(key_of(n)) == m) for m in (0, 1)]


def growth(value: Callable[[], float]) -> Callable[[], bool]:
    """Return what tells whether a value has grown since the last time; it falls in between."""
    latest = value()

    def has_grown() -> bool:
        nonlocal latest
        before, latest = latest, value()
        return latest > before

    return has_grown


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", ["stopped", "silent", "slow"])
def test_a_server_that_does_not_answer_delays_no_work_on_the_others(
    face: Face, servers: Servers, kind: str
) -> None:
    kit = face.kit
    face.run(kit.key_sharded("both").mget(["x"]))
    queues = on_each(face, lambda name: f"queues:{{{name}}}")
    tasks, done, ended = kit.queues(component="both"), [], threading.Event()
    worker: Any = (Worker if face.runner is None else AsyncWorker)(
        tasks, queues[::-1], concurrency=3, lease=3
    )
    worker.register("note", done.append)
    worker.register("run", lambda: (done.append("run"), ended.wait()))
    [task, _] = [face.run(tasks.enqueue(queue, "run")) for queue in queues]
    working = face.start(lambda: worker.run(signals=False))
    try:
        assert face.eventually(lambda: len(done) == 2)
        lock = kit.lock("x", component="a", ttl=6)
        assert face.run(kit.lock("x", component="b", ttl=1.5).acquire())
        held = face.run(lock.acquire())
        majority = face.run(kit.quorum_lock("y", components=list("abc"), ttl=6).acquire())
        counters = kit.counters(component="both", precisions=[60])
        for n in range(64):
            counters.hit(f"c{n}")
        leases = f"queues:{{{queues[0]}}}:taken"
        with servers.trouble(kind):
            for number in range(2):
                face.run(tasks.enqueue(queues[0], "note", [number]))
                assert face.eventually(lambda n=number: n in done)
                for is_renewed in (
                    growth(lambda: held.remaining),
                    growth(lambda: majority.remaining),
                    growth(lambda: servers.first.zscore(leases, task) or 0.0),
                ):
                    assert face.eventually(is_renewed)
            other = kit.quorum_lock("z", components=list("abc"), ttl=1.5 * PATIENCE)
            assert face.run(other.acquire(blocking_timeout=20 * PATIENCE))
            stored = "counters:*:of:c*"
            assert face.eventually(lambda: any(True for _ in servers.first.scan_iter(stored)))
        assert face.run(lock.release(held))
    finally:
        ended.set()
        if face.runner is None:
            worker.stop()
        else:
            face.runner.get_loop().call_soon(worker.stop)
        working()


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", ["stopped", "silent", "slow"])
def test_a_server_that_does_not_answer_hides_none_of_the_others(
    face: Face, servers: Servers, kind: str
) -> None:
    """It is the config server, too, which gets heat and sends changes of entries."""
    first, second, third = servers.direct
    for replica in (second, third):
        replica.execute_command("REPLICAOF", "127.0.0.1", servers.entries[0]["port"])
    a, b, c = servers.entries
    replicated = {**a, "replicas": [b, c], "read_from": "replica", "max_lag": 1}
    known = map_of(a={"entry": replicated}, b={"entry": b}, c={"entry": c})

    with ExitStack() as stack:
        push(stack.enter_context(redis.Redis(port=a["port"], db=2)), known)
        first.set("x", "1")
        assert face.eventually(lambda: third.get("x") == second.get("x") == b"1")
        url = f"redis://127.0.0.1:{b['port']}/2?socket_timeout=120"
        kind_of_face = "awaiting" if face.runner else "blocking"
        opened = stack.enter_context(faced(kind_of_face, url, heat=1.0))
        watching = stack.enter_context(shardkit.connect(known))
        fleet = stack.enter_context(closing(FleetWatch(watching, interval=0.1)))

        async def aread(conn: Any) -> Any:
            return await conn.get("x")

        def read(conn: Any) -> Any:
            return conn.get("x")

        call = opened.kit.redis_connection("a")(aread if opened.runner else read)
        others = [f"localhost:{port}" for port in (a["port"], c["port"])]
        assert opened.eventually(lambda: {*others} < {*fleet.servers})
        opened.run(call())
        with servers.trouble(kind):
            began = time.monotonic()
            health = face.run(face.kit.health(0.5 * PATIENCE))
            reached = {each.shard: each.reachable for each in health.shards}
            assert reached == {"a": True, "b": False, "c": True, "both:0": True, "both:1": False}
            for _ in range(2):
                for server in (fleet.servers[other] for other in others):
                    assert opened.eventually(growth(lambda of=server: len(of.samples)))
            # Until its lag is too old, a replica that does not answer is still read from.
            assert opened.eventually(lambda: time.monotonic() > began + 1.2)
            is_read = growth(lambda: third.info("commandstats")["cmdstat_get"]["calls"])
            while not is_read():  # a busy one's lag may be too large for a while
                assert opened.run(call()) == b"1"  # with the entries that are known


def waking(face: Face, servers: Servers, name: str) -> Any:
    """A message wakes a reader, while another one waits for the server that does not answer."""
    boxes = face.kit.mailboxes(component="both")
    alive, silent = on_each(face, lambda each: f"mailbox:{{{each}}}")
    face.start(lambda: boxes.fetch(silent, timeout=None))
    reading = face.start(lambda: boxes.fetch(alive, timeout=None))
    face.run(boxes.send(alive, "bo", name))
    return reading()


def recording(structure: str, record: str, *more: Any) -> Callable[..., Any]:
    def begin(face: Face, servers: Servers, name: str) -> Any:
        records = getattr(face.kit, structure)(name, component="both")
        for n in range(64):
            getattr(records, record)(f"n{n}", *more)
        return face.eventually(lambda: any(True for _ in servers.first.scan_iter(f"{name}:*")))

    return begin


def copying(face: Face, servers: Servers, name: str) -> Any:
    """Values of a server that answers have near copies."""
    alive, silent = on_each(face, lambda each: f"cached:{{{each}}}")

    async def acompute(key: str) -> str:
        return name

    cached = face.kit.cached("both", ttl=60, key="{key}", near=10**6, max_age=0.5)
    load = cached((lambda key: name) if face.runner is None else acompute)
    face.start(lambda: load(silent))
    for _ in range(1000):  # its connection is opened beside the calls
        face.run(load(alive))
        [near] = face.kit.near_copies.values()  # nothing else shows that there is a copy
        if load.key(alive) in near.copies:
            return True
        soon = time.monotonic() + 0.02
        face.eventually(lambda until=soon: time.monotonic() > until)
    return False


def working(face: Face, servers: Servers, name: str) -> Any:
    queues = on_each(face, lambda each: f"queues:{{{each}}}")
    tasks, done = face.kit.queues(component="both"), []
    kind: Any = Worker if face.runner is None else AsyncWorker
    worker = kind(tasks, queues[::-1], lease=3)
    worker.register("note", done.append)
    ended = face.start(lambda: worker.run(signals=False))
    face.run(tasks.enqueue(queues[0], "note", [name]))
    assert face.eventually(lambda: done)
    worker.stop() if face.runner is None else face.runner.get_loop().call_soon(worker.stop)
    return ended()


def reading(face: Face, servers: Servers, name: str) -> Any:
    """The first read from replicas, one of which does not answer."""
    a, b, c = servers.entries
    servers.direct[2].execute_command("REPLICAOF", "127.0.0.1", a["port"])
    assert face.eventually(lambda: servers.direct[2].info()["master_link_status"] == "up")
    known = map_of(a={"entry": {**a, "replicas": [b, c], "read_from": "replica"}})
    with faced("awaiting" if face.runner else "blocking", known) as opened:
        opened.run(opened.kit.hash("h", component="a").hlen())
    servers.direct[2].execute_command("REPLICAOF", "NO", "ONE")
    return True


# What begins while the second server does not answer, and needs it in part or not at all.
BEGUN: dict[str, Callable[[Face, Servers, str], Any]] = {
    "a lock": lambda face, _, name: face.run(face.kit.lock(name, component="a").acquire()),
    "an election": lambda face, _, name: face.run(
        face.kit.election(name, component="a").campaign(blocking_timeout=0)
    ),
    "a quorum": lambda face, _, name: face.run(
        face.kit.quorum_lock(name, components=list("abc"), ttl=2 * PATIENCE).acquire()
    ),
    "a mailbox": waking,
    "counters": recording("counters", "hit"),
    "logs": recording("logs", "record", "failure", "error"),
    "statistics": recording("statistics", "record", "latency", 0.5),
    "access times": recording("access_times", "record", 0.5),
    "the maintenance flag": lambda face, _, name: (
        face.run(face.kit.maintenance(name, component="b").check()) is False
    ),
    "near copies": copying,
    "a worker": working,
    "replicas": reading,
}


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", ["stopped", "silent", "slow"])
def test_what_begins_while_a_server_does_not_answer_begins_on_the_others(
    face: Face, servers: Servers, kind: str
) -> None:
    a, b, _ = servers.entries
    with ExitStack() as stack:
        push(stack.enter_context(redis.Redis(port=a["port"], db=2)), servers.map)
        stack.enter_context(servers.trouble(kind))
        began = time.monotonic()
        # Of two config servers the first one does not answer.
        url = f"redis://127.0.0.1:{b['port']},127.0.0.1:{a['port']}/2"
        opened = stack.enter_context(
            faced("awaiting" if face.runner else "blocking", url, heat=1.0)
        )
        took = {}
        for number, (what, begin) in enumerate(BEGUN.items()):
            assert begin(opened, servers, f"begun{number}"), what
            took[what] = time.monotonic() - began
        assert time.monotonic() - began < 60 * PATIENCE, took  # the socket_timeout is 120


def test_an_outcome_that_a_server_does_not_take_delays_no_tasks_of_others(
    face: Face, servers: Servers
) -> None:
    kit = face.kit
    queues = on_each(face, lambda name: f"queues:{{{name}}}")
    tasks, begun, done, ended = kit.queues(component="both"), [], [], threading.Event()
    worker: Any = (Worker if face.runner is None else AsyncWorker)(tasks, queues[::-1])
    worker.register("run", lambda: (begun.append(1), ended.wait()))
    worker.register("note", lambda: done.append(1))
    face.run(tasks.enqueue(queues[1], "run"))
    working = face.start(lambda: worker.run(signals=False))
    assert face.eventually(lambda: begun)
    with servers.trouble("stopped"):
        ended.set()
        face.run(tasks.enqueue(queues[0], "note"))
        assert face.eventually(lambda: done)
        if face.runner is None:
            worker.stop()
        else:
            face.runner.get_loop().call_soon(worker.stop)
        working()


def test_a_worker_that_is_told_twice_to_stop_requeues_what_it_can_and_ends(
    face: Face, servers: Servers
) -> None:
    kit = face.kit
    queues = on_each(face, lambda name: f"queues:{{{name}}}")
    tasks, begun, ended = kit.queues(component="both"), [], threading.Event()
    worker: Any = (Worker if face.runner is None else AsyncWorker)(
        tasks, queues[::-1], concurrency=4
    )
    worker.register("run", lambda: (begun.append(1), ended.wait()))
    for queue in queues:
        face.run(tasks.enqueue_many(queue, [NewTask("run")] * 2))
    working = face.start(lambda: worker.run(signals=False))
    assert face.eventually(lambda: len(begun) == 4)
    try:
        with servers.trouble("stopped"):
            worker._stopping.set()
            worker._aborting.set()  # as a second signal does, which only a process of its own gets
            if face.runner is None:
                working()
                assert worker.aborted
            assert face.eventually(lambda: servers.first.llen(f"queues:{{{queues[0]}}}") == 2)
    finally:
        ended.set()
        working()


def test_a_kit_that_is_closed_waits_two_seconds_for_its_last_records(
    face: Face, servers: Servers
) -> None:
    counters = face.kit.counters(component="both", precisions=[60])
    names = on_each(face, lambda name: f"counters:60:of:{name}")
    with servers.trouble("stopped"):
        for name in names:
            counters.hit(name)
        began = time.monotonic()
        face.run(face.kit.aclose()) if face.runner else face.kit.close()
        assert time.monotonic() - began < 30  # the socket_timeout is 120
    assert any(True for _ in servers.first.scan_iter("counters:*"))


@pytest.mark.long(2)
@pytest.mark.parametrize("kind", ["stopped", "silent", "slow"])
def test_counters_are_cleaned_where_servers_answer(face: Face, servers: Servers, kind: str) -> None:
    counters = clocked(face.kit, now=lambda: 1e9).counters(component="both", precisions=[60])
    face.run(counters.add_many({f"c{n}": 1 for n in range(64)}))
    later = face.kit.counters(component="both", precisions=[60])
    assert any(True for _ in servers.first.scan_iter("counters:*:of:c*"))
    with servers.trouble(kind), pytest.raises(ShardErrors, match="both:1"):
        face.run(later.clean())
    assert not any(True for _ in servers.first.scan_iter("counters:*:of:c*"))
