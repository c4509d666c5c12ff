"""``shardkit advise``: what keys take now, and would take in structures.

::

    sampling   keys of the servers and what is in them, in small commands with pauses
    layouts    the structures that fit a family, and the bytes that each would take
    checking   the sample, loaded into each of them on an embedded server
"""
