"""Secret payload fields on the command line."""

import asyncio

from tests.cli.command import Command
from treadle import Queue

APP = """
from treadle import Queue

queue = Queue()

@queue.job(secret=["token"])
def pay(payload: dict) -> None: ...
"""
TOKEN = "s3cr3t-t0k3n"


def test_no_command_shows_a_secret(treadle: Command) -> None:
    treadle.module("shop", APP)
    words = ["enqueue", "shop:queue", "pay", '{"user": "ann", "token": "%s"}' % TOKEN]
    made = treadle(*words, "--json").done()
    assert made.json["payload"] == {"user": "ann", "token": "***"}
    for command in (["jobs", "list"], ["jobs", "show", made.json["id"]], ["jobs", "why", made.json["id"]]):
        for form in ([], ["--json"]):
            ran = treadle(*command, *form)
            assert TOKEN not in ran.out + ran.err
    assert '"token": "***"' in treadle("jobs", "show", made.json["id"]).done().out


def test_the_history_of_a_job_shows_no_secret_of_its_old_payload(treadle: Command) -> None:
    treadle.module("shop", APP)
    words = ["enqueue", "shop:queue", "pay", '{"user": "ann", "token": "%s"}' % TOKEN]
    id = treadle(*words, "--json").done().json["id"]
    treadle("jobs", "cancel", id).done()

    async def again() -> None:
        async with Queue(treadle.database) as queue:
            await queue.requeue(id, payload={"token": "other"})

    asyncio.run(again())
    shown = treadle("jobs", "show", id, "--json").done()
    assert shown.json["events"][-1]["metadata"]["payload"] == {"user": "ann", "token": "***"}
    assert TOKEN not in shown.out + treadle("jobs", "show", id).done().out


def test_no_command_shows_a_secret_of_a_schedule(treadle: Command) -> None:
    treadle.module("shop", APP)
    treadle("enqueue", "shop:queue", "pay", '{"token": "x"}').done()  # saves the template
    payload = '{"user": "ann", "token": "%s"}' % TOKEN
    commands = [
        ["create", "pay", "--cron", "@monthly", "--id", "monthly", "--payload", payload],
        ["edit", "monthly", "--payload", '{"user": "bob", "token": "***"}'],
        ["disable", "monthly"],
        ["enable", "monthly"],
        ["list"],
        ["show", "monthly"],
        ["run", "monthly"],
    ]
    for command in commands:
        assert TOKEN not in treadle("schedules", *command).done().out
    for command in commands[1:]:
        assert TOKEN not in treadle("schedules", *command, "--json").done().out
    assert '"token": "***"' in treadle("schedules", "show", "monthly").done().out
