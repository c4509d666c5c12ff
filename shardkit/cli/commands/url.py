"""``shardkit url``: writes an entry as a URL, for programs that take nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from shardkit.cli.options import (
    ShardOptions,
    command,
    config_option,
    file_option,
    number_option,
    opened,
    shards_options,
)
from shardkit.cli.output import GOOD, Output, write_private
from shardkit.config.component import entry_key
from shardkit.config.url import mask_url
from shardkit.operations.commands import Shard


@command(
    "shardkit url jobs --shard 3 -o jobs.url",
    'rq worker -u "$(shardkit url jobs)"',
    "shardkit url jobs --show-secrets",
)
@click.argument("name", metavar="COMPONENT")
@number_option("--shard", None, "The entry of a shard.", parameter="number", least=0)
@config_option
@shards_options
@file_option
@click.option("--show-secrets", is_flag=True, help="The password in the clear on a terminal too.")
def url(
    name: str,
    number: int | None,
    where: str | None,
    sharding: ShardOptions,
    written: Path | None,
    show_secrets: bool,
    output: Output,
) -> None:
    """Write an entry as a URL, for programs that take nothing else.

    The URL is a secret: it holds the password, and ${NAME} is replaced. A terminal is shown *** in
    its place.
    """
    with opened(where) as topology:
        if number is None:  # does not depend on the shards
            described = topology.kit.component(name)
        else:
            described = topology.component(name, sharding)
        entry = described.entry_of(Shard(name, number))
    text = entry.url(entry_key(name, number))
    if written is not None:
        write_private(str(written), f"{text}\n")
        output.note(f"wrote {written}", GOOD)
        return
    if output.interactive and not show_secrets:
        text = mask_url(text)
    if output.as_json:
        output.document({"url": text})
    else:
        output.text(f"{text}\n")
