"""Every way to break `lifecycle.py` a little is noticed by `test_lifecycle.py`.

The module is read, changed in one spot (a comparison flipped, a constant changed, a branch dropped …), put in place of
the real one, and the lifecycle tests run against it here in this process. A change that no test notices is a survivor.
"""

import ast
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from treadle.model.status import Status
from treadle.policy import lifecycle

SOURCE = Path(lifecycle.__file__).read_text()
TESTS = Path(__file__).with_name("test_lifecycle.py")

FLIPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
STATUSES = [status.name for status in Status]


# -- making mutants ----------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in this node's place."""
    match node:
        case ast.Compare(left, [op], [right]):
            for kind in FLIPPED[type(op)]:
                yield ast.Compare(left, [kind()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            yield from values
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield ast.If(ast.Constant(value=False), body, orelse)
            yield ast.If(ast.Constant(value=True), body, orelse)
        case ast.IfExp(test, body, orelse):
            yield body
            yield orelse
        case ast.BinOp(left, ast.Sub(), right):
            yield ast.BinOp(left, ast.Add(), right)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(str(value)):
            yield ast.Constant(value + "~")
        case ast.Constant(None):
            yield ast.Constant("mutant")
        case ast.Attribute(ast.Name("Status") as owner, name) if name in STATUSES:
            yield ast.Attribute(owner, STATUSES[STATUSES.index(name) - 1], ast.Load())
        case ast.Name("max"):
            yield ast.Name("min", ast.Load())
        case ast.Set(elements):
            yield from (ast.Set([*elements[:i], *elements[i + 1 :]]) for i in range(len(elements)))
        case ast.Call(function, arguments, keywords):
            for i in range(len(keywords)):
                yield ast.Call(function, arguments, [*keywords[:i], *keywords[i + 1 :]])
            if isinstance(function, ast.Attribute) and not arguments and not keywords:
                yield function.value  # error.strip() -> error
        case ast.comprehension(target, source, [_], is_async):
            yield ast.comprehension(target, source, [], is_async)
        case ast.Match(subject, cases):
            yield from (ast.Match(subject, [*cases[:i], *cases[i + 1 :]]) for i in range(len(cases) - 1))
        case ast.Return(value) if value is not None:
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Expr(ast.Call()):
            yield ast.Pass()


Put = Callable[[ast.AST], None]


def spots(tree: ast.AST) -> Iterator[tuple[ast.AST, Put]]:
    """Every node that runs, and how to put another in its place."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        nodes = value if isinstance(value, list) else [value]
        for i, node in enumerate(nodes):
            if isinstance(node, ast.AST) and not skipped(node):
                yield node, partial(value.__setitem__, i) if isinstance(value, list) else partial(setattr, tree, name)
                yield from spots(node)


def skipped(node: ast.AST) -> bool:
    """Docstrings, imports, what is only for types, and the case that never happens."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()) | ast.ClassDef("JobState"):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
        case ast.match_case(ast.MatchAs(None)):
            return True
    return False


def mutants() -> Iterator[tuple[str, CodeType]]:
    tree = ast.parse(SOURCE)
    for node, put in list(spots(tree)):
        for change in changes(node):
            line = getattr(node, "lineno", getattr(getattr(node, "iter", None), "lineno", "?"))
            what = f"line {line}: {ast.unparse(node)[:70]!r} became {ast.unparse(change)[:70]!r}"
            put(change)
            yield what, compiled(ast.fix_missing_locations(tree))
            put(node)


def compiled(tree: ast.Module) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a literal
        return compile(tree, "<mutant>", "exec")


# -- running the tests against one -------------------------------------------------------------------


def load(code: CodeType, name: str) -> ModuleType:
    module = ModuleType(name)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    finally:
        if previous is not None:
            sys.modules[name] = previous
        else:
            del sys.modules[name]
    return module


def calls(module: ModuleType) -> Iterator[Callable[[], object]]:
    """Every test of the module, once for each of its parameters."""
    for name, function in vars(module).items():
        if name.startswith("test_"):
            marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
            if not marks:
                yield function
            for mark in marks:
                names, rows = mark.args
                for row in rows:
                    values = (row,) if isinstance(names, str) else row
                    arguments = dict(zip([names] if isinstance(names, str) else names, values, strict=True))
                    yield partial(function, **arguments)


def survives(mutant: CodeType, tests: CodeType, monkeypatch: pytest.MonkeyPatch) -> bool:
    try:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "treadle.policy.lifecycle", load(mutant, "treadle.policy.lifecycle"))
            for call in calls(load(tests, "tests.unit.lifecycle_under_mutation")):
                call()
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.fixture(scope="module")
def tests() -> CodeType:
    return compile(TESTS.read_text(), str(TESTS), "exec")


def test_the_unchanged_module_passes(tests: CodeType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert survives(compile(SOURCE, "<original>", "exec"), tests, monkeypatch)


def test_every_mutant_is_killed(tests: CodeType, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list(mutants())
    survivors = [what for what, code in made if survives(code, tests, monkeypatch)]
    assert len(made) > 300
    assert not survivors, f"{len(survivors)} of {len(made)} changes went unnoticed:\n" + "\n".join(survivors)
