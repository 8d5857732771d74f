"""docs/architecture.md and the decision records name files, classes, functions and queries that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PLACES = [ROOT, ROOT / "src" / "treadle", ROOT / "src" / "treadle" / "store"]


def named(page: Path) -> set[str]:
    """Folders in backticks, and every Python and SQL file."""
    text = page.read_text()
    return {*re.findall(r"`((?:\w+/)+)`", text), *re.findall(r"((?:\w+/)*[\w*]+\.(?:py|sql)\b)", text)}


def definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """What a file defines: the names of classes, functions, attributes and constants."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
            yield from ((one.arg, one) for one in ast.walk(node) if isinstance(one, ast.arg))
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield (node.attr if isinstance(node, ast.Attribute) else node.id), node


@cache
def defined() -> dict[Path, dict[str, ast.AST]]:
    return {path: dict(definitions(path)) for path in (ROOT / "src" / "treadle").rglob("*.py")}


@cache
def everywhere() -> frozenset[str]:
    """Names in any Python file, and words in any SQL file."""
    sql = (word for path in (ROOT / "src").rglob("*.sql") for word in re.findall(r"\w+", path.read_text()))
    return frozenset([*(name for names in defined().values() for name in names), *sql])


ELSEWHERE = {
    # packages and modules of other projects, and words of SQLite
    "asyncpg", "data_version", "sqlite3", "ctypes", "import-linter", "treadle",
}  # fmt: skip


def names_of_code(text: str) -> set[str]:
    """In backticks: `decide`, `Queue.work()`, `lifecycle.decide`, `leases.until`."""
    found = re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`", text)
    return {name for name in found if not name.endswith((".py", ".sql"))}


def is_defined(name: str) -> bool:
    """`module.name` and `Class.name`: the module or the file of the class has that name."""
    *owners, last = name.split(".")
    if name in ELSEWHERE or any(path.stem == last or path.parent.name == last for path in defined()):
        return True
    if not owners:
        return last in everywhere()
    owner = owners[-1]
    homes = [names for path, names in defined().items() if path.stem == owner or path.parent.name == owner]
    homes += [names for names in defined().values() if isinstance(names.get(owner), ast.ClassDef)]
    # An object is called by what it is: `store.advance`, `ctx.db`, `queue.asgi`; a table by its name.
    return any(last in names for names in homes) or {owner, last} <= everywhere()


def exists(name: str) -> bool:
    return any(list(place.glob(name) if "/" in name else place.rglob(name)) for place in PLACES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert [name for name in sorted(named(page)) if not exists(name)] == []


def test_every_name_of_code_is_defined() -> None:
    names = names_of_code((ROOT / "docs" / "architecture.md").read_text())
    assert len(names) > 40
    assert [name for name in sorted(names) if not is_defined(name)] == []


def test_every_class_in_the_diagrams_is_defined() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    diagrams = " ".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    names = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+\b|\b[A-Z]\w+\.\w+", diagrams))
    assert len(names) >= 5
    assert [name for name in sorted(names) if not is_defined(name)] == []


def test_the_code_that_is_shown_is_the_code() -> None:
    """Apart from annotations and documentation."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    shown = [node for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) for node in ast.parse(block).body]
    assert shown
    for function in shown:
        assert isinstance(function, ast.FunctionDef)
        found = [
            names[function.name]
            for names in defined().values()
            if isinstance(names.get(function.name), ast.FunctionDef)
        ]
        assert bare(function) in [bare(one) for one in found]


def bare(function: ast.AST) -> str:
    assert isinstance(function, ast.FunctionDef)
    for arg in function.args.args:
        arg.annotation = None
    function.returns = None
    return ast.unparse(function)


def test_the_table_of_verbs_is_the_protocol() -> None:
    """Decision 10 names every verb once, and functions of `policy` that exist."""
    text = (ROOT / "docs" / "decisions" / "0010-the-store-protocol-and-a-third-store.md").read_text()
    table = text.split("| verbs | MongoDB | policy it asks |")[1].split("\n\n")[0]
    named = [verb for row in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE) for verb in row.split()]
    store = defined()[ROOT / "src" / "treadle" / "store" / "protocol.py"]["Store"]
    assert isinstance(store, ast.ClassDef)
    verbs = [one.name for one in store.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    asked = names_of_code(" ".join(row.split("|")[-2] for row in table.strip().splitlines()))
    assert sorted(named) == sorted(verbs)
    assert len(asked) > 15
    assert [name for name in sorted(asked) if not is_defined(name)] == []
    assert f"has {len(verbs)} verbs" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_page_names_files_in_every_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    layers = [path.name for path in (ROOT / "src" / "treadle").iterdir() if (path / "__init__.py").exists()]
    assert [layer for layer in layers if layer not in text] == []


def test_the_dashboard_asks_insights():
    """Only `state.py` knows the store, to make what the pages ask: `state.insights` and the doctor."""
    pages = (ROOT / "src" / "treadle" / "dashboard").rglob("*.py")
    assert [page.name for page in pages if "queue.store" in page.read_text()] == ["state.py"]
