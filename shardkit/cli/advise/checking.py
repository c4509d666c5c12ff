"""Loads samples into the structures that fit, on embedded servers, and compares the bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from shardkit.admin.conversion.forms import Conversion, StructureForm, Timed, decode_all, form_of
from shardkit.cli.advise.layouts import DAY, LayoutChoice, Row, layouts_of
from shardkit.cli.advise.model import MemoryModel, entry_size, measure
from shardkit.cli.advise.sampling import KeySample, SampledFamily
from shardkit.cli.advise.servers import COMPONENT, BenchServer, ServerSource
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
        found = []
        for choice in choices:
            progress(f"{family.family.text}: {choice.conversion.into}", n, most)
            with servers.empty_server() as server, server.limits(choice.settings):
                found.append(_check(choice, server, model))
        found.sort(key=lambda advice: advice.bytes)
        advices.append(FamilyAdvice(family, tuple(found), "" if found else reason))
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
    highest = max((int(name) for _, name, _ in repeated if name.isdigit()), default=0)
    more = [
        (key, _another(name, turn, highest - int(repeated[0][1]) + 1 if choice.dense else 1), raw)
        for turn in range(1, times)
        for key, name, raw in repeated
    ]
    return [*choice.rows, *more]


def _another(name: bytes, turn: int, step: int) -> bytes:
    """Return another name of the same form."""
    if entry_size(name) <= len(name) or name.isdigit():  # a number, in its compact form
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
