"""``shardkit geo``: imports the cities of IP address ranges, and looks up addresses."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command, group
from shardkit.cli.output import Column, Output, wordy
from shardkit.cli.progress import ProgressCallback, progress
from shardkit.cli.rows import Field, write_rows
from shardkit.config.entry import open_regular
from shardkit.errors import counted
from shardkit.geo import readers
from shardkit.geo.ip_to_city import GRACE, LEAST_GRACE, Imported
from shardkit.geo.readers import City, Item
from shardkit.kit.kit import ShardKit

FORMATS = ("geolite2", "geolite-legacy", "mmdb", "jsonl", "csv")
_LINES_A_TELL = 10_000

_structure_options = given.structure("geo", "ip2city")


@group()
def geo() -> None:
    """Import the cities of IP address ranges, and look up addresses."""


def _column(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> readers.CsvColumn | None:
    return int(value) if value is not None and value.isdecimal() else value


def _column_option(about: str) -> Any:
    return given.option("COLUMN", about, callback=_column)


@command(
    "shardkit geo import GeoLite2-City.mmdb --language de",
    "shardkit geo import GeoLite2-City-Blocks-IPv*.csv --cities GeoLite2-City-Locations-en.csv",
    "shardkit geo import ranges.csv.gz --first 0 --last 1 --city 5 --region 4 --country 2",
    "shardkit geo import ranges.jsonl --json",
    name="import",
    short_help="Replace the data by the contents of files.",
    group=geo,
    language=given.option(None, "mmdb: the language of names.", default="en"),
    first=_column_option("csv: the first address, or the network. A number from 0, or a name."),
    last=_column_option("csv: the last address; not for networks."),
    id=_column_option("csv: the city's id."),
    city=_column_option("csv: the city's name."),
    region=_column_option("csv: the region's name."),
    country=_column_option("csv: the country's name."),
    delimiter=given.option(None, "csv: the separator of columns.", default=","),
    encoding=given.option(None, "csv: the files' encoding.", default="utf-8"),
)
def import_(
    output: Output,
    files: Sequence[Path] = given.argument("FILE...", nargs=-1, required=True, type=given.EXISTING),
    at: StructureOptions = _structure_options,
    layout: str | None = given.choice(
        FORMATS, "The format of the files; by default, from their names.", name="--format"
    ),
    cities: Path | None = given.option(
        None, "The file of the cities, if ranges have only ids.", type=given.EXISTING
    ),
    grace: int = given.seconds(
        GRACE, "How long the old data stays for lookups in progress.", LEAST_GRACE
    ),
    **options: Any,
) -> None:
    """Replace all data by the contents of files, or none if anything fails.

    Look-ups find the old data until the import is complete, and then the new data. Invalid lines
    are skipped and counted. Files whose names end in .gz are unpacked.
    """
    layout = layout or _format_of(files[0], cities)
    with at.opened(ShardKit.ip_to_city) as ip, progress("KB") as report_progress:
        reading = _FileProgress([*files, *([cities] if cities else [])], report_progress)
        items = _reader(layout, files, cities, reading, options)
        done = ip.import_from(items, grace=grace, progress=reading.written)
    skipped = [skipped._asdict() for skipped in done.first_skipped]
    if not output.wrote_json({**done._asdict(), "first_skipped": skipped}):
        _show(output, done)


def _format_of(file: Path, cities: Path | None) -> str:
    name = file.name.lower().removesuffix(".gz")
    if name.endswith(".mmdb"):
        return "mmdb"
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    if cities and name.startswith("geolitecity"):
        return "geolite-legacy"
    if cities and name.startswith(("geolite2", "geoip2")):
        return "geolite2"
    return "csv"


def _reader(
    layout: str,
    files: Sequence[Path],
    cities: Path | None,
    reading: _FileProgress,
    options: dict[str, Any],
) -> Iterator[Item]:
    """Return a reader of the files; refuse impossible options before anything is sent."""
    language = options.pop("language")
    columns = {key: options[key] for key in ("id", "city", "region", "country")}
    if layout == "mmdb":
        return chain.from_iterable(readers.mmdb(file, language=language) for file in files)
    if layout == "jsonl":
        every = [*([cities] if cities else []), *files]
        return chain.from_iterable(readers.jsonl(reading.lines(file)) for file in every)
    if layout.startswith("geolite"):
        if cities is None:
            raise click.UsageError(f"{layout} has its cities in a separate file: use --cities")
        if layout == "geolite2":
            return readers.geolite2(*map(reading.lines, files), locations=reading.lines(cities))
        if len(files) > 1:
            raise click.UsageError("geolite-legacy has one file of ranges")
        return readers.geolite_legacy(reading.lines(files[0]), reading.lines(cities))
    if options["first"] is None or all(column is None for column in columns.values()):
        raise click.UsageError(
            f"{files[0]} has columns: name them with --first and --last, and --id or --city; "
            "or --format"
        )
    form = {"delimiter": options["delimiter"], "encoding": options["encoding"]}
    ends = {"first": options["first"], "last": options["last"]}
    if cities is None:
        return chain.from_iterable(
            readers.csv_ranges(reading.lines(file), **ends, **columns, **form) for file in files
        )
    if columns["id"] is None:
        raise click.UsageError("ranges refer to the cities of --cities by their ids: use --id")
    return chain(
        readers.csv_cities(reading.lines(cities), **columns, **form),
        chain.from_iterable(
            readers.csv_ranges(reading.lines(file), **ends, id=columns["id"], **form)
            for file in files
        ),
    )


class _FileProgress:
    def __init__(self, files: Sequence[Path], report_progress: ProgressCallback) -> None:
        self._all = sum(file.stat().st_size for file in files)
        self._tell = report_progress
        self.before = 0  # bytes of the files that are read

    def lines(self, file: Path) -> _TrackedLines:
        return _TrackedLines(file, self)

    def written(self, what: str, count: int) -> None:
        if what == "blocks":
            self.show(f"{count:,} {what} written", self._all)

    def show(self, what: str, position: int) -> None:
        self._tell(what, position // 1024, self._all // 1024)


class _TrackedLines:
    """The lines of one file; `name` is its name in messages."""

    def __init__(self, file: Path, progress: _FileProgress) -> None:
        self.name = str(file)
        self._file, self._progress = file, progress

    def __iter__(self) -> Iterator[bytes]:
        progress, what = self._progress, f"reading {self._file.name}"
        with open_regular(self._file) as raw:
            file: Any = gzip.GzipFile(fileobj=raw) if self._file.suffix == ".gz" else raw
            lines = iter(partial(file.readline, readers.LONGEST_LINE), b"")
            for number, line in enumerate(lines):
                if number % _LINES_A_TELL == 0:
                    progress.show(what, progress.before + raw.tell())
                yield line
            progress.before += raw.tell()
            progress.show(what, progress.before)


def _show(output: Output, done: Imported) -> None:
    output.line(
        f"{counted(done.ranges, 'range')} in {done.cities:,} cities, now in use as generation "
        f"{done.generation}"
    )
    if done.skipped:
        output.note(f"{counted(done.skipped, 'line')} skipped; the first:")
        for skipped in done.first_skipped:
            output.note(f"  {skipped}")


@command(
    "shardkit geo find 192.0.2.7 2001:db8::7",
    "shardkit geo find --json 192.0.2.7 | jq -r '.[0].country'",
    "cut -d' ' -f1 access.log | sort -u | shardkit geo find -",
    short_help="Show the cities of addresses.",
    group=geo,
)
def find(
    output: Output,
    addresses: Sequence[str] = given.argument("ADDRESS...", nargs=-1, required=True),
    at: StructureOptions = _structure_options,
) -> None:
    """Show the cities of addresses; with - they are read from stdin, one per line."""
    if tuple(addresses) == ("-",):
        addresses = [line.strip() for line in sys.stdin if line.strip()]
    with at.opened(ShardKit.ip_to_city) as ip:
        cities = ip.find_many(addresses)
    pairs = list(zip(addresses, cities, strict=True))
    write_rows(output, _CITY_FIELDS, pairs)


_CITY_FIELDS: tuple[Field[tuple[str, City | None]], ...] = (
    Field("address", lambda pair: pair[0], Column("address")),
    Field("city", lambda pair: pair[1] and pair[1].city, wordy("city")),
    Field("region", lambda pair: pair[1] and pair[1].region, wordy("region")),
    Field("country", lambda pair: pair[1] and pair[1].country, wordy("country")),
    Field(
        "id",
        lambda pair: pair[1] and pair[1].id,
        Column("id"),
        lambda pair: None if pair[1] is None or pair[1].id is None else str(pair[1].id),
    ),
)


@command("shardkit geo info", "shardkit geo info --json", group=geo)
def info(output: Output, at: StructureOptions = _structure_options) -> int:
    """Show which data is in use. Exits with 1 if there is none."""
    with at.opened(ShardKit.ip_to_city) as ip:
        used = ip.info()
    if output.as_json:
        output.document(None if used is None else used._asdict())
    elif used is None:
        output.line("nothing was imported yet")
    else:
        imported = datetime.fromtimestamp(used.imported, UTC).isoformat(" ", "minutes")
        output.line(
            f"generation {used.number}, imported {imported.removesuffix('+00:00')} UTC: "
            f"{counted(used.ranges, 'range')} in {used.cities:,} cities, "
            f"{counted(used.blocks, 'block')}"
        )
    return int(used is None)
