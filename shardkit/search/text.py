"""Analysis: how texts and queries become index terms; docs/search-queries.md has examples.

A tokenizer splits a text into words, with their positions; an analyzer leaves out stop words, and
stems the others if it has a stemmer. Both are values: equal parameters make them equal. An index
and its queries must use the same analyzer. An index stores its analyzer's `fingerprint` and cannot
be opened with another.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from shardkit.errors import InvalidArgumentError, extra
from shardkit.operations.arguments import shown
from shardkit.operations.forks import ForkSafeLock


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


_ENGLISH_RUN: Final = re.compile("[A-Za-z][A-Za-z']*")


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
        runs = (run.rstrip("'") for run in _ENGLISH_RUN.findall(text))
        return [run.lower() for run in runs if len(run) > 1]

    def beginnings(self, text: str) -> Iterator[Token]:
        """Iterate over the words, including those of one letter."""
        for match in _ENGLISH_RUN.finditer(text):
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
    superscripts make no difference (NFKC and case folding, Unicode annex 15 and chapter 3.13).

    Scripts without spaces are split into overlapping pairs of characters; a single character is a
    word. Pairs need no dictionary, find every word of two or more characters, and as a phrase
    (which a query turns them into) only these characters in a row. Korean has spaces, but its words
    carry particles.

    With ``fold_accents`` accents make no difference either: "naive" is "naïve", "ø" is "o". This
    concerns accents of Latin, Greek and Cyrillic, not marks that are vowels in other scripts.
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


_ENGLISH = (  # too common to say what a text is about
    # articles, pronouns, possessives
    "a an the i me my mine we us our ours you your yours he him his she her hers it its they them "
    "their theirs this that these those who whom whose which what "
    # conjunctions
    "and or but nor so yet if because while although though unless until whether than as "
    # prepositions
    "of to in on at by for from with without into onto about above below between through during "
    "before after over under against among upon "
    # auxiliary verbs
    "am is are was were be been being do does did have has had having can could may might must "
    "shall should will would "
    # adverbs and quantities
    "not no too very just also only then there here when where why how all any both each few more "
    "most other some such own same again ever"
)

ENGLISH: Final = frozenset(_ENGLISH.split())


CACHED_STEMS = 50_000


@lru_cache(8)
def stemmer(language: str) -> Callable[[str], str]:
    """Return a function that stems a language's words; thread-safe.

    It caches the last 50,000 words: a stem costs some microseconds, and texts repeat words.
    """
    with extra("search", "stemmers"):
        import snowballstemmer
    languages = snowballstemmer.algorithms()
    if language not in languages:
        raise InvalidArgumentError(
            f"stemmer={shown(language)}", f"give one of {', '.join(sorted(languages))}"
        )
    snowball, lock = snowballstemmer.stemmer(language), ForkSafeLock()

    @lru_cache(CACHED_STEMS)
    def stem(word: str) -> str:
        with lock:  # a Snowball stemmer is stateful
            return str(snowball.stemWord(word)) or word

    return stem


MAX_TERM_LENGTH: Final = 64
_FORMAT: Final = "1"  # raise it when the same parameters produce other terms


@dataclass(frozen=True)
class Analyzer:
    """Turns texts into index terms. A value: equal parameters produce equal terms.

    Terms are cut at 64 characters.

    Args:
        tokenizer: splits text into words.
        stop_words: words to leave out; the tokenizer normalises them.
        stemmer: the language whose stems are indexed instead of words (needs the extra
            ``search``), or None for words as they are.

    Raises:
        InvalidArgumentError: a stop word is several words, there is no such stemmer, or the extra
            is not installed.
    """

    tokenizer: Tokenizer = field(default_factory=Unicode)
    stop_words: Set[str] = ENGLISH
    stemmer: str | None = None

    def __post_init__(self) -> None:
        given: object = self.stop_words
        if isinstance(given, str):
            raise InvalidArgumentError(f"stop_words={shown(given)}", "give a set of words")
        normalised: set[str] = set()
        for word in self.stop_words:
            words = self.tokenizer.words(word)
            if len(words) > 1:
                raise InvalidArgumentError(
                    f"the stop word {shown(word)} is the words {', '.join(words)}",
                    "give single words",
                )
            normalised.update(words)
        object.__setattr__(self, "stop_words", frozenset(normalised))
        if self.stemmer is not None:
            stemmer(self.stemmer)

    @property
    def fingerprint(self) -> str:
        """The parameters as a short text, the same in every process."""
        words = "\n".join(sorted(self.stop_words)).encode()
        digest = hashlib.blake2b(words, digest_size=6).hexdigest()
        return f"{_FORMAT} {self.tokenizer.name} {digest} {self.stemmer or '-'}"

    def terms(self, text: str) -> list[str]:
        """Return the index terms of a text, in order."""
        stop = self.stop_words
        terms: Iterator[str] = (word for word in self.tokenizer.words(text) if word not in stop)
        if self.stemmer is not None:
            terms = map(stemmer(self.stemmer), terms)
        return [term[:MAX_TERM_LENGTH] for term in terms]

    def spans(self, text: str) -> Iterator[Token]:
        """Iterate over the index terms of a text with their positions."""
        stem = str if self.stemmer is None else stemmer(self.stemmer)
        for term, start, end in self.tokenizer.spans(text):
            if term not in self.stop_words:
                yield Token(stem(term)[:MAX_TERM_LENGTH], start, end)

    def beginnings(self, text: str) -> list[Token]:
        """Return the words of a text, not stemmed; the last one may be incomplete.

        Stop words are kept: many words begin with ``the*``.
        """
        return [
            token._replace(term=token.term[:MAX_TERM_LENGTH])
            for token in self.tokenizer.beginnings(text)
        ]
