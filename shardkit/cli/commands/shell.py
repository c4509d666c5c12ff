"""``shardkit shell``: Python with an open kit, by IPython."""

from __future__ import annotations

import os
from typing import Any

import click

import shardkit
from shardkit.cli.options import OpenTopology, command, config_option, opened
from shardkit.cli.output import Output
from shardkit.errors import ConfigError, extra


@command(
    "shardkit shell -c configs/local.yaml",
    "shardkit shell -c redis://config.internal -e 'print(timelines.get(\"home:42\"))'",
)
@click.option("-e", "--execute", "code", metavar="CODE", help="Run this Python, and exit.")
@config_option
def shell(code: str | None, where: str | None, output: Output) -> None:
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
    """Return the variables of the shell."""
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
