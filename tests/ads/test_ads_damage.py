"""What a check of ads, or of jobs, finds, and that both are always deleted."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, clocked

from shardkit import DamagedDataError, ShardKit

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
