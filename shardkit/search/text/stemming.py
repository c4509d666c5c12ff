"""Stemming: words in their several forms as one, by the Snowball stemmers.

``searching``, ``searched`` and ``searches`` become ``search``. What the stem is does not matter,
and often it is no word; it only has to be the same for what belongs together. The extra ``search``
has the stemmers (snowballstemmer, pure Python, some thirty languages).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

from shardkit.errors import InvalidArgumentError

CACHED_STEMS = 50_000


def _library() -> ModuleType:
    try:
        import snowballstemmer
    except ImportError:
        raise InvalidArgumentError(
            "stemming needs the package snowballstemmer", "pip install 'shardkit[search]'"
        ) from None
    return snowballstemmer  # type: ignore[no-any-return]


@lru_cache(8)
def stemmer(language: str) -> Callable[[str], str]:
    """Return what makes stems of a language's words. Any thread may use it.

    The last 50,000 words are remembered: a stem costs some microseconds, and texts repeat words.

    Args:
        language: as Snowball calls it: ``"english"``, ``"german"``, …

    Raises:
        InvalidArgumentError: there is no such stemmer, or the extra is not installed.
    """
    library = _library()
    if language not in library.algorithms():
        raise InvalidArgumentError(
            f"stemmer={language!r}", f"give one of {', '.join(sorted(library.algorithms()))}"
        )
    snowball, lock = library.stemmer(language), threading.Lock()

    @lru_cache(CACHED_STEMS)
    def stem(word: str) -> str:
        with lock:  # a Snowball stemmer keeps the word it works on in itself
            return str(snowball.stemWord(word)) or word

    return stem
