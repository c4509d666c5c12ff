"""What a user may not do: one warning for each right and feature; see docs/rights.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from shardkit import log_records
from shardkit.operations.server_errors import meaning
from shardkit.routing.command_keys import least_words

logger = logging.getLogger("shardkit")

_told = log_records.Once()


@cache
def rights_of_features() -> Mapping[str, frozenset[str]]:
    """Return the commands that each feature sends, in capitals: the table of docs/rights.md."""
    text = (Path(__file__).parent / "rights.json").read_text(encoding="utf-8")
    return {
        feature: frozenset(commands.upper().replace("|", " ").split(" "))
        for feature, commands in json.loads(text).items()
    }


@cache
def trial_commands() -> tuple[str, ...]:
    """Return a command of each name that a feature sends, to try whether a user may run it."""
    names = frozenset[str]().union(*rights_of_features().values()) - _NOT_TRIED
    return tuple(
        " ".join([name, *["k"] * (least_words(name) - len(name.split()))]) for name in sorted(names)
    )


# The first three cannot be queued; INFO is asked for anyway.
_NOT_TRIED = {"MULTI", "EXEC", "SUBSCRIBE", "INFO"}


def features_without(missing: Collection[str]) -> Iterator[str]:
    """Yield the features that need one of some commands."""
    for feature, commands in rights_of_features().items():
        if not commands.isdisjoint(missing):
            yield feature


def missing_right(error: Exception, feature: str, address: str, shard: object) -> str:
    """Log that a feature lacks a right, once for each server; return what is missing."""
    known = meaning(error)
    text, remedy = known or (str(error), "see docs/rights.md")
    if _told.first(feature, address, text):
        about = log_records.fields(
            "right-missing", feature=feature, shard=str(shard), server=address, cause=text
        )
        message = "%s (%s): %s lacks details: %s; %s"
        logger.warning(message, shard, address, feature, text, remedy, extra=about)
    return text
