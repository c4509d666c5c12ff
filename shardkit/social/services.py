"""The parts of a network, made and joined once; they hold no state but what they are made with."""

from __future__ import annotations

from typing import Any

from shardkit.queues.task_queues import TaskQueues
from shardkit.social.base.keys import KeyLayout
from shardkit.social.blocks import BlocksAndMutes
from shardkit.social.content.cache import CachedStatuses
from shardkit.social.content.statuses import Statuses
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.backfill import Backfill
from shardkit.social.delivery.background import BackgroundJobs
from shardkit.social.delivery.fan_out import FanOut
from shardkit.social.delivery.posts import Posts
from shardkit.social.follows import Follows
from shardkit.social.lists import Lists
from shardkit.social.relations.counters import Counters
from shardkit.social.relations.relations import Relations
from shardkit.social.repair import PendingRepair, Reconciler
from shardkit.social.users import Users


class Services:
    """The steps of a network by topic; for the arguments see `SocialNetwork`."""

    def __init__(
        self,
        layout: KeyLayout,
        *,
        home_limit: int,
        profile_limit: int,
        following_limit: int,
        pass_size: int,
        fan_out_limit: int,
        queues: TaskQueues[Any] | None,
        queue: str,
        cache: CachedStatuses | None,
    ) -> None:
        self.users = Users(layout)
        self.statuses = Statuses(layout, cache)
        self.timelines = Timelines(layout, self.statuses, home_limit, profile_limit)
        counters = Counters(layout, fan_out_limit)
        self.relations = Relations(layout, counters, self.timelines)
        fan_out = FanOut(layout, self.statuses, self.timelines, self.relations, pass_size)
        backfill = Backfill(layout, self.timelines, self.relations)
        self.background = BackgroundJobs(layout, fan_out, backfill, queues, queue)
        self.posts = Posts(layout, self.statuses, self.timelines, fan_out, self.background)
        self.follows = Follows(layout, self.relations, self.background, following_limit)
        self.blocks = BlocksAndMutes(layout, self.follows, following_limit)
        self.lists = Lists(layout, following_limit)
        self.repair = PendingRepair(layout, self.posts, self.follows, self.background)
        self.reconcile = Reconciler(
            layout,
            counters,
            self.statuses,
            self.timelines,
            self.relations,
            self.follows,
            backfill,
            self.background,
        )
