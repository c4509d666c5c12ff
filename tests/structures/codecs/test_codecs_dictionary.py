"""Packing with dictionaries: stored forms, training, and reading them again in every process."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from faces import Face, keys_of
from hypothesis import given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, StructureError
from shardkit.structures import Codec, Compressed, Tokens, Zstd
from shardkit.structures.codecs.compression import Packing, dictionary_of
from shardkit.structures.codecs.named import JSON, TEXT
from shardkit.structures.codecs.token_table import TokenTable, code_lengths

TOWNS = ("Frankfurt am Main", "Rothenburg ob der Tauber", "Bad Münder am Deister")
CITIES = [[name, str(n), "DE"] for n in range(25) for name in TOWNS]
TREES = [{"tree": name, "height": n} for n in range(60) for name in ("oak", "ash")]


def opened(face: Face, given: str | Codec[Any]) -> Any:
    return face.kit.hash("records", component="one", codec=given, parts=1)


def stored(kit: ShardKit, field: str = "a") -> bytes:
    value = kit.client("one").hget("records:{0}:0", field)
    assert isinstance(value, bytes)
    return value


def numbers(kit: ShardKit) -> set[int]:
    """The numbers of the dictionaries that are stored."""
    fields: Any = kit.client("one").hkeys("records:dictionary")
    return set(map(int, fields))


@pytest.mark.parametrize("again", [False, True])
def test_one_of_two_concurrent_trainings_wins(face: Face, kit: ShardKit, again: bool) -> None:
    one, other = opened(face, "tokens"), opened(face, "tokens")
    if again:
        face.run(one.train(CITIES[:9]))
        face.run(other.hset("opened", CITIES[0]))
    samples: list[list[Any]] = [CITIES, TREES]
    both = [
        each.deferred.add_dictionary(each.build_dictionary(sample), again=again)
        for each, sample in zip((one, other), samples, strict=True)
    ]
    won = face.run(face.kit.together(*both))  # both look before either has written
    assert sorted(won) == [False, True]
    assert numbers(kit) == ({1, 2} if again else {1})
    values = []
    for value in (TREES[3], CITIES[3]):
        for writer, reader in ((one, other), (other, one)):
            face.run(writer.hset("a", value))
            values.append(stored(kit))
            assert face.run(reader.hget("a")) == value
    assert (values[0], values[2]) == (values[1], values[3])
    assert dictionary_of(values[3]) == (2 if again else 1)


def test_values_from_before_and_after_every_training_are_readable_by_all(
    face: Face, kit: ShardKit
) -> None:
    writer, reader = opened(face, "tokens"), opened(face, "tokens")
    written: dict[str, Any] = {"f0": CITIES[0]}
    face.run(writer.hset("f0", CITIES[0]))
    assert dictionary_of(stored(kit, "f0")) == 0
    assert face.run(reader.hget("f0")) == CITIES[0]
    for number in range(1, 8):
        sample: list[Any] = CITIES if number % 2 else TREES
        assert face.run(writer.train(sample, again=number > 1))
        written[f"f{number}"] = sample[number]
        face.run(writer.hset(f"f{number}", sample[number]))
        assert dictionary_of(stored(kit, f"f{number}")) == number
        # The reader opened long ago, and has not read this dictionary yet.
        assert face.run(reader.hget(f"f{number}")) == sample[number]
    for each in (writer, reader, opened(face, "tokens")):
        assert face.run(each.hgetall()) == written
    with pytest.raises(InvalidArgumentError, match="there are 7 dictionaries"):
        face.run(writer.train(CITIES, again=True))


@pytest.mark.parametrize("codec", ["tokens", "zstd"])
@pytest.mark.parametrize("options", [{"parts": 2}, {"total": 300}, {}], ids=str)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_kept_hash_follows_others_that_delete_it_and_train_again(
    face: Face,
    kit: ShardKit,
    lower: Any,
    codec: str,
    options: dict[str, Any],
    later: bool,
) -> None:
    """Later it is of the first generation again: that of a deletion is kept for a minute."""
    old, new = ({f"town{n}": f"{name} {n}" for n in range(99)} for name in TOWNS[:2])
    args = {"component": "one", "codec": codec, "partition": "crc32", **options}
    kept, written = face.kit.hash("kept", **args), face.kit.hash("kept", **args)
    for hash_ in (kept, written):
        face.run(hash_.train(old.values()))
        face.run(hash_.hset(mapping=old))
        assert face.run(hash_.hmget(list(old))) == list(old.values())
    other = kit.hash("kept", **args)
    other.delete()
    if later:
        kit.client("one").delete(*kit.client("one").keys("*:deleted"))
        lower(compression_lease=0, lease=0)
    other = kit.hash("kept", **args)
    other.train(new.values())
    other.hset(mapping=new)
    face.run(written.hset("town7", "Ulm"))
    new["town7"] = "Ulm"
    assert other.hgetall() == new
    if codec == "tokens":  # whose values might be decoded to others within a second
        lower(compression_lease=0)
    assert face.run(kept.hmget(list(new))) == list(new.values())
    assert list(kit.hash("kept", **args).check()) == []


def test_an_invalid_dictionary_is_not_stored(face: Face, kit: ShardKit) -> None:
    with pytest.raises(StructureError, match="table of tokens is damaged"):
        face.run(opened(face, "tokens").add_dictionary(b"no table"))
    assert numbers(kit) == set()


@pytest.mark.parametrize(
    ("samples", "said"),
    [([], "a dictionary trained on no values"), ([{"x"}], "a set, would not come back from JSON")],
)
def test_invalid_samples_are_refused(face: Face, kit: ShardKit, samples: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        face.run(opened(face, "tokens").train(samples))
    assert numbers(kit) == set()


def test_a_damaged_dictionary_is_named_by_its_key(face: Face, kit: ShardKit) -> None:
    kit.client("one").hset("records:dictionary", "1", b"no table")
    with pytest.raises(StructureError, match="records:dictionary is damaged: 1: the stored table"):
        face.run(opened(face, "tokens").hset("a", CITIES[0]))


def test_the_codec_given_is_not_changed(face: Face) -> None:
    mine = Compressed(Tokens(100), JSON)
    face.run(opened(face, mine).train(CITIES))
    assert mine.coders == {}


def test_dictionaries_are_deleted_with_their_hash(face: Face, kit: ShardKit) -> None:
    face.run(opened(face, "tokens").train(CITIES))
    face.run(opened(face, "tokens").hset(mapping=dict(enumerate(CITIES[:9]))))
    kit.client("one").delete("records:meta")
    assert face.run(opened(face, "tokens").delete()) is True
    assert keys_of(kit, "one") == set()


RECORDS = [
    b'["%b","%d","%b"]' % (name, region, country)
    for region in range(20)
    for name, country in (
        (b"Springfield", b"US"),
        (b"Newcastle", b"GB"),
        ("Zürich".encode(), b"CH"),
        ("東京".encode(), b"JP"),
    )
]
PACKINGS: list[Packing] = [Tokens(512), Zstd()]
LEARNED = {packing.name: packing.build_dictionary(RECORDS) for packing in PACKINGS}
TABLE = TokenTable.load(LEARNED["tokens"])
packings = pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: packing.name)


def with_dictionary(packing: Packing, number: int = 1) -> Compressed:
    made = Compressed(packing, TEXT)
    made.coders = {number: packing.coder(LEARNED[packing.name])}
    return made


@packings
def test_a_value_is_at_most_one_byte_longer_than_without_a_dictionary(packing: Packing) -> None:
    made = with_dictionary(packing, 3)

    @settings(max_examples=40)
    @given(st.text())
    def check(value: str) -> None:
        stored = made.encode(value)
        assert len(stored) <= len(value.encode()) + 1
        assert made.decode(stored) == value

    check()


@packings
def test_a_value_whose_packed_form_begins_like_a_mark_is_marked(packing: Packing) -> None:
    class Unlucky:
        def pack(self, value: bytes) -> bytes:
            return b"\xff" + value[2:]

        def unpack(self, packed: bytes) -> bytes:
            return b"ab" + packed[1:]

    made = Compressed(packing, TEXT)
    made.coders = {1: Unlucky()}
    assert made.encode("abc") == b"\xf9\xffc"
    assert made.decode(b"\xf9\xffc") == "abc"


def test_a_missing_dictionary_is_named(face: Face, kit: ShardKit) -> None:
    def cities() -> Any:
        return face.kit.hash("cities", component="one", codec="zstd")

    face.run(cities().train([["City", n] for n in range(400)]))
    face.run(cities().hset(mapping={n: ["City", n] for n in range(99)}))
    kit.client("one").delete("cities:dictionary")
    for read in (cities().hgetall, cities().hvals):
        with pytest.raises(DamagedDataError, match=r"cities:dictionary is damaged: no dictionary"):
            face.run(read())


@packings
def test_a_dictionary_cannot_be_trained_on_nothing(packing: Packing) -> None:
    with pytest.raises(InvalidArgumentError, match="trained on no values"):
        packing.build_dictionary([])


def test_a_table_of_another_version_is_refused() -> None:
    with pytest.raises(StructureError, match="of a later version of shardkit"):
        TokenTable.load(zlib.compress(b"\x02" + zlib.decompress(TABLE.dump())[1:]))


def test_one_zstd_coder_serves_many_threads() -> None:
    made = with_dictionary(Zstd())
    failed: list[object] = []

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(300):
            value = "".join(random.choice(RECORDS).decode() for _ in range(random.randrange(9)))
            if made.decode(made.encode(value)) != value:
                failed.append(value)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not failed


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), st.integers(0, 2**40), min_size=1))
def test_code_lengths_make_a_prefix_code(counts: dict[str, int]) -> None:
    lengths = code_lengths({**counts, "": 0}, 8)
    assert sum(2.0**-length for length in lengths.values()) <= 1
    assert lengths[""] == max(8, *lengths.values())


def test_code_lengths_are_bounded_however_unequal_the_counts() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 80:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = code_lengths({str(n): count for n, count in enumerate(fibonacci)})
    assert max(lengths.values()) <= 24


def test_a_table_with_more_short_codes_than_there_are_is_refused() -> None:
    raw = bytearray(zlib.decompress(TABLE.dump()))
    lengths = [int.from_bytes(raw[at : at + 4]) for at in range(1, 129, 4)]
    raw[1:129] = sum(lengths).to_bytes(4) + bytes(124)  # one bit for each of the first tokens
    with pytest.raises(StructureError, match="stored table of tokens is damaged"):
        TokenTable.load(zlib.compress(bytes(raw)))


def test_a_table_caches_a_limited_number_of_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.structures.codecs.token_table._MOST_WINDOWS", 7)
    table = TokenTable.load(TABLE.dump())
    for record in RECORDS:
        assert table.pack(record) == TABLE.pack(record)
        assert len(table._matcher._ways) <= 7
