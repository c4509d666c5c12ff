"""``shardkit queues``: how task queues are doing, and what becomes of their dead tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from shardkit.admin.queue_status import QueueStatus, queue_names, queue_status
from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command, group, opened
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Output, Styled, number, wordy
from shardkit.cli.rows import Field, json_rows, rounded, table_of
from shardkit.errors import InvalidArgumentError, counted
from shardkit.kit.kit import ShardKit
from shardkit.queues import DeadTask

_queue_options = given.structure("queues", "queues")


@group()
def queues() -> None:
    """Show task queues, and revive, cancel or purge their tasks."""


@command(
    "shardkit queues show",
    "shardkit queues show email --watch 10",
    "shardkit queues show --json | jq '.[] | select(.dead > 0)'",
    short_help="Show how queues are doing.",
    group=queues,
)
def show(
    output: Output,
    names: Sequence[str] = given.argument("[QUEUE]...", nargs=-1),
    at: StructureOptions = _queue_options,
    watch: float = given.seconds(0, "Watch them for this time, and show how they grow.", 0.0),
) -> None:
    """Show how many tasks queues have, how old the oldest is, and how many come and go.

    Without names, all queues that hold a task, or did in the last quarter of an hour. Rates are of
    the last five minutes: how many tasks a second were queued and finished, and how many attempts
    failed. A queue with overdue tasks has no worker.
    """
    with opened(at.where) as topology:
        chosen = list(names) or queue_names(topology.kit, at.component, at.name)
        with output.busy("looking at the queues"):
            queues = topology.kit.queues(at.name, component=at.component)
            rows = queue_status(queues, chosen, watch=watch)
    if output.as_json:
        output.document(json_rows(_FIELDS, rows))
    elif rows:
        output.table(table_of(_FIELDS, rows).without_empty())
    else:
        output.line("no queue holds a task", DIM)


_FIELDS: tuple[Field[QueueStatus], ...] = (
    Field("queue", lambda row: row.queue, wordy("queue")),
    Field("waiting", lambda row: row.counts.waiting, number("waiting")),
    Field("delayed", lambda row: row.counts.delayed, number("delayed")),
    Field("taken", lambda row: row.counts.taken, number("taken")),
    Field(
        "dead",
        lambda row: row.counts.dead,
        number("dead"),
        lambda row: Styled(f"{row.counts.dead:,}", BAD) if row.counts.dead else 0,
    ),
    rounded("oldest_seconds", lambda row: row.oldest, number("oldest s"), 3, ",.0f"),
    rounded("overdue_seconds", lambda row: row.overdue, number("overdue s"), 3, ",.0f"),
    rounded("enqueued_per_second", lambda row: row.rates.enqueued, number("in/s"), 3, ",.2f"),
    rounded("finished_per_second", lambda row: row.rates.finished, number("done/s"), 3, ",.2f"),
    rounded("failed_per_second", lambda row: row.rates.failed, number("failed/s"), 3, ",.2f"),
    rounded("growth_per_second", lambda row: row.growth, number("grows by/s"), 3, "+,.1f"),
)


@command(
    "shardkit queues dead email",
    "shardkit queues dead email --limit 1000 --json",
    short_help="Show dead tasks, with reasons.",
    group=queues,
)
def dead(
    output: Output,
    queue: str = given.argument(),
    at: StructureOptions = _queue_options,
    limit: int = given.number(20, "At most this many, the oldest first."),
) -> None:
    """Show the dead tasks of QUEUE: what they were to do, when and why they died."""
    with at.opened(ShardKit.queues) as found:
        rows = list(islice(found.dead(queue), limit))
        total = found.counts(queue).dead
    if output.as_json:
        output.document({"dead": total, "tasks": json_rows(_DEAD_FIELDS, rows)})
        return
    if rows:
        output.table(table_of(_DEAD_FIELDS, rows))
        output.line()
    output.line(f"{counted(total, 'dead task')}, {len(rows):,} shown", WARN if total else GOOD)


_DEAD_FIELDS: tuple[Field[DeadTask], ...] = (
    Field("id", lambda task: task.id, wordy("id")),
    Field("name", lambda task: task.name, wordy("task")),
    Field("args", lambda task: list(task.args), wordy("arguments"), lambda t: str(list(t.args))),
    Field("attempts", lambda task: task.attempts, number("attempts")),
    Field(
        "at",
        lambda task: datetime.fromtimestamp(task.at, UTC).isoformat(timespec="seconds"),
        wordy("died at"),
    ),
    Field("reason", lambda task: task.reason, wordy("reason")),
    Field("traceback", lambda task: task.traceback),
)


def _write_each(
    output: Output, done: dict[str, bool], what: str, missing: str, extra: dict[str, Any]
) -> int:
    """Say which tasks something was done to; return the exit code."""
    absent = [id_ for id_, found in done.items() if not found]
    if output.as_json:
        output.document({**extra, what: len(done) - len(absent), "missing": absent})
        return int(bool(absent))
    output.line(f"{counted(len(done) - len(absent), 'task')} {what}", WARN if absent else GOOD)
    for id_ in absent:
        output.line(f"{id_} {missing}", BAD)
    return int(bool(absent))


@command(
    "shardkit queues revive email 9f86d081884c7d65",
    "shardkit queues revive email --all",
    group=queues,
)
def revive(
    output: Output,
    queue: str = given.argument(),
    ids: Sequence[str] = given.argument("[ID]...", nargs=-1),
    every: bool = given.flag("All dead tasks of the queue.", name="--all"),
    at: StructureOptions = _queue_options,
) -> int:
    """Make dead tasks of QUEUE wait again, with all their attempts.

    Exits with 1 if one of them is not dead.
    """
    if bool(ids) == every:
        raise click.UsageError("name the tasks, or use --all")
    with at.opened(ShardKit.queues) as found:
        if every:
            revived = found.revive_all(queue)
            document = {"queue": queue, "revived": revived, "missing": []}
            output.answer(document, f"{counted(revived, 'task')} revived", GOOD)
            return 0
        done = {id_: found.revive(queue, id_) for id_ in ids}
    return _write_each(output, done, "revived", "is not dead", {"queue": queue})


@command(
    "shardkit queues cancel email 9f86d081884c7d65",
    short_help="Remove tasks that wait.",
    group=queues,
)
def cancel(
    output: Output,
    queue: str = given.argument(),
    ids: Sequence[str] = given.argument("ID...", nargs=-1, required=True),
    at: StructureOptions = _queue_options,
) -> int:
    """Remove tasks of QUEUE that wait or are delayed; leased ones are not removed.

    Exits with 1 if one of them neither waits nor is delayed.
    """
    with at.opened(ShardKit.queues) as found:
        done = {id_: found.cancel(queue, id_) for id_ in ids}
    missing = "neither waits nor is delayed"
    return _write_each(output, done, "cancelled", missing, {"queue": queue})


@command(
    "shardkit queues purge email",
    "shardkit queues purge email --yes --json",
    short_help="Remove all tasks of a queue.",
    group=queues,
)
def purge(
    output: Output,
    queue: str = given.argument(),
    yes: bool = given.yes,
    at: StructureOptions = _queue_options,
) -> None:
    """Remove everything in QUEUE, also what is leased and dead, for good."""
    with at.opened(ShardKit.queues) as found:
        before = found.counts(queue)
        if not sum(before):
            raise InvalidArgumentError(f"queue {queue!r} is empty", "see shardkit queues show")
        if not yes:
            asked = f"Remove {counted(sum(before), 'task')} of {queue!r} for good?"
            click.confirm(asked, abort=True, err=True)
        removed = found.purge(queue)
    document = {"queue": queue, **removed._asdict()}
    output.answer(document, f"{counted(sum(removed), 'task')} removed", GOOD)
