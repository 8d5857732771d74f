"""`treadle demo`: ends by itself, tells the truth, can be run again."""

import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import SECONDS, TREADLE, Command
from treadle.cli.demo import scenes


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Command, str]:
    """The folder of a demo that has been run, and what it printed."""
    command = Command(tmp_path_factory.mktemp("demo"))
    return command, command.from_shell("demo").done().out


def test_every_kind_of_job_ends_as_it_should(played: tuple[Command, str]) -> None:
    command, text = played
    jobs = command.bare("jobs", "list", "--json", "--db", "sqlite:///treadle-demo.db").done().json["items"]
    found = sorted((job["topic"], job["status"]) for job in jobs)
    assert found == sorted(
        [
            ("send_mail", "completed"),
            ("resize_image", "completed"),
            ("count_primes", "completed"),
            ("build_report", "completed"),
            ("fetch_rates", "completed"),
            ("import_file", "failed"),
            ("charge_card", "failed"),
            ("call_partner", "failed"),
            ("remind", "completed"),
            ("wait_for_upload", "completed"),
            ("export_all", "cancelled"),
            ("confirm_order", "completed"),
            *[("sync_account", "completed")] * 3,
            *[("deliver", "completed")] * 3,
            ("render_video", "expired"),
            ("render_video", "pending"),
        ]
    )
    assert "14 completed, 3 failed, 1 cancelled, 1 expired, 1 pending" in text


def test_the_jobs_did_what_the_table_says(played: tuple[Command, str]) -> None:
    command, text = played
    items = command.bare("jobs", "list", "--json", "--db", "sqlite:///treadle-demo.db").done().json["items"]
    jobs: dict[str, list[Any]] = {}
    for job in reversed(items):
        jobs.setdefault(job["topic"], []).append(job)
    assert jobs["fetch_rates"][0]["attempt"] == 3
    assert jobs["wait_for_upload"][0]["attempt"] == 1  # a snooze costs no attempt
    assert jobs["wait_for_upload"][0]["eventsCount"] > 3
    low, normal, critical = jobs["deliver"]
    assert critical["startedAt"] < normal["startedAt"] < low["startedAt"]
    first, second, other = jobs["sync_account"]
    assert second["startedAt"] >= first["completedAt"]
    assert other["startedAt"] < first["completedAt"]
    assert jobs["count_primes"][0]["result"] == 5133
    for scene in scenes():
        assert f"\n{scene.shows} " in text


def test_the_commands_it_names_work(played: tuple[Command, str]) -> None:
    command, text = played
    commands = [line.strip() for line in text.split("Look further:\n")[1].splitlines()]
    assert len(commands) == 6
    for line in commands:
        words = shlex.split(line)
        assert words[0] == TREADLE
        if words[1] != "worker":
            command.bare(*words[1:]).done()
    assert command.bare(*shlex.split(commands[3])[1:]).out == "no live worker serves topic render_video\n"


def test_a_worker_can_go_on_with_its_jobs(played: tuple[Command, str]) -> None:
    command, _ = played
    at = ["--db", "sqlite:///treadle-demo.db"]
    with command.worker("--capabilities", "gpu", *at, target="treadle.cli.demo_jobs:queue"):
        waiting = command.bare("jobs", "list", "--topic", "render_video", "--status", "pending", "--json", *at)
        deadline = time.monotonic() + SECONDS
        while waiting.done().json["items"] and time.monotonic() < deadline:
            waiting = command.bare("jobs", "list", "--topic", "render_video", "--status", "pending", "--json", *at)
        assert waiting.json["items"] == []


def test_it_can_be_run_again_and_into_another_folder(alone: Command) -> None:
    ids = set()
    for _ in range(2):
        jobs = alone.from_shell("demo", "--dir", "here/and there", "--json").done().json["items"]
        assert len(jobs) == len(scenes())
        ids |= {job["id"] for job in jobs}
    assert len(ids) == 2 * len(scenes())
    assert (alone.folder / "here" / "and there" / "treadle-demo.db").exists()


def test_a_folder_that_cannot_be(alone: Command) -> None:
    (alone.folder / "file").touch()
    assert "--dir: file" in alone.from_shell("demo", "--dir", "file").refused(2)


def test_on_a_terminal_there_is_a_live_table(alone: Command) -> None:
    """Drawn again and again in place; the last one stays."""
    ran = alone.on_terminal("demo")
    text = ran.out
    assert ran.code == 0, text
    assert text.count("WHAT IT SHOWS") > 5
    assert "\x1b[" in text
    last = text[text.rindex("WHAT IT SHOWS") :]
    assert "Look further:" in last
    assert "nobody needs it any more" in last


def test_it_speaks_of_nothing_that_is_not_there(played: tuple[Command, str]) -> None:
    _, text = played
    assert "dashboard" not in text.lower()
    assert "http" not in text.lower()
    assert Path(TREADLE).name in text
