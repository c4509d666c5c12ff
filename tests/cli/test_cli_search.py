"""``shardkit search`` and ``shardkit geo`` from end to end."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_helpers import COMMAND, Cli, in_terminal, plain
from faces import eventually

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

TO = ("--component", "unique")
ONE_SERVER = ("--component", "sessions")
POSTS = [
    {"id": "p1", "title": "Shards", "body": "A shard is a part.", "votes": 3, "tags": ["a", "b"]},
    {"id": "p2", "title": "Parts", "body": "A part of a cluster.", "votes": "7", "tags": "b"},
    {"id": "p3", "title": "Nothing", "body": "No such word.", "born": "2024-02-29"},
]


@pytest.fixture(autouse=True)
def _topology(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files of several kinds."""
    files = {
        "guide.md": "# The guide\n\nMove a *shard* from one server to another.\n",
        "deep/page.html": "<title>A page</title><p>Every shard has a server.</p><script>x</script>",
        "deep/module.py": '"""Counts shards."""\n\ndef count():\n    """Count them slowly."""\n',
        "notes.txt": "Notes\n\nnaïve café 東京 shard\n",
        "silent.py": "x = 1\n",
        "picture.png": "not read",
        ".hidden/secret.txt": "shard",
    }
    for name, content in files.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path / "docs"


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    path = tmp_path / "posts.jsonl"
    path.write_text("".join(f"{json.dumps(post)}\n" for post in POSTS))
    return path


WITH_FIELDS = [f"--attribute={kind}" for kind in ("votes:number", "tags:text", "born:date")]


def ids(found: Any) -> list[str]:
    return [hit["id"] for hit in found["hits"]]


@pytest.mark.parametrize("where", [TO, ONE_SERVER])
def test_a_folder_is_indexed_and_searched(cli: Cli, folder: Path, where: tuple[str, ...]) -> None:
    done = cli.json("search", "index", folder, *where)
    assert (done["indexed"], done["without_text"], done["skipped"]) == (4, 1, 0)
    found = cli.json("search", "query", "shard", *where)
    assert found["total"] == 3
    assert sorted(ids(found)) == [
        str(folder / name) for name in ("deep/page.html", "guide.md", "notes.txt")
    ]
    [guide] = cli.json("search", "query", '"the guide" move', *where)["hits"]
    assert guide["title"] == "The guide"
    assert guide["snippet"] == "The **guide** **Move** a shard from one server to another."
    assert guide["attributes"]["kind"] == "markdown"
    assert guide["attributes"]["updated"].startswith("20")
    assert ids(cli.json("search", "query", "cafe +kaffee 東京", *where)) == [
        str(folder / "notes.txt")
    ]
    found = cli.json("search", "query", "* kind:=python", "--facet", "kind", *where)
    assert [hit["title"] for hit in found["hits"]] == ["Counts shards."]
    assert found["facets"] == {"kind": [{"value": "python", "documents": 1}]}


def test_a_table_shows_what_was_found(cli: Cli, folder: Path) -> None:
    shown = cli("search", "index", folder, folder / "picture.png", folder / "gone.txt", *TO)
    assert shown.out == "4 documents indexed in 'search'\n"
    assert "1 file without text\n2 skipped:\n" in shown.err
    assert f"{folder / 'picture.png'}: is of a kind that is not read: .txt " in shown.err
    assert f"{folder / 'gone.txt'}: does not exist" in shown.err
    table = cli("search", "query", "shard server -page", *TO).lines
    assert table[0].split() == ["#", "score", "title", "id", "text"]
    assert table[1].split()[0] == "1"
    assert table[1].endswith("Move a **shard** from one **server** to another.")
    assert table[3].startswith("1 document matches, 1 to 1 shown, in ")
    table = cli("search", "query", "*", "--sort", "-updated", "--limit", "2", *TO).lines
    assert table[0].split()[:2] == ["#", "updated"]
    assert table[4].startswith("4 documents match, 1 to 2 shown")
    cursor = table[5].removeprefix("the next page: --cursor ")
    rest = cli("search", "query", "*", "--sort", "-updated", "--cursor", cursor, *TO)
    assert "4 documents match, 2 shown" in rest.out
    nothing = cli("search", "query", "no-such-word", *TO)
    assert nothing.out.startswith("0 documents match, in ")


def test_a_terminal_folds_the_table(folder: Path, cli: Cli) -> None:
    cli("search", "index", folder, *TO)
    code, shown = in_terminal(60, "search", "query", "shard", "--facet", "kind", *TO)
    assert code == 0
    assert all(len(line) <= 60 or "--cursor" in line for line in plain(shown).splitlines())


def test_json_lines_have_attributes_of_their_own(cli: Cli, posts: Path) -> None:
    done = cli.json("search", "index", posts, *WITH_FIELDS, *TO)
    assert (done["indexed"], done["skipped"]) == (3, 0)
    assert ids(cli.json("search", "query", "*", "--sort", "-votes", *TO)) == ["p2", "p1", "p3"]
    votes = cli("search", "query", "*", "--sort", "votes", *TO)
    assert [line.split()[1] for line in votes.lines[1:4]] == ["-", "3", "7"]
    assert ids(cli.json("search", "query", "part votes:>3", *TO)) == ["p2"]
    assert ids(cli.json("search", "query", "tags:=a", *TO)) == ["p1"]
    [third] = cli.json("search", "query", "born:2024-01-01..2024-12-31", *TO)["hits"]
    assert third["attributes"] == {"kind": "jsonl", "born": "2024-02-29"}
    weighed = cli.json("search", "query", "part*", "--sort", "votes=1,relevance=0", *TO)
    assert [(hit["id"], hit["value"]) for hit in weighed["hits"]] == [("p2", 7.0), ("p1", 3.0)]
    # What it was created with need not be said again, and cannot be contradicted.
    assert cli.json("search", "index", posts, *TO)["indexed"] == 3
    error = cli("search", "index", posts, "--attribute", "votes:text", *TO).error()
    assert "was created with other parameters" in error


def test_lines_that_cannot_be_indexed_are_skipped_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 1, "text": "fine \\ud800"}\n'
        b'{"id": 2, "text": "word", "votes": "many"}\n'
        b'{"id": 3, "text": "word", "born": "yesterday"}\n'
        b'{"id": "' + b"x" * 2000 + b'", "text": "long id"}\n' + b"[" * 100_000 + b"\n\xff\xfe\n"
    )
    done = cli.json("search", "index", path, *WITH_FIELDS, *TO)
    assert (done["indexed"], done["skipped"]) == (1, 5)
    assert [skipped["reason"].split(":")[0] for skipped in done["first_skipped"]] == [
        "votes='many' is not of kind number",
        "born='yesterday' is not of kind date",
        *(done["first_skipped"][2]["reason"].split(":")[0],),
        "is not JSON",
        "is not JSON",
    ]
    assert ids(cli.json("search", "query", "fine", *TO)) == ["1"]
    path.write_text("no JSON\n" * 25)
    done = cli.json("search", "index", path, *WITH_FIELDS, *TO, code=1)
    assert (done["skipped"], len(done["first_skipped"])) == (25, 10)


def test_a_folder_that_cannot_be_listed_is_skipped_with_the_reason(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "deep":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    with patch.object(Path, "iterdir", iterdir):
        done = cli.json("search", "index", folder, *TO)
    assert (done["indexed"], done["skipped"]) == (2, 1)
    assert done["first_skipped"] == [{"path": str(folder / "deep"), "reason": "Permission denied"}]


def test_the_options_of_an_index(cli: Cli, posts: Path) -> None:
    options = ("--stemming", "english", "--stop-words", "none", "--no-text", "--no-phrases")
    cli("search", "index", posts, "--name", "lean", *options, "--parts", "3", *ONE_SERVER)
    here = ("--name", "lean", *ONE_SERVER)
    about = cli.json("search", "info", *here)
    assert (about["documents"], about["stemming"], about["stop_words"]) == (3, "english", 0)
    assert (about["phrases"], len(about["parts"])) == (False, 3)
    [first, *_] = cli.json("search", "query", "sharding", *here)["hits"]
    assert (first["id"], first["title"], first["snippet"]) == ("p1", None, None)
    shown = cli("search", "info", *here)
    assert "words as they are" not in shown.out
    assert [line.split()[0] for line in shown.lines[-3:]] == ["0", "1", "2"]  # the parts
    assert "the index keeps no text" in cli("search", "export", *here).error()
    cli("search", "index", posts, "--name", "plain", *ONE_SERVER)
    assert len(cli.json("search", "info", "--name", "plain", *ONE_SERVER)["parts"]) == 4
    error = cli("search", "index", posts, "--parts", "3", *TO).error()
    assert "unique" in error
    for wrong in ("votes", "votes:", "votes:integer"):
        error = cli("search", "index", posts, "--attribute", wrong, *TO).error()
        assert f"'{wrong}' is not NAME:number, NAME:date or NAME:text" in error


def test_a_query_that_cannot_be_read_is_shown_with_the_place(cli: Cli, posts: Path) -> None:
    cli("search", "index", posts, *TO)
    result = cli("search", "query", "part (shard", *TO)
    query, caret, error = result.err.splitlines()
    assert query.strip() == "part (shard"
    assert caret.index("^") == query.index("(")
    assert error.startswith("shardkit: error: query, position 5: ")
    assert result.code == 1
    plain = cli("search", "query", "part (shard", "--plain", *TO)
    assert (plain.code, "Error" in plain.err) == (0, False)
    assert "sort='y' is not an attribute" in cli("search", "query", "x", "--sort", "y", *TO).error()
    result = cli("search", "query", "x", "--sort", "votes=much", *TO)
    assert (result.code, "is not NAME=WEIGHT" in result.err) == (2, True)


def test_export_writes_the_bulk_form(
    cli: Cli, posts: Path, tmp_path: Path, lower: Callable[..., None]
) -> None:
    cli("search", "index", posts, *WITH_FIELDS, *TO)
    lines = [json.loads(line) for line in cli("search", "export", *TO).lines]
    assert {line["index"]["_id"] for line in lines[::2]} == {"p1", "p2", "p3"}
    by_id = dict(zip((line["index"]["_id"] for line in lines[::2]), lines[1::2], strict=True))
    assert by_id["p3"] == {
        "title": "Nothing",
        "text": "No such word.",
        "born": "2024-02-29",
        "kind": "jsonl",
    }
    target = tmp_path / "out.ndjson"
    written = cli.json("search", "export", "tags:=b", "-o", target, "--index", "posts", *TO)
    assert written == {"written": 2, "file": str(target)}
    assert json.loads(target.read_text().splitlines()[0])["index"]["_index"] == "posts"
    assert not list(tmp_path.glob("*.part"))
    lower(search_exported=2)  # documents are read in pages
    everything = cli("search", "export", "-o", target, *TO)
    assert (everything.out, everything.err) == ("", f"3 documents written to {target}\n")
    assert target.read_text().splitlines() == cli("search", "export", *TO).lines
    types = json.loads(cli("search", "export", "--mappings", *TO).out)["mappings"]["properties"]
    assert types["born"] == {"type": "date"}


def test_documents_are_removed(cli: Cli, posts: Path) -> None:
    cli("search", "index", posts, *WITH_FIELDS, *TO)
    assert cli("search", "remove", "p1", "p9", *TO).out == "1 document removed\n"
    assert cli("search", "remove", "--matching", "votes:>1", *TO).out == "1 document removed\n"
    assert cli.json("search", "remove", "-", *TO, input="p3\n\n") == {"removed": 1}
    assert cli.json("search", "query", "*", *TO)["total"] == 0
    cli("search", "index", posts, *TO)
    assert cli("search", "remove", "--all", *TO).out == "3 documents removed\n"
    assert "has no index 'search'" in cli("search", "query", "x", *TO).error()
    result = cli("search", "remove", *TO)
    assert (result.code, "use --all" in result.err) == (2, True)


def test_search_commands_refuse_a_structure_that_is_no_index(
    cli: Cli, town_map: Path, posts: Path
) -> None:
    with shardkit.connect(town_map) as kit:
        kit.hash("search", component="sessions").hset("field", "value")
    for command in ("info", "query x", "remove --all", f"index {posts}"):
        error = cli("search", *command.split(), *ONE_SERVER).error()
        assert "is of kind 'hash', not a search index" in error
    assert "nothing to index" in cli("search", "index", *TO).err


def test_an_interrupt_ends_it_and_what_was_sent_is_indexed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"id": {n}, "text": "word {n}"}}\n' for n in range(100_000)))
    # What measures coverage hangs if it is interrupted in the middle.
    environment = {n: v for n, v in os.environ.items() if n != "COVERAGE_PROCESS_CONFIG"}

    def some() -> int:
        try:
            return int(cli.json("search", "info", *TO)["documents"])
        except (AssertionError, ValueError):
            return 0

    with subprocess.Popen(
        [*COMMAND, "search", "index", str(path), *TO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert eventually(lambda: some() > 0)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert [line for line in err.splitlines() if line] == [
        "the documents so far are indexed; index again to continue",
        "shardkit: error: interrupted",
    ]
    there = some()
    assert 0 < there < 100_000
    assert cli.json("search", "query", "word", *TO)["total"] == there


def test_installed_packages_are_indexed(cli: Cli) -> None:
    found = [distribution("click")]
    with patch("importlib.metadata.Distribution.discover", lambda **how: found):
        done = cli.json("search", "index", "--installed", *TO)
    assert done["indexed"] > 10
    [package] = cli.json("search", "query", "* kind:=package", *TO)["hits"]
    assert package["title"] == "click: Composable command line interface toolkit"
    assert "click.core" in ids(cli.json("search", "query", "context invoke", *TO))


def test_a_query_shows_the_other_parts_when_a_server_is_down(
    cli: Cli, posts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "components: {search: {shards: {count: 2, over: [{port: 1}, {port: 2}]}}}"
    with LocalServers(ShardMap.parse(text), ports="free") as servers:
        path = tmp_path / "two.yaml"
        path.write_text(servers.shard_map.to_yaml())
        monkeypatch.setenv("SHARDKIT_CONFIG", str(path))
        cli("search", "index", posts)
        there = ids(cli.json("search", "query", "*"))
        servers.server_of("search", 1).kill()
        assert "search:1" in cli("search", "query", "*").error()
        found = cli.json("search", "query", "*", "--partial")
        assert found["missing"] == [1]
        assert set(ids(found)) < set(there)
        assert "warning: 1 part did not answer" in cli("search", "query", "*", "--partial").err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_text_is_read_in_the_encoding_that_its_first_bytes_say(
    cli: Cli, tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Grüße an alle Zebras\n", encoding=encoding)
    assert cli("search", "index", *TO, path).code == 0
    [hit] = cli.json("search", "query", "zebras", *TO)["hits"]
    assert hit["title"] == "Grüße an alle Zebras"


def test_bytes_that_are_no_text_are_not_indexed(cli: Cli, tmp_path: Path) -> None:
    path, lines = tmp_path / "noise.txt", tmp_path / "lines.jsonl"
    path.write_text("no mark tells", encoding="utf-16-le")
    lines.write_text('{"text": "a"}\n', encoding="utf-16")
    result = cli("search", "index", *TO, path, lines, code=1)
    assert f"{path}: is not text: it is full of zero bytes" in result.err
    assert f"{lines}: is UTF-16 or UTF-32; JSON lines are UTF-8" in result.err


def test_a_damaged_index_is_verified_rebuilt_and_dropped(
    cli: Cli, posts: Path, town_map: Path
) -> None:
    assert cli("search", "index", posts, *WITH_FIELDS, *TO).code == 0
    assert cli.json("search", "verify", *TO) == {"documents": 3, "damaged": []}
    assert cli("search", "verify", *TO).lines == ["3 documents, all of it as it was written"]
    before = cli("search", "export", *TO).out
    with shardkit.connect(town_map) as kit:
        for number in range(8):
            client = kit.client("unique", number)
            for key in client.scan_iter(match="{search:*}:r:*"):  # postings of rare words
                client.delete(key)
    damaged = cli("search", "verify", *TO, code=1)
    assert "damaged: shardkit search rebuild" in damaged.out
    rebuilt = cli("search", "rebuild", *TO, code=0)
    assert rebuilt.out == "3 documents indexed again in 'search'\n"
    assert sorted(cli("search", "export", *TO).out.splitlines()) == sorted(before.splitlines())
    assert cli.json("search", "verify", *TO)["damaged"] == []
    assert cli("search", "query", "shard", *TO).code == 0
    with shardkit.connect(town_map) as kit:
        lost = [
            key for n in range(8) for key in kit.client("unique", n).scan_iter("{search:*}:d:*")
        ]
        for number in range(8):
            kit.client("unique", number).delete(lost[0])
    assert "rebuild(lossy=True)" in cli("search", "rebuild", *TO).error()
    assert cli.json("search", "rebuild", "--lossy", *TO) == {"documents": 2, "damaged": 0}
    assert cli("search", "drop", *TO, input="n\n").code == 130
    assert cli("search", "drop", "--yes", *TO).out == "index 'search' deleted: 2 documents\n"
    assert "has no index 'search'" in cli("search", "drop", "--yes", *TO).error()


CITIES = 'geoname_id,city_name,subdivision_1_name,country_name\n7,"Bonn, am Rhein",NW,Germany\n'
BLOCKS = "network,geoname_id,registered_country_geoname_id\n1.0.0.0/24,7,\n1.0.1/24,7,\n"
IPV6 = "network,geoname_id,registered_country_geoname_id\n2001:db8::/32,,7\n"


@pytest.fixture
def geolite2(tmp_path: Path) -> tuple[Path, ...]:
    files = {
        "GeoLite2-City-Blocks-IPv4.csv.gz": gzip.compress(BLOCKS.encode()),
        "GeoLite2-City-Blocks-IPv6.csv": IPV6.encode(),
        "GeoLite2-City-Locations-en.csv": CITIES.encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tuple(tmp_path / name for name in files)


def test_files_are_imported_and_addresses_found(cli: Cli, geolite2: tuple[Path, ...]) -> None:
    *blocks, cities = geolite2
    done = cli.json("geo", "import", *blocks, "--cities", cities, *TO)
    assert (done["ranges"], done["cities"], done["skipped"]) == (2, 1, 4)
    found = done["first_skipped"][2]
    assert found == {"line": 3, "reason": "'1.0.1' is not an IP address", "source": str(blocks[0])}
    shown = cli("geo", "find", "1.0.0.9", "1.0.1.9", "2001:db8::1", *TO, code=0)
    assert [line.split() for line in shown.lines] == [
        ["address", "city", "region", "country", "id"],
        ["1.0.0.9", "Bonn,", "am", "Rhein", "NW", "Germany", "7"],
        ["1.0.1.9", "-", "-", "-", "-"],
        ["2001:db8::1", "Bonn,", "am", "Rhein", "NW", "Germany", "7"],
    ]
    assert cli.json("geo", "find", "-", *TO, input="1.0.0.9\n\n9.9.9.9\n") == [
        {"address": "1.0.0.9", "city": "Bonn, am Rhein", "region": "NW", "country": "Germany"}
        | {"id": 7},
        {"address": "9.9.9.9", "city": None, "region": None, "country": None, "id": None},
    ]
    used = cli.json("geo", "info", *TO)
    assert used["number"] == done["generation"]
    assert f"generation {used['number']}, imported 20" in cli("geo", "info", *TO).out
    again = cli("geo", "import", *blocks, "--cities", cities, *TO)
    assert "2 ranges in 1 cities, now in use as generation 2" in again.out
    assert cli.json("geo", "info", *TO)["number"] > used["number"]
    assert again.err.splitlines()[0] == "4 lines skipped; the first:"
    assert f"{blocks[0]}, line 3: '1.0.1' is not an IP address" in again.err


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.jsonl", '{"network": "1.0.0.0/24", "city": "Bonn", "country": "DE"}', ""),
        ("a.csv", "1.0.0.0;1.0.0.255;DE;Bonn", "--first 0 --last 1 --country 2 --city 3"),
        ("a.csv", "f;t;c;n\n1.0.0.0;1.0.0.255;Bonn;DE", "--first f --last t --city c --country n"),
        ("GeoLite2.txt", '{"network": "1.0.0.0/24", "city": "Bonn", "country": "DE"}', ""),
    ],
)
def test_other_formats(cli: Cli, tmp_path: Path, name: str, content: str, options: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    more = ["--delimiter", ";"] if path.suffix == ".csv" else []
    more += ["--format", "jsonl"] if path.suffix == ".txt" else []
    cli("geo", "import", path, *options.split(), *more, *TO, code=0)
    [found] = cli.json("geo", "find", "1.0.0.9", *TO)
    assert (found["city"], found["country"]) == ("Bonn", "DE")


def test_cities_in_a_file_of_their_own(cli: Cli, tmp_path: Path) -> None:
    ranges, cities = tmp_path / "r.csv", tmp_path / "c.csv"
    ranges.write_text("net,place\n1.0.0.0/24,x1\n")
    cities.write_text("place,town\nx1,Bonn\n")
    columns = ("--first", "net", "--id", "place", "--city", "town")
    cli.json("geo", "import", ranges, "--cities", cities, *columns, *TO)
    [found] = cli.json("geo", "find", "1.0.0.9", *TO)
    assert (found["city"], found["id"]) == ("Bonn", "x1")


def test_the_legacy_pair_is_known_by_its_name(cli: Cli, tmp_path: Path) -> None:
    blocks, cities = tmp_path / "GeoLiteCity-Blocks.csv", tmp_path / "GeoLiteCity-Location.csv"
    blocks.write_text('Copyright\nstartIpNum,endIpNum,locId\n"16777216","16777471","12"\n')
    cities.write_text(
        "Copyright\nlocId,country,region,city,postalCode,latitude,longitude,metroCode,areaCode\n"
        '12,"DE","07","Bonn","",50.9,6.9,,\n'
    )
    cli.json("geo", "import", blocks, "--cities", cities, *TO)
    [found] = cli.json("geo", "find", "1.0.0.9", *TO)
    assert (found["city"], found["region"], found["id"]) == ("Bonn", "07", 12)


def test_a_failed_import_is_one_line_of_error(
    cli: Cli, tmp_path: Path, geolite2: tuple[Path, ...]
) -> None:
    cli("geo", "import", *geolite2[:2], "--cities", geolite2[2], *TO)
    by_name = tmp_path / "City.mmdb"
    by_name.write_text("no database")
    before = cli.json("geo", "info", *TO)
    path = tmp_path / "a.csv"
    path.write_text("nothing,of,the,kind\n")
    for words, error in (
        ([path], "name them with --first and --last"),
        ([path, "--format", "geolite2"], "use --cities"),
        ([path, path, "--format", "geolite-legacy", "--cities", path], "one file"),
        ([path, "--first", "0", "--city", "1", "--cities", path], "use --id"),
        ([path, "--first", "0", "--id", "1"], "no range could be read, 1 line skipped"),
        ([path, "--format", "mmdb"], "not a MaxMind database"),
        ([by_name], "not a MaxMind database"),
        ([tmp_path / "missing"], "does not exist"),
    ):
        assert error in cli("geo", "import", *words, *TO).error()
    assert cli.json("geo", "info", *TO) == before


def test_before_anything_is_imported(cli: Cli) -> None:
    assert "no ranges were imported yet" in cli("geo", "find", "1.2.3.4", *TO).error()
    assert "is not an IP address" in cli("geo", "find", "1.2.3", *TO).error()
    result = cli("geo", "info", *TO)
    assert (result.code, result.out) == (1, "nothing was imported yet\n")
    assert json.loads(cli("geo", "info", "--json", *TO).out) is None


@pytest.mark.parametrize(
    ("name", "stored", "says"),
    [
        ("kind", "set", "is of kind 'set'"),
        ("analyzer", "9 mine - -", "has an analyzer of its own"),
        ("chunk", None, "cannot be read: 'chunk'"),
    ],
)
def test_parameters_of_no_index_or_of_another_analyzer_are_refused(
    cli: Cli, folder: Path, town_map: Path, name: str, stored: str | None, says: str
) -> None:
    cli.json("search", "index", folder, *ONE_SERVER)
    with shardkit.connect(str(town_map)) as kit:
        client: Any = kit.client("sessions")
        [meta] = client.scan_iter("*:meta*")
        client.hdel(meta, name) if stored is None else client.hset(meta, name, stored)
    assert says in cli("search", "query", "shard", *ONE_SERVER).error()
