"""Layouts: the keys of a structure's members.

================ ========================================== ======================= ==============
layout           part of a member                           its key                 parts
================ ========================================== ======================= ==============
`FixedLayout`    its CRC-32, modulo the number of parts     ``<name>:<part>``       by ``total``
`GrowingLayout`  its SHA-1, by linear hashing in its group  ``<name>:{<tag>}:<n>``  as needed
`NumberedLayout` its number, divided by the part's size     ``<name>:<part>``       any
================ ========================================== ======================= ==============

A structure passes its members and a function that builds the command for one part. The layout
groups the members, sends one command per part, and handles parts that split at the same time.
"""
