"""``shardkit move``: moves a server's data, all or some of its shards, while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import click
import redis

from shardkit.admin.growth import (
    MovePlan,
    ServerMove,
    ShardMove,
    abort_move,
    abort_shard_move,
    moves,
    plan_move,
    plan_shard_move,
    resume_move,
    resume_shard_move,
    reverse_move,
    reverse_shard_move,
    shard_moves,
    start_move,
    start_shard_move,
    verify_move,
    verify_shard_move,
)
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.move import COPY
from shardkit.cli.options import common_options, config_option, config_server, connected, examples
from shardkit.cli.output import BAD, DOUBTFUL, GOOD, Output, Table, number
from shardkit.cli.text import counted

_hold = click.option(
    "--hold",
    type=click.FloatRange(min=0.01),
    metavar="SECONDS",
    default=HOLD,
    show_default=True,
    help="How long writers may wait at a time.",
)
_copy = click.option(
    "--copy",
    "copy_timeout",
    type=click.FloatRange(min=1),
    default=COPY,
    show_default=True,
    metavar="SECONDS",
    help="How long the copy may take.",
)
_kill = click.option(
    "--kill",
    is_flag=True,
    help="Of shards: close connections that do not leave within two fifths of the hold.",
)
_share = click.option(
    "--share",
    type=click.FloatRange(min=0.01, max=1),
    metavar="PART",
    default=1.0,
    show_default=True,
    help="For how much of the time to work: 0.2 for a fifth, with pauses for the rest.",
)


@click.group(
    short_help="Move a server's data to another one, in use.",
    epilog=examples(
        "shardkit move server a.internal:6379 --to new.internal:6379 --dry-run",
        "shardkit move server a.internal:6379 --to new.internal:6379",
        "shardkit move shards timelines:3 timelines:7 --to new.internal:6379",
        "shardkit move status",
        "shardkit move verify a.internal:6379",
        "shardkit move reverse timelines:3",
    ),
)
def move() -> None:
    """Move a server's data to another one, all of it or some shards, while it is in use."""


@move.command()
@click.argument("source", metavar="SERVER")
@click.option("--to", required=True, metavar="SERVER", help="The empty server, HOST:PORT.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@_hold
@_copy
@_share
@config_option
@common_options
def server(
    source: str,
    to: str,
    dry_run: bool,
    hold: float,
    copy_timeout: float,
    share: float,
    where: str | None,
    as_json: bool,
) -> int:
    """Move all shards of SERVER to the server --to, by replication.

    Readers do not wait; writers wait once, while the roles change. Nothing is lost if this is
    killed: resume it. Exit code 1 if both servers are not the same at the end.
    """
    output = Output(as_json)
    with connected(config_server(where)) as config:
        if dry_run:
            return _show_plan(output, plan_move(config, source, to, hold=hold))
        return _run(
            output,
            lambda tell: start_move(
                config, source, to, hold=hold, copy=copy_timeout, share=share, progress=tell
            ),
        )


@move.command()
@click.argument("names", metavar="SHARD...", nargs=-1, required=True)
@click.option("--to", required=True, metavar="SERVER", help="The server, HOST:PORT.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@_hold
@_copy
@_kill
@_share
@config_option
@common_options
def shards(
    names: tuple[str, ...],
    to: str,
    dry_run: bool,
    hold: float,
    copy_timeout: float,
    kill: bool,
    share: float,
    where: str | None,
    as_json: bool,
) -> int:
    """Move some shards of a server to the server --to, which may have others.

    Each SHARD as timelines:3: all on one server, and all that share their databases. Readers do
    not wait; writers wait once, until all have left the old server. Nothing is lost if this is
    killed: resume it. Exit code 1 if somebody wrote at the old place afterwards.
    """
    output = Output(as_json)
    with connected(config_server(where)) as config:
        if dry_run:
            return _show_plan(output, plan_shard_move(config, names, to, hold=hold))
        return _run(
            output,
            lambda tell: start_shard_move(
                config,
                names,
                to,
                hold=hold,
                copy=copy_timeout,
                kill=kill,
                share=share,
                progress=tell,
            ),
        )


@move.command()
@click.argument("name", metavar="SERVER|SHARD")
@_hold
@_copy
@_kill
@_share
@config_option
@common_options
def resume(name: str, where: str | None, as_json: bool, **how: Any) -> int:
    """Carry on with the move of SERVER or SHARD, from whatever point and machine."""
    return _move_on(name, where, as_json, resume_move, resume_shard_move, **how)


@move.command()
@click.argument("name", metavar="SERVER|SHARD")
@config_option
@common_options
def abort(name: str, where: str | None, as_json: bool) -> int:
    """Undo the move of SERVER or SHARD before it was decided; the other side is emptied."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        if _is_shard(config, name):
            return _run(output, lambda tell: abort_shard_move(config, name))
        return _run(output, lambda tell: abort_move(config, name))


@move.command()
@click.argument("name", metavar="SERVER|SHARD")
@_hold
@_copy
@_kill
@_share
@config_option
@common_options
def reverse(name: str, where: str | None, as_json: bool, **how: Any) -> int:
    """Move everything back to SERVER, as long as it follows the other one; or SHARD, back."""
    return _move_on(name, where, as_json, reverse_move, reverse_shard_move, **how)


def _move_on(
    name: str,
    where: str | None,
    as_json: bool,
    of_server: Callable[..., ServerMove],
    of_shard: Callable[..., ShardMove],
    *,
    copy_timeout: float,
    kill: bool,
    **how: float,
) -> int:
    output = Output(as_json)
    with connected(config_server(where)) as config:
        is_shard = _is_shard(config, name)
        work = partial(of_shard, kill=kill) if is_shard else of_server
        return _run(
            output, lambda tell: work(config, name, copy=copy_timeout, progress=tell, **how)
        )


@move.command()
@click.argument("name", metavar="SERVER|SHARD")
@_share
@config_option
@common_options
def verify(name: str, share: float, where: str | None, as_json: bool) -> int:
    """Compare both servers of the move of SERVER again: every key, value and expiry.

    Of a SHARD, whose old place is empty: look whether somebody has written there since.
    """
    output = Output(as_json)
    with connected(config_server(where)) as config:
        if _is_shard(config, name):
            return _run(output, lambda tell: verify_shard_move(config, name))
        return _run(output, lambda tell: verify_move(config, name, tell, share=share))


def _is_shard(config: redis.Redis, name: str) -> bool:
    return any(name in each.shards for each in shard_moves(config))


@move.command()
@config_option
@common_options
def status(where: str | None, as_json: bool) -> None:
    """Show all moves, and how far they have come."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        found: list[ServerMove | ShardMove] = [*moves(config), *shard_moves(config)]
    if as_json:
        output.document([asdict(each) for each in found])
        return
    if not found:
        output.line("nothing is being moved")
        return
    table = Table.of("what", "from", "to", "phase", number("keys"), number("epoch"), "same")
    for each in found:
        same = "" if each.certificate is None else "yes" if _is_right(each.certificate) else "no"
        if isinstance(each, ShardMove):
            what, keys = " ".join(each.shards), each.keys
        else:
            what, keys = "server", sum(each.keys.values())
        table.row(what, each.source, each.target, each.phase, keys, each.epoch or None, same)
    output.table(table)


def _is_right(certificate: dict[str, Any]) -> bool:
    return bool(certificate["same"]) and not certificate.get("stale")


def _show_plan(output: Output, plan: MovePlan) -> int:
    if output.as_json:
        output.document(
            {
                "source": str(plan.source),
                "target": str(plan.target),
                "shards": list(plan.shards),
                "keys": dict(plan.keys),
                "memory": plan.memory,
                "seconds": plan.seconds,
                "steps": list(plan.steps),
                "problems": list(plan.problems),
            }
        )
        return 1 if plan.problems else 0
    keys = sum(plan.keys.values())
    output.line(f"{counted(len(plan.shards), 'shard')} ({', '.join(plan.shards)}), {keys:,} keys")
    output.line(f"{plan.memory:,} bytes, about {plan.seconds:.0f} s to copy")
    for count, step in enumerate(plan.steps, 1):
        output.line(f"{count}. {step}")
    for problem in plan.problems:
        output.line(f"cannot be done: {problem}", BAD)
    return 1 if plan.problems else 0


def _run(output: Output, work: Callable[[Callable[[str], None]], ServerMove | ShardMove]) -> int:
    with output.busy("moving") as busy:

        def tell(what: str) -> None:
            if busy is not None:
                busy.update(what)

        found = work(tell)
    certificate: dict[str, Any] | None = found.certificate
    right = certificate is None or _is_right(certificate)
    if output.as_json:
        output.document(asdict(found))
        return 0 if right else 1
    what = f"{', '.join(found.shards)}, from " if isinstance(found, ShardMove) else ""
    output.line(f"{what}{found.source} to {found.target}: {found.phase}", GOOD)
    if found.held is not None:
        output.line(f"writers waited at most {1000 * found.held:.0f} ms")
    if certificate is not None and "epoch" in certificate:
        output.line(f"epoch {certificate['epoch']}; {certificate['keys_now']:,} keys")
        if certificate["same"]:
            was = "held" if isinstance(found, ShardMove) else "hold"
            output.line(f"both servers {was} the same, digest {certificate['digest']}", GOOD)
            if certificate["changing"]:
                output.line(f"{certificate['changing']:,} keys were written all the time", DOUBTFUL)
        else:
            output.line(f"{certificate['differing']:,} keys differ:", BAD)
            for line in certificate["different"]:
                output.line(f"  {line}", DOUBTFUL)
        if certificate.get("stale"):
            output.line(f"written at {found.source} afterwards, and kept there:", BAD)
            for line in certificate["stale"]:
                output.line(f"  database {line}", DOUBTFUL)
    return 0 if right else 1
