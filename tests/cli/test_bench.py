"""`treadle bench`."""

import pytest

from tests.cli.command import Command
from tests.cli.conftest import APP
from treadle import Queue


def test_measures_in_a_temporary_file(alone: Command) -> None:
    """No other database is touched, whatever the environment names."""
    found = alone.bare("bench", "--jobs", "50", "--json", TREADLE_DB="sqlite:///named.db").done().json
    assert (found["database"], found["jobs"]) == ("a temporary SQLite file", 50)
    for part in ("enqueue", "drain"):
        assert set(found[part]) == {"seconds", "jobsPerSecond", "cpuMicrosecondsPerJob"}
        assert found[part]["jobsPerSecond"] > 0
        assert found[part]["cpuMicrosecondsPerJob"] > 0
    assert list(alone.folder.iterdir()) == []


@pytest.mark.every_store
def test_measures_in_a_database_without_jobs(treadle: Command) -> None:
    lines = treadle("bench", "--jobs", "1001").done().out.splitlines()
    assert lines[0].startswith("1,001 jobs in ")
    assert lines[1].split() == ["JOBS/S", "CPU", "PER", "JOB"]
    assert [line.split()[0] for line in lines[2:]] == ["enqueue", "drain"]
    with Queue(treadle.database).sync as queue:
        assert queue.stats(topic="bench").completed == 1001
    told = treadle("bench", "--jobs", "1").refused(1)
    assert told.endswith(" has jobs; measure in a database without any")


@pytest.mark.parametrize("words", ["--jobs 0", "--jobs 1000001", "--jobs many", "app:queue"])
def test_bad_usage(alone: Command, words: str) -> None:
    alone.module("app", APP)
    alone.bare("bench", *words.split()).refused(2)
