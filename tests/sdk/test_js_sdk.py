"""The tests of the JavaScript SDK (`sdk/js/test`), against a real server with a worker on each store."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.http.served import PASSWORD, Served, served
from tests.sdk.sdk_build import SDK

HERE = Path(__file__).parent
SECONDS = 280
FILES = sorted(path.name.removesuffix(".test.ts") for path in (SDK / "test").glob("*.test.ts"))


@dataclass(frozen=True)
class Suite:
    """Runs a file of tests with node."""

    node: Path
    server: Served
    api_key: str

    def run(self, name: str) -> None:
        command = [str(self.node), "--test", "--test-reporter=spec", f"build/{name}.test.js"]
        environment = {
            "TREADLE_TEST_URL": self.server.url,
            "TREADLE_TEST_PASSWORD": PASSWORD,
            "TREADLE_TEST_API_KEY": self.api_key,
            "PATH": os.environ["PATH"],
        }
        shown, errors, failed = _ran(command, environment)
        assert not failed, (shown.partition("failing tests:")[2] or shown) + errors
        assert "ℹ fail 0" in shown
        assert "ℹ skipped 0" in shown


def _ran(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, int]:
    """Run a command; returns its stdout, its stderr and its exit status."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(command, cwd=SDK, env=environment, start_new_session=True, **pipes) as running:
        try:
            shown, errors = running.communicate(timeout=SECONDS)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)  # node runs the tests in a child, which would outlive it
            raise
    return shown, errors, running.returncode


@pytest.fixture(scope="module")
def suite(node: Path, sdk: Path, database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("sdk")
    shutil.copy(HERE / "sdk_jobs.py", folder)
    with served(folder, database, "sdk_jobs:queue", TREADLE_POLL_INTERVAL="200ms") as server:
        rules = {"enqueue_rule": "@request.auth.id != ''", "manage_rule": "createdBy = @request.auth.id"}
        answer = server.call("PATCH", "/api/settings", server.superuser(), json={"jobs": rules})
        assert answer.status_code == 200, answer.text
        server.treadle("user", "create", "ann@example.com", PASSWORD).done()
        key = server.treadle("api-key", "create", "sdk", "--scope", "enqueue,manage,workers", "--json").done().json
        yield Suite(node, server, key["secret"])


@pytest.mark.parametrize("name", FILES)
def test_the_suite_passes(suite: Suite, name: str) -> None:
    suite.run(name)
