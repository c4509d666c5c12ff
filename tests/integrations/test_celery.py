"""Celery's workers over shards, a server and a cluster, and kombu's transport by itself.

``make celery`` runs the longest test with all its tasks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from arranged import paused
from faces import PATIENCE, eventually

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import fail_over, start_move, start_split
from shardkit.errors import ConfigError, InvalidArgumentError, ShardErrors, StructureError
from shardkit.local import LocalServer, LocalServers

pytest.importorskip("celery")

from celery import Celery, chain, chord, group
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu import Connection, Exchange, Queue, pools

import shardkit.integrations.celery

pytestmark = pytest.mark.timeout(120)

SERVERS = [{"host": "127.0.0.1", "port": port, "db": 1} for port in (7101, 7102)]
COMPONENTS = {
    "jobs": {"shards": {"count": 8, "over": SERVERS}},
    "single": {"entry": {"host": "127.0.0.1", "port": 7103}},
    "clustered": {"entry": {"host": "127.0.0.1", "port": 7104, "cluster": True}},
}
CONFIG = {"config_server": {"host": "127.0.0.1", "port": 7100}, "components": COMPONENTS}


class Site:
    """Servers, and workers on them that a test starts."""

    def __init__(self, url: str, done: LocalServer, logs: Path) -> None:
        self.url, self.done, self.logs = url, done.client(), logs
        self.config = redis.Redis.from_url(url)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._done = f"redis://{done.address}/0"

    def work(
        self, component: str, *options: str, lease: float = 2, prefetch: int = 4
    ) -> subprocess.Popen[bytes]:
        """Start a worker."""
        environment = {
            **os.environ,
            "CELERY_TEST_URL": f"shardkit://{component}",
            "CELERY_TEST_DONE": self._done,
            "CELERY_TEST_LEASE": str(lease * PATIENCE),
            "CELERY_TEST_PREFETCH": str(prefetch),
            "SHARDKIT_CONFIG": self.url,
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONWARNINGS": "ignore",
        }
        name = f"w{len(self.workers)}@{component}"
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-n", name]
        with (self.logs / f"{name}.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, *options], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker, which a machine that fails does not announce."""
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def runs(self) -> list[int]:
        """Return how often each task ended."""
        return [int(count) for count in self.done.hvals("done")]

    def all_ran(self, count: int, seconds: float = 40) -> bool:
        """Return whether all tasks ended in time."""
        return bool(eventually(lambda: self.done.hlen("done") == count, seconds))


@pytest.fixture(scope="module")
def _servers() -> Iterator[tuple[str, LocalServer]]:
    shard_map = ShardMap.decode(repr(CONFIG).encode(), "map")
    with LocalServers(shard_map, ports="free") as servers, LocalServer() as done:
        url = servers.shard_map.config_server.url()  # type: ignore[union-attr]
        push(redis.Redis.from_url(url), servers.shard_map)
        yield url, done


@pytest.fixture
def site(_servers: tuple[str, LocalServer], tmp_path: Path) -> Iterator[Site]:
    url, done = _servers
    made = Site(url, done, tmp_path)
    made.done.flushall()
    with shardkit.connect(url) as kit:
        for component in COMPONENTS:
            for shard in [*range(len(kit.component(component).shards))] or [None]:
                kit.client(component, shard).flushdb()
    shardkit.configure(url)
    yield made
    for worker in made.workers:
        worker.kill()
        worker.wait()
    made.config.close()
    made.done.close()
    shardkit.configure(None)


@pytest.fixture
def client(site: Site) -> Iterator[Callable[[str], Celery]]:
    """Make applications that send tasks to a component's workers."""
    with ExitStack() as ends:

        def make(component: str) -> Celery:
            url = f"shardkit://{component}"
            app = Celery("client", broker=url, backend=url, set_as_current=False)
            app.conf.task_ignore_result = False
            ends.callback(app.close)
            ends.callback(pools.reset)
            return app

        yield make


def send(app: Celery, number: int, seconds: float = 0, **options: Any) -> None:
    app.send_task("celery_app.work", (number, seconds), ignore_result=True, **options)


# ---- workers


@pytest.mark.parametrize(
    ("component", "pool"),
    [("jobs", "prefork"), ("single", "solo"), ("clustered", "threads"), ("jobs", "gevent")],
)
def test_workers_return_results_groups_and_chords_and_answer_pings(
    site: Site, client: Callable[[str], Celery], component: str, pool: str
) -> None:
    app = client(component)
    # Children are forked while threads of the worker run.
    site.work(component, "-P", pool, "-c", "2", "-E", "--max-tasks-per-child", "5")
    double, wait = app.signature("celery_app.double"), 40 * PATIENCE
    assert double.delay(4).get(timeout=wait) == 8
    header = [double.clone((number,)) for number in range(10)]
    assert group(header, app=app)().get(timeout=wait) == [*range(0, 20, 2)]
    total = app.signature("celery_app.total")
    assert chord(header, total, app=app)().get(timeout=wait) == 90
    failing = chord([double.clone((1,)), app.signature("celery_app.fail")], total, app=app)()
    with pytest.raises(Exception, match="on purpose"):
        failing.get(timeout=wait)
    fail = app.signature("celery_app.fail", immutable=True)
    never = chain(double.clone((1,)), fail, group([double, double], app=app), app=app).delay()
    with pytest.raises(Exception, match="on purpose"):
        never.get(timeout=wait)
    assert site.done.get("totals") == b"1"
    events: list[str] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"*": lambda event: events.append(event["type"])}
        )
        # It has a connection of its own.
        with closing(receiver.itercapture(limit=None, timeout=wait, wakeup=True)) as listening:
            next(listening)
            double.delay(5)
            while "task-succeeded" not in events:
                next(listening)
    [answer] = app.control.inspect(timeout=3 * PATIENCE, limit=1).ping().values()
    assert answer == {"ok": "pong"}
    [worker] = site.workers
    worker.terminate()
    assert worker.wait(20 * PATIENCE) == 0


def test_tasks_of_killed_workers_run_again_and_no_others(
    site: Site, client: Callable[[str], Celery]
) -> None:
    app, tasks, kills = client("jobs"), 200, 2
    site.work("jobs", "-P", "solo", "-c", "1")
    site.work("jobs", "-P", "solo", "-c", "1")
    for number in range(tasks):
        send(app, number, 0.01, queue="celery")
    for kill in range(kills):
        assert eventually(lambda kill=kill: site.done.hlen("done") >= 40 * (kill + 1))
        site.kill(site.workers[0])
        site.work("jobs", "-P", "solo", "-c", "1")
    assert site.all_ran(tasks)
    assert sum(site.runs()) - tasks <= kills * 4, "each held its prefetch count"


def test_a_task_that_waits_for_longer_than_its_lease_runs_once(
    site: Site, client: Callable[[str], Celery]
) -> None:
    app = client("single")
    workers = [site.work("single", "-P", "threads", "-c", "1", lease=1) for _ in range(2)]
    send(app, 0, countdown=4 * PATIENCE)
    send(app, 1, 3 * PATIENCE)
    assert site.all_ran(2)
    assert all(worker.poll() is None for worker in workers)
    assert sorted(site.done.lrange("started", 0, -1)) == [b"0", b"1"]


def test_messages_of_a_lower_priority_number_run_first(
    site: Site, client: Callable[[str], Celery]
) -> None:
    app = client("jobs")
    for number, priority in enumerate((9, 6, 4, 3, 0, 9, 0)):
        send(app, number, priority=priority)
    site.work("jobs", "-P", "solo", prefetch=1)
    assert site.all_ran(7)
    assert site.done.lrange("started", 0, -1) == [b"4", b"6", b"2", b"3", b"1", b"0", b"5"]


def test_no_task_is_lost_or_repeated_while_a_queue_moves(
    site: Site, client: Callable[[str], Celery]
) -> None:
    app, sent, stop = client("jobs"), [0], threading.Event()
    site.work("jobs", "-P", "solo")
    site.work("jobs", "-P", "threads", "-c", "2")

    def produce() -> None:
        while not stop.wait(0.005):
            send(app, sent[0])
            sent[0] += 1

    producer = threading.Thread(target=produce)
    with LocalServer() as target:
        producer.start()
        try:
            assert eventually(lambda: site.done.hlen("done") > 20)
            with shardkit.connect(site.url) as kit:
                component = kit.component("jobs")
                entry = component.shards[component.place("kombu:{celery}")]
            address, before = entry.url().split("//")[1].split("/")[0], sent[0]
            start_move(site.config, address, target.address)
            assert eventually(lambda: sent[0] > before + 20)
        finally:
            stop.set()
            producer.join()
        try:
            assert site.all_ran(sent[0])
            assert set(site.runs()) == {1}
        finally:
            for worker in list(site.workers):
                site.kill(worker)
            start_move(site.config, target.address, address)


# ---- kombu


@pytest.fixture
def connection(site: Site) -> Iterator[Connection]:
    with Connection("shardkit://jobs", transport_options={"lease": 30}) as connection:
        yield connection


def test_a_message_that_nobody_saw_is_the_first_again_and_a_rejected_one_the_last_and_marked(
    connection: Connection,
) -> None:
    with connection.SimpleQueue("mail") as queue:
        queue.consumer.qos(prefetch_count=1)
        queue.put({"n": 1})
        queue.put({"n": 2})
        first = queue.get(timeout=5 * PATIENCE)
        assert (first.payload, first.delivery_info.get("redelivered")) == ({"n": 1}, None)
        first.requeue()
    with connection.SimpleQueue("mail") as queue:  # closing requeued what was fetched ahead
        for content, mark in (({"n": 2}, None), ({"n": 1}, True)):
            found = queue.get(timeout=5 * PATIENCE)
            assert (found.payload, found.delivery_info.get("redelivered")) == (content, mark)
            found.ack()
        assert queue.qsize() == 0
        with pytest.raises(queue.Empty, match=r"^$"):
            queue.get(timeout=0.1)


def test_a_channel_holds_no_more_than_its_prefetch_count(connection: Connection) -> None:
    channel, messages = connection.channel(), []
    queue = Queue("mail", Exchange("mail", "direct"), "mail", channel=channel)
    with connection.Producer() as producer, connection.Consumer([queue], channel) as consumer:
        consumer.qos(prefetch_count=2)
        consumer.register_callback(lambda _body, message: messages.append(message))
        for number in range(5):
            producer.publish(number, exchange=queue.exchange, routing_key="mail", declare=[queue])
        for _ in range(2):
            connection.drain_events(timeout=5 * PATIENCE)
        for timeout in (0.7, 0, -1):
            with pytest.raises(TimeoutError, match=r"^(timed out)?$"):
                connection.drain_events(timeout=timeout)
        for message in messages:
            message.ack()
        for _ in range(2):
            connection.drain_events(timeout=5 * PATIENCE)
    assert [message.payload for message in messages] == [0, 1, 2, 3]


def test_queues_share_the_room_of_a_channel_without_taking_more(site: Site) -> None:
    with Connection("shardkit://single") as connection, connection.Producer() as producer:
        names, messages = [f"q{n}" for n in range(4)], 80
        queues = [Queue(name) for name in names]
        for number in range(messages):
            producer.publish(number, routing_key=names[number % 4], declare=queues)
        left = list(range(messages))

        def handle(number: Any, message: Any) -> None:
            left.remove(number)
            message.ack()

        consumer = connection.Consumer(queues, connection.channel(), callbacks=[handle])
        consumer.qos(prefetch_count=1)
        server: Any = shardkit.default_kit().client("single")
        server.config_resetstat()
        with consumer:
            while left:
                connection.drain_events(timeout=5 * PATIENCE)
            scripts = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert scripts < 4 * messages  # one takes a message, another one acknowledges it


def test_a_server_that_does_not_answer_delays_no_messages_of_others(tmp_path: Path) -> None:
    described = "components: {jobs: {shards: [{port: 7101}, {port: 7102}]}}"
    with LocalServers(ShardMap.parse(described), ports="free") as servers, ExitStack() as stack:
        ports = [servers.server_of("jobs", n).port for n in (0, 1)]
        path = tmp_path / "map.yaml"
        # So what waits for a server until it times out waits for longer than the test.
        entries = [{"port": port, "socket_timeout": 100} for port in ports]
        path.write_text(repr({"components": {"jobs": {"shards": entries}}}))
        with shardkit.connect(path) as kit:
            place = kit.key_sharded("jobs").shard_of
            names = {place(f"kombu:{{q{n}}}"): f"q{n}" for n in range(20)}
        stack.callback(shardkit.configure, None)
        shardkit.configure(path)
        connection = stack.enter_context(Connection("shardkit://jobs"))
        silent, alive = (connection.SimpleQueue(names[shard]) for shard in (1, 0))
        for n in range(3):
            silent.put({"n": n})
        messages = [silent.get(timeout=5 * PATIENCE) for _ in range(3)]
        alive.put({"n": 9})
        message = alive.get(timeout=5 * PATIENCE)
        began = time.monotonic()
        with paused(servers.server_of("jobs", 1)):
            for each in (*messages, message):
                each.ack()
            assert alive.qsize() == 0
        assert time.monotonic() - began < 30  # once two seconds
        assert eventually(lambda: not silent.channel.qos.held)
        assert silent.qsize() == 0
        alive.close()
        silent.close()


@pytest.mark.long(1)
@pytest.mark.parametrize("hung", [0, 1])
def test_a_worker_starts_while_a_server_of_some_of_its_queues_does_not_answer(
    tmp_path: Path, hung: int
) -> None:
    described = "components: {jobs: {shards: [{port: 7101}, {port: 7102}]}}"
    with ExitStack() as stack:
        servers = stack.enter_context(LocalServers(ShardMap.parse(described), ports="free"))
        done = stack.enter_context(LocalServer())
        own = Site(f"redis://{done.address}/5", done, tmp_path)
        stack.callback(own.config.close)
        stack.callback(own.done.close)
        push(own.config, servers.shard_map)
        stack.callback(shardkit.configure, None)
        shardkit.configure(own.url)
        kit = shardkit.default_kit()
        place = kit.key_sharded("jobs").shard_of
        # The queues' own keys, and those of their exchanges.
        keys = [(f"kombu:{{q{n}}}", f"kombu:bindings:q{n}") for n in range(40)]
        silent, alive = (
            next(f"q{n}" for n, both in enumerate(keys) if {*map(place, both)} == {shard})
            for shard in (hung, 1 - hung)
        )
        app = Celery("client", broker="shardkit://jobs", set_as_current=False)
        stack.callback(pools.reset)
        stack.callback(app.close)
        send(app, 1, queue=alive)
        servers.server_of("jobs", hung).pause()
        stack.callback(lambda: [own.kill(each) for each in list(own.workers)])
        try:
            own.work("jobs", "-c", "1", "-Q", f"{silent},{alive}")
            assert own.all_ran(1)
            with Connection("shardkit://jobs") as one:
                channel = one.channel()
                Queue("new", Exchange(silent, "direct"), "new", channel=channel).declare()
                with pytest.raises(ShardErrors, match="jobs"):  # a program that only declares
                    channel.close()
        finally:
            servers.server_of("jobs", hung).resume()
        assert eventually(lambda: all(each.reachable for each in kit.health(1).shards))
        send(app, 2, queue=silent)
        assert own.all_ran(2)


def test_topic_and_fanout_exchanges_reach_queues_that_others_bound(site: Site) -> None:
    with Connection("shardkit://jobs") as one, Connection("shardkit://jobs") as other:
        topic, fanout = Exchange("news", "topic"), Exchange("all", "fanout")
        with one.channel() as reading, other.Producer() as producer:
            for name, exchange, key in (
                *(("sport", topic, "sport.*"), ("every", topic, "#")),
                *(("a", fanout, ""), ("b", fanout, "")),
            ):
                Queue(name, exchange, key, channel=reading).declare()
            producer.publish("goal", exchange=topic, routing_key="sport.ball", declare=[topic])
            producer.publish("rain", exchange=topic, routing_key="weather")
            producer.publish("hello", exchange=fanout, declare=[fanout])

            def read(queue: str) -> list[Any]:
                got = iter(lambda: reading.basic_get(queue, no_ack=True), None)
                return [message.payload for message in got]

            assert (read("sport"), read("every")) == (["goal"], ["goal", "rain"])
            assert (read("a"), read("b")) == (["hello"], ["hello"])
            Queue("late", fanout, channel=producer.channel).declare()
            producer.publish("anew", exchange=fanout)
            assert (read("a"), read("late")) == (["anew"], ["anew"])
            producer.publish("again", routing_key="a")
            assert reading.queue_purge("a") == 1
            assert reading.basic_get("a") is None


def test_what_is_no_message_becomes_a_dead_letter(connection: Connection) -> None:
    options = {"lease": 30, "attempts": 1}
    kit = shardkit.default_kit()
    kit.queues("kombu", component="jobs").enqueue("mail", "send", [1])
    with Connection("shardkit://jobs", transport_options=options) as strict:
        with strict.SimpleQueue("mail") as queue, pytest.raises(queue.Empty, match=r"^$"):
            queue.get(timeout=PATIENCE)
        [dead] = kit.queues("kombu", component="jobs").dead("mail")
    assert dead.reason == "not a message of kombu"


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"properties": {}}'),
        '{"properties": {"body_encoding": "base64", "delivery_info": {}}, "body": "a"}',
        '{"properties": {"body_encoding": "rot13", "delivery_info": {}}, "body": "a"}',
        '{"properties": {"n": {"__type__": "decimal", "__value__": "x"}}}',
        pytest.param(100_000 * "[", id="nested"),
    ],
)
def test_a_damaged_message_ends_no_consumer(site: Site, content: str) -> None:
    kit = shardkit.default_kit()
    options = {"lease": 30, "attempts": 1}
    with Connection("shardkit://jobs", transport_options=options) as connection:
        channel = connection.channel()
        tasks = kit.queues("kombu", component="jobs")
        tasks.enqueue("odd", "kombu", [content])
        taken = channel.basic_get("odd")
        if taken is None:
            assert not channel.qos.held
            [dead] = tasks.dead("odd")
            assert dead.reason == "not a message of kombu"
        with connection.SimpleQueue("odd") as queue:
            tasks.enqueue("odd", "kombu", [content])
            queue.put({"n": 1})
            while (message := queue.get(timeout=5 * PATIENCE)).body is None:
                message.ack()  # it has no body, but can be read
            assert message.payload == {"n": 1}
            message.ack()


@pytest.mark.parametrize("method", ["gzip", "bzip2", "lzma", "zstd", "brotli"])
def test_a_message_that_would_become_too_large_is_not_decompressed(site: Site, method: str) -> None:
    options: dict[str, Any] = {"lease": 30, "attempts": 1}
    kit = shardkit.default_kit()
    bomb, tasks = {"text": " " * 2_000_000}, kit.queues("kombu", component="jobs")
    with Connection("shardkit://jobs", transport_options=options) as connection:
        with connection.SimpleQueue("bombs") as queue:
            queue.put(bomb, compression=method)  # which is sent as it is, so that it can be read
            message = queue.get(timeout=5 * PATIENCE)
            assert message.payload == bomb
            assert "compression" not in message.headers
            message.ack()
            queue.put({"n": 1}, compression=method)
            message = queue.get(timeout=5 * PATIENCE)
            assert message.payload == {"n": 1}
            assert "compression" in message.headers
            message.ack()
        wide = {**options, "growth": 10**6}
        with (
            Connection("shardkit://jobs", transport_options=wide) as other,
            other.SimpleQueue("bombs") as queue,
        ):
            queue.put(bomb, compression=method)
            message = queue.get(timeout=5 * PATIENCE)
            assert message.payload == bomb
            assert "compression" in message.headers
            message.ack()
            queue.put(bomb, compression=method)
        assert connection.channel().basic_get("bombs") is None
        [dead] = tasks.dead("bombs")
        assert dead.reason == "not a message of kombu"


@pytest.mark.parametrize("method", ["gzip", "bzip2", "lzma", "zstd", "brotli"])
def test_a_result_that_would_become_too_large_is_not_decompressed(site: Site, method: str) -> None:
    url, bomb = "shardkit://jobs", " " * 2_000_000

    def results(**options: Any) -> Any:
        app = Celery("results", backend=url, set_as_current=False)
        app.conf.update(result_compression=method, result_backend_transport_options=options)
        return app.backend

    few, many = results(), results(growth=10**6)
    few.store_result("t", bomb, "SUCCESS")  # as it is, so that it can be read
    assert few.get_result("t") == bomb
    few.store_result("small", "text" * 1000, "SUCCESS")
    assert few.get_result("small") == "text" * 1000
    many.store_result("u", bomb, "SUCCESS")
    assert many.get_result("u") == bomb
    with pytest.raises(StructureError, match=r"more than 64 times .*larger growth"):
        few.get_result("u")
    for wrong in (0, "x"):
        with pytest.raises(InvalidArgumentError, match=r"growth="):
            results(growth=wrong)


# ---- the URL, and results


@pytest.mark.parametrize(
    "url", ["shardkit://", "shardkit://jobs/1", "shardkit://a@jobs", "shardkit://jobs?config="]
)
def test_a_url_without_a_component_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="names no component"):
        Connection(url).connect()
    with pytest.raises(InvalidArgumentError, match="names no component"):
        assert Celery("client", backend=url, set_as_current=False).backend


@pytest.mark.parametrize("option", ["lease", "attempts", "priority_steps", "name"])
def test_a_bad_transport_option_is_refused_by_name(site: Site, option: str) -> None:
    bad = {"lease": 0, "attempts": 0, "priority_steps": [3, 17], "name": "{a}"}[option]
    with pytest.raises(InvalidArgumentError, match=option):
        Connection("shardkit://jobs", transport_options={option: bad}).connect()


def test_an_unknown_component_is_refused_by_name_at_the_start(site: Site) -> None:
    with pytest.raises(ConfigError, match="jobz"):
        Connection("shardkit://jobz").connect()
    worker = site.work("jobz", "-P", "solo")
    assert worker.wait(60 * PATIENCE) != 0
    [log] = site.logs.glob("*.log")
    assert "config:redis:jobz" in log.read_text()
    site.workers.clear()


def test_urls_are_shown_without_the_address_of_the_config_server() -> None:
    url = "shardkit://jobs?config=redis://:secret@10.0.0.1:6379/0"
    app = Celery("client", broker=url, backend=url, set_as_current=False)
    shown = (app.connection().as_uri(), app.backend.as_uri())
    assert shown == ("shardkit://jobs", "shardkit://jobs")
    app.close()


def test_a_part_of_a_chord_that_returns_twice_counts_once(
    client: Callable[[str], Celery],
) -> None:
    app, sent = client("jobs"), []
    app.send_task = lambda name, args=(), *_, **__: sent.append((name, args))
    backend, body = app.backend, app.signature("total")
    backend.set_chord_size("g", 2)

    def finish(number: int, times: int) -> None:
        for _ in range(times):
            request = SimpleNamespace(group="g", id=f"t{number}", group_index=number, chord=body)
            backend.on_chord_part_return(request, "SUCCESS", number)

    finish(1, 3)
    assert not sent
    finish(0, 2)
    finish(1, 1)
    assert sent == [("total", ([0, 1],))]


def test_waiting_at_a_server_that_does_not_answer_times_out(tmp_path: Path) -> None:
    with LocalServer() as server, ExitStack() as ends:
        path = tmp_path / "map.yaml"
        entry = {"port": server.port, "socket_timeout": 100}
        path.write_text(repr({"components": {"one": {"entry": entry}}}))
        shardkit.configure(path)
        ends.callback(shardkit.configure, None)
        app = Celery("client", backend="shardkit://one", set_as_current=False)
        ends.callback(app.close)
        app.backend.store_result("done", 4, "SUCCESS")
        assert app.AsyncResult("done").get(timeout=0) == 4
        results = [app.AsyncResult("a"), app.GroupResult("g", [app.AsyncResult("b")])]
        with paused(server):
            for result in results:
                with pytest.raises(CeleryTimeoutError, match=r"^The operation timed out\.$"):
                    result.get(timeout=0.2)
        server.kill()
        with pytest.raises(ShardErrors, match=r"^1 shard failed"):
            app.AsyncResult("c").get(timeout=5)


def test_results_expire_and_are_forgotten(client: Callable[[str], Celery]) -> None:
    app = client("clustered")
    app.conf.result_expires = 50
    backend = app.backend
    for name in ("a", "b"):
        backend.store_result(name, 7, "SUCCESS")
    assert dict(backend.get_many(["a", "b"]))["b"]["result"] == 7
    ttl = shardkit.default_kit().client("clustered").ttl(backend.get_key_for_task("a"))
    assert 0 < ttl <= 50
    app.AsyncResult("a").forget()
    assert app.AsyncResult("a").state == "PENDING"
    stored = []
    for state in ("RETRY", "RETRY", "FAILURE", "RETRY"):  # the next run was faster
        backend.store_result("c", ValueError(), state)
        stored.append(app.AsyncResult("c").state)
    assert stored == ["RETRY", "RETRY", "FAILURE", "FAILURE"]


# ---- `make celery`


@pytest.mark.skipif("CELERY_TASKS" not in os.environ, reason="takes minutes: make celery")
@pytest.mark.timeout(0)
def test_tasks_survive_kills_a_move_a_failover_and_a_split(
    tmp_path: Path, client: Callable[[str], Celery], site: Site
) -> None:
    tasks, kills, prefetch = int(os.environ["CELERY_TASKS"]), 5, 4
    queues = [f"q{n}" for n in range(4)]
    with ExitStack() as stack:
        first, second, target, config = (
            stack.enter_context(LocalServer(databases=64)) for _ in range(4)
        )
        replica = stack.enter_context(LocalServer(databases=64, replica_of=first))
        done = stack.enter_context(LocalServer())
        at = {"host": "127.0.0.1", "replicas": [{"host": "127.0.0.1", "port": replica.port}]}
        shards = [
            {**at, "port": first.port, "db": 1},
            {"host": "127.0.0.1", "port": second.port, "db": 1},
        ]
        url = f"redis://{config.address}/0"
        long = Site(url, done, tmp_path)
        stack.callback(lambda: [worker.kill() or worker.wait() for worker in long.workers])
        components = {"components": {"jobs": {"shards": shards}}}
        push(long.config, ShardMap.decode(repr(components).encode(), "map"))
        shardkit.configure(url)
        app = client("jobs")

        def start() -> None:
            options = ("-P", "solo", "-c", "1", "-Q", ",".join(queues))
            long.work("jobs", *options, lease=5, prefetch=prefetch)

        for _ in range(3):
            start()

        def change() -> None:
            start_move(long.config, second.address, target.address)
            fail_over(long.config, first.address)
            start_split(long.config, "jobs", shards=4, over=[target.address], hold=30)

        deaths = {tasks * (n + 1) // (kills + 1) for n in range(kills)}
        changing = stack.enter_context(ThreadPoolExecutor(1))
        for number in range(tasks):
            send(app, number, queue=queues[number % 4])
            if number == tasks // 10:
                changed = changing.submit(change)
            if number in deaths:
                long.kill(long.workers[0])
                start()
            time.sleep(0.003)
        changed.result()
        assert long.all_ran(tasks, 600)
        repeats = sum(long.runs()) - tasks
        print(f"{tasks} tasks, {kills} kills, a move, a failover, a split: {repeats} ran again")
        assert repeats <= kills * prefetch
        long.config.close()
        long.done.close()
