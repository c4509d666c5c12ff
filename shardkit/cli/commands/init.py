"""``shardkit init``: a shard map to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from shardkit.cli.options import command
from shardkit.cli.output import GOOD, Output
from shardkit.errors import ConfigError


@command("shardkit init", "shardkit init configs/local.yaml", "shardkit up shards.yaml")
@click.argument("path", default="shards.yaml", type=click.Path(path_type=Path), metavar="[FILE]")
def init(path: Path, output: Output) -> int:
    """Write a shard map for a laptop, to begin with: five servers and four components.

    FILE is shards.yaml by default, and must not exist. Its directory is created if needed.
    """
    text = (files("shardkit.cli.demo") / "local.yaml").read_text("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists", "name another file") from None
    output.answer({"file": str(path)}, f"{path} is written; run it with: shardkit up {path}", GOOD)
    return 0
