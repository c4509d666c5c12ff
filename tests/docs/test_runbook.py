"""Every task of the runbook is typed literally, in order, on embedded servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from runbook import RunbookFleet, tasks

import shardkit
from shardkit import admin


def test_the_thirteen_tasks_of_the_runbook_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(admin.rotate.__kwdefaults__, "settled", 0.1)
    found = tasks()
    assert [int(heading.partition(".")[0]) for heading in found] == list(range(1, 14))
    assert all(found.values())
    with RunbookFleet(tmp_path) as fleet:
        fleet.shardkit("config", "push", "configs/production.yaml")
        with shardkit.connect(fleet.url) as kit:
            kit.set("numbers", component="unique", total=1000, members=int).sadd_many(range(1000))
            kit.queues(component="work").enqueue_many("mail", [("send", [n]) for n in range(50)])
            kit.key_sharded("sessions").mset({f"s:{n}": n for n in range(30)})
        for lines in found.values():
            for line in lines:
                fleet.type(line)
        output = "\n".join(fleet.output)
        assert "takes over, and what it had not received of the writes" in output
        assert "30 keys were deleted" in output
        assert "take only the new password" in output
        with shardkit.connect(fleet.url) as kit:
            assert kit.set("numbers", component="unique", total=1000, members=int).scard() == 1000
            assert kit.queues(component="work").length("mail") == 50
            assert "sessions" not in kit.components()
