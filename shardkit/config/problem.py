"""Problems of a configuration, and texts that name a bad value without giving a secret away.

Any text may be a misplaced password: to YAML, ``{password:s3cret}`` without a space is a field of
that name. So messages show only plain field names and single values, masked where they may hold a
secret, escaped and cut to a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from shardkit.config.url import MASK, REFERENCE, mask_url
from shardkit.errors import InvalidEntryError
from shardkit.operations.arguments import without_secrets

SECRETS = frozenset({"password", "ssl_password", "ssl_ca_data"})
NAMES: set[str] = set()  # of all fields, as `shardkit.config.fields` knows them
NO_CLUSTER = "make it the component's entry: a cluster shards itself"  # a remedy
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration: where, what, and the remedy."""

    where: str
    field: str
    value: str
    problem: str
    remedy: str
    line: int = 0
    warning: bool = False

    def __str__(self) -> str:
        value = f" = {self.value}" if self.value else ""
        field = f" {self.field}{value}" if self.field else ""
        return f"{self.where}:{field} {self.problem}"


def invalid(problems: Sequence[Problem]) -> InvalidEntryError:
    """Return the error for a list of problems; ``.problems`` keeps them all."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    error = InvalidEntryError(f"{problems[0]}{more}", problems[0].remedy)
    error.problems = tuple(problems)
    return error


def similar_name(name: str, names: Iterable[str]) -> str:
    """Return the name that a misspelt one probably means; empty if none is close.

    Names that differ in digits only differ on purpose: `users2` is no misspelt `users`.
    """
    letters = re.sub("[0-9]", "", name)
    others = [other for other in names if re.sub("[0-9]", "", other) != letters]
    return next(iter(get_close_matches(name, others, 1, 0.8)), "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the beginning of a remedy for an unknown name; empty if no name is close."""
    meant = similar_name(name, names)
    return f"did you mean {meant!r}? Otherwise " if meant else ""


def mask(name: str, value: Any, depth: int = 8) -> Any:
    """Return a field's value with secrets, text that may hold one, and what is deep as ``***``."""
    if isinstance(value, Mapping | list) and not depth:
        return MASK
    if isinstance(value, Mapping):
        known = () if name == "options" else NAMES  # those of a function may be anything
        return {k: mask(k, v, depth - 1) if k in known else MASK for k, v in value.items()}
    if isinstance(value, list):
        return [mask("", inner, depth - 1) for inner in value]
    if name in SECRETS and value is not None:
        return value if isinstance(value, str) and REFERENCE.fullmatch(value) else MASK
    if isinstance(value, str) and (name == "url" or ":/" in value):
        return mask_url(value)
    if isinstance(value, str) and (
        ("@" in value and ":" in value)
        or (name == "host" and re.search("[@#]", value))
        or without_secrets(value) != value
    ):
        return MASK  # most likely a URL without its scheme
    return value


def shown(name: str, value: Any) -> str:
    """Return a value for a message: masked, on one line; a list or mapping by its kind only."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"
    if value is not None and not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = json.dumps(mask("host", mask(name, value)))
    return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 2]}…"'


def shown_name(name: Any) -> str:
    """Return a field's name for a message, as far as it looks like one."""
    if not isinstance(name, str):
        return shown("", name)
    word = re.match(r"(?!-|.*@)[A-Za-z0-9_-]{0,40}|", name)
    assert word is not None
    return name if word[0] == name else f"{word[0]}…"
