"""Tokenizers: what the words of a text are.

=========== =============================================================================
`Unicode`   words of any script: case, width and (unless told otherwise) accents make no
            difference; digits are kept; scripts without spaces are cut into pairs
`English`   runs of letters a to z and apostrophes, at least two long
=========== =============================================================================

::

    Unicode()   Don't re-read   Ærøskøbing    naïve   東京都     x²  1990s
                don't re read   aeroskobing   naive   東京 京都  x2  1990s
    English()   don't re read   rsk bing      na ve

Both are values: two with equal parameters are equal, and a tokenizer's `name` holds them all.

Chinese, Japanese, Korean, Thai, Lao, Burmese and Khmer are cut into overlapping pairs of
characters, a character alone being a word: pairs need no dictionary, find every word of two
characters or more, and as a phrase (which a query makes of them) nothing else but the characters
in a row. Korean has spaces, but its words carry their particles.

Tokens say where in the text they stand, so snippets can show it as it was written. What is
compared is normalised word by word (NFKC and case folding, Unicode annex 15 and chapter 3.13), the
text itself is not, or places would shift.
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
    """A word, and where it stands in the text: ``text[start:end]`` is how it was written."""

    term: str
    start: int
    end: int


class Tokenizer(Protocol):
    """Says what the words of a text are. A value, used by several threads.

    No word has white space within it, so a text's words are those of its parts between spaces.
    """

    @property
    def name(self) -> str:
        """What it is called, with its parameters: equal names mean equal words."""
        raise NotImplementedError

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their places, in order of where they begin."""
        raise NotImplementedError

    def words(self, text: str) -> list[str]:
        """Return the words in order: the same as `spans` gives, but faster."""
        raise NotImplementedError

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over words of which the last may be cut short, as in a query ``inter*``."""
        raise NotImplementedError


_ENGLISH: Final = re.compile("[A-Za-z][A-Za-z']*")


@dataclass(frozen=True, slots=True)
class English:
    """Runs of letters a to z and apostrophes, in lower case, of two letters or more.

    Everything else, digits and accented letters too, separates words: "naïve" is "na" and "ve".
    The tokenizer of "Redis in Action", chapter 7, for those who want exactly its index.
    """

    @property
    def name(self) -> str:
        """What it is called."""
        return "english"

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their places."""
        return (token for token in self.beginnings(text) if len(token.term) > 1)

    def words(self, text: str) -> list[str]:
        """Return the words in order."""
        found = (run.rstrip("'") for run in _ENGLISH.findall(text))
        return [run.lower() for run in found if len(run) > 1]

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words, also those of one letter."""
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
    """Return what finds: a word or a run without spaces; only the latter; a character of one."""
    combining = "".join(  # planes 0 and 1 have all marks but variation selectors
        chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M"
    )
    letter = rf"[^\W_{_SPACELESS}]"
    more = rf"(?:{letter}|[{combining}{_IGNORED}])*"
    word = f"{letter}{more}(?:[{_APOSTROPHES}]{letter}{more})*"
    run = f"[{_SPACELESS}][{_SPACELESS}{combining}{_IGNORED}]*"
    # What may combine is normalised together: the sounds of a Hangul syllable, marks.
    jamo = "\u1100-\u11ff\u3131-\u318e\uffa1-\uffdc"
    character = f".[{jamo}\uff9e\uff9f{combining}{_IGNORED}]*"
    # Most words are of ASCII alone, and found five times as fast when they are tried first.
    short = "[A-Za-z0-9]+(?![A-Za-z0-9'\u0080-\U0010ffff])"
    return re.compile(f"{short}|({run})|{word}"), re.compile(run), re.compile(character, re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unicode:
    """Words of any script, in one spelling.

    Letters, digits and the marks on them make words; an apostrophe within belongs to it ("don't"),
    an underscore or hyphen separates. Upper and lower case, full and half width, ligatures and
    superscripts make no difference.

    Args:
        fold_accents: accents make no difference either: "naive" is "naïve", "ø" is "o". Those of
            Latin, Greek and Cyrillic, not the marks that are vowels in other scripts.
    """

    fold_accents: bool = True

    @property
    def name(self) -> str:
        """What it is called."""
        return "unicode" if self.fold_accents else "unicode-accents"

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the words with their places. Words of a run without spaces overlap."""
        if text.isascii():
            for match in _ASCII.finditer(text):
                yield Token(match[0].lower(), *match.span())
            return
        for match in _patterns()[0].finditer(text):
            if match[1] is not None:
                yield from _pairs(match[1], match.start())
            else:
                for word in self._spelled(match[0]):
                    yield Token(word, *match.span())

    def words(self, text: str) -> list[str]:
        """Return the words in order."""
        if text.isascii():
            return _ASCII.findall(text.lower())
        found: list[str] = []
        for line in text.split("\n"):  # most lines of a text may still be of ASCII alone
            if line.isascii():
                found += _ASCII.findall(line.lower())
                continue
            for match in _patterns()[0].finditer(line):
                if match[1] is not None:
                    found += [token.term for token in _pairs(match[1], 0)]
                else:
                    found += self._spelled(match[0])
        return found

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words: any beginning of a word is a word."""
        return self.spans(text)

    def _spelled(self, word: str) -> tuple[str, ...]:
        """Return a word as it is compared; several, where a character stands for several words."""
        return (word.lower(),) if word.isascii() else _normalised(word, self.fold_accents)


@lru_cache(4096)
def _normalised(word: str, fold_accents: bool) -> tuple[str, ...]:
    """Return the words that a word of any script is, in the one spelling that is compared."""
    before = ""
    while before != word:  # folding may make what can be folded again; it only gets simpler
        before = word
        word = _DROP.sub("", word).translate(_ONE_APOSTROPHE)
        word = unicodedata.normalize("NFKC", word).casefold()
        if fold_accents:
            word = _ACCENTS.sub("", unicodedata.normalize("NFKD", word)).translate(_STROKES)
        word = unicodedata.normalize("NFKC", word)
    found: list[str] = []
    for match in _patterns()[0].finditer(word):
        if match[1] is not None:
            found += (token.term for token in _pairs(match[1], 0))
        else:
            found.append(match[0])
    return tuple(found)


def _pairs(run: str, start: int) -> Iterator[Token]:
    """Iterate over the pairs of characters of a run without spaces, which begins at ``start``."""
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
