"""A sample log: five days of a fictitious site, generated with the same lines every time.

It has two or three thousand visitors a day, few of them frequent and most of them with one visit;
pages with their style sheet, script and pictures; robots; an occasional failed login; lines that
are not quite in order, as they are written when a request ends; and nine malformed lines. Addresses
are those that RFC 5737 and RFC 3849 reserve for examples; visitors share the few of IPv4.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate

_SEED = 20250306
_START = datetime(2025, 3, 6, tzinfo=UTC)  # a Thursday
_LOOKS = (3_500, 3_600, 2_500, 2_300, 3_700)  # page views per day
_PEOPLE = 50_000
_DAY = 86_400

# The relative traffic of each hour.
_HOURS = (3, 2, 1, 1, 1, 2, 4, 7, 10, 11, 11, 10, 9, 10, 11, 11, 10, 9, 9, 11, 12, 11, 8, 5)

_PLATFORMS = (
    "Windows NT 10.0; Win64; x64",
    "Macintosh; Intel Mac OS X 10_15_7",
    "X11; Linux x86_64",
    "Linux; Android 10; K",
    "iPhone; CPU iPhone OS 18_3 like Mac OS X",
    "iPad; CPU OS 17_7 like Mac OS X",
    "X11; CrOS x86_64 14541.0.0",
)
_BROWSERS = (
    "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36",
    "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36 Edg/{}.0.0.0",
    "AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.{} Safari/605.1.15",
    "Gecko/20100101 Firefox/{}.0",
)
_ROBOTS = (
    ("192.0.2.250", "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://bot.example/about)", 900),
    ("2001:db8:b07::1", "Mozilla/5.0 (compatible; Indexer/1.4; +https://index.example)", 500),
    ("198.51.100.251", "feedreader/0.9 (1 subscriber)", 288),
    ("203.0.113.252", "curl/8.5.0", 96),
    ("2001:db8:b07::2", r"Mozilla/5.0 (compatible; \"Example\" Reader)", 40),
    ("203.0.113.253", "-", 24),
)
_PAGES = (
    *("/", "/articles/", "/about.html", "/articles/sharding-by-key.html"),
    *(f"/articles/{year}/{n:02}.html" for year in (2023, 2024, 2025) for n in range(1, 41)),
    *(f"/photos/{n:03}.html" for n in range(1, 61)),
)
_ASSETS = ("/style.css", "/site.js", "/images/logo.svg")
_REFERERS = ("-", "-", "-", "https://search.example/", "https://news.example/item?id=4711")

_MALFORMED = {
    1_234: "",
    5_000: '192.0.2.17 - - [06/Mar/2025:13:10:47 +0000] "GET /articles/2024/0',
    9_876: "Mar  7 01:02:17 web1 httpd[812]: caught SIGTERM, shutting down",
    9_877: "\0" * 64,
    15_151: '192.0.2.44 - - [30/Feb/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 5120 "-" "-"',
    20_002: '192.0.2.45 - - [08/Mar/2025:25:61:00 +0000] "GET / HTTP/1.1" 200 5120 "-" "-"',
    25_252: "\x1b]0;gotcha\x07\x1b[31mred\x1b[0m",
    30_303: '203.0.113.9 - - "GET / HTTP/1.1" 200 5120 "-" "Mozilla/5.0"',
    33_333: '203.0.113.9 - - [10/Mar/2025:07:59:00 +0000] "GET / HTTP/1.1" 200 5120 "-" "Mozil',
}


@cache
def log() -> bytes:
    """Return the log."""
    dice = random.Random(_SEED)
    visits = [*_looks(dice), *_robots(dice)]
    visits.sort()  # by the end of the request, when they are written
    lines = [line for _, line in visits]
    for number, line in _MALFORMED.items():
        lines.insert(number - 1, line)
    return "".join(f"{line}\n" for line in lines).encode()


def _looks(dice: random.Random) -> Iterator[tuple[float, str]]:
    """Yield the requests of people, for pages and their assets, each with the time of its end."""
    pages = _zipf(len(_PAGES), 3)
    people = _zipf(_PEOPLE, 300)
    hours = list(accumulate(_HOURS))
    for day, looks in enumerate(_LOOKS):
        for _ in range(looks):
            address, agent = _person(_pick(dice, people))
            at = day * _DAY + 3600 * _pick(dice, hours) + 3600 * dice.random()
            page = _PAGES[_pick(dice, pages)]
            referer = _REFERERS[int(len(_REFERERS) * dice.random())]
            yield _request(dice, at, address, page, referer, agent)
            for asset in _ASSETS:
                if dice.random() < 0.4:  # otherwise it is in the browser's cache
                    at += dice.random()
                    source = f"https://www.site.example{page}"
                    yield _request(dice, at, address, asset, source, agent)
            if page.startswith("/photos/"):
                at += 2 * dice.random()
                picture = page.replace(".html", ".jpg")
                yield _request(dice, at, address, picture, "-", agent)


def _robots(dice: random.Random) -> Iterator[tuple[float, str]]:
    for address, agent, looks in _ROBOTS:
        for n in range(len(_LOOKS) * looks):
            at = (n + dice.random()) * _DAY / looks
            page = "/feed.xml" if agent.startswith("feed") else _PAGES[n % len(_PAGES)]
            yield _request(dice, at, address, page, "-", agent)


def _request(
    dice: random.Random, at: float, address: str, path: str, referer: str, agent: str
) -> tuple[float, str]:
    chance = dice.random()
    user, status, method = "-", 200, "GET"
    if chance < 0.08:
        status = 304
    elif chance < 0.10:
        status, path = 404, "/wp-login.php"
    elif chance < 0.11:
        status, method, path, user = 401, "POST", "/login", "alice"
    elif chance < 0.112:
        return at, _line(at, address, "-", r"\x16\x03\x01", 400, 226, "-", "-")
    number = sum((n + 1) * 977 * ord(c) for n, c in enumerate(path))
    size = 0 if status == 304 else 300 + number % 40_000
    request = f"{method} {path} HTTP/1.1"
    duration = 3 * dice.random() ** 4  # seconds
    return at + duration, _line(at, address, user, request, status, size, referer, agent)


def _line(
    at: float,
    address: str,
    user: str,
    request: str,
    status: int,
    size: int,
    referer: str,
    agent: str,
) -> str:
    time = f"{_START + timedelta(seconds=int(at)):%d/%b/%Y:%H:%M:%S +0000}"
    return f'{address} - {user} [{time}] "{request}" {status} {size or "-"} "{referer}" "{agent}"'


@cache
def _person(rank: int) -> tuple[str, str]:
    """Return a person's address and agent, which never change."""
    dice = random.Random(rank)
    if dice.random() < 0.45:
        address = f"2001:db8:{int(4096 * dice.random()):x}:{int(256 * dice.random()):x}::{rank:x}"
    else:
        network = ("192.0.2", "198.51.100", "203.0.113")[int(3 * dice.random())]
        address = f"{network}.{1 + int(249 * dice.random())}"
    platform = _PLATFORMS[int(len(_PLATFORMS) * dice.random() ** 2)]
    browser = _BROWSERS[int(len(_BROWSERS) * dice.random() ** 2)]
    version = 2 if "Version" in browser else 133 - int(30 * dice.random() ** 3)
    return address, f"Mozilla/5.0 ({platform}) {browser.format(version, version)}"


def _zipf(count: int, flat: int) -> list[float]:
    """Return the running sums of Zipf weights, by rank; the first ``flat`` are nearly equal."""
    return list(accumulate(1 / (rank + flat) for rank in range(count)))


def _pick(dice: random.Random, sums: Sequence[float]) -> int:
    return bisect(sums, dice.random() * sums[-1])
