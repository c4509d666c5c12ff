"""Layouts: which keys the members of a hash, set or sorted set in parts live at.

============ ========================== ============================================= ==============
layout       part of a member           its key                                       parts
============ ========================== ============================================= ==============
`Fixed`      CRC-32 of it, modulo       ``<name>:<part>``                             by ``total``
`Growing`    SHA-1 of it, by linear     ``<name>:{<tag>}:<part>``                     as needed
             hashing in its group
`Numbered`   its number, divided        ``<name>:<part>``                             any
============ ========================== ============================================= ==============

A structure gives a layout its members and what is to be done with those of one part; the layout
groups them, sends one command a part, and deals with what changes meanwhile.
"""

from shardkit.structures.layouts.base import Chunk, Layout
from shardkit.structures.layouts.fixed import Fixed
from shardkit.structures.layouts.growing import (
    GROUPS,
    Growing,
    ask_together,
    check_groups,
    chunks_of,
)
from shardkit.structures.layouts.numbered import Numbered

__all__ = [
    "GROUPS",
    "Chunk",
    "Fixed",
    "Growing",
    "Layout",
    "Numbered",
    "ask_together",
    "check_groups",
    "chunks_of",
]
