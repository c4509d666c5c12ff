r"""Rules that find the routing key in a key's name.

::

    visits:(\d+)                   visits:42 is placed by 42
    pair followers:(\d+):(\d+)     followers:9:42 is placed as the pair of 9 and 42
    any visits:.*                  visits:2026-11-29 is placed by an argument that it does not have

A key that no rule matches is placed by its name. The first rule that matches the whole name counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from shardkit.errors import ConfigError
from shardkit.operations.commands import Key
from shardkit.routing.keys import pair_key

_PAIR, _ANY = "pair ", "any "


class KeyRoutes:
    """Finds routing keys in the names of keys.

    Raises:
        ConfigError: a rule cannot be used.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules = [_compiled(rule, 1) for rule in rules if not rule.startswith(_ANY)]
        self._any = [_compiled(rule, 0) for rule in rules if rule.startswith(_ANY)]

    def of_all(self, names: Sequence[bytes]) -> Sequence[Key]:
        """Return the routing key of each name."""
        return list(map(self.of, names)) if self._rules else names

    def of(self, name: bytes) -> Key:
        """Return the routing key of a name."""
        for rule, is_pair in self._rules:
            match = rule.fullmatch(name)
            if match is not None:
                return pair_key(match[1], match[2]) if is_pair else match[1]
        return name

    def tells(self, name: bytes) -> bool:
        """Return whether a name tells its key's place; not if an ``any`` rule matches it."""
        return not any(rule.fullmatch(name) for rule, _ in self._any)


key_routes = lru_cache(maxsize=256)(KeyRoutes)


def _compiled(rule: str, groups: int) -> tuple[re.Pattern[bytes], bool]:
    is_pair = rule.startswith(_PAIR)
    text = rule.removeprefix(_PAIR).removeprefix(_ANY).strip()
    if text[:1] == text[-1:] and text[:1] in ("'", '"'):
        text = text[1:-1]
    try:
        compiled = re.compile(text.encode())
    except re.error as error:
        raise ConfigError(f"route {rule!r}: {error}", "correct the regular expression") from None
    if groups and compiled.groups != groups + is_pair:
        what = "two groups, one for each id" if is_pair else "one group, the routing key"
        raise ConfigError(f"route {rule!r} has {compiled.groups} groups", f"write {what}")
    return compiled, is_pair
