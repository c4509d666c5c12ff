"""``shardkit completion``: has the shell complete commands and options."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from shardkit.cli.options import command
from shardkit.cli.output import GOOD, PROGRAM, Output
from shardkit.errors import ConfigError

_SHELLS = ("bash", "zsh", "fish")


@command("shardkit completion", "shardkit completion zsh", "shardkit completion --print")
@click.argument("shell", required=False, type=click.Choice(_SHELLS), metavar="[bash|zsh|fish]")
@click.option("--print", "only", is_flag=True, help="Write the script instead of installing it.")
@click.pass_context
def completion(ctx: click.Context, shell: str | None, only: bool, output: Output) -> None:
    """Install the completion of commands and options, for the shell that you use, or another one.

    Writes the script below ~/.local/share/shardkit, and one line to ~/.bashrc or ~/.zshrc that
    reads it; for fish one file, which fish reads by itself. A second call changes nothing more.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(shell) if shell in _SHELLS else None
    if made is None:
        raise ConfigError(
            f"shell {shell or 'of $SHELL'!r} has no completion", f"name one: {', '.join(_SHELLS)}"
        )
    script = made(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    if only:
        output.text(script)
        return
    path, reader = _places(shell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if reader is not None:
        line = f". {shlex.quote(str(path))}"
        known = reader.read_text(encoding="utf-8") if reader.exists() else ""
        if line not in known.splitlines():
            start = "" if known.endswith("\n") or not known else "\n"
            with reader.open("a", encoding="utf-8") as file:
                file.write(f"{start}{line}\n")
    output.answer(
        {"script": str(path), "read_by": reader and str(reader)},
        f"{path} is installed; open a new {shell}",
        GOOD,
    )


def _places(shell: str) -> tuple[Path, Path | None]:
    """Return the script's file, and the file that reads it."""
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return config / "fish" / "completions" / f"{PROGRAM}.fish", None
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    reader = home / ".bashrc"
    if shell == "zsh":
        reader = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return data / PROGRAM / f"completion.{shell}", reader
