"""Hash functions of other programs, as these have them: with their faults, such as signed bytes.

twemproxy's are those of libhashkit. Bytes from 128 on are negative numbers there in some of them.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator
from hashlib import md5
from zlib import crc32

from shardkit.errors import ConfigError

Hash = Callable[[bytes], int]

_32, _64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def signed(value: int) -> int:
    """Return a number of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def little_md5(data: bytes) -> int:
    """Return the first four bytes of the MD5, the lowest one first: ketama's hash."""
    return int.from_bytes(md5(data, usedforsecurity=False).digest()[:4], "little")


def murmur64(data: bytes, seed: int) -> int:
    """Return MurmurHash64A of A. Appleby, for little-endian machines of 64 bits."""
    m, whole = 0xC6A4A7935BD1E995, len(data) & ~7
    h = (seed ^ (len(data) * m)) & _64
    for (k,) in struct.iter_unpack("<Q", data[:whole]):
        k = (k * m) & _64
        k = ((k ^ (k >> 47)) * m) & _64
        h = ((h ^ k) * m) & _64
    if rest := data[whole:]:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & _64
    h = ((h ^ (h >> 47)) * m) & _64
    return h ^ (h >> 47)


def xxhash64(placement: str) -> Callable[..., int]:
    """Return XXH64, of bytes and perhaps a seed.

    Raises:
        ConfigError: xxhash is not installed.
    """
    try:
        from xxhash import xxh64_intdigest
    except ModuleNotFoundError:
        raise ConfigError(
            f"placement {placement!r} needs xxhash", "pip install shardkit[placements]"
        ) from None
    digest: Callable[..., int] = xxh64_intdigest
    return digest


def _signed_bytes(data: bytes) -> Iterator[int]:
    """Bytes as C adds them to unsigned numbers of 32 bits where ``char`` is signed."""
    return (byte if byte < 128 else byte + 0xFFFFFF00 for byte in data)


def _one_at_a_time(data: bytes) -> int:
    value = 0
    for byte in _signed_bytes(data):
        value = (value + byte) & _32
        value = (value + (value << 10)) & _32
        value ^= value >> 6
    value = (value + (value << 3)) & _32
    value ^= value >> 11
    return (value + (value << 15)) & _32


def _fnv(start: int, prime: int, *, xor_first: bool) -> Hash:
    def fnv(data: bytes) -> int:
        value = start
        for byte in _signed_bytes(data):
            value = (value ^ byte) * prime & _32 if xor_first else (value * prime & _32) ^ byte
        return value

    return fnv


def _crc16(data: bytes) -> int:
    """The register has 32 bits, so that older bytes are still in the upper ones."""
    crc = 0
    for byte in data:
        crc = ((crc << 8) ^ binascii.crc_hqx(bytes([(crc >> 8 ^ byte) & 255]), 0)) & _32
    return crc


def _hsieh(data: bytes) -> int:
    if not data:
        return 0
    value, whole = 0, len(data) & ~3
    for low, high in struct.iter_unpack("<HH", data[:whole]):
        value = (value + low) & _32
        value = ((value << 16) ^ (high << 11) ^ value) & _32
        value = (value + (value >> 11)) & _32
    rest = data[whole:]
    if len(rest) == 3:
        value = (value + int.from_bytes(rest[:2], "little")) & _32
        value ^= (value << 16) & _32
        value ^= next(_signed_bytes(rest[2:])) << 18 & _32
        value = (value + (value >> 11)) & _32
    elif len(rest) == 2:
        value = (value + int.from_bytes(rest, "little")) & _32
        value ^= (value << 11) & _32
        value = (value + (value >> 17)) & _32
    elif rest:
        value = (value + rest[0]) & _32
        value ^= (value << 10) & _32
        value = (value + (value >> 1)) & _32
    value ^= (value << 3) & _32
    value = (value + (value >> 5)) & _32
    value ^= (value << 4) & _32
    value = (value + (value >> 17)) & _32
    value ^= (value << 25) & _32
    return (value + (value >> 6)) & _32


def _murmur(data: bytes) -> int:
    """MurmurHash2, with a seed from the length."""
    m, whole = 0x5BD1E995, len(data) & ~3
    h = ((0xDEADBEEF * len(data)) ^ len(data)) & _32
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = (k * m) & _32
        k = ((k ^ (k >> 24)) * m) & _32
        h = ((h * m) & _32) ^ k
    if rest := data[whole:]:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & _32
    h = ((h ^ (h >> 13)) * m) & _32
    return h ^ (h >> 15)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _32


def _jenkins(data: bytes) -> int:
    """The hash ``lookup3`` of B. Jenkins, with 13 as its initial value."""
    a: int
    b: int
    c: int
    a = b = c = (0xDEADBEEF + len(data) + 13) & _32
    while len(data) > 12:
        x, y, z = struct.unpack_from("<III", data)
        a, b, c = (a + x) & _32, (b + y) & _32, (c + z) & _32
        for bits in (4, 6, 8, 16, 19, 4):
            a = ((a - c) & _32) ^ _rotated(c, bits)
            a, b, c = b, (c + b) & _32, a
        data = data[12:]
    if not data:
        return c
    x, y, z = struct.unpack("<III", data.ljust(12, b"\0"))
    a, b, c = (a + x) & _32, (b + y) & _32, (c + z) & _32
    c = ((c ^ b) - _rotated(b, 14)) & _32
    a = ((a ^ c) - _rotated(c, 11)) & _32
    b = ((b ^ a) - _rotated(a, 25)) & _32
    c = ((c ^ b) - _rotated(b, 16)) & _32
    a = ((a ^ c) - _rotated(c, 4)) & _32
    b = ((b ^ a) - _rotated(a, 14)) & _32
    return ((c ^ b) - _rotated(b, 24)) & _32


TWEMPROXY: dict[str, Hash] = {
    "one_at_a_time": _one_at_a_time,
    "md5": little_md5,
    "crc16": _crc16,
    "crc32": lambda data: crc32(data) >> 16 & 0x7FFF,
    "crc32a": crc32,
    "fnv1_64": _fnv(0x84222325, 0x1B3, xor_first=False),
    "fnv1a_64": _fnv(0x84222325, 0x1B3, xor_first=True),
    "fnv1_32": _fnv(2166136261, 16777619, xor_first=False),
    "fnv1a_32": _fnv(2166136261, 16777619, xor_first=True),
    "hsieh": _hsieh,
    "murmur": _murmur,
    "jenkins": _jenkins,
}
