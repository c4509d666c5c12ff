"""Options that several commands share, and the topology that ``--config`` names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import click

import shardkit
from shardkit.cli.groups import (
    INTERRUPTED as INTERRUPTED,
    Session as Session,
    debug_option as debug_option,
    examples as examples,
    group as group,
    timed as timed,
)
from shardkit.cli.output import DIM, Output
from shardkit.cli.text import reason
from shardkit.config.component import MAX_SHARDS, Component
from shardkit.config.entry import Entry, entries_of_url
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import SAMPLE_SIZE
from shardkit.errors import ConfigError, ConfigServerError, MissingEntryError, counted
from shardkit.kit.config_client import first_master
from shardkit.kit.kit import ENVIRONMENT, ShardKit
from shardkit.network.server_queries import ServerErrors
from shardkit.operations.arguments import LONGEST_WAIT
from shardkit.routing.placement import DEFAULT

S = TypeVar("S")


LOGIN_PASSWORD = "SHARDKIT_EXEC_PASSWORD"  # of --user

# ``--json`` (``output``, an `Output`).
json_option = click.option(
    "--json",
    "output",
    is_flag=True,
    callback=lambda _ctx, _param, as_json: Output(as_json),
    help="Write JSON, for programs.",
)


@dataclass(frozen=True)
class Given:
    """What the command line gives for a parameter of a command's function: the default of that."""

    make: Callable[[str], click.Parameter]  # returns the option or argument of a name
    parts: Mapping[str, Given] = field(default_factory=dict)  # of several options, by name,
    gather: Callable[..., Any] = lambda value: value  # of which this makes the value


def option(metavar: str | None, about: str, *, name: str = "", short: str = "", **more: Any) -> Any:
    """Return an option with a value, ``more`` being settings of `click.Option`.

    It is named after the parameter of which it is the default, or ``name`` (``--from``).
    """

    def make(parameter: str) -> click.Parameter:
        names = [short, name or f"--{parameter.replace('_', '-')}", parameter]
        more.setdefault("show_default", more.get("default", "") != "")
        return click.Option([*filter(None, names)], metavar=metavar, help=about, **more)

    return Given(make)


def flag(about: str, **more: Any) -> Any:
    """Return an option without a value; see `option`."""
    return option(None, about, is_flag=True, **more)


def repeated(metavar: str | None, about: str, **more: Any) -> Any:
    """Return an option that may be given several times; see `option`."""
    return option(metavar, about, multiple=True, **more)


def choice(values: Sequence[str], about: str, **more: Any) -> Any:
    """Return an option with one of some values; see `option`."""
    return option(None, about, type=click.Choice(values), **more)


def number(
    default: float | None, about: str, least: float = 1, *, most: float | None = None, **more: Any
) -> Any:
    """Return an option of a number: of a whole one if ``least`` is an int; see `option`."""
    kind: Any = click.IntRange if isinstance(least, int) else click.FloatRange
    if default is not None:
        more["default"] = default
    more["callback"] = _usable
    return option(more.pop("unit", "N"), about, type=kind(least, most), **more)


def _usable(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    most = LONGEST_WAIT if parameter.metavar == "SECONDS" else 2**53
    if value is not None and not abs(value) <= most:  # NaN neither
        raise click.BadParameter("it is no number that can be used")
    return value


def seconds(default: float | None, about: str, least: float = 0.0, **more: Any) -> Any:
    """Return an option of a time; see `number`."""
    return number(default, about, least, unit="SECONDS", **more)


def argument(metavar: str | None = None, **more: Any) -> Any:
    """Return an argument, ``more`` being settings of `click.Argument`."""
    return Given(lambda parameter: click.Argument([parameter], metavar=metavar, **more))


def _together(gather: Callable[..., Any], **parts: Given) -> Any:
    return Given(click.Parameter, parts, gather)


def command(
    *lines: str,
    name: str | None = None,
    group: click.Group | None = None,
    kind: type[click.Command] = click.Command,
    **more: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a command with examples, ``--json`` (``output``) and ``--debug``.

    The defaults of its parameters say what else the command line gives; ``more`` are options that
    it takes as ``**options``, and settings of `click.Command`.
    """
    given = {name: more.pop(name) for name in [*more] if isinstance(more[name], Given)}

    def make(function: Callable[..., Any]) -> click.Command:
        defaults = {n: p.default for n, p in signature(function).parameters.items()}
        every = {n: option for n, option in defaults.items() if isinstance(option, Given)} | given
        composed = {n: option for n, option in every.items() if option.parts}

        @functools.wraps(function)
        def run(*args: Any, **values: Any) -> Any:
            for into, option in composed.items():
                values[into] = option.gather(**{part: values.pop(part) for part in option.parts})
            return function(*args, **values)

        params = [
            option.make(parameter)
            for into, several in every.items()
            for parameter, option in (several.parts or {into: several}).items()
        ]
        built = click.command(name, kind, epilog=examples(*lines), params=params, **more)(run)
        json_option(built)  # the last in its help
        debug_option(built)
        if group is not None:
            group.add_command(built)
        return built

    return make


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)
FOLDER = click.Path(path_type=Path, file_okay=False)

components = argument("[COMPONENT]...", nargs=-1)
shard_map = argument("MAP", type=PATH)
yes = flag("Do not ask.")
dry_run = flag("Show what would be done; change nothing.")

# ``where``: a shard map's path or a config server's URL.
config = option(
    "MAP|URL",
    "A shard map, or the URL of the config server.",
    name="--config",
    short="-c",
    envvar=ENVIRONMENT,
    show_envvar=True,
)


@dataclass(frozen=True)
class StructureOptions:
    """``--config``, ``--component`` and ``--name``: where a structure is."""

    where: str | None
    component: str
    name: str

    @contextmanager
    def opened(self, kind: Callable[..., S]) -> Iterator[S]:
        """Open the structure with a kit's method, such as `ShardKit.queues`."""
        with self.kit() as kit:
            yield kind(kit, self.name, component=self.component)

    @contextmanager
    def kit(self) -> Iterator[ShardKit]:
        """Open a kit, and have the error for a missing component name the option."""
        with opened(self.where) as topology:
            try:
                yield topology.kit
            except MissingEntryError as error:
                remedy = f"name another with --component, or {error.remedy}"
                raise type(error)(error.message, remedy) from error


def structure(component: str, name: str) -> Any:
    """Return `StructureOptions` with this default component and name."""
    return _together(
        StructureOptions,
        where=config,
        component=option(None, "Where the data lives.", default=component),
        name=option(None, "The prefix of its keys.", default=name),
    )


@dataclass(frozen=True)
class ShardOptions:
    """``--shards`` and ``--placement``: how a component with entries written by hand is sharded.

    They are what ``shards=`` and ``placement=`` are in code.
    """

    shards: int | None = None  # None to infer it from the entries
    placement: str | None = None  # None for crc32

    def __post_init__(self) -> None:
        if self.placement is not None and self.shards is None:
            raise click.UsageError("--placement needs --shards: use both")


sharding = _together(
    ShardOptions,
    shards=number(
        None,
        "How many shards the component has, if its entries were written by hand.",
        most=MAX_SHARDS,
    ),
    placement=option("RULE", "Likewise: how keys find their shard.  [default: crc32]"),
)


# ``user``, for `login_as`.
login = option(
    "NAME",
    f"Log in as this user; the password is read from ${LOGIN_PASSWORD}, or asked for.",
    name="--user",
)


def login_as(user: str | None) -> dict[str, str]:
    """Return the user and password of ``--user``; nothing without it."""
    if user is None:
        return {}
    password = os.environ.get(LOGIN_PASSWORD)
    if password is None:
        password = click.prompt("Password", hide_input=True, err=True)
    return {"username": user, "password": password}


def timeout(default: float) -> Any:
    """Return ``--timeout``."""
    return seconds(default, "How long to wait for a server.", least=0.01)


message = option(
    "TEXT", "Why, for `shardkit config history`.", name="--message", short="-m", default=""
)


# ``size``
sample = number(SAMPLE_SIZE, "How many keys of a component to sample.", name="--sample")


# ``written``, for an answer with secrets.
file = option(
    "FILE", "Write a file that only you can read.", name="--output", short="-o", type=FILE
)


# ``where`` of a command on a map: a config server other than the map's own.
target = option(
    "MAP|URL",
    "The config server: its URL, or a map that names it. By default the one that MAP "
    f"names, or else ${ENVIRONMENT}.",
    name="--config",
    short="-c",
)


@dataclass(frozen=True)
class OpenTopology:
    """The topology that ``--config`` names."""

    kit: ShardKit
    config_server: Entry | None
    name: str
    shard_map: ShardMap | None = None

    def component(self, name: str, sharding: ShardOptions | None) -> Component:
        """Read one component; see `components`."""
        described = self.kit.component(name)
        if sharding is None:
            return described.without_problem()
        count, shards = sharding.shards, len(described.shards)
        if count is None and described.by_hand is not None and described.by_hand.is_exactly(shards):
            count = shards
            note_by_hand(name, count, "; otherwise specify --shards and --placement")
        self.kit.key_sharded(name, count, placement=sharding.placement)
        described = self.kit.component(name)
        described.require_shards(count, sharding.placement)
        return described

    def components(
        self, names: Sequence[str] = (), sharding: ShardOptions | None = None
    ) -> tuple[dict[str, Component], dict[str, ConfigError]]:
        """Read named components, or all; return them and the errors of unusable ones, by name.

        With ``sharding``, entries written by hand are accepted. A command that writes data
        must not have the count inferred.
        """
        try:
            wanted = list(names) or self.kit.components()
        except ServerErrors as error:
            raise ConfigServerError(
                f"{self.name} cannot be read: {reason(error)}", "start it, or name another"
            ) from error
        if sharding is not None and sharding.shards is not None and len(names) != 1:
            raise click.UsageError("--shards is the count of one component: name it")
        usable: dict[str, Component] = {}
        broken: dict[str, ConfigError] = {}
        for name in wanted:
            try:
                usable[name] = self.component(name, sharding)
            except ConfigServerError:
                raise
            except ConfigError as error:
                if names:
                    raise
                broken[name] = error
        if not usable and not broken:
            raise ConfigError(
                f"{self.name} describes no component",
                "check that it is the config server, or push a shard map: shardkit config push",
            )
        return usable, broken


@contextmanager
def opened(where: str | None, *, lasting: bool = False) -> Iterator[OpenTopology]:
    """Open the topology that ``--config`` or ``$SHARDKIT_CONFIG`` names.

    For a ``lasting`` command, a map is read again when its file changes.
    """
    place = topology_of(where)
    with shardkit.connect(where if lasting and isinstance(place, ShardMap) else place) as kit:
        if isinstance(place, Entry):
            yield OpenTopology(kit, place, f"config server {place.address}")
        else:
            yield OpenTopology(kit, place.config_server, place.source, place)


def topology_of(where: str | None) -> Entry | ShardMap:
    """Return what ``--config`` names: the entry of a config server, or a shard map.

    A map is read once, because a watched file would log its warnings.
    """
    if not where:
        raise ConfigError(
            f"${ENVIRONMENT} is not set, and no shard map or config server is specified",
            f"use --config MAP|URL, or export {ENVIRONMENT}",
        )
    if "://" in where:
        return first_master(entries_of_url(where))
    return ShardMap.load(where)


def note_by_hand(name: str, count: int, remedy: str) -> None:
    """Note on stderr, once in a run, what is assumed of entries that were written by hand."""
    text = (
        f"{name}: count inferred from {counted(count, 'entry', 'entries')} written by hand, "
        f"placement {DEFAULT} assumed{remedy}"
    )
    session = click.get_current_context().ensure_object(Session)
    if text not in session.noted:
        session.noted.add(text)
        Output().note(f"note: {text}", DIM)


def config_server(where: str | None, shard_map: ShardMap | None = None) -> Entry:
    """Return the config server for a command."""
    if where is None and shard_map is not None and shard_map.config_server is not None:
        return shard_map.config_server
    where = where or os.environ.get(ENVIRONMENT)
    named = topology_of(where) if where else shard_map
    if isinstance(named, Entry):
        return named
    if named is not None and named.config_server is not None:
        return named.config_server
    what = f"{named.source} names no config_server" if named else "no config server was named"
    raise ConfigError(what, "use --config redis://HOST:PORT, or add config_server: to the map")
