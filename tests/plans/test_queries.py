"""Named queries: each is used, each is there in both dialects, each says what it is for."""

import ast
import re
from importlib.resources import files
from pathlib import Path

import pytest

from treadle.store.sql.queries import TABLES, load

SOURCES = Path(str(files("treadle")))
FILES = {name: (SOURCES / "store" / "sql" / f"{name}.sql").read_text() for name in ("common", "postgres", "sqlite")}
NAMES = {file: re.findall(r"^-- name: (\w+)$", text, re.M) for file, text in FILES.items()}


def words_of(path: Path) -> set[str]:
    """Every string in a module that could name a query; f-strings with their gaps open."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
            words.add("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    return words


def used(name: str, words: set[str]) -> bool:
    patterns = [re.escape(word).replace(r"\*", r"\w+") for word in words if "*" in word and word.strip("*")]
    return name in words or any(
        re.fullmatch(pattern, name) for pattern in patterns if pattern.startswith(("take_", "lock_"))
    )


@pytest.mark.parametrize("file", FILES)
def test_every_query_is_used(file: str) -> None:
    words = set().union(*(words_of(path) for path in SOURCES.rglob("*.py")))
    assert [name for name in NAMES[file] if not used(name, words)] == []


def test_what_the_scripts_use_is_there_in_both_dialects() -> None:
    scripts = set().union(*(words_of(path) for path in (SOURCES / "store" / "sql" / "scripts").glob("[a-z]*.py")))
    scripts |= words_of(SOURCES / "store" / "sql" / "store.py") | words_of(SOURCES / "store" / "sql" / "lists.py")
    known = {name for names in NAMES.values() for name in names}
    asked = {name for name in known if used(name, scripts)}
    assert asked
    for dialect in ("postgres", "sqlite"):
        assert asked - set(load(dialect)) == set(), dialect


def test_no_script_asks_for_a_query_that_is_not_there() -> None:
    for path in (SOURCES / "store" / "sql" / "scripts").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                first = node.value.elts[0]
                if isinstance(first, ast.Constant):
                    assert first.value in load("sqlite"), f"{path.name}:{node.lineno}"
                    assert first.value in load("postgres"), f"{path.name}:{node.lineno}"


def test_a_query_has_one_name_and_one_home() -> None:
    assert {file: len(names) - len(set(names)) for file, names in NAMES.items()} == dict.fromkeys(FILES, 0)
    assert set(NAMES["common"]) & (set(NAMES["postgres"]) | set(NAMES["sqlite"])) == set()


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_nothing_is_left_to_fill_in(dialect: str) -> None:
    for query in load(dialect).values():
        left = re.findall(r"\{[a-z_]+[^}]*\}", query.sql.replace("'{}'", ""))
        assert left == [], query.name


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_every_table_is_known(dialect: str) -> None:
    prefix = "treadle." if dialect == "postgres" else "treadle_"
    for query in load(dialect).values():
        tables = re.findall(rf"(?:FROM|JOIN|INTO|UPDATE) {re.escape(prefix)}(\w+)", query.sql)
        assert set(tables) <= set(TABLES), query.name
