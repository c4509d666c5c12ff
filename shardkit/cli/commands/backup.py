"""``shardkit backup`` and ``restore``: snapshots of all servers at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import click

from shardkit.admin.backup import MAP, backup, objects_in, restore, restore_objects, verify
from shardkit.cli import options as given
from shardkit.cli.options import command, config_server, opened
from shardkit.cli.output import GOOD, Output
from shardkit.cli.text import size
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ConfigError, counted
from shardkit.kit.config_client import config_client
from shardkit.local import LocalServers


@command(
    "shardkit backup /backups/2026-11-22 -c redis://config.internal",
    "shardkit backup /backups/hits --no-pause hits",
    name="backup",
)
def backup_command(
    output: Output,
    directory: Path = given.argument("DIR", type=given.FOLDER),
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    no_pause: bool = given.flag("Do not hold writes: the snapshots are of different moments."),
) -> None:
    """Take snapshots of the servers of all components, or of the named ones, into DIR.

    Writes are held on all of them while each forks, some ten milliseconds, so that the snapshots
    are of one moment. DIR holds the data and the passwords of the map; only you can read it.
    """
    with opened(where) as topology:
        chosen, broken = topology.components(names)
    for name, error in broken.items():
        raise ConfigError(f"component {name!r} cannot be backed up: {error}", "name the others")
    with ExitStack() as stack:
        server = topology.config_server
        config = None if server is None else stack.enter_context(config_client(server))
        stack.enter_context(output.busy("fetching snapshots"))
        manifest = backup(chosen.values(), directory, config=config, pause=not no_pause)
    left_out = [what for snapshot in manifest.servers for what in snapshot.left_out]
    if output.as_json:
        document = {"directory": str(directory), **asdict(manifest), "left_out": left_out}
        output.document(document)
        return
    total = sum(snapshot.size for snapshot in manifest.servers)
    keys = sum(sum(snapshot.keys.values()) for snapshot in manifest.servers)
    pause = f"; writes were held for {manifest.paused_ms:.0f} ms" if not no_pause else ""
    output.good(
        f"wrote {directory}: {counted(len(manifest.servers), 'server')}, {counted(keys, 'key')}, "
        f"{size(total)}{pause}"
    )
    if no_pause:
        output.warn("the snapshots are of different moments")
    for what in left_out:
        output.warn(f"will not be restored: {what}")


@command(
    "shardkit restore /backups/2026-11-22 --local",
    "shardkit restore /backups/2026-11-22 configs/standby.yaml",
    "shardkit restore /backups/2026-11-22 configs/production.yaml --to-origin",
    name="restore",
)
def restore_command(
    output: Output,
    directory: Path = given.argument("DIR", type=given.FOLDER),
    shard_map: Path | None = given.argument("[MAP]", required=False, type=given.PATH),
    local: bool = given.flag("Restore into embedded servers, as a test."),
    to_origin: bool = given.flag("Allow the servers that the backup came from."),
    only_verify: bool = given.flag("Only check the files.", name="--verify"),
    objects_to: str | None = given.option(
        "URL", "Also write the objects that the config server at URL lacks.", name="--objects"
    ),
) -> None:
    """Copy the keys of the backup in DIR into the servers of MAP, and count them there.

    MAP needs the same components, with as many shards and the same placements; their databases must
    be empty, and are not those that the backup came from unless you say so.
    """
    if sum([local, only_verify, shard_map is not None]) != 1:
        raise click.UsageError("say one of MAP, --local and --verify")
    if only_verify:
        manifest = verify(directory)
        output.answer(
            {"directory": str(directory), **asdict(manifest)},
            f"{directory} is as it was written: {counted(len(manifest.servers), 'server')}",
            GOOD,
        )
        return
    leased: list[int] = []
    left_out: list[str] = []
    with output.busy("copying keys") as tell, ExitStack() as stack:
        if shard_map is not None:
            wanted = ShardMap.load(shard_map)
        else:
            servers = LocalServers(ShardMap.load(directory / MAP), ports="free")
            wanted = stack.enter_context(servers).shard_map
        copied = restore(
            directory,
            wanted,
            to_origin=to_origin,
            progress=lambda keys: tell(f"copying keys: {keys:,}"),
            leased=leased.append,
            left_out=left_out.append,
        )
    objects = 0
    if objects_to is None:
        with suppress(ConfigError):  # there are none
            if count := len(objects_in(directory)):
                what = f"{counted(count, 'object')} of the config server: specify --objects"
                left_out.append(what)
    else:
        with config_client(config_server(objects_to)) as config:
            objects = restore_objects(directory, config)
    if output.wrote_json(
        directory=str(directory),
        keys=copied,
        objects=objects,
        leased_tasks=sum(leased),
        left_out=left_out,
    ):
        return
    where = "embedded servers, which have ended" if local else str(shard_map)
    keys = sum(copied.values())
    output.good(f"restored {counted(keys, 'key')} on {counted(len(copied), 'shard')}")
    if sum(leased):
        warning = (
            f"{counted(sum(leased), 'task')} of queues were leased: handed out again when that ends"
        )
        output.warn(warning)
    if objects_to is not None:
        output.good(f"{counted(objects, 'object')} written to the config server")
    for what in left_out:
        output.warn(f"not restored: {what}")
    output.dim(f"into {where}")
