"""``shardkit apply``, ``move``, ``split``, ``changes``, ``balance``, ``plan``: growth in use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardkit.admin import growth, read_heat
from shardkit.admin.changes import now_of, read_changes
from shardkit.admin.growth.balance import SAMPLE, SHARE, TOLERANCE, By
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.journal import KEYS
from shardkit.admin.growth.mover import COPY, progress_of
from shardkit.admin.growth.plan import GrowthStep, plan_growth
from shardkit.cli import options as given
from shardkit.cli.groups import INTERRUPTED, CommandGroup
from shardkit.cli.options import command, config_server, group
from shardkit.cli.output import GOOD, Cell, Output, Table, identifier, number, wordy, write_error
from shardkit.cli.rows import Field, column_only, table_of
from shardkit.cli.text import printable, size
from shardkit.config.entry import write_private
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ShardKitError, counted
from shardkit.kit.config_client import config_client

_to = given.option("SERVER", "The new server, HOST:PORT.", required=True)
_share = given.number(
    1.0,
    "Share of the time to work: 0.2 for a fifth, with pauses for the rest.",
    0.01,
    most=1,
    unit="PART",
)
hold = given.seconds(HOLD, "How long writers may wait at a time.", 0.01)
# What every command takes that moves something,
_MOVING = {
    "share": _share,
    "copy_timeout": given.seconds(COPY, "How long the copy may take.", 1.0),
    "hold": hold,
}
# what those take that may copy key by key, and besides those that may keep the old databases.
_COPYING = {
    "kill": given.flag(
        "For shards: close connections that do not leave within two fifths of the hold."
    ),
    "offline": given.flag(
        "For shards: hold writers for the whole copy, where servers tell of no changed keys."
    ),
    **_MOVING,
}
_KEEPING = {
    "keep": given.flag(
        "For shards: keep the old databases up to date until `move complete` or `move reverse`."
    ),
    **_COPYING,
}


_NEW = {"to": _to, "dry_run": given.dry_run, "where": given.config}


@group()
def move() -> None:
    """Move a server's data to another server, all of it or some shards, while it is in use."""


@command("shardkit move server a:6379 --to new:6379 --dry-run", group=move, **_NEW, **_MOVING)
def server(source: str = given.argument("SERVER"), **options: Any) -> int:
    """Move all shards of SERVER to the empty server --to, by replication.

    Readers do not wait; writers wait once, while the roles change. Nothing is lost if this command
    is killed: resume the move. The exit code is 1 if the servers differ at the end.
    """
    return _start(source, **options)


@command("shardkit move shards users:3 users:7 --to new:6379", group=move, **_NEW, **_KEEPING)
def shards(
    names: tuple[str, ...] = given.argument("SHARD...", nargs=-1, required=True), **options: Any
) -> int:
    """Move some shards of a server to the server --to, which may have others.

    Specify each SHARD as timelines:3: all on one server, and all that share their databases.
    Readers do not wait; writers wait once, until all have left the old server. Nothing is lost if
    this command is killed: resume the move. The exit code is 1 if another program wrote to the old
    databases afterwards.
    """
    return _start(names, **options)


def _start(
    what: str | Sequence[str],
    to: str,
    dry_run: bool,
    where: str | None,
    output: Output,
    **options: Any,
) -> int:
    if not dry_run:
        return run(growth.start_move, where, output, what, to, **options)
    with config_client(config_server(where)) as config:
        is_offline = options.get("offline", False)
        plan = growth.plan_move(config, what, to, hold=options["hold"], offline=is_offline)
        return show_plan(output, plan)


@command("shardkit move resume users:3", group=move, **_KEEPING)
def resume(
    output: Output,
    name: str = given.argument("SERVER|SHARD"),
    where: str | None = given.config,
    **options: Any,
) -> int:
    """Continue the move of SERVER or SHARD from any phase, on any machine."""
    return run(growth.resume_move, where, output, name, **options)


@command("shardkit move abort users:3", group=move)
def abort(
    output: Output, name: str = given.argument("SERVER|SHARD"), where: str | None = given.config
) -> int:
    """Undo the move of SERVER or SHARD before it is decided; the new server is emptied."""
    return run(lambda config, name, progress: growth.abort_move(config, name), where, output, name)


@command("shardkit move reverse users:3", group=move, **_KEEPING)
def reverse(
    output: Output,
    name: str = given.argument("SERVER|SHARD"),
    where: str | None = given.config,
    **options: Any,
) -> int:
    """Move everything back to SERVER, as long as it follows the new server; or move SHARD back."""
    return run(growth.reverse_move, where, output, name, **options)


@command("shardkit move complete users:3", group=move)
def complete(
    output: Output, name: str = given.argument("SHARD"), where: str | None = given.config
) -> int:
    """Empty the old databases of SHARD that `--keep` has kept up to date."""
    return run(
        lambda config, name, progress: growth.complete_move(config, name), where, output, name
    )


@command("shardkit move verify a:6379", group=move)
def verify(
    output: Output,
    name: str = given.argument("SERVER|SHARD"),
    share: float = _share,
    where: str | None = given.config,
) -> int:
    """Compare both servers of the move of SERVER again: every key, value and expiry.

    After the move of a SHARD, search its old database, which is empty, for keys written since.
    """
    return run(growth.verify_move, where, output, name, share=share)


@command("shardkit move status", group=move)
def status(output: Output, where: str | None = given.config) -> int:
    """Show all moves and their phases. The exit code is 1 if a record cannot be read."""
    unreadable: list[ShardKitError] = []
    with config_client(config_server(where)) as config:
        all_moves = growth.moves(config, unreadable)
    for error in unreadable:
        write_error(error.message, error.remedy)
    code = 1 if unreadable else 0
    if output.wrote_json(all_moves):
        return code
    if not all_moves and not unreadable:
        output.line("nothing is being moved")
    if not all_moves:
        return code
    table = Table.of(
        wordy("what"), "from", "to", "phase", number("keys"), identifier("epoch"), "same"
    )
    for row in all_moves:
        certificate = row.certificate or {}
        same = "" if "same" not in certificate else "yes" if _is_right(certificate) else "no"
        what = " ".join(row.shards) if row.copying == KEYS else "server"
        if any(row.clusters):
            left, entered = row.clusters
            what = f"{row.name}: {f'into cluster {entered}' if entered else f'out of {left}'}"
        elif row.placements:
            what = f"{row.name}: {len(row.sources)} to {counted(len(row.targets), 'shard')}"
        table.row(what, row.source, row.target, row.phase, row.total, row.epoch or None, same)
    output.table(table)
    for row in all_moves:
        if progress := progress_of(row):
            output.dim(f"{row.name}: {progress}")
    return code


def _is_right(certificate: dict[str, Any]) -> bool:
    return bool(certificate.get("same", True)) and not certificate.get("stale")


def show_plan(output: Output, plan: growth.MovePlan) -> int:
    """Show a plan; return the exit code."""
    if output.wrote_json(plan):
        return 1 if plan.problems else 0
    show_load(output, plan)
    for count, step in enumerate(plan.steps, 1):
        output.line(f"{count}. {step}")
    for note in plan.notes:
        output.warn(f"note: {note}")
    for problem in plan.problems:
        output.bad(f"cannot be done: {problem}")
    return 1 if plan.problems else 0


def show_load(output: Output, plan: growth.MovePlan) -> None:
    """Show how much a move copies, and the connections that it needs."""
    shards, keys = counted(len(plan.shards), "shard"), counted(sum(plan.keys.values()), "key")
    output.line(f"{shards} ({', '.join(plan.shards)}), {keys}")
    output.line(f"{plan.memory:,} bytes, about {plan.expected} to copy and compare")
    for server, load in plan.connections.items():
        output.line(
            f"{server}: {counted(load['now'], 'connection')}, up to {load['needed']:,} at the "
            f"cutover, of {load['allowed']:,} allowed"
        )


def run(
    work: Callable[..., growth.Move],
    where: str | None,
    output: Output,
    *args: object,
    **options: Any,
) -> int:
    """Have a function of moves work, and show what came of it."""
    with config_client(config_server(where)) as config, output.busy("moving") as tell:
        done = work(config, *args, progress=tell, **options)
    certificate: dict[str, Any] | None = done.certificate
    right = certificate is None or _is_right(certificate)
    if output.wrote_json(done):
        return 0 if right else 1
    of_shards = done.copying == KEYS
    what = f"{', '.join(done.shards)}, from " if of_shards else ""
    output.good(f"{what}{done.source} to {done.target}: {done.phase}")
    if done.held is not None:
        output.line(f"writers waited at most {1000 * done.held:.0f} ms")
    if certificate is not None and "epoch" in certificate:
        output.line(f"epoch {certificate['epoch']}; {counted(certificate['keys_now'], 'key')}")
        if "same" not in certificate:
            output.warn("its record was lost, and with it what was compared")
        elif certificate["same"]:
            was = "held" if of_shards else "hold"
            output.good(f"both servers {was} the same, digest {certificate['digest']}")
            if certificate["changing"]:
                output.warn(f"{certificate['changing']:,} keys were written all the time")
        else:
            output.bad(f"{certificate['differing']:,} keys differ:")
            for line in certificate["different"]:
                output.warn(f"  {line}")
        if certificate.get("stale"):
            was = "perhaps written" if certificate.get("unsure") else "written"
            output.bad(f"{was} at {done.source} afterwards, and kept there:")
            for line in certificate["stale"]:
                output.warn(f"  database {line}")
    return 0 if right else 1


@command(
    "shardkit split users --shards 64 --over a.internal --over b.internal --dry-run",
    "shardkit split users --shards 64 --over a.internal --over b.internal",
    "shardkit split users --placement rendezvous",
    "shardkit split users --to-cluster c.internal:6379",
    "shardkit move status",
    "shardkit move reverse users",
    **_KEEPING,
)
def split(
    output: Output,
    component: str = given.argument(),
    shards: int | None = given.option(
        "N", "The new number of shards; as now by default.", type=int
    ),
    placement: str | None = given.option("NAME", "How keys will find their shards."),
    over: tuple[str, ...] = given.repeated(
        "SERVER", "A server for the new shards, HOST:PORT; repeat it. By default the present ones."
    ),
    routes: tuple[str, ...] = given.repeated(
        "RULE",
        "A rule that finds the routing key in names of keys; by default those of the shard map.",
        name="--route",
    ),
    to_cluster: str | None = given.option(
        "SERVER", "A node of an empty cluster, HOST:PORT, that takes the component over."
    ),
    dry_run: bool = given.dry_run,
    where: str | None = given.config,
    **options: Any,
) -> int:
    """Give COMPONENT another number of shards or another placement, or shards for the first time.

    Each key is copied to its new shard, into databases that nothing uses, or into a cluster.
    Readers do not wait; writers wait once, until all have left the old shards. Nothing is lost if
    this command is killed: `shardkit move resume COMPONENT`. Undo it with `shardkit move reverse
    COMPONENT`. The exit code is 1 if another program wrote to the old databases afterwards.
    """
    servers = [server for group in over for server in group.split(",")]
    new: Any = {
        "shards": shards,
        "placement": placement,
        "over": servers,
        "routes": routes or None,
        "to_cluster": to_cluster,
    }
    if not dry_run:
        return run(growth.start_split, where, output, component, **new, **options)
    with config_client(config_server(where)) as config:
        limited = {name: options[name] for name in ("hold", "offline")}
        return show_plan(output, growth.plan_split(config, component, **new, **limited))


class _ListByDefault(CommandGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not {*args} & {*self.commands, "--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def changes() -> None:
    """Show what changes in the fleet, and repair what an interrupted change left."""


@command("shardkit changes list", "shardkit changes --json", name="list", group=changes)
def list_(output: Output, where: str | None = given.config) -> None:
    """Show the changes of the fleet that are open, and those of the last 30 days."""
    with config_client(config_server(where)) as config:
        records, now = read_changes(config), now_of(config)
    if output.wrote_json([{**asdict(row), "is_open": row.is_open(now)} for row in records]):
        return
    if not records:
        output.line("nothing has changed")
        return
    table = Table.of(wordy("change"), wordy("of"), "phase", "started (UTC)", wordy("by"))
    for record in sorted(records, key=lambda change: (not change.is_open(now), -change.started)):
        over = "done" if record.ended else "interrupted"
        phase = record.phase or ("at work" if record.is_open(now) else over)
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.started))
        kind = record.kind + " back" * bool(record.undoes)
        table.row(kind, record.name, phase, began, record.owner)
    output.table(table)


@command("shardkit changes repair --dry-run", "shardkit changes repair --json", group=changes)
def repair(
    output: Output,
    dry_run: bool = given.dry_run,
    where: str | None = given.config,
) -> int:
    """Continue, follow or close databases on whose state records and fences do not agree.

    Databases that a move or split has left are listed, too. The exit code is 1 if one is closed
    whose fence does not tell how to continue.
    """
    with config_client(config_server(where)) as config:
        repairs = growth.repair_changes(config, dry_run=dry_run)
    code = 1 if any(result.action == "unknown" for result in repairs) else 0
    if output.wrote_json(repairs):
        return code
    if not repairs:
        output.good("records and databases agree")
        return code
    table = Table.of("database", wordy("of"), "does", wordy("why"), "change")
    for result in repairs:
        table.row(result.database, result.name, result.action, result.reason, result.change)
    output.table(table)
    return code


@command("shardkit changes open a.internal:6379/3", name="open", group=changes)
def open_(
    output: Output, place: str = given.argument("SERVER/NUMBER"), where: str | None = given.config
) -> None:
    """Open the empty database that a move or split has left, so that it can be used again."""
    with config_client(config_server(where)) as config:
        opened = growth.open_database(config, place)
    output.answer(opened, f"{opened.database} is open", GOOD)


@command("shardkit changes end timelines:3", "shardkit changes end users --lost", group=changes)
def end(
    output: Output,
    name: str = given.argument("SERVER|SHARD|COMPONENT"),
    lost: bool = given.flag(
        "Give up what is only on lost servers; clients use the old ones as at the cutover."
    ),
    where: str | None = given.config,
) -> None:
    """End a move or split that can be neither resumed nor aborted; nothing stays closed."""
    with config_client(config_server(where)) as config:
        move = growth.end_change(config, name, lost=lost)
    output.answer(move, f"the {move.verb} of {move.name} is {move.phase}", GOOD)


@command(
    "shardkit apply configs/production.yaml --plan",
    "shardkit apply configs/production.yaml",
    "shardkit apply configs/production.yaml --yes --json",
    name="apply",
    prune=given.flag("Remove components that MAP lacks; their data stays."),
    **_COPYING,
)
def apply_(
    output: Output,
    shard_map: Path = given.shard_map,
    only_plan: bool = given.flag("Show the steps; change nothing.", name="--plan"),
    yes: bool = given.flag("Do not ask; needed without a terminal."),
    where: str | None = given.target,
    **options: Any,
) -> int:
    """Make MAP true: move, split and merge shards, attach and detach replicas, and push.

    Compares MAP with the entries on its config server, shows the steps and asks. Clients read and
    write all the time; writers wait once in each move. Nothing is lost if this command is killed:
    give it again, and it continues. If MAP is true already, nothing is done. The exit code is 1 if
    something prevents a step; then nothing has changed.
    """
    wanted = ShardMap.load(shard_map)
    done: list[growth.ApplyStep] = []
    with config_client(config_server(where, wanted)) as config:
        with output.busy("comparing"):
            plan = growth.plan_apply(config, wanted, **options)
        if only_plan or plan.problems or not plan.steps:
            if not output.wrote_json(**asdict(plan), done=[]):
                _show(output, plan)
            return 1 if plan.problems else 0
        if not output.as_json:
            _show(output, plan)
        if not yes:
            click.confirm(f"Take {counted(len(plan.steps), 'step')}?", abort=True, err=True)

        def finished(step: growth.ApplyStep) -> None:
            done.append(step)
            if not output.as_json:
                output.good(f"done: {step}")

        try:
            with output.busy("applying") as tell:
                growth.apply_map(config, wanted, progress=tell, finished=finished, **options)
        except KeyboardInterrupt:
            write_error(
                f"interrupted: {counted(len(done), 'step')} of about {len(plan.steps)} done",
                "give the command again to continue",
            )
            sys.exit(INTERRUPTED)
    if not output.wrote_json(**asdict(plan), done=done):
        output.good(f"the map is true: {counted(len(done), 'step')} done")
    return 0


def _show(output: Output, plan: growth.ApplyPlan) -> None:
    for n, step in enumerate(plan.steps, 1):
        output.line(f"{n}. {step}")
        if (moving := step.plan) is not None:
            show_load(output, moving)
            output.line(f"writers wait at most {plan.hold:g} s, readers do not")
            for note in moving.notes:
                output.warn(f"note: {note}")
        output.dim(f"back: {step.back}")
    if any(step.kind == "resume" for step in plan.steps):
        output.dim("the other steps are planned when that is done")
    if plan.left:
        output.dim(f"not in the map, and stays (--prune): {', '.join(plan.left)}")
    for problem in plan.problems:
        output.bad(f"cannot be done: {problem}")
    if not plan.steps and not plan.problems:
        output.good("the map is true: nothing to do")


@command(
    "shardkit balance",
    "shardkit balance timelines --to new.internal:6379 --tolerance 0.2",
    "shardkit balance --by operations --watch --seconds 5",
    "shardkit balance --by operations --heat",
    "shardkit balance timelines --to new.internal:6379 --move",
    sample=given.number(SAMPLE, "Keys to examine in each database at most; 0 for all.", 0),
    seconds=given.seconds(1.0, "How long to count commands.", 0.1, most=60),
    watch=given.flag("See for which shards, tags and keys they are (MONITOR)."),
    share=given.number(
        SHARE,
        "Share of the time to examine keys; pauses for the rest.",
        least=0.01,
        most=1,
        unit="PART",
    ),
)
def balance(
    output: Output,
    names: Sequence[str] = given.components,
    to: Sequence[str] = given.repeated("SERVER", "A new server. May be repeated."),
    by: By = given.choice(["bytes", "keys", "operations"], "What to balance.", default="bytes"),
    tolerance: float = given.number(
        TOLERANCE,
        "How far a server may be from the mean: 0.1 for a tenth.",
        least=0.0,
        most=0.99,
        unit="PART",
    ),
    heat: bool = given.flag("Take operations from what clients report (heat=)."),
    top: int = given.number(5, "How many keys and tags to show.", 0),
    moving: bool = given.flag("Carry out the plan.", name="--move"),
    hold: float = hold,
    where: str | None = given.config,
    **options: Any,
) -> int:
    """Show bytes, keys and operations by server, shard, tag and key, and a plan of moves.

    The plan moves the fewest bytes after which each server is near the mean. It only reads, unless
    --move is given: then `shardkit move shards` does each move, while clients read and write. The
    exit code is 1 if servers are out of balance at the end.
    """
    with config_client(config_server(where)) as config, output.busy("measuring") as tell:
        report = growth.measure_balance(config, names, to=to, progress=tell, **options)
        if heat:
            hot = read_heat(config, _SHARDS).kinds
            rates = {shard.name: shard.now for shard in hot["shard"]}
            report = growth.with_operations(report, rates, hot)
        plan = growth.plan_balance(config, report, by=by, tolerance=tolerance)
        done = growth.apply_balance(config, plan, hold=hold, progress=tell) if moving else []
    left = 0 if plan.fits and (moving or not plan.moves) else 1
    parts = [{**asdict(part), "name": _name(part)} for part in report.parts]
    if output.wrote_json(**asdict(report) | {"parts": parts}, plan=plan, moved=done):
        return left
    _show_balance(output, report, top)
    _show_plan(output, plan, bool(done))
    return left


def _name(part: growth.PartLoad) -> str:
    name = part.name.decode(errors="backslashreplace")
    return f"{{{name}}}" if part.kind == "tag" else name


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _show_balance(output: Output, report: growth.LoadReport, top: int) -> None:
    table = Table.of("server", number("data"), number("keys"), *map(number, _REST))
    for server in report.servers:
        limit = size(server.limit) if server.limit else None
        rest = _rate(server.operations), size(server.memory), limit
        table.row(server.server, size(int(server.bytes)), server.keys, *rest)
    output.table(table)
    headings = number("data"), number("keys"), number("ops/s")
    shown = sorted(report.databases, key=lambda row: -row.bytes)[:top]
    if shown:
        output.line()
        table = Table.of(wordy("biggest shards"), "server", *headings)
        for row in shown:
            at = f"{row.server}/{row.database}"
            table.row(" ".join(row.shards), at, *_load(row.bytes, row.keys, row.operations))
        output.table(table)
    for kind in ("tag", "key"):
        parts = [part for part in report.parts if part.kind == kind and part.bytes][:top]
        busy = sorted(report.parts, key=lambda part: -(part.operations or 0))
        parts += [
            part for part in busy if part.kind == kind and part.operations and part not in parts
        ][:top]
        if parts:
            output.line()
            table = Table.of(wordy(f"biggest {kind}s"), wordy("shard"), *headings)
            for part in parts:
                load = _load(part.bytes, round(part.keys), part.operations)
                table.row(printable(_name(part)), " ".join(part.shards), *load)
            output.table(table)
    if report.skipped:
        output.line()
        output.warn(f"not measured, as they cannot move: {', '.join(report.skipped)}")


def _load(used: float, keys: int, operations: float | None) -> tuple[Cell, Cell, Cell]:
    return size(int(used)) if used else None, keys, _rate(operations)


def _show_plan(output: Output, plan: growth.BalancePlan, moved: bool) -> None:
    output.line()
    for line in plan.uneven:
        output.warn(line)
    if plan.fits and not plan.moves:
        output.good(f"all servers are within {plan.tolerance:.0%} of the mean {plan.by}")
        return
    for move in plan.moves:
        words = f"shardkit move shards {' '.join(move.shards)} --to {move.target}"
        output.line(f"{words}   # {size(int(move.bytes))}, about {move.seconds:.0f} s")
    for problem in plan.problems:
        output.bad(f"cannot be done: {problem}")
    table = Table.of("server", number("times the mean"), number("afterwards"))
    for server, times in plan.before.items():
        table.row(server, f"{times:.2f}", f"{plan.after[server]:.2f}")
    output.table(table)
    if not plan.fits:
        output.bad(
            f"no moves bring all servers within {plan.tolerance:.0%}: split large shards, add "
            "servers, or allow more: --tolerance"
        )
    elif moved:
        output.good(f"{counted(len(plan.moves), 'move')} done")
    else:
        total = size(int(sum(move.bytes for move in plan.moves)))
        fewest = "no plan moves less" if plan.fewest else "the best of the plans that were tried"
        output.line(f"{counted(len(plan.moves), 'move')} of {total} ({fewest}); do it: --move")


_SHARDS = 10_000  # that heat is read of
_REST = ("ops/s", "memory", "limit")


@command(
    "shardkit plan users --server a.internal:6379 --growth 4 --periods 4",
    "shardkit plan users --server a.internal:6379 --growth 2 --periods 3 --data 8e9 \\\n"
    "    --commands 20000 --bytes 300 --processes 40 --out users.yaml",
    new=given.repeated("HOST:PORT", "A server to add later; repeatable."),
    growth=given.option(
        "FACTOR", "Growth factor per period.", type=click.FloatRange(min=1), required=True
    ),
    periods=given.option("N", "Number of periods.", type=click.IntRange(0, 100), required=True),
    data=given.number(0, "Bytes of data now.", 0.0, unit="BYTES"),
    commands=given.number(0, "Write commands per second now.", 0.0),
    size=given.number(0, "Bytes of each write.", 0.0, name="--bytes"),
    processes=given.number(1, "Number of processes that use it.", 0),
    connections=given.number(
        1, "Connections of each process to a server: its threads, or event loops.", 0
    ),
    separate=given.flag("Each shard is a server of its own."),
)
def plan(
    output: Output,
    component: str = given.argument(),
    servers: tuple[str, ...] = given.repeated(
        "HOST:PORT",
        "A server, or machine, to start on; repeat for more.",
        required=True,
        name="--server",
    ),
    out: Path | None = given.option(
        "MAP", "Write the shard map to this file, which must not exist.", type=given.FILE
    ),
    **options: Any,
) -> int:
    """Plan the shards of COMPONENT for a load that grows by a factor in each period.

    Connects to no server. Shows for each period the number of servers, what each needs, which
    shards move, and how long that takes.
    """
    planned = plan_growth(component, servers, **options)
    if out is not None:
        try:
            if out.exists():
                raise click.UsageError(f"{out} cannot be written: it exists")
            write_private(out, planned.to_yaml())
        except OSError as error:
            raise click.UsageError(f"{out} cannot be written: {error.strerror}") from None
    steps = [{**asdict(step), "commands": planned.commands(step)} for step in planned.steps]
    if output.wrote_json({**asdict(planned), "steps": steps}):
        return 0
    output.line(f"{planned.component}: {planned.count:,} shards; `databases {planned.databases}`")
    for warning in planned.warnings:
        output.warn(warning)
    output.table(table_of(_FIELDS, planned.steps))
    for step in planned.steps:
        for line in planned.commands(step):
            output.line(f"{step.period}. {line}")
    if out is not None:
        output.good(f"written to {out}: shardkit config push {out}")
    return 0


def _rounded(title: str, value: Callable[[GrowthStep], float], form: str) -> Field[GrowthStep]:
    return column_only(number(title), lambda step: format(value(step), form))


_FIELDS: tuple[Field[GrowthStep], ...] = (
    column_only("period", lambda step: str(step.period or "now")),
    column_only(number("servers"), lambda step: step.servers),
    column_only(number("shards"), lambda step: step.shards),
    _rounded("data GB", lambda step: step.data / 1e9, ",.2f"),
    _rounded("RAM GB", lambda step: step.memory / 1e9, ",.2f"),
    column_only(number("conns"), lambda step: step.connections),
    _rounded("AOF MB/s", lambda step: step.append / 1e6, ",.2f"),
    column_only(number("moved"), lambda step: sum(len(shards) for _, _, shards in step.moves)),
    _rounded("GB moved", lambda step: step.moved / 1e9, ",.2f"),
    _rounded("minutes", lambda step: step.seconds / 60, ",.0f"),
)
