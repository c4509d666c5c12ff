"""Tokenizers: splitting text into words. docs/search-queries.md has examples.

Both are values: equal parameters make them equal, and a tokenizer's `name` has all its parameters.

Scripts without spaces are split into overlapping pairs of characters; a single character is a word.
Pairs need no dictionary, find every word of two or more characters, and as a phrase (which a query
turns them into) only these characters in a row. Korean has spaces, but its words carry particles.

Tokens keep their position in the text, so that snippets can show the original spelling. Each word
is normalised separately (NFKC and case folding, Unicode annex 15 and chapter 3.13): normalising the
whole text would shift the positions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, Protocol


class Token(NamedTuple):
    """A word and its position in a text: ``text[start:end]`` is how it was written."""

    term: str
    start: int
    end: int


class Tokenizer(Protocol):
    """Splits text into words. A value; thread-safe.

    Words never contain white space, so a text can be cut at spaces and tokenized in pieces.
    """

    @property
    def name(self) -> str:
        """The name with all parameters. Tokenizers of the same name return the same words."""
        raise NotImplementedError

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their positions, ordered by start."""
        raise NotImplementedError

    def words(self, text: str) -> list[str]:
        """Return the words in order: those of `spans`, but faster."""
        raise NotImplementedError

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words; the last one may be incomplete, as in ``inter*``."""
        raise NotImplementedError


_ENGLISH: Final = re.compile("[A-Za-z][A-Za-z']*")


@dataclass(frozen=True, slots=True)
class English:
    """Runs of the letters a to z and apostrophes, in lower case, two letters or more.

    Everything else separates words, digits and accented letters too: "naïve" is "na" and "ve". This
    is the tokenizer of "Redis in Action", chapter 7.
    """

    @property
    def name(self) -> str:
        """The name with all parameters."""
        return "english"

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their positions."""
        return (token for token in self.beginnings(text) if len(token.term) > 1)

    def words(self, text: str) -> list[str]:
        """Return the words in order."""
        runs = (run.rstrip("'") for run in _ENGLISH.findall(text))
        return [run.lower() for run in runs if len(run) > 1]

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words, including those of one letter."""
        for match in _ENGLISH.finditer(text):
            run = match[0].rstrip("'")
            yield Token(run.lower(), match.start(), match.start() + len(run))


# Letters and marks of scripts that are written without spaces, and Hangul; not their digits.
_SPACELESS: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    "\u0e81-\u0ecf\u0edc-\u0edf"  # Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109d\uaa60-\uaa76\uaa7a-\uaa7f"  # Burmese
    "\u1780-\u17d3\u17dc\u17dd"  # Khmer
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa1-\uffdc"  # Hangul
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\uff66-\uff9f\U0001b000-\U0001b16f"
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3105-\u312f"  # Han
    "\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_IGNORED: Final = "\u00ad\u034f\u200b-\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef"
_APOSTROPHES: Final = "'\u2019\u02bc\uff07"

_ASCII: Final = re.compile("[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*")
_DROP: Final = re.compile(f"[{_IGNORED}]")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")  # not the marks that are vowels in other scripts
_STROKES: Final = str.maketrans(
    {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t"}
    | {"\u0131": "i"}  # without a dot
)
_ONE_APOSTROPHE: Final = str.maketrans(dict.fromkeys(_APOSTROPHES, "'"))


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return patterns for: a word or a run without spaces; such a run; one of its characters."""
    combining = "".join(  # planes 0 and 1 have all marks but variation selectors
        chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M"
    )
    letter = rf"[^\W_{_SPACELESS}]"
    more = rf"(?:{letter}|[{combining}{_IGNORED}])*"
    word = f"{letter}{more}(?:[{_APOSTROPHES}]{letter}{more})*"
    run = f"[{_SPACELESS}][{_SPACELESS}{combining}{_IGNORED}]*"
    # Characters that may combine are normalised together: a Hangul syllable's jamo, marks.
    jamo = "\u1100-\u11ff\u3131-\u318e\uffa1-\uffdc"
    character = f".[{jamo}\uff9e\uff9f{combining}{_IGNORED}]*"
    # Most words are ASCII. Trying them first finds them five times as fast.
    short = "[A-Za-z0-9]+(?![A-Za-z0-9'\u0080-\U0010ffff])"
    return re.compile(f"{short}|({run})|{word}"), re.compile(run), re.compile(character, re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unicode:
    """Words of any script, normalised.

    Words consist of letters, digits and their marks; an apostrophe within a word belongs to it
    ("don't"), underscores and hyphens separate words. Case, full and half width, ligatures and
    superscripts make no difference.

    Args:
        fold_accents: whether accents make no difference either: "naive" is "naïve", "ø" is "o".
            This concerns accents of Latin, Greek and Cyrillic, not marks that are vowels in other
            scripts.
    """

    fold_accents: bool = True

    @property
    def name(self) -> str:
        """The name with all parameters."""
        return "unicode" if self.fold_accents else "unicode-accents"

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their positions. Words of a run without spaces overlap."""
        if text.isascii():
            for match in _ASCII.finditer(text):
                yield Token(match[0].lower(), *match.span())
            return
        for match in _patterns()[0].finditer(text):
            if match[1] is not None:
                yield from _pairs(match[1], match.start())
            else:
                for word in self._normal(match[0]):
                    yield Token(word, *match.span())

    def words(self, text: str) -> list[str]:
        """Return the words in order."""
        if text.isascii():
            return _ASCII.findall(text.lower())
        words: list[str] = []
        for line in text.split("\n"):  # most lines may still be ASCII
            if line.isascii():
                words += _ASCII.findall(line.lower())
                continue
            for match in _patterns()[0].finditer(line):
                if match[1] is not None:
                    words += [token.term for token in _pairs(match[1], 0)]
                else:
                    words += self._normal(match[0])
        return words

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words; any prefix of a word is a word too."""
        return self.spans(text)

    def _normal(self, word: str) -> tuple[str, ...]:
        """Return a word normalised; several words if a character stands for several."""
        return (word.lower(),) if word.isascii() else _normalised(word, self.fold_accents)


@lru_cache(4096)
def _normalised(word: str, fold_accents: bool) -> tuple[str, ...]:
    """Return a word of any script normalised; several words if a character stands for several."""
    before = ""
    while before != word:  # folding may produce what can be folded again
        before = word
        word = _DROP.sub("", word).translate(_ONE_APOSTROPHE)
        word = unicodedata.normalize("NFKC", word).casefold()
        if fold_accents:
            word = _ACCENTS.sub("", unicodedata.normalize("NFKD", word)).translate(_STROKES)
        word = unicodedata.normalize("NFKC", word)
    words: list[str] = []
    for match in _patterns()[0].finditer(word):
        if match[1] is not None:
            words += (token.term for token in _pairs(match[1], 0))
        else:
            words.append(match[0])
    return tuple(words)


def _pairs(run: str, start: int) -> Iterator[Token]:
    """Iterate over the pairs of characters of a run without spaces that begins at ``start``."""
    _, run_pattern, character_pattern = _patterns()
    characters: list[Token] = []
    for match in character_pattern.finditer(run):
        written = unicodedata.normalize("NFKC", _DROP.sub("", match[0]))
        characters += (  # without marks that are not these scripts' own
            Token(character, start + match.start(), start + match.end())
            for character in written
            if run_pattern.match(character)
        )
    if len(characters) == 1:
        yield characters[0]
    for first, second in pairwise(characters):
        yield Token(first.term + second.term, first.start, second.end)
