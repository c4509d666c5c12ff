"""Runs the suites of other libraries on redis-py's clients and on private ones.

    python tests/other_libraries/suites.py DIRECTORY [LIBRARY …]

It prints, for each library, what passed on each, and the tests that pass on redis-py's clients and
not on private ones; those in differences.yaml are expected, for the reason given. Ends with 1 if
there are others. Many tests of these suites depend on how fast the machine is, so what differs and
is not expected to is run again, on both.

Suites come from the sdists of the installed versions, by pip; taskiq-redis's, which has no tests
there, from its repository, by git. Ports 6379 and 7379 of 127.0.0.1 must be free: the suites want
them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from shardkit.local import LocalServer

HERE = Path(__file__).parent
LONGEST = 1800.0  # seconds that a suite may take
MOST_ENDS = 3  # how often a suite's process may be ended by its own tests
ENDED = '{"ended": ""}\n'


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Suite(NamedTuple):
    """Where a library's tests are, and how they are run.

    Attributes:
        paths: of the tests, in the sdist.
        options: what pytest is told besides.
        fields: what the entry of private clients says besides.
        environment: what the suite reads there.
        repository: where the tests are if the sdist has none; the tag is the version.
    """

    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    fields: Mapping[str, Any] = _NOTHING
    environment: Mapping[str, str] = _NOTHING
    repository: str = ""


SUITES = {
    "redis": Suite(
        (
            *("tests/test_connection_pool.py", "tests/test_asyncio/test_connection_pool.py"),
            *("tests/test_pipeline.py", "tests/test_lock.py"),
            "tests/test_asyncio/test_commands.py",
        ),
        ("--asyncio-mode=auto", "-m", "not onlycluster", "-k", "not cluster"),
    ),
    "rq": Suite(("tests",)),
    "huey": Suite(
        ("huey/tests/test_storage.py", "huey/tests/test_api.py", "huey/tests/test_consumer.py")
    ),
    "arq": Suite(("tests",), ("--asyncio-mode=auto",)),
    "saq": Suite(("tests/test_queue.py", "tests/test_worker.py"), ("-k", "not Postgres")),
    "aiocache": Suite(("tests/ut/backends/test_redis.py", "tests/acceptance"), ("-k", "redis")),
    "channels_redis": Suite(("tests/test_core.py", "tests/test_pubsub.py")),
    "python-redis-lock": Suite(("tests/test_redis_lock.py",)),
    "pottery": Suite(
        ("tests",),
        ("-k", "not doctest", "--asyncio-mode=auto"),
        {"extend_blocking_timeout": False},
    ),
    "limits": Suite(
        (
            *("tests/storage", "tests/test_storage.py", "tests/test_strategy.py"),
            *("tests/aio/storage", "tests/aio/test_storage.py", "tests/aio/test_strategy.py"),
        ),
        ("-m", "redis", "--asyncio-mode=auto", "-k", "not ssl and not auth and not uds"),
        environment={"ASYNC_REDIS_IMPLEMENTATION": "redispy"},
    ),
    "taskiq-redis": Suite(
        ("tests",),
        ("-k", "not cluster and not sentinel"),
        environment={"TEST_REDIS_URL": "redis://localhost:6379"},
        repository="https://github.com/taskiq-python/taskiq-redis",
    ),
}


def expected_of(library: str) -> dict[str, str]:
    """Return the tests that may pass on redis-py's clients and not on private ones, and why."""
    written: dict[str, dict[str, list[str]]] = yaml.safe_load(
        (HERE / "differences.yaml").read_text()
    )
    return {name: why for why, names in written.get(library, {}).items() for name in names}


def unpacked(library: str, suite: Suite, directory: Path) -> Path:
    """Return the sources of the installed version, downloaded if they are not there."""
    where = directory / f"{library}-{version(library)}"
    if suite.repository:
        if not where.exists():
            clone = ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--depth=1"]
            clone += ["--branch", version(library), suite.repository, str(where)]
            subprocess.run(clone, check=True)
        return where

    def there() -> list[Path]:
        spelled = {library, library.replace("-", "_")}
        return [p for name in spelled for p in directory.glob(f"{name}-{version(library)}.tar.gz")]

    if not there():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--no-binary", ":all:", "-d", str(directory), f"{library}=={version(library)}"]
        subprocess.run(command, check=True)
    [archive] = there()
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


class Outcomes(NamedTuple):
    """What became of each test, by its name, and how many pools were made of which kind."""

    tests: dict[str, str]
    pools: Counter[str]

    def passed(self) -> int:
        return sum(outcome == "passed" for outcome in self.tests.values())


def run(suite: Suite, where: Path, private: bool, only: Sequence[str] = ()) -> Outcomes:
    """Run a suite, or some of its tests, on servers of its own.

    Tests that were not run, because another one's signal ended the process, are run again.
    """
    found = Outcomes({}, Counter())
    for _ in range(MOST_ENDS):
        _run(suite, where, private, only, found)
        only = [name for name, outcome in found.tests.items() if outcome == "not run"]
        if found.tests and not only:
            break
        print(f"    the process of {where.name} ended before {len(only)} of its tests", flush=True)
    return found


def _run(suite: Suite, where: Path, private: bool, only: Sequence[str], found: Outcomes) -> None:
    report, made = where / f"report-{private}.jsonl", where / "made.jsonl"
    plugins = where / f"plugins-{private}"
    plugins.mkdir(exist_ok=True)
    if private:  # in every process that the suite starts
        (plugins / "sitecustomize.py").write_text("import on_private_clients\n")
    environment = {
        **os.environ,
        **suite.environment,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(str, (plugins, HERE, where, HERE.parent.parent))),
        "SUITES_REPORT": str(report),
        "SHARDKIT_MADE": str(made),
        "SHARDKIT_PRIVATE_CLIENTS": json.dumps(dict(suite.fields)) if private else "",
    }
    for each in (report, made):
        each.write_text("")
    command = [sys.executable, "-m", "pytest", "-q", *(only or suite.paths), *suite.options]
    command += ["-p", "borrowed_fixtures", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-o", "addopts=", "-o", "filterwarnings=", "--timeout=60", f"--rootdir={where}"]
    with (
        LocalServer(port=6379),
        LocalServer(port=7379),
        (where / f"output-{private}.txt").open("a") as output,
    ):
        process = subprocess.Popen(
            command,
            cwd=where,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + LONGEST
        while process.poll() is None and time.monotonic() < deadline:
            if report.read_text().endswith(ENDED):
                break
            time.sleep(0.5)
        with suppress(subprocess.TimeoutExpired):  # it waits for workers that its tests left
            process.wait(timeout=60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    told = [json.loads(line) for line in report.read_text().splitlines()]
    outcomes: dict[str, str] = {}
    for each in told:
        if "test" in each and outcomes.get(each["test"]) != "failed":
            outcomes[each["test"]] = each["outcome"]
    found.tests.update(outcomes)
    for line in made.read_text().splitlines():
        found.pools.update(json.loads(line))


def differing(plain: Outcomes, ours: Outcomes) -> list[str]:
    """Return the tests that pass on redis-py's clients, and not on private ones."""
    return [
        name
        for name, outcome in plain.tests.items()
        if outcome == "passed" and ours.tests.get(name) != "passed"
    ]


def main() -> int:
    """Run the suites, and say what differs."""
    directory, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(SUITES)
    directory.mkdir(parents=True, exist_ok=True)
    unexpected = 0
    for library in wanted:
        suite, began = SUITES[library], time.monotonic()
        where = unpacked(library, suite, directory)
        plain, ours = run(suite, where, private=False), run(suite, where, private=True)
        print(
            f"{library} {version(library)}: {plain.passed()} of {len(plain.tests)} passed on "
            f"redis-py's clients, {ours.passed()} of {len(ours.tests)} on private ones; "
            f"pools {dict(ours.pools)}; {time.monotonic() - began:.0f} s",
            flush=True,
        )
        expected = expected_of(library)
        differ = differing(plain, ours)
        again = [name for name in differ if name not in expected]
        for _ in range(2):
            if again:
                on_plain = run(suite, where, private=False, only=again).tests
                on_ours = run(suite, where, private=True, only=again).tests
                for name in list(again):
                    plainly, privately = on_plain.get(name), on_ours.get(name)
                    if privately == "passed" or plainly == "failed":
                        print(f"    {name}: again {plainly} on redis-py's, {privately} on private")
                        again.remove(name)
        for name in differ:
            if name in expected:
                print(f"    {name}: {expected[name]}")
        again += [name for name, outcome in plain.tests.items() if outcome == "not run"]
        for name in again:
            print(f"    {name}: unexpected")
        for name in expected:
            if plain.tests.get(name, "passed") == "passed" == ours.tests.get(name):
                print(f"    {name}: passed, and is expected not to")
        unexpected += len(again)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
