"""No write of an older generation of a structure reaches a newer one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from typing import Any, NamedTuple

import pytest
from faces import Exchanges, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import ParameterMismatchError


class Kind(NamedTuple):
    """A structure whose parts do not name their parameters."""

    make: Callable[[ShardKit, int], Any]  # with parameters of two kinds
    write: Callable[[Any, int], Any]  # a number
    read: Callable[[Any], set[int]]


FIELDS: dict[int, dict[str, str]] = {1: {"n": "u8", "more": "u8"}, 2: {"n": "u16"}}

KINDS = {
    "set with a total": Kind(
        lambda kit, n: kit.set("it", component="many", total=16 * n, part_size=4, members=int),
        lambda it, n: it.sadd(n),
        lambda it: it.smembers(),
    ),
    "hash of numbers": Kind(
        lambda kit, n: kit.hash("it", component="many", fields=int, part_size=8 * n),
        lambda it, n: it.hset(n, "x"),
        lambda it: {int(field) for field in it.hgetall()},
    ),
    "packed": Kind(
        lambda kit, n: kit.packed("it", component="many", fields=FIELDS[n], part_size=8),
        lambda it, n: it.set(n, n=1),
        lambda it: {n for n in range(64) if it.get(n)["n"]},
    ),
}


def late(kit: ShardKit, kind: Kind, it: Any) -> Exchanges:
    """A write that is about to be sent to its part."""
    command = {"packed": "structures/packed/write", "hash": "HSET"}.get(it.kind, "SADD")
    write = Exchanges(kit, kind.write(it.deferred, 3))
    write.until(command)
    return write


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_late_write_to_other_parameters_is_refused(
    kit: ShardKit, kind: Kind, there: bool, ends: bool
) -> None:
    old = kind.make(kit, 1)
    kind.write(old, 3)
    if ends:
        old.pexpireat(2**41)
    write = late(kit, kind, old)
    assert kind.make(kit, 1).delete()
    new = kind.make(kit, 2)
    if there:  # the part that the late write would be in
        kind.write(new, 3)
    kind.write(new, 40)
    if ends:
        new.pexpireat(2**41)
    with pytest.raises(ParameterMismatchError, match="'it' was created with other parameters"):
        write.end()
    assert kind.read(new) == ({3, 40} if there else {40})
    assert list(new.check()) == []
    assert new.ttl() == -1 or ends


@pytest.mark.parametrize("then", ["write", "expire", "persist"])
def test_unsettled_parts_of_an_older_generation_are_removed(
    kit: ShardKit, kind: Kind, then: str
) -> None:
    old = kind.make(kit, 1)
    kind.write(old, 1)
    write = late(kit, kind, old)
    assert kind.make(kit, 1).delete()
    new = kind.make(kit, 2)
    kind.write(new, 40)
    next(iter(write), None)  # and dies
    assert kind.read(new) != {40}  # for a minute at most
    if then == "write":
        for n in range(4, 40):  # in all parts
            kind.write(new, n)
        assert kind.read(new) == {*range(4, 41)}
        assert list(new.check()) == []
    elif new.kind != "packed":  # whose part is not registered
        new.expire(1000)
        if then == "persist":
            assert new.persist()
        assert kind.read(new) == {40}
        assert list(new.check()) == []


def test_generations_restart_after_a_minute(kit: ShardKit, kind: Kind) -> None:
    client = holder(kit, "many", "it:meta")
    lives = []
    for n in range(18):
        it = kind.make(kit, 1 + n % 2)
        kind.write(it, 1)
        lives.append(int(client.hget("it:meta", "hint:life") or 0))
        assert it.ttl() == -1
        for key in keys_of(kit, "many") - {"it:meta"}:
            left = holder(kit, "many", key).pttl(key)
            assert left > 10**12 if n else left == -1
        assert it.delete()
        assert keys_of(kit, "many") == set()
        assert 0 < client.pttl("{it:meta}:deleted") <= 60_000
    assert lives[0] == 0
    assert all(1 <= life <= 14 for life in lives[1:])
    assert all(a != b for a, b in itertools.pairwise(lives))
    client.delete("{it:meta}:deleted")  # as after a minute
    kind.write(kind.make(kit, 1), 1)
    assert client.hget("it:meta", "hint:life") is None


def test_a_deletion_spares_other_parameters(kit: ShardKit, kind: Kind) -> None:
    deletion = Exchanges(kit, kind.make(kit, 1).deferred.delete())
    deletion.until("structures/base/mark_deleting")
    new = kind.make(kit, 2)
    kind.write(new, 3)
    with pytest.raises(ParameterMismatchError, match="'it' was created with other parameters"):
        deletion.end()
    assert kind.read(new) == {3}


def test_a_visit_completes_the_deletion_of_its_day(kit: ShardKit) -> None:
    day = date(2015, 5, 17)
    came = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(40)]
    visitors = kit.unique_visitors("unique", component="many", first_day=100)
    visitors.visit_many(came, day)
    deletion = Exchanges(kit, visitors.visitors(day).deferred.delete())
    deletion.until("structures/base/mark_deleting")
    next(iter(deletion))
    other = kit.unique_visitors("unique", component="many", first_day=100)
    assert other.visit(came[0], day)
    assert visitors.recount(day) == 1
    assert len(list(other.ids(day))) == 1
