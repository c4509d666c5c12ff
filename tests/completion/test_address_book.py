"""Address books: any prefix of any name, in the order of bytes, over shards; contacts."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

import pytest
from faces import Face, drawn, holder, keys_of
from hypothesis import given, settings, strategies as st

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
@settings(max_examples=drawn(30, 80))
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


ORDERS = ["list", "time"]


@pytest.fixture(params=ORDERS)
def contacts(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.recent_contacts(component="few", limit=5, order=request.param)


def test_removing_says_whether_it_was_there(face: Face, contacts: Any) -> None:
    face.run(contacts.touch("ada", "Grace"))
    assert face.run(contacts.remove("ada", "Grace")) is True
    assert face.run(contacts.remove("ada", "Grace")) is False
    face.run(contacts.touch("ada", "Grace"))
    assert face.run(contacts.remove_all("ada")) is True
    assert face.run(contacts.remove_all("ada")) is False


def test_by_time_they_have_times_of_the_servers_clock(face: Face) -> None:
    contacts = face.kit.recent_contacts("contacts", component="one", order="time", limit=2000)
    face.run(contacts.touch_many(("ada", f"friend {n}") for n in range(1500)))
    [(newest, at), (_, before)] = face.run(contacts.times("ada", 2))
    assert newest == "friend 1499"
    seconds = face.kit.clients.get(face.kit.topology.component("one"), None).time()[0]
    assert abs(seconds - at) < 60
    assert before < at
    assert len(face.run(contacts.complete("ada"))) == 1500  # more than a page
    assert face.run(contacts.complete("ada", "friend 149", limit=3)) == [
        "friend 1499",
        "friend 1498",
        "friend 1497",
    ]


def test_a_clock_that_goes_back_does_not_change_the_order(kit: ShardKit) -> None:
    contacts = kit.recent_contacts(component="one", order="time")
    kit.client("one").zadd("recent:ada", {"of the future": 4e15})
    contacts.touch("ada", "Grace")
    assert contacts.complete("ada") == ["Grace", "of the future"]
    assert kit.client("one").zscore("recent:ada", "Grace") == 4e15 + 1


def test_invalid_contacts_are_refused_before_anything_is_written(kit: ShardKit) -> None:
    contacts = kit.recent_contacts(component="one")
    for contact in ("", "a\0b", "\ud800", b"bytes", None, 7):
        with pytest.raises(InvalidArgumentError, match="contact"):
            contacts.touch("ada", contact)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="contact"):
            contacts.touch_many([("ada", "Grace"), ("ada", contact)])  # type: ignore[list-item]
    for user in ("", b"ada", None, True, 1.5):
        with pytest.raises(InvalidArgumentError, match="user"):
            contacts.touch(user, "Grace")  # type: ignore[arg-type]
    for options, said in (
        ({"limit": 0}, "limit=0; give an integer"),
        ({"limit": 10_001}, "limit=10001; give an integer"),
        ({"order": "random"}, "order='random'; give list or time"),
        ({"name": ""}, "name=''"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            kit.recent_contacts(component="one", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="no times"):
        contacts.times("ada")
    by_time = kit.recent_contacts(component="one", order="time")
    for read in (contacts.oldest, by_time.times):
        for limit in (0, 1001):
            with pytest.raises(InvalidArgumentError, match=f"recent: limit={limit}"):
                read("ada", limit)
    assert kit.client("one").dbsize() == 0


# Letters whose cases and forms are not one to one: ß, dotted and dotless i, final sigma, dž.
LETTERS = "aAàÀá\u0301ßSs\u0130iI\u0131\u03c3\u03c2\u03a3\u01c5é😀\U0010ffff"
CONTACT_NAMES = st.text(st.sampled_from(LETTERS), min_size=1, max_size=3)


@given(
    touches=st.lists(st.tuples(st.integers(0, 2), CONTACT_NAMES), max_size=30),
    prefix=st.one_of(st.just(""), CONTACT_NAMES),
    order=st.sampled_from(ORDERS),
    limit=st.integers(1, 6),
)
@settings(max_examples=drawn(20, 50))
def test_any_touches_give_what_a_list_in_python_gives(
    face: Face, touches: list[tuple[int, str]], prefix: str, order: str, limit: int
) -> None:
    contacts = face.kit.recent_contacts(component="few", order=order, limit=limit)
    run = face.run
    model: dict[int, list[str]] = {}
    for user in range(3):
        run(contacts.remove_all(user))
    half = len(touches) // 2
    for user, contact in touches[:half]:
        run(contacts.touch(user, contact))
    assert run(contacts.touch_many(touches[half:])) == len(touches) - half
    for user, contact in touches:
        mine = model.setdefault(user, [])
        model[user] = [contact, *(other for other in mine if other != contact)][:limit]
    for user in range(3):
        mine = model.get(user, [])
        wanted = [c for c in mine if fold(c).startswith(fold(prefix))]
        assert run(contacts.complete(str(user))) == mine  # the same user
        assert run(contacts.complete(user, prefix)) == wanted
        assert run(contacts.complete(user, prefix, limit=1)) == wanted[:1]
        assert run(contacts.count(user)) == len(mine)
        assert run(contacts.oldest(user, 2)) == mine[::-1][:2]


@given(st.text())
def test_folding_ignores_case_and_form(text: str) -> None:
    folded = fold(text)
    assert fold(normalize("NFC", text)) == fold(normalize("NFD", text)) == folded
    assert fold(text.casefold()) == folded
    assert fold(folded) == folded
    assert [fold("E\u0301RIC"), fold("Straße")] == ["éric", "strasse"]  # accents remain


@pytest.mark.parametrize("order", ["list", "time"])
def test_a_check_names_what_is_no_contact(face: Face, kit: ShardKit, order: str) -> None:
    known = face.kit.recent_contacts(component="one", order=order)
    face.run(known.touch_many((1, f"name {n}") for n in range(30)))
    assert face.list(known.check(1)) == face.list(known.check(2)) == []
    client: Any = kit.client("one")
    if order == "list":
        client.rpush("recent:1", "name 7")
        [found] = face.list(known.check(1))
        assert found.found == "contact 'name 7' twice"
        client.rpush("recent:1", b"\xff")
        client.lrem("recent:1", 0, "name 7")
    else:
        client.zadd("recent:1", {b"\xff": 1})
    [found] = face.list(known.check(1))
    assert (found.key, found.found, found.repair) == (
        "recent:1",
        "contact b'\\xff'",
        "remove_all(user)",
    )
    client.set("recent:1", "x")
    [found] = face.list(known.check(1))
    assert found.loses == "the contacts"
    face.run(known.remove_all(1))
    assert face.list(known.check(1)) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_contact_that_is_no_text_is_named_by_who_reads_it(
    face: Face, kit: ShardKit, order: str
) -> None:
    known = face.kit.recent_contacts(component="one", order=order)
    face.run(known.touch(1, "Ada"))
    client: Any = kit.client("one")
    if order == "list":
        client.lpush("recent:1", b"\xff")
    else:
        client.zadd("recent:1", {b"\xff": 2**40})
    for read in (known.complete, lambda user: known.oldest(user, 5)):
        with pytest.raises(DamagedDataError, match=r"contact b'\\xff', where a name, in UTF-8"):
            face.run(read(1))


def test_contacts_that_fill_their_last_page_are_all_read(face: Face) -> None:
    known = face.kit.recent_contacts(component="one", order="time", limit=1000)
    names = [f"name {n:04}" for n in range(1000)]
    face.run(known.touch_many((1, name) for name in names))
    assert face.run(known.complete(1)) == names[::-1]
    assert face.run(known.complete(1, "name 00")) == names[99::-1]


def test_a_lower_limit_drops_many_contacts_in_several_touches(face: Face) -> None:
    """Dropping a million at once would hold the server for 0.15 seconds."""
    many = face.kit.recent_contacts(component="one", order="time", limit=50_000)
    face.run(many.touch_many((1, f"name {n}") for n in range(30_000)))
    few = face.kit.recent_contacts(component="one", order="time", limit=10)
    counts = []
    for name in ("a", "b", "c"):
        face.run(few.touch(1, name))
        counts.append(face.run(few.count(1)))
    assert counts == [10_001, 10, 10]
    assert face.run(few.complete(1))[:4] == ["c", "b", "a", "name 29999"]
