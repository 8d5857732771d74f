"""Django: the checks in `django_checks` run under Django's own test runner, and the example as its README says.

Django 6 needs Python 3.12, so all of this runs in an environment of its own (`django_environment.py`).
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integrations.django_environment import find_django_python
from tests.servers import PostgresServer, needed
from tests.waiting import until_blocking

EXAMPLE = Path(__file__).parents[2] / "examples" / "django"
SECONDS = 250


@pytest.fixture(scope="session")
def django_python() -> Path:
    return needed(find_django_python)


class Project:
    """The example, with its data in a folder of its own."""

    def __init__(self, python: Path, folder: Path, **environment: str) -> None:
        self.python = python
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TREADLE_", "COV"))}
        self.environment = {**kept, "SHOP_DATA": str(folder), "PYTHONPATH": str(Path(__file__).parent), **environment}

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.python, "manage.py", *words],
            cwd=EXAMPLE,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def __call__(self, *words: str, **environment: str) -> str:
        process = self.start(*words, **environment)
        try:
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, output[-8000:]
        return output


@pytest.fixture
def project(django_python: Path, tmp_path: Path) -> Project:
    return Project(django_python, tmp_path)


def postgres_environment(url: str) -> Mapping[str, str]:
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGUSER": parts.username or "",
        "PGPASSWORD": parts.password or "",
        "PGDATABASE": parts.path[1:],
    }


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_tasks_pass_their_checks(project: Project, store: str, request: pytest.FixtureRequest) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "django_checks.settings"}
    if store == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        with server.database() as name:
            _check(project, {**environment, **postgres_environment(server.url(name))})
    else:
        _check(project, environment)


def _check(project: Project, environment: Mapping[str, str]) -> None:
    output = project("test", "-p", "checks_*.py", "--noinput", "django_checks", **environment)
    found = re.search(r"Ran (\d+) tests", output)
    assert found, output[-4000:]
    assert int(found[1]) > 25
    assert "\nOK" in output, output[-4000:]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_example_works_as_it_says(project: Project, store: str, request: pytest.FixtureRequest) -> None:
    if store == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        project.environment |= postgres_environment(server.create_database(f"shop_{os.getpid()}"))
    assert "no issues" in project("check")
    project("migrate")
    assert "No changes detected" in project("makemigrations", "--check", "--dry-run")
    ordered = project("order", "Ada")
    refused = project.start("order", "nobody")
    assert "nobody can't order" in refused.communicate(timeout=SECONDS)[0]
    log = project("treadle", "worker", "--burst", "--slots", "2")
    assert "send_receipt completed" in log
    jobs = project("treadle", "jobs", "list", "--json")
    assert jobs.count('"status": "completed"') + jobs.count('"status":"completed"') == 2, jobs
    task = ordered.split()[-1]
    assert task in jobs
    assert "label for Ada" in jobs


def test_a_worker_with_several_processes_stops_at_a_signal(project: Project) -> None:
    project("migrate")
    project("order", "Ada")
    process = project.start("treadle", "worker", "--processes", "2")

    def done() -> bool:
        return project("treadle", "jobs", "list", "--status", "completed").count("completed") >= 2

    try:
        until_blocking(done, 60)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert output.count("has stopped") == 2


def test_without_django_6_the_message_says_what_is_needed() -> None:
    script = "import sys; sys.modules['django'] = None\nimport treadle.integrations.django"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert "pip install 'treadle[django]'" in done.stderr
    script = "import django; django.VERSION = (5, 2, 0)\nimport treadle.integrations.django"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert "needs Django 6.0 and Python 3.12" in done.stderr
