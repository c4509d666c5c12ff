"""``shardkit replicas``, ``verify-replica`` and ``failover``: replicas, and one for a master."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from shardkit.admin import growth
from shardkit.admin.growth.attachment import COPY, TIMEOUT
from shardkit.cli import options as given
from shardkit.cli.commands.growth import hold
from shardkit.cli.options import command, config_server, group, opened
from shardkit.cli.output import BAD, GOOD, WARN, Output, Styled, Table, number, wordy
from shardkit.cli.text import reason
from shardkit.kit.config_client import config_client


@group()
def replicas() -> None:
    """Show which server replicates which; attach replicas, and detach them."""


@command(
    "shardkit replicas tree",
    "shardkit replicas tree timelines --json",
    short_help="Show which server replicates which.",
    group=replicas,
)
def tree(
    output: Output,
    names: Sequence[str] = given.components,
    timeout: float | None = given.seconds(
        None,
        "How long to wait until every level is in sync; otherwise the exit code is 1.",
        least=0.0,
    ),
    where: str | None = given.config,
) -> int:
    """Show masters and all levels of replicas; the exit code is 1 if one is unhealthy."""
    with opened(where) as topology:
        chosen, _ = topology.components(names)
    with output.busy("asking the servers"):
        end = time.monotonic() + (timeout or 0)
        nodes = growth.replica_tree(chosen.values())
        while timeout and not _in_sync(nodes) and time.monotonic() < end:
            time.sleep(0.05)
            nodes = growth.replica_tree(chosen.values())
    good = _in_sync(nodes) if timeout is not None else all(node.ok for node in nodes)
    code = 0 if good else 1
    if output.wrote_json([{**asdict(node), "server": str(node.server)} for node in nodes]):
        return code
    table = Table.of("server", wordy("state"), number("bytes behind"))
    for node in nodes:
        state = node.state if node.ok else Styled(node.state, BAD)
        table.row("  " * node.depth + str(node.server), state, node.behind)
    output.table(table)
    return code


def _in_sync(nodes: Sequence[growth.ReplicaNode]) -> bool:
    return all(node.state in ("master", "in sync") for node in nodes)


@command(
    "shardkit replicas attach c.internal:6379 --to a.internal:6379",
    "shardkit replicas attach c.internal:6379 --to timelines:3 --zone eu-1c",
    short_help="Make an empty server a replica of one in use.",
    group=replicas,
)
def attach(
    output: Output,
    server: str = given.argument(),
    to: str = given.option(
        "SHARD|SERVER",
        "The server to follow: a shard, a master, or a replica, HOST:PORT.",
        required=True,
    ),
    zone: str | None = given.option("ZONE", "The replica's zone, for reads of the same zone."),
    copy_timeout: float = given.seconds(COPY, "How long the copy may take.", 0.1),
    where: str | None = given.config,
) -> None:
    """Make the empty SERVER a replica; when it is filled, entries name it.

    A replica of a replica relieves the master. Entries do not name it, as clients read only from
    replicas of the master itself.
    """
    with config_client(config_server(where)) as config, output.busy("filling it"):
        done = growth.attach_replica(config, server, to, zone=zone, copy_timeout=copy_timeout)
    named = f"entries name it since epoch {done.epoch}" if done.named else "no entry names it"
    _show(output, done, f"{done.replica} follows {done.master}; {named}")


@command("shardkit replicas detach c.internal:6379", short_help="Detach a replica.", group=replicas)
def detach(
    output: Output,
    server: str = given.argument(),
    force: bool = given.flag("Even if its master refuses writes without it."),
    where: str | None = given.config,
) -> None:
    """Detach the replica SERVER, once no entry names it and clients have left it.

    It keeps its data. A server that is down is only removed from the entries.
    """
    with config_client(config_server(where)) as config, output.busy("waiting for clients to leave"):
        done = growth.detach_replica(config, server, force=force)
    _show(output, done, f"{done.replica} no longer follows {done.master}; no entry names it")


def _show(output: Output, done: growth.AttachedReplica, text: str) -> None:
    document = {**asdict(done), "replica": str(done.replica), "master": str(done.master)}
    output.answer(document, text, GOOD)


@command(
    "shardkit verify-replica",
    "shardkit verify-replica timelines --timeout 2",
    name="verify-replica",
)
def verify_replica_command(
    output: Output,
    names: Sequence[str] = given.components,
    timeout: float = given.timeout(TIMEOUT),
    where: str | None = given.config,
) -> int:
    """Write to each master, and check whether the write reaches its replicas and their disks.

    The exit code is 1 unless every replica that entries name received it in time. The write, a
    member of sync:wait, is removed.
    """
    with opened(where) as topology:
        chosen, _ = topology.components(names)
    with output.busy("waiting for the replicas"):
        verdicts = growth.verify_replicas(chosen.values(), timeout)
    code = int(any(isinstance(v, Exception) or not v.ok for v in verdicts.values()))
    if output.wrote_json(
        [
            {"master": str(master), "replica": str(replica)}
            | (
                {"ok": False, "error": reason(verdict)}
                if isinstance(verdict, Exception)
                else asdict(verdict) | {"seconds": round(verdict.seconds, 3), "ok": verdict.ok}
            )
            for (master, replica), verdict in verdicts.items()
        ]
    ):
        return code
    if not verdicts:
        output.warn("no entry names a replica")
        return code
    table = Table.of("master", "replica", "a write", number("s"))
    for (master, replica), verdict in verdicts.items():
        if isinstance(verdict, Exception):
            table.row(str(master), str(replica), Styled(reason(verdict), BAD), None)
            continue
        text = Styled("is there, and on disk", GOOD)
        if not verdict.linked:
            text = Styled("did not arrive: no link to the master", BAD)
        elif not verdict.written:
            text = Styled("did not arrive in time", BAD)
        elif verdict.synced is None:
            text = Styled("is there; it has no append-only file", WARN)
        elif not verdict.synced:
            text = Styled("is there, but not on disk in time", BAD)
        table.row(str(master), str(replica), text, f"{verdict.seconds:.3f}")
    output.table(table)
    return code


@command(
    "shardkit failover timelines:3",
    "shardkit failover a.internal:6379 --to b.internal:6379",
    "shardkit failover a.internal:6379 --guard 3600   # until the old master is back",
    "shardkit failover --guard 0                      # fence what is back",
)
def failover(
    output: Output,
    name: str | None = given.argument("[SHARD|SERVER]", required=False),
    to: str | None = given.option("REPLICA", "The replica, HOST:PORT; by default the latest."),
    force: bool = given.flag(
        "Even if the master may be alive, or the replica lost its link: writes are lost."
    ),
    hold: float = hold,
    guard: float | None = given.seconds(
        None, "How long to wait for old masters to come back; they are fenced.", 0.0
    ),
    where: str | None = given.config,
) -> int:
    """Replace a master by its replica, for all shards of the server of SHARD.

    If the master answers, it hands over: no write is lost. If it has crashed, the replica with the
    most writes is promoted, and the old master is fenced when it comes back: it becomes a replica,
    and its unreplicated writes are dropped. Sentinels and clusters do this themselves.

    A crash is a refused connection, or silence if all replicas have lost their links. A master
    that does not answer INFO for another reason is replaced only with --force.

    The exit code is 1 if an old master is back and could not be fenced.
    """
    if name is None and guard is None:
        raise click.UsageError("specify a shard or a server, or --guard")
    done, fences = None, []
    with config_client(config_server(where)) as config:
        if name is not None:
            with output.busy("failing over"):
                done = growth.fail_over(config, name, to, force=force, hold=hold)
        fences = growth.pending_fences(config)
        if guard is not None:
            with output.busy("waiting for old masters"):
                fences = growth.apply_fences(config, guard)
    code = int(any(fence.state and not fence.applied for fence in fences))
    if output.wrote_json(
        takeover=done and {**asdict(done), "source": str(done.source), "target": str(done.target)},
        fences=[fence.plain() for fence in fences],
    ):
        return code
    if done is not None:
        how = "as planned: no write was lost"
        if not done.planned:
            how = "it was not handed over: what only the old master had is lost"
        if done.held is not None:
            how += f", writers waited at most {1000 * done.held:.0f} ms"
        output.good(f"{done.target} is the master in place of {done.source} ({how})")
        output.line(f"shards: {', '.join(done.shards) or 'none'}; epoch {done.epoch}")
        map_file = where if where and "://" not in where else "MAP"
        output.warn(f"the map file is older now: shardkit config pull -o {map_file}")
        if done.followers:
            output.line(f"follow it: {', '.join(done.followers)}")
        for server, why in done.failed.items():
            output.warn(f"{server} could not be told to follow it: {why}")
        if done.behind:
            output.warn(f"{done.behind:,} bytes of writes are on other replicas only")
    if done is None and not fences:
        output.good("no master that was replaced is left to come back")
    for fence in fences:
        if fence.applied:
            output.good(f"{fence.source} is back: {fence.state or 'it is fenced'}")
        elif fence.state:
            output.warn(f"{fence.source} is not fenced: {fence.state}")
        else:
            output.warn(
                f"{fence.source} will be fenced when it is back: shardkit failover --guard SECONDS"
            )
    return code
