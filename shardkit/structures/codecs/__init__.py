"""Codecs: values in Python, and their stored form.

================== ============================ ================ =============================
``codec=``         values given                 values returned  what is stored
================== ============================ ================ =============================
None               str, bytes, int, float       bytes            the value's bytes
"text"             str                          str              UTF-8
"json"             what JSON can say            the same         JSON without spaces
"msgpack"          the same, bytes, other keys  the same         MessagePack
"zstd"             as "json"                    as "json"        zstd of it, with a dictionary
"tokens"           as "json"                    as "json"        tokens of a dictionary
"lz4"              as "json"                    as "json"        lz4 of each value by itself
"gzip"             as "json"                    as "json"        gzip of it
"bz2"              as "json"                    as "json"        bzip2 of it
================== ============================ ================ =============================

``"zstd-msgpack"``, ``"tokens-text"`` and so on compress what another codec writes. The extra
``codecs`` installs what msgpack, zstd and lz4 need, and makes JSON faster.

Measured on 370,000 city records, ``["Calverton Park","MO","US"]``, by id in parts of 128: bytes per
value, and bytes per entry of the server's memory on Redis 7.0 and Valkey 9.1, dictionary included
(85.0 and 56.3 in one plain HASH of the JSON)::

    json       23.6    30.2    28.6
    msgpack    17.6    25.0    22.4
    zstd       16.7    24.8    21.4       dictionary of 112 KB
    tokens      5.9    11.8    10.7       16,384 tokens learned from 50,000 values
"""
