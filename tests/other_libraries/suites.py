"""Runs the suites of other libraries, from their sdists, on redis-py's clients and on private ones.

    python tests/other_libraries/suites.py DIRECTORY [LIBRARY …]

It prints, for each library, what passed on each, and the tests that pass on redis-py's clients and
not on private ones; those in DIFFERENCES are expected, for the reason given. Ends with 1 if there
are others. Ports 6379 and 7379 of 127.0.0.1 must be free: the suites want them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.etree import ElementTree

from shardkit.local import LocalServer

HERE = Path(__file__).parent


class Suite(NamedTuple):
    """Where a library's tests are in its sdist, and what pytest is told besides."""

    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    fields: Mapping[str, Any] = MappingProxyType(
        {}
    )  # what the entry of private clients says besides


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
        ("-k", "redis and not cluster and not sentinel and not ssl and not auth and not uds"),
    ),
}
_CLASSES = "pools and connections are of shardkit's classes"
# Tests that pass on redis-py's clients and not on private ones, by a part of their names: why.
DIFFERENCES = {
    ("redis", "URLParsing"): _CLASSES,
    ("redis", "connect_from_url"): _CLASSES,
    ("redis", "repr_contains"): "a repr says how many connections there are, and no client's name",
    ("redis", "client_setinfo"): "connections introduce themselves as redis-py(shardkit_v…)",
    ("redis", "MetricsRecording"): "redis-py's own metrics are not fed; see observability",
    ("redis", "test_pool_disconnect"): "a socket in use is shut down, and its user closes it",
    ("redis", "test_on_connect_error"): "a connection that could not be made is not kept",
}


def expected(library: str, name: str) -> str | None:
    """Return why a test may fail on private clients; None if it may not."""
    found = [why for (of, part), why in DIFFERENCES.items() if of == library and part in name]
    return found[0] if found else None


def unpacked(library: str, directory: Path) -> Path:
    """Download and unpack the sdist of the installed version."""

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


def outcomes(suite: Suite, where: Path, private: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Run a suite; return each test's outcome, and whose pools it made."""
    report, made = where / f"report-{private}.xml", where / "made.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(where), str(HERE.parent.parent)]),
        "SHARDKIT_MADE": str(made),
        "SHARDKIT_PRIVATE_CLIENTS": json.dumps(dict(suite.fields)) if private else "",
    }
    for each in (report, made):
        each.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", *suite.paths, *suite.options]
    command += ["-p", "borrowed_fixtures", "-p", "on_private_clients", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=", "-o", "filterwarnings=", "--timeout=30", f"--junitxml={report}"]
    subprocess.run(
        command,
        cwd=where,
        env=environment,
        stdout=(where / f"output-{private}.txt").open("w"),
        stderr=subprocess.STDOUT,
        timeout=1200,
        check=False,
    )
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = min(kinds, default="passed")
    return found, json.loads(made.read_text()) if made.exists() else {}


def main() -> int:
    """Run the suites, and say what differs."""
    directory, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(SUITES)
    directory.mkdir(parents=True, exist_ok=True)
    unexpected = 0
    with LocalServer(port=6379), LocalServer(port=7379):
        for library in wanted:
            suite, began = SUITES[library], time.monotonic()
            where = unpacked(library, directory)
            plain, _ = outcomes(suite, where, private=False)
            ours, made = outcomes(suite, where, private=True)
            passed = [sum(o == "passed" for o in found.values()) for found in (plain, ours)]
            print(
                f"{library} {version(library)}: {passed[0]} of {len(plain)} passed on redis-py's "
                f"clients, {passed[1]} of {len(ours)} on private ones; pools {made}; "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
            for name, outcome in plain.items():
                if outcome == "passed" and ours.get(name) != "passed":
                    why = expected(library, name)
                    unexpected += why is None
                    print(f"    {name}: {ours.get(name, 'missing')}; {why or 'unexpected'}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
