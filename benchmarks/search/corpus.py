"""What is searched: passages of what the installed packages say of themselves.

Descriptions and docstrings, cut between paragraphs into passages of at most 150 words. So it is
another corpus wherever other packages are installed; the results say how large it was. It is read
once, and kept in the directory for temporary files until the packages change.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from shardkit.search.files import installed_documents

MOST_WORDS = 150
_PARAGRAPHS = re.compile(r"\n\s*\n")


class Passage(NamedTuple):
    """One document of the corpus; ``updated`` is in seconds since 1970."""

    id: str
    title: str
    text: str
    kind: str
    updated: float
    size: int


def passages() -> list[Passage]:
    """Return the corpus, in the order in which it was read."""
    cached = _cache()
    if not cached.exists():
        half = cached.with_suffix(".part")
        with half.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(passage)}\n" for passage in _read())
        half.replace(cached)
    with cached.open(encoding="utf-8") as file:
        return [Passage(*json.loads(line)) for line in file]


def _cache() -> Path:
    installed = sorted(f"{d.name} {d.version}" for d in distributions())
    digest = blake2b("\n".join(installed).encode(), digest_size=6).hexdigest()
    return Path(tempfile.gettempdir()) / f"shardkit-search-{digest}-{MOST_WORDS}.jsonl"


def _read() -> Iterator[Passage]:
    seen = set()
    for number, document in enumerate(installed_documents()):
        if document.id in seen:
            continue
        seen.add(document.id)
        for part, text in enumerate(_cut(document.text)):
            yield Passage(
                f"{document.id}#{part}",
                document.title,
                text,
                document.attributes["kind"],
                document.attributes["updated"] + number,  # no two are equal
                len(text.encode(errors="replace")),
            )


def _cut(text: str) -> Iterator[str]:
    kept: list[str] = []
    count = 0
    for paragraph in _PARAGRAPHS.split(text.encode(errors="replace").decode()):
        words = len(paragraph.split())
        if kept and count + words > MOST_WORDS:
            yield "\n\n".join(kept)
            kept, count = [], 0
        if words > MOST_WORDS:
            split = paragraph.split()
            for start in range(0, words, MOST_WORDS):
                yield " ".join(split[start : start + MOST_WORDS])
        elif words:
            kept.append(paragraph)
            count += words
    if kept:
        yield "\n\n".join(kept)
