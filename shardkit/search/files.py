"""Documents from files, read and adapted to an index.

Plain text, Markdown, HTML, the docstrings of Python modules, JSON lines and installed packages are
read.
"""

from __future__ import annotations

import ast
import codecs
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from html.parser import HTMLParser
from importlib.metadata import Distribution, distributions
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from shardkit.config.entry import open_regular, read_regular
from shardkit.errors import InvalidArgumentError, extra
from shardkit.operations.arguments import is_number, parse_json, shown
from shardkit.search.documents import Document, check_id
from shardkit.search.schema import Schema

MAX_FILE_BYTES = 10 * 1024 * 1024  # of a file, or of a line of JSON lines
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
_MARKS = (  # longer marks first: the mark of UTF-32 begins with the mark of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
_BODY = ("text", "body", "content")
_ID = ("id", "_id")


@dataclass(frozen=True, slots=True)
class FileDocument:
    """A document read from a file, or a line of one.

    Attributes:
        id: the file's path; for JSON lines without an id also ``#`` and the line's number.
        attributes: ``kind``, ``updated`` (seconds since 1970) and ``size`` (bytes) of a file; of a
            JSON line the fields other than its id, title and text.
    """

    id: str
    title: str
    text: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file, folder or line that could not be read, and why."""

    path: str
    reason: str


def files_below(paths: Iterable[Path]) -> Iterator[Path | SkippedFile]:
    """Yield the readable files among paths and below them, those of a folder ordered by name.

    Hidden files and folders below a folder are skipped, and so are links to folders, which may form
    a cycle. A folder that cannot be listed is yielded as `SkippedFile`.
    """
    for path in paths:
        if path.is_dir():
            try:
                below = sorted(path.iterdir())
            except OSError as error:
                yield SkippedFile(_name_of(path), error.strerror or str(error))
                continue
            yield from files_below(
                p
                for p in below
                if not p.name.startswith(".") and not (p.is_symlink() and p.is_dir())
            )
        elif path.suffix.lower() in KINDS:
            yield path


def documents_of(path: Path) -> Iterator[FileDocument | SkippedFile]:
    """Yield the documents in a file.

    A file of an unknown kind is read as plain text. The encoding is UTF-8, unless a byte order mark
    says UTF-16 or UTF-32; invalid bytes become replacement characters. A file that cannot be read,
    or contains no text, is yielded as `SkippedFile`.
    """
    kind, name = KINDS.get(path.suffix.lower(), "text"), _name_of(path)
    try:
        if kind == "jsonl":
            yield from _json_lines(path, name)
            return
        data = read_regular(path, MAX_FILE_BYTES)
        about = {"kind": kind, "updated": path.stat().st_mtime, "size": len(data)}
    except OSError as error:
        yield SkippedFile(name, error.strerror or str(error))
        return
    content = decoded(data)
    if content.count("\0") > len(content) // 10:  # UTF-16 without a mark, or no text at all
        yield SkippedFile(name, "is not text: it is full of zero bytes")
        return
    try:
        title, text = _READERS[kind](content)
    except _UNREADABLE as error:
        yield SkippedFile(name, f"is not {_LANGUAGES[kind]}: {error}")
        return
    if text.strip():
        yield FileDocument(name, title or _name_of(Path(path.stem)), text, about)


def decoded(content: bytes) -> str:
    """Return a file's content as text, with all line ends as newlines."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            text = content[len(mark) :].decode(encoding, "replace")
            break
    else:
        text = content.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def installed_packages() -> list[Distribution]:
    """Return the packages installed in this Python, ordered by name, each once."""
    by_name: dict[str, Distribution] = {}
    for package in distributions():
        if "Name" in package.metadata:
            by_name.setdefault(package.name.lower(), package)
    return [by_name[name] for name in sorted(by_name)]


def installed_documents(packages: Iterable[Distribution] | None = None) -> Iterator[FileDocument]:
    """Yield packages' descriptions and their modules' docstrings; by default of all packages.

    Each package is a document, and so is each module with docstrings. Unreadable modules are
    skipped.
    """
    for package in installed_packages() if packages is None else packages:
        metadata = package.metadata.json
        summary, description = metadata.get("summary"), metadata.get("description")
        text = str(description or summary or "")
        if text.strip():
            title = f"{package.name}: {summary or package.name}"
            about = {"kind": "package", "size": len(text.encode(errors="replace"))}
            yield FileDocument(
                f"{package.name} {package.version}", title, encodable(text), about | _date(package)
            )
        for file in package.files or ():
            if file.suffix != ".py" or file.is_absolute() or ".." in file.parts:
                continue
            for document in documents_of(Path(str(file.locate()))):
                if isinstance(document, FileDocument):
                    parts = file.with_suffix("").parts
                    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                    title = document.title if document.title != file.stem else module
                    yield FileDocument(module, title, document.text, document.attributes)


def _date(package: Distribution) -> dict[str, float]:
    """Return when a package was installed, if its metadata file has a time."""
    for file in package.files or ():
        if file.name in ("METADATA", "PKG-INFO"):
            try:
                return {"updated": os.stat(file.locate()).st_mtime}
            except OSError:
                break
    return {}


def _name_of(path: Path) -> str:
    """Return a path as text that can be encoded: bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON may contain but UTF-8 may not."""
    return text.encode(errors="replace").decode()


# ---- for each kind: a function that returns the title and text of a file's content


def _plain(content: str) -> tuple[str, str]:
    first = content.lstrip().partition("\n")[0].strip()
    return first if len(first) <= 100 else "", content


def _markdown(content: str) -> tuple[str, str]:
    """Return the text without markup, as markdown-it-py parses it."""
    with extra("cli", "Markdown files"):
        from markdown_it import MarkdownIt
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of strange escapes in other people's code
        tree = ast.parse(content)
    module = encodable(ast.get_docstring(tree) or "")
    texts = [module, *_docstrings(tree.body)]
    return module.partition("\n")[0].strip(), "\n\n".join(text for text in texts if text)


def _docstrings(statements: Sequence[ast.AST]) -> Iterator[str]:
    for node in statements:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield f"{node.name}: {encodable(docstring)}"
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _docstrings(getattr(node, block, ()))


_READERS = {"text": _plain, "markdown": _markdown, "html": _html, "python": _python}
_LANGUAGES = {"text": "text", "markdown": "Markdown", "html": "HTML", "python": "Python"}
# Parsers raise these for invalid content; html.parser, for example, raises AssertionError.
_UNREADABLE = (SyntaxError, ValueError, AssertionError, NotImplementedError, RecursionError)
_NOT_UTF8 = tuple(mark for mark, encoding in _MARKS if encoding != "utf-8")


_MOST_PIECES = 10  # of a line that is too long; see `MAX_FILE_BYTES`


def _json_lines(path: Path, name: str) -> Iterator[FileDocument | SkippedFile]:
    with open_regular(path) as file:
        number = 0
        while line := file.readline(MAX_FILE_BYTES):
            number += 1
            where = f"{name}#{number}"
            if number == 1 and line.startswith(_NOT_UTF8):
                yield SkippedFile(name, "is UTF-16 or UTF-32; JSON lines are UTF-8")
                return
            if len(line) == MAX_FILE_BYTES and not line.endswith(b"\n"):
                yield SkippedFile(where, f"is longer than {MAX_FILE_BYTES // 2**20} MB")
                rest = iter(partial(file.readline, MAX_FILE_BYTES), b"")
                ends = any(piece.endswith(b"\n") for piece in islice(rest, _MOST_PIECES))
                if not ends and file.read(1):
                    yield SkippedFile(name, f"is not read after line {number}, which does not end")
                    return
            elif line.strip():
                yield _json_document(line.decode("utf-8-sig", "replace"), where)


def _json_document(line: str, where: str) -> FileDocument | SkippedFile:
    try:
        fields = parse_json(line)
    except ValueError as error:
        return SkippedFile(where, f"is not JSON: {error}")
    body = _first(fields, _BODY) if isinstance(fields, dict) else None
    if not isinstance(body, str):
        return SkippedFile(where, f"has no field of text ({', '.join(_BODY)})")
    own, title = _first(fields, _ID), fields.get("title")
    rest = {key: value for key, value in fields.items() if key not in (*_ID, *_BODY, "title")}
    return FileDocument(
        where if own is None else encodable(str(own)),
        encodable(str(title)) if title else "",
        encodable(body),
        rest,
    )


def _first(fields: dict[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


AdaptedDocument: TypeAlias = tuple[str, dict[str, str], dict[str, Any]]


def adapt(schema: Schema, document: FileDocument) -> AdaptedDocument:
    """Return the id, texts and attributes that an index with this schema takes.

    Title and text go into the fields with these names; without such a field the title is dropped,
    and the text goes into the first field. Attributes that the index does not have are dropped; of
    the others

    * a number may be written as text,
    * a date may be text in ISO 8601 (without a zone it is UTC), or a number of seconds since 1970,
    * text may be a number, true or false, or a list of those.

    Raises:
        InvalidArgumentError: an attribute cannot be converted to its kind, or the id cannot be
            used.
    """
    check_id(schema, document.id)
    body = "text" if "text" in schema.fields else next(iter(schema.fields))
    texts = {body: document.text}
    if "title" in schema.fields and body != "title":
        texts["title"] = document.title
    attributes = {}
    for name, kind in schema.attributes.items():
        value = document.attributes.get(name)
        if value is None:
            continue
        try:
            attributes[name] = _CONVERTERS[kind](value)
        except (ValueError, TypeError, OverflowError, OSError):
            raise InvalidArgumentError(
                f"{name}={shown(value)} is not of kind {kind}", "correct it, or leave it out"
            ) from None
    return document.id, texts, attributes


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    if isinstance(value, int):
        float(value)  # raises OverflowError if it is too large for a double
        return value
    return float(value)


def _moment(value: Any) -> date:
    if isinstance(value, date):
        return value
    if is_number(value):
        return datetime.fromtimestamp(value, UTC)
    text = str(value).strip()
    if len(text) == 10:
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def _text(value: Any) -> str | list[str]:
    return [_one_text(item) for item in value] if isinstance(value, list) else _one_text(value)


def _one_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return encodable(str(value))
    raise TypeError


_CONVERTERS = {"number": _number, "date": _moment, "text": _text}


_TYPES = {"number": "double", "date": "date", "text": "keyword"}


def bulk_lines(document: Document, index: str) -> str:
    """Return a document as two lines of JSON: the action, and the document.

    Infinite numbers, which JSON lacks and those engines reject, become null. If a field and an
    attribute have the same name, the field's text is exported.
    """
    if document.text is None:
        raise InvalidArgumentError(
            f"document {shown(document.id)} cannot be exported: the index keeps no text",
            "index with keep_text=True, or export the documents' source",
        )
    action = {"index": {"_index": index, "_id": document.id}}
    source = {n: _json_value(v) for n, v in document.attributes.items()} | document.text
    return f"{_dumped(action)}\n{_dumped(source)}\n"


def mappings(schema: Schema) -> dict[str, Any]:
    """Return the mappings to create the target index with: fields as text, attributes by kind.

    There, weights of fields go into queries: ``{"multi_match": {"fields": ["title^3", "text"]}}``.
    """
    properties: dict[str, Any] = {n: {"type": _TYPES[k]} for n, k in schema.attributes.items()}
    for name in schema.fields:
        both = {"fields": {"keyword": {"type": "keyword"}}} if name in properties else {}
        properties[name] = {"type": "text", **both}
    return {"mappings": {"properties": properties}}


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, tuple):
        return list(value)
    return None if value in (math.inf, -math.inf) else value
