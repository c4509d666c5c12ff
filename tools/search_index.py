"""Leave out of the site's search what readers do not look for: decisions, and data classes.

Zensical ranks all pages alike. Decisions are found from the pages that link to them, data classes
from the methods that return them. A page of the API that has lost its names fails: the site builds
without them, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

API = Path(__file__).parents[1] / "docs" / "api"
_NAMED = re.compile(r"api/([\w.]+)/#\1\.(\w+)")


def without_details(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a search index that guide a reader."""
    return [item for item in items if not _is_detail(item["location"])]


def _is_detail(location: str) -> bool:
    if re.match(r"decisions/.", location):
        return True
    if not (named := _NAMED.match(location)):
        return False
    found = getattr(importlib.import_module(named[1]), named[2], None)
    return isinstance(found, type) and (
        dataclasses.is_dataclass(found) or hasattr(found, "_fields")
    )


def main(path: Path) -> None:
    """Rewrite a search index."""
    index = json.loads(path.read_text(encoding="utf-8"))
    pages = {match[1] for item in index["items"] if (match := _NAMED.match(item["location"]))}
    pages.add("shardkit.admin.growth.awaiting")  # its functions are described as the blocking ones
    if bare := {page.stem for page in API.glob("*.md")} - pages:
        sys.exit(f"pages of the API without names: {', '.join(sorted(bare))}")
    kept = without_details(index["items"])
    print(f"{len(kept)} of {len(index['items'])} entries stay in {path}")
    path.write_text(json.dumps({**index, "items": kept}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
