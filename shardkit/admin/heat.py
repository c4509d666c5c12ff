"""What the processes of a fleet use most, as they report it when kits are opened with ``heat=``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import InvalidResponse, ResponseError

from shardkit.kit.heat import COVERED, KINDS, SLOTS, slot_key
from shardkit.network.survey import CONFIG_KEYS
from shardkit.operations.arguments import check_integer

_NOW = 5  # minutes
_DAY = 24  # hours
_LOOKED_AT = 1000  # keys of a database, of a server with LFU
_PAGE = 100  # of one exchange
_LISTED = 20  # keys of a server


@dataclass(frozen=True)
class HotName:
    """A key, tag, shard, component, structure or decorated function that is used much.

    Attributes:
        component: its component; empty for a function.
        name: the name; of a shard, as ``users:1``.
        now: commands (of structures and functions, calls) a second in the last five minutes.
        day: the same in the last 24 hours.
        share: its part of all commands (calls) in the last five minutes.
        day_share: the same in the last 24 hours.
    """

    component: str
    name: str
    now: float
    day: float
    share: float
    day_share: float


@dataclass(frozen=True)
class Heat:
    """What is hot.

    Attributes:
        kinds: the hottest names now, then the others of the day, by kind: ``key``, ``tag``,
            ``shard``, ``component``, ``structure`` and ``function``.
        seconds: for how long of the last five minutes there are reports; 0 if there are none.
        day_seconds: the same for the last 24 hours.
    """

    kinds: Mapping[str, tuple[HotName, ...]]
    seconds: float
    day_seconds: float


def read_heat(config: redis.Redis, limit: int = 100) -> Heat:
    """Return what is hot, of all processes together: at most ``limit`` names of each kind.

    Cost: two exchanges; the server reads 200 names of each kind in each slot.
    """
    check_integer("read_heat", "limit", limit, 1, 2**31)
    at, micros = config.time()
    now = at + micros / 1e6
    sums: dict[tuple[str, str], Counter[bytes]] = {}
    covered = {}
    for unit, many in (("minute", _NOW), ("hour", _DAY)):
        size = SLOTS[unit][0]
        slots = range(int(now // size) - many + 1, int(now // size) + 1)
        with config.pipeline(transaction=False) as pipe:
            for kind in KINDS:
                for slot in slots:
                    pipe.zrevrange(slot_key(unit, slot, kind), 0, 2 * limit - 1, withscores=True)
            for slot in slots:
                pipe.hmget(slot_key(unit, slot, COVERED), "from", "until")
            replies = iter(pipe.execute())
        for kind in KINDS:
            total = sums[unit, kind] = Counter()
            for _ in slots:
                total.update(dict(next(replies)))
        try:
            spans = [(float(a), float(b)) for a, b in replies if a is not None and b is not None]
        except ValueError as error:
            raise InvalidResponse(f"{COVERED} of heat cannot be used: {error}") from None
        covered[unit] = max(1.0, sum(until - since for since, until in spans)) if spans else 0.0
    kinds = {kind: _hottest(kind, sums, covered, limit) for kind in KINDS}
    return Heat(kinds, covered["minute"], covered["hour"])


def _hottest(
    kind: str,
    sums: Mapping[tuple[str, str], Counter[bytes]],
    covered: Mapping[str, float],
    top: int,
) -> tuple[HotName, ...]:
    whole = "component" if kind in ("key", "tag", "shard", "component") else kind
    minutes, hours = sums["minute", kind], sums["hour", kind]
    hottest = []
    names = [name for name, _ in minutes.most_common(top)]
    names += [name for name, _ in hours.most_common(top) if name not in minutes]
    for name in names[:top]:
        text = name.decode(errors="backslashreplace")
        component, _, rest = text.partition(" ")
        if kind == "shard":
            head, _, last = text.rpartition(":")
            component, rest = head if head and last.isdigit() else text, text
        elif kind == "function":
            component, rest = "", text
        hottest.append(
            HotName(
                component,
                rest or text,
                minutes[name] / (covered["minute"] or 1.0),
                hours[name] / (covered["hour"] or 1.0),
                minutes[name] / max(1.0, sum(sums["minute", whole].values())),
                hours[name] / max(1.0, sum(sums["hour", whole].values())),
            )
        )
    return tuple(hottest)


@dataclass(frozen=True)
class ObservedKey:
    """A hot key that a server reports itself.

    ``by`` is ``LFU``, its logarithmic counter of uses, or of HOTKEYS ``cpu``, microseconds, or
    ``net``, bytes. ``database`` is None if the server does not say.
    """

    database: int | None
    key: str
    by: str
    amount: int


def hot_keys_of(client: Any, databases: Sequence[int] = (0,)) -> list[ObservedKey]:
    """Return hot keys as a server reports them, by HOTKEYS and, with an LFU policy, OBJECT FREQ.

    HOTKEYS (Redis 8.6) has something if an operator has started it. Of a server with LFU, a sample
    of 1,000 keys of each database is looked at. Cost: two exchanges; with LFU 20 more for each
    database.
    """
    keys = []
    if not hasattr(client, "connection_pool"):  # a cluster
        return []
    with suppress(ResponseError):  # not of this server, or not for this user
        keys = list(_tracked(client.execute_command("HOTKEYS", "GET")))
    if "lfu" in str(client.info("memory").get("maxmemory_policy")):
        for database in databases:
            keys += _frequent(client, database)
    return keys


def _tracked(reply: Any) -> Iterator[ObservedKey]:
    """Yield the keys of a reply of HOTKEYS GET: pairs of fields and values, in a list or a dict."""
    while isinstance(reply, list) and len(reply) == 1:
        [reply] = reply
    fields = reply if isinstance(reply, dict) else _pairs(reply or [])
    for name, by in (("by-cpu-time-us", "cpu"), ("by-net-bytes", "net")):
        keys = fields.get(name.encode(), fields.get(name)) or []
        for key, amount in (keys if isinstance(keys, dict) else _pairs(keys)).items():
            text = key if isinstance(key, str) else key.decode(errors="backslashreplace")
            yield ObservedKey(None, text, by, int(amount))


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=False))


def _frequent(client: Any, database: int) -> list[ObservedKey]:
    frequent: list[ObservedKey] = []
    cursor, looked_at = 0, 0
    while looked_at < _LOOKED_AT:
        with client.pipeline(transaction=False) as pipe:
            pipe.select(database).scan(cursor, count=_PAGE)
            _, (cursor, keys) = pipe.execute()
        with client.pipeline(transaction=False) as pipe:
            pipe.select(database)
            for key in keys:
                pipe.object("FREQ", key)
            _, *counts = pipe.execute(raise_on_error=False)
        looked_at += len(keys)
        frequent += [
            ObservedKey(database, key.decode(errors="backslashreplace"), "LFU", int(count))
            for key, count in zip(keys, counts, strict=True)
            if isinstance(count, int) and not key.startswith(CONFIG_KEYS)
        ]
        if not cursor:
            break
    return sorted(frequent, key=lambda observed: -observed.amount)[:_LISTED]
