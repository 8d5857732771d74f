"""Named queries: both dialects have the same ones, each is used and says what it is for."""

import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

import treadle
from treadle.store.sql.queries import TABLES, load

DIALECTS = ("postgres", "sqlite")
SHARED = ("common.sql", "output.sql", "children.sql", "webhooks.sql")
FILES = (*SHARED, "postgres.sql", "sqlite.sql")
STORE = Path(treadle.__file__).parent / "store"
PYTHON = {path: path.read_text() for path in STORE.rglob("*.py") if path.name != "__init__.py"}


def text(file: str) -> str:
    return files("treadle.store.sql").joinpath(file).read_text()


def names(file: str) -> list[str]:
    return re.findall(r"^-- name: (\w+)$", text(file), re.MULTILINE)


def users(name: str) -> list[Path]:
    """The modules that run this query. `steer` makes up names: f"take_{place}" and f"lock_{place}"."""
    made_up = re.fullmatch(r"(take|lock)_(ready|later|held|parked)", name)
    other = f"{made_up[1]}_{{place}}" if made_up else name
    spelled = re.compile(rf"""["']({name}|{re.escape(other)})["']""")
    return [path for path, code in PYTHON.items() if spelled.search(code)]


def own(dialect: str) -> list[Path]:
    """The modules that know only this dialect."""
    return sorted((STORE / dialect).glob("*.py"))


def test_every_query_has_its_twin_unless_only_one_dialect_runs_it() -> None:
    for dialect, other in (DIALECTS, DIALECTS[::-1]):
        for name in sorted(set(load(dialect)) - set(load(other))):
            assert set(users(name)) <= set(own(dialect)), f"{name} is in {dialect}.sql, but not in {other}.sql"


def test_no_name_is_given_twice() -> None:
    for dialect in DIALECTS:
        both = [name for file in (*SHARED, f"{dialect}.sql") for name in names(file)]
        assert len(both) == len(set(both))
        assert set(load(dialect)) == {*both, "jobs_by_id", "jobs_by_number", "view_in_lists"}, "three are put together"


def test_every_query_is_used() -> None:
    unused = [name for dialect in DIALECTS for name in load(dialect) if not users(name)]
    assert not unused


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_is_left_to_fill_in(dialect: str) -> None:
    for query in load(dialect).values():
        assert not re.search(r"\{\w+[:}]", query.sql), query.name
        assert query.sql.strip(), query.name
        assert "--" not in query.sql, query.name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_table_is_in_treadles_own_corner(dialect: str) -> None:
    corner = "treadle." if dialect == "postgres" else "treadle_"
    for query in load(dialect).values():
        tables = re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+([\w.]+)", query.sql)
        strangers = {name for name in tables if name.startswith("treadle") and not name.startswith(corner)}
        assert not strangers, query.name


def test_the_tables_are_those_of_the_migrations() -> None:
    for dialect, prefix in (("sqlite", "treadle_"), ("postgres", "treadle.")):
        folder = files("treadle.store.sql").joinpath("migrations", dialect)
        made = "".join(one.read_text() for one in folder.iterdir() if one.name.endswith(".sql"))
        found = re.findall(rf"CREATE (?:TABLE|SEQUENCE) {re.escape(prefix)}(\w+)", made)
        dropped = re.findall(rf"DROP TABLE {re.escape(prefix)}(\w+)", made)
        kept = set(found) - {name for name in dropped if found.count(name) == 1}
        assert kept | {"migrations"} == set(TABLES)


def test_a_shared_statement_has_one_parameter() -> None:
    for name in [name for file in SHARED for name in names(file)]:
        assert not re.search(r"\$[2-9]", load("postgres")[name].sql)
        assert not re.search(r"\?[2-9]", load("sqlite")[name].sql)


def test_rows_are_read_as_a_table_in_each_dialect() -> None:
    postgres, sqlite = load("postgres")["job_facts"].sql, load("sqlite")["job_facts"].sql
    assert "json_to_recordset(CAST($1 AS json)) AS t(n bigint)" in postgres
    assert "(SELECT json_extract(value, '$.n') AS n FROM json_each(?1)) AS t" in sqlite


def test_the_parameters_rows_drive_in_each_dialect() -> None:
    postgres, sqlite = load("postgres")["job_facts"].sql, load("sqlite")["job_facts"].sql
    assert "CROSS JOIN LATERAL (SELECT * FROM treadle.jobs j WHERE j.n = t.n OFFSET 0) j" in postgres
    assert "CROSS JOIN treadle_jobs j ON j.n = t.n" in sqlite
    postgres, sqlite = load("postgres")["take_ready"].sql, load("sqlite")["take_ready"].sql
    assert "n = ANY(ARRAY(SELECT t.n FROM json_to_recordset(CAST($1 AS json)) AS t(n bigint)))" in postgres
    assert "n IN (SELECT json_extract(value, '$.n') FROM json_each(?1))" in sqlite


def test_only_queries_that_say_so_answer_with_one_packed_row() -> None:
    assert {query.name for query in load("sqlite").values() if query.packed} >= {"peek_lane"}
    assert not any(query.packed for query in load("postgres").values())


def test_sqlites_clock_is_the_time_in_milliseconds() -> None:
    connection = sqlite3.connect(":memory:")
    sql = load("sqlite")["clock"].sql
    before, now, after = (connection.execute(text).fetchone()[0] for text in (EPOCH_MS, sql, EPOCH_MS))
    connection.close()
    assert before - 1 <= now <= after + 1


# Whole seconds and the fraction apart: another way to the same number.
EPOCH_MS = "SELECT strftime('%s', 'now') * 1000 + substr(strftime('%f', 'now'), 4)"


def test_a_dialect_is_loaded_once() -> None:
    assert load("sqlite") is load("sqlite")
