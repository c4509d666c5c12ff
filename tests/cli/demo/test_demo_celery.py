"""``shardkit demo celery``: no task is lost while queues move and a worker is killed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from faces import PATIENCE

from shardkit.cli.app import app

pytestmark = pytest.mark.timeout(120 * PATIENCE)


def test_no_task_is_lost_while_queues_move_and_a_worker_is_killed() -> None:
    pytest.importorskip("celery")
    result = CliRunner().invoke(app, ["demo", "celery", "--tasks", "400", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["sent"], report["ran"], report["lost"]) == (400, 400, 0)
    assert report["again"] <= 8  # what the killed worker had
    assert report["moved"][1] > report["moved"][0]
