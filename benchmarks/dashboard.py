"""Measure the dashboard over a thousand shards on 64 servers: ``python benchmarks/dashboard.py``.

In Debian's chromium, by its own figures: when a view is painted first, when it shows all its rows,
what was sent, and the processor time of the page; that of the dashboard's process; and how many
commands servers executed with 1 and with 100 pages open. Needs chromium and chromium-driver.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent))

from report import conditions, save, show
from selenium import webdriver

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.local import LocalServers

SERVERS, SHARDS, PAGES = 64, 1000, 100
SECONDS = 60  # two checks of all servers
VIEWS = {"overview": "/", "component": "/components/shop", "heat": "/heat"}
_TICKS = os.sysconf("SC_CLK_TCK")


def shard_map() -> ShardMap:
    """Return the map of a thousand shards."""
    over = ", ".join(f"{{port: {7001 + n}}}" for n in range(SERVERS))
    shop = f"{{shards: {{count: {SHARDS}, over: [{over}]}}}}"
    return ShardMap.parse(f"config_server: {{port: 7000}}\ncomponents:\n  shop: {shop}\n")


@contextmanager
def dashboard(url: str) -> Iterator[tuple[str, int]]:
    """Run the command; give its address and its process."""
    command = [sys.executable, "-m", "shardkit", "dashboard", "--port", "0", "-c", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        site = process.stdout.readline().split()[0].decode().rstrip("/")
        try:
            until = time.monotonic() + 120
            while time.monotonic() < until:
                summary = json.loads(urlopen(f"{site}/api/overview").read())
                servers = summary["servers"]
                if len(servers) > SERVERS and all(each["state"] == "up" for each in servers):
                    break
                time.sleep(1)
            yield site, process.pid
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser that logs what it is sent."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        yield browser


def processor(pid: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def busy(browser: Any) -> float:
    """Return the processor time of the page's main thread, in seconds."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


def received(browser: Any) -> int:
    """Return the bytes that were sent to the page since the last call."""
    messages = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    sizes: dict[str, int] = {}  # what has not ended, such as events, is not compressed
    for each in messages:
        about = each["params"]
        if each["method"] == "Network.dataReceived":
            sizes[about["requestId"]] = sizes.get(about["requestId"], 0) + about["dataLength"]
    for each in messages:
        if each["method"] == "Network.loadingFinished":
            sizes[each["params"]["requestId"]] = int(each["params"]["encodedDataLength"])
    return sum(sizes.values())


def opened(browser: Any, url: str, pid: int) -> dict[str, float]:
    """Open a view with an empty cache, and return Chromium's figures."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCache", {})
    received(browser)
    before = processor(pid)
    browser.get(url)
    ready = browser.execute_async_script(
        "const done = arguments[0];"
        "const look = () => document.querySelector('#view h2, #view .note')"
        " && !document.querySelector('#view').innerText.startsWith('Asking')"
        " ? done(performance.now()) : requestAnimationFrame(look); look()"
    )
    timing = browser.execute_script(
        "const paint = performance.getEntriesByName('first-contentful-paint')[0];"
        "return [paint ? paint.startTime : null, performance.timing.domInteractive"
        " - performance.timing.navigationStart]"
    )
    used = busy(browser), processor(pid) - before
    time.sleep(0.5)
    return {
        "first paint, ms": timing[0],
        "DOM interactive, ms": timing[1],
        "rows shown, ms": ready,
        "page, ms of a core": 1000 * used[0],
        "process, ms of a core": 1000 * used[1],
        "KB sent": received(browser) / 1000,
        "elements": browser.execute_script("return document.querySelectorAll('*').length"),
    }


def look(site: str, stop: threading.Event) -> None:
    """Be one more page: read events, and ask for a view every five seconds."""
    with urlopen(f"{site}/api/events") as events:
        while not stop.is_set():
            events.readline()
            if stop.is_set():
                return


def ask(site: str, stop: threading.Event) -> None:
    """Ask for a view as a page does."""
    while not stop.wait(5):
        urlopen(f"{site}/api/components/shop").read()


def commands(servers: LocalServers) -> int:
    """Return how many commands all data servers have executed."""
    total = 0
    for n in range(SERVERS):
        with servers.server_of("shop", n).client() as client:
            total += client.info("stats")["total_commands_processed"]
    return total


def watched(servers: LocalServers, site: str, pid: int, browser: Any) -> dict[str, float]:
    """Return what a time of looking costs everybody."""
    received(browser)
    before = commands(servers), processor(pid), busy(browser), time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - before[3]
    return {
        "commands/s of a server": (commands(servers) - before[0]) / seconds / SERVERS,
        "process, % of a core": 100 * (processor(pid) - before[1]) / seconds,
        "page, % of a core": 100 * (busy(browser) - before[2]) / seconds,
        "KB/s to a page": received(browser) / seconds / 1000,
    }


def main() -> None:
    with LocalServers(shard_map(), ports="free") as servers:
        assert servers.config_server is not None
        assert servers.shard_map.config_server is not None
        url = servers.shard_map.config_server.url()
        with servers.config_server.client() as client:
            push(client, servers.shard_map)
        with shardkit.connect(url, heat=1) as kit:
            router = kit.key_sharded("shop")
            router.mset({f"item:{n}": "1" for n in range(20_000)})
            router.mget([f"item:{n}" for n in range(20_000)])
        with dashboard(url) as (site, pid), chromium() as browser:
            time.sleep(35)  # past its first check of all servers
            views = {}
            for name, path in VIEWS.items():
                views[name] = opened(browser, site + path, pid)
                time.sleep(10)  # what a component is made of is found out meanwhile
            browser.get(site)
            time.sleep(10)
            load = {"idle, 1 page": watched(servers, site, pid, browser)}
            stop = threading.Event()
            threads = [
                threading.Thread(target=work, args=(site, stop), daemon=True)
                for work in (look, ask) * (PAGES - 1)
            ]
            for thread in threads:
                thread.start()
            time.sleep(5)
            load["idle, 100 pages"] = watched(servers, site, pid, browser)
            stop.set()
            with shardkit.connect(url) as kit:
                router, over = kit.key_sharded("shop"), threading.Event()

                def use() -> None:
                    while not over.is_set():
                        router.mget([f"item:{n}" for n in range(2000)])

                user = threading.Thread(target=use)
                user.start()
                load["busy, 1 page"] = watched(servers, site, pid, browser)
                over.set()
                user.join()
    for title, figures in ("A thousand shards on 64 servers", views), ("While looking", load):
        columns = [title, *next(iter(figures.values()))]
        show(title, columns, [[name, *row.values()] for name, row in figures.items()])
    save("dashboard", {"conditions": conditions(), "views": views, "looking": load})


if __name__ == "__main__":
    main()
