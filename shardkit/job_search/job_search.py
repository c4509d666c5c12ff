"""Job search: the jobs all of whose requirements a candidate meets, over one server or many.

A job is a document of the search index (`shardkit.search.index`): its words are the skills that it
requires, and a column has their number. A query reads the postings of the candidate's skills,
counts the matches of each job, and returns the jobs with a match for each requirement::

    {jobs:0}:r:0:0      HASH   python → job 0 ≥ 450, job 2 ≥ 100     sql → job 0 ≥ 100 …
    {jobs:0}:a:1:0      STRING requirements of job 0, 1, 2 …         2, 1, 1 …

    a candidate with {"Python": 5, "SQL": 0.5}
    python 500   job 0 ✓   job 2 ✓
    sql     50   job 0 ✗                       job 0: 1 of 2   job 2: 1 of 1, found

A posting has two bytes for the required level or hundredths of years, so it replaces a set for each
level, or a sorted set of years, in the layout of Redis in Action. Jobs without requirements have a
word of their own, which every query contains.

Each job is whole on one part. One script per part runs at the same time, and their results are
merged in one order: the most requirements first, as the fewest candidates meet those, then by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from shardkit.errors import InvalidArgumentError
from shardkit.job_search.skills import (
    MEASURES,
    NO_SKILL,
    PreparedJob,
    Skills,
    meets,
    read_skills,
    recovered_job,
    requirements_in,
    value_of,
    write_arguments,
)
from shardkit.operations.arguments import rows_of, shown
from shardkit.operations.commands import Command
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    stream,
)
from shardkit.search.check import check_parts
from shardkit.search.documents import DocumentStructure
from shardkit.search.model.documents import check_id
from shardkit.search.model.results import Hit, Results, SearchCursor, read_cursor
from shardkit.search.model.schema import CHUNK, Schema
from shardkit.search.parts import PRIMARY, WORK_PER_CALL, DocumentForm
from shardkit.search.request import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Damage

JOBS_PER_BATCH: Final = 1_000
SKILLS_PER_BATCH: Final = 10_000
PAGE_SIZE: Final = 1_000


class JobSearch(DocumentStructure[Face]):
    """Jobs by the skills that they require. Made by ``kit.job_search``.

    Args:
        driver, name: see `shardkit.operations.Structure`.
        component: where the keys live; if sharded, with as many shards as there are parts.
        shards: the number of parts.
        measure: the kind of requirements: ``skills``, just the skill; ``levels``, 0 to 2;
            ``years``, 0 to 100, compared to the hundredth.
        chunk: how many jobs a chunk of postings covers, a power of two.

    Skills are a list of text; with levels or years a mapping. Their spelling is normalised:
    ``Python``, ``PYTHON`` and `` python`` are the same skill.

    Raises:
        InvalidArgumentError: an argument is out of range.

    The first write of a process takes one more exchange, to compare the parameters.
    Calls raise ShardErrors if a shard failed, and ParameterMismatchError if the index was created
    with other parameters.
    """

    deferred: DeferredFace[JobSearch[Deferred]]

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
        form = DocumentForm(write_arguments, recovered_job, names_words=lambda _: False)
        super().__init__(driver, component, schema, parameters, form)
        self.measure = measure

    # ---- jobs

    @operation
    def index(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Index a job, or replace its requirements; return whether it is new.

        Args:
            job_id: its id, any text of at most 1,024 bytes.
            skills: its requirements, at most 1,000 skills; without any, all candidates qualify.

        Raises:
            InvalidArgumentError: the id or a skill cannot be used; nothing was written.

        Cost: one exchange; one command that takes some microseconds a skill.
        """
        written = yield from self._parts.write([self._prepare(job_id, skills)])
        return written.new > 0

    @operation
    def index_many(self, jobs: Iterable[tuple[str, Skills]]) -> Operation[int]:
        """Index jobs; return how many are new.

        Args:
            jobs: any iterable, such as a generator, of pairs of an id and skills; see `index`. It
                is read while jobs are sent.

        Raises:
            InvalidArgumentError: an id or a skill cannot be used. Nothing of its batch was written.
            ShardErrors: shards failed; jobs on the others were indexed. Repeat the call.

        Cost: one exchange, a command a part, for 1,000 jobs or 10,000 skills.
        """
        new, size = 0, 0
        batch: list[PreparedJob] = []
        for job_id, skills in rows_of(self.name, "jobs", jobs, "(id, skills)", 2, 2):
            job = self._prepare(job_id, skills)
            batch.append(job)
            size += len(job.requirements)
            if len(batch) >= JOBS_PER_BATCH or size >= SKILLS_PER_BATCH:
                new += (yield from self._parts.write(batch)).new
                batch, size = [], 0
        return new + (yield from self._parts.write(batch)).new

    @operation
    def remove(self, job_id: str) -> Operation[bool]:
        """Remove a job; return whether it existed. Cost: one exchange."""
        return (yield from self._parts.write([check_id(self.schema, job_id)])).existing > 0

    @operation
    def get(self, job_id: str) -> Operation[dict[str, float] | None]:
        """Return what a job requires; None if there is no such job. Cost: one exchange.

        Returns:
            The level or years of each skill, 0 where just the skill is required. The spelling of
            skills is normalised.
        """
        requirements = yield from self._requirements(job_id)
        if requirements is None:
            return None
        return {skill: value_of(self.measure, n) for skill, n in requirements.items()}

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything, and yield the damage; change nothing.

        As `shardkit.search.SearchIndex.check`; also requirements that cannot be read.

        Cost: an exchange for about 1,000 skills of jobs, for 20,000 postings, for 64 jobs and for
        64 keys of the lexicon.
        """
        yield from check_parts(
            self._parts, lambda job_id, stored, key: requirements_in(stored, key)
        )

    # ---- candidates

    @operation
    def qualified(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Return whether a candidate meets all requirements of a job.

        Args:
            job_id: the job.
            skills: what the candidate has; may be empty.

        Returns:
            Whether the job exists and the candidate meets all its requirements.

        Raises:
            InvalidArgumentError: the id or a skill cannot be used.

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
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
        cursor: str | None = None,
        partial: bool = False,
    ) -> Operation[Results]:
        """Find the jobs all of whose requirements a candidate meets.

        Args:
            skills: the candidate's skills; without any, only jobs without requirements match.
            limit: how many jobs to return, at most 10,000; 0 only counts them.
            offset: how many jobs to skip.
            cursor: the cursor of the page before, in place of ``offset``.
            partial: if some parts fail, return the results of the others, marked as partial.

        Returns:
            The number of matching jobs, and the page: jobs with the most requirements first, then
            by id. A hit's value is the job's number of requirements.

        Raises:
            InvalidArgumentError: a skill or the page cannot be used.
            ShardErrors: shards failed, and partial results were not requested; or all failed.

        Cost: one exchange for some thousand postings of the candidate's skills in a part; so its
        server serves others in between.
        """
        offered = read_skills(self.name, self.measure, skills, "candidate")
        check_integer(self.name, "limit", limit, 0, MAX_LIMIT)
        check_integer(self.name, "offset", offset, 0, MAX_OFFSET)
        digest = blake2b(repr(sorted(offered.items())).encode(), digest_size=9).hexdigest()
        before = None if cursor is None else self._cursor(cursor, digest, offset)
        most = limit + 1 if before and limit else offset + limit
        last = (int(before.value), before.id) if before else ("", "")
        flat = [text for pair in offered.items() for text in pair]
        parts = self._parts.primary

        def call(number: int, place: tuple[int, int]) -> Command:
            arguments = [most, *last, WORK_PER_CALL, *place, NO_SKILL, *flat]
            return parts[number].call("job_search/find", arguments)

        slices, missing, _ = yield from self._parts.query(call, end=2, version=4, partial=partial)
        answered = [reply for of_part in slices for reply in of_part]
        total = sum(reply[0] for reply in answered)
        # Python orders text by code points, as Lua orders UTF-8 by bytes.
        rows = [
            Hit(job_id.decode(), required)
            for _, flat, *_ in answered
            for job_id, required in zip(flat[::2], flat[1::2], strict=True)
        ]
        hits = sorted(rows, key=lambda hit: (-float(hit.value), hit.id))
        more = len(hits) > limit if before else total > offset + limit
        hits = hits[offset : offset + limit]
        following = None
        if more and hits:
            following = SearchCursor(digest, PRIMARY, hits[-1].value, hits[-1].id, None).token()
        return Results(total, hits, following, missing=missing)

    @stream
    def all(self, skills: Skills) -> Stream[Hit]:
        """Iterate over all jobs that a candidate meets, in the order of `find`.

        Cost: one exchange for 1,000 jobs.
        """
        offered: Skills = dict(skills) if isinstance(skills, Mapping) else list(skills)
        cursor: str | None = None
        while True:
            results: Results = yield from JobSearch.find.steps(
                self, offered, limit=PAGE_SIZE, cursor=cursor
            )
            yield Page(results.hits)
            cursor = results.cursor
            if cursor is None:
                return

    # ---- steps

    def _prepare(self, job_id: str, skills: Skills) -> PreparedJob:
        check_id(self.schema, job_id)
        what = f"job {shown(job_id)}"
        return PreparedJob(job_id, read_skills(self.name, self.measure, skills, what))

    def _requirements(self, job_id: str) -> Operation[dict[str, int] | None]:
        part = self._parts.of(check_id(self.schema, job_id))
        [stored] = yield from self._parts.send([part.read_document(job_id)])
        if stored is None:
            return None
        with self._parts.naming_place(job_id):
            return requirements_in(stored, f"{part.tag}d:{job_id}")

    def _cursor(self, cursor: str, digest: str, offset: int) -> SearchCursor:
        before = read_cursor(self.name, cursor)
        if offset:
            raise InvalidArgumentError(f"{self.name}: cursor= with offset=", "give one of them")
        if before.query != digest or not isinstance(before.value, int):
            raise InvalidArgumentError(
                f"{self.name}: cursor is of other skills", "give the same skills"
            )
        return before
