"""``shardkit apply``: makes a shard map true."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardkit.admin.growth import ApplyPlan, ApplyStep, apply_map, plan_apply
from shardkit.cli import options as given
from shardkit.cli.commands.move import COPYING, show_load
from shardkit.cli.groups import INTERRUPTED
from shardkit.cli.options import command, config_server
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Output, write_error
from shardkit.config.shard_map import ShardMap
from shardkit.errors import counted
from shardkit.kit.config_client import config_client


@command(
    "shardkit apply configs/production.yaml --plan",
    "shardkit apply configs/production.yaml",
    "shardkit apply configs/production.yaml --yes --json",
    name="apply",
    prune=given.flag("Remove components that MAP lacks; their data stays."),
    **COPYING,
)
def apply_(
    output: Output,
    shard_map: Path = given.shard_map,
    only_plan: bool = given.flag("Show the steps; change nothing.", name="--plan"),
    yes: bool = given.flag("Do not ask; needed without a terminal."),
    where: str | None = given.target,
    **options: Any,
) -> int:
    """Make MAP true: move, split and merge shards, attach and detach replicas, and push.

    Compares MAP with the entries on its config server, shows the steps and asks. Clients read and
    write all the time; writers wait once in each move. Nothing is lost if this command is killed:
    give it again, and it continues. If MAP is true already, nothing is done. The exit code is 1 if
    something prevents a step; then nothing has changed.
    """
    wanted = ShardMap.load(shard_map)
    done: list[ApplyStep] = []
    with config_client(config_server(where, wanted)) as config:
        with output.busy("comparing"):
            plan = plan_apply(config, wanted, **options)
        if only_plan or plan.problems or not plan.steps:
            if output.as_json:
                output.document({**asdict(plan), "done": []})
            else:
                _show(output, plan)
            return 1 if plan.problems else 0
        if not output.as_json:
            _show(output, plan)
        if not yes:
            click.confirm(f"Take {_steps(len(plan.steps))}?", abort=True, err=True)

        def finished(step: ApplyStep) -> None:
            done.append(step)
            if not output.as_json:
                output.line(f"done: {step}", GOOD)

        try:
            with output.busy("applying") as tell:
                apply_map(config, wanted, progress=tell, finished=finished, **options)
        except KeyboardInterrupt:
            write_error(
                f"interrupted: {_steps(len(done))} of about {len(plan.steps)} done",
                "give the command again to continue",
            )
            sys.exit(INTERRUPTED)
    if output.as_json:
        output.document({**asdict(plan), "done": [asdict(each) for each in done]})
    else:
        output.line(f"the map is true: {_steps(len(done))} done", GOOD)
    return 0


def _steps(count: int) -> str:
    return counted(count, "step")


def _show(output: Output, plan: ApplyPlan) -> None:
    for number, step in enumerate(plan.steps, 1):
        output.line(f"{number}. {step}")
        if (moving := step.plan) is not None:
            show_load(output, moving)
            output.line(f"writers wait at most {plan.hold:g} s, readers do not")
            for note in moving.notes:
                output.line(f"note: {note}", WARN)
        output.line(f"back: {step.back}", DIM)
    if any(step.kind == "resume" for step in plan.steps):
        output.line("the other steps are planned when that is done", DIM)
    if plan.left:
        output.line(f"not in the map, and stays (--prune): {', '.join(plan.left)}", DIM)
    for problem in plan.problems:
        output.line(f"cannot be done: {problem}", BAD)
    if not plan.steps and not plan.problems:
        output.line("the map is true: nothing to do", GOOD)
