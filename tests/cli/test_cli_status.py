"""`shardkit up` in processes of its own: what it starts ends with it, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from arranged import ask
from cli_helpers import (
    COMMAND,
    SECRET,
    Cli,
    Result,
    config_server,
    edited_map,
    ends,
    in_terminal,
    plain,
)
from faces import PATIENCE

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import Upgrade
from shardkit.admin.growth import start_move
from shardkit.errors import DamagedDataError, NewerFormatError
from shardkit.local import LocalServer, LocalServers
from shardkit.structures.base import parameters

MapOf = Callable[..., Path]


@pytest.fixture
def map_of(tmp_path: Path) -> MapOf:
    """Write a map of components, or of a component ``a`` with an entry of these fields."""

    def write(components: Any = None, **fields: Any) -> Path:
        path = tmp_path / "map.yaml"
        entry = {"a": {"entry": {"host": "127.0.0.1", **fields}}}
        path.write_text(json.dumps({"components": components or entry}))
        return path

    return write


def rows(result: Result) -> dict[str, list[str]]:
    """Return the table's cells by the name of the shard."""
    lines = result.lines[1 : result.lines.index("")]
    return {cells[0]: cells for cells in (re.split(" {2,}", line) for line in lines)}


def test_people_and_programs_get_the_figures_of_every_shard(
    cli: Cli, town: LocalServers, town_map: Path
) -> None:
    with shardkit.connect(town.shard_map) as kit:
        kit.key_sharded("unique").client(5).mset({"a": 1, "b": 2})
    result = cli("status", "-c", town_map, code=0)
    assert not result.err
    header = "shard server version role keys memory conns ops/s ms"
    assert result.lines[0].split() == header.split()
    table = rows(result)
    assert list(table) == [
        "config server",
        *("followers:0", "followers:1"),
        *("sessions", "sessions replica 0"),
        *("unique", *(f"unique:{n}" for n in range(8))),
    ]
    server = town.server_of("unique", 5)
    name, at, version, role, keys, memory, connections, _, _ = table["unique:5"]
    assert (name, at, role, keys) == ("unique:5", f"{server.address}/3", "master", "2")
    assert version.count(".") == 2
    assert memory[-1] in "KM"
    own, every, most = (int(count.replace(",", "")) for count in connections.split("/"))
    assert 1 <= own <= every < most
    assert table["sessions replica 0"][3] == "replica"
    assert result.lines[-1] == (
        "4 servers: roles, databases, memory and response times are good; data was not checked"
    )
    found = cli.json("status", "-c", town_map)
    assert (found["ok"], found["broken"]) == (True, {})
    assert found["config_server"]["state"] == "ok"
    by_name = {(each["shard"], each["node"]): each for each in found["shards"]}
    shard = by_name["unique:5", None]
    assert 1 <= shard["own_connections"] <= shard["connections"] < shard["max_connections"]
    uncertain = ("version", "memory", "connections", "own_connections", "latency_ms")
    assert {**shard, **dict.fromkeys(uncertain, 0)} == {
        "shard": "unique:5",
        "component": "unique",
        "number": 5,
        "node": None,
        "address": f"{server.address}/3",
        "server": server.address,
        "database": 3,
        "state": "ok",
        "reason": None,
        "remedy": None,
        "software": shard["software"],
        "version": 0,
        "role": "master",
        "keys": 2,
        "memory": 0,
        "connections": 0,
        "own_connections": 0,
        "max_connections": shard["max_connections"],
        "ops_per_second": shard["ops_per_second"],
        "latency_ms": 0,
    }
    assert shard["software"] in ("redis", "valkey")
    assert shard["latency_ms"] > 0
    assert by_name["sessions", "replica 0"]["role"] == "replica"
    assert by_name["unique:4", None]["keys"] == 0


def test_connections_that_must_not_be_listed_are_not_counted(cli: Cli, map_of: MapOf) -> None:
    with LocalServer() as server, server.client() as admin:
        rights = ("on", "nopass", "~*", "+@all", "-client|list", "-client|id")
        admin.execute_command("ACL", "SETUSER", "app", *rights)
        path = map_of(port=server.port, username="app", password="x")
        [shard] = cli.json("status", "-c", path)["shards"]
        assert (shard["state"], shard["own_connections"]) == ("ok", None)
        assert rows(cli("status", "-c", path))["a"][6].startswith("?/")


def test_servers_have_a_row_each_if_that_is_asked_for(
    cli: Cli, town: LocalServers, town_map: Path
) -> None:
    with shardkit.connect(town.shard_map) as kit:
        for client in kit.key_sharded("unique"):
            client.set("key", 1)
    result = cli("status", "--servers", "-c", town_map)
    first = town.server_of("unique", 0).address
    [row] = [line for line in result.lines if line.startswith(first)]
    assert "followers:0 unique unique:0,2,4,6" in row
    assert re.split(" {2,}", row)[4] == "4"  # keys of all its databases
    assert len(result.lines) == 1 + 4 + 2


@pytest.fixture(scope="module")
def hanging() -> Iterator[LocalServer]:
    """A server that accepts connections and never answers."""
    with LocalServer() as server:
        server.pause()
        yield server


@pytest.fixture
def dead_map(town: LocalServers, hanging: LocalServer, tmp_path: Path) -> Path:
    path = tmp_path / "dead.yaml"
    good = {"host": "127.0.0.1", "port": town.server_of("unique").port}
    first = {**good, "password": SECRET}
    described = {
        "gone": {"shards": {"count": 4, "over": [first, {"port": 1}]}},
        "hangs": {"entry": {"host": "127.0.0.1", "port": hanging.port}},
        "stranger": {"entry": {**good, "password": f"{SECRET}x"}},
        "unset": {"entry": {**good, "password": "${NOT_SET_HERE}"}},
    }
    path.write_text(json.dumps({"components": described}))
    return path


def test_unusable_servers_are_reported_with_the_reason(
    cli: Cli, town: LocalServers, hanging: LocalServer, dead_map: Path
) -> None:
    result = cli("status", "-c", dead_map, "--timeout", "0.2", code=1)
    assert not result.err
    server = town.server_of("unique").address
    assert {name: cells[3] for name, cells in rows(result).items()} == {
        "gone:0": "master",
        "gone:1": "unreachable",
        "gone:2": "master",
        "gone:3": "unreachable",
        "hangs": "unreachable",
        "stranger": "refused",
        "unset": "unusable",
    }
    assert result.lines[result.lines.index("") + 1 :] == [
        "localhost:1 cannot be reached: connection refused (gone:1,3); "
        "start it, or correct the entry",
        f"{hanging.address} cannot be reached: no answer in time (hangs); check whether it is "
        "suspended, swaps or runs a long script, or whether the network drops packets",
        f"{server} refuses access: the user or password is refused (stranger); "
        "correct username and password in its entry or URL",
        f"{server} was not queried: config:redis:unset: password refers to ${{NOT_SET_HERE}}, "
        "which is not in the environment (unset); export NOT_SET_HERE",
    ]
    found = cli.json("status", "-c", dead_map, "--timeout", "0.2", code=1)
    assert found["ok"] is False
    assert [each["state"] for each in found["shards"]] == [
        *("ok", "unreachable", "ok", "unreachable", "unreachable", "refused", "unusable")
    ]
    gone = found["shards"][1]
    assert (gone["reason"], gone["keys"], gone["version"]) == (
        "cannot be reached: connection refused",
        None,
        None,
    )


MANY_KINDS = f"""
defaults: {{host: 127.0.0.1, password: {SECRET}}}
components:
  cart: {{entry: {{cluster: true, port: 7001}}}}
  main: {{entry: {{db: 2, sentinel: {{service: main, sentinels: [[127.0.0.1, 7101]]}}}}}}
"""


@pytest.fixture(scope="module")
def kinds() -> Iterator[LocalServers]:
    """A cluster, and a service that a Sentinel watches."""
    with LocalServers(ShardMap.parse(MANY_KINDS), ports="free") as servers:
        yield servers


def test_a_cluster_has_a_row_a_node_and_sentinels_name_the_master(
    cli: Cli, kinds: LocalServers, town_map: Path, town_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(kinds.shard_map.to_yaml())
    nodes = [node.address for node in kinds.clusters["cart"].nodes]
    found = cli.json("status", "-c", path)["shards"]
    cart = [each for each in found if each["component"] == "cart"]
    assert [each["server"] for each in cart] == nodes
    assert cart[0]["node"].startswith("slots 0-")
    [main] = [each for each in found if each["component"] == "main"]
    master = kinds.server_of("main").address
    assert (main["server"], main["address"]) == (master, "sentinel:main/2")
    shown = cli("status", "-c", path)
    assert f"main{' ' * 2}" in shown.out
    assert f"{master}/2" in shown.out
    pushed = cli("config", "push", path, "-c", town_url, "--dry-run")
    assert (pushed.code, pushed.err) == (0, "")  # nothing speaks against any of them
    kinds.clusters["cart"].nodes[2].kill()
    result = cli("status", "-c", path, "--timeout", "0.5", code=1)
    assert f"{nodes[2]} cannot be reached: connection refused (cart)" in result.lines[-1]
    kinds.clusters["cart"].nodes[2].restart()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_a_terminal(columns: int, town_map: Path) -> None:
    code, text = in_terminal(columns, "status", "-c", str(town_map))
    assert code == 0
    assert SECRET not in text
    lines = plain(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in text
    assert any(line.startswith("  replica 0") for line in lines)


def test_watching_goes_on_until_it_is_interrupted(town_map: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "status", "-c", str(town_map), "--watch", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(3):
        assert json.loads(process.stdout.readline())["ok"] is True
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert SECRET not in out + err
    assert (process.returncode, err) == (0, "")


def test_in_a_terminal_the_table_is_drawn_again(town_map: Path) -> None:
    twice = lambda text: text.count("unique:0") > 1  # noqa: E731
    words = "status", "-c", str(town_map), "--watch", "0.1"
    code, text = in_terminal(120, *words, until=twice)
    assert code == 0
    assert re.search(r"\x1b\[(\d+A|H|1A|2K)", text), "over the one before"


def remarks(result: Result) -> list[str]:
    assert result.code == 1
    return result.lines[result.lines.index("") + 1 :]


def test_a_config_server_that_cannot_be_read_is_one_of_the_findings(
    cli: Cli, server: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    entry = {"host": "127.0.0.1", "port": server.port}
    given = {"config_server": {"port": 1}, "components": {"a": {"entry": entry}}}
    path.write_text(json.dumps(given))
    found = cli.json("status", "-c", path, code=1)
    assert (found["config_server"]["state"], found["shards"][0]["state"]) == ("unreachable", "ok")
    assert found["findings"] == []
    assert remarks(cli("status", "-c", path))[0].endswith(
        "cannot be reached: connection refused (config server); start it, or correct the entry"
    )


@pytest.mark.parametrize(
    ("missing", "warning"),
    [
        ("-info", " does not let the user run INFO (a); grant it"),
        ("-zrange", ": roles, databases, memory and response times are good"),
        ("-get", ": roles, databases, memory and response times are good"),
    ],
)
def test_a_right_that_status_lacks_is_no_problem(
    cli: Cli, server: LocalServer, map_of: MapOf, missing: str, warning: str
) -> None:
    ask(server, "execute_command", "ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", missing)
    path = map_of(port=server.port, username="app", password="x")
    shown = cli("status", "-c", path, code=0)
    assert warning in shown.lines[-1]


def test_one_line_says_ok_warning_or_critical(
    cli: Cli, map_of: MapOf, own_server: LocalServer
) -> None:
    port = own_server.port
    good = {"entry": {"port": port}}
    shared = {"shards": [{"port": port, "db": 1}, {"port": port, "db": 1}]}
    dead = {"entry": {"port": 1}}

    result = cli("status", "--check", "-c", map_of({"good": good}))
    assert (result.code, result.lines) == (0, ["OK: 1 shard"])

    path = map_of({"good": good, "shared": shared})
    result = cli("status", "--check", "-c", path, code=1)
    [line] = result.lines
    assert line.startswith("WARNING: shared:")
    assert "has the same database as shared:0" in line

    path = map_of({"good": good, "shared": shared, "dead": dead})
    result = cli("status", "--check", "-c", path, code=2)
    [line] = result.lines
    assert line.startswith(
        "CRITICAL: dead localhost:1 cannot be reached: connection refused; shared:1"
    )
    assert json.loads(cli("status", "--check", "--json", "-c", path).out)["code"] == 2


@pytest.fixture
def broken_url(cli: Cli, town: LocalServers, town_map: Path, town_url: str) -> str:
    """The config server with the map, and a component `bad` whose entry is no JSON."""
    assert cli("config", "push", town_map, "-c", town_url).code == 0
    ask(config_server(town), "set", "config:redis:bad", "{")
    return town_url


@pytest.fixture
def half_dead_map(town_map: Path) -> Path:
    """The map, with a component of two shards of which one has no server."""
    with edited_map(town_map) as components:
        there = {**components["followers"]["shards"][0], "db": 11}
        components["half"] = {"shards": [there, {**there, "port": 1}]}
    return town_map


@pytest.mark.parametrize("command", [("doctor",), ("doctor", "--check")])
def test_doctor_goes_on_where_a_component_is_broken(
    cli: Cli, broken_url: str, command: tuple[str, ...]
) -> None:
    result = cli(*command, "-c", broken_url, code=1)
    [line] = [line for line in result.lines if "bad" in line]
    assert line.startswith("bad cannot be used: config:redis:bad: is not JSON")


@pytest.mark.parametrize("command", [("doctor",), ("doctor", "--check")])
@pytest.mark.parametrize(
    ("password", "why"), [(None, "refused"), ("${NOT_SET_HERE}", "${NOT_SET_HERE}")]
)
def test_doctor_names_the_shard_that_is_down_or_lacks_its_password(
    cli: Cli, half_dead_map: Path, command: tuple[str, ...], password: str | None, why: str
) -> None:
    if password is not None:
        with edited_map(half_dead_map) as components:
            components["half"]["shards"][1]["password"] = password
    result = cli(*command, "half", "-c", half_dead_map, code=1)
    [line] = [line for line in result.lines if "half:1" in line]
    assert line.startswith("half:1 cannot be scanned: ")
    assert why in line


def test_locks_of_components_that_answer_are_shown_beside_those_that_do_not(
    cli: Cli, broken_url: str, half_dead_map: Path
) -> None:
    cli("config", "push", half_dead_map, "-c", broken_url, "--no-check", code=0)
    with shardkit.connect(half_dead_map) as kit:
        assert kit.lock("stock", component="unique", label="first", renew=False).acquire()
        router = kit.key_sharded("half")
        name = next(name for name in "abcdef" if router.shard_of(f"{{{name}}}") == 0)
        assert kit.lock(name, component="half", renew=False).acquire()
        result = cli("locks", "show", "-c", broken_url, code=1)
    locks = [line.split()[:3] for line in result.lines[1:]]
    assert locks == [["half", "lock", name], ["unique", "lock", "stock"]]
    [half] = [line for line in result.err.splitlines() if line.startswith("warning: half:1: ")]
    assert "refused" in half
    assert "warning: bad: config:redis:bad: is not JSON" in result.err


def test_the_structures_on_the_shards_that_answer_are_checked(
    cli: Cli, half_dead_map: Path
) -> None:
    with shardkit.connect(half_dead_map) as kit:
        client: Any = kit.client("half", 0)
        client.hset("lost:parts", "a", "1")  # no structure's
        client.hset("emails:{x}:tasks", "1", "{")
    command = ("doctor", "--check", "-c", half_dead_map, "half")
    found = cli.json(*command, code=1)
    assert not found["ok"]
    assert list(found["failures"]) == ["half:1"]
    assert [(each["structure"], each["kind"]) for each in found["structures"]] == [
        ("emails:{x}", "queue")
    ]
    looked = cli.json("check", "--structures", "half", "-c", half_dead_map, code=1)
    assert looked["structures"] == 1
    assert any("127.0.0.1:1" in finding["where"] for finding in looked["findings"]), looked


def test_a_structure_that_may_have_keys_on_a_dead_server_is_not_checked(
    cli: Cli, half_dead_map: Path
) -> None:
    with shardkit.connect(half_dead_map) as kit:
        places = {"component": "unique", "timelines": "unique", "followers": "unique"}
        kit.social(**places, parts=4, relation_parts=8).create_user("ada", "Ada")
    result = cli("doctor", "--check", "-c", half_dead_map, code=1)
    [line] = [line for line in result.lines if "social" in line]
    assert line.startswith("unique/social was not checked: ")
    assert "refused" in line


def test_doctor_names_parameters_that_describe_no_structure(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit:
        client: Any = kit.client("sessions")
        client.set("text:meta", "x")
        client.hset("odd:meta", "format", "1")
    result = cli("doctor", "--check", "sessions", "-c", town_map, code=1)
    assert "sessions/text:meta is not a HASH" in result.lines
    assert "sessions/odd:meta does not say the kind of its structure" in result.lines
    found = cli.json("doctor", "--check", "sessions", "-c", town_map, code=1)
    assert found["parameters"]["sessions/odd:meta"] == "does not say the kind of its structure"


def test_a_book_whose_names_an_application_compares_is_not_checked(
    cli: Cli, town_map: Path
) -> None:
    def backwards(name: str) -> str:
        return name[::-1]

    with shardkit.connect(town_map) as kit:
        kit.address_book(component="unique", parts=2, fold=backwards).join("elves", "Arwen")
    result = cli("doctor", "--check", "unique", "-c", town_map, code=0)
    why = "its names are compared by the application's backwards"
    assert f"unique/{{members}} was not checked: {why}" in result.lines
    assert result.lines[-1] == "checked 0 structures: no damage"


def test_a_backup_and_an_upgrade_of_all_name_the_component_that_is_broken(
    cli: Cli, broken_url: str, tmp_path: Path
) -> None:
    said = cli("backup", tmp_path / "taken", "-c", broken_url).error()
    assert said.startswith("component 'bad' cannot be backed up: config:redis:bad: is not JSON")
    assert not (tmp_path / "taken").exists()
    assert cli("upgrade", "-c", broken_url).error().startswith("config:redis:bad: is not JSON")


def test_retire_reports_the_servers_that_could_not_be_asked(
    cli: Cli, town_url: str, half_dead_map: Path
) -> None:
    cli("config", "push", half_dead_map, "-c", town_url, "--no-check", code=0)
    result = cli("retire", "half", "-c", town_url)
    assert result.code == 0, result
    [line] = [line for line in result.lines if "was not asked" in line]
    assert "127.0.0.1:1 was not asked who uses it: " in line


MAP = """
config_server: {port: 7100}
components:
  unique:
    entry: {host: a.internal}
    shards: {count: 4, over: [{host: a.internal, db: 1}, {host: b.internal, db: 1}]}
"""


class Running(NamedTuple):
    process: subprocess.Popen[str]
    told: Any

    @property
    def pids(self) -> list[int]:
        return [server["pid"] for server in self.told["servers"]]

    def end(self, number: signal.Signals) -> str:
        """Send a signal; return what was written to stderr in the end."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert not out
        assert SECRET not in err
        return err


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    processes = []

    def start(text: str, *options: str, name: str = "map.yaml") -> Running:
        path = tmp_path / name
        path.write_text(text)
        process = subprocess.Popen(
            [*COMMAND, "up", str(path), "--free-ports", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            assert SECRET not in line
            lines.append(line)
            if line == "}\n":
                return Running(process, json.loads("".join(lines)))
        assert process.stderr is not None
        pytest.fail(process.stderr.read())

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGKILL"])  # others do by the other signals
def test_a_signal_stops_every_server(up: Callable[..., Running], name: str) -> None:
    running = up(MAP)
    assert len(running.pids) == 3
    err = running.end(signal.Signals[name])
    if name != "SIGKILL":
        assert err.splitlines()[-1] == "stopped 3 servers"
        assert running.process.returncode == 0
    assert all(map(ends, running.pids))


def test_signals_ignored_by_nohup_stay_ignored(tmp_path: Path) -> None:
    (path := tmp_path / "map.yaml").write_text(MAP)
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *COMMAND, "up", str(path), "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("started 3 servers in ")
    status = Path(f"/proc/{process.pid}/status").read_text()
    [ignored] = re.findall(r"^SigIgn:\s+(\w+)$", status, re.MULTILINE)
    assert int(ignored, 16) & 1 << signal.SIGHUP - 1
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err.splitlines()[-1] == "stopped 3 servers"


def test_the_map_is_pushed_and_can_be_used_at_once(up: Callable[..., Running]) -> None:
    running = up(MAP)
    assert running.told["pushed"] is True
    found = [server["shards"] for server in running.told["servers"]]
    assert found == [[], ["unique", "unique:0", "unique:2"], ["unique:1", "unique:3"]]
    with shardkit.connect(running.told["config"]) as kit:
        assert kit.key_sharded("unique", shards=4)["key"].set("key", 1)
        server = running.told["servers"][1]
        assert kit.client("unique").info("server")["process_id"] == server["pid"]
        assert kit.component("unique").epoch == 1
    assert running.end(signal.SIGTERM).splitlines()[-1] == "stopped 3 servers"
    assert running.process.returncode == 0
    assert all(map(ends, running.pids))


def test_a_map_with_passwords_is_written_for_this_user_only(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    written = tmp_path / "written.yaml"
    text = f"defaults: {{password: {SECRET}, username: app}}\n{MAP}"
    running = up(text, "--write", str(written), "--no-push")
    assert running.told["pushed"] is False
    assert running.told["config"] == running.told["written"] == str(written)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    with shardkit.connect(written) as kit:
        assert kit.key_sharded("unique")["key"].set("key", 1)
        assert kit.client("unique").acl_whoami() in ("app", b"app")
    running.end(signal.SIGTERM)


def test_a_password_by_reference_is_told_as_one(
    up: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWN_PASSWORD", SECRET)
    running = up("defaults: {password: '${TOWN_PASSWORD}', username: app}\n" + MAP)
    url = running.told["config"]
    assert url.startswith("redis://app:${TOWN_PASSWORD}@127.0.0.1:")
    with shardkit.connect(url) as kit:
        assert kit.key_sharded("unique")["key"].set("key", 1)
    running.end(signal.SIGTERM)


def test_data_is_kept_in_a_directory_and_not_stranded_by_another_map(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    up(MAP.replace("count: 4", "count: 2"), "--data-dir", data).end(signal.SIGTERM)
    running = up(MAP, "--data-dir", data)  # there are no data yet
    with shardkit.connect(running.told["config"]) as kit:
        assert len(kit.component("unique").shards) == 4
        kit.key_sharded("unique")["key"].set("key", "kept")
    running.end(signal.SIGTERM)
    running = up(MAP, "--data-dir", data)
    with shardkit.connect(running.told["config"]) as kit:
        assert kit.key_sharded("unique")["key"].get("key") == b"kept"
    running.end(signal.SIGTERM)
    path = tmp_path / "bigger.yaml"
    path.write_text(MAP.replace("count: 4", "count: 8"))
    refused = subprocess.run(
        [*COMMAND, "up", str(path), "--free-ports", "--data-dir", data],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if "error: " in line]
    assert "going from 4 to 8 shards" in line
    assert line.endswith("start with another --data-dir, or with --no-push and push with --force")


@pytest.mark.parametrize("are_lost", [False, True])
def test_a_map_from_before_a_move_is_not_pushed(
    up: Callable[..., Running], tmp_path: Path, are_lost: bool
) -> None:
    data = str(tmp_path / "data")
    running = up(MAP, "--data-dir", data)
    with shardkit.connect(running.told["config"]) as kit:
        b = kit.component("unique").shards[3].address.rpartition("/")[0]
        config = redis.Redis.from_url(running.told["config"])
        assert start_move(config, ["unique:0"], b, hold=3 * PATIENCE).phase == "done"
        if are_lost:
            config.flushall()
        config.close()
    running.end(signal.SIGTERM)
    path = tmp_path / "map.yaml"
    command = [*COMMAND, "up", str(path), "--free-ports", "--data-dir", data]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "unique:0: a move or split has left the database that the map names" in refused.stderr
    assert "start with --no-push" in refused.stderr


def test_a_server_that_ends_by_itself_is_named(up: Callable[..., Running]) -> None:
    running = up(MAP)
    assert running.process.stderr is not None
    os.kill(running.pids[2], signal.SIGKILL)
    address = running.told["servers"][2]["address"]
    told = ""
    while "has ended" not in told:
        told = running.process.stderr.readline()
        assert told
    assert told.startswith(f"unique:1 ({address}) has ended; to restart it, ")
    for pid in running.pids[:2]:
        os.kill(pid, signal.SIGKILL)
    _, err = running.process.communicate(timeout=60)
    assert err.splitlines()[-1].startswith("shardkit: error: every server has ended; ")
    assert running.process.returncode == 1


def test_a_taken_port_is_one_line_and_nothing_runs(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    running = up("components: {a: {entry: {port: 7001}}}")
    [server] = running.told["servers"]
    path = tmp_path / "taken.yaml"
    path.write_text(f"components: {{a: {{entry: {{port: {server['port']}}}}}}}")
    refused = subprocess.run(
        [*COMMAND, "up", str(path)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1
    assert not refused.stdout
    assert refused.stderr == (
        f"shardkit: error: a (port {server['port']}) cannot listen: port {server['port']} of "
        "127.0.0.1 is taken; stop what listens there, or use --free-ports\n"
    )
    running.end(signal.SIGTERM)


@pytest.mark.parametrize("secret", ["", SECRET])
def test_people_see_where_the_servers_are_and_how_to_connect(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f"defaults: {{password: {secret}}}\n{MAP}" if secret else MAP)
    process = subprocess.Popen(
        [*COMMAND, "up", str(path), "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip("\n") for _ in range(7)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert lines[0].split() == ["server", "address", "shards", "pid"]
    assert lines[2].split()[2:5] == ["unique", "unique:0,2", lines[2].split()[4]]
    if secret:
        assert lines[5] == "To connect, write the map with the real ports: --write FILE"
    else:
        assert lines[5].startswith("export SHARDKIT_CONFIG=redis://127.0.0.1:")
    assert lines[6] == "Ctrl-C stops the servers."
    assert err.splitlines()[0].startswith("started 3 servers in ")
    assert err.splitlines()[-1] == "stopped 3 servers"
    assert process.returncode == 0
    assert not out


OLD_MAP = "components: {data: {shards: {count: 4, over: [{port: 7001}]}}}"
NEXT = range(1, 3)  # the formats of a later release


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[ShardKit, Path]]:
    with LocalServers(ShardMap.parse(OLD_MAP), ports="free") as servers:
        path = tmp_path / "map.json"
        path.write_text(servers.shard_map.to_yaml())
        with shardkit.connect(servers.shard_map) as kit:
            yield kit, path


def at(kit: ShardKit, key: str) -> Any:
    return kit.client("data", kit.component("data").shard_of(key).number)


def an_earlier_set(kit: ShardKit) -> Any:
    """A set as releases before 0.1.0 stored it."""
    ids = kit.set("ids", component="data", members=int, parts=4, part_size=64)
    ids.sadd(*range(300))
    meta = at(kit, "ids:meta")
    meta.hdel("ids:meta", "part_size")
    meta.hset("ids:meta", "shard_size", 64)
    for key in ids.layout.data_keys():
        at(kit, key).hdel(key, "of")
    return ids


@pytest.mark.parametrize("parts", ["many", "0", "1000000000", "9" * 5000])
def test_an_upgrade_refuses_damaged_parameters_before_it_writes(
    stored: tuple[ShardKit, Path], parts: str
) -> None:
    kit, _ = stored
    an_earlier_set(kit)
    at(kit, "ids:meta").hset("ids:meta", "groups", parts)
    with pytest.raises(DamagedDataError, match=r"ids:meta .*groups="):
        kit.upgrade("data")
    assert at(kit, "ids:meta").hexists("ids:meta", "shard_size")


def test_an_upgrade_gives_old_structures_the_names_of_this_release(
    stored: tuple[ShardKit, Path], cli: Cli
) -> None:
    kit, path = stored
    ids = an_earlier_set(kit)
    at(kit, "app:meta").hset("app:meta", "shard_size", 64)  # an application's own
    changes = ("shard_size is called part_size", "groups name their parameters")
    wanted = [Upgrade("data", "ids", "set", changes)]
    assert kit.upgrade("data", dry_run=True) == wanted
    assert at(kit, "ids:meta").hexists("ids:meta", "shard_size")
    assert kit.upgrade("data", ["other"]) == []
    assert "; ".join(changes) in cli("upgrade", "--dry-run", "-c", path).out
    assert cli("upgrade", "-c", path, input="n\n").code == 1
    [row] = cli.json("upgrade", "--yes", "-c", path)
    assert row == {"component": "data", "structure": "ids", "kind": "set", "changes": list(changes)}
    assert cli("upgrade", "-c", path).lines == ["everything is in the newest form"]
    assert at(kit, "ids:meta").hget("ids:meta", "part_size") == b"64"
    assert at(kit, "ids:meta").hget("ids:meta", "shard_size") is None
    assert at(kit, "app:meta").hgetall("app:meta") == {b"shard_size": b"64"}
    assert {at(kit, key).hget(key, "of").decode() for key in ids.layout.data_keys()} == {
        ids.meta.fingerprint
    }
    fresh = kit.set("ids", component="data", members=int, parts=4, part_size=64)
    fresh.sadd(1000)
    assert ids.smembers() == {*range(300), 1000}
    assert list(fresh.check()) == []


def test_of_two_upgrades_at_once_one_finds_it_done(
    stored: tuple[ShardKit, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, _ = stored
    ids = an_earlier_set(kit)
    of_clients = type(at(kit, "ids:meta"))
    transaction = of_clients.transaction

    def meanwhile(client: Any, *given: Any) -> Any:
        monkeypatch.setattr(of_clients, "transaction", transaction)
        assert kit.upgrade("data")[0].changes[0] == "shard_size is called part_size"
        return transaction(client, *given)

    monkeypatch.setattr(of_clients, "transaction", meanwhile)
    kit.upgrade("data")
    assert of_clients.transaction is transaction  # the other one ran in between
    assert at(kit, "ids:meta").hget("ids:meta", "part_size") == b"64"
    assert not at(kit, "ids:meta").hexists("ids:meta", "shard_size")
    assert kit.upgrade("data") == []
    assert ids.smembers() == set(range(300))


# The kit's method that makes a structure, its parameters, the method that writes, its arguments.
WRITES: dict[str, tuple[str, dict[str, Any], str, tuple[Any, ...]]] = {
    "set": ("set", {"members": int, "parts": 2, "part_size": 16}, "sadd", (*range(50),)),
    "planned set": ("set", {"members": int, "total": 100}, "sadd", (*range(50),)),
    "hash": ("hash", {"parts": 2, "partition": "crc32"}, "hset", ("a", "b")),
    "numbered hash": ("hash", {"part_size": 16}, "hset", (7, "b")),
    "sorted set": ("sorted_set", {"parts": 2}, "zadd", ({"a": 1},)),
    "list": ("list", {}, "rpush", ("a",)),
    "packed": ("packed", {"fields": {"a": "u8"}}, "set_many", ([(5, {"a": 1})],)),
    "search": ("search", {"parts": 4}, "index", ("1", "some words")),
    "ads": ("ads", {"parts": 4}, "index", ("1", ["Rome"], "words", "cpc", 1)),
    "jobs": ("job_search", {"parts": 4}, "index", ("1", ["python"])),
    "address book": ("address_book", {}, "join", ("elves", "Arwen")),
    "network": ("social", {"parts": 4, "relation_parts": 4}, "create_user", ("ada", "Ada")),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_process_that_opened_before_an_upgrade_refuses_to_write_after_it(
    stored: tuple[ShardKit, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, _ = stored
    method, options, writing, arguments = WRITES[name]

    def make(kit: ShardKit) -> Any:
        return getattr(kit, method)("it", component="data", **options)

    def write(structure: Any) -> None:
        getattr(structure, writing)(*arguments)

    earlier, later = make(kit), make(kit)
    write(earlier)
    monkeypatch.setattr(parameters, "LEASE", 0.0)
    monkeypatch.setattr(parameters, "FORMATS", NEXT)
    write(later)
    [done] = kit.upgrade("data")
    assert done.changes[0] == "format 1 becomes 2"
    assert kit.upgrade("data") == []
    if name in ("search", "ads", "jobs", "list"):  # their scripts are those of this release
        states = "*:ends" if name == "list" else "*:state"
        clients: list[Any] = [kit.client("data", n) for n in range(4)]
        marks = [c.hget(key, "format") for c in clients for key in c.scan_iter(states)]
        assert marks == [b"2"]
    else:
        write(later)  # and goes on with what it has open
        write(make(kit))
    monkeypatch.setattr(parameters, "FORMATS", range(1, 2))
    before = [
        {key: client.dump(key) for key in client.scan_iter()}
        for client in map(kit.client, ["data"] * 4, range(4))
    ]
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1 to 1"):
        write(earlier)
    assert before == [
        {key: client.dump(key) for key in client.scan_iter()}
        for client in map(kit.client, ["data"] * 4, range(4))
    ]
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1 to 1"):
        kit.upgrade("data")
