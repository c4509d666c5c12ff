"""Documents from files."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from shardkit.search import (
    FileDocument,
    SkippedFile,
    documents_of,
    files,
    files_below,
    installed_documents,
)
from shardkit.search.files import MAX_FILE_BYTES, installed_packages


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    path = tmp_path / "long.jsonl"
    line = b'{"text": "' + b"x" * (length - 12) + b'"}\n{"text": "next"}'
    path.write_bytes(line)
    first, then = documents_of(path)
    assert isinstance(first, FileDocument) is (length < 100)
    assert then == FileDocument(f"{path}#2", "", "next", {})


def test_the_installed_packages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for document in installed_documents():
        found[document.id] = document
        if "click" in found:
            break
    assert found["click"].title.startswith("Click is a simple Python module")
    package = next(d for d in found.values() if d.id.startswith("click "))
    assert package.attributes["kind"] == "package"
    assert package.title.startswith("click: Composable command line interface toolkit")


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
