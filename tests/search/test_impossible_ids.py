"""Ids that no word can have use up no ids, and checks stay short whatever the number of words."""

from __future__ import annotations

from faces import Face, holder

from shardkit import ShardKit


def stored(kit: ShardKit, key: str, field: str, number: int) -> None:
    holder(kit, "one", key).hset(key, field, number)


def test_a_rebuild_leaves_ids_after_an_impossible_one(face: Face, kit: ShardKit) -> None:
    ads = face.kit.ads(component="one")
    face.run(ads.index("1", ["USA"], "words of one", "cpc", 0.5))
    [key] = [key.decode() for key in holder(kit, "one", "x").scan_iter("*:l:wor")]
    stored(kit, key, "words", 2**31)
    face.run(ads.rebuild(lossy=True))
    face.run(ads.index("2", ["USA"], "others for two", "cpc", 0.7))
    assert face.run(ads.target(["USA"], "others")).ad == "2"
    assert face.list(ads.check()) == []


def test_a_part_with_the_most_words_is_checked_in_short_calls(face: Face, kit: ShardKit) -> None:
    """A server answers nobody else while a script runs."""
    index = face.kit.search("most", component="one", parts=1)
    face.run(index.index("d1", "red fox"))
    stored(kit, "{most:0}:state", "words", 2**24 - 2)
    client = holder(kit, "one", "x")
    client.config_resetstat()
    assert [found.key for found in face.list(index.check())] == ["{most:0}:starts"]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > 100
