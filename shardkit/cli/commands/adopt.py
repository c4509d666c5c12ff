"""``shardkit adopt`` and ``retire``: how components come, and how they go."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from typing import Any

from shardkit.admin.growth import Adoption, adopt
from shardkit.admin.growth.adopt import MOST, SAMPLE, shown
from shardkit.admin.retire import QUIET, delete_data, last_known, remove, still_used
from shardkit.cli import options as given
from shardkit.cli.commands.config import masked_map
from shardkit.cli.options import command, config_server
from shardkit.cli.output import Output, Table, identifier, number, wordy
from shardkit.cli.text import printable, reason
from shardkit.config.entry import write_private
from shardkit.config.store import read_epoch
from shardkit.errors import ConfigError
from shardkit.kit.config_client import config_client


@command(
    "shardkit adopt users --on 10.0.0.1:6379/1 --on 10.0.0.2:6379/1 --output users.yaml",
    "shardkit adopt users --on a.internal/1 --on b.internal/1 --name a --name b",
    'shardkit adopt users --on a.internal --on b.internal --route "user:(\\d+):.*"',
    name="adopt",
    names=given.repeated(
        "NAME",
        "What the other program calls a server, in the same order; repeat it.",
        name="--name",
    ),
    placements=given.repeated(
        "RULE", "Try only this rule; repeat it for more.", name="--placement"
    ),
    routes=given.repeated(
        "RULE", "A rule that finds the routing key in names of keys; repeat it.", name="--route"
    ),
    sample=given.number(SAMPLE, "Keys of each server to sample at most.", most=MOST),
)
def adopt_command(
    output: Output,
    component: str = given.argument(),
    on: tuple[str, ...] = given.repeated(
        "HOST:PORT/DB|URL",
        "A server, in the order of the shards; repeat it. By default those of the entries.",
    ),
    file: str | None = given.option("FILE", "Write the shard map to this file.", name="--output"),
    where: str | None = given.config,
    **options: Any,
) -> int:
    """Find how another program placed the keys of COMPONENT, and propose its shard map.

    Samples keys of each server and tries every placement. Changes nothing on the servers. The exit
    code is 1 if no placement fits, or if there are too few keys to tell placements apart.
    """
    with ExitStack() as stack:
        config = None
        with suppress(ConfigError) if on and where is None else nullcontext():
            config = stack.enter_context(config_client(config_server(where)))
        tell = stack.enter_context(output.busy("sampling keys"))
        result = adopt(component, on, config=config, progress=tell, **options)
    if result.shard_map is not None and file is not None:
        write_private(file, result.shard_map.to_yaml())
    text = None if result.shard_map is None else masked_map(result.shard_map).to_yaml()
    if not output.wrote_json({**vars(result), "shard_map": text}):
        _show(output, result, file)
    return 0 if result.shard_map is not None else 1


def _show(output: Output, result: Adoption, file: str | None) -> None:
    sampled = [server.sampled for server in result.servers]
    if result.rules and any(sampled):
        table = Table.of(wordy("rule"), number("agree"), number("of each server's keys"))
        for rule in result.rules[:5]:
            parts = [n / of for n, of in zip(rule.fitting, sampled, strict=True) if of]
            least, most = f"{min(parts):.0%}", f"{max(parts):.0%}"
            table.row(
                shown(rule.placement), rule.keys, least if least == most else f"{least}-{most}"
            )
        output.table(table)
        output.line(f"{result.tried:,} rules were tried")
        output.line()
    table = Table.of(
        "server",
        identifier("shard"),
        number("keys"),
        number("agree"),
        wordy("not, for example"),
    )
    for server in result.servers:
        texts = [printable(key.decode(errors="backslashreplace")) for key in server.misplaced]
        wrong = " ".join(text if len(text) <= 40 else f"{text[:39]}…" for text in texts)
        table.row(server.address, server.shard, server.sampled, server.fitting, wrong)
    output.table(table)
    for note in result.notes:
        output.warn(note)
    if result.shard_map is None:
        output.bad(f"{result.problem}; {result.remedy}")
        return
    output.line()
    if file is None:
        output.text(masked_map(result.shard_map).to_yaml())
    else:
        output.good(f"{file} is written")
    for line in result.next:
        output.line(f"next: {line.replace('MAP', file or 'MAP')}")


@command(
    "shardkit retire sessions -m 'replaced by logins'",
    "shardkit retire sessions --delete-data",
    "shardkit retire sessions --delete-data --quiet 3600 --json",
)
def retire(
    output: Output,
    name: str = given.argument("COMPONENT"),
    where: str | None = given.config,
    delete_data_: bool = given.flag(
        "Delete its keys, once it is removed and unused for a while.", name="--delete-data"
    ),
    quiet: float = given.seconds(
        QUIET, "How long it must be removed and unused before its keys are deleted.", 0.0
    ),
    message: str = given.message,
) -> int:
    """Remove COMPONENT by a push, and show its last users. A later call deletes its data.

    Clients that use it get RetiredError. With --delete-data, a component that is still there is
    only removed, with exit code 1. Its data is deleted for good by a later call, if no client has
    used it since and no other component has its databases.
    """
    server = config_server(where)
    with config_client(server) as client:
        known = last_known(client, name)
        deletes = delete_data_ and known.removed
        if not known.removed:
            remove(client, known, message)
        epoch = read_epoch(client)
        known = last_known(client, name)
        users, failed = still_used(known.component, quiet)
        deleted = None
        if deletes:
            with output.busy("deleting keys") as tell:
                deleted = delete_data(
                    known, quiet=quiet, progress=lambda keys: tell(f"deleting keys: {keys:,}")
                )
    code = 1 if delete_data_ and deleted is None else 0
    if output.wrote_json(
        component=name,
        epoch=epoch,
        used_seconds_ago=users,
        failed=failed,
        deleted=deleted,
    ):
        return code
    if deleted is not None:
        output.good(f"nobody has used {name} for {quiet:g} s: {deleted:,} keys were deleted")
        return code
    output.line(
        f"{name} was removed by a push (epoch {epoch}); clients that use it get RetiredError"
    )
    for process, seconds in sorted(users.items(), key=lambda user: user[1]):
        output.warn(f"{process} used it {seconds} s ago")
    for place, error in failed.items():
        output.warn(f"{place} was not asked who uses it: {reason(error)}")
    then = f"shardkit retire {name} --delete-data"
    when = f" in {quiet:g} s" if quiet else ""
    output.dim(f"its data is still there; to delete it, run{when}: {then}")
    return code
