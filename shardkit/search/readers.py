"""Documents from files: plain text, Markdown, HTML, Python modules, JSON lines; installed packages.

::

    docs/guide.md      ──►  FileDocument("docs/guide.md", "Guide", "How to …",
                                         {"kind": "markdown", "updated": 1763740800.0, "size": 9})
    data.jsonl         ──►  one document a line: {"id": …, "title": …, "text": …, …}
    package/module.py  ──►  its docstrings: the module's, its classes' and its functions'
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from shardkit.errors import InvalidArgumentError

LARGEST = 10 * 1024 * 1024  # bytes of a file that is one document
KINDS = {
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".py": "python",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_BODY = ("text", "body", "content")
_ID = ("id", "_id")


@dataclass(frozen=True, slots=True)
class FileDocument:
    """What a file, or a line of one, says.

    Attributes:
        id: the file's path, and for JSON lines without an id the number of the line after ``#``.
        attributes: ``kind``, ``updated`` (seconds since 1970) and ``size`` (bytes) of a file; of a
            JSON line the fields that are not the id, the title or the text.
    """

    id: str
    title: str
    text: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Skipped:
    """What could not be read, and why."""

    path: str
    why: str


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that can be read, those of folders in the order of their names.

    Files and folders of folders whose names begin with a dot are left out.
    """
    for path in paths:
        if path.is_dir():
            below = sorted(path.iterdir())
            yield from files_below(p for p in below if not p.name.startswith("."))
        elif path.suffix.lower() in KINDS:
            yield path


def documents_of(path: Path) -> Iterator[FileDocument | Skipped]:
    """Yield what a file holds.

    A file of an unknown kind is read as plain text. What is not UTF-8 is read with replacement
    characters; what cannot be read at all is yielded as `Skipped`.
    """
    kind = KINDS.get(path.suffix.lower(), "text")
    try:
        if kind == "jsonl":
            yield from _json_lines(path)
            return
        status = path.stat()
        if status.st_size > LARGEST:
            yield Skipped(str(path), f"is larger than {LARGEST // 2**20} MB")
            return
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        yield Skipped(str(path), error.strerror or str(error))
        return
    try:
        title, text = _READERS[kind](content)
    except SyntaxError as error:
        yield Skipped(str(path), f"is not Python: {error.msg}")
        return
    if text.strip():
        about = {"kind": kind, "updated": status.st_mtime, "size": status.st_size}
        yield FileDocument(str(path), title or path.stem, text, about)


def installed_documents() -> Iterator[FileDocument]:
    """Yield what the packages of this Python say of themselves, and their modules' docstrings.

    A document a package, its description, and one for each of its modules with docstrings. What
    cannot be read is left out.
    """
    seen = set()
    for distribution in sorted(distributions(), key=lambda d: (d.name or "").lower()):
        name = distribution.name
        if not name or name in seen:
            continue
        seen.add(name)
        found = distribution.metadata.json
        description = str(found.get("description") or found.get("summary") or "")
        if description.strip():
            title = f"{name}: {found.get('summary') or name}"
            yield FileDocument(
                f"{name} {distribution.version}", title, description, _kind("package")
            )
        yield from _modules(distribution)


def _modules(distribution: Distribution) -> Iterator[FileDocument]:
    for file in distribution.files or ():
        if file.suffix != ".py" or file.is_absolute() or ".." in file.parts:
            continue
        for document in documents_of(Path(str(file.locate()))):
            if isinstance(document, FileDocument):
                parts = file.with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                title = document.title if document.title != file.stem else module
                yield FileDocument(module, title, document.text, document.attributes)


def _kind(kind: str) -> dict[str, Any]:
    return {"kind": kind, "updated": datetime.now(UTC).timestamp()}


# ---- one kind each: the content to a title and a text


def _plain(content: str) -> tuple[str, str]:
    first = content.lstrip().partition("\n")[0].strip()
    return first if len(first) <= 100 else "", content


def _markdown(content: str) -> tuple[str, str]:
    """The text without the marks: parsed by markdown-it-py."""
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise InvalidArgumentError(
            "reading Markdown needs markdown-it-py", "pip install 'shardkit[cli]'"
        ) from error
    title, blocks, heading = "", [], False
    for token in MarkdownIt().parse(content):
        if token.type == "heading_open":
            heading = True
        elif token.type == "inline":
            spoken = "".join(
                " " if child.type.endswith("break") else child.content
                for child in token.children or ()
            )
            title = title or (spoken.strip() if heading else "")
            heading = False
            blocks.append(spoken)
        elif token.type in ("fence", "code_block"):
            blocks.append(token.content)
    return title, "\n".join(blocks)


class _Html(HTMLParser):
    """Gathers the text of a page, and its title."""

    _SILENT = frozenset(("script", "style", "template", "noscript"))
    _BLOCKS = frozenset(  # as a list it takes twenty lines
        "p div br li tr td th pre section article h1 h2 h3 h4 h5 h6 dt dd option title".split()  # noqa: SIM905
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.text: list[str] = []
        self._silent = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in self._SILENT
        self._in_title = tag == "title"
        if tag in self._BLOCKS:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in self._SILENT))
        self._in_title = False
        if tag in self._BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._silent:
            self.text.append(data)


def _html(content: str) -> tuple[str, str]:
    page = _Html()
    page.feed(content)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.text).split("\n"))
    return " ".join("".join(page.title).split()), "\n".join(line for line in lines if line)


def _python(content: str) -> tuple[str, str]:
    if '"""' not in content and "'''" not in content:
        return "", ""  # without parsing it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of strange escapes in other people's code
        tree = ast.parse(content)
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said:
                named = "" if isinstance(node, ast.Module) else f"{node.name}: "
                texts.append(named + said)
    module = ast.get_docstring(tree)
    return (module or "").partition("\n")[0].strip(), "\n\n".join(texts)


_READERS = {"text": _plain, "markdown": _markdown, "html": _html, "python": _python}


def _json_lines(path: Path) -> Iterator[FileDocument | Skipped]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}#{number}"
            try:
                said = json.loads(line)
            except ValueError as error:
                yield Skipped(where, f"is not JSON: {error}")
                continue
            body = _first(said, _BODY) if isinstance(said, dict) else None
            if not isinstance(body, str):
                yield Skipped(where, f"has no field of text ({', '.join(_BODY)})")
                continue
            own = _first(said, _ID)
            title = said.get("title")
            rest = {k: v for k, v in said.items() if k not in (*_ID, *_BODY, "title")}
            yield FileDocument(
                where if own is None else str(own), str(title) if title else "", body, rest
            )


def _first(said: dict[str, Any], names: Iterable[str]) -> Any:
    return next((said[name] for name in names if said.get(name) is not None), None)
