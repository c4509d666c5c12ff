"""Placements of other programs, for data that these have placed.

A placement's options follow its name as JSON: ``jedis {"names":["a","b"]}``. In a shard map they
are a mapping: ``placement: {name: jedis, names: [a, b]}``; `rule_of` turns it into text.
docs/placement.md has the table; tests/routing/vectors has what the programs themselves place where.

Most of them are rings: each server has points, which are hashes of its name and a number, and a key
belongs to the first point from its own hash on, or to the last one before it.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import md5, sha1, sha256
from typing import Any, TypeAlias
from zlib import crc32

from shardkit.errors import ConfigError
from shardkit.operations.commands import Key
from shardkit.routing.keys import hash_tag, key_bytes

Hash: TypeAlias = Callable[[bytes], int]

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


_Place: TypeAlias = Callable[[bytes], int]
_Points: TypeAlias = Iterable[tuple[int, int]]  # hashes, and the shards that they belong to

_CODIS_SLOTS = 1024
_MOST_ENVOY = 1_000_003  # entries and points: a second to calculate
_MOST_WEIGHT = 1000  # a server's points grow with its weight


def rule_of(described: Any) -> Any:
    """Return a placement that a shard map describes by a mapping as text; any other as it is."""
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        return described
    options = {name: value for name, value in described.items() if name != "name"}
    try:
        text = json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError):
        return described
    return f"{described['name']} {text}" if options else described["name"]


def described_rule(rule: str) -> str | dict[str, Any]:
    """Return a placement as a shard map describes it: a mapping if it has options."""
    name, _, text = rule.partition(" ")
    return {"name": name, **json.loads(text)} if text else rule


def place_as_others(rule: str, count: int) -> Callable[[Key], int] | None:
    """Return the function that places a key as another program does; None for an unknown name.

    Raises:
        ConfigError: an option is wrong or missing, or a library that it needs.
    """
    name, _, text = rule.partition(" ")
    make = _PROGRAMS.get(name)
    if make is None:
        return None
    options = _Options(name, text, count)
    place = make(options)
    options.check_used()
    return lambda key: place(key_bytes(key))


class _Options:
    """The options of a placement; reading one checks it."""

    def __init__(self, name: str, text: str, count: int) -> None:
        self.name = name
        self.count = count
        try:
            given = json.loads(text or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise self.wrong("its options are not a JSON object", "write them as a mapping")
        self._given: dict[str, Any] = given
        self._known = {"names", "weights"}

    def wrong(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(f"placement {self.name!r}: {problem}", remedy)

    def names(self, default: Sequence[str] = ()) -> list[str]:
        """The servers' names, shard 0's first, as the other program has them."""
        names = self._given.get("names", list(default))
        whole = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
        if not whole or len(names) != self.count or len(set(names)) != self.count:
            remedy = f"give {self.count} different texts, shard 0's first"
            raise self.wrong(f"names={names!r}", remedy)
        return list(names)

    def weights(self) -> list[int]:
        """The servers' weights, shard 0's first; 1 for each if they are not given."""
        weights = self._given.get("weights", [1] * self.count)
        whole = isinstance(weights, list) and all(
            type(weight) is int and 1 <= weight <= _MOST_WEIGHT for weight in weights
        )
        if not whole or len(weights) != self.count:
            raise self.wrong(f"weights={weights!r}", f"give {self.count} integers, 1 to 1,000")
        return list(weights)

    def unweighted(self) -> None:
        if "weights" in self._given:
            raise self.wrong("it has no weights", "leave weights out")

    def choice(self, option: str, among: Mapping[str, Any], default: str) -> Any:
        """What the value of an option stands for."""
        self._known.add(option)
        value = self._given.get(option, default)
        if not isinstance(value, str) or value not in among:
            raise self.wrong(f"{option}={value!r}", f"use one of {', '.join(among)}")
        return among[value]

    def get(self, option: str, default: Any = None) -> Any:
        self._known.add(option)
        return self._given.get(option, default)

    def number(self, option: str, default: int, most: int) -> int:
        """An integer from 1 on."""
        value = self.get(option, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.wrong(f"{option}={value!r}", f"give 1 to {most:,}")
        return value

    def check_used(self) -> None:
        if unknown := self._given.keys() - self._known:
            known = ", ".join(sorted(self._known))
            raise self.wrong(f"unknown option {min(unknown)!r}", f"use some of {known}")


# Which part of a key is hashed, if not the whole: Redis Cluster's rule is `hash_tag`.


def _tag_between(first: bytes, last: bytes, *, empty: bool) -> Callable[[bytes], bytes]:
    def tag(key: bytes) -> bytes:
        start = key.find(first) + 1
        end = key.find(last, start) if start else -1
        return key[start:end] if end > start or (empty and end == start) else key

    return tag


def _tag_by(pattern: bytes) -> Callable[[bytes], bytes]:
    search = re.compile(pattern).search

    def tag(key: bytes) -> bytes:
        match = search(key)
        return match[1] if match else key

    return tag


_GREEDY = _tag_by(rb"\A.*\{(.*)\}")  # redis-shard's and django-redis': up to the last brace


# Rings


def _ring(points: _Points) -> tuple[list[int], list[int]]:
    """Return points in order, and their shards; of equal points the last one counts."""
    by_point = dict(points)
    places = sorted(by_point)
    return places, [by_point[point] for point in places]


def _from_on(points: _Points, hash_: Hash, bisect: Any = bisect_left) -> _Place:
    """Place keys at the first point from their hash on, else at the first of all."""
    places, shards = _ring(points)
    shards.append(shards[0])
    return lambda key: shards[bisect(places, hash_(key))]


def _up_to(points: _Points, hash_: Hash) -> _Place:
    """Place keys at the last point up to their hash, else at the last of all."""
    places, shards = _ring(points)
    return lambda key: shards[bisect_right(places, hash_(key)) - 1]


def _numbered(names: Sequence[str], counts: Sequence[int], form: str, hash_: Hash) -> _Points:
    for shard, (name, count) in enumerate(zip(names, counts, strict=True)):
        for number in range(count):
            yield hash_(form.format(name, number).encode()), shard


def _ketama(names: Sequence[str], counts: Sequence[int], form: str = "{}-{}") -> _Points:
    """Four points of each MD5."""
    for shard, (name, count) in enumerate(zip(names, counts, strict=True)):
        for number in range(count):
            digest = md5(form.format(name, number).encode(), usedforsecurity=False).digest()
            for point in struct.unpack("<4I", digest):
                yield point, shard


def _shares(weights: Sequence[int], points: int) -> list[int]:
    """How many of ``points`` for each server a server has by its weight."""
    return [points * len(weights) * weight // sum(weights) for weight in weights]


def _single_precision(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _single_shares(weights: Sequence[int], points: int = 40) -> list[int]:
    """The same as twemproxy and libmemcached calculate it, in single precision."""
    single, total = _single_precision, sum(weights)
    shares = []
    for weight in weights:
        share = single(single(single(weight / total) * 4 * points) / 4)
        shares.append(math.floor(single(single(share * len(weights)) + 1e-10)))
    return shares


# Programs


def _whole(hash_: Hash) -> Callable[[_Options], _Place]:
    def make(options: _Options) -> _Place:
        options.unweighted()
        count = options.count
        return lambda key: hash_(key) % count

    return make


def _twemproxy(options: _Options) -> _Place:
    hash_ = options.choice("hash", TWEMPROXY, "fnv1a_64")
    kinds = {"ketama": True, "modula": False}
    is_ketama = options.choice("distribution", kinds, "ketama")
    pair = options.get("hash_tag", "")
    if not isinstance(pair, str) or len(pair.encode()) not in (0, 2):
        raise options.wrong(f"hash_tag={pair!r}", "give two ASCII characters, such as '{}'")
    names, weights = options.names(), options.weights()
    place: _Place
    if is_ketama:
        place = _from_on(_ketama([n[:85] for n in names], _single_shares(weights)), hash_)
    else:  # it sorts its servers by name, shorter names first
        order = sorted(range(options.count), key=lambda n: (len(names[n].encode()), names[n]))
        shards = [shard for shard in order for _ in range(weights[shard])]
        place = lambda key: shards[hash_(key) % len(shards)]  # noqa: E731
    if options.count == 1:
        return lambda key: 0
    if not pair:
        return place
    first, last = pair.encode()[:1], pair.encode()[1:]
    tag = _tag_between(first, last, empty=False)
    return lambda key: place(tag(key))


def _libmemcached(options: _Options) -> _Place:
    return _from_on(_ketama(options.names(), _single_shares(options.weights())), little_md5)


def _uhashring(options: _Options) -> _Place:
    points = _ketama(options.names(), _shares(options.weights(), 40))
    return _from_on(points, little_md5, bisect_right)


def _rb(options: _Options) -> _Place:
    options.unweighted()
    count = options.count
    if options.choice("router", {"partition": True, "consistent": False}, "partition"):
        return lambda key: _signed_crc32(key) % count
    names = [str(shard) for shard in range(count)]
    points = _ketama(names, [40] * count, "{}-{}-salt")
    return _from_on(points, little_md5, bisect_right)


def _redis_shard(options: _Options) -> _Place:
    options.unweighted()
    hashes: dict[str, Hash] = {"crc32": crc32, "md5": _md5, "sha1": _sha1}
    hash_ = options.choice("hash", hashes, "crc32")
    places, shards = _ring(_numbered(options.names(), [128] * options.count, "{}:{}", hash_))
    last = len(places) - 1

    def place(key: bytes) -> int:
        tag = _GREEDY(key)
        with suppress(UnicodeError):  # it takes other text only as bytes
            tag = tag.decode().encode("latin-1")
        return shards[min(bisect_right(places, hash_(tag)), last)]

    return place


def _django_redis(options: _Options) -> _Place:
    options.unweighted()
    place = _up_to(_numbered(options.names(), [128] * options.count, "{}:{}", _sha256), _sha256)
    return lambda key: place(_GREEDY(key))


def _predis(options: _Options) -> _Place:
    names, weights = options.names(), options.weights()
    if options.choice("distributor", {"hashring": False, "ketama": True}, "hashring"):
        place = _from_on(_ketama(names, _shares(weights, 40)), little_md5)
    else:  # PHP rounds halves up
        counts = [math.floor(128 * options.count * n / sum(weights) + 0.5) for n in weights]
        place = _up_to(_numbered(names, counts, "{}:{}", crc32), crc32)
    return lambda key: place(hash_tag(key))


def _redis_rb(options: _Options) -> _Place:
    options.unweighted()
    place = _up_to(_numbered(options.names(), [160] * options.count, "{}:{}", crc32), crc32)
    tag = _tag_by(rb"(?m)^\{(.+?)\}")
    return lambda key: place(tag(key))


def _redis_array(options: _Options) -> _Place:
    options.unweighted()
    tag, count = _tag_between(b"{", b"}", empty=True), options.count
    # The highest hash of all would be one beyond the last server.
    return lambda key: min(crc32(tag(key)) * count // 0xFFFFFFFF, count - 1)


def _jedis(options: _Options) -> _Place:
    hashes: dict[str, Hash] = {"murmur": _jedis_murmur, "md5": little_md5}
    hash_ = options.choice("hash", hashes, "murmur")
    counts = [160 * weight for weight in options.weights()]
    if options.get("names") is None:
        numbers = [str(shard) for shard in range(options.count)]
        points = _numbered(numbers, counts, "SHARD-{}-NODE-{}", hash_)
    else:
        points = _numbered(options.names(), counts, "{}*{}", hash_)
    place = _from_on(points, hash_)
    if not options.get("hash_tag", False):
        return place
    tag = _tag_by(rb"\{([^\n\r]+?)\}")
    return lambda key: place(tag(key))


def _go_redis(options: _Options) -> _Place:
    options.unweighted()
    hash_ = xxhash64(options.name)
    seeds = [hash_(name.encode()) for name in options.names()]

    def place(key: bytes) -> int:
        value = hash_(hash_tag(key))
        weights = [_xorshift(value ^ seed) for seed in seeds]
        return weights.index(max(weights))

    return place


def _xorshift(x: int) -> int:
    x ^= x >> 12
    x = (x ^ (x << 25)) & 0xFFFFFFFFFFFFFFFF
    x ^= x >> 27
    return (x * 2685821657736338717) & 0xFFFFFFFFFFFFFFFF


def _codis(options: _Options) -> _Place:
    options.unweighted()
    owner: dict[int, int] = {}
    remedy = f"give {options.count} texts of ranges such as '0-511', each of 0 to 1023 once"
    slots = options.get("slots")
    if not isinstance(slots, list) or len(slots) != options.count:
        raise options.wrong(f"slots={slots!r}", remedy)
    for shard, text in enumerate(slots):
        for low, high in _ranges(options, text, remedy):
            for slot in range(low, high + 1):
                if owner.setdefault(slot, shard) != shard:
                    raise options.wrong(f"slot {slot} is given twice", remedy)
    if len(owner) != _CODIS_SLOTS:
        raise options.wrong(f"{_CODIS_SLOTS - len(owner)} slots are missing", remedy)
    tag = _tag_between(b"{", b"}", empty=True)
    return lambda key: owner[crc32(tag(key)) % _CODIS_SLOTS]


def _envoy(options: _Options) -> _Place:
    names, weights = options.names(), options.weights()
    if options.choice("lb", {"ring_hash": False, "maglev": True}, "ring_hash"):
        size = options.number("table_size", 65_537, _MOST_ENVOY)
        if size < options.count or any(size % n == 0 for n in range(2, math.isqrt(size) + 1)):
            raise options.wrong(f"table_size={size}", "give a prime number, as Envoy has it")
        table = maglev_table(names, weights, size, xxhash64(options.name))
        place: _Place = lambda key: table[_envoy_murmur(key) % size]  # noqa: E731
    else:
        hash_ = options.choice("hash", {"xx_hash": None, "murmur_hash_2": _envoy_murmur}, "xx_hash")
        least = options.number("minimum_ring_size", 1024, _MOST_ENVOY)
        most = options.number("maximum_ring_size", 8 * 1024 * 1024, 8 * 1024 * 1024)
        points = envoy_points(names, weights, least, most, hash_ or xxhash64(options.name))
        place = _from_on(points, _envoy_murmur)
    return (lambda key: place(hash_tag(key))) if options.get("hash_tag", False) else place


def envoy_points(
    names: Sequence[str], weights: Sequence[int], least: int, most: int, hash_: Hash
) -> _Points:
    """Return the points of Envoy's ring_hash, with fractions of points carried over."""
    lightest = min(weights) / sum(weights)
    scale = min(math.ceil(lightest * least) / lightest, float(most))
    placed, target = 0, 0.0
    for shard, (name, weight) in enumerate(zip(names, weights, strict=True)):
        target += scale * (weight / sum(weights))
        number = 0
        while placed < target:
            yield hash_(f"{name}_{number}".encode()), shard
            number, placed = number + 1, placed + 1


def maglev_table(
    names: Sequence[str], weights: Sequence[int], size: int, hash_: Callable[..., int]
) -> list[int]:
    """Return the shards of the entries of Envoy's maglev table."""
    order = sorted(range(len(names)), key=lambda shard: names[shard].encode())
    keys = [names[shard].encode() for shard in order]
    steps = [hash_(key, 1) % (size - 1) + 1 for key in keys]
    nexts = [hash_(key) % size for key in keys]
    shares = [weights[shard] / sum(weights) for shard in order]
    targets = [0.0] * len(order)
    table: list[int | None] = [None] * size
    left, round_ = size, 0
    while left:
        round_ += 1
        for n, shard in enumerate(order):
            if round_ * shares[n] < targets[n] or not left:
                continue
            targets[n] += max(shares)
            while table[nexts[n]] is not None:
                nexts[n] = (nexts[n] + steps[n]) % size
            table[nexts[n]] = shard
            left -= 1
    return [shard for shard in table if shard is not None]


def _ranges(options: _Options, text: object, remedy: str) -> Iterator[tuple[int, int]]:
    for part in text.replace(",", " ").split() if isinstance(text, str) else ():
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high < _CODIS_SLOTS:
            raise options.wrong(f"slots {part!r}", remedy)
        yield low, high


def _signed_crc32(data: bytes) -> int:
    """The CRC-32 of Python 2, which rb has kept: negative from 2^31 on."""
    value = crc32(data)
    return value - (value >> 31 << 32)


def _whole_digest(algorithm: Callable[..., Any]) -> Hash:
    return lambda data: int.from_bytes(algorithm(data, usedforsecurity=False).digest(), "big")


_md5, _sha1, _sha256 = map(_whole_digest, (md5, sha1, sha256))


def _jedis_murmur(data: bytes) -> int:
    return signed(murmur64(data, 0x1234ABCD))


def _envoy_murmur(data: bytes) -> int:
    return murmur64(data, 0xC70F6907)


_PROGRAMS: dict[str, Callable[[_Options], _Place]] = {
    "whole:crc32": _whole(crc32),
    "whole:md5": _whole(_md5),
    "whole:sha1": _whole(_sha1),
    "twemproxy": _twemproxy,
    "libmemcached": _libmemcached,
    "uhashring": _uhashring,
    "rb": _rb,
    "redis-shard": _redis_shard,
    "django-redis": _django_redis,
    "predis": _predis,
    "redis-rb": _redis_rb,
    "redis-array": _redis_array,
    "jedis": _jedis,
    "go-redis": _go_redis,
    "codis": _codis,
    "envoy": _envoy,
}
NAMES = tuple(_PROGRAMS)
