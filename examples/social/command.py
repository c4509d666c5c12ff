"""The command: options, and the demonstration from start to end.

::

    shard map ─► embedded servers ─► users, follows, posts in bulk ─► people at once ─► tables
"""

from __future__ import annotations

import asyncio
import random
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import shardkit
from examples.social.acting import Crowd, drain, working
from examples.social.loading import BulkFollow, create_users
from examples.social.measuring import ServerState, agree, states, weigh
from examples.social.people import People, message
from examples.social.report import BuiltNetwork, DemoReport, document, show
from shardkit.cli.demo.replay import started
from shardkit.cli.options import INTERRUPTED, command
from shardkit.cli.output import DIM, GOOD, Output
from shardkit.cli.progress import ProgressCallback, progress
from shardkit.config.shard_map import ShardMap
from shardkit.kit.kit import ENVIRONMENT, AsyncShardKit, ShardKit
from shardkit.local import LocalServer, LocalServers, Setting
from shardkit.operations.operation import Blocking, Face, pages
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.network import (
    FAN_OUT_LIMIT,
    FOLLOWING_LIMIT,
    HOME_LIMIT,
    PASS_SIZE,
    SocialNetwork,
)
from shardkit.social.timelines import ENTRIES_AT_ONCE, SLACK

MOST_USERS: Final = 1_000_000
_POSTS_AT_ONCE: Final = 100
_QUEUE: Final = "social"
# Home timelines are cut when they are a tenth above their limit, after some were added at once.
_LONGEST: Final = HOME_LIMIT + HOME_LIMIT // SLACK + ENTRIES_AT_ONCE
_COMPACT: Final[dict[str, Setting]] = {"zset-max-listpack-entries": _LONGEST}


@dataclass(frozen=True)
class DemoOptions:
    """What the command line asks for.

    Attributes:
        users: how many users.
        follows: how many accounts each follows, on average.
        posts: how many statuses there are before people do something.
        tasks: how many do something at once.
        seconds: for how long.
        fan_out_limit: see `SocialNetwork`.
        pass_size: likewise.
        seed: of what is left to chance.
    """

    users: int
    follows: float
    posts: int
    tasks: int
    seconds: float
    fan_out_limit: int
    pass_size: int
    seed: int


@command(
    "python -m examples.social",
    "python -m examples.social --users 20000 --tasks 64 --seconds 10",
    "python -m examples.social --users 1000000 --follows 5 --seed 7 --json",
    "python -m examples.social --fan-out-limit 200",
    name="examples.social",
)
@click.option(
    "--users",
    type=click.IntRange(2, MOST_USERS),
    default=2000,
    show_default=True,
    help="How many users.",
)
@click.option(
    "--follows",
    type=click.FloatRange(0, FOLLOWING_LIMIT),
    default=20,
    show_default=True,
    help="How many accounts a user follows, on average.",
)
@click.option(
    "--posts",
    type=click.IntRange(0),
    help="How many statuses to begin with. By default one for two users, 5,000 at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 86_400),
    default=5,
    show_default=True,
    help="For how long people post, follow and read.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    help="How many of them at once.",
)
@click.option(
    "--fan-out-limit",
    type=click.IntRange(0),
    default=FAN_OUT_LIMIT,
    show_default=True,
    help="With more followers than this, an account's posts are fetched by readers; 0: never.",
)
@click.option(
    "--pass-size",
    type=click.IntRange(1, 10_000),
    help="How many followers one pass of a fan-out reads. By default a twentieth of the users, "
    f"from 100 to {PASS_SIZE:,}.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what is left to chance.")
@click.option("--keep", is_flag=True, help="Keep the servers running until Ctrl-C.")
def demo(
    users: int,
    follows: float,
    posts: int | None,
    seconds: float,
    tasks: int,
    fan_out_limit: int,
    pass_size: int | None,
    seed: int,
    keep: bool,
    output: Output,
) -> int:
    """Build a network of made-up people on embedded servers, use it, and say how that went.

    Starts four data servers and a config server on free ports. Popularity follows Zipf's law: most
    users have few followers, some very many. Then people post, follow and read, many at once, while
    a worker does what is queued. At last a sample is reconciled, which shows whether counters
    agree.

    Exit codes: 0 they do; 1 they do not, or something went wrong; 130 it was interrupted.
    """
    if 0 < fan_out_limit < 5:
        raise click.UsageError("--fan-out-limit is 0, or 5 or more")
    options = DemoOptions(
        users,
        follows,
        min(users // 2, 5000) if posts is None else posts,
        tasks,
        seconds,
        fan_out_limit,
        pass_size or max(100, min(PASS_SIZE, users // 20)),
        seed,
    )
    running = LocalServers(social_map(), ports="free", config=_COMPACT)
    with started(output, running) as url, shardkit.connect(url) as kit:
        servers = [server for server in running.servers if server is not running.config_server]
        report = _run(output, servers, url, kit, options)
        if output.as_json:
            output.document(document(report))
        else:
            show(output, report)
        if keep and not report.acted.interrupted:
            _keep(output, url)
    if report.acted.interrupted:
        return INTERRUPTED
    return 1 if report.agreement and report.agreement.mended else 0


def social_map() -> ShardMap:
    """Return the shard map that the embedded servers are started from."""
    text = Path(__file__).with_name("social.yaml").read_text("utf-8")
    return ShardMap.parse(text, "the social demo's map")


def network_of(
    kit: ShardKit | AsyncShardKit, tasks: TaskQueues[Face], options: DemoOptions
) -> SocialNetwork[Face]:
    """Return the network, of either kit."""
    network: SocialNetwork[Face] = kit.social(  # type: ignore[assignment]
        component="users",
        timelines="timelines",
        followers="followers",
        fan_out_limit=options.fan_out_limit,
        pass_size=options.pass_size,
        queues=tasks,
        queue=_QUEUE,
    )
    return network


def _run(
    output: Output, servers: Sequence[LocalServer], url: str, kit: ShardKit, options: DemoOptions
) -> DemoReport:
    tasks = kit.queues(component="tasks")
    network = network_of(kit, tasks, options)
    people = People(options.users, options.follows, FOLLOWING_LIMIT, options.seed)
    following = list(people.following())
    with progress("") as tell:
        built, uids, bulk = _build(kit, network, people, following, options, tell)
    crowd = Crowd(people, uids, following, bulk.followers, options.fan_out_limit, options.seed)
    with progress("s") as tell:
        before = asyncio.run(_act(url, servers, crowd, options, tell))
    after = states(servers)
    weights = agreement = None
    if not crowd.acted.interrupted:
        with output.busy("weighing users and timelines"):
            weights = weigh(kit, network, uids, options.seed)
        with output.busy("reconciling a sample"):
            agreement = agree(kit, network, uids, options.seed)
    return DemoReport(built, crowd.acted, before, after, weights, agreement)


def _build(
    kit: ShardKit,
    network: SocialNetwork[Blocking],
    people: People,
    following: Sequence[Sequence[int]],
    options: DemoOptions,
    tell: ProgressCallback,
) -> tuple[BuiltNetwork, list[int], BulkFollow]:
    """Build the network; return what it is, the users' ids, and who is followed by how many."""
    began = time.perf_counter()
    uids = create_users(
        kit, network, options.users, lambda done: tell("users", done, options.users)
    )
    bulk, total = BulkFollow(network, uids, options.fan_out_limit), sum(map(len, following))
    kit.driver.run(bulk.run(following, lambda done: tell("follows", done, total)))
    dice = random.Random(f"posts {options.seed}")
    post, posted = network.deferred.post, 0
    for page in pages(range(options.posts), _POSTS_AT_ONCE):
        authors = [uids[people.author(dice)] for _ in page]
        kit.together(*(post(uid, message(dice)) for uid in authors))
        posted += len(page)
        tell("posts", posted, options.posts)
    followers = sorted(bulk.followers)
    seconds = time.perf_counter() - began
    median = followers[len(followers) // 2]
    built = BuiltNetwork(
        options.users, bulk.follows, followers[-1], median, posted, round(seconds, 3)
    )
    return built, uids, bulk


async def _act(
    url: str,
    servers: Sequence[LocalServer],
    crowd: Crowd,
    options: DemoOptions,
    tell: ProgressCallback,
) -> list[ServerState]:
    """Have people do something; return how the servers were before."""
    total = round(options.seconds)
    async with await shardkit.aconnect(url) as kit:
        tasks = kit.queues(component="tasks")
        network = network_of(kit, tasks, options)
        # What celebrities' followers fetch is marked in passes, all but the first by tasks.
        await drain(network, tasks, _QUEUE)
        before = states(servers)
        async with working(network, tasks, _QUEUE, crowd.acted):
            await crowd.act(
                network,
                options.tasks,
                options.seconds,
                lambda done: tell("acting", round(done), total),
            )
    return before


def _keep(output: Output, url: str) -> None:
    """ProgressCallback how to look around, and wait for Ctrl-C."""
    if not output.as_json:
        output.line()
        output.line(f"export {ENVIRONMENT}={shlex.quote(url)}", GOOD)
        output.line("shardkit status", DIM)
    output.note("Ctrl-C stops the servers.", DIM)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        output.note("stopped the servers", DIM)
