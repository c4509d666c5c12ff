"""``shardkit status --check``: one line and an exit code, for probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardkit.local import LocalServer

Cli = Callable[..., Any]


def map_of(path: Path, **components: Any) -> Path:
    path.write_text(json.dumps({"components": components}))
    return path


def test_one_line_says_ok_warning_or_critical(
    cli: Cli, tmp_path: Path, own_server: LocalServer
) -> None:
    port = own_server.port
    good = {"entry": {"port": port}}
    shared = {"shards": [{"port": port, "db": 1}, {"port": port, "db": 1}]}
    dead = {"entry": {"port": 1}}

    result = cli("status", "--check", "-c", map_of(tmp_path / "good.yaml", good=good))
    assert (result.code, result.lines) == (0, ["OK: 1 shard"])

    path = map_of(tmp_path / "shared.yaml", good=good, shared=shared)
    result = cli("status", "--check", "-c", path)
    assert result.code == 1
    [line] = result.lines
    assert line.startswith("WARNING: shared:")
    assert "has the same database as shared:0" in line

    path = map_of(tmp_path / "dead.yaml", good=good, shared=shared, dead=dead)
    result = cli("status", "--check", "-c", path)
    assert result.code == 2
    [line] = result.lines
    assert line.startswith(
        "CRITICAL: dead localhost:1 cannot be reached: connection refused; shared:1"
    )
    assert json.loads(cli("status", "--check", "--json", "-c", path).out)["code"] == 2
