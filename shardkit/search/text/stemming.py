"""Stemming: reducing the forms of a word to one, with the Snowball stemmers.

``searching``, ``searched`` and ``searches`` become ``search``. A stem need not be a word, only the
same for all forms of a word. The extra ``search`` installs the stemmers (snowballstemmer, pure
Python, some thirty languages).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from shardkit.errors import InvalidArgumentError, extra
from shardkit.operations.forks import ForkSafeLock

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
