"""Checks of visitors' days, cities, queues and indexes."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from faces import Face, holder, keys_of, sessions

from shardkit import DamagedDataError, ShardKit
from shardkit.geo import City, IpRange
from shardkit.structures import Damage

DAY = date(2015, 5, 17)


def first(kit: ShardKit, start: str, end: str = "") -> str:
    return min(k for k in keys_of(kit, "many") if k.startswith(start) and k.endswith(end))


def visitors(face: Face, precision: str) -> Any:
    planned = {} if precision in ("bitmap", "hyperloglog") else {"first_day": 500}
    return face.kit.unique_visitors("u", component="many", precision=precision, **planned)


@pytest.mark.parametrize("precision", ["exact", "60-bit", "compact", "hyperloglog", "bitmap"])
def test_a_damaged_day_is_found(face: Face, kit: ShardKit, precision: str) -> None:
    came: Any = range(300) if precision == "bitmap" else sessions(300)
    assert face.run(visitors(face, precision).visit_many(came, DAY)) > 250

    def found() -> list[Damage]:
        return face.list(visitors(face, precision).check(DAY))

    assert found() == []
    count = f"u:{DAY}"
    if precision != "hyperloglog":
        holder(kit, "many", count).incr(count, 5)
        assert [each.key for each in found()] == [count]
        face.run(visitors(face, precision).recount(DAY))
        assert found() == []
        part = first(kit, f"u:{DAY}:0")
        client: Any = holder(kit, "many", part)
        if precision == "bitmap":
            client.setrange(part, 20_000, b"x")
        else:
            client.sadd(part, 2**70 if precision == "compact" else 1)
        assert part in [each.key for each in found()]
    client = holder(kit, "many", count)
    client.set(count, "none")
    assert count in [each.key for each in found()]
    if precision == "exact":
        client.delete(count)
        assert "no count" in [each.found for each in found()]


@pytest.mark.parametrize("damage", ["deleted", "cut", "a list", "the generations"])
def test_lost_blocks_of_ranges_are_found(face: Face, kit: ShardKit, damage: str) -> None:
    ranges = [IpRange(n * 256, n * 256 + 255, City("DE", "", f"City {n % 7}")) for n in range(400)]
    face.run(face.kit.ip_to_city(component="many").import_from(ranges))
    assert face.list(face.kit.ip_to_city(component="many").check()) == []
    blocks = [k for k in keys_of(kit, "many") if ":keys:" not in k and ":cities:" not in k]
    key = max(blocks, key=len)
    if damage == "the generations":
        key = "ip2city:generations"
    client: Any = holder(kit, "many", key)
    if damage == "cut":
        client.set(key, client.get(key)[:-1])
    elif damage == "the generations":
        client.hset(key, "current", "{")
    else:
        client.delete(key)
    if damage == "a list":
        client.rpush(key, 1)
    [found] = face.list(face.kit.ip_to_city(component="many").check())
    assert found.key == key
    assert "import" in found.repair
    if damage == "the generations":
        face.run(face.kit.ip_to_city(component="many").import_from(ranges))
        assert face.list(face.kit.ip_to_city(component="many").check()) == []


def test_a_task_that_is_nowhere_is_found(face: Face, kit: ShardKit) -> None:
    queues = face.kit.queues(component="many")
    for n in range(10):
        face.run(queues.enqueue("mail", "send", [n], delay=1000 * (n % 2)))
    assert face.list(queues.check("mail")) == []
    waiting = "queues:{mail}"
    client: Any = holder(kit, "many", waiting)
    client.delete(waiting)
    client.zadd(f"{waiting}:delayed", {"strange": 1})
    found = face.list(queues.check("mail"))
    assert [each.key for each in found] == [f"{waiting}:tasks"] * 5 + [f"{waiting}:delayed"]
    assert face.run(queues.restore("mail")) == 5
    assert len(face.list(queues.check("mail"))) == 1
    client.set(f"{waiting}:dead", "x")
    assert [each.key for each in face.list(queues.check("mail"))] == [f"{waiting}:dead"]


def test_a_state_of_an_index_that_contradicts_itself_is_found(face: Face, kit: ShardKit) -> None:
    docs = face.kit.search("docs", component="one")
    for n in range(20):
        face.run(docs.index(f"{n}", text=f"word{n} and others"))
    assert face.list(docs.check()) == []
    state = "{docs:0}:state"
    client: Any = kit.client("one")
    assert client.exists(state)
    client.hincrby(state, "docs", -1)
    [found] = face.list(docs.check())
    assert (found.key, found.shard) == (state, "one")


def test_days_are_not_combined_over_a_damaged_part_or_count(face: Face, kit: ShardKit) -> None:
    other = date(2015, 5, 18)
    bits = visitors(face, "bitmap")
    for day in (DAY, other):
        face.run(bits.visit_many(range(300), day))
    assert face.run(bits.count_union([DAY, other])) == 300
    part = first(kit, f"u:{DAY}:0")
    client: Any = holder(kit, "many", part)
    client.set(part, client.get(part)[1:])
    with pytest.raises(DamagedDataError, match=part):
        face.run(visitors(face, "bitmap").count_union([DAY, other]))
    for key in keys_of(kit, "many"):
        holder(kit, "many", key).delete(key)
    face.run(visitors(face, "60-bit").visit_many(sessions(300), DAY))
    holder(kit, "many", f"u:{DAY}:meta").delete(f"u:{DAY}:meta")
    holder(kit, "many", f"u:{DAY}").set(f"u:{DAY}", "many")
    with pytest.raises(DamagedDataError, match="count=b'many'"):
        face.run(visitors(face, "60-bit").count_union([DAY, other]))
