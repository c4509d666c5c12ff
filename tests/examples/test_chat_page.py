"""The chat page: two users over WebSockets and in browsers; a server is killed and comes back."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faces
import pytest
from faces import free_port

from shardkit import ShardMap
from shardkit.local import LocalServers

client = pytest.importorskip("websockets.sync.client")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
MAP = """
components: {timelines: {shards: {count: 4, over: [{port: 7001}, {port: 7002}]}}}
"""


def eventually(done: Callable[[], Any]) -> None:
    assert faces.eventually(done, 30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(port: int, chat_map: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A chat server that is ready."""
    command = [sys.executable, "-m", "uvicorn", "examples.chat_page:app", "--port", str(port)]
    environment = {**os.environ, "SHARDKIT_CONFIG": str(chat_map)}
    process = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=environment)
    try:
        assert faces.eventually(lambda: listens(port), 60)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def chat_map(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        path = tmp_path_factory.mktemp("chat") / "map.yaml"
        path.write_text(servers.shard_map.to_yaml(), encoding="utf-8")
        yield path


def test_users_talk_and_a_server_that_is_killed_and_comes_back_loses_nothing(
    chat_map: Path,
) -> None:
    port = free_port()

    def connect(user: str) -> Any:
        return connected(port, "lunch", user)

    def send(connection: Any, text: str) -> None:
        connection.send(json.dumps({"key": text, "text": text}))

    def receive(connection: Any, seen: set[str]) -> str:
        """The next message that was not seen yet, as the page shows it."""
        while True:
            message = json.loads(connection.recv(timeout=30))
            if message["body"]["key"] not in seen:
                seen.add(message["body"]["key"])
                return f"{message['sender']}: {message['body']['text']}"

    seen: dict[str, set[str]] = {"anna": set(), "ben": set()}
    with serving(port, chat_map) as server, connect("anna") as anna:
        send(anna, "first")
        assert receive(anna, seen["anna"]) == "anna: first"
        with connect("ben") as ben:
            assert receive(ben, seen["ben"]) == "anna: first"
            send(anna, "second")
            for user, connection in (("anna", anna), ("ben", ben)):
                assert receive(connection, seen[user]) == "anna: second"
        send(anna, "third, while ben is away")
        assert receive(anna, seen["anna"]) == "anna: third, while ben is away"
        server.kill()
        server.wait()
    with serving(port, chat_map), connect("ben") as ben, connect("anna") as anna:
        assert receive(ben, seen["ben"]) == "anna: third, while ben is away"
        send(ben, "back")
        assert receive(anna, seen["anna"]) == "ben: back"
        assert receive(ben, seen["ben"]) == "ben: back"


# ---- the page in a browser


SIZES = {"phone": (360, 640), "tablet": (820, 1180), "desktop": (1440, 900)}
SHOTS = os.environ.get("BROWSER_SHOTS")  # where to save pictures of the page; see `make browser`


@contextmanager
def browsing(width: int, height: int) -> Iterator[Any]:
    """A headless browser; the test is skipped if there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    service = webdriver.ChromeService(executable_path=paths[1])
    browser = webdriver.Chrome(options=options, service=service)
    try:
        # The window of a desktop browser cannot be as narrow as a phone.
        view = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
        yield browser
    finally:
        browser.quit()


class ChatTab:
    """The chat page of a user, in a browser."""

    def __init__(self, browser: Any, port: int, chat: str, user: str) -> None:
        self.browser = browser
        browser.get(f"http://127.0.0.1:{port}/?chat={chat}&user={user}")

    def say(self, text: str) -> None:
        self.browser.find_element("id", "text").send_keys(text + "\n")

    def shows(self, *messages: str) -> bool:
        """Whether these are the messages, all of them said by the chat."""
        found = self.browser.execute_script(
            "return [...document.querySelectorAll('li:not(.waiting)')]"
            ".map(item => item.innerText.replace('\\n', ': '))"
        )
        return list(messages) == found

    def state(self) -> str:
        text: str = self.browser.find_element("id", "state").text
        return text

    def misfits(self) -> list[str]:
        """What does not fit: text that is cut off, parts outside of the window or over others."""
        found: list[str] = self.browser.execute_script("""
            const wrong = [], width = document.documentElement.clientWidth
            if (document.documentElement.scrollWidth > width) wrong.push("wider than the window")
            const boxes = [...document.querySelectorAll("header, #messages, form")]
              .map(part => part.getBoundingClientRect())
            if (boxes[2].bottom > innerHeight + 1) wrong.push("the form is below the window")
            for (let n = 1; n < 3; n++)
              if (boxes[n].top < boxes[n - 1].bottom - 1) wrong.push("parts overlap")
            for (const part of document.querySelectorAll("li, input, button, #state")) {
              const box = part.getBoundingClientRect()
              if (box.left < 0 || box.right > width) wrong.push(part.outerHTML)
              if (part.scrollWidth > part.clientWidth + 1 && part.tagName !== "INPUT")
                wrong.push("cut off: " + part.outerHTML)
            }
            const last = document.querySelector("li:last-child"), list = boxes[1]
            if (last && last.getBoundingClientRect().bottom > list.bottom + 1)
              wrong.push("the last message is not in view")
            return wrong
        """)
        return found


def test_two_users_talk_in_browsers_while_the_server_is_killed_and_comes_back(
    chat_map: Path,
) -> None:
    port = free_port()
    with browsing(*SIZES["phone"]) as browser, serving(port, chat_map) as server:
        anna = ChatTab(browser, port, "trip", "anna")
        eventually(lambda: anna.state() == "connected")
        anna.say("hello")
        eventually(lambda: anna.shows("anna: hello"))
        with browsing(*SIZES["desktop"]) as other:
            ben = ChatTab(other, port, "trip", "ben")
            eventually(lambda: ben.shows("anna: hello"))
            ben.say("hi <b>anna</b>")
            said = ["anna: hello", "ben: hi <b>anna</b>"]

            def both_show() -> bool:
                return anna.shows(*said) and ben.shows(*said)

            eventually(both_show)
            server.kill()
            server.wait()
            eventually(lambda: anna.state() == ben.state() == "connecting")
            anna.say("while nobody serves")
            assert anna.shows(*said)
            with serving(port, chat_map):
                said.append("anna: while nobody serves")
                eventually(both_show)
                browser.refresh()
                eventually(lambda: anna.shows(*said))
                ben.say("one more")
                said.append("ben: one more")
                eventually(both_show)
            assert anna.misfits() == ben.misfits() == []


@pytest.mark.skipif(not SHOTS, reason="make browser")
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_every_window(chat_map: Path, size: str) -> None:
    port = free_port()
    lines = ["Shall we have lunch?", "Yes: at noon, where we were last week.", "x" * 200]
    with serving(port, chat_map), browsing(*SIZES[size]) as browser:
        anna, chat = ChatTab(browser, port, size, "anna"), f"a-long-name-of-a-chat-{size}" * 3
        for opened in (size, chat):
            anna = ChatTab(browser, port, opened, "anna")
            eventually(lambda tab=anna: tab.state() == "connected")
            with connected(port, opened, "ben") as ben:
                for n in range(4):
                    for text in lines:
                        ben.send(json.dumps({"key": f"{n}{text}", "text": f"{text} ({n})"}))
                    anna.say("a\u00e4 \u65e5\u672c\u8a9e " * n + "fine")
            eventually(lambda: len(browser.find_elements("css selector", "li:not(.waiting)")) == 16)
            assert anna.misfits() == []
            browser.save_screenshot(str(Path(SHOTS or ".") / f"chat-{opened[:12]}-{size}.png"))


def connected(port: int, chat: str, user: str) -> Any:
    return client.connect(f"ws://127.0.0.1:{port}/ws/{chat}/{user}", open_timeout=30)
