"""States that are lost or damaged: `check` finds them, and `rebuild` repairs them."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face

from shardkit import DamagedDataError, ShardKit


@pytest.mark.parametrize("field", ["of", "count"])
def test_rebuild_repairs_the_state_of_a_compressed_hash(
    face: Face, kit: ShardKit, field: str
) -> None:
    client: Any = kit.client("one")
    values = face.kit.hash("h", component="one", parts=1, part_size=16, codec="zstd")
    face.run(values.hset(mapping={f"word{n}": f"value {n}" for n in range(100)}))
    state = client.hgetall("h:{0}")
    client.hset("h:{0}", field, "5000" if field != "of" else "x")
    assert [damage.key for damage in face.list(values.check())] == ["h:{0}"]
    assert face.run(values.rebuild()) == 100
    assert face.list(values.check()) == []
    assert client.hgetall("h:{0}").items() >= {b"of": state[b"of"], b"count": b"100"}.items()
    client.hdel("h:{0}", "of")
    assert face.run(values.rebuild()) == 100
    assert face.list(values.check()) == []
    assert client.hget("h:{0}", "of") == state[b"of"]


def test_an_index_of_ads_that_lost_all_but_columns_and_words_is_not_an_empty_one(
    face: Face, kit: ShardKit
) -> None:
    client: Any = kit.client("one")
    ads = face.kit.ads(component="one", parts=1)
    face.run(ads.index("1", ["USA"], "some words", "cpc", 0.5))
    kept = (b":a:", b":l:", b":d:", b":meta")
    client.delete(*(key for key in client.scan_iter() if not any(each in key for each in kept)))
    [damage] = face.list(ads.check())
    assert damage.key == "{ads:0}:state"
    assert face.run(ads.rebuild(lossy=True)) == 1
    assert face.list(ads.check()) == []


@pytest.mark.parametrize("left", [-3, 5])
def test_a_list_of_which_only_parts_are_left_is_not_an_empty_one(
    face: Face, kit: ShardKit, left: int
) -> None:
    client: Any = kit.client("one")
    jobs = face.kit.list("jobs", component="one", part_size=8)
    face.run(jobs.lpush(*range(50)))
    face.run(jobs.rpush(*range(50)))
    kept = f"{{jobs}}:{left}"
    assert client.exists(kept)
    client.delete(*(key for key in client.scan_iter() if key != kept.encode()))
    again = face.kit.list("jobs", component="one", part_size=8)
    for call in (again.llen, lambda: again.rpush("x"), lambda: again.lpop(1)):
        with pytest.raises(DamagedDataError, match=r"\{jobs\}:ends is damaged: nothing"):
            face.run(call())
    assert [damage.key for damage in face.list(again.check())] == ["{jobs}:ends"]
    assert face.run(again.rebuild()) == 8
    assert face.list(again.check()) == []
