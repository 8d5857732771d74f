"""`treadle migrate`."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from treadle.store.sql.migrate import migrations

NAMES = [one.name for one in migrations("sqlite")]

pytestmark = pytest.mark.empty_database


@pytest.mark.every_store
def test_the_database_is_made_and_then_up_to_date(treadle: Command) -> None:
    assert treadle("migrate").done().out == f"applied {', '.join(NAMES)}\n"
    assert treadle("migrate").done().out == "the schema is up to date\n"
    assert treadle("migrate", "--json").done().json == {"applied": []}
    assert treadle("stats").done().out == "no jobs\n"


def test_json_names_what_was_applied(treadle: Command) -> None:
    assert treadle("migrate", "--json").done().json == {"applied": NAMES}


def test_check_changes_nothing(treadle: Command) -> None:
    if str(treadle.database).startswith("sqlite"):
        Path(str(treadle.database).removeprefix("sqlite:///")).touch()
    for _ in range(2):
        behind = treadle("migrate", "--check")
        assert (behind.code, behind.out) == (1, f"missing: {', '.join(NAMES)}; run treadle migrate\n")
        behind = treadle("migrate", "--check", "--json")
        assert (behind.code, behind.json) == (1, {"missing": NAMES})
    treadle("migrate").done()
    assert treadle("migrate", "--check").done().out == "the schema is up to date\n"
    assert treadle("migrate", "--check", "--json").done().json == {"missing": []}
