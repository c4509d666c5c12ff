"""``shardkit shell`` and ``completion``: Python with a kit, and a shell that knows them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

import shardkit
from shardkit.cli import options as given
from shardkit.cli.options import OpenTopology, command, opened
from shardkit.cli.output import GOOD, PROGRAM, Output
from shardkit.errors import ConfigError, extra


@command(
    "shardkit shell -c configs/local.yaml",
    "shardkit shell -c redis://config.internal -e 'print(timelines.get(\"home:42\"))'",
)
def shell(
    output: Output,
    code: str | None = given.option(
        "CODE", "Run this Python, and exit.", short="-e", name="--execute"
    ),
    where: str | None = given.config,
) -> None:
    """Open Python with a kit, and a variable for each component. Tab completes them.

    A component with shards is a router, such as timelines["home:42"]; another one is a redis-py
    client. IPython awaits coroutines by itself: akit = await shardkit.aconnect(where).
    """
    with extra("shell", "the shell"):
        from IPython import start_ipython
        from traitlets.config import Config
    with opened(where) as topology:
        names = _names(topology)
        names["where"] = where
        settings = Config()
        settings.TerminalInteractiveShell.banner2 = (
            f"kit is open on {topology.name}. Components: "
            f"{', '.join(names['components']) or 'none'}\n"
        )
        if output.as_json or code is not None or not output.interactive:
            settings.TerminalInteractiveShell.banner1 = ""
            settings.TerminalInteractiveShell.banner2 = ""
        arguments = ["--no-confirm-exit", "--colors=NoColor"] if "NO_COLOR" in os.environ else []
        start_ipython(
            [*arguments, *(["-c", code] if code is not None else [])],
            user_ns=names,
            config=settings,
        )


def _names(topology: OpenTopology) -> dict[str, Any]:
    kit = topology.kit
    components: dict[str, Any] = {}
    for name in kit.components():
        try:
            component = kit.component(name).without_problem()
            components[name] = kit.key_sharded(name) if component.shards else kit.client(name)
        except ConfigError:  # `status` shows it
            continue
    plain = {name: each for name, each in components.items() if name.isidentifier()}
    return {**plain, "shardkit": shardkit, "kit": kit, "components": components}


_SHELLS = ("bash", "zsh", "fish")


@command("shardkit completion", "shardkit completion zsh", "shardkit completion --print")
@click.pass_context
def completion(
    ctx: click.Context,
    output: Output,
    shell: str | None = given.argument(
        "[bash|zsh|fish]", required=False, type=click.Choice(_SHELLS)
    ),
    only: bool = given.flag("Write the script instead of installing it.", name="--print"),
) -> None:
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
