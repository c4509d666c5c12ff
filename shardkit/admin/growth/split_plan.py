"""Plans of splits: another number of shards, another placement, from one database to shards.

::

    users:0  a/1 ┐            ┌ users:0  a/3     each key to the shard that its name says
    users:1  b/1 ┴─ copies ──►┼ users:1  b/2
                              ├ users:2  a/4     the new shards are in databases that nothing uses
                              └ users:3  b/3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.databases import database_client, free_databases, pages
from shardkit.admin.growth.journal import KEYS, Move
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.move_plan import Components, MovePlan, noting, plan_copy
from shardkit.admin.growth.relocation import Place, ServerAddress, address_of, entries_on
from shardkit.admin.growth.rule import ByPlacement, like_of, misplaced_error, shard_names
from shardkit.config.component import MAX_SHARDS, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.errors import ConfigError, InvalidArgumentError, counted
from shardkit.routing.placement import DEFAULT, placement_of_all
from shardkit.routing.routes import KeyRoutes

_SAMPLE = 1000  # keys of each shard


def new_split(
    components: Components,
    name: str,
    count: int | None,
    rule: str | None,
    over: Sequence[str],
    routes: Sequence[str] | None = None,
) -> Move:
    """Return the split of a component, whose targets are databases that nothing uses.

    Raises:
        InvalidArgumentError: there is no such component, or nothing would change.
        ConfigError: an entry does not name its server, or there is no such placement.
    """
    component = components.get(name)
    if component is None:
        raise InvalidArgumentError(f"component {name!r} is not known", "see: shardkit status")
    before = component.placement if component.shards else ""
    after = rule or before or DEFAULT
    there = len(component.shards) or 1
    count = there if count is None else count
    if not 1 <= count <= MAX_SHARDS:
        raise InvalidArgumentError(f"shards={count!r}", f"specify 1 to {MAX_SHARDS:,}")
    placement_of_all(after, count)  # raises ConfigError
    if (count, after) == (there, before) and not over:
        raise InvalidArgumentError(
            f"{name} already has {counted(there, 'shard')} and placement {after}",
            "specify --shards, --placement or --over",
        )
    sources = [_place(entry, entry_key(*shard)) for shard, entry in _entries(component)]
    named = [ServerAddress.parse(each) for each in over] or [place.server for place in sources]
    same = KnownServers(components.values(), *named).same
    servers: list[ServerAddress] = []
    for server in (*(place.server for place in sources), *named):
        if not any(same(server, each) for each in servers):
            servers.append(server)
    # One name for each server, whatever entries and arguments call it.
    known = {each: next(s for s in servers if same(each, s)) for each in (*servers, *named)}
    sources = [Place(next(s for s in servers if same(p.server, s)), p.database) for p in sources]
    free = {
        server: free_databases(components, server, *like_of(component), same)
        for server in dict.fromkeys(known[each] for each in named)
    }
    targets = []
    for n in range(count):
        server = list(free)[n % len(free)]
        try:
            targets.append(Place(server, next(free[server])))
        except StopIteration:
            raise InvalidArgumentError(
                f"{server} has too few databases that nothing uses for "
                f"{counted(count, 'shard')} over {counted(len(free), 'server')}",
                "specify more servers, or set a higher `databases` there",
            ) from None
    rules = component.routes if routes is None else routes
    KeyRoutes(rules)  # raises ConfigError
    return Move(
        name,
        KEYS,
        ", ".join(map(str, dict.fromkeys(place.server for place in sources))),
        ", ".join(map(str, dict.fromkeys(place.server for place in targets))),
        shard_names(name, len(component.shards)),
        list(map(str, sources)),
        list(map(str, targets)),
        [before, after],
        list(rules),
    )


def _entries(component: Component) -> list[Any]:
    """Return the shards with their entries; the unsharded entry only if there are no shards."""
    return [(shard, component.entry_of(shard)) for shard in component.all_shards()]


def _place(entry: Entry, where: str) -> Place:
    server, database = address_of(entry), database_of(entry.fields)
    if entry.is_cluster or server is None or database is None:
        raise ConfigError(
            f"{where} does not name its server and database", "write host, port and db into it"
        )
    return Place(server, database)


def plan_split_of(
    config: Any, components: Components, split: Move, hold: float, offline: bool = False
) -> MovePlan:
    """Plan a split."""
    component = components[split.name]
    rule = ByPlacement(split)
    same = KnownServers(
        components.values(), *(place.server for place in (*rule.sources, *rule.targets))
    ).same
    problems = []
    for place in rule.sources:
        for shard, entry in entries_on(components.values(), place.server, same):
            if database_of(entry.fields) == place.database and shard.component != split.name:
                problems.append(
                    f"{shard} is in database {place.database} of {place.server}, too: its keys "
                    "cannot be told from those of " + split.name
                )
    for place in rule.targets:
        problems += [
            f"{place.server} has {shard} in database {place.database}"
            for shard, entry in entries_on(components.values(), place.server, same)
            if database_of(entry.fields) == place.database
        ]

    def login(server: ServerAddress) -> tuple[Entry, str]:
        for shard, entry in entries_on([component], server, same):
            return entry, entry_key(*shard)
        return like_of(component)

    problems += _misplaced(rule, split.name, login)
    before, after = split.placements
    notes = []
    if before and (before, len(split.sources)) != (after, len(split.targets)):
        notes.append(
            f"calls that say shards={len(split.sources)} for {split.name} will be refused: leave "
            "shards= and placement= out first"
        )
    if not before:
        notes.append(
            f"{split.name} will have no unsharded entry: have all calls use routers or "
            "sharded_connection first, which also serve a component without shards"
        )
    shown = "; ".join(
        f"{server}: {', '.join(f'{rule.names[p]} in {p.database}' for p in places)}"
        for server, places in _by_server(rule.targets).items()
    )
    described = f"{{shards: {len(split.targets)}, placement: {after}}}" if after else "one entry"
    push = f"push {described} with epoch + 1 and these entries: {shown}"
    plan = plan_copy(split, login, hold, push, problems, notes, offline=offline)
    return replace(plan, problems=(*plan.problems, *noting(config)))


def _by_server(places: Sequence[Place]) -> Mapping[ServerAddress, list[Place]]:
    found: dict[ServerAddress, list[Place]] = {}
    for place in places:
        found.setdefault(place.server, []).append(place)
    return found


def _misplaced(
    rule: ByPlacement, name: str, login: Callable[[ServerAddress], tuple[Entry, str]]
) -> list[str]:
    """Return the problem of sampled keys that are not where their names say."""
    seen = 0
    wrong: list[bytes] = []
    for place in rule.sources:
        sampled = 0
        with (
            suppress(RedisError, OSError),  # the plan reports that it cannot be used
            database_client(place.server, *login(place.server), place.database) as client,
        ):
            for page in pages(client):
                wrong += rule.misplaced(place, page)
                sampled += len(page)
                if sampled >= _SAMPLE:
                    break
        seen += sampled
    if not wrong:
        return []
    error = misplaced_error(name, "the shards", len(wrong), seen, wrong)
    return [f"{error.message}: {error.remedy}"]
