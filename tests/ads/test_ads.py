"""Ads: which one is shown, what is counted, and how ads are estimated."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from faces import Exchanges, Face, clocked, keys_of

import shardkit
from shardkit import DamagedDataError, ShardKit, ShardMap
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


def test_of_long_pages_and_ads_so_many_words_count_as_a_server_has_time_for(face: Face) -> None:
    run, ads = face.run, face.kit.ads(component="one")
    pages = [" ".join(f"w{n}" for n in range(low, low + 1_500)) for low in (0, 700, 1_400)]
    for name in "abc":
        run(ads.index(name, [name], " ".join(pages), "cpc", 1))
    assert run(ads.target(["a"], f"{pages[0]} last")) is not None
    assert "w499" in run(ads.get("a")).words
    for name, page in product("abc", pages):
        run(ads.record_click(*run(ads.target([name], page))))
    counted = [run(ads.get(name)).words for name in "abc"]
    assert [len(words) for words in counted] == [500, 500, 500]
    assert run(ads.index_many([(name, ["x"], "w3 w4", "cpc", 1) for name in "abc"])) == 0
    assert [set(run(ads.get(name)).words) for name in "abc"] == [{"w3", "w4"}] * 3
    assert run(ads.remove_many(["a", "b", "c"])) == 3
    assert face.list(ads.check()) == []


def test_an_ad_inherits_nothing_from_one_whose_removal_was_killed(face: Face) -> None:
    run, ads = face.run, face.kit.ads(component="one")
    names, text = list("abcd"), " ".join(f"w{n}" for n in range(400))
    for name in names:
        run(ads.index(name, [name], text, "cpc", 1))
        run(ads.record_click(*run(ads.target([name], text))))
    assert Exchanges(face, ads.deferred.remove_many(names)).stop_after(3)
    for name in names:
        assert run(ads.index(name, [name], "w1 other", "cpc", 1)) is True
        ad = run(ads.get(name))
        assert (ad.views, ad.clicks, ad.words) == (0, 0, {})
    assert face.list(ads.check()) == []


def test_invalid_locations_and_texts_are_refused(kit: ShardKit) -> None:
    ads = kit.ads(component="few", parts=4)
    for places, text in (("Berlin", ""), ([1], ""), (BERLIN, None), (BERLIN, b"red")):
        with pytest.raises(InvalidArgumentError, match=r"ads: (target: |text=)"):
            ads.target(places, text)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="4,001 different words"):
        ads.target(BERLIN, " ".join(f"w{n}" for n in range(4_001)))
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


ADS: dict[str, tuple[Any, str]] = {
    "a lost ad": (lambda c: c.delete("{ads:0}:d:shoes"), "{ads:0}:d:shoes"),
    "attributes": (
        lambda c: c.set("{ads:0}:d:shoes", c.get("{ads:0}:d:shoes").replace(b'"cpc"', b'"xyz"')),
        "{ads:0}:d:shoes",
    ),
    "a count": (lambda c: c.hset("{ads:0}:ad:shoes", "v", "x"), "{ads:0}:ad:shoes"),
    "another's counts": (lambda c: c.hset("{ads:0}:ad:shoes", "number", 5), "{ads:0}:ad:shoes"),
    "counts of a type": (lambda c: c.hset("{ads:0}:types", "cpc:v", "-1"), "{ads:0}:types"),
    "a bonus": (
        lambda c: [c.hset(key, 0, "nan") for key in c.scan_iter("{ads:0}:bonus:*")],
        "{ads:0}:bonus:",
    ),
    "a bonus that is no number": (
        lambda c: [c.hset(key, 0, "x") for key in c.scan_iter("{ads:0}:bonus:*")],
        "{ads:0}:bonus:",
    ),
    "a lost column": (lambda c: c.delete("{ads:0}:a:1:0"), "{ads:0}:a:1:0"),
    "no parameters": (lambda c: c.delete("ads:meta"), "ads:meta"),
}
JOBS: dict[str, tuple[Any, str]] = {
    "a lost job": (lambda c: c.delete("{jobs:0}:d:j7"), "{jobs:0}:d:j7"),
    "requirements": (
        lambda c: c.set("{jobs:0}:d:j7", c.get("{jobs:0}:d:j7").replace(b'{"', b'"{')),
        "{jobs:0}:d:j7",
    ),
    "postings": (lambda c: c.delete("{jobs:0}:r:0:0"), "{jobs:0}:r:0:0"),
    "a state": (lambda c: c.delete("{jobs:0}:state"), "{jobs:0}:state"),
    "no parameters": (lambda c: c.delete("jobs:meta"), "jobs:meta"),
}


def some_ads(face: Face) -> Any:
    ads = clocked(face.kit, new_id=iter(map(str, range(999))).__next__).ads(component="one")
    face.run(ads.index("shoes", ["Berlin"], "running shoes", "cpc", 0.5))
    face.run(ads.index("wine", ["Berlin", "Rome"], "red wine", "cpm", 0.1))
    for _ in range(3):
        served = face.run(ads.target(["Berlin"], "running"))
        face.run(ads.record_click(served.target, served.ad))
    return ads


def some_jobs(face: Face) -> Any:
    jobs = face.kit.job_search(component="one")
    face.run(jobs.index_many((f"j{n}", ["python", f"skill {n % 9}"]) for n in range(40)))
    return jobs


@pytest.mark.long(2)
@pytest.mark.parametrize(("make", "damages"), [(some_ads, ADS), (some_jobs, JOBS)])
def test_what_is_damaged_is_named_and_can_be_deleted(
    face: Face, kit: ShardKit, make: Any, damages: Any
) -> None:
    structure, client = make(face), kit.client("one")
    assert face.list(structure.check()) == []
    dumps = {each: client.dump(each) for each in client.scan_iter()}
    for name, (act, key) in damages.items():
        act(client)
        found = face.list(make_again(face, structure).check())
        assert [each for each in found if each.key.startswith(key)], (name, found)
        face.run(make_again(face, structure).delete())
        left = {key for key in client.scan_iter() if b":target:" not in key}
        assert left == set(), name
        for each, dump in dumps.items():
            client.restore(each, 0, dump, replace=True)
    assert face.list(make_again(face, structure).check()) == []


def make_again(face: Face, structure: Any) -> Any:
    return (
        face.kit.ads(component="one")
        if structure.name == "ads"
        else face.kit.job_search(component="one")
    )


def test_a_damaged_ad_or_job_is_an_error_that_names_its_key(face: Face, kit: ShardKit) -> None:
    ads, jobs, client = some_ads(face), some_jobs(face), kit.client("one")
    ADS["attributes"][0](client)
    JOBS["requirements"][0](client)
    with pytest.raises(DamagedDataError, match="ads:0}:d:shoes is damaged"):
        face.run(ads.get("shoes"))
    with pytest.raises(DamagedDataError, match="jobs:0}:d:j7 is damaged"):
        face.run(jobs.get("j7"))
    client.hset("{ads:0}:ad:wine", "v", "x")
    [found] = [each for each in face.list(ads.check()) if each.key == "{ads:0}:ad:wine"]
    assert found.expected.startswith("an integer from 0")
    with pytest.raises(DamagedDataError, match="ads:0}:ad:wine is damaged: v=x"):
        face.run(ads.get("wine"))


def test_a_bonus_that_is_no_number_is_an_error_that_names_its_ad(face: Face, kit: ShardKit) -> None:
    ads, client = some_ads(face), kit.client("one")
    assert face.run(ads.get("shoes")).words["running"].clicks == 3
    ADS["a bonus that is no number"][0](client)
    with pytest.raises(DamagedDataError, match=r"ads:0}:bonus is damaged: .*'x'.*those of 'shoes'"):
        face.run(ads.get("shoes"))


def test_an_ad_whose_value_is_no_number_is_given_up_only_if_that_is_said(
    face: Face, kit: ShardKit
) -> None:
    ads, client = some_ads(face), kit.client("one")
    stored = client.get("{ads:0}:d:shoes")
    assert b",0.5," in stored
    client.set("{ads:0}:d:shoes", stored.replace(b",0.5,", b',"x",'))
    with pytest.raises(DamagedDataError, match=r"d:shoes is damaged: .*value.*an ad.*lossy=True"):
        face.run(ads.rebuild())
    assert face.run(ads.rebuild(lossy=True)) == 1
    assert face.run(ads.get("shoes")) is None
    assert face.run(ads.target(["Berlin"], "running")).ad == "wine"
