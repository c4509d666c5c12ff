"""Recent contacts: in order, limited, found whatever the case, in a LIST and by time."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

import pytest
from faces import Face, drawn
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.completion import fold
from shardkit.errors import DamagedDataError, InvalidArgumentError

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


def test_invalid_arguments_are_refused_before_anything_is_written(kit: ShardKit) -> None:
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
NAMES = st.text(st.sampled_from(LETTERS), min_size=1, max_size=3)


@given(
    touches=st.lists(st.tuples(st.integers(0, 2), NAMES), max_size=30),
    prefix=st.one_of(st.just(""), NAMES),
    order=st.sampled_from(ORDERS),
    limit=st.integers(1, 6),
)
@settings(max_examples=drawn(20, 50), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
