"""Finds the placement of data that another program placed, and writes the shard map for them.

::

    sample    some keys of each server (SCAN, with pauses)
    screen    every rule on a few keys; the best are tried on all keys
    vote      by each rule, the keys of a server vote for the number of its shard
    propose   the rule that explains nearly all keys, with the servers in its order

Only reads. A rule is proposed only if chance cannot explain that it fits, and if no other rule that
places some keys elsewhere fits as well.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import redis
from redis.exceptions import ResponseError

from shardkit.admin.changes import working_on
from shardkit.admin.growth.exchange import at_once, at_work
from shardkit.admin.growth.mover import Progress
from shardkit.admin.growth.relocation import Place, place_of
from shardkit.config.component import MAX_SHARDS, Component, check_name
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, counted
from shardkit.network.server_queries import ServerErrors, client_of
from shardkit.network.survey import CONFIG_KEYS, reason
from shardkit.operations.arguments import check_integer
from shardkit.operations.commands import Key
from shardkit.operations.server_errors import meaning
from shardkit.routing.keys import KeyRoutes, hash_tag
from shardkit.routing.others import TWEMPROXY
from shardkit.routing.placement import CRCS, DEFAULT, placement_of_all

SAMPLE = 1000  # keys of each server
MOST = 100_000  # the same, at most
FIT = 0.95  # the part of the keys that a rule must explain
_SHARE = 0.2  # of the time for SCAN; the rest are pauses
_PAGE = 100  # keys of one SCAN
_TIMEOUT = 10.0  # seconds for one answer
_SCREENED = 200  # keys that every rule is tried on
_BEST = 20  # rules that are tried on all keys
_LISTED = 10  # rules of a report
_EXAMPLES = 5  # keys of a server
_CHANCE = 1e-6  # a rule that fits by chance with a higher probability is not proposed
_GROWING = (DEFAULT, "slot", "rendezvous")  # with hash tags, and for any number of shards
_PROBES = tuple(b"probe:%d" % n for n in range(1000))
_BRACED = tuple(b"{%d}a{b}{}{%d}" % (n % 9, n) for n in range(300))
_COUNTED_NAMES = ("{}", "shard{}", "node{}", "server{}", "redis{}")


@dataclass(frozen=True)
class RuleFit:
    """How well a rule explains the sampled keys.

    Attributes:
        placement: the rule, as `Component.placement` has it.
        order: the servers by shard number, as positions in the given order.
        fitting: by server in the given order, how many of its sampled keys agree.
        keys: how many keys agree altogether.
    """

    placement: str
    order: tuple[int, ...]
    fitting: tuple[int, ...]
    keys: int


@dataclass(frozen=True)
class AdoptedServer:
    """One of the servers that hold the data.

    Attributes:
        address: ``host:port/database``.
        shard: its shard number by the proposed rule; None if there is no proposal.
        sampled: how many of its keys were sampled.
        fitting: how many of these are where the best rule says.
        misplaced: some of those that are not.
    """

    address: str
    shard: int | None
    sampled: int
    fitting: int
    misplaced: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Adoption:
    """What `adopt` found.

    Attributes:
        component: the name of the component.
        servers: the servers, in the given order.
        rules: the rules that explain most keys, the best first.
        tried: how many rules were tried.
        placement: the proposed rule; empty if none is, or if one server needs none.
        shard_map: the proposed shard map; None if there is no proposal.
        alike: further rules that explain the keys as well, but place some other keys elsewhere.
        notes: what to know before the map is used.
        problem: why nothing is proposed; empty if something is.
        remedy: what to do about the problem.
        next: the commands that come next.
    """

    component: str
    servers: tuple[AdoptedServer, ...]
    rules: tuple[RuleFit, ...] = ()
    tried: int = 0
    placement: str = ""
    shard_map: ShardMap | None = None
    alike: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""
    next: tuple[str, ...] = ()


def adopt(
    component: str,
    on: Sequence[str] = (),
    *,
    config: redis.Redis | None = None,
    sample: int = SAMPLE,
    names: Sequence[str] = (),
    placements: Sequence[str] = (),
    routes: Sequence[str] = (),
    progress: Progress = lambda what: None,
) -> Adoption:
    """Find the placement of keys that another program has placed. Changes nothing.

    Args:
        component: the name that the component will have.
        on: the servers in the order of the shards, ``host:port/database`` or URLs, which may hold
            references such as ``${PASSWORD}``; without them, the component's own entries.
        config: a client of the config server, to read the entries and to record the work.
        sample: how many keys of each server to sample at most.
        names: the servers' names as the other program has them, shard 0's first.
        placements: the only rules to try, such as ``'jedis {"names":["a","b"]}'``.
        routes: rules that find the routing key in the name of a key; see docs/growth.md.
        progress: is called with a text about what is being done.

    Returns:
        The proposal, or why there is none. Cost: one SCAN for 100 keys of the sample, with pauses,
        servers in parallel; then a second or more to try rules.

    Raises:
        InvalidArgumentError: an argument cannot be used.
        ConfigError: the entries cannot be read, or there is no such placement.
        GrowthError: a server cannot be read, or is a node of a cluster; names it. Or a move, split
            or restore uses one of the databases.
    """
    for wrong in check_name(component, "component"):
        raise InvalidArgumentError(f"component {component!r:.80} {wrong.problem}", wrong.remedy)
    check_integer(component, "sample", sample, 1, MOST)
    entries = _entries(component, on, config)
    count = len(entries)
    if names and len(names) != count:
        raise InvalidArgumentError(
            f"{counted(len(names), 'name')} for {counted(count, 'server')}", "specify one for each"
        )
    route = KeyRoutes(routes)
    numbers = range(count)
    sampled: list[int] = []

    def sample_of(n: int) -> list[bytes]:
        keys = _sample(entries[n], sample)
        sampled.append(len(keys))
        progress(f"sampled {sum(sampled):,} keys of {len(sampled)} of {counted(count, 'server')}")
        return keys

    with working_on(
        config, "adopt", component, [Component(component, shards=tuple(entries))]
    ) as still:
        samples = at_once(sample_of, numbers)
        still()  # or keys may have been moved in between
    if count == 1:
        return Adoption(
            component,
            (AdoptedServer(str(_place_of(entries[0])), None, len(samples[0]), len(samples[0])),),
            shard_map=ShardMap({component: Component(component, entries[0])}),
            notes=("one server needs no placement",),
            next=_next(component, 2),
        )
    keys = [route.of_all(sampled) for sampled in samples]
    rules = list(placements) or list(_rules([_place_of(entry) for entry in entries], names))
    fits = _fits(rules, keys, progress, given=bool(placements))
    best = fits[0]
    total = sum(map(len, samples))
    notes: list[str] = []
    alike: list[str] = []
    problem, remedy = _problem(best, keys, total, len(rules))
    if not problem:
        equal = [fit for fit in fits[1:] if fit.keys == best.keys]
        own = _places(best, (*_PROBES, *_BRACED))
        # Rules that place all keys alike are one.
        others_at = {tuple(_places(fit, (*_PROBES, *_BRACED))): fit for fit in reversed(equal)}
        alike = [fit.placement for at, fit in others_at.items() if list(at) != own][::-1]
        there = _places(best, _PROBES)
        differing = [fit.placement for fit in equal if _places(fit, _PROBES) != there]
        if differing:
            listed = ", ".join(map(shown, [best.placement, *differing][:_LISTED]))
            problem = f"too few keys to tell rules apart: {total:,} keys agree with {listed}"
            remedy = "specify a larger sample, or the rule that your program uses (--placement)"
        elif alike:
            others = ", ".join(map(shown, alike[:_LISTED]))
            notes.append(
                f"the sample does not tell {shown(best.placement)} from {others}: "
                "they differ for keys with braces. Check which your program uses"
            )
    servers = _servers(entries, samples, keys, best, proposed=not problem)
    adoption = Adoption(
        component, tuple(servers), tuple(fits[:_LISTED]), len(rules), alike=tuple(alike)
    )
    if problem:
        return replace(adoption, problem=problem, remedy=remedy)
    empty = [server.address for server in servers if not server.sampled]
    if empty:
        notes.append(f"no keys are on {', '.join(empty)}: nothing confirms their shard numbers")
    if best.order != tuple(numbers):
        notes.append("the servers were given in another order: the map has that of the rule")
    if total > best.keys:
        notes.append(
            f"{total - best.keys:,} of {counted(total, 'sampled key')} are not where the rule "
            "says: shardkit would look for them on other shards. Move or delete them, or find "
            "their routing keys by rules (--route)"
        )
    adopted = Component(
        component,
        shards=tuple(entries[n] for n in best.order),
        placement=best.placement,
        routes=tuple(routes),
    )
    return replace(
        adoption,
        placement=best.placement,
        shard_map=ShardMap({component: adopted}),
        notes=tuple(notes),
        next=_next(component, count, best.placement),
    )


def _next(component: str, servers: int, placement: str = DEFAULT) -> tuple[str, ...]:
    # Servers have 16 databases as a rule. Rings have a name for each shard, and not all rules have
    # hash tags.
    rule = "" if placement in _GROWING else f" --placement {DEFAULT}"
    return (
        "shardkit config push MAP",
        f"shardkit split {component} --shards {4 * servers}{rule} --dry-run",
    )


# Arguments


def _entries(component: str, on: Sequence[str], config: Any) -> list[Entry]:
    if on:
        entries = [entry_at(text, f"server {n}") for n, text in enumerate(on)]
    elif config is None:
        raise InvalidArgumentError(f"{component}: no servers", "specify them: on=, --on")
    else:
        known = read_components(config).get(component)
        if known is None:
            raise InvalidArgumentError(
                f"component {component!r} is not known", "specify its servers: on=, --on"
            )
        entries = list(known.shards) or [entry for _, entry in known.entries()]
    if len(entries) > MAX_SHARDS:
        raise InvalidArgumentError(
            f"{counted(len(entries), 'server')} cannot be shards", f"specify at most {MAX_SHARDS}"
        )
    places = Counter(map(_place_of, entries))
    if twice := [str(place) for place, times in places.items() if times > 1]:
        raise InvalidArgumentError(f"{twice[0]} appears twice", "specify each database once")
    return entries


def entry_at(text: str, where: str) -> Entry:
    """Return the entry of a server that a user names: ``host:port/database``, or a URL."""
    if "://" in text:
        return Entry({"url": text}, where)
    place = Place.parse(text if "/" in text else f"{text}/0")
    return Entry(
        {"host": place.server.host, "port": place.server.port, "db": place.database}, where
    )


def _place_of(entry: Entry) -> Place:
    if (place := place_of(entry)) is None:
        raise ConfigError(
            f"{entry.address} does not name its server and database",
            "specify HOST:PORT/DB, or a URL whose host, port and database are written out",
        )
    return place


# Keys


def _sample(entry: Entry, size: int) -> list[bytes]:
    """Return at most ``size`` keys of a database that are not shardkit's configuration."""
    where = str(_place_of(entry))
    keys: dict[bytes, None] = {}  # SCAN may return a key twice
    try:
        with client_of(entry.resolved(where), _TIMEOUT) as client:
            with suppress(ResponseError):  # Redis before 6 has no HELLO
                if b"cluster" in client.execute_command("HELLO"):
                    raise GrowthError(
                        f"{where} is a node of a cluster, which places its keys itself",
                        "write one entry with cluster: true",
                    )
            cursor, pages = 0, 0
            while len(keys) < size and pages < MOST // _PAGE:
                with at_work(_SHARE):
                    cursor, page = client.scan(cursor, count=_PAGE)
                keys.update((key, None) for key in page if not key.startswith(CONFIG_KEYS))
                pages += 1
                if not int(cursor):
                    break
    except ServerErrors as error:
        known = meaning(error)
        remedy = known.remedy if known else "check its address, and that it runs"
        raise GrowthError(f"{where} cannot be read: {reason(error)}", remedy) from error
    return list(keys)[:size]


# Rules


def _rules(places: Sequence[Place], names: Sequence[str]) -> Iterator[str]:
    """Yield the rules to try, those that are probably meant first."""
    count = len(places)
    yield from ("crc32", "slot", "whole:crc32", "whole:md5", "whole:sha1", "rb", "rendezvous")
    yield from ("redis-in-action", "redis-array", 'rb {"router":"consistent"}')
    yield from (_rule("jedis", hash=hash_, **tag) for hash_ in ("murmur", "md5") for tag in _TAG)
    yield from (f"crc:{name}" for name in sorted(CRCS))
    given = [list(names)] if names else []
    addresses = given or _addressed(places)
    numbered = [
        [form.format(n + start) for n in range(count)]
        for form in _COUNTED_NAMES
        for start in (0, 1)
    ]
    for spelled in addresses:
        for hash_ in TWEMPROXY:
            for distribution in ("ketama", "modula"):
                for pair in ("", "{}"):
                    options = {"hash": hash_, "distribution": distribution}
                    if pair:
                        options["hash_tag"] = pair
                    yield _rule("twemproxy", names=spelled, **options)
        yield from (_rule(name, names=spelled) for name in ("libmemcached", "django-redis"))
        yield from (_rule("predis", names=spelled, distributor=d) for d in ("hashring", "ketama"))
        yield _rule("redis-rb", names=spelled)
        for tag in _TAG:
            yield _rule("envoy", names=spelled, **tag)
            yield _rule("envoy", names=spelled, hash="murmur_hash_2", **tag)
            yield _rule("envoy", names=spelled, lb="maglev", **tag)
    for spelled in [*addresses, *([] if given else numbered)]:
        yield _rule("go-redis", names=spelled)
        yield _rule("uhashring", names=spelled)
        yield from (_rule("redis-shard", names=spelled, hash=h) for h in ("crc32", "md5", "sha1"))
        for hash_ in ("murmur", "md5"):
            yield from (_rule("jedis", names=spelled, hash=hash_, **tag) for tag in _TAG)


_TAG: tuple[Mapping[str, bool], ...] = ({}, {"hash_tag": True})


def _rule(name: str, **options: Any) -> str:
    """Return the text of a rule with options, as a shard map has it."""
    return f"{name} {json.dumps(options, sort_keys=True, separators=(',', ':'))}"


def _addressed(places: Sequence[Place]) -> list[list[str]]:
    """Return the names that programs give to servers by default: parts of their addresses."""
    forms = (
        [str(place.server) for place in places],
        [place.server.host for place in places],
        [str(place) for place in places],
        [f"redis://{place}" for place in places],
        [f"redis://{place.server}" for place in places],
    )
    return [form for form in forms if len(set(form)) == len(places)]


def shown(rule: str) -> str:
    """Return a rule for people: of more than three names only the first and the last."""
    name, _, options = rule.partition(" ")
    if not options:
        return rule
    described = json.loads(options)
    names = described.get("names", ())
    if len(names) > 3:
        described["names"] = [names[0], "…", names[-1]]
    return f"{name} {json.dumps(described, separators=(',', ':'), ensure_ascii=False)}"


def _fits(
    rules: Sequence[str], keys: Sequence[Sequence[Key]], progress: Progress, *, given: bool
) -> list[RuleFit]:
    """Return how well rules fit, the best first; all are tried on a few keys, the best on all."""
    screening = [sample[: max(4, _SCREENED // len(keys))] for sample in keys]
    screened: list[RuleFit] = []
    for n, rule in enumerate(rules, 1):
        if n % 10 == 0:
            progress(f"trying rule {n} of {len(rules)}")
        try:
            screened.append(_fit(rule, screening))
        except ConfigError:  # a library is missing, or there are too many servers for it
            if given:
                raise
    screened.sort(key=lambda fit: -fit.keys)
    best = [fit for fit in screened if fit.keys == screened[0].keys]
    chosen = screened[: max(_BEST, len(best))]
    progress(f"trying {counted(len(chosen), 'rule')} on all keys")
    fits = [_fit(fit.placement, keys) for fit in chosen]
    return sorted(fits, key=lambda fit: (-fit.keys, fit.order != tuple(range(len(keys)))))


def _fit(rule: str, keys: Sequence[Sequence[Key]]) -> RuleFit:
    count = len(keys)
    place = placement_of_all(rule, count)
    votes = [Counter(place(sample)) for sample in keys]
    orders = [tuple(range(count)), _voted(votes)]
    # The given order counts unless another one explains more keys.
    order = max(orders, key=lambda order: sum(votes[n][s] for s, n in enumerate(order)))
    fitting = [0] * count
    for shard, n in enumerate(order):
        fitting[n] = votes[n][shard]
    return RuleFit(rule, order, tuple(fitting), sum(fitting))


def _voted(votes: Sequence[Counter[int]]) -> tuple[int, ...]:
    """Return the order in which each server has the number that most of its keys vote for."""
    count = len(votes)
    ballots = sorted(
        ((votes[n][shard], n, shard) for n in range(count) for shard in votes[n]),
        key=lambda vote: -vote[0],
    )
    order: dict[int, int] = {}
    placed: set[int] = set()
    for _, n, shard in ballots:
        if shard not in order and n not in placed:
            order[shard] = n
            placed.add(n)
    left = iter([n for n in range(count) if n not in placed])
    return tuple(order[shard] if shard in order else next(left) for shard in range(count))


def _problem(
    best: RuleFit, keys: Sequence[Sequence[Key]], total: int, tried: int
) -> tuple[str, str]:
    """Return why the best rule cannot be proposed, and what to do; empty texts if it can."""
    if not total:
        return "the servers hold no keys", "describe the component in a shard map by hand"
    # Keys with one tag are one witness.
    witnesses = len({hash_tag(bytes(key)) for some in keys for key in some})  # type: ignore[arg-type]
    wrong = witnesses * (total - best.keys) // total
    count = len(keys)
    chance = (
        math.log(tried)
        + math.lgamma(count + 1)
        + math.log(math.comb(witnesses, wrong))
        - (witnesses - wrong) * math.log(count)
    )
    is_chance = chance > math.log(_CHANCE)
    if best.keys < FIT * total and is_chance:
        return (
            f"no rule fits: {shown(best.placement)} explains most keys, {best.keys:,} of {total:,}",
            "specify the names that your program gives to its servers (--name), its rule with "
            "all options (--placement), or rules that find routing keys in names (--route)",
        )
    if best.keys < FIT * total:
        return (
            f"{shown(best.placement)} explains {best.keys:,} of {total:,} keys, which is no "
            "chance, but another rule has placed the others",
            "move or delete keys of other programs, find routing keys in names by rules "
            "(--route), or specify the rule with all options, such as weights (--placement)",
        )
    if is_chance:
        return (
            f"too few keys to tell rules apart: {total:,} keys with {witnesses:,} different names "
            f"or tags agree with {shown(best.placement)}, perhaps by chance",
            "specify a larger sample, or the rule that your program uses (--placement)",
        )
    return "", ""


def _places(fit: RuleFit, keys: Sequence[bytes]) -> list[int]:
    return [fit.order[n] for n in placement_of_all(fit.placement, len(fit.order))(keys)]


def _servers(
    entries: Sequence[Entry],
    samples: Sequence[Sequence[bytes]],
    keys: Sequence[Sequence[Key]],
    best: RuleFit,
    *,
    proposed: bool,
) -> list[AdoptedServer]:
    place = placement_of_all(best.placement, len(entries))
    servers = []
    for n, entry in enumerate(entries):
        shard = best.order.index(n)
        wrong = [k for k, at in zip(samples[n], place(keys[n]), strict=True) if at != shard]
        number = shard if proposed else None
        sizes = len(samples[n]), best.fitting[n]
        servers.append(
            AdoptedServer(str(_place_of(entry)), number, *sizes, tuple(wrong[:_EXAMPLES]))
        )
    return servers
