"""The files of examples/web/deploy, as far as they run without containers; the web examples."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import redis
import yaml
from arranged import emptied
from click.testing import CliRunner, Result
from faces import eventually, free_port
from redis.backoff import NoBackoff
from redis.retry import Retry

import shardkit
from examples.social.acting import Activity, working
from examples.social.command import demo, social_map
from examples.social.loading import BulkFollow, create_users
from examples.social.measuring import agree
from examples.social.people import People
from examples.web import fastapi_app, flask_app, rq_and_queues
from shardkit import ShardKit, ShardMap
from shardkit.cli.app import app as command_line
from shardkit.errors import ShardKitError
from shardkit.local import LocalServers

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "web" / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.load(ROOT / "configs" / "local.yaml"), ports="free") as running:
        yield running


@pytest.fixture(scope="module")
def url(servers: LocalServers, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The config server, to which the map was pushed."""
    path = tmp_path_factory.mktemp("map") / "map.yaml"
    path.write_text(servers.shard_map.to_yaml(), encoding="utf-8")
    subprocess.run([BIN / "shardkit", "config", "push", path], check=True, capture_output=True)
    assert servers.config_server is not None
    return f"redis://{servers.config_server.address}/0"


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / f"{name}.service")
    return parser["Service"]


def environment_of(url: str, ports: dict[str, int]) -> dict[str, str]:
    """The environment of the units: their file, with this machine's servers and free ports."""
    lines = (DEPLOY / "systemd" / "shop.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    given |= {"SHARDKIT_CONFIG": url, "BIND": f"127.0.0.1:{ports['BIND']}"}
    given |= {name: str(port) for name, port in ports.items() if name != "BIND"}
    return {**os.environ, **given}


def started(name: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start what a unit starts."""
    command = re.sub(r"\$\{(\w+)\}", lambda m: environment[m[1]], unit(name)["ExecStart"]).replace(
        "/srv/shop/.venv/bin", str(BIN)
    )
    return subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_up(port: int, path: str = "/health/live") -> bool:
    try:
        return get(port, path)[0] == 200
    except OSError:
        return False


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM), output
    return output


@pytest.mark.timeout(240)
def test_the_units_serve_the_applications_and_the_worker(url: str) -> None:
    ports = {name: free_port() for name in ("BIND", "FASTAPI_PORT", "WORKER_PORT")}
    environment = environment_of(url, ports)
    names = ("shop-flask", "shop-fastapi", "shop-worker")
    flask, fastapi, worker = running = [started(name, environment) for name in names]
    try:
        assert eventually(lambda: is_up(ports["WORKER_PORT"], "/live"), 60)
        for port in (ports["BIND"], ports["FASTAPI_PORT"]):
            assert eventually(lambda port=port: is_up(port), 60)
            status, body = get(port, "/health/ready")
            assert (status, yaml.safe_load(body)["ok"]) == (200, True)
        assert get(ports["BIND"], "/users/7?name=Ann", "PUT")[0] == 200
        assert get(ports["FASTAPI_PORT"], "/users/7") == (200, '{"name":"Ann"}')
        with shardkit.connect(url) as kit:
            letters = kit.key_sharded("timelines")
            assert eventually(lambda: letters.get("letters:7") == b"1", 60)
        assert [process.poll() for process in running] == [None] * 3
        assert "Shutting down: Master" in stopped(flask)
        assert "Finished server process" in stopped(fastapi)
        assert "write" in stopped(worker)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.mark.timeout(240)
def test_an_application_is_not_ready_while_its_servers_are_away(
    url: str, servers: LocalServers
) -> None:
    ports = {"BIND": free_port(), "FASTAPI_PORT": free_port()}
    process = started("shop-fastapi", environment_of(url, ports))
    try:
        assert eventually(lambda: is_up(ports["FASTAPI_PORT"]), 60)
        data = [server for server in servers.servers if server is not servers.config_server]
        for server in data:
            server.kill()
        assert get(ports["FASTAPI_PORT"], "/health/ready")[0] == 503
        assert get(ports["FASTAPI_PORT"], "/health/live")[0] == 200
        for server in data:
            server.restart()
        assert eventually(lambda: get(ports["FASTAPI_PORT"], "/health/ready")[0] == 200, 60)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of the containers, by the file that has it."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        if "build" in service and "command" in service:
            yield "compose.yaml", service["command"]
    for document in kubernetes():
        for container in containers(document):
            yield "kubernetes.yaml", container["command"]
    [line] = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", yaml.safe_load(line)


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    template = document.get("spec", {}).get("template", {})
    found: list[dict[str, Any]] = template.get("spec", {}).get("containers", [])
    return found


def test_containers_run_the_commands_of_the_units() -> None:
    in_units = [unit(path.stem)["ExecStart"] for path in UNITS]
    programs = {shlex.split(command)[0].rpartition("/")[2] for command in in_units}
    applications = re.findall(r"examples\.web\.\w+:\w+", " ".join(in_units))
    found = list(commands())
    assert len(found) == 7
    for file, command in found:
        assert command[0] in programs, file
        for word in command:
            if word.startswith("examples.web."):
                assert word in applications, file
        if command[:3] == ["shardkit", "config", "push"]:
            with command_line.make_context("shardkit", command[1:], resilient_parsing=True):
                pass


def test_compose_has_the_servers_of_its_map() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    shard_map = ShardMap.load(DEPLOY / "map.yaml")
    assert shard_map.config_server is not None
    entries = [entry for each in shard_map.components.values() for _, entry in each.entries()]
    hosts = {entry.fields["host"] for entry in [*entries, shard_map.config_server]}
    services = compose["services"]
    assert hosts == {name for name, service in services.items() if "image" in service}
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"]
        if "ports" in service:
            assert "/health/ready" in service["healthcheck"]["test"][-1]
    at = f"redis://{shard_map.config_server.address}"
    assert services["flask"]["environment"]["SHARDKIT_CONFIG"] == at
    build = services["flask"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()


def test_the_manifests_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = {(d["kind"], d["metadata"]["name"]): d for d in kubernetes()}
    secret = documents["Secret", "shop"]["stringData"]
    monkeypatch.setenv("SHARDKIT_CONFIG", secret["SHARDKIT_CONFIG"])
    shard_map = ShardMap.parse(documents["ConfigMap", "shop-map"]["data"]["map.yaml"])
    assert shard_map.config_server is not None
    assert shard_map.config_server.resolved("config server")["host"] == "config.internal"
    assert set(shard_map.components) == {"hits", "timelines"}  # of the applications
    for (kind, name), document in documents.items():
        for container in containers(document):
            assert container["envFrom"] == [{"secretRef": {"name": "shop"}}], (kind, name)
            ports = [port["containerPort"] for port in container.get("ports", ())]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    asked = container[probe]["httpGet"]
                    assert asked["port"] in ports
                    answered = "/live" if probe != "readinessProbe" else "/ready"
                    prefix = "" if container["name"] == "worker" else "/health"
                    assert asked["path"] == prefix + answered
            if "--timeout-graceful-shutdown" in container["command"]:
                at = container["command"].index("--timeout-graceful-shutdown")
                graceful = int(container["command"][at + 1])
                spec = document["spec"]["template"]["spec"]
                assert spec["terminationGracePeriodSeconds"] > graceful
        if kind == "Service":
            labels = documents["Deployment", name]["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"] == labels


with warnings.catch_warnings():  # it wants a newer httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    shard_map = ShardMap.load(ROOT / "configs" / "local.yaml")
    with LocalServers(shard_map, ports="free") as servers:
        path = tmp_path_factory.mktemp("web") / "map.yaml"
        path.write_text(servers.shard_map.to_yaml(), encoding="utf-8")
        yield str(path)


def kept(config: str, user: str) -> tuple[int, set[str]]:
    """How often a user was looked at, and the routes that were timed."""
    with shardkit.connect(config) as kit:
        times = kit.access_times(component="hits").slowest()
        hits = kit.counters(component="hits").total([user], 86_400)
        return hits, {context for context, _ in times}


@contextmanager
def fastapi_client(config: str) -> Iterator[Any]:
    with TestClient(fastapi_app.make_app(config)) as client:
        yield client


@contextmanager
def flask_client(config: str) -> Iterator[Any]:
    app = flask_app.make_app(config)
    client = app.test_client()
    with app.extensions["shardkit"]:
        yield SimpleNamespace(
            get=partial(client.get, buffered=True), put=partial(client.put, buffered=True)
        )


@pytest.mark.parametrize(
    ("opened", "user", "rule"),
    [(fastapi_client, 7, "/users/{number}"), (flask_client, 8, "/users/<int:number>")],
)
def test_an_application_keeps_names_counts_hits_and_times_its_routes(
    config: str, opened: Callable[[str], AbstractContextManager[Any]], user: int, rule: str
) -> None:
    with opened(config) as client:
        assert client.get(f"/users/{user}").status_code == 404
        assert client.put(f"/users/{user}?name=Ann").status_code == 200
        assert json.loads(client.get(f"/users/{user}").text) == {"name": "Ann"}
    hits, routes = kept(config, f"user:{user}")
    assert hits == 1
    assert routes >= {f"GET {rule}", f"PUT {rule}"}


def test_a_django_site_keeps_its_sessions_and_its_cache_on_shards(config: str) -> None:
    visits = (
        "from examples.web import django_site as site; site.settings.configure(**site.SETTINGS)\n"
        "import django; django.setup()\n"
        "from django.test import Client; client = Client()\n"
        "client.get('/log-in?name=Ann')\n"
        "print([client.get('/').content.decode() for _ in range(2)])\n"
    )
    environment = {**os.environ, "SHARDKIT_CONFIG": config, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", visits], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == ("['Ann, visit 1', 'Ann, visit 2']\n", "")


def test_a_job_of_rq_enqueues_tasks_that_a_worker_of_ours_does(config: str) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with shardkit.connect(config) as kit:
            assert sorted(rq_and_queues.work(kit, config, ["Ann", "Bob"])) == ["Ann", "Bob"]
    finally:
        for each, handler in before.items():  # rq's worker leaves its own
            signal.signal(each, handler)


PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
MARK = "== next step =="


class TutorialStep(NamedTuple):
    line: int
    commands: str
    shown: str | None  # what the page shows


STEPS = [
    TutorialStep(PAGE[: block.start()].count("\n") + 2, block[1], block[2])
    for block in _BLOCK.finditer(PAGE)
]
# What a person waits for after each command that stays.
READY = {
    "shardkit up": "grep 'Ctrl-C stops the servers' out",
    "uvicorn": "curl -sf localhost:8000/health/ready",
    "shardkit dashboard": "curl -sf http://127.0.0.1:7180/metrics | grep shardkit",
}


def script(ports: dict[str, str], wall: Path) -> str:
    """Return the page's commands as one script, on other ports, with a mark after each step."""
    lines = []
    for step in STEPS:
        for command in step.commands.splitlines():
            lines.append(command if not command.startswith("pip install") else "true")
            ready = [ready for start, ready in READY.items() if command.startswith(start)]
            if command.endswith("&") and ready:
                lines.append(f"for n in $(seq 300); do ({ready[0]}) >/dev/null 2>&1 && break;")
                lines.append("sleep 0.2; done")
        lines.append(f"echo '{MARK}'")
    text = "\n".join(lines).replace("127.0.0.1:8000 40 >", "127.0.0.1:8000 15 >")  # seconds
    for given, free in ports.items():
        text = text.replace(given, free)
    text = text.replace("examples/tutorial/wall.yaml", str(wall))
    return text.replace("examples/tutorial/test_wall.py", f"{ROOT}/examples/tutorial/test_wall.py")


def shows(expected: str, written: str) -> bool:
    """Whether a page shows what was written; … stands for any text, alone on a line for lines."""
    lines = [
        r"[\s\S]*"
        if line == "…"
        else " +".join(re.escape(word).replace("…", r"[^\n]*") for word in line.split())
        for line in expected.strip().splitlines()
    ]
    return re.fullmatch(r" *\n".join(lines), written.strip()) is not None


@pytest.mark.timeout(600)
def test_every_step_of_the_tutorial_runs(tmp_path: Path) -> None:
    ports = {given: str(free_port()) for given in ("7200", "7201", "7202", "8000", "7180")}
    wall = tmp_path / "wall.yaml"
    text = (ROOT / "examples" / "tutorial" / "wall.yaml").read_text()
    for given, free in ports.items():
        text = text.replace(given, free)
    wall.write_text(text)
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("SHARDKIT_CO")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with (
        (tmp_path / "out").open("w") as out,
        (tmp_path / "err").open("w") as err,
        # A group of its own, so that all that stays in the background ends with it.
        subprocess.Popen(
            ["bash", "-c", script(ports, wall)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(560)
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
    written = (tmp_path / "out").read_text().split(f"{MARK}\n")
    said = (tmp_path / "err").read_text()
    assert len(written) == len(STEPS) + 1, (written, said)
    for step, output in zip(STEPS, written, strict=False):
        if step.shown is not None:
            assert shows(step.shown, output), (step, output, said)


def test_the_tutorial_installs_extras_that_exist() -> None:
    [install] = [step for step in STEPS if step.commands.startswith("pip install")]
    extras = re.search(r"shardkit\[(.*?)\]", install.commands)
    assert extras is not None
    known = (ROOT / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert f"\n{extra} = [" in known


COMMAND = [sys.executable, "-m", "examples.social"]
PLACES = {"component": "users", "timelines": "timelines", "followers": "followers"}


@pytest.fixture(scope="module")
def demo_servers() -> Iterator[LocalServers]:
    with LocalServers(social_map(), ports="free") as running:
        yield running


@pytest.fixture
def kit(demo_servers: LocalServers) -> Iterator[ShardKit]:
    with emptied(demo_servers) as opened:
        yield opened


def ignore(*_: Any) -> None:
    pass


def run(*args: str) -> Result:
    return CliRunner().invoke(demo, args, standalone_mode=False)


# ---- the bulk load


def everything(demo_servers: LocalServers, kit: ShardKit) -> dict[str, Any]:
    """All keys of the network and what is in them; versions as their ranks, counts without them."""
    found: dict[str, Any] = {}
    for component in ("users", "timelines", "followers"):
        for shard in kit.component(component).all_shards():
            client: Any = kit.client(component, shard.number)
            for key in client.scan_iter(count=1000):
                name = key.decode()
                if client.type(key) == b"zset":
                    rows = client.zrange(key, 0, -1, withscores=True)
                    # What is to be fetched is in no order; all else is in that of the versions.
                    order = sorted if name.startswith("pull:") else list
                    found[name] = order(member for member, _ in rows)
                    assert len({score for _, score in rows}) == len(rows)
                elif client.type(key) == b"hash":
                    values = {
                        field.decode(): value.decode().split()[-1]
                        for field, value in client.hgetall(key).items()
                        if field not in (b"signup", b":version")
                    }
                    # A count of 0 may be absent as well.
                    found[name] = {field: value for field, value in values.items() if value != "0"}
                else:
                    found[name] = client.get(key)
    return found


def test_the_bulk_load_leaves_the_same_keys_as_following_one_by_one(
    demo_servers: LocalServers, kit: ShardKit
) -> None:
    people = list(People(24, 6, 1000, 3).following())
    limit = 8
    seen = []
    for bulk in (True, False):
        network = kit.social(**PLACES, fan_out_limit=limit)
        uids = create_users(kit, network, 24, ignore)
        if bulk:
            load = BulkFollow(network, uids, limit)
            kit.driver.run(load.run(people, ignore))
            assert load.follows == sum(map(len, people))
            assert max(load.followers) > limit
        else:
            for n, others in enumerate(people):
                for other in others:
                    assert network.follow(uids[n], uids[other])
        # Versions go on where they ended: a later change has a later one.
        clocks = [kit.client("followers", n).get(f"clock:{{social:{n}}}") for n in range(16)]
        for n in range(16):
            for key in kit.client("followers", n).scan_iter(match="follow*"):
                [(_, last)] = kit.client("followers", n).zrange(key, -1, -1, withscores=True)
                assert last <= int(clocks[n])
        assert network.pending(0) == []
        found = everything(demo_servers, kit)
        seen.append({key: value for key, value in found.items() if not key.startswith("clock:")})
        assert agree(kit, network, uids, 1).mended == 0
        with emptied(demo_servers):
            pass
    assert seen[0] == seen[1]


def test_what_does_not_agree_is_said(kit: ShardKit) -> None:
    network = kit.social(**PLACES)
    uids = create_users(kit, network, 5, ignore)
    network.follow(uids[0], uids[1])
    place = network.layout.places("following", uids[0])
    for to, key in place:
        kit.driver.run(_delete(to, key))
    found = agree(kit, network, uids, 1)
    assert (found.users, found.mended) == (5, 1)
    assert agree(kit, network, uids, 1).mended == 0


def _delete(to: Any, key: str) -> Any:
    yield [shardkit.operations.commands.Command(to, key, ("DEL", key))]


# ---- the worker


async def test_the_worker_ends_with_nothing_left_and_failed_tasks_are_an_error(
    demo_servers: LocalServers, kit: ShardKit
) -> None:
    acted = Activity()
    plain = kit.social(**PLACES)
    uids = create_users(kit, plain, 12, ignore)
    kit.driver.run(BulkFollow(plain, uids, 0).run([[], *[[0]] * 11], ignore))
    async with await shardkit.aconnect(demo_servers.shard_map) as akit:
        tasks = akit.queues(component="tasks")
        network = akit.social(**PLACES, queues=tasks, pass_size=1)
        async with working(network, tasks, "social", acted):
            await network.post(uids[0], "to all")
        assert acted.tasks > 0
        assert all(len(plain.home(uid)) == 1 for uid in uids[1:])
        once = akit.queues(component="tasks", attempts=1)
        with pytest.raises(ShardKitError, match="1 of the network's tasks failed"):
            async with working(network, once, "social", acted):
                await tasks.enqueue("social", "social.backfill", ["no uid"])


# ---- the command


def test_the_report_is_a_document() -> None:
    result = run("--json", "--users", "100", "--seconds", "0.3", "--follows", "6", "--seed", "5")
    assert result.exception is None, result.output
    assert result.return_value == 0
    found = json.loads(result.stdout)
    assert (found["built"]["users"], found["built"]["posts"]) == (100, 50)
    assert found["built"]["most"] > found["built"]["median"]
    assert found["pages"] > 0
    assert 0 < found["page_milliseconds"]["p50"] <= found["page_milliseconds"]["p99"]
    assert len({server["address"] for server in found["servers"]}) == 4
    assert all(server["commands"] > 0 < server["bytes"] for server in found["servers"])
    assert found["agreement"] == {"repaired": 0, "users": 100, "mended": 0}
    assert all(found["memory"][what] > 0 for what in ("user", "follow", "entry", "status"))
    assert found["a_second"]["timelines_written"] >= found["a_second"]["posts"]


def test_people_get_tables_and_celebrities_are_fetched() -> None:
    result = run("--users", "100", "--seconds", "0.2", "--follows", "8", "--fan-out-limit", "10")
    assert result.exception is None, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("built 100 users, ")
    assert lines[1].startswith("then ")
    heads = {line.split()[0] for line in lines if line}
    assert {"done", "a", "server", "memory", "p50", "p95", "p99", "timelines"} <= heads
    assert lines[-1].endswith("counters and timelines of 100 users reconciled: all agree")
    assert all(line == line.rstrip() for line in lines)


def test_help_has_an_example_and_a_mistake_is_one_line() -> None:
    said = subprocess.run([*COMMAND, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0
    assert "Usage: python -m examples.social [OPTIONS]" in said.stdout
    assert "python -m examples.social --users" in said.stdout
    said = subprocess.run(
        [*COMMAND, "--fan-out-limit", "3"], cwd=ROOT, capture_output=True, text=True
    )
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)


def test_ctrl_c_ends_it_with_a_report_and_without_servers() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--users", "50", "--seconds", "600", "--follows", "3", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "redis://127.0.0.1:" in line
    port = int(line.rpartition(":")[2].split("/")[0])
    _until_somebody_reads(port)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    found = json.loads(stdout)
    assert found["interrupted"]
    assert found["agreement"] is None
    with pytest.raises(redis.ConnectionError, match="Connection refused"):
        redis.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()


def _until_somebody_reads(port: int) -> None:
    """Wait until pages are read: after the build, when the servers have met ZRANGE often."""
    with redis.Redis(port=port) as config:
        where = json.loads(config.get("config:redis:users:0") or b"{}")

    def reads() -> bool:
        stats: Any = client.info("commandstats")
        return stats.get("cmdstat_smembers", {}).get("calls", 0) > 3  # whom a reader has muted

    with redis.Redis(host=where["host"], port=where["port"]) as client:
        assert eventually(reads, 30)
