"""Plans of splits: another number of shards, another placement, from one database to shards.

::

    users:0  a/1 ┐            ┌ users:0  a/3     each key to the shard that its name says
    users:1  b/1 ┴─ copies ──►┼ users:1  b/2
                              ├ users:2  a/4     the new shards are in databases that nothing uses
                              └ users:3  b/3
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.cluster_nodes import Ranges, masters_of
from shardkit.admin.growth.databases import database_client, free_databases, pages
from shardkit.admin.growth.exchange import by_server
from shardkit.admin.growth.journal import KEYS, Move
from shardkit.admin.growth.move_plan import Components, MovePlan, noting, plan_copy
from shardkit.admin.growth.relocation import Login, Place, ServerAddress, address_of, place_of
from shardkit.admin.growth.rule import ByPlacement, like_of, misplaced_error, shard_names
from shardkit.admin.growth.servers import KnownServers, LoginOf
from shardkit.config.component import MAX_SHARDS, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, counted
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
    to_cluster: str | None = None,
    places: Sequence[Place] = (),
) -> Move:
    """Return the split of a component, whose targets are databases that nothing uses, or nodes.

    With ``places``, each new shard has that database, or the one entry if ``rule`` is empty.

    Raises:
        InvalidArgumentError: there is no such component, or nothing would change.
        ConfigError: an entry does not name its server, or there is no such placement.
        GrowthError: the cluster cannot be used.
    """
    component = components.get(name)
    if component is None:
        raise InvalidArgumentError(f"component {name!r} is not known", "see: shardkit status")
    if to_cluster is not None and (count, rule, *over) != (None, None):
        raise InvalidArgumentError(
            f"{name}: a cluster has no shards of shardkit's",
            "specify --to-cluster alone, or --shards, --placement and --over",
        )
    before = component.placement if component.shards else ""
    after = rule if places and rule is not None else rule or before or DEFAULT
    there = len(component.shards) or 1
    count = there if count is None else count
    if not 1 <= count <= MAX_SHARDS:
        raise InvalidArgumentError(f"shards={count!r}", f"specify 1 to {MAX_SHARDS:,}")
    placement_of_all(after or DEFAULT, count)  # raises ConfigError
    left = _cluster_of(component)
    if left is not None and not (over or to_cluster or places):
        raise InvalidArgumentError(
            f"{name} is in a cluster, whose nodes have one database each",
            "specify --over, the servers of the new shards",
        )
    if (count, after) == (there, before) and not (over or to_cluster or places):
        raise InvalidArgumentError(
            f"{name} already has {counted(there, 'shard')} and placement {after}",
            "specify --shards, --placement or --over",
        )
    slots: dict[str, Ranges] = {}
    if left is None:
        sources = [_place(*like_of(component, shard)) for shard in component.all_shards()]
    else:
        slots, _ = masters_of(left, like_of(component))
        sources = list(map(Place.parse, slots))
    rules = component.routes if routes is None else routes
    KeyRoutes(rules)  # raises ConfigError
    if to_cluster is not None:
        entered = ServerAddress.parse(to_cluster)
        nodes, _ = masters_of(entered, like_of(component))
        targets = list(map(Place.parse, nodes))
        slots |= nodes
        after = ""
    elif places:
        entered, targets = None, list(places)
    else:
        entered = None
        sources, targets = _placed(components, component, sources, over, count)
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
        clusters=[str(left or ""), str(entered or "")] if left or entered else [],
        slots=slots,
    )


def _placed(
    components: Components,
    component: Component,
    sources: Sequence[Place],
    over: Sequence[str],
    count: int,
) -> tuple[list[Place], list[Place]]:
    """Return the sources and as many unused databases, with one name for each server."""
    named = [ServerAddress.parse(each) for each in over] or [place.server for place in sources]
    fleet = KnownServers(components.values(), *named)
    servers: list[ServerAddress] = []

    def known(server: ServerAddress) -> ServerAddress:
        found = next((each for each in servers if fleet.same(server, each)), None)
        if found is None:
            servers.append(server)
        return found or server

    left = [Place(known(place.server), place.database) for place in sources]
    free = {
        server: free_databases(
            server, like_of(component), {entry.database for _, entry in fleet.entries_on(server)}
        )
        for server in dict.fromkeys(map(known, named))
    }
    targets: list[Place] = []
    for n in range(count):
        server = list(free)[n % len(free)]
        try:
            targets.append(Place(server, next(free[server])))
        except StopIteration:
            unused = sum(target.server == server for target in targets)
            raise InvalidArgumentError(
                f"{server} has {counted(unused, 'unused database')}, too few for its share of "
                f"{counted(count, 'shard')} over {counted(len(free), 'server')}",
                "specify more servers (--over), or set a higher `databases` there",
            ) from None
    return left, targets


def _cluster_of(component: Component) -> ServerAddress | None:
    """Return the node that the entry of a component in a cluster names."""
    every = map(component.entry_of, component.all_shards())
    clusters = [entry for entry in every if entry.is_cluster]
    if not clusters:
        return None
    node = address_of(clusters[0])
    if component.shards or node is None:
        raise ConfigError(
            f"{component.name} is in a cluster, and not by one entry with host and port",
            "write the cluster as the component's entry",
        )
    if clusters[0].database:
        raise ConfigError(
            f"{component.name} is in database {clusters[0].database} of a cluster",
            "copy it into database 0 first, the only one that can be split",
        )
    return node


def _place(entry: Entry, where: str) -> Place:
    if (place := place_of(entry)) is None:
        raise ConfigError(
            f"{where} does not name its server and database", "write host, port and db into it"
        )
    return place


def plan_split_of(
    config: Any,
    components: Components,
    split: Move,
    hold: float,
    offline: bool = False,
    vacated: Collection[Place] = (),
) -> MovePlan:
    """Plan a split."""
    component = components[split.name]
    rule = ByPlacement(split)
    servers = KnownServers(
        components.values(), *(place.server for place in (*rule.sources, *rule.targets))
    )
    problems = []
    in_cluster, to_cluster = map(bool, split.clusters or ("", ""))
    problems += _sharing(components, split)
    for place in [] if in_cluster else rule.sources:
        for shard, entry in servers.entries_on(place.server):
            if entry.database == place.database and shard.component != split.name:
                problems.append(
                    f"{shard} is in database {place.database} of {place.server}, too: its keys "
                    "cannot be told from those of " + split.name
                )
    for place in [] if to_cluster else rule.targets:
        problems += [
            f"{place.server} has {shard} in database {place.database}"
            for shard, entry in servers.entries_on(place.server)
            if entry.database == place.database
        ]

    def login(server: ServerAddress) -> Login:
        for shard, entry in servers.entries_on(server):
            if shard.component == component.name:
                return Login(entry, entry_key(*shard))
        return like_of(component)

    problems += _misplaced(rule, split.name, login)
    before, after = split.placements
    notes = []
    if before and (before, len(split.sources)) != (after, len(split.targets)):
        notes.append(
            f"calls that say shards={len(split.sources)} for {split.name} will be refused: leave "
            "shards= and placement= out first"
        )
    if to_cluster:
        notes.append(
            f"commands, scripts and transactions with several keys of {split.name} need keys with "
            "a common {tag} in a cluster"
        )
    if not before and not (in_cluster or to_cluster):
        notes.append(
            f"{split.name} will have no unsharded entry: have all calls use routers or "
            "sharded_connection first, which also serve a component without shards"
        )
    shown = "; ".join(
        f"{server}: {', '.join(f'{name} in {number}' for number, name in own.items())}"
        for server, own in by_server(rule.names).items()
    )
    described = f"{{shards: {len(split.targets)}, placement: {after}}}" if after else "one entry"
    push = f"push {described} with epoch + 1 and these entries: {shown}"
    if to_cluster:
        push = f"push one entry with cluster: true and epoch + 1, for {split.clusters[1]}"
    rule.changed({split.name: component}, servers.same)  # raises ConfigError
    plan = plan_copy(split, login, hold, push, problems, notes, offline=offline, vacated=vacated)
    return replace(plan, problems=(*plan.problems, *noting(config)))


def _sharing(components: Components, split: Move) -> list[str]:
    """Return which other components are in a cluster that is left or entered."""
    concerned = set(split.slots)
    problems = []
    for component in components.values():
        for shard, entry in component.entries():
            node = address_of(entry) if entry.is_cluster else None
            if component.name == split.name or node is None:
                continue
            nodes: dict[str, Ranges] = {}
            with suppress(RedisError, OSError, GrowthError):
                nodes, _ = masters_of(node, Login(entry, entry_key(*shard)))
            if concerned & set(nodes) or str(Place(node, 0)) in concerned:
                problems.append(f"{shard} is in the cluster of {node}, too: use another one")
    return problems


def _misplaced(rule: ByPlacement, name: str, login_of: LoginOf) -> list[str]:
    """Return the problem of sampled keys that are not where their names say."""
    seen = 0
    wrong: list[bytes] = []
    for place in rule.sources:
        sampled = 0
        with (
            suppress(RedisError, OSError),  # the plan reports that it cannot be used
            database_client(place.server, login_of(place.server), place.database) as client,
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
