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
import yaml
from faces import eventually, free_port

import shardkit
from examples.web import fastapi_app, flask_app, rq_and_queues
from shardkit import ShardMap
from shardkit.cli.app import app as command_line
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
