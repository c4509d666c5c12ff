from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cli_helpers import Result

import shardkit

Cli = Callable[..., Result]


def test_who_holds_and_waits_is_shown_and_holds_are_ended(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit, ThreadPoolExecutor(1) as pool:
        stock = kit.lock("stock", component="unique", label="first", renew=False)
        held = stock.acquire()
        assert held is not None
        assert kit.semaphore("pages", component="followers", limit=2, label="reader").acquire()
        second = kit.lock("stock", component="unique", label="second")
        waiting = pool.submit(second.acquire)
        while not stock.inspect().waiters:
            pass
        rows = json.loads(cli("locks", "show", "-c", town_map, "--json").out)
        assert [(r["component"], r["kind"], r["name"], r["state"], r["who"]) for r in rows] == [
            ("followers", "semaphore", "pages", "holds", "reader"),
            ("unique", "lock", "stock", "holds", "first"),
            ("unique", "lock", "stock", "waits", "second"),
        ]
        assert rows[1]["token"] == held.token
        shown = cli("locks", "show", "unique", "-c", town_map).out
        assert "first" in shown
        assert "reader" not in shown
        arguments = ("locks", "break", "unique", "stock", "--reason", "gone", "-c", town_map)
        assert cli(*arguments).out == "1 hold of lock 'stock' ended\n"
        assert waiting.result(20) is not None
        assert stock.extend(hold=held) is False
        assert cli("locks", "break", "unique", "nothing", "--reason", "x", "-c", town_map).code == 1
    assert cli("locks", "break", "unique", "stock", "-c", town_map).code == 2
