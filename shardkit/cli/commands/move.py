"""``shardkit move``: moves all that a server holds to another one, while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
import redis

from shardkit.cli.options import common_options, config_option, config_server, connected, examples
from shardkit.cli.output import BAD, DOUBTFUL, GOOD, Output, Table, number
from shardkit.growth import (
    ServerMove,
    abort_move,
    moves,
    plan_move,
    resume_move,
    reverse_move,
    start_move,
    verify_move,
)
from shardkit.growth.failover import HOLD
from shardkit.growth.move import COPY

_hold = click.option(
    "--hold",
    type=click.FloatRange(min=0.01),
    default=HOLD,
    show_default=True,
    metavar="SECONDS",
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


@click.group(
    short_help="Move a server's data to another one, in use.",
    epilog=examples(
        "shardkit move server a.internal:6379 --to new.internal:6379 --dry-run",
        "shardkit move server a.internal:6379 --to new.internal:6379",
        "shardkit move status",
        "shardkit move verify a.internal:6379",
        "shardkit move reverse a.internal:6379",
    ),
)
def move() -> None:
    """Move all that a server holds to another one, while it is in use."""


@move.command()
@click.argument("source", metavar="SERVER")
@click.option("--to", required=True, metavar="SERVER", help="The empty server, HOST:PORT.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@_hold
@_copy
@config_option
@common_options
def server(
    source: str,
    to: str,
    dry_run: bool,
    hold: float,
    copy_timeout: float,
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
            return _show_plan(output, config, source, to, hold)
        return _run(
            output,
            lambda tell: start_move(
                config, source, to, hold=hold, copy=copy_timeout, progress=tell
            ),
        )


@move.command()
@click.argument("source", metavar="SERVER")
@_hold
@_copy
@config_option
@common_options
def resume(source: str, hold: float, copy_timeout: float, where: str | None, as_json: bool) -> int:
    """Carry on with the move of SERVER, from whatever point and machine."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        return _run(
            output,
            lambda tell: resume_move(config, source, hold=hold, copy=copy_timeout, progress=tell),
        )


@move.command()
@click.argument("source", metavar="SERVER")
@config_option
@common_options
def abort(source: str, where: str | None, as_json: bool) -> int:
    """Undo the move of SERVER before it was handed over; the other server is emptied."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        return _run(output, lambda tell: abort_move(config, source))


@move.command()
@click.argument("source", metavar="SERVER")
@_hold
@config_option
@common_options
def reverse(source: str, hold: float, where: str | None, as_json: bool) -> int:
    """Move everything back to SERVER, as long as it follows the other one."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        return _run(output, lambda tell: reverse_move(config, source, hold=hold, progress=tell))


@move.command()
@click.argument("source", metavar="SERVER")
@config_option
@common_options
def verify(source: str, where: str | None, as_json: bool) -> int:
    """Compare both servers of the move of SERVER again: every key, value and expiry."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        return _run(output, lambda tell: verify_move(config, source, tell))


@move.command()
@config_option
@common_options
def status(where: str | None, as_json: bool) -> None:
    """Show all moves, and how far they have come."""
    output = Output(as_json)
    with connected(config_server(where)) as config:
        found = moves(config)
    if as_json:
        output.document([asdict(each) for each in found])
        return
    if not found:
        output.line("nothing is being moved")
        return
    table = Table.of("from", "to", "phase", number("keys"), number("epoch"), "same")
    for each in found:
        same = "" if each.certificate is None else "yes" if each.certificate["same"] else "no"
        keys = sum(each.keys.values())
        table.row(each.source, each.target, each.phase, keys, each.epoch or None, same)
    output.table(table)


def _show_plan(output: Output, config: redis.Redis, source: str, to: str, hold: float) -> int:
    plan = plan_move(config, source, to, hold=hold)
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
    output.line(f"{len(plan.shards)} shards ({', '.join(plan.shards)}), {keys:,} keys")
    output.line(f"{plan.memory:,} bytes, about {plan.seconds:.0f} s to copy")
    for count, step in enumerate(plan.steps, 1):
        output.line(f"{count}. {step}")
    for problem in plan.problems:
        output.line(f"cannot be done: {problem}", BAD)
    return 1 if plan.problems else 0


def _run(output: Output, work: Callable[[Callable[[str], None]], ServerMove]) -> int:
    with output.busy("moving") as busy:

        def tell(what: str) -> None:
            if busy is not None:
                busy.update(what)

        found = work(tell)
    certificate: dict[str, Any] | None = found.certificate
    same = certificate is None or bool(certificate["same"])
    if output.as_json:
        output.document(asdict(found))
        return 0 if same else 1
    output.line(f"{found.source} to {found.target}: {found.phase}", GOOD)
    if found.held is not None:
        output.line(f"writers waited at most {1000 * found.held:.0f} ms")
    if certificate is not None:
        output.line(f"epoch {certificate['epoch']}; {certificate['keys_now']:,} keys")
        if same:
            output.line(f"both servers hold the same, digest {certificate['digest']}", GOOD)
            if certificate["changing"]:
                output.line(f"{certificate['changing']:,} keys were written all the time", DOUBTFUL)
        else:
            output.line(f"{certificate['differing']:,} keys differ:", BAD)
            for line in certificate["different"]:
                output.line(f"  {line}", DOUBTFUL)
    return 0 if same else 1
