"""Peers whose versions do not go together, each in a virtual environment of its own.

Run by ``python benchmarks/throughput/peers.py [peer ...]``. Each is installed by name with pip into
a temporary directory and runs `worker.py` there, which times it and the limit in turn in the same
process. A peer that cannot be installed here, or does not run, is skipped, and that is said.
twemproxy is Debian's `nutcracker`, if it is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, conditions, save, show

from throughput import cases
from throughput.works import sets

HERE = Path(__file__).parent
NEEDS = {
    "rb": ["rb", "redis==4.6.0", "hiredis"],
    "glide": ["valkey-glide-sync", "hiredis"],
    "coredis": ["coredis", "hiredis"],
    "redis-py 4.6": ["redis==4.6.0", "hiredis"],
    "twemproxy": ["redis==4.6.0", "hiredis"],
}


def prepare(peer: str, where: Path) -> Path:
    """Return the Python of a new environment that has the peer."""
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    python = where / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *NEEDS[peer]], check=True)
    return python


def run(peer: str, ports: list[int]) -> dict[str, dict[str, float]]:
    """Return a peer's ratios; raises whatever is in the way."""
    if peer == "twemproxy" and shutil.which("nutcracker") is None:
        raise RuntimeError("no nutcracker here; it is Debian's package of that name")
    with tempfile.TemporaryDirectory(prefix="shardkit-peer-") as directory:
        python = prepare(peer, Path(directory) / "venv")
        command = [str(python), str(HERE / "worker.py"), peer, *map(str, ports)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
        found: dict[str, dict[str, float]] = json.loads(done.stdout)
        return {
            work: {name: round(value, 2) for name, value in row.items()}
            for work, row in found.items()
        }


def main(chosen: list[str]) -> None:
    path = RESULTS / "throughput_peers.json"
    found = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    with cases.servers() as shard_map:
        cases.fill(shard_map, "of4", sets(10_000))
        ports = [port for _, port, _ in cases.addresses_of(shard_map, "of4")]
        for peer in chosen or NEEDS:
            try:
                found[peer] = run(peer, ports)
            except (OSError, subprocess.SubprocessError, RuntimeError, ValueError) as error:
                print(f"{peer}: skipped: {error}")
                continue
            for work, row in found[peer].items():
                show(f"{peer}, {work}", ["", "times the limit"], list(row.items()))
    save("throughput_peers", {"figures": found, "conditions": conditions()})


if __name__ == "__main__":
    main(sys.argv[1:])
