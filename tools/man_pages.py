"""Writes a man page for each command, from the help texts: ``man shardkit-doctor``.

``make man`` writes them to man/; `make dist` ships them. The layout is click-man's; it expects
groups that have imported their commands, and plain text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from shardkit import __version__
from shardkit.cli.app import app


def prepare(command: click.Command, context: click.Context) -> None:
    """Import a group's commands, and make its help texts roff."""
    command.help = "\n\n".join(
        _paragraph(each)
        for each in re.split(r"\n\s*\n", f"{command.help or ''}\n\n{command.epilog or ''}")
    )
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.help = _escaped(parameter.help or "")
    if isinstance(command, click.Group):
        inner = click.Context(command, info_name=command.name, parent=context)
        found = ((name, command.get_command(inner, name)) for name in command.list_commands(inner))
        command.commands = {name: each for name, each in found if each is not None}
        for each in command.commands.values():
            each.short_help = _escaped(each.get_short_help_str(100))
            prepare(each, inner)


def _paragraph(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].strip() == "\b":  # click's mark for text that is not rewrapped
        return "\n".join([".nf", *(_escaped(line) for line in lines[1:]), ".fi"])
    return _escaped("\n".join(line.strip() for line in lines))


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def main(target: Path) -> None:
    """Write the pages into a directory."""
    target.mkdir(parents=True, exist_ok=True)
    prepare(app, click.Context(app, info_name="shardkit", **app.context_settings))
    app.short_help = _escaped("Redis and Valkey servers, used as one")
    write_man_pages("shardkit", app, version=__version__, target_dir=str(target))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
