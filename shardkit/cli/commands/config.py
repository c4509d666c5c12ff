"""``shardkit config``: show and change the configuration. Each command is in a file of its own."""

from __future__ import annotations

from shardkit.cli.commands.config_diff import diff_command
from shardkit.cli.commands.config_push import push, rollback
from shardkit.cli.commands.config_show import history, pull, show_command
from shardkit.cli.commands.config_validate import validate
from shardkit.cli.options import group


@group(
    "shardkit config validate configs/*.yaml",
    "shardkit config diff configs/production.yaml",
    "shardkit config push configs/production.yaml",
    "shardkit config show unique",
)
def config() -> None:
    """Show and change the configuration."""


for each in (validate, diff_command, push, pull, show_command, history, rollback):
    config.add_command(each)
