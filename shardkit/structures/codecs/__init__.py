"""Codecs: what a value is in Python, and how it is stored.

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

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.structures.codecs.compression import Compressed, Packing, Tokens, Zstd
from shardkit.structures.codecs.plain import Codec, Json, MessagePack, Raw, Text, V
from shardkit.structures.codecs.whole_value import (
    COMPRESSORS,
    CodecResult,
    WholeValue,
    compare_codecs,
)

__all__ = [
    "JSON",
    "RAW",
    "TEXT",
    "Codec",
    "CodecResult",
    "Compressed",
    "Tokens",
    "V",
    "WholeValue",
    "Zstd",
    "codec",
    "compare_codecs",
]

RAW = Raw()
TEXT = Text()
JSON = Json()

_PLAIN: dict[str, Callable[[], Codec[Any]]] = {
    "text": lambda: TEXT,
    "json": lambda: JSON,
    "msgpack": MessagePack,
}
_PACKINGS: dict[str, Callable[[], Packing]] = {"tokens": Tokens, "zstd": Zstd}


@overload
def codec(given: None) -> Codec[bytes]: ...
@overload
def codec(given: Literal["text"]) -> Codec[str]: ...
@overload
def codec(given: Codec[V]) -> Codec[V]: ...
@overload
def codec(given: str) -> Codec[Any]: ...
@overload
def codec(given: str | Codec[V] | None) -> Codec[Any]: ...
def codec(given: str | Codec[Any] | None) -> Codec[Any]:
    """Return the codec for a structure's ``codec=``.

    Args:
        given: a name, a codec, or None.

    Raises:
        InvalidArgumentError: there is no such codec, or a library that it needs is missing.
    """
    if given is None:
        return RAW
    if isinstance(given, str):
        packing, _, inner = given.partition("-")
        if packing in _PLAIN and not inner:
            return _PLAIN[packing]()
        if packing in _PACKINGS and (inner or "json") in _PLAIN:
            return Compressed(_PACKINGS[packing](), _PLAIN[inner or "json"]())
        if packing in COMPRESSORS and (inner or "json") in _PLAIN:
            return WholeValue(packing, _PLAIN[inner or "json"]())
    elif all(hasattr(given, name) for name in ("name", "integers", "encode", "decode")):
        return given
    raise InvalidArgumentError(
        f"codec={shown(given)}",
        f"give None, one of {', '.join(_PLAIN)}, {', '.join(_PACKINGS)}, "
        f"{', '.join(COMPRESSORS)}, or two joined "
        "(tokens-text), or a Codec",
    )
