"""The parts of a network, made and joined once; they hold no state but what they are made with."""

from __future__ import annotations

from typing import Any

from shardkit.queues.task_queues import TaskQueues
from shardkit.social.base.keys import Layout
from shardkit.social.blocking import BlockingAndMuting
from shardkit.social.content.cache import CachedStatuses
from shardkit.social.content.statuses import Statuses
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.backfill import Refill
from shardkit.social.delivery.background import Work
from shardkit.social.delivery.fan_out import Syndication
from shardkit.social.delivery.posting import Posting
from shardkit.social.following import Following
from shardkit.social.lists import Lists
from shardkit.social.relations.counters import Counters
from shardkit.social.relations.relations import Relations
from shardkit.social.repair import Reconcile, Repair
from shardkit.social.users import Users


class Steps:
    """The steps of a network by topic; for the arguments see `SocialNetwork`."""

    def __init__(
        self,
        layout: Layout,
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
        syndication = Syndication(layout, self.statuses, self.timelines, self.relations, pass_size)
        refill = Refill(layout, self.timelines, self.relations)
        self.work = Work(layout, syndication, refill, queues, queue)
        self.posting = Posting(layout, self.statuses, self.timelines, syndication, self.work)
        self.following = Following(layout, self.relations, self.work, following_limit)
        self.blocking = BlockingAndMuting(layout, self.following, following_limit)
        self.lists = Lists(layout, following_limit)
        self.repair = Repair(layout, self.posting, self.following, self.work)
        self.reconcile = Reconcile(
            layout,
            counters,
            self.statuses,
            self.timelines,
            self.relations,
            self.following,
            refill,
            self.work,
        )
