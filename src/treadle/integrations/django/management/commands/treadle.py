"""`manage.py treadle …`: Treadle's command line, on the project's database and with its tasks."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

APP = "treadle.integrations.django.app:queue"
WITH_HANDLERS = ("worker", "serve")


class Command(BaseCommand):
    help = "Treadle's commands: worker, serve, jobs, schedules, stats, doctor and more."

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """The arguments are Treadle's own, so Django's parser does not read them."""
        sys.exit(run(list(argv[2:]), reloads=settings.DEBUG))

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *_: Any, words: list[str], **__: Any) -> None:
        """For `call_command("treadle", "jobs", "list")`."""
        if code := run(words):
            raise CommandError(f"treadle {' '.join(words)} ended with {code}", returncode=code)


def run(words: list[str], *, reloads: bool = False) -> int:
    from treadle.cli import main
    from treadle.integrations.django import app

    os.environ["TREADLE_DB"] = app.queue.url
    if words and words[0] in WITH_HANDLERS:
        words[1:1] = _chosen_here(words, app.chosen().queues)
        if reloads and words[0] == "worker" and not {"--burst", "--reload", "--noreload"} & set(words):
            words.append("--reload")
        words = [word for word in words if word != "--noreload"]
    sys.argv = ["treadle", *words]  # processes of a worker are started with the same words
    return main(words)


def _chosen_here(words: list[str], queues: set[str]) -> list[str]:
    """The project's queue, and a worker for all queues of the backend, unless the words say it."""
    named = len(words) > 1 and ":" in words[1] and not words[1].startswith("-")
    target = [] if named else [APP]
    others = sorted(queues - {"default"})
    if words[0] == "worker" and others and not any(word.startswith("--capabilities") for word in words):
        words.extend(["--capabilities", ",".join(others)])
    return target
