"""The dashboard: its API, metrics and guard, and `shardkit top`, over real servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from arranged import map_of, paused
from click.testing import CliRunner
from faces import PATIENCE
from fleets import HOSTILE, Shown, hottest, shown_fleet, until
from starlette.testclient import TestClient
from textual.widgets import DataTable, Input, Static

import shardkit
from shardkit.admin import push
from shardkit.admin.heat import hot_keys_of
from shardkit.cli.app import app
from shardkit.cli.commands import dashboard
from shardkit.dashboard import FleetWatch, application
from shardkit.dashboard.app import METRICS, PAGE, VIEWS
from shardkit.dashboard.fleet import _shown_command
from shardkit.errors import InvalidArgumentError
from shardkit.local import LocalCluster
from shardkit.operations.lua import script


def opened(shown: Shown, **options: Any) -> TestClient:
    return TestClient(application(shown.fleet, **options), base_url="http://127.0.0.1")


@pytest.fixture
def client(shown: Shown) -> TestClient:
    return opened(shown)


def answer(client: TestClient, path: str) -> Any:
    response = client.get(path)
    assert response.status_code == 200, path
    assert "a-secret" not in response.text
    return response.json()


def test_the_overview_has_all_servers_and_components(shown: Shown, client: TestClient) -> None:
    until(lambda: answer(client, "/api/overview")["totals"]["at"])
    overview = answer(client, "/api/overview")
    assert [each["state"] for each in overview["servers"]] == ["up"] * 3
    components = {each["name"]: each for each in overview["components"]}
    assert components["users"]["shards"] == 8
    assert components["users"]["keys"] >= 200
    assert sum(each["keys"] for each in overview["servers"]) >= 200
    assert len(overview["totals"]["at"]) == len(overview["totals"]["ops"]) > 0


def test_a_component_has_its_shards_and_what_it_is_made_of(client: TestClient) -> None:
    component = answer(client, "/api/components/users")
    assert [each["shard"] for each in component["shards"]] == [f"users:{n}" for n in range(8)]
    contents = answer(client, "/api/components/users/contents")
    kinds = {(each["structure"], each["kind"]) for each in contents["groups"]}
    assert {("ids", "set"), ("", "string")} <= kinds
    assert client.get("/api/components/nothing").status_code == 404


def test_a_server_has_its_samples_and_databases(shown: Shown, client: TestClient) -> None:
    address = shown.server(0).address
    until(lambda: len(shown.fleet.servers[address].samples) > 2)
    server = answer(client, f"/api/servers/{quote(address, safe='')}")
    assert len(set(map(len, server["samples"].values()))) == 1
    assert server["samples"]["memory"][-1] > 100_000
    assert {shard for each in server["databases"] for shard in each["shards"]} >= {"users:0"}


def test_slow_commands_are_shown_without_their_values(
    shown: Shown, client: TestClient, lower: Callable[..., None]
) -> None:
    lower(dashboard_check=0.1)  # seconds between readings
    server = shown.server(1)
    with server.client() as plain:
        plain.config_set("slowlog-log-slower-than", 0)
        plain.execute_command("SET", "slow-key", "a-secret")
        plain.config_set("slowlog-log-slower-than", 10_000)
    shown.fleet.servers[server.address].stopped.wait(0)
    until(lambda: any(each["key"] == "slow-key" for each in shown.fleet.slow), 60)
    [slow] = [each for each in answer(client, "/api/slow")["slow"] if each["key"] == "slow-key"]
    assert (slow["command"], slow["server"], slow["kind"]) == ("SET", server.address, "slow")


def test_slow_scripts_have_their_names_and_other_arguments_are_not_shown() -> None:
    sha = script("queues/take").sha.encode()
    assert _shown_command([b"EVALSHA", sha, b"1", b"queues:{email}", b"a-secret"]) == (
        "queues/take",
        "queues:{email}",
    )
    assert _shown_command([b"evalsha", b"0" * 40, b"1", b"k"]) == ("evalsha", "k")
    assert _shown_command([b"CONFIG", b"SET", b"requirepass", b"a-secret"]) == ("CONFIG", "")
    assert _shown_command([b"ECHO", b"a-secret"]) == ("ECHO", "")
    assert _shown_command([b"MODULE.COMMAND", b"a-secret"]) == ("MODULE.COMMAND", "")
    assert _shown_command([b"EVALSHA", b"0"]) == ("EVALSHA", "")


def test_queues_and_their_dead_tasks_are_shown(client: TestClient) -> None:
    [queue] = answer(client, "/api/queues")["queues"]
    assert (queue["component"], queue["queue"]) == ("jobs", "email")
    assert (queue["counts"]["waiting"], queue["counts"]["dead"]) == (2, 1)
    [dead] = answer(client, "/api/queues/jobs/email/dead")["dead"]
    assert (dead["name"], dead["args"]) == ("welcome", [HOSTILE])
    assert HOSTILE in dead["reason"]


def test_tasks_are_revived_only_where_changes_are_allowed(shown: Shown, client: TestClient) -> None:
    path = "/api/queues/jobs/email/dead/{}/revive"
    assert client.post(path.format("x")).status_code == 404
    allowed = opened(shown, allow_changes=True)
    [dead] = answer(allowed, "/api/queues/jobs/email/dead")["dead"]
    assert allowed.post(path.format(dead["id"])).json() is True
    assert answer(allowed, "/api/queues/jobs/email/dead")["dead"] == []
    tasks = shown.kit.queues(component="jobs", attempts=1)
    while task := tasks.take("email"):
        if task.id == dead["id"]:
            break
    assert task is not None
    tasks.fail(task, f"ValueError: {HOSTILE}")
    until(lambda: answer(allowed, "/api/queues/jobs/email/dead")["dead"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a program
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(
    shown: Shown, headers: dict[str, str], status: int
) -> None:
    client = opened(shown, allow_changes=True)
    path = "/api/queues/jobs/email/dead/nothing/revive"
    assert client.post(path, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/queues/missing/email/dead", 404),
        ("/api/queues/no%20name/email/dead", 400),
        ("/api/queues/jobs/a%7Bb/dead", 400),
        ("/api/components/missing/contents", 404),
        ("/api/servers/missing", 404),
        ("/files/missing.js", 404),
        ("/files/..%2Fapp.py", 404),
    ],
)
def test_what_does_not_exist_is_no_fault_of_the_server(
    shown: Shown, path: str, status: int
) -> None:
    client = TestClient(
        application(shown.fleet), base_url="http://127.0.0.1", raise_server_exceptions=False
    )
    assert client.get(path).status_code == status


def test_heat_has_the_twenty_hottest_keys_in_order(shown: Shown, client: TestClient) -> None:
    heat = answer(client, "/api/heat")
    keys = [each["name"] for each in heat["key"][:20]]
    assert keys == [name for name, _ in hottest().most_common()]
    assert heat["tag"][0]["name"] == HOSTILE
    assert ("users", "ids") in {(each["component"], each["name"]) for each in heat["structure"]}
    [function] = heat["function"]
    assert function["name"].endswith("fleets.heat_up.<locals>.visit")
    shares = {each["server"]: each["share"] for each in heat["servers"]}
    assert set(shares) <= {shown.server(n).address for n in range(2)}
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert all(each["server"] for each in heat["shard"])


def test_the_plan_says_what_a_move_would_bring_and_moves_nothing(
    shown: Shown, client: TestClient
) -> None:
    before = answer(client, "/api/components/users")["shards"]
    plan = answer(client, "/api/heat/moves")
    assert "banner" not in plan
    assert plan["by"] == "operations"
    assert set(plan["before"]) == set(plan["after"])
    off = {
        when: max(abs(times - 1) for times in plan[when].values()) for when in ("before", "after")
    }
    assert off["after"] <= off["before"]
    assert [each["server"] for each in answer(client, "/api/components/users")["shards"]] == [
        each["server"] for each in before
    ]


def test_servers_with_an_lfu_policy_report_their_hot_keys(shown: Shown, client: TestClient) -> None:
    server = shown.server(0)
    with server.client() as plain:
        plain.config_set("maxmemory-policy", "allkeys-lfu")
        try:
            with server.client(db=9) as own:
                own.set("lfu", "1")
                for _ in range(2000):
                    own.get("lfu")
            keys = answer(client, "/api/heat/servers")["keys"]
        finally:
            plain.config_set("maxmemory-policy", "noeviction")
    mine = {each["key"]: each for each in keys if each["server"] == server.address}
    assert mine["lfu"]["by"] == "LFU"
    assert mine["lfu"]["database"] == 9
    assert mine["lfu"]["amount"] > 10


def test_hotkeys_are_read_as_redis_documents_them() -> None:
    class Tracking:
        """Redis 8.6's reply, which no server here gives."""

        connection_pool = None

        def execute_command(self, *args: str) -> Any:
            assert args == ("HOTKEYS", "GET")
            return [b"tracking-active", 1, b"by-cpu-time-us", [b"x", 104, b"y", 98]]

        def info(self, section: str) -> Any:
            return {"maxmemory_policy": "noeviction"}

    found = [(each.key, each.by, each.amount) for each in hot_keys_of(Tracking())]
    assert found == [("x", "cpu", 104), ("y", "cpu", 98)]


def test_what_applications_record_is_shown(client: TestClient) -> None:
    recorded = answer(client, "/api/metrics")
    counters = {each["name"]: each for each in recorded["counters"]}
    assert counters["page:/"]["total"] == 7
    assert sum(counters["page:/"]["slices"]["count"]) == 7
    assert len(counters["page:/"]["slices"]["at"]) == 60
    [statistics] = recorded["statistics"]
    assert (statistics["context"], statistics["kind"]) == ("shop", "latency")
    assert (statistics["count"], statistics["max"]) == (3, 4.0)
    assert statistics["p50"] == pytest.approx(0.5, rel=0.02)
    [message] = recorded["messages"]
    assert (message["log"], message["severity"]) == ("shop", "error")
    assert HOSTILE in message["message"]
    assert recorded["failed"] == {}


def test_locks_growth_and_configuration_are_shown(client: TestClient) -> None:
    [lock] = answer(client, "/api/locks")["locks"]
    assert (lock["name"], lock["state"]) == (HOSTILE, "holds")
    growth = answer(client, "/api/growth")
    assert growth == {"moves": [], "changes": [], "fences": [], "unreadable": []}
    configuration = answer(client, "/api/configuration")
    assert configuration["epoch"] == 1
    assert [each["message"] for each in configuration["pushes"]] == ["the first"]
    assert configuration["entries"]["users"]["users:0"]["password"] == "***"
    assert len(configuration["changes"]) == 9
    assert any(each["library"].startswith("shardkit") for each in configuration["processes"])


def checked_by_promtool(*words: str, text: str | None = None) -> None:
    if shutil.which("promtool") is None and "CI" not in os.environ:
        pytest.skip("needs Debian's prometheus")
    done = subprocess.run(["promtool", *words], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafanas_own_models_take_every_field_of_the_dashboard() -> None:
    """What they do not know, they would drop."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = import_module("grafana_foundation_sdk.cog.encoder")
    stored = json.loads((PAGE.parent / "grafana.json").read_text())
    known = models.Dashboard.from_json(stored)
    assert is_within(stored, json.loads(encoder.JSONEncoder().encode(known)))


def test_the_dashboard_keeps_the_rules_of_grafanas_linter() -> None:
    """Those of github.com/grafana/dashboard-linter, which needs a newer Go than Debian has."""
    dashboard = json.loads((PAGE.parent / "grafana.json").read_text())
    source, *labels = dashboard["templating"]["list"]
    assert (source["name"], source["label"]) == ("datasource", "Data source")
    assert [each["name"] for each in labels] == ["job", "instance"]
    for label in labels:
        assert label["label"] == label["name"].title()
        assert re.fullmatch(r"label_values\(.+, (job|instance)\)", label["query"])
        assert (label["multi"], label["allValue"], label["refresh"]) == (True, ".+", 2)
    assert dashboard["editable"] is False
    assert len(dashboard["panels"]) == 14
    for panel in (*labels, *dashboard["panels"]):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in GRAFANA_UNITS
        for target in panel["targets"]:
            selected = re.findall(r"shardkit_[a-z_]+(.*?)(?:[ )/]|$)", target["expr"])
            matchers = re.findall(r"shardkit_[a-z_]+({.*?})", target["expr"])
            assert len(matchers) == len(selected) > 0
            assert set(matchers) == {'{job=~"$job", instance=~"$instance"}'}


GRAFANA_UNITS = {"short", "ops", "bytes", "percentunit", "s", "Bps"}


def is_within(part: Any, whole: Any) -> bool:
    """Whether all fields of nested values are in others, which may have more."""
    if isinstance(part, dict):
        return all(name in whole and is_within(part[name], whole[name]) for name in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_within, part, whole))
    return bool(part == whole)


def test_prometheus_takes_metrics_alerts_and_the_queries_of_grafana(
    client: TestClient, tmp_path: Path
) -> None:
    text = client.get("/metrics").text
    checked_by_promtool("check", "metrics", text=text)
    measured = {*re.findall("^# HELP (shardkit_[a-z_]+)", text, re.MULTILINE)}
    assert {name for name, _ in METRICS.values()} < measured
    alerts = (PAGE.parent / "alerts.yml").read_text()
    panels = json.loads((PAGE.parent / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    for used in (alerts, " ".join(queries)):
        assert {*re.findall("shardkit_[a-z_]+", used)} <= measured
    rules = [{"record": f"q{n}", "expr": query} for n, query in enumerate(queries)]
    grouped = json.dumps({"groups": [{"name": "queries", "rules": rules}]})
    (tmp_path / "queries.yml").write_text(grouped)
    (tmp_path / "alerts.yml").write_text(alerts)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    checked_by_promtool("check", "rules", str(tmp_path / "queries.yml"))
    checked_by_promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


def test_keys_are_shown_only_behind_a_token_and_each_look_is_logged(
    shown: Shown, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.get("/api/keys/users").status_code == 404
    with pytest.raises(InvalidArgumentError, match="without a token"):
        opened(shown, browse_keys=True)
    browser = opened(shown, browse_keys=True, token="right")
    browser.headers["Authorization"] = "Bearer right"
    shown.kit.hash("carts", component="users", codec="json").hset("a", {"x": 1})
    shown.kit.key_sharded("users").set("soon", b"\xff", ex=60)
    [cart] = answer(browser, "/api/keys/users?pattern=carts:*[0-9]")["keys"]
    assert (cart["type"], cart["expires"]) == ("hash", None)
    place = f"place={cart['place']}&key={cart['id']}"
    value = answer(browser, f"/api/keys/users/value?{place}")
    assert (value["structure"], value["note"]) == ("carts", "decoded by json")
    assert value["value"] == [["a", {"x": 1}]]
    [soon] = answer(browser, "/api/keys/users?pattern=soon")["keys"]
    assert 50 < soon["expires"] <= 60
    place = f"place={soon['place']}&key={soon['id']}"
    assert answer(browser, f"/api/keys/users/value?{place}")["value"] == "\\xff"
    shown.kit.key_sharded("users").rpush("large", *["x" * 1_000_000] * 20)
    shown.kit.key_sharded("users").set("n" * 400_000, "")
    large = answer(browser, "/api/keys/users?pattern=large")["keys"][0]
    many = answer(browser, f"/api/keys/users/value?place={large['place']}&key={large['id']}")
    assert (1 <= len(many["value"]) <= 5, len(many["value"][0])) == (True, 65_537)
    [long] = answer(browser, "/api/keys/users?pattern=nnn*")["keys"]
    assert (long["key"], long["id"]) == ("n" * 300 + "…", "")
    gone = answer(browser, f"/api/keys/users/value?place={long['place']}&key=")
    assert gone["value"] is None
    shown.kit.key_sharded("users").delete("large", "n" * 400_000)
    looks = [record.__dict__["shardkit"] for record in caplog.records]
    assert [(each["event"], each["component"]) for each in looks] == [
        ("dashboard-keys-read", "users")
    ] * 8
    assert looks[1]["query"]["key"] == cart["id"]
    found, cursor = set(), ""
    while True:
        page = answer(browser, f"/api/keys/users?pattern=user:*&cursor={cursor}")
        found |= {each["key"] for each in page["keys"]}
        if not (cursor := page["cursor"]):
            break
    assert found == {f"user:{n}" for n in range(200)}
    for path in ("none", "users?cursor=9:0", "users?cursor=x", "users/value?place=99&key=YQ=="):
        assert browser.get(f"/api/keys/{path}").status_code in (400, 404)


def test_every_view_is_the_page_with_a_strict_policy(client: TestClient) -> None:
    for view in VIEWS:
        response = client.get(view.format(name="users", address="a"))
        assert "dashboard.js" in response.text
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
    assert client.get("/files/dashboard.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/files/..%2Ffleet.py").status_code == 404


def test_a_name_of_another_site_is_refused(shown: Shown) -> None:
    app = application(shown.fleet, hosts=("127.0.0.1",))
    assert TestClient(app, base_url="http://evil.example").get("/").status_code == 400


def test_a_token_is_asked_for_everywhere(shown: Shown, lower: Callable[..., None]) -> None:
    lower(dashboard_refusal=0)
    for path in ("/", "/api/overview", "/api/events", "/metrics", "/files/dashboard.js"):
        for wrong in ("", "?token=wrong"):
            response = opened(shown, token="right").get(f"{path}{wrong}")
            assert (response.status_code, response.text) == (401, "refused\n")
    bearer = {"Authorization": "Bearer right"}
    assert opened(shown, token="right").get("/api/overview", headers=bearer).status_code == 200
    person = opened(shown, token="right")
    first = person.get("/?token=right", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert "httponly" in first.headers["set-cookie"].lower()
    assert person.get("/api/overview").status_code == 200


def test_a_wrong_token_waits_before_it_is_refused(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("shardkit.dashboard.app.asyncio", SimpleNamespace(sleep=sleep))
    client = opened(shown, token="right")
    assert client.get("/?token=right").status_code == 200
    assert pauses == []
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 200
    assert pauses == [1.0]


def test_keys_of_shards_that_answer_are_shown_while_a_server_is_down(shown: Shown) -> None:
    browser = opened(shown, browse_keys=True, token="right")
    browser.headers["Authorization"] = "Bearer right"
    down = shown.server(1)
    dead = {
        row["shard"]
        for row in shown.fleet.shards_of(shown.kit.component("users"))
        if row["server"] == down.address
    }
    assert dead
    down.kill()
    try:
        keys, failed, cursor = set[str](), set[str](), "0:0"
        while cursor:
            page = answer(browser, f"/api/keys/users?pattern=*&cursor={cursor}")
            keys |= {each["shard"] for each in page["keys"]}
            failed |= page["failed"].keys()
            cursor = page["cursor"]
    finally:
        down.restart()
    until(lambda: all(each.state == "up" for each in shown.fleet.servers.values()))
    assert failed == dead
    assert keys
    assert not keys & dead


async def test_servers_and_shards_can_be_sorted_and_filtered(shown: Shown) -> None:
    application = dashboard._application(shown.fleet, 0.1)  # no terminal: Textual's own pilot
    async with application.run_test(size=(100, 30)) as pilot:
        table = application.query_one(DataTable)
        assert table.row_count == 3
        assert "3 of 3 servers up" in str(application.query_one("#line", Static).content)
        await pilot.press("t")
        assert table.row_count == 9
        await pilot.press("right", "right", "right", "right", "r")
        keys = [int(str(table.get_row_at(n)[4]).replace(",", "")) for n in range(9)]
        assert keys == sorted(keys, reverse=True)
        await pilot.press("slash", *"users:3")
        assert [str(table.get_row_at(0)[0])] == ["users:3"]
        assert table.row_count == 1
        await pilot.press("enter", "escape")
        assert (table.row_count, application.query_one(Input).value) == (9, "")
        await pilot.press("q")


async def test_an_error_of_the_table_is_the_commands(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual would show the values of all variables."""
    application = dashboard._application(shown.fleet, 0.1)
    async with application.run_test(size=(100, 30)) as pilot:
        monkeypatch.setitem(shown.fleet.servers, "broken:1", None)
        await pilot.press("r")
    assert isinstance(application.return_value, AttributeError)


def test_without_a_terminal_it_refuses_to_run(shown: Shown) -> None:
    result = CliRunner().invoke(app, ["top", "-c", shown.url, "--interval", "0.2"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no terminal to show servers in: use --json; see shardkit top" in result.stderr


def test_json_is_one_answer_of_all_servers(shown: Shown) -> None:
    result = CliRunner().invoke(app, ["top", "-c", shown.url, "--interval", "0.2", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert [each["state"] for each in answer["servers"]] == ["up"] * 3
    assert len(answer["shards"]) == 9
    assert "a-secret" not in result.stdout


def test_the_dashboard_command_is_interrupted_with_a_hundred_pages_open(shown: Shown) -> None:
    command = [sys.executable, "-m", "shardkit", "dashboard", "--port", "0"]
    environment = {**os.environ, "SHARDKIT_CONFIG": shown.url, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0].decode()
        with ExitStack() as stack:
            for _ in range(100):
                events = stack.enter_context(urlopen(f"{url}api/events", timeout=30))
                assert events.readline().startswith(b"data: ")
            process.send_signal(signal.SIGINT)
            assert process.wait(20 * PATIENCE) == 0


def answered(watch: FleetWatch, view: str) -> Any:
    """What the dashboard's API answers."""
    client = TestClient(application(watch), base_url="http://127.0.0.1")
    return client.get(f"/api/{view}").json()


def test_a_server_that_ends_and_comes_back_is_noted_once_each() -> None:
    with shown_fleet() as shown:
        server, fleet = shown.server(0), shown.fleet
        server.kill()
        until(lambda: fleet.servers[server.address].state == "down")
        until(lambda: json.loads(fleet.summary)["components"][1]["down"] == 4)
        server.restart()
        until(lambda: fleet.servers[server.address].state == "up")
        texts = [each["text"] for each in fleet.events if each["where"] == server.address]
        assert texts[0] == "answers again"
        assert len(texts) == 2
        assert texts[1].startswith("does not answer: ")


def test_charts_of_a_day_survive_a_restart_and_begin_with_their_first_sample(
    tmp_path: Path, lower: Callable[..., None]
) -> None:
    lower(dashboard_step=1.0)
    path = tmp_path / "state" / "history.json"
    with shown_fleet() as shown:
        address = shown.server(0).address
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as fleet:
            totals = fleet.overview()["totals"]
            until(lambda: len(fleet.overview()["day"]["at"]) >= 2)
            assert all(fleet.overview()["totals"]["memory"])
        assert totals["at"] == [] or all(totals["memory"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)  # for those who read it, too
        written = path.stat().st_ino
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as again:
            assert min(again.overview()["day"]["memory"]) > 1_000_000
            until(lambda: address in again.servers and again.servers[address].samples)
            until(lambda: path.stat().st_ino != written)
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            view = answered(again, f"servers/{quote(address, safe='')}")
            assert view["samples"]["at"] == sorted(view["samples"]["at"])
            assert view["samples"]["at"][0] == view["day"]["at"][0]
        kept = path.read_text()
        first = json.loads(kept)["servers"][address][0][0]
        path.write_text(kept.replace(str(first), '"soon"', 1))
        with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as damaged:
            assert first not in damaged.history.columns(address)["at"]
        for wrong in ("not this", "[" * 100_000, kept.replace('"format":1', '"format":2')):
            path.write_text(wrong)
            with closing(FleetWatch(shown.kit, interval=0.2, history=path)) as empty:
                assert empty.overview()["day"]["at"] == []
        path.unlink()
        os.mkfifo(path)  # reading it would hang
        FleetWatch(shown.kit, interval=0.2, history=path).close()


def test_a_server_that_hangs_delays_nothing_else() -> None:
    with shown_fleet() as shown:
        server, fleet = shown.server(0), shown.fleet
        other = fleet.servers[shown.server(1).address]
        with paused(server):
            until(lambda: fleet.servers[server.address].state == "down")
            before = len(other.samples)
            until(lambda: len(other.samples) >= before + 5)
            assert other.state == "up"
        until(lambda: fleet.servers[server.address].state == "up")


def test_a_config_server_that_is_away_is_a_banner_over_what_is_known() -> None:
    with shown_fleet() as shown:
        assert shown.servers.config_server is not None
        shown.servers.config_server.kill()
        until(lambda: json.loads(shown.fleet.summary)["banner"])
        summary = json.loads(shown.fleet.summary)
        assert len(summary["components"]) == 2
        assert sum(each["state"] == "up" for each in summary["servers"]) == 2
        shown.servers.config_server.restart()  # without its data
        until(lambda: "went back in time" in json.loads(shown.fleet.summary)["banner"])
        assert len(shown.fleet.components) == 2
        assert len(shown.fleet.servers) == 3
        with shown.servers.config_server.client() as client:
            push(client, shown.servers.shard_map)
        until(lambda: not json.loads(shown.fleet.summary)["banner"])
        assert len(shown.fleet.components) == 2


def test_a_cluster_is_shown_by_node_even_when_one_is_away() -> None:
    with (
        LocalCluster(replicas_per_master=1) as cluster,
        shardkit.connect(map_of(wide={"entry": cluster.entry.fields})) as kit,
        closing(FleetWatch(kit, interval=0.2)) as fleet,
    ):
        kit.client("wide").set("k", "v")
        until(lambda: any(each.nodes for each in fleet.servers.values()))
        [server] = fleet.servers.values()
        roles = ["master"] * 3 + ["replica"] * 3
        until(lambda: [each["role"] for each in server.nodes] == roles)
        until(lambda: all(each["state"] == "up" for each in server.nodes))
        until(lambda: sum(each["keys"] for each in server.nodes[:3]) == 1)
        assert sum(each["slots"] or 0 for each in server.nodes) == 16384
        for view in ("components/wide", f"servers/{quote(server.address, safe='')}"):
            assert len(answered(fleet, view)["nodes"]) == 6
        cluster.nodes[5].kill()
        until(lambda: "down" in {each["state"] for each in server.nodes})
        with cluster.nodes[0].client() as asked:
            failed = "slave,fail"
            until(lambda: failed in [n["flags"] for n in asked.cluster("NODES").values()])
        with closing(FleetWatch(kit, interval=0.2)) as later:
            until(lambda: any(len(each.nodes) == 5 for each in later.servers.values()))
            assert [each["role"] for each in server.nodes] == roles
            assert server.state == "up"
            cluster.nodes[5].restart()
            [beside] = later.servers.values()
            for each in (server, beside):
                until(lambda each=each: [node["state"] for node in each.nodes] == ["up"] * 6)
