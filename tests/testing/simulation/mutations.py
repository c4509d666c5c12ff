"""Mistakes put into shardkit, each of which the simulator has to find.

A mutation takes a check out, turns an order of writes round, or takes a fix back: in the text of a
script, or in the source of a function.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import shardkit
from shardkit.caching.values import CachedValues
from shardkit.config import history, store
from shardkit.config.directory import Directory
from shardkit.coordination import several
from shardkit.coordination.events import Barrier, CountdownLatch
from shardkit.coordination.holdable import Holdable
from shardkit.coordination.several import MultiLock, QuorumLock
from shardkit.geo.ip_to_city import IpToCity
from shardkit.kit import decorators
from shardkit.market import Market
from shardkit.metrics.outbox import Outbox
from shardkit.network.connections import clients, sentinels
from shardkit.network.connections.breaker import Breaker
from shardkit.network.connections.clients import Clients
from shardkit.network.connections.connection import Closable
from shardkit.network.connections.pool import Connections, Pool, _Common
from shardkit.network.connections.replies import ReplyParser
from shardkit.network.links import dispatcher, user_clients
from shardkit.network.links.dispatcher import Dispatcher
from shardkit.network.links.server_request import ServerRequest
from shardkit.network.topology import Topology
from shardkit.network.topology.sources import ConfigServer, MapFile
from shardkit.operations import cancellation, drivers
from shardkit.operations.deadlines import Deadline
from shardkit.queues import Worker
from shardkit.queues.worker_base import BaseWorker
from shardkit.search.searcher import Searcher
from shardkit.social.fan_out import FanOut
from shardkit.structures.base import parameters, writes
from shardkit.structures.base.lifetime import ExpirableStructure
from shardkit.structures.layouts import growing, replan
from shardkit.structures.unique.day_planner import DayPlanner
from shardkit.testing.fakes import lua as fake_lua


@cache
def _scripts() -> str:
    return "".join(path.read_text() for path in Path(shardkit.__path__[0]).rglob("*.lua"))


@contextmanager
def lua(old: str, new: str) -> Iterator[None]:
    """Change the text of every script that contains a text."""
    assert old in _scripts(), f"no script contains {old!r}"
    runtime = fake_lua._runtime()
    original, compiled = runtime.compile, runtime.compiled

    def compile_changed(text: bytes) -> Any:
        return original(text.replace(old.encode(), new.encode()))

    runtime.compile, runtime.compiled = compile_changed, {}
    try:
        yield
    finally:
        runtime.compile, runtime.compiled = original, compiled


@contextmanager
def python(owner: Any, name: str, old: str, new: str) -> Iterator[None]:
    """Change the source of a function of a class or a module."""
    function = inspect.getattr_static(owner, name)
    plain = getattr(function, "steps", function)
    source = textwrap.dedent(inspect.getsource(plain))
    assert old in source, f"{name} does not contain {old!r}"
    module = sys.modules[plain.__module__]
    made: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), vars(module), made)
    changed = made[name]
    holders = [owner]
    if inspect.ismodule(owner):  # those who imported it by name
        holders += [
            each
            for each in list(sys.modules.values())
            if getattr(each, name, None) is function and each is not owner
        ]
    for holder in holders:
        setattr(holder, name, changed)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, function)


@contextmanager
def both(*changes: tuple[Any, str, str, str]) -> Iterator[None]:
    """Change the source of several functions, each of which would hold alone."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(python(*change))
        yield


class Mutation(NamedTuple):
    """A mistake.

    Attributes:
        protocol: the name of the protocol that finds it.
        mistake: what is wrong then.
        make: makes it: `lua` or `python`.
        args: what that is given.
    """

    protocol: str
    mistake: str
    make: Callable[..., AbstractContextManager[None]]
    args: tuple[Any, ...]


MUTATIONS: dict[str, Mutation] = {
    "hash-split-leaves-copies": Mutation(
        "growing hash",
        "a split leaves the moved fields in the old part too",
        lua,
        ("slices(members, function(...) redis.call(REMOVE[kind], source, ...) end)", ""),
    ),
    "hash-stale-writer": Mutation(
        "growing hash",
        "a writer that has not noticed a split is accepted",
        lua,
        ("if state.parts ~= known then", "if false then"),
    ),
    "streams-split-unseen": Mutation(
        "streams",
        "a stream ignores the split of a part that it is reading",
        python,
        (
            growing,
            "read_parts_together",
            "layouts[n]._update_parts(group, next(replies)) == number",
            "layouts[n]._update_parts(group, next(replies))",
        ),
    ),
    "streams-new-parts-left-out": Mutation(
        "streams",
        "a stream omits parts that were split off since it started",
        python,
        (
            growing,
            "read_parts_together",
            "parts_after_splits(parts[0].number, number, {part.part for part in parts})",
            "[part.part for part in parts]",
        ),
    ),
    "decorated-one-shard": Mutation(
        "decorated functions",
        "a decorated function gets the connection of another key's shard",
        python,
        (
            decorators,
            "sharded_connection",
            "return client(site, args[position])",
            'return client(site, "a")',
        ),
    ),
    "decorated-first-argument": Mutation(
        "decorated functions",
        "the first argument is used as the key although another one was specified",
        python,
        (decorators, "sharded_connection", "_key_of(function, key)", "_key_of(function, None)"),
    ),
    "lifetime-only-parameters-expire": Mutation(
        "lifetime",
        "existing parts do not get the expiry",
        python,
        (
            ExpirableStructure,
            "_let_all_expire",
            "yield from self._send_to_all(generation, *expiry)",
            "pass",
        ),
    ),
    "lifetime-expiry-left-half-done": Mutation(
        "lifetime",
        "no client completes a change of the expiry whose client stopped",
        python,
        (parameters, "open_all", "yield from meta.complete_expiry()", "pass"),
    ),
    "lifetime-settled-with-an-old-end": Mutation(
        "lifetime",
        "a part gets its writer's expiry although it has changed in the meantime",
        lua,
        ("and now ~= tonumber(ARGV[1]) and now ~= tonumber(ARGV[2]) then", "and false then"),
    ),
    "lifetime-parts-without-parameters-stay": Mutation(
        "lifetime",
        "a part that a write creates is kept before its parameters are confirmed",
        lua,
        ("if redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', due)) == 0", "if true"),
    ),
    "lives-have-one-end": Mutation(
        "lives",
        "a re-created structure has parts of the generation before",
        lua,
        ("generation = KEYS[2] and tonumber(", "generation = false and tonumber("),
    ),
    "lives-end-with-a-slow-deletion": Mutation(
        "lives",
        "a deletion removes the parameters of the next generation",
        python,
        (ExpirableStructure, "_remove_marked", 'removal("end"', 'removal("remove"'),
    ),
    "planned-without-a-second-mark": Mutation(
        "replanned",
        "writes that were sent earlier reach parts that were copied",
        python,
        (
            replan._Replan,
            "_copy",
            "ends = yield from self._mark_all(parts, frozen=True)",
            "ends = yield from self._changed(parts)",
        ),
    ),
    "planned-under-readers": Mutation(
        "replanned",
        "writers use the new parts while readers still use the old ones",
        python,
        (replan._Replan, "run", "yield Pause(2 * SHORT_LEASE)", "pass"),
    ),
    "planned-under-writers": Mutation(
        "replanned",
        "a writer that has read the new plan does not wait for readers",
        python,
        (parameters.Metadata, "wait_for_plan", "if self.is_held:", "if False:"),
    ),
    "planned-with-one-mark": Mutation(
        "replanned",
        "parts have the first mark while writers wait",
        python,
        (replan._Replan, "_mark", "(31 if frozen else 15)", "15"),
    ),
    "planned-and-settled-there": Mutation(
        "replanned",
        "a write stays in the old part that it created",
        python,
        (writes, "settle", "if meta.plan != plan:", "if False:"),
    ),
    "list-pop-leaves-an-empty-part": Mutation(
        "lists",
        "the fast path of a pop empties a part but keeps it as the end",
        lua,
        ("if held > wanted then", "if held >= wanted then"),
    ),
    "list-pop-amid-a-change": Mutation(
        "lists",
        "the fast path of a pop ignores an unfinished change of many parts",
        lua,
        ("if wanted > 0 and ends[5] == ARGV[2]", "if wanted > 0"),
    ),
    "list-change-forgets-where-it-was": Mutation(
        "lists",
        "a change in steps closes gaps from the last step's removal on, not from the first",
        lua,
        ("if task.removed == 0 then task.low, task.high = at, at end", "task.low = at"),
    ),
    "list-count-in-two-steps": Mutation(
        "lists",
        "a pop whose connection broke is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "waiting-pop-repeated": Mutation(
        "waiting lists",
        "a pop whose reply was lost is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "waiting-not-put-back": Mutation(
        "cancelled consumers",
        "the value of a cancelled pop is not put back",
        python,
        (cancellation, "completed", "yield from undo(", "_ = ("),
    ),
    "visitors-counted-twice": Mutation(
        "visitors",
        "known sessions are counted again",
        lua,
        ("added = added + new", "added = added + 1"),
    ),
    "visitors-two-plans": Mutation(
        "visitors",
        "the second process overwrites the plan of a day",
        python,
        (DayPlanner, "_find", '"NX"', '"XX"'),
    ),
    "queues-due-in-two-places": Mutation(
        "queues",
        "a task whose lease ended stays among the leased ones",
        lua,
        ("    redis.call('ZREM', q.taken, id)\n    if taken_before", "    if taken_before"),
    ),
    "queues-taken-is-lost": Mutation(
        "queues",
        "a taken task is not leased, so it is lost if its worker dies",
        lua,
        ("redis.call('ZADD', q.taken, stamp(now + ARGV[2]), id)", ""),
    ),
    "pipelines-sent-twice": Mutation(
        "pipelines",
        "a command that may have been executed is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "pipelines-refused-in-the-middle": Mutation(
        "pipelines",
        "a batch that a loading server refuses in the middle is sent again as a whole",
        python,
        (
            Dispatcher,
            "_settle",
            "again.append(position)\n                continue\n        elif",
            "again[:] = server_request.positions\n                continue\n        elif",
        ),
    ),
    "pipelines-all-fail": Mutation(
        "one lost connection",
        "a failed shard loses the other shards' replies",
        python,
        (
            Dispatcher,
            "_settle",
            "if attempt.error is not None:\n",
            """if attempt.error is not None:
        out.failed = True
        request = server_request.failure
        out[:] = [request(each, attempt.error, True) for each in server_request.batch]
        return []
    if attempt.error is not None:
""",
        ),
    ),
    "geo-same-generation": Mutation(
        "IP generations",
        "an import reuses the number of the current generation",
        lua,
        ("number = math.max(last + 1, math.floor((now - 1577836800) / 60))", "number = 7"),
    ),
    "geo-no-grace": Mutation(
        "IP generations",
        "old data is removed at once",
        python,
        (IpToCity, "import_from", "self._store.expire(old, grace)", "self._store.remove(old)"),
    ),
    "search-old-words-stay": Mutation(
        "search",
        "a document that is indexed again is still found by its old words",
        lua,
        ("  for _, word in ipairs(of) do change(word, number, false) end\n", ""),
    ),
    "search-removed-is-counted": Mutation(
        "search",
        "a removed document stays in the count",
        lua,
        ("  count_live(chunk, -1)\n", ""),
    ),
    "social-one-half": Mutation(
        "social network",
        "following writes only one half of the relation",
        lua,
        ("  redis.call('ZADD', KEYS[4], score, ARGV[2])\n", ""),
    ),
    "social-no-note": Mutation(
        "social network",
        "a change of a relation leaves no note for `repair`",
        lua,
        ("redis.call('ZADD', KEYS[2], score, ARGV[4])\nreturn {1, follows", "return {1, follows"),
    ),
    "social-block-ignored": Mutation(
        "social network",
        "following ignores blocks",
        lua,
        (
            "redis.call('ZSCORE', KEYS[5], ARGV[3]) or redis.call('ZSCORE', KEYS[6], ARGV[2])",
            "false",
        ),
    ),
    "configuration-half-a-push": Mutation(
        "configuration",
        "a push is not a transaction",
        python,
        (
            store,
            "_push",
            "    pipe.multi()\n",
            "    for key, text in texts.items():\n        pipe.set(key, text)\n    pipe.multi()\n",
        ),
    ),
    "configuration-back-in-time": Mutation(
        "configuration",
        "an older state of the config server is accepted",
        both,
        (
            (ConfigServer, "read", "0 < component.epoch < known.epoch", "False"),
            (ConfigServer, "_checked", "if epoch < newest:", "if False:"),
        ),
    ),
    "locks-two-holders": Mutation(
        "locks",
        "a lock that is held is granted",
        lua,
        ("local held = redis.call('ZCARD', KEYS[2])", "local held = 0"),
    ),
    "locks-stale-token": Mutation(
        "locks",
        "a guard accepts an old token",
        lua,
        ("if seen and tonumber(seen) > tonumber(token) then", "if false then"),
    ),
    "locks-counted-from-the-answer": Mutation(
        "locks",
        "a lease is counted from the reply instead of the request",
        python,
        (Holdable, "_held", "hold.extended(sent,", "hold.extended(self.monotonic(),"),
    ),
    "semaphores-one-too-many": Mutation(
        "semaphores",
        "a semaphore admits one holder more than its limit",
        lua,
        ("limit > 0 and held >= limit", "limit > 0 and held > limit"),
    ),
    "semaphores-ends-early": Mutation(
        "semaphores",
        "a share of a semaphore ends earlier than its holder expects",
        lua,
        ("'ZADD', KEYS[2], digits(now + e.ttl), id", "'ZADD', KEYS[2], digits(now + 9), id"),
    ),
    "rwlock-read-while-written": Mutation(
        "read-write locks",
        "a reader does not wait for a writer",
        lua,
        ("if only and only.mode == 'x' then return NONE end", ""),
    ),
    "rwlock-write-while-read": Mutation(
        "read-write locks",
        "a writer does not wait for readers if no other client waits",
        lua,
        ("== 0 and fits(mode, room(limit)) then", "== 0 then"),
    ),
    "elections-term-of-the-clock": Mutation(
        "elections",
        "a term is the time, even after the clock was set back",
        lua,
        ("return math.max(latest + 1, now)", "return now"),
    ),
    "elections-earlier-leader-writes": Mutation(
        "elections",
        "a former leader can still write",
        lua,
        ("if seen and tonumber(seen) > tonumber(token) then", "if false then"),
    ),
    "quorum-half": Mutation(
        "quorum locks",
        "a minority of servers is enough",
        python,
        (QuorumLock, "__init__", "len(components) // 2 + 1", "len(components) // 2"),
    ),
    "quorum-shared": Mutation(
        "quorum locks",
        "its locks on servers are shared with other holders",
        python,
        (Holdable, "new_attempt", "self._mode, lasts, self.limit", '"s", lasts, 0'),
    ),
    "multi-lock-keeps-some": Mutation(
        "multi-locks",
        "acquired locks are kept although another one is not available",
        python,
        (
            MultiLock,
            "acquire",
            "yield from _give_back(self._locks, holds)\n        return None",
            "return None",
        ),
    ),
    "multi-lock-releases-some": Mutation(
        "multi-locks",
        "only the first lock is released",
        python,
        (several, "_give_back", "for hold in holds if", "for hold in holds[:1] if"),
    ),
    "latch-counted-again": Mutation(
        "latches",
        "a count whose reply was lost is sent again",
        python,
        (CountdownLatch, "_call", "idempotent=idempotent", "idempotent=True"),
    ),
    "latch-open-too-early": Mutation(
        "latches",
        "waiters pass before the last count",
        python,
        (CountdownLatch, "wait", "reply[0] == 0", "reply[0] <= 1"),
    ),
    "cached-put-without-lease": Mutation(
        "cached functions",
        "a value that was removed while it was computed is stored",
        lua,
        ("if what ~= 'remove' and stored[2] ~= ARGV[1] then return 0 end", ""),
    ),
    "cached-tags-are-not-compared": Mutation(
        "cached functions",
        "a value is used although its tag was invalidated",
        python,
        (CachedValues, "take", "if reply[2] == versions:", "if True:"),
    ),
    "cached-value-keeps-its-lease": Mutation(
        "cached functions",
        "a removed value leaves the lease to who computes it",
        lua,
        (
            "elseif what == 'remove' or not stored[3] then\n  redis.call('DEL', KEYS[1])",
            "elseif what == 'remove' then\n  redis.call('HDEL', KEYS[1], 'value')",
        ),
    ),
    "barrier-withdrawn-counts": Mutation(
        "barriers",
        "a waiter that timed out counts as arrived",
        lua,
        ("  redis.call('HDEL', KEYS[2], ARGV[2])\nelse", "else"),
    ),
    "barrier-arrives-twice": Mutation(
        "barriers",
        "an arrival whose reply was lost is sent again",
        python,
        (Barrier, "_call", "in_round > 0 and ", ""),
    ),
    "withdrawal-again": Mutation(
        "barriers",
        "a withdrawal whose reply was lost is sent again",
        python,
        (Barrier, "_call", ' and what != "withdraw"', ""),
    ),
    "gcra-one-more": Mutation(
        "rate limits",
        "one hit more than the burst is allowed",
        lua,
        (
            "local wait = after - each * burst - now",
            "local wait = after - each * burst - now - each",
        ),
    ),
    "window-of-half": Mutation(
        "rate limits",
        "hits are dropped after half of the window",
        lua,
        ("string.format('%.0f', now - window)", "string.format('%.0f', now - window / 2)"),
    ),
    "transfers-undone-after-commit": Mutation(
        "transfers",
        "a committed transfer is undone by the client that finds it",
        lua,
        ("  and string.sub(record, 1, 8) == 'pending ' then", "  then"),
    ),
    "transfers-resolved-twice": Mutation(
        "transfers",
        "a finished leg keeps its note, and is finished again",
        lua,
        ("redis.call('HDEL', KEYS[2], ARGV[1])", ""),
    ),
    "transfers-prepared-twice": Mutation(
        "transfers",
        "a leg whose reply was lost is executed again",
        lua,
        ("if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return {1} end", ""),
    ),
    "markets-any-price": Mutation(
        "markets",
        "a purchase does not check the price",
        python,
        (Market, "purchase", '{"price": str(price)}, {"price": None}', '{}, {"price": None}'),
    ),
    "markets-not-given-back": Mutation(
        "markets",
        "a refused purchase does not give the money back",
        lua,
        ("if is_debit(pair[2]) then add(account, pair[1], negated(pair[2])) end", ""),
    ),
    "counters-counted-twice": Mutation(
        "counters",
        "a request whose reply was lost is counted again",
        lua,
        ("if is_repeated(KEYS[1], ARGV[2]) then return -1 end", ""),
    ),
    "counters-cleaned-too-early": Mutation(
        "counters",
        "cleaning removes slices that should be kept",
        lua,
        ("if due <= now then", "if precision then"),
    ),
    "counters-lost-request": Mutation(
        "counters",
        "a request without a reply is not sent again",
        python,
        (Outbox, "_send", "self._warn(reply)\n", "self._drop(backlog)\n"),
    ),
    "logs-counted-twice": Mutation(
        "logs",
        "a message whose reply was lost is logged again",
        lua,
        ("if is_repeated(KEYS[1], ARGV[2]) then return -1 end", ""),
    ),
    "logs-rotated-into": Mutation(
        "logs",
        "an hour's counts are added to those of the hour before",
        lua,
        ("if redis.call('EXISTS', current) == 1 then redis.call('RENAME', current, last) end", ""),
    ),
    "workers-done-first": Mutation(
        "workers",
        "a worker acknowledges a task before it has run it",
        python,
        (
            Worker,
            "_handle",
            "    thread = threading.get_ident()\n",
            "    thread = threading.get_ident()\n    self.tasks._acknowledge(task)\n",
        ),
    ),
    "workers-taken-is-lost": Mutation(
        "workers",
        "a taken task is not leased, so it is lost with its worker",
        lua,
        ("redis.call('ZADD', q.taken, stamp(now + ARGV[2]), id)", ""),
    ),
    "deadlines-not-kept": Mutation(
        "deadlines",
        "a read waits beyond the deadline",
        python,
        (Deadline, "shorten", "left = max(0.0, self.left())", "left = 10.0"),
    ),
    "deadlines-breaker-stays-open": Mutation(
        "deadlines",
        "a breaker stays open although its server replies",
        python,
        (Breaker, "_end_round", "self.opened, False, 0", "self.opened, True, 0"),
    ),
    "together-sent-twice": Mutation(
        "together",
        "a command that may have been executed is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "together-anothers-replies": Mutation(
        "together",
        "an operation gets the replies of another one",
        python,
        (drivers._LockStep, "answer", "start += len(step)", "start += 0"),
    ),
    "moving-sent-twice": Mutation(
        "moving entries",
        "a command that may have been executed is sent again after the entry was read again",
        python,
        (user_clients, "_may_go_on", "return is_unready(error) or", "return True or"),
    ),
    "moving-stays": Mutation(
        "moving entries",
        "a user of a connection keeps it when its entry moves",
        python,
        (Clients, "changed", "_leave(displaced, awaiting=False)", "pass"),
    ),
    "closing-leaves-connections": Mutation(
        "closing",
        "closing a kit leaves connections that are in use",
        python,
        (Pool, "_disconnect", "if inuse_connections else ()", "if False else ()"),
    ),
    "closing-still-works": Mutation(
        "closing",
        "a connection that was closed with its kit connects again",
        python,
        (_Common, "_close", "self.closed = self.draining = True", "pass"),
    ),
    "closing-closes-sockets-in-use": Mutation(
        "closing",
        "closing a kit closes sockets that other threads use",
        python,
        (
            Closable,
            "shut_down",
            "with self._closing:",
            "super(Closable, self).disconnect()\n    if 0:",
        ),
    ),
    "closing-answers-from-the-cache": Mutation(
        "closing",
        "the directory's cache is still used after closing",
        python,
        (
            Directory,
            "get",
            "client = self._client()  # first: a closed kit has none",
            "client: Any = None if self._fresh(key, wait) else self._client()",
        ),
    ),
    "retired-under-calls": Mutation(
        "retired clients",
        "a retired client closes connections that are in use",
        python,
        (
            Connections,
            "end",
            "gone = [each for each in self.idle",
            "gone = [*self.lent] + [each for each in self.idle",
        ),
    ),
    "retired-are-kept": Mutation(
        "retired clients",
        "a retired client is kept",
        python,
        (
            Clients,
            "_access",
            "held.built.add(_closable(client))",
            "held.built.add(_closable(client)); vars(held).setdefault('kept', []).append(client)",
        ),
    ),
    "retired-by-the-kind-that-is-asked-for": Mutation(
        "retired clients",
        "the clients of structures are retired only when a structure is used",
        python,
        (Clients, "_displaced", "for raw in (None, False, True)", "for raw in (None, False)"),
    ),
    "retired-when-somebody-calls": Mutation(
        "retired clients",
        "an idle kit does not check entries for changes",
        python,
        (Clients, "_access", "topology.watch()", "pass"),
    ),
    "readers-waited-for-for-ever": Mutation(
        "stalled readers",
        "a task in a stopped event loop remains the reader of an entry",
        python,
        (Topology, "_lock_of", "self._clock() > cached.since + MAX_WAIT", "False"),
    ),
    "readers-waited-for-too-long": Mutation(
        "stalled readers",
        "other threads wait too long for a task in a stopped event loop",
        python,
        (Topology, "_lock_of", "cached.since + MAX_WAIT", "cached.since + 3 * MAX_WAIT"),
    ),
    "maps-without-a-lock": Mutation(
        "map files",
        "two threads read a changed file, and the older map stays",
        python,
        (MapFile, "_newest", "with self._lock:", "if True:"),
    ),
    "maps-parsed-from-another-reading": Mutation(
        "map files",
        "a file is compared in one read and parsed from the next",
        python,
        (MapFile, "_load", "ShardMap.decode(data,", "ShardMap.decode(self._path.read_bytes(),"),
    ),
    "maps-stamp-after-reading": Mutation(
        "map files",
        "the modification time is read after the file",
        python,
        (
            MapFile,
            "_newest",
            "broken = self._load()\n",
            "broken = self._load()\n            stamp = self._stamp()\n",
        ),
    ),
    "maps-half-written": Mutation(
        "map files",
        "a component that was not read yet is missing while the file is half written",
        python,
        (MapFile, "read", "known is not None or", "True or"),
    ),
    "forks-readers-stay": Mutation(
        "forks",
        "a lock of a reading thread of the parent stays locked",
        python,
        (Topology, "after_fork", "cached.lock, cached.loop,", "_, cached.loop,"),
    ),
    "forks-connections-stay": Mutation(
        "forks",
        "a child uses the connections of its parent",
        python,
        (
            Connections,
            "after_fork",
            "self.idle: list[Any] = []",
            "self.idle = getattr(self, 'idle', [])",
        ),
    ),
    "loops-that-are-closed-stay": Mutation(
        "event loops",
        "connections of a closed loop stay open",
        python,
        (Clients, "_hold", "self._abandon_closed_loops()", "pass"),
    ),
    "loops-that-end-stay": Mutation(
        "event loops",
        "clients do not notice that their loop ends",
        python,
        (clients, "_until_shutdown", "await alive.aclose()", "pass"),
    ),
    "moving-queues-gone-is-overtaken": Mutation(
        "moving queues",
        "a task that has moved to another server is reported as outliving its lease",
        lua,
        (
            "if redis.call('HEXISTS', q.tasks, id) == 0 then return -1 end",
            "if redis.call('HEXISTS', q.tasks, id) == 0 then return 0 end",
        ),
    ),
    "moving-queues-told-of-a-lease": Mutation(
        "moving queues",
        "a worker reports every failed acknowledgement as an ended lease",
        python,
        (BaseWorker, "_succeeded", "is Acknowledged.CLAIM_LOST", "is not Acknowledged.YES"),
    ),
    "mailboxes-popped": Mutation(
        "mailboxes",
        "fetched messages are removed at once",
        lua,
        ("if lease > 0 then", "if false then"),
    ),
    "mailboxes-not-removed": Mutation(
        "mailboxes",
        "an acknowledged message stays",
        lua,
        ("    remove(id, message)\n    removed = removed + 1", "    removed = removed + 1"),
    ),
    "chats-position-goes-back": Mutation(
        "chats",
        "an acknowledgement moves a position back",
        lua,
        ("if id <= position then return earlier_reply(STATE, ARGV[3]) or 0 end", ""),
    ),
    "chats-list-forgets": Mutation(
        "chats",
        "leaving removes a chat from the list of a user who has joined it again in the meantime",
        lua,
        ("if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end", ""),
    ),
    "files-removed-by-the-first-reader": Mutation(
        "files",
        "chunks are removed when the first reader is past them",
        lua,
        (
            "lowest = math.min(lowest, offset_of(n, reader))",
            "lowest = math.max(lowest < math.huge and lowest or 0, offset_of(n, reader))",
        ),
    ),
    "files-beyond-the-limit": Mutation(
        "files",
        "more space is reserved than is free",
        lua,
        ("if held + size > limit then break end", ""),
    ),
    "flushes-counted-again": Mutation(
        "flushes",
        "a page of totals is added twice",
        lua,
        (
            "if added ~= tonumber(ARGV[2]) then return {added, earlier_reply(DONE, ARGV[5]) or 0} "
            "end",
            "",
        ),
    ),
    "flushes-not-recorded": Mutation(
        "flushes",
        "an added page of totals is not recorded",
        lua,
        ("redis.call('HSET', DONE, 'format', '1', ARGV[1],", "redis.call('HSET', DONE, 'x',"),
    ),
    "cached-results-removed": Mutation(
        "cached results",
        "a page has documents that were removed since the first page",
        lua,
        ("== 0 then gone[#gone + 1] = id end", "== 0 then end"),
    ),
    "cached-results-skipped": Mutation(
        "cached results",
        "removed documents shift the positions, so the next page skips others",
        python,
        (
            Searcher,
            "search",
            "hits = hits[request.offset : end]",
            "hits = [h for h in hits if h.id not in answers.removed][request.offset : end]",
        ),
    ),
    "two-lists-value-in-both": Mutation(
        "two lists",
        "a moved value stays in the source too",
        lua,
        ("pop(list, ARGV[7], 1, ARGV[9] == '1')\nreturn found", "return found"),
    ),
    "two-lists-moved-twice": Mutation(
        "two lists",
        "a move whose reply was lost is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "duplicates-queued": Mutation(
        "duplicate tasks",
        "a task is queued although its id exists",
        lua,
        ("'HSETNX', q.tasks, id, task) == 1 or", "'HSETNX', q.tasks, id, task) >= 0 or"),
    ),
    "duplicates-cancelled-stay": Mutation(
        "duplicate tasks",
        "the content of a cancelled task stays, so its id cannot be queued again",
        lua,
        ("then return 0 end\nend\nforget(q, id)", "then return 0 end\nend"),
    ),
    "fan-out-of-one-pass": Mutation(
        "fan-out",
        "a fan-out ends after its first pass",
        python,
        (FanOut, "_advance", "if len(rows) == limit:", "if False:"),
    ),
    "fan-out-of-what-was-deleted": Mutation(
        "fan-out",
        "a status that is deleted during a pass stays in timelines that the pass has just written",
        python,
        (
            FanOut,
            "_withdraw",
            "yield from self.timelines.remove(keys, [job.subject])",
            "pass",
        ),
    ),
    "fan-out-to-leavers": Mutation(
        "fan-out",
        "a user who unfollows between a pass's read and write keeps the post",
        python,
        (FanOut, "_clean_up_after_leavers", "if count == len(rows):", "if True:"),
    ),
    "rollbacks-recorded-first": Mutation(
        "rollbacks",
        "a push is recorded before it is carried out",
        python,
        (
            store,
            "_push",
            "    pipe.multi()\n    pipe.lpush(HISTORY_KEY, record.to_json())\n",
            "    pipe.lpush(HISTORY_KEY, record.to_json())\n    pipe.multi()\n",
        ),
    ),
    "rollbacks-one-too-far": Mutation(
        "rollbacks",
        "a rollback to an epoch also undoes the push of that epoch",
        python,
        (history, "undo", "if record.epoch <= epoch:", "if record.epoch < epoch:"),
    ),
    "slots-moved-are-not-followed": Mutation(
        "moving slots",
        "after MOVED, a command is not sent to the slot's new node",
        python,
        (
            Dispatcher,
            "_settle",
            "isinstance(reply, MOVING)\n",
            "isinstance(reply, MOVING) and type(reply) is not MovedError\n",
        ),
    ),
    "slots-asked-without-asking": Mutation(
        "moving slots",
        "after ASK, a command is sent without ASKING",
        python,
        (ServerRequest, "_packed", "(_ASKING + data, n + 1)", "(data, n)"),
    ),
    "sentinels-replaced-master-is-kept": Mutation(
        "sentinels",
        "a connection to a master that the Sentinels have replaced is used again",
        python,
        (_Common, "release_nowait", "if master is not None and", "if False and"),
    ),
    "sentinels-changing-master-is-named": Mutation(
        "newcomers to Sentinels",
        "a master that is being replaced is used because other Sentinels still name it",
        python,
        (sentinels._Manager, "_ask", "and view.address not in left", ""),
    ),
    "sentinels-outdated-ones-count": Mutation(
        "newcomers to Sentinels",
        "Sentinels that do not know the last failover count too",
        python,
        (sentinels._Manager, "_ask", "view.epoch == latest", "True"),
    ),
    "sentinels-replica-is-kept": Mutation(
        "sentinels",
        "a connection whose server has become a replica is used again",
        python,
        (ReplyParser, "_error", "self.unusable or refuses_to_serve(error)", "False"),
    ),
    "sentinels-executed-twice": Mutation(
        "sentinels",
        "a command that may have been executed is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
    "slots-executed-twice": Mutation(
        "moving slots",
        "a command that may have been executed is sent again",
        python,
        (dispatcher, "may_repeat", "request.idempotent", "True"),
    ),
}
