"""``shardkit queues``, ``locks``, ``files`` and ``logs``: what structures hold, and changing it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click

from shardkit.admin.locate import KINDS, LockState, lock_states
from shardkit.admin.queue_status import QueueStatus, queue_names, queue_status
from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command, group, opened
from shardkit.cli.output import BAD, GOOD, WARN, Column, Output, Styled, identifier, number, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, column_only, json_rows, rounded, table_of, write_rows
from shardkit.cli.text import reason
from shardkit.errors import ChannelError, InvalidArgumentError, UnreadableFileError, counted, naming
from shardkit.kit.kit import ShardKit
from shardkit.messaging import PublishedFile
from shardkit.messaging.files import BYTE_LIMIT, CHUNK_SIZE, LEASE, FileStatus
from shardkit.metrics.logs import LIMIT, MOST_LIMIT, SEVERITIES
from shardkit.network.server_queries import ServerErrors
from shardkit.queues import DeadTask

_queue_options = given.structure("queues", "queues")


@group()
def queues() -> None:
    """Show task queues, and revive, cancel or purge their tasks."""


@command(
    "shardkit queues show",
    "shardkit queues show email --watch 10",
    "shardkit queues show --json | jq '.[] | select(.dead > 0)'",
    name="show",
    short_help="Show how queues are doing.",
    group=queues,
)
def show_queues(
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
    with at.kit() as kit:
        chosen = list(names) or queue_names(kit, at.component, at.name)
        with output.busy("looking at the queues"):
            queues = kit.queues(at.name, component=at.component)
            rows = queue_status(queues, chosen, seconds=watch)
    if output.as_json:
        output.document(json_rows(_QUEUE_FIELDS, rows))
    elif rows:
        output.table(table_of(_QUEUE_FIELDS, rows).without_empty())
    else:
        output.dim("no queue holds a task")


_QUEUE_FIELDS: tuple[Field[QueueStatus], ...] = (
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
    with at.opened(ShardKit.queues) as task_queues:
        rows = list(islice(task_queues.dead(queue), limit))
        total = task_queues.counts(queue).dead
    if output.wrote_json(dead=total, tasks=json_rows(_DEAD_FIELDS, rows)):
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


def _write_outcomes(
    output: Output, done: dict[str, bool], what: str, missing: str, extra: dict[str, Any]
) -> int:
    """Say which tasks something was done to; return the exit code."""
    absent = [id_ for id_, is_done in done.items() if not is_done]
    if output.wrote_json({**extra, what: len(done) - len(absent), "missing": absent}):
        return int(bool(absent))
    output.line(f"{counted(len(done) - len(absent), 'task')} {what}", WARN if absent else GOOD)
    for id_ in absent:
        output.bad(f"{id_} {missing}")
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
    with at.opened(ShardKit.queues) as task_queues:
        if every:
            revived = task_queues.revive_all(queue)
            document = {"queue": queue, "revived": revived, "missing": []}
            output.answer(document, f"{counted(revived, 'task')} revived", GOOD)
            return 0
        done = {id_: task_queues.revive(queue, id_) for id_ in ids}
    return _write_outcomes(output, done, "revived", "is not dead", {"queue": queue})


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
    with at.opened(ShardKit.queues) as task_queues:
        done = {id_: task_queues.cancel(queue, id_) for id_ in ids}
    missing = "neither waits nor is delayed"
    return _write_outcomes(output, done, "cancelled", missing, {"queue": queue})


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
    with at.opened(ShardKit.queues) as task_queues:
        before = task_queues.counts(queue)
        if not sum(before):
            raise InvalidArgumentError(f"queue {queue!r} is empty", "see shardkit queues show")
        if not yes:
            question = f"Remove {counted(sum(before), 'task')} of {queue!r} for good?"
            click.confirm(question, abort=True, err=True)
        removed = task_queues.purge(queue)
    document = {"queue": queue, **removed._asdict()}
    output.answer(document, f"{counted(sum(removed), 'task')} removed", GOOD)


_LOCK_FIELDS: tuple[Field[LockState], ...] = (
    Field("component", lambda row: row.component, wordy("component")),
    Field("kind", lambda row: row.kind, wordy("kind")),
    Field("name", lambda row: row.name, wordy("name")),
    Field("state", lambda row: row.state, wordy("state")),
    Field("mode", lambda row: row.holder.mode),
    Field("who", lambda row: row.holder.label, wordy("who")),
    rounded("held_for", lambda row: row.holder.held_for, number("held s"), 3, ".1f"),
    rounded("ends_in", lambda row: row.holder.ends_in, number("ends in s"), 3, ".1f"),
    Field("acquired", lambda row: row.holder.acquired),
    Field(
        "token",
        lambda row: row.holder.token,
        identifier("token"),
        lambda row: row.holder.token or None,
    ),
)


@group()
def locks() -> None:
    """Show who holds locks, semaphores and elections, and end holds."""


@command(
    "shardkit locks show",
    "shardkit locks show orders --json",
    name="show",
    short_help="Show who holds what since when, and who waits.",
    group=locks,
)
def show_locks(
    output: Output, names: Sequence[str] = given.components, where: str | None = given.config
) -> int:
    """Show who holds locks, semaphores and elections of components, and who waits.

    Without components, of all. Goes over all keys of the servers with SCAN. Exits with 1 if one
    could not be asked.
    """
    failures: dict[str, Exception] = {}
    rows: list[LockState] = []
    with opened(where) as topology:
        chosen, broken = topology.components(names)
        for component in chosen.values():
            try:
                rows += lock_states(topology.kit, component, failures)
            except ServerErrors as error:
                failures[component.name] = error
    for name, problem in [*((n, reason(e)) for n, e in failures.items()), *broken.items()]:
        output.warning(f"{name}: {problem}")
    write_rows(output, _LOCK_FIELDS, rows)
    return int(bool(failures or broken))


@command("shardkit locks break orders stock --reason 'its host is gone'", name="break", group=locks)
def break_(
    output: Output,
    component: str = given.argument(),
    name: str = given.argument(),
    why: str = given.option(
        None, "The reason that its holder gets.", required=True, name="--reason"
    ),
    kind: str = given.choice(KINDS, "What it is.", default="lock"),
    token: int | None = given.number(None, "Only the hold with this token."),
    where: str | None = given.config,
) -> int:
    """End the holds of a lock, and give it to the first who waits.

    Its holder is told the reason when it renews the hold, at the latest after a third of its time;
    until then it continues. What it writes is refused only where it is guarded. Exits with 1 if
    nobody held it.
    """
    with opened(where) as topology:
        ended = topology.kit.lock(name, component=component, kind=kind).break_holds(why, token)
    output.answer(
        {"component": component, "name": name, "kind": kind, "ended": ended},
        f"{counted(ended, 'hold')} of {kind} {name!r} ended",
    )
    return int(not ended)


_files_options = given.structure("files", "files")
_PUBLISHED_FIELDS: tuple[Field[PublishedFile], ...] = (
    Field("name", lambda file: file.name, wordy("file")),
    Field("number", lambda file: file.number, identifier("number")),
    Field("size", lambda file: file.size if file.new else None, number("bytes")),
    Field("new", lambda file: file.new, Column("new"), lambda file: "yes" if file.new else "no"),
)


@group()
def files() -> None:
    """Publish files in chunks over shards for many readers, and read them."""


@command(
    "shardkit files publish logs /var/log/access --reader country --reader errors",
    "zcat big.gz | shardkit files publish logs - --as big.log --close",
    short_help="Publish files and the files of directories.",
    group=files,
)
def publish(
    output: Output,
    channel: str = given.argument(),
    paths: Sequence[str] = given.argument("PATH...", nargs=-1, required=True),
    at: StructureOptions = _files_options,
    readers: Sequence[str] = given.repeated("NAME", "Create the channel with it.", name="--reader"),
    byte_limit: int = given.number(BYTE_LIMIT, "The most bytes that a new channel holds."),
    chunk_size: int = given.number(CHUNK_SIZE, "The bytes of a chunk of a new channel."),
    given: str | None = given.option("NAME", "The name of the only file.", name="--as"),
    closes: bool = given.flag("Close the channel when all are published.", name="--close"),
    lease: float = given.seconds(
        LEASE,
        "Seconds after which others may continue a file whose publisher was killed.",
        least=1.0,
    ),
    timeout: float | None = given.seconds(None, "The most seconds to wait for space.", 0.0),
) -> None:
    """Publish files to CHANNEL: each PATH, the files of each directory, - for standard input.

    Files that were published before are left alone.
    """
    sources: list[str] = []
    for path in paths:
        if path != "-" and Path(path).is_dir():
            sources += [str(entry) for entry in sorted(Path(path).iterdir()) if entry.is_file()]
        else:
            sources.append(path)
    if given is not None and len(sources) != 1:
        raise click.UsageError(f"--as names one file, not {len(sources)}")
    if "-" in sources and given is None:
        raise click.UsageError("standard input needs a name: --as NAME")
    published = []
    with at.opened(ShardKit.files) as channels, progress("bytes") as show:
        if readers:
            channels.create(channel, list(readers), byte_limit=byte_limit, chunk_size=chunk_size)
        for path in sources:
            source: Any = sys.stdin.buffer if path == "-" else path
            size = None if path == "-" else Path(path).stat().st_size
            shown = given or Path(path).name

            def report(done: int, shown: str = shown, size: int | None = size) -> None:
                show(shown, done, size)

            file = channels.publish(
                channel, source, name=given, timeout=timeout, lease=lease, progress=report
            )
            published.append(file)
        if closes:
            channels.close(channel)
    write_rows(output, _PUBLISHED_FIELDS, published)


@command(
    "shardkit files read logs errors | grep -c ' 500 '",
    "shardkit files read logs backup --raw --into /backup --timeout 60",
    short_help="Write the lines of files to standard output.",
    group=files,
)
def read(
    output: Output,
    channel: str = given.argument(),
    reader: str = given.argument(),
    at: StructureOptions = _files_options,
    raw: bool = given.flag("As published: gzip is not decompressed."),
    into: Path | None = given.option(
        None, "Write each file into this directory instead.", type=given.FOLDER
    ),
    lease: float = given.seconds(
        LEASE, "The seconds after which others may take a file that is not read on.", 1.0
    ),
    timeout: float | None = given.seconds(
        None,
        "The most seconds to wait for a file; by default until the channel is closed.",
        least=0.0,
    ),
) -> int:
    """Read the files of CHANNEL as READER, until it is closed and all are read.

    A file counts as read when all of it is written. --json writes an object for each file to
    standard error. Exits with 1 if a file could not be read: it is tried again, up to five times.
    """
    failed = 0
    with at.opened(ShardKit.files) as channels, progress("bytes") as show:
        for file in channels.take_all(channel, reader, lease=lease, timeout=timeout):
            target: Any = sys.stdout.buffer if into is None else _target(into, file.name)
            written = 0
            try:
                with naming("standard output" if into is None else into / file.name):
                    for block in channels.read(file, raw=raw):
                        target.write(block)
                        written += len(block)
                        show(file.name, written, None)
                    target.flush()
            except UnreadableFileError as error:
                failed += 1
                output.warning(error.message)
                channels.fail(file, error.message)
            else:
                channels.done(file)
                if output.as_json:
                    read = {"name": file.name, "number": file.number, "bytes": written}
                    click.echo(json.dumps(read, ensure_ascii=False), err=True)
            finally:
                if into is not None:
                    target.close()
    return 1 if failed else 0


@command("shardkit files status logs", "shardkit files status logs --json", group=files)
def status(
    output: Output, channel: str = given.argument(), at: StructureOptions = _files_options
) -> int:
    """Show the files of CHANNEL that not all readers have finished.

    Exits with 1 if files were given up.
    """
    with at.opened(ShardKit.files) as channels:
        now = channels.status(channel)
    if output.as_json:
        failed = [
            {"reader": reader, "file": file, "reason": reason}
            for (reader, file), reason in now.failed.items()
        ]
        rows = [file._asdict() for file in now.files]
        output.document({**now._asdict(), "files": rows, "failed": failed})
    else:
        state = "closed" if now.closed else "open"
        output.line(
            f"{state}, {now.held:,} of {now.byte_limit:,} bytes held, "
            f"{counted(len(now.files), 'file')} in use"
        )
        if now.files:
            output.table(table_of(_file_fields(now.readers), now.files))
        for (reader, file_name), reason in now.failed.items():
            output.warning(f"{reader} has given up {file_name}: {reason}")
    return 1 if now.failed else 0


def _target(into: Path, name: str) -> Any:
    # The publisher chose the name: it must not lead out of the directory.
    if Path(name).name != name or name in (".", ".."):
        raise ChannelError(f"file {name!r} is no file name", "read it without --into")
    into.mkdir(parents=True, exist_ok=True)
    waits = getattr(os, "O_NONBLOCK", 0)  # for a FIFO's reader
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | waits
    return open(os.open(into / name, flags, 0o666), "wb")


def _file_fields(readers: Sequence[str]) -> tuple[Field[FileStatus], ...]:
    return (
        column_only(wordy("file"), lambda file: file.name),
        column_only(number("bytes"), lambda file: file.size),
        column_only("complete", lambda file: "yes" if file.complete else "no"),
        *(
            column_only(number(reader), lambda file, reader=reader: file.offsets[reader])  # type: ignore[misc]
            for reader in readers
        ),
    )


@command(
    "shardkit logs shop --component metrics",
    "shardkit logs shop --component metrics --severity warning --follow",
    "shardkit logs shop --component metrics --limit 20 --json",
)
def logs(
    output: Output,
    log: str = given.argument("LOG"),
    at: StructureOptions = given.structure("metrics", "logs"),
    follow: bool = given.flag("Go on with what is logged, until Ctrl-C.", short="-f"),
    severity: str = given.choice(SEVERITIES, "The least severity.", default="debug", short="-s"),
    limit: int = given.number(
        LIMIT,
        "How many of the last messages of each severity.",
        short="-n",
        least=0,
        most=MOST_LIMIT,
    ),
) -> None:
    """Show the recent messages of LOG, oldest first.

    --json writes an object for each message, one in a line.
    """
    with at.opened(ShardKit.logs) as messages:
        for entry in messages.follow(log, severity, limit=limit, stopped=lambda: not follow):
            if output.as_json:
                when = entry.time.isoformat() if entry.time else None
                document = {"time": when, "severity": entry.severity, "message": entry.message}
                click.echo(json.dumps(document, ensure_ascii=False))
            else:
                when = entry.time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if entry.time else "-"
                output.line(f"{when} {entry.severity:<8} {entry.message}")
