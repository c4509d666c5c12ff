"""Analysis: how texts and queries become index terms.

::

    The Searches of the naïve              a text
    the  searches  of  the  naive          its words (`shardkit.search.text.tokenizers`)
         searches           naive          without stop words
         search             naiv           stemmed, if wanted, such as by the extra ``search``
         0                  1              their positions, by which phrases are found

An index and its queries must use the same analyzer. An index stores its analyzer's `fingerprint`
and cannot be opened with another. `shardkit.search.query.analysis` analyzes queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from shardkit.errors import InvalidArgumentError, extra
from shardkit.operations.arguments import shown
from shardkit.operations.forks import ForkSafeLock
from shardkit.search.text.tokenizers import Token, Tokenizer, Unicode

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
            f"stemmer={language!r}", f"give one of {', '.join(sorted(languages))}"
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
