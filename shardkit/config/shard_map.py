"""The shard map: one YAML file that describes every component; see docs/configuration.md.

Loading is safe and reports all problems at once: duplicate keys, unknown fields, invalid values,
gaps in numbered shards, names that collide; and, as warnings, shards that share one database.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from shardkit.config.component import (
    MAX_SHARDS,
    Component,
    check_name,
    entry_key,
    wrong_placement,
    wrong_routes,
)
from shardkit.config.entry import Entry, read_regular
from shardkit.config.fields import LOCATION, check_entry, database_of, expanded, merged
from shardkit.config.problem import NO_CLUSTER, Problem, invalid, mask, shown, shown_name
from shardkit.config.url import DEFAULT_PORT, url_of
from shardkit.errors import ConfigError, InvalidEntryError, MissingEntryError, counted
from shardkit.operations.arguments import checked
from shardkit.operations.commands import Shard
from shardkit.routing.others import described_rule, rule_of
from shardkit.routing.placement import DEFAULT

MAX_VALUES = 1_000_000  # with all aliases expanded
MAX_DEPTH = 100

_TAG = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"""'[^'<][^']+'|"[^"]+\"""")  # a piece of the text, not '<scalar>' or ':'


class LinedMapping(dict[Any, Any]):
    """A YAML mapping.

    Attributes:
        lines: the line of each key, from 1.
        twice: the keys that appear twice, each with its second line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}
        self.twice: list[tuple[Any, int]] = []


def load_yaml(text: str, source: str) -> Any:
    """Return one YAML document as values; mappings are LinedMappings, a date is text.

    Anchors that expand to too many values, or contain themselves, are refused before anything is
    built. No error quotes the text: to YAML, an unquoted password that starts with ``*`` is an
    alias, and its parser would name it.

    Raises:
        ConfigError: the text is no YAML, has tags of its own, or expands to too many values; its
            message starts with ``source``.
    """
    why = ""
    # The second one for its messages; it reads a megabyte in seconds.
    for kind in (_FastLoader, _Loader) if len(text) < 200_000 else (_FastLoader,):
        try:
            loader = kind(text)
            node = loader.get_single_node()
            if node is None:
                return None
            if _values(node, {}) <= MAX_VALUES:
                return loader.construct_document(node)
            why = f": with its aliases expanded it has more than {MAX_VALUES:,} values"
            break
        except (yaml.YAMLError, RecursionError, ValueError, LookupError) as error:
            why = _why(error)
    # Outside of the handler: the caught error holds the text.
    raise ConfigError(f"{source}: is not YAML{why}", "correct the file")


class _Bounded(Composer):
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:  # before the rest is read
            raise RecursionError
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Loader(_Bounded, yaml.SafeLoader):
    """SafeLoader without dates and the other kinds of values that no shard map needs."""


_FastLoader: Any = _Loader
_Libyaml: Any = getattr(getattr(yaml, "cyaml", None), "CParser", None)
if _Libyaml is not None:  # libyaml, where PyYAML was built with it: a tenth of the time
    # Its own composer ends the process where lists are nested too deeply.
    class _LibyamlLoader(_Bounded, _Libyaml, SafeConstructor, Resolver):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            _Libyaml.__init__(self, text)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    _FastLoader = _LibyamlLoader

for _loader in {_Loader, _FastLoader}:
    _loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in rules if tag != _TAG + "timestamp"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _loader.yaml_constructors = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in [*(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq")), None]
    }


def _mapping(loader: Any, node: yaml.MappingNode) -> Iterator[LinedMapping]:
    mapping = LinedMapping()
    yield mapping
    own = {id(key_node) for key_node, _ in node.value}
    loader.flatten_mapping(node)  # puts keys merged with `<<` before the mapping's own
    seen = set()
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            key = shown_name(key)
        if id(key_node) in own:
            if key in seen:
                mapping.twice.append((key, line))
            seen.add(key)
        mapping[key] = loader.construct_object(value_node, deep=True)
        mapping.lines[key] = line


for _loader in {_Loader, _FastLoader}:
    _loader.add_constructor(_TAG + "map", _mapping)


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count a node's values with every alias expanded; refuse an anchor that contains itself."""
    if id(node) not in known:
        known[id(node)] = 0
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inner = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(_values(child, known) for child in inner)
    elif not known[id(node)]:
        raise ValueError("an anchor contains itself")
    return known[id(node)]


def _why(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f" in line {mark.line + 1}" if mark else ""
    if isinstance(error, RecursionError):
        return f": it is nested more than {MAX_DEPTH} deep"
    if not isinstance(error, yaml.YAMLError):
        return ": an anchor contains itself, or a value is not of the type of its tag"
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"{line}: {_QUOTED.sub('…', problem)}"


_TOP = ("config_server", "epoch", "defaults", "components")
_COMPONENT = ("entry", "shards", "placement", "route")
_SHORT = ("count", "over", "spread")
_SPREADS = ("databases", "ports")


@dataclass(frozen=True)
class ShardMap:
    """A validated shard map.

    Attributes:
        components: the components by name.
        config_server: where the entries are pushed; None if the map is used directly.
        warnings: probable mistakes.
        source: the file's path.
        epoch: the `config:epoch` that the map was made from; None if unknown. A push of the map
            fails if there was another push since.
    """

    components: Mapping[str, Component]
    config_server: Entry | None = None
    warnings: tuple[Problem, ...] = ()
    source: str = "shard map"
    epoch: int | None = None

    def __post_init__(self) -> None:
        named: Any = self.components
        if not isinstance(named, Mapping) or {*map(type, named.values())} - {Component}:
            raise ConfigError("ShardMap takes components", "pass YAML text to ShardMap.parse")

    @classmethod
    @checked
    def load(cls, path: str | Path) -> ShardMap:
        """Read and validate a file.

        Raises:
            ConfigError: the file cannot be read.
            InvalidEntryError: something in it cannot be used; ``.problems`` lists everything.
        """
        try:
            data = read_regular(path)
        except (OSError, ValueError) as error:  # the latter: it is no path
            reason = getattr(error, "strerror", None) or str(error)
        else:
            return cls.decode(data, str(path))
        raise unreadable(path, reason)

    @classmethod
    @checked
    def decode(cls, data: bytes, source: str) -> ShardMap:
        """Validate the content of a file; see `load`."""
        text = None
        with suppress(UnicodeDecodeError):  # not chained: it contains the text
            text = data.decode()
        if text is None:
            raise unreadable(source, "it is not UTF-8 text")
        return cls.parse(text, source)

    @classmethod
    def parse(cls, text: str, source: str = "shard map") -> ShardMap:
        """Validate the YAML text of a shard map, which is no path; for errors see `load`.

        ``source`` is where it comes from, for messages.
        """
        if not isinstance(text, str) or re.fullmatch(r"\S+\.ya?ml", text):
            is_path = isinstance(text, str | PathLike)
            what = "a path" if is_path else f"a value of type {type(text).__name__}"
            raise ConfigError(
                f"ShardMap.parse takes the YAML text of a shard map, not {what}",
                "read a file with ShardMap.load(path)" if is_path else "pass the text",
            )
        return _Reader(source).read(str(text))  # libyaml reads no subclass

    @checked
    def entry_of(self, component: str, number: int | None = None) -> Entry:
        """Return the entry of a shard, or (number None) the unsharded one.

        Raises:
            MissingEntryError: the map has no such entry.
        """
        described = self.components.get(component)
        if described is None:
            raise MissingEntryError(
                f"{entry_key(component)} is missing: {self.source} has no such component",
                f"choose one of: {', '.join(sorted(self.components))}",
            )
        return described.entry_of(Shard(component, number))

    def to_yaml(self) -> str:
        """Return the map as YAML, with every shard written out and secrets in the clear."""
        components: dict[str, Any] = {}
        for name, component in sorted(self.components.items()):
            described: dict[str, Any] = {}
            if component.entry is not None:
                described["entry"] = component.entry.fields
            if component.shards:
                described["shards"] = [entry.fields for entry in component.shards]
                described["placement"] = described_rule(component.placement)
                if component.routes:
                    described["route"] = list(component.routes)
            components[name] = described
        top: dict[str, Any] = {"components": components}
        if self.config_server is not None:
            top = {"config_server": self.config_server.fields, **top}
        if self.epoch is not None:
            top = {"epoch": self.epoch, **top}
        return yaml.safe_dump(top, sort_keys=False, default_flow_style=None, width=100)


def unreadable(path: str | Path, reason: str) -> ConfigError:
    """Return the error for a file that cannot be read; its path may be meant as an address."""
    url = url_of(str(path))
    other = f"the config server's URL: {url}" if url else f"write one: shardkit init {path}"
    name = "" if "/" in str(path) else "host"
    if (masked := mask(name, str(path))) != str(path):  # an address with a password
        path, other = masked, "the config server's URL: redis://user:password@host:port/db"
    return ConfigError(f"{path}: cannot be read: {reason}", f"name a shard map, or {other}")


@dataclass
class _Reader:
    source: str
    problems: list[Problem] = field(default_factory=list)

    def read(self, text: str) -> ShardMap:
        top = load_yaml(text, self.source)
        if not isinstance(top, LinedMapping):
            raise ConfigError(f"{self.source}: is not a shard map", "see configs/local.yaml")
        self._duplicates(top, "")
        self._known(top, "", _TOP)
        epoch = top.get("epoch")
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            remedy = "give the number that `shardkit config diff` shows, or leave it out"
            self._problem("epoch", shown("", epoch), "is not an epoch", remedy)
        defaults = self._object(top, "defaults")
        before = len(self.problems)
        self.problems += check_entry(defaults, self._at("defaults"), partial=True)
        if len(self.problems) > before:
            defaults = {}  # so that their problems are not reported for each entry
        config_server = None
        if top.get("config_server") is not None:
            config_server = self._entry(top["config_server"], "config_server", defaults)
        components = {
            name: component
            for name, described in self._object(top, "components").items()
            if (component := self._component(name, described, defaults)) is not None
        }
        if not components and not self.problems:
            self._problem("components", "", "describes no component", "name at least one")
        if self.problems:
            raise invalid(self.problems)
        warnings = tuple(warnings_of(components, self.source))
        return ShardMap(components, config_server, warnings, self.source, epoch)

    def _duplicates(self, value: Any, path: str) -> None:
        if isinstance(value, LinedMapping):
            for key, line in value.twice:
                self._problem(f"{path}{shown_name(key)}", "", "appears twice", "remove one", line)
            for key, inner in value.items():
                self._duplicates(inner, f"{path}{shown_name(key)}.")
        elif isinstance(value, list):
            for n, inner in enumerate(value):
                self._duplicates(inner, f"{path}{n}.")

    def _component(self, name: Any, described: Any, defaults: Any) -> Component | None:
        before = len(self.problems)
        self.problems += check_name(name, self._at("components"))
        path = f"components.{name if len(self.problems) == before else shown_name(name)}"
        if not isinstance(described, Mapping):
            self._problem(path, "", "is not a mapping", "give entry: or shards:")
            return None
        self._known(described, f"{path}.", _COMPONENT)
        entry = None
        if described.get("entry") is not None:
            entry = self._entry(described["entry"], f"{path}.entry", defaults)
        shards = self._shards(described.get("shards"), f"{path}.shards", defaults)
        rule = rule_of(described.get("placement", DEFAULT))
        if "placement" in described and described.get("shards") is None:
            self._problem(f"{path}.placement", "", "needs shards", "give shards: as well")
        elif wrong := wrong_placement(rule, max(1, len(shards))):
            self._problem(path, "", wrong, "see docs/placement.md for the placements")
        routes = described.get("route", [])
        routes = [routes] if isinstance(routes, str) else routes
        if routes and described.get("shards") is None:
            self._problem(f"{path}.route", "", "needs shards", "give shards: as well")
        elif wrong := wrong_routes(routes):
            self._problem(path, "", wrong, "see docs/growth.md for the rules")
        if entry is None and not shards and len(self.problems) == before:
            self._problem(path, "", "has neither entry nor shards", "give one, or both")
        if len(self.problems) > before:
            return None
        return Component(name, entry, tuple(shards), rule, routes=tuple(routes))

    def _shards(self, value: Any, path: str, defaults: Any) -> list[Entry]:
        if value is None:
            return []
        if isinstance(value, Mapping):
            if value and all(type(key) is int for key in value):
                return self._numbered(value, path, defaults)
            return self._short_form(value, path, defaults)
        if not isinstance(value, list) or not value:
            self._problem(path, "", "is not a list of entries", "give a list, or count: and over:")
            return []
        if len(value) > MAX_SHARDS:
            self._problem(path, str(len(value)), "is too many", f"give at most {MAX_SHARDS}")
            return []
        shards = [self._shard(fields, f"{path}[{n}]", defaults) for n, fields in enumerate(value)]
        return [shard for shard in shards if shard is not None]

    def _shard(self, fields: Any, path: str, defaults: Any) -> Entry | None:
        entry = self._entry(fields, path, defaults)
        if entry is not None and entry.is_cluster:
            self._problem(f"{path}.cluster", "true", "makes a cluster a shard", NO_CLUSTER)
        return entry

    def _numbered(self, value: Mapping[int, Any], path: str, defaults: Any) -> list[Entry]:
        """Read shards given as ``{0: …, 1: …}``: every number must be there."""
        remedy = "number the shards from 0 on"
        if min(value) < 0:
            self._problem(path, shown("", min(value)), "is negative", remedy)
            return []
        if max(value) >= len(value):
            gaps = list(islice((n for n in range(max(value)) if n not in value), 6))
            listed = ", ".join(map(str, gaps[:5])) + (", …" if len(gaps) > 5 else "")
            self._problem(path, "", f"leaves a gap in the shard numbers: {listed}", remedy)
            return []
        return self._shards([value[n] for n in range(len(value))], path, defaults)

    def _short_form(self, value: Mapping[Any, Any], path: str, defaults: Any) -> list[Entry]:
        """Read shards given as a count over servers: shard n on server n % len(over)."""
        before = len(self.problems)
        self._known(value, f"{path}.", _SHORT)
        count, over = value.get("count"), value.get("over")
        spread = value.get("spread", _SPREADS[0])
        if type(count) is not int or not 1 <= count <= MAX_SHARDS:
            remedy = f"give a number, 1 to {MAX_SHARDS}"
            self._problem(f"{path}.count", shown("", count), "cannot be used", remedy)
        if not isinstance(over, list) or not over:
            self._problem(f"{path}.over", "", "is not a list of servers", "list at least one entry")
            over = []
        if spread not in _SPREADS:
            remedy = f"give {' or '.join(_SPREADS)}"
            self._problem(f"{path}.spread", shown("", spread), "cannot be used", remedy)
        servers = []
        for n, server_text in enumerate(over):
            where = f"{path}.over[{n}]"
            server = self._shard(server_text, where, defaults)
            if server is None:
                continue
            fields = server.fields
            servers.append(fields)
            located = {*fields, *(key for replica in fields.get("replicas", ()) for key in replica)}
            if spread == "ports" and LOCATION - {"host", "port"} & located:
                self._problem(where, "", "has no port to spread from", "give host: and port:")
            if spread == "databases" and database_of(fields) is None:
                self._problem(where, "", "has no number to spread from", "set db: beside the url")
        if len(self.problems) > before:
            return []
        assert isinstance(count, int)
        entries: list[Entry] = []
        for n in range(count):
            shard = _spread(servers[n % len(servers)], n // len(servers), spread)
            entry = self._entry(shard, f"{path}[{n}]", {})
            if entry is None:
                return []  # out of ports, as are all further shards
            entries.append(entry)
        return entries

    def _entry(self, fields: Any, path: str, defaults: Any) -> Entry | None:
        where = self._at(path)
        problems = list(check_entry(fields, where, partial=True))
        if not problems:
            whole = merged(expanded(fields), defaults)
            try:
                entry = Entry(whole, where)
            except InvalidEntryError as error:
                problems += error.problems
            if "port" in fields and "host" not in whole and LOCATION & defaults.keys() - {"port"}:
                remedy = "set host: as well: the default location is of another kind"
                problems.append(Problem(where, "port", "", "has no host", remedy))
            if not problems:
                return entry
        self.problems += problems
        return None

    def _object(self, parent: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
        value = parent.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._problem(name, "", "is not a mapping", "write name: value")
            return {}
        return value

    def _known(self, fields: Mapping[Any, Any], path: str, known: tuple[str, ...]) -> None:
        lines = getattr(fields, "lines", {})
        for name in fields:
            if name not in known:
                remedy = f"use one of {', '.join(known)}"
                line = lines.get(name, 0)
                self._problem(f"{path}{shown_name(name)}", "", "is not known", remedy, line)

    def _at(self, path: str) -> str:
        return f"{self.source}: {path}"

    def _problem(self, path: str, value: str, problem: str, remedy: str, line: int = 0) -> None:
        where = f"{self.source}:{line}" if line else self.source
        self.problems.append(Problem(where, path, value, problem, remedy, line))


def _spread(server: Mapping[str, Any], step: int, spread: str) -> Mapping[str, Any]:
    """Return a server's entry with its database or port moved on by some steps."""
    if step == 0:
        return server
    if spread == "databases":
        return {**server, "db": (database_of(server) or 0) + step}
    moved = {**server, "port": server.get("port", DEFAULT_PORT) + step}
    if "replicas" in server:
        moved["replicas"] = [
            _spread(replica, step, spread) if "port" in replica else replica
            for replica in server["replicas"]  # the others inherit the port
        ]
    return moved


def warnings_of(components: Mapping[str, Component], source: str) -> Iterator[Problem]:
    """Yield probable mistakes: shared databases, uneven placements."""
    yield from _overlaps(components, source)
    for name, component in components.items():
        rule = described_rule(component.placement)
        if not isinstance(rule, str) or rule.startswith("crc:"):  # all other placements are even
            sample = [b"sample:%d" % n for n in range(8192)]
            shards = len(component.shards)
            weights = rule.get("weights") if isinstance(rule, dict) else None
            shares = weights or [1] * shards
            for number, keys in Counter(map(component.place, sample)).most_common():
                even = len(sample) * shares[number] / sum(shares)
                if keys <= 2 * even + 8 * even**0.5 + 2:
                    continue
                yield Problem(
                    source,
                    f"components.{name}.placement",
                    component.placement,
                    f"is uneven over {counted(shards, 'shard')}: one gets "
                    f"{keys:,} of 8,192 sample keys",
                    "use crc32 or rendezvous, unless data is already placed this way",
                    warning=True,
                )
                break


def _overlaps(components: Mapping[str, Component], source: str) -> Iterator[Problem]:
    """Warn of shards that share a database. Unsharded components may share theirs."""
    tenants: dict[tuple[str, str], list[Shard]] = defaultdict(list)
    first: dict[str, str] = {}  # the first of a server's names
    for component in components.values():
        for shard, entry in component.entries():
            sentinels = str(entry.fields.get("sentinel", {}).get("sentinels", ""))
            place = re.sub(r"^(localhost|\[::1\]):", "127.0.0.1:", entry.address)
            tenants[first.setdefault(place, entry.address), sentinels].append(shard)
    mixed: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (address, _), shards in tenants.items():
        by_component: dict[str, list[Shard]] = defaultdict(list)
        for shard in shards:
            by_component[shard.component].append(shard)
        for name, own in by_component.items():
            if len(own) > 1:
                listed = ", ".join(map(str, own))
                yield Problem(
                    source,
                    f"components.{name}.shards",
                    "",
                    f"{listed} share {address}: operations on all shards (a scan, a count "
                    "of keys) visit that database once for each of them",
                    "give each shard a server, port or database of its own",
                    warning=True,
                )
        if len(by_component) > 1 and any(shard.number is not None for shard in shards):
            mixed[tuple(by_component)].append(address)
    for names, addresses in mixed.items():
        others = counted(len(addresses) - 1, "more database")
        more = f" and {others}" if len(addresses) > 1 else ""
        yield Problem(
            source,
            "components",
            "",
            f"{', '.join(names)} share {addresses[0]}{more}: keys of the same name collide, and "
            "operations on all shards of one also see the others' keys",
            "give each sharded component databases of its own",
            warning=True,
        )
