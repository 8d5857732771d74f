"""Secret payload fields on the command line."""

from tests.cli.command import Command

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
