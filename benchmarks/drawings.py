"""Every plot of docs/plots, drawn from the figures that benchmarks keep in results/.

`report.save` draws the plots of what it keeps. Run as a program, this draws them all again, or
those of the results that its arguments name. A contestant has the same colour in every plot. Its
variants have lighter shades, and each series has a marker, a line or a hatching of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.cli.advise import plots

RESULTS = Path(__file__).parent / "results"
PLOTS = Path(__file__).parents[1] / "docs" / "plots"
LIMIT = "the limit: a program over raw sockets"

Kept = Mapping[str, Any]
Points = dict[str, list[tuple[float, float]]]


# By the first words of a label; the first entry that fits counts.
CONTESTANTS = {
    "shardkit": "#1457b8",
    "ours": "#1457b8",
    "kit.": "#1457b8",
    "redis-py": "#d4670a",
    "redis.asyncio": "#a34700",
    "plain": "#d4670a",
    "one ": "#d4670a",
    "RedisCluster": "#8a3ab9",
    "twemproxy": "#1f7a4d",
    "the book": "#8c6d1f",
    "SQLite": "#1f7a4d",
    "RediSearch": "#8a3ab9",
    "raw sockets": "#4d4d4d",
    "the lock's scripts": "#4d4d4d",
    "the semaphore's scripts": "#4d4d4d",
    "valkey": "#3f6fd1",
    "redis ": "#c8372d",
}
_MARK = "#b00020"
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_SHADES = (0.0, 0.22, 0.38, 0.11, 0.46)


class Style(NamedTuple):
    """How a series is drawn."""

    colour: tuple[float, float, float]
    marker: str
    dash: Any
    hatch: str


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the style of each series, by its label: the contestant's colour, a shade a variant."""
    drawn: dict[str, Style] = {}
    variants: dict[str, int] = {}
    others = iter(plots.COLOURS * 3)
    for n, label in enumerate(dict.fromkeys(labels)):
        known = next((c for start, c in CONTESTANTS.items() if label.startswith(start)), None)
        colour = known or next(others)
        variant = variants.setdefault(colour, 0)
        variants[colour] += 1
        shade = _SHADES[variant % len(_SHADES)]
        channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (channel + (1 - channel) * shade for channel in channels)
        drawn[label] = Style(
            (red, green, blue),
            _MARKERS[n % len(_MARKERS)],
            _DASHES[variant % len(_DASHES)],
            plots.HATCHES[n % len(plots.HATCHES)],
        )
    return drawn


def bars(
    path: Path,
    title: str,
    values: Mapping[str, Mapping[str, float]],
    unit: str,
    limits: Mapping[str, float] | None = None,
    limit: str = "limit",
) -> None:
    """Draw bars in the contestants' styles, with a mark for each of ``limits`` by label."""

    def mark(axes: Any) -> None:
        marked = [(at, limits[label]) for at, label in enumerate(values) if label in limits]
        for n, (at, value) in enumerate(marked):
            meaning = limit if n == 0 else None
            axes.plot([value] * 2, [at - 0.46, at + 0.46], color=_MARK, linewidth=2, label=meaning)

    limits = limits or {}
    plots.bars(path, title, values, unit, styles, mark)


def curves(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    across: str,
    *,
    logarithmic: bool = False,
    limit: str = "",
) -> None:
    """Draw the points of curves by their labels, for each panel by its y axis' label.

    The x axis, labelled ``across``, is logarithmic; the y axis is if ``logarithmic``. ``limit``
    says what a line across at 1 means. Panels share one legend.
    """
    pyplot = plots.loaded_pyplot(path.stem)
    looks = styles(label for lines in panels.values() for label in lines)
    width = 7.5 if len(panels) == 1 else 3.7 * len(panels)
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(width, 4.4), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for axes, (name, lines) in zip(all_axes[0], panels.items(), strict=True):
        for label, points in lines.items():
            xs, ys = zip(*points, strict=True)
            look = looks[label]
            [handles[label]] = axes.plot(
                xs, ys, color=look.colour, marker=look.marker, linestyle=look.dash, linewidth=1.8
            )
        if limit and not name.endswith("ms"):
            handles[limit] = axes.axhline(1, color=_MARK, linewidth=1.2)
        marks = sorted({float(x) for points in lines.values() for x, _ in points})
        axes.set_xscale("log")
        apart = (marks[-1] / marks[0]) ** 0.08
        for mark in marks[::-1]:  # leave out those whose labels would overlap
            if any(mark < other < mark * apart for other in marks):
                marks.remove(mark)
        axes.set_xticks(marks, [plots.plain_figure(mark) for mark in marks])
        axes.set_xticks([], minor=True)
        if logarithmic:
            axes.set_yscale("log")
            _tick_plainly(axes)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(plots.plain_figure)
        axes.grid(axis="y")
        axes.set_xlabel(across)
        axes.set_ylabel(name)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), 2 if len(panels) == 1 else 4),
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    plots.save_plot(pyplot, figure, path)


def _tick_plainly(axes: Any) -> None:
    """Label a logarithmic axis with 1, 2 and 5 in each power of ten, or with the powers alone."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.get_ylim()
    wide = high / low > 1000
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plots.plain_figure)


def codecs(kept: Kept) -> None:
    shown = ("a plain HASH of JSON", "json", "msgpack", "zstd, 20,000", "tokens, 20,000")
    values = {
        name: {server: row[name]["bytes of an entry"] for server, row in kept["figures"].items()}
        for name in shown
    }
    title = f"{kept['records']:,} city records by codec"
    bars(PLOTS / "codecs.svg", title, values, "bytes an entry (used_memory)")


def completion(kept: Kept) -> None:
    series: Points = {}
    for row in kept["rows"]:
        form = {
            "address book": "shardkit, kit.address_book",
            "range, redis-py": "redis-py, a range of one ZSET",
        }.get(row["form"], row["form"])
        series.setdefault(form, []).append((row["processes"], row["ratio"]))
    curves(
        PLOTS / "completion.svg",
        f"Completions a second in one group of {kept['members']:,}",
        {"times as many as markers with WATCH": series},
        "processes",
        logarithmic=True,
    )


def config_server(kept: Kept) -> None:
    panels = {
        label: {
            how: [
                (float(count), max(found[name], 0.01))
                for count, found in (*of_counts.items(), *kept["by arithmetic"][how].items())
            ]
            for how, of_counts in kept["results"].items()
        }
        for label, name in (
            ("its processor time, % of a core", "config server, CPU %"),
            ("its network traffic, bytes a second", "its bytes a second"),
        )
    }
    curves(
        PLOTS / "config_server.svg",
        "Load of the config server (measured up to 200 processes, computed beyond)",
        panels,
        "processes",
        logarithmic=True,
    )


def coordination(kept: Kept) -> None:
    rows = kept["figures"]["locks"]
    locks = {
        f"{n} process{'es'[: 2 * (n != '1')]}": {
            way: float(row[n]["pairs a second"]) for way, row in rows.items()
        }
        for n in next(iter(rows.values()))
    }
    unit = "acquired and released a second"
    bars(PLOTS / "coordination_locks.svg", "All processes want one lock", locks, unit)
    market = {
        way: {name: float(row[name]) for name in ("listed", "bought", "retries")}
        for way, row in kept["figures"]["market"].items()
    }
    title = "Five processes list, five buy, in 60 seconds"
    bars(PLOTS / "coordination_market.svg", title, market, "number in all")


def growth(kept: Kept) -> None:
    shown = {
        f"{kind}{share}, {name}": row
        for kind in ("a server", "a shard")
        for share in ("", ", --share 0.2")
        for name, row in kept["moves"][f"{kind}{share}"]["neighbours"].items()
    }
    values = {
        label: {phase: row[f"{phase}: p99, ratio"] for phase in ("copy", "compare")}
        for label, row in shown.items()
    }
    bars(
        PLOTS / "growth_p99.svg",
        "Times of clients beside a move",
        values,
        "99th percentile, as a ratio to that without a move",
        dict.fromkeys(values, 1.5),
        "goal: at most 1.5",
    )
    ways = {
        "MIGRATE": "MIGRATE",
        "copy": "a split, copied",
        "the whole split": "a split, all of it",
    }
    bars(
        PLOTS / "growth_split_work.svg",
        "A split from 4 to 8 shards: processor time for 1,000 keys",
        {
            f"{value} bytes: {label}": {
                who: row[f"{way}: ms of {who} for 1,000 keys"]
                for who in ("the client", "old servers", "new servers")
            }
            for value, row in kept["splits"]["by bytes of a value"].items()
            for way, label in ways.items()
        },
        "ms",
    )
    curves(
        PLOTS / "growth_split_holds.svg",
        "How long writers wait at a split from 4 shards to more",
        {
            "milliseconds": {
                name: [
                    (float(count), row[key]) for count, row in kept["splits"]["by shards"].items()
                ]
                for name, key in (
                    ("writers held", "writers held, ms"),
                    ("the longest call", "longest call, ms"),
                )
            }
        },
        "shards",
    )


def part_sizes(kept: Kept) -> None:
    panels: dict[str, Points] = {}
    for server, figures in kept["figures"]["hash"].items():
        for title, field in (
            ("bytes an entry (used_memory)", "bytes_each"),
            ("server time to read one, µs", "read_microseconds"),
            ("server time to write one, µs", "write_microseconds"),
        ):
            points = [(float(p["part_size"]), p[field]) for p in figures["points"]]
            panels.setdefault(title, {})[server.split(",")[0]] = points
    title = "What the size of a hash's parts costs"
    curves(PLOTS / "part_sizes_hash.svg", title, panels, "entries of a part")


def search(kept: Kept) -> None:
    documents, found = kept["corpus"]["documents"], kept["figures"]
    queries = {
        kind: {
            name: (each["caller, us"] + each["servers, us"]) / 1000
            for name, each in found["peers"]["queries"][kind].items()
        }
        for kind in ("rare word", "three words", "frequent word", "phrase", "prefix")
    }
    bars(
        PLOTS / "search_peers.svg",
        f"A query over {documents:,} passages (0: cannot be asked)",
        queries,
        "processor time of caller and servers, ms",
    )

    def points(rows: Kept, what: str = "median, ms") -> list[tuple[float, float]]:
        return [(float(name.split()[0]), row[what]) for name, row in rows.items()]

    near, away = found["shards"], found["shards"]["1 ms away"]
    turns = {name: row for name, row in away.items() if "after" in name}
    at_once = {name: row for name, row in away.items() if "," not in name}
    pings = {name: row for name, row in away.items() if "EXISTS" in name}
    curves(
        PLOTS / "search_shards.svg",
        "More shards",
        {
            "processor time of the busiest server, µs": {
                "a query": points(near["queries"], "busiest server, us"),
                "a document indexed": points(near["indexing"], "busiest server, us"),
            },
            "median time of a query, servers 1 ms away, ms": {
                "all shards at once": points(at_once),
                "one shard after another": points({"1 shard": at_once["1 shard"], **turns}),
                "an EXISTS, all shards at once": points(pings),
            },
        },
        "shards",
    )
    curves(
        PLOTS / "search_pages.svg",
        f"A page of 10 of {documents:,} documents, sorted by an attribute, 4 shards",
        {
            "processor time, ms": {
                label: [(float(n), ms) for n, ms in found["pages"][name].items()]
                for label, name in (("offset and limit", "start, num"), ("cursor", "cursor"))
            }
        },
        "number of the page",
        logarithmic=True,
    )


def social(kept: Kept) -> None:
    posts = kept["fan_out"]
    title = f"One post to {posts['followers']:,} followers"
    written = {
        name.replace("ours", "shardkit"): {"timelines": row["timelines a second"]}
        for name, row in posts["figures"].items()
    }
    bars(PLOTS / "social_fan_out.svg", title, written, "timelines written a second")
    pages = {}
    for name, row in kept["reading"]["figures"].items():
        servers, *how = name.split(", ")
        whose = how.pop(0) if how[0] == "the book's" else "shardkit"
        pages[", ".join((whose, servers, *how))] = {"pages": row["pages a second"]}
    title = f"Home pages of {kept['reading']['count']} statuses"
    bars(PLOTS / "social_reading.svg", title, pages, "pages read a second")
    memory = {name: {"bytes": size} for name, size in kept["memory"]["bytes"].items()}
    memory |= {
        f"an entry of a timeline, {name}": {"bytes": row["bytes an entry"]}
        for name, row in kept["memory"]["timelines"].items()
    }
    unit = "bytes each (used_memory)"
    bars(PLOTS / "social_memory.svg", "Memory of a social network", memory, unit)


def throughput(kept: Kept) -> None:
    found = kept["figures"]
    for name, case, ending, title, across in (
        ("batches_get", "batches", " GET", "GETs in a batch over 4 shards", "commands in a batch"),
        ("shards", "shards", " shards", "A batch of 10,000 GETs", "shards"),
        (
            "at_once",
            "awaiting",
            " GET at once",
            "GETs awaited at once over 4 shards",
            "GETs at once",
        ),
    ):
        series: Points = {}
        for work, row in found[case].items():
            if work.endswith(ending):
                at = float(work.removesuffix(ending).replace(",", ""))
                for contestant, ratio in row.items():
                    if contestant != "limit, us":
                        series.setdefault(contestant, []).append((at, ratio))
        curves(
            PLOTS / f"throughput_{name}.svg",
            title,
            {"time, as a multiple of the limit's": dict(sorted(series.items()))},
            across,
            logarithmic=True,
            limit=LIMIT,
        )


# What the plots of shards call a contestant, and what the figures do.
_BY_SHARDS = {
    "shardkit": "router.mget",
    "shardkit, awaited": "router.mget, awaited",
    "redis-py, a client for each shard": "redis-py, a client for each shard",
    "redis.asyncio, a client for each shard": "redis.asyncio, a client for each shard",
    "twemproxy": "twemproxy",
    "RedisCluster": "RedisCluster",
    "raw sockets": "raw sockets",
}


def throughput_by_shards(kept: Kept) -> None:
    figures, counts = kept["figures"], (4, 64, 256, 1024)

    def points(by_count: Mapping[str, float]) -> list[tuple[float, float]]:
        # What does not depend on shards is drawn as a line across.
        return [(n, max(by_count.get(str(n), by_count["4"]), 0.01)) for n in counts]

    for name, title, panels in (
        (
            "calls",
            "Bulk calls over shards that are databases of four servers",
            {
                "64 keys": "64 keys: time in limits",
                "10,000 keys": "10,000 keys: time in limits",
                "first call, ms": "first call with 10,000 keys, ms",
            },
        ),
        (
            "connections",
            "What a process costs each of four servers",
            {
                "connections, one thread": "connections, one thread",
                "connections, 8 threads": "connections, 8 threads",
                "kilobytes, one thread": "kilobytes, one thread",
            },
        ),
    ):
        curves(
            PLOTS / f"throughput_{name}_by_shards.svg",
            title,
            {
                label: {
                    shown: points(figures[what][contestant])
                    for shown, contestant in _BY_SHARDS.items()
                    if contestant in figures[what]
                }
                for what, label in panels.items()
            },
            "shards",
            logarithmic=True,
            limit="the limit: raw sockets, 4 shards" if name == "calls" else "",
        )


def unique(kept: Kept) -> None:
    shown = ("one SET of 60-bit ids", "exact", "60-bit", "compact", "bitmap, all users")
    values = {name: {server: row[name] for server, row in kept["memory"].items()} for name in shown}
    title = f"{kept['visitors']:,} visitors of a day, by precision"
    bars(PLOTS / "unique.svg", title, values, "bytes a visitor (used_memory)")


DRAWN: dict[str, Callable[[Kept], None]] = {
    each.__name__: each
    for each in (
        codecs,
        completion,
        config_server,
        coordination,
        growth,
        part_sizes,
        search,
        social,
        throughput,
        throughput_by_shards,
        unique,
    )
}


def main(names: list[str]) -> None:
    for name in names or DRAWN:
        DRAWN[name](json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1:])
