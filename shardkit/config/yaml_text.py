"""YAML, loaded safely: text, numbers, truth values, null, lists and mappings, nothing else.

A mapping records the lines of its keys, and duplicate keys. Anchors that expand to too many values,
or contain themselves, are refused before anything is built. No error quotes the text: to YAML, an
unquoted password that starts with ``*`` is an alias, and its parser would name it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from shardkit.config.problem import shown_name
from shardkit.errors import ConfigError

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

    Raises:
        ConfigError: the text is no YAML, has tags of its own, or expands to too many values; its
            message starts with ``source``.
    """
    why = ""
    for kind in (_FastLoader, _Loader):  # the second one for its messages
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
_Libyaml: Any = getattr(yaml, "CParser", None)
if _Libyaml is not None:  # libyaml, where PyYAML was built with it: a tenth of the time
    # Its own composer ends the process where lists are nested too deeply.
    class _LibyamlLoader(_Bounded, _Libyaml, SafeConstructor, Resolver):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            _Libyaml.__init__(self, text)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    _FastLoader = _LibyamlLoader

for _each in {_Loader, _FastLoader}:
    _each.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in rules if tag != _TAG + "timestamp"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _each.yaml_constructors = {
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


for _each in {_Loader, _FastLoader}:
    _each.add_constructor(_TAG + "map", _mapping)


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count a node's values with every alias expanded; refuse an anchor that contains itself."""
    if id(node) not in known:
        known[id(node)] = 0
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(_values(each, known) for each in inner)
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
