"""Ads: which one is shown, what is counted, and how ads are estimated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faces import Face, clocked, keys_of

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    InvalidArgumentError,
    ParameterMismatchError,
    ShardCountError,
    ShardErrors,
)
from shardkit.local import LocalServer
from shardkit.search import Analyzer

COMPONENTS = {"many": 16, "few": 4, "one": 1, "both": 4}
BERLIN = ["Berlin"]


# ---- which ad is shown


@pytest.mark.parametrize("component", ["many", "one"])
def test_the_ad_for_a_place_that_earns_most_is_shown(face: Face, component: str) -> None:
    ads = face.kit.ads(component=component, parts=COMPONENTS[component])
    assert face.run(ads.index("poor", BERLIN, "running shoes", "cpm", 1)) is True
    more = [
        ("rich", ["Berlin", "Paris"], "red wine", "cpm", 3.5),
        ("click", ["Paris"], "", "cpc", 100),
    ]
    assert face.run(ads.index_many(more)) == 2
    assert face.run(ads.count()) == 3
    served = face.run(ads.target(BERLIN, "Running in the park"))
    assert served.ad == "rich"
    assert len(served.target) == 32
    assert face.run(ads.target(["Paris", "Rome"], "")).ad == "click"
    assert face.run(ads.target(["Rome"], "running shoes")) is None
    assert face.run(ads.get("rich")).views == 1
    assert face.run(ads.remove("rich")) is True
    assert face.run(ads.remove("rich")) is False
    assert face.run(ads.target(BERLIN, "red wine")).ad == "poor"
    assert face.run(ads.get("rich")) is None


def test_an_ad_is_chosen_among_many_in_slices(face: Face, lower: Any, kit: ShardKit) -> None:
    ads = face.kit.ads(component="one", parts=1)
    face.run(ads.index_many((f"ad {n}", BERLIN, "", "cpm", n % 50) for n in range(300)))
    client: Any = kit.client("one")
    face.run(ads.target(BERLIN, "no matter"))
    counts = []
    for work in (10_000_000, 1_000):
        lower(ads_work=work)
        client.config_resetstat()
        assert face.run(ads.target(BERLIN, "no matter")).ad == "ad 149"
        counts.append(client.info("commandstats")["cmdstat_evalsha"]["calls"])
    assert counts[0] <= 2 < counts[1] <= 300 / 8 + 2


# ---- what is not spent


@pytest.mark.parametrize(("places", "text"), [([], "red"), (["Rome"], "red"), (["Rome"], "the")])
def test_no_target_id_is_used_up_when_nothing_is_shown(
    kit: ShardKit, places: list[str], text: str
) -> None:
    spent = []

    def new_id() -> str:
        spent.append(1)
        return "id"

    ads = clocked(kit, new_id=new_id).ads(component="few", parts=4)
    assert ads.target(places, text) is None
    ads.index("ad", BERLIN, "red", "cpm", 1)
    assert ads.target(places, text) is None
    assert spent == []
    assert ads.target(BERLIN) == ("id", "ad")
    assert len(spent) == 1


# ---- what is expected


# ---- clicks


def test_a_target_is_kept_for_15_minutes_and_is_refused_afterwards(kit: ShardKit) -> None:
    ads = kit.ads(component="one")
    ads.index("ad", BERLIN, "", "cpa", 1)
    served = ads.target(BERLIN)
    assert served is not None
    client: Any = kit.client("one")
    key = f"{{ads:0}}:target:{served.target}"
    assert 890 <= client.ttl(key) <= 900
    client.expire(key, 10)
    ads.record_click(served.target, "ad")
    assert 890 <= client.ttl(key) <= 900  # an action may follow
    client.delete(key)
    with pytest.raises(InvalidArgumentError, match="does not exist; record clicks within 15"):
        ads.record_click(served.target, "ad", action=True)
    assert ads.get("ad").clicks == 1  # type: ignore[union-attr]


def test_a_click_on_another_ad_than_was_shown_is_refused(face: Face) -> None:
    ads = face.kit.ads(component="one", parts=1)
    face.run(ads.index_many([("a", BERLIN, "", "cpc", 1), ("b", BERLIN, "", "cpc", 2)]))
    served = face.run(ads.target(BERLIN))
    assert served.ad == "b"
    with pytest.raises(InvalidArgumentError, match="did not show ad 'a'"):
        face.run(ads.record_click(served.target, "a"))
    for target in ("", None, "x" * 300, "\ud800"):
        with pytest.raises(InvalidArgumentError, match="give the target id that `target` returned"):
            face.run(ads.record_click(target, "b"))


def test_a_view_sent_twice_is_counted_once(kit: ShardKit) -> None:
    ads = clocked(kit, new_id=lambda: "same").ads(component="one")
    ads.index("ad", BERLIN, "", "cpm", 1)
    assert ads.target(BERLIN) == ads.target(BERLIN) == ("same", "ad")
    assert ads.get("ad").views == 1  # type: ignore[union-attr]


def test_when_the_best_ad_is_removed_meanwhile_the_next_one_is_shown(kit: ShardKit) -> None:
    ads = kit.ads(component="few", parts=4)
    ads.index_many([("best", BERLIN, "", "cpm", 2), ("next", BERLIN, "", "cpm", 1)])
    steps = ads.deferred.target(BERLIN)
    replies = _send(kit, next(steps))
    ads.remove("best")
    served, sizes = _finish(kit, steps, steps.send(replies))
    assert served.ad == "next"
    assert sizes == [1, 4, 1]


def _send(kit: ShardKit, batch: Any) -> Any:
    def steps() -> Any:
        return (yield batch)

    return kit.together(steps())[0]


def _finish(kit: ShardKit, steps: Any, batch: Any) -> tuple[Any, list[int]]:
    """Run the rest of an operation; return its value, and how large its batches were."""
    sizes = []
    try:
        while True:
            sizes.append(len(batch))
            batch = steps.send(_send(kit, batch))
    except StopIteration as stopped:
        return stopped.value, sizes


# ---- what is refused


@pytest.mark.parametrize(
    ("ad", "said"),
    [
        (("", BERLIN, "", "cpm", 1), "document id ''"),
        (("a", "Berlin", "", "cpm", 1), "ad 'a': locations='Berlin'; give a list"),
        (("a", [], "", "cpm", 1), "ad 'a' has no locations"),
        (("a", [""], "", "cpm", 1), "location ''"),
        (("a", [["x"]], "", "cpm", 1), r"location \['x'\]"),
        (("a", ["\ud800"], "", "cpm", 1), "location "),
        (("a", BERLIN, b"x", "cpm", 1), "ad 'a': text=b'x'; give text"),
        (("a", BERLIN, "", "cpx", 1), "type='cpx'; give one of cpm, cpc, cpa"),
        (("a", BERLIN, "", b"cpc", 1), "type=b'cpc'"),
        (("a", BERLIN, "", "cpc", -1), "value=-1"),
        (("a", BERLIN, "", "cpc", float("nan")), "value=nan"),
        (("a", BERLIN, "", "cpc", float("inf")), "value=inf"),
        (("a", BERLIN, "", "cpc", True), "value=True"),
        (("a", BERLIN, "", "cpc", "1"), "value='1'"),
    ],
)
def test_what_cannot_be_indexed_is_refused_before_anything_is_written(
    kit: ShardKit, ad: Any, said: str
) -> None:
    ads = kit.ads(component="few", parts=4)
    with pytest.raises(InvalidArgumentError, match=said):
        ads.index(*ad)
    with pytest.raises(InvalidArgumentError, match=said):
        ads.index_many([("good", BERLIN, "", "cpm", 1), ad])
    with pytest.raises(
        InvalidArgumentError, match="give tuples \\(id, locations, text, type, value\\)"
    ):
        ads.index_many([ad[:4]])
    assert keys_of(kit, "few") == set()


def test_invalid_locations_and_texts_are_refused(kit: ShardKit) -> None:
    ads = kit.ads(component="few", parts=4)
    for places, text in (("Berlin", ""), ([1], ""), (BERLIN, None), (BERLIN, b"red")):
        with pytest.raises(InvalidArgumentError, match=r"ads: (target: |text=)"):
            ads.target(places, text)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="10,001 different words"):
        ads.target(BERLIN, " ".join(f"w{n}" for n in range(10_001)))
    with pytest.raises(InvalidArgumentError, match="1,001 locations"):
        ads.target(f"{n}" for n in range(1_001))


def test_other_parameters_are_refused(kit: ShardKit) -> None:
    kit.ads(component="one", parts=2).index("a", BERLIN, "", "cpm", 1)
    with pytest.raises(ParameterMismatchError, match="analyzer is "):
        kit.ads(component="one", parts=2, analyzer=Analyzer(stop_words={"x"})).target(BERLIN)
    with pytest.raises(ParameterMismatchError, match="parts is '2', not '1'"):
        kit.ads(component="one").record_click("t", "a")
    with pytest.raises(ParameterMismatchError, match="kind is 'ads'"):
        kit.job_search("ads", component="one", parts=2).find([])
    with pytest.raises(ShardCountError, match="has 4 shards, but this call says 3"):
        kit.ads(component="few", parts=3).target(BERLIN)
    with pytest.raises(InvalidArgumentError, match="averages_ttl=-1"):
        kit.ads(component="few", averages_ttl=-1)


# ---- where it is


def test_without_a_server_the_ads_of_others_are_shown_if_partial_is_requested() -> None:
    with LocalServer() as a, LocalServer() as b:
        entries = {"components": {"ads": {"shards": [{"port": a.port}, {"port": b.port}]}}}
        with shardkit.connect(ShardMap.parse(json.dumps(entries))) as kit:
            ads = kit.ads(component="ads", parts=2)
            ads.index_many((f"{n}", BERLIN, "", "cpm", 1) for n in range(20))
            b.stop()
            with pytest.raises(ShardErrors, match="ads:1"):
                ads.target(BERLIN)
            served = ads.target(BERLIN, partial=True)
            assert served is not None
            assert ads.record_click(served.target, served.ad) is True
