"""Named queries from .sql files, filled in once for a dialect.

A statement takes one parameter, a JSON array of objects, so it is the same for every driver that a user's transaction
may use. `{rows: n bigint, …}` reads it as a table.

A batch statement must cost the same per row for any batch size and any statistics: one planned while a table was empty
once scanned it whole for each row. So the rows always drive: `{seek: jobs j ON j.n = t.n}` looks a row up for each of
them and can't be reordered (`{seek_any: …}` keeps rows without a match, `{seek_lock: …}` locks what it finds). In the
same way `n {among: n bigint}` is a search in an index, not a join, and so is `n {any_of} SELECT … {end_any}` for the
rows of a query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import get_args, get_type_hints

from treadle.model.fields import KEPT_FIELDS, PLAIN, Given

TABLES = (
    "topics pauses lanes jobs ready later held parked leases running outcomes keys limits wakes replaced members "
    "deadlines starts notes events steps step_results children answers output channels deliveries outbox tally "
    "tally_hist workers leaders token stale_marks records migrations"
).split()

_NAME = re.compile(r"^-- name: (\w+)\n", re.M)
_ROWS = re.compile(r"\{rows: ([^}]*)\}")
_AMONG = re.compile(r"\{among: (\w+) (\w+)\}")
_SEEK = re.compile(r"\{seek(_any|_lock)?: (\w+) (\w+) ON ([^}]*)\}")
_JSON = re.compile(r"\{json: ([^}]*)\}")
_JSON_TEXT = re.compile(r"\{json_text: ([^}]*)\}")
_SIZE = re.compile(r"\{size: ([^}]*)\}")
_WITHOUT = re.compile(r"\{without_replaced: ([^}]*)\}")
_JSON_AT = re.compile(r"\{json_at: (\S+) ([\w.]+)\}")
# A stored event may also imply a start, one that took a job out of `completed` that ending and its start, and a requeue
# that the job was stale.
_TOLD = """SELECT count(*) + count({json_at: e.metadata startedAt})
        + count(CASE e.from_status WHEN 'completed' THEN 1 END)
        + count(CASE e.from_status WHEN 'completed' THEN {json_at: e.metadata outcome.startedAt} END)
        + count({json_at: e.metadata outcome.staleAt}) FROM {events} e"""

# Parts of other queries, which say for which {job}.
_FRAGMENTS = ("step_document", "current_step", "step_progress")
_ON_STEP_CONFLICT = "on_step_conflict"
_MAY_GO = "may_go"
_ANY = re.compile(r"\{any: (\w+)\}")
_DATE = re.compile(r"\{date: ([^}]*)\}")
# Results of steps, which lists leave out: a page of jobs with many steps would be large.
_STEP_RESULT = re.compile(r"'result', \{parsed: .*\},$", re.M)
_PARSED = re.compile(r"\{parsed: (.*)\},$", re.M)


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    sql: str
    packed: bool = False
    """Answers with one row that holds all rows as a JSON array."""


def _postgres_rows(columns: str) -> str:
    return f"json_to_recordset(CAST($1 AS json)) AS t({columns})"


def _sqlite_rows(columns: str) -> str:
    names = [column.split()[0] for column in columns.split(",")]
    picks = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {picks} FROM json_each(?1)) AS t"


def _postgres_among(name: str, kind: str) -> str:
    return f"= ANY(ARRAY(SELECT t.{name} FROM {_postgres_rows(f'{name} {kind}')}))"


def _sqlite_among(name: str, _kind: str) -> str:
    return f"IN (SELECT json_extract(value, '$.{name}') FROM json_each(?1))"


def _postgres_seek(how: str | None, table: str, alias: str, condition: str) -> str:
    # OFFSET keeps the planner from treating it as a normal join and choosing the order.
    lock = " FOR UPDATE" if how == "_lock" else ""
    found = f"LATERAL (SELECT * FROM {{{table}}} {alias} WHERE {condition} OFFSET 0{lock}) {alias}"
    return f"LEFT JOIN {found} ON true" if how == "_any" else f"CROSS JOIN {found}"


def _sqlite_seek(how: str | None, table: str, alias: str, condition: str) -> str:
    kind = "LEFT" if how == "_any" else "CROSS"  # neither of which SQLite reorders
    return f"{kind} JOIN {{{table}}} {alias} ON {condition}"


_DIALECTS = {
    "postgres": {
        "now": "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "any_of": "= ANY(ARRAY(",
        "end_any": "))",
        "key_share": "FOR KEY SHARE",
    },
    # unixepoch('subsec') needs SQLite 3.42 and is silently NULL before; julianday is exact to the millisecond.
    "sqlite": {
        "now": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        "for_update": "",
        "skip_locked": "",
        "any_of": "IN (",
        "end_any": ")",
        "key_share": "",
    },
}


def _postgres_at(column: str, path: str) -> str:
    names = ", ".join(f"'{name}'" for name in path.split("."))
    return f"json_extract_path_text({column}, {names})"


def _sqlite_at(column: str, path: str) -> str:
    return f"json_extract({column}, '$.{path}')"


# Bytes of a document. PostgreSQL unpacks a compressed one to tell.
_POSTGRES_SIZE = (
    r"CASE WHEN pg_column_compression(\1) IS NULL THEN pg_column_size(\1) ELSE octet_length(CAST(\1 AS text)) END"
)
_SQLITE_SIZE = r"length(CAST(\1 AS BLOB))"
# The metadata of a requeue, with null for the old payload and the old result.
_POSTGRES_WITHOUT = (
    r"CAST(jsonb_set(jsonb_set(CAST(\1 AS jsonb), ARRAY['payload'], 'null', false),"
    r" ARRAY['outcome', 'result'], 'null', false) || jsonb_build_object('truncated', true) AS text)"
)
_SQLITE_WITHOUT = (
    r"json_set(json_replace(\1, '$.payload', NULL, '$.outcome.result', NULL), '$.truncated', json('true'))"
)


@cache
def told_events(dialect: str) -> str:
    """Counts events as `insights.timeline` lists them, before the WHERE that selects the job."""
    return _fill("{told_events}", dialect)


@cache
def step_columns(dialect: str, job: str) -> Mapping[str, str]:
    """What is derived from the steps of job number `job`: each part of a query by its name."""
    return {name: _fill("{%s}" % name, dialect).replace("{job}", job) for name in _FRAGMENTS}


def _fill_steps(sql: str, postgres: bool) -> str:
    for name in _FRAGMENTS:
        if "{%s}" % name in sql:
            sql = sql.replace("{%s}" % name, f"({_texts('common.sql')[name]})")
    for name in (_ON_STEP_CONFLICT, _MAY_GO):
        sql = sql.replace("{%s}" % name, _texts("common.sql")[name])
    sql = sql.replace("{json_array}", "json_agg" if postgres else "json_group_array")
    sql = sql.replace("{json_object}", "json_build_object" if postgres else "json_object")
    sql = sql.replace("{json: x.entry}", "x.entry" if postgres else "json(x.entry)")
    sql = _ANY.sub(r"count(CASE s.state WHEN '\1' THEN 1 END) > 0", sql)
    sql = sql.replace("{done}", "CASE WHEN s.state IN ('completed', 'skipped') THEN 1 END")
    sql = _PARSED.sub(r"CAST(\1 AS json)," if postgres else r"json(\1),", sql)
    return _DATE.sub(_POSTGRES_DATE if postgres else _SQLITE_DATE, sql)


_SQLITE_DATE = r"strftime('%Y-%m-%dT%H:%M:%fZ', (\1) / 1000.0, 'unixepoch')"
_POSTGRES_DATE = (
    r"to_char(timestamp '1970-01-01' + (\1) * interval '1 millisecond', "
    r"""'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
)


_GIVEN = re.compile(r"\{(given|plain|kept)(?:: ([^}]*))?\}")
_SHAPES = {"given": Given._fields, "plain": Given._fields[:PLAIN], "kept": [field.name for field in KEPT_FIELDS]}
_TYPES = {name: "text" if str in get_args(hint) else "bigint" for name, hint in get_type_hints(Given).items()}
_HOOKED = "CASE WHEN EXISTS (SELECT 1 FROM {records} w WHERE w.kind = 'webhook') THEN 128 ELSE 0 END"
_DUE = re.compile(r"\{due: (\S+), (\S+)\}")


def _fill_given(found: re.Match[str]) -> str:
    """The names of what a job is given, as a list: `*` stands for each of them, `$11` for parameters from there on."""
    names, each = _SHAPES[found[1]], found[2] or "*"
    if each.startswith("$"):
        return ", ".join(f"${number}" for number in range(int(each[1:]), int(each[1:]) + len(names)))
    return ", ".join(each.replace("*", name).replace("TYPE", _TYPES.get(name, "")) for name in names)


def _fill(sql: str, dialect: str) -> str:
    postgres = dialect == "postgres"
    sql = _DUE.sub(r"coalesce(\1, {now} + \2)", _GIVEN.sub(_fill_given, sql))
    sql = _fill_steps(sql.replace("{told_events}", _TOLD).replace("{hooked}", _HOOKED), postgres)
    sql = _ROWS.sub(lambda m: (_postgres_rows if postgres else _sqlite_rows)(" ".join(m[1].split())), sql)
    sql = _AMONG.sub(lambda m: (_postgres_among if postgres else _sqlite_among)(m[1], m[2]), sql)
    sql = _SEEK.sub(lambda m: (_postgres_seek if postgres else _sqlite_seek)(m[1], m[2], m[3], m[4]), sql)
    sql = _JSON.sub(r"CAST(\1 AS json)" if postgres else r"\1", sql)
    sql = _JSON_TEXT.sub(r"CAST(\1 AS text)" if postgres else r"\1", sql)
    sql = _SIZE.sub(_POSTGRES_SIZE if postgres else _SQLITE_SIZE, sql)
    sql = _WITHOUT.sub(_POSTGRES_WITHOUT if postgres else _SQLITE_WITHOUT, sql)
    sql = _JSON_AT.sub(lambda m: (_postgres_at if postgres else _sqlite_at)(m[1], m[2]), sql)
    for name, text in _DIALECTS[dialect].items():
        sql = sql.replace("{%s}" % name, text)
    for table in TABLES:
        sql = sql.replace("{%s}" % table, f"treadle.{table}" if postgres else f"treadle_{table}")
    return sql


@cache
def _texts(file: str) -> dict[str, str]:
    """The queries of a file as they are written, without their comments."""
    text = files("treadle.store.sql").joinpath(file).read_text()
    parts = _NAME.split(text)[1:]
    return {
        name: "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def _packed(file: str) -> frozenset[str]:
    text = files("treadle.store.sql").joinpath(file).read_text()
    return frozenset(re.findall(r"^-- name: (\w+)\n-- packed:", text, re.M))


def _read(file: str, dialect: str) -> dict[str, Query]:
    packed = _packed(file)
    return {
        name: Query(name, _fill(sql, dialect).replace("{job}", "j.n"), name in packed)
        for name, sql in _texts(file).items()
    }


@cache
def load(dialect: str) -> dict[str, Query]:
    """All queries of a dialect by name."""
    queries: dict[str, Query] = {}
    for file in ("common.sql", "output.sql", "children.sql", "webhooks.sql", f"{dialect}.sql"):
        queries |= _read(file, dialect)
    for name, page in (("jobs_by_id", "page_by_id"), ("jobs_by_number", "page_by_number")):
        queries[name] = Query(name, f"WITH page AS ({queries[page].sql}) {queries['view'].sql}")
    steps = _STEP_RESULT.sub("'result', NULL,", _texts("common.sql")["step_document"])
    in_lists = _fill(_texts("common.sql")["view"].replace("{step_document}", f"({steps})"), dialect)
    queries["view_in_lists"] = Query("view_in_lists", in_lists.replace("{job}", "j.n"))
    return queries
