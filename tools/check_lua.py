"""Run luacheck on every script as a server gets it, with what it includes: ``make check``.

A script's own lines must be free of warnings. What an included file defines may go unused in one
script, but not in all of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "shardkit"
OPTIONS = (
    "--std",
    "lua51",
    "--globals",
    "redis",
    "KEYS",
    "ARGV",
    "cjson",
    "cmsgpack",
    "struct",
    "bit",
    "--no-color",
    "--codes",
    "--formatter",
    "plain",
    "--max-line-length",
    "100",
    "--ignore",
    "431",
)  # fmt: skip; an include may shadow what a script names as well
INCLUDE = re.compile(r"--@include ([\w/]+)")
WARNING = re.compile(r"stdin:(\d+):\d+: (.*)")


def lines_of(path: Path) -> list[tuple[str, Path, int]]:
    """Return a script's lines, each with the file and the line that it comes from."""
    found: list[tuple[str, Path, int]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if included := INCLUDE.fullmatch(line):
            owner, _, stem = included[1].rpartition("/")
            found += lines_of(PACKAGE / owner / "lua" / f"{stem}.lua")
        else:
            found.append((line, path, number))
    return found


def main() -> int:
    """Print what luacheck finds; return the exit code."""
    if shutil.which("luacheck") is None:
        print("luacheck is not installed: apt-get install lua-check", file=sys.stderr)
        return 1
    includers: Counter[Path] = Counter()
    unused: Counter[tuple[Path, int, str]] = Counter()
    failed = 0
    for path in sorted(PACKAGE.rglob("lua/*.lua")):
        lines = lines_of(path)
        if lines[0][0].startswith("-- Included by"):
            continue
        includers.update({source for _, source, _ in lines} - {path})
        text = "\n".join(line for line, _, _ in lines)
        command = ("luacheck", *OPTIONS, "-")
        said = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        for line in said.stdout.splitlines():
            if (found := WARNING.match(line)) is None:
                print(f"{path}: {line}")
                failed += 1
                continue
            _, source, number = lines[int(found[1]) - 1]
            if source != path and found[2].startswith(("(W211)", "(W221)", "(W231)")):
                unused[source, number, found[2]] += 1
            else:
                print(f"{source}:{number}: {found[2]}")
                failed += 1
    for (source, number, warning), times in unused.items():
        if times == includers[source]:
            print(f"{source}:{number}: {warning} in every script that includes it")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
