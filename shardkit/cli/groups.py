"""Groups of commands, and what every command of a run shares. Imports nothing that takes long."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

INTERRUPTED = 130  # the exit code after Ctrl-C


@dataclass
class Session:
    """One run of the program."""

    debug: bool = False
    timed: bool = False
    noted: set[str] = field(default_factory=set)
    # The options given before a command's name, for the command.
    common: list[str] = field(default_factory=list)


def timed(record: logging.LogRecord) -> str:
    """Return a log record's message with its local time."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
    return f"{when} {record.getMessage()}"


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help; nothing for none."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else ""


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    is_eager=True,
    help="Show where an error comes from.",
)


def _for_command(make: Callable[[Any], list[str]]) -> Callable[..., None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            ctx.ensure_object(Session).common += make(value)

    return keep


_before_command = (
    click.option(
        "-c",
        "--config",
        metavar="MAP|URL",
        expose_value=False,
        callback=_for_command(lambda value: ["--config", value]),
        help="A shard map, or the URL of the config server.",
    ),
    click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_for_command(lambda value: ["--json"]),
        help="Write JSON, for programs.",
    ),
    debug_option,
)


class CommandGroup(click.Group):
    """A group whose commands take their common options before or after their names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for option in _before_command:
            option(self)
        self.params.extend(reversed(self.__dict__.pop("__click_params__", [])))

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, and its first example to the group's."""
        super().add_command(cmd, name)
        lines = (self.epilog or "").splitlines()[2:] + (cmd.epilog or "").splitlines()[2:3]
        self.epilog = examples(*map(str.strip, lines))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, with the options that were given before its name."""
        if self.get_command(ctx, args[0]) is None and args[0][:1].isalnum():
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], names, 1) or [
                name for name in names if name.startswith(args[0])
            ]
            hint = f". Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{args[0]}'{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        session = ctx.ensure_object(Session)
        given, session.common = session.common, []
        return name, command, [*given, *rest]


def group(*lines: str) -> Callable[[Callable[..., Any]], CommandGroup]:
    """Make a function a group of commands with examples."""
    return click.group(cls=CommandGroup, epilog=examples(*lines))
