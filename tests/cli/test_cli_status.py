from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arranged import ask
from cli_helpers import COMMAND, SECRET, Cli, Result, config_server, edited_map, in_terminal, plain

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, LocalServers

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


@pytest.fixture(scope="module")
def sick() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def test_a_config_server_that_cannot_be_read_is_one_of_the_findings(
    cli: Cli, sick: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    entry = {"host": "127.0.0.1", "port": sick.port}
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
    cli: Cli, sick: LocalServer, map_of: MapOf, missing: str, warning: str
) -> None:
    ask(sick, "execute_command", "ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", missing)
    path = map_of(port=sick.port, username="app", password="x")
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
        result = cli("locks", "show", "-c", broken_url, code=1)
    assert [line.split()[:3] for line in result.lines[1:]] == [["unique", "lock", "stock"]]
    [half] = [line for line in result.err.splitlines() if line.startswith("warning: half: ")]
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
        kit.social(**places, parts=4, relation_parts=4).create_user("ada", "Ada")
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
