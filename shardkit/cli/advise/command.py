"""``shardkit advise``: what keys take now, and would take in structures; ``shardkit convert``."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import click

import shardkit
from shardkit.admin.changes import explaining, working_on
from shardkit.admin.conversion.convert import convert
from shardkit.admin.conversion.forms import Conversion, StructureForm, Timed, decode_all, form_of
from shardkit.admin.doctor.scan import Database, databases_with
from shardkit.admin.growth.adopt import entry_at
from shardkit.cli import options as given
from shardkit.cli.advise import sampling
from shardkit.cli.advise.layouts import DAY, LayoutChoice, Row, layouts_of
from shardkit.cli.advise.plots import bars, check_plot
from shardkit.cli.advise.sampling import KeySample, SampledFamily
from shardkit.cli.advise.servers import (
    COMPONENT,
    BenchServer,
    MemoryModel,
    ServerSource,
    entry_size,
    measure,
)
from shardkit.cli.options import ShardOptions, command, opened
from shardkit.cli.output import (
    BAD,
    DIM,
    GOOD,
    STRONG,
    WARN,
    Output,
    Styled,
    Table,
    number,
    wordy,
)
from shardkit.cli.progress import progress
from shardkit.cli.text import percent, printable, size
from shardkit.config.component import Component
from shardkit.config.entry import Entry, read_regular, write_private
from shardkit.config.shard_map import ShardMap
from shardkit.config.url import cluster_of, node_urls
from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.operation import pages
from shardkit.structures.unique.visitors import UniqueVisitors

_CHECKED = 20_000  # entries that are loaded: fewer take too little to be measured
_WARM = 50  # entries that are written and deleted first: scripts and statistics take memory
_AT_ONCE = 500
_YEAR = 31_536_000_000  # milliseconds
TOO_FAR = 0.05  # predictions that differ more are doubtful

Progress = Callable[[str, int, int | None], object]


@dataclass(frozen=True)
class LayoutAdvice:
    """What a family would take in a structure."""

    layout: LayoutChoice
    bytes: int  # predicted for all its entries
    sampled: int  # entries that the check has loaded
    predicted: int  # bytes predicted for the sampled entries
    measured: int  # bytes that the sampled entries take

    @property
    def error(self) -> float:
        """By how much the prediction differs from what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class FamilyAdvice:
    """What a family takes, and would take."""

    family: SampledFamily
    layouts: tuple[LayoutAdvice, ...]  # the structures that fit, the smallest first
    reason: str  # why none does

    def saving(self, layout: LayoutAdvice) -> float:
        """Return the share of the memory that a structure saves."""
        return 1 - layout.bytes / max(self.family.memory, 1)


def advise(
    sample: KeySample, servers: ServerSource, most: int, progress: Progress
) -> tuple[list[FamilyAdvice], str]:
    """Return the advice for the families that take most, and the software of the embedded server.

    Cost: about a second for each structure that fits.
    """
    advices = []
    expiring = any(family.expires for family in sample.families[:most])
    with servers.empty_server() as server:
        software, model = server.software, measure(server, expiring)
    for n, family in enumerate(sample.families[:most]):
        choices, reason = layouts_of(family, model)
        layouts = []
        for choice in choices:
            progress(f"{family.family.text}: {choice.conversion.into}", n, most)
            with servers.empty_server() as server, server.limits(choice.settings):
                layouts.append(_check(choice, server, model))
        layouts.sort(key=lambda advice: advice.bytes)
        advices.append(FamilyAdvice(family, tuple(layouts), "" if layouts else reason))
    return advices, software


def _check(choice: LayoutChoice, server: BenchServer, model: MemoryModel) -> LayoutAdvice:
    rows = _timed(choice.conversion, _enough(choice))
    trained = choice.conversion.train
    count = len(rows) - trained
    conversion = _planned(choice.conversion, count)
    _warm(choice, server)
    first = server.bytes_added()
    form = form_of(conversion, server.kit, COMPONENT)
    entries = decode_all(form, rows)
    predict, dictionary = choice.predict, 0.0
    if trained:
        fields = form.fields
        values = [getattr(value, "value", value) for _, value in entries[: len(choice.rows)]]
        fields.train(values[:trained])
        stored = [fields.codec.encode(value) for value in values[trained:]]
        assert choice.with_values is not None
        predict = choice.with_values(stored)
        dictionary = server.bytes_added() - first
        form = form_of(conversion, server.kit, COMPONENT)
        entries = entries[trained:]
    for page in pages(entries, _AT_ONCE):
        form.sync(page)
    if conversion.expires and not conversion.by_key:
        form.expire(DAY.isoformat().encode(), _due())
    measured = server.bytes_added() - first
    return LayoutAdvice(
        choice,
        round(choice.times * predict(model, choice.total) + dictionary),
        count,
        round(predict(model, count) + dictionary),
        measured,
    )


def _due() -> int:
    """Return a time at which a key may expire, in the year after the next one."""
    return round(1000 * time.time()) + random.randrange(_YEAR, 2 * _YEAR)


def _timed(conversion: Conversion, rows: Sequence[Row]) -> list[Row]:
    if not (conversion.expires and conversion.by_key):
        return list(rows)
    return [(key, name, Timed(raw, _due())) for key, name, raw in rows]


def _planned(conversion: Conversion, count: int) -> Conversion:
    parameters = dict(conversion.parameters)
    for planned in parameters.keys() & {"total", "first_day"}:
        parameters[planned] = count
    return replace(conversion, parameters=parameters)


def _enough(choice: LayoutChoice) -> list[Row]:
    """Return the rows of the sample, those behind the training's repeated under other names."""
    trained = choice.conversion.train
    repeated = choice.rows[trained:]
    times = min(ceil(_CHECKED / len(repeated)), ceil(choice.total / len(repeated)))
    numbers = (int(name) for _, name, _ in repeated if name.isdigit() and len(name) < 20)
    highest = max(numbers, default=0)
    more = [
        (key, _another(name, turn, highest - int(repeated[0][1]) + 1 if choice.dense else 1), raw)
        for turn in range(1, times)
        for key, name, raw in repeated
    ]
    return [*choice.rows, *more]


def _another(name: bytes, turn: int, step: int) -> bytes:
    """Return another name of the same form."""
    # A number, in its compact form.
    if entry_size(name) <= len(name) or (name.isdigit() and len(name) < 20):
        return b"%d" % (int(name) + turn * step)
    turn %= len(name)
    return name[turn:] + name[:turn] if turn else name


def _warm(choice: LayoutChoice, server: BenchServer) -> None:
    conversion = replace(_planned(choice.conversion, 1), keys="warm", name="w:warm")
    form: StructureForm = form_of(conversion, server.kit, COMPONENT)
    rows = _timed(conversion, choice.rows[:_WARM])
    form.sync(decode_all(form, rows))
    if isinstance(form.structure, UniqueVisitors):
        form.structure.remove(rows[0][2])
    else:
        form.structure.delete()


_on_option = given.repeated(
    "HOST:PORT/DB|URL",
    "A database with the keys, or redis+cluster://HOST:PORT; repeat it. By default those of the "
    "components.",
)


@command(
    "shardkit advise --on 10.0.0.1:6379/0",
    "shardkit advise users --match 'user:*' --plot users.svg",
    "shardkit advise --on 10.0.0.1:6379/0 --match 'user:*' --output user.json",
    name="advise",
)
def advise_command(
    output: Output,
    names: Sequence[str] = given.components,
    on: tuple[str, ...] = _on_option,
    match: str | None = given.option("PATTERN", "Only keys that match, as of SCAN."),
    type_: str | None = given.choice(
        ["string", "hash", "set", "zset", "list", "stream"],
        "Only keys of this type.",
        name="--type",
    ),
    keys: int = given.number(5_000, "Keys of each database to sample at most.", name="--sample"),
    families: int = given.number(5, "How many families to advise on, the largest first."),
    binary: str | None = given.option(
        "PATH",
        "The server to start: a path, or a program on PATH; by default the embedded one.",
        name="--server",
    ),
    plot: Path | None = given.option(None, "Draw a plot: .svg, .png …", type=given.FILE),
    file: Path | None = given.option(
        None,
        "Write the best choice for the largest family, for shardkit convert.",
        type=given.FILE,
        name="--output",
    ),
    where: str | None = given.config,
) -> None:
    """Show what keys take, and what they would take in shardkit's structures.

    Samples keys of the servers, recognises families such as user:<n>:name, and predicts the memory
    of each structure that fits. Each prediction is checked: the sample is loaded into the
    structure, on an embedded server. Changes nothing on your servers.
    """
    if plot is not None:
        check_plot(plot)
    with _databases(names, on, where) as (_, databases), progress("keys") as tell:
        sample = sampling.take(
            databases, keys, match, type_, lambda seen: tell("sampling", seen, None)
        )
    with progress("families") as tell:
        advices, software = advise(sample, ServerSource(binary), families, tell)
    component = names[0] if names else "data"
    if file is not None:
        best = next((advice.layouts[0] for advice in advices if advice.layouts), None)
        if best is None:
            raise InvalidArgumentError(
                "the sampled families fit no structure", "choose other keys: --match, --type"
            )
        write_private(file, best.layout.conversion.to_json())
    if plot is not None:
        _plot(plot, advices)
    if not output.wrote_json(_document(sample, advices, software, component)):
        _show(output, sample, advices, software, component)


@contextmanager
def _databases(
    names: Sequence[str], on: Sequence[str], where: str | None
) -> Iterator[tuple[list[Component], list[Database]]]:
    """Give the databases of ``--on``, or those of components, and what these are."""
    if on and names:
        raise click.UsageError("--on and COMPONENT exclude each other")
    if not on:
        with opened(where) as topology:
            chosen, _ = topology.components(names, ShardOptions())
            yield list(chosen.values()), databases_with(topology.kit, *chosen)
        return
    entries = tuple(entry_at(text, f"--on {text}") for text in on if cluster_of(text) is None)
    named = {"data": Component("data", shards=entries)} if entries else {}
    for n, text in enumerate(on):
        if (url := cluster_of(text)) is not None:  # any of its nodes will do
            entry = Entry({"url": node_urls(url)[0], "cluster": True}, f"--on {text}")
            named[f"data-{n}"] = Component(f"data-{n}", entry=entry)
    with shardkit.connect(ShardMap(named)) as kit:
        databases = databases_with(kit, *named)
        for database in databases:
            info: Any = database.client.info("cluster")
            if database.shard.component == "data" and int(info.get("cluster_enabled", 0)):
                raise InvalidArgumentError(
                    f"{database.server} is a node of a cluster, whose other nodes have keys too",
                    f"specify --on redis+cluster://{database.server}",
                )
        yield list(named.values()), databases


def _label(layout: LayoutAdvice) -> str:
    conversion = layout.layout.conversion
    given = {k: v for k, v in conversion.parameters.items() if k != "fields"}
    words = [f"{name}={value}" for name, value in given.items()]
    if "fields" in conversion.parameters:
        words = [f"{name}:{kind}" for name, kind in conversion.parameters["fields"].items()]
    return " ".join([conversion.into, *words])


def _show(
    output: Output,
    sample: sampling.KeySample,
    advices: Sequence[FamilyAdvice],
    software: str,
    component: str,
) -> None:
    table = Table.of(
        wordy("family, structure"),
        number("keys"),
        number("memory"),
        number("saved"),
        number("check"),
    )
    for advice in advices:
        family = advice.family
        name = f"{printable(family.family.text)} ({family.family.type})"
        table.row(Styled(name, STRONG), family.count, size(family.memory), "", "")
        if advice.reason:
            table.row(Styled(f"  {advice.reason}", DIM), "", "", "", "")
        for layout in advice.layouts:
            saving = advice.saving(layout)
            saved = f"{saving:.0%}"
            table.row(
                f"  {_label(layout)}",
                "",
                size(layout.bytes),
                Styled(saved, GOOD if saving > 0.1 else BAD),
                Styled(f"{layout.error:+.1%}", WARN if abs(layout.error) > TOO_FAR else ""),
            )
    output.table(table)
    output.line()
    known = sum(advice.family.memory for advice in advices)
    output.dim(
        f"{sample.seen:,} of {counted(sample.keys, 'key')} were looked at; the families take "
        f"{percent(known, sample.used_memory)} of used_memory"
    )
    if known < sample.used_memory / 2:
        output.dim("large keys that a sample misses: shardkit keys --biggest 20")
    output.dim(f"check: the prediction for a part, against the same on {software}")
    for advice in advices:
        if advice.layouts and advice.saving(advice.layouts[0]) > 0:
            best = advice.layouts[0].layout
            output.line()
            output.dim(f"# {printable(advice.family.family.text)}")
            output.text(best.conversion.code(component) + "\n")
            for setting, value in best.settings.items():
                output.text(f"# on the servers: CONFIG SET {setting} {value}\n")
            if best.note:
                output.text(f"# {best.note}\n")


def _document(
    sample: sampling.KeySample, advices: Sequence[FamilyAdvice], software: str, component: str
) -> dict[str, Any]:
    return {
        "keys": sample.keys,
        "seen": sample.seen,
        "used_memory": sample.used_memory,
        "checked_on": software,
        "families": [
            {
                "family": advice.family.family.text,
                "type": advice.family.family.type,
                "keys": advice.family.count,
                "memory": advice.family.memory,
                "reason": advice.reason,
                "structures": [
                    {
                        "structure": _label(layout),
                        "memory": layout.bytes,
                        "saving": round(advice.saving(layout), 3),
                        "check": {
                            "entries": layout.sampled,
                            "predicted": layout.predicted,
                            "measured": layout.measured,
                        },
                        "settings": dict(layout.layout.settings),
                        "note": layout.layout.note,
                        "code": layout.layout.conversion.code(component),
                        "plan": layout.layout.conversion,
                    }
                    for layout in advice.layouts
                ],
            }
            for advice in advices
        ],
    }


def _plot(path: Path, advices: Sequence[FamilyAdvice]) -> None:
    values: dict[str, dict[str, float]] = {}
    for advice in advices:
        name = advice.family.family.text
        values[f"{name}: now"] = {"now": advice.family.memory / 2**20}
        for layout in advice.layouts:
            values[f"{name}: {_label(layout)}"] = {"predicted": layout.bytes / 2**20}
    bars(path, "Memory of families of keys", values, "MiB")


@command(
    "shardkit convert user.json --component users",
    "shardkit convert user.json --on 10.0.0.1:6379/0 --component users",
    "shardkit convert user.json --component users --offline --json",
    name="convert",
)
def convert_command(
    output: Output,
    plan: Path = given.argument(type=given.EXISTING),
    component: str = given.option(None, "Where the structure will live.", required=True),
    source: str | None = given.option(
        "COMPONENT", "The component with the keys; by default the same.", name="--from"
    ),
    on: tuple[str, ...] = _on_option,
    offline: bool = given.flag("No client writes the keys: do not watch them."),
    share: float = given.number(0.2, "Share of the time for reading.", 0.01, most=1.0),
    where: str | None = given.config,
) -> None:
    """Copy a family of keys into a structure while clients use the keys, and verify the copy.

    PLAN is written by `shardkit advise --output`. The keys are not changed. When both are equal,
    the command follows all changes: stop writing the keys, press Enter, and switch to the
    structure. If it is interrupted, run it again: what is equal is only read.
    """
    conversion = Conversion.parse(read_regular(plan))
    confirmed = threading.Event()

    def wait_for_enter() -> None:
        sys.stdin.readline()
        confirmed.set()

    def stopped() -> bool:
        if offline:
            return True
        if not asking:
            output.note("both are equal; stop writing the keys, then press Enter")
            asking.append(threading.Thread(target=wait_for_enter, daemon=True))
            asking[0].start()
        return confirmed.is_set()

    asking: list[threading.Thread] = []
    with (
        explaining(
            lambda: f"{conversion.keys}: not all of it is in {conversion.name}",
            lambda: "convert again: what is equal is only read",
        ),
        opened(where) as topology,
        _databases([] if on else [source or component], on, where) as (read, databases),
        working_on(
            *(topology.config_server, "convert", component),
            [topology.kit.component(component), *read],
        ) as still,
        progress("entries") as tell,
    ):
        result = convert(
            topology.kit,
            component,
            conversion,
            databases,
            offline=offline,
            stopped=stopped,
            still=still,
            share=share,
            progress=lambda step, entries: tell(step, entries, None),
        )
    if output.wrote_json(result):
        return
    output.good(
        f"{conversion.keys}: {counted(result.entries, 'entry', 'entries')} are in "
        f"{conversion.into} {conversion.name}, and equal; {result.copied:,} were copied, "
        f"{result.removed:,} removed, {counted(result.followed, 'change')} followed"
    )
    output.line(f"next: {conversion.code(component)}")
