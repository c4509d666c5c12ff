"""Write the tables of docs/memory.md from what `memory.py` has measured.

Between the lines ``<!-- memory_page: NAME -->`` and ``<!-- end -->`` the page has the table of that
name; everything else is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from report import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
SHOWN = (64, 128, 512, 4096)  # part sizes; the plot has all
# The JSON has all cases and layouts.
LEFT_OUT = {"list", "parts of 128, limit 256 bytes", "parts of 1024, limits 1024, 256"}


def figures(result: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))
    return found["figures"]  # type: ignore[no-any-return]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    lines = [heads, ["---"] * words + ["---:"] * (len(heads) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sizes() -> str:
    found = figures("part_sizes")
    heads = ["entries of a part"]
    rows: dict[int, list[str]] = {}
    for kind, servers in found.items():
        heads += [f"{kind}: bytes", "µs"]
        for points in zip(*(each["points"] for each in servers.values()), strict=True):
            if points[0]["part_size"] not in SHOWN:
                continue
            row = rows.setdefault(points[0]["part_size"], [])
            row.append(" / ".join(f"{point['bytes_each']:.1f}" for point in points))
            row.append(" / ".join(f"{point['read_microseconds']:.1f}" for point in points))
    return table(heads, ([f"{size:,}", *row] for size, row in rows.items()))


def cases() -> str:
    parts = []
    for name, servers in figures("memory").items():
        if name in LEFT_OUT:
            continue
        # Times were measured on two servers, in one run.
        timed = {name: each for name, each in servers.items() if each["layouts"][0]["get"]}
        heads = ["layout", *(f"{server.split(',')[0]}: bytes" for server in timed)]
        heads += ["saving", "load, times plain", "get", "put"]
        first = next(iter(timed.values()))
        rows = []
        for n, layout in enumerate(first["layouts"]):
            if layout["layout"] in LEFT_OUT:
                continue
            every = [each["layouts"][n] for each in timed.values()]
            loads = [
                (of["layouts"][n]["load_seconds"] / of["layouts"][n]["entries"])
                / (of["layouts"][0]["load_seconds"] / of["layouts"][0]["entries"])
                for of in timed.values()
            ]
            rows.append(
                [
                    layout["layout"],
                    *(f"{each['bytes_each']:.1f}" for each in every),
                    " / ".join(f"{each['saving']:.0%}" for each in every) if n else "",
                    " / ".join(f"{load:.1f}" for load in loads),
                    *(
                        " / ".join(times(each["layouts"][n][call]) for each in timed.values())
                        for call in ("get", "put")
                    ),
                ]
            )
        title = f"**{name}**: {first['layouts'][0]['entries']:,} {first['title']}"
        parts.append(f"{title}\n\n{table(heads, rows)}")
    return "\n\n".join(parts)


def times(call: dict[str, Any] | None) -> str:
    return "-" if call is None or call["times_plain"] is None else f"{call['times_plain']:.1f}"


TABLES: dict[str, Callable[[], str]] = {"sizes": sizes, "cases": cases}


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{TABLES[match[2]]()}\n\n<!-- end -->"

    text = re.sub(r"(<!-- memory_page: (\w+) -->).*?<!-- end -->", filled, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
