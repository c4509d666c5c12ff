"""Dictionaries beside a structure: trained once, read by every process, trained again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from faces import Face, faced, holder, keys_of

from shardkit import ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.operations.operation import Operation, Structure, operation
from shardkit.structures.codecs.compression import Compressed, Tokens, dictionary_of
from shardkit.structures.codecs.named import JSON, codec
from shardkit.structures.codecs.plain import Codec
from shardkit.structures.codecs.trained_values import REREAD_AFTER, CodedValues

TOWNS = ("Frankfurt am Main", "Rothenburg ob der Tauber", "Bad Münder am Deister")
CITIES = [[name, str(n), "DE"] for n in range(25) for name in TOWNS]
TREES = [{"tree": name, "height": n} for n in range(60) for name in ("oak", "ash")]


class Records(Structure[Any]):
    """Values at keys of their own, through a codec; as a hash does it."""

    def __init__(self, face: Face, given: str | Codec[Any]) -> None:
        super().__init__(face.kit._driver, "many", "records")
        self.values = CodedValues("many", self.name, codec(given))
        self.codec = self.values.codec

    @operation
    def put(self, key: str, value: Any) -> Operation[bytes]:
        yield from self.values.load()
        stored = self.codec.encode(value)
        yield [self._at(key, "SET", key, stored)]
        return stored

    @operation
    def get(self, key: str) -> Operation[Any]:
        yield from self.values.load()
        stored = yield [self._at(key, "GET", key)]
        yield from self.values.load_missing(stored)
        return self.codec.decode(stored[0])

    @operation
    def at_dictionary(self, command: str, *args: bytes) -> Operation[list[int]]:
        key = self.values.key
        [reply] = yield [self._at(key, command, key, *args)]
        return [int(number) for number in reply] if isinstance(reply, list) else []

    @operation
    def train(self, samples: Iterable[Any], again: bool = False) -> Operation[bool]:
        return (yield from self.values.train(samples, again=again))

    @operation
    def add_dictionary(self, dictionary: bytes, again: bool = False) -> Operation[bool]:
        return (yield from self.values.add_dictionary(dictionary, again=again))


def stored_dictionaries(face: Face) -> set[int]:
    return set(face.run(Records(face, "json").at_dictionary("HKEYS")))


@pytest.mark.parametrize("name", ["tokens", "zstd", "zstd-msgpack"])
def test_a_dictionary_is_trained_once_for_all_processes(face: Face, name: str) -> None:
    one = Records(face, name)
    assert face.run(one.train(CITIES))
    stored = face.run(one.put("a", CITIES[0]))
    assert dictionary_of(stored) == 1
    other = Records(face, name)
    assert face.run(other.get("a")) == CITIES[0]
    assert face.run(other.put("b", CITIES[1])) == one.codec.encode(CITIES[1])
    assert not face.run(other.train(TREES))
    assert stored_dictionaries(face) == {1}


@pytest.mark.parametrize("again", [False, True])
def test_one_of_two_concurrent_trainings_wins(face: Face, again: bool) -> None:
    one, other = Records(face, "tokens"), Records(face, "tokens")
    if again:
        face.run(one.train(CITIES[:9]))
        face.run(other.put("opened", CITIES[0]))
    steps = [structure.deferred for structure in (one, other)]
    samples: list[list[Any]] = [CITIES, TREES]
    both = [
        structure.add_dictionary(structure.values.build_dictionary(sample), again)
        for structure, sample in zip(steps, samples, strict=True)
    ]
    won = face.run(face.kit.together(*both))  # both look before either has written
    assert sorted(won) == [False, True]
    assert stored_dictionaries(face) == ({1, 2} if again else {1})
    for key, value in (("a", CITIES[3]), ("b", TREES[3])):
        assert face.run(one.put(key, value)) == face.run(other.put(key, value))
        assert face.run(one.get(key)) == face.run(other.get(key)) == value
    assert dictionary_of(face.run(one.put("a", CITIES[3]))) == (2 if again else 1)


def test_values_from_before_and_after_every_training_are_readable_by_all(face: Face) -> None:
    writer, reader = Records(face, "tokens"), Records(face, "tokens")
    written: dict[str, Any] = {"0": CITIES[0]}
    assert dictionary_of(face.run(writer.put("0", CITIES[0]))) == 0
    assert face.run(reader.get("0")) == CITIES[0]
    for number in range(1, 8):
        sample = CITIES if number % 2 else TREES
        assert face.run(writer.train(sample, again=number > 1))
        written[str(number)] = sample[number]
        assert dictionary_of(face.run(writer.put(str(number), sample[number]))) == number
        # The reader opened long ago, and has not read this dictionary yet.
        assert face.run(reader.get(str(number))) == sample[number]
    for structure in (writer, reader, Records(face, "tokens")):
        assert {key: face.run(structure.get(key)) for key in written} == written
    with pytest.raises(InvalidArgumentError, match="there are 7 dictionaries"):
        face.run(writer.train(CITIES, again=True))


def test_a_writer_without_a_dictionary_checks_for_one_from_time_to_time(face: Face) -> None:
    early = Records(face, "tokens")
    face.run(early.put("a", CITIES[0]))
    face.run(Records(face, "tokens").train(CITIES))
    assert dictionary_of(face.run(early.put("a", CITIES[0]))) == 0
    for _ in range(REREAD_AFTER):
        early.codec.encode(CITIES[0])
    assert dictionary_of(face.run(early.put("a", CITIES[0]))) == 1


def test_values_from_before_and_after_a_dictionary_are_read_together(face: Face) -> None:
    early = face.kit.hash("h", component="one", groups=1, codec="tokens")
    later = face.kit.hash("h", component="one", groups=1, codec="tokens")
    face.run(early.hset("a", CITIES[0]))
    assert face.run(later.train(CITIES))
    face.run(later.hset("b", CITIES[1]))
    assert face.run(early.hgetall()) == {"a": CITIES[0], "b": CITIES[1]}


def test_an_invalid_dictionary_is_not_stored(face: Face) -> None:
    with pytest.raises(StructureError, match="table of tokens is damaged"):
        face.run(Records(face, "tokens").add_dictionary(b"no table"))
    assert stored_dictionaries(face) == set()


@pytest.mark.parametrize(
    ("samples", "said"),
    [([], "a dictionary trained on no values"), ([{"x"}], "a set, would not come back from JSON")],
)
def test_invalid_samples_are_refused(face: Face, samples: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        face.run(Records(face, "tokens").train(samples))
    assert stored_dictionaries(face) == set()


def test_a_codec_without_a_dictionary_says_so_and_costs_nothing(face: Face) -> None:
    records = Records(face, "json")
    for name, given in (("train", CITIES), ("add_dictionary", b"")):
        with pytest.raises(InvalidArgumentError, match="records: codec 'json' has no dictionary"):
            face.run(getattr(records, name)(given))
    assert list(records.values.load()) == []
    assert list(records.values.load_missing([b"\xff"])) == []


def test_a_damaged_dictionary_is_named_by_its_key(face: Face) -> None:
    records = Records(face, "tokens")
    face.run(records.at_dictionary("HSET", b"1", b"no table"))
    with pytest.raises(StructureError, match="records:dictionary is damaged: 1: the stored table"):
        face.run(records.put("a", CITIES[0]))


def test_no_dictionary_stays_cached_after_the_structure_was_deleted(face: Face) -> None:
    records = Records(face, "tokens")
    face.run(records.train(CITIES))
    face.run(records.put("a", CITIES[0]))
    records.values.reset()
    with pytest.raises(StructureError, match="dictionary 1, which is missing here"):
        records.codec.decode(Compressed(Tokens(), JSON).encode(CITIES[0])[1:])
    assert face.run(records.get("a")) == CITIES[0]


def test_the_codec_given_is_not_changed(shard_map: ShardMap) -> None:
    mine = Compressed(Tokens(100), JSON)
    with faced("blocking", shard_map) as face:
        face.run(Records(face, mine).train(CITIES))
    assert mine.coders == {}


def test_dictionaries_are_deleted_with_their_hash(face: Face, kit: ShardKit) -> None:
    def cities() -> Any:
        return face.kit.hash("cities", component="many", codec="tokens", groups=4)

    face.run(cities().train(CITIES))
    face.run(cities().hset(mapping=dict(enumerate(CITIES[:9]))))
    holder(kit, "many", "cities:meta").delete("cities:meta")
    assert "cities:dictionary" in keys_of(kit, "many")
    assert face.run(cities().delete()) is True
    assert keys_of(kit, "many") == set()
