"""Address books: any prefix of any name, in the order of bytes, over parts and shards."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, drawn, holder, keys_of
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.completion import fold
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
)


@pytest.fixture(params=[("one", 1), ("few", 1), ("few", 5)], ids=str)
def book(request: pytest.FixtureRequest, face: Face) -> Any:
    component, parts = request.param
    return face.kit.address_book(component=component, parts=parts)


NAMES = st.text(
    st.one_of(
        st.sampled_from("ab{`\x7f\x80\xffÿĀ\u07ff\u0800\uffff\U00010000\U0010ffff"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    min_size=1,
    max_size=4,
)


@given(
    names=st.lists(NAMES, max_size=40),
    gone=st.lists(NAMES, max_size=5),
    prefix=st.one_of(st.just(""), NAMES),
    cut=st.integers(0, 3),
    limit=st.integers(1, 12),
    parts=st.sampled_from([1, 2, 7]),
    folds=st.booleans(),
)
@settings(max_examples=drawn(30, 80), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_are_completed_as_sorting_them_in_python_does(
    face: Face,
    names: list[str],
    gone: list[str],
    prefix: str,
    cut: int,
    limit: int,
    parts: int,
    folds: bool,
) -> None:
    if names and cut:
        prefix = names[0][:cut]
    shape, run = fold if folds else None, face.run
    book = face.kit.address_book(f"p{parts}{folds}", component="few", parts=parts, fold=shape)
    run(book.remove_group("g"))
    for name in names[:1]:
        assert [run(book.join("g", name)) for _ in range(2)] == [True, False]
        assert run(book.contains("g", name)) is True
        assert [run(book.leave("g", name)) for _ in range(2)] == [True, False]
        assert run(book.contains("g", name)) is False
    assert run(book.join_many("g", names)) == len(set(names))
    gone += names[::5]
    assert run(book.leave_many("g", gone)) == len(set(gone) & set(names))

    def order(name: str) -> tuple[bytes, bytes]:
        return (shape(name) if shape else name).encode(), name.encode()

    def begins(name: str) -> bool:
        return shape(name).startswith(shape(prefix)) if shape else name.startswith(prefix)

    left = sorted(filter(begins, set(names) - set(gone)), key=order)
    assert run(book.complete("g", prefix, limit)) == left[:limit]
    assert run(book.count("g", prefix)) == len(left)
    assert face.list(book.names("g", prefix)) == left
    paged: list[str] = []
    while page := run(book.complete("g", prefix, limit, cursor=paged[-1] if paged else None)):
        paged += page
    assert paged == left


def test_other_parameters_are_refused(kit: ShardKit) -> None:
    kit.address_book(component="few", parts=4, fold=fold).join("elves", "Elrond")
    for other in ({"parts": 5, "fold": fold}, {"parts": 4}, {"parts": 4, "fold": str.casefold}):
        book = kit.address_book(component="few", **other)  # type: ignore[arg-type]
        for call in (lambda: book.complete("elves"), lambda: book.join("elves", "x")):  # noqa: B023
            with pytest.raises(ParameterMismatchError, match="parameters"):
                call()


def test_invalid_arguments_are_refused_before_anything_is_written(kit: ShardKit) -> None:
    book = kit.address_book(component="one")
    for name in ("", "a\0b", "\ud800", b"bytes", None, 7):
        with pytest.raises(InvalidArgumentError, match="name"):
            book.join("elves", name)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="name"):
            book.join_many("elves", ["Elrond", name])  # type: ignore[list-item]
        with pytest.raises(InvalidArgumentError, match="name"):
            book.leave("elves", name)  # type: ignore[arg-type]
    for prefix in ("a\0", "\ud800", b"a", None):
        with pytest.raises(InvalidArgumentError, match="prefix"):
            book.complete("elves", prefix)  # type: ignore[arg-type]
    for limit in (0, 1001, True, "5"):
        with pytest.raises(InvalidArgumentError, match="limit"):
            book.complete("elves", limit=limit)  # type: ignore[arg-type]
    for group in ("", None, b"elves", 1.5):
        with pytest.raises(InvalidArgumentError, match="group"):
            book.join(group, "Elrond")  # type: ignore[arg-type]
    for options, said in (
        ({"parts": 0}, "parts=0; give an integer"),
        ({"parts": 1025}, "parts=1025; give an integer"),
        ({"fold": "yes"}, "fold='yes'; give a plain function"),
        ({"name": ""}, "name=''"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            kit.address_book(component="one", **options)  # type: ignore[arg-type]
    holes = kit.address_book("holes", component="one", fold=lambda name: name + "\0")
    with pytest.raises(InvalidArgumentError, match="folded name"):
        holes.join("elves", "Elrond")
    assert kit.client("one").dbsize() == 0


def test_names_that_are_all_in_one_part_are_read_until_there_are_enough(kit: ShardKit) -> None:
    book = kit.address_book("large", component="few", parts=300)
    book.join("g", "z")  # stores the parameters
    client: Any = holder(kit, "few", "large:g:7")
    client.zadd("large:g:7", {f"{n:04}": 0 for n in range(200)})
    assert book.complete("g", "", 100) == [f"{n:04}" for n in range(100)]


# ---- damage


def test_a_check_of_a_group_names_what_is_damaged_and_rebuild_mends_it(
    face: Face, kit: ShardKit
) -> None:
    book = face.kit.address_book(component="few", parts=3, fold=fold)
    names = [f"Élf {n}" for n in range(30)]
    assert face.run(book.join_many("elves", names)) == 30
    assert face.list(book.check("elves")) == []
    one, other, third = (f"members:elves:{part}" for part in range(3))
    clients: list[Any] = [holder(kit, "few", key) for key in (one, other, third)]
    [moved, out_of_order, *_] = clients[0].zrange(one, 0, -1)
    clients[0].zrem(one, moved)
    clients[1].zadd(other, {moved: 0})
    clients[0].zadd(one, {out_of_order: 5})
    clients[2].zadd(third, {b"\xff\xff": 0})
    holder(kit, "few", "{members}:meta").delete("{members}:meta")
    fresh = face.kit.address_book(component="few", parts=3, fold=fold)
    found = {each.key: each for each in face.list(fresh.check("elves"))}
    assert set(found) == {"{members}:meta", one, other, third}
    assert "of another part" in found[other].found
    assert "of a score" in found[one].found
    assert found[third].repair == ""
    with pytest.raises(DamagedDataError, match=r"members}:meta is damaged: nothing"):
        face.run(fresh.join("elves", "Arwen"))
    for parts in (1, 20):  # whatever it is opened with, its members are seen
        with pytest.raises(DamagedDataError, match=r"members}:meta is damaged: nothing"):
            face.run(face.kit.address_book(component="few", parts=parts).join("elves", "Arwen"))
    assert face.run(fresh.rebuild("elves")) == 2
    assert [each.key for each in face.list(fresh.check("elves"))] == [third]
    clients[2].zrem(third, b"\xff\xff")
    assert face.run(fresh.complete("elves", "É", 100)) == sorted(names, key=fold)
    clients[2].set(third, "x")
    [damaged] = face.list(fresh.check("elves"))
    assert damaged.repair == "remove_group(group)"
    holder(kit, "few", "{members}:meta").delete("{members}:meta")
    assert face.run(fresh.remove_group("elves")) is True
    assert keys_of(kit, "few") == set()


def test_a_name_that_is_no_text_is_named_by_who_reads_it(face: Face, kit: ShardKit) -> None:
    book = face.kit.address_book(component="one")
    face.run(book.join("elves", "Elrond"))
    client: Any = kit.client("one")
    client.zadd("members:elves", {b"Elr\xff": 0})
    for read in (lambda: face.run(book.complete("elves")), lambda: face.list(book.names("elves"))):
        with pytest.raises(DamagedDataError, match=r"elves is damaged: name b'Elr\\xff'"):
            read()
