from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cli_helpers import Cli

CITIES = 'geoname_id,city_name,subdivision_1_name,country_name\n7,"Bonn, am Rhein",NW,Germany\n'
BLOCKS = "network,geoname_id,registered_country_geoname_id\n1.0.0.0/24,7,\n1.0.1/24,7,\n"
IPV6 = "network,geoname_id,registered_country_geoname_id\n2001:db8::/32,,7\n"
TO = ("--component", "unique")


@pytest.fixture(autouse=True)
def _topology(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))


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
    assert done["first_skipped"][2] == {
        "line": 3,
        "reason": "'1.0.1' is not an IP address",
        "source": str(blocks[0]),
    }
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
    assert f"2 ranges in 1 cities, now in use as generation {used['number'] + 1}" in again.out
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
