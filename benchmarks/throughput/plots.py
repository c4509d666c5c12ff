"""How cost grows with batch size, shards and concurrency: a plot each."""

from __future__ import annotations

from report import lines

Figures = dict[str, dict[str, float]]


def draw(found: dict[str, Figures]) -> None:
    """Draw what was measured."""
    if "batches" in found:
        for work in ("GET", "SET"):
            _draw(f"batches_{work.lower()}", f"{work}s in a batch", found["batches"], f" {work}")
    if "shards" in found:
        _draw("shards", "Shards, for a batch of 10,000 GETs", found["shards"], " shards")
    if "awaiting" in found:
        _draw("at_once", "GETs awaited at once", found["awaiting"], " GET at once")


def _draw(name: str, title: str, figures: Figures, ending: str) -> None:
    rows = {
        int(work.removesuffix(ending).replace(",", "")): row
        for work, row in figures.items()
        if work.endswith(ending) and work.removesuffix(ending).replace(",", "").isdigit()
    }
    series: dict[str, dict[float, float]] = {}
    for at, row in sorted(rows.items()):
        for contestant, ratio in row.items():
            if contestant != "limit, us":
                series.setdefault(contestant, {})[at] = ratio
    lines(f"throughput_{name}", title, series, "times the limit")
