"""Tests can fail: each asserts something, says which error it expects, and why it sleeps."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BY_ROWS = "test_a_library_works_on_what_its_row_gives_it"  # the rows assert
# They say nothing but their names.
WITHOUT_TEXT = {
    "Killed",  # a mover that dies in the middle
    "KeyboardInterrupt",
    "StopAsyncIteration",
    "StopIteration",
    "asyncio.CancelledError",
    "asyncio.TimeoutError",
}
# Called with something that has items, they give something that has.
AS_MANY = {"dict", "enumerate", "gather", "items", "list", "product", "reversed", "set", "sorted"}
AS_MANY |= {"keys", "tuple", "values", "zip"}


class Module:
    """The code of a file, and what it says of names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text("utf-8")
        self.lines = text.splitlines()
        self.nodes: list[ast.AST] = []
        self.assigned: dict[str, ast.expr] = {}
        self.classes: set[str] = set()
        self.imported: list[tuple[str, str, str]] = []
        # Of each class, function and .method, what it names; "assert" is among it if it asserts.
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        self._read(ast.parse(text), ())
        self.asserting = {"assert", ".raises", ".warns", ".fail"}

    def _read(self, node: ast.AST, within: tuple[set[str], ...]) -> None:
        """Note a node and what is in it; who is defined around it names what it names."""
        self.nodes.append(node)
        if name := named(node):
            for each in within:
                each.add(name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self.assigned.setdefault(target.id, node.value)
        elif isinstance(node, ast.ImportFrom):
            stem = (node.module or "").rpartition(".")[2]
            self.imported += [(stem, each.name, each.asname or each.name) for each in node.names]
        elif isinstance(node, ast.ClassDef):
            self.classes.add(node.name)
            within = (*within, self.named[node.name])
        elif isinstance(node, FUNCTIONS):
            within = (*within, self.named[node.name])
        for each in ast.iter_child_nodes(node):
            method = isinstance(node, ast.ClassDef) and isinstance(each, FUNCTIONS)
            self._read(each, (*within, self.named[f".{each.name}"]) if method else within)

    def learn(self, modules: dict[str, Module]) -> bool:
        """Note which functions assert by calling what does; return whether there are more now."""
        count = len(self.asserting)
        for stem, name, known_as in self.imported:
            theirs = modules[stem].asserting if stem in modules else set()
            self.asserting |= {known_as} if name in theirs else set()
            self.asserting |= {each for each in theirs if each.startswith(".")}
        for name, others in self.named.items():
            if others & self.asserting:
                self.asserting.add(name)
        return len(self.asserting) > count

    def states(self, node: ast.AST) -> bool:
        """Whether anything in an expression or a statement is an assertion, or calls one."""
        return any(named(each) in self.asserting for each in ast.walk(node))

    def assert_surely(self, statements: Iterable[ast.stmt]) -> bool:
        """Whether statements assert something whenever they run, before any of them leaves."""
        for node in statements:
            if self._asserts(node):
                return True
            if self._leaves(node):
                return False
        return False

    def _leaves(self, node: ast.AST, inside: bool = False) -> bool:
        """Whether a statement may end its function, or a turn of a loop around it, unasserted.

        Args:
            node: the statement, or a part of it.
            inside: whether it is in a loop that it does not end by ending a turn.
        """
        match node:
            case ast.Return():
                return True
            case ast.Continue() | ast.Break():
                return not inside
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.expr():
                return False
            case ast.If(body=body, orelse=orelse):
                branches = [each for each in (body, orelse) if not self.assert_surely(each)]
                return any(self._leaves(each, inside) for branch in branches for each in branch)
        inside = inside or isinstance(node, LOOPS)
        return any(self._leaves(each, inside) for each in ast.iter_child_nodes(node))

    def _asserts(self, node: ast.stmt) -> bool:
        match node:
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                stated = any(map(self.states, items))
                hides = any(called(item.context_expr) == "suppress" for item in items)
                return stated or (not hides and self.assert_surely(body))
            case ast.If(body=body, orelse=orelse):
                return self.assert_surely(body) and self.assert_surely(orelse)
            case ast.For(iter=of, body=body) | ast.AsyncFor(iter=of, body=body):
                return self.states(of) or (self._has_items(of) and self.assert_surely(body))
            case ast.While(test=test, body=body):
                endless = isinstance(test, ast.Constant)
                return self.states(test) or (endless and self.assert_surely(body))
            case ast.Try(body=body, orelse=orelse, finalbody=finalbody, handlers=handlers):
                handled = [[*each.body, *finalbody] for each in handlers]
                return self.assert_surely([*body, *orelse, *finalbody]) and all(
                    self.assert_surely(each) or isinstance(each[-1], ast.Raise) for each in handled
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False  # unless it is called
        return self.states(node)

    def _has_items(self, node: ast.expr, depth: int = 0) -> bool:
        """Whether what a loop runs over has any; what a test is given is believed to."""
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return any(
                    not isinstance(part, ast.Starred) or self._has_items(part.value, depth)
                    for part in parts
                )
            case ast.Starred(value=value) | ast.Await(value=value) | ast.Subscript(value=value):
                return self._has_items(value, depth)
            case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops):
                return all(not loop.ifs and self._has_items(loop.iter, depth) for loop in loops)
            case ast.SetComp(generators=loops) | ast.DictComp(generators=loops):
                return all(not loop.ifs and self._has_items(loop.iter, depth) for loop in loops)
            case ast.Name(id=name) if name in self.assigned and not name.isupper() and depth < 9:
                return self._has_items(self.assigned[name], depth + 1)
            case ast.Call(func=function, args=args) if called(node) in AS_MANY:
                of = [function.value] if isinstance(function, ast.Attribute) and not args else args
                return all(self._has_items(each, depth) for each in of)
            case ast.Call():
                return called(node) in ("fromkeys", "range")
        return True


def called(node: ast.AST) -> str:
    """The name of the function or method that an expression calls; "" if it calls none."""
    function = getattr(node, "func", None)
    return getattr(function, "attr", None) or getattr(function, "id", "")


def named(node: ast.AST) -> str:
    """What an expression names, a method with a dot; "assert" for an assertion; "" for neither."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return "assert" if node.attr.startswith("assert") else f".{node.attr}"
    return "assert" if isinstance(node, ast.Assert) else ""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Module]]:
    """The files of tests, by the names by which they are imported."""
    paths = [path for path in sorted(TESTS.rglob("*.py")) if "golden" not in path.parts]
    gc.disable()  # it would look at a million nodes again and again
    try:
        found = {path.stem: Module(path) for path in paths}
        while sum(module.learn(found) for module in found.values()):
            pass
        yield found
    finally:
        gc.enable()


def test_each_test_asserts_something_whatever_happens(modules: dict[str, Module]) -> None:
    silent = [
        f"{stem}.py:{node.lineno}: {node.name}"
        for stem, module in modules.items()
        if stem.startswith("test_")
        for node in module.nodes
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_") and node.name != BY_ROWS
        if not module.assert_surely(node.body)
    ]
    assert silent == [], "\n".join(silent)


def test_who_expects_an_error_says_which(modules: dict[str, Module]) -> None:
    """By its text, or by what is asserted of it afterwards."""
    vague = []
    for stem, module in modules.items():
        examined = {
            item.context_expr
            for node in module.nodes
            if isinstance(node, ast.With | ast.AsyncWith)
            for item in node.items
            if item.optional_vars is not None
        }
        for call in module.nodes:
            if called(call) == "raises" and isinstance(call, ast.Call) and call not in examined:
                says = {keyword.arg for keyword in call.keywords} & {"match", "check"}
                if not says and ast.unparse(call.args[0]) not in WITHOUT_TEXT | module.classes:
                    vague.append(f"{stem}.py:{call.lineno}: {ast.unparse(call)}")
    assert vague == []


def test_who_sleeps_once_says_why(modules: dict[str, Module]) -> None:
    """In a comment on its line. For what others do, a test looks again until it is done."""
    sleep = re.compile(r"(time|asyncio)\.sleep\((?!0\))|threading\.Event\(\)\.wait\(")
    unexplained = []
    for stem, module in modules.items():
        if "simulation" in module.path.parts:
            continue  # where time does not pass
        loops = [node for node in module.nodes if isinstance(node, LOOPS)]
        repeated = {each for loop in loops for each in ast.walk(loop)}
        for call in module.nodes:
            if called(call) in ("sleep", "wait") and call not in repeated:
                said, line = ast.unparse(call), module.lines[call.lineno - 1]
                if sleep.match(said) and "  # " not in line:
                    unexplained.append(f"{stem}.py:{call.lineno}: {said}")
    assert unexplained == []
