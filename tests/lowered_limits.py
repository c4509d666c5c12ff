"""Limits and pauses of shardkit that tests set, so that little is much; only this file names them.

``lower(list_step=2)`` has a change of a list visit two parts in a call for the rest of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

_STRUCTURES = "structures.base.parameters", "structures.layouts.replan"
_SEARCHER, _PARTS, _LISTS = "search.searcher", "search.parts", "structures.list.scripts"

# What a test says, and the names in the modules of shardkit that are set.
LIMITS: dict[str, tuple[str, ...]] = {
    "answer_timeout": ("admin.growth.servers.TIMEOUT",),
    "ads_work": ("ads.ads.WORK_PER_CALL",),
    "backup_pause": ("admin.backup._AGAIN",),
    "balance_work": ("admin.growth.balance._WORK",),
    "change_lease": ("admin.changes.LEASE", "admin.growth.journal.LEASE"),
    "bulk_page": ("kit.bulk.PAGE",),
    "chunk_requests": ("network.links.resp.CHUNK_REQUESTS",),
    "city_blocks": ("geo.block_store.BLOCKS_AT_ONCE",),
    "city_cached_addresses": ("messaging.totals._MOST_KNOWN",),
    "compared_again": ("admin.growth.exchange._REPEATED",),
    "compression_lease": ("structures.codecs.compression.LEASE",),
    "copy_answer": ("admin.growth.exchange._TIMEOUT",),
    "crash_notice": ("admin.growth.failover._NOTICE",),
    "dashboard_check": ("dashboard.fleet._CHECK",),
    "dashboard_refusal": ("dashboard.app._REFUSED_AFTER",),
    "dashboard_step": ("dashboard.history.STEP",),
    "down_link": ("network.rules.MOST_DOWN", "admin.growth.failover.MOST_DOWN"),
    "eviction_warnings": ("structures.base.parameters._WARNED",),
    "fence_wait": ("network.connections.databases.FENCE_WAIT",),
    "entries_at_once": ("structures.base.check.ENTRIES_AT_ONCE",),
    "file_line": ("messaging.files.LONGEST_LINE",),
    "follow_pause": ("metrics.logs.POLL",),
    "group_keys": ("structures.layouts.structure.KEYS_PROBED",),
    "index_check": ("search.check._WORDS_PER_CALL", "search.check._POSTINGS_PER_CALL"),
    "job_work": ("job_search.job_search.WORK_PER_CALL",),
    "job_page": ("job_search.job_search.PAGE_SIZE",),
    "jobs_per_batch": ("job_search.job_search.JOBS_PER_BATCH",),
    "log_messages": ("metrics.logs._Messages.most",),
    "feed_beat": ("network.topology.feed.BEAT",),
    "lease": tuple(f"{module}.LEASE" for module in _STRUCTURES),
    "list_block": ("structures.list.sharded_list.LONGEST_BLOCK",),
    "list_search": (f"{_LISTS}.PARTS_PER_SEARCH",),
    "list_search_values": (f"{_LISTS}.VALUES_PER_SEARCH",),
    "list_step": (f"{_LISTS}.PARTS_PER_STEP",),
    "move_attempts": ("admin.growth.shard_move._ATTEMPTS",),
    "move_leave": ("admin.growth.shard_move.LEAVE",),
    "move_notes": ("admin.growth.mover._EVERY",),
    "move_read": ("admin.growth.shard_move._READ",),
    "metrics_rounds": ("metrics.outbox._MOST_ROUNDS",),
    "metrics_waiting": ("metrics.outbox.MOST_WAITING",),
    "recent_parameters": ("structures.base.parameters.RECENT",),
    "missing_parameters_pause": ("structures.base.parameters._READ_AFTER",),
    "messages_unread": ("kit.pubsub._MOST_UNREAD",),
    "packed_aggregate": ("structures.packed.records.AGGREGATE_BYTES",),
    "packed_block": ("structures.packed.part_store.BLOCK_BYTES",),
    "plan_grace": ("structures.layouts.replan.GRACE",),
    "plan_short_lease": ("structures.layouts.replan.SHORT_LEASE",),
    "plan_lease": ("structures.layouts.replan.LEASE",),
    "most_cities": ("geo.readers.MOST_CITIES",),
    "plan_wait": ("structures.base.parameters._WAIT",),
    "queue_block": ("queues.claim.LONGEST_BLOCK",),
    "queue_bytes": ("queues.task_queues.BYTES_AT_ONCE",),
    "read_attempts": ("network.replicas.reading.ATTEMPTS",),
    "replica_interval": ("network.replicas.replicas.INTERVAL",),
    "replica_outdated": ("network.replicas.replicas.OUTDATED",),
    "replica_sessions": ("network.replicas.replicas._MOST_SESSIONS",),
    "cluster_writes": ("network.replicas.replicas.CLUSTER_WRITES",),
    "catch_up": ("network.replicas.replicas.CATCH_UP",),
    "recreations": (
        *("structures.base.writes.ATTEMPTS", "structures.layouts.growing.ATTEMPTS"),
        *("structures.list.scripts.ATTEMPTS", "structures.list.sharded_list.ATTEMPTS"),
        "structures.unique.days.ATTEMPTS",
    ),
    "replica_levels": ("admin.growth.attachment._DEEPEST",),
    "search_exported": ("cli.commands.search._AT_ONCE",),
    "replies_due": ("network.links.multiplexer.MAX_REPLIES",),
    "search_expansions": (f"{_SEARCHER}.MAX_EXPANSIONS",),
    "search_facet_values": (f"{_SEARCHER}.MAX_FACET_VALUES",),
    "search_hits": (f"{_SEARCHER}.HITS_PER_CALL",),
    "search_line": ("search.files.MAX_FILE_BYTES",),
    "search_pending": (f"{_PARTS}.PENDING_SECONDS",),
    "search_slice_time": (f"{_PARTS}.SLICE_MICROSECONDS",),
    "search_slice_words": (f"{_PARTS}.WORDS_PER_SLICE",),
    "search_terms": (f"{_PARTS}.TERMS_PER_CALL",),
    "search_words": (f"{_SEARCHER}.WORDS_PER_CALL",),
    "search_work": (f"{_SEARCHER}.WORK_PER_CALL",),
    "search_write_time": (f"{_PARTS}.WRITE_MICROSECONDS",),
    "settled": ("admin.growth.certificate.SETTLED",),
    "set_parts": ("structures.set.sharded_set.PARTS_COMBINED",),
    "skills_per_batch": ("job_search.job_search.SKILLS_PER_BATCH",),
    "server_saving": ("local.process._SAVING",),
    "slow_ping": ("network.rules.SLOW_PING",),
    "social_at_once": ("social.repair.AT_ONCE",),
    "sorted_set_keys": ("structures.sorted_set.groups.KEYS_PER_EXCHANGE",),
    "sorted_set_first_page": ("structures.sorted_set.groups.FIRST_PAGE",),
    "sorted_set_parts": ("structures.sorted_set.groups.PARTS_AT_ONCE",),
    "sorted_set_rows": ("structures.sorted_set.groups.MOST_ROWS",),
    "sorted_set_page": ("structures.sorted_set.groups.LARGEST_PAGE",),
    "statistics_contexts": ("metrics.statistics._MOST_CONTEXTS",),
    "statistics_values": ("metrics.statistics._SUMMED_AT",),
    "survey_patience": ("network.survey._PATIENCE",),
    "transfer_attempts": ("coordination.transfers.ATTEMPTS",),
    "turns": ("testing.simulation.processes.MOST_TURNS",),
    "waits": ("messaging.tagged.RETRY_AFTER", "coordination.events.ASKS_AGAIN"),
    "worker_lease": ("queues.worker.LEAST_LEASE",),
    "worker_pause": ("queues.worker.FIRST_PAUSE",),
    "visitors_compared": ("structures.unique.visitors.MOST_IDS_A_GROUP",),
}


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set limits by their names above for one test."""

    def set_all(**values: Any) -> None:
        for limit, value in values.items():
            for name in LIMITS[limit]:
                owner, _, last = f"shardkit.{name}".rpartition(".")
                # A package may have a function of a module's name.
                if owner.rpartition(".")[2].islower():
                    monkeypatch.setattr(import_module(owner), last, value)
                else:
                    monkeypatch.setattr(f"{owner}.{last}", value)

    return set_all
