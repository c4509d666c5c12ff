"""How one command is split over shards, and how the shards' replies are merged into one.

`tools/command_docs.py` writes these tables into `docs/commands.md`.
`SPLIT` has the commands whose keys may live on several shards, `OF_ALL` those that have no key and
are sent to all shards, `NOT_MERGED` why all others are refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from redis.utils import str_if_bytes

from shardkit.errors import RoutingError
from shardkit.operations.commands import Reply
from shardkit.routing.command_keys import command_name
from shardkit.routing.keys import key_bytes

Args: TypeAlias = Sequence[Any]
Indexes: TypeAlias = Sequence[Sequence[int]]


class Split(NamedTuple):
    """A way to split a command by its keys.

    Attributes:
        text: what the caller gets.
        merged: returns one reply for those to all shares, given each share's indexes of keys.
        width: how many arguments each key has, itself included.
        tail: how many arguments follow the last key's.
    """

    text: str
    merged: Callable[[Args, Indexes, Sequence[Reply]], Reply]
    width: int = 1
    tail: int = 0

    def share(self, args: Args, positions: Sequence[int], mine: Sequence[int]) -> tuple[Any, ...]:
        """Return the command for those keys alone whose indexes are ``mine``."""
        own = (args[positions[n] + w] for n in mine for w in range(self.width))
        return (*args[: positions[0]], *own, *args[len(args) - self.tail :])


class SplitStreams(Split):
    """The way to split a command that reads streams."""

    def share(self, args: Args, positions: Sequence[int], mine: Sequence[int]) -> tuple[Any, ...]:
        """Return the command for those streams, each with its id."""
        keys, ids = [positions[n] for n in mine], [positions[n] + len(positions) for n in mine]
        return (*args[: positions[0]], *(args[n] for n in (*keys, *ids)))


def _in_order(args: Args, keys: Indexes, replies: Sequence[Reply]) -> Reply:
    pairs = zip(chain(*keys), chain(*replies), strict=True)
    return [value for _, value in sorted(pairs, key=itemgetter(0))]


def _of_streams(args: Args, keys: Indexes, replies: Sequence[Reply]) -> Reply:
    full = [reply for reply in replies if reply]
    if not full:
        return replies[0]
    count = sum(map(len, keys))
    names = [key_bytes(key) for key in args[-2 * count : -count]]
    ordered: list[tuple[int, Any]] = []
    for mine, reply in zip(keys, replies, strict=True):
        left = list(mine)  # a stream that is given twice may be answered twice
        for pair in reply.items() if isinstance(reply, dict) else reply or ():
            n = left.pop([names[n] for n in left].index(key_bytes(pair[0])))
            ordered.append((n, pair))
    pairs = [pair for _, pair in sorted(ordered, key=itemgetter(0))]
    return dict(pairs) if isinstance(full[0], dict) else pairs


_IN_ORDER = Split("a value for each key, in the order of the keys", _in_order)
_COUNT = Split(
    "the sum; a key given twice to `EXISTS` counts twice, as on one server",
    lambda args, keys, replies: sum(replies),
)
_STREAMS = SplitStreams(
    "the entries of each stream, in the order of the keys; not with `BLOCK` or `MAXCOUNT`",
    _of_streams,
)

SPLIT: Mapping[str, Split] = {
    "MGET": _IN_ORDER,
    "JSON.MGET": _IN_ORDER._replace(tail=1),
    "TS.MADD": _IN_ORDER._replace(width=3),
    **dict.fromkeys(("DEL", "UNLINK", "EXISTS", "TOUCH"), _COUNT),
    "MSET": Split("true if all shards succeeded", lambda args, keys, replies: replies[0], width=2),
    **dict.fromkeys(("XREAD", "XREADGROUP"), _STREAMS),
}


def split_of(args: Args, positions: Sequence[int]) -> Split | None:
    """Return how a command with several keys is split; None if it must not be."""
    way = SPLIT.get(command_name(args))
    if way is _STREAMS:  # refuse options that concern all streams together
        words = {str(str_if_bytes(word)).upper() for word in args[1 : positions[0] - 1]}
        return way if words.isdisjoint({"BLOCK", "MAXCOUNT", "MAXSIZE"}) else None
    return way


class OfAll(NamedTuple):
    """A way to merge the replies of all shards.

    Attributes:
        text: what the caller gets.
        merged: returns one reply for those of the servers or databases.
        by: what is asked once: each ``server``, or each ``database`` of the component.
        asks: whether the caller must name the component: ``confirm="<component>"``.
        more: arguments that are added if the caller gives none.
        partial: whether a failed shard has a place in the reply.
        once: whether no shard gets it again after a split, which may refuse that.
    """

    text: str
    merged: Callable[[Sequence[Reply]], Reply]
    by: str = "server"
    asks: bool = False
    more: tuple[str, ...] = ()
    partial: bool = False
    once: bool = False


_PER_SHARD = OfAll(
    "a list: each shard's reply, or its `ShardFailure`; on a cluster each master's",
    list,
    partial=True,
)
_SUM = OfAll("the sum", sum)
_JOINED = OfAll(
    "a list of what all shards have, each once",
    lambda replies: list(dict.fromkeys(chain(*replies))),
)
_ONE = OfAll(
    "the reply of a random shard that has one; none if no shard has",
    lambda replies: random.choice([reply for reply in replies if reply is not None] or [None]),
)
_SAME = OfAll("the reply of one shard, once all have succeeded", itemgetter(0), once=True)
_EVERYWHERE = OfAll(
    "for each argument, whether all shards have it",
    lambda replies: [all(column) for column in zip(*replies, strict=True)],
)

OF_ALL: Mapping[str, OfAll] = {
    **dict.fromkeys(("PING", "INFO", "CONFIG GET", "TIME", "LASTSAVE", "ROLE"), _PER_SHARD),
    **dict.fromkeys(("CLIENT LIST", "FUNCTION LIST", "FUNCTION STATS", "MODULE LIST"), _PER_SHARD),
    **dict.fromkeys(("MEMORY STATS", "SLOWLOG GET", "LATENCY LATEST"), _PER_SHARD),
    "DBSIZE": _SUM._replace(by="database"),
    **dict.fromkeys(("SLOWLOG LEN", "PUBSUB NUMPAT"), _SUM),
    "KEYS": _JOINED._replace(by="database"),
    "PUBSUB CHANNELS": _JOINED,
    "RANDOMKEY": _ONE._replace(by="database"),
    **dict.fromkeys(("CONFIG SET", "CONFIG RESETSTAT", "SLOWLOG RESET"), _SAME),
    **dict.fromkeys(("SCRIPT LOAD", "FUNCTION LOAD", "FUNCTION DELETE"), _SAME),
    "SCRIPT EXISTS": _EVERYWHERE,
    "FLUSHDB": _SAME._replace(by="database", asks=True, more=("ASYNC",)),
}

_ALONE = "router[key] is the client of one shard"
NOT_MERGED: Mapping[str, tuple[str, str]] = {
    "MSETNX MSETEX JSON.MSET": ("it promises all keys or none", "give the keys a common {tag}"),
    "PFCOUNT PFMERGE SDIFF* SINTER* SUNION* ZDIFF* ZINTER* ZUNION* BITOP *.MERGE": (
        "it combines whole keys, which would be carried between servers",
        "kit.set, kit.sorted_set and kit.unique_visitors combine over shards",
    ),
    "BLPOP BRPOP BLMPOP LMPOP BZ* ZMPOP": (
        "the first key that has something answers, and an order of shards is none",
        "kit.queues has queues over shards",
    ),
    "COPY RENAME* *LMOVE* *RPOPLPUSH SMOVE GEO* ZRANGESTORE SORT MIGRATE TS.CREATERULE"
    " TS.DELETERULE": ("it carries a value from key to key", "give the keys a common {tag}"),
    "EVAL* FCALL* LCS STRALGO TS.NR* DEBUG*": (
        "it reads its keys together, on one server",
        "give the keys a common {tag}",
    ),
    "WATCH UNWATCH MULTI EXEC DISCARD": ("no transaction spans shards", _ALONE),
    "SCAN CLUSTERSCAN": ("its cursor belongs to one server", "use router.scan_iter()"),
    "PUBLISH SUBSCRIBE UNSUBSCRIBE PSUBSCRIBE PUNSUBSCRIBE SSUBSCRIBE SUNSUBSCRIBE PUBSUB*": (
        "a channel belongs to one shard",
        "use router.pubsub() and router.publish()",
    ),
    "FT.*": ("an index ranks the documents of one database", "kit.search ranks over shards"),
    "TS.M* TS.QUERY* JSON.DEBUG": ("its answer belongs to one database", _ALONE),
    "ASKING AUTH CLIENT* COMMAND* ECHO HELLO HIMPORT* LOLWUT MONITOR QUIT READONLY READWRITE RESET"
    " SELECT WAIT* *HELP": ("it concerns one connection, or no data", _ALONE),
    "ACL* BACKUP* BGREWRITEAOF BGSAVE CLUSTER* CONFIG* FAILOVER FLUSHALL FUNCTION* HOTKEYS*"
    " LATENCY* MEMORY* MODULE* PFSELFTEST PSYNC REPLCONF REPLICAOF SAVE SCRIPT* SENTINEL SHUTDOWN"
    " SLAVEOF SLOWLOG* SWAPDB SYNC": ("it administers one server, with all its users", _ALONE),
}
"""Why commands are not merged and what to do instead, by patterns; the first that fits counts."""


class ManyServers:
    """What redis-py's methods expect of a client, for those who send to many servers."""

    _event_dispatcher: Any = None

    if not TYPE_CHECKING:  # redis-py's own types

        def register_script(self, script: str | bytes) -> NoReturn:
            """Refuse: raises RoutingError, because one server would have the script."""
            raise RoutingError(
                "register_script() is for one connection, and here commands go to many shards",
                "use shardkit.LuaScript, which clients and pipelines take",
            )

        def get_encoder(self) -> NoReturn:
            """Refuse `acl_setuser`, which alone asks."""
            why, remedy = why_not("ACL SETUSER")
            raise RoutingError(f"ACL SETUSER cannot be sent to many shards: {why}", remedy)


def why_not(name: str) -> tuple[str, str]:
    """Return why a command, its name in capitals, is not merged, and what to do instead."""
    for patterns, reason in NOT_MERGED.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return reason
    return "no merge of its replies is known", _ALONE


def without_key(name: str) -> RoutingError:
    """Return the error for a command without a key, its name in capitals, that must have one."""
    remedy = "use router.all, or a client: for client in router"
    if name not in OF_ALL:
        remedy = why_not(name)[1]
        remedy = _ALONE if "keys" in remedy else remedy
    return RoutingError(f"{name} has no key to route by", remedy)
