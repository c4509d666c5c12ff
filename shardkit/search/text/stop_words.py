"""Stop words: words too common to say what a text is about, which an index leaves out."""

from __future__ import annotations

from typing import Final

_ENGLISH = (
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
