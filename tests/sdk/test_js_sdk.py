"""The tests of the JavaScript SDK (`sdk/js/test`), against a real server with a worker on each store."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        done = subprocess.run(
            command, cwd=SDK, env=environment, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
        )
        assert done.returncode == 0, (done.stdout.partition("failing tests:")[2] or done.stdout) + done.stderr
        assert "ℹ fail 0" in done.stdout
        assert "ℹ skipped 0" in done.stdout


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
