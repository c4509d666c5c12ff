"""Writes the tables of docs/commands.md, which say how each command is routed, split and merged.

``python tools/command_docs.py`` writes the page's part below the mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from shardkit.kit.merges import NOT_MERGED, OF_ALL, SPLIT, why_not

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
MARK = "<!-- below: written by tools/command_docs.py -->\n"


def page() -> str:
    """Return the page with its tables as the package's rules are now."""
    return PAGE.read_text("utf-8").partition(MARK)[0] + MARK + tables()


def tables() -> str:
    """Return the tables of all commands."""
    text = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
    rules = {name: rule for name, (_, rule) in json.loads(text)["commands"].items()}
    single = {name for name, rule in rules.items() if rule.isdigit()}
    single -= {name for name in single if why_not(name)[0] == NOT_MERGED_TRANSACTION}
    refused = [
        f"| {', '.join(f'`{each}`' for each in patterns.split())} | {why}; {how} |"
        for patterns, (why, how) in NOT_MERGED.items()
    ]
    return "\n".join(
        [
            "\n## Split over shards\n",
            *_rows("the reply is", _by_doc(SPLIT)),
            "\n## Sent to all shards by `router.all`\n",
            *_rows("the reply is", _by_doc(OF_ALL)),
            "\n## Neither split nor merged\n",
            "With keys on different shards, or without a key, these are refused; "
            "the first row that fits shows why.\n",
            "| commands | because |",
            "|---|---|",
            *refused,
            "\n## Routed by one key\n",
            f"All other known commands, {len(single)} in number.\n",
        ]
    )


NOT_MERGED_TRANSACTION = NOT_MERGED["WATCH UNWATCH MULTI EXEC DISCARD"][0]


def _by_doc(merges: Mapping[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, merge in merges.items():
        groups.setdefault(merge.text, []).append(name)
    return groups


def _rows(title: str, groups: Mapping[str, list[str]]) -> list[str]:
    rows = [f"| {_names(names)} | {text} |" for text, names in groups.items() if names]
    return [f"| commands | {title} |", "|---|---|", *rows]


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
