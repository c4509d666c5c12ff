"""Snippets: the part of a text that best shows why it matches, with the matches marked.

A snippet is the window of the given length with the most different words, prefixes and phrases of
the query. If several have as many, the one with the most matches wins, then the first. It begins
and ends between words where the text has spaces. White space, including line ends, becomes one
space.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from shardkit.search.query.parser import Node, Phrase, Prefix, Word, wanted
from shardkit.search.text.analyzer import Analyzer, Token
from shardkit.structures.base.arguments import check_integer

ELLIPSIS: Final = "…"
MAX_TEXT_LENGTH: Final = 100_000
_SPACES: Final = re.compile(r"\s+")
_BLOCK: Final = re.compile(r".{1,400}\S*", re.DOTALL)
_MAX_WORD_LENGTH: Final = 30  # search no further for a space: some scripts have none


class Match(NamedTuple):
    """A part of a text, ``text[start:end]``, and the part of the query that it matches."""

    start: int
    end: int
    node: Word | Prefix | Phrase


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
    """Return the part of a text that best shows why it matches a query.

    Args:
        text: the text as it was indexed; matches are looked for in its first 100,000 characters.
        query: the tree, analyzed by the same analyzer.
        analyzer: the index's analyzer.
        length: the maximum length in characters, without marks and ellipses: 20 to 10,000.
        mark: what to put before and after a match, or a function that marks it.
        escape: applied to all of the text before it is marked: ``html.escape`` makes a snippet safe
            for a page.
        field: the field that the text belongs to: words looked for in another one are not marked.

    Returns:
        The beginning of the text if nothing matches. An ellipsis shows where it was cut.

    Raises:
        InvalidArgumentError: the length is out of range.

    Cost: none on a server; the text is split into words once.
    """
    check_integer("snippet", "length", length, 20, 10_000)
    matches = find_matches(text[:MAX_TEXT_LENGTH], query, analyzer, field)
    start, end = _window(text, matches, length)
    written = escape or str
    marked = mark if callable(mark) else (lambda inner: f"{mark[0]}{inner}{mark[1]}")
    pieces = [ELLIPSIS] if start > 0 else []
    for first, last in _joined(matches, start, end):
        pieces += (written(_spaced(text[start:first])), marked(written(_spaced(text[first:last]))))
        start = last
    pieces.append(written(_spaced(text[start:end])))
    if end < len(text):
        pieces.append(ELLIPSIS)
    return "".join(pieces)


def find_matches(
    text: str, query: Node, analyzer: Analyzer, field: str | None = None
) -> list[Match]:
    """Return the parts of a text that match an analyzed query, ordered by start."""
    words: dict[str, list[Word | Phrase]] = {}  # by the first term
    prefixes: list[Prefix] = []
    for node in dict.fromkeys(wanted(query)):
        if field is not None and node.field not in (None, field):
            continue
        if isinstance(node, Prefix):
            prefixes.append(node)
        else:
            words.setdefault(_terms(node)[0], []).append(node)
    positions = _TermPositions(text, analyzer)
    matches = []
    for number, term in enumerate(positions.terms):
        for node in words.get(term, ()):
            last = number + len(_terms(node))
            if tuple(positions.terms[number:last]) == _terms(node):
                start, end = positions.token(number).start, positions.token(last - 1).end
                matches.append(Match(start, end, node))
        for prefix in prefixes:
            if term.startswith(prefix.text):
                token = positions.token(number)
                matches.append(Match(token.start, token.end, prefix))
    return matches


class _TermPositions:
    """The terms of a text, and on demand their positions.

    Finding terms is fast, finding their positions is slow. So the text is split into blocks of
    about 400 characters, and positions are found only in blocks with matches.
    """

    def __init__(self, text: str, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._blocks = list(_BLOCK.finditer(text))
        self._firsts: list[int] = []  # the index of each block's first term
        self._tokens: dict[int, list[Token]] = {}
        self.terms: list[str] = []
        for block in self._blocks:
            self._firsts.append(len(self.terms))
            self.terms += analyzer.terms(block[0])

    def token(self, number: int) -> Token:
        """Return a term with its position."""
        block = bisect_right(self._firsts, number) - 1
        if block not in self._tokens:
            offset = self._blocks[block].start()
            self._tokens[block] = [
                Token(token.term, token.start + offset, token.end + offset)
                for token in self._analyzer.spans(self._blocks[block][0])
            ]
        return self._tokens[block][number - self._firsts[block]]


def _terms(node: Word | Phrase) -> tuple[str, ...]:
    return node.words if isinstance(node, Phrase) else (node.text,)


def _window(text: str, matches: list[Match], length: int) -> tuple[int, int]:
    """Return the start and end of the best window."""
    best, first, last = (0, 0), 0, min(len(text), length)
    inside: Counter[Word | Prefix | Phrase] = Counter()
    behind = 0  # the first match behind the window that begins with match ``number``
    for number, match in enumerate(matches):
        while behind < len(matches) and (
            behind == number or matches[behind].end - match.start <= length
        ):
            inside[matches[behind].node] += 1
            behind += 1
        if (shows := (len(inside), inside.total())) > best:
            best, first, last = shows, match.start, max(each.end for each in matches[number:behind])
        inside[match.node] -= 1
        if not inside[match.node]:
            del inside[match.node]
    last = min(last, first + length)
    begin = max(0, min(first - (length - (last - first)) // 2, len(text) - length))
    end = min(len(text), begin + length)
    # Whole words only, unless there is no space nearby, as in scripts without spaces.
    if begin and not text[begin - 1].isspace():
        space = _SPACES.search(text, begin, max(begin, min(first, begin + _MAX_WORD_LENGTH)))
        begin = space.end() if space else begin
    if end < len(text) and not text[end].isspace():
        tail = text[max(last, end - _MAX_WORD_LENGTH) : end]
        end -= len(tail) - len(re.sub(r"\s\S*\Z", "", tail))
    inner = text[begin:end]
    return begin + len(inner) - len(inner.lstrip()), begin + len(inner.rstrip())


def _joined(matches: list[Match], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iterate over the ranges to mark within a window; overlapping matches are joined."""
    first = last = start
    for match in matches:
        if match.end <= start or match.start >= end:
            continue
        if match.start >= last:
            if first < last:
                yield first, last
            first = max(start, match.start)
        last = max(last, min(end, match.end))
    if first < last:
        yield first, last


def _spaced(text: str) -> str:
    return _SPACES.sub(" ", text)
