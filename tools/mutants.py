#!/usr/bin/env python3
r"""Mutation testing of a Python (and Lua) library with pytest: in one file.

    mutants.py CHECKOUT FILE... --tests PATH... --count N --seed S --python PY [options]

    mutants.py CHECKOUT shardkit/links/carrier.py --tests tests/links tests/kit \\
        --count 30 --seed 1 --python PYTHON

FILEs and PATHs are relative to CHECKOUT and may be globs ('shardkit/routing/*.py'; quoted or not).
CHECKOUT is never written to: mutants live in copies below --work, one copy for each job. PY must
have pytest and what the library and its tests need; pytest-cov too, if tests are to be chosen by
coverage. The driver itself runs under any Python >= 3.11.

What happens
    1. The baseline. The tests of --tests run once on the unchanged copy, with coverage contexts
       (which test runs which line) and durations. --coverage FILE takes the data of an earlier run
       instead: `pytest --cov=PKG --cov-branch --cov-context=test`, combined. A test that fails
       here is never used. With the --work of an earlier run its baseline is used again, its line
       numbers brought up to date; tests that are new since are not known: delete the folder then.
    2. N mutants are drawn, by --seed, from all of FILEs together. Same files, same seed: same
       mutants. Operators are drawn in proportion to the root of how many places each has, so that
       constants do not crowd out the rest.
    3. Each mutant is written into a copy, and the tests that run its line are run, those that have
       killed before and the fast ones first, up to --budget estimated seconds, until one fails.
       For a line outside of functions: those that run anything of the file. For a Lua script: those
       that run a line with its name as a literal, or with the name of a script that includes it.
       A process that has collected the tests and started what a session shares forks for each
       mutant. The child puts the changed code into the functions, and the changed text into the
       scripts. A test that killed must pass without the mutant afterwards: otherwise the mutant has
       left a server behind that others cannot use, all is started anew, and the mutant tried again.
       What is only run by an import needs a process that has not imported the library: first it
       runs tests of four files, as collecting hundreds takes longer than most tests; then others.

Operators for Python
    negate    the condition of if, while, x if c else y, a comprehension     compare   < and <=, ...
    and-or    a and b / a or b                                    not      not a / a
    constant  n / n + 1, n - 1; True / False                      return   None or an empty value
    drop      a call, an assignment to x.y or x[y], +=, del, continue, break
    swap      two neighbouring positional arguments               raise    dropped
    finally   a statement of it dropped, if it awaits nothing     handler  catches nothing
    Left alone: annotations, decorators, docstrings, text, what is raised, assert, TYPE_CHECKING,
    __all__, __slots__, @overload, @abstractmethod, raise NotImplementedError, strict= of zip.
Operators for Lua
    negate (if, elseif), compare, and-or, not, constant (numbers, true and false), drop (a line that
    is a call of redis.call or call)

Results, one JSON object a line in --out (default: WORK/results.jsonl, appended to):
    killed     a test failed, or the mutant cannot be imported; "by" names the test
    timeout    the tests did not end in time: counted as killed
    survived   all chosen tests passed; "left" says how many more would have run the line
    unrun      no test runs the line: a survivor
Whether a survivor is equivalent (no test could tell) is for people to say: in the file EQUIVALENT
beside this one. What is said there is not tried, and counts neither as killed nor as survived.

--again FILE runs the survivors of such a file again, without --budget unless it is given.
--list prints the mutants and runs nothing; --diff prints survivors with their context.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import difflib
import fnmatch
import functools
import gc
import glob
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

SURVIVED = ("survived", "unrun")
VERBS = ("--serve", "--warm", "--pytest", "--probe", "--contexts")  # what it starts itself for
COLD = 77  # the status of a child that cannot put a mutant into what has been imported
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
LOADER = "shardkit.operations.lua"  # reads scripts, and keeps them
INCLUDE = re.compile(r"^--@include [\w/]+\n", re.MULTILINE)
# ------------------------------------------------------------------------------------ the mutants


@dataclass(frozen=True)
class Mutant:
    """A change of bytes start to end of a file. `lines` are those that decide which tests run."""

    file: str
    line: int
    op: str
    start: int
    end: int
    old: str
    new: str
    lines: tuple[int, ...]
    scope: str  # the function's qualified name; "" outside of functions

    @property
    def id(self) -> str:
        said = f"{self.file}:{self.line}:{self.op}:{self.start}:{self.new}"
        return hashlib.sha1(said.encode()).hexdigest()[:8]

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def said(self) -> str:
        return f"{self.file}:{self.line} {self.change}"

    def place(self, root: Path) -> str:
        """What it is called in EQUIVALENT: where the line is now may change."""
        line = (root / self.file).read_text().splitlines()[self.line - 1]
        return f"{self.file} | {line.strip()} | {self.change}"

    @property
    def change(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"[{self.op}] {old[:110]!r} -> {new[:110]!r}"


COMPARE = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: ("in", "not in"),
    ast.Is: ("is", "is not"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.IsNot: (r"is\s+not", "is"),
}
EMPTY = [
    ("bool", None),
    ("int", "0"),
    ("float", "0.0"),
    ("str", '""'),
    ("bytes", 'b""'),
    ("list", "[]"),
    ("List", "[]"),
    ("dict", "{}"),
    ("set", "set()"),
    ("tuple", "()"),
    ("Sequence", "[]"),
    ("Iterable", "[]"),
    ("Iterator", "iter(())"),
]
UNTOUCHED = {"overload", "abstractmethod"}
# Their arguments differ in kind: any test notices when they are swapped.
BY_KIND = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "map", "filter"}


class PythonMutants(ast.NodeVisitor):
    """Collects the mutants of a module."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []
        self.names: list[str] = []
        self.functions: list[ast.AST] = []
        self.statement: ast.stmt | None = None
        self.visit(ast.parse(source))

    # -- places

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, start: int, end: int) -> str:
        return self.source[start:end].decode()

    def add(self, op: str, line: int, start: int, end: int, new: str) -> None:
        old = self.text(start, end)
        scope = ".".join(self.names) if self.functions else ""
        lines = {line}
        if self.statement is not None:
            first = self.statement.lineno
            body = getattr(self.statement, "body", None)
            last = body[0].lineno - 1 if body else self.statement.end_lineno
            if isinstance(self.statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                last = first
            lines.update(range(first, max(first, last) + 1))
        mutant = Mutant(self.file, line, op, start, end, old, new, tuple(sorted(lines)), scope)
        if " ".join(old.split()) != " ".join(new.split()):
            self.found.append(mutant)

    def replace(self, op: str, node: ast.AST, new: str) -> None:
        self.add(op, node.lineno, *self.span(node), new)

    # -- walking

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            outer, self.statement = self.statement, node
            super().visit(node)
            self.statement = outer
        else:
            super().visit(node)

    def body(self, statements: list[ast.stmt]) -> None:
        for n, statement in enumerate(statements):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (is_text and (n == 0 or statement.value.value is Ellipsis)):
                self.visit(statement)

    def visit_Module(self, node: ast.Module) -> None:
        self.body(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        functions, self.functions = self.functions, []
        self.names.append(node.name)
        self.body(node.body)
        self.names.pop()
        self.functions = functions

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        marks = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
        if marks & UNTOUCHED:
            return
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self.names.append(node.name)
        self.functions.append(node)
        self.body(node.body)
        self.functions.pop()
        self.names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # positions in it are not exact everywhere

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    # -- operators

    def condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Constant):
            return
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.replace("negate", test, f"({self.text(*self.span(test.operand))})")
            self.visit(test.operand)
            return
        turned = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
        is_one = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not (is_one and isinstance(test.ops[0], turned)):  # the same as `compare` makes of it
            self.replace("negate", test, f"(not ({self.text(*self.span(test))}))")
        self.visit(test)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self.condition(node.test)
        self.body(node.body)
        self.body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.condition(node.test)
        self.body(node.body)
        self.body(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self.condition(test)

    def gap(self, op: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.text(start, end)
        found = re.search(rf"(?<!\w){old}(?!\w)" if old[0].isalpha() else old, between)
        if found:
            at, to = self.span(left)[0], self.span(right)[1]
            turned = between[: found.start()] + new + between[found.end() :]
            line = left.end_lineno + between[: found.start()].count("\n")
            self.add(op, line, at, to, self.text(at, start) + turned + self.text(end, to))

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, new = COMPARE[type(operator)]
            self.gap("compare", left, right, old, new)
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.gap("and-or", left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace("not", node, f"bool({self.text(*self.span(node.operand))})")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # zip's: it never matters, unless there is a mistake
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace("constant", node, str(not value))
        elif isinstance(value, int):
            self.replace("constant", node, str(value + 1))
            if value > 1:
                self.replace("constant", node, str(value - 1))
        elif isinstance(value, float):
            self.replace("constant", node, str(value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom):
            self.replace("drop", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        named = {t.id for t in node.targets if isinstance(t, ast.Name)}
        if named & {"__all__", "__slots__"}:
            return
        if all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets):
            self.replace("drop", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if isinstance(node.target, ast.Attribute | ast.Subscript):
                self.replace("drop", node, "pass")
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace("drop", node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.replace("drop", node, "pass")

    visit_Continue = visit_Break = visit_Delete

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        said = ""
        if self.functions and getattr(self.functions[-1], "returns", None) is not None:
            said = ast.unparse(self.functions[-1].returns)
        empty: str | None = "None"
        for kind, value in EMPTY:
            if re.match(rf"{kind}\b", said):
                empty = value
        old = self.text(*self.span(node.value))
        if empty is None:
            empty = f"not ({old})"
        if not (isinstance(node.value, ast.Constant) and str(node.value.value) == empty):
            self.replace("return", node.value, empty)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args) >= 2 and ast.unparse(node.func) not in BY_KIND:
            for one, two in itertools.pairwise(plain):
                (a, b), (c, d) = self.span(one), self.span(two)
                first, second = self.text(a, b), self.text(c, d)
                if first != second:
                    new = second + self.text(b, c) + first
                    self.add("swap", one.lineno, a, d, new)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None and "NotImplementedError" in ast.unparse(node.exc):
            return
        self.replace("raise", node, "pass")

    def visit_Try(self, node: ast.Try) -> None:
        self.body(node.body)
        for handler in node.handlers:
            if handler.type is not None:
                self.replace("handler", handler.type, "()")
            self.body(handler.body)
        self.body(node.orelse)
        for statement in node.finalbody:
            awaits = any(isinstance(n, ast.Await | ast.Yield) for n in ast.walk(statement))
            if not awaits:
                outer, self.statement = self.statement, statement
                self.replace("finally", statement, "pass")
                self.statement = outer
            self.visit(statement)

    visit_TryStar = visit_Try


LUA = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    r"|(?P<number>\b\d+(?:\.\d+)?\b)|(?P<name>[A-Za-z_]\w*)|(?P<op>==|~=|<=|>=|<|>|\.\.\.|\.\.)"
)
LUA_OPS = {"==": "~=", "~=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
LUA_NAMES = {"and": "or", "or": "and", "true": "false", "false": "true"}


def lua_mutants(file: str, source: bytes) -> list[Mutant]:
    """The mutants of a Lua script."""
    text = source.decode()
    found: list[Mutant] = []

    def add(op: str, start: int, end: int, new: str) -> None:
        line = text.count("\n", 0, start) + 1
        place = len(text[:start].encode()), len(text[:end].encode())
        found.append(Mutant(file, line, op, *place, text[start:end], new, (line,), "lua"))

    tokens = [t for t in LUA.finditer(text) if t.lastgroup not in ("comment", "string")]
    for n, token in enumerate(tokens):
        word, (start, end) = token[0], token.span()
        if token.lastgroup == "number":
            value = float(word) if "." in word else int(word)
            add("constant", start, end, str(value + 1))
            if value > 1:
                add("constant", start, end, str(value - 1))
        elif token.lastgroup == "op" and word in LUA_OPS:
            add("compare", start, end, LUA_OPS[word])
        elif word in LUA_NAMES:
            add("and-or" if word in ("and", "or") else "constant", start, end, LUA_NAMES[word])
        elif word == "not":
            add("not", start, end, "not not")
        elif word in ("if", "elseif"):
            then = next((t for t in tokens[n + 1 :] if t[0] == "then"), None)
            if then:
                old = text[end : then.start()].strip()
                at = text.index(old, end)
                add("negate", at, at + len(old), f"not ({old})")
    at = 0
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        is_call = re.match(r"(redis\.p?call|call)\(", stripped)
        if is_call and stripped.partition(" --")[0].rstrip().endswith(")"):
            code = stripped.partition(" --")[0].rstrip()
            if code.count("(") == code.count(")"):
                start = at + line.index(code)
                add("drop", start, start + len(code), "do end")
        at += len(line)
    return found


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in its order."""
    found = (
        lua_mutants(file, source) if file.endswith(".lua") else (PythonMutants(file, source).found)
    )
    unique = {(m.start, m.end, m.new): m for m in found}
    return sorted(unique.values(), key=lambda m: (m.start, m.end, m.op, m.new))


def is_program(mutant: Mutant, source: bytes) -> bool:
    """Whether what a mutation made of Python is Python."""
    if mutant.scope != "lua":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(mutant.applied(source))
        except SyntaxError:
            return False
    return True


def drawn(mutants: list[Mutant], count: int, seed: int, root: Path) -> list[Mutant]:
    """A sample of mutants: operators by the root of their number, one a line and operator."""
    chance = random.Random(seed)
    by_op: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_op[mutant.op].append(mutant)
    for of_op in by_op.values():
        chance.shuffle(of_op)
    weights = {op: len(of_op) ** 0.5 for op, of_op in sorted(by_op.items())}
    taken: list[Mutant] = []
    seen: set[tuple[str, int, str]] = set()
    while len(taken) < count and any(by_op.values()):
        ops = [op for op in weights if by_op[op]]
        op = chance.choices(ops, [weights[op] for op in ops])[0]
        mutant = by_op[op].pop()
        place = (mutant.file, mutant.line, op)
        if place not in seen and is_program(mutant, (root / mutant.file).read_bytes()):
            seen.add(place)
            taken.append(mutant)
    return sorted(taken, key=lambda m: (m.file, m.start))


# ------------------------------------------------------------------------ inside the forked process


class Chosen:
    """A pytest plugin: runs the chosen tests in the given order, and notes what became of them."""

    def __init__(self, wanted: list[str] | None) -> None:
        self.order = None if wanted is None else {test: n for n, test in enumerate(wanted)}
        self.durations: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, config, items):
        if self.order is not None:
            items[:] = sorted(
                (item for item in items if item.nodeid in self.order),
                key=lambda item: self.order[item.nodeid],
            )

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.append(f"collecting {report.nodeid}")

    def pytest_runtest_logreport(self, report):
        self.durations[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def saved(self, path: str, rc: int) -> None:
        out = {"rc": rc, "durations": dict(self.durations), "failed": self.failed}
        Path(path).write_text(json.dumps(out))


def run_pytest(args: list[str], wanted: list[str] | None, result: str) -> int:
    """Run pytest here; the result goes to a file."""
    import pytest

    plugin = Chosen(wanted)
    rc = int(pytest.main(args, plugins=[plugin]))
    plugin.saved(result, rc)
    return rc


def children_of(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [
            int(child)
            for task in tasks
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    except OSError:
        return []


def end_with_children(pid: int) -> None:
    """Kill a process and all that it started."""
    below = children_of(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in below:
        end_with_children(child)


def adopt_orphans() -> None:
    """Have orphans of a test run become children of this process, so that they can be ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_of(pid: int, limit: float, kept: Iterable[int] = ()) -> int | None:
    """Wait for a child, end what it leaves; return its status, None if it did not end in time."""
    until, status = time.monotonic() + limit, None
    while time.monotonic() < until:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(0.01)
    if status is None:
        end_with_children(pid)
        os.waitpid(pid, 0)
    for left in set(children_of(os.getpid())) - set(kept):
        end_with_children(left)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(left, 0)
    return status


def serve(modules_file: str) -> None:
    """Import what does not change, then fork for each request: a line of JSON on stdin."""
    adopt_orphans()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in json.loads(Path(modules_file).read_text()):
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
        if "hypothesis" in sys.modules:  # seconds, in every process that makes its first text
            from hypothesis import strategies

            for strategy in (strategies.text(), strategies.characters(codec="utf-8")):
                strategy.validate()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            rc = 3
            try:
                rc = run_pytest(request["args"], request["wanted"], request["result"])
            except BaseException as error:
                print(repr(error))
            finally:
                sys.stdout.flush()
                os._exit(rc)
        status = end_of(pid, request["limit"])
        print(json.dumps({"status": status}), flush=True)


def code_key(code: types.CodeType) -> tuple[str, str, int, bytes]:
    """What tells a code object from all others; their equality leaves the file out."""
    return code.co_filename, code.co_qualname, code.co_firstlineno, code.co_linetable


def changed_code(
    old: types.CodeType, new: types.CodeType
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Pairs of code objects at the same place that differ, at any depth."""
    if old == new:
        return
    yield old, new
    below = [[c for c in code.co_consts if isinstance(c, types.CodeType)] for code in (old, new)]
    if len(below[0]) == len(below[1]):
        for pair in zip(*below, strict=True):
            yield from changed_code(*pair)


class Warm:
    """A pytest plugin: instead of running the tests it forks for each request.

    A request is a line of JSON: which tests, and what is changed where. The tests have been
    collected, and those named first have been run: the fixtures of the session are there.
    """

    def __init__(self, first: list[str], requests: TextIO, answers: TextIO) -> None:
        self.first, self.requests, self.answers = first, requests, answers
        self.durations: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self.why: list[str] = []
        self.functions: dict[tuple, list[types.FunctionType]] = defaultdict(list)
        self.scripts: list[Any] = []
        self.caches: list[Any] = []
        self.fixtures: list[Any] = []
        self.kept: list[Any] = []

    def pytest_runtest_logreport(self, report):
        self.durations[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)
            said = str(report.longrepr).splitlines()
            self.why += [line for line in said if line.startswith("E  ")][:4]

    def run(self, session, names: list[str], to_the_end: bool = False) -> None:
        """Run tests up to the first one that fails; what the session shares is kept."""
        items = [self.items[name] for name in names if name in self.items]
        for item, after in itertools.zip_longest(items, items[1:], fillvalue=session.items[0]):
            session._setupstate.teardown_exact(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed and not to_the_end:
                break

    def pytest_runtestloop(self, session):
        import pytest

        self.items = {item.nodeid: item for item in session.items}
        self.run(session, self.first, to_the_end=True)
        self.failed.clear()
        self.why.clear()
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType):
                self.functions[code_key(found.__code__)].append(found)
            elif type(found).__name__ == "Script" and hasattr(found, "text"):
                self.scripts.append(found)
            elif isinstance(found, functools._lru_cache_wrapper):
                self.caches.append(found)
            elif isinstance(found, pytest.FixtureDef) and found.scope == "session":
                self.fixtures.append(found)
        gc.collect()
        gc.freeze()
        ours = children_of(os.getpid())
        self.answers.write("ready\n")
        self.answers.flush()
        for line in self.requests:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                rc = 3
                try:
                    os.setsid()
                    rc = self.child(session, request)
                except BaseException as error:
                    print(repr(error))
                finally:
                    os._exit(rc)
            status = end_of(pid, request["limit"], ours)
            self.answers.write(json.dumps({"status": status}) + "\n")
            self.answers.flush()
        return True

    def child(self, session, request: dict[str, Any]) -> int:
        for fixture in self.fixtures:  # what the parent has started is not ended here,
            self.kept += fixture._finalizers  # nor collected, which would end it too
            fixture._finalizers.clear()
        self.durations.clear()
        if request["file"]:
            path, old, new = Path(request["file"]), request["old"], request["new"]
            for cached in self.caches:  # results of the unchanged function, but for the scripts
                owner = getattr(cached, "__module__", "")
                if path.suffix != ".lua" and owner.startswith("shardkit.") and owner != LOADER:
                    cached.cache_clear()
            if path.suffix == ".lua":
                there = self.put_script(path, old, new)
            else:
                there = self.put_code(path, old, new)
            if not there:
                return COLD
        self.run(session, request["wanted"])
        out = {"durations": dict(self.durations), "failed": self.failed, "why": self.why}
        Path(request["result"]).write_text(json.dumps(out))
        return 1 if self.failed else 0 if self.durations else 5

    def put_code(self, path: Path, old: str, new: str) -> bool:
        """Give the functions of a file their changed code; whether that could be done."""
        codes = [compile(text, str(path), "exec", dont_inherit=True) for text in (old, new)]
        there = False
        try:
            for before, after in changed_code(*codes):
                for function in self.functions.get(code_key(before), ()):
                    function.__code__ = after
                    there = True
        except ValueError:  # it has other variables of functions around it
            return False
        loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        return there or str(path) not in loaded

    def put_script(self, path: Path, old: str, new: str) -> bool:
        """Change the text of scripts; those that are read later are read from the file."""
        there = False
        pieces = [INCLUDE.split(text) for text in (old, new)]
        changed = [pair for pair in zip(*pieces, strict=True) if pair[0] != pair[1]]
        for script in self.scripts:
            if all(piece in script.text for piece in pieces[0]):
                text = script.text
                for before, after in changed:
                    text = text.replace(before, after)
                object.__setattr__(script, "text", text)
                sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
                object.__setattr__(script, "sha", sha)
                there = True
        return there


def warm(first_file: str, log: str, args: list[str]) -> None:
    """Collect the tests, run a few, and fork for each request on stdin."""
    adopt_orphans()
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null, out = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    )
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    import pytest

    pytest.main(args, plugins=[Warm(json.loads(Path(first_file).read_text()), requests, answers)])


def probe(folder: str, result: str, args: list[str]) -> None:
    """Collect the tests, and write which modules that imported from outside of the checkout."""
    import pytest

    pytest.main(["--collect-only", "-qq", *args])
    inside = os.path.realpath(folder)
    names = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or (file and os.path.realpath(file).startswith(inside + os.sep)):
            continue
        if file is None and not hasattr(module, "__spec__"):
            continue
        names.append(name)
    top = {n for n in names if "." not in n}
    Path(result).write_text(json.dumps([n for n in names if n.partition(".")[0] in top]))


# ------------------------------------------------------------------------------------- the driver


def brought_up_to_date(lines: dict[int, set[str]], before: str, now: str) -> dict[int, set[str]]:
    """Which tests run which line of a file that was edited; new lines, as those around them."""
    if before == now:
        return lines
    found: dict[int, set[str]] = {}
    matcher = difflib.SequenceMatcher(None, before.splitlines(), now.splitlines(), autojunk=False)
    for _, old, old_end, new, new_end in matcher.get_opcodes():
        if old_end - old == new_end - new:
            shift = new - old
            found |= {n + shift: lines[n] for n in range(old + 1, old_end + 1) if n in lines}
        else:
            around = [lines.get(n, set()) for n in range(old, old_end + 2)]
            found |= dict.fromkeys(range(new + 1, new_end + 1), set().union(*around))
    return found


def script_name(path: Path, package: Path) -> str:
    """What a Lua script is called by: package/queues/lua/take.lua is queues/take."""
    return "/".join(
        part for part in path.relative_to(package).with_suffix("").parts if part != "lua"
    )


def equivalents() -> set[str]:
    """The mutants that people have found to be equivalent: file, line and change."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.strip() for line in lines if line[:1] not in ("", " ", "#")}


def rounds(tests: list[str]) -> list[list[str]]:
    """Those of the first forty tests that are of the first four files; then all others."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))[:4]
    first = [test for test in tests[:40] if test.partition("::")[0] in files]
    others = [test for test in tests if test not in set(first)]
    return [first, others] if others else [first]


class Servers:
    """The processes of a job that fork for each mutant, started when they are first asked for."""

    def __init__(self, driver: Driver, copy: Path) -> None:
        self.driver, self.copy = driver, copy
        self.running: dict[str, subprocess.Popen] = {}

    @property
    def cold(self) -> subprocess.Popen:
        """It has imported everything but the library."""
        return self.server("--serve", self.driver.modules(self.copy))

    @property
    def warm(self) -> subprocess.Popen:
        """It has collected the tests, and run the quickest one of each folder."""
        driver, work = self.driver, self.driver.work
        quickest: dict[str, str] = {}
        for test in sorted(driver.durations, key=driver.durations.__getitem__, reverse=True):
            if driver.in_tests(test):
                quickest[os.path.dirname(test.partition("::")[0])] = test
        files = sorted({t.partition("::")[0] for t in driver.durations if driver.in_tests(t)})
        first = work / "first.json"
        first.write_text(json.dumps(list(quickest.values())))
        log = str(work / f"{self.copy.name}.warm.log")
        return self.server("--warm", str(first), log, *driver.pytest_args, *files)

    def server(self, *args: str) -> subprocess.Popen:
        known = self.running.get(args[0])
        if known is None or known.poll() is not None:
            known = self.running[args[0]] = subprocess.Popen(
                [self.driver.asked.python, os.path.abspath(__file__), *args],
                cwd=self.copy,
                env=self.driver.environment(self.copy),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            known.stdout.readline()
        return known

    def end(self) -> None:
        """End them, and what they have started; the next mutant gets new ones."""
        for server in self.running.values():
            server.stdin.close()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                end_with_children(server.pid)
                server.wait()
        self.running.clear()


class Driver:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.checkout = Path(asked.checkout).resolve()
        self.work = Path(asked.work or tempfile.mkdtemp(prefix="mutate_")).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.out = Path(asked.out) if asked.out else self.work / "results.jsonl"
        self.durations: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.lock = threading.Lock()
        # file -> line -> tests; lines that only a subprocess or an import ran have no tests
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.breadth: Counter[str] = Counter()  # how many lines a test runs
        self.broken: set[str] = set()

    # -- setting up

    def expanded(self, patterns: list[str]) -> list[str]:
        found: list[str] = []
        for pattern in patterns:
            there = sorted(glob.glob(str(self.checkout / pattern), recursive=True))
            if not there:
                sys.exit(f"mutants.py: nothing matches {pattern} in {self.checkout}")
            found += [os.path.relpath(path, self.checkout) for path in there]
        return list(dict.fromkeys(found))

    def copy(self, n: int) -> Path:
        to = self.work / f"copy{n}"
        if to.exists():
            shutil.rmtree(to)
        skip = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "build", "node_modules")
        shutil.copytree(self.checkout, to, symlinks=True, ignore=skip)
        return to

    def environment(self, copy: Path) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_"))}
        roots = [str(copy)] + ([str(copy / "src")] if (copy / "src").is_dir() else [])
        return env | {
            "PYTHONPATH": os.pathsep.join(roots),
            "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": f"{Path(self.asked.python).parent}{os.pathsep}{env.get('PATH', '')}",
        }

    @property
    def pytest_args(self) -> list[str]:
        args = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "addopts="]
        args += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        if self.has("hypothesis"):
            args += ["--hypothesis-seed=0"]
        if self.has("pytest_timeout"):
            args += ["-o", f"timeout={self.asked.limit:g}"]
        return args

    def has(self, module: str) -> bool:
        known = self.__dict__.setdefault("_has", {})
        if module not in known:
            code = f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"
            known[module] = not subprocess.run([self.asked.python, "-c", code]).returncode
        return known[module]

    def call(self, copy: Path, *args: str, quiet: bool = True) -> int:
        command = [self.asked.python, os.path.abspath(__file__), *args]
        sink = subprocess.DEVNULL if quiet else None
        return subprocess.run(command, cwd=copy, env=self.environment(copy), stdout=sink).returncode

    def modules(self, copy: Path) -> str:
        path = self.work / "modules.json"
        if not path.exists():
            self.call(copy, "--probe", str(copy), str(path), *self.pytest_args, *self.asked.tests)
        return str(path)

    def baseline(self, copy: Path, mutants: list[Mutant]) -> None:
        """Learn which test runs which line, and how long it takes."""
        durations, sources = self.work / "durations.json", self.work / "sources.json"
        result = str(self.work / "baseline.json")
        data = self.asked.coverage
        if data is None and sources.exists():
            data = str(self.work / "coverage.data")
            self.broken = set(json.loads(Path(result).read_text())["failed"])
            self.durations = json.loads(durations.read_text())
            print(f"baseline: the one in {self.work}", flush=True)
        elif data is None:
            data = str(self.work / "coverage.data")
            args = [*self.pytest_args, *self.asked.tests]
            if self.has("pytest_cov"):
                # Everything of the checkout but its tests
                rc = self.work / "coveragerc"
                rc.write_text(
                    f"[run]\nbranch = True\nsource = {copy}\nomit = {copy}/tests/*\n"
                    f"data_file = {data}\n"
                )
                args += ["--cov", "--cov-context=test", f"--cov-config={rc}", "--cov-report="]
            if self.asked.jobs > 1 and self.has("xdist"):
                args += ["-n", str(self.asked.jobs)]
            Path(result).unlink(missing_ok=True)
            began = time.monotonic()
            self.call(copy, "--pytest", result, *args)
            if not Path(result).exists():
                sys.exit("mutants.py: the baseline did not run; try it by hand")
            said = json.loads(Path(result).read_text())
            self.broken = set(said["failed"])
            self.durations = said["durations"]
            print(
                f"baseline: {len(self.durations)} tests in {time.monotonic() - began:.0f} s, "
                f"{len(self.broken)} failed and are not used: {sorted(self.broken)[:10]}",
                flush=True,
            )
            durations.write_text(json.dumps(self.durations))
            packages = {m.file.partition("/")[0] for m in mutants}
            files = [path for name in packages for path in (copy / name).rglob("*.py")]
            texts = {os.path.relpath(path, copy): path.read_text() for path in files}
            sources.write_text(json.dumps(texts))
        elif durations.exists():
            self.durations = json.loads(durations.read_text())
        if Path(data).exists():
            wanted = {m.file: None for m in mutants if m.scope != "lua"}
            for file in {m.file for m in mutants if m.scope == "lua"}:
                for name, lines in self.lines_that_name(file).items():
                    if wanted.get(name, ()) is not None:
                        wanted[name] = sorted({*wanted.get(name, ()), *lines})
            asked, got = self.work / "wanted.json", self.work / "contexts.json"
            asked.write_text(json.dumps(wanted))
            self.call(copy, "--contexts", data, str(asked), str(got))
            said = json.loads(got.read_text())
            names = said["tests"]
            self.lines = {
                file: {int(line): {names[n] for n in tests} for line, tests in lines.items()}
                for file, lines in said["files"].items()
            }
            if self.asked.coverage is None:
                texts = json.loads(sources.read_text())
                for file, lines in self.lines.items():
                    now = (self.checkout / file).read_text()
                    self.lines[file] = brought_up_to_date(lines, texts[file], now)
        self.breadth = Counter(
            test
            for lines in self.lines.values()
            for tests in lines.values()
            for test in tests
            if test
        )
        self.durations = dict.fromkeys(self.breadth, 0.2) | self.durations

    # -- which tests

    def in_tests(self, test: str) -> bool:
        path = test.partition("::")[0]
        return test not in self.broken and any(
            path == given
            or path.startswith(given.rstrip("/") + "/")
            or fnmatch.fnmatch(path, given)
            for given in self.asked.tests
        )

    def lines_of(self, file: str) -> dict[int, set[str]]:
        for known, lines in self.lines.items():
            if known == file or known.endswith("/" + file):
                return lines
        return {}

    def tests_for(self, mutant: Mutant) -> tuple[list[str], bool]:
        """The tests that run a mutant, in order; and whether its line runs at all."""
        if not self.lines:
            tests = set(self.durations)
            runs = True
        elif mutant.scope == "lua":
            tests, runs = self.users_of_script(mutant.file), True
        else:
            lines = self.lines_of(mutant.file)
            found: set[str] = set()
            for line in mutant.lines:
                found |= lines.get(line, set())
            runs = bool(found) or not mutant.scope
            tests = {test for test in found if test}
            if not mutant.scope or (runs and not any(map(self.in_tests, tests))):
                tests = {test for of_line in lines.values() for test in of_line if test}
        tests = {test for test in tests if self.in_tests(test)}
        # Cases of one test are likely to see the same: the first ones of every test come first.
        nth: Counter[str] = Counter()
        cost: dict[str, float] = {}
        for test in sorted(tests, key=lambda t: (self.durations.get(t, 0.2), t)):
            function = test.partition("[")[0]
            cost[test] = self.durations.get(test, 0.2) * (1 + nth[function])
            nth[function] += 1
        # And those first that do little else, of the folder which is called as the file's.
        _, *folders = mutant.file.split("/")[:-1]
        here = Counter(test for of in self.lines_of(mutant.file).values() for test in of)
        for test in tests:
            cost[test] *= (1 + self.breadth[test]) / (1 + here[test]) / (1 + self.kills[test])
            cost[test] /= 1 + 4 * bool(folders and f"/{folders[0]}/" in test)
        return sorted(tests, key=lambda t: (cost[t], t)), runs

    def lines_that_name(self, file: str) -> dict[str, list[int]]:
        """The lines of Python, by file, that name a Lua script or one that includes it."""
        package = self.checkout / file.partition("/")[0]
        texts = {script_name(path, package): path.read_text() for path in package.rglob("*.lua")}
        names = {script_name(self.checkout / file, package)}
        while True:
            said = re.compile(rf"^--@include ({'|'.join(map(re.escape, sorted(names)))})$", re.M)
            more = {name for name, text in texts.items() if said.search(text)}
            if more <= names:
                break
            names |= more
        said = {rf"{re.escape(name)}[\"']" for name in names}
        owners = {re.escape(os.path.dirname(name)) for name in names}
        said |= {rf"{owner}/\w*\{{" for owner in owners}  # f"queues/{name}"
        wanted = re.compile(rf"[\"']({'|'.join(sorted(said))})")
        found: dict[str, list[int]] = {}
        for path in sorted(package.rglob("*.py")):
            lines = [
                near
                for n, line in enumerate(path.read_text().splitlines(), 1)
                if wanted.search(line)
                for near in range(n - 2, n + 3)  # a call may begin before, or end after
            ]
            if lines:
                found[os.path.relpath(path, self.checkout)] = lines
        return found

    def users_of_script(self, file: str) -> set[str]:
        """The tests that run a line which names a Lua script, or one that includes it."""
        cached = self.__dict__.setdefault("_users", {})
        if file not in cached:
            found: set[str] = set()
            for name, numbers in self.lines_that_name(file).items():
                lines = self.lines_of(name)
                found |= {test for n in numbers for test in lines.get(n, ()) if test}
            cached[file] = found or set(self.durations)
        return cached[file]

    # -- running

    def run(self) -> int:
        files = self.expanded(self.asked.files) if self.asked.files else []
        self.asked.tests = self.expanded(self.asked.tests)
        mutants: list[Mutant] = []
        for file in files:
            mutants += mutants_of(file, (self.checkout / file).read_bytes())
        total = len(mutants)
        if self.asked.again:
            earlier = [json.loads(line) for line in Path(self.asked.again).read_text().splitlines()]
            wanted = {r["id"] for r in earlier if r["status"] in SURVIVED}
            if self.asked.only:
                wanted &= set(self.asked.only)
            sources = {r["file"] for r in earlier}
            if not files:
                mutants = [
                    m
                    for f in sorted(sources)
                    for m in mutants_of(f, (self.checkout / f).read_bytes())
                ]
            mutants = [m for m in mutants if m.id in wanted]
        else:
            mutants = drawn(mutants, self.asked.count, self.asked.seed, self.checkout)
            if self.asked.only:
                mutants = [m for m in mutants if m.id in self.asked.only]
        print(f"{len(mutants)} of {total} mutants of {len(files)} files", flush=True)
        named = equivalents()
        known = [m for m in mutants if m.place(self.checkout) in named]
        mutants = [m for m in mutants if m not in known]
        if known:
            print(f"{len(known)} of them are known to be equivalent")
        if self.asked.list:
            for mutant in mutants:
                print(mutant.id, mutant.said())
            return 0
        copies = [self.copy(n) for n in range(self.asked.jobs)]
        self.baseline(copies[0], mutants)
        queue, results = list(mutants), []
        random.Random(self.asked.seed).shuffle(queue)  # so that --time cuts off a fair sample
        queue.sort(key=lambda mutant: bool(mutant.scope))  # the last ones are the first
        self.until = time.monotonic() + (self.asked.time or 1e9)
        threads = [
            threading.Thread(target=self.work_off, args=(copy, queue, results)) for copy in copies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (self.work / "durations.json").write_text(json.dumps(self.durations))
        if queue:
            print(f"{len(queue)} mutants were not tried for lack of time")
        self.report(sorted(results, key=lambda r: (r["file"], r["start"])))
        return 0

    def work_off(self, copy: Path, queue: list[Mutant], results: list) -> None:
        servers = Servers(self, copy)
        while True:
            with self.lock:
                if not queue or time.monotonic() > self.until:
                    break
                mutant = queue.pop()
            try:
                result = self.tried(copy, servers, mutant)
            except (OSError, ValueError) as error:
                servers.end()
                result = {"status": "error", "why": repr(error)}
            with self.lock:
                said = {"id": mutant.id, **asdict(mutant), **result}
                results.append(said)
                with self.out.open("a") as out:
                    out.write(json.dumps(said) + "\n")
                print(
                    f"{result['status']:9}{result.get('wall', 0):6.1f} s  {mutant.said()}"
                    f"{'  by ' + result['by'] if result.get('by') else ''}",
                    flush=True,
                )
        servers.end()

    def tried(self, copy: Path, servers: Servers, mutant: Mutant) -> dict:
        with self.lock:
            order, runs = self.tests_for(mutant)
        if not runs or not order:
            return {"status": "unrun", "tests": 0, "left": len(order)}
        chosen, estimate = [], 0.0
        for test in order:
            if self.asked.budget and estimate > self.asked.budget:
                break
            chosen.append(test)
            estimate += self.durations.get(test, 0.2)
        left = len(order) - len(chosen)
        out: dict = {"wall": 0.0, "tests": 0, "ran": 0, "left": left}
        if mutant.scope:
            result = self.run_warm(copy, servers, mutant, chosen)
            if result["status"] != "cold":
                return result | {"tests": len(chosen), "left": left}
        for tests in rounds(chosen):
            result = self.run_tests(copy, servers.cold, mutant, tests)
            out["wall"] = round(out["wall"] + result.pop("wall"), 1)
            out["tests"] += len(tests)
            out["ran"] += result.pop("ran", 0)
            if result["status"] != "survived":
                break
        return out | result

    def run_warm(self, copy: Path, servers: Servers, mutant: Mutant, chosen: list[str]) -> dict:
        """Run tests on a mutant in a child of the process that has imported everything."""
        began = time.monotonic()
        for _ in range(4):
            chosen = [test for test in chosen if test not in self.broken]
            said = self.asked_warm(copy, servers.warm, mutant, chosen)
            if said["status"] != 1:
                break
            by = said["failed"][0]
            if not self.asked_warm(copy, servers.warm, None, [by])["status"]:
                break
            servers.end()
            if self.asked_warm(copy, servers.warm, None, [by])["status"]:
                self.broken.add(by)  # it fails by itself
        status = {0: "survived", 1: "killed", None: "timeout"}.get(said["status"], "cold")
        if said["status"] is None:
            servers.end()  # a server may still be at it
        out: dict = {"wall": round(time.monotonic() - began, 1), "ran": len(said["durations"])}
        out["status"] = status if chosen else "unrun"
        if status == "killed":
            out |= {"by": said["failed"][0], "why": said["why"]}
            with self.lock:
                self.kills[out["by"]] += 1
        return out

    def asked_warm(
        self, copy: Path, server: subprocess.Popen, mutant: Mutant | None, tests: list[str]
    ) -> dict:
        estimate = sum(self.durations.get(test, 0.2) for test in tests)
        result = copy.parent / f"{copy.name}.json"
        result.unlink(missing_ok=True)
        limit = self.asked.limit + 3 * estimate
        asked = {"wanted": tests, "result": str(result), "limit": limit, "file": None}
        if mutant is not None:
            path = copy / mutant.file
            old = (self.checkout / mutant.file).read_bytes()
            new = mutant.applied(old)
            asked |= {"file": str(path), "old": old.decode(), "new": new.decode()}
            self.written(path, new)  # for processes that tests start
        try:
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            answer = json.loads(server.stdout.readline())
        finally:
            if mutant is not None:
                self.written(path, old)
        said = {"failed": [], "durations": {}, "why": []}
        if result.exists():
            said = json.loads(result.read_text())
        return said | answer

    def run_tests(
        self, copy: Path, server: subprocess.Popen, mutant: Mutant, chosen: list[str]
    ) -> dict:
        """Run tests on a mutant until one fails."""
        estimate = sum(self.durations.get(test, 0.2) for test in chosen)
        path = copy / mutant.file
        source = (self.checkout / mutant.file).read_bytes()
        shutil.rmtree(copy / ".hypothesis" / "examples", ignore_errors=True)
        self.written(path, mutant.applied(source))
        result, log = copy.parent / f"{copy.name}.json", copy.parent / f"{copy.name}.log"
        result.unlink(missing_ok=True)
        began = time.monotonic()
        try:
            server.stdin.write(
                json.dumps(
                    {
                        "args": [
                            "-x",
                            *self.pytest_args,
                            *sorted({t.partition("::")[0] for t in chosen}),
                        ],
                        "wanted": chosen,
                        "result": str(result),
                        "log": str(log),
                        "limit": self.asked.limit + 3 * estimate,
                    }
                )
                + "\n"
            )
            server.stdin.flush()
            status = json.loads(server.stdout.readline())["status"]
        finally:
            self.written(path, source)
        wall = round(time.monotonic() - began, 1)
        out: dict = {"wall": wall}
        if status is None:
            return out | {"status": "timeout"}
        said = (
            json.loads(result.read_text()) if result.exists() else {"failed": [], "durations": {}}
        )
        with self.lock:
            self.durations.update(said["durations"])
            if said["failed"]:
                self.kills[said["failed"][0]] += 1
        if status == 0:
            return out | {"status": "survived", "ran": len(said["durations"])}
        if status == 5:
            return out | {"status": "error", "why": "no test was collected"}
        tail = [x for x in log.read_text(errors="replace").splitlines() if x.startswith("E  ")][:4]
        by = said["failed"][0] if said["failed"] else f"exit status {status}"
        return out | {"status": "killed", "by": by, "why": tail}

    @staticmethod
    def written(path: Path, source: bytes) -> None:
        """Write a file, and forget what was compiled of it."""
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)

    def report(self, results: list[dict]) -> None:
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for result in results:
            table[result["file"]][result["status"]] += 1
        print(f"\n{'file':52}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'unrun':>6}")
        for file, of_file in [*sorted(table.items()), ("all", sum(table.values(), Counter()))]:
            print(
                f"{file:52}{of_file.total():8}{of_file['killed']:8}{of_file['timeout']:8}"
                f"{of_file['survived']:9}{of_file['unrun']:6}"
            )
        tried = [result["status"] for result in results if result["status"] != "error"]
        killed = sum(status not in SURVIVED for status in tried)
        print(f"score: {killed} of {len(tried)}, {killed / max(1, len(tried)):.1%}")
        for result in results:
            if result["status"] in SURVIVED:
                print(
                    f"\n{result['id']} {result['status']} {result['file']}:{result['line']}"
                    f" [{result['op']}] left: {result.get('left')}"
                )
                if self.asked.diff:
                    self.show(result)

    def show(self, result: dict) -> None:
        source = (self.checkout / result["file"]).read_bytes()
        old = source.decode().splitlines()
        new = (
            source[: result["start"]] + result["new"].encode() + source[result["end"] :]
        ).decode()
        new = new.splitlines()
        first = result["line"] - 1
        same = 0
        while (
            same < len(old) - first and same < len(new) - first and old[-1 - same] == new[-1 - same]
        ):
            same += 1
        for n in range(max(0, first - 2), first):
            print(f"      {old[n]}")
        for line in old[first : len(old) - same]:
            print(f"    - {line}")
        for line in new[first : len(new) - same]:
            print(f"    + {line}")


def contexts(data: str, wanted_file: str, result: str) -> None:
    """Write which tests run which lines of the wanted files as JSON.

    In one pass over coverage's tables: its own methods take one for each file.
    """
    wanted = json.loads(Path(wanted_file).read_text())
    with contextlib.closing(sqlite3.connect(data)) as read:
        names = {}
        for file_id, file in read.execute("SELECT id, path FROM file"):
            known = [name for name in wanted if file == name or file.endswith("/" + name)]
            names |= dict.fromkeys([file_id] if known else [], known[:1])
        # "" stands for what ran outside of tests: an import, a process of a session
        said = dict(read.execute("SELECT id, context FROM context"))
        tests = {n: context.rpartition("|")[0] or context for n, context in said.items()}
        numbers: dict[str, int] = {}
        out: dict[str, dict[int, set[int]]] = {}
        chosen = ",".join(map(str, names))
        arcs = f"SELECT file_id, context_id, fromno, tono FROM arc WHERE file_id IN ({chosen})"
        for file_id, context, *lines in read.execute(arcs):
            [name] = names[file_id]
            for line in lines:
                if line > 0 and (wanted[name] is None or line in wanted[name]):
                    number = numbers.setdefault(tests[context], len(numbers))
                    out.setdefault(name, {}).setdefault(line, set()).add(number)
    found = {name: {n: sorted(of) for n, of in lines.items()} for name, lines in out.items()}
    Path(result).write_text(json.dumps({"tests": list(numbers), "files": found}))


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in (
        "--serve",
        "--warm",
        "--pytest",
        "--probe",
        "--contexts",
    ):
        verb, *rest = sys.argv[1:]
        sys.path[0] = os.getcwd()
        if verb == "--serve":
            serve(rest[0])
        elif verb == "--warm":
            warm(rest[0], rest[1], rest[2:])
        elif verb == "--pytest":
            run_pytest(rest[1:], None, rest[0])
        elif verb == "--probe":
            probe(rest[0], rest[1], rest[2:])
        else:
            contexts(*rest)
        return 0
    parser = argparse.ArgumentParser(
        description="Mutation testing with pytest; the docstring says more.",
        usage="mutants.py CHECKOUT FILE... --tests PATH... --count N --seed S --python PY",
    )
    add = parser.add_argument
    add("checkout")
    add("files", nargs="*", help="relative to the checkout; globs are fine")
    add("--tests", nargs="+", required=True, help="relative to the checkout; globs are fine")
    add("--count", type=int, default=30, help="mutants, of all files together (30)")
    add("--seed", type=int, default=1)
    add(
        "--python",
        default=sys.executable,
        help="the interpreter with pytest and the library's needs",
    )
    add("--jobs", type=int, default=2, help="mutants at a time (2)")
    add(
        "--limit",
        type=float,
        default=60,
        help="seconds for a test, and a mutant's tests beyond 3 x their estimate (60)",
    )
    add("--budget", type=float, help="estimated seconds of tests for a mutant (no limit)")
    add("--time", type=float, help="start no mutant after so many seconds of mutants")
    add("--coverage", help="coverage data with a context for each test, instead of a baseline run")
    add("--work", help="folder for copies and results (a new temporary one)")
    add("--out", help="results, JSON lines, appended to (WORK/results.jsonl)")
    add("--again", help="run the survivors of these results again")
    add("--only", nargs="+", help="only mutants with these ids")
    add("--list", action="store_true", help="list the mutants, run nothing")
    add("--diff", action="store_true", help="show survivors with their context")
    return Driver(parser.parse_intermixed_args()).run()


if __name__ == "__main__":
    sys.exit(main())
