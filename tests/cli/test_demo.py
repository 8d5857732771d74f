"""`treadle demo`: a lively queue and its dashboard, until Ctrl-C."""

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.test_seed_002_templates import SEED
from tests.cli.command import SECONDS, Command
from tests.dashboard.visitor import words
from tests.waiting import until_blocking
from treadle.cli.demo import arrivals


class Demo:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        self.process = process
        self.lines = [process.stdout.readline() for _ in range(4)]
        found = re.search(r"Dashboard +(http://\S+)/_/\nSign in +(\S+)\nPassword +(\S+)\n", "".join(self.lines))
        assert found, self.lines
        self.url, self.email, self.password = found.groups()

    @contextlib.contextmanager
    def signed_in(self) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=self.url, timeout=SECONDS) as client:
            form = {"identity": self.email, "password": self.password}
            assert client.post("/_/login", data=form).headers["location"] == "/_/"
            yield client


@contextlib.contextmanager
def playing(folder: Path, *words: str) -> Iterator[Demo]:
    with Command(folder).started("demo", *words) as process:
        yield Demo(process)


def test_jobs_of_every_kind_arrive_and_the_sign_in_works(tmp_path: Path) -> None:
    with playing(tmp_path, "--port", "0") as demo, demo.signed_in() as client:
        topics = {arrival.topic for arrival in arrivals()}

        def all_there() -> bool:
            items = client.get("/api/topics").json()["items"]
            return topics <= {item["topic"] for item in items}

        until_blocking(all_there)

        def lively() -> bool:
            stats = client.get("/api/jobs/stats").json()
            return all(stats[status] > 0 for status in ("pending", "processing", "waiting", "completed", "failed"))

        until_blocking(lively)
        assert "demo" in client.get("/_/").text
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(SECONDS) == 0
        assert demo.process.stderr
        assert demo.process.stderr.read() == ""


def test_the_first_look_sees_a_queue_at_work(tmp_path: Path) -> None:
    """Jobs have ended in every way before anyone has signed in: real ones, which the worker has run."""
    with playing(tmp_path, "--port", "0") as demo, demo.signed_in() as client:

        def at_work() -> bool:
            page = words(client.get("/_/").text)
            counts = re.search(r"completed ([\d,]+) retried ([\d,]+) failed ([\d,]+)", page)
            return counts is not None and "0" not in counts.groups() and "p95 run –" not in page

        until_blocking(at_work)
        jobs = client.get("/api/jobs", params={"status": "completed", "limit": 100}).json()["items"]
        assert all(job["lastWorker"] and job["startedAt"] for job in jobs)


def test_the_next_free_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with playing(tmp_path, "--port", str(number)) as demo:
            assert number < int(demo.url.rpartition(":")[2]) <= number + 20


def test_it_can_be_started_again(tmp_path: Path) -> None:
    for _ in range(2):
        with playing(tmp_path, "--port", "0") as demo, demo.signed_in() as client:
            assert client.get("/_/jobs").status_code == 200
            demo.process.send_signal(signal.SIGTERM)
            assert demo.process.wait(SECONDS) == 0
    assert (tmp_path / "treadle-demo.db").exists()


def test_a_folder_that_can_t_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--dir" in Command(tmp_path).bare("demo", "--dir", "file").refused(2)


def test_it_has_the_templates_of_the_requirements(tmp_path: Path) -> None:
    with playing(tmp_path, "--port", "0") as demo, demo.signed_in() as client:
        found = {one["topic"]: one for one in client.get("/api/templates").json()["items"]}
        assert found.keys() >= {"demo_long_task", "scheduled_report", "multi_step_pipeline"}
        assert SEED.items() <= found["demo_long_task"].items()
        schedule = client.get("/api/schedules/scheduled_report").json()
        assert (schedule["cron"], schedule["timezone"]) == ("0 9 * * *", "Asia/Taipei")


def test_its_pipeline_is_a_flow_with_the_steps_of_the_requirements(tmp_path: Path) -> None:
    with playing(tmp_path, "--port", "0") as demo, demo.signed_in() as client:
        found = {one["topic"]: one for one in client.get("/api/templates").json()["items"]}
        fields = ("id", "name", "timeoutSeconds", "cancelable", "workerType")
        assert [tuple(step[field] for field in fields) for step in found["multi_step_pipeline"]["steps"]] == [
            ("prepare", "準備資料", 60, True, "python"),
            ("execute", "執行任務", 300, True, "python"),
            ("finalize", "整理結果", 30, False, "python"),
        ]

        def jobs(topic: str, condition: str) -> list[dict[str, Any]]:
            answer = client.get("/api/jobs", params={"filter": f"topic = '{topic}' && {condition}"})
            items: list[dict[str, Any]] = answer.json()["items"]
            return items

        until_blocking(lambda: jobs("multi_step_pipeline", "status = 'completed'"))
        until_blocking(lambda: jobs("publish_corpus", "status = 'waiting'"))
        until_blocking(lambda: jobs("ask_agent", "(step = 'model' || step = 'tool')"))
