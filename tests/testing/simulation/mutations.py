"""Mistakes put into shardkit, each of which the simulator has to find.

A mutation takes a check out, turns an order of writes round, or takes a fix back. The page
mistakes.md says what each mistake is, which protocol finds it, and how soon.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import shardkit
from shardkit.testing.fakes import lua as fake_lua

Change: TypeAlias = tuple[str, str] | tuple[str, str, str]

_PACKAGE: Final = Path(shardkit.__path__[0])
_PAGE: Final = Path(__file__).with_name("mistakes.md")

# A text of scripts, and the one instead of it; or the name of a function or method, a text of
# it, and the one instead of it.
CHANGES: Final[dict[str, Change | list[Change]]] = {
    "hash-split-leaves-copies": (
        "slices(members, function(...) redis.call(REMOVE[kind], source, ...) end)",
        "",
    ),
    "hash-stale-writer": ("if state.parts ~= known then", "if false then"),
    "streams-split-unseen": (
        "read_parts_together",
        "layouts[n]._update_parts(group, next(replies)) == number",
        "layouts[n]._update_parts(group, next(replies))",
    ),
    "streams-new-parts-left-out": (
        "read_parts_together",
        "parts_after_splits(parts[0].number, number, {part.part for part in parts})",
        "[part.part for part in parts]",
    ),
    "decorated-one-shard": (
        "sharded_connection",
        "return client(site, args[position])",
        'return client(site, "a")',
    ),
    "decorated-first-argument": (
        "sharded_connection",
        "_key_of(function, key)",
        "_key_of(function, None)",
    ),
    "lifetime-only-parameters-expire": (
        "ExpirableStructure._let_all_expire",
        "yield from self._send_to_all(generation, *expiry)",
        "pass",
    ),
    "lifetime-expiry-left-half-done": ("open_all", "yield from meta.complete_expiry()", "pass"),
    "lifetime-settled-with-an-old-end": (
        "and now ~= tonumber(ARGV[1]) and now ~= tonumber(ARGV[2]) then",
        "and false then",
    ),
    "lifetime-parts-without-parameters-stay": (
        "if redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', due)) == 0",
        "if true",
    ),
    "lives-have-one-end": (
        "generation = KEYS[2] and tonumber(",
        "generation = false and tonumber(",
    ),
    "lives-end-with-a-slow-deletion": (
        "ExpirableStructure._remove_marked",
        'removal("end"',
        'removal("remove"',
    ),
    "planned-without-a-second-mark": (
        "_Replan._copy",
        "ends = yield from self._mark_all(parts, frozen=True)",
        "ends = yield from self._changed(parts)",
    ),
    "planned-under-readers": ("_Replan.run", "yield Pause(2 * SHORT_LEASE)", "pass"),
    "planned-under-writers": ("Metadata.wait_for_plan", "if self.is_held:", "if False:"),
    "planned-with-one-mark": ("_Replan._mark", "(31 if frozen else 15)", "15"),
    "planned-and-settled-there": ("settle", "if meta.plan != plan:", "if False:"),
    "list-pop-leaves-an-empty-part": ("if list and held > wanted", "if list and held >= wanted"),
    "list-pop-amid-a-change": ("if ends[5] ~= ARGV[2] or ends[6]", "if ends[6]"),
    "list-change-forgets-where-it-was": (
        "if task.removed == 0 then task.low, task.high = at, at end",
        "task.low = at",
    ),
    "sent-twice": ("may_repeat", "request.idempotent", "True"),
    "waiting-not-put-back": ("completed", "yield from undo(", "_ = ("),
    "visitors-counted-twice": ("added = added + new", "added = added + 1"),
    "visitors-two-plans": ("DayPlanner._find", '"NX"', '"XX"'),
    "queues-due-in-two-places": (
        "    redis.call('ZREM', q.taken, id)\n    if taken_before",
        "    if taken_before",
    ),
    "taken-is-lost": ("redis.call('ZADD', q.taken, stamp(now + ARGV[2]), id)", ""),
    "pipelines-refused-in-the-middle": (
        "Dispatcher._settle",
        "outcome.stalled.add(position)\n",
        "outcome.stalled.add(position)\n"
        "            refusing = partial(attempt.refusal, request, reply)\n"
        "            outcome.failures |= dict.fromkeys(attempt.positions, refusing)\n",
    ),
    "pipelines-all-fail": (
        "Dispatcher._settle",
        "raise lost\n",
        "raise lost\n"
        "    if lost is not None:\n"
        "        out.failed = True\n"
        "        out[:] = [attempt.failure(each, lost, True) for each in attempt.batch]\n"
        "        return\n",
    ),
    "geo-same-generation": (
        "number = math.max(last + 1, math.floor((now - 1577836800) * 1000 + time[2] / 1000))",
        "number = 7",
    ),
    "geo-no-grace": (
        "IpToCity.import_from",
        "self._store.expire(old, grace)",
        "self._store.remove(old)",
    ),
    "search-old-words-stay": (
        "  for _, word in ipairs(of) do change(word, number, false) end\n",
        "",
    ),
    "search-removed-is-counted": ("  count_live(chunk, -1)\n", ""),
    "social-one-half": ("  redis.call('ZADD', KEYS[4], score, ARGV[2])\n", ""),
    "social-no-note": (
        "redis.call('ZADD', KEYS[2], score, ARGV[4])\nreturn {1, follows",
        "return {1, follows",
    ),
    "social-block-ignored": (
        "redis.call('ZSCORE', KEYS[5], ARGV[3]) or redis.call('ZSCORE', KEYS[6], ARGV[2])",
        "false",
    ),
    "configuration-half-a-push": (
        "_push",
        "    pipe.multi()\n",
        "    for key, text in texts.items():\n        pipe.set(key, text)\n    pipe.multi()\n",
    ),
    "configuration-back-in-time": [
        ("ConfigServer.read", "0 < component.epoch < known.epoch", "False"),
        ("ConfigServer._checked", "if epoch < newest:", "if False:"),
    ],
    "locks-two-holders": (
        "local held = redis.call('ZCOUNT', KEYS[2], live, '+inf')",
        "local held = 0",
    ),
    "stale-token": ("if seen and tonumber(seen) > tonumber(token) then", "if false then"),
    "locks-counted-from-the-answer": (
        "Holdable._granted",
        "hold.extended(sent,",
        "hold.extended(self.monotonic(),",
    ),
    "semaphores-one-too-many": (
        "held + math.max(0, lost) >= limit",
        "held + math.max(0, lost) > limit",
    ),
    "semaphores-ends-early": (
        "'ZADD', KEYS[2], digits(now + e.ttl), id",
        "'ZADD', KEYS[2], digits(now + 9), id",
    ),
    "rwlock-read-while-written": ("if only and only.mode == 'x' then return NONE end", ""),
    "rwlock-write-while-read": ("== 0 and fits(mode, room(limit, now)) then", "== 0 then"),
    "elections-term-of-the-clock": ("return math.max(latest + 1, now)", "return now"),
    "quorum-half": ("QuorumLock.__init__", "len(components) // 2 + 1", "len(components) // 2"),
    "quorum-shared": ("Holdable.new_attempt", "self._mode, lasts, self.limit", '"s", lasts, 0'),
    "multi-lock-keeps-some": (
        "MultiLock.acquire",
        "yield from _release_all(self._locks, holds)\n        return None",
        "return None",
    ),
    "multi-lock-releases-some": (
        "_release_all",
        "for hold in holds if",
        "for hold in holds[:1] if",
    ),
    "cached-put-without-lease": (
        "if what ~= 'remove' and stored[2] ~= ARGV[1] then return 0 end",
        "",
    ),
    "cached-tags-are-not-compared": ("CachedValues.take", "if reply[2] == versions:", "if True:"),
    "cached-plain-read-takes-any-tags": (
        "CachedValues._hit",
        'tags != b" ".join(versions)',
        "False",
    ),
    "cached-old-value-while-computed": ("(leased and now < fresh + stale)", "leased"),
    "cached-failure-keeps-an-old-value": (
        "redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', till))",
        "",
    ),
    "near-copy-outlives-its-age": (
        "NearCopies.note",
        "note.latest = note.since + self.max_age",
        "pass",
    ),
    "near-age-begins-with-the-answer": (
        "NearCopies.keep",
        "min(note.since + fresh, note.latest)",
        "time.monotonic() + self.max_age",
    ),
    "near-copy-of-a-written-key-stays": (
        "NearLink._steps",
        "written.forget(keys_in(request))",
        "pass",
    ),
    "near-copy-of-before-a-write-is-kept": (
        "NearCopies.keep",
        "if self.copies.get(note.name) is not note:",
        "if self.copies.setdefault(note.name, note) is not note:",
    ),
    "cached-value-keeps-its-lease": (
        "elseif what == 'remove' or not stored[3] then\n  redis.call('DEL', KEYS[1])",
        "elseif what == 'remove' then\n  redis.call('HDEL', KEYS[1], 'value')",
    ),
    "latch-counted-again": ("CountdownLatch._call", "idempotent=idempotent", "idempotent=True"),
    "latch-open-too-early": ("CountdownLatch.wait", "reply[0] == 0", "reply[0] <= 1"),
    "barrier-withdrawn-counts": ("  redis.call('HDEL', KEYS[2], ARGV[2])\nelse", "else"),
    "barrier-arrives-twice": ("Barrier._call", "in_round > 0 and ", ""),
    "withdrawal-again": ("Barrier._call", ' and what != "withdraw"', ""),
    "gcra-one-more": (
        "local wait = after - each * burst - now",
        "local wait = after - each * burst - now - each",
    ),
    "window-of-half": (
        "string.format('%.0f', now - window)",
        "string.format('%.0f', now - window / 2)",
    ),
    "transfers-undone-after-commit": (
        "  and string.sub(record, 1, 8) == 'pending ' and is_old",
        "  and is_old",
    ),
    "transfers-resolved-twice": ("redis.call('HDEL', KEYS[2], ARGV[1])", ""),
    "transfers-prepared-twice": (
        "if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return {1} end",
        "",
    ),
    "markets-any-price": (
        "Market.purchase",
        '{"price": str(price)}, {"price": None}',
        '{}, {"price": None}',
    ),
    "markets-not-given-back": (
        "if is_debit(pair[2]) then add(account, pair[1], negated(pair[2])) end",
        "",
    ),
    "counted-twice": ("if is_repeated(KEYS[1], ARGV[2]) then return -1 end", ""),
    "counters-cleaned-too-early": ("if due <= now then", "if precision then"),
    "counters-lost-request": ("Outbox._send", "self._warn(reply)\n", "self._drop(backlog)\n"),
    "logs-rotated-into": (
        "if redis.call('EXISTS', current) == 1 then redis.call('RENAME', current, last) end",
        "",
    ),
    "workers-done-first": (
        "Worker._handle",
        "        self._running[slot] = task\n    started",
        "        self._running[slot] = task\n    self.tasks._acknowledge(task)\n    started",
    ),
    "deadlines-not-kept": ("Deadline.shorten", "left = max(0.0, self.left())", "left = 10.0"),
    "deadlines-breaker-stays-open": (
        "Breaker._end_round",
        "self.opened, False, 0",
        "self.opened, True, 0",
    ),
    "together-anothers-replies": ("_LockStep._answer", "start += len(step)", "start += 0"),
    "moving-sent-twice": (
        "_may_go_on",
        "return policy_of(client).waits_after(error) or",
        "return True or",
    ),
    "moving-stays": ("Clients.changed", "_leave(displaced)", "pass"),
    "closing-leaves-connections": (
        "_Common._disconnect",
        "if inuse_connections else ()",
        "if False else ()",
    ),
    "closing-still-works": (
        "_Common.close_for_good",
        "self.closed, self.draining = why, True",
        "pass",
    ),
    "closing-closes-sockets-in-use": (
        "Closable.shut_down",
        "with self._closing:",
        "super(Closable, self).disconnect()\n    if 0:",
    ),
    "closing-answers-from-the-cache": (
        "_DirectoryCache._read",
        "client = self._client()  # first: a closed kit has none",
        "client: Any = None if self._fresh(key, wait) else self._client()",
    ),
    "retired-under-calls": (
        "Connections.end",
        "gone = [idle for idle in self.idle",
        "gone = [*self.lent] + [idle for idle in self.idle",
    ),
    "retired-are-kept": (
        "Clients._access",
        "scope.built.add(_closable(client))",
        "scope.built.add(_closable(client)); vars(scope).setdefault('kept', []).append(client)",
    ),
    "retired-by-the-kind-that-is-asked-for": (
        "Clients._displaced",
        "for raw in (None, False, True)",
        "for raw in (None, False)",
    ),
    "retired-when-somebody-calls": ("Clients._access", "topology.watch()", "pass"),
    "readers-waited-for-for-ever": (
        "Topology._lock_of",
        "self._clock() > cached.since + MAX_WAIT",
        "False",
    ),
    "readers-waited-for-too-long": (
        "Topology._lock_of",
        "cached.since + MAX_WAIT",
        "cached.since + 3 * MAX_WAIT",
    ),
    "maps-without-a-lock": ("MapFile._newest", "with self._lock:", "if True:"),
    "maps-parsed-from-another-reading": (
        "MapFile._load",
        "ShardMap.decode(data,",
        "ShardMap.decode(self._path.read_bytes(),",
    ),
    "maps-stamp-after-reading": (
        "MapFile._newest",
        "broken = self._load()\n",
        "broken = self._load()\n            stamp = self._stamp()\n",
    ),
    "maps-half-written": ("MapFile.read", "known is not None or", "True or"),
    "forks-readers-stay": ("Topology.after_fork", "cached.lock, cached.loop,", "_, cached.loop,"),
    "forks-connections-stay": (
        "Connections.after_fork",
        "self.idle: list[Any] = []",
        "self.idle = getattr(self, 'idle', [])",
    ),
    "loops-that-are-closed-stay": ("Clients._hold", "self._abandon_closed_loops()", "pass"),
    "loops-that-end-stay": ("_until_shutdown", "await alive.aclose()", "pass"),
    "moving-queues-gone-is-overtaken": (
        "if redis.call('HEXISTS', q.tasks, id) == 0 then return -1 end",
        "if redis.call('HEXISTS', q.tasks, id) == 0 then return 0 end",
    ),
    "moving-queues-told-of-a-lease": (
        "BaseWorker._succeeded",
        "is Acknowledged.CLAIM_LOST",
        "is not Acknowledged.YES",
    ),
    "mailboxes-popped": ("if lease > 0 then", "if false then"),
    "mailboxes-not-removed": (
        "    remove(id, message)\n    removed = removed + 1",
        "    removed = removed + 1",
    ),
    "chats-position-goes-back": (
        "if id <= position then return earlier_reply(STATE, ARGV[3]) or 0 end",
        "",
    ),
    "chats-list-forgets": (
        "if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end",
        "",
    ),
    "files-removed-by-the-first-reader": (
        "lowest = math.min(lowest, offset_of(n, reader))",
        "lowest = math.max(lowest < math.huge and lowest or 0, offset_of(n, reader))",
    ),
    "files-beyond-the-limit": ("if held + size > limit then break end", ""),
    "flushes-counted-again": (
        "if added ~= tonumber(ARGV[2]) then return {added, earlier_reply(DONE, ARGV[5]) or 0} end",
        "",
    ),
    "flushes-not-recorded": (
        "redis.call('HSET', DONE, 'format', '1', ARGV[1],",
        "redis.call('HSET', DONE, 'x',",
    ),
    "cached-results-removed": ("== 0 then gone[#gone + 1] = id end", "== 0 then end"),
    "cached-results-skipped": (
        "Searcher.search",
        "hits = hits[request.offset : end]",
        "hits = [h for h in hits if h.id not in answers.removed][request.offset : end]",
    ),
    "two-lists-value-in-both": (
        "pop(list, ARGV[7], 1, ARGV[9] == '1')\nreturn found",
        "return found",
    ),
    "duplicates-queued": (
        "'HEXISTS', q.tasks, id) == 0 or",
        "'HEXISTS', q.tasks, id) >= 0 or",
    ),
    "duplicates-cancelled-stay": (
        "then return 0 end\nend\nforget(q, id)",
        "then return 0 end\nend",
    ),
    "fan-out-of-one-pass": ("FanOut._advance", "if len(rows) == limit:", "if False:"),
    "fan-out-of-what-was-deleted": (
        "FanOut._withdraw",
        "yield from self.timelines.remove(keys, [job.subject])",
        "pass",
    ),
    "fan-out-to-leavers": ("FanOut._clean_up_after_leavers", "if count == len(rows):", "if True:"),
    "rollbacks-recorded-first": (
        "_push",
        "    pipe.multi()\n    pipe.lpush(HISTORY_KEY, record.to_json())\n",
        "    pipe.lpush(HISTORY_KEY, record.to_json())\n    pipe.multi()\n",
    ),
    "rollbacks-one-too-far": ("undo", "if record.epoch <= epoch:", "if record.epoch < epoch:"),
    "slots-moved-are-not-followed": (
        "Dispatcher._settle",
        "isinstance(reply, MOVING)\n",
        "isinstance(reply, MOVING) and type(reply) is not MovedError\n",
    ),
    "slots-asked-without-asking": (
        "Dispatcher._attempts_on_nodes",
        '"asking": asking',
        '"asking": False',
    ),
    "sentinels-replaced-master-is-kept": (
        "ConnectionState.is_replaced",
        "self.master is not None and",
        "False and",
    ),
    "sentinels-changing-master-is-named": ("Sentinels.masters", "and view.address not in left", ""),
    "sentinels-outdated-ones-count": ("Sentinels.masters", "view.epoch == latest", "True"),
    "sentinels-replica-is-kept": (
        "ReplyParser._error",
        "self.unusable or refuses_to_serve(error)",
        "False",
    ),
}


class Mutation(NamedTuple):
    """A mistake.

    Attributes:
        protocol: the name of the protocol that finds it.
        mistake: what is wrong then.
        name: its name in CHANGES.
        schedule: the number of the first schedule that finds it.
    """

    protocol: str
    mistake: str
    name: str
    schedule: int

    @contextmanager
    def made(self) -> Iterator[None]:
        """Put it into shardkit."""
        changes = CHANGES[self.name]
        with ExitStack() as stack:
            for change in changes if isinstance(changes, list) else [changes]:
                stack.enter_context(_lua(*change) if len(change) == 2 else _python(*change))
            yield


MUTATIONS: Final = [
    Mutation(protocol, mistake, name, int(schedule))
    for protocol, mistake, name, schedule in re.findall(
        r"^\| ([\w -]+) \| (.+?) \| ([\w-]+) \| (\d+)", _PAGE.read_text("utf-8"), re.MULTILINE
    )
]


@cache
def _scripts() -> str:
    return "".join(path.read_text() for path in _PACKAGE.rglob("*.lua"))


@contextmanager
def _lua(old: str, new: str) -> Iterator[None]:
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


@cache
def _functions() -> dict[str, list[tuple[str, str]]]:
    """Return the functions and methods of the package, by name: their modules and sources."""
    found = defaultdict(list)
    for path in _PACKAGE.rglob("*.py"):
        module = ".".join(["shardkit", *path.relative_to(_PACKAGE).with_suffix("").parts])
        lines = path.read_text("utf-8").splitlines()
        body = ast.parse("\n".join(lines)).body
        classes = [node for node in body if isinstance(node, ast.ClassDef)]
        for prefix, nodes in [("", body), *((f"{each.name}.", each.body) for each in classes)]:
            for node in nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min(part.lineno for part in (node, *node.decorator_list))
                    source = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
                    found[prefix + node.name].append((module, source + "\n"))
    return found


@contextmanager
def _python(name: str, old: str, new: str) -> Iterator[None]:
    """Change the source of a function or a method."""
    sources = [each for each in _functions()[name] if old in each[1]]
    assert len(sources) == 1, f"{name} does not contain {old!r}"
    [(module_name, source)] = sources
    module = import_module(module_name)
    made: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), vars(module), made)
    *of, name = name.split(".")
    holders = [getattr(module, of[0]) if of else module]
    function = vars(holders[0])[name]
    if not of:  # others imported it by name
        holders += [
            each
            for each in list(sys.modules.values())
            if getattr(each, name, None) is function and each is not module
        ]
    for holder in holders:
        setattr(holder, name, made[name])
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, function)
