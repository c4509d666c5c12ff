"""``shardkit files``: publishes files for many readers, reads them, and shows how far they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command, group
from shardkit.cli.output import Column, Output, identifier, number, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, column_only, table_of, write_rows
from shardkit.errors import ChannelError, UnreadableFileError, counted, naming
from shardkit.kit.kit import ShardKit
from shardkit.messaging import PublishedFile
from shardkit.messaging.files import BYTE_LIMIT, CHUNK_SIZE, LEASE, FileStatus

_structure_options = given.structure("files", "files")
_FIELDS: tuple[Field[PublishedFile], ...] = (
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
    at: StructureOptions = _structure_options,
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
            sources += [str(each) for each in sorted(Path(path).iterdir()) if each.is_file()]
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
    write_rows(output, _FIELDS, published)


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
    at: StructureOptions = _structure_options,
    raw: bool = given.flag("As published: gzip is not decompressed."),
    into: Path | None = given.option(
        None,
        "Write each file into this directory instead.",
        type=given.FOLDER,
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
    output: Output, channel: str = given.argument(), at: StructureOptions = _structure_options
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
        held = [file._asdict() for file in now.files]
        output.document({**now._asdict(), "files": held, "failed": failed})
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
    return (into / name).open("wb")


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
