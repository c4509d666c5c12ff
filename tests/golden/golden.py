"""What releases stored, kept as DUMP payloads, and how each of it is opened, read and written.

::

    tests/golden/0.1.0/set.json     {"keys": {"ids:{4}:0": "<base64 of DUMP>", …},
                                     "reads": {"scard": 300, …}}

``make golden`` writes the files of this release, on the oldest server there is: a newer one
restores its payloads. They are made once, when a release is, and then never changed: every later
release reads, writes and checks them.
"""

from __future__ import annotations

import json
import shutil
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "damage"))
from damages import DAY, SUBJECTS, Calls, Subject

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServers

HERE = Path(__file__).parent
MAP = "components: {data: {entry: {port: 7001}}}"
Kit = Callable[[ShardKit], Any]


def _subject(make: Kit, fill: Callable[[Any], Any], reads: Calls, writes: Calls) -> Subject:
    return Subject(make, fill, reads, writes)


def _uid(network: Any, login: str) -> int:
    return int(network.get_user_by_login(login).id)


def _fill_network(network: Any) -> None:
    for login in ("ada", "bo", "cy"):
        network.create_user(login, login.title())
    ada, bo, cy = (_uid(network, login) for login in ("ada", "bo", "cy"))
    network.follow(ada, bo)
    network.follow(cy, bo)
    network.post(bo, "hello")
    network.post(bo, "again")
    network.block(ada, cy)
    network.create_list(ada, "friends")


GOLDEN: dict[str, Subject] = {
    **SUBJECTS,
    "queue": _subject(
        lambda kit: kit.queues(component="data", new_id=iter(map(str, range(999))).__next__),
        lambda queues: [
            queues.enqueue("mail", "send", [n], delay=10**9 * (n % 2)) for n in range(10)
        ],
        {"counts": lambda queues: list(queues.counts("mail"))},
        {
            "take": lambda queues: queues.acknowledge(queues.take("mail", timeout=0)),
            "enqueue": lambda queues: queues.enqueue("mail", "send", id="other"),
        },
    ),
    "search": _subject(
        lambda kit: kit.search("docs", component="data", attributes={"size": "number"}),
        lambda docs: [
            docs.index(f"{n}", f"word{n % 7} and others {n}", {"size": n}) for n in range(50)
        ],
        {
            "search": lambda docs: sorted(hit.id for hit in docs.search("word3", limit=99)),
            "phrase": lambda docs: [hit.id for hit in docs.search('"others 33"')],
        },
        {
            "index": lambda docs: docs.index("51", "word3 more"),
            "remove": lambda docs: docs.remove("3"),
        },
    ),
    "ads": _subject(
        lambda kit: kit.ads(component="data", new_id=iter(map(str, range(999))).__next__),
        lambda ads: [
            ads.index(f"{n}", ["USA"], f"words of ad {n}", "cpc", n / 10) for n in range(1, 9)
        ],
        {"get": lambda ads: ads.get("5").value},
        {"target": lambda ads: ads.target(["USA"], "words")},
    ),
    "jobs": _subject(
        lambda kit: kit.job_search("posts", component="data"),
        lambda jobs: [jobs.index(f"{n}", ["python", f"skill{n}"]) for n in range(20)],
        {"find": lambda jobs: sorted(str(j.id) for j in jobs.find(["python", "skill7"]))},
        {"index": lambda jobs: jobs.index("new", ["sql"])},
    ),
    "network": _subject(
        lambda kit: kit.social(component="data", parts=4),
        _fill_network,
        {
            "users": lambda network: [
                network.get_user_by_login(login).name for login in ("ada", "bo", "cy")
            ],
            "home": lambda network: [
                status.message for status in network.home(_uid(network, "ada"))
            ],
            "follows": lambda network: network.follows(_uid(network, "cy"), _uid(network, "bo")),
        },
        {
            "post": lambda network: network.post(_uid(network, "bo"), "more"),
            "create_user": lambda network: network.create_user("di", "Di"),
            "reconcile": lambda network: network.reconcile(_uid(network, "ada")),
        },
    ),
}
CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": lambda queues: queues.check("mail"),
    "address book": lambda book: book.check("elves"),
    "contacts": lambda known: known.check("ada"),
    **{name: lambda u: u.check(DAY) for name in GOLDEN if name.startswith("unique")},
}


def plain(value: Any) -> Any:
    """Return a result as JSON has it, in an order of its own."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in sorted(value.items(), key=repr)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def restore(client: Any, path: Path) -> dict[str, Any]:
    """Make a server hold what a release stored, and nothing else; return what its calls read."""
    stored: dict[str, Any] = json.loads(path.read_text())
    client.flushall()
    for key, payload in stored["keys"].items():
        client.restore(key.encode("latin-1"), 0, b64decode(payload))
    reads: dict[str, Any] = stored["reads"]
    return reads


def main() -> None:
    """Write the files of this release, but those that are there."""
    target = HERE / shardkit.__version__
    target.mkdir(exist_ok=True)
    servers = LocalServers(
        ShardMap.parse(MAP), ports="free", binary=shutil.which("redis-server") or None
    )
    with servers, shardkit.connect(servers.shard_map) as kit:
        client: Any = kit.client("data")
        for name, subject in GOLDEN.items():
            path = target / f"{name}.json"
            if path.exists():
                continue
            client.flushall()
            subject.fill(subject.open(kit))
            opened = subject.open(kit)
            reads = {called: plain(call(opened)) for called, call in subject.reads.items()}
            keys = {
                key.decode("latin-1"): b64encode(client.dump(key)).decode()
                for key in sorted(client.scan_iter())
            }
            text = json.dumps({"keys": keys, "reads": reads}, indent=0, ensure_ascii=False)
            path.write_text(text + "\n")


if __name__ == "__main__":
    main()
