"""The rights that each feature needs: what it sends, as the server counts it, and what its scripts
name: branches that are seldom taken have commands of their own.

``python tests/docs/rights_of_features.py`` writes them to ``shardkit/network/rights.json``, and the
table to docs/rights.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "damage")]

from subjects import MAP, SUBJECTS  # noqa: E402

import shardkit  # noqa: E402
from shardkit import ShardKit, ShardMap  # noqa: E402
from shardkit.local import LocalServer  # noqa: E402
from shardkit.operations.lua import script  # noqa: E402

RIGHTS = Path(shardkit.__file__).parent / "network" / "rights.json"
SCRIPTS = [
    script("/".join([*path.parts[:-2], path.stem]))
    for path in (each.relative_to(RIGHTS.parents[1]) for each in RIGHTS.parents[1].rglob("*.lua"))
]
FUNCTION = re.compile(
    r"^(?:local )?function (\w+)(?:[^\n]* end$|.*?^end$)", re.MULTILINE | re.DOTALL
)
PAGE = Path(__file__).parents[2] / "docs" / "rights.md"
BEGIN, END = "<!-- written by tests/docs/rights_of_features.py -->\n", "<!-- end -->\n"

# Which subjects belong to which feature, by the first words of their names.
GROUPS = {
    "sets": ["set", "planned set"],
    "hashes": ["hash", "numbered hash", "json hash", "compressed hash", "strings"],
    "lists": ["list", "changed list"],
    "sorted sets": ["sorted set", "score ranges"],
    "packed records": ["packed", "locations"],
    "unique visitors": [name for name in SUBJECTS if name.startswith("unique ")],
    "IP to city": ["ip to city", "daily totals"],
    "autocompletion": ["address book", "contacts"],
    "task queues": ["queue"],
    "search": ["search"],
    "ads": ["ads"],
    "job search": ["jobs"],
    "social network": ["network"],
    "messaging": ["mailboxes", "chats", "files", "totals"],
    "market": ["market"],
    "locks": [
        *("lock", "awaited lock", "semaphore", "read lock", "several locks", "quorum"),
        *("election", "guard", "latch", "barrier"),
    ],
    "rate limits": ["rate limit", "window"],
    "transfers": ["transfers"],
    "metrics": ["logs", "counters", "statistics", "maintenance"],
}


class Servers(NamedTuple):
    """A server with a replica."""

    master: LocalServer
    replica: LocalServer

    def map(self, login: str = "") -> ShardMap:
        """Return their map, with a user's login."""
        text = MAP.replace("7001", str(self.master.port)).replace(
            "data: {entry: {", f"data: {{entry: {{replicas: [{{port: {self.replica.port}}}], "
        )
        return ShardMap.parse(f"defaults: {{host: 127.0.0.1{login}}}\n{text}")

    def kit(self, login: str = "") -> Any:
        """Open a kit, with a user's login."""
        return shardkit.connect(self.map(login))

    def set_user(self, *rights: str) -> None:
        """Give the user ``tried`` these rights and no others."""
        for server in self:
            with server.client() as admin:
                admin.execute_command("ACL", "SETUSER", "tried", "reset", "on", ">pw", *rights)

    def sent(self, *, replica: bool) -> set[str]:
        """Return the commands that clients have sent since the last call; forget them.

        A ``replica`` counts what its master sends it, too.
        """
        found: set[str] = set()
        for server in self if replica else self[:1]:
            with server.client() as admin:
                stats = admin.info("commandstats")
                found |= {name.removeprefix("cmdstat_") for name in stats}
                admin.config_resetstat()
        known = {"ping", "select", "echo"}  # of @connection
        return {name for name in found - _OF_REPLICATION - known if "client|" not in name}


# What this file and the replica send.
_OF_REPLICATION = {
    *(
        "config|resetstat",
        "flushall",
        "script|flush",
        "script|exists",
        "acl|setuser",
        "replconf",
        "psync",
        "auth",
        "hello",
    ),
}


@contextmanager
def two_servers() -> Iterator[Servers]:
    """Start a server with a replica."""
    with LocalServer() as master, LocalServer(replica_of=master) as replica:
        yield Servers(master, replica)


def call_whole(call: Callable[[Any], Any], structure: Any) -> None:
    """Make a call, and take all that it yields."""
    result = call(structure)
    if isinstance(result, Iterator):
        list(result)


def use_subject(kit: ShardKit, name: str) -> None:
    """Use a structure: all calls that its subject has."""
    subject = SUBJECTS[name]
    structure = subject.open(kit)
    subject.fill(structure)
    for call in (*subject.reads.values(), subject.check, *subject.writes.values()):
        call_whole(call, structure)


def check_health(kit: ShardKit) -> None:
    """Ask for the health of the kit."""
    health = kit.health()
    assert health.ok, health
    assert all(shard.role == "master" for shard in health.shards)


def read_from_replicas(kit: ShardKit) -> None:
    """Read from the replica alone."""
    reads = kit.key_sharded("data", read_from="replica")
    assert reads["k"].get("k") is None


FEATURES: dict[str, list[Callable[[ShardKit], None]]] = {
    feature: [lambda kit, name=name: use_subject(kit, name) for name in names]
    for feature, names in GROUPS.items()
} | {"health": [check_health], "reads from replicas": [read_from_replicas]}


def record(servers: Servers, feature: str) -> list[str]:
    """Return the commands that a feature sends, in order."""
    found: set[str] = set()
    replica = feature == "reads from replicas"
    for use in FEATURES[feature]:
        with servers.master.client() as admin:
            admin.flushall()
            admin.script_flush()
        servers.sent(replica=True)
        with servers.kit() as kit:
            use(kit)
        found |= servers.sent(replica=replica)
        with servers.master.client() as admin:
            loaded = admin.script_exists(*(script.sha for script in SCRIPTS))
        for text in (each.text for each, used in zip(SCRIPTS, loaded, strict=True) if used):
            found |= {name.lower() for name in named(text)}
    return sorted(found)


def named(text: str) -> set[str]:
    """Return the commands that a script which writes calls by name, in itself or what it uses.

    Commands that not every server has expire fields; scripts call them only if fields expire.
    """
    if "\n--@reads" in text:
        return set()
    text = re.sub(r"--[^\n]*", "", text)
    functions = {match[1]: match[0] for match in FUNCTION.finditer(text)}
    used = reached = FUNCTION.sub("", text)
    while used:
        names = functions.keys() & set(re.findall(r"\w+", used))
        used = "\n".join(functions.pop(name) for name in names)
        reached += used
    called = " ".join(re.findall(r"\bcall\(\s*([^,)\n]*)", reached))
    return set(re.findall(r"'((?!HPEXPIRE)[A-Z]+)'", called))


def table(rights: dict[str, list[str]]) -> str:
    """Return the table of docs/rights.md; the first row has what more than half of them send."""
    counts = Counter(name for names in rights.values() for name in names)
    common = {name for name, count in counts.items() if count > len(rights) / 2}
    rows = {"each of them": granted(common)}
    for feature, names in rights.items():
        more = set(names) - common
        rows[feature] = granted(more) if more else f"only {granted(names)}"
    head = ["| feature | commands, besides `+@connection` |", "|---|---|"]
    return "\n".join([*head, *(f"| {name} | {text} |" for name, text in rows.items()), ""])


def granted(names: Iterable[str]) -> str:
    """Return the rights to commands as the page has them."""
    return f"`{' '.join(f'+{name}' for name in sorted(names))}`"


def main() -> None:
    """Write the rights and the page; rights stay that another run has found."""
    known = json.loads(RIGHTS.read_text(encoding="utf-8"))
    with two_servers() as servers:
        rights = {
            feature: sorted({*record(servers, feature), *known.get(feature, "").split()})
            for feature in FEATURES
        }
    text = {feature: " ".join(names) for feature, names in rights.items()}
    RIGHTS.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(rights)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
