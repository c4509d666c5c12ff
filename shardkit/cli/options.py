"""Options that several commands share, and the topology that ``--config`` names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

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
from shardkit.errors import ConfigError, ConfigServerError, counted
from shardkit.kit.config_client import first_master
from shardkit.kit.kit import ENVIRONMENT, ShardKit
from shardkit.network.server_queries import ServerErrors
from shardkit.routing.placement import DEFAULT

F = TypeVar("F", bound=Callable[..., Any])
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


def command(
    *lines: str, name: str | None = None, group: click.Group | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command with examples, ``--json`` (``output``) and ``--debug``."""

    def make(function: Callable[..., Any]) -> click.Command:
        made = click.command(name, click.Command, epilog=examples(*lines), **attributes)(function)
        json_option(made)  # the last in its help
        debug_option(made)
        if group is not None:
            group.add_command(made)
        return made

    return make


def number_option(
    name: str,
    default: float | None,
    help: str,  # noqa: A002 - click's word
    *,
    least: float = 1,
    most: float | None = None,
    unit: str = "N",
    short: str = "",
    parameter: str = "",
) -> Callable[[F], F]:
    """Give a command an option of a number: of a whole one if ``least`` is an int."""
    kind: Any = click.IntRange if isinstance(least, int) else click.FloatRange
    return click.option(
        *filter(None, [short, name, parameter]),
        type=kind(least, most),
        default=default,
        show_default=default is not None,
        metavar=unit,
        help=help,
    )


# ``--config`` (``where``): a shard map's path or a config server's URL.
config_option = click.option(
    "-c",
    "--config",
    "where",
    metavar="MAP|URL",
    envvar=ENVIRONMENT,
    show_envvar=True,
    help="A shard map, or the URL of the config server.",
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
        with opened(self.where) as topology:
            yield kind(topology.kit, self.name, component=self.component)


def structure_options(component: str, name: str) -> Callable[[F], F]:
    """Give a command `StructureOptions` (``at``), with this default component and name."""

    def give(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, where: str | None, component: str, name: str, **options: Any) -> Any:
            return function(*args, at=StructureOptions(where, component, name), **options)

        named = click.option(
            "--name", default=name, show_default=True, help="The prefix of its keys."
        )
        placed = click.option(
            "--component", default=component, show_default=True, help="Where the data lives."
        )
        return cast("F", config_option(placed(named(run))))

    return give


def shards_options(function: F) -> F:
    """Give a command ``--shards`` and ``--placement`` (``sharding``, a `ShardOptions`).

    They are what ``shards=`` and ``placement=`` are in code.
    """

    @functools.wraps(function)
    def read(*args: Any, shards: int | None, placement: str | None, **options: Any) -> Any:
        if placement is not None and shards is None:
            raise click.UsageError("--placement needs --shards: use both")
        return function(*args, sharding=ShardOptions(shards, placement), **options)

    count = number_option(
        "--shards",
        None,
        "How many shards the component has, if its entries were written by hand.",
        most=MAX_SHARDS,
    )
    placed = click.option(
        "--placement", metavar="RULE", help="Likewise: how keys find their shard.  [default: crc32]"
    )
    return cast("F", count(placed(read)))


# ``--user`` (``user``), for `login_as`.
login_option = click.option(
    "--user",
    metavar="NAME",
    help=f"Log in as this user; the password is read from ${LOGIN_PASSWORD}, or asked for.",
)


def login_as(user: str | None) -> dict[str, str]:
    """Return the user and password of ``--user``; nothing without it."""
    if user is None:
        return {}
    password = os.environ.get(LOGIN_PASSWORD)
    if password is None:
        password = click.prompt("Password", hide_input=True, err=True)
    return {"username": user, "password": password}


def timeout_option(default: float) -> Callable[[F], F]:
    """Give a command ``--timeout``."""
    return number_option(
        "--timeout", default, "How long to wait for a server.", least=0.01, unit="SECONDS"
    )


message_option = click.option(
    "-m", "--message", default="", metavar="TEXT", help="Why, for `shardkit config history`."
)


# ``--sample N`` (``size``).
sample_option = number_option(
    "--sample", SAMPLE_SIZE, "How many keys of a component to sample.", parameter="size"
)


# ``--output FILE`` (``written``), for an answer with secrets.
file_option = click.option(
    "-o",
    "--output",
    "written",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a file that only you can read.",
)


# ``--config`` (``where``) of a command on a map: a config server other than the map's own.
target_option = click.option(
    "-c",
    "--config",
    "where",
    metavar="MAP|URL",
    help="The config server: its URL, or a map that names it. By default the one that MAP "
    f"names, or else ${ENVIRONMENT}.",
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

        Raises:
            ConfigError: a named component cannot be used, or there is none.
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
def opened(where: str | None) -> Iterator[OpenTopology]:
    """Open the topology that ``--config`` or ``$SHARDKIT_CONFIG`` names.

    Raises:
        ConfigError: neither is set, or it cannot be used.
    """
    place = topology_of(where)
    with shardkit.connect(place) as kit:
        if isinstance(place, Entry):
            yield OpenTopology(kit, place, f"config server {place.address}")
        else:
            yield OpenTopology(kit, place.config_server, place.source, place)


def topology_of(where: str | None) -> Entry | ShardMap:
    """Return what ``--config`` names: the entry of a config server, or a shard map.

    A map is read once, because a watched file would log its warnings.

    Raises:
        ConfigError: nothing is named, or the map cannot be used.
    """
    if not where:
        raise ConfigError(
            f"${ENVIRONMENT} is not set, and no shard map or config server is specified",
            f"use --config MAP|URL, or export {ENVIRONMENT}",
        )
    if "://" in where:
        return first_master(entries_of_url(where))
    return ShardMap.load(where)


@dataclass(frozen=True)
class ShardOptions:
    """``--shards`` and ``--placement``: how a component with entries written by hand is sharded."""

    shards: int | None = None  # None to infer it from the entries
    placement: str | None = None  # None for crc32


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
    """Return the config server for a command.

    Raises:
        ConfigError: none is named.
    """
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
