"""Time search: ``python benchmarks/search [--quick] [case ...]``.

Cases: peers, shards, pages. Each is written into benchmarks/results/search.json as soon as it is
done, beside what is there of the others. With --quick there are fewer documents and queries, and
nothing is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, conditions, save, show

from search import cases
from search.corpus import Passage, passages
from search.engines import binary, version_of
from search.queries import Query, drawn

QUERIES = 20  # of each kind
ROUNDS = 5

Figures = dict[str, Any]


def tables(case: str, found: Figures) -> None:
    """Show what a case measured."""
    if case == "peers":
        kinds = list(found["queries"])
        for what in ("median, ms", "95th percentile, ms", "caller, us", "servers, us"):
            rows = [
                [
                    name,
                    *(found["queries"][kind].get(name, {}).get(what, "-") for kind in kinds),
                ]
                for name in found["indexing"]
            ]
            show(what, ["", *kinds], rows)
        _show_rows("indexing", found["indexing"])
    elif case == "shards":
        for which in ("queries", "one after another", "1 ms away"):
            _show_rows(which, found[which])
        _show_rows("indexing", found["indexing"])
    else:
        at = list(next(iter(found.values())))
        show(
            "ms of processor time a page",
            ["page", *found],
            [[page, *(row[page] for row in found.values())] for page in at],
        )


def _show_rows(title: str, rows: dict[str, dict[str, float]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    listed = [[name, *(row.get(column, "-") for column in columns)] for name, row in rows.items()]
    show(title, ["", *columns], listed)


def main(arguments: Sequence[str]) -> None:
    quick = "--quick" in arguments
    corpus = passages()[:: 10 if quick else 1]
    queries = drawn(corpus, 4 if quick else QUERIES)
    rounds = 1 if quick else ROUNDS
    run: dict[str, Callable[[Sequence[Passage], dict[str, list[Query]], int], Figures]] = {
        "peers": cases.peers,
        "shards": lambda corpus, *rest: cases.over_shards(corpus[::2], *rest),
        "pages": lambda corpus, queries, rounds: cases.depth(corpus, rounds),
    }
    path = RESULTS / "search.json"
    found: Figures = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["figures"]
    for case in [name for name in arguments if name != "--quick"] or run:
        found[case] = run[case](corpus, queries, rounds)
        tables(case, found[case])
        if quick:
            continue
        save(
            "search",
            {
                "corpus": {
                    "documents": len(corpus),
                    "words": sum(len(passage.text.split()) for passage in corpus),
                    "bytes of text": sum(passage.size for passage in corpus),
                },
                "queries of each kind": len(next(iter(queries.values()))),
                "figures": found,
                "conditions": conditions(version_of(binary())),
            },
        )


if __name__ == "__main__":
    main(sys.argv[1:])
