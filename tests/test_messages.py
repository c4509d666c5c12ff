"""Every error of shardkit has one shape: the thing concerned, why; what to do.

The texts are read from the source, as most errors need a fault to be seen. In a text, ``{}`` stands
for each part that is only known when the error is raised.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from parsed import PACKAGE, tree_of

from shardkit import errors
from shardkit.errors import counted

ERRORS = {
    name
    for name in errors.__all__
    if issubclass(getattr(errors, name), errors.ShardKitError)
    # Built by the driver from the failures of an exchange, or from a key and its content.
    and name not in ("DamagedDataError", "ShardErrors", "OperationErrors")
    # Raw in a connection; `CallPolicy.named` adds the thing concerned.
    and name not in ("BreakerOpenError", "DeadlineExceeded", "OverloadError")
}

# Parts of errors: their problem follows the thing concerned.
PARTS = {
    "Problem": ("where", "field", "value", "problem", "remedy"),
    "_problem": ("path", "value", "problem", "remedy"),
    "BadUrlError": ("problem", "remedy"),
}
MAKERS = ERRORS | PARTS.keys()
BANNED = re.compile(
    r"\b(so (many|long|much)|all the same|anew|meanwhile|go(es)? on|begun|(is|are) to be|also if"
    r"|may not|not to be had|nobody knows|whoever|he|his|mend)\b|\bsay --"
)
# Words that a message must not start with: it is read alone.
PRONOUNS = re.compile(r"(it|its|this|that|these|they|their|there|who|what|no|nobody)\b", re.I)
DOUBLED = re.compile(r"[.,;:!?] *[;,!?]|[,;:] *[.:](?!\w)|[^.]\.\.(?!\.)")
IMPERATIVES = """
    abort acquire add allow ask attach await begin call change check choose close collect combine
    compare compress connect continue copy correct count create declare delete deposit detach
    disconnect drop empty enable encode end export fail find give grant group guard have import
    include increment index install join keep leave let limit list look lower make merge move name
    number open pass pin pip plan press print publish pull push put quote r raise read reconnect
    register remove rename repeat replace restart restore resume retry return reverse rotate run
    search see send set skip sort specify split spread start stop store switch take try turn undo
    unset upgrade use wait weigh write
"""
VERBS = frozenset(IMPERATIVES.split())
PLURAL = re.compile(r" (?:[a-z]+ )?(?!(?:has|is|was|does|needs|holds|says|keys' )\b)[a-z]{2,}s\b")
NUMBERS = {"count", "number", "length", "given", "there", "many", "total", "n", "copied"}


def is_number(value: ast.expr) -> bool:
    """Whether an interpolated value is a number that may be 1."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "len"
    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
    return name in NUMBERS


def text_of(node: ast.expr) -> str | None:
    """Return the text of an argument; None if only an expression is there."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


def wrong_plurals(node: ast.expr) -> Iterator[str]:
    """Yield each number that is followed by a noun in the plural whatever its value."""
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    for part, after in pairwise(parts):
        number = isinstance(part, ast.FormattedValue) and is_number(part.value)
        if number and isinstance(after, ast.Constant) and PLURAL.match(str(after.value)):
            yield f"use counted() for a number and its noun: {after.value}"


def name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def faults_of(call: ast.Call) -> Iterator[str]:
    """Yield the rules that an error's texts break."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    names = PARTS.get(name_of(call), ("message", "remedy"))
    arguments = dict(zip(names, call.args, strict=False)) | keywords
    if name_of(call) == "ShardFailure" and "error" in arguments:
        return  # its text is that of the driver's error
    if "remedy" not in arguments or text_of(arguments["remedy"]) == "":
        yield "it says no remedy"
    for name in ("message", "problem", "remedy"):
        if name not in arguments:
            continue
        node = arguments[name]
        yield from wrong_plurals(node)
        text = text_of(node)
        if text is None:
            continue
        if match := DOUBLED.search(text.replace("::", ":")):
            yield f"{match[0]!r} is doubled punctuation"
        if re.search(r"[.,;!]$|: $", text):
            yield f"the {name} ends with punctuation"
        if match := BANNED.search(text):
            yield f"{match[0]!r} is not the English of this project"
        if ";" in text:
            yield f"the {name} has a semicolon, which stands between message and remedy"
        first = re.match(r"[\w{}.:/$-]*", text)
        word = first[0] if first else ""
        if name == "message" and PRONOUNS.match(word):
            yield f"the message starts with {word!r}, not with the thing concerned"
        is_verb = word.rstrip(":") in VERBS or text.startswith("{}")
        if name == "remedy" and not is_verb:
            yield f"the remedy starts with {word!r}, not with an imperative"


def errors_in(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that make an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node) in MAKERS and node.args:
            yield node


def faults_in(path: Path) -> list[str]:
    return [
        f"{path.name}:{call.lineno}: {fault}: {ast.unparse(call)}"
        for call in errors_in(tree_of(path))
        for fault in faults_of(call)
    ]


FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_message_has_the_one_shape() -> None:
    assert [fault for path in FILES.values() for fault in faults_in(path)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("ConfigError('a is missing')", "no remedy"),
        ("ConfigError('a is missing', '')", "no remedy"),
        ("ConfigError('a is missing.', 'add it')", "ends with punctuation"),
        ("ConfigError('a is missing', 'add it.')", "ends with punctuation"),
        ("ConfigError(f'{a} is missing?; add it', 'add it')", "doubled"),
        ("ConfigError('it is missing', 'add it')", "starts with 'it'"),
        ("ConfigError('there is no a', 'add it')", "starts with 'there'"),
        ("ConfigError('a may not be here', 'add it')", "'may not'"),
        ("ConfigError('a is missing', 'it has b')", "starts with 'it'"),
        ("ConfigError('a is missing', 'Add it')", "starts with 'Add'"),
        ("ConfigError(f'a has {len(x)} shards', 'add one')", "counted()"),
        ("ConfigError(f'a has {count} big shards', remedy='add one')", "counted()"),
        ("ConfigError('a is here; nothing was sent', 'add one')", "semicolon"),
    ],
)
def test_a_fault_is_found(source: str, fault: str) -> None:
    [call] = errors_in(ast.parse(source))
    found = list(faults_of(call))
    assert any(fault in each for each in found), found


@pytest.mark.parametrize(
    "source",
    [
        "ConfigError('a is missing', 'add it')",
        "ConfigError(f'{a}: has {counted(n, \"shard\")}', f'give {b}')",
        "MissingEntryError(message, remedy)",
        "ShardFailure('', shard=name, error=error)",
        "errors.ConfigError('address 2001:db8::7 is unknown', 'see: shardkit status')",
    ],
)
def test_a_message_of_the_shape_passes(source: str) -> None:
    [call] = errors_in(ast.parse(source))
    assert list(faults_of(call)) == []


def test_a_number_and_its_noun_agree() -> None:
    assert counted(1, "shard") == "1 shard"
    assert counted(1234, "shard") == "1,234 shards"
    assert counted(0, "entry", "entries") == "0 entries"
