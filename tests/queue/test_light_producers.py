"""A program that only enqueues pays for no server and no worker."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from tests.measuring import FOR_CHILDREN

HEAVY = (
    "fastapi starlette uvicorn jinja2 argon2 lark aiohttp prometheus_client typer rich sse_starlette jwt httptools "
    "uvloop jsonschema_rs multiprocessing"
).split()
LOADED = f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & set({HEAVY})))"
PARTS = """
import sys
print(sorted({name for name in sys.modules if name.startswith(("treadle.worker", "treadle.http", "treadle.cli",
    "treadle.dashboard", "treadle.maintenance", "treadle.accounts"))}))
"""


def output_of(program: str) -> list[str]:
    """In a fresh process: this one has everything loaded. Without coverage, which loads modules of its own."""
    plain = {name: value for name, value in os.environ.items() if name != FOR_CHILDREN}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=False, env=plain
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.every_store
@pytest.mark.parametrize("way", ["blocking", "awaited", "task"])
def test_an_enqueue_loads_no_server_module(url: str, way: str) -> None:
    programs = {
        "blocking": "queue.sync.enqueue('mail', {'to': 'ada'}); queue.sync.close()",
        "awaited": "asyncio.run(main())",
        "task": "report.sync.enqueue('ada', days=3); queue.sync.close()",
    }
    program = f"""
import asyncio, sys
from treadle import Queue, Retry

queue = Queue({url!r})

@queue.job(retry=Retry(5), priority="high")
def report(user: str, days: int = 7) -> str:
    return user

async def main() -> None:
    async with queue:
        await queue.enqueue("mail", {{"to": "ada"}}, delay="1m")

{programs[way]}
{LOADED}
{PARTS}
"""
    assert output_of(program) == ["[]", "[]"]


def test_importing_the_package_loads_almost_nothing() -> None:
    program = "import sys, treadle; print([name for name in sys.modules if name.startswith(('treadle', 'pydantic'))])"
    assert output_of(program) == ["['treadle']"]


def test_every_name_is_there_and_where_type_checkers_see_it() -> None:
    for name in treadle.__all__:
        assert getattr(treadle, name) is not None
        assert name in dir(treadle)
    tree = ast.parse(Path(inspect.getfile(treadle)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {node.module: [alias.name for alias in node.names] for node in imports}
    assert seen == {home: names.split() for home, names in treadle._HOMES.items()}
    assert sorted(name for names in seen.values() for name in names) == treadle.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cue'"):
        _ = treadle.Cue  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from treadle import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_every_dependency_has_its_reason() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    lines = text.split("\ndependencies = [\n")[1].split("\n]")[0].splitlines()
    assert len(lines) > 10
    assert [line for line in lines if "# " not in line] == []
