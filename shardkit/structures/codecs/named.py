"""Codecs by name, as ``codec=`` of a structure gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.structures.codecs.compression import Compressed, Packing, Tokens, Zstd
from shardkit.structures.codecs.plain import Codec, Json, MessagePack, Raw, Text, V
from shardkit.structures.codecs.whole_value import COMPRESSORS, WholeValue

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
    """Return the codec for a structure's ``codec=``: a name, a codec, or None.

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


def encode_json(what: str, value: Any) -> bytes:
    """Return the JSON of a value, as `Json` encodes it; ``what`` is the thing, for the error."""
    try:
        return JSON.encode(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{what} cannot be represented in JSON: {error.message}", error.remedy
        ) from None
