"""Jobs by the skills that they require, also against a model in plain Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from faces import Face, drawn, keys_of
from hypothesis import HealthCheck, given, settings, strategies as st

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    ShardCountError,
    ShardErrors,
)
from shardkit.job_search import JobSearch

COMPONENTS = {"many": 16, "few": 4, "one": 1, "both": 4}


def ids(found: Any) -> list[str]:
    return [hit.id for hit in found]


# ---- what it does


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_candidate_finds_the_jobs_all_of_whose_requirements_are_met(
    face: Face, component: str
) -> None:
    jobs = face.kit.job_search(component=component, parts=COMPONENTS[component])
    assert face.run(jobs.index("web", ["Python", "SQL", "HTML"])) is True
    assert face.run(jobs.index_many([("data", ["python", "sql"]), ("ops", ["Linux"])])) == 2
    assert face.run(jobs.index("anybody", [])) is True
    assert face.run(jobs.count()) == 4
    found = face.run(jobs.find([" PYTHON ", "Sql", "html", "Cobol"]))
    assert found.total == 3
    assert [(hit.id, hit.value) for hit in found] == [("web", 3), ("data", 2), ("anybody", 0)]
    assert face.run(jobs.qualified("web", ["python", "sql", "html"])) is True
    assert face.run(jobs.qualified("web", ["python", "sql"])) is False
    assert face.run(jobs.qualified("nowhere", ["python"])) is False
    assert face.run(jobs.get("data")) == {"python": 0, "sql": 0}
    assert face.run(jobs.get("nowhere")) is None


def test_the_last_of_a_job_given_twice_in_a_batch_counts(face: Face) -> None:
    jobs = face.kit.job_search(component="few", parts=4)
    assert face.run(jobs.index_many([("job", ["a"]), ("other", []), ("job", ["b"])])) == 2
    assert ids(face.run(jobs.find(["b"]))) == ["job", "other"]
    assert ids(face.run(jobs.find(["a"]))) == ["other"]
    assert face.run(jobs.remove_many(["job", "job", "nowhere"])) == 1


@pytest.mark.parametrize("most", ["jobs_per_batch", "skills_per_batch"])
def test_many_jobs_are_written_in_several_batches(face: Face, lower: Any, most: str) -> None:
    lower(**{most: 10})
    jobs = face.kit.job_search(component="many")
    every = [(f"{n:02}", ["a", "b"]) for n in range(33)]
    assert face.run(jobs.index_many(every)) == 33
    assert face.run(jobs.index_many(every)) == 0
    assert ids(face.run(jobs.find(["a", "b"], limit=50))) == [job for job, _ in every]


def test_years_are_compared_to_the_hundredth(face: Face) -> None:
    jobs = face.kit.job_search(component="few", parts=4, measure="years")
    face.run(jobs.index("senior", {"Go": 4.5, "SQL": 0}))
    assert ids(face.run(jobs.find({"go": 4.49, "sql": 1}))) == []
    assert ids(face.run(jobs.find({"go": 4.5, "sql": 0}))) == ["senior"]
    assert face.run(jobs.qualified("senior", {"GO": 100, "sql": 0.01})) is True
    assert face.run(jobs.qualified("senior", {"GO": 100})) is False
    assert face.run(jobs.get("senior")) == {"go": 4.5, "sql": 0}


def test_the_highest_of_a_skill_given_twice_counts(face: Face) -> None:
    jobs = face.kit.job_search(component="one", measure="years")
    face.run(jobs.index("job", {"Go": 1, "GO": 3}))
    assert face.run(jobs.get("job")) == {"go": 3}
    assert ids(face.run(jobs.find({"go": 2}))) == []
    assert ids(face.run(jobs.find({"go": 2, "Go": 3}))) == ["job"]


# ---- pages


def test_pages_by_offset_and_by_cursor_are_the_same(face: Face, lower: Any) -> None:
    lower(job_page=3)
    jobs = face.kit.job_search(component="many", parts=16)
    face.run(jobs.index_many((f"{n:03}", ["a", "b", "c"][: n % 4]) for n in range(100)))
    everything = face.list(jobs.all(["a", "b", "c"]))
    expected = sorted((-(n % 4), f"{n:03}") for n in range(100))
    assert [(-hit.value, hit.id) for hit in everything] == expected
    after, start = None, 0
    while True:
        by_cursor = face.run(jobs.find(["a", "b", "c"], limit=7, cursor=after))
        by_place = face.run(jobs.find(["c", "b", "a"], offset=start, limit=7))
        assert by_cursor == by_place
        assert by_cursor.hits == everything[start : start + 7]
        assert by_cursor.total == 100
        after, start = by_cursor.cursor, start + 7
        if after is None:
            break
    assert start == 105
    assert face.run(jobs.find(["a"], limit=0)).total == 50
    assert face.run(jobs.find(["a"], limit=0)).hits == []


def test_a_cursor_continues_where_the_page_ended_even_if_that_job_was_removed(face: Face) -> None:
    jobs = face.kit.job_search(component="few", parts=4)
    face.run(jobs.index_many((f"{n}", ["a"]) for n in range(10)))
    found = face.run(jobs.find(["a"], limit=4))
    face.run(jobs.remove_many(["3", "4"]))
    assert ids(face.run(jobs.find(["a"], limit=4, cursor=found.cursor))) == ["5", "6", "7", "8"]
    last = face.run(jobs.find(["a"], limit=5, cursor=found.cursor))
    assert (ids(last), last.cursor) == (["5", "6", "7", "8", "9"], None)


def test_cursors_of_something_else_are_refused(kit: ShardKit) -> None:
    jobs = kit.job_search(component="few", parts=4)
    jobs.index_many((f"{n}", ["a"]) for n in range(10))
    cursor = jobs.find(["a"], limit=4).cursor
    with pytest.raises(InvalidArgumentError, match="cursor is of other skills"):
        jobs.find(["a", "b"], cursor=cursor)
    with pytest.raises(InvalidArgumentError, match="cursor= with offset="):
        jobs.find(["a"], cursor=cursor, offset=1)
    with pytest.raises(InvalidArgumentError, match="cursor='nonsense'"):
        jobs.find(["a"], cursor="nonsense")


# ---- what it refuses


@pytest.mark.parametrize(
    ("measure", "skills", "said"),
    [
        ("skills", "python", "skills='python'; give a list"),
        ("skills", {"python": 1}, "give a list of skills"),
        ("skills", None, "give a list of skills"),
        ("skills", [""], "skill ''"),
        ("skills", ["a\x01b"], "skill 'a"),
        ("skills", [b"a"], "skill b'a'"),
        ("skills", ["\ud800"], "skill "),
        ("skills", ["x" * 129], "1 to 128 characters"),
        ("skills", [f"{n}" for n in range(1001)], "1,001 skills; give at most 1,000"),
        ("levels", ["python"], "give a mapping of skills to levels"),
        ("levels", {"python": 3}, "python: level=3; give 0, 1 or 2"),
        ("levels", {"python": True}, "python: level=True"),
        ("years", {"python": -1}, "python: years=-1; give a number, 0 to 100"),
        ("years", {"python": float("nan")}, "python: years=nan"),
        ("years", {"python": "5"}, "python: years='5'"),
    ],
)
def test_invalid_skills_are_refused_before_anything_is_written(
    kit: ShardKit, measure: str, skills: Any, said: str
) -> None:
    jobs = kit.job_search(component="few", parts=4, measure=measure)
    with pytest.raises(InvalidArgumentError, match=said):
        jobs.index("job", skills)
    with pytest.raises(InvalidArgumentError, match="jobs: candidate: "):
        jobs.find(skills)
    with pytest.raises(InvalidArgumentError, match="jobs: candidate: "):
        jobs.qualified("job", skills)
    assert keys_of(kit, "few") == set()


def test_other_parameters_are_refused(kit: ShardKit) -> None:
    kit.job_search(component="one", parts=2).index("job", ["a"])
    with pytest.raises(ParameterMismatchError, match="measure is 'skills', not 'levels'"):
        kit.job_search(component="one", parts=2, measure="levels").find({"a": 1})
    with pytest.raises(ParameterMismatchError, match="parts is '2', not '1'"):
        kit.job_search(component="one").index("job", ["a"])
    with pytest.raises(ShardCountError, match="has 4 shards, but this call says 3"):
        kit.job_search(component="few", parts=3).find([])
    with pytest.raises(InvalidArgumentError, match="measure='miles'"):
        kit.job_search(component="one", measure="miles")
    with pytest.raises(InvalidArgumentError, match="leave out braces"):
        kit.job_search("a{b}", component="one")
    with pytest.raises(InvalidArgumentError, match="document id ''"):
        kit.job_search(component="one", parts=2).index("", ["a"])
    with pytest.raises(InvalidArgumentError, match="give a list of ids"):
        kit.job_search(component="one", parts=2).remove_many("job")


# ---- where it is


def test_without_a_server_its_jobs_are_missing_and_marked_so() -> None:
    from shardkit.local import LocalServer

    with LocalServer() as a, LocalServer() as b:
        shards = [{"port": a.port}, {"port": b.port}]
        entries = {"components": {"jobs": {"shards": shards}}}
        with shardkit.connect(ShardMap.parse(json.dumps(entries))) as kit:
            jobs = kit.job_search(component="jobs", parts=2)
            jobs.index_many((f"{n}", ["a"]) for n in range(40))
            b.stop()
            with pytest.raises(ShardErrors, match="jobs:1"):
                jobs.find(["a"])
            found = jobs.find(["a"], partial=True, limit=100)
            assert found.missing == (1,)
            assert found.partial
            assert 0 < found.total == len(found) < 40


def test_requirements_that_are_no_numbers_are_named(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.job_search(component="one", measure="years")
    face.run(jobs.index("web", {"python": 0.12}))
    client: Any = kit.client("one")
    [key] = client.scan_iter("*d:web")
    stored = client.get(key)
    for damaged in (b'""', b"{}", b"xx"):
        client.set(key, stored.replace(b":12}", b":" + damaged + b"}"))
        with pytest.raises(DamagedDataError, match="requirements that cannot be read") as raised:
            face.run(jobs.get("web"))
        assert raised.value.key == key.decode()


# ---- against a model

SKILLS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=4)
STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.none() | SKILLS) | st.tuples(st.just(-1), SKILLS),
    max_size=60,
)


def expected(jobs: Mapping[str, Mapping[str, int]], skills: Mapping[str, int]) -> list[str]:
    met = [
        (-len(needed), job)
        for job, needed in jobs.items()
        if all(skill in skills and skills[skill] >= level for skill, level in needed.items())
    ]
    return [job for _, job in sorted(met)]


@pytest.mark.parametrize("work", [None, 1])
@settings(max_examples=drawn(4, 12), suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_one_part_and_many_find_what_a_model_finds_in_the_same_order(
    face: Face,
    kit: ShardKit,
    lower: Any,
    work: int | None,
    steps: list[tuple[int, dict[str, int] | None]],
) -> None:
    run = face.run
    if work:
        lower(job_work=work)
    for component in ("one", "few"):
        for shard in range(max(1, len(kit.component(component).shards))):
            kit.client(component, None if component == "one" else shard).flushdb()
    places = (("one", 1), ("one", 3), ("few", 4))
    indexes: list[Any] = [
        JobSearch(face.kit.driver, component, f"jobs{shards}", shards, "levels", chunk=8)
        for component, shards in places
    ]
    model: dict[str, dict[str, int]] = {}
    for number, skills in [*steps, (-1, dict.fromkeys("abcdef", 2)), (-1, {})]:
        job = f"job {number}"
        for jobs in indexes:
            if number < 0:
                found = run(jobs.find(skills, limit=50))
                assert ids(found) == expected(model, skills or {})
                assert found.total == len(found)
            elif skills is None:
                assert run(jobs.remove(job)) is (job in model)
            else:
                assert run(jobs.index(job, skills)) is (job not in model)
        if number >= 0 and skills is None:
            model.pop(job, None)
        elif number >= 0:
            model[job] = skills or {}
    for jobs in indexes:
        assert run(jobs.count()) == len(model)
        for job in model:
            assert run(jobs.get(job)) == model[job]
            assert run(jobs.qualified(job, dict.fromkeys("abc", 1))) is (
                job in expected(model, dict.fromkeys("abc", 1))
            )
