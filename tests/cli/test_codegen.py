"""`treadle codegen typescript` and the TypeScript that it makes; tests/sdk compiles it."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.http.served import served
from treadle.cli.typescript import typescript

CODE = """
from dataclasses import dataclass
from treadle import Queue

queue = Queue()

@dataclass
class Export:
    format: str
    rows: int = 3

@queue.job
async def export_users(payload: Export) -> list[int]: ...
"""
SHOWN = """\
export type ExportUsersPayload = {
  format: string;
  rows?: number;
};

export type ExportUsersResult = Array<number>;

export const createExportUsersJob = (client?: { jobs: Jobs }): StartableTracker<"export_users"> =>
  createJob("export_users", client);

declare module "treadle" {
  interface Topics {
    "export_users": { payload: ExportUsersPayload; result: ExportUsersResult };
  }
}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    (tmp_path / "jobs.py").write_text(CODE)
    command = Command(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    command("migrate").done()
    command("worker", "jobs:queue", "--burst")
    return command


def test_the_code_is_printed(command: Command) -> None:
    assert command("codegen", "typescript").done().out.endswith(SHOWN)


def test_it_is_written_only_when_it_changes(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "src" / "jobs.ts"
    assert command("codegen", "typescript", "--out", str(out)).done().out == f"wrote {out}\n"
    assert out.read_text().endswith(SHOWN)
    assert command("codegen", "typescript", "--out", str(out)).done().out == f"{out} is up to date\n"
    assert command("codegen", "typescript", "--out", str(out), "--check").done().out == f"{out} is up to date\n"
    out.write_text("old")
    assert "is out of date" in command("codegen", "typescript", "--out", str(out), "--check").refused(1)
    assert out.read_text() == "old"


def test_a_server_is_asked(command: Command, tmp_path: Path) -> None:
    assert command.database
    with served(tmp_path, command.database) as server:
        root = server.superuser()
        words = ("codegen", "typescript", "--url", server.url)
        alone = Command(tmp_path)
        assert alone(*words, "--token", root).done().out.endswith(SHOWN)
        assert alone(*words, TREADLE_TOKEN=root).done().out.endswith(SHOWN)
        assert "answered 401" in alone(*words).refused(2)
        assert "answered 404" in alone(*words[:-1], f"{server.url}/nothing").refused(2)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--check"], "--check needs --out"),
        (["--url", "file:///etc/passwd"], "does not begin with http"),
        (["--url", "http://127.0.0.1:8090", "--db", "sqlite:///jobs.db"], "not both"),
    ],
)
def test_bad_usage(tmp_path: Path, words: list[str], reason: str) -> None:
    assert reason in Command(tmp_path)("codegen", "typescript", *words).refused(2)


def test_a_server_that_is_away(tmp_path: Path) -> None:
    words = ("codegen", "typescript", "--url", "http://127.0.0.1:9")
    assert "can't be reached" in Command(tmp_path)(*words).refused(1)


def template(topic: str, **more: object) -> dict[str, object]:
    return {"topic": topic, "name": topic, "description": "", "steps": [], "payloadSchema": None, **more}


def payload_of(schema: object) -> str:
    code = typescript([template("mail", payloadSchema=schema)])
    return code.partition("export type MailPayload = ")[2].partition(";\n\nexport type MailResult")[0]


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "number | null"),
        ({"enum": ["a", 1, None, True]}, '"a" | 1 | null | true'),
        ({"const": "x"}, '"x"'),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "number | null"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "(string) & (null)"),
        ({"type": "array", "items": {"type": "string"}}, "Array<string>"),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]}, "[string, null]"),
        ({"type": "object"}, "Record<string, unknown>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"type": "object", "additionalProperties": False}, "Record<string, never>"),
        ({"properties": {"a-b": {}, "c": {"type": "null"}}, "required": ["c"]}, '{\n  "a-b"?: unknown;\n  c: null;\n}'),
        ({"$ref": "https://example.com/schema"}, "unknown"),
        ({"type": "nonsense"}, "unknown"),
        ({"type": {}}, "unknown"),
        ({}, "unknown"),
        (True, "unknown"),
        (False, "never"),
    ],
)
def test_schemas_become_types(schema: object, wanted: str) -> None:
    assert payload_of(schema) == wanted


def test_definitions_have_names_of_their_own_and_may_be_recursive() -> None:
    tree = {"type": "object", "properties": {"children": {"items": {"$ref": "#/$defs/Tree"}, "type": "array"}}}
    schema = {"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}}
    code = typescript([template("a.b", payloadSchema=schema), template("a_b", payloadSchema=schema)])
    assert "export type ABTree = {\n  children?: Array<ABTree>;\n};" in code
    assert "export type AB2Tree = {\n  children?: Array<AB2Tree>;\n};" in code


def test_topics_that_would_share_a_name_are_numbered() -> None:
    code = typescript([template(topic) for topic in ("a_b", "a.b", "3d", "django:app.tasks.Send")])
    assert [line.split()[2] for line in code.splitlines() if line.startswith("export const")] == [
        "createT3dJob",
        "createABJob",
        "createAB2Job",
        "createDjangoAppTasksSendJob",
    ]


def test_answers_and_the_result_of_a_flow() -> None:
    steps = [
        {"id": "draft", "resultSchema": {"type": "string"}, "answerSchema": None},
        {"id": "approve", "resultSchema": None, "answerSchema": {"type": "boolean"}},
        {"id": "publish", "resultSchema": {"type": "integer"}, "answerSchema": None},
    ]
    code = typescript([template("post", steps=steps)])
    assert "export type PostResult = number;" in code
    assert "export type PostAnswers = { approve: PostApproveAnswer };" in code
    assert '"post": { payload: PostPayload; result: PostResult; answers: PostAnswers };' in code
    graph = [{**steps[0], "after": []}, steps[2]]
    assert "export type PostResult = unknown;" in typescript([template("post", steps=graph)])


def test_a_description_can_not_end_its_comment() -> None:
    hostile = "one */ globalThis.hacked = 1; /*\u2028two\x00"
    code = typescript([template("mail", description=hostile, name="*/")])
    assert "*\\/" in code
    assert code.count("*/") == 1
    assert "\u2028" not in code
    assert "\x00" not in code
