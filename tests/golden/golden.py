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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "damage"))
from subjects import MAP, SUBJECTS

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

HERE = Path(__file__).parent


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
        for name, subject in SUBJECTS.items():
            path = target / f"{name}.json"
            if path.exists():
                continue
            client.flushall()
            subject.fill(subject.open(kit))
            opened = subject.open(kit)
            reads = {
                called: plain(call(opened))
                for called, call in subject.reads.items()
                if called not in subject.passing
            }
            keys = {
                key.decode("latin-1"): b64encode(client.dump(key)).decode()
                for key in sorted(client.scan_iter())
            }
            text = json.dumps({"keys": keys, "reads": reads}, indent=0, ensure_ascii=False)
            path.write_text(text + "\n")


if __name__ == "__main__":
    main()
