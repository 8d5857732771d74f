"""docs/sql.md: its statements run, each on the database that its section is about."""

import re
import sqlite3
from pathlib import Path

import psycopg

from tests.examples.blocks import ROOT
from treadle import Queue

PAGE = (ROOT / "docs/sql.md").read_text()


def statements(section: str) -> str:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"^```sql\n(.*?)^```$", text, re.M | re.S))


async def test_postgresql(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("CREATE TABLE orders (id integer)")
            connection.execute(statements("PostgreSQL"))
            connection.execute("INSERT INTO orders VALUES (7)")
        assert [job.payload for job in await queue.list()] == [{"order": 7}, {"to": "ada"}, {"to": "ada"}]


async def test_sqlite(tmp_path: Path) -> None:
    async with Queue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        connection.executescript(statements("SQLite"))
        connection.close()
        assert [job.payload for job in await queue.list()] == [{"to": "ada"}]


async def test_the_rights_that_the_page_names_are_enough(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("""
                CREATE ROLE shop;
                GRANT USAGE ON SCHEMA treadle TO shop;
                GRANT USAGE ON ALL SEQUENCES IN SCHEMA treadle TO shop;
                GRANT SELECT ON ALL TABLES IN SCHEMA treadle TO shop;
                GRANT INSERT ON treadle.jobs, treadle.lanes, treadle.ready, treadle.later, treadle.deadlines TO shop;
                SET ROLE shop;
                SELECT treadle.enqueue('new.topic', '{}', '{"delay": 60, "expires": "1h"}');
                SELECT treadle.enqueue('new.topic');
                RESET ROLE;
                DROP OWNED BY shop; DROP ROLE shop;
            """)
        assert await queue.count(topic="new.topic") == 2
