"""The typed command methods of pipelines are redis-py's."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from redis.commands.core import DataAccessCommands

from shardkit.kit import pipeline_commands

# They do not collect a command, or are refused, or are for redis-py itself.
LEFT_OUT = {
    "bitfield",
    "digest_local",
    "execute_command",
    "keys",
    "randomkey",
    "scan",
    "stralgo",
} | {
    *("unwatch", "wait", "waitaof", "watch"),
    *("hscan_iter", "scan_iter", "sscan_iter", "zscan_iter"),
    *("himport_discard_all_internal", "himport_discard_internal", "himport_prepare_internal"),
}


def test_every_method_for_keys_of_redis_py_is_typed_for_pipelines() -> None:
    """A new redis-py may bring new methods: list them in pipeline_commands, or leave them out."""
    tree = ast.parse(Path(pipeline_commands.__file__).read_text())
    listed = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    theirs = {
        name
        for name, _ in inspect.getmembers(DataAccessCommands, inspect.isfunction)
        if not name.startswith("_")
    }
    assert theirs - LEFT_OUT - listed == set()
    assert LEFT_OUT & listed == set()
