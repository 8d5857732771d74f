"""What `treadle codegen typescript` makes compiles under `strict`, and runs nothing but its own lines."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.typescript import typescript

HOSTILE = (
    "ends */ globalThis.hacked = 1; /*\u2028globalThis.hacked = 2;\nglobalThis.hacked = 3 ` ${globalThis.hacked = 4}"
)
STRICT = {
    "strict": True,
    "noUncheckedIndexedAccess": True,
    "exactOptionalPropertyTypes": True,
    "noUnusedLocals": True,
    "isolatedModules": True,
    "verbatimModuleSyntax": True,
    "module": "NodeNext",
    "target": "ES2022",
    "lib": ["ES2022", "DOM", "DOM.Iterable", "DOM.AsyncIterable"],
    "types": [],
    "outDir": "out",
    "rootDir": ".",
}


def template(topic: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "name": HOSTILE, "description": HOSTILE, "steps": [], "payloadSchema": None, **more}


HOSTILE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": HOSTILE,
    "properties": {
        HOSTILE: {"type": "string", "description": HOSTILE},
        "__proto__": {"const": HOSTILE},
        "constructor": {"enum": [HOSTILE, 1, None, 1e308, 2**70]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/" + HOSTILE.replace("/", "~1")}},
        "self": {"$ref": "#"},
        "default": {"type": ["string", "integer", "null"]},
        "": {},
    },
    "required": [HOSTILE, "default"],
    "additionalProperties": {"type": "integer"},
    "$defs": {HOSTILE: {"type": "object", "properties": {"parent": {"$ref": "#"}}}},
}
STEPS = [{"id": HOSTILE, "answerSchema": {"type": "boolean", "description": HOSTILE}, "resultSchema": None}]
TEMPLATES = [
    template("a.b", payloadSchema=HOSTILE_SCHEMA, resultSchema=HOSTILE_SCHEMA, steps=STEPS),
    template("a_b", payloadSchema=HOSTILE_SCHEMA),
    template("class", payloadSchema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    template("3d"),
    template(HOSTILE),
    template("jobs"),
    template("starting"),
]
USE = """
import type { PayloadOf, ResultOf } from "treadle";
import { createABJob, createClassJob, type ClassPayload } from "./generated.js";
const payload: ClassPayload = { n: 1 };
const other: PayloadOf<"class"> = payload;
// @ts-expect-error n is a number
const wrong: PayloadOf<"class"> = { n: "1" };
export const found: unknown[] = [createABJob(), createClassJob(), other, wrong, null as ResultOf<"a.b"> | null];
// @ts-expect-error n is missing
export const start = () => createClassJob().start({});
"""
RUN = """
import * as made from "./out/generated.js";
console.log(JSON.stringify({ names: Object.keys(made), hacked: globalThis.hacked ?? null }));
"""


@pytest.fixture
def project(tmp_path: Path, sdk: Path) -> Path:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "treadle").symlink_to(sdk)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT, "files": ["use.ts"]}))
    return tmp_path


def test_it_compiles_and_is_inert(project: Path, sdk: Path, node: Path) -> None:
    (project / "generated.ts").write_text(typescript(TEMPLATES), encoding="utf-8")
    (project / "use.ts").write_text(USE)
    tsc = sdk / "node_modules" / ".bin" / "tsc"
    done = subprocess.run([str(tsc)], cwd=project, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stdout + (project / "generated.ts").read_text(encoding="utf-8")
    (project / "run.mjs").write_text(RUN)
    told = subprocess.run(
        [str(node), "run.mjs"], cwd=project, capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    found = json.loads(told.stdout)
    assert found["hacked"] is None
    assert {"createABJob", "createAB2Job", "createClassJob", "createT3dJob", "createJobsJob"} <= set(found["names"])
    assert len(found["names"]) == len(TEMPLATES)
