"""Job search: the jobs all of whose requirements a candidate meets, over one server or many.

A job is a document of the search index (`shardkit.search.index`): its words are the skills that it
requires, and a column has their number. A query reads the postings of the candidate's skills,
counts the matches of each job, and returns the jobs with a match for each requirement.

A posting has two bytes for the required level or hundredths of years, so it replaces a set for each
level, or a sorted set of years, in the layout of Redis in Action. Jobs without requirements have a
word of their own, which every query contains. A skill is a word of the index in a normalised
spelling, with a number for jobs and candidates alike: a candidate meets a requirement whose number
is not above their own.

Each job is whole on one part. One script per part runs at the same time, and their results are
merged in one order: the most requirements first, as the fewest candidates meet those, then by id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias
from unicodedata import normalize

from shardkit.errors import DamagedDataError, InvalidArgumentError, counted
from shardkit.operations.arguments import check_number, is_number, parse_json, rows_of, shown
from shardkit.operations.commands import Argument, Command
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
from shardkit.search.documents import Hit, Results, SearchCursor, check_id, read_cursor
from shardkit.search.parts import (
    PRIMARY,
    WORK_PER_CALL,
    DocumentForm,
    DocumentStructure,
    IndexParts,
)
from shardkit.search.schema import CHUNK, Schema
from shardkit.search.searcher import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Damage
from shardkit.structures.base.damage import stored_text

Skills: TypeAlias = Iterable[str] | Mapping[str, float]

MEASURES: Final = ("skills", "levels", "years")
MAX_LEVEL: Final = 2
MAX_YEARS: Final = 100
MAX_SKILL_LENGTH: Final = 128
MAX_SKILLS: Final = 1_000
# The word of jobs without requirements. No skill has it, as skills have no control characters.
NO_SKILL: Final = "\1"
_HUNDREDTHS: Final = 100
_HEADER: Final = struct.Struct("<III")  # of a document: its number, bytes of words, of attributes


class PreparedJob(NamedTuple):
    """A job whose arguments were checked: its id, and what it requires of each skill."""

    id: str
    requirements: dict[str, int]

    @property
    def size(self) -> int:
        """How many terms it has."""
        return len(self.requirements)


def read_skills(owner: str, measure: str, given: Skills, what: str) -> dict[str, int]:
    """Return a number by normalised skill, the highest one if the skill was given more than once.

    Messages start with ``owner`` and ``what``.
    """
    where = f"{owner}: {what}"
    pairs: Iterable[tuple[object, object]]
    if measure == "skills":
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise InvalidArgumentError(f"{where}: skills={shown(given)}", "give a list of skills")
        pairs = ((skill, 0) for skill in given)
    else:
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(
                f"{where}: skills={shown(given)}", f"give a mapping of skills to {measure}"
            )
        pairs = given.items()
    skills: dict[str, int] = {}
    for skill, value in pairs:
        word = _spelled(where, skill)
        number = _number(where, measure, word, value)
        skills[word] = max(number, skills.get(word, 0))
    if len(skills) > MAX_SKILLS:
        raise InvalidArgumentError(
            f"{where}: {counted(len(skills), 'skill')}", f"give at most {MAX_SKILLS:,}"
        )
    return skills


def _spelled(where: str, skill: object) -> str:
    """Return a skill in a spelling without differences of case, width or spaces."""
    if isinstance(skill, str):
        word = " ".join(normalize("NFKC", normalize("NFKC", skill).casefold()).split())
        if 0 < len(word) <= MAX_SKILL_LENGTH and word.isprintable():
            return word
    raise InvalidArgumentError(
        f"{where}: skill {shown(skill)}",
        f"give text, 1 to {MAX_SKILL_LENGTH} characters that can be printed",
    )


def _number(where: str, measure: str, word: str, value: object) -> int:
    if measure == "skills":
        return 0
    if measure == "levels":
        if is_number(value) and value in range(MAX_LEVEL + 1):
            return int(value)
        raise InvalidArgumentError(f"{where}: {word}: level={shown(value)}", "give 0, 1 or 2")
    return round(_HUNDREDTHS * check_number(f"{where}: {word}", "years", value, 0, MAX_YEARS))


def value_of(measure: str, number: int) -> float:
    """Return the level, or years, that a number stands for."""
    return number / _HUNDREDTHS if measure == "years" else number


def meets(requirements: Mapping[str, int], skills: Mapping[str, int]) -> bool:
    """Return whether skills meet all requirements."""
    return all(skills.get(word, -1) >= number for word, number in requirements.items())


def requirements_in(stored: bytes, key: str) -> dict[str, int]:
    """Return a job's requirements, from the value of its document's key."""
    try:
        _, words, size = _HEADER.unpack_from(stored)
        start = _HEADER.size + words
        requirements: dict[str, int] = parse_json(stored[start : start + size])
        if not all(type(number) is int for number in requirements.values()):
            raise ValueError("a number that is none")
    except (ValueError, AttributeError, struct.error) as error:
        raise DamagedDataError(key, f"requirements that cannot be read: {error}", "a job") from None
    return requirements


def write_arguments(jobs: Sequence[PreparedJob | str]) -> list[Argument]:
    """Return the arguments of the script ``search/write``, from the columns on, for one part.

    The required number takes the two bytes of a posting that hold impact and fields of text, and
    the requirements take the place of a document's attributes. An id removes its job.
    """
    postings: dict[str, bytearray] = {}
    codes: dict[str, bytes] = {}
    rest: list[Argument] = []
    for place, job in enumerate(jobs):
        if isinstance(job, str):
            rest += (job, b"", b"", b"", b"")
            continue
        needed = job.requirements or {NO_SKILL: 0}
        for word, number in needed.items():
            posting = place.to_bytes(2) + number.to_bytes(2)
            postings.setdefault(word, bytearray()).extend(posting)
            codes.setdefault(word, (len(codes) + 1).to_bytes(3))
        requirements = json.dumps(job.requirements, ensure_ascii=False, separators=(",", ":"))
        rest += (job.id, requirements.encode(), b"", struct.pack("<d", len(job.requirements)))
        rest.append(b"".join(codes[word] for word in needed))
    return ["n", len(postings), *postings, *map(bytes, postings.values()), 0, *rest]


JOBS_PER_BATCH: Final = 1_000
SKILLS_PER_BATCH: Final = 10_000
PAGE_SIZE: Final = 1_000


class JobSearch(DocumentStructure[Face]):
    """Jobs by the skills that they require. Made by ``kit.job_search``.

    Args:
        component: where the keys live; if sharded, with as many shards as there are parts.
        measure: the kind of requirements: ``skills``, just the skill; ``levels``, 0 to 2;
            ``years``, 0 to 100, compared to the hundredth.
        chunk: how many jobs a chunk of postings covers, a power of two.

    Skills are a list of text; with levels or years a mapping. Their spelling is normalised:
    ``Python``, ``PYTHON`` and `` python`` are the same skill.

    Raises:
        InvalidArgumentError: an argument is out of range.

    The first write of a process takes one more exchange, to compare the parameters.
    Calls raise ParameterMismatchError if the index was created with other parameters.
    """

    deferred: DeferredFace[JobSearch[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "jobs",
        parts: int = 1,
        measure: str = "skills",
        chunk: int = CHUNK,
    ) -> None:
        if measure not in MEASURES:
            raise InvalidArgumentError(
                f"{name}: measure={shown(measure)}", f"give one of {', '.join(MEASURES)}"
            )
        schema = Schema(name, parts, {"skills": 1.0}, {"required": "number"}, chunk=chunk)
        parameters = {"kind": "jobs", "shards": parts, "measure": measure, "chunk": chunk}
        form = DocumentForm(
            write_arguments,
            lambda job_id, stored, key, *_: PreparedJob(job_id, requirements_in(stored, key)),
            names_words=lambda _: False,
        )
        super().__init__(driver, IndexParts(component, schema, parameters, form))
        self.measure = measure

    # ---- jobs

    @operation
    def index(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Index a job, or replace its requirements; return whether it is new.

        An id is any text of at most 1,024 bytes. A job requires at most 1,000 skills; if it
        requires none, all candidates qualify.

        Raises:
            InvalidArgumentError: the id or a skill cannot be used; nothing was written.

        Cost: one exchange; one command that takes some microseconds a skill.
        """
        written = yield from self._parts.write([self._prepare(job_id, skills)])
        return written.new > 0

    @operation
    def index_many(self, jobs: Iterable[tuple[str, Skills]]) -> Operation[int]:
        """Index jobs; return how many are new.

        They are any iterable, such as a generator, of pairs of an id and skills; see `index`. It is
        read while jobs are sent.

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

        Cost: an exchange for about 500 skills of jobs, for 20,000 postings, for 64 jobs and for
        64 keys of the lexicon.
        """
        yield from check_parts(
            self._parts, lambda job_id, stored, key: requirements_in(stored, key)
        )

    # ---- candidates

    @operation
    def qualified(self, job_id: str, skills: Skills) -> Operation[bool]:
        """Return whether a job exists, and a candidate meets all its requirements.

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
        answered = [(part, reply) for part, of_part in slices for reply in of_part]
        total = sum(reply[0] for _, reply in answered)
        # Python orders text by code points, as Lua orders UTF-8 by bytes.
        rows = [
            Hit(stored_text(part.to, part.state, job_id), required)
            for part, (_, flat, *_) in answered
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
