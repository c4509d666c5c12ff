"""``shardkit advise``: what keys take now, and would take in structures; ``shardkit convert``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import shardkit
from shardkit.admin.changes import working_on
from shardkit.admin.conversion.convert import convert
from shardkit.admin.conversion.forms import Conversion
from shardkit.admin.doctor.scan import Database, databases_with
from shardkit.admin.growth.adopt import entry_at
from shardkit.cli import options as given
from shardkit.cli.advise import sampling
from shardkit.cli.advise.checking import TOO_FAR, FamilyAdvice, LayoutAdvice, advise
from shardkit.cli.advise.plots import bars, check_plot
from shardkit.cli.advise.servers import ServerSource
from shardkit.cli.options import ShardOptions, command, opened
from shardkit.cli.output import BAD, DIM, GOOD, STRONG, WARN, Output, Styled, Table, number, wordy
from shardkit.cli.progress import progress
from shardkit.cli.text import percent, printable, size
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.url import cluster_of, each_url
from shardkit.errors import InvalidArgumentError, counted

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
    with _databases(names, on, where) as databases, progress("keys") as tell:
        sample = sampling.take(
            databases, keys, match, type_, lambda seen: tell("sampling", seen, None)
        )
    with progress("families") as tell:
        advices, software = advise(sample, ServerSource(binary), families, tell)
    component = names[0] if names else "data"
    if file is not None:
        file.write_text(_best(advices).to_json(), encoding="utf-8")
    if plot is not None:
        _plot(plot, advices)
    if not output.wrote_json(_document(sample, advices, software, component)):
        _show(output, sample, advices, software, component)


def _best(advices: Sequence[FamilyAdvice]) -> Conversion:
    for advice in advices:
        if advice.layouts:
            return advice.layouts[0].layout.conversion
    raise InvalidArgumentError(
        "the sampled families fit no structure", "choose other keys: --match, --type"
    )


@contextmanager
def _databases(
    names: Sequence[str], on: Sequence[str], where: str | None
) -> Iterator[list[Database]]:
    """Give the databases of ``--on``, or those of components."""
    if on and names:
        raise click.UsageError("--on and COMPONENT exclude each other")
    if not on:
        with opened(where) as topology:
            chosen, _ = topology.components(names, ShardOptions())
            yield databases_with(topology.kit, *chosen)
        return
    entries = tuple(entry_at(text, f"--on {text}") for text in on if cluster_of(text) is None)
    named = {"data": Component("data", shards=entries)} if entries else {}
    for n, text in enumerate(on):
        if (url := cluster_of(text)) is not None:  # any of its nodes will do
            entry = Entry({"url": each_url(url)[0], "cluster": True}, f"--on {text}")
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
        yield databases


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
                        "plan": asdict(layout.layout.conversion),
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
    conversion = Conversion.parse(plan.read_text(encoding="utf-8"))
    told = threading.Event()

    def wait_for_enter() -> None:
        sys.stdin.readline()
        told.set()

    def stopped() -> bool:
        if offline:
            return True
        if not asking:
            output.note("both are equal; stop writing the keys, then press Enter")
            asking.append(threading.Thread(target=wait_for_enter, daemon=True))
            asking[0].start()
        return told.is_set()

    asking: list[threading.Thread] = []
    with (
        opened(where) as topology,
        _databases([] if on else [source or component], on, where) as databases,
        working_on(
            topology.config_server, "convert", component, [topology.kit.component(component)]
        ),
        progress("entries") as tell,
    ):
        result = convert(
            topology.kit,
            component,
            conversion,
            databases,
            offline=offline,
            stopped=stopped,
            share=share,
            progress=lambda step, entries: tell(step, entries, None),
        )
    if output.wrote_json(asdict(result)):
        return
    output.good(
        f"{conversion.keys}: {counted(result.entries, 'entry', 'entries')} are in "
        f"{conversion.into} {conversion.name}, and equal; {result.copied:,} were copied, "
        f"{result.removed:,} removed, {counted(result.followed, 'change')} followed"
    )
    output.line(f"next: {conversion.code(component)}")
