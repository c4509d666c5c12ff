"""Finds data that is not stored compactly, and fixes it.

::

    components ─► targets ─► scan ─► diagnosis ─► fixes
                  servers    keys    findings     CONFIG SET, parts rewritten
"""
