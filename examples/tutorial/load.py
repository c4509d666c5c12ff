"""Clients that post and read all the time: ``python -m examples.tutorial.load URL SECONDS``."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError
from urllib.request import Request, urlopen

CLIENTS = 4


def call(url: str, method: str = "GET", session: str = "") -> object:
    """Call the service, and return its answer."""
    request = Request(url, method=method, headers={"session": session})
    with urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def client(url: str, name: str, until: float) -> tuple[int, int, float]:
    """Read and follow until then; return how many calls there were and failed, and the slowest."""
    signed_in = call(f"{url}/sign-in/{name}", "POST")
    assert isinstance(signed_in, dict)
    session = signed_in["session"]
    calls = failed = 0
    slowest = 0.0
    while time.time() < until:
        began = time.monotonic()
        try:
            call(f"{url}/follow/user-{calls % 50}", "POST", session)
            call(f"{url}/timeline", session=session)
        except URLError:
            failed += 1
        calls += 2
        slowest = max(slowest, time.monotonic() - began)
    return calls, failed, slowest


def main(url: str, seconds: float) -> None:
    """Run the clients, and print the totals."""
    until = time.time() + seconds
    names = [f"user-{n}" for n in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(lambda name: client(url, name, until), names))
    calls, failed = sum(each[0] for each in found), sum(each[1] for each in found)
    slowest = max(each[2] for each in found)
    print(f"{calls} calls, {failed} failed, slowest pair {slowest:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
