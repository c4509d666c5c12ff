"""The page in Debian's chromium: every view, live, on a phone, with hostile names."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fleets import HOSTILE, Shown, until

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.dashboard import FleetWatch, application
from shardkit.local import LocalServers

selenium = pytest.importorskip("selenium.webdriver")
uvicorn = pytest.importorskip("uvicorn")
if not (shutil.which("chromium") and shutil.which("chromedriver")) and "CI" not in os.environ:
    pytest.skip("needs chromium and chromium-driver", allow_module_level=True)

PICTURES = os.environ.get("BROWSER_SHOTS")


@contextmanager
def served(fleet: FleetWatch) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application(fleet, allow_changes=True, browse_keys=True, token="right"),
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def site(shown: Shown, browser: Any) -> Iterator[str]:
    with served(shown.fleet) as url:
        browser.get(f"{url}/?token=right")  # sets a cookie, for all ports
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = selenium.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(shutil.which("chromedriver"))
    with selenium.Chrome(options=options, service=service) as browser:
        yield browser


def sized(browser: Any, width: int, *, dark: bool = False) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def text(browser: Any) -> str:
    return str(browser.execute_script("return document.getElementById('view')?.innerText ?? ''"))


VIEWS = {  # each view's path, and what it shows
    "overview": ("/", "{address}"),
    "component": ("/components/users", "From a sample of"),
    "server": ("/servers/{quoted}", "CPU, share of a core"),
    "slow": ("/slow", "report:2026-11"),
    "queues": ("/queues?component=jobs&queue=email", "ValueError"),
    "heat": ("/heat", "hot:19"),
    "metrics": ("/recorded", "page:/, a minute"),
    "locks": ("/locks", HOSTILE),
    "growth": ("/growth", "Nothing moves"),
    "configuration": ("/configuration", "users:7"),
    "keys": ("/keys?component=users&pattern=user:*", "user:"),
}


@pytest.mark.parametrize("width", [2560, 1280, 360])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_fits_and_shows_its_answer(
    browser: Any, site: str, shown: Shown, view: str, width: int
) -> None:
    address = shown.server(0).address
    places = {"address": address, "quoted": quote(address, safe="")}
    path, expected = (text.format(**places) for text in VIEWS[view])
    for dark in (False, True):
        sized(browser, width, dark=dark)
        browser.get(site + path)
        until(lambda: expected in text(browser))
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        if PICTURES:
            name = f"dashboard-{view}-{width}-{'dark' if dark else 'light'}.png"
            browser.save_screenshot(str(Path(PICTURES) / name))
    # A blocked script or style is an error in the log, as is a hostile name that was run.
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []


def test_names_from_outside_are_text(browser: Any, site: str) -> None:
    sized(browser, 1280)
    paths = ("/locks", "/queues?component=jobs&queue=email", f"/components/{quote(HOSTILE)}")
    for path in (*paths, "/heat", "/recorded"):
        browser.get(site + path)
        until(lambda: text(browser) and "Asking" not in text(browser))
        assert browser.execute_script("return document.querySelectorAll('img').length") == 0


def test_a_server_that_ends_is_seen_while_somebody_looks(
    browser: Any, site: str, shown: Shown
) -> None:
    sized(browser, 1280)
    browser.get(site + "/")
    until(lambda: "All is well" in text(browser))
    server = shown.server(1)
    server.kill()
    try:
        until(lambda: "4 shards cannot be used: 1 server down" in text(browser))
        until(lambda: browser.title.startswith("4 shards cannot be used"))
        until(lambda: "start it, or correct the entry" in text(browser))
        shown_text = text(browser)
        assert shown_text.index("cannot be reached") < shown_text.index("Commands a second")
        assert browser.execute_script(
            "return document.querySelector('h1 .bad').innerText"
        ) == shown_text.splitlines()[0].removeprefix("● ")
        to_its_place = "document.querySelector(\"td.wrap a[href^='/servers/']\").click()"
        browser.execute_script(to_its_place)  # a found element may be drawn again
        until(lambda: "It has not answered since" in text(browser))
        assert "start it, or correct the entry" in text(browser)  # on its own page, too
        browser.get(site + "/")
    finally:
        server.restart()
    until(lambda: "All is well" in text(browser) and "3 of 3" in text(browser))
    until(lambda: browser.title == "Overview · shardkit")
    assert "answers again" in text(browser)


def test_tables_sort_by_the_keyboard_and_keep_the_focus(browser: Any, site: str) -> None:
    sized(browser, 1280)
    browser.get(site + "/components/users")
    until(lambda: "users:7" in text(browser))
    for first in ("users:0", "users:7"):
        # The page draws itself again at any time: an element that was found may be gone.
        browser.execute_script("document.querySelector(\"[data-key='shards:0']\").focus()")
        selenium.ActionChains(browser).send_keys("\n").perform()
        assert (
            browser.execute_script(
                "const button = document.activeElement; return button.dataset.key + ' ' + "
                "button.closest('table').querySelector('tbody td').innerText"
            )
            == f"shards:0 {first}"
        )


def test_a_dead_task_is_revived_by_its_button(browser: Any, site: str, shown: Shown) -> None:
    sized(browser, 1280)
    browser.get(site + "/queues?component=jobs&queue=email")
    until(lambda: "Revive" in text(browser))
    browser.execute_script("document.querySelector('button.action').click()")
    until(lambda: "No dead task is left" in text(browser))
    assert shown.kit.queues(component="jobs").counts("email").dead == 0


def test_what_does_not_exist_says_so(browser: Any, site: str) -> None:
    sized(browser, 360)
    for path in ("/components/none", "/servers/none"):
        browser.get(site + path)
        until(lambda: "There is nothing of that name." in text(browser))
        assert browser.execute_script("return document.documentElement.scrollWidth") == 360


def test_a_plan_of_moves_is_asked_for_by_the_keyboard(browser: Any, site: str) -> None:
    sized(browser, 1280)
    browser.get(site + "/heat")
    until(lambda: "Plan moves" in text(browser))
    browser.execute_script("document.querySelector(\"[data-key='plan']\").focus()")
    selenium.ActionChains(browser).send_keys("\n").perform()
    until(lambda: "times the mean now" in text(browser))
    assert "afterwards" in text(browser)


def test_a_config_server_that_is_away_is_a_banner(browser: Any, site: str, shown: Shown) -> None:
    sized(browser, 360)
    browser.get(site + "/")
    until(lambda: "3 of 3" in text(browser))
    assert shown.servers.config_server is not None
    banner = "return document.getElementById('banner').innerText"
    shown.servers.config_server.kill()
    try:
        until(lambda: "config server cannot be read" in str(browser.execute_script(banner)))
        assert "users" in text(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 360
    finally:
        shown.servers.config_server.restart()
    until(lambda: "went back in time" in str(browser.execute_script(banner)))
    assert "users" in text(browser)
    with shown.servers.config_server.client() as client:
        push(client, shown.servers.shard_map)
    until(lambda: not browser.execute_script(banner) and "3 of 3" in text(browser))


def test_a_dashboard_that_ends_is_seen_and_the_page_stays(browser: Any, shown: Shown) -> None:
    sized(browser, 1280)
    with served(shown.fleet) as site:
        browser.get(site + "/")
        until(lambda: "3 of 3" in text(browser))
    state = "return document.getElementById('state').innerText"
    until(lambda: "connection lost" in str(browser.execute_script(state)))
    assert "3 of 3" in text(browser)


def test_a_thousand_shards_are_drawn_in_part_and_searched_whole(browser: Any) -> None:
    over = "[{port: 7001}, {port: 7002}]"
    shard_map = ShardMap.parse(f"components:\n  wide: {{shards: {{count: 1000, over: {over}}}}}\n")
    with (
        LocalServers(shard_map, ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):
        kit.key_sharded("wide").set("k", "v")
        with closing(FleetWatch(kit, interval=0.5)) as fleet, served(fleet) as site:
            sized(browser, 360)
            browser.get(site + "/components/wide")
            until(lambda: "Show all 1,000" in text(browser))
            assert "wide:999" not in text(browser)
            browser.execute_script("document.querySelector(\"[data-key='shards:filter']\").focus()")
            selenium.ActionChains(browser).send_keys("wide:999").perform()
            until(lambda: "wide:999" in text(browser))
            assert "wide:998" not in text(browser)
            assert browser.execute_script("return document.documentElement.scrollWidth") == 360
            browser.get(site + "/")
            until(lambda: "crc32" in text(browser))
