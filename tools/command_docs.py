"""Writes the tables of docs/commands.md, which say how each command is routed, split and merged.

``python tools/command_docs.py`` writes the page's part below the mark.
"""

from __future__ import annotations

import json
import re
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
    left = rules.keys() - single - SPLIT.keys() - OF_ALL.keys()
    refused: dict[str, list[str]] = {f"{why}; {how}": [] for why, how in NOT_MERGED.values()}
    for name in left:
        refused["; ".join(why_not(name))].append(name)
    return "\n".join(
        [
            "\n## Split over shards\n",
            *_rows("the reply is", _by_doc(SPLIT)),
            "\n## Sent to all shards by `router.all`\n",
            *_rows("the reply is", _by_doc(OF_ALL)),
            "\n## Neither split nor merged\n",
            "With keys on different shards, or without a key, these are refused.\n",
            *_rows("because", refused),
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
    """Name each command, or of more than three of one family (`FT.…`, `ACL …`) the family."""
    families: dict[str, list[str]] = {}
    for name in sorted(names):
        prefix = re.match(r"\w+[. ](?=.)", name)
        families.setdefault(f"{prefix[0].strip(' ')} …" if prefix else name, []).append(name)
    return ", ".join(
        f"`{family.replace('. …', '.…')}` ({len(members)} commands)"
        if len(members) > 3
        else ", ".join(f"`{name}`" for name in members)
        for family, members in families.items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
