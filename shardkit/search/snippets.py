"""Snippets: the part of a text that shows best why it was found, with what was found marked.

::

    snippet(text, analyze(parse("redis shard*"), analyzer), analyzer)

    '… keys of one **Redis** server are moved to others, **shard** by **shard**, while clients …'

Of all windows of the wanted length it is the first of those that show most of the query's
different words, beginnings and phrases, and of these the one that shows them most often. It begins
and ends between words where the text has spaces. White space, line ends too, becomes one space.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from shardkit.search.query.tree import Node, Phrase, Prefix, Word, wanted
from shardkit.search.text.analyzer import Analyzer
from shardkit.search.text.tokenizers import Token
from shardkit.structures.base.arguments import check_integer

ELLIPSIS: Final = "…"
MAX_TEXT_LENGTH: Final = 100_000
_SPACES: Final = re.compile(r"\s+")
_PART: Final = re.compile(r".{1,400}\S*", re.DOTALL)
_MAX_WORD_LENGTH: Final = 30  # further than this no space is looked for: the script may have none


class Match(NamedTuple):
    """What was found, and where: ``text[start:end]``."""

    start: int
    end: int
    found: Word | Prefix | Phrase


def snippet(
    text: str,
    query: Node,
    analyzer: Analyzer,
    *,
    length: int = 160,
    mark: tuple[str, str] | Callable[[str], str] = ("**", "**"),
    escape: Callable[[str], str] | None = None,
    field: str | None = None,
) -> str:
    """Return the part of a text that shows best what a query found in it.

    Args:
        text: the text as it was indexed. Of a long one the first 100,000 characters are looked at.
        query: the tree, analyzed by the same analyzer.
        analyzer: the index's.
        length: how long it may be, in characters, without marks and ellipses: 20 to 10,000.
        mark: what is put before and after what was found, or what makes its marked form of it.
        escape: applied to all of the text, what is marked too, before it is marked:
            ``html.escape`` makes a snippet safe for a page.
        field: the field that the text is of: words wanted in another one are not marked.

    Returns:
        The beginning of the text if nothing was found in it. An ellipsis is where it was cut.

    Raises:
        InvalidArgumentError: the length is out of range.

    Cost: none on a server; the text is split into words once.
    """
    check_integer("snippet", "length", length, 20, 10_000)
    looked_at = text[:MAX_TEXT_LENGTH]
    found = find_matches(looked_at, query, analyzer, field)
    start, end = _window(text, found, length)
    written = escape or str
    marked = mark if callable(mark) else (lambda inner: f"{mark[0]}{inner}{mark[1]}")
    pieces = [ELLIPSIS] if start > 0 else []
    for first, last in _joined(found, start, end):
        pieces += (written(_spaced(text[start:first])), marked(written(_spaced(text[first:last]))))
        start = last
    pieces.append(written(_spaced(text[start:end])))
    if end < len(text):
        pieces.append(ELLIPSIS)
    return "".join(pieces)


def find_matches(
    text: str, query: Node, analyzer: Analyzer, field: str | None = None
) -> list[Match]:
    """Return where a text has what an analyzed query looks for, in order of where it begins."""
    words: dict[str, list[Word | Phrase]] = {}  # by the first term
    prefixes: list[Prefix] = []
    for node in dict.fromkeys(wanted(query)):
        if field is not None and node.field not in (None, field):
            continue
        if isinstance(node, Prefix):
            prefixes.append(node)
        else:
            words.setdefault(_terms(node)[0], []).append(node)
    places = _Places(text, analyzer)
    found = []
    for number, term in enumerate(places.terms):
        for node in words.get(term, ()):
            last = number + len(_terms(node))
            if tuple(places.terms[number:last]) == _terms(node):
                found.append(Match(places.token(number).start, places.token(last - 1).end, node))
        for prefix in prefixes:
            if term.startswith(prefix.text):
                token = places.token(number)
                found.append(Match(token.start, token.end, prefix))
    return found


class _Places:
    """The terms of a text, and on demand where they stand.

    Terms are quickly found, their places are not: these are looked up part by part, in the parts
    of some hundred characters that have something to mark.
    """

    def __init__(self, text: str, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._parts = list(_PART.finditer(text))
        self._firsts: list[int] = []  # the number of each part's first term
        self._tokens: dict[int, list[Token]] = {}
        self.terms: list[str] = []
        for part in self._parts:
            self._firsts.append(len(self.terms))
            self.terms += analyzer.terms(part[0])

    def token(self, number: int) -> Token:
        """Return a term with its place."""
        part = bisect_right(self._firsts, number) - 1
        if part not in self._tokens:
            offset = self._parts[part].start()
            self._tokens[part] = [
                Token(token.term, token.start + offset, token.end + offset)
                for token in self._analyzer.spans(self._parts[part][0])
            ]
        return self._tokens[part][number - self._firsts[part]]


def _terms(node: Word | Phrase) -> tuple[str, ...]:
    return node.words if isinstance(node, Phrase) else (node.text,)


def _window(text: str, found: list[Match], length: int) -> tuple[int, int]:
    """Return where the best window begins and ends."""
    best, first, last = (0, 0), 0, min(len(text), length)
    inside: Counter[Word | Prefix | Phrase] = Counter()
    behind = 0  # hits from this one on are behind the window that begins with hit ``number``
    for number, hit in enumerate(found):
        while behind < len(found) and (behind == number or found[behind].end - hit.start <= length):
            inside[found[behind].found] += 1
            behind += 1
        if (shows := (len(inside), inside.total())) > best:
            best, first, last = shows, hit.start, max(each.end for each in found[number:behind])
        inside[hit.found] -= 1
        if not inside[hit.found]:
            del inside[hit.found]
    last = min(last, first + length)
    begin = max(0, min(first - (length - (last - first)) // 2, len(text) - length))
    end = min(len(text), begin + length)
    # Whole words only, unless there is no space far and wide: the script may have none.
    if begin and not text[begin - 1].isspace():
        space = _SPACES.search(text, begin, max(begin, min(first, begin + _MAX_WORD_LENGTH)))
        begin = space.end() if space else begin
    if end < len(text) and not text[end].isspace():
        tail = text[max(last, end - _MAX_WORD_LENGTH) : end]
        end -= len(tail) - len(re.sub(r"\s\S*\Z", "", tail))
    inner = text[begin:end]
    return begin + len(inner) - len(inner.lstrip()), begin + len(inner.rstrip())


def _joined(found: list[Match], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iterate over what to mark within a window: places that overlap are one."""
    first = last = start
    for hit in found:
        if hit.end <= start or hit.start >= end:
            continue
        if hit.start >= last:
            if first < last:
                yield first, last
            first = max(start, hit.start)
        last = max(last, min(end, hit.end))
    if first < last:
        yield first, last


def _spaced(text: str) -> str:
    return _SPACES.sub(" ", text)
