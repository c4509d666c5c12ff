"""Job search: the jobs all of whose requirements a candidate meets, over one server or many.

A job is a document of the search index (`shardkit.search.index`): its words are the skills that it
requires, and a column has how many they are. So a candidate's jobs are found without looking at any
other: the postings of the candidate's skills are gone through, it is counted how often each job is
met, and those whose count is the number of their requirements are found::

    {jobs:0}:r:0:0      HASH   python → job 0 ≥ 450, job 2 ≥ 100     sql → job 0 ≥ 100 …
    {jobs:0}:a:1:0      STRING requirements of job 0, 1, 2 …         2, 1, 1 …

    a candidate with {"Python": 5, "SQL": 0.5}
    python 500   job 0 ✓   job 2 ✓
    sql     50   job 0 ✗                       job 0: 1 of 2   job 2: 1 of 1, found

A posting has two bytes for what is required of the skill (a level, or hundredths of years), so one
posting does what takes a set a level, or a sorted set of years, in the book's layout. Jobs without
requirements have a word of their own, which every candidate is given.

Each job is whole on one part. All parts are asked at the same time, each in one script, and what
they find is merged in one order: the most requirements first, as these jobs are met by the fewest,
then by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.job_search.skills import (
    MEASURES,
    NO_SKILL,
    PreparedJob,
    Skills,
    meets,
    read_skills,
    requirements_in,
    value_of,
    write_arguments,
)
from shardkit.operations.commands import Reply
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.search.base import InParts
from shardkit.search.model.documents import check_id
from shardkit.search.model.results import Hit, Results, SearchCursor, read_cursor, write_token
from shardkit.search.model.schema import CHUNK, Schema
from shardkit.search.shards import PRIMARY
from shardkit.structures.base.arguments import check_integer, shown
from shardkit.structures.base.parameters import open_all

JOBS_PER_BATCH: Final = 1_000
SKILLS_PER_BATCH: Final = 10_000
MAX_LIMIT: Final = 10_000
MAX_OFFSET: Final = 1_000_000
DEFAULT_LIMIT: Final = 20
PAGE_SIZE: Final = 1_000


class JobSearch(InParts[Face]):
    """Jobs by the skills that they require. Made by ``kit.job_search``.

    Args:
        driver: what runs its operations.
        component: where its keys live; if it is sharded, of as many shards as there are parts.
        name: the name of the index, in its keys.
        shards: in how many parts it is.
        measure: what is asked of a skill: ``skills``, just to have it; ``levels``, 0 to 2;
            ``years``, 0 to 100, compared to the hundredth.
        chunk: how many jobs a chunk of postings is about, a power of two.

    Skills are given as a list of text; with levels or years as a mapping. They are spelled in one
    way: ``Python``, ``PYTHON`` and `` python`` are the same skill.

    Raises:
        InvalidArgumentError: an argument is out of range.

    A process that has not yet compared the parameters needs one more exchange to write.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "jobs",
        shards: int = 1,
        measure: str = "skills",
        chunk: int = CHUNK,
    ) -> None:
        if measure not in MEASURES:
            raise InvalidArgumentError(
                f"{name}: measure={shown(measure)}", f"give one of {', '.join(MEASURES)}"
            )
        schema = Schema(name, shards, {"skills": 1.0}, {"required": "number"}, chunk=chunk)
        parameters = {"kind": "jobs", "shards": shards, "measure": measure, "chunk": chunk}
        super().__init__(driver, component, schema, parameters)
        self.measure = measure

    @property
    def deferred(self) -> JobSearch[Deferred]:
        """These jobs with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    # ---- jobs

    @operation
    def index(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Post a job, or say anew what it requires; return whether it is new.

        Args:
            job_id: its id, any text of at most 1,024 bytes.
            skills: what it requires, at most 1,000 skills. Without any everybody meets it.

        Raises:
            InvalidArgumentError: the id or a skill cannot be used; nothing was written then.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: the part failed.

        Cost: one exchange; one command of some microseconds a skill.
        """
        return (yield from self._write([self._prepared(job_id, skills)])) == 0

    @operation
    def index_many(self, jobs: Iterable[tuple[str, Skills]]) -> Operation[int]:
        """Post jobs; return how many are new.

        Args:
            jobs: ids with skills, as `index` takes them. Any iterable, also a generator: it is
                read as they are sent.

        Raises:
            InvalidArgumentError: an id or a skill cannot be used; of its batch nothing was written
                then, but those before.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: parts failed; jobs of the others were posted. All may be posted again.

        Cost: one exchange, a command a part, for 1,000 jobs or 10,000 skills.
        """
        new, size = 0, 0
        batch: list[PreparedJob | str] = []
        for job_id, skills in jobs:
            job = self._prepared(job_id, skills)
            batch.append(job)
            size += len(job.requirements)
            if len(batch) >= JOBS_PER_BATCH or size >= SKILLS_PER_BATCH:
                new += len({_id(one) for one in batch}) - (yield from self._write(batch))
                batch, size = [], 0
        return new + len({_id(one) for one in batch}) - (yield from self._write(batch))

    @operation
    def remove(self, job_id: str) -> Operation[bool]:
        """Remove a job; return whether it was there. Cost: one exchange."""
        return (yield from self._write([check_id(self._schema, job_id)])) > 0

    @operation
    def remove_many(self, ids: Iterable[str]) -> Operation[int]:
        """Remove jobs; return how many were there. Cost: one exchange for 1,000.

        Raises:
            InvalidArgumentError: an id is none; of its 1,000 nothing was removed then.
            ShardErrors: parts failed; jobs of the others were removed.
        """
        if isinstance(ids, str):
            raise InvalidArgumentError(f"{self.name}: ids={shown(ids)}", "give a list of ids")
        removed = 0
        for page in pages((check_id(self._schema, one) for one in ids), JOBS_PER_BATCH):
            removed += yield from self._write(list(dict.fromkeys(page)))
        return removed

    @operation
    def get(self, job_id: str) -> Operation[dict[str, float] | None]:
        """Return what a job requires; None if it is not there. Cost: one exchange.

        Returns:
            The level or years of each skill, 0 where just the skill is required. Skills come
            spelled as they are compared.
        """
        requirements = yield from self._requirements(job_id)
        if requirements is None:
            return None
        return {skill: value_of(self.measure, n) for skill, n in requirements.items()}

    # ---- candidates

    @operation
    def qualified(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Return whether a candidate meets all requirements of a job.

        Args:
            job_id: the job.
            skills: what the candidate has; may be empty.

        Returns:
            False also if there is no such job.

        Raises:
            InvalidArgumentError: the id or a skill cannot be used.
            ParameterMismatchError: the index was created with other parameters.

        Cost: one exchange.
        """
        offered = read_skills(self.name, self.measure, skills, "candidate")
        requirements = yield from self._requirements(job_id)
        return requirements is not None and meets(requirements, offered)

    @operation
    def find(
        self,
        skills: Skills,
        *,
        start: int = 0,
        num: int = DEFAULT_LIMIT,
        after: str | None = None,
        partial: bool = False,
    ) -> Operation[Results]:
        """Find the jobs all of whose requirements a candidate meets.

        Args:
            skills: what the candidate has; may be empty: then jobs without requirements are found.
            start: how many jobs come before the page.
            num: how many jobs it has, at most 10,000. With 0 they are only counted.
            after: the cursor of the page before, in place of ``start``.
            partial: give what those parts find that answer, marked as such, if others fail.

        Returns:
            How many jobs are found, and those of the page: the ones with most requirements first,
            then by id. A hit's value is how many requirements the job has.

        Raises:
            InvalidArgumentError: a skill or the page cannot be used.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: parts failed, and partial results were not wanted; or all failed.

        Cost: one exchange. A part goes through all postings of the candidate's skills.
        """
        offered = read_skills(self.name, self.measure, skills, "candidate")
        check_integer(self.name, "start", start, 0, MAX_OFFSET)
        check_integer(self.name, "num", num, 0, MAX_LIMIT)
        digest = blake2b(repr(sorted(offered.items())).encode(), digest_size=9).hexdigest()
        cursor = None if after is None else self._cursor(after, digest, start)
        most = num + 1 if cursor and num else start + num
        beyond = (int(cursor.value), cursor.id) if cursor else ("", "")
        flat = [text for pair in offered.items() for text in pair]
        arguments = [self._schema.chunk, most, *beyond, NO_SKILL, *flat]
        replies = yield from self._ask(
            [part.call("job_search/find", arguments) for part in self._all], partial=partial
        )
        there = [reply for reply in replies if not isinstance(reply, ShardFailure)]
        missing = tuple(n for n, reply in enumerate(replies) if isinstance(reply, ShardFailure))
        total = sum(reply[0] for reply in there)
        hits = _merged(there)
        more = len(hits) > num if cursor else total > start + num
        hits = hits[start : start + num]
        following = None
        if more and hits:
            last = hits[-1]
            following = write_token(SearchCursor(digest, PRIMARY, last.value, last.id, None))
        return Results(total, hits, following, missing=missing)

    @stream
    def all(self, skills: Skills) -> Stream[Hit]:
        """Iterate over all jobs that a candidate meets, in the order of `find`.

        Cost: one exchange for 1,000 jobs.
        """
        offered: Skills = dict(skills) if isinstance(skills, Mapping) else list(skills)
        after: str | None = None
        while True:
            found: Results = yield from JobSearch.find.steps(
                self, offered, num=PAGE_SIZE, after=after
            )
            yield Page(found.hits)
            if found.cursor is None:
                return
            after = found.cursor

    # ---- steps

    def _prepared(self, job_id: str, skills: Skills) -> PreparedJob:
        check_id(self._schema, job_id)
        what = f"job {shown(job_id)}"
        return PreparedJob(job_id, read_skills(self.name, self.measure, skills, what))

    def _write(self, jobs: Sequence[PreparedJob | str]) -> Operation[int]:
        """Write jobs, remove those of which there is the id; return how many were there."""
        if not jobs:
            return 0
        yield from open_all([self.meta], create=True)
        batch = [
            self._writing(part, write_arguments(some)) for part, some in self._by_part(jobs, _id)
        ]
        replies = yield batch
        return sum(sum(reply[2:]) for reply in replies)

    def _requirements(self, job_id: str) -> Operation[dict[str, int] | None]:
        part = self._part(check_id(self._schema, job_id))
        [stored] = yield from self._ask([part.document(job_id)])
        return None if stored is None else requirements_in(stored)

    def _cursor(self, after: str, digest: str, start: int) -> SearchCursor:
        cursor = read_cursor(self.name, after)
        if start:
            raise InvalidArgumentError(
                f"{self.name}: after= with start=", "a cursor says where the page begins"
            )
        if cursor.query != digest:
            raise InvalidArgumentError(
                f"{self.name}: after is of other skills", "give the same skills"
            )
        return cursor


def _id(job: PreparedJob | str) -> str:
    return job if isinstance(job, str) else job.id


def _merged(replies: Iterable[Reply]) -> list[Hit]:
    """Return the jobs of all parts in order: most requirements first, then by id.

    Python compares text by code points: the order of its bytes in UTF-8, which is the script's.
    """
    hits = []
    for _, flat in replies:
        pairs = zip(flat[::2], flat[1::2], strict=True)
        hits += [Hit(job_id.decode(), required) for job_id, required in pairs]
    return sorted(hits, key=lambda hit: (-float(hit.value), hit.id))
