"""How an account's posts reach its readers: pushed to each timeline, or fetched on reading.

A post of an account with a million followers would be written a million times. So above a number of
followers (``fan_out_limit``) an account's posts are no longer pushed: readers have the account in
their ``pull``, and its profile is merged when they read. Below four fifths of the number they are
pushed again. During a change both apply, so that nobody misses a post and none appears twice:

::

                   more than the limit         all readers have it in pull
       (pushed) ──────────────────► marking ──────────────────────────────► pull
          ▲                            │                                      │
          │      all readers have      ▼          fewer than four fifths      │
          └───────────────────────── filling ◄────────────────────────────────┘
             the newest posts at home

=========== =============== ==============================================================
mode        posts           followers
=========== =============== ==============================================================
(none)      are pushed      get the newest posts when they follow
marking     are pushed      get them, and ``pull`` has the account
pull        are not pushed  ``pull`` has the account
filling     are pushed      get the newest posts, and ``pull`` no longer has the account
=========== =============== ==============================================================

Each change has a version. A pass of an earlier change does not undo a later mark, and ``pull``
begins only if no other change has begun. A post that was not pushed checks the mode again once it
is in its author's profile: if the mode has changed since, the post is pushed after all.
"""

from __future__ import annotations

from typing import Final

PUSHED: Final = ""
MARKING: Final = "marking"
FETCHED: Final = "pull"
FILLING: Final = "filling"
# Modes in which new followers have to fetch.
READERS_FETCH: Final = (MARKING, FETCHED)
