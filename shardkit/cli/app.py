"""The command group: imports commands lazily, and turns errors into one line.

Commands are imported when they are used, so that one that cannot be imported does not break the
others.

Exit codes: 0 all is well; 1 something is wrong; 2 invalid command line; 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from getpass import GetPassWarning
from importlib import import_module
from typing import Any
from warnings import filterwarnings

import click

import shardkit
from shardkit.cli.options import INTERRUPTED, Session, examples, timed
from shardkit.cli.output import PROGRAM, Output, write_error
from shardkit.cli.text import reason
from shardkit.errors import ShardErrors, ShardKitError
from shardkit.network.server_queries import ServerErrors

FAILED, MISUSED = 1, 2
_MOST_SHOWN = 3  # errors of one run

COMMANDS = {
    "up": "shardkit.cli.commands.up:up",
    "config": "shardkit.cli.commands.config:config",
    "locate": "shardkit.cli.commands.locate:locate",
    "url": "shardkit.cli.commands.url:url",
    "dashboard": "shardkit.cli.commands.dashboard:dashboard",
    "top": "shardkit.cli.commands.top:top",
    "status": "shardkit.cli.commands.status:status",
    "check": "shardkit.cli.commands.check:check_command",
    "clients": "shardkit.cli.commands.clients:clients",
    "keys": "shardkit.cli.commands.keys:keys",
    "rotate": "shardkit.cli.commands.rotate:rotate_command",
    "plan": "shardkit.cli.commands.plan:plan",
    "failover": "shardkit.cli.commands.failover:failover",
    "move": "shardkit.cli.commands.move:move",
    "replicas": "shardkit.cli.commands.replicas:replicas",
    "verify-replica": "shardkit.cli.commands.replicas:verify_replica_command",
    "persistence": "shardkit.cli.commands.persistence:persistence",
    "retire": "shardkit.cli.commands.retire:retire",
    "backup": "shardkit.cli.commands.backup:backup_command",
    "restore": "shardkit.cli.commands.backup:restore_command",
    "exec": "shardkit.cli.commands.exec:exec_",
    "geo": "shardkit.cli.commands.geo:geo",
    "search": "shardkit.cli.commands.search:search",
    "doctor": "shardkit.cli.commands.doctor:doctor",
    "upgrade": "shardkit.cli.commands.upgrade:upgrade_",
    "locks": "shardkit.cli.commands.locks:locks",
    "queues": "shardkit.cli.commands.queues:queues",
    "worker": "shardkit.cli.commands.worker:worker",
    "files": "shardkit.cli.commands.files:files",
    "logs": "shardkit.cli.commands.logs:logs",
    "bench": "shardkit.cli.bench.command:bench",
    "demo": "shardkit.cli.demo.command:demo",
}


class Application(click.Group):
    """A group that imports its commands lazily, and shows errors in one line."""

    def __init__(self, *, lazy: Mapping[str, str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands, in the order in which users need them."""
        return list(self._lazy)

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

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit; errors are written in one line."""
        session = extra.setdefault("obj", Session())
        run: Callable[[], Any] = partial(
            super().main,
            args,
            prog_name or PROGRAM,
            complete_var,
            standalone_mode=False,
            windows_expand_args=windows_expand_args,
            **extra,
        )
        if not standalone_mode:
            return run()
        _mend_streams()
        filterwarnings("ignore", category=GetPassWarning)  # a password may be piped
        warnings = _WarningHandler(session)
        logging.getLogger("shardkit").addHandler(warnings)
        try:
            code = run()
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has gone
            sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - for the rest of it
            sys.exit(FAILED)
        except (Exception, KeyboardInterrupt) as error:
            if session.debug:
                traceback.print_exc()
            sys.exit(_explain(error))
        finally:
            logging.getLogger("shardkit").removeHandler(warnings)
        sys.exit(code if isinstance(code, int) else 0)


def _broken(name: str, error: ImportError) -> click.Command:
    """Return a command that says why the real one cannot be imported."""

    def fail() -> None:
        raise ShardKitError(f"{name} cannot be used: {error}", "install what is missing") from error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, anything, fail, short_help="Cannot be used here.")


def _explain(error: Exception | KeyboardInterrupt) -> int:
    """Write what went wrong, and return the exit code."""
    if isinstance(error, click.Abort) and isinstance(error.__context__, EOFError):
        write_error(
            "there is no terminal to ask on", "see --help for --yes, or for the variable to export"
        )
        return MISUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        write_error("interrupted")
        return INTERRUPTED
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
        for each in error.exceptions[:_MOST_SHOWN]:
            _explain(each)
    elif isinstance(error, OSError):
        full = "standard output" if error.errno == errno.ENOSPC else ""
        named = f"{error.filename or full}: ".removeprefix(": ")
        write_error(f"{named}{error.strerror or error}")
    elif isinstance(error, ServerErrors):
        server = re.search(r"(?:connecting to|reading from) (\S+:\d+)", str(error))
        write_error(
            f"{server[1] if server else 'a server'} cannot be used: {reason(error)}",
            "see shardkit status",
        )
    else:
        name = type(error).__name__
        write_error(f"this should not happen: {name}: {error}", "--debug shows where; report it")
    return FAILED


def _sentence(text: str) -> str:
    """Return click's message in the style of ours."""
    return text.rstrip(".")[:1].lower() + text.rstrip(".")[1:]


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


@click.group(
    PROGRAM,
    cls=Application,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "shardkit demo",
        "shardkit up configs/local.yaml",
        "shardkit config push configs/local.yaml",
        "shardkit locate -h",
    ),
)
@click.version_option(shardkit.__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show where an error comes from.")
@click.pass_obj
def app(session: Session, debug: bool) -> None:
    """Sharding-aware middleware for Redis and Valkey: show and change where data lives."""
    session.debug = session.debug or debug
