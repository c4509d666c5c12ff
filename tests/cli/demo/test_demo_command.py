"""``shardkit demo`` as a user runs it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import ipaddress
import json
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
from click.testing import CliRunner, Result
from faces import eventually
from httpx import ASGITransport, AsyncClient
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardkit.cli.app import app
from shardkit.cli.demo import sample
from shardkit.cli.demo.access_log import AccessLogParser

COMMAND = [sys.executable, "-m", "shardkit", "demo"]


def run(*args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["demo", *args], input=stdin, standalone_mode=False)


def document(*args: str, stdin: bytes | None = None) -> dict[str, Any]:
    result = run(*args, "--json", stdin=stdin)
    assert result.exception is None, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def figures(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {day["day"]: (day["hits"], day["visitors"]) for day in found["days"]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(chance_log(7, 2_000))
    return path


def test_without_arguments_the_sample_is_counted_as_awk_says(tmp_path: Path) -> None:
    path = tmp_path / "sample.log"
    path.write_bytes(sample.log())
    found = document()
    assert figures(found) == awk_figures(path)
    hits = sum(day["hits"] for day in found["days"])
    visitors = sum(day["visitors"] for day in found["days"])
    assert found["lines"] == hits + found["malformed"]["lines"]
    assert found["malformed"]["lines"] == 8
    assert found["lines_per_second"] > 0
    assert [shard["shard"] for shard in found["shards"]] == [f"unique:{n}" for n in range(16)]
    assert len({shard["address"] for shard in found["shards"]}) == 16
    assert sum(shard["ids"] for shard in found["shards"]) == visitors
    assert found["memory"]["visitors"] == visitors
    assert found["memory"]["parts"] < found["memory"]["plain_set"] / 3
    assert found["visitor"]["there"]
    assert found["visitor"]["address"] in {"192.0.2.250", "198.51.100.251", "2001:db8:b07::1"}


def test_every_way_of_giving_a_log_gives_the_same_figures(url: str, log: Path) -> None:
    text = log.read_bytes()
    compressed = log.with_suffix(".bin")
    compressed.write_bytes(gzip.compress(text[:5_000]) + gzip.compress(text[5_000:]))
    expected = awk_figures(log)
    for args, stdin in (
        (["--log", str(log)], None),
        (["--log", str(compressed), "--batch-size", "7"], None),
        (["--log", "-"], text),
        (["--log", "-", "--batch-size", "333"], compressed.read_bytes()),
    ):
        assert figures(document("-c", url, "--fresh", *args, stdin=stdin)) == expected


def test_a_second_run_adds_hits_and_counts_no_visitor_twice(url: str, log: Path) -> None:
    once = figures(document("-c", url, "--log", str(log)))
    twice = figures(document("-c", url, "--log", str(log)))
    assert twice == {day: (2 * hits, visitors) for day, (hits, visitors) in once.items()}


def test_more_visitors_than_planned_are_remarked_upon(url: str, log: Path) -> None:
    text = "".join(
        f'192.0.2.1 - - [03/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "{n}"\n'
        for n in range(600)
    )
    result = run("-c", url, "--log", "-", "--first-day", "0", stdin=text.encode())
    assert "use --first-day" in result.stdout


def test_years_of_days_are_shown_in_part_and_counted_in_full(url: str) -> None:
    lines = [
        f'192.0.2.1 - - [{day:02}/Jan/{year}:12:00:00 +0000] "GET / HTTP/1.1" 200 1\n'
        for year in range(2015, 2020)
        for day in range(1, 11)
    ]
    text = "".join(lines).encode()
    shown = run("-c", url, "--log", "-", stdin=text).stdout.splitlines()
    assert sum(line.startswith("20") for line in shown) == 40
    assert any(line.startswith("… 10 more") for line in shown)
    found = document("-c", url, "--fresh", "--log", "-", stdin=text)
    assert set(figures(found).values()) == {(1, 1)}
    assert len(found["days"]) == 50


def test_malformed_lines_are_shown_so_that_no_terminal_obeys_them(url: str) -> None:
    text = b"\x1b[31mred\x1b[0m\n\xff\xfe\n" + b"x" * 1_000_000 + b"\n\n\n\n\n"
    result = run("-c", url, "--log", "-", stdin=text)
    assert result.exception is None
    assert result.stdout.splitlines()[:8] == [
        result.stdout.splitlines()[0],
        "7 lines are malformed and not counted:",
        r"  line 1: \x1b[31mred\x1b[0m",
        r"  line 2: \xff\xfe",
        f"  line 3: {'x' * 109}…",
        "  line 4: empty",
        "  line 5: empty",
        "  and 2 more",
    ]
    assert len(result.stdout.splitlines()) == 8  # and no tables
    few = run("-c", url, "--log", "-", stdin=b"odd\n").stdout.splitlines()
    assert few[1:] == ["1 line is malformed and not counted:", "  line 1: odd"]


def test_a_damaged_log_is_counted_as_far_as_it_goes(url: str, log: Path) -> None:
    data = gzip.compress(log.read_bytes())[:-300]
    result = run("-c", url, "--log", "-", stdin=data)
    assert result.return_value == 1
    assert "the log cannot be read any further: the compressed data ends too early" in result.stdout
    assert "\nday " in result.stdout
    result = run("-c", url, "--log", "-", "--json", stdin=data)
    assert json.loads(result.stdout)["damage"] == "the compressed data ends too early"


def test_a_log_that_is_not_there_is_found_out_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--log", str(tmp_path / "none.log")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f"shardkit: error: {tmp_path / 'none.log'}: No such file or directory\n"


def test_keeping_servers_that_others_run_makes_no_sense(url: str) -> None:
    result = run("-c", url, "--keep")
    assert "--keep" in str(result.exception)


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([*COMMAND, *args], stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def url_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert line.startswith("started 5 servers"), line
    return line.split()[-1]


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0))


def wait_for(done: Callable[[], object]) -> None:
    assert eventually(done, 30)


def addresses(url: str) -> list[str]:
    """Return the URLs of all servers."""
    with client(url) as config:
        entries = [
            json.loads(config.get(key) or "{}") for key in config.scan_iter("config:redis:*")
        ]
    return [url, *{f"redis://{entry['host']}:{entry['port']}" for entry in entries}]


def answers(url: str) -> bool:
    try:
        with client(url) as asked:
            return bool(asked.ping())
    except redis.ConnectionError:
        return False


def hits_client(url: str) -> redis.Redis:
    with client(url) as config:
        entry = json.loads(config.get("config:redis:hits") or "{}")
    return client(f"redis://{entry['host']}:{entry['port']}")


def test_an_interrupted_replay_shows_what_it_counted_and_leaves_no_server_behind() -> None:
    text = sample.log()
    with running("--log", "-") as process:
        url = url_of(process)
        servers = addresses(url)
        assert len(servers) == 5
        assert process.stdin is not None
        process.stdin.write(text)  # and no end of file: it waits for more
        process.stdin.flush()
        with hits_client(url) as hits:
            wait_for(lambda: sum(map(int, hits.hvals("demo:hits"))) > 39_000)  # four batches
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert out.startswith(b"stdin: 40,000 lines in ")
        assert b" until it was interrupted, " in out.splitlines()[0]
        assert b"\n2025-03-06   9,791 " in out
        assert not any(map(answers, servers))


def test_servers_that_are_kept_run_until_they_are_interrupted() -> None:
    with running("--keep", "--log", "-") as process:
        url = url_of(process)
        servers = addresses(url)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            b'192.0.2.1 - - [03/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'
        )
        process.stdin.close()
        process.stdin = None
        wait_for(
            lambda: process.stderr and process.stderr.readline() == b"Ctrl-C stops the servers.\n"
        )
        assert all(map(answers, servers))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert f"export SHARDKIT_CONFIG={url}" in out.decode()
        assert "shardkit locate unique --in demo:unique:2025-03-03 " in out.decode()
        assert not any(map(answers, servers))


CONFIGS = Path(__file__).parents[3] / "configs"

# RFC 5737 and RFC 3849.
RESERVED = [
    ipaddress.ip_network(network)
    for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]


def test_the_sample_never_changes_and_has_only_addresses_reserved_for_examples() -> None:
    digest = "0e23b6071499860720df4f032f18835b3b11daded7072ebef96b1ea9e4231d60"
    assert hashlib.sha256(sample.log()).hexdigest() == digest
    batch = AccessLogParser().parse(sample.log().splitlines(keepends=True))
    assert 20_000 <= batch.lines <= 50_000
    assert len(batch.visits) == 5
    assert len(batch.malformed) == 8
    addresses = {address.decode() for visits in batch.visits.values() for address, _ in visits}
    assert len(addresses) > 1000
    for address in map(ipaddress.ip_address, addresses):
        assert any(address in network for network in RESERVED)


def test_the_map_in_the_package_is_the_one_in_configs() -> None:
    packaged = Path(sample.__file__).with_name("local.yaml")
    assert packaged.read_text("utf-8") == (CONFIGS / "local.yaml").read_text("utf-8")


def test_a_cached_function_is_right_while_its_shards_move() -> None:
    result = CliRunner().invoke(app, ["demo", "cached", "--seconds", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["good"], report["old"], report["errors"]) == (True, 0, {})
    assert report["moved"][1] > report["moved"][0]
    assert report["calls"] == sum(calls for calls, _ in report["slices"]) > report["computed"] > 0


def test_the_report_is_a_table_and_a_plot() -> None:
    result = CliRunner().invoke(app, ["demo", "cached", "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert "old prices returned" in result.stdout
    assert "█ shards move" in result.stdout


OPTIONS = ("--workers", "2", "--kill", "1", "--json")


def country_of(visitor: str) -> str | None:
    """The made-up country of an address: that of the first number of IPv4."""
    try:
        address = ipaddress.IPv4Address(visitor.partition(" ")[0])
    except ValueError:
        return None
    return f"Country {address.packed[0]}"


def test_processes_that_are_killed_count_what_one_process_and_awk_count(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = chance_log(3, 9_000).splitlines(keepends=True)
    for n in range(4):
        part = lines[n * 2250 : (n + 1) * 2250]
        if n % 2:
            (folder / f"{n}.log").write_bytes(b"".join(part))
        else:  # two members
            halves = (b"".join(part[:1700]), b"".join(part[1700:]))
            (folder / f"{n}.log.gz").write_bytes(b"".join(map(gzip.compress, halves)))
    awk = subprocess.run(
        ["awk", "-f", AWK],
        input=b"".join(lines),
        capture_output=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for line in awk.stdout.decode(errors="replace").splitlines():
        day, _, visitor = line.partition("\t")
        country = country_of(visitor)
        if country is not None:
            expected[day][country] += 1
    run = subprocess.run(
        [sys.executable, "-m", "shardkit", "demo", "logs", folder, *OPTIONS],
        capture_output=True,
        check=False,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["countries"] == expected
    assert found["same"]
    assert found["files"] == 4
    assert found["lines"] == sum(sum(of.values()) for of in expected.values()) > 5_000


AWK = Path(__file__).with_name("figures.awk")

_ZONES = ("+0000", "+0530", "-0800", "+1345", "-0030")
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64)",
    r"a \"quoted\" agent",
    r"ends in a backslash \\",
    "",
    "-",
    "caf\xe9 ☕ \N{SNOWMAN}",
)
_MALFORMED = (
    "",
    "no log line at all",
    '192.0.2.1 - - [01/Jan/2024:10:00:00 +0000] "GET / HTTP/1.1" 200',
    '192.0.2.1 - - [01/Jan/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "cut sho',
    '192.0.2.1 - - [30/Feb/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Foo/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Jan/2024:24:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Jan/2024:10:00:00] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - "GET / HTTP/1.1" 200 5 "-" "-"',
)


def chance_log(seed: int, lines: int) -> bytes:
    """Return a log of both formats over a turn of the year, in many zones, in no order of days."""
    dice = random.Random(seed)
    start = datetime(2023, 12, 30, 18, tzinfo=UTC)
    return "".join(f"{line}\n" for line in _chance_lines(dice, start, lines)).encode()


def _chance_lines(dice: random.Random, start: datetime, lines: int) -> Iterator[str]:
    for _ in range(lines):
        if dice.random() < 0.02:
            yield dice.choice(_MALFORMED)
            continue
        zone = dice.choice(_ZONES)
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
        local = timezone(-offset if zone[0] == "-" else offset)
        at = (start + timedelta(seconds=dice.randrange(4 * 86_400))).astimezone(local)
        address = f"192.0.2.{dice.randrange(1, 60)}"
        line = f'{address} - bob [{at:%d/%b/%Y:%H:%M:%S} {zone}] "GET /\\"x\\" HTTP/1.1" 200 -'
        if dice.random() < 0.8:
            line += f' "http://site.example/?q=\\"" "{dice.choice(_AGENTS)}"'
            if dice.random() < 0.1:
                line += ' "198.51.100.7" 0.023'
        yield line


def awk_figures(path: Path) -> dict[str, tuple[int, int]]:
    """Return hits and unique visitors by day of a log, plain or gzip, as awk and sort have it."""
    command = """
        set -e
        lines() { case "$2" in *.gz) zcat "$2";; *) cat "$2";; esac | awk -f "$1"; }
        lines "$@" | cut -f1 | sort | uniq -c
        echo
        lines "$@" | sort -u | cut -f1 | uniq -c
    """
    done = subprocess.run(
        ["sh", "-c", command, "sh", str(AWK), str(path)],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    assert not done.stderr
    hits, visitors = (
        {day: int(count) for count, day in (line.split() for line in part.splitlines())}
        for part in done.stdout.decode().split("\n\n")
    )
    assert hits.keys() == visitors.keys()
    return {day: (hits[day], visitors[day]) for day in hits}


@pytest.mark.timeout(120)
def test_no_task_is_lost_while_queues_move_and_a_worker_is_killed() -> None:
    pytest.importorskip("celery")
    result = CliRunner().invoke(app, ["demo", "celery", "--tasks", "400", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["sent"], report["ran"], report["lost"]) == (400, 400, 0)
    assert report["again"] <= 8  # what the killed worker had
    assert report["moved"][1] > report["moved"][0]


EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "timeline_app"


@pytest.fixture
def web_app(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the application, which will find the servers."""
    monkeypatch.setenv("SHARDKIT_CONFIG", url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("app", None)
    import app as module

    yield module
    sys.modules.pop("app", None)


@asynccontextmanager
async def served(web_app: Any) -> AsyncIterator[AsyncClient]:
    async with (
        web_app.lifespan(web_app.app),
        AsyncClient(transport=ASGITransport(web_app.app), base_url="http://timelines") as client,
    ):
        yield client


@pytest_asyncio.fixture
async def web(web_app: Any) -> AsyncIterator[AsyncClient]:
    async with served(web_app) as client:
        yield client


async def user(web: AsyncClient, login: str) -> int:
    answer = await web.post("/users", json={"login": login, "name": login.title()})
    assert answer.status_code == 201
    found: int = answer.json()["id"]
    return found


def messages(answer: Any) -> list[str]:
    assert answer.status_code == 200
    return [status["message"] for status in answer.json()["statuses"]]


async def test_a_post_reaches_a_follower_and_leaves_with_the_author(web: AsyncClient) -> None:
    ada, alan = await user(web, "ada"), await user(web, "alan")
    assert (await web.put(f"/users/{ada}/following/{alan}")).status_code == 204
    assert (await web.put(f"/users/{ada}/following/{alan}")).status_code == 204  # already so
    assert (await web.post(f"/users/{alan}/statuses", json={"message": "Hello"})).status_code == 201
    assert messages(await web.get(f"/users/{ada}/home")) == ["Hello"]
    assert (await web.delete(f"/users/{ada}/following/{alan}")).status_code == 204
    assert messages(await web.get(f"/users/{ada}/home")) == []


async def test_the_rest_of_the_followers_is_reached_by_a_worker(
    web_app: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(web_app), "PASS_SIZE", 1)
    async with served(web_app) as web:
        alan = await user(web, "alan")
        uids = [await user(web, f"user{n}") for n in range(40)]
        for uid in uids:
            await web.put(f"/users/{uid}/following/{alan}")
        await web.post(f"/users/{alan}/statuses", json={"message": "Hello"})
        read = [messages(await web.get(f"/users/{uid}/home")) for uid in uids]
        assert ["Hello"] in read
        assert [] in read
        arguments = ["worker", "app:worker", "--burst", "--json", "--config", url]
        invoke = partial(CliRunner().invoke, app, arguments, standalone_mode=False)
        result = await asyncio.to_thread(invoke)  # which runs an event loop of its own
        assert result.exception is None, result.output
        assert json.loads(result.stdout)["done"] > 0
        read = [messages(await web.get(f"/users/{uid}/home")) for uid in uids]
        assert read == [["Hello"]] * 40


async def test_invalid_requests_are_answered_with_the_reason(web: AsyncClient) -> None:
    ada = await user(web, "ada")
    assert (await web.post("/users", json={"login": "ADA", "name": "x"})).status_code == 409
    assert (await web.put(f"/users/{ada}/following/{ada}")).status_code == 422
    assert (await web.put(f"/users/{ada}/following/999999")).status_code == 409
    assert (await web.post("/users/999999/statuses", json={"message": "x"})).status_code == 404
    assert (await web.get("/users/nobody")).status_code == 404
    assert (await web.get(f"/users/{ada}/home?cursor=elsewhere")).status_code == 422
    assert (await web.get(f"/users/{ada}/home?limit=0")).status_code == 422
    assert (await web.post("/users", json={"login": "", "name": "x"})).status_code == 422
