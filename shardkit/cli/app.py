"""The command group: imports commands lazily, and turns errors into one line.

Commands are imported when they are used, so that one that cannot be imported does not break the
others.

Exit codes: 0 all is well; 1 something is wrong; 2 invalid command line; 130 interrupted;
141 the reader of the output has gone (``… | head``).
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from getpass import GetPassWarning
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from warnings import filterwarnings

import click
from click.shell_completion import CompletionItem

import shardkit
from shardkit.cli import text
from shardkit.cli.groups import INTERRUPTED, CommandGroup, Session, examples, timed
from shardkit.cli.output import PROGRAM, Output, write_error

FAILED, MISUSED = 1, 2
BROKEN_PIPE = 141  # as of a program that a SIGPIPE ended
_MOST_SHOWN = 3  # errors of one run

# Each command's place in this package and short help, so that a list of commands imports none.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Shard maps": {
        "init": ("commands.up:init", "Write a shard map to begin with."),
        "config": ("commands.config:config", "Show and change the configuration."),
        "retire": ("commands.adopt:retire", "Remove a component, and later its data."),
        "locate": ("commands.locate:locate", "Show where keys live, and why."),
        "adopt": ("commands.adopt:adopt_command", "Find the placement of data of another program."),
        "url": ("commands.locate:url", "Write an entry as a URL, with its password."),
        "up": ("commands.up:up", "Run a map's servers on this machine."),
    },
    "Servers": {
        "status": ("commands.status:status", "Show every shard and its server."),
        "dashboard": ("commands.dashboard:dashboard", "Serve a page over the whole fleet."),
        "top": ("commands.dashboard:top", "Show servers and shards live, to sort and filter."),
        "check": ("commands.check:check_command", "Show what is wrong, or will be."),
        "clients": ("commands.servers:clients", "Show the processes that are connected."),
        "keys": ("commands.servers:keys", "Show the biggest keys."),
        "exec": ("commands.servers:exec_", "Run a command on many servers."),
    },
    "Growth and failures": {
        "apply": ("commands.growth:apply_", "Make a shard map true: move, split, attach, push."),
        "plan": ("commands.growth:plan", "Plan how a component grows."),
        "move": ("commands.growth:move", "Move a server's data to another server, in use."),
        "split": ("commands.growth:split", "Give a component another number of shards, in use."),
        "balance": (
            "commands.growth:balance",
            "Show how even servers are, and move shards until they are.",
        ),
        "changes": ("commands.growth:changes", "Show what changes in the fleet, and repair it."),
        "failover": ("commands.replicas:failover", "Replace a master by its replica."),
    },
    "Replicas, disks and passwords": {
        "replicas": ("commands.replicas:replicas", "Show, attach and detach replicas."),
        "verify-replica": (
            "commands.replicas:verify_replica_command",
            "Check whether writes reach replicas and their disks.",
        ),
        "persistence": ("commands.servers:persistence", "Show and set how servers keep data."),
        "rotate": ("commands.servers:rotate_command", "Rotate a user's password."),
    },
    "Data": {
        "backup": (
            "commands.backup:backup_command",
            "Take snapshots of all servers at one moment.",
        ),
        "restore": ("commands.backup:restore_command", "Copy a backup into other servers."),
        "doctor": ("commands.doctor:doctor", "Check that data is stored compactly."),
        "advise": ("advise.command:advise_command", "Show what keys would take in structures."),
        "convert": ("advise.command:convert_command", "Copy keys into a structure, in use."),
        "upgrade": ("commands.doctor:upgrade_", "Bring what is stored into the newest form."),
        "replan": (
            "commands.doctor:replan_command",
            "Give structures that have outgrown their plan more parts.",
        ),
    },
    "Structures": {
        "search": ("commands.search:search", "Index documents over shards, and find them."),
        "geo": (
            "commands.geo:geo",
            "Import the cities of IP address ranges, and look up addresses.",
        ),
        "queues": (
            "commands.structures:queues",
            "Show task queues, and revive, cancel or purge their tasks.",
        ),
        "worker": ("commands.worker:worker", "Run a worker of task queues."),
        "locks": (
            "commands.structures:locks",
            "Show who holds locks, semaphores and elections, and end holds.",
        ),
        "files": (
            "commands.structures:files",
            "Publish files in chunks over shards for many readers, and read them.",
        ),
        "logs": ("commands.structures:logs", "Show a log, and follow it."),
    },
    "Trying it out": {
        "shell": ("commands.up:shell", "Open Python with a kit."),
        "completion": ("commands.up:completion", "Have your shell complete commands."),
        "demo": (
            "demo.command:demo",
            "Count the hits and unique visitors per day of a web access log.",
        ),
    },
}

# What the first screen shows, by task.
FIRST = {
    "Look": ("status", "check", "locate", "dashboard"),
    "Change": ("apply", "config", "failover", "changes"),
    "Try": ("init", "up", "demo"),
    "Help": ("completion",),
}
_EVERY = "shardkit.every_command"


class Application(CommandGroup):
    """A group that imports its commands lazily, and shows errors in one line."""

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, tuple[str, str]]],
        package: str | None = __package__,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._sections = sections
        self._lazy = {
            name: f"{package}.{place}"
            for commands in sections.values()
            for name, (place, _) in commands.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands of this installation, in the order in which users need them."""
        return [name for name, place in self._lazy.items() if _is_installed(place)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        module, _, name = self._lazy.get(cmd_name, "").partition(":")
        if not module:
            return None
        try:
            command: click.Command = getattr(import_module(module), name)
        except ImportError as error:
            if error.name is not None and f"{module}.".startswith(f"{error.name}."):
                return None  # not part of this installation
            return _broken(cmd_name, error)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. click would exit with 1 if the reader of its output has gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _write_no_more()
            ctx.exit(BROKEN_PIPE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first commands by task, or with ``--help-all`` the groups of all."""
        known = set(self.list_commands(ctx))
        texts = {n: text for section in self._sections.values() for n, (_, text) in section.items()}
        shown: Mapping[str, Iterable[str]] = self._sections if _EVERY in ctx.meta else FIRST
        for title, names in shown.items():
            rows = [(name, texts[name]) for name in names if name in known]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what completes a word: without importing the commands."""
        known = set(self.list_commands(ctx))
        return [
            CompletionItem(name, help=text)
            for commands in self._sections.values()
            for name, (_, text) in commands.items()
            if name in known and name.startswith(incomplete)
        ] or click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run a command line and exit; errors are written in one line."""
        session = options.setdefault("obj", Session())
        options["prog_name"] = options.get("prog_name") or PROGRAM
        run: Callable[[], Any] = partial(super().main, *args, standalone_mode=False, **options)
        if not standalone_mode:
            return run()
        text.typed[:] = (args[0] if args else None) or sys.argv[1:]
        _mend_streams()
        filterwarnings("ignore", category=GetPassWarning)  # a password may be piped
        warnings = _WarningHandler(session)
        logging.getLogger("shardkit").addHandler(warnings)
        try:
            code = run()
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has gone
            _write_no_more()
            sys.exit(BROKEN_PIPE)
        except (Exception, KeyboardInterrupt) as error:
            if session.debug:
                traceback.print_exc()
            code = _explain(error)
            try:
                sys.stdout.flush()
            except OSError:  # a full disk; Python would say so again
                _write_no_more()
            sys.exit(code)
        finally:
            logging.getLogger("shardkit").removeHandler(warnings)
        sys.exit(code if isinstance(code, int) else 0)


def _broken(name: str, error: ImportError) -> click.Command:
    """Return a command that says why the real one cannot be imported."""

    def fail() -> None:
        from shardkit.errors import ShardKitError

        raise ShardKitError(f"{name} cannot be used: {error}", "install what is missing") from error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, anything, fail)


def _is_installed(place: str) -> bool:
    try:
        return find_spec(place.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def _explain(error: Exception | KeyboardInterrupt) -> int:
    if isinstance(error, click.Abort) and isinstance(error.__context__, EOFError):
        write_error(
            "there is no terminal to ask on", "see --help for --yes, or for the variable to export"
        )
        return MISUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):  # of an import, perhaps: import nothing
        click.echo(f"{PROGRAM}: error: interrupted", err=True)
        return INTERRUPTED
    import redis

    from shardkit.cli.text import reason
    from shardkit.config.problem import mask
    from shardkit.errors import ShardErrors, ShardKitError
    from shardkit.network.server_queries import ServerErrors
    from shardkit.operations.server_errors import server_in

    if type(error).__name__ == "NoArgsIsHelpError":  # which click 8.1 does not have
        click.echo(str(error), err=True)
        return MISUSED
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else PROGRAM
        write_error(_sentence(error.format_message()), f"see {where} --help")
        return MISUSED
    if isinstance(error, click.ClickException):
        write_error(_sentence(error.format_message()))
    elif isinstance(error, ShardErrors):
        write_error(str(error))
    elif isinstance(error, ShardKitError):
        write_error(error.message, error.remedy)
    elif isinstance(error, ExceptionGroup):  # of operations that ran together
        for cause in error.exceptions[:_MOST_SHOWN]:
            _explain(cause)
    elif isinstance(error, OSError):
        full = "standard output" if error.errno == errno.ENOSPC else ""
        named = f"{mask('', error.filename) or full}: ".removeprefix(": ")
        write_error(f"{named}{error.strerror or error}")
    elif isinstance(error, ServerErrors):
        server = server_in(error) or "a server "
        write_error(f"{server}cannot be used: {reason(error)}", "see shardkit status")
    elif os.path.dirname(redis.__file__) in traceback.extract_tb(error.__traceback__)[-1].filename:
        write_error(f"a server's reply cannot be used: {error}", "see shardkit status")
    else:
        name = type(error).__name__
        write_error(f"this should not happen: {name}: {error}", "--debug shows where; report it")
    return FAILED


def _sentence(text: str) -> str:
    """Return click's message in the style of ours."""
    return text.rstrip(".")[:1].lower() + text.rstrip(".")[1:]


def _write_no_more() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of it


def _mend_streams() -> None:
    """Write nothing to a stream that is closed, and ``?`` for what a terminal cannot show."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as it runs
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


class _WarningHandler(logging.Handler):
    """Shows the library's warnings on stderr."""

    def __init__(self, session: Session) -> None:
        super().__init__(logging.WARNING)
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        Output().warning(timed(record) if self._session.timed else record.getMessage())
        if self._session.timed and record.exc_info:  # a worker's
            click.echo("".join(traceback.format_exception(*record.exc_info)), err=True, nl=False)


def _show_every_command(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


@click.group(
    PROGRAM,
    cls=Application,
    sections=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "shardkit demo",
        "shardkit up configs/local.yaml",
        "shardkit apply configs/production.yaml --plan",
        "shardkit locate -h",
    ),
)
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_every_command,
    help="Show all commands, by group.",
)
@click.version_option(shardkit.__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def app() -> None:
    """Sharding-aware middleware for Redis and Valkey: show and change where data lives."""
