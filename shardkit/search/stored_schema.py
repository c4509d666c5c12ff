"""Read the stored parameters of an index, for tools that did not create it.

::

    search:meta    kind=search shards=4 fields="title=3.0 text=1.0" analyzer="1 unicode … english" …

        ──►        shards=4, {"fields": {"title": 3.0, "text": 1.0}, "analyzer": Analyzer(…), …}

Only the fingerprint of an analyzer is stored, so only analyzers made of this package's parts can be
recovered: the two tokenizers, the English stop words or none, and the stemmers.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardkit.errors import ParameterMismatchError
from shardkit.operations.commands import Command, ShardOf
from shardkit.operations.operation import Operation
from shardkit.search.model.schema import SchemaParameters
from shardkit.search.text.analyzer import ENGLISH, Analyzer
from shardkit.search.text.tokenizers import English, Unicode
from shardkit.structures.base.parameters import meta_key


def stored_parameters(component: str, name: str, shards: int) -> Operation[dict[str, str] | None]:
    """Return the stored parameters of an index; None if it does not exist. Cost: one exchange.

    ``shards`` is the component's number of shards; any number if it is not sharded.
    """
    key, first = meta_key(name), ShardOf(component, 0, shards)
    [flat] = yield [Command(first, key, ("HGETALL", key))]
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True)) or None


def parameters_of(name: str, stored: Mapping[str, str]) -> tuple[int, SchemaParameters]:
    """Return an index's number of parts and its other parameters, from its stored ones."""
    if stored.get("kind") != "search":
        raise ParameterMismatchError(
            f"{meta_key(name)}: {name!r} is of kind {stored.get('kind')!r}, not a search index",
            "give the name of an index",
        )
    try:
        return int(stored["shards"]), {
            "fields": {key: float(weight) for key, weight in _pairs(stored["fields"])},
            "attributes": dict(_pairs(stored["attributes"])),
            "analyzer": analyzer_of(name, stored["analyzer"]),
            "phrases": stored["phrases"] == "1",
            "average_length": float(stored["average_length"]),
            "chunk": int(stored["chunk"]),
        }
    except (KeyError, ValueError) as error:
        raise ParameterMismatchError(
            f"{meta_key(name)}: the stored parameters of {name!r} cannot be read: {error}",
            "use the version of shardkit that wrote them",
        ) from error


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return names and values of ``title=3.0 text=1.0``."""
    return [(name, value) for name, _, value in (pair.partition("=") for pair in text.split())]


def analyzer_of(name: str, fingerprint: str) -> Analyzer:
    """Return the analyzer with a stored fingerprint."""
    stemmer = fingerprint.rpartition(" ")[2]
    for tokenizer in (Unicode(), English()):
        for stop_words in (ENGLISH, frozenset[str]()):
            analyzer = Analyzer(tokenizer, stop_words, None if stemmer == "-" else stemmer)
            if analyzer.fingerprint == fingerprint:
                return analyzer
    raise ParameterMismatchError(
        f"{meta_key(name)}: {name!r} has an analyzer of its own: {fingerprint!r}",
        "open it in Python, with that analyzer",
    )
