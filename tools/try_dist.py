"""Try what `make dist` made as users do: the wheel with each extra alone, the sdist by its tests.

Each extra is installed alone into a new environment, where what it is for must work, and every
module that needs another extra must name that one. The sdist builds the same wheel, byte by byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What each extra is for; those for shardkit's own developers are not here.
WORKS = {
    "": "import shardkit, shardkit.admin, shardkit.search, shardkit.social, shardkit.queues",
    "arrays": "import numpy, shardkit.structures",
    "aws-iam": "import botocore.model, botocore.session, botocore.signers, shardkit",
    "chat": "import starlette, uvicorn, websockets",
    "cli": "from shardkit.cli.app import app; import click; click.Context(app).get_help()",
    "codecs": "from shardkit.structures import codec; "
    "[codec(name) for name in ('msgpack', 'zstd', 'lz4')]",
    "dashboard": "import shardkit.dashboard",
    "celery": "import shardkit.integrations.celery.backend, shardkit.integrations.celery.transport",
    "django": "import django, shardkit.integrations.django.cache",
    "entra": "import azure.identity, shardkit",
    "gcp": "import google.auth.transport.requests, shardkit",
    "geo": "import maxminddb, shardkit.geo",
    "local": "from shardkit.local import LocalServer; s = LocalServer(); s.start(); s.stop()",
    "metrics": "import ddsketch, shardkit.metrics",
    "otel": "import shardkit.integrations.otel",
    "placements": "import shardkit; shardkit.ShardMap.parse('''components: {a: {shards: [{}, "
    "{db: 1}], placement: {name: go-redis, names: [x, y]}}}''')",
    "postgresql": "import psycopg; from shardkit.social import PostgreSQLStatusStore",
    "prometheus": "import shardkit.integrations.prometheus",
    "search": "from shardkit.search import Analyzer; Analyzer(stemmer='english')",
    "shell": "import IPython; from shardkit.cli.app import app",
    "testing": "from shardkit.testing import MemoryServers; MemoryServers()",
}
DEVELOPERS = {"bench", "docs", "dev"}
INIT_TEST = "tests/cli/test_cli_app.py::test_a_map_to_begin_with_is_written_once"
SDIST_TESTS = ["tests/routing", "tests/docs/test_site.py", INIT_TEST]


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a program; end with its output if it fails."""
    ended = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.stdout}\n{ended.stderr}")


def environment(folder: Path) -> Path:
    """Return the Python of a new environment."""
    run("uv", "venv", "-q", "--python", sys.executable, folder)
    return folder / "bin" / "python"


def main(dist: Path) -> None:
    """Try the wheel and the sdist of a folder.

    Raises:
        SystemExit: something does not work.
    """
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for extra, code in WORKS.items():
            python = environment(folder / (extra or "plain"))
            run("uv", "pip", "install", "-q", "--python", python, f"{wheel}[{extra}]")
            run(python, "-I", "-c", code)
            print(f"shardkit[{extra}] works alone", flush=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        [source] = (each.parent for each in folder.glob("*/pyproject.toml"))
        os.umask(0o022)
        run(sys.executable, "-m", "build", "-w", "-o", folder / "again", source)
        if (folder / "again" / wheel.name).read_bytes() != wheel.read_bytes():
            sys.exit(f"{sdist.name} builds another wheel than {wheel}")
        print(f"{wheel.name} is built again, with the same bytes", flush=True)
        python = environment(folder / "sdist")
        run("uv", "pip", "install", "-q", "--python", python, "-e", f"{source}[dev]")
        run(python, "-m", "pytest", "-q", *SDIST_TESTS, cwd=source)
        print(f"{sdist.name} runs its tests", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
