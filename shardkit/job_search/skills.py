"""Skills as users give them and as they are compared, and jobs as the index stores them.

A skill is a word of the index in a normalised spelling, with a number for jobs and candidates
alike: a candidate meets a requirement whose number is not above their own::

    measure    given                           words and numbers
    skills     ["Python", "machine  learning"] python 0     machine learning 0
    levels     {"Python": 2, "SQL": 0}         python 2     sql 0
    years      {"Python": 4.5, "SQL": 1}       python 450   sql 100        hundredths
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from unicodedata import normalize

from shardkit.errors import DamagedDataError, InvalidArgumentError, counted
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument

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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if measure == "levels":
        if is_number and value in range(MAX_LEVEL + 1):
            return int(value)  # type: ignore[call-overload,no-any-return]  # a number
        raise InvalidArgumentError(f"{where}: {word}: level={shown(value)}", "give 0, 1 or 2")
    if is_number and math.isfinite(value) and 0 <= value <= MAX_YEARS:  # type: ignore[arg-type,operator]
        return round(value * _HUNDREDTHS)  # type: ignore[operator]
    raise InvalidArgumentError(
        f"{where}: {word}: years={shown(value)}", f"give a number, 0 to {MAX_YEARS}"
    )


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
        requirements: dict[str, int] = json.loads(stored[start : start + size])
        if not all(type(number) is int for number in requirements.values()):
            raise ValueError("a number that is none")
    except (ValueError, AttributeError, RecursionError, struct.error) as error:
        raise DamagedDataError(key, f"requirements that cannot be read: {error}", "a job") from None
    return requirements


def recovered_job(
    job_id: str, stored: bytes, key: str, words: Mapping[int, bytes], lossy: bool
) -> PreparedJob:
    """Return a job as it was indexed, from its key's value; see `rebuild_parts`."""
    return PreparedJob(job_id, requirements_in(stored, key))


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
