"""The settings of this process, from its environment and the file `treadle.toml` in its working directory."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.model.errors import InvalidInput
from treadle.model.settings import Settings, combined


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    return combined(_from_file((folder or Path.cwd()) / "treadle.toml"), os.environ if environ is None else environ)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from None
