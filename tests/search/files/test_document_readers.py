"""Documents from files."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, date, datetime
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from shardkit.errors import InvalidArgumentError
from shardkit.search import (
    Document,
    FileDocument,
    Schema,
    SkippedFile,
    adapt,
    documents_of,
    files_below,
    installed_documents,
)
from shardkit.search.documents import prepare
from shardkit.search.files import MAX_FILE_BYTES, bulk_lines, installed_packages


def written(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def the_document(path: Path) -> FileDocument:
    [found] = documents_of(path)
    assert isinstance(found, FileDocument)
    return found


def test_folders_are_read_in_the_order_of_names_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/image.png", ".git/x.txt", "c.py"):
        written(tmp_path / name, "x")
    found = [str(path.relative_to(tmp_path)) for path in files_below([tmp_path])]
    assert found == ["a/z.md", "b.txt", "c.py"]
    assert list(files_below([tmp_path / "a" / "image.png"])) == []


def test_plain_text_has_its_first_line_as_title(tmp_path: Path) -> None:
    path = written(tmp_path / "notes.txt", "\nShards\n\nA shard is a part.\n")
    os.utime(path, (1000, 2000))
    found = the_document(path)
    assert (found.id, found.title) == (str(path), "Shards")
    assert "A shard is a part." in found.text
    assert found.attributes == {"kind": "text", "updated": 2000.0, "size": 28}


def test_without_a_parser_markdown_is_skipped_and_the_reason_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    [found] = documents_of(written(tmp_path / "guide.md", "# A guide"))
    assert isinstance(found, SkippedFile)
    assert found.reason.endswith(
        "need markdown_it, which is not installed; pip install 'shardkit[cli]'"
    )


@pytest.mark.parametrize(
    ("name", "content", "title", "text"),
    [
        (
            "guide.md",
            "Before.\n\n# The `fast` *guide*\n\nSee [the docs](http://x/y).\n\n"
            "```python\nkit.search()\n```\n\n- one\n- two\n",
            "The fast guide",
            "Before. The fast guide See the docs. kit.search() one two",
        ),
        (
            "page.html",
            "<html><head><title>A &amp; B</title><style>p {x}</style></head>"
            "<body><h1>Head</h1><p>one<b>two</b> three</p><script>var no;</script>"
            "<table><tr><td>left</td><td>right</td></tr></table></body></html>",
            "A & B",
            "Head\nonetwo three\nleft\nright",
        ),
        (
            "module.py",
            '"""Counts things.\n\nSlowly."""\nx = "no docstring"\n'
            'class Tally:\n    """Keeps it."""\n    def add(self):\n        """Adds one."""\n',
            "Counts things.",
            "Counts things.\n\nSlowly.\n\nTally: Keeps it.\n\nadd: Adds one.",
        ),
        (
            "deep.py",
            'try:\n    def a():\n        """A."""\nexcept OSError:\n'
            '    class B:\n        """B."""\nasync def c():\n    """C."""\n',
            "deep",
            "a: A.\n\nB: B.\n\nc: C.",
        ),
    ],
)
def test_text_is_read_without_marks_and_code(
    tmp_path: Path, name: str, content: str, title: str, text: str
) -> None:
    found = the_document(written(tmp_path / name, content))
    assert found.title == title
    assert (" ".join(found.text.split()) if name == "guide.md" else found.text) == text


def test_json_lines_are_a_document_each(tmp_path: Path) -> None:
    path = written(
        tmp_path / "data.jsonl",
        '{"id": 7, "title": "T", "body": "some text", "votes": 3}\n\n'
        '{"text": "no id"}\n{"title": "no text"}\nnot json\n[1]\n',
    )
    read = list(documents_of(path))
    assert read[0] == FileDocument("7", "T", "some text", {"votes": 3})
    assert read[1] == FileDocument(f"{path}#3", "", "no id", {})
    assert [type(r) for r in read[2:]] == [SkippedFile] * 3
    assert [r.path for r in read[2:] if isinstance(r, SkippedFile)] == [
        f"{path}#4",
        f"{path}#5",
        f"{path}#6",
    ]


def test_unreadable_files_are_reported_with_the_reason(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    broken = written(tmp_path / "broken.py", '"""x"""\ndef :\n')
    [skipped] = documents_of(large)
    assert skipped == SkippedFile(str(large), "it has more than 10,485,760 bytes")
    [skipped] = documents_of(broken)
    assert isinstance(skipped, SkippedFile)
    assert "is not Python" in skipped.reason
    [nul] = documents_of(written(tmp_path / "nul.py", '"""x"""\0'))
    assert isinstance(nul, SkippedFile)
    [text] = documents_of(written(tmp_path / "nul.txt", "zero\0byte word"))
    assert isinstance(text, FileDocument)
    assert list(documents_of(written(tmp_path / "empty.md", ""))) == []
    [gone] = documents_of(tmp_path / "gone.txt")
    assert gone == SkippedFile(str(tmp_path / "gone.txt"), "No such file or directory")


def test_links_to_folders_pipes_and_broken_lines_do_not_stop_the_reading(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    written(folder / "a.txt", "word")
    (folder / "circle").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    found = list(files_below([folder]))
    assert found == [folder / "a.txt", folder / "pipe.txt"]
    assert list(documents_of(folder / "pipe.txt")) == [
        SkippedFile(str(folder / "pipe.txt"), "it is no regular file")
    ]
    long = tmp_path / "long.jsonl"
    long.write_bytes(b'{"text": "' + b"x" * MAX_FILE_BYTES + b'"}\n{"text": "fine \\ud800"}\n')
    too_long, fine = documents_of(long)
    assert too_long == SkippedFile(f"{long}#1", "is longer than 10 MB")
    assert fine == FileDocument(f"{long}#2", "", "fine ?", {})


@pytest.mark.parametrize("length", [99, 100, 101, 350])
def test_a_line_is_skipped_as_a_whole_however_long_it_is(
    tmp_path: Path, lower: Any, length: int
) -> None:
    lower(search_line=100)
    path = tmp_path / "long.jsonl"
    line = b'{"text": "' + b"x" * (length - 12) + b'"}\n{"text": "next"}'
    path.write_bytes(line)
    first, then = documents_of(path)
    assert isinstance(first, FileDocument) is (length < 100)
    assert then == FileDocument(f"{path}#2", "", "next", {})


def installed(site: Path, *files: str, about: str = "") -> PathDistribution:
    """A package of which these files are installed."""
    folder = site / "example-1.dist-info"
    written(folder / "METADATA", f"Metadata-Version: 2.1\nName: example\nVersion: 1\n\n{about}")
    written(folder / "RECORD", "".join(f"{file},,\n" for file in files))
    return PathDistribution(folder)


def test_modules_outside_of_where_packages_are_installed_are_not_read(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for path in (site / "inside.py", tmp_path / "above.py", tmp_path / "elsewhere.py"):
        written(path, f'"""What is in {path.stem}."""\n')
    package = installed(site, "inside.py", "../above.py", str(tmp_path / "elsewhere.py"))
    assert [document.id for document in installed_documents([package])] == ["inside"]


def test_a_module_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    written(tmp_path / "broken.py", '"""x"""\ndef :\n')
    written(tmp_path / "fine.py", '"""x"""\n')
    package = installed(tmp_path, "broken.py", "gone.py", "fine.py")
    assert [document.id for document in installed_documents([package])] == ["fine"]


@pytest.mark.parametrize(
    ("listed", "dated"),
    [
        (["example-1.dist-info/METADATA"], {"updated": 2000.0}),
        (["elsewhere/METADATA"], {}),  # which does not exist
        (["example-1.dist-info/RECORD"], {}),
        ([], {}),
    ],
)
def test_a_package_has_the_date_of_its_metadata_if_there_is_one(
    tmp_path: Path, listed: list[str], dated: dict[str, float]
) -> None:
    package = installed(tmp_path, *listed, about="What it does.")
    os.utime(tmp_path / "example-1.dist-info" / "METADATA", (1000, 2000))
    [found] = installed_documents([package])
    assert (found.id, found.text.strip()) == ("example 1", "What it does.")
    assert found.attributes == {"kind": "package", "size": len(found.text)} | dated


def test_a_distribution_without_a_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path)
    written(tmp_path / "nameless-1.dist-info" / "METADATA", "Metadata-Version: 2.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [package.name for package in installed_packages()] == ["example"]


SCHEMA = Schema(
    "docs",
    parts=1,
    fields={"title": 3.0, "text": 1.0},
    attributes={"votes": "number", "born": "date", "tags": "text"},
)


def attributes(**given: Any) -> dict[str, Any]:
    document = adapt(SCHEMA, FileDocument("d", "", "", given))
    prepare(SCHEMA, *document)  # an index takes it
    return document[2]


def test_title_and_text_go_into_the_fields_of_these_names() -> None:
    document = FileDocument("d", "A title", "Some text", {})
    assert adapt(SCHEMA, document) == ("d", {"title": "A title", "text": "Some text"}, {})
    other = Schema("docs", parts=1, fields={"body": 1.0})
    assert adapt(other, document) == ("d", {"body": "Some text"}, {})


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("votes", 3, 3),
        ("votes", " 2.5", 2.5),
        ("votes", "inf", math.inf),
        ("born", 86400, datetime(1970, 1, 2, tzinfo=UTC)),
        ("born", "2024-02-29", date(2024, 2, 29)),
        ("born", "2024-02-29T12:00:00+02:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("born", "2024-02-29 12:00:00", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("born", date(2024, 2, 29), date(2024, 2, 29)),  # as Python reads it from YAML
        ("tags", "a", "a"),
        ("tags", ["a", 7, True], ["a", "7", "true"]),
        ("tags", "half \ud800", "half ?"),
    ],
)
def test_attributes_are_read_by_their_kinds(name: str, given: Any, found: Any) -> None:
    assert attributes(**{name: given}) == {name: found}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("votes", "many"),
        ("votes", True),
        ("votes", [1]),
        ("votes", 10**400),
        ("born", "yesterday"),
        ("born", "2024-02-30"),
        ("born", 1e300),
        ("born", math.nan),
        ("born", True),
        ("tags", {"a": 1}),
        ("tags", [["a"]]),
    ],
)
def test_a_value_of_another_kind_is_refused_with_the_attributes_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}=.* is not of kind "):
        attributes(**{name: given})


def test_a_document_is_an_action_and_a_source() -> None:
    document = Document(
        "gu\u00efde\n1",
        {
            "votes": 3.0,
            "updated": datetime(2026, 11, 21, 10, tzinfo=UTC),
            "tags": ("a", "b"),
            "best": math.inf,
        },
        {"title": "Gu\u00efde", "text": 'line\n"two"'},
    )
    lines = bulk_lines(document, "docs")
    assert lines.endswith("\n")
    action, source = lines.splitlines()
    assert json.loads(action) == {"index": {"_index": "docs", "_id": "gu\u00efde\n1"}}
    assert json.loads(source) == {
        "votes": 3.0,
        "updated": "2026-11-21T10:00:00+00:00",
        "tags": ["a", "b"],
        "best": None,
        "title": "Gu\u00efde",
        "text": 'line\n"two"',
    }


def test_a_line_that_does_not_end_is_not_read_to_the_end_of_its_file(tmp_path: Path) -> None:
    endless = tmp_path / "endless.jsonl"
    with endless.open("wb") as file:
        file.truncate(2**40)
    too_long, rest = documents_of(endless)
    assert too_long == SkippedFile(f"{endless}#1", "is longer than 10 MB")
    assert rest == SkippedFile(str(endless), "is not read after line 1, which does not end")
